/* Images, libraries, kernels, launches. */
#include "server_ops.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../wire/cursor.h"
#include "../wire/image.h"
#include "../wire/jit.h"
#include "../wire/kernel.h"

/* Most bytes of images on their way at one time. */
#define BLOB_BYTES_LIMIT (4ull << 30)

/* A loaded image.  Kernels are named by handles in server.functions. */
struct server_library {
	struct server_context *context;
	bool is_module;
	union {
		CUlibrary library;
		CUmodule module;
	};
	void *packed;			/* the driver may keep pointers into it */
	struct image_unpacked image;
	void **kernels;			/* CUkernel or CUfunction */
	uint64_t *handles;
	uint32_t count;
	bool enumerated;
	struct server_library *next;	/* of those that ended with their context */
};

/* What the compiler says of an image. */
struct jit_logs {
	uint32_t info_room, error_room;	/* 0: nobody asks */
	uint32_t info_bytes, error_bytes;
	char info[WIRE_JIT_LOG_BYTES], error[WIRE_JIT_LOG_BYTES];
};

/* What both ways to load an image ask for. */
struct load {
	uint64_t handle;
	void *packed;			/* taken over */
	uint64_t bytes;
	bool is_module;
	CUdevice device;		/* that its kernels are described on */
	uint32_t jit_count;		/* options in the call's tail */
	struct jit_logs *logs;		/* or NULL */
};

/* ---- blobs ---- */

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

/* ---- describing kernels ---- */

static CUresult kernel_attribute(const struct server_call *call, const struct server_library *library,
				 CUdevice device, void *kernel, int attribute, int *value)
{
	const struct server_driver *driver = call->driver;
	CUresult result;

	if (!library->is_module && driver->cuKernelGetAttribute)
		return driver->cuKernelGetAttribute(value, (CUfunction_attribute)attribute, kernel, device);
	result = driver->cuFuncGetAttribute(value, (CUfunction_attribute)attribute, kernel);
	/* With lazy loading a listed function is not there yet, and some attributes are then unknown. */
	if (result == CUDA_ERROR_FUNCTION_NOT_LOADED && driver->cuFuncLoad &&
	    driver->cuFuncLoad(kernel) == CUDA_SUCCESS)
		result = driver->cuFuncGetAttribute(value, (CUfunction_attribute)attribute, kernel);
	return result;
}

static void kernel_attributes(const struct server_call *call, const struct server_library *library,
			      CUdevice device, void *kernel,
			      int32_t attributes[WIRE_KERNEL_ATTRIBUTES], uint32_t *known)
{
	for (int i = 0; i < WIRE_KERNEL_ATTRIBUTES; i++) {
		int value;

		if (kernel_attribute(call, library, device, kernel, i, &value) != CUDA_SUCCESS)
			continue;
		attributes[i] = value;
		*known |= 1u << i;
	}
}

/* The device of the current context, or the first one: where kernels are described. */
static CUdevice call_device(const struct server_call *call)
{
	return call->context ? call->context->device : call->server->devices[0];
}

/* CUDA_ERROR_INVALID_VALUE behind the last one. */
static CUresult kernel_parameter(const struct server_call *call, const struct server_library *library,
				 void *kernel, size_t index, struct wire_parameter *parameter)
{
	const struct server_driver *driver = call->driver;
	size_t offset = 0, bytes = 0;
	CUresult result;

	if (library->is_module)
		result = driver->cuFuncGetParamInfo(kernel, index, &offset, &bytes);
	else
		result = driver->cuKernelGetParamInfo(kernel, index, &offset, &bytes);
	parameter->offset = (uint32_t)offset;
	parameter->bytes = (uint32_t)bytes;
	return result;
}

