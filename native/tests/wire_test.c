/* Handles and images, from both sides of the wire. */
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../wire/cursor.h"
#include "../wire/handle.h"
#include "../wire/image.h"
#include "../wire/proof.h"

#undef NDEBUG

static void test_handles_are_typed_and_counted(void)
{
	static struct handle_table table = HANDLE_TABLE_INITIALIZER;
	int first, second;
	uint64_t a, b, c;

	assert(handle_open(&table, HANDLE_STREAM, &first, &a) == 0);
	assert(handle_open(&table, HANDLE_EVENT, &second, &b) == 0);
	assert(a != b && a > 2);
	assert(handle_get(&table, HANDLE_STREAM, a) == &first);
	assert(handle_get(&table, HANDLE_EVENT, a) == NULL);
	assert(handle_get(&table, HANDLE_STREAM, a + 1) == NULL);
	assert(handle_get(&table, HANDLE_STREAM, 0) == NULL);
	assert(handle_get(&table, HANDLE_STREAM, ~0ull) == NULL);
	assert(handle_close(&table, HANDLE_EVENT, a) == NULL);
	assert(handle_close(&table, HANDLE_STREAM, a) == &first);
	assert(handle_get(&table, HANDLE_STREAM, a) == NULL);
	assert(handle_open(&table, HANDLE_STREAM, &second, &c) == 0);
	assert(c != a);
	assert(handle_get(&table, HANDLE_STREAM, a) == NULL);
	assert(handle_get(&table, HANDLE_STREAM, c) == &second);
}

static void test_bound_handles_need_a_free_slot(void)
{
	static struct handle_table mine = HANDLE_TABLE_INITIALIZER;
	static struct handle_table theirs = HANDLE_TABLE_INITIALIZER;
	int object;
	uint64_t name;

	assert(handle_open(&mine, HANDLE_EVENT, &object, &name) == 0);
	assert(handle_bind(&theirs, HANDLE_STREAM, name, &object) == -EINVAL);
	assert(handle_bind(&theirs, HANDLE_EVENT, name, &object) == 0);
	assert(handle_bind(&theirs, HANDLE_EVENT, name, &object) == -EINVAL);
	assert(handle_bind(&theirs, HANDLE_EVENT, 16, &object) == -EINVAL);
	assert(handle_bind(&theirs, HANDLE_EVENT, (uint64_t)HANDLE_EVENT << 43 | 0x7fffffull << 4,
			   &object) == -EINVAL);
	assert(handle_close(&theirs, HANDLE_EVENT, name) == &object);
	assert(handle_bind(&theirs, HANDLE_EVENT, name, &object) == 0);
}

static void put_u32(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, sizeof(value));
}

static void put_u64(uint8_t *at, uint64_t value)
{
	memcpy(at, &value, sizeof(value));
}

#define DEVICE 0x100000u	/* sm_90a */
#define FAMILY 0x200000u	/* sm_100f */

/* A container with one entry per (kind, architecture | flags), 16 bytes of payload each. */
static uint8_t *container_make(const uint32_t (*entries)[2], size_t count, size_t *bytes)
{
	uint8_t *container = calloc(1, 16 + count * 80);

	assert(container);
	put_u32(container, 0xba55ed50);
	put_u32(container + 4, 1 | 16 << 16);
	put_u64(container + 8, count * 80);
	for (size_t i = 0; i < count; i++) {
		uint8_t *entry = container + 16 + i * 80;

		put_u32(entry, entries[i][0]);
		put_u32(entry + 4, 64);
		put_u64(entry + 8, 16);
		put_u32(entry + 28, entries[i][1] & 0xffff);
		put_u32(entry + 40, entries[i][1] & (DEVICE | FAMILY));
		memset(entry + 64, (int)i + 1, 16);
	}
	*bytes = 16 + count * 80;
	return container;
}

static void test_only_fitting_code_travels(void)
{
	static const uint32_t entries[][2] = {
		{ 2, 70 }, { 2, 75 }, { 2, 80 }, { 2, 86 }, { 2, 90 }, { 1, 75 }, { 1, 90 },
	};
	const uint32_t ampere = 89;
	struct image_unpacked unpacked;
	size_t bytes, packed_bytes;
	uint8_t *container = container_make(entries, 7, &bytes);
	const uint8_t *image;
	void *packed;

	assert(image_pack(container, WIRE_IMAGE_ENDLESS, &ampere, 1, &packed, &packed_bytes) == 0);
	/* The newest cubin of the same major, and the newest PTX not newer. */
	assert(packed_bytes == sizeof(struct wire_image) + 8 + 16 + 2 * 80);
	assert(image_unpack(packed, packed_bytes, &unpacked) == 0);
	image = unpacked.image;
	assert(image[16 + 64] == 4 && image[16 + 80 + 64] == 6);
	image_unpacked_release(&unpacked);
	free(packed);
	free(container);
}

