#include "driver_module.h"

#include "driver_handle.h"
#include "driver_memory.h"
#include "driver_stream.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Guards all lists here.  Loading happens with it, so that a library is loaded
 * into a context once. */
static pthread_mutex_t module_lock = PTHREAD_MUTEX_INITIALIZER;

CUresult driver_engine_result(enum engine_status status)
{
	static const CUresult results[] = {
		[ENGINE_OK] = CUDA_SUCCESS,
		[ENGINE_NO_MEMORY] = CUDA_ERROR_OUT_OF_MEMORY,
		[ENGINE_INVALID_IMAGE] = CUDA_ERROR_INVALID_IMAGE,
		[ENGINE_NO_BINARY] = CUDA_ERROR_NO_BINARY_FOR_GPU,
		[ENGINE_INVALID_PTX] = CUDA_ERROR_INVALID_PTX,
		[ENGINE_UNSUPPORTED] = CUDA_ERROR_NOT_SUPPORTED,
		[ENGINE_UNRESOLVED] = CUDA_ERROR_INVALID_PTX,
		[ENGINE_NOT_FOUND] = CUDA_ERROR_NOT_FOUND,
		[ENGINE_ILLEGAL_ADDRESS] = CUDA_ERROR_ILLEGAL_ADDRESS,
		[ENGINE_MISALIGNED] = CUDA_ERROR_MISALIGNED_ADDRESS,
		[ENGINE_ASSERT] = CUDA_ERROR_ASSERT,
		[ENGINE_TRAP] = CUDA_ERROR_LAUNCH_FAILED,
		[ENGINE_LAUNCH_FAILED] = CUDA_ERROR_LAUNCH_FAILED,
		[ENGINE_TIMEOUT] = CUDA_ERROR_LAUNCH_TIMEOUT,
		[ENGINE_CANCELLED] = CUDA_ERROR_LAUNCH_FAILED,
	};

	return (size_t)status < sizeof results / sizeof *results ? results[status] :
								   CUDA_ERROR_UNKNOWN;
}

/* ---- loading; all with the lock ---- */

static void *take_variable(void *opaque, size_t bytes, size_t align)
{
	uintptr_t address;

	if (driver_memory_take(opaque, bytes, align, DRIVER_MEMORY_MODULE, NULL, &address))
		return NULL;
	return (void *)address;
}

static void give_variable(void *opaque, void *address)
{
	(void)opaque;
	driver_memory_give((uintptr_t)address);
}

static CUresult module_load(struct CUctx_st *context, struct CUlib_st *library,
			    const void *image, struct engine_diagnostic *why,
			    struct CUmod_st **out)
{
	struct engine_load_options options = {
		.sm = context->device->capability->sm,
		.memory = { take_variable, give_variable, context },
	};
	struct CUmod_st *module = calloc(1, sizeof *module);
	CUresult result;