/* Append a kernel's description; false when it does not fit. */
static bool kernel_describe(const struct server_call *call, const struct server_library *library,
			    CUdevice device, uint32_t index, const char *name,
			    struct wire_writer *writer)
{
	static const char zeros[8];
	void *kernel = library->kernels[index];
	struct wire_kernel head = {
		.handle = library->handles[index],
		.name_bytes = (uint32_t)strlen(name),
		.parameters_known = library->is_module ? call->driver->cuFuncGetParamInfo != NULL
						       : call->driver->cuKernelGetParamInfo != NULL,
	};
	struct wire_parameter parameter;
	struct wire_writer head_at = *writer, parameters_at;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	wire_write_bytes(writer, &head, sizeof(head));
	parameters_at = *writer;
	while (head.parameters_known && !writer->failed &&
	       (result = kernel_parameter(call, library, kernel, head.parameter_count, &parameter)) ==
		       CUDA_SUCCESS) {
		wire_write_bytes(writer, &parameter, sizeof(parameter));
		head.parameter_count++;
	}
	if (result != CUDA_ERROR_INVALID_VALUE && result != CUDA_SUCCESS) {
		*writer = parameters_at;
		head.parameters_known = 0;
		head.parameter_count = 0;
	}
	wire_write_bytes(writer, name, head.name_bytes);
	wire_write_bytes(writer, zeros, -head.name_bytes & 7u);
	if (writer->failed) {
		*writer = head_at;
		return false;
	}
	kernel_attributes(call, library, device, kernel, head.attributes, &head.attributes_known);
	wire_write_bytes(&head_at, &head, sizeof(head));
	return true;
}

static const char *kernel_name(const struct server_call *call, const struct server_library *library,
			       void *kernel)
{
	const char *name = NULL;
	CUresult result;

	if (library->is_module)
		result = call->driver->cuFuncGetName(&name, kernel);
	else
		result = call->driver->cuKernelGetName(&name, kernel);
	return result == CUDA_SUCCESS && name ? name : "";
}

/* A reply's tail of as many bytes as there may be; `tail_close` says how many there are. */
static CUresult tail_open(struct server_call *call, struct wire_writer *writer)
{
	call->reply_tail = malloc(WIRE_BULK_BYTES);
	if (!call->reply_tail)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*writer = (struct wire_writer){ .at = call->reply_tail, .left = WIRE_BULK_BYTES };
	return CUDA_SUCCESS;
}

static void tail_close(struct server_call *call, const struct wire_writer *writer)
{
	call->reply_tail_bytes = WIRE_BULK_BYTES - writer->left;
}

/* Describe kernels from `first` on, as many as fit. */
static void kernels_describe(const struct server_call *call, const struct server_library *library,
			     CUdevice device, uint32_t first, struct wire_writer *writer)
{
	for (uint32_t i = first; i < library->count; i++)
		if (!kernel_describe(call, library, device, i,
				     kernel_name(call, library, library->kernels[i]), writer))
			break;
}

/* ---- loading ---- */

/* Nobody finds its kernels, nor what lies in it, any more. */
static void library_unname(struct server *server, struct server_library *library)
{
	server_name_drop(server, SERVER_CUmodule, (uint64_t)(uintptr_t)library);
	for (uint32_t i = 0; i < library->count; i++)
		handle_close(&server->functions, HANDLE_FUNCTION, library->handles[i]);
	library->count = 0;
}

static void library_free(struct server *server, struct server_library *library)
{
	library_unname(server, library);
	image_unpacked_release(&library->image);
	free(library->packed);
	free(library->kernels);
	free(library->handles);
	free(library);
}

/* Name `count` more kernels. */
static CUresult library_name(struct server *server, struct server_library *library,
			     void *const *kernels, uint32_t count)
{
	void **grown = realloc(library->kernels, (library->count + count) * sizeof(*grown));
	uint64_t *handles;

	if (!grown)
		return CUDA_ERROR_OUT_OF_MEMORY;
	library->kernels = grown;
	handles = realloc(library->handles, (library->count + count) * sizeof(*handles));
	if (!handles)
		return CUDA_ERROR_OUT_OF_MEMORY;
	library->handles = handles;
	for (uint32_t i = 0; i < count; i++) {
		if (handle_open(&server->functions, HANDLE_FUNCTION,
				library->is_module ? kernels[i] : server_kernel_marked(kernels[i]),
				&handles[library->count]))
			return CUDA_ERROR_OUT_OF_MEMORY;
		grown[library->count++] = kernels[i];
	}
	return CUDA_SUCCESS;
}

