/* Images, libraries, kernels, launches. */
#include "server_ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../wire/cursor.h"
#include "../wire/image.h"
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
	/* Some bytes behind the end, so that a malformed image ends there. */
	blob->data = calloc(1, part->total + 16);
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
				 void *kernel, int attribute, int *value)
{
	const struct server_driver *driver = call->driver;

	if (library->is_module || !driver->cuKernelGetAttribute)
		return driver->cuFuncGetAttribute(value, (CUfunction_attribute)attribute, kernel);
	return driver->cuKernelGetAttribute(value, (CUfunction_attribute)attribute, kernel,
					    call->context ? call->context->device
							  : call->server->devices[0]);
}

static bool kernel_parameter(const struct server_call *call, const struct server_library *library,
			     void *kernel, size_t index, struct wire_parameter *parameter)
{
	const struct server_driver *driver = call->driver;
	size_t offset = 0, bytes = 0;
	CUresult result;

	if (library->is_module)
		result = driver->cuFuncGetParamInfo(kernel, index, &offset, &bytes);
	else
		result = driver->cuKernelGetParamInfo(kernel, index, &offset, &bytes);
	if (result != CUDA_SUCCESS)
		return false;
	parameter->offset = (uint32_t)offset;
	parameter->bytes = (uint32_t)bytes;
	return true;
}

/* Append a kernel's description; false when it does not fit. */
static bool kernel_describe(const struct server_call *call, const struct server_library *library,
			    uint32_t index, const char *name, struct wire_writer *writer)
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
	struct wire_writer head_at = *writer;

	wire_write_bytes(writer, &head, sizeof(head));
	while (head.parameters_known && !writer->failed &&
	       kernel_parameter(call, library, kernel, head.parameter_count, &parameter)) {
		wire_write_bytes(writer, &parameter, sizeof(parameter));
		head.parameter_count++;
	}
	wire_write_bytes(writer, name, head.name_bytes);
	wire_write_bytes(writer, zeros, -head.name_bytes & 7u);
	for (int i = 0; i < WIRE_KERNEL_ATTRIBUTES; i++) {
		int value;

		if (kernel_attribute(call, library, kernel, i, &value) != CUDA_SUCCESS)
			continue;
		head.attributes[i] = value;
		head.attributes_known |= 1u << i;
	}
	if (writer->failed) {
		*writer = head_at;
		return false;
	}
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

/* Describe kernels from `first` on, as many as fit, in call->reply_tail. */
static CUresult kernels_describe(struct server_call *call, const struct server_library *library,
				 uint32_t first)
{
	struct wire_writer writer = { .left = WIRE_BULK_BYTES };

	if (first >= library->count)
		return CUDA_SUCCESS;
	call->reply_tail = malloc(WIRE_BULK_BYTES);
	if (!call->reply_tail)
		return CUDA_ERROR_OUT_OF_MEMORY;
	writer.at = call->reply_tail;
	for (uint32_t i = first; i < library->count; i++)
		if (!kernel_describe(call, library, i,
				     kernel_name(call, library, library->kernels[i]), &writer))
			break;
	call->reply_tail_bytes = WIRE_BULK_BYTES - writer.left;
	return CUDA_SUCCESS;
}

/* ---- loading ---- */

