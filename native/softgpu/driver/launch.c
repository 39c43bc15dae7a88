#include "launch.h"
#include "log.h"

#include "function.h"
#include "graph/condition.h"
#include "green.h"
#include "handle.h"
#include "module.h"
#include "occupancy.h"
#include "peer.h"
#include "reference.h"
#include "virtual.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct geometry {
	uint32_t grid[3], block[3], cluster[3];
	uint32_t preferred[3];		/* cluster: wholes of the other, which is what runs here */
	bool prefers;
	uint32_t dynamic_shared;
	bool cooperative;
};

struct launch_operation {
	struct driver_operation base;
	struct CUfunc_st *function;
	uint64_t function_id;		/* as it was when this was prepared */
	struct geometry geometry;
	uint64_t *references;		/* textures and surfaces as they were then; or NULL */
	_Alignas(16) unsigned char params[];
};

/* ---- running ---- */

/* What the kernel prints belongs to the program's output. */
static void print(void *opaque, const char *text, size_t length)
{
	(void)opaque;
	fwrite(text, 1, length, stdout);
	fflush(stdout);
}

static bool set_condition(void *opaque, uint64_t handle, uint32_t value)
{
	return driver_graph_condition_set(opaque, handle, value);
}

static CUresult run_launch(struct driver_operation *operation, CUresult state)
{
	const struct launch_operation *launch = (struct launch_operation *)operation;
	const struct geometry *geometry = &launch->geometry;
	struct board *board = launch->function->module->context->device->board;
	struct engine_diagnostic why = { "" };
	struct engine_multicast multicast;
	struct engine_reach reach;
	enum engine_status status;
	struct engine_launch order = {
		.function = launch->function->code,
		.dynamic_shared_bytes = geometry->dynamic_shared,
		.params = launch->params,
		.references = launch->references,
		.cooperative = geometry->cooperative,
		.multiprocessors = launch->function->module->context->device->model->multiprocessors,
		.partition = driver_green_running ? driver_green_running->partition.bits : NULL,
		.cancel = &launch->function->module->context->cancel,
		.timeout_ns = driver_options()->watchdog_ns,
		.print = print,
		.set_condition = set_condition,
		.condition_opaque = launch->function->module->context,
		.reach = driver_device_count() > 1 ? &reach : NULL,
		.multicast = &multicast,
	};

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		order.grid[i] = geometry->grid[i];
		order.block[i] = geometry->block[i];
		order.cluster[i] = geometry->cluster[i];
	}
	driver_peer_reach(launch->function->module->context, &reach);
	driver_virtual_multicast(launch->function->module->context, &multicast);
	board_busy_begin(board);
	status = engine_launch(&order, &why);
	board_busy_end(board);
	if (status)
		driver_say("kernel " ENGINE_NAME " ended early: %s",
			   launch->function->info.name, why.text[0] ? why.text : "no reason given");
	return driver_engine_result(status);
}

static void release_launch(struct driver_operation *operation)
{
	struct launch_operation *launch = (struct launch_operation *)operation;

	driver_references_release(launch->references);
	free(launch);
}

/* ---- checks: what CUDA reports from the call itself ---- */

