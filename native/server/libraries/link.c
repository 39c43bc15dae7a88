/* The driver's linker. */
#include "../ground/named.h"
#include "blob.h"
#include "library.h"

#include <stdlib.h>
#include <string.h>

#include "../../wire/cursor.h"

/* The logs that the client asks for: their sizes are among its options.  A driver writes into
 * them, and may look at the options, for as long as the link is there. */
static CUresult link_logs(struct server_link *link, const struct wire_reader *asked, uint32_t count)
{
	struct wire_reader reader = *asked;

	for (uint32_t i = 0; i < count; i++) {
		CUjit_option option = (CUjit_option)wire_read_u64(&reader);
		uint64_t room = wire_read_u64(&reader);

		if (!room || room > WIRE_JIT_LOG_BYTES)
			continue;
		if (option == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES && !link->info) {
			link->info_room = (uint32_t)room;
			link->info = calloc(1, room + 1);
		} else if (option == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES && !link->error) {
			link->error_room = (uint32_t)room;
			link->error = calloc(1, room + 1);
		}
	}
	if ((link->info_room && !link->info) || (link->error_room && !link->error))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

static unsigned log_ask(struct server_link *link, CUjit_option buffer, char *log,
			CUjit_option size, uint32_t room)
{
	link->options[link->count] = buffer;
	link->values[link->count++] = log;
	link->options[link->count] = size;
	link->values[link->count] = (void *)(uintptr_t)room;
	return link->count++;
}

/* Each call says anew what it has to say. */
static void logs_clear(struct server_link *link)
{
	if (link->info) {
		link->info[0] = 0;
		link->values[link->info_at] = (void *)(uintptr_t)link->info_room;
	}
	if (link->error) {
		link->error[0] = 0;
		link->values[link->error_at] = (void *)(uintptr_t)link->error_room;
	}
}

CUresult serve_link_create(struct server_call *call)
{
	const struct wire_link_create *request = call->request;
	struct wire_link_create_reply *reply = call->reply;
	struct wire_reader reader = { .at = call->tail, .left = call->tail_bytes };
	const struct wire_reader asked = reader;
	struct server_link *link;
	CUlinkState state;
	CUresult result;

	if (!call->driver->cuLinkCreate_v2)
		return CUDA_ERROR_NOT_SUPPORTED;
	link = calloc(1, sizeof(*link));
	if (!link)
		return CUDA_ERROR_OUT_OF_MEMORY;
	link->references = 1;
	result = server_jit_options(&reader, request->jit_count, link->options, link->values,
				    &link->count);
	if (result == CUDA_SUCCESS)
		result = link_logs(link, &asked, request->jit_count);
	if (result == CUDA_SUCCESS && link->info)
		link->info_at = log_ask(link, CU_JIT_INFO_LOG_BUFFER, link->info,
					CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, link->info_room);
	if (result == CUDA_SUCCESS && link->error)
		link->error_at = log_ask(link, CU_JIT_ERROR_LOG_BUFFER, link->error,
					 CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, link->error_room);
	if (result == CUDA_SUCCESS)
		result = call->driver->cuLinkCreate_v2(link->count, link->options, link->values, &state);
	if (result == CUDA_SUCCESS) {
		result = server_name(call, SERVER_CUlinkState, (uint64_t)(uintptr_t)state, 0,
				     false, &reply->link);
		if (result == CUDA_SUCCESS &&
		    server_named_link_set(call->server, reply->link, link)) {
			/* Not let go of: the driver has it. */
			return CUDA_ERROR_UNKNOWN;
		}
	}
	server_named_link_put(call->server, link);
	return result;
}

CUresult serve_link_log(struct server_call *call)
{
	const struct wire_link_log *request = call->request;
	struct wire_link_log_reply *reply = call->reply;
	struct server_link *link = server_named_link_take(call->server, request->link);
	uint8_t *tail;

	if (!link)
		return CUDA_ERROR_INVALID_HANDLE;
	reply->info_bytes = link->info ? (uint32_t)strnlen(link->info, link->info_room) : 0;
	reply->error_bytes = link->error ? (uint32_t)strnlen(link->error, link->error_room) : 0;
	call->reply_tail_bytes = reply->info_bytes + reply->error_bytes;
	call->reply_tail = tail = malloc(call->reply_tail_bytes + 1);
	if (tail && link->info)
		memcpy(tail, link->info, reply->info_bytes);
	if (tail && link->error)
		memcpy(tail + reply->info_bytes, link->error, reply->error_bytes);
	server_named_link_put(call->server, link);
	return tail ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult serve_link_add(struct server_call *call)
{
	const struct wire_link_add *request = call->request;
	struct wire_reader reader = { .at = call->tail, .left = call->tail_bytes };
	CUjit_option options[WIRE_JIT_OPTIONS];
	void *values[WIRE_JIT_OPTIONS];
	unsigned count;
	CUlinkState link = server_object(call, SERVER_CUlinkState, request->link);
	CUresult result = server_jit_options(&reader, request->jit_count, options, values, &count);
	struct server_link *held;
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
	held = server_named_link_take(call->server, request->link);
	if (held)
		logs_clear(held);
	if (result == CUDA_SUCCESS)
		result = call->driver->cuLinkAddData_v2(link, (CUjitInputType)request->type, data,
							request->blob_bytes, name, count, options,
							values);
	if (held)
		server_named_link_put(call->server, held);
	free(name);
	free(data);
	return result;
}

CUresult serve_link_complete(struct server_call *call)
{
	const struct wire_link_complete *request = call->request;
	struct wire_link_complete_reply *reply = call->reply;
	CUlinkState link = server_object(call, SERVER_CUlinkState, request->link);
	size_t bytes = 0, now;
	struct server_link *held;
	const void *kept;
	CUresult result;
	void *image;

	if (!link)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!call->driver->cuLinkComplete)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!request->offset) {
		held = server_named_link_take(call->server, request->link);
		if (held)
			logs_clear(held);
		result = call->driver->cuLinkComplete(link, &image, &bytes);
		if (held)
			server_named_link_put(call->server, held);
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
