/* Kernels: attributes, names, parameters; occupancy. */
#include "../../generated/client_raw.h"
#include "../exchange/exchange.h"
#include "../ground/thread.h"
#include "../libraries/kernel.h"
#include "../libraries/launch.h"
#include "../libraries/library.h"

#include <stdlib.h>

/* ---- occupancy that was asked before ----
 *
 * A driver computes it from the kernel, the device and what is asked: the same each time, until
 * an attribute of the kernel is set. */

#define OCCUPANCY_KNOWN 32u

struct client_occupancy {
	unsigned count;			/* ever; the newest OCCUPANCY_KNOWN are there */
	unsigned epoch;			/* counts what was set */
	struct occupancy {
		enum wire_op op;
		int device;
		int32_t blocks, block_size;
		uint32_t flags;
		uint64_t shared;
		uint64_t value;
	} known[OCCUPANCY_KNOWN];
};

static pthread_mutex_t occupancy_lock = PTHREAD_MUTEX_INITIALIZER;

static bool occupancy_same(const struct occupancy *a, const struct occupancy *b)
{
	return a->op == b->op && a->device == b->device && a->blocks == b->blocks &&
	       a->block_size == b->block_size && a->flags == b->flags && a->shared == b->shared;
}

/* Was it asked before?  Else *epoch is to be shown when it is known. */
static bool occupancy_find(struct client_function *function, struct occupancy *asked, unsigned *epoch)
{
	const struct client_occupancy *occupancy;
	bool found = false;

	pthread_mutex_lock(&occupancy_lock);
	if (!function->occupancy)
		function->occupancy = calloc(1, sizeof(*function->occupancy));
	occupancy = function->occupancy;
	*epoch = occupancy ? occupancy->epoch : 0;
	for (unsigned i = 0; occupancy && !found && i < occupancy->count && i < OCCUPANCY_KNOWN; i++) {
		found = occupancy_same(&occupancy->known[i], asked);
		if (found)
			asked->value = occupancy->known[i].value;
	}
	pthread_mutex_unlock(&occupancy_lock);
	return found;
}

static void occupancy_keep(struct client_function *function, const struct occupancy *told, unsigned epoch)
{
	struct client_occupancy *occupancy;

	pthread_mutex_lock(&occupancy_lock);
	occupancy = function->occupancy;
	if (occupancy && occupancy->epoch == epoch)
		occupancy->known[occupancy->count++ % OCCUPANCY_KNOWN] = *told;
	pthread_mutex_unlock(&occupancy_lock);
}

static void occupancy_forget(struct client_function *function)
{
	pthread_mutex_lock(&occupancy_lock);
	if (function->occupancy) {
		function->occupancy->epoch++;
		function->occupancy->count = 0;
	}
	pthread_mutex_unlock(&occupancy_lock);
}

static CUresult function_meant(const void *handle, struct client_function **function)
{
	CUresult result = client_enter_any();

	return result == CUDA_SUCCESS ? client_function_get((CUfunction)(uintptr_t)handle, function)
				      : result;
}

/* The kernel as it is on a device: a module's on its own, a library's on the one that is
 * asked about. */
static CUresult kernel_on(struct client_function *function, int device, struct client_kernel **kernel)
{
	if (function->library->context)
		device = function->library->context->device;
	return client_function_on(function, device, kernel);
}

/* The device of the current context; without one, of the first that there is. */
static int device_current(void)
{
	const struct client_context *context = client_context_current();

	if (context)
		return context->device;
	for (int i = 0; i < farbus_client.device_count; i++)
		if (!atomic_load(&farbus_client.devices[i].session->dead))
			return i;
	return 0;
}

static CUresult attribute_get(const void *handle, CUfunction_attribute attribute, int *value, int device)
{
	struct client_function *function;
	struct client_kernel *kernel;
	struct client_context *context = client_context_current();
	/* A context that has failed says so here, too. */
	CUresult result = context ? (CUresult)atomic_load(&context->sticky) : CUDA_SUCCESS;

	if (result == CUDA_SUCCESS)
		result = function_meant(handle, &function);
	if (result == CUDA_SUCCESS)
		result = kernel_on(function, device, &kernel);
	if (result != CUDA_SUCCESS)
		return result;
	if (!value || (unsigned)attribute >= CLIENT_FUNCTION_ATTRIBUTES ||
	    !(kernel->attributes_known >> attribute & 1))
		return CUDA_ERROR_INVALID_VALUE;
	*value = kernel->attributes[attribute];
	return CUDA_SUCCESS;
}

