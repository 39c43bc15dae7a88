/* capture.h - stream capture (capture.c). */
#ifndef FARBUS_SERVER_CAPTURE_H
#define FARBUS_SERVER_CAPTURE_H

#include "../server_ops.h"

/* May this call be made while streams are captured? */
CUresult server_capture_permit(struct server_call *call);
void server_capture_end(struct server *server, CUstream stream);
void server_captures_forget(struct server *server, CUcontext context);
/* The graph that a stream is captured into, or NULL. */
CUgraph server_capture_graph(const struct server_driver *driver, CUstream stream);

#endif
