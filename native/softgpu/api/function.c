#include "../driver/function.h"

#include "../driver/context_stack.h"
#include "../driver/handle.h"
#include "../driver/module.h"

/* Where a setting lives in the settings, and what it may be. */
static int *setting_of(struct driver_function_settings *settings, CUfunction_attribute attribute)
{
	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		return &settings->max_dynamic_shared;
	case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		return &settings->carveout;
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
		return &settings->cluster[0];
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
		return &settings->cluster[1];
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
		return &settings->cluster[2];
	case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
		return &settings->non_portable_cluster;
	case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
		return &settings->cluster_policy;
	default:
		return NULL;
	}
}

static CUresult check_setting(const struct CUfunc_st *function, CUfunction_attribute attribute,
			      int value)
{
	const struct driver_capability *capability = function->module->context->device->capability;

	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		return value >= 0 && (uint64_t)value + function->info.static_shared_bytes <=
				     capability->shared_per_block_optin ?
			CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		return value >= -1 && value <= 100 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
		/* What the code demands can't be changed. */
		return value >= 0 && !function->info.required_cluster[0] ?
			CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
		return value == 0 || value == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
		return value >= 0 && value <= CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING ?
			CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult get_attribute(struct CUfunc_st *function, CUfunction_attribute attribute,
			      int *value)
{
	const struct engine_function_info *info = &function->info;
	int *setting = setting_of(&function->settings, attribute);

	if (setting) {
		*value = *setting;
		return CUDA_SUCCESS;
	}
	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*value = (int)driver_function_threads(function);
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
		*value = (int)info->static_shared_bytes;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
		*value = (int)info->const_bytes;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
		*value = (int)info->local_bytes;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_NUM_REGS:
		*value = (int)info->registers;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_PTX_VERSION:
		*value = (int)info->ptx_version;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
		*value = (int)function->module->context->device->capability->sm;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
		*value = 0;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
		*value = info->required_cluster[0] != 0;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* A handle of either kind, in the current context. */
static CUresult function_here(CUfunction handle, struct CUfunc_st **function)
{
	struct CUctx_st *context;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (driver_handle_is(handle, DRIVER_KIND_FUNCTION)) {
		*function = handle;
		return CUDA_SUCCESS;
	}
	result = driver_module_context(&context);
	return result ? result : driver_function_of(handle, context, function);
}

/* A kernel's function on a device: in the current context if it is there, else
 * in the device's primary context. */
static CUresult kernel_on(CUkernel kernel, CUdevice ordinal, struct CUfunc_st **function)
{
	struct driver_device *device;
	struct CUctx_st *context;
	CUresult result = driver_ready();

	if (result)
		return result;
	device = driver_device_at(ordinal);
	if (!device)
		return CUDA_ERROR_INVALID_DEVICE;
	result = driver_module_context(&context);
	if (result)
		return result;
	if (context->device != device)
		context = device->primary;
	return driver_function_of((CUfunction)kernel, context, function);
}

DRIVER_EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute,
					  CUfunction handle)
{
	DRIVER_CALL;
	struct CUfunc_st *function;
	CUresult result = function_here(handle, &function);

	if (result)
		return result;
	return value ? get_attribute(function, attribute, value) : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute,
					  int value)
{
	DRIVER_CALL;
	struct CUfunc_st *function;
	CUresult result = function_here(handle, &function);

	if (!result)
		result = check_setting(function, attribute, value);
	if (!result)
		*setting_of(&function->settings, attribute) = value;
	return result;
}

DRIVER_EXPORT CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute,
					    CUkernel kernel, CUdevice ordinal)
{
	DRIVER_CALL;
	struct CUfunc_st *function;
	CUresult result = kernel_on(kernel, ordinal, &function);

	if (result)
		return result;
	return value ? get_attribute(function, attribute, value) : CUDA_ERROR_INVALID_VALUE;
}

