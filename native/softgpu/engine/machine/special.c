/* special.c - special registers that are the same for all lanes of a warp. */
#include <time.h>

#include "../clock.h"
#include "../running.h"

/* %globaltimer counts nanoseconds of wall time. */
static uint64_t global_timer(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Blocks go round the multiprocessors that the launch may use; those of a cluster stay apart,
 * as on a device. */
static uint32_t multiprocessor_of(const struct block *block)
{
	const struct launch *launch = block->launch;
	const uint32_t *grid = launch->request->grid;
	uint64_t number = block->index[0] +
			  (block->index[1] + (uint64_t)block->index[2] * grid[1]) * grid[0];
	uint32_t place = (uint32_t)(number % launch->multiprocessors);

	if (!launch->request->partition)
		return place;
	for (uint32_t k = 0; k < launch->request->multiprocessors; k++)
		if (launch->request->partition[k / 64] >> k % 64 & 1 && !place--)
			return k;
	return 0;
}

uint64_t special_read(const struct warp *warp, enum special_register which)
{
	const struct block *block = warp->block;
	const struct launch *launch = block->launch;
	const struct engine_launch *request = launch->request;

	switch (which) {
	case SPECIAL_NTID_X:
	case SPECIAL_NTID_Y:
	case SPECIAL_NTID_Z:
		return request->block[which - SPECIAL_NTID_X];
	case SPECIAL_CTAID_X:
	case SPECIAL_CTAID_Y:
	case SPECIAL_CTAID_Z:
		return block->index[which - SPECIAL_CTAID_X];
	case SPECIAL_NCTAID_X:
	case SPECIAL_NCTAID_Y:
	case SPECIAL_NCTAID_Z:
		return request->grid[which - SPECIAL_NCTAID_X];
	case SPECIAL_WARPID:
		return warp->index;
	case SPECIAL_NWARPID:
		return block->warp_count;
	case SPECIAL_CLOCK:
		return (uint32_t)time_stamp_counter();
	case SPECIAL_CLOCK_HI:
		return time_stamp_counter() >> 32;
	case SPECIAL_CLOCK64:
		return time_stamp_counter();
	case SPECIAL_GLOBALTIMER:
		return global_timer();
	case SPECIAL_GLOBALTIMER_LO:
		return (uint32_t)global_timer();
	case SPECIAL_GLOBALTIMER_HI:
		return global_timer() >> 32;
	case SPECIAL_TOTAL_SHARED:
	case SPECIAL_AGGREGATE_SHARED:
		return block->shared_bytes;
	case SPECIAL_DYNAMIC_SHARED:
		return launch->request->dynamic_shared_bytes;
	case SPECIAL_ENVREG_WORKSPACE_HIGH:
		return (uintptr_t)launch->workspace >> 32;
	case SPECIAL_ENVREG_WORKSPACE_LOW:
		return (uint32_t)(uintptr_t)launch->workspace;
	case SPECIAL_CLUSTERID_X:
	case SPECIAL_CLUSTERID_Y:
	case SPECIAL_CLUSTERID_Z:
		which -= SPECIAL_CLUSTERID_X;
		return block->index[which] / launch->cluster[which];
	case SPECIAL_NCLUSTERID_X:
	case SPECIAL_NCLUSTERID_Y:
	case SPECIAL_NCLUSTERID_Z:
		which -= SPECIAL_NCLUSTERID_X;
		return request->grid[which] / launch->cluster[which];
	case SPECIAL_CLUSTER_CTAID_X:
	case SPECIAL_CLUSTER_CTAID_Y:
	case SPECIAL_CLUSTER_CTAID_Z:
		which -= SPECIAL_CLUSTER_CTAID_X;
		return block->index[which] % launch->cluster[which];
	case SPECIAL_CLUSTER_NCTAID_X:
	case SPECIAL_CLUSTER_NCTAID_Y:
	case SPECIAL_CLUSTER_NCTAID_Z:
		return launch->cluster[which - SPECIAL_CLUSTER_NCTAID_X];
	case SPECIAL_CLUSTER_CTARANK:
		return block->rank;
	case SPECIAL_CLUSTER_NCTARANK:
		return launch->cluster_blocks;
	case SPECIAL_IS_EXPLICIT_CLUSTER:
		return launch->is_explicit_cluster;
	case SPECIAL_NSMID:
		return request->multiprocessors ? request->multiprocessors : 1;
	case SPECIAL_SMID:
		return multiprocessor_of(block);
	case SPECIAL_GRIDID:
		return 0;
	}
	return 0;
}
