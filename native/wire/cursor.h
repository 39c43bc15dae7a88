/* cursor.h - reading and writing byte buffers without leaving them. */
#ifndef FARBUS_WIRE_CURSOR_H
#define FARBUS_WIRE_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Once something does not fit, `failed` stays set and nothing more is touched:
 * a caller checks once, at the end. */
struct wire_reader {
	const uint8_t *at;
	size_t left;
	bool failed;
};

struct wire_writer {
	uint8_t *at;
	size_t left;
	bool failed;
};

static inline const void *wire_read_bytes(struct wire_reader *reader, size_t bytes)
{
	const uint8_t *at = reader->at;

	if (reader->failed || bytes > reader->left) {
		reader->failed = true;
		return NULL;
	}
	reader->at += bytes;
	reader->left -= bytes;
	return at;
}

static inline uint64_t wire_read_u64(struct wire_reader *reader)
{
	const void *at = wire_read_bytes(reader, 8);
	uint64_t value = 0;

	if (at)
		memcpy(&value, at, 8);
	return value;
}

static inline uint32_t wire_read_u32(struct wire_reader *reader)
{
	const void *at = wire_read_bytes(reader, 4);
	uint32_t value = 0;

	if (at)
		memcpy(&value, at, 4);
	return value;
}

static inline void wire_write_bytes(struct wire_writer *writer, const void *data, size_t bytes)
{
	if (writer->failed || bytes > writer->left) {
		writer->failed = true;
		return;
	}
	if (bytes)
		memcpy(writer->at, data, bytes);
	writer->at += bytes;
	writer->left -= bytes;
}

static inline void wire_write_u64(struct wire_writer *writer, uint64_t value)
{
	wire_write_bytes(writer, &value, 8);
}

static inline void wire_write_u32(struct wire_writer *writer, uint32_t value)
{
	wire_write_bytes(writer, &value, 4);
}

#endif