	if (!module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	why->text[0] = '\0';
	result = driver_engine_result(engine_module_load(&module->engine, image, &options, why));
	if (result) {
		fprintf(stderr, "softgpu: module not loaded: %s\n",
			why->text[0] ? why->text : "no reason given");
		free(module);
		return result;
	}
	if (driver_handle_add(module, DRIVER_KIND_MODULE)) {
		engine_module_unload(module->engine);
		free(module);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	module->context = context;
	module->library = library;
	module->next = context->modules;
	context->modules = module;
	*out = module;
	return CUDA_SUCCESS;
}

static void module_unload(struct CUmod_st *module)
{
	struct CUmod_st **link = &module->context->modules;

	while (*link != module)
		link = &(*link)->next;
	*link = module->next;
	driver_handle_remove(module, DRIVER_KIND_MODULE);
	while (module->functions) {
		struct CUfunc_st *function = module->functions;

		module->functions = function->next;
		driver_handle_remove(function, DRIVER_KIND_FUNCTION);
		free(function);
	}
	engine_module_unload(module->engine);
	free(module);
}

void driver_module_end_context(struct CUctx_st *context)
{
	pthread_mutex_lock(&module_lock);
	while (context->modules)
		module_unload(context->modules);
	pthread_mutex_unlock(&module_lock);
}

/* The library's module in a context. */
static CUresult library_module(struct CUlib_st *library, struct CUctx_st *context,
			       struct CUmod_st **out)
{
	struct engine_diagnostic why;
	struct CUmod_st *module;

	for (module = context->modules; module; module = module->next) {
		if (module->library == library) {
			*out = module;
			return CUDA_SUCCESS;
		}
	}
	return module_load(context, library, library->image, &why, out);
}

/* ---- functions; all with the lock ---- */

struct CUfunc_st *driver_module_find(struct CUmod_st *module, struct engine_function *code)
{
	struct CUfunc_st *function = module->functions;

	while (function && function->code != code)
		function = function->next;
	return function;
}

static CUresult module_function(struct CUmod_st *module, struct engine_function *code,
				struct CUfunc_st **out)
{
	struct CUfunc_st *function = driver_module_find(module, code);
	int room;

	if (function) {
		*out = function;
		return CUDA_SUCCESS;
	}
	function = calloc(1, sizeof *function);
	if (!function)
		return CUDA_ERROR_OUT_OF_MEMORY;
	function->module = module;
	function->code = code;
	engine_function_info(code, &function->info);
	room = DRIVER_SHARED_PER_BLOCK - (int)function->info.static_shared_bytes;
	function->settings.max_dynamic_shared = room > 0 ? room : 0;
	function->settings.carveout = -1;
	for (unsigned i = 0; i < 3; i++)
		function->settings.cluster[i] = (int)function->info.required_cluster[i];
	if (driver_handle_add(function, DRIVER_KIND_FUNCTION)) {
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
	CUresult result = library_module(kernel->library, context, &module);

	if (result)
		return result;
	code = engine_module_function(module->engine, kernel->name);
	if (!code)
		return CUDA_ERROR_NOT_FOUND;
	fresh = !driver_module_find(module, code);
	result = module_function(module, code, out);
	if (!result && fresh && kernel->is_set[context->device->ordinal])
		(*out)->settings = kernel->settings[context->device->ordinal];
	return result;
}

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
	pthread_mutex_lock(&module_lock);
	result = kernel_function((struct CUkern_st *)handle, context, function);
	pthread_mutex_unlock(&module_lock);
	return result;
}

CUresult driver_module_context(struct CUctx_st **context)
{
	CUresult result = driver_context_current(context);

	if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
		*context = driver_device_at(0)->primary;
		return CUDA_SUCCESS;
	}
	return result;
}

void driver_module_lock(void)
{
	pthread_mutex_lock(&module_lock);
}

void driver_module_unlock(void)
{
	pthread_mutex_unlock(&module_lock);
}

/* ---- modules ---- */

/* Of the just-in-time compiler's options only the error log has a meaning
 * here.  Values may be missing altogether. */
static void write_error_log(unsigned count, const CUjit_option *options, void **values,
			    const char *text)
{
	char *buffer = NULL;
	size_t room = 0;

	if (!options || !values)
		return;
	for (unsigned i = 0; i < count; i++) {
		if (options[i] == CU_JIT_ERROR_LOG_BUFFER)
			buffer = values[i];
		else if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
			room = (size_t)(uintptr_t)values[i];
	}
	if (buffer && room)
		snprintf(buffer, room, "%s", text);
}

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
	pthread_mutex_lock(&module_lock);
	result = module_load(context, NULL, image, &why, &module);
	pthread_mutex_unlock(&module_lock);
	write_error_log(count, options, values, why.text);
	if (!result)
		*out = module;
	return result;
}

DRIVER_EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	return load_data(out, image, 0, NULL, NULL);
}

DRIVER_EXPORT CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int count,
					  CUjit_option *options, void **values)
{
	return load_data(out, image, count, options, values);
}

DRIVER_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image)
{
	return load_data(out, image, 0, NULL, NULL);
}

DRIVER_EXPORT CUresult cuModuleLoad(CUmodule *out, const char *path)
{
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

/* The module of a handle that belongs to no library. */
static CUresult module_of(CUmodule handle)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	return driver_handle_is(handle, DRIVER_KIND_MODULE) ? CUDA_SUCCESS :
							      CUDA_ERROR_INVALID_HANDLE;
}

