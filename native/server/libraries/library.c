/* Images and libraries: loading, unloading, and what lies in them. */
#include "../ground/frames.h"
#include "../ground/hold.h"
#include "../ground/lead.h"
#include "../ground/named.h"
#include "../ground/primary.h"
#include "../ground/resolve.h"
#include "../ground/text.h"
#include "blob.h"
#include "images.h"
#include "kernel.h"
#include "library.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../wire/jit.h"

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
		.device = server_call_device(call),
		.jit_count = request->jit_count,
	};
	struct server_library *library;
	struct wire_writer writer;
	CUresult result;

	if (!load.packed)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = server_tail_open(call, &writer);
	if (result != CUDA_SUCCESS) {
		free(load.packed);
		return result;
	}
	result = library_make(call, &load, &library);
	if (result != CUDA_SUCCESS)
		return result;
	server_kernels_describe(call, library, load.device, 0, &writer);
	server_tail_close(call, &writer);
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
	result = server_tail_open(call, &writer);
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
		server_kernels_describe(call, library, load.device, 0, &writer);
		reply->kernel_count = library->count;
		reply->enumerated = library->enumerated;
		result = library_publish(call, load.handle, library);
		if (result != CUDA_SUCCESS)
			return result;
	}
	server_tail_close(call, &writer);
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
	result = server_enter_any(call, server_call_device(call));
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
	result = server_tail_open(call, &writer);
	if (result != CUDA_SUCCESS)
		return result;
	if (!server_kernel_describe(call, library, server_call_device(call), library->count - 1, name, &writer))
		return CUDA_ERROR_OUT_OF_MEMORY;
	server_tail_close(call, &writer);
	reply->kernel_count = 1;
	return CUDA_SUCCESS;
}
