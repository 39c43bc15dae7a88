/* Launches: everything CUDA reports at the call is checked here, then posted. */
#include "../exchange/exchange.h"
#include "../exchange/pace.h"
#include "../ground/message.h"
#include "../ground/thread.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "../managed/managed.h"
#include "../streams/stream.h"
#include "kernel.h"
#include "launch.h"
#include "library.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "../../wire/kernel.h"

/* Most launch attributes that one launch may carry. */
#define ATTRIBUTES_LIMIT 32u

/* Attributes and parameters that need no allocation. */
#define LAUNCH_STACK_BYTES 1024u

struct launch {
	struct client_function *function;
	struct client_kernel *kernel;	/* the same, on the server that it runs on */
	struct wire_launch fixed;
	bool checked;			/* the driver must answer */
	bool at_once;			/* it must have answered for such a launch before */
	const CUlaunchAttribute *attributes;
	void **parameters;
	void **extra;
};

static unsigned limit_of(int device, CUdevice_attribute attribute)
{
	return (unsigned)farbus_client.devices[device].snapshot.attributes[attribute];
}

/* Whether a block that is too large for the kernel is so by what the code says (.maxntid) alone.  A warp takes registers
 * by 256, eight for each of its threads. */
static bool registers_suffice(const struct launch *launch, int device, uint64_t threads)
{
	uint64_t registers = (uint64_t)launch->kernel->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS];
	uint64_t warps = (threads + 31) / 32;

	return warps * ((registers + 7) / 8 * 8) * 32 <=
	       limit_of(device, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
}

static CUresult geometry_check(const struct launch *launch, int device)
{
	static const CUdevice_attribute grid_limits[3] = {
		CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
		CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
		CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
	};
	static const CUdevice_attribute block_limits[3] = {
		CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
		CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
		CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
	};
	const uint32_t *grid = launch->fixed.grid, *block = launch->fixed.block;
	uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
	int most = launch->kernel->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK];

	for (int i = 0; i < 3; i++)
		if (!grid[i] || !block[i] || grid[i] > limit_of(device, grid_limits[i]) ||
		    block[i] > limit_of(device, block_limits[i]))
			return CUDA_ERROR_INVALID_VALUE;
	if (threads > limit_of(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK))
		return CUDA_ERROR_INVALID_VALUE;
	if (most > 0 && threads > (unsigned)most)
		return registers_suffice(launch, device, threads) ? CUDA_ERROR_INVALID_VALUE
								  : CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
	return CUDA_SUCCESS;
}

