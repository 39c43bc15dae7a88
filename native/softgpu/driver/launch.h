/* launch.h - launches: what a call says is checked, and becomes an operation of streams. */
#ifndef FARBUS_SOFTGPU_DRIVER_LAUNCH_H
#define FARBUS_SOFTGPU_DRIVER_LAUNCH_H

#include "queue.h"

struct driver_launch_view {
	struct CUfunc_st *function;
	const unsigned char *params;
	bool cooperative;
};

/* Check a launch as cuLaunchKernelEx does, and make its operation.  `green`: of its stream, or
 * NULL. */
CUresult driver_launch_prepare(struct CUctx_st *context, const struct CUgreenCtx_st *green,
			       const CUlaunchConfig *config,
			       CUfunction function, void **params, void **extra,
			       struct driver_operation **operation);
void driver_launch_look(const struct driver_operation *operation, struct driver_launch_view *view);
/* False when the function has been unloaded since. */
bool driver_launch_is_possible(const struct driver_operation *operation);

#endif
