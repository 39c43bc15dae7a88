/* driver_reference.h - texture and surface references: names in modules that are bound to memory.
 *
 * A launch takes the references of its module as they are at that time, so what is queued
 * never sees a later binding; a kernel node of a graph keeps those that it was made with.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_REFERENCE_H
#define FARBUS_SOFTGPU_DRIVER_REFERENCE_H

#include "driver_module.h"

/* The references of a module that is loaded, until it is unloaded. */
CUresult driver_references_make(struct CUmod_st *module);
void driver_references_free(struct CUmod_st *module);

/* The engine's handles for a launch, in an array that ends with UINT64_MAX; NULL where the
 * module has no references.  0: bound to nothing, to what is no
 * more, or to what can't be sampled so. */
CUresult driver_references_take(struct CUmod_st *module, uint64_t **handles);
void driver_references_release(uint64_t *handles);

#endif
