/* Texture and surface references (CUDA 2 to 11): how programs bind them, and what launches take.
 *
 * The settings are those of a texture object, made one by one in any order; only
 * all together tell whether they can be sampled. */
#include "reference.h"

#include "handle.h"
#include "texture.h"

#include <pthread.h>
#include <stdlib.h>

#define REFERENCES_END UINT64_MAX

/* Over what references are bound to. */
static pthread_mutex_t reference_lock = PTHREAD_MUTEX_INITIALIZER;

static enum driver_kind kind_of(bool is_surface)
{
	return is_surface ? DRIVER_KIND_SURFACE_REFERENCE : DRIVER_KIND_TEXTURE_REFERENCE;
}

void driver_reference_begin(struct CUtexref_st *reference)
{
	reference->format = CU_AD_FORMAT_FLOAT;
	reference->channels = 1;
	for (unsigned k = 0; k < 3; k++)
		reference->texture.addressMode[k] = CU_TR_ADDRESS_MODE_CLAMP;
}

CUresult driver_reference_enter(struct CUtexref_st *reference, bool is_surface)
{
	CUresult result = driver_ready();

	if (!result && !driver_handle_is(reference, kind_of(is_surface)))
		result = CUDA_ERROR_INVALID_HANDLE;
	if (!result)
		pthread_mutex_lock(&reference_lock);
	return result;
}

CUresult driver_reference_leave(CUresult result)
{
	pthread_mutex_unlock(&reference_lock);
	return result;
}

/* ---- of modules ---- */

CUresult driver_references_make(struct CUmod_st *module)
{
	size_t count = engine_module_reference_count(module->engine);
	struct driver_references *references;

	if (!count)
		return CUDA_SUCCESS;
	references = calloc(1, sizeof *references + count * sizeof *references->all);
	if (!references)
		return CUDA_ERROR_OUT_OF_MEMORY;
	module->references = references;
	for (size_t k = 0; k < count; k++) {
		struct CUtexref_st *reference = &references->all[k];
		struct engine_reference_info info;

		engine_module_reference_at(module->engine, k, &info);
		driver_reference_begin(reference);
		reference->module = module;
		reference->name = info.name;
		reference->is_surface = info.is_surface;
		if (driver_handle_add(reference, kind_of(info.is_surface), &module->context->users)) {
			driver_references_free(module);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		references->count++;
	}
	return CUDA_SUCCESS;
}

void driver_references_free(struct CUmod_st *module)
{
	struct driver_references *references = module->references;

	for (size_t k = 0; references && k < references->count; k++)
		driver_handle_remove(&references->all[k], kind_of(references->all[k].is_surface));
	free(references);
	module->references = NULL;
}

/* ---- what launches take ---- */

CUresult driver_references_take(struct CUmod_st *module, uint64_t **handles)
{
	const struct driver_references *references = module->references;
	CUresult result = CUDA_SUCCESS;

	*handles = NULL;
	if (!references)
		return CUDA_SUCCESS;
	*handles = calloc(references->count + 1, sizeof **handles);
	if (!*handles)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*handles)[references->count] = REFERENCES_END;
	pthread_mutex_lock(&reference_lock);
	for (size_t k = 0; k < references->count && !result; k++) {
		const struct CUtexref_st *reference = &references->all[k];

		if (!reference->is_bound)
			continue;
		result = driver_texture_make(&reference->resource,
					     reference->is_surface ? NULL : &reference->texture,
					     NULL, &(*handles)[k]);
		/* What was freed since, or can't be sampled so, matters to kernels alone that
		 * fetch from it. */
		if (result != CUDA_ERROR_OUT_OF_MEMORY)
			result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&reference_lock);
	if (result) {
		driver_references_release(*handles);
		*handles = NULL;
	}
	return result;
}

void driver_references_release(uint64_t *handles)
{
	for (size_t k = 0; handles && handles[k] != REFERENCES_END; k++)
		if (handles[k])
			engine_texture_remove(handles[k]);
	free(handles);
}
