/* fatbin_layout.h - how containers of PTX and cubins lie in memory.
 *
 * The layout is that of fatbinary_section.h of the CUDA toolkit for the
 * wrapper; container and entries as observed in the output of nvcc 13.0.
 */
#ifndef FARBUS_SOFTGPU_FATBIN_LAYOUT_H
#define FARBUS_SOFTGPU_FATBIN_LAYOUT_H

#include <stdint.h>

#define WRAPPER_MAGIC 0x466243b1u
#define CONTAINER_MAGIC 0xba55ed50u
#define TILE_MAGIC "\177TileIR"		/* Tile IR, with its NUL */
#define ENTRY_KIND_PTX 1
#define ENTRY_KIND_CUBIN 2
#define ENTRY_LZ4 0x2000u
#define ENTRY_ZSTD 0x8000u
#define ENTRY_DEVICE 0x100000u		/* compute_90a */
#define ENTRY_FAMILY 0x200000u		/* compute_100f */

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
	uint32_t compressed_bytes, options_offset;	/* of an entry_options, in the header; 0: none */
	uint16_t minor, major;
	uint32_t arch;
	uint32_t name_offset, name_bytes;
	uint64_t flags, unused3;
	uint64_t uncompressed_bytes;
};

/* What nvcc would have told ptxas (-maxrregcount, -Xptxas): words with spaces around them. */
struct entry_options {
	uint32_t offset, bytes;		/* in the header */
};

_Static_assert(sizeof(struct container) == 16, "fatbin container header");
_Static_assert(sizeof(struct entry) == 64, "fatbin entry header");

#endif
