#include "../driver/module.h"

#include "../driver/context_life.h"
#include "../driver/context_stack.h"
#include "../driver/function.h"
#include "../driver/handle.h"
#include "../driver/image.h"

#include <stdlib.h>

static CUresult library_of(CUlibrary library)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	return driver_handle_is(library, DRIVER_KIND_LIBRARY) ? CUDA_SUCCESS :
								CUDA_ERROR_INVALID_HANDLE;
}

/* Takes over the image. */
static CUresult library_make(CUlibrary *out, void *image, const void *origin, unsigned count,
			     const CUjit_option *options, void **values)
{
	struct engine_diagnostic why = { "" };
	struct CUctx_st *context;
	struct CUlib_st *library = NULL;
	struct CUmod_st *module = NULL;
	CUresult result = driver_module_context(&context);

	if (!result)
		result = driver_context_state(context) == CUDA_ERROR_CONTEXT_IS_DESTROYED ?
			CUDA_SUCCESS : driver_context_state(context);
	if (result)
		goto out_free;
	library = calloc(1, sizeof *library);
	if (!library) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
		goto out_free;
	}
	library->image = image;
	library->origin = origin;
	library->max_registers = driver_module_max_registers(count, options, values);
	/* Load at once, so that a bad image is reported here. */
	driver_module_lock();
	result = driver_module_load(context, library, image, library->max_registers, &why, &module);
	if (!result && driver_handle_add(library, DRIVER_KIND_LIBRARY, NULL)) {
		driver_module_unload(module);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	driver_module_unlock();
	driver_module_write_log(count, options, values, why.text);
	if (result)
		goto out_free;
	*out = library;
	return CUDA_SUCCESS;
out_free:
	free(library);
	free(image);
	return result;
}

DRIVER_EXPORT CUresult cuLibraryLoadData(CUlibrary *out, const void *image, CUjit_option *options,
					 void **values, unsigned int count,
					 CUlibraryOption *library_options, void **library_values,
					 unsigned int library_count)
{
	DRIVER_CALL;
	void *copy;
	CUresult result = driver_ready();

	/* Both library options are promises that allow less work. */
	(void)library_options, (void)library_values, (void)library_count;
	if (result)
		return result;
	if (!out || !image)
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_image_copy(image, &copy);
	return result ? result : library_make(out, copy, image, count, options, values);
}

DRIVER_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path,
					     CUjit_option *options, void **values,
					     unsigned int count, CUlibraryOption *library_options,
					     void **library_values, unsigned int library_count)
{
	DRIVER_CALL;
	void *image;
	CUresult result = driver_ready();

	(void)library_options, (void)library_values, (void)library_count;
	if (result)
		return result;
	if (!out || !path)
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_image_read(path, &image);
	return result ? result : library_make(out, image, image, count, options, values);
}

DRIVER_EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
	DRIVER_CALL;
	struct CUmod_st *module, *next;
	CUresult result = library_of(library);

	if (result)
		return result;
	if (!driver_handle_remove(library, DRIVER_KIND_LIBRARY))
		return CUDA_ERROR_INVALID_HANDLE;
	driver_context_drain_all();
	driver_module_lock();
	driver_context_each_lock();
	for (struct CUctx_st *context = driver_context_first(); context; context = context->next) {
		for (module = context->modules; module; module = next) {
			next = module->next;
			if (module->library == library)
				driver_module_unload(module);
		}
	}
	driver_context_each_unlock();
	while (library->kernels) {
		struct CUkern_st *kernel = library->kernels;

		library->kernels = kernel->next;
		driver_handle_remove(kernel, DRIVER_KIND_KERNEL);
		free(kernel);
	}
	driver_module_unlock();
	free(library->image);
	free(library);
	return CUDA_SUCCESS;
}

/* The library's module where the caller is. */
static CUresult library_here(CUlibrary library, struct CUmod_st **module)
{
	struct CUctx_st *context;
	CUresult result = library_of(library);

	if (!result)
		result = driver_module_context(&context);
	if (result)
		return result;
	driver_module_lock();
	result = driver_module_of_library(library, context, module);
	driver_module_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuLibraryGetModule(CUmodule *out, CUlibrary library)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	struct CUmod_st *module;
	CUresult result = driver_context_enter(&context);

	if (result)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	result = library_here(library, &module);
	if (!result)
		*out = module;
	return result;
}

DRIVER_EXPORT CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name)
{
	DRIVER_CALL;
	struct engine_function_info info;
	struct engine_function *code;
	struct CUmod_st *module;
	CUresult result;

	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	result = library_here(library, &module);
	if (result)
		return result;
	code = engine_module_function(module->engine, name);
	if (code)
		engine_function_info(code, &info);
	if (!code || !info.is_entry) {
		*out = NULL;
		return CUDA_ERROR_NOT_FOUND;
	}
	driver_module_lock();
	result = driver_library_kernel(library, name, out);
	driver_module_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
	DRIVER_CALL;
	struct CUmod_st *module;
	CUresult result;

	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	result = library_here(library, &module);
	if (!result)
		*count = driver_module_entry_count(module);
	return result;
}

DRIVER_EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int room,
						 CUlibrary library)
{
	DRIVER_CALL;
	struct engine_function_info info;
	struct engine_function *code;
	struct CUmod_st *module;
	size_t at = 0;
	CUresult result;

	if (!kernels)
		return CUDA_ERROR_INVALID_VALUE;
	result = library_here(library, &module);
	driver_module_lock();
	for (unsigned i = 0; !result && i < room && (code = driver_module_next_entry(module, &at)); i++) {
		engine_function_info(code, &info);
		result = driver_library_kernel(library, info.name, &kernels[i]);
	}
	driver_module_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library,
					  const char *name)
{
	DRIVER_CALL;
	struct CUmod_st *module;
	CUresult result = library_here(library, &module);

	return result ? result : driver_module_variable(module, name, false, address, bytes);
}

DRIVER_EXPORT CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library,
					   const char *name)
{
	DRIVER_CALL;
	struct CUmod_st *module;
	CUresult result = library_here(library, &module);

	return result ? result : driver_module_variable(module, name, true, address, bytes);
}

DRIVER_EXPORT CUresult cuLibraryGetUnifiedFunction(void **function, CUlibrary library,
						   const char *name)
{
	DRIVER_CALL;
	(void)function, (void)library, (void)name;
	return driver_unsupported("cuLibraryGetUnifiedFunction");
}
