/* images.h - images of earlier programs (images.c). */
#ifndef FARBUS_SERVER_IMAGES_H
#define FARBUS_SERVER_IMAGES_H

#include "../server_ops.h"

/* Bytes behind every image, zero, so that a malformed one ends there. */
#define SERVER_IMAGE_SLACK 16u

/* Images that are kept in a directory of this process's user, who alone may enter it; NULL:
 * there is none such.  `limit` is for the bytes of all of them. */
struct server_images *server_images_open(const char *path, uint64_t limit);
/* The image of that digest and length, malloc'ed; NULL: it is not there. */
void *server_image_find(struct server_images *images, const uint8_t digest[WIRE_DIGEST_BYTES],
			uint64_t bytes);
bool server_image_is(const void *data, size_t bytes, const uint8_t digest[WIRE_DIGEST_BYTES]);
/* Keep an image, whose digest that is, if nothing hinders it. */
void server_image_keep(struct server_images *images, const uint8_t digest[WIRE_DIGEST_BYTES],
		       const void *data, uint64_t bytes);

#endif
