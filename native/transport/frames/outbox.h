/* outbox.h - frames into a transport, from many threads, in one order.
 *
 * Small frames are collected in a buffer and leave together: when somebody waits
 * for a reply (outbox_flush), when the buffer is full (the thread that filled it
 * writes it, which is the back-pressure), or some 50 us later by the outbox's own
 * thread.  Large frames leave at once, behind all that was collected before them.
 * Where the transport writes without system calls, every frame leaves at once.
 */
#ifndef FARBUS_TRANSPORT_OUTBOX_H
#define FARBUS_TRANSPORT_OUTBOX_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "../../wire/frame.h"
#include "../transport.h"

#define OUTBOX_BYTES (256u << 10)
/* From here on a tail is written from where it lies instead of being copied. */
#define OUTBOX_COPY_BYTES (16u << 10)

struct outbox {
	struct transport *transport;
	pthread_mutex_t append;		/* over: buffers, filled, sequence, error */
	pthread_mutex_t write;		/* over the transport; taken before `append` */
	pthread_t thread;
	uint8_t *buffers[2];
	int active;
	size_t filled;
	uint64_t sequence;		/* of the last frame */
	int error;			/* sticky: the transport is broken */
	bool thread_started;
	_Atomic uint32_t asleep;	/* the thread waits on this word */
	_Atomic bool stop;
};

/* Called with the sequence number of a frame before it can leave, under the
 * append lock: the place to register who waits for the reply. */
typedef void (*outbox_register)(void *opaque, uint64_t sequence);

int outbox_init(struct outbox *outbox, struct transport *transport);
/* Start the thread that sends what nobody waits for; signals are blocked in it. */
int outbox_start(struct outbox *outbox);
void outbox_stop(struct outbox *outbox);
void outbox_release(struct outbox *outbox);

/* Append one frame: header (sequence and length are filled in), fixed part, tail.
 * 0 or the error that broke the transport. */
int outbox_append(struct outbox *outbox, struct wire_header *header, const void *fixed,
		  size_t fixed_bytes, const void *tail, size_t tail_bytes,
		  outbox_register on_sequence, void *opaque);

/* The same with a tail that the transport may read where it lies until outbox_settle: its
 * memory stays as it is until then.  Not for tails that a reply is waited for. */
int outbox_lend(struct outbox *outbox, struct wire_header *header, const void *fixed,
		size_t fixed_bytes, const void *tail, size_t tail_bytes);
/* What was lent of this memory is the caller's again. */
void outbox_settle(struct outbox *outbox, const void *at, size_t bytes);

/* Write all that was appended before the call. */
int outbox_flush(struct outbox *outbox);

#endif
