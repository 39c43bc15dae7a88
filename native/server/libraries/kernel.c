/* Kernels of libraries: what they are, what is set of them, and which one a driver means. */
#include "../ground/frames.h"
#include "../ground/primary.h"
#include "../ground/resolve.h"
#include "kernel.h"
#include "library.h"

#include <string.h>

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

CUdevice server_call_device(const struct server_call *call)
{
	return call->context ? call->context->device : call->server->devices[0];
}

CUresult server_kernel_parameter(const struct server_call *call, bool is_module, void *kernel, size_t index,
				 struct wire_parameter *parameter)
{
	const struct server_driver *driver = call->driver;
	size_t offset = 0, bytes = 0;
	CUresult result;

	if (is_module)
		result = driver->cuFuncGetParamInfo(kernel, index, &offset, &bytes);
	else
		result = driver->cuKernelGetParamInfo(kernel, index, &offset, &bytes);
	parameter->offset = (uint32_t)offset;
	parameter->bytes = (uint32_t)bytes;
	return result;
}

bool server_kernel_describe(const struct server_call *call, const struct server_library *library, CUdevice device,
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
	struct wire_writer head_at = *writer, parameters_at;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	wire_write_bytes(writer, &head, sizeof(head));
	parameters_at = *writer;
	while (head.parameters_known && !writer->failed &&
	       (result = server_kernel_parameter(call, library->is_module, kernel, head.parameter_count,
						 &parameter)) == CUDA_SUCCESS) {
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

void server_kernels_describe(const struct server_call *call, const struct server_library *library, CUdevice device,
			     uint32_t first, struct wire_writer *writer)
{
	for (uint32_t i = first; i < library->count; i++)
		if (!server_kernel_describe(call, library, device, i, kernel_name(call, library, library->kernels[i]),
					    writer))
			break;
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
		result = server_tail_open(call, &writer);
	if (result != CUDA_SUCCESS)
		return result;
	for (uint32_t i = request->first;
	     i < library->count && writer.left >= sizeof(struct wire_kernel_attributes); i++) {
		struct wire_kernel_attributes one = { .handle = library->handles[i] };

		kernel_attributes(call, library, call->server->devices[request->device],
				  library->kernels[i], one.attributes, &one.known);
		wire_write_bytes(&writer, &one, sizeof(one));
	}
	server_tail_close(call, &writer);
	reply->kernel_count = library->count;
	return CUDA_SUCCESS;
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
	result = server_enter_any(call, server_call_device(call));
	if (result == CUDA_SUCCESS)
		result = server_tail_open(call, &writer);
	if (result != CUDA_SUCCESS)
		return result;
	server_kernels_describe(call, library, server_call_device(call), request->first, &writer);
	server_tail_close(call, &writer);
	reply->kernel_count = library->count;
	return CUDA_SUCCESS;
}

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