/* The numbers, from 1, of the entries that go to `device`: bit 0 for the first. */
static unsigned entries_sent(const uint32_t (*entries)[2], size_t count, uint32_t device)
{
	struct image_unpacked unpacked;
	size_t bytes, packed_bytes;
	uint8_t *container = container_make(entries, count, &bytes);
	const uint8_t *image;
	unsigned sent = 0;
	void *packed;

	assert(image_pack(container, WIRE_IMAGE_ENDLESS, &device, 1, &packed, &packed_bytes) == 0);
	assert(image_unpack(packed, packed_bytes, &unpacked) == 0);
	image = unpacked.image;
	for (size_t at = 16; at < packed_bytes - sizeof(struct wire_image) - 8; at += 80)
		sent |= 1u << (image[at + 64] - 1);
	image_unpacked_release(&unpacked);
	free(packed);
	free(container);
	return sent;
}

static void test_code_for_one_device_or_family_leaves_the_common_code_to_others(void)
{
	static const uint32_t entries[][2] = {
		{ 1, 80 }, { 1, 90 | DEVICE }, { 1, 100 | FAMILY },
		{ 2, 100 }, { 2, 100 | DEVICE }, { 2, 100 | FAMILY },
	};

	assert(entries_sent(entries, 6, 90) == 0x03);
	assert(entries_sent(entries, 6, 100) == 0x3d);
	assert(entries_sent(entries, 6, 103) == 0x2d);
	assert(entries_sent(entries, 6, 120) == 0x01);
}

static void test_which_of_equal_entries_is_taken_is_the_driver_s_affair(void)
{
	static const uint32_t entries[][2] = {
		{ 2, 80 }, { 2, 86 }, { 2, 86 }, { 1, 75 }, { 1, 75 }, { 1, 70 }, { 8, 90 },
	};

	assert(entries_sent(entries, 7, 86) == 0x5e);
	assert(entries_sent(entries, 7, 80) == 0x59);
}

static void test_an_image_in_a_file_ends_with_the_file(void)
{
	static const uint32_t entries[][2] = { { 1, 75 } };
	const uint32_t device = 80;
	size_t bytes, packed_bytes;
	uint8_t *container = container_make(entries, 1, &bytes), *cut;
	struct { uint32_t magic, version; const void *data, *prelinked; } wrapper = {
		0x466243b1, 1, container, NULL,
	};
	void *packed;

	assert(image_pack(container, bytes, &device, 1, &packed, &packed_bytes) == 0);
	free(packed);
	for (size_t left = 0; left < bytes; left++) {
		cut = malloc(left ? left : 1);
		assert(cut);
		memcpy(cut, container, left);
		assert(image_pack(cut, left, &device, 1, &packed, &packed_bytes) == -EINVAL);
		free(cut);
	}
	assert(image_pack("no end", 6, &device, 1, &packed, &packed_bytes) == -EINVAL);
	/* Pointers in a file lead anywhere. */
	assert(image_pack(&wrapper, sizeof(wrapper), &device, 1, &packed, &packed_bytes) == -EINVAL);
	assert(image_filter(container, bytes - 1, &device, 1, &packed, &packed_bytes) == -EINVAL);
	assert(image_filter(container, bytes, &device, 1, &packed, &packed_bytes) == 0);
	assert(packed_bytes == bytes && memcmp(packed, container, bytes) == 0);
	free(packed);
	free(container);
}

static void test_tile_ir_travels_to_its_end(void)
{
	/* A section of 2 bytes at 16, which begin with what looks like the end, and one of 130 bytes. */
	static const uint8_t head[] = "\177TileIR\0\15\1\0\0\202\2\10\313\0\7\1\202\1";
	uint8_t tile[sizeof(head) - 1 + 130 + 1] = { 0 }, *cut;
	const uint32_t device = 120;
	struct image_unpacked unpacked;
	uint8_t behind[sizeof(tile) + 64];
	size_t packed_bytes;
	void *packed;

	memcpy(tile, head, sizeof(head) - 1);
	memcpy(behind, tile, sizeof(tile));
	memset(behind + sizeof(tile), 0xff, 64);
	assert(image_pack(behind, WIRE_IMAGE_ENDLESS, &device, 1, &packed, &packed_bytes) == 0);
	assert(packed_bytes == sizeof(struct wire_image) + 8 + (sizeof(tile) + 7) / 8 * 8);
	assert(image_unpack(packed, packed_bytes, &unpacked) == 0);
	assert(memcmp(unpacked.image, tile, sizeof(tile)) == 0);
	image_unpacked_release(&unpacked);
	/* A server reads no further than what was sent: one whose last section is longer is refused. */
	((uint8_t *)packed)[sizeof(struct wire_image) + 8 + 19] = 0xff;
	assert(image_unpack(packed, packed_bytes, &unpacked) == -EINVAL);
	free(packed);
	for (size_t left = 12; left < sizeof(tile); left++) {
		cut = malloc(left);
		assert(cut);
		memcpy(cut, tile, left);
		assert(image_pack(cut, left, &device, 1, &packed, &packed_bytes) == -EINVAL);
		free(cut);
	}
}

