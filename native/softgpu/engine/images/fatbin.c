/* fatbin.c - containers of PTX and cubins. */
#include "fatbin.h"

#include "fatbin_layout.h"
#include "object.h"

#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES_MAX ((uint64_t)1 << 30)
#define PRELINKED_MAX 4096		/* containers of one -rdc program */

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

bool fatbin_target_runs(unsigned arch, char suffix, unsigned sm)
{
	if (suffix == 'a')
		return arch == sm;
	return arch <= sm && (suffix != 'f' || arch / 10 == sm / 10);
}

static bool entry_runs(const struct entry *entry, unsigned sm)
{
	char suffix = entry->flags & ENTRY_DEVICE ? 'a' : entry->flags & ENTRY_FAMILY ? 'f' : 0;

	return fatbin_target_runs(entry->arch, suffix, sm);
}

/* Of what runs, the newest is best; of one age what is for this device alone (compute_90a), and then for its family:
 * that may use more of it. */
static unsigned entry_rank(const struct entry *entry)
{
	return entry->arch * 4 + (entry->flags & ENTRY_DEVICE ? 2 : entry->flags & ENTRY_FAMILY ? 1 : 0);
}

/* The PTX of the best target that the device can run, with its header copied, for
 * entries of a damaged container stand anywhere; *best_data is NULL if there is none.
 * *entry_count says whether there was anything at all. */
static enum engine_status best_entry(const char *at, const char *end, unsigned sm,
				     struct entry *best, const char **best_data,
				     unsigned *entry_count, struct engine_diagnostic *why)
{

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
		if (entry.kind == ENTRY_KIND_PTX && entry_runs(&entry, sm) &&
		    (!*best_data || entry_rank(&entry) > entry_rank(best))) {
			*best = entry;
			*best_data = at + entry.header_bytes;
		}
		at += entry.header_bytes + entry.padded_bytes;
	}
	return ENGINE_OK;
}

/* Newest that nvcc of CUDA 12.8 and later compiles for; a device with a number that no GPU has runs its PTX. */
#define NEWEST_COMPILED 120u
/* The newest that a software GPU can be (driver/board_options.c), as its settings spell it. */
#define NEWEST_DEVICE "13.0"
/* Behind as much of a long list as a line has room for. */
#define MORE_CODE " and more"

/* Say what a sound container has instead of PTX that this device runs. */
static void explain_misfit(const char *at, const char *end, unsigned sm, struct engine_diagnostic *why)
{
	const unsigned target = sm < NEWEST_COMPILED ? sm : NEWEST_COMPILED;
	char found[256] = "";
	size_t length = 0;
	bool newer = false;

	for (const char *each = at; (size_t)(end - each) >= sizeof(struct entry);) {
		struct entry entry;

		memcpy(&entry, each, sizeof(entry));
		newer |= entry.kind == ENTRY_KIND_PTX && entry.arch > sm &&
			 !(entry.flags & (ENTRY_DEVICE | ENTRY_FAMILY));
		each += entry.header_bytes + entry.padded_bytes;
	}
	while ((size_t)(end - at) >= sizeof(struct entry)) {
		struct entry entry;
		char one[48];

		memcpy(&entry, at, sizeof(entry));
		snprintf(one, sizeof(one), "%s%s%u", length ? ", " : "",
			 entry.kind == ENTRY_KIND_PTX     ? "PTX for compute_"
			 : entry.kind == ENTRY_KIND_CUBIN ? "machine code for sm_"
							  : "something for sm_",
			 entry.arch);
		if (length + strlen(one) + strlen(MORE_CODE) >= sizeof(found)) {
			strcpy(found + length, MORE_CODE);
			break;
		}
		length = (size_t)(stpcpy(found + length, one) - found);
		at += entry.header_bytes + entry.padded_bytes;
	}
	snprintf(why->text, sizeof(why->text),
		 "it has no PTX for compute capability %u.%u or older, which a software GPU runs, but %s; "
		 "compile with -arch=compute_%u, or -gencode arch=compute_%u,code=compute_%u beside others%s",
		 sm / 10, sm % 10, found, target, target, target,
		 newer ? "; a software GPU with cc=" NEWEST_DEVICE " runs its newer PTX (docs/softgpu.md)" : "");
}

static enum engine_status add_text(struct fatbin_texts *texts, char *ptx, uint32_t max_registers)
{
	struct fatbin_text *more = realloc(texts->texts, (texts->count + 1) * sizeof(*more));

	if (!more) {
		free(ptx);
		return ENGINE_NO_MEMORY;
	}
	texts->texts = more;
	texts->texts[texts->count++] = (struct fatbin_text){ ptx, max_registers };
	return ENGINE_OK;
}

/* ---- options for ptxas ---- */

