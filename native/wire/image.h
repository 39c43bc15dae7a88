/* image.h - GPU code as programs hand it to the driver: without a length.
 *
 * Layouts (all little-endian), observed from nvcc 11.8 to 13.0:
 *	wrapper    u32 magic 0x466243b1, u32 version 1|2, ptr data, ptr prelinked:
 *	           version 2 (-rdc) has a NULL-terminated array of containers there
 *	container  u32 magic 0xba55ed50, u16 version, u16 header bytes, u64 bytes behind it
 *	entry      u16 kind @0 (1 PTX, 2 cubin), u32 header bytes @4, u64 padded bytes @8,
 *	           u32 architecture @28, u64 flags @40
 *	or a bare ELF64 cubin, Tile IR, or NUL-terminated PTX.
 * Tile IR ("Binary Format" of its specification; CUDA 13.1 and newer):
 *	u8 magic[8], u8 major, u8 minor, u16 tag, then sections:
 *	u8 number, varint bytes, its data; with bit 7 of the number set a varint alignment follows the bytes, and the
 *	data begin at its next multiple from the magic on.  Section 0 is its number alone, and ends the image.
 *
 * On the wire an image is packed: struct wire_image, then its parts, each
 * aligned to 8 bytes: only the entries that the session's devices can use.
 */
#ifndef FARBUS_WIRE_IMAGE_H
#define FARBUS_WIRE_IMAGE_H

#include <stddef.h>
#include <stdint.h>

/* Most bytes of one image, packed. */
#define WIRE_IMAGE_BYTES (2ull << 30)
/* Most containers in one image: -rdc links one per source file. */
#define WIRE_IMAGE_PARTS 65536u

enum wire_image_form {
	WIRE_IMAGE_WRAPPER = 1,		/* parts: container, then the prelinked ones */
	WIRE_IMAGE_CONTAINER = 2,	/* one part */
	WIRE_IMAGE_CUBIN = 3,
	WIRE_IMAGE_PTX = 4,		/* its NUL included */
	WIRE_IMAGE_TILE = 5,		/* its end included; a server that does not know it refuses the image */
};

struct wire_image {
	uint32_t form;
	uint32_t wrapper_version;
	uint32_t part_count;
	uint32_t reserved;
};
_Static_assert(sizeof(struct wire_image) == 16, "wire layout");

/* An image as the server gives it to its driver; built over a packed image
 * that must stay where it is. */
struct image_unpacked {
	const void *image;
	uint32_t wrapper[6];
	const void **prelinked;
};

#define WIRE_IMAGE_ENDLESS UINT64_MAX

/* Pack what is at `image`, of which `left` bytes may be touched (WIRE_IMAGE_ENDLESS: it is the
 * program's, and says itself how long it is), for devices of the given compute capabilities
 * (10 * major + minor).  *packed is malloc'ed.  -EINVAL: not an image;
 * -EFBIG: larger than WIRE_IMAGE_BYTES; -ENOMEM. */
int image_pack(const void *image, uint64_t left, const uint32_t *architectures,
	       uint32_t architecture_count, void **packed, size_t *bytes);

/* What of a bare container of `bytes` bytes a linker for those devices can use; malloc'ed.
 * -EINVAL: it is not one container and nothing else; -ENOMEM. */
int image_filter(const void *container, size_t bytes, const uint32_t *architectures,
		 uint32_t architecture_count, void **filtered, size_t *filtered_bytes);

/* Check a packed image from the wire and make it what a driver takes.
 * -EINVAL: malformed; -ENOMEM. */
int image_unpack(const void *packed, size_t bytes, struct image_unpacked *out);
void image_unpacked_release(struct image_unpacked *unpacked);

#endif
