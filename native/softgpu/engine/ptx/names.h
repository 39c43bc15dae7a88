/* names.h - a map from names to values; the names are not copied. */
#ifndef FARBUS_SOFTGPU_NAMES_H
#define FARBUS_SOFTGPU_NAMES_H

#include <stdint.h>

#include "arena.h"

struct name_entry {
	const char *name;
	uint32_t length;
	uint32_t hash;
	void *value;
};

struct name_map {
	struct name_entry *entries;
	uint32_t capacity;		/* a power of two, or 0 */
	uint32_t count;
};

/* The value of a name, NULL when it has none. */
void *name_map_get(const struct name_map *map, const char *name, uint32_t length);
/* Set, or take away with NULL. */
void name_map_set(struct name_map *map, struct arena *arena, const char *name, uint32_t length,
		  void *value);

#endif
