#include "marshal.h"

#include <stdlib.h>

/* Aligned for every type of the API (CUtensorMap asks for 64 bytes). */
struct marshal_block {
	_Alignas(64) struct marshal_block *next;
};

void marshal_writer(struct marshal *m)
{
	memset(m, 0, sizeof(*m));
	m->memory_left = MARSHAL_MEMORY_BYTES;
}

void marshal_reader(struct marshal *m, const void *data, size_t bytes)
{
	m->get = true;
	m->reader = (struct wire_reader){ .at = data, .left = bytes };
}

void marshal_free(struct marshal *m)
{
	while (m->blocks) {
		struct marshal_block *block = m->blocks;

		m->blocks = block->next;
		free(block);
	}
	free(m->data);
	m->data = NULL;
}

void *marshal_memory(struct marshal *m, size_t count, size_t size)
{
	struct marshal_block *block;
	size_t bytes;

	if (m->failed || __builtin_mul_overflow(count, size, &bytes) || bytes > m->memory_left)
		goto failed;
	bytes = (bytes + 63) & ~(size_t)63;
	block = aligned_alloc(64, sizeof(*block) + bytes);
	if (!block)
		goto failed;
	memset(block, 0, sizeof(*block) + bytes);
	m->memory_left -= bytes < m->memory_left ? bytes : m->memory_left;
	block->next = m->blocks;
	m->blocks = block;
	return block + 1;
failed:
	m->failed = true;
	return NULL;
}

void marshal_plain(struct marshal *m, void *data, size_t bytes)
{
	if (m->get) {
		const void *from;

		/* Also where there is no tail. */
		if (!bytes)
			return;
		from = m->failed ? NULL : wire_read_bytes(&m->reader, bytes);
		if (from)
			memcpy(data, from, bytes);
		else
			m->failed = true;
		return;
	}
	if (m->failed || bytes > MARSHAL_MEMORY_BYTES)
		goto failed;
	if (bytes > m->room - m->used) {
		size_t room = 2 * (m->room + bytes) + 256;
		uint8_t *grown = realloc(m->data, room);

		if (!grown)
			goto failed;
		m->data = grown;
		m->room = room;
	}
	if (bytes)
		memcpy(m->data + m->used, data, bytes);
	m->used += bytes;
	return;
failed:
	m->failed = true;
}

void *marshal_pointer(struct marshal *m, void *pointer, size_t count, size_t size)
{
	uint8_t there = pointer != NULL;

	marshal_plain(m, &there, 1);
	if (count > MARSHAL_LIST_LIMIT)
		m->failed = true;
	if (!m->get)
		return m->failed ? NULL : pointer;
	return there && !m->failed ? marshal_memory(m, count, size) : NULL;
}

char *marshal_string(struct marshal *m, char *text)
{
	uint64_t bytes = !m->get && text ? strlen(text) + 1 : 0;

	marshal_plain(m, &bytes, sizeof(bytes));
	if (bytes > MARSHAL_REQUEST_BYTES)
		m->failed = true;
	if (!bytes || m->failed)
		return NULL;
	if (m->get)
		text = marshal_memory(m, bytes, 1);
	if (text)
		marshal_plain(m, text, bytes);
	if (m->get && text)
		text[bytes - 1] = '\0';
	return text;
}

size_t marshal_room(struct marshal *m, void *count, size_t bytes)
{
	uint64_t room = 0;

	if (!m->get && count)
		memcpy(&room, count, bytes);	/* little-endian, as all of this is */

	if (room > MARSHAL_LIST_LIMIT)
		room = MARSHAL_LIST_LIMIT;
	marshal_plain(m, &room, sizeof(room));
	if (room > MARSHAL_LIST_LIMIT) {
		m->failed = true;
		room = 0;
	}
	if (m->get && count)
		memcpy(count, &room, bytes);
	return room;
}
