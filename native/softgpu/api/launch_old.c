/* launch_old.c - launches of CUDA 2, whose block, shared memory and parameters are set one
 * by one.  PyCUDA is linked to them.
 */
#include "../driver/module.h"

#include "../driver/context_stack.h"
#include "../driver/function.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
			unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			unsigned int block_z, unsigned int shared, CUstream stream, void **params,
			void **extra);

/* As much as kernels took then. */
#define PIECES_BYTES 4096u

/* What the next launch of a function has. */
struct driver_pieces {
	unsigned block[3];
	unsigned shared;
	unsigned bytes;
	unsigned char parameters[PIECES_BYTES];
};

static pthread_mutex_t pieces_lock = PTHREAD_MUTEX_INITIALIZER;

/* On success the lock is held. */
static CUresult enter(CUfunction handle, struct driver_pieces **pieces)
{
	struct CUctx_st *context;
	struct CUfunc_st *function;
	CUresult result = driver_context_enter(&context);

	if (!result)
		result = driver_function_of(handle, context, &function);
	if (result)
		return result;
	pthread_mutex_lock(&pieces_lock);
	if (!function->pieces)
		function->pieces = calloc(1, sizeof(*function->pieces));
	*pieces = function->pieces;
	if (*pieces)
		return CUDA_SUCCESS;
	pthread_mutex_unlock(&pieces_lock);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

DRIVER_EXPORT CUresult cuFuncSetBlockShape(CUfunction handle, int x, int y, int z)
{
	DRIVER_CALL;
	struct driver_pieces *pieces;
	CUresult result;

	if (x <= 0 || y <= 0 || z <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	result = enter(handle, &pieces);
	if (result)
		return result;
	pieces->block[0] = (unsigned)x;
	pieces->block[1] = (unsigned)y;
	pieces->block[2] = (unsigned)z;
	pthread_mutex_unlock(&pieces_lock);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuFuncSetSharedSize(CUfunction handle, unsigned int bytes)
{
	DRIVER_CALL;
	struct driver_pieces *pieces;
	CUresult result = enter(handle, &pieces);

	if (result)
		return result;
	pieces->shared = bytes;
	pthread_mutex_unlock(&pieces_lock);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuParamSetSize(CUfunction handle, unsigned int bytes)
{
	DRIVER_CALL;
	struct driver_pieces *pieces;
	CUresult result;

	if (bytes > PIECES_BYTES)
		return CUDA_ERROR_INVALID_VALUE;
	result = enter(handle, &pieces);
	if (result)
		return result;
	pieces->bytes = bytes;
	pthread_mutex_unlock(&pieces_lock);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuParamSetv(CUfunction handle, int offset, void *value, unsigned int bytes)
{
	DRIVER_CALL;
	struct driver_pieces *pieces;
	CUresult result;

	if (!value || offset < 0 || (unsigned)offset > PIECES_BYTES ||
	    bytes > PIECES_BYTES - (unsigned)offset)
		return CUDA_ERROR_INVALID_VALUE;
	result = enter(handle, &pieces);
	if (result)
		return result;
	memcpy(pieces->parameters + offset, value, bytes);
	pthread_mutex_unlock(&pieces_lock);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuParamSeti(CUfunction handle, int offset, unsigned int value)
{
	return cuParamSetv(handle, offset, &value, sizeof(value));
}

DRIVER_EXPORT CUresult cuParamSetf(CUfunction handle, int offset, float value)
{
	return cuParamSetv(handle, offset, &value, sizeof(value));
}

DRIVER_EXPORT CUresult cuLaunchGridAsync(CUfunction handle, int width, int height, CUstream stream)
{
	DRIVER_CALL;
	struct driver_pieces *pieces, now;
	size_t bytes;
	CUresult result;

	if (width <= 0 || height <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	result = enter(handle, &pieces);
	if (result)
		return result;
	now = *pieces;
	pthread_mutex_unlock(&pieces_lock);
	bytes = now.bytes;
	void *extra[] = {
		CU_LAUNCH_PARAM_BUFFER_POINTER, now.parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
		CU_LAUNCH_PARAM_END,
	};

	return cuLaunchKernel(handle, (unsigned)width, (unsigned)height, 1, now.block[0], now.block[1],
			      now.block[2], now.shared, stream, NULL, extra);
}

DRIVER_EXPORT CUresult cuLaunchGrid(CUfunction handle, int width, int height)
{
	return cuLaunchGridAsync(handle, width, height, NULL);
}

DRIVER_EXPORT CUresult cuLaunch(CUfunction handle)
{
	return cuLaunchGrid(handle, 1, 1);
}
