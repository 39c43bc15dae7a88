/* handle.h - names for objects: typed, generation-checked, safe to look up.
 *
 * A handle is a number that looks like a pointer to a program and is none:
 *
 *	bit 46..43  kind
 *	bit 42..27  generation of the slot, counted at every reuse
 *	bit 26..4   slot + 1
 *	bit  3..0   zero
 *
 * Any 64-bit value may be looked up; only one that a table has given out, and
 * not yet taken back, is found.  Look-ups take no lock.
 */
#ifndef FARBUS_WIRE_HANDLE_H
#define FARBUS_WIRE_HANDLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum handle_kind {
	HANDLE_CONTEXT = 1,
	HANDLE_STREAM,
	HANDLE_EVENT,
	HANDLE_LIBRARY,
	HANDLE_FUNCTION,
	HANDLE_BLOB,
	HANDLE_TOKEN,
	HANDLE_NAMED,			/* what the server names: server/ground/named.c */
	HANDLE_PINNED,			/* pinned memory that both share */
};

/* Most pieces of pinned memory that a session shares: a quarter of what Linux lets a process map (vm.max_map_count). */
#define WIRE_PINNED_PIECES 16384u

/* Most objects alive in one table: 1,048,576; a handle could name 8 times that. */
#define HANDLE_CHUNK_SLOTS 1024u
#define HANDLE_CHUNKS 1024u

struct handle_slot {
	_Atomic uint64_t handle;	/* 0: free */
	void *_Atomic object;
	uint32_t next_free;		/* slot + 1 */
	uint16_t generation;
};

struct handle_table {
	pthread_mutex_t lock;
	struct handle_slot *_Atomic chunks[HANDLE_CHUNKS];
	uint32_t used;			/* slots ever given out by handle_open */
	uint32_t first_free;		/* slot + 1 */
};

#define HANDLE_TABLE_INITIALIZER { .lock = PTHREAD_MUTEX_INITIALIZER }

/* Name an object.  0 and *handle, or -ENOMEM. */
int handle_open(struct handle_table *table, enum handle_kind kind, void *object, uint64_t *handle);

/* Name an object as the peer has named it.  A table is filled either with
 * handle_open or with handle_bind.  -EINVAL: not a handle of that kind, or its
 * slot is taken; -ENOMEM. */
int handle_bind(struct handle_table *table, enum handle_kind kind, uint64_t handle, void *object);

/* The object, or NULL. */
void *handle_get(const struct handle_table *table, enum handle_kind kind, uint64_t handle);

/* Take the name back: the object that had it, or NULL. */
void *handle_close(struct handle_table *table, enum handle_kind kind, uint64_t handle);

/* Call visit for every live handle; the table must not change meanwhile, but that visit may close what it is called for. */
void handle_visit(struct handle_table *table,
		  void (*visit)(void *opaque, uint64_t handle, void *object), void *opaque);

static inline enum handle_kind handle_kind_of(uint64_t handle)
{
	return (enum handle_kind)(handle >> 43 & 0xf);
}

#endif
