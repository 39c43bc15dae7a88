/* names.c - a map from names to values: open addressing, FNV-1a. */
#include "names.h"

#include <string.h>

static uint32_t name_hash(const char *name, uint32_t length)
{
	uint32_t hash = 2166136261u;

	for (uint32_t k = 0; k < length; k++)
		hash = (hash ^ (unsigned char)name[k]) * 16777619u;
	return hash;
}

static struct name_entry *name_slot(const struct name_map *map, const char *name,
				    uint32_t length, uint32_t hash)
{
	uint32_t at = hash & (map->capacity - 1);

	for (;;) {
		struct name_entry *entry = &map->entries[at];

		if (!entry->name)
			return entry;
		if (entry->hash == hash && entry->length == length &&
		    !memcmp(entry->name, name, length))
			return entry;
		at = (at + 1) & (map->capacity - 1);
	}
}

void *name_map_get(const struct name_map *map, const char *name, uint32_t length)
{
	if (!map->capacity)
		return NULL;
	return name_slot(map, name, length, name_hash(name, length))->value;
}

static void name_map_enlarge(struct name_map *map, struct arena *arena)
{
	struct name_map bigger = { .capacity = map->capacity ? map->capacity * 2 : 64 };

	bigger.entries = arena_alloc(arena, bigger.capacity * sizeof(*bigger.entries));
	for (uint32_t k = 0; k < map->capacity; k++) {
		struct name_entry *entry = &map->entries[k];

		if (!entry->name)
			continue;
		*name_slot(&bigger, entry->name, entry->length, entry->hash) = *entry;
		bigger.count++;
	}
	*map = bigger;
}

void name_map_set(struct name_map *map, struct arena *arena, const char *name, uint32_t length,
		  void *value)
{
	uint32_t hash = name_hash(name, length);
	struct name_entry *entry;

	if (map->count * 2 >= map->capacity)
		name_map_enlarge(map, arena);
	entry = name_slot(map, name, length, hash);
	if (!entry->name)
		map->count++;
	*entry = (struct name_entry){ name, length, hash, value };
}