/* For all contexts of the device, present and future. */
DRIVER_EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value,
					    CUkernel kernel, CUdevice ordinal)
{
	DRIVER_CALL;
	struct CUfunc_st *function;
	CUresult result = kernel_on(kernel, ordinal, &function);

	if (!result)
		result = check_setting(function, attribute, value);
	if (result)
		return result;
	if (!driver_handle_is(kernel, DRIVER_KIND_KERNEL)) {
		*setting_of(&function->settings, attribute) = value;
		return CUDA_SUCCESS;
	}
	driver_module_lock();
	if (!kernel->is_set[ordinal])
		kernel->settings[ordinal] = function->settings;
	kernel->is_set[ordinal] = true;
	*setting_of(&kernel->settings[ordinal], attribute) = value;
	driver_context_each_lock();
	for (struct CUctx_st *context = driver_context_first(); context; context = context->next) {
		if (context->device->ordinal != ordinal)
			continue;
		for (struct CUmod_st *module = context->modules; module; module = module->next) {
			if (module->library != kernel->library)
				continue;
			function = driver_module_find(module, engine_module_function(module->engine,
										kernel->name));
			if (function)
				*setting_of(&function->settings, attribute) = value;
		}
	}
	driver_context_each_unlock();
	driver_module_unlock();
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);

	if (result)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	return driver_function_of((CUfunction)kernel, context, out);
}

DRIVER_EXPORT CUresult cuKernelGetLibrary(CUlibrary *out, CUkernel kernel)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!driver_handle_is(kernel, DRIVER_KIND_KERNEL))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = kernel->library;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuFuncGetModule(CUmodule *out, CUfunction handle)
{
	DRIVER_CALL;
	struct CUfunc_st *function;
	CUresult result = function_here(handle, &function);

	if (result)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = function->module;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuFuncGetName(const char **name, CUfunction handle)
{
	DRIVER_CALL;
	struct CUfunc_st *function;
	CUresult result = driver_ready();

	if (result)
		return result;
	/* Unlike of other calls, NULL is a value here and no handle. */
	if (!name || !handle)
		return CUDA_ERROR_INVALID_VALUE;
	result = function_here(handle, &function);
	if (result)
		return result;
	*name = function->info.name;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!driver_handle_is(kernel, DRIVER_KIND_KERNEL))
		return cuFuncGetName(name, (CUfunction)kernel);
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	*name = kernel->name;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset,
					  size_t *bytes)
{
	DRIVER_CALL;
	struct CUfunc_st *function;
	CUresult result = function_here(handle, &function);

	if (result)
		return result;
	if (!offset || index >= function->info.param_count)
		return CUDA_ERROR_INVALID_VALUE;
	*offset = function->info.params[index].offset;
	if (bytes)
		*bytes = function->info.params[index].size;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset,
					    size_t *bytes)
{
	return cuFuncGetParamInfo((CUfunction)kernel, index, offset, bytes);
}

DRIVER_EXPORT CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config)
{
	DRIVER_CALL;
	struct CUfunc_st *function;
	CUresult result = function_here(handle, &function);

	if (result)
		return result;
	return (unsigned)config <= CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_SUCCESS :
								CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config,
					      CUdevice ordinal)
{
	DRIVER_CALL;
	struct CUfunc_st *function;
	CUresult result = kernel_on(kernel, ordinal, &function);

	if (result)
		return result;
	return (unsigned)config <= CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_SUCCESS :
								CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig config)
{
	DRIVER_CALL;
	struct CUfunc_st *function;
	CUresult result = function_here(handle, &function);

	if (result)
		return result;
	return (unsigned)config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ?
		CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuFuncLoad(CUfunction handle)
{
	DRIVER_CALL;
	struct CUfunc_st *function;

	return function_here(handle, &function);
}

DRIVER_EXPORT CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction handle)
{
	DRIVER_CALL;
	struct CUfunc_st *function;
	CUresult result = function_here(handle, &function);

	if (result)
		return result;
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	*state = CU_FUNCTION_LOADING_STATE_LOADED;
	return CUDA_SUCCESS;
}
