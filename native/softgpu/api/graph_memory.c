#include "../driver/graph/memory.h"
#include "../driver/memory.h"

/* What no node stands for any more is given back: the memory of a graph that is there is its own, whether
 * it runs or not. */
DRIVER_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice ordinal)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (!result)
		driver_memory_trim_kept(device);
	return result;
}

DRIVER_EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute,
						    void *value)
{
	DRIVER_CALL;
	struct driver_graph_usage usage;
	struct driver_device *device;
	size_t reserved;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	if (!value || (unsigned)attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
		return CUDA_ERROR_INVALID_VALUE;
	usage = driver_graph_memory_look(device, &reserved);
	*(cuuint64_t *)value = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT ? usage.used :
			       attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH ? usage.used_high :
			       attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? reserved : usage.reserved_high;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute,
						    void *value)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	/* A high-water mark can only be put back to zero. */
	if (!value || (attribute != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH &&
		       attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) ||
	    *(cuuint64_t *)value)
		return CUDA_ERROR_INVALID_VALUE;
	driver_graph_memory_reset_high(device, attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH);
	return CUDA_SUCCESS;
}
