#include "handle.h"

#include <errno.h>
#include <stdlib.h>

#define SLOT_LIMIT (HANDLE_CHUNK_SLOTS * HANDLE_CHUNKS)

static uint64_t handle_make(enum handle_kind kind, uint16_t generation, uint32_t slot)
{
	return (uint64_t)kind << 43 | (uint64_t)generation << 27 | (uint64_t)(slot + 1) << 4;
}

/* The slot that a value would name, or SLOT_LIMIT. */
static uint32_t handle_slot_of(uint64_t handle)
{
	uint64_t slot = handle >> 4 & 0x7fffff;

	if ((handle & 0xf) || handle >> 47 || slot == 0 || slot > SLOT_LIMIT)
		return SLOT_LIMIT;
	return (uint32_t)slot - 1;
}

static struct handle_slot *table_slot(const struct handle_table *table, uint32_t slot)
{
	struct handle_slot *chunk;

	if (slot >= SLOT_LIMIT)
		return NULL;
	chunk = atomic_load_explicit(&table->chunks[slot / HANDLE_CHUNK_SLOTS],
				     memory_order_acquire);
	return chunk ? &chunk[slot % HANDLE_CHUNK_SLOTS] : NULL;
}

/* The same, making its chunk if it is not there; the lock is held. */
static struct handle_slot *table_slot_make(struct handle_table *table, uint32_t slot)
{
	struct handle_slot *found = table_slot(table, slot);
	struct handle_slot *chunk;

	if (found || slot >= SLOT_LIMIT)
		return found;
	chunk = calloc(HANDLE_CHUNK_SLOTS, sizeof(*chunk));
	if (!chunk)
		return NULL;
	atomic_store_explicit(&table->chunks[slot / HANDLE_CHUNK_SLOTS], chunk,
			      memory_order_release);
	return &chunk[slot % HANDLE_CHUNK_SLOTS];
}

int handle_open(struct handle_table *table, enum handle_kind kind, void *object, uint64_t *handle)
{
	struct handle_slot *slot;
	uint32_t index;
	uint64_t made;
	int rc = -ENOMEM;

	pthread_mutex_lock(&table->lock);
	index = table->first_free ? table->first_free - 1 : table->used;
	slot = table_slot_make(table, index);
	if (slot) {
		if (table->first_free)
			table->first_free = slot->next_free;
		else
			table->used++;
		made = handle_make(kind, slot->generation, index);
		/* Often a part of the object, which others find from here on. */
		*handle = made;
		atomic_store(&slot->object, object);
		atomic_store(&slot->handle, made);
		rc = 0;
	}
	pthread_mutex_unlock(&table->lock);
	return rc;
}

int handle_bind(struct handle_table *table, enum handle_kind kind, uint64_t handle, void *object)
{
	uint32_t index = handle_slot_of(handle);
	struct handle_slot *slot;
	int rc;

	if (index == SLOT_LIMIT || handle_kind_of(handle) != kind)
		return -EINVAL;
	pthread_mutex_lock(&table->lock);
	slot = table_slot_make(table, index);
	if (!slot) {
		rc = -ENOMEM;
	} else if (atomic_load(&slot->handle)) {
		rc = -EINVAL;
	} else {
		atomic_store(&slot->object, object);
		atomic_store(&slot->handle, handle);
		rc = 0;
	}
	pthread_mutex_unlock(&table->lock);
	return rc;
}

void *handle_get(const struct handle_table *table, enum handle_kind kind, uint64_t handle)
{
	struct handle_slot *slot = table_slot(table, handle_slot_of(handle));

	if (!slot || handle_kind_of(handle) != kind || atomic_load(&slot->handle) != handle)
		return NULL;
	return atomic_load(&slot->object);
}

void *handle_close(struct handle_table *table, enum handle_kind kind, uint64_t handle)
{
	uint32_t index = handle_slot_of(handle);
	struct handle_slot *slot = table_slot(table, index);
	void *object = NULL;

	if (!slot || handle_kind_of(handle) != kind)
		return NULL;
	pthread_mutex_lock(&table->lock);
	if (atomic_load(&slot->handle) == handle) {
		object = atomic_load(&slot->object);
		atomic_store(&slot->handle, 0);
		atomic_store(&slot->object, NULL);
		slot->generation++;
		/* Only slots that handle_open gave out go back to it. */
		if (index < table->used) {
			slot->next_free = table->first_free;
			table->first_free = index + 1;
		}
	}
	pthread_mutex_unlock(&table->lock);
	return object;
}

void handle_visit(struct handle_table *table,
		  void (*visit)(void *opaque, uint64_t handle, void *object), void *opaque)
{
	for (uint32_t chunk = 0; chunk < HANDLE_CHUNKS; chunk++) {
		struct handle_slot *slots = atomic_load(&table->chunks[chunk]);

		for (uint32_t i = 0; slots && i < HANDLE_CHUNK_SLOTS; i++) {
			uint64_t handle = atomic_load(&slots[i].handle);

			if (handle)
				visit(opaque, handle, atomic_load(&slots[i].object));
		}
	}
}