/* List all kernels, where the driver can (CUDA 12.4). */
static CUresult library_enumerate(struct server_call *call, struct server_library *library)
{
	const struct server_driver *driver = call->driver;
	unsigned count = 0;
	CUresult result;
	void **kernels;

	if (library->is_module) {
		if (!driver->cuModuleGetFunctionCount || !driver->cuModuleEnumerateFunctions ||
		    !driver->cuFuncGetName ||
		    driver->cuModuleGetFunctionCount(&count, library->module) != CUDA_SUCCESS)
			return CUDA_SUCCESS;
	} else if (!driver->cuLibraryGetKernelCount || !driver->cuLibraryEnumerateKernels ||
		   !driver->cuKernelGetName ||
		   driver->cuLibraryGetKernelCount(&count, library->library) != CUDA_SUCCESS) {
		return CUDA_SUCCESS;
	}
	library->enumerated = true;
	if (!count)
		return CUDA_SUCCESS;
	kernels = calloc(count, sizeof(*kernels));
	if (!kernels)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (library->is_module)
		result = driver->cuModuleEnumerateFunctions((CUfunction *)kernels, count,
							    library->module);
	else
		result = driver->cuLibraryEnumerateKernels((CUkernel *)kernels, count,
							   library->library);
	if (result == CUDA_SUCCESS)
		result = library_name(call->server, library, kernels, count);
	else
		library->enumerated = false;
	free(kernels);
	return library->enumerated ? result : CUDA_SUCCESS;
}

CUresult server_jit_options(struct wire_reader *reader, uint32_t count, CUjit_option *options,
			    void **values, unsigned *taken)
{
	if (count > WIRE_JIT_OPTIONS)
		return SERVER_MALFORMED;
	*taken = 0;
	for (uint32_t i = 0; i < count; i++) {
		CUjit_option option = (CUjit_option)wire_read_u64(reader);
		uint64_t value = wire_read_u64(reader);

		if (!wire_jit_option_travels(option))
			continue;
		options[*taken] = option;
		values[(*taken)++] = (void *)(uintptr_t)value;
	}
	return reader->failed ? SERVER_MALFORMED : CUDA_SUCCESS;
}

/* Let the driver write its logs; the options behind the program's. */
static unsigned logs_ask(struct jit_logs *logs, CUjit_option *options, void **values)
{
	const struct {
		CUjit_option option;
		void *value;
	} asked[] = {
		{ CU_JIT_INFO_LOG_BUFFER, logs->info },
		{ CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, (void *)(uintptr_t)logs->info_room },
		{ CU_JIT_ERROR_LOG_BUFFER, logs->error },
		{ CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, (void *)(uintptr_t)logs->error_room },
	};

	for (unsigned i = 0; i < 4; i++) {
		options[i] = asked[i].option;
		values[i] = asked[i].value;
	}
	return 4;
}

/* The driver says how much it has written in the value that said how much room there is. */
static void logs_take(struct jit_logs *logs, void *const *values)
{
	uintptr_t info = (uintptr_t)values[1], error = (uintptr_t)values[3];

	logs->info_bytes = info < logs->info_room ? (uint32_t)info : logs->info_room;
	logs->error_bytes = error < logs->error_room ? (uint32_t)error : logs->error_room;
	/* A driver that writes none leaves the room there. */
	logs->info_bytes = (uint32_t)strnlen(logs->info, logs->info_bytes);
	logs->error_bytes = (uint32_t)strnlen(logs->error, logs->error_bytes);
}

static CUresult library_open(struct server_call *call, struct server_library *library,
			     const struct load *load)
{
	CUjit_option options[WIRE_JIT_OPTIONS + 4];
	void *values[WIRE_JIT_OPTIONS + 4];
	struct wire_reader reader = { .at = call->tail, .left = call->tail_bytes };
	unsigned own, count;
	CUresult result = server_jit_options(&reader, load->jit_count, options, values, &own);

	if (result != CUDA_SUCCESS)
		return result;
	count = own;
	if (load->logs)
		count += logs_ask(load->logs, options + own, values + own);
	/* Then its reason travels in the reply. */
	server_text_told(load->logs && load->logs->error_room);
	if (library->is_module)
		result = call->driver->cuModuleLoadDataEx(&library->module, library->image.image, count,
							  options, values);
	else if (!call->driver->cuLibraryLoadData)
		result = CUDA_ERROR_NOT_SUPPORTED;
	else
		result = call->driver->cuLibraryLoadData(&library->library, library->image.image,
							 options, values, count, NULL, NULL, 0);
	server_text_told(false);
	if (load->logs)
		logs_take(load->logs, values + own);
	return result;
}

