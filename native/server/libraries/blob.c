/* Blobs: images on their way, in parts. */
#include "../ground/frames.h"
#include "blob.h"
#include "images.h"

#include <stdlib.h>

#include "../../wire/image.h"

/* Most bytes of images on their way at one time. */
#define BLOB_BYTES_LIMIT (4ull << 30)

static struct server_blob **blob_find(struct server *server, uint64_t handle)
{
	struct server_blob **link = &server->blobs;

	while (*link && (*link)->handle != handle)
		link = &(*link)->next;
	return link;
}

static CUresult blob_start(struct server *server, const struct wire_blob_part *part,
			   struct server_blob **out)
{
	struct server_blob *blob;

	if (part->offset || !part->total)
		return SERVER_MALFORMED;
	if (part->total > WIRE_IMAGE_BYTES || server->blob_bytes + part->total > BLOB_BYTES_LIMIT)
		return CUDA_ERROR_OUT_OF_MEMORY;
	blob = calloc(1, sizeof(*blob));
	if (!blob)
		return CUDA_ERROR_OUT_OF_MEMORY;
	blob->data = calloc(1, part->total + SERVER_IMAGE_SLACK);
	if (!blob->data) {
		free(blob);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	blob->handle = part->blob;
	blob->total = part->total;
	blob->next = server->blobs;
	server->blobs = blob;
	server->blob_bytes += part->total;
	*out = blob;
	return CUDA_SUCCESS;
}

CUresult serve_blob_part(struct server_call *call)
{
	const struct wire_blob_part *part = call->request;
	struct server *server = call->server;
	struct server_blob *blob;
	CUresult result = CUDA_SUCCESS;

	/* Only the leader makes and fills blobs; others take them away. */
	pthread_mutex_lock(&server->lock);
	blob = *blob_find(server, part->blob);
	if (!blob)
		result = blob_start(server, part, &blob);
	pthread_mutex_unlock(&server->lock);
	if (result != CUDA_SUCCESS)
		return result;
	if (part->total != blob->total || part->offset != blob->filled ||
	    call->tail_bytes > blob->total - blob->filled)
		return SERVER_MALFORMED;
	blob->filled += call->tail_bytes;
	return server_take(call, blob->data + part->offset, call->tail_bytes);
}

/* Take a complete blob out; its data becomes the caller's. */
void *server_blob_take(struct server *server, uint64_t handle, uint64_t bytes)
{
	struct server_blob **link, *blob;
	void *data = NULL;

	pthread_mutex_lock(&server->lock);
	link = blob_find(server, handle);
	blob = *link;
	if (blob && blob->filled == blob->total && blob->total == bytes) {
		*link = blob->next;
		server->blob_bytes -= blob->total;
		data = blob->data;
		free(blob);
	}
	pthread_mutex_unlock(&server->lock);
	return data;
}
