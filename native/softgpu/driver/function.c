/* Functions of modules, and what kernels of libraries mean in a context. */
#include "function.h"

#include "handle.h"
#include "module.h"

#include <stdlib.h>
#include <string.h>

uint32_t driver_function_threads(const struct CUfunc_st *function)
{
	uint32_t limit = function->info.max_threads_per_block;
	uint32_t per_warp = function->info.registers * DRIVER_WARP_SIZE;
	uint32_t warps;

	if (!limit || limit > DRIVER_THREADS_PER_BLOCK)
		limit = DRIVER_THREADS_PER_BLOCK;
	if (!per_warp)
		return limit;
	per_warp = (per_warp + DRIVER_REGISTER_GRANULE - 1) / DRIVER_REGISTER_GRANULE *
		   DRIVER_REGISTER_GRANULE;
	/* A block's warps get registers in groups of the warp granule. */
	warps = DRIVER_REGISTERS_PER_SM / per_warp / DRIVER_WARP_GRANULE * DRIVER_WARP_GRANULE;
	return warps * DRIVER_WARP_SIZE < limit ? warps * DRIVER_WARP_SIZE : limit;
}

/* ---- with the guard ---- */

struct CUfunc_st *driver_module_find(struct CUmod_st *module, struct engine_function *code)
{
	struct CUfunc_st *function = module->functions;

	while (function && function->code != code)
		function = function->next;
	return function;
}

CUresult driver_module_function(struct CUmod_st *module, struct engine_function *code,
				struct CUfunc_st **out)
{
	static uint64_t last_id;
	struct CUfunc_st *function = driver_module_find(module, code);
	int room;

	if (function) {
		*out = function;
		return CUDA_SUCCESS;
	}
	function = calloc(1, sizeof *function);
	if (!function)
		return CUDA_ERROR_OUT_OF_MEMORY;
	function->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
	function->module = module;
	function->code = code;
	engine_function_info(code, &function->info);
	room = DRIVER_SHARED_PER_BLOCK - (int)function->info.static_shared_bytes;
	function->settings.max_dynamic_shared = room > 0 ? room : 0;
	function->settings.carveout = -1;
	for (unsigned i = 0; i < 3; i++)
		function->settings.cluster[i] = (int)function->info.required_cluster[i];
	if (driver_handle_add(function, DRIVER_KIND_FUNCTION, &module->context->users)) {
		free(function);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	function->next = module->functions;
	module->functions = function;
	*out = function;
	return CUDA_SUCCESS;
}

static CUresult kernel_function(struct CUkern_st *kernel, struct CUctx_st *context,
				struct CUfunc_st **out)
{
	struct engine_function *code;
	struct CUmod_st *module;
	bool fresh;
	CUresult result = driver_module_of_library(kernel->library, context, &module);

	if (result)
		return result;
	code = engine_module_function(module->engine, kernel->name);
	if (!code)
		return CUDA_ERROR_NOT_FOUND;
	fresh = !driver_module_find(module, code);
	result = driver_module_function(module, code, out);
	if (!result && fresh && kernel->is_set[context->device->ordinal])
		(*out)->settings = kernel->settings[context->device->ordinal];
	return result;
}

CUresult driver_library_kernel(struct CUlib_st *library, const char *name, CUkernel *out)
{
	struct CUkern_st *kernel;
	size_t bytes = strlen(name) + 1;

	for (kernel = library->kernels; kernel; kernel = kernel->next) {
		if (!strcmp(kernel->name, name)) {
			*out = kernel;
			return CUDA_SUCCESS;
		}
	}
	kernel = calloc(1, sizeof *kernel + bytes);
	if (!kernel)
		return CUDA_ERROR_OUT_OF_MEMORY;
	kernel->library = library;
	kernel->name = memcpy(kernel + 1, name, bytes);
	if (driver_handle_add(kernel, DRIVER_KIND_KERNEL, NULL)) {
		free(kernel);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	kernel->next = library->kernels;
	library->kernels = kernel;
	*out = kernel;
	return CUDA_SUCCESS;
}

/* ---- without it ---- */

CUresult driver_function_of(CUfunction handle, struct CUctx_st *context,
			    struct CUfunc_st **function)
{
	CUresult result;

	if (driver_handle_is(handle, DRIVER_KIND_FUNCTION)) {
		*function = handle;
		return CUDA_SUCCESS;
	}
	if (!driver_handle_is(handle, DRIVER_KIND_KERNEL))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!driver_call_use(&context->users))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	driver_module_lock();
	result = kernel_function((struct CUkern_st *)handle, context, function);
	driver_module_unlock();
	return result;
}

CUresult driver_library_kernel_of(const struct CUfunc_st *function, CUkernel *kernel)
{
	CUresult result = CUDA_SUCCESS;

	*kernel = NULL;
	driver_module_lock();
	if (function->module->library)
		result = driver_library_kernel(function->module->library, function->info.name, kernel);
	driver_module_unlock();
	return result;
}

int driver_module_visit(CUmodule module, void (*visit)(void *opaque, CUfunction function),
			void *opaque)
{
	struct CUfunc_st *function;
	struct engine_function *code;
	size_t at = 0;
	int count = 0;
	CUresult result;

	if (driver_module_of(module))
		return -1;
	for (; (code = driver_module_next_entry(module, &at)); count++) {
		driver_module_lock();
		result = driver_module_function(module, code, &function);
		driver_module_unlock();
		if (result)
			return -1;
		visit(opaque, function);
	}
	return count;
}