static CUresult library_close(struct server_call *call, struct server_library *library)
{
	if (library->is_module)
		return call->driver->cuModuleUnload(library->module);
	return call->driver->cuLibraryUnload(library->library);
}

/* Say why the driver is not asked, as if the driver had said it, and here: once, as a client can
 * send as many as it likes. */
static CUresult image_refuse(const struct load *load, const char *why)
{
	static _Atomic bool said;

	if (!atomic_exchange(&said, true))
		fprintf(stderr, "farbus: an image of %llu bytes is not loaded: %s\n",
			(unsigned long long)load->bytes, why);
	if (load->logs) {
		snprintf(load->logs->error, load->logs->error_room, "%s", why);
		load->logs->error_bytes = (uint32_t)strlen(load->logs->error);
	}
	return CUDA_ERROR_INVALID_IMAGE;
}

/* Make a library of an image; its kernels are named, itself it is not: nobody else can find it. */
static CUresult library_make(struct server_call *call, const struct load *load,
			     struct server_library **out)
{
	struct server_library *library = calloc(1, sizeof(*library));
	CUresult result = library ? server_enter_any(call, load->device) : CUDA_ERROR_OUT_OF_MEMORY;
	int rc;

	if (result != CUDA_SUCCESS) {
		free(library);
		free(load->packed);
		return result;
	}
	library->context = call->context ? call->context->base : NULL;
	library->is_module = load->is_module;
	library->packed = load->packed;
	rc = image_unpack(library->packed, load->bytes, &library->image);
	if (rc) {
		free(library->packed);
		free(library);
		return rc == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : image_refuse(load, "it is malformed");
	}
	result = library_open(call, library, load);
	if (result != CUDA_SUCCESS) {
		library_free(call->server, library);
		return result;
	}
	result = library_enumerate(call, library);
	if (result != CUDA_SUCCESS) {
		library_close(call, library);
		library_free(call->server, library);
		return result;
	}
	*out = library;
	return CUDA_SUCCESS;
}

/* Give it the client's name, at the very end: from then on another thread may unload it.  A module of a
 * context whose end has begun would not be found by who ends it. */
static CUresult library_publish(struct server_call *call, uint64_t handle, struct server_library *library)
{
	struct server *server = call->server;
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&server->holds_lock);
	if (library->is_module && library->context && library->context->gone)
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	else if (handle_bind(&server->objects, HANDLE_LIBRARY, handle, library))
		result = SERVER_MALFORMED;
	pthread_mutex_unlock(&server->holds_lock);
	if (result != CUDA_SUCCESS) {
		library_close(call, library);
		library_free(server, library);
	}
	return result;
}

CUresult serve_library_load(struct server_call *call)
{
	const struct wire_library_load *request = call->request;
	struct wire_library_load_reply *reply = call->reply;
	const struct load load = {
		.handle = request->library,
		.packed = server_blob_take(call->server, request->blob, request->blob_bytes),
		.bytes = request->blob_bytes,
		.is_module = request->is_module,
		.device = call_device(call),
		.jit_count = request->jit_count,
	};
	struct server_library *library;
	struct wire_writer writer;
	CUresult result;

	if (!load.packed)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = tail_open(call, &writer);
	if (result != CUDA_SUCCESS) {
		free(load.packed);
		return result;
	}
	result = library_make(call, &load, &library);
	if (result != CUDA_SUCCESS)
		return result;
	kernels_describe(call, library, load.device, 0, &writer);
	tail_close(call, &writer);
	reply->kernel_count = library->count;
	reply->enumerated = library->enumerated;
	return library_publish(call, load.handle, library);
}

/* The image that a request names: as it was sent, or as it is kept. */
static void *image_take(struct server_call *call, const struct wire_image_load *request)
{
	return request->blob ? server_blob_take(call->server, request->blob, request->bytes)
			     : server_image_find(call->server->images, (const uint8_t *)request->digest,
						 request->bytes);
}

