#include "cudart.h"

/* native/cudart has the private tables that CUDA's runtime asks a driver for (api/cudart.c).  Where it
 * is not there, the runtime keeps nothing. */
#if __has_include("../../cudart/cudart.h")
#include "../../cudart/cudart.h"

void driver_cudart_end_context(struct CUctx_st *context)
{
	cudart_context_destroyed(context);
}

#else

void driver_cudart_end_context(struct CUctx_st *context)
{
	(void)context;
}

#endif
