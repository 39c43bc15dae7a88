/* launch.c - the engine's entry points for running kernels. */
#include "running.h"
#include "clock.h"
#include "machine/strict.h"

#include <stdio.h>
#include <string.h>

/* Bytes by which GPUs give shared memory to blocks since compute capability 8.0 (PTX ISA,
 * "%total_smem_size"): what lies behind a block's variables in the last of them is the block's, too. */
#define SHARED_UNIT 128u

/* Blocks that wait for others in a loop, as grid barriers do, should not do so long. */
#define CREW_FUEL 200

void engine_configure(const struct engine_options *options)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static bool configured;

	pthread_mutex_lock(&mutex);
	if (!configured)
		pool_options = *options;
	configured = true;
	pthread_mutex_unlock(&mutex);
}

static void plan_memory(struct launch *launch)
{
	const struct engine_function *function = launch->function;
	uint32_t local = function->local_bytes;
	uint32_t local_align = function->module->local_align < 64 ? 64 : function->module->local_align;
	uint32_t dynamic_align = function->module->dynamic_align < 16 ? 16 : function->module->dynamic_align;

	launch->register_bytes = function->frame_bytes;
	if (function->has_calls) {
		local += LOCAL_STACK_BYTES;
		launch->register_bytes += REGISTER_STACK_BYTES;
	}
	/* An odd number of cache lines, or of what a variable is aligned to: lanes at the same offset use
	 * different sets, and all lanes begin where the first one may. */
	if (local)
		launch->local_stride = ((local + 2 * local_align - 1) & ~(2 * local_align - 1)) + local_align;
	launch->register_bytes = (launch->register_bytes + local_align - 1) & ~(size_t)(local_align - 1);
	launch->dynamic_offset = (function->shared_bytes + dynamic_align - 1) & ~(dynamic_align - 1);
	launch->shared_bytes = launch->dynamic_offset + launch->request->dynamic_shared_bytes;
	if (!pool_options.strict)
		launch->shared_bytes = (launch->shared_bytes + SHARED_UNIT - 1) & ~(SHARED_UNIT - 1);
}

/* The launch's own cluster dimensions, else the function's, else single blocks. */
static bool plan_gangs(struct launch *launch, struct engine_diagnostic *why)
{
	const struct engine_launch *request = launch->request;
	const uint32_t *chosen = request->cluster[0] ? request->cluster : request->function->cluster;

	launch->is_explicit_cluster = chosen[0] != 0;
	launch->cluster_blocks = 1;
	for (unsigned k = 0; k < 3; k++) {
		launch->cluster[k] = chosen[k] ? chosen[k] : 1;
		if (launch->cluster[k] > CLUSTER_BLOCKS_MAX ||
		    request->grid[k] % launch->cluster[k])
			goto impossible;
		launch->cluster_blocks *= launch->cluster[k];
	}
	if (launch->cluster_blocks > CLUSTER_BLOCKS_MAX)
		goto impossible;
	launch->gang_blocks = request->cooperative ? launch->block_total : launch->cluster_blocks;
	launch->fuel = request->cooperative ? CREW_FUEL : WARP_FUEL;
	launch->gang_total = launch->gang_blocks ? launch->block_total / launch->gang_blocks : 0;
	return true;
impossible:
	snprintf(why->text, sizeof(why->text),
		 "launch %s: clusters of %u x %u x %u blocks are too large or do not divide the grid",
		 request->function->name, chosen[0], chosen[1], chosen[2]);
	return false;
}

/* All multiprocessors and helpers, or the share that the launch may use of both. */
static void plan_share(struct launch *launch)
{
	const struct engine_launch *request = launch->request;
	uint32_t all = request->multiprocessors ? request->multiprocessors : 1, own = 0;
	unsigned threads;

	launch->multiprocessors = all;
	launch->helpers_most = UINT32_MAX;
	if (!request->partition)
		return;
	for (uint32_t k = 0; k < (all + 63) / 64; k++)
		own += (uint32_t)__builtin_popcountll(request->partition[k]);
	launch->multiprocessors = own ? own : 1;
	threads = pool_threads() * launch->multiprocessors / all;
	launch->helpers_most = threads ? threads - 1 : 0;
}

enum engine_status engine_launch(const struct engine_launch *request,
				 struct engine_diagnostic *why)
{
	const struct engine_function *function = request->function;
	const uint32_t *grid = request->grid, *block = request->block;
	struct launch launch;

	if (function->status != ENGINE_OK) {
		snprintf(why->text, sizeof(why->text), "launch %s: %s", function->name,
			 function->unsupported);
		return function->status;
	}
	memset(&launch, 0, sizeof(launch));
	launch.request = request;
	pthread_mutex_init(&launch.crew.mutex, NULL);
	pthread_cond_init(&launch.crew.changed, NULL);
	launch.function = function;
	launch.block_total = (uint64_t)grid[0] * grid[1] * grid[2];
	if (!plan_gangs(&launch, why))
		return ENGINE_LAUNCH_FAILED;
	launch.threads_per_block = block[0] * block[1] * block[2];
	launch.warps_per_block = (launch.threads_per_block + WARP_LANES - 1) / WARP_LANES;
	if (request->timeout_ns)
		launch.deadline_ns = clock_monotonic_ns() + request->timeout_ns;
	/* Cooperative groups read the size of the workspace from its first word. */
	launch.workspace[0] = sizeof(launch.workspace);
	plan_memory(&launch);
	plan_share(&launch);
	if (pool_options.strict)
		launch.number = strict_next_launch();
	pool_run(&launch);
	if (atomic_load(&launch.status) != ENGINE_OK)
		*why = launch.why;
	return (enum engine_status)atomic_load(&launch.status);
}