static CUresult shared_check(const struct launch *launch)
{
	int most = launch->kernel->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];

	if (most >= 0 && launch->fixed.shared_bytes > (unsigned)most)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult client_parameters_gather(const struct client_function *function, void *const *parameters,
				  void *const *extra, uint8_t *buffer, uint32_t *bytes)
{
	const void *ready = NULL;
	size_t ready_bytes = 0;

	if (extra) {
		for (void *const *item = extra; *item != CU_LAUNCH_PARAM_END; item += 2) {
			if (*item == CU_LAUNCH_PARAM_BUFFER_POINTER)
				ready = item[1];
			else if (*item == CU_LAUNCH_PARAM_BUFFER_SIZE)
				ready_bytes = *(const size_t *)item[1];
			else
				return CUDA_ERROR_INVALID_VALUE;
		}
		if (parameters || ready_bytes > WIRE_KERNEL_PARAMETERS || (ready_bytes && !ready))
			return CUDA_ERROR_INVALID_VALUE;
		/* More than the kernel takes, padding at the end too, is what NVIDIA's driver says it is. */
		if (function->parameter_count != UINT32_MAX && ready_bytes > function->parameter_bytes)
			return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
		if (ready_bytes)
			memcpy(buffer, ready, ready_bytes);
		*bytes = (uint32_t)ready_bytes;
		return CUDA_SUCCESS;
	}
	if (function->parameter_count == UINT32_MAX) {
		client_message("the driver on the GPU's node is older than CUDA 12.4 and does not tell "
			       "the parameters of %s; update it", function->name);
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (function->parameter_count && !parameters)
		return CUDA_ERROR_INVALID_VALUE;
	memset(buffer, 0, function->parameter_bytes);
	for (uint32_t i = 0; i < function->parameter_count; i++) {
		if (!parameters[i])
			return CUDA_ERROR_INVALID_VALUE;
		memcpy(buffer + function->parameters[i].offset, parameters[i],
		       function->parameters[i].bytes);
	}
	*bytes = function->parameter_bytes;
	return CUDA_SUCCESS;
}

/* The cluster that is a kernel's own, by the axis: 0 where it has none. */
static uint32_t own_cluster(const struct client_kernel *kernel, int axis)
{
	int blocks = kernel->attributes[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH + axis];

	return blocks > 0 ? (uint32_t)blocks : 0;
}

/* Which attributes may travel: those without handles of this process. */
static CUresult attributes_check(struct launch *launch)
{
	if (launch->fixed.attribute_count > ATTRIBUTES_LIMIT)
		return CUDA_ERROR_INVALID_VALUE;
	launch->at_once = own_cluster(launch->kernel, 0) ||
			  launch->kernel->attributes[CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET] > 0;
	for (uint32_t i = 0; i < launch->fixed.attribute_count; i++) {
		switch (launch->attributes[i].id) {
		case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
			client_message("launch attribute %d is not supported over remoting: it names a graph node",
				       (int)launch->attributes[i].id);
			return CUDA_ERROR_NOT_SUPPORTED;
		case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
			launch->at_once = launch->at_once || launch->attributes[i].value.cooperative;
			break;
		case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
			launch->at_once = true;
			break;
		case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
			launch->checked = true;
			break;
		default:
			break;
		}
	}
	return CUDA_SUCCESS;
}

/* ---- what must be there at once ----
 *
 * Whether a cluster fits, or all blocks of a cooperative grid do, the driver knows, and answers the same each time until an
 * attribute of the kernel is set: it goes by the block, its shared memory, the cluster (of which the grid must have whole
 * ones) and the number of cooperative blocks, of which fewer fit, too.  cuBLASLt launches all that it has for compute
 * capability 9.0 in clusters, cuDNN its normalisations as cooperative grids. */

#define FITS_KNOWN 8u
/* Attributes of one launch that is remembered, and words of each. */
#define FIT_ATTRIBUTES 4u

struct fit {
	const struct client_context *context;	/* none that is green: it may end, and another have fewer multiprocessors */
	uint64_t epoch;			/* contexts that had ended */
	uint32_t block[3];
	uint32_t shared_bytes;
	uint32_t attributes[FIT_ATTRIBUTES][4];	/* number, and what it is set to */
	uint64_t blocks;		/* of a cooperative grid, else 0; the last field */
};

struct client_fits {
	unsigned count;			/* ever; the newest FITS_KNOWN are there */
	struct fit known[FITS_KNOWN];
};

static pthread_mutex_t fits_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned fits_forgotten;	/* how often, of all kernels */

/* What the driver's answer goes by; false: by something else, too. */
static bool fit_of(const struct launch *launch, struct fit *out)
{
	const uint32_t *grid = launch->fixed.grid;

	if (launch->fixed.attribute_count > FIT_ATTRIBUTES || client_stream_is_green(launch->fixed.stream))
		return false;
	/* Compared as bytes. */
	memset(out, 0, sizeof(*out));
	/* The stream's, whichever is current. */
	out->context = client_stream_context(launch->fixed.stream);
	out->epoch = atomic_load(&farbus_client.contexts_ended);
	out->shared_bytes = launch->fixed.shared_bytes;
	memcpy(out->block, launch->fixed.block, sizeof(out->block));
	for (int axis = 0; axis < 3; axis++)
		if (own_cluster(launch->kernel, axis) && grid[axis] % own_cluster(launch->kernel, axis))
			return false;
	for (uint32_t i = 0; i < launch->fixed.attribute_count; i++) {
		const CUlaunchAttribute *attribute = &launch->attributes[i];
		const uint32_t cluster[3] = {
			attribute->value.clusterDim.x, attribute->value.clusterDim.y,
			attribute->value.clusterDim.z,
		};

		out->attributes[i][0] = (uint32_t)attribute->id;
		switch (attribute->id) {
		case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
			out->attributes[i][1] = attribute->value.cooperative != 0;
			/* Each is below 2^31, and two of them below 2^16. */
			if (attribute->value.cooperative)
				out->blocks = (uint64_t)grid[0] * grid[1] * grid[2];
			break;
		case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
			for (int axis = 0; axis < 3; axis++)
				if (!cluster[axis] || grid[axis] % cluster[axis])
					return false;
			memcpy(&out->attributes[i][1], cluster, sizeof(cluster));
			break;
		case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
			out->attributes[i][1] = (uint32_t)attribute->value.clusterSchedulingPolicyPreference;
			break;
		case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
			out->attributes[i][1] =
				(uint32_t)attribute->value.programmaticStreamSerializationAllowed;
			break;
		case CU_LAUNCH_ATTRIBUTE_PRIORITY:
			out->attributes[i][1] = (uint32_t)attribute->value.priority;
			break;
		default:
			return false;
		}
	}
	return true;
}

static bool fit_is_known(const struct client_function *function, const struct fit *fit)
{
	const struct client_fits *fits;
	bool known = false;

	pthread_mutex_lock(&fits_lock);
	fits = function->fits;
	for (unsigned i = 0; fits && !known && i < fits->count && i < FITS_KNOWN; i++)
		known = memcmp(&fits->known[i], fit, offsetof(struct fit, blocks)) == 0 &&
			fit->blocks <= fits->known[i].blocks;
	pthread_mutex_unlock(&fits_lock);
	return known;
}

/* Unless an attribute was set since `forgotten` was read, ahead of the launch. */
static void fit_keep(struct client_function *function, const struct fit *fit, unsigned forgotten)
{
	pthread_mutex_lock(&fits_lock);
	if (!function->fits)
		function->fits = calloc(1, sizeof(*function->fits));
	if (function->fits && forgotten == atomic_load(&fits_forgotten))
		function->fits->known[function->fits->count++ % FITS_KNOWN] = *fit;
	pthread_mutex_unlock(&fits_lock);
}

void client_fits_forget(struct client_function *function)
{
	pthread_mutex_lock(&fits_lock);
	atomic_fetch_add(&fits_forgotten, 1);
	if (function->fits)
		function->fits->count = 0;
	pthread_mutex_unlock(&fits_lock);
}

static CUresult launch_post(const struct launch *launch, const struct client_request *request)
{
	bool remembers = false, asks = launch->checked || client_captures();
	struct fit fit;

	if (!asks && launch->at_once) {
		remembers = fit_of(launch, &fit);
		asks = !remembers || !fit_is_known(launch->function, &fit);
	}
	/* A capture tells at each call what is wrong with it. */
	if (asks) {
		struct client_request checked = *request;
		struct client_wait wait = { 0 };
		unsigned forgotten = atomic_load(&fits_forgotten);
		CUresult result;

		checked.op = WIRE_OP_LAUNCH_CHECKED;
		result = client_call_wide(&checked, &wait);
		if (result == CUDA_SUCCESS && remembers)
			fit_keep(launch->function, &fit, forgotten);
		return result;
	}
	return client_post(WIRE_OP_LAUNCH, request->fixed, request->fixed_bytes, request->tail,
			   request->tail_bytes);
}

/* Send it; `tail` has room for all attributes and parameters of this launch. */
static CUresult launch_send_with(struct launch *launch, uint8_t *tail)
{
	size_t attribute_bytes = launch->fixed.attribute_count * sizeof(CUlaunchAttribute);
	struct client_request request = {
		.op = WIRE_OP_LAUNCH,
		.fixed = &launch->fixed,
		.fixed_bytes = sizeof(launch->fixed),
		.tail = tail,
	};
	CUresult result;

	_Static_assert(sizeof(struct wire_launch) == sizeof(struct wire_launch_checked),
		       "the two travel alike");
	if (attribute_bytes)
		memcpy(tail, launch->attributes, attribute_bytes);
	result = client_parameters_gather(launch->function, launch->parameters, launch->extra,
					  tail + attribute_bytes, &launch->fixed.parameter_bytes);
	if (result != CUDA_SUCCESS)
		return result;
	request.tail_bytes = attribute_bytes + launch->fixed.parameter_bytes;
	client_stream_pace(launch->fixed.stream, CLIENT_WEIGHT_WORK, 0);
	if (!client_managed_any())
		return launch_post(launch, &request);
	result = client_managed_before(launch->fixed.stream, false);
	if (result == CUDA_SUCCESS)
		result = launch_post(launch, &request);
	client_managed_after(launch->fixed.stream);
	return result;
}

/* The caller's thread may have a stack of 16 KiB: what is rarely large is not there. */
static CUresult launch_send(struct launch *launch)
{
	const struct client_function *function = launch->function;
	bool known = function->parameter_count != UINT32_MAX;
	size_t room = launch->fixed.attribute_count * sizeof(CUlaunchAttribute) +
		      (launch->extra ? WIRE_KERNEL_PARAMETERS : known ? function->parameter_bytes : 0);
	uint8_t small[LAUNCH_STACK_BYTES], *large;
	CUresult result;

	if (room <= sizeof(small))
		return launch_send_with(launch, small);
	large = malloc(room);
	if (!large)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = launch_send_with(launch, large);
	free(large);
	return result;
}

/* A module's functions are its context's alone, a library's kernels anybody's. */
static bool is_of(const struct client_function *function, const struct client_context *context)
{
	return !function->library->context || function->library->context == context;
}

static CUresult launch_run(struct launch *launch, CUfunction f, CUstream stream)
{
	struct client_context *context = NULL;
	CUresult result = client_stream_enter(stream, &launch->fixed.stream);

	if (result == CUDA_SUCCESS)
		result = client_function_get(f, &launch->function);
	if (result == CUDA_SUCCESS) {
		context = client_alone() ? client_context_current() : NULL;
		if (!context)
			context = client_stream_context(launch->fixed.stream);
		result = client_function_on(launch->function, context->device, &launch->kernel);
	}
	/* A wrong launch ends a capture: that is the driver's to see. */
	if (result == CUDA_SUCCESS && !client_captures()) {
		result = is_of(launch->function, context) ? geometry_check(launch, context->device)
							  : CUDA_ERROR_INVALID_HANDLE;
		if (result == CUDA_SUCCESS)
			result = shared_check(launch);
	}
	if (result == CUDA_SUCCESS)
		result = attributes_check(launch);
	if (result != CUDA_SUCCESS)
		return result;
	launch->fixed.function = launch->kernel->wire;
	return launch_send(launch);
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
			unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
			unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
			void **kernelParams, void **extra)
{
	struct launch launch = {
		.fixed = {
			.grid = { gridDimX, gridDimY, gridDimZ },
			.block = { blockDimX, blockDimY, blockDimZ },
			.shared_bytes = sharedMemBytes,
		},
		.parameters = kernelParams,
		.extra = extra,
	};

	return launch_run(&launch, f, hStream);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
				   unsigned int gridDimZ, unsigned int blockDimX,
				   unsigned int blockDimY, unsigned int blockDimZ,
				   unsigned int sharedMemBytes, CUstream hStream, void **kernelParams)
{
	const CUlaunchAttribute cooperative = {
		.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
		.value = { .cooperative = 1 },
	};
	struct launch launch = {
		.fixed = {
			.grid = { gridDimX, gridDimY, gridDimZ },
			.block = { blockDimX, blockDimY, blockDimZ },
			.shared_bytes = sharedMemBytes,
			.attribute_count = 1,
		},
		.attributes = &cooperative,
		.parameters = kernelParams,
	};

	return launch_run(&launch, f, hStream);
}

static CUresult launch_configured(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
	struct launch launch = {
		.fixed = {
			.grid = { config->gridDimX, config->gridDimY, config->gridDimZ },
			.block = { config->blockDimX, config->blockDimY, config->blockDimZ },
			.shared_bytes = config->sharedMemBytes,
			.attribute_count = config->numAttrs,
		},
		.attributes = config->attrs,
		.parameters = kernelParams,
		.extra = extra,
	};

	return launch_run(&launch, f, config->hStream);
}

/* ---- events that a launch records ----
 *
 * They trigger once all blocks have begun, or have said so, or later: "B may wait until A is complete", says cuda.h.  So
 * they are recorded behind the launch, and no event travels with it. */

/* The event that an attribute names, or NULL. */
static CUevent launch_event(const CUlaunchAttribute *attribute, int *flags)
{
	switch (attribute->id) {
	case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
		*flags = attribute->value.programmaticEvent.flags;
		return attribute->value.programmaticEvent.event;
	case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
		*flags = attribute->value.launchCompletionEvent.flags;
		return attribute->value.launchCompletionEvent.event;
	default:
		return NULL;
	}
}

static bool names_event(const CUlaunchAttribute *attribute)
{
	return attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ||
	       attribute->id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
}

static bool any_names_event(const CUlaunchConfig *config)
{
	for (unsigned i = 0; i < config->numAttrs; i++)
		if (names_event(&config->attrs[i]))
			return true;
	return false;
}

/* "must not be an interprocess or interop event", "must disable timing", "Does not accept CU_EVENT_RECORD_EXTERNAL" */
static CUresult launch_event_check(const CUlaunchAttribute *attribute, const struct client_context *context)
{
	const struct client_event *event;
	int flags = 0;

	event = handle_get(&farbus_client.handles, HANDLE_EVENT, (uint64_t)(uintptr_t)launch_event(attribute, &flags));
	if (!event || event->context != context)
		return CUDA_ERROR_INVALID_HANDLE;
	if (flags || event->flags & CU_EVENT_INTERPROCESS || !(event->flags & CU_EVENT_DISABLE_TIMING))
		return CUDA_ERROR_INVALID_VALUE;
	return attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT &&
	       limit_of(context->device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) < 9 ?
		CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

/* `others` has room for all attributes: those of the kernel alone. */
static CUresult launch_recorded(const CUlaunchConfig *config, CUlaunchAttribute *others, CUfunction f,
				void **kernelParams, void **extra)
{
	CUlaunchConfig own = *config;
	uint64_t stream;
	CUresult result = client_stream_enter(config->hStream, &stream);
	int flags;

	own.attrs = others;
	own.numAttrs = 0;
	for (unsigned i = 0; i < config->numAttrs && result == CUDA_SUCCESS; i++) {
		if (names_event(&config->attrs[i]))
			result = launch_event_check(&config->attrs[i], client_stream_context(stream));
		else
			others[own.numAttrs++] = config->attrs[i];
	}
	if (result == CUDA_SUCCESS)
		result = launch_configured(&own, f, kernelParams, extra);
	for (unsigned i = 0; i < config->numAttrs && result == CUDA_SUCCESS; i++)
		if (names_event(&config->attrs[i]))
			result = cuEventRecord(launch_event(&config->attrs[i], &flags), config->hStream);
	return result;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
	CUlaunchAttribute *others;
	CUresult result;

	if (!config || (config->numAttrs && !config->attrs))
		return CUDA_ERROR_INVALID_VALUE;
	if (!any_names_event(config))
		return launch_configured(config, f, kernelParams, extra);
	others = config->numAttrs <= ATTRIBUTES_LIMIT ? calloc(config->numAttrs, sizeof(*others)) : NULL;
	if (!others)
		return config->numAttrs > ATTRIBUTES_LIMIT ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
	result = launch_recorded(config, others, f, kernelParams, extra);
	free(others);
	return result;
}
