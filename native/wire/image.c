#include "image.h"

#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define WRAPPER_MAGIC 0x466243b1u
#define CONTAINER_MAGIC 0xba55ed50u
#define CONTAINER_HEADER 16u
#define ENTRY_HEADER 48u	/* the part of it that is read here */
#define ELF_MAGIC 0x464c457fu
#define ENTRY_PTX 1u
#define ENTRY_DEVICE 0x100000u	/* compute_90a; the bits are observed in nvcc 13.0's */
#define ENTRY_FAMILY 0x200000u	/* compute_100f */
#define ENTRY_CUBIN 2u
#define TILE_MAGIC "\177TileIR"	/* its NUL included */
#define TILE_HEADER 12u
#define TILE_ALIGNED 0x80u
#define TILE_ALIGNMENT (1u << 20)	/* the most that a section is believed to ask for */
#define TILE_SECTIONS 127u

struct wrapper {
	uint32_t magic;
	uint32_t version;
	const void *data;
	const void *const *prelinked;
};

struct entry {
	uint16_t kind;
	uint32_t header;
	uint32_t architecture;
	uint32_t flags;
	uint64_t bytes;		/* header and payload */
};

static uint32_t load_u32(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static uint64_t load_u64(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static size_t align_8(size_t bytes)
{
	return (bytes + 7) & ~(size_t)7;
}

/* Read the entry at `at`, of which `left` bytes may be touched. */
static int entry_read(const uint8_t *at, uint64_t left, struct entry *entry)
{
	uint64_t payload;

	if (left < ENTRY_HEADER)
		return -EINVAL;
	entry->kind = (uint16_t)load_u32(at);
	entry->header = load_u32(at + 4);
	payload = load_u64(at + 8);
	entry->architecture = load_u32(at + 28);
	entry->flags = load_u32(at + 40);
	if (entry->header < ENTRY_HEADER || entry->header > left ||
	    payload > left - entry->header)
		return -EINVAL;
	entry->bytes = entry->header + payload;
	return 0;
}

/* Total bytes of a container; `left` bounds it (UINT64_MAX: the program's own). */
static int container_bytes(const uint8_t *container, uint64_t left, uint64_t *bytes)
{
	uint16_t header;
	uint64_t behind;

	if (left < CONTAINER_HEADER || load_u32(container) != CONTAINER_MAGIC)
		return -EINVAL;
	header = (uint16_t)(load_u32(container + 4) >> 16);
	behind = load_u64(container + 8);
	if (header != CONTAINER_HEADER)
		return -EINVAL;
	if (behind > WIRE_IMAGE_BYTES)
		return -EFBIG;
	if (behind > left - CONTAINER_HEADER)
		return -EINVAL;
	*bytes = CONTAINER_HEADER + behind;
	return 0;
}

/* For whom code was compiled: for its architecture and what came later, for one device
 * (sm_90a), or for the devices of a family (sm_100f). */
enum entry_scope {
	SCOPE_COMMON,
	SCOPE_DEVICE,
	SCOPE_FAMILY,
	SCOPES,
};

static enum entry_scope entry_scope(const struct entry *entry)
{
	return entry->flags & ENTRY_DEVICE ? SCOPE_DEVICE
	       : entry->flags & ENTRY_FAMILY ? SCOPE_FAMILY : SCOPE_COMMON;
}

/* Code for sm_90a runs on that device alone, for sm_100f in that family alone; other
 * cubins on the same major, other PTX from its architecture on upwards. */
static bool entry_fits(const struct entry *entry, uint32_t device)
{
	if (entry->flags & ENTRY_DEVICE)
		return entry->architecture == device;
	if (entry->kind == ENTRY_CUBIN || entry->flags & ENTRY_FAMILY)
		return entry->architecture / 10 == device / 10 && entry->architecture <= device;
	return entry->architecture <= device;
}

/* Linker options, intermediate code and whatever comes later: nobody says for whom. */
static bool entry_is_code(const struct entry *entry)
{
	return entry->kind == ENTRY_PTX || entry->kind == ENTRY_CUBIN;
}

/* Which entries of a container a device's driver may take: of cubins and of PTX (which it
 * takes where no cubin fits, or where it is told to prefer it), and of each scope, the newest
 * that fit.  Of equal ones all: which of them is the driver's affair.  What is no code always
 * goes.  -EINVAL: malformed. */
static int container_choose(const uint8_t *container, uint64_t total, uint32_t device,
			    uint8_t *chosen, size_t limit, size_t *count)
{
	uint64_t newest[2][SCOPES] = { 0 };	/* architecture + 1; 0: none */

	for (int pass = 0; pass < 2; pass++) {
		uint64_t offset = CONTAINER_HEADER;
		struct entry entry;
		size_t index = 0;

		for (; total - offset >= ENTRY_HEADER; offset += entry.bytes, index++) {
			uint64_t *rank;

			if (index == limit || entry_read(container + offset, total - offset, &entry))
				return -EINVAL;
			if (!entry_is_code(&entry)) {
				chosen[index] = 1;
				continue;
			}
			if (!entry_fits(&entry, device))
				continue;
			rank = &newest[entry.kind == ENTRY_PTX][entry_scope(&entry)];
			if (pass == 0 && entry.architecture + 1ull > *rank)
				*rank = entry.architecture + 1ull;
			else if (pass == 1 && entry.architecture + 1ull == *rank)
				chosen[index] = 1;
		}
		*count = index;
	}
	return 0;
}

/* Most entries of one container: kinds times architectures times files. */
#define ENTRIES_LIMIT 65536u

/* Copy a container of which `left` bytes may be touched with only what the devices can use;
 * out NULL: just measure. */
static int container_filter(const uint8_t *container, uint64_t left, const uint32_t *devices,
			    uint32_t device_count, uint8_t *out, size_t *bytes)
{
	uint64_t total, offset = CONTAINER_HEADER, kept = 0;
	uint8_t *chosen;
	size_t count = 0;
	bool any = false;
	int rc;

	if (!container)
		return -EINVAL;
	rc = container_bytes(container, left, &total);
	if (rc)
		return rc;
	chosen = calloc(ENTRIES_LIMIT, 1);
	if (!chosen)
		return -ENOMEM;
	for (uint32_t d = 0; d < device_count; d++) {
		rc = container_choose(container, total, devices[d], chosen, ENTRIES_LIMIT, &count);
		if (rc)
			goto out;
	}
	for (size_t i = 0; i < count; i++)
		any = any || chosen[i];
	/* Nothing fits: send all and let the driver say what it says. */
	if (!any)
		memset(chosen, 1, count);
	for (size_t i = 0; i < count; i++) {
		struct entry entry;

		rc = entry_read(container + offset, total - offset, &entry);
		if (rc)
			goto out;
		if (chosen[i]) {
			if (out)
				memcpy(out + CONTAINER_HEADER + kept, container + offset, entry.bytes);
			kept += entry.bytes;
		}
		offset += entry.bytes;
	}
	if (out) {
		memcpy(out, container, 8);
		memcpy(out + 8, &kept, sizeof(kept));
	}
	*bytes = CONTAINER_HEADER + kept;
out:
	free(chosen);
	return rc;
}

/* Bytes of an ELF64 file in memory: the end of what its headers mention. */
static int cubin_bytes(const uint8_t *image, uint64_t left, uint64_t *bytes)
{
	Elf64_Ehdr header;
	uint64_t end;

	if (left < sizeof(header))
		return -EINVAL;
	memcpy(&header, image, sizeof(header));
	if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ehsize < sizeof(header))
		return -EINVAL;
	if (header.e_shoff > WIRE_IMAGE_BYTES || header.e_phoff > WIRE_IMAGE_BYTES)
		return -EFBIG;
	end = header.e_shoff + (uint64_t)header.e_shnum * header.e_shentsize;
	if (header.e_phoff + (uint64_t)header.e_phnum * header.e_phentsize > end)
		end = header.e_phoff + (uint64_t)header.e_phnum * header.e_phentsize;
	if (end > left || (header.e_shnum && header.e_shentsize < sizeof(Elf64_Shdr)))
		return -EINVAL;
	for (uint16_t i = 0; i < header.e_shnum; i++) {
		Elf64_Shdr section;

		memcpy(&section, image + header.e_shoff + (uint64_t)i * header.e_shentsize,
		       sizeof(section));
		if (section.sh_type == SHT_NOBITS)
			continue;
		if (section.sh_offset > WIRE_IMAGE_BYTES || section.sh_size > WIRE_IMAGE_BYTES)
			return -EFBIG;
		if (section.sh_offset + section.sh_size > end)
			end = section.sh_offset + section.sh_size;
	}
	if (end > left)
		return -EINVAL;
	*bytes = end;
	return 0;
}

/* The number at *offset, of which all must lie within `left` bytes: seven bits in a byte, the lowest first. */
static int tile_varint(const uint8_t *image, uint64_t left, uint64_t *offset, uint64_t *value)
{
	*value = 0;
	for (unsigned shift = 0; shift < 63; shift += 7) {
		uint8_t byte;

		if (*offset >= left)
			return -EINVAL;
		byte = image[(*offset)++];
		*value |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80))
			return 0;
	}
	return -EINVAL;
}

