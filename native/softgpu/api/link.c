/* cuLink: PTX joined at run time. */
#define _GNU_SOURCE
#include "../driver/module.h"

#include "../driver/context_stack.h"
#include "../driver/handle.h"
#include "../driver/image.h"
#include "../engine/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET_SM_MASK 0xffffu	/* CUjit_target: compute capability, suffixes above it */
#define TARGET_SM_MIN 30u

struct CUlinkState_st {
	struct engine_linker *linker;
	bool complete;
	uint64_t busy_ns;	/* spent in linking */
	uint32_t max_registers;	/* of inputs whose own options say nothing of it */
	/* The program's own: values are written until the end. */
	unsigned option_count;
	const CUjit_option *options;
	void **values;
	/* What the logs have room for: their sizes among the values become what is in them. */
	void *error_room, *info_room;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;	/* of all that is in states */

/* The state that is still being linked; with the lock. */
static CUresult state_of(CUlinkState handle)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!driver_handle_is(handle, DRIVER_KIND_LINK) || handle->complete)
		return CUDA_ERROR_INVALID_HANDLE;
	return CUDA_SUCCESS;
}

/* The value of an option, or NULL. */
static void **value_of(const struct CUlinkState_st *state, CUjit_option option)
{
	void **value = NULL;

	for (unsigned i = 0; state->options && state->values && i < state->option_count; i++)
		if (state->options[i] == option)
			value = &state->values[i];
	return value;
}

static void tell(struct CUlinkState_st *state, uint64_t began_ns, const char *text)
{
	void **error_size = value_of(state, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
	void **info_size = value_of(state, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
	void **wall_time = value_of(state, CU_JIT_WALL_TIME);
	float busy_ms;

	state->busy_ns += clock_monotonic_ns() - began_ns;
	busy_ms = (float)state->busy_ns / 1e6f;
	if (error_size)
		*error_size = state->error_room;
	if (info_size)
		*info_size = state->info_room;
	driver_module_write_log(state->option_count, state->options, state->values, text);
	if (wall_time)
		memcpy(wall_time, &busy_ms, sizeof busy_ms);
}

static CUresult target_of(unsigned count, const CUjit_option *options, void **values, unsigned *sm)
{
	for (unsigned i = 0; options && values && i < count; i++) {
		if (options[i] != CU_JIT_TARGET)
			continue;
		*sm = (unsigned)(uintptr_t)values[i] & TARGET_SM_MASK;
		if (*sm < TARGET_SM_MIN)
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuLinkCreate_v2(unsigned int count, CUjit_option *options, void **values,
				       CUlinkState *out)
{
	DRIVER_CALL;
	struct CUlinkState_st *state;
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);
	void **value;
	unsigned sm;

	if (result)
		return result;
	if (!out || (count && (!options || !values)))
		return CUDA_ERROR_INVALID_VALUE;
	sm = context->device->capability->sm;
	result = target_of(count, options, values, &sm);
	if (result)
		return result;
	state = calloc(1, sizeof *state);
	if (!state)
		return CUDA_ERROR_OUT_OF_MEMORY;
	state->linker = engine_linker_create(sm);
	state->max_registers = driver_module_max_registers(count, options, values);
	state->option_count = count;
	state->options = options;
	state->values = values;
	value = value_of(state, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
	state->error_room = value ? *value : NULL;
	value = value_of(state, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
	state->info_room = value ? *value : NULL;
	if (!state->linker || driver_handle_add(state, DRIVER_KIND_LINK, NULL)) {
		if (state->linker)
			engine_linker_destroy(state->linker);
		free(state);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = state;
	return CUDA_SUCCESS;
}

DRIVER_FIRST_NAME(cuLinkCreate);

static CUresult add(CUlinkState state, CUjitInputType type, const void *data, size_t bytes,
		    const char *name, unsigned count, const CUjit_option *options, void **values)
{
	struct engine_diagnostic why = { "" };
	uint64_t began_ns = clock_monotonic_ns();
	char text[sizeof why.text + 256] = "";
	uint32_t max_registers = driver_module_max_registers(count, options, values);
	CUresult result;

	pthread_mutex_lock(&lock);
	result = state_of(state);
	if (!result && (!data || !bytes || (unsigned)type >= CU_JIT_NUM_INPUT_TYPES))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && type == CU_JIT_INPUT_NVVM)
		result = driver_unsupported("linking of NVVM");
	if (result)
		goto out;
	if (!max_registers)
		max_registers = state->max_registers;
	result = driver_engine_result(
		engine_linker_add(state->linker, data, bytes, max_registers, &why));
	if (result)
		snprintf(text, sizeof text, "%.250s: %s", name && *name ? name : "input", why.text);
	tell(state, began_ns, text);
	driver_module_write_log(count, options, values, text);
out:
	pthread_mutex_unlock(&lock);
	return result;
}

DRIVER_EXPORT CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data,
					size_t bytes, const char *name, unsigned int count,
					CUjit_option *options, void **values)
{
	DRIVER_CALL;
	return add(state, type, data, bytes, name, count, options, values);
}

DRIVER_EXPORT CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path,
					unsigned int count, CUjit_option *options, void **values)
{
	DRIVER_CALL;
	CUresult result = driver_ready();
	size_t bytes;
	void *data;

	if (result)
		return result;
	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_file_read(path, &data, &bytes);
	if (result)
		return result;
	result = add(state, type, data, bytes, path, count, options, values);
	free(data);
	return result;
}

DRIVER_FIRST_NAME(cuLinkAddData);
DRIVER_FIRST_NAME(cuLinkAddFile);

DRIVER_EXPORT CUresult cuLinkComplete(CUlinkState state, void **image, size_t *bytes)
{
	DRIVER_CALL;
	struct engine_diagnostic why = { "" };
	uint64_t began_ns = clock_monotonic_ns();
	const void *linked;
	size_t linked_bytes;
	CUresult result;

	pthread_mutex_lock(&lock);
	result = state_of(state);
	if (!result && !image)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result)
		goto out;
	result = driver_engine_result(
		engine_linker_complete(state->linker, &linked, &linked_bytes, &why));
	tell(state, began_ns, result ? why.text : "");
	if (result)
		goto out;
	state->complete = true;
	*image = (void *)(uintptr_t)linked;
	if (bytes)
		*bytes = linked_bytes;
out:
	pthread_mutex_unlock(&lock);
	return result;
}

DRIVER_EXPORT CUresult cuLinkDestroy(CUlinkState state)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	pthread_mutex_lock(&lock);
	if (driver_handle_remove(state, DRIVER_KIND_LINK)) {
		engine_linker_destroy(state->linker);
		free(state);
	} else {
		result = CUDA_ERROR_INVALID_HANDLE;
	}
	pthread_mutex_unlock(&lock);
	return result;
}
