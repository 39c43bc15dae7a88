/* The driver's linker: inputs travel as they are added, the image comes back when it is done. */
#include "client.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../wire/image.h"
#include "marshal.h"

/* The image of the last completed link is the program's until the link is destroyed. */
struct link_image {
	struct link_image *next;
	CUlinkState state;
	uint8_t *data;
};

static pthread_mutex_t images_lock = PTHREAD_MUTEX_INITIALIZER;
static struct link_image *images;

CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option *options, void **optionValues,
			 CUlinkState *stateOut)
{
	struct client_jit_options jit;
	struct wire_link_create fixed = { 0 };
	struct wire_link_create_reply reply = { 0 };
	struct client_request request = {
		.op = WIRE_OP_LINK_CREATE,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_wait wait = { .reply = &reply, .reply_bytes = sizeof(reply) };
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!stateOut || (numOptions && (!options || !optionValues)))
		return CUDA_ERROR_INVALID_VALUE;
	client_jit_collect(&jit, options, optionValues, numOptions);
	fixed.jit_count = jit.count;
	request.tail = jit.pairs;
	request.tail_bytes = jit.count * sizeof(jit.pairs[0]);
	result = client_call_wide(&request, &wait);
	if (result == CUDA_SUCCESS)
		*stateOut = (CUlinkState)(uintptr_t)client_named_take(client_route_current().session,
								      reply.link);
	return result;
}

CUresult cuLinkCreate(unsigned int numOptions, CUjit_option *options, void **optionValues,
		      CUlinkState *stateOut)
{
	return cuLinkCreate_v2(numOptions, options, optionValues, stateOut);
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size,
			  const char *name, unsigned int numOptions, CUjit_option *options,
			  void **optionValues)
{
	struct client_jit_options jit;
	struct client_session *session;
	struct client_route route;
	struct wire_link_add fixed = {
		.link = client_named_wire(state, &session),
		.type = (uint32_t)type,
		.blob_bytes = size,
	};
	struct client_request request = {
		.op = WIRE_OP_LINK_ADD,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_wait wait = { 0 };
	CUresult result = client_enter();
	uint8_t tail[8192];
	size_t pairs, named;

	if (result != CUDA_SUCCESS)
		return result;
	if (!data || !size || size > WIRE_IMAGE_BYTES)
		return CUDA_ERROR_INVALID_VALUE;
	client_jit_collect(&jit, options, optionValues, numOptions);
	pairs = jit.count * sizeof(jit.pairs[0]);
	named = name ? strnlen(name, sizeof(tail) - pairs) : 0;
	memcpy(tail, jit.pairs, pairs);
	memcpy(tail + pairs, name ? name : "", named);
	fixed.jit_count = jit.count;
	request.tail = tail;
	request.tail_bytes = pairs + named;
	if (handle_open(&farbus_client.handles, HANDLE_BLOB, &fixed, &fixed.blob))
		return CUDA_ERROR_OUT_OF_MEMORY;
	route = client_route_session(session);
	result = client_blob_send(&route, fixed.blob, data, size);
	if (result == CUDA_SUCCESS)
		result = client_call_to(&route, &request, &wait);
	handle_close(&farbus_client.handles, HANDLE_BLOB, fixed.blob);
	return result;
}

CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t size,
		       const char *name, unsigned int numOptions, CUjit_option *options,
		       void **optionValues)
{
	return cuLinkAddData_v2(state, type, data, size, name, numOptions, options, optionValues);
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path,
			  unsigned int numOptions, CUjit_option *options, void **optionValues)
{
	CUresult result = client_enter();
	size_t bytes;
	void *data;

	if (result != CUDA_SUCCESS)
		return result;
	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	result = client_file_read(path, &data, &bytes);
	if (result != CUDA_SUCCESS)
		return result;
	result = cuLinkAddData_v2(state, type, data, bytes, path, numOptions, options, optionValues);
	free(data);
	return result;
}

CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path,
		       unsigned int numOptions, CUjit_option *options, void **optionValues)
{
	return cuLinkAddFile_v2(state, type, path, numOptions, options, optionValues);
}

static void image_forget(CUlinkState state)
{
	struct link_image **link, *image;

	pthread_mutex_lock(&images_lock);
	for (link = &images; *link && (*link)->state != state; link = &(*link)->next)
		;
	image = *link;
	if (image)
		*link = image->next;
	pthread_mutex_unlock(&images_lock);
	if (image)
		free(image->data);
	free(image);
}

CUresult cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut)
{
	struct client_session *session;
	const uint64_t link = client_named_wire(state, &session);
	struct link_image *image = NULL;
	uint64_t total = 0, at = 0;
	struct client_route route;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!cubinOut)
		return CUDA_ERROR_INVALID_VALUE;
	route = client_route_session(session);
	do {
		const struct wire_link_complete fixed = { .link = link, .offset = at };
		const struct client_request request = {
			.op = WIRE_OP_LINK_COMPLETE,
			.fixed = &fixed,
			.fixed_bytes = sizeof(fixed),
		};
		struct wire_link_complete_reply reply = { 0 };
		struct client_wait wait = {
			.reply = &reply,
			.reply_bytes = sizeof(reply),
			.want_tail = true,
		};

		result = client_call_to(&route, &request, &wait);
		if (result == CUDA_SUCCESS && !image) {
			total = reply.total;
			image = calloc(1, sizeof(*image));
			/* Ended with a zero: PTX is a string. */
			if (image)
				image->data = total <= WIRE_IMAGE_BYTES ? calloc(1, total + 1) : NULL;
			if (!image || !image->data)
				result = CUDA_ERROR_OUT_OF_MEMORY;
		}
		if (result == CUDA_SUCCESS &&
		    (!wait.tail_bytes || wait.tail_bytes > total - at || reply.total != total))
			result = CUDA_ERROR_UNKNOWN;
		if (result == CUDA_SUCCESS)
			memcpy(image->data + at, wait.tail, wait.tail_bytes);
		at += wait.tail_bytes;
		free(wait.tail);
	} while (result == CUDA_SUCCESS && at < total);
	if (result != CUDA_SUCCESS) {
		if (image)
			free(image->data);
		free(image);
		return result;
	}
	/* An earlier image stays until there is another. */
	image_forget(state);
	image->state = state;
	pthread_mutex_lock(&images_lock);
	image->next = images;
	images = image;
	pthread_mutex_unlock(&images_lock);
	*cubinOut = image->data;
	if (sizeOut)
		*sizeOut = total;
	return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state)
{
	CUresult result = client_raw_cuLinkDestroy(state);

	if (result == CUDA_SUCCESS)
		image_forget(state);
	return result;
}
