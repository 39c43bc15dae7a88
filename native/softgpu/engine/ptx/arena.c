/* arena.c - memory that lives as long as one module. */
#include "arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES ((size_t)64 << 10)	/* small modules need one or two */

struct arena_chunk {
	struct arena_chunk *next;
	char padding[56];		/* keeps the payload on a cache line */
};

_Static_assert(sizeof(struct arena_chunk) == 64, "payload must start on a cache line");

void *arena_alloc(struct arena *arena, size_t bytes)
{
	size_t align = bytes >= 64 ? 64 : 16;
	size_t skip = (align - (uintptr_t)arena->next % align) % align;
	struct arena_chunk *chunk;
	size_t payload;
	char *result;

	if (bytes > SIZE_MAX / 4)
		longjmp(*arena->out_of_memory, 1);
	bytes = (bytes + 15) & ~(size_t)15;
	if (!arena->chunks || arena->left < skip + bytes) {
		payload = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
		payload = (payload + 63) & ~(size_t)63;
		chunk = aligned_alloc(64, sizeof(*chunk) + payload);
		if (!chunk)
			longjmp(*arena->out_of_memory, 1);
		chunk->next = arena->chunks;
		arena->chunks = chunk;
		arena->next = (char *)(chunk + 1);
		arena->left = payload;
		skip = 0;
	}
	result = arena->next + skip;
	arena->next += skip + bytes;
	arena->left -= skip + bytes;
	return memset(result, 0, bytes);
}

char *arena_strndup(struct arena *arena, const char *text, size_t length)
{
	char *copy = arena_alloc(arena, length + 1);

	memcpy(copy, text, length);
	return copy;
}

void *arena_grow(struct arena *arena, void *array, size_t count, size_t element_bytes)
{
	void *bigger;

	if (count & (count - 1))
		return array;		/* not a power of two: there is room */
	if (count == 1)
		return array;		/* the first allocation holds two */
	bigger = arena_alloc(arena, (count ? count * 2 : 2) * element_bytes);
	if (count)
		memcpy(bigger, array, count * element_bytes);
	return bigger;
}

void arena_release(struct arena *arena)
{
	struct arena_chunk *chunk = arena->chunks;

	while (chunk) {
		struct arena_chunk *next = chunk->next;

		free(chunk);
		chunk = next;
	}
	memset(arena, 0, sizeof(*arena));
}