static bool is_tile(const uint8_t *image, uint64_t left)
{
	/* What is no Tile IR may end before. */
	return left >= TILE_HEADER && strncmp((const char *)image, TILE_MAGIC, sizeof(TILE_MAGIC)) == 0;
}

/* Bytes of Tile IR: its sections to the one that ends it.  Each is there once, so that what only looks like it
 * leads not far beyond its end. */
static int tile_bytes(const uint8_t *image, uint64_t left, uint64_t *bytes)
{
	uint64_t offset = TILE_HEADER;

	for (unsigned count = 0; count <= TILE_SECTIONS; count++) {
		uint64_t size, alignment = 1;
		uint8_t number;

		if (offset >= left)
			return -EINVAL;
		number = image[offset++];
		if (number == 0) {
			*bytes = offset;
			return 0;
		}
		if (tile_varint(image, left, &offset, &size) ||
		    (number & TILE_ALIGNED && tile_varint(image, left, &offset, &alignment)))
			return -EINVAL;
		if (!alignment || alignment > TILE_ALIGNMENT || alignment & (alignment - 1))
			return -EINVAL;
		offset = (offset + alignment - 1) & ~(alignment - 1);
		if (size > WIRE_IMAGE_BYTES || offset + size > WIRE_IMAGE_BYTES)
			return -EFBIG;
		if (offset + size > left)
			return -EINVAL;
		offset += size;
	}
	return -EINVAL;
}

