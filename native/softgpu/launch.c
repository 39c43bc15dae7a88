/* launch.c - the engine's entry points for running kernels. */
#include "launch.h"

#include <stdio.h>
#include <string.h>

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

	launch->register_bytes = function->frame_bytes;
	if (function->has_calls) {
		local += LOCAL_STACK_BYTES;
		launch->register_bytes += REGISTER_STACK_BYTES;
	}
	/* An odd number of cache lines: lanes at the same offset use different sets. */
	if (local)
		launch->local_stride = ((local + 127) & ~127u) + 64;
	launch->register_bytes = (launch->register_bytes + 63) & ~(size_t)63;
	launch->dynamic_offset = (function->shared_bytes + 15) & ~15u;
	launch->shared_bytes = launch->dynamic_offset + launch->request->dynamic_shared_bytes;
}

/* Special registers and shared::cluster treat every block as a cluster of one. */
static bool wants_cluster(const struct engine_launch *request)
{
	const uint32_t *required = request->function->cluster;

	for (unsigned k = 0; k < 3; k++)
		if (request->cluster[k] > 1 || required[k] > 1)
			return true;
	return false;
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
	if (wants_cluster(request)) {
		snprintf(why->text, sizeof(why->text),
			 "launch %s: clusters of more than one block are not supported",
			 function->name);
		return ENGINE_UNSUPPORTED;
	}
	memset(&launch, 0, sizeof(launch));
	launch.request = request;
	launch.function = function;
	launch.block_total = (uint64_t)grid[0] * grid[1] * grid[2];
	launch.threads_per_block = block[0] * block[1] * block[2];
	launch.warps_per_block = (launch.threads_per_block + WARP_LANES - 1) / WARP_LANES;
	if (request->timeout_ns)
		launch.deadline_ns = clock_monotonic_ns() + request->timeout_ns;
	/* Cooperative groups read the size of the workspace from its first word. */
	launch.workspace[0] = sizeof(launch.workspace);
	plan_memory(&launch);
	pool_run(&launch);
	if (atomic_load(&launch.status) != ENGINE_OK)
		*why = launch.why;
	return (enum engine_status)atomic_load(&launch.status);
}
