#define _GNU_SOURCE
#include "module.h"
#include "log.h"

#include "context_stack.h"
#include "handle.h"
#include "memory.h"
#include "reference.h"

#include <dlfcn.h>
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
		[ENGINE_UNSUPPORTED_VERSION] = CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
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

/* Programs often check no error: which image it was, and why. */
static void say_refused(const void *origin, const struct engine_diagnostic *why)
{
	Dl_info file;

	if (!dladdr(origin, &file) || !file.dli_fname)
		file.dli_fname = "memory";
	driver_say("module not loaded: the kernel image in %s: %s", file.dli_fname,
		   why->text[0] ? why->text : "no reason given");
}

CUresult driver_module_load(struct CUctx_st *context, struct CUlib_st *library,
			    const void *image, uint32_t max_registers, struct engine_diagnostic *why,
			    struct CUmod_st **out)
{
	struct engine_load_options options = {
		.sm = context->device->capability->sm,
		.memory = { take_variable, give_variable, context },
		.asks_reach = driver_device_count() > 1,
		.max_registers = max_registers,
	};
	struct CUmod_st *module = calloc(1, sizeof *module);
	CUresult result;

	if (!module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	module->context = context;
	why->text[0] = '\0';
	result = driver_engine_result(engine_module_load(&module->engine, image, &options, why));
	if (result) {
		say_refused(library ? library->origin : image, why);
		free(module);
		return result;
	}
	result = driver_references_make(module);
	if (!result && driver_handle_add(module, DRIVER_KIND_MODULE, &context->users)) {
		driver_references_free(module);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result) {
		engine_module_unload(module->engine);
		free(module);
		return result;
	}
	/* The loader does not say so when it takes memory. */
	for (size_t i = 0; i < engine_module_variable_count(module->engine); i++) {
		struct engine_variable_info info;

		engine_module_variable_at(module->engine, i, &info);
		if (info.is_managed)
			driver_memory_set_managed((uintptr_t)info.address);
	}
	module->library = library;
	module->next = context->modules;
	context->modules = module;
	*out = module;
	return CUDA_SUCCESS;
}

void driver_module_unload(struct CUmod_st *module)
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
		free(function->pieces);
		free(function);
	}
	driver_references_free(module);
	engine_module_unload(module->engine);
	free(module);
}

void driver_module_end_context(struct CUctx_st *context)
{
	pthread_mutex_lock(&module_lock);
	while (context->modules)
		driver_module_unload(context->modules);
	pthread_mutex_unlock(&module_lock);
}

CUresult driver_module_of_library(struct CUlib_st *library, struct CUctx_st *context,
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
	return driver_module_load(context, library, library->image, library->max_registers, &why, out);
}

CUresult driver_module_of(CUmodule handle)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	return driver_handle_is(handle, DRIVER_KIND_MODULE) ? CUDA_SUCCESS :
							      CUDA_ERROR_INVALID_HANDLE;
}

CUresult driver_module_context(struct CUctx_st **context)
{
	CUresult result = driver_context_current(context);

	if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
		*context = driver_device_at(0)->primary;
		/* It may be inactive, but not ending. */
		return driver_call_use(&(*context)->users) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
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

/* ---- options of loads ---- */

/* Of the just-in-time compiler's options only these have a meaning here: the limit of
 * registers, and the logs, of which one stays empty.  Values may be missing altogether. */
uint32_t driver_module_max_registers(unsigned count, const CUjit_option *options, void *const *values)
{
	uint32_t most = 0;

	for (unsigned i = 0; options && values && i < count; i++)
		if (options[i] == CU_JIT_MAX_REGISTERS)
			most = (uint32_t)(uintptr_t)values[i];
	return most;
}

static void write_one_log(unsigned count, const CUjit_option *options, void **values,
			  CUjit_option buffer_option, CUjit_option size_option, const char *text)
{
	void **size = NULL;
	char *buffer = NULL;
	size_t room, length = strlen(text);

	for (unsigned i = 0; i < count; i++) {
		if (options[i] == buffer_option)
			buffer = values[i];
		else if (options[i] == size_option)
			size = &values[i];
	}
	room = size ? (size_t)(uintptr_t)*size : 0;
	if (!buffer || !room)
		return;
	snprintf(buffer, room, "%s", text);
	*size = (void *)(uintptr_t)(length < room ? length : room - 1);
}

void driver_module_write_log(unsigned count, const CUjit_option *options, void **values,
			     const char *text)
{
	if (!options || !values)
		return;
	write_one_log(count, options, values, CU_JIT_ERROR_LOG_BUFFER,
		      CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, text);
	write_one_log(count, options, values, CU_JIT_INFO_LOG_BUFFER,
		      CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, "");
}

/* ---- what modules have ---- */

struct engine_function *driver_module_next_entry(const struct CUmod_st *module, size_t *at)
{
	size_t count = engine_module_function_count(module->engine);

	while (*at < count) {
		struct engine_function *code = engine_module_function_at(module->engine, (*at)++);
		struct engine_function_info info;

		engine_function_info(code, &info);
		if (info.is_entry)
			return code;
	}
	return NULL;
}

unsigned driver_module_entry_count(const struct CUmod_st *module)
{
	unsigned count = 0;

	for (size_t at = 0; driver_module_next_entry(module, &at); )
		count++;
	return count;
}

CUresult driver_module_variable(struct CUmod_st *module, const char *name, bool only_managed,
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