DRIVER_EXPORT CUresult cuModuleUnload(CUmodule module)
{
	CUresult result = module_of(module);
	struct CUctx_st *context;

	if (result)
		return result;
	context = module->context;
	if (module->library)
		return CUDA_ERROR_NOT_PERMITTED;	/* goes with its library */
	driver_stream_drain(context);
	pthread_mutex_lock(&module_lock);
	if (driver_handle_is(module, DRIVER_KIND_MODULE))
		module_unload(module);
	else
		result = CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_unlock(&module_lock);
	return result ? result : driver_context_state(context);
}

/* Code is decoded when it is loaded. */
DRIVER_EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = CU_MODULE_EAGER_LOADING;
	return CUDA_SUCCESS;
}

static CUresult function_named(struct CUmod_st *module, const char *name,
			       struct CUfunc_st **out)
{
	struct engine_function *code = engine_module_function(module->engine, name);
	struct engine_function_info info;
	CUresult result;

	if (!code)
		return CUDA_ERROR_NOT_FOUND;
	engine_function_info(code, &info);
	if (!info.is_entry)
		return CUDA_ERROR_NOT_FOUND;
	pthread_mutex_lock(&module_lock);
	result = module_function(module, code, out);
	pthread_mutex_unlock(&module_lock);
	return result;
}

DRIVER_EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
	CUresult result = module_of(module);

	if (result)
		return result;
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	return function_named(module, name, out);
}

/* Entry number `index` among the module's entry functions. */
static struct engine_function *entry_at(const struct CUmod_st *module, size_t index)
{
	size_t count = engine_module_function_count(module->engine);

	for (size_t i = 0; i < count; i++) {
		struct engine_function *code = engine_module_function_at(module->engine, i);
		struct engine_function_info info;

		engine_function_info(code, &info);
		if (info.is_entry && !index--)
			return code;
	}
	return NULL;
}

static unsigned entry_count(const struct CUmod_st *module)
{
	unsigned count = 0;

	while (entry_at(module, count))
		count++;
	return count;
}

DRIVER_EXPORT CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
	CUresult result = module_of(module);

	if (result)
		return result;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = entry_count(module);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int room,
						  CUmodule module)
{
	CUresult result = module_of(module);

	if (result)
		return result;
	if (!functions)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&module_lock);
	for (unsigned i = 0; !result && i < room && i < entry_count(module); i++)
		result = module_function(module, entry_at(module, i), &functions[i]);
	pthread_mutex_unlock(&module_lock);
	return result;
}

int driver_module_visit(CUmodule module, void (*visit)(void *opaque, CUfunction function),
			void *opaque)
{
	struct CUfunc_st *function;
	unsigned count;
	CUresult result;

	if (module_of(module))
		return -1;
	count = entry_count(module);
	for (unsigned i = 0; i < count; i++) {
		pthread_mutex_lock(&module_lock);
		result = module_function(module, entry_at(module, i), &function);
		pthread_mutex_unlock(&module_lock);
		if (result)
			return -1;
		visit(opaque, function);
	}
	return (int)count;
}