static void logs_write(const struct jit_logs *logs, struct wire_writer *writer)
{
	static const char zeros[8];

	wire_write_bytes(writer, logs->info, logs->info_bytes);
	wire_write_bytes(writer, logs->error, logs->error_bytes);
	wire_write_bytes(writer, zeros, -(logs->info_bytes + logs->error_bytes) & 7u);
}

CUresult serve_image_load(struct server_call *call)
{
	static const uint64_t no_digest[4];
	const struct wire_image_load *request = call->request;
	const uint8_t *digest = (const uint8_t *)request->digest;
	struct wire_image_load_reply *reply = call->reply;
	struct load load = {
		.handle = request->library,
		.bytes = request->bytes,
		.is_module = request->is_module,
		.jit_count = request->jit_count,
	};
	struct server_library *library;
	struct wire_writer writer;
	CUresult result;
	bool named;

	if (request->device >= (uint32_t)call->server->device_count ||
	    request->info_bytes > WIRE_JIT_LOG_BYTES || request->error_bytes > WIRE_JIT_LOG_BYTES)
		return SERVER_MALFORMED;
	load.device = call->server->devices[request->device];
	load.packed = image_take(call, request);
	if (!load.packed) {
		reply->is_absent = !request->blob;
		return request->blob ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
	}
	named = request->blob && memcmp(request->digest, no_digest, sizeof(no_digest)) != 0;
	result = tail_open(call, &writer);
	if (result == CUDA_SUCCESS && (request->info_bytes || request->error_bytes)) {
		load.logs = calloc(1, sizeof(*load.logs));
		result = load.logs ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result != CUDA_SUCCESS) {
		free(load.packed);
		return result;
	}
	if (load.logs) {
		load.logs->info_room = request->info_bytes;
		load.logs->error_room = request->error_bytes;
	}
	/* Nothing else would tell that it is not what the program has, and wrong code may run. */
	if (named && !server_image_is(load.packed, load.bytes, digest)) {
		free(load.packed);
		result = image_refuse(&load, "it is not what was sent: its digest is another");
	} else {
		result = library_make(call, &load, &library);
	}
	if (result != SERVER_MALFORMED && load.logs) {
		logs_write(load.logs, &writer);
		reply->info_bytes = load.logs->info_bytes;
		reply->error_bytes = load.logs->error_bytes;
	}
	free(load.logs);
	if (result == SERVER_MALFORMED)
		return result;
	reply->result = (int32_t)result;
	if (result == CUDA_SUCCESS) {
		if (named)
			server_image_keep(call->server->images, digest, library->packed, request->bytes);
		kernels_describe(call, library, load.device, 0, &writer);
		reply->kernel_count = library->count;
		reply->enumerated = library->enumerated;
		result = library_publish(call, load.handle, library);
		if (result != CUDA_SUCCESS)
			return result;
	}
	tail_close(call, &writer);
	return CUDA_SUCCESS;
}

CUresult serve_library_attributes(struct server_call *call)
{
	const struct wire_library_attributes *request = call->request;
	struct wire_library_attributes_reply *reply = call->reply;
	struct server_library *library =
		handle_get(&call->server->objects, HANDLE_LIBRARY, request->library);
	struct wire_writer writer;
	CUresult result;

	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
	if (request->device >= (uint32_t)call->server->device_count)
		return CUDA_ERROR_INVALID_DEVICE;
	result = server_enter_any(call, call->server->devices[request->device]);
	if (result == CUDA_SUCCESS)
		result = tail_open(call, &writer);
	if (result != CUDA_SUCCESS)
		return result;
	for (uint32_t i = request->first;
	     i < library->count && writer.left >= sizeof(struct wire_kernel_attributes); i++) {
		struct wire_kernel_attributes one = { .handle = library->handles[i] };

		kernel_attributes(call, library, call->server->devices[request->device],
				  library->kernels[i], one.attributes, &one.known);
		wire_write_bytes(&writer, &one, sizeof(one));
	}
	tail_close(call, &writer);
	reply->kernel_count = library->count;
	return CUDA_SUCCESS;
}

