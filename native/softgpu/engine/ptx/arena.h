/* arena.h - memory that lives as long as one module.
 *
 * Everything that loading a module makes is carved from one arena, so that a
 * malformed image leaves nothing behind: the loader unwinds and drops it.
 */
#ifndef FARBUS_SOFTGPU_ARENA_H
#define FARBUS_SOFTGPU_ARENA_H

#include <setjmp.h>
#include <stddef.h>

struct arena_chunk;

struct arena {
	struct arena_chunk *chunks;
	char *next;
	size_t left;
	jmp_buf *out_of_memory;		/* where arena_alloc goes instead of returning NULL */
};

/* Zeroed memory, 16-byte aligned (64 for objects of a cache line or more). */
void *arena_alloc(struct arena *arena, size_t bytes);
char *arena_strndup(struct arena *arena, const char *text, size_t length);
/* Room for one more element behind `count`: doubles at powers of two. */
void *arena_grow(struct arena *arena, void *array, size_t count, size_t element_bytes);
void arena_release(struct arena *arena);

#define ARENA_NEW(arena, type) ((type *)arena_alloc((arena), sizeof(type)))
/* Append room for one element and bump the count; yields its address. */
#define ARENA_PUSH(arena, array, count)                                                        \
	((array) = arena_grow((arena), (array), (count), sizeof(*(array))), &(array)[(count)++])

#endif