static bool is_elf(const uint8_t *image)
{
	return memcmp(image, ELFMAG, SELFMAG) == 0;
}

/* The first four bytes; 0 of what ends before, as PTX can: no magic has a zero in it. */
static uint32_t magic_of(const uint8_t *image, uint64_t left)
{
	size_t looked = left < 4 ? (size_t)left : 4;

	return looked < 4 || memchr(image, 0, looked) ? 0 : load_u32(image);
}

static int pack_wrapper(const struct wrapper *wrapper, const uint32_t *devices,
			uint32_t device_count, struct wire_image *head, uint8_t *out, size_t *bytes)
{
	size_t at = sizeof(*head), part;
	uint32_t parts = 1;
	int rc;

	if (wrapper->version != 1 && wrapper->version != 2)
		return -EINVAL;
	for (uint32_t i = 0; i < parts; i++) {
		const void *container = i ? wrapper->prelinked[i - 1] : wrapper->data;

		rc = container_filter(container, UINT64_MAX, devices, device_count,
				      out ? out + at + 8 : NULL, &part);
		if (rc)
			return rc;
		if (out) {
			uint64_t size = part;

			memcpy(out + at, &size, sizeof(size));
		}
		at += 8 + align_8(part);
		if (wrapper->version == 2 && wrapper->prelinked && wrapper->prelinked[i])
			parts++;
		if (parts > WIRE_IMAGE_PARTS || at > WIRE_IMAGE_BYTES)
			return -EFBIG;
	}
	head->form = WIRE_IMAGE_WRAPPER;
	head->wrapper_version = wrapper->version;
	head->part_count = parts;
	*bytes = at;
	return 0;
}

