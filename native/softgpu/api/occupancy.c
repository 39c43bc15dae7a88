#include "../driver/occupancy.h"

#include "../driver/context_stack.h"
#include "../driver/function.h"
#include "../driver/green.h"

/* ---- blocks ---- */

static CUresult function_here(CUfunction handle, struct CUfunc_st **function)
{
	struct CUctx_st *context;
	CUresult result = driver_context_current(&context);

	if (result)
		return result;
	return driver_function_of(handle, context, function);
}

static CUresult max_active_blocks(int *blocks, CUfunction handle, int threads,
				  size_t dynamic_shared)
{
	struct CUfunc_st *function;
	CUresult result = function_here(handle, &function);

	if (result)
		return result;
	if (!blocks || threads <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	*blocks = (int)driver_occupancy_blocks(function, (uint32_t)threads, dynamic_shared);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle,
								   int threads,
								   size_t dynamic_shared)
{
	DRIVER_CALL;
	return max_active_blocks(blocks, handle, threads, dynamic_shared);
}

DRIVER_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
	int *blocks, CUfunction handle, int threads, size_t dynamic_shared, unsigned int flags)
{
	DRIVER_CALL;
	/* The one flag is about a cache policy that has no effect on blocks here. */
	if (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
		return CUDA_ERROR_INVALID_VALUE;
	return max_active_blocks(blocks, handle, threads, dynamic_shared);
}

/* The block size, a multiple of the warp, with the most resident threads; of
 * several the largest. */
static CUresult max_potential(int *grid, int *block, CUfunction handle,
			      CUoccupancyB2DSize shared_of, size_t shared, int limit)
{
	struct CUfunc_st *function;
	uint32_t most, best = 0, best_threads = 0, best_blocks = 0;
	CUresult result = function_here(handle, &function);

	if (result)
		return result;
	if (!grid || !block || limit < 0)
		return CUDA_ERROR_INVALID_VALUE;
	most = driver_function_threads(function);
	if (limit && (uint32_t)limit < most)
		most = (uint32_t)limit;
	for (uint32_t top = (most + DRIVER_WARP_SIZE - 1) / DRIVER_WARP_SIZE * DRIVER_WARP_SIZE; top;
	     top -= DRIVER_WARP_SIZE) {
		uint32_t threads = top < most ? top : most;
		size_t dynamic = shared_of ? shared_of((int)threads) : shared;
		uint32_t blocks = driver_occupancy_blocks(function, threads, dynamic);

		if (blocks * threads > best) {
			best = blocks * threads;
			best_threads = threads;
			best_blocks = blocks;
		}
	}
	*block = (int)best_threads;
	*grid = (int)(best_blocks *
		      driver_green_multiprocessors(driver_context_top_green(),
						   function->module->context->device));
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction handle,
							CUoccupancyB2DSize shared_of,
							size_t shared, int limit)
{
	DRIVER_CALL;
	return max_potential(grid, block, handle, shared_of, shared, limit);
}

DRIVER_EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block,
								 CUfunction handle,
								 CUoccupancyB2DSize shared_of,
								 size_t shared, int limit,
								 unsigned int flags)
{
	DRIVER_CALL;
	if (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
		return CUDA_ERROR_INVALID_VALUE;
	return max_potential(grid, block, handle, shared_of, shared, limit);
}

DRIVER_EXPORT CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction handle,
							       int blocks, int threads)
{
	DRIVER_CALL;
	const struct driver_capability *capability;
	struct CUfunc_st *function;
	uint64_t per_block, taken, limit;
	CUresult result = function_here(handle, &function);

	if (result)
		return result;
	if (!bytes || blocks <= 0 || threads <= 0 ||
	    driver_occupancy_blocks(function, (uint32_t)threads, 0) < (uint32_t)blocks)
		return CUDA_ERROR_INVALID_VALUE;
	capability = function->module->context->device->capability;
	per_block = capability->shared_per_sm / (uint32_t)blocks /
		    capability->shared_granule * capability->shared_granule;
	taken = (uint64_t)capability->shared_reserved_per_block +
		function->info.static_shared_bytes;
	per_block = per_block > taken ? per_block - taken : 0;
	/* cuda_occupancy.h: beyond 48 KiB only functions count that opted in.  Programs launch with
	 * what they are told. */
	limit = (uint64_t)function->settings.max_dynamic_shared + function->info.static_shared_bytes;
	limit = limit > DRIVER_SHARED_PER_BLOCK ? capability->shared_per_block_optin :
						  DRIVER_SHARED_PER_BLOCK;
	limit -= function->info.static_shared_bytes;
	*bytes = (size_t)(per_block < limit ? per_block : limit);
	return CUDA_SUCCESS;
}

/* ---- clusters ---- */

/* What the launch says, or else the function: its code, or what was set for it.  One of them must, and both agree. */
static CUresult cluster_of(const CUlaunchConfig *config, const struct CUfunc_st *function,
			   uint32_t *blocks)
{
	const int *required = function->settings.cluster;
	uint64_t product = required[0] > 0;

	for (unsigned k = 0; k < 3; k++)
		product *= required[k] ? (uint64_t)required[k] : 1;
	for (unsigned k = 0; k < config->numAttrs; k++) {
		const CUlaunchAttributeValue *value = &config->attrs[k].value;
		uint64_t said;

		if (config->attrs[k].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
			continue;
		said = (uint64_t)value->clusterDim.x * value->clusterDim.y * value->clusterDim.z;
		if (product && said != product)
			return CUDA_ERROR_INVALID_VALUE;	/* as for a launch */
		product = said;
	}
	if (!product || product > DRIVER_CLUSTER_MAX)
		return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	*blocks = (uint32_t)product;
	return CUDA_SUCCESS;
}

static CUresult clustered(CUfunction handle, const CUlaunchConfig *config, const void *out,
			  struct CUfunc_st **function, uint32_t *resident)
{
	CUresult result = function_here(handle, function);
	uint64_t threads;

	if (result)
		return result;
	if (!out || !config || (config->numAttrs && !config->attrs))
		return CUDA_ERROR_INVALID_VALUE;
	if ((*function)->module->context->device->capability->sm < 90)
		return CUDA_ERROR_NOT_SUPPORTED;
	threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
	if (!threads || threads > DRIVER_THREADS_PER_BLOCK)
		return CUDA_ERROR_INVALID_VALUE;
	*resident = driver_occupancy_blocks(*function, (uint32_t)threads, config->sharedMemBytes) *
		    driver_green_multiprocessors(driver_context_top_green(),
						 (*function)->module->context->device);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction handle,
						    const CUlaunchConfig *config)
{
	DRIVER_CALL;
	struct CUfunc_st *function;
	uint32_t resident, blocks;
	CUresult result = clustered(handle, config, clusters, &function, &resident);

	if (!result)
		result = cluster_of(config, function, &blocks);
	if (!result)
		*clusters = (int)(resident / blocks);
	return result;
}

DRIVER_EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction handle,
							  const CUlaunchConfig *config)
{
	DRIVER_CALL;
	struct CUfunc_st *function;
	uint32_t resident, most;
	CUresult result = clustered(handle, config, size, &function, &resident);

	if (result)
		return result;
	most = function->settings.non_portable_cluster ? DRIVER_CLUSTER_MAX : DRIVER_CLUSTER_PORTABLE;
	while (most > resident)
		most /= 2;
	*size = (int)most;
	return CUDA_SUCCESS;
}