static void library_forget(void *opaque, uint64_t handle, void *object)
{
	struct server_context *context = opaque;
	struct server_library *library = object;

	if (handle_kind_of(handle) != HANDLE_LIBRARY || !library->is_module ||
	    library->context != context)
		return;
	handle_close(&context->server->objects, HANDLE_LIBRARY, handle);
	library_unname(context->server, library);
	library->next = context->ended;
	context->ended = library;
}

/* The driver takes the context's modules with it: their handles are the client's again. */
void server_libraries_forget(struct server_context *context)
{
	handle_visit(&context->server->objects, library_forget, context);
}

void server_libraries_free(struct server_context *context)
{
	struct server_library *library;

	while ((library = context->ended)) {
		context->ended = library->next;
		library_free(context->server, library);
	}
}

CUresult server_resolve_library(struct server_call *call, uint64_t handle, CUlibrary *library)
{
	struct server_library *found = handle_get(&call->server->objects, HANDLE_LIBRARY, handle);

	if (!found)
		return CUDA_ERROR_INVALID_HANDLE;
	*library = found->library;
	return CUDA_SUCCESS;
}

CUresult server_resolve_module(struct server_call *call, uint64_t handle, CUmodule *module,
			       uint64_t *name)
{
	struct server_library *found = handle_get(&call->server->objects, HANDLE_LIBRARY, handle);

	if (!found || !found->is_module)
		return CUDA_ERROR_INVALID_HANDLE;
	*module = found->module;
	return server_name(call, SERVER_CUmodule, (uint64_t)(uintptr_t)found, 0, false, name);
}

CUresult serve_library_unload(struct server_call *call)
{
	const struct wire_library_unload *request = call->request;
	struct server_library *library =
		handle_close(&call->server->objects, HANDLE_LIBRARY, request->library);
	CUresult result;

	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
	library_unname(call->server, library);
	/* Its own may be another than the current one. */
	if (library->is_module && library->context)
		(void)server_hold(call, library->context);
	server_pass(call);
	result = library_close(call, library);
	library_free(call->server, library);
	return result;
}

CUresult serve_library_kernels(struct server_call *call)
{
	const struct wire_library_kernels *request = call->request;
	struct wire_library_kernels_reply *reply = call->reply;
	struct server_library *library =
		handle_get(&call->server->objects, HANDLE_LIBRARY, request->library);
	struct wire_writer writer;
	CUresult result;

	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
	result = server_enter_any(call, call_device(call));
	if (result == CUDA_SUCCESS)
		result = tail_open(call, &writer);
	if (result != CUDA_SUCCESS)
		return result;
	kernels_describe(call, library, call_device(call), request->first, &writer);
	tail_close(call, &writer);
	reply->kernel_count = library->count;
	return CUDA_SUCCESS;
}

/* A name in the tail, NUL-terminated. */
static const char *tail_name(const struct server_call *call)
{
	return call->tail_bytes && call->tail[call->tail_bytes - 1] == 0 ? (const char *)call->tail
									  : NULL;
}

CUresult serve_library_global(struct server_call *call)
{
	const struct wire_library_global *request = call->request;
	struct wire_library_global_reply *reply = call->reply;
	struct server_library *library =
		handle_get(&call->server->objects, HANDLE_LIBRARY, request->library);
	const char *name = tail_name(call);
	CUdeviceptr address = 0;
	size_t bytes = 0;
	CUresult result;

	if (!name)
		return SERVER_MALFORMED;
	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
	if (library->is_module)
		result = call->driver->cuModuleGetGlobal_v2(&address, &bytes, library->module, name);
	else
		result = call->driver->cuLibraryGetGlobal(&address, &bytes, library->library, name);
	reply->address = address;
	reply->bytes = bytes;
	return result;
}

