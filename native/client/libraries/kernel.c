/* Kernels of libraries and modules: how they are found, by name, by handle, and on which device. */
#include "../ground/thread.h"
#include "../handles/route.h"
#include "kernel.h"
#include "kernels.h"
#include "library.h"

#include <string.h>

CUresult client_function_get(CUfunction handle, struct client_function **function)
{
	*function = handle_get(&farbus_client.handles, HANDLE_FUNCTION, (uint64_t)(uintptr_t)handle);
	return *function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static struct client_function *function_known(const struct client_library *library, const char *name)
{
	for (uint32_t i = 0; i < library->function_count; i++)
		if (strcmp(library->functions[i]->name, name) == 0)
			return library->functions[i];
	return NULL;
}

/* A kernel that is not known to be on that server: a module's is on one alone. */
static CUresult function_bring(struct client_function *function, struct client_session *session)
{
	struct client_library *library = function->library;
	CUresult result = CUDA_ERROR_INVALID_HANDLE;
	int device = client_session_device(session);

	if (!library->context)
		result = client_library_bring(library, session);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&library->lock);
	if (!function->on[device].wire && !client_library_listed(library, session))
		result = client_kernel_ask(library, session, function->name);
	if (result == CUDA_SUCCESS && !function->on[device].wire)
		result = CUDA_ERROR_NOT_FOUND;
	pthread_mutex_unlock(&library->lock);
	return result;
}

/* Learn how the kernels of a library are on a device: all at once, when the first is used there. */
static CUresult function_describe(struct client_function *function, int device)
{
	struct client_session *session = farbus_client.devices[device].session;
	struct client_library *library = function->library;
	struct client_kernel *kernel = &function->on[device];
	uint32_t first = 0, count = 1;
	CUresult result = CUDA_SUCCESS;

	if (!atomic_load_explicit(&kernel->wire, memory_order_acquire))
		result = function_bring(function, session);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&library->lock);
	if (!client_session_has(session, WIRE_OP_LIBRARY_ATTRIBUTES) && !kernel->described)
		client_kernel_describe_alike(function, device);
	for (; result == CUDA_SUCCESS && count && !kernel->described; first += count)
		result = client_kernels_describe(library, device, first, &count);
	if (result == CUDA_SUCCESS && !kernel->described)
		result = CUDA_ERROR_UNKNOWN;
	pthread_mutex_unlock(&library->lock);
	return result;
}

CUresult client_function_name(struct client_function *function, struct client_session *session,
			      uint64_t *wire)
{
	const struct client_kernel *kernel =
		&function->on[client_alone() ? 0 : client_session_device(session)];
	CUresult result = CUDA_SUCCESS;

	if (!atomic_load_explicit(&kernel->wire, memory_order_acquire))
		result = function_bring(function, session);
	*wire = kernel->wire;
	return result;
}

CUresult client_function_on(struct client_function *function, int device,
			    struct client_kernel **kernel)
{
	*kernel = &function->on[device];
	return atomic_load_explicit(&(*kernel)->described, memory_order_acquire)
		       ? CUDA_SUCCESS
		       : function_describe(function, device);
}

CUresult client_function_wire(CUfunction handle, uint64_t *wire)
{
	struct client_function *function;
	CUresult result = client_function_get(handle, &function);

	if (result == CUDA_SUCCESS)
		result = client_function_name(function, client_route_current().session, wire);
	return result;
}

static CUresult function_find(const void *handle, const char *name, CUfunction *function)
{
	CUresult result = client_enter_any();
	struct client_library *library;
	struct client_function *found;

	if (result != CUDA_SUCCESS)
		return result;
	if (!function || !name)
		return CUDA_ERROR_INVALID_VALUE;
	library = client_library_get(handle);
	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&library->lock);
	found = function_known(library, name);
	if (!found && !client_library_listed(library, library->session)) {
		result = client_kernel_ask(library, library->session, name);
		found = function_known(library, name);
	}
	pthread_mutex_unlock(&library->lock);
	if (found)
		*function = found->handle;
	else if (result == CUDA_SUCCESS)
		result = CUDA_ERROR_NOT_FOUND;
	/* Not before: several threads may ask for one function into one place. */
	if (result == CUDA_ERROR_NOT_FOUND)
		*function = NULL;
	return result;
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
	return function_find(hmod, name, hfunc);
}

CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
	return function_find(library, name, (CUfunction *)pKernel);
}

/* How many kernels there are; only where the server could list them. */
static CUresult function_count(const void *handle, unsigned *count, struct client_library **library)
{
	CUresult result = client_enter_any();

	if (result != CUDA_SUCCESS)
		return result;
	*library = client_library_get(handle);
	if (!*library)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!client_library_listed(*library, (*library)->session))
		return CUDA_ERROR_NOT_SUPPORTED;
	*count = (*library)->function_count;
	return CUDA_SUCCESS;
}

static CUresult function_list(const void *handle, CUfunction *functions, unsigned room)
{
	struct client_library *library;
	unsigned count;
	CUresult result = function_count(handle, &count, &library);

	if (result != CUDA_SUCCESS)
		return result;
	if (!functions)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count && i < room; i++)
		functions[i] = library->functions[i]->handle;
	return CUDA_SUCCESS;
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule mod)
{
	struct client_library *library;

	return count ? function_count(mod, count, &library) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod)
{
	return function_list(mod, functions, numFunctions);
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib)
{
	struct client_library *library;

	return count ? function_count(lib, count, &library) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib)
{
	return function_list(lib, (CUfunction *)kernels, numKernels);
}

int client_module_visit(CUmodule module, void (*visit)(void *opaque, CUfunction function),
			void *opaque)
{
	struct client_library *library;
	unsigned count;

	if (function_count(module, &count, &library) != CUDA_SUCCESS)
		return -1;
	for (unsigned i = 0; i < count; i++)
		visit(opaque, library->functions[i]->handle);
	return (int)count;
}
