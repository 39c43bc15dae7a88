#include "occupancy.h"

#include "function.h"

/* The arithmetic is that of the CUDA Occupancy Calculator (CUDA C++ Best
 * Practices Guide, "Calculating Occupancy"): each of warps, block slots,
 * registers and shared memory allows some number of blocks, the least wins. */

#define SUB_PARTITIONS 4u	/* register files of a multiprocessor */

static uint32_t round_up(uint32_t value, uint32_t unit)
{
	return (value + unit - 1) / unit * unit;
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t blocks_by_registers(uint32_t registers, uint32_t warps)
{
	uint32_t per_warp = round_up(registers * DRIVER_WARP_SIZE, DRIVER_REGISTER_GRANULE);
	uint32_t resident;

	if (!per_warp)
		return UINT32_MAX;
	/* A launch is checked as if its warps were spread evenly. */
	if (round_up(warps, SUB_PARTITIONS) * per_warp > DRIVER_REGISTERS_PER_SM)
		return 0;
	resident = DRIVER_REGISTERS_PER_SM / SUB_PARTITIONS / per_warp * SUB_PARTITIONS;
	return resident / warps;
}

static uint32_t blocks_by_shared(const struct driver_capability *capability, uint64_t wanted)
{
	uint64_t per_block;

	if (wanted > capability->shared_per_block_optin)
		return 0;
	per_block = round_up((uint32_t)wanted + capability->shared_reserved_per_block,
			     capability->shared_granule);
	return per_block ? (uint32_t)(capability->shared_per_sm / per_block) : UINT32_MAX;
}

uint32_t driver_occupancy_blocks(const struct CUfunc_st *function, uint32_t threads,
				 size_t dynamic_shared)
{
	const struct driver_capability *capability =
		function->module->context->device->capability;
	uint32_t warps = (threads + DRIVER_WARP_SIZE - 1) / DRIVER_WARP_SIZE;
	uint32_t blocks;

	if (!threads || threads > driver_function_threads(function) ||
	    dynamic_shared > capability->shared_per_block_optin)
		return 0;
	blocks = least(capability->blocks, capability->warps / warps);
	blocks = least(blocks, blocks_by_registers(function->info.registers, warps));
	return least(blocks, blocks_by_shared(capability, (uint64_t)dynamic_shared +
							  function->info.static_shared_bytes));
}