static CUresult variable_of(struct CUmod_st *module, const char *name, bool only_managed,
			    CUdeviceptr *address, size_t *bytes)
{
	struct engine_variable_info info;

	if (!name || (!address && !bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (engine_module_variable(module->engine, name, &info) ||
	    (only_managed && !info.is_managed))
		return CUDA_ERROR_NOT_FOUND;
	if (address)
		*address = (CUdeviceptr)(uintptr_t)info.address;
	if (bytes)
		*bytes = info.size;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module,
					    const char *name)
{
	CUresult result = module_of(module);

	return result ? result : variable_of(module, name, false, address, bytes);
}

/* ---- libraries ---- */

static CUresult library_of(CUlibrary library)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	return driver_handle_is(library, DRIVER_KIND_LIBRARY) ? CUDA_SUCCESS :
								CUDA_ERROR_INVALID_HANDLE;
}

/* Takes over the image. */
static CUresult library_make(CUlibrary *out, void *image, unsigned count,
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
	/* Load at once, so that a bad image is reported here. */
	pthread_mutex_lock(&module_lock);
	result = module_load(context, library, image, &why, &module);
	if (!result && driver_handle_add(library, DRIVER_KIND_LIBRARY)) {
		module_unload(module);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_unlock(&module_lock);
	write_error_log(count, options, values, why.text);
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
	void *copy;
	CUresult result = driver_ready();

	/* Both library options are promises that allow less work. */
	(void)library_options, (void)library_values, (void)library_count;
	if (result)
		return result;
	if (!out || !image)
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_image_copy(image, &copy);
	return result ? result : library_make(out, copy, count, options, values);
}

DRIVER_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path,
					     CUjit_option *options, void **values,
					     unsigned int count, CUlibraryOption *library_options,
					     void **library_values, unsigned int library_count)
{
	void *image;
	CUresult result = driver_ready();

	(void)library_options, (void)library_values, (void)library_count;
	if (result)
		return result;
	if (!out || !path)
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_image_read(path, &image);
	return result ? result : library_make(out, image, count, options, values);
}

DRIVER_EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
	struct CUmod_st *module, *next;
	CUresult result = library_of(library);

	if (result)
		return result;
	if (!driver_handle_remove(library, DRIVER_KIND_LIBRARY))
		return CUDA_ERROR_INVALID_HANDLE;
	driver_context_drain_all();
	pthread_mutex_lock(&module_lock);
	driver_context_each_lock();
	for (struct CUctx_st *context = driver_context_first(); context; context = context->next) {
		for (module = context->modules; module; module = next) {
			next = module->next;
			if (module->library == library)
				module_unload(module);
		}
	}
	driver_context_each_unlock();
	while (library->kernels) {
		struct CUkern_st *kernel = library->kernels;

		library->kernels = kernel->next;
		driver_handle_remove(kernel, DRIVER_KIND_KERNEL);
		free(kernel);
	}
	pthread_mutex_unlock(&module_lock);
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
	pthread_mutex_lock(&module_lock);
	result = library_module(library, context, module);
	pthread_mutex_unlock(&module_lock);
	return result;
}

DRIVER_EXPORT CUresult cuLibraryGetModule(CUmodule *out, CUlibrary library)
{
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

/* With the lock. */
static CUresult library_kernel(struct CUlib_st *library, const char *name, CUkernel *out)
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
	if (driver_handle_add(kernel, DRIVER_KIND_KERNEL)) {
		free(kernel);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	kernel->next = library->kernels;
	library->kernels = kernel;
	*out = kernel;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name)
{
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
	if (!code)
		return CUDA_ERROR_NOT_FOUND;
	engine_function_info(code, &info);
	if (!info.is_entry)
		return CUDA_ERROR_NOT_FOUND;
	pthread_mutex_lock(&module_lock);
	result = library_kernel(library, name, out);
	pthread_mutex_unlock(&module_lock);
	return result;
}

DRIVER_EXPORT CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
	struct CUmod_st *module;
	CUresult result;

	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	result = library_here(library, &module);
	if (!result)
		*count = entry_count(module);
	return result;
}

DRIVER_EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int room,
						 CUlibrary library)
{
	struct engine_function_info info;
	struct engine_function *code;
	struct CUmod_st *module;
	CUresult result;

	if (!kernels)
		return CUDA_ERROR_INVALID_VALUE;
	result = library_here(library, &module);
	pthread_mutex_lock(&module_lock);
	for (unsigned i = 0; !result && i < room && (code = entry_at(module, i)); i++) {
		engine_function_info(code, &info);
		result = library_kernel(library, info.name, &kernels[i]);
	}
	pthread_mutex_unlock(&module_lock);
	return result;
}

DRIVER_EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library,
					  const char *name)
{
	struct CUmod_st *module;
	CUresult result = library_here(library, &module);

	return result ? result : variable_of(module, name, false, address, bytes);
}

DRIVER_EXPORT CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library,
					   const char *name)
{
	struct CUmod_st *module;
	CUresult result = library_here(library, &module);

	return result ? result : variable_of(module, name, true, address, bytes);
}

DRIVER_EXPORT CUresult cuLibraryGetUnifiedFunction(void **function, CUlibrary library,
						   const char *name)
{
	(void)function, (void)library, (void)name;
	return driver_unsupported("cuLibraryGetUnifiedFunction");
}
