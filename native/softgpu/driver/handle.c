#include "handle.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Open addressing with linear probing; removal moves later entries back, so
 * that no tombstones gather. */
struct handle_entry {
	const void *object;
	enum driver_kind kind;
	struct driver_users *users;
};

static struct {
	pthread_rwlock_t lock;
	struct handle_entry *entries;
	size_t room;			/* a power of two, or 0 */
	size_t count;
} handles = { .lock = PTHREAD_RWLOCK_INITIALIZER };

static size_t home_of(const void *object)
{
	return (size_t)(((uintptr_t)object >> 4) * 0x9e3779b97f4a7c15ull >> 20) &
	       (handles.room - 1);
}

static struct handle_entry *find(const void *object)
{
	size_t at;

	if (!handles.room)
		return NULL;
	for (at = home_of(object); handles.entries[at].object; at = (at + 1) & (handles.room - 1)) {
		if (handles.entries[at].object == object)
			return &handles.entries[at];
	}
	return NULL;
}

static void place(struct handle_entry entry)
{
	size_t at = home_of(entry.object);

	while (handles.entries[at].object)
		at = (at + 1) & (handles.room - 1);
	handles.entries[at] = entry;
}

static int grow(void)
{
	struct handle_entry *old = handles.entries;
	size_t old_room = handles.room, room = old_room ? 2 * old_room : 256;
	struct handle_entry *entries = calloc(room, sizeof *entries);

	if (!entries)
		return -ENOMEM;
	handles.entries = entries;
	handles.room = room;
	for (size_t i = 0; i < old_room; i++) {
		if (old[i].object)
			place(old[i]);
	}
	free(old);
	return 0;
}

int driver_handle_add(const void *object, enum driver_kind kind, struct driver_users *users)
{
	int error = 0;

	pthread_rwlock_wrlock(&handles.lock);
	if (2 * (handles.count + 1) > handles.room)
		error = grow();
	if (!error) {
		place((struct handle_entry){ object, kind, users });
		handles.count++;
	}
	pthread_rwlock_unlock(&handles.lock);
	return error;
}

bool driver_handle_remove(const void *object, enum driver_kind kind)
{
	struct handle_entry *entry;
	bool found;

	pthread_rwlock_wrlock(&handles.lock);
	entry = object ? find(object) : NULL;
	found = entry && entry->kind == kind;
	if (found) {
		size_t hole = (size_t)(entry - handles.entries), mask = handles.room - 1;
		size_t at = hole;

		for (;;) {
			size_t home;

			at = (at + 1) & mask;
			if (!handles.entries[at].object)
				break;
			home = home_of(handles.entries[at].object);
			/* An entry may move into the hole if its home is not after it. */
			if (((at - home) & mask) >= ((at - hole) & mask)) {
				handles.entries[hole] = handles.entries[at];
				hole = at;
			}
		}
		handles.entries[hole].object = NULL;
		handles.count--;
	}
	pthread_rwlock_unlock(&handles.lock);
	return found;
}

bool driver_handle_is(const void *object, enum driver_kind kind)
{
	struct handle_entry *entry;
	bool found;

	if (!object)
		return false;
	pthread_rwlock_rdlock(&handles.lock);
	entry = find(object);
	found = entry && entry->kind == kind && (!entry->users || driver_call_use(entry->users));
	pthread_rwlock_unlock(&handles.lock);
	return found;
}

void *driver_handle_allocate(size_t bytes)
{
	void *object = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return object == MAP_FAILED ? NULL : object;
}

void driver_handle_retire(void *object, size_t bytes)
{
	/* A new mapping, as it lies in one with its retired neighbours; where there is no room for one,
	 * the old one stays with its memory. */
	mmap(object, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
