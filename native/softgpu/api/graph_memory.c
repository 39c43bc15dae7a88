#include "../driver/graph/memory.h"

/* Memory is reserved as long as its nodes are there: used and reserved are the same,
 * and there is nothing to trim. */
DRIVER_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice ordinal)
{
	DRIVER_CALL;
	struct driver_device *device;

	return driver_device_of(ordinal, &device);
}

DRIVER_EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute,
						    void *value)
{
	DRIVER_CALL;
	struct driver_device *device;
	size_t used, used_high;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	if (!value || (unsigned)attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
		return CUDA_ERROR_INVALID_VALUE;
	driver_graph_memory_look(device, &used, &used_high);
	*(cuuint64_t *)value = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT ||
			       attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? used : used_high;
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
	driver_graph_memory_reset_high(device);
	return CUDA_SUCCESS;
}