#define REGISTERS_OPTION "-maxrregcount="

/* Of what an entry's header says to ptxas only the limit of registers has a meaning here; 0 without. */
static uint32_t entry_max_registers(const struct entry *entry, const char *header)
{
	struct entry_options options;
	char words[256], *word, *rest;

	if (!entry->options_offset || entry->options_offset > entry->header_bytes - sizeof(options))
		return 0;
	memcpy(&options, header + entry->options_offset, sizeof(options));
	if (options.offset > entry->header_bytes || options.bytes > entry->header_bytes - options.offset)
		return 0;
	if (options.bytes >= sizeof(words))
		options.bytes = sizeof(words) - 1;
	memcpy(words, header + options.offset, options.bytes);
	words[options.bytes] = 0;
	for (word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
		if (word[0] == '-' && word[1] == '-')
			word++;
		if (!strncmp(word, REGISTERS_OPTION, strlen(REGISTERS_OPTION)))
			return (uint32_t)strtoul(word + strlen(REGISTERS_OPTION), NULL, 0);
	}
	return 0;
}

/* `image` may be anything and lie anywhere. */
static enum engine_status read_container(const char *image, size_t bytes, unsigned sm,
					 struct fatbin_texts *texts, struct engine_diagnostic *why)
{
	struct container container = { 0 };
	enum engine_status status;
	struct entry entry = { 0 };
	const char *data;
	unsigned count;
	char *text;

	if (bytes >= sizeof(container))
		memcpy(&container, image, sizeof(container));
	if (container.magic != CONTAINER_MAGIC || container.header_bytes < sizeof(container) ||
	    container.header_bytes > bytes ||
	    container.payload_bytes > bytes - container.header_bytes) {
		snprintf(why->text, sizeof(why->text), "not a fatbin container");
		return ENGINE_INVALID_IMAGE;
	}
	image += container.header_bytes;
	status = best_entry(image, image + container.payload_bytes, sm, &entry, &data, &count, why);
	if (status != ENGINE_OK || !count)
		return status;
	if (!data) {
		explain_misfit(image, image + container.payload_bytes, sm, why);
		return ENGINE_NO_BINARY;
	}
	status = entry_text(&entry, data, &text, why);
	return status == ENGINE_OK ?
		       add_text(texts, text, entry_max_registers(&entry, data - entry.header_bytes)) :
		       status;
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
		status = read_container(wrapper->prelinked[k], FATBIN_BYTES_UNKNOWN, sm, texts, why);
		if (status == ENGINE_NO_BINARY) {
			any_left_out = true;
			status = ENGINE_OK;
		}
	}
	return status == ENGINE_OK && any_left_out && !texts->count ? ENGINE_NO_BINARY : status;
}

/* ---- objects and archives ---- */

/* Containers one behind the other, with zeros between them. */
static enum engine_status read_section(const char *data, size_t bytes, unsigned sm,
				       struct fatbin_texts *texts, bool *any_left_out,
				       struct engine_diagnostic *why)
{
	size_t at = 0;

	while (bytes - at >= sizeof(struct container)) {
		struct container header;
		enum engine_status status;

		memcpy(&header, data + at, sizeof(header));
		if (!header.magic) {
			at += sizeof(uint64_t);
			continue;
		}
		status = read_container(data + at, bytes - at, sm, texts, why);
		if (status == ENGINE_NO_BINARY)
			*any_left_out = true;
		else if (status != ENGINE_OK)
			return status;
		at += header.header_bytes + header.payload_bytes;
	}
	return ENGINE_OK;
}

static enum engine_status read_object(const void *image, size_t bytes, unsigned sm,
				      struct fatbin_texts *texts, struct engine_diagnostic *why)
{
	enum engine_status status = ENGINE_OK;
	size_t before = texts->count, data_bytes, count;
	bool any_left_out = false;
	const void *data;

	for (count = 0; object_section(image, bytes, count, &data, &data_bytes); count++) {
		status = read_section(data, data_bytes, sm, texts, &any_left_out, why);
		if (status != ENGINE_OK)
			return status;
	}
	if (!count)
		snprintf(why->text, sizeof(why->text),
			 "a cubin has machine code only, and a software GPU runs PTX: load that instead; "
			 "docs/softgpu.md says how packages that compile by themselves are told to");
	return !count || (any_left_out && texts->count == before) ? ENGINE_NO_BINARY : ENGINE_OK;
}

/* What has no code for this device is left out, as the toolkit's device runtime. */
static enum engine_status read_archive(const void *image, size_t bytes, unsigned sm,
				       struct fatbin_texts *texts, struct engine_diagnostic *why)
{
	size_t at = 0, data_bytes;
	const void *data;