/* cuBLASLt sets the same before each launch. */
static bool attribute_is(const struct client_kernel *kernel, CUfunction_attribute attribute, int value)
{
	return (unsigned)attribute < CLIENT_FUNCTION_ATTRIBUTES && kernel->set >> attribute & 1 &&
	       kernel->set_epoch == atomic_load(&farbus_client.contexts_ended) &&
	       kernel->attributes[attribute] == value;
}

/* ---- attributes that are set ----
 *
 * Of several threads that set one at a time nobody knows whose value the server took last: the last of them to hear
 * sends what is remembered once more, until it is alone. */

static pthread_mutex_t setting_lock = PTHREAD_MUTEX_INITIALIZER;

static void attribute_begin(struct client_kernel *kernel, CUfunction_attribute attribute)
{
	const uint32_t bit = 1u << attribute;

	pthread_mutex_lock(&setting_lock);
	if (kernel->setting[attribute]++)
		kernel->overlaps |= bit;
	/* Until it is over it is asked for. */
	atomic_fetch_and(&kernel->set, ~bit);
	pthread_mutex_unlock(&setting_lock);
}

/* Remember what was set, if it was; whether *value, which may be another thread's, is to be sent again. */
static bool attribute_end(struct client_kernel *kernel, CUfunction_attribute attribute, CUresult result, int *value)
{
	unsigned epoch = atomic_load(&farbus_client.contexts_ended);
	const uint32_t bit = 1u << attribute;
	bool last, again;

	pthread_mutex_lock(&setting_lock);
	if (result == CUDA_SUCCESS)
		kernel->attributes[attribute] = *value;
	last = --kernel->setting[attribute] == 0;
	again = last && kernel->overlaps & bit;
	if (last)
		kernel->overlaps &= ~bit;
	if (again)
		*value = kernel->attributes[attribute];
	if (last && !again && result == CUDA_SUCCESS) {
		/* What was set in a context may have gone with it. */
		if (kernel->set_epoch != epoch)
			atomic_store(&kernel->set, 0);
		kernel->set_epoch = epoch;
		atomic_fetch_or(&kernel->set, bit);
	}
	pthread_mutex_unlock(&setting_lock);
	return again;
}

static CUresult attribute_set(const void *handle, CUfunction_attribute attribute, int value)
{
	struct wire_function_set_attribute request = {
		.attribute = (int32_t)attribute,
		.value = value,
	};
	struct client_function *function;
	struct client_kernel *kernel;
	CUresult result = client_enter(), again;

	if (result == CUDA_SUCCESS)
		result = client_function_get((CUfunction)(uintptr_t)handle, &function);
	if (result == CUDA_SUCCESS)
		result = client_function_on(function, device_current(), &kernel);
	if (result != CUDA_SUCCESS)
		return result;
	if ((unsigned)attribute >= CLIENT_FUNCTION_ATTRIBUTES)
		return CUDA_ERROR_INVALID_VALUE;
	if (attribute_is(kernel, attribute, value))
		return CUDA_SUCCESS;
	request.function = kernel->wire;
	attribute_begin(kernel, attribute);
	result = client_call(WIRE_OP_FUNCTION_SET_ATTRIBUTE, &request, sizeof(request), NULL, 0);
	again = result;
	while (attribute_end(kernel, attribute, again, &request.value)) {
		attribute_begin(kernel, attribute);
		again = client_call(WIRE_OP_FUNCTION_SET_ATTRIBUTE, &request, sizeof(request), NULL, 0);
	}
	occupancy_forget(function);
	client_fits_forget(function);
	return result;
}

static CUresult parameter_get(const void *handle, size_t index, size_t *offset, size_t *bytes)
{
	struct client_function *function;
	CUresult result = function_meant(handle, &function);

	if (result != CUDA_SUCCESS)
		return result;
	if (!offset || function->parameter_count == UINT32_MAX || index >= function->parameter_count)
		return CUDA_ERROR_INVALID_VALUE;
	*offset = function->parameters[index].offset;
	if (bytes)
		*bytes = function->parameters[index].bytes;
	return CUDA_SUCCESS;
}

static CUresult name_get(const void *handle, const char **name)
{
	struct client_function *function;
	CUresult result = client_enter_any();

	if (result != CUDA_SUCCESS)
		return result;
	/* Unlike of other calls, NULL is a value here and no handle. */
	if (!name || !handle)
		return CUDA_ERROR_INVALID_VALUE;
	result = function_meant(handle, &function);
	if (result != CUDA_SUCCESS)
		return result;
	*name = function->name;
	return CUDA_SUCCESS;
}

