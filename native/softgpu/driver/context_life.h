/* context_life.h - how contexts become active and end, with all that they own. */
#ifndef FARBUS_SOFTGPU_DRIVER_CONTEXT_LIFE_H
#define FARBUS_SOFTGPU_DRIVER_CONTEXT_LIFE_H

#include "context.h"

CUresult driver_context_make_primary(struct driver_device *device);
void driver_context_free_primary(struct driver_device *device);
/* A primary context becomes active with the first retain and ends with the last release:
 * CUDA_ERROR_INVALID_CONTEXT when it was not retained. */
CUresult driver_context_retain(struct CUctx_st *context);
CUresult driver_context_release(struct CUctx_st *context);
/* Everything in it goes, whoever retained it; the next retain makes it active again. */
void driver_context_reset(struct CUctx_st *context);
void driver_context_set_flags(struct CUctx_st *context, unsigned flags);
void driver_context_look(struct CUctx_st *context, unsigned *flags, bool *active);
/* A created context, which is current then; and its end, CUDA_ERROR_INVALID_CONTEXT when another
 * thread was first. */
CUresult driver_context_create(struct driver_device *device, unsigned flags, struct CUctx_st **context);
CUresult driver_context_destroy(struct CUctx_st *context);
/* Wait until everything that was submitted to any context is complete. */
void driver_context_drain_all(void);

#endif
