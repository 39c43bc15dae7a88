/* frames.h - frames to the client, and what comes in the tail of one of its own (frames.c). */
#ifndef FARBUS_SERVER_FRAMES_H
#define FARBUS_SERVER_FRAMES_H

#include "../server_ops.h"

/* Add to a counter that has one writer at a time: no lock, and readers see whole numbers. */
static inline void server_count(_Atomic uint64_t *counter, uint64_t more)
{
	uint64_t before = atomic_load_explicit(counter, memory_order_relaxed);

	atomic_store_explicit(counter, before + more, memory_order_relaxed);
}

/* Send one frame; parts with no bytes are left out. */
int server_send(struct server *server, uint16_t opcode, uint16_t lane, uint64_t sequence,
		uint64_t argument, const void *fixed, size_t fixed_bytes, const void *tail,
		size_t tail_bytes);
/* Send bytes of a copy to the host, which belong at `offset`; `replied`: they are the last ones, and the reply follows at once. */
int server_send_data(struct server *server, uint16_t lane, uint64_t sequence, uint64_t offset, const void *bytes,
		     size_t count, bool replied);
/* Begin a frame that the caller finishes: it writes `tail_bytes` to the transport, and lets
 * go of server->write whatever this returns. */
int server_send_begin(struct server *server, uint16_t opcode, uint16_t lane, uint64_t sequence,
		      const void *fixed, size_t fixed_bytes, size_t tail_bytes);
/* Take the tail's next bytes from the inbox; for operations with bulk tails. */
CUresult server_take(struct server_call *call, void *target, size_t bytes);
/* A reply's tail of as many bytes as there may be; `server_tail_close` says how many there are. */
struct wire_writer;
CUresult server_tail_open(struct server_call *call, struct wire_writer *writer);
void server_tail_close(struct server_call *call, const struct wire_writer *writer);
/* Let others see what carries the calls. */
void server_status_carried(struct server *server, const struct transport *transport);

#endif
