/* streams.h - streams as handles: what they name, and in which context they work (streams.c). */
#ifndef FARBUS_CLIENT_STREAMS_H
#define FARBUS_CLIENT_STREAMS_H

#include "../client.h"

/* What travels for a handle; the result that CUDA gives for a wrong one. */
CUresult client_stream_wire(CUstream stream, uint64_t *wire);
/* Begin a call about a stream: as client_enter, but one that the program made has a context, so that none
 * need be current. */
CUresult client_enter_stream(CUstream stream);
/* Both, for work that goes into the stream, and the sticky error of its own context. */
CUresult client_stream_enter(CUstream stream, uint64_t *wire);
/* The context that a stream works in, as named on the wire: CUDA's special streams are the
 * current context's.  NULL: there is none. */
struct client_context *client_stream_context(uint64_t stream);
/* NULL for one that was never made, is destroyed or has ended with its context. */
struct client_stream *client_stream_find(uint64_t stream);
/* Would the driver spin where this request, made in `context`, waits?  By default it does (cuCtxCreate's and
 * cuEventCreate's flags). */
bool client_wait_spins(CUcontext context, enum wire_op op, const void *fixed);

#endif