static void test_wrappers_keep_their_prelinked_parts(void)
{
	static const uint32_t entries[][2] = { { 1, 75 } };
	const uint32_t device = 80;
	size_t bytes;
	uint8_t *a = container_make(entries, 1, &bytes), *b = container_make(entries, 1, &bytes);
	const void *prelinked[] = { b, a, NULL };
	struct {
		uint32_t magic, version;
		const void *data;
		const void *const *prelinked;
	} wrapper = { 0x466243b1, 2, a, prelinked }, *out;
	struct image_unpacked unpacked;
	size_t packed_bytes;
	void *packed;

	assert(image_pack(&wrapper, WIRE_IMAGE_ENDLESS, &device, 1, &packed, &packed_bytes) == 0);
	assert(image_unpack(packed, packed_bytes, &unpacked) == 0);
	out = (void *)unpacked.image;
	assert(out->magic == 0x466243b1 && out->version == 2);
	assert(memcmp(out->data, a, bytes) == 0);
	assert(memcmp(out->prelinked[0], b, bytes) == 0);
	assert(out->prelinked[1] && !out->prelinked[2]);
	image_unpacked_release(&unpacked);
	free(packed);
	free(a);
	free(b);
}

/* Whatever is cut off or changed in a packed image, unpacking it either succeeds
 * within its bytes or says that it is malformed; the sanitizers watch. */
static void test_damaged_images_are_refused_or_harmless(void)
{
	static const uint32_t entries[][2] = { { 2, 80 }, { 1, 75 } };
	const uint32_t device = 80;
	struct image_unpacked unpacked;
	size_t bytes, packed_bytes;
	uint8_t *container = container_make(entries, 2, &bytes), *copy;
	uint32_t random = 1;
	void *packed;

	assert(image_pack(container, WIRE_IMAGE_ENDLESS, &device, 1, &packed, &packed_bytes) == 0);
	for (size_t cut = 0; cut < packed_bytes; cut++) {
		copy = malloc(cut ? cut : 1);
		assert(copy);
		memcpy(copy, packed, cut);
		assert(image_unpack(copy, cut, &unpacked) == -EINVAL);
		free(copy);
	}
	for (int round = 0; round < 20000; round++) {
		copy = malloc(packed_bytes);
		assert(copy);
		memcpy(copy, packed, packed_bytes);
		for (int change = 0; change < 3; change++) {
			random = random * 1664525u + 1013904223u;
			copy[(random >> 8) % packed_bytes] = (uint8_t)random;
		}
		if (image_unpack(copy, packed_bytes, &unpacked) == 0)
			image_unpacked_release(&unpacked);
		free(copy);
	}
	free(packed);
	free(container);
}

static void test_readers_stop_at_the_end(void)
{
	const uint8_t bytes[12] = { 1, 0, 0, 0, 2 };
	struct wire_reader reader = { .at = bytes, .left = sizeof(bytes) };

	assert(wire_read_u32(&reader) == 1);
	assert(wire_read_u64(&reader) == 2);
	assert(!reader.failed);
	assert(wire_read_u32(&reader) == 0 && reader.failed);
	assert(wire_read_bytes(&reader, SIZE_MAX) == NULL);
}

static void touched(int signal)
{
	(void)signal;
	_exit(42);
}

/* Whoever stops at the first difference never comes to the page that may not be read. */
static void test_secrets_are_compared_to_their_ends(void)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint8_t secret[WIRE_TOKEN_BYTES] = { 1 }, other[WIRE_TOKEN_BYTES] = { 1 };
	uint8_t *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int status;
	pid_t child;

	assert(pages != MAP_FAILED);
	assert(wire_secrets_equal(secret, other, sizeof(secret)));
	for (size_t i = 0; i < sizeof(secret); i++) {
		other[i] ^= 0x80;
		assert(!wire_secrets_equal(secret, other, sizeof(secret)));
		other[i] ^= 0x80;
	}
	pages[page - sizeof(secret) + 1] = 2;	/* the first byte differs, the last is on the other page */
	assert(mprotect(pages + page, page, PROT_NONE) == 0);
	child = fork();
	assert(child >= 0);
	if (child == 0) {
		signal(SIGSEGV, touched);
		_exit(wire_secrets_equal(pages + page - sizeof(secret) + 1, secret, sizeof(secret)));
	}
	assert(waitpid(child, &status, 0) == child);
	assert(WIFEXITED(status) && WEXITSTATUS(status) == 42);
	munmap(pages, 2 * page);
}

int main(void)
{
	test_handles_are_typed_and_counted();
	test_bound_handles_need_a_free_slot();
	test_only_fitting_code_travels();
	test_code_for_one_device_or_family_leaves_the_common_code_to_others();
	test_tile_ir_travels_to_its_end();
	test_wrappers_keep_their_prelinked_parts();
	test_which_of_equal_entries_is_taken_is_the_driver_s_affair();
	test_an_image_in_a_file_ends_with_the_file();
	test_damaged_images_are_refused_or_harmless();
	test_readers_stop_at_the_end();
	test_secrets_are_compared_to_their_ends();
	puts("ok");
	return 0;
}
