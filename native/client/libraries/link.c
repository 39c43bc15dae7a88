/* The driver's linker: inputs travel as they are added, the image comes back when it is done. */
#include "../../generated/client_raw.h"
#include "../exchange/exchange.h"
#include "../ground/thread.h"
#include "../handles/route.h"
#include "jit.h"
#include "library.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../wire/image.h"

/* A link of the program's. */
struct link {
	struct link *next;
	CUlinkState state;
	uint8_t *data;			/* the last completed image: the program's, as long as the link */
	struct client_jit_log info, error;
	uint32_t architectures[WIRE_DEVICES + 1];	/* that it is for */
	uint32_t architecture_count;
};

static pthread_mutex_t links_lock = PTHREAD_MUTEX_INITIALIZER;
static struct link *links;

/* A link, and what the caller may use of it without the lock: programs use and destroy one
 * link from one thread at a time. */
static struct link *link_find(CUlinkState state)
{
	struct link *link;

	pthread_mutex_lock(&links_lock);
	for (link = links; link && link->state != state; link = link->next)
		;
	pthread_mutex_unlock(&links_lock);
	return link;
}

static void link_forget(CUlinkState state)
{
	struct link **at, *link;

	pthread_mutex_lock(&links_lock);
	for (at = &links; *at && (*at)->state != state; at = &(*at)->next)
		;
	link = *at;
	if (link)
		*at = link->next;
	pthread_mutex_unlock(&links_lock);
	if (link)
		free(link->data);
	free(link);
}

/* Ask for a log by its size, which the server has a buffer of. */
static void link_ask(struct client_jit_options *jit, const struct client_jit_log *log, CUjit_option size)
{
	if (!log->room || jit->count == CLIENT_JIT_OPTIONS)
		return;
	jit->pairs[jit->count][0] = (uint64_t)size;
	jit->pairs[jit->count++][1] = log->room;
}

/* Let the program see what the linker has just said. */
static void link_tell(const struct link *link, const struct client_route *route, uint64_t wire)
{
	const struct wire_link_log fixed = { .link = wire };
	const struct client_request request = {
		.op = WIRE_OP_LINK_LOG,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct wire_link_log_reply reply;
	struct client_wait wait = {
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.want_tail = true,
	};

	if (!link || (!link->info.room && !link->error.room) ||
	    !client_session_has(route->session, WIRE_OP_LINK_LOG))
		return;
	if (client_call_to(route, &request, &wait) == CUDA_SUCCESS &&
	    reply.info_bytes <= wait.tail_bytes &&
	    reply.error_bytes == wait.tail_bytes - reply.info_bytes) {
		client_jit_log_write(&link->info, wait.tail, reply.info_bytes);
		client_jit_log_write(&link->error, (const uint8_t *)wait.tail + reply.info_bytes,
				     reply.error_bytes);
	}
	free(wait.tail);
}

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
	struct client_session *session;
	struct link *link;

	if (result != CUDA_SUCCESS)
		return result;
	if (!stateOut || (numOptions && (!options || !optionValues)))
		return CUDA_ERROR_INVALID_VALUE;
	link = calloc(1, sizeof(*link));
	if (!link)
		return CUDA_ERROR_OUT_OF_MEMORY;
	session = client_route_current().session;
	client_jit_collect(&jit, options, optionValues, numOptions);
	link->info = jit.info;
	link->error = jit.error;
	link->architecture_count = client_architectures(client_context_current()->device, &jit,
							link->architectures);
	if (client_session_has(session, WIRE_OP_LINK_LOG)) {
		link_ask(&jit, &link->info, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
		link_ask(&jit, &link->error, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
	}
	fixed.jit_count = jit.count;
	request.tail = jit.pairs;
	request.tail_bytes = jit.count * sizeof(jit.pairs[0]);
	result = client_call_wide(&request, &wait);
	if (result != CUDA_SUCCESS) {
		free(link);
		return result;
	}
	link->state = *stateOut = (CUlinkState)(uintptr_t)client_named_take(session, reply.link);
	pthread_mutex_lock(&links_lock);
	link->next = links;
	links = link;
	pthread_mutex_unlock(&links_lock);
	return CUDA_SUCCESS;
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
	const struct link *link;
	uint8_t tail[8192];
	void *fitting = NULL;
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
	link = link_find(state);
	/* Anything but one whole container goes as it is. */
	if (link && type == CU_JIT_INPUT_FATBINARY &&
	    image_filter(data, size, link->architectures, link->architecture_count, &fitting, &size) == 0)
		data = fitting;
	fixed.blob_bytes = size;
	if (handle_open(&farbus_client.handles, HANDLE_BLOB, &fixed, &fixed.blob)) {
		free(fitting);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	route = client_route_session(session);
	result = client_blob_send(&route, fixed.blob, data, size);
	if (result == CUDA_SUCCESS) {
		result = client_call_to(&route, &request, &wait);
		link_tell(link, &route, fixed.link);
	}
	handle_close(&farbus_client.handles, HANDLE_BLOB, fixed.blob);
	free(fitting);
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

CUresult cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut)
{
	struct client_session *session;
	const uint64_t wire = client_named_wire(state, &session);
	struct link *link = link_find(state);
	uint8_t *image = NULL;
	uint64_t total = 0, at = 0;
	struct client_route route;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!cubinOut)
		return CUDA_ERROR_INVALID_VALUE;
	if (!link)
		return CUDA_ERROR_INVALID_HANDLE;
	route = client_route_session(session);
	do {
		const struct wire_link_complete fixed = { .link = wire, .offset = at };
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
			/* Ended with a zero: PTX is a string. */
			image = total <= WIRE_IMAGE_BYTES ? calloc(1, total + 1) : NULL;
			if (!image)
				result = CUDA_ERROR_OUT_OF_MEMORY;
		}
		if (result == CUDA_SUCCESS &&
		    (!wait.tail_bytes || wait.tail_bytes > total - at || reply.total != total))
			result = CUDA_ERROR_UNKNOWN;
		if (result == CUDA_SUCCESS)
			memcpy(image + at, wait.tail, wait.tail_bytes);
		at += wait.tail_bytes;
		free(wait.tail);
	} while (result == CUDA_SUCCESS && at < total);
	link_tell(link, &route, wire);
	if (result != CUDA_SUCCESS) {
		free(image);
		return result;
	}
	/* An earlier image stays until there is another. */
	free(link->data);
	link->data = image;
	*cubinOut = image;
	if (sizeOut)
		*sizeOut = total;
	return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state)
{
	CUresult result = client_raw_cuLinkDestroy(state);

	if (result == CUDA_SUCCESS)
		link_forget(state);
	return result;
}