	while (object_member(image, bytes, &at, &data, &data_bytes)) {
		enum engine_status status = ENGINE_OK;

		if (object_is_elf(data, data_bytes))
			status = read_object(data, data_bytes, sm, texts, why);
		if (status != ENGINE_OK && status != ENGINE_NO_BINARY)
			return status;
	}
	return ENGINE_OK;
}

/* ---- images ---- */

static enum engine_status read_image(const void *image, size_t bytes, unsigned sm,
				     struct fatbin_texts *texts, struct engine_diagnostic *why)
{
	const struct wrapper *wrapper = image;
	uint32_t magic = 0;
	char *text;

	/* No magic has a zero, and PTX may be shorter. */
	if (bytes >= sizeof(magic) && !memchr(image, 0, sizeof(magic)))
		memcpy(&magic, image, sizeof(magic));
	/* Pointers are for what lies in the program's own memory. */
	if (magic == WRAPPER_MAGIC && bytes == FATBIN_BYTES_UNKNOWN) {
		if (wrapper->version == 2 && wrapper->prelinked)
			return read_prelinked(wrapper, sm, texts, why);
		return read_container(wrapper->data, FATBIN_BYTES_UNKNOWN, sm, texts, why);
	}
	if (magic == CONTAINER_MAGIC)
		return read_container(image, bytes, sm, texts, why);
	if (magic && object_is_elf(image, bytes))
		return read_object(image, bytes, sm, texts, why);
	if (magic && bytes >= sizeof(TILE_MAGIC) && !strncmp(image, TILE_MAGIC, sizeof(TILE_MAGIC))) {
		snprintf(why->text, sizeof(why->text), "it is Tile IR, and a software GPU runs PTX");
		return ENGINE_NO_BINARY;
	}
	if (bytes != FATBIN_BYTES_UNKNOWN && object_is_archive(image, bytes))
		return read_archive(image, bytes, sm, texts, why);
	text = bytes == FATBIN_BYTES_UNKNOWN ? strdup(image) : strndup(image, bytes);
	return text ? add_text(texts, text, 0) : ENGINE_NO_MEMORY;
}

enum engine_status fatbin_read(const void *image, size_t bytes, unsigned sm,
			       struct fatbin_texts *texts, struct engine_diagnostic *why)
{
	enum engine_status status;

	*texts = (struct fatbin_texts){ 0 };
	status = read_image(image, bytes, sm, texts, why);
	if (status != ENGINE_OK)
		fatbin_texts_free(texts);
	if (status == ENGINE_NO_MEMORY)
		snprintf(why->text, sizeof(why->text), "out of memory reading a module");
	return status;
}

/* ---- writing ---- */

static size_t padded_text_bytes(const char *text)
{
	return (strlen(text) + 1 + 7) / 8 * 8;
}

/* The header of an entry with options, as long for each text. */
struct packed_entry {
	struct entry entry;
	struct entry_options options;
	char words[32];		/* between spaces, as nvcc has them */
};

void *fatbin_pack(const struct fatbin_texts *texts, unsigned sm, size_t *bytes)
{
	const size_t headers = sizeof(struct container) + sizeof(struct packed_entry);
	char *packed, *at;

	*bytes = 0;
	for (size_t k = 0; k < texts->count; k++)
		*bytes += headers + padded_text_bytes(texts->texts[k].ptx);
	at = packed = calloc(1, *bytes + 1);
	for (size_t k = 0; packed && k < texts->count; k++) {
		const struct fatbin_text *text = &texts->texts[k];
		const size_t padded = padded_text_bytes(text->ptx);
		const struct container container = {
			.magic = CONTAINER_MAGIC, .version = 1, .header_bytes = sizeof(container),
			.payload_bytes = sizeof(struct packed_entry) + padded,
		};
		struct packed_entry packed_entry = {
			.entry = {
				.kind = ENTRY_KIND_PTX, .header_bytes = sizeof(packed_entry),
				.padded_bytes = padded, .arch = sm,
				.options_offset = offsetof(struct packed_entry, options),
			},
			.options.offset = offsetof(struct packed_entry, words),
		};

		if (text->max_registers)
			packed_entry.options.bytes =
				(uint32_t)snprintf(packed_entry.words, sizeof(packed_entry.words),
						   " " REGISTERS_OPTION "%u ", text->max_registers);
		memcpy(at, &container, sizeof(container));
		memcpy(at + sizeof(container), &packed_entry, sizeof(packed_entry));
		strcpy(at + headers, text->ptx);
		at += headers + padded;
	}
	return packed;
}

void fatbin_texts_free(struct fatbin_texts *texts)
{
	for (size_t k = 0; k < texts->count; k++)
		free(texts->texts[k].ptx);
	free(texts->texts);
	*texts = (struct fatbin_texts){ 0 };
}
