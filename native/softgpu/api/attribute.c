#include "../driver/array.h"
#include "../driver/context_stack.h"
#include "../driver/device.h"

/* Attributes that depend on the model name where they come from; all others
 * are the constant beside them.  What is not listed is zero: not supported. */
enum attribute_source {
	CONSTANT,
	MULTIPROCESSORS,
	CAPABILITY_MAJOR,
	CAPABILITY_MINOR,
	THREADS_PER_SM,
	BLOCKS_PER_SM,
	SHARED_PER_SM,
	SHARED_OPTIN,
	SHARED_RESERVED,
	SINCE_9_0,
	PCI_DOMAIN,
	PCI_BUS,
	PCI_DEVICE,
};

#define ATTRIBUTE(name) [CU_DEVICE_ATTRIBUTE_##name]

static const struct {
	enum attribute_source source;
	int value;
} attributes[CU_DEVICE_ATTRIBUTE_MAX] = {
	ATTRIBUTE(MAX_THREADS_PER_BLOCK) = { CONSTANT, DRIVER_THREADS_PER_BLOCK },
	ATTRIBUTE(MAX_BLOCK_DIM_X) = { CONSTANT, DRIVER_THREADS_PER_BLOCK },
	ATTRIBUTE(MAX_BLOCK_DIM_Y) = { CONSTANT, DRIVER_THREADS_PER_BLOCK },
	ATTRIBUTE(MAX_BLOCK_DIM_Z) = { CONSTANT, DRIVER_BLOCK_Z_MAX },
	ATTRIBUTE(MAX_GRID_DIM_X) = { CONSTANT, DRIVER_GRID_X_MAX },
	ATTRIBUTE(MAX_GRID_DIM_Y) = { CONSTANT, DRIVER_GRID_YZ_MAX },
	ATTRIBUTE(MAX_GRID_DIM_Z) = { CONSTANT, DRIVER_GRID_YZ_MAX },
	ATTRIBUTE(MAX_SHARED_MEMORY_PER_BLOCK) = { CONSTANT, DRIVER_SHARED_PER_BLOCK },
	ATTRIBUTE(TOTAL_CONSTANT_MEMORY) = { CONSTANT, 65536 },
	ATTRIBUTE(WARP_SIZE) = { CONSTANT, DRIVER_WARP_SIZE },
	ATTRIBUTE(MAX_PITCH) = { CONSTANT, 2147483647 },
	ATTRIBUTE(MAX_REGISTERS_PER_BLOCK) = { CONSTANT, DRIVER_REGISTERS_PER_SM },
	ATTRIBUTE(CLOCK_RATE) = { CONSTANT, 1000000 },		/* kHz */
	ATTRIBUTE(TEXTURE_ALIGNMENT) = { CONSTANT, 512 },
	ATTRIBUTE(GPU_OVERLAP) = { CONSTANT, 1 },
	ATTRIBUTE(MULTIPROCESSOR_COUNT) = { MULTIPROCESSORS, 0 },
	ATTRIBUTE(CAN_MAP_HOST_MEMORY) = { CONSTANT, 1 },
	ATTRIBUTE(COMPUTE_MODE) = { CONSTANT, CU_COMPUTEMODE_DEFAULT },
	ATTRIBUTE(SURFACE_ALIGNMENT) = { CONSTANT, 512 },
	ATTRIBUTE(CONCURRENT_KERNELS) = { CONSTANT, 1 },
	ATTRIBUTE(PCI_BUS_ID) = { PCI_BUS, 0 },
	ATTRIBUTE(PCI_DEVICE_ID) = { PCI_DEVICE, 0 },
	ATTRIBUTE(MEMORY_CLOCK_RATE) = { CONSTANT, 1000000 },	/* kHz */
	ATTRIBUTE(GLOBAL_MEMORY_BUS_WIDTH) = { CONSTANT, 128 },	/* bits */
	ATTRIBUTE(L2_CACHE_SIZE) = { CONSTANT, 4 << 20 },
	ATTRIBUTE(MAX_THREADS_PER_MULTIPROCESSOR) = { THREADS_PER_SM, 0 },
	ATTRIBUTE(ASYNC_ENGINE_COUNT) = { CONSTANT, 2 },
	ATTRIBUTE(UNIFIED_ADDRESSING) = { CONSTANT, 1 },
	ATTRIBUTE(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) = { CONSTANT, 1 },
	ATTRIBUTE(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) = { CONSTANT, 1 },
	ATTRIBUTE(PCI_DOMAIN_ID) = { PCI_DOMAIN, 0 },
	ATTRIBUTE(TEXTURE_PITCH_ALIGNMENT) = { CONSTANT, 32 },
	ATTRIBUTE(COMPUTE_CAPABILITY_MAJOR) = { CAPABILITY_MAJOR, 0 },
	ATTRIBUTE(COMPUTE_CAPABILITY_MINOR) = { CAPABILITY_MINOR, 0 },
	ATTRIBUTE(STREAM_PRIORITIES_SUPPORTED) = { CONSTANT, 1 },
	ATTRIBUTE(GLOBAL_L1_CACHE_SUPPORTED) = { CONSTANT, 1 },
	ATTRIBUTE(LOCAL_L1_CACHE_SUPPORTED) = { CONSTANT, 1 },
	ATTRIBUTE(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR) = { SHARED_PER_SM, 0 },
	ATTRIBUTE(MAX_REGISTERS_PER_MULTIPROCESSOR) = { CONSTANT, DRIVER_REGISTERS_PER_SM },
	ATTRIBUTE(MANAGED_MEMORY) = { CONSTANT, 1 },
	ATTRIBUTE(SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO) = { CONSTANT, 2 },
	ATTRIBUTE(CONCURRENT_MANAGED_ACCESS) = { CONSTANT, 1 },
	ATTRIBUTE(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) = { CONSTANT, 1 },
	ATTRIBUTE(COOPERATIVE_LAUNCH) = { CONSTANT, 1 },
	ATTRIBUTE(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) = { SHARED_OPTIN, 0 },
	ATTRIBUTE(HOST_REGISTER_SUPPORTED) = { CONSTANT, 1 },
	ATTRIBUTE(MAX_BLOCKS_PER_MULTIPROCESSOR) = { BLOCKS_PER_SM, 0 },
	ATTRIBUTE(RESERVED_SHARED_MEMORY_PER_BLOCK) = { SHARED_RESERVED, 0 },
	ATTRIBUTE(READ_ONLY_HOST_REGISTER_SUPPORTED) = { CONSTANT, 1 },
	ATTRIBUTE(IPC_EVENT_SUPPORTED) = { CONSTANT, 1 },
	ATTRIBUTE(MEMORY_POOLS_SUPPORTED) = { CONSTANT, 1 },
	ATTRIBUTE(MEMPOOL_SUPPORTED_HANDLE_TYPES) = { CONSTANT, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR },
	ATTRIBUTE(MEM_SYNC_DOMAIN_COUNT) = { CONSTANT, 1 },
	ATTRIBUTE(CLUSTER_LAUNCH) = { SINCE_9_0, 0 },
	ATTRIBUTE(TENSOR_MAP_ACCESS_SUPPORTED) = { SINCE_9_0, 0 },
	ATTRIBUTE(MULTICAST_SUPPORTED) = { SINCE_9_0, 0 },
	ATTRIBUTE(NUMA_ID) = { CONSTANT, -1 },
	ATTRIBUTE(HOST_NUMA_ID) = { CONSTANT, -1 },
};

