/* fatbin.c - containers of PTX and cubins.
 *
 * The layout is that of fatbinary_section.h of the CUDA toolkit for the
 * wrapper; container and entries as observed in the output of nvcc 13.0.
 */
#include "fatbin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRAPPER_MAGIC 0x466243b1u
#define CONTAINER_MAGIC 0xba55ed50u
#define ELF_MAGIC 0x464c457fu
#define ENTRY_KIND_PTX 1
#define ENTRY_LZ4 0x2000u
#define ENTRY_ZSTD 0x8000u
#define TEXT_BYTES_MAX ((uint64_t)1 << 30)
#define PRELINKED_MAX 4096		/* containers of one -rdc program */

struct wrapper {
	uint32_t magic, version;
	const void *data;
	const void *const *prelinked;	/* version 2: NULL-terminated containers */
};

struct container {
	uint32_t magic;
	uint16_t version, header_bytes;
	uint64_t payload_bytes;
};

struct entry {
	uint16_t kind, unused1;
	uint32_t header_bytes;
	uint64_t padded_bytes;
	uint32_t compressed_bytes, unused2;
	uint16_t minor, major;
	uint32_t arch;
	uint32_t name_offset, name_bytes;
	uint64_t flags, unused3;
	uint64_t uncompressed_bytes;
};

_Static_assert(sizeof(struct container) == 16, "fatbin container header");
_Static_assert(sizeof(struct entry) == 64, "fatbin entry header");

/* ---- decompression, by the system's libraries ---- */

static void *library_symbol(const char *library, const char *symbol, struct engine_diagnostic *why)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	void *address = handle ? dlsym(handle, symbol) : NULL;

	if (!address)
		snprintf(why->text, sizeof(why->text),
			 "the PTX in this program is compressed and %s is not installed", library);
	return address;		/* the handle stays open: programs load many modules */
}

/* libzstd: size_t ZSTD_decompress(dst, capacity, src, size); errors are near SIZE_MAX */
static bool decompress_zstd(char *to, size_t capacity, const char *from, size_t bytes,
			    struct engine_diagnostic *why)
{
	size_t (*decompress)(void *, size_t, const void *, size_t);

	*(void **)&decompress = library_symbol("libzstd.so.1", "ZSTD_decompress", why);
	if (!decompress)
		return false;
	snprintf(why->text, sizeof(why->text), "damaged zstd data in a fatbin");
	return decompress(to, capacity, from, bytes) == capacity;
}

/* liblz4: int LZ4_decompress_safe(src, dst, size, capacity); errors are negative */
static bool decompress_lz4(char *to, size_t capacity, const char *from, size_t bytes,
			   struct engine_diagnostic *why)
{
	int (*decompress)(const char *, char *, int, int);

	*(void **)&decompress = library_symbol("liblz4.so.1", "LZ4_decompress_safe", why);
	if (!decompress)
		return false;
	snprintf(why->text, sizeof(why->text), "damaged LZ4 data in a fatbin");
	if (capacity > INT_MAX || bytes > INT_MAX)
		return false;
	return decompress(from, to, (int)bytes, (int)capacity) == (int)capacity;
}

static enum engine_status entry_text(const struct entry *entry, const char *data, char **text,
				     struct engine_diagnostic *why)
{
	bool compressed = entry->flags & (ENTRY_LZ4 | ENTRY_ZSTD);
	uint64_t bytes = compressed ? entry->uncompressed_bytes : entry->padded_bytes;
	bool whole = true;

	if (bytes > TEXT_BYTES_MAX || (compressed && entry->compressed_bytes > entry->padded_bytes)) {
		snprintf(why->text, sizeof(why->text), "fatbin entry of %llu bytes is damaged",
			 (unsigned long long)bytes);
		return ENGINE_INVALID_IMAGE;
	}
	*text = malloc(bytes + 1);
	if (!*text)
		return ENGINE_NO_MEMORY;
	if (entry->flags & ENTRY_ZSTD)
		whole = decompress_zstd(*text, bytes, data, entry->compressed_bytes, why);
	else if (entry->flags & ENTRY_LZ4)
		whole = decompress_lz4(*text, bytes, data, entry->compressed_bytes, why);
	else
		memcpy(*text, data, bytes);
	if (!whole) {
		free(*text);
		return ENGINE_INVALID_IMAGE;
	}
	(*text)[bytes] = 0;
	return ENGINE_OK;
}

/* ---- containers ---- */

/* The PTX of the newest target that the device can run, with its header copied, for
 * entries of a damaged container stand anywhere; *best_data is NULL if there is none.
 * *entry_count says whether there was anything at all. */
