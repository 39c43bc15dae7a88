/* retained.h - what one side of a stream has written and the other has not acknowledged: it stays, and can be sent again.
 *
 *	acknowledged <= written <= acknowledged + window <= acknowledged + most
 *
 * The byte at an offset has its place in a ring of `most` bytes, of which a window is used.  Or it lies where the writer has
 * lent it, or in staging, where it was made in place: then its place in the ring is kept free for it until it is settled.
 *
 * How many bytes the network holds is measured in rounds: from sending a byte to its
 * acknowledgement.  What is acknowledged in a round is a rate, the shortest round is
 * the time without queues, and the window is at least twice their product.  A window that
 * is full begins a round of its own, or copies not much larger than it would never show how much the network holds.
 *
 * Two callers at a time: who writes (w), and who hears of acknowledgements (a).
 */
#ifndef FARBUS_TRANSPORT_RETAINED_H
#define FARBUS_TRANSPORT_RETAINED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RETAINED_LOANS 512u
/* A loan costs a place in the list: less than this is copied sooner than that. */
#define RETAINED_LOAN_BYTES (16u << 10)

struct retained_loan {
	uint64_t offset;
	size_t bytes;			/* 0: settled */
	const uint8_t *at;
};

struct retained {
	bool grows;			/* the window does, as far as the network holds bytes */
	size_t most;			/* bytes that it may ever have */
	size_t staging_bytes;
	unsigned lead;			/* bytes of headers that precede those of a record */

	_Atomic uint64_t written;	/* bytes of the stream (w) */
	_Atomic uint64_t acknowledged;	/* and those of them (a) */

	uint8_t *staging;		/* the ring follows it */
	uint8_t *making;		/* what was last given to make something in place, if it is there */
	uint8_t *ring;
	size_t window;			/* changed and asked for by w */
	size_t limit;			/* of what is not acknowledged: it, or the one before until what has moved is */
	uint64_t moved_end;
	uint64_t base;			/* the offset that lies at the ring's beginning */
	struct retained_loan loans[RETAINED_LOANS];
	unsigned loan_first;
	unsigned loan_count;
	unsigned short_records;

	/* The round that is measured: w begins it if there is none, a ends it. */
	_Atomic uint64_t round_end;	/* over when so much is acknowledged; 0: there is none */
	uint64_t round_acknowledged;	/* what was when it began */
	uint64_t round_ns;		/* when that was */
	uint64_t round_least_ns;	/* the shortest of this connection, 0: none; a's */
	_Atomic bool round_full;	/* it began with a window without room */
	_Atomic size_t window_wanted;	/* a power of two; a's, for w */
};

/* A window of so many bytes, a power of two as all sizes here; `most` and that are the same where it does not grow.  0 or
 * -ENOMEM. */
int retained_make(struct retained *retained, size_t window, size_t most, size_t staging_bytes, unsigned lead);
void retained_drop(struct retained *retained);

/* Bytes that may be written before more is acknowledged (w). */
static inline uint64_t retained_room(struct retained *retained)
{
	return retained->limit - (atomic_load(&retained->written) - atomic_load(&retained->acknowledged));
}

/* Before anything is added: have the window as large as it is wanted, and begin the ring anew where all is acknowledged,
 * which is still in the processor's cache (w). */
void retained_grow(struct retained *retained);
void retained_rewind(struct retained *retained);

/* Write so many bytes, for which there is room (w): where they are, if they may be lent and there is a place for that in the
 * list, else by a copy. */
void retained_add(struct retained *retained, const uint8_t *from, size_t bytes, bool lend);

/* A place to make what is written next, in one piece, and how many of `bytes` it has room for (w). */
size_t retained_place(struct retained *retained, uint8_t **at, size_t bytes);
/* So many bytes have been made there. */
void retained_made(struct retained *retained, size_t bytes);
/* All the memory that it gives places in, as far as it is much used. */
void retained_memory(struct retained *retained, void **at, size_t *bytes);

/* Where a byte of the stream lies, and how many, at most `most`, lie behind it (w). */
size_t retained_piece(struct retained *retained, uint64_t offset, size_t most, const uint8_t **at);

/* Does it stay as it is until it is acknowledged?  What is lent may be its owner's again before. */
bool retained_keeps(const struct retained *retained, const void *at);

/* What is lent of that memory is its owner's again (w). */
void retained_settle(struct retained *retained, const void *at, size_t bytes);

/* A record of so many bytes, which ends at that offset, is about to be sent (w): the first of a long one is acknowledged while
 * the rest is written.  `bulk`: it is long. */
void retained_round_begin(struct retained *retained, bool bulk, uint64_t end);
/* There is no room: the window is what is waited for, and not the network.  A round that begins now holds all
 * of it, where one that began with the first of some pieces holds that one alone.  The last of it, of the size at which a reader
 * acknowledges, may be acknowledged together with what comes behind only.  (Both: nobody ends a round meanwhile.) */
void retained_round_begin_full(struct retained *retained, size_t last);

/* So much is acknowledged (a): if that ends a round, learn of it how large the window should be. */
void retained_acknowledge(struct retained *retained, uint64_t acknowledged);
/* The peer has so much of the stream, over another connection: another network, perhaps (both). */
void retained_go_on(struct retained *retained, uint64_t acknowledged);

#endif
