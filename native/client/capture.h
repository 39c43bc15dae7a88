/* capture.h - streams that are captured (capture.c). */
#ifndef FARBUS_CLIENT_CAPTURE_H
#define FARBUS_CLIENT_CAPTURE_H

#include "client.h"

/* Is any stream being captured?  Else no server need be asked. */
static inline bool client_captures(void)
{
	return atomic_load_explicit(&farbus_client.capturing, memory_order_relaxed) > 0;
}
/* Is the stream (named as on the wire) being captured?  Into what: NULL for nothing. */
bool client_stream_captured(uint64_t stream);
CUgraph client_stream_capture_graph(uint64_t stream);
/* What a stream captured is over with it, as with its context, its green context and the thread whose stream it is. */
void client_capture_leave(uint64_t stream);
void client_captures_end_context(const struct client_context *context);
void client_captures_end_green(const struct client_green *green);
void client_captures_end_thread(uint16_t lane);

#endif