/* Of a library the driver finds managed variables apart; of a module's it knows the address. */
CUresult serve_library_variable(struct server_call *call)
{
	const struct wire_library_variable *request = call->request;
	struct wire_library_variable_reply *reply = call->reply;
	struct server_library *library =
		handle_get(&call->server->objects, HANDLE_LIBRARY, request->library);
	const char *name = tail_name(call);
	CUdeviceptr address = 0;
	size_t bytes = 0;
	CUresult result;
	int managed = 0;

	if (!name)
		return SERVER_MALFORMED;
	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
	if (library->is_module) {
		result = call->driver->cuModuleGetGlobal_v2(&address, &bytes, library->module, name);
		if (result == CUDA_SUCCESS && call->driver->cuPointerGetAttribute &&
		    call->driver->cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED,
							address) != CUDA_SUCCESS)
			managed = 0;
	} else {
		result = CUDA_ERROR_NOT_FOUND;
		if (call->driver->cuLibraryGetManaged)
			result = call->driver->cuLibraryGetManaged(&address, &bytes, library->library,
								   name);
		managed = result == CUDA_SUCCESS;
		if (result != CUDA_SUCCESS)
			result = call->driver->cuLibraryGetGlobal(&address, &bytes, library->library,
								  name);
	}
	reply->address = address;
	reply->bytes = bytes;
	reply->managed = managed != 0;
	return result;
}

CUresult serve_library_function(struct server_call *call)
{
	const struct wire_library_function *request = call->request;
	struct wire_library_function_reply *reply = call->reply;
	struct server_library *library =
		handle_get(&call->server->objects, HANDLE_LIBRARY, request->library);
	const char *name = tail_name(call);
	struct wire_writer writer;
	CUresult result;
	void *kernel;

	if (!name)
		return SERVER_MALFORMED;
	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
	result = server_enter_any(call, call_device(call));
	if (result != CUDA_SUCCESS)
		return result;
	if (library->is_module)
		result = call->driver->cuModuleGetFunction((CUfunction *)&kernel, library->module, name);
	else
		result = call->driver->cuLibraryGetKernel((CUkernel *)&kernel, library->library, name);
	if (result == CUDA_SUCCESS)
		result = library_name(call->server, library, &kernel, 1);
	if (result != CUDA_SUCCESS)
		return result;
	result = tail_open(call, &writer);
	if (result != CUDA_SUCCESS)
		return result;
	if (!kernel_describe(call, library, call_device(call), library->count - 1, name, &writer))
		return CUDA_ERROR_OUT_OF_MEMORY;
	tail_close(call, &writer);
	reply->kernel_count = 1;
	return CUDA_SUCCESS;
}

/* ---- kernels ---- */

CUresult serve_function_set_attribute(struct server_call *call)
{
	const struct wire_function_set_attribute *request = call->request;
	const struct server_driver *driver = call->driver;
	CUfunction_attribute attribute = (CUfunction_attribute)request->attribute;
	CUfunction function;
	CUresult result = server_resolve_function(call, request->function, &function);

	if (result != CUDA_SUCCESS)
		return result;
	if (server_is_kernel(call, request->function) && driver->cuKernelSetAttribute) {
		result = driver->cuKernelSetAttribute(attribute, request->value, (CUkernel)function,
						      call->context->device);
		if (result != CUDA_ERROR_INVALID_HANDLE)
			return result;
	}
	result = server_resolve_function_here(call, request->function, &function);
	if (result != CUDA_SUCCESS)
		return result;
	return driver->cuFuncSetAttribute(function, attribute, request->value);
}

CUresult serve_function_set_cache(struct server_call *call)
{
	const struct wire_function_set_cache *request = call->request;
	CUfunction function;
	CUresult result = server_resolve_function_here(call, request->function, &function);

	/* A hint: a driver that does not take it loses nothing. */
	if (result == CUDA_SUCCESS && call->driver->cuFuncSetCacheConfig)
		call->driver->cuFuncSetCacheConfig(function, (CUfunc_cache)request->preference);
	return result;
}

/* ---- launches ---- */

/* One pointer for each parameter in `buffer`, as programs give them; to be freed.  NULL: the driver does not tell
 * where they are, or they are not as many bytes. */
static void **parameters_list(struct server_call *call, uint64_t handle, CUfunction function, uint8_t *buffer,
			      size_t bytes)
{
	const struct server_library of = { .is_module = !server_is_kernel(call, handle) };
	struct wire_parameter parameter;
	size_t count = 0, room = 0, end = 0;
	void **list = NULL;

	if (of.is_module ? !call->driver->cuFuncGetParamInfo : !call->driver->cuKernelGetParamInfo)
		return NULL;
	while (kernel_parameter(call, &of, function, count, &parameter) == CUDA_SUCCESS) {
		if (count == room) {
			void **grown = realloc(list, (room = 2 * room + 16) * sizeof(*list));

			if (!grown)
				break;
			list = grown;
		}
		list[count++] = buffer + parameter.offset;
		end = (size_t)parameter.offset + parameter.bytes;
	}
	if (end == bytes && list)
		return list;
	free(list);
	return NULL;
}

