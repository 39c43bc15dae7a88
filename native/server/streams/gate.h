/* gate.h - streams that wait for the client (gate.c). */
#ifndef FARBUS_SERVER_GATE_H
#define FARBUS_SERVER_GATE_H

#include "../server_ops.h"

/* Let a stream wait until the gate is opened; false: here it can't.  An event, and its return. */
bool server_gate_close(struct server_call *call, CUstream stream, unsigned *gate);
void server_gate_open(struct server_context *context, unsigned gate);
CUresult server_mark_take(struct server_call *call, struct server_mark **out);
void server_mark_give(struct server_context *context, struct server_mark *mark);

#endif
