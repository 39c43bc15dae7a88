/* The driver's linker. */
#include "server_ops.h"

#include <stdlib.h>
#include <string.h>

#include "../wire/cursor.h"

#define JIT_OPTIONS_LIMIT 64u

/* Take the options at the start of a tail. */
static CUresult jit_options(struct wire_reader *reader, uint32_t count, CUjit_option *options,
			    void **values)
{
	if (count > JIT_OPTIONS_LIMIT)
		return SERVER_MALFORMED;
	for (uint32_t i = 0; i < count; i++) {
		options[i] = (CUjit_option)wire_read_u64(reader);
		values[i] = (void *)(uintptr_t)wire_read_u64(reader);
	}
	return reader->failed ? SERVER_MALFORMED : CUDA_SUCCESS;
}

CUresult serve_link_create(struct server_call *call)
{
	const struct wire_link_create *request = call->request;
	struct wire_link_create_reply *reply = call->reply;
	struct wire_reader reader = { .at = call->tail, .left = call->tail_bytes };
	CUjit_option options[JIT_OPTIONS_LIMIT];
	void *values[JIT_OPTIONS_LIMIT];
	CUlinkState link;
	CUresult result = jit_options(&reader, request->jit_count, options, values);

	if (result != CUDA_SUCCESS)
		return result;
	if (!call->driver->cuLinkCreate_v2)
		return CUDA_ERROR_NOT_SUPPORTED;
	result = call->driver->cuLinkCreate_v2(request->jit_count, options, values, &link);
	if (result == CUDA_SUCCESS)
		result = server_name(call->server, SERVER_CUlinkState, (uint64_t)(uintptr_t)link, 0,
				     false, &reply->link);
	return result;
}

CUresult serve_link_add(struct server_call *call)
{
	const struct wire_link_add *request = call->request;
	struct wire_reader reader = { .at = call->tail, .left = call->tail_bytes };
	CUjit_option options[JIT_OPTIONS_LIMIT];
	void *values[JIT_OPTIONS_LIMIT];
	CUlinkState link = server_object(call->server, SERVER_CUlinkState, request->link);
	CUresult result = jit_options(&reader, request->jit_count, options, values);
	char *name;
	void *data;

	if (result != CUDA_SUCCESS)
		return result;
	data = server_blob_take(call->server, request->blob, request->blob_bytes);
	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	name = calloc(1, reader.left + 1);
	if (!name)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	else if (reader.left)
		memcpy(name, reader.at, reader.left);
	if (result == CUDA_SUCCESS && !link)
		result = CUDA_ERROR_INVALID_HANDLE;
	if (result == CUDA_SUCCESS && !call->driver->cuLinkAddData_v2)
		result = CUDA_ERROR_NOT_SUPPORTED;
	if (result == CUDA_SUCCESS)
		result = call->driver->cuLinkAddData_v2(link, (CUjitInputType)request->type, data,
							request->blob_bytes, name,
							request->jit_count, options, values);
	free(name);
	free(data);
	return result;
}

CUresult serve_link_complete(struct server_call *call)
{
	const struct wire_link_complete *request = call->request;
	struct wire_link_complete_reply *reply = call->reply;
	CUlinkState link = server_object(call->server, SERVER_CUlinkState, request->link);
	size_t bytes = 0, now;
	const void *kept;
	CUresult result;
	void *image;

	if (!link)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!call->driver->cuLinkComplete)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!request->offset) {
		result = call->driver->cuLinkComplete(link, &image, &bytes);
		if (result != CUDA_SUCCESS)
			return result;
		kept = server_named_image(call->server, request->link, image, &bytes);
	} else {
		kept = server_named_image(call->server, request->link, NULL, &bytes);
	}
	if (!kept || request->offset > bytes)
		return SERVER_MALFORMED;
	now = bytes - request->offset < WIRE_BULK_BYTES ? bytes - request->offset : WIRE_BULK_BYTES;
	call->reply_tail = malloc(now + 1);
	if (!call->reply_tail)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(call->reply_tail, (const uint8_t *)kept + request->offset, now);
	call->reply_tail_bytes = now;
	reply->total = bytes;
	return CUDA_SUCCESS;
}