static CUresult cache_set(const void *handle, CUfunc_cache config)
{
	struct wire_function_set_cache request = { .preference = config };
	struct client_function *function;
	CUresult result = client_enter();

	if (result == CUDA_SUCCESS)
		result = client_function_get((CUfunction)(uintptr_t)handle, &function);
	if (result == CUDA_SUCCESS)
		result = client_function_wire((CUfunction)(uintptr_t)handle, &request.function);
	if (result != CUDA_SUCCESS)
		return result;
	if (config > CU_FUNC_CACHE_PREFER_EQUAL)
		return CUDA_ERROR_INVALID_VALUE;
	result = client_post(WIRE_OP_FUNCTION_SET_CACHE, &request, sizeof(request), NULL, 0);
	occupancy_forget(function);
	client_fits_forget(function);
	return result;
}

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
	return attribute_get(hfunc, attrib, pi, device_current());
}

CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev)
{
	if (dev < 0 || dev >= farbus_client.device_count)
		return CUDA_ERROR_INVALID_DEVICE;
	return attribute_get(kernel, attrib, pi, dev);
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
	return attribute_set(hfunc, attrib, value);
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev)
{
	struct client_function *function;
	struct client_kernel *on;
	CUresult result = function_meant(kernel, &function), again;
	bool known;

	if (result != CUDA_SUCCESS)
		return result;
	known = dev >= 0 && dev < farbus_client.device_count && (unsigned)attrib < CLIENT_FUNCTION_ATTRIBUTES &&
		kernel_on(function, dev, &on) == CUDA_SUCCESS;
	if (known && attribute_is(on, attrib, val))
		return CUDA_SUCCESS;
	if (known)
		attribute_begin(on, attrib);
	again = result = client_raw_cuKernelSetAttribute(attrib, val, kernel, dev);
	while (known && attribute_end(on, attrib, again, &val)) {
		attribute_begin(on, attrib);
		again = client_raw_cuKernelSetAttribute(attrib, val, kernel, dev);
	}
	if (result != CUDA_SUCCESS)
		return result;
	occupancy_forget(function);
	client_fits_forget(function);
	return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset,
			    size_t *paramSize)
{
	return parameter_get(func, paramIndex, paramOffset, paramSize);
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset,
			      size_t *paramSize)
{
	return parameter_get(kernel, paramIndex, paramOffset, paramSize);
}

CUresult cuFuncGetName(const char **name, CUfunction hfunc)
{
	return name_get(hfunc, name);
}

CUresult cuKernelGetName(const char **name, CUkernel hfunc)
{
	return name_get(hfunc, name);
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
	return cache_set(hfunc, config);
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev)
{
	if (dev < 0 || dev >= farbus_client.device_count)
		return CUDA_ERROR_INVALID_DEVICE;
	return cache_set(kernel, config);
}

/* Bank sizes were a choice on Kepler only. */
CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config)
{
	struct client_function *function;
	CUresult result = function_meant(hfunc, &function);

	return result == CUDA_SUCCESS && config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE
											    : result;
}

CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
	struct client_function *function;
	CUresult result = function_meant(hfunc, &function);

	if (result != CUDA_SUCCESS)
		return result;
	if (!hmod)
		return CUDA_ERROR_INVALID_VALUE;
	*hmod = (CUmodule)function->library->handle;
	return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
	struct client_function *function;
	CUresult result = function_meant(kernel, &function);

	if (result != CUDA_SUCCESS)
		return result;
	if (!pLib)
		return CUDA_ERROR_INVALID_VALUE;
	*pLib = function->library->handle;
	return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
	struct client_function *function;
	CUresult result = function_meant(kernel, &function);

	if (result != CUDA_SUCCESS)
		return result;
	if (!pFunc)
		return CUDA_ERROR_INVALID_VALUE;
	*pFunc = function->handle;
	return CUDA_SUCCESS;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
	struct client_function *found;
	CUresult result = function_meant(function, &found);

	if (result != CUDA_SUCCESS)
		return result;
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	*state = CU_FUNCTION_LOADING_STATE_LOADED;
	return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function)
{
	struct client_function *found;

	return function_meant(function, &found);
}

/* ---- occupancy ---- */

