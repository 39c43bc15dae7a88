#include "../driver/module.h"

#include "../driver/context_stack.h"
#include "../driver/function.h"
#include "../driver/handle.h"
#include "../driver/image.h"
#include "../driver/queue.h"

#include <stdlib.h>
#include <string.h>

static CUresult load_data(CUmodule *out, const void *image, unsigned count,
			  const CUjit_option *options, void **values)
{
	struct engine_diagnostic why = { "" };
	struct CUctx_st *context;
	struct CUmod_st *module;
	CUresult result = driver_context_enter(&context);

	if (result)
		return result;
	if (!out || !image)
		return CUDA_ERROR_INVALID_VALUE;
	driver_module_lock();
	result = driver_module_load(context, NULL, image,
				    driver_module_max_registers(count, options, values), &why, &module);
	driver_module_unlock();
	driver_module_write_log(count, options, values, why.text);
	if (!result)
		*out = module;
	return result;
}

DRIVER_EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	DRIVER_CALL;
	return load_data(out, image, 0, NULL, NULL);
}

DRIVER_EXPORT CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int count,
					  CUjit_option *options, void **values)
{
	DRIVER_CALL;
	return load_data(out, image, count, options, values);
}

DRIVER_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image)
{
	DRIVER_CALL;
	return load_data(out, image, 0, NULL, NULL);
}

DRIVER_EXPORT CUresult cuModuleLoad(CUmodule *out, const char *path)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	void *image;
	CUresult result = driver_context_enter(&context);

	if (result)
		return result;
	if (!out || !path)
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_image_read(path, &image);
	if (result)
		return result;
	result = load_data(out, image, 0, NULL, NULL);
	free(image);
	return result;
}

DRIVER_EXPORT CUresult cuModuleUnload(CUmodule module)
{
	DRIVER_CALL;
	CUresult result = driver_module_of(module);
	struct CUctx_st *context;

	if (result)
		return result;
	context = module->context;
	if (module->library)
		return CUDA_ERROR_NOT_PERMITTED;	/* goes with its library */
	driver_stream_drain(context);
	driver_module_lock();
	if (driver_handle_is(module, DRIVER_KIND_MODULE))
		driver_module_unload(module);
	else
		result = CUDA_ERROR_INVALID_HANDLE;
	driver_module_unlock();
	return result ? result : driver_context_state(context);
}

/* Code is decoded when it is loaded. */
/* cudart goes by it: with eager loading, one library of a program whose code is for other devices keeps all of the
 * program from starting. */
DRIVER_EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	DRIVER_CALL;
	const char *asked = getenv("CUDA_MODULE_LOADING");
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = asked && strcmp(asked, "EAGER") == 0 ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
	return CUDA_SUCCESS;
}

static CUresult function_named(struct CUmod_st *module, const char *name,
			       struct CUfunc_st **out)
{
	struct engine_function *code = engine_module_function(module->engine, name);
	struct engine_function_info info;
	CUresult result;

	if (code)
		engine_function_info(code, &info);
	if (!code || !info.is_entry) {
		*out = NULL;
		return CUDA_ERROR_NOT_FOUND;
	}
	driver_module_lock();
	result = driver_module_function(module, code, out);
	driver_module_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
	DRIVER_CALL;
	CUresult result = driver_module_of(module);

	if (result)
		return result;
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	return function_named(module, name, out);
}

DRIVER_EXPORT CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
	DRIVER_CALL;
	CUresult result = driver_module_of(module);

	if (result)
		return result;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = driver_module_entry_count(module);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int room,
						  CUmodule module)
{
	DRIVER_CALL;
	CUresult result = driver_module_of(module);
	struct engine_function *code;
	size_t at = 0;

	if (result)
		return result;
	if (!functions)
		return CUDA_ERROR_INVALID_VALUE;
	driver_module_lock();
	for (unsigned i = 0; !result && i < room && (code = driver_module_next_entry(module, &at)); i++)
		result = driver_module_function(module, code, &functions[i]);
	driver_module_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module,
					    const char *name)
{
	DRIVER_CALL;
	CUresult result = driver_module_of(module);

	return result ? result : driver_module_variable(module, name, false, address, bytes);
}
