/* softgpu_fatbin_fuzz.c - containers of PTX, as a program carries them, and what the linker
 * is given: objects and archives.
 *
 * The size of the container is what the program's own loader vouches for; so it
 * is right here, and all that is inside is fuzzed. */
#include <stdlib.h>
#include <string.h>

#include "../softgpu/engine/images/fatbin.h"
#include "../softgpu/engine/images/object.h"
#include "fuzz.h"

#define MEMBER_AT 68	/* of an archive: its magic and one header */

/* An entry of 64 bytes and its payload: kind 1 (PTX), raw, LZ4 and zstd. */
#define ENTRY(header, padded, compressed, options, flags, whole)                               \
	1, 0, 0, 0, header, 0, 0, 0, padded, 0, 0, 0, 0, 0, 0, 0, compressed, 0, 0, 0, options, 0, 0, 0, \
	0, 0, 8, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, flags, 0, 0, 0, 0, 0, 0,            \
	0, 0, 0, 0, 0, 0, 0, 0, whole, 0, 0, 0, 0, 0, 0, 0
#define LETTERS 'h', 'e', 'l', 'l', 'o', ',', ' ', 'P', 'T', 'X', '.', '.', '.', '.', '.', 0

static const uint8_t raw[] = { ENTRY(64, 16, 0, 0, 0, 0), LETTERS };
/* Its header says to ptxas what nvcc was told. */
static const uint8_t bound[] = {
	ENTRY(96, 16, 0, 64, 0, 0), 72, 0, 0, 0, 18, 0, 0, 0, ' ', '-', 'm', 'a', 'x', 'r', 'r', 'e', 'g', 'c', 'o', 'u',
	'n', 't', '=', '3', '2', ' ', 0, 0, 0, 0, 0, 0, LETTERS,
};
/* One sequence of 16 literals: token 0xf0, 1 more than 15. */
static const uint8_t lz4[] = {
	ENTRY(64, 24, 18, 0, 0x20, 16), 0xf0, 1, LETTERS, 0, 0, 0, 0, 0, 0,
};
/* A frame of one raw block: magic, single segment with a content size of 16, last block. */
static const uint8_t zstd[] = {
	ENTRY(64, 32, 25, 0, 0x80, 16), 0x28, 0xb5, 0x2f, 0xfd, 0x20, 16, 0x81, 0, 0, LETTERS,
	0, 0, 0, 0, 0, 0, 0,
};

/* An archive whose only member is an object with one section, .nv_fatbin, of one container. */
static const uint8_t archive[] = {
	"!<arch>\na.o/            0           0     0     644     376       `\n"
	/* the header: 64 bits, little end first, three sections at 184, their names in the third */
	"\177ELF\2\1\1\0\0\0\0\0\0\0\0\0\1\0\276\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
	"\270\0\0\0\0\0\0\0\0\0\0\0\100\0\0\0\0\0\100\0\3\0\2\0"
	/* the names at 64 */
	"\0.nv_fatbin\0.shstrtab\0\0\0"
	/* the container at 88, with an entry and its text */
	"\120\355\125\272\1\0\20\0\120\0\0\0\0\0\0\0"
	"\1\0\0\0\100\0\0\0\20\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\10\0\120\0\0\0"
	"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
	"hello, PTX.....\0"
	/* the sections at 184: none, the containers, the names */
	"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
	"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
	"\1\0\0\0\1\0\0\0\2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\130\0\0\0\0\0\0\0"
	"\140\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\20\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
	"\14\0\0\0\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\100\0\0\0\0\0\0\0"
	"\26\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
};

const struct fuzz_seed fuzz_seeds[] = {
	{ raw, sizeof(raw) }, { bound, sizeof(bound) }, { lz4, sizeof(lz4) }, { zstd, sizeof(zstd) },
	{ archive, sizeof(archive) - 1 }, { NULL, 0 },
};
const char *const fuzz_words[] = { NULL };

static void read(const uint8_t *image, size_t bytes, size_t known_bytes)
{
	struct engine_diagnostic why = { "" };
	struct fatbin_texts texts = { 0 };
	uint8_t *copy = malloc(bytes + !bytes);

	if (!copy)
		abort();
	memcpy(copy, image, bytes);
	if (!fatbin_read(copy, known_bytes, 90, &texts, &why))
		fatbin_texts_free(&texts);
	object_extent(copy, bytes);
	free(copy);
}

void fuzz_one(uint8_t *data, size_t bytes)
{
	uint8_t *image = malloc(16 + bytes);
	const uint32_t magic = 0xba55ed50u;
	const uint16_t version = 1, header = 16;
	const uint64_t payload = bytes;

	if (!image)
		abort();
	memcpy(image, &magic, 4);
	memcpy(image + 4, &version, 2);
	memcpy(image + 6, &header, 2);
	memcpy(image + 8, &payload, 8);
	memcpy(image + 16, data, bytes);
	read(image, 16 + bytes, FATBIN_BYTES_UNKNOWN);
	read(data, bytes, bytes);
	/* The object alone, which mutations of the archive's header would hide. */
	if (bytes > MEMBER_AT)
		read(data + MEMBER_AT, bytes - MEMBER_AT, bytes - MEMBER_AT);
	free(image);
}