static int device_attribute(CUdevice_attribute attribute)
{
	int value = 0;

	cuDeviceGetAttribute(&value, attribute, client_context_current()->device);
	return value;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func,
							      int blockSize, size_t dynamicSMemSize,
							      unsigned int flags)
{
	struct occupancy asked = { .op = WIRE_OP_OCCUPANCY_BLOCKS, .block_size = blockSize,
				   .flags = flags, .shared = dynamicSMemSize };
	struct wire_occupancy_blocks request = { .block_size = blockSize, .flags = flags,
						 .dynamic_shared = dynamicSMemSize };
	struct wire_occupancy_blocks_reply reply;
	struct client_function *function;
	CUresult result = client_enter();
	unsigned epoch;

	if (result != CUDA_SUCCESS)
		return result;
	if (!numBlocks)
		return CUDA_ERROR_INVALID_VALUE;
	result = client_function_get(func, &function);
	if (result == CUDA_SUCCESS)
		result = client_function_wire(func, &request.function);
	if (result != CUDA_SUCCESS)
		return result;
	asked.device = client_context_current()->device;
	if (!occupancy_find(function, &asked, &epoch)) {
		result = client_call(asked.op, &request, sizeof(request), &reply, sizeof(reply));
		if (result != CUDA_SUCCESS)
			return result;
		asked.value = (uint64_t)(uint32_t)reply.blocks;
		occupancy_keep(function, &asked, epoch);
	}
	*numBlocks = (int)asked.value;
	return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
						     size_t dynamicSMemSize)
{
	return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize,
								    dynamicSMemSize, 0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func, int numBlocks,
						 int blockSize)
{
	struct occupancy asked = { .op = WIRE_OP_OCCUPANCY_SHARED, .blocks = numBlocks,
				   .block_size = blockSize };
	struct wire_occupancy_shared request = { .blocks = numBlocks, .block_size = blockSize };
	struct wire_occupancy_shared_reply reply;
	struct client_function *function;
	CUresult result = client_enter();
	unsigned epoch;

	if (result != CUDA_SUCCESS)
		return result;
	if (!dynamicSmemSize)
		return CUDA_ERROR_INVALID_VALUE;
	result = client_function_get(func, &function);
	if (result == CUDA_SUCCESS)
		result = client_function_wire(func, &request.function);
	if (result != CUDA_SUCCESS)
		return result;
	asked.device = client_context_current()->device;
	if (!occupancy_find(function, &asked, &epoch)) {
		result = client_call(asked.op, &request, sizeof(request), &reply, sizeof(reply));
		if (result != CUDA_SUCCESS)
			return result;
		asked.value = reply.bytes;
		occupancy_keep(function, &asked, epoch);
	}
	*dynamicSmemSize = asked.value;
	return CUDA_SUCCESS;
}

/* The block size with the most resident threads, and the grid that fills the
 * device with it: tried in steps of a warp, largest first, as CUDA documents it. */
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize, CUfunction func,
						   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
						   size_t dynamicSMemSize, int blockSizeLimit,
						   unsigned int flags)
{
	struct client_function *function;
	struct client_kernel *kernel;
	CUresult result = client_enter();
	int limit, warp, per_multiprocessor, best_threads = 0;

	if (result == CUDA_SUCCESS)
		result = client_function_get(func, &function);
	if (result == CUDA_SUCCESS)
		result = client_function_on(function, client_context_current()->device, &kernel);
	if (result != CUDA_SUCCESS)
		return result;
	if (!minGridSize || !blockSize)
		return CUDA_ERROR_INVALID_VALUE;
	limit = kernel->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
	warp = device_attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
	per_multiprocessor = device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
	if (limit <= 0)
		limit = device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
	if (blockSizeLimit > 0 && blockSizeLimit < limit)
		limit = blockSizeLimit;
	if (warp <= 0)
		return CUDA_ERROR_UNKNOWN;
	for (int block = (limit + warp - 1) / warp * warp; block > 0; block -= warp) {
		int size = block < limit ? block : limit, blocks = 0;

		if (blockSizeToDynamicSMemSize)
			dynamicSMemSize = blockSizeToDynamicSMemSize(size);
		result = cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, func, size,
									      dynamicSMemSize, flags);
		if (result != CUDA_SUCCESS)
			return result;
		if (size * blocks > best_threads) {
			best_threads = size * blocks;
			*blockSize = size;
			*minGridSize =
				blocks * device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
		}
		if (best_threads == per_multiprocessor)
			break;
	}
	return best_threads ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
					  CUoccupancyB2DSize blockSizeToDynamicSMemSize,
					  size_t dynamicSMemSize, int blockSizeLimit)
{
	return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func,
							 blockSizeToDynamicSMemSize, dynamicSMemSize,
							 blockSizeLimit, 0);
}

/* ---- counts of parameters ---- */

static CUresult parameter_count(const void *handle, size_t *count)
{
	struct client_function *function;
	CUresult result = function_meant(handle, &function);

	if (result != CUDA_SUCCESS)
		return result;
	if (!count || function->parameter_count == UINT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	*count = function->parameter_count;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetParamCount(CUfunction func, size_t *paramCount)
{
	return parameter_count(func, paramCount);
}

CUresult cuKernelGetParamCount(CUkernel kernel, size_t *paramCount)
{
	return parameter_count(kernel, paramCount);
}