static void library_free(struct server *server, struct server_library *library)
{
	server_name_drop(server, SERVER_CUmodule, (uint64_t)(uintptr_t)library);
	for (uint32_t i = 0; i < library->count; i++)
		handle_close(&server->functions, HANDLE_FUNCTION, library->handles[i]);
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
		if (handle_open(&server->functions, HANDLE_FUNCTION, kernels[i],
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

static CUresult library_open(struct server_call *call, struct server_library *library,
			     const struct wire_library_load *request)
{
	CUjit_option options[64];
	void *values[64];
	struct wire_reader reader = { .at = call->tail, .left = call->tail_bytes };

	if (request->jit_count > 64)
		return SERVER_MALFORMED;
	for (uint32_t i = 0; i < request->jit_count; i++) {
		options[i] = (CUjit_option)wire_read_u64(&reader);
		values[i] = (void *)(uintptr_t)wire_read_u64(&reader);
	}
	if (reader.failed)
		return SERVER_MALFORMED;
	if (library->is_module)
		return call->driver->cuModuleLoadDataEx(&library->module, library->image.image,
							request->jit_count, options, values);
	if (!call->driver->cuLibraryLoadData)
		return CUDA_ERROR_NOT_SUPPORTED;
	return call->driver->cuLibraryLoadData(&library->library, library->image.image, options,
					       values, request->jit_count, NULL, NULL, 0);
}

static CUresult library_close(struct server_call *call, struct server_library *library)
{
	if (library->is_module)
		return call->driver->cuModuleUnload(library->module);
	return call->driver->cuLibraryUnload(library->library);
}

CUresult serve_library_load(struct server_call *call)
{
	const struct wire_library_load *request = call->request;
	struct wire_library_load_reply *reply = call->reply;
	struct server_library *library = calloc(1, sizeof(*library));
	CUresult result;

	if (!library)
		return CUDA_ERROR_OUT_OF_MEMORY;
	library->context = call->context ? call->context->base : NULL;
	library->is_module = request->is_module;
	library->packed = server_blob_take(call->server, request->blob, request->blob_bytes);
	if (!library->packed) {
		free(library);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (image_unpack(library->packed, request->blob_bytes, &library->image)) {
		free(library->packed);
		free(library);
		return CUDA_ERROR_INVALID_IMAGE;
	}
	result = library_open(call, library, request);
	if (result != CUDA_SUCCESS) {
		library_free(call->server, library);
		return result;
	}
	result = library_enumerate(call, library);
	if (result == CUDA_SUCCESS)
		result = kernels_describe(call, library, 0);
	if (result == CUDA_SUCCESS &&
	    handle_bind(&call->server->objects, HANDLE_LIBRARY, request->library, library))
		result = SERVER_MALFORMED;
	if (result != CUDA_SUCCESS) {
		library_close(call, library);
		library_free(call->server, library);
		return result;
	}
	reply->kernel_count = library->count;
	reply->enumerated = library->enumerated;
	return CUDA_SUCCESS;
}

static void library_forget(void *opaque, uint64_t handle, void *object)
{
	const struct server_context *context = opaque;
	struct server_library *library = object;

	if (handle_kind_of(handle) != HANDLE_LIBRARY || !library->is_module ||
	    library->context != context)
		return;
	handle_close(&context->server->objects, HANDLE_LIBRARY, handle);
	library_free(context->server, library);
}

/* The driver took the context's modules with it: their handles are the client's again. */
void server_libraries_forget(struct server_context *context)
{
	handle_visit(&context->server->objects, library_forget, context);
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
	return server_name(call->server, SERVER_CUmodule, (uint64_t)(uintptr_t)found, 0, false, name);
}

CUresult serve_library_unload(struct server_call *call)
{
	const struct wire_library_unload *request = call->request;
	struct server_library *library =
		handle_close(&call->server->objects, HANDLE_LIBRARY, request->library);
	CUresult result;

	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
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

	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
	reply->kernel_count = library->count;
	return kernels_describe(call, library, request->first);
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
	if (library->is_module)
		result = call->driver->cuModuleGetFunction((CUfunction *)&kernel, library->module, name);
	else
		result = call->driver->cuLibraryGetKernel((CUkernel *)&kernel, library->library, name);
	if (result == CUDA_SUCCESS)
		result = library_name(call->server, library, &kernel, 1);
	if (result != CUDA_SUCCESS)
		return result;
	call->reply_tail = malloc(WIRE_BULK_BYTES);
	if (!call->reply_tail)
		return CUDA_ERROR_OUT_OF_MEMORY;
	writer = (struct wire_writer){ .at = call->reply_tail, .left = WIRE_BULK_BYTES };
	if (!kernel_describe(call, library, library->count - 1, name, &writer))
		return CUDA_ERROR_OUT_OF_MEMORY;
	call->reply_tail_bytes = WIRE_BULK_BYTES - writer.left;
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
	/* A kernel of a library is asked for by its own function; a driver knows
	 * which of the two it gave out. */
	if (driver->cuKernelSetAttribute) {
		result = driver->cuKernelSetAttribute(attribute, request->value, (CUkernel)function,
						      call->context->device);
		if (result != CUDA_ERROR_INVALID_HANDLE)
			return result;
	}
	return driver->cuFuncSetAttribute(function, attribute, request->value);
}

CUresult serve_function_set_cache(struct server_call *call)
{
	const struct wire_function_set_cache *request = call->request;
	CUfunction function;
	CUresult result = server_resolve_function(call, request->function, &function);

	/* A hint: a driver that does not take it for a CUkernel loses nothing. */
	if (result == CUDA_SUCCESS && call->driver->cuFuncSetCacheConfig)
		call->driver->cuFuncSetCacheConfig(function, (CUfunc_cache)request->preference);
	return result;
}

/* ---- launches ---- */

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
	if (!request->attribute_count)
		return driver->cuLaunchKernel(function, config.gridDimX, config.gridDimY,
					      config.gridDimZ, config.blockDimX, config.blockDimY,
					      config.blockDimZ, config.sharedMemBytes, stream, NULL,
					      parameter_bytes ? extra : NULL);
	if (!driver->cuLaunchKernelEx)
		return CUDA_ERROR_NOT_SUPPORTED;
	config.hStream = stream;
	return driver->cuLaunchKernelEx(&config, function, NULL, parameter_bytes ? extra : NULL);
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
