/* handle.h - which objects a program may name.
 *
 * Programs pass handles that were destroyed, that belong to another kind, or
 * that never existed.  CUDA answers those with an error; so every handle is
 * looked up here before it is followed.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_HANDLE_H
#define FARBUS_SOFTGPU_DRIVER_HANDLE_H

#include "call.h"

#include <stddef.h>

enum driver_kind {
	DRIVER_KIND_CONTEXT = 1,
	DRIVER_KIND_STREAM,
	DRIVER_KIND_EVENT,
	DRIVER_KIND_MODULE,
	DRIVER_KIND_LIBRARY,
	DRIVER_KIND_FUNCTION,
	DRIVER_KIND_KERNEL,
	DRIVER_KIND_POOL,
	DRIVER_KIND_ARRAY,
	DRIVER_KIND_MEMORY,	/* of cuMemCreate */
	DRIVER_KIND_GRAPH,
	DRIVER_KIND_GRAPH_NODE,
	DRIVER_KIND_GRAPH_EXEC,
	DRIVER_KIND_USER_OBJECT,
	DRIVER_KIND_LINK,
	DRIVER_KIND_MIPMAP,
	DRIVER_KIND_TEXTURE_REFERENCE,
	DRIVER_KIND_SURFACE_REFERENCE,
	DRIVER_KIND_RESOURCES,	/* a CUdevResourceDesc */
	DRIVER_KIND_GREEN,
	DRIVER_KIND_GREEN_AS_CONTEXT,
	DRIVER_KIND_GRAPH_CONDITION,
};

/* `users`: of the context that it goes with, or NULL.  0 or -ENOMEM. */
int driver_handle_add(const void *object, enum driver_kind kind, struct driver_users *users);
/* False when the object was not there (any more): of two threads that destroy
 * the same object, one gets true. */
bool driver_handle_remove(const void *object, enum driver_kind kind);
/* Does it name such an object?  Then that stays until the call returns, unless another one destroys it by name;
 * one whose context is ending is none any more. */
bool driver_handle_is(const void *object, enum driver_kind kind);

/* Zeroed memory whose address is never given out again, in pages of its own, or
 * NULL.  For contexts: libraries keep things by a context's handle and do not
 * learn that it was destroyed (cuFFT its tables on the device), so a new context
 * with the handle of an old one would be served what went with that. */
void *driver_handle_allocate(size_t bytes);
/* Give the memory back, and keep the address. */
void driver_handle_retire(void *object, size_t bytes);

#endif
