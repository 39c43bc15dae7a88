/* reference.h - texture and surface references: names in modules that are bound to memory.
 *
 * A launch takes the references of its module as they are at that time, so what is queued
 * never sees a later binding; a kernel node of a graph keeps those that it was made with.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_REFERENCE_H
#define FARBUS_SOFTGPU_DRIVER_REFERENCE_H

#include "module.h"

/* ---- one of them ---- */

/* A CUtexref, or a CUsurfref, which is an array alone. */
struct CUtexref_st {
	struct CUmod_st *module;	/* NULL: of cuTexRefCreate, in no kernel's reach */
	const char *name;
	bool is_surface;
	bool is_bound;
	CUDA_RESOURCE_DESC resource;
	CUDA_TEXTURE_DESC texture;
	CUdeviceptr address;		/* that the program bound, behind resource's by an offset */
	CUarray_format format;
	int channels;
};

void driver_reference_begin(struct CUtexref_st *reference);
/* Ready, and such a reference, else CUDA_ERROR_INVALID_HANDLE; on success the lock over what references
 * are bound to is held, until they are left. */
CUresult driver_reference_enter(struct CUtexref_st *reference, bool is_surface);
CUresult driver_reference_leave(CUresult result);

/* ---- those of a module ---- */

struct driver_references {
	size_t count;
	struct CUtexref_st all[];	/* in the engine's order */
};

/* The references of a module that is loaded, until it is unloaded. */
CUresult driver_references_make(struct CUmod_st *module);
void driver_references_free(struct CUmod_st *module);

/* The engine's handles for a launch, in an array that ends with UINT64_MAX; NULL where the
 * module has no references.  0: bound to nothing, to what is no
 * more, or to what can't be sampled so. */
CUresult driver_references_take(struct CUmod_st *module, uint64_t **handles);
void driver_references_release(uint64_t *handles);

#endif