/* With a buffer of parameters NVIDIA's driver 580 refuses what is cooperative in a capture
 * (CUDA_ERROR_INVALID_VALUE), and later changes of such a node. */
static bool launch_wants_list(const struct server_call *call, const CUlaunchConfig *config)
{
	if (atomic_load_explicit(&call->server->capture_count, memory_order_relaxed))
		return true;
	for (unsigned i = 0; i < config->numAttrs; i++)
		if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
			return true;
	return false;
}

CUresult serve_launch(struct server_call *call)
{
	const struct wire_launch *request = call->request;
	const struct server_driver *driver = call->driver;
	size_t attribute_bytes = (size_t)request->attribute_count * sizeof(CUlaunchAttribute);
	size_t parameter_bytes = request->parameter_bytes;
	void *parameters = (void *)(call->tail + attribute_bytes);
	void *extra[] = {
		CU_LAUNCH_PARAM_BUFFER_POINTER, parameters,
		CU_LAUNCH_PARAM_BUFFER_SIZE, &parameter_bytes,
		CU_LAUNCH_PARAM_END,
	};
	CUlaunchConfig config = {
		.gridDimX = request->grid[0],
		.gridDimY = request->grid[1],
		.gridDimZ = request->grid[2],
		.blockDimX = request->block[0],
		.blockDimY = request->block[1],
		.blockDimZ = request->block[2],
		.sharedMemBytes = request->shared_bytes,
		.attrs = (CUlaunchAttribute *)call->tail,
		.numAttrs = request->attribute_count,
	};
	void **list = NULL, **given = NULL;
	CUfunction function;
	CUstream stream;
	CUresult result;

	if (request->attribute_count > 64 || parameter_bytes > WIRE_KERNEL_PARAMETERS ||
	    attribute_bytes + parameter_bytes != call->tail_bytes)
		return SERVER_MALFORMED;
	result = server_resolve_function(call, request->function, &function);
	if (result == CUDA_SUCCESS)
		result = server_resolve_stream(call, request->stream, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (request->attribute_count && !driver->cuLaunchKernelEx)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (parameter_bytes && launch_wants_list(call, &config))
		list = parameters_list(call, request->function, function, parameters, parameter_bytes);
	if (parameter_bytes && !list)
		given = extra;
	config.hStream = stream;
	if (request->attribute_count)
		result = driver->cuLaunchKernelEx(&config, function, list, given);
	else
		result = driver->cuLaunchKernel(function, config.gridDimX, config.gridDimY, config.gridDimZ,
						config.blockDimX, config.blockDimY, config.blockDimZ,
						config.sharedMemBytes, stream, list, given);
	free(list);
	return result;
}

CUresult serve_launch_checked(struct server_call *call)
{
	return serve_launch(call);
}

/* ---- kernels by what the driver shows ---- */

struct kernel_search {
	const struct server_driver *driver;
	CUfunction function;
	uint64_t name;
};

static void kernel_compare(void *opaque, uint64_t handle, void *object)
{
	struct kernel_search *search = opaque;
	const struct server_library *library = object;
	CUfunction found;

	if (handle_kind_of(handle) != HANDLE_LIBRARY)
		return;
	for (uint32_t i = 0; i < library->count && !search->name; i++) {
		/* A library's kernel is shown as its function in the context. */
		if (library->kernels[i] == (void *)search->function ||
		    (!library->is_module && search->driver->cuKernelGetFunction &&
		     search->driver->cuKernelGetFunction(&found, library->kernels[i]) ==
			     CUDA_SUCCESS &&
		     found == search->function))
			search->name = library->handles[i];
	}
}

uint64_t server_function_name(struct server_call *call, CUfunction function)
{
	struct kernel_search search = { .driver = call->driver, .function = function };

	if (function)
		handle_visit(&call->server->objects, kernel_compare, &search);
	return search.name;
}