static int pack_plain(const uint8_t *image, uint64_t left, const uint32_t *devices, uint32_t device_count,
		      struct wire_image *head, uint8_t *out, size_t *bytes)
{
	uint64_t size = 0;
	size_t part;
	int rc;

	head->wrapper_version = 0;
	head->part_count = 1;
	if (magic_of(image, left) == CONTAINER_MAGIC) {
		head->form = WIRE_IMAGE_CONTAINER;
		rc = container_filter(image, left, devices, device_count,
				      out ? out + sizeof(*head) + 8 : NULL, &part);
		if (rc)
			return rc;
		size = part;
	} else if (magic_of(image, left) == ELF_MAGIC) {
		head->form = WIRE_IMAGE_CUBIN;
		rc = cubin_bytes(image, left, &size);
		if (rc)
			return rc;
	} else if (is_tile(image, left)) {
		head->form = WIRE_IMAGE_TILE;
		rc = tile_bytes(image, left, &size);
		if (rc)
			return rc;
	} else {
		head->form = WIRE_IMAGE_PTX;
		size = left == UINT64_MAX ? strlen((const char *)image) : strnlen((const char *)image, left);
		if (size++ == left)
			return -EINVAL;
	}
	if (size > WIRE_IMAGE_BYTES)
		return -EFBIG;
	if (out) {
		memcpy(out + sizeof(*head), &size, sizeof(size));
		if (head->form != WIRE_IMAGE_CONTAINER)
			memcpy(out + sizeof(*head) + 8, image, size);
	}
	*bytes = sizeof(*head) + 8 + align_8(size);
	return 0;
}

static int pack_any(const void *image, uint64_t left, const uint32_t *devices, uint32_t device_count,
		    struct wire_image *head, uint8_t *out, size_t *bytes)
{
	if (magic_of(image, left) == WRAPPER_MAGIC) {
		struct wrapper wrapper;

		/* Its pointers are for the process that it lies in. */
		if (left != UINT64_MAX)
			return -EINVAL;
		memcpy(&wrapper, image, sizeof(wrapper));
		return pack_wrapper(&wrapper, devices, device_count, head, out, bytes);
	}
	return pack_plain(image, left, devices, device_count, head, out, bytes);
}

int image_pack(const void *image, uint64_t left, const uint32_t *architectures,
	       uint32_t architecture_count, void **packed, size_t *bytes)
{
	struct wire_image head = { 0 };
	uint8_t *out;
	size_t size;
	int rc;

	rc = pack_any(image, left, architectures, architecture_count, &head, NULL, &size);
	if (rc)
		return rc;
	out = calloc(1, size);
	if (!out)
		return -ENOMEM;
	rc = pack_any(image, left, architectures, architecture_count, &head, out, &size);
	if (rc) {
		free(out);
		return rc;
	}
	memcpy(out, &head, sizeof(head));
	*packed = out;
	*bytes = size;
	return 0;
}

