/* captures.h - streams that are captured (captures.c). */
#ifndef FARBUS_CLIENT_CAPTURES_H
#define FARBUS_CLIENT_CAPTURES_H

#include "../handles/route.h"

/* A graph as the program sees it, from the server of that stream. */
static inline CUgraph client_graph_take(uint64_t stream, uint64_t graph)
{
	return (CUgraph)(uintptr_t)client_named_take(client_stream_session(stream), graph);
}
/* What its server says of a stream that may be captured; *tail is malloc'ed, or NULL. */
CUresult client_capture_info(uint64_t stream, struct wire_capture_info_reply *reply, uint8_t **tail,
			     size_t *tail_bytes);
/* Counted before it begins, for threads that meet the stream meanwhile.  Whether it has begun this call says alone: what
 * was posted before it, and refused, the next one tells. */
CUresult client_capture_begin(const struct client_request *request, uint64_t stream);
/* Is the stream (named as on the wire) being captured?  Into what: NULL for nothing. */
bool client_stream_captured(uint64_t stream);
CUgraph client_stream_capture_graph(uint64_t stream);
/* What a stream captured is over with it, as with its context, its green context and the thread whose stream it is. */
void client_capture_leave(uint64_t stream);
void client_captures_end_context(const struct client_context *context);
void client_captures_end_green(const struct client_green *green);
void client_captures_end_thread(uint16_t lane);

#endif
