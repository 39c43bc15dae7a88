#define _GNU_SOURCE
#include "image.h"
#include "log.h"

#include "../engine/engine.h"
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The formats, as far as their lengths go: shared facts about nvcc's output
 * ("fatbinary.h" of the CUDA toolkit names the same fields). */
#define WRAPPER_MAGIC 0x466243b1u
#define CONTAINER_MAGIC 0xba55ed50u
#define CONTAINER_LINK_MAX 4096		/* containers that one -rdc wrapper lists */
#define IMAGE_BYTES_MAX (2ull << 30)

struct fatbin_wrapper {
	uint32_t magic;
	uint32_t version;		/* 1, or 2 with `prelinked` */
	const void *data;
	const void *const *prelinked;	/* ends with NULL */
};

struct fatbin_container {
	uint32_t magic;
	uint16_t version;
	uint16_t header_bytes;
	uint64_t payload_bytes;
};

_Static_assert(sizeof(struct fatbin_wrapper) == 24, "layout of nvcc's fatbin wrapper");
_Static_assert(sizeof(struct fatbin_container) == 16, "layout of nvcc's fatbin container");

/* Lengths that can't be right: whoever reads it would read on beyond its end. */
static CUresult image_refuse(const char *why)
{
	driver_say("an image is not loaded: %s", why);
	return CUDA_ERROR_INVALID_IMAGE;
}

/* Length of a container, or 0 when it is none. */
static size_t container_bytes(const void *data)
{
	struct fatbin_container header;

	memcpy(&header, data, sizeof header.magic);
	if (header.magic != CONTAINER_MAGIC)
		return 0;
	memcpy(&header, data, sizeof header);
	if (header.payload_bytes > IMAGE_BYTES_MAX)
		return 0;
	return header.header_bytes + header.payload_bytes;
}

/* Everything behind a wrapper, packed: the wrapper, its list, the containers at
 * multiples of 16. */
static CUresult copy_wrapper(const struct fatbin_wrapper *wrapper, void **copy)
{
	size_t count = 0, total, at, bytes;
	struct fatbin_wrapper *out;
	const void **list;

	if (wrapper->version == 2 && wrapper->prelinked) {
		while (wrapper->prelinked[count]) {
			if (++count > CONTAINER_LINK_MAX)
				return image_refuse("it has too many objects to link");
		}
	}
	total = sizeof *out + (count + 1) * sizeof *list + 16;
	bytes = wrapper->data ? container_bytes(wrapper->data) : 0;
	if (!bytes && !count)
		return image_refuse("there is no container behind its wrapper");
	total += bytes + 16;
	for (size_t i = 0; i < count; i++) {
		bytes = container_bytes(wrapper->prelinked[i]);
		if (!bytes || total > IMAGE_BYTES_MAX)
			return image_refuse("one of the objects to link is no container, or too large");
		total += bytes + 16;
	}
	out = calloc(1, total);
	if (!out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = *wrapper;
	list = (const void **)(out + 1);
	at = (sizeof *out + (count + 1) * sizeof *list + 15) / 16 * 16;
	bytes = wrapper->data ? container_bytes(wrapper->data) : 0;
	if (bytes) {
		out->data = memcpy((char *)out + at, wrapper->data, bytes);
		at = (at + bytes + 15) / 16 * 16;
	}
	for (size_t i = 0; i < count; i++) {
		bytes = container_bytes(wrapper->prelinked[i]);
		list[i] = memcpy((char *)out + at, wrapper->prelinked[i], bytes);
		at = (at + bytes + 15) / 16 * 16;
	}
	out->prelinked = wrapper->version == 2 && wrapper->prelinked ? list : NULL;
	*copy = out;
	return CUDA_SUCCESS;
}

CUresult driver_image_copy(const void *image, void **copy)
{
	uint32_t magic;
	size_t bytes;

	/* Four bytes are there in every image; PTX of less than three characters
	 * is none. */
	if (!memchr(image, 0, 4))
		memcpy(&magic, image, sizeof magic);
	else
		magic = 0;
	if (magic == WRAPPER_MAGIC)
		return copy_wrapper(image, copy);
	if (magic == CONTAINER_MAGIC)
		bytes = container_bytes(image);
	else if (!memcmp(image, "\177ELF", 4))
		bytes = engine_image_bytes(image, IMAGE_BYTES_MAX);
	else
		bytes = strlen(image) + 1;
	if (!bytes)
		return image_refuse("its headers say of no sound size");
	*copy = malloc(bytes);
	if (!*copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(*copy, image, bytes);
	return CUDA_SUCCESS;
}

CUresult driver_file_read(const char *path, void **image, size_t *bytes)
{
	CUresult result = CUDA_ERROR_OPERATING_SYSTEM;
	struct stat status;
	char *text = NULL;
	size_t got = 0;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_OPERATING_SYSTEM;
	if (fstat(fd, &status) || !S_ISREG(status.st_mode))
		goto out;
	if ((uint64_t)status.st_size > IMAGE_BYTES_MAX) {
		result = image_refuse("its file is too large");
		goto out;
	}
	text = malloc((size_t)status.st_size + 1);
	if (!text) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
		goto out;
	}
	while (got < (size_t)status.st_size) {
		ssize_t some = read(fd, text + got, (size_t)status.st_size - got);

		if (some < 0 && errno == EINTR)
			continue;
		if (some < 0)
			goto out;
		if (!some)
			break;
		got += (size_t)some;
	}
	text[got] = '\0';
	*image = text;
	*bytes = got;
	text = NULL;
	result = CUDA_SUCCESS;
out:
	free(text);
	close(fd);
	return result;
}

/* What claims more than the file has would be read past it. */
CUresult driver_image_read(const char *path, void **image)
{
	size_t bytes;
	CUresult result = driver_file_read(path, image, &bytes);

	if (result)
		return result;
	if ((bytes >= sizeof(struct fatbin_container) && container_bytes(*image) > bytes) ||
	    (!memcmp(*image, "\177ELF", bytes < 4 ? bytes + 1 : 4) &&
	     !engine_image_bytes(*image, bytes))) {
		free(*image);
		return image_refuse("its file ends before what its headers say");
	}
	return CUDA_SUCCESS;
}