static enum engine_status best_entry(const struct container *container, unsigned sm,
				     struct entry *best, const char **best_data,
				     unsigned *entry_count, struct engine_diagnostic *why)
{
	const char *at = (const char *)container + container->header_bytes;
	const char *end = at + container->payload_bytes;

	*best_data = NULL;
	*entry_count = 0;
	while ((size_t)(end - at) >= sizeof(struct entry)) {
		size_t room = (size_t)(end - at);
		struct entry entry;

		memcpy(&entry, at, sizeof(entry));
		if (entry.header_bytes < sizeof(entry) || entry.header_bytes > room ||
		    entry.padded_bytes > room - entry.header_bytes) {
			snprintf(why->text, sizeof(why->text), "fatbin entry %u is damaged",
				 *entry_count);
			return ENGINE_INVALID_IMAGE;
		}
		(*entry_count)++;
		if (entry.kind == ENTRY_KIND_PTX && entry.arch <= sm &&
		    (!*best_data || entry.arch > best->arch)) {
			*best = entry;
			*best_data = at + entry.header_bytes;
		}
		at += entry.header_bytes + entry.padded_bytes;
	}
	return ENGINE_OK;
}

static enum engine_status add_text(struct fatbin_texts *texts, char *text)
{
	char **more = realloc(texts->texts, (texts->count + 1) * sizeof(*more));

	if (!more) {
		free(text);
		return ENGINE_NO_MEMORY;
	}
	texts->texts = more;
	texts->texts[texts->count++] = text;
	return ENGINE_OK;
}

static enum engine_status read_container(const struct container *container, unsigned sm,
					 struct fatbin_texts *texts, struct engine_diagnostic *why)
{
	enum engine_status status;
	struct entry entry = { 0 };
	const char *data;
	unsigned count;
	char *text;

	if (container->magic != CONTAINER_MAGIC ||
	    container->header_bytes < sizeof(*container)) {
		snprintf(why->text, sizeof(why->text), "not a fatbin container");
		return ENGINE_INVALID_IMAGE;
	}
	status = best_entry(container, sm, &entry, &data, &count, why);
	if (status != ENGINE_OK || !count)
		return status;
	if (!data) {
		snprintf(why->text, sizeof(why->text),
			 "none of %u images is PTX for compute capability %u.%u or older; "
			 "compile with -arch=compute_%u or embed PTX", count, sm / 10, sm % 10, sm);
		return ENGINE_NO_BINARY;
	}
	status = entry_text(&entry, data, &text, why);
	return status == ENGINE_OK ? add_text(texts, text) : status;
}

/* The toolkit's device runtime, which is linked to every program, has PTX for the newest
 * devices only: an object without PTX for this one is left out.  What the others want
 * of it is named when they are linked. */
static enum engine_status read_prelinked(const struct wrapper *wrapper, unsigned sm,
					 struct fatbin_texts *texts, struct engine_diagnostic *why)
{
	enum engine_status status = ENGINE_OK;
	bool any_left_out = false;

	for (size_t k = 0; status == ENGINE_OK && wrapper->prelinked && wrapper->prelinked[k];
	     k++) {
		if (k >= PRELINKED_MAX) {
			snprintf(why->text, sizeof(why->text), "more than %d objects to link",
				 PRELINKED_MAX);
			return ENGINE_INVALID_IMAGE;
		}
		status = read_container(wrapper->prelinked[k], sm, texts, why);
		if (status == ENGINE_NO_BINARY) {
			any_left_out = true;
			status = ENGINE_OK;
		}
	}
	return status == ENGINE_OK && any_left_out && !texts->count ? ENGINE_NO_BINARY : status;
}

static enum engine_status read_image(const void *image, unsigned sm, struct fatbin_texts *texts,
				     struct engine_diagnostic *why)
{
	const struct wrapper *wrapper = image;
	uint32_t magic;
	char *text;

	memcpy(&magic, image, sizeof(magic));
	if (magic == WRAPPER_MAGIC) {
		if (wrapper->version == 2 && wrapper->prelinked)
			return read_prelinked(wrapper, sm, texts, why);
		return read_container(wrapper->data, sm, texts, why);
	}
	if (magic == CONTAINER_MAGIC)
		return read_container(image, sm, texts, why);
	if (magic == ELF_MAGIC) {
		snprintf(why->text, sizeof(why->text),
			 "a cubin holds machine code only; the software GPU runs PTX");
		return ENGINE_NO_BINARY;
	}
	text = strdup(image);
	return text ? add_text(texts, text) : ENGINE_NO_MEMORY;
}

enum engine_status fatbin_read(const void *image, unsigned sm, struct fatbin_texts *texts,
			       struct engine_diagnostic *why)
{
	enum engine_status status;

	*texts = (struct fatbin_texts){ 0 };
	status = read_image(image, sm, texts, why);
	if (status != ENGINE_OK)
		fatbin_texts_free(texts);
	if (status == ENGINE_NO_MEMORY)
		snprintf(why->text, sizeof(why->text), "out of memory reading a module");
	return status;
}

void fatbin_texts_free(struct fatbin_texts *texts)
{
	for (size_t k = 0; k < texts->count; k++)
		free(texts->texts[k]);
	free(texts->texts);
	*texts = (struct fatbin_texts){ 0 };
}