static int attribute_value(const struct driver_device *device, CUdevice_attribute attribute)
{
	const struct driver_capability *capability = device->capability;

	switch (attributes[attribute].source) {
	case CONSTANT:
		return attributes[attribute].value;
	case MULTIPROCESSORS:
		return (int)device->model->multiprocessors;
	case CAPABILITY_MAJOR:
		return (int)(capability->sm / 10);
	case CAPABILITY_MINOR:
		return (int)(capability->sm % 10);
	case THREADS_PER_SM:
		return (int)(capability->warps * DRIVER_WARP_SIZE);
	case BLOCKS_PER_SM:
		return (int)capability->blocks;
	case SHARED_PER_SM:
		return (int)capability->shared_per_sm;
	case SHARED_OPTIN:
		return (int)capability->shared_per_block_optin;
	case SHARED_RESERVED:
		return (int)capability->shared_reserved_per_block;
	case SINCE_9_0:
		return device->capability->sm >= 90;
	case PCI_DOMAIN:
		return (int)device->identity->pci_domain;
	case PCI_BUS:
		return (int)device->identity->pci_bus;
	case PCI_DEVICE:
		return (int)device->identity->pci_device;
	}
	return 0;
}

DRIVER_EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute,
					    CUdevice ordinal)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	if (!value || (int)attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	*value = attribute_value(device, attribute);
	return CUDA_SUCCESS;
}

/* The structure of CUDA 2, which programs still ask for. */
DRIVER_EXPORT CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice ordinal)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	if (!properties)
		return CUDA_ERROR_INVALID_VALUE;
	*properties = (CUdevprop){
		.maxThreadsPerBlock = DRIVER_THREADS_PER_BLOCK,
		.maxThreadsDim = { DRIVER_THREADS_PER_BLOCK, DRIVER_THREADS_PER_BLOCK,
				   (int)DRIVER_BLOCK_Z_MAX },
		.maxGridSize = { (int)DRIVER_GRID_X_MAX, (int)DRIVER_GRID_YZ_MAX,
				 (int)DRIVER_GRID_YZ_MAX },
		.sharedMemPerBlock = DRIVER_SHARED_PER_BLOCK,
		.totalConstantMemory = 65536,
		.SIMDWidth = DRIVER_WARP_SIZE,
		.memPitch = 2147483647,
		.regsPerBlock = DRIVER_REGISTERS_PER_SM,
		.clockRate = 1000000,
		.textureAlign = 512,
	};
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	*major = (int)(device->capability->sm / 10);
	*minor = (int)(device->capability->sm % 10);
	return CUDA_SUCCESS;
}

#define LINEAR_TEXELS_MAX (1u << 28)	/* as driver/texture.c takes them */

DRIVER_EXPORT CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *width, CUarray_format format,
							  unsigned channels, CUdevice ordinal)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	if (!width || !driver_format_bytes(format) ||
	    (channels != 1 && channels != 2 && channels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	*width = LINEAR_TEXELS_MAX;
	return CUDA_SUCCESS;
}

/* Contexts have all multiprocessors: none can be kept to some of them. */
DRIVER_EXPORT CUresult cuDeviceGetExecAffinitySupport(int *support, CUexecAffinityType type,
						      CUdevice ordinal)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	if (!support || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
		return CUDA_ERROR_INVALID_VALUE;
	*support = 0;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxGetExecAffinity(CUexecAffinityParam *out, CUexecAffinityType type)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);

	if (result)
		return result;
	if (!out || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUexecAffinityParam){
		.type = type, .param.smCount.val = context->device->model->multiprocessors,
	};
	return CUDA_SUCCESS;
}