int image_filter(const void *container, size_t bytes, const uint32_t *architectures,
		 uint32_t architecture_count, void **filtered, size_t *filtered_bytes)
{
	uint64_t total;
	uint8_t *out;
	size_t size;
	int rc;

	rc = container_bytes(container, bytes, &total);
	if (!rc && total != bytes)
		rc = -EINVAL;
	if (!rc)
		rc = container_filter(container, bytes, architectures, architecture_count, NULL, &size);
	if (rc)
		return rc;
	out = malloc(size);
	if (!out)
		return -ENOMEM;
	rc = container_filter(container, bytes, architectures, architecture_count, out, &size);
	if (rc) {
		free(out);
		return rc;
	}
	*filtered = out;
	*filtered_bytes = size;
	return 0;
}

/* A container whose entries all lie within it. */
static int container_check(const uint8_t *container, uint64_t bytes)
{
	uint64_t total, offset = CONTAINER_HEADER;
	struct entry entry;

	if (container_bytes(container, bytes, &total) || total != bytes)
		return -EINVAL;
	for (; total - offset >= ENTRY_HEADER; offset += entry.bytes)
		if (entry_read(container + offset, total - offset, &entry))
			return -EINVAL;
	return 0;
}

static int part_check(uint32_t form, const uint8_t *part, uint64_t bytes)
{
	uint64_t size;

	switch (form) {
	case WIRE_IMAGE_WRAPPER:
	case WIRE_IMAGE_CONTAINER:
		return container_check(part, bytes);
	case WIRE_IMAGE_CUBIN:
		return bytes >= SELFMAG && is_elf(part) ? cubin_bytes(part, bytes, &size) : -EINVAL;
	case WIRE_IMAGE_TILE:
		return is_tile(part, bytes) && !tile_bytes(part, bytes, &size) && size == bytes ? 0 : -EINVAL;
	case WIRE_IMAGE_PTX:
		return bytes && part[bytes - 1] == 0 ? 0 : -EINVAL;
	default:
		return -EINVAL;
	}
}

int image_unpack(const void *packed, size_t bytes, struct image_unpacked *out)
{
	const uint8_t *at = packed;
	struct wire_image head;
	const void **parts;
	size_t offset = sizeof(head);
	int rc = -EINVAL;

	if (bytes < sizeof(head))
		return -EINVAL;
	memcpy(&head, at, sizeof(head));
	if (head.part_count == 0 || head.part_count > WIRE_IMAGE_PARTS ||
	    (head.form != WIRE_IMAGE_WRAPPER && head.part_count != 1))
		return -EINVAL;
	parts = calloc(head.part_count + 1, sizeof(*parts));
	if (!parts)
		return -ENOMEM;
	for (uint32_t i = 0; i < head.part_count; i++) {
		uint64_t size;

		if (bytes - offset < 8)
			goto fail;
		size = load_u64(at + offset);
		offset += 8;
		if (size > bytes - offset || align_8(size) > bytes - offset)
			goto fail;
		if (part_check(head.form, at + offset, size))
			goto fail;
		parts[i] = at + offset;
		offset += align_8(size);
	}
	if (offset != bytes)
		goto fail;
	memset(out, 0, sizeof(*out));
	out->prelinked = parts;
	out->image = parts[0];
	if (head.form == WIRE_IMAGE_WRAPPER) {
		struct wrapper wrapper = {
			.magic = WRAPPER_MAGIC,
			.version = head.wrapper_version,
			.data = parts[0],
			.prelinked = head.part_count > 1 ? (const void *const *)(parts + 1) : NULL,
		};

		if (wrapper.version != 1 && wrapper.version != 2)
			goto fail;
		_Static_assert(sizeof(wrapper) == sizeof(out->wrapper), "layout");
		memcpy(out->wrapper, &wrapper, sizeof(wrapper));
		out->image = out->wrapper;
	}
	return 0;
fail:
	free(parts);
	return rc;
}

void image_unpacked_release(struct image_unpacked *unpacked)
{
	free(unpacked->prelinked);
	unpacked->prelinked = NULL;
	unpacked->image = NULL;
}