static CUresult check_geometry(const struct CUfunc_st *function, const struct geometry *geometry)
{
	const struct driver_device *device = function->module->context->device;
	uint64_t threads = (uint64_t)geometry->block[0] * geometry->block[1] * geometry->block[2];
	uint64_t shared = (uint64_t)function->info.static_shared_bytes + geometry->dynamic_shared;

	for (unsigned i = 0; i < 3; i++) {
		if (!geometry->grid[i] || !geometry->block[i])
			return CUDA_ERROR_INVALID_VALUE;
	}
	if (geometry->grid[0] > DRIVER_GRID_X_MAX || geometry->grid[1] > DRIVER_GRID_YZ_MAX ||
	    geometry->grid[2] > DRIVER_GRID_YZ_MAX || geometry->block[2] > DRIVER_BLOCK_Z_MAX ||
	    geometry->block[0] > DRIVER_THREADS_PER_BLOCK ||
	    geometry->block[1] > DRIVER_THREADS_PER_BLOCK || threads > DRIVER_THREADS_PER_BLOCK)
		return CUDA_ERROR_INVALID_VALUE;
	if (function->info.max_threads_per_block && threads > function->info.max_threads_per_block)
		return CUDA_ERROR_INVALID_VALUE;
	/* More than there are registers for. */
	if (threads > driver_function_threads(function))
		return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
	if (geometry->dynamic_shared > (uint32_t)function->settings.max_dynamic_shared ||
	    shared > device->capability->shared_per_block_optin)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult check_cooperative(const struct CUfunc_st *function,
				  const struct CUgreenCtx_st *green,
				  const struct geometry *geometry)
{
	const struct driver_device *device = function->module->context->device;
	uint64_t blocks = (uint64_t)geometry->grid[0] * geometry->grid[1] * geometry->grid[2];
	uint64_t room;

	if (!geometry->cooperative)
		return CUDA_SUCCESS;
	room = (uint64_t)driver_green_multiprocessors(green, device) *
	       driver_occupancy_blocks(function, geometry->block[0] * geometry->block[1] *
						 geometry->block[2], geometry->dynamic_shared);
	return blocks <= room ? CUDA_SUCCESS : CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}

/* Fill in the cluster that the function requires, and check it. */
static CUresult settle_cluster(const struct CUfunc_st *function, struct geometry *geometry)
{
	const struct driver_device *device = function->module->context->device;
	const int *required = function->settings.cluster;
	uint64_t blocks;

	if (!geometry->cluster[0]) {
		if (!required[0])
			return CUDA_SUCCESS;
		for (unsigned i = 0; i < 3; i++)
			geometry->cluster[i] = required[i] ? (uint32_t)required[i] : 1;
	}
	for (unsigned i = 0; i < 3; i++) {
		if (required[0] && geometry->cluster[i] != (required[i] ? (uint32_t)required[i] : 1))
			return CUDA_ERROR_INVALID_VALUE;
		if (!geometry->cluster[i] || geometry->grid[i] % geometry->cluster[i])
			return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	}
	for (unsigned i = 0; i < 3 && geometry->prefers; i++) {
		if (!geometry->preferred[i] || geometry->preferred[i] % geometry->cluster[i] ||
		    geometry->grid[i] % geometry->preferred[i])
			return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	}
	if (geometry->prefers && geometry->preferred[2] != geometry->cluster[2])
		return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	blocks = (uint64_t)geometry->cluster[0] * geometry->cluster[1] * geometry->cluster[2];
	if (blocks == 1)
		return CUDA_SUCCESS;
	if (device->capability->sm < 90)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (blocks > (function->settings.non_portable_cluster ? DRIVER_CLUSTER_MAX :
								DRIVER_CLUSTER_PORTABLE))
		return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	return CUDA_SUCCESS;
}

/* A function with an instruction that the engine lacks says which, once. */
static CUresult check_supported(struct CUfunc_st *function)
{
	if (function->info.status == ENGINE_OK)
		return CUDA_SUCCESS;
	if (!__atomic_exchange_n(&function->told_unsupported, true, __ATOMIC_RELAXED))
		driver_say("kernel " ENGINE_NAME " can't run: %s is not implemented by the "
			   "software GPU", function->info.name,
			   function->info.unsupported ? function->info.unsupported : "an instruction");
	return driver_engine_result(function->info.status);
}

/* ---- parameters ---- */

/* Bytes that the parameters really take, without what follows the last. */
static size_t params_end(const struct engine_function_info *info)
{
	const struct engine_param *last;

	if (!info->param_count)
		return 0;
	last = &info->params[info->param_count - 1];
	return (size_t)last->offset + last->size;
}

/* The packed buffer of an `extra` launch: pairs of a key and a value, until
 * CU_LAUNCH_PARAM_END. */
static CUresult find_extra(void **extra, const void **buffer, size_t *bytes)
{
	*buffer = NULL;
	*bytes = 0;
	for (unsigned i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
		if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
			*buffer = extra[i + 1];
		else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[i + 1])
			*bytes = *(const size_t *)extra[i + 1];
		else
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

static CUresult gather_params(const struct engine_function_info *info, void **params,
			      void **extra, unsigned char *out)
{
	const void *buffer;
	size_t bytes;
	CUresult result;

	if (params && extra)
		return CUDA_ERROR_INVALID_VALUE;
	if (extra) {
		result = find_extra(extra, &buffer, &bytes);
		if (result)
			return result;
		if (!buffer && bytes)
			return CUDA_ERROR_INVALID_VALUE;
		/* Padding at the end too; what is missing is zero. */
		if (bytes > params_end(info))
			return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
		if (buffer)
			memcpy(out, buffer, bytes);
		return CUDA_SUCCESS;
	}
	if (!params)
		return info->param_count ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	for (uint32_t i = 0; i < info->param_count; i++) {
		if (!params[i])
			return CUDA_ERROR_INVALID_VALUE;
		memcpy(out + info->params[i].offset, params[i], info->params[i].size);
	}
	return CUDA_SUCCESS;
}

/* ---- preparing ---- */

/* Attributes of cuLaunchKernelEx; hints about caches, priorities and domains
 * have nothing to act on here, and allowing kernels to overlap obliges to
 * nothing. */
static CUresult apply_attribute(const CUlaunchAttribute *attribute, struct geometry *geometry)
{
	switch (attribute->id) {
	case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
		geometry->cooperative = attribute->value.cooperative != 0;
		return CUDA_SUCCESS;
	case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
		geometry->cluster[0] = attribute->value.clusterDim.x;
		geometry->cluster[1] = attribute->value.clusterDim.y;
		geometry->cluster[2] = attribute->value.clusterDim.z;
		/* No width: that is none for settle_cluster. */
		return geometry->cluster[0] ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CLUSTER_SIZE;
	case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
		geometry->preferred[0] = attribute->value.preferredClusterDim.x;
		geometry->preferred[1] = attribute->value.preferredClusterDim.y;
		geometry->preferred[2] = attribute->value.preferredClusterDim.z;
		geometry->prefers = true;
		return CUDA_SUCCESS;
	case CU_LAUNCH_ATTRIBUTE_IGNORE:
	case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
	case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
	case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
	case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
	case CU_LAUNCH_ATTRIBUTE_PRIORITY:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
	case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
	case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
		return CUDA_SUCCESS;
	default:
		return driver_unsupported("an attribute of cuLaunchKernelEx");
	}
}

CUresult driver_launch_prepare(struct CUctx_st *context, const struct CUgreenCtx_st *green,
			       const CUlaunchConfig *config,
			       CUfunction handle, void **params, void **extra,
			       struct driver_operation **out)
{
	struct geometry geometry = {
		.grid = { config->gridDimX, config->gridDimY, config->gridDimZ },
		.block = { config->blockDimX, config->blockDimY, config->blockDimZ },
		.dynamic_shared = config->sharedMemBytes,
	};
	struct launch_operation *operation;
	struct CUfunc_st *function;
	CUresult result = CUDA_SUCCESS;

	for (unsigned i = 0; i < config->numAttrs && !result; i++)
		result = apply_attribute(&config->attrs[i], &geometry);
	if (!result)
		result = driver_function_of(handle, context, &function);
	if (result)
		return result;
	if (function->module->context != context)
		return CUDA_ERROR_INVALID_HANDLE;
	result = check_geometry(function, &geometry);
	if (!result)
		result = settle_cluster(function, &geometry);
	if (!result)
		result = check_cooperative(function, green, &geometry);
	if (!result)
		result = check_supported(function);
	if (result)
		return result;
	operation = calloc(1, sizeof *operation + function->info.param_bytes);
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = gather_params(&function->info, params, extra, operation->params);
	if (!result)
		result = driver_references_take(function->module, &operation->references);
	if (result) {
		free(operation);
		return result;
	}
	operation->base.run = run_launch;
	operation->base.release = release_launch;
	operation->base.run_by_waiter = true;
	operation->function = function;
	operation->function_id = function->id;
	operation->geometry = geometry;
	*out = &operation->base;
	return CUDA_SUCCESS;
}

void driver_launch_look(const struct driver_operation *operation, struct driver_launch_view *view)
{
	const struct launch_operation *launch = (const struct launch_operation *)operation;

	view->function = launch->function;
	view->params = launch->params;
	view->cooperative = launch->geometry.cooperative;
}

bool driver_launch_is_possible(const struct driver_operation *operation)
{
	const struct launch_operation *launch = (const struct launch_operation *)operation;

	return driver_handle_is(launch->function, DRIVER_KIND_FUNCTION) &&
	       launch->function->id == launch->function_id;
}
