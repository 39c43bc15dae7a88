/* Devices: everything from the snapshot that came with the hello, but for where multiprocessors lie. */
#include "../exchange/exchange.h"
#include "../ground/thread.h"
#include "../handles/route.h"
#include "../managed/managed.h"
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CUresult device_get(CUdevice ordinal, const struct client_device **device)
{
	const struct client *client = &farbus_client;
	CUresult result = client_enter_any();

	if (result == CUDA_ERROR_DEVICE_UNAVAILABLE && atomic_load(&client->state) == CLIENT_READY)
		result = CUDA_SUCCESS;	/* the snapshot outlives the connection */
	if (result != CUDA_SUCCESS)
		return result;
	if (ordinal < 0 || ordinal >= client->device_count)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = &client->devices[ordinal];
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	CUresult result = client_enter_any();

	if (result != CUDA_SUCCESS)
		return result;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = farbus_client.device_count;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	const struct client_device *found;
	CUresult result = device_get(ordinal, &found);

	if (result != CUDA_SUCCESS)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	const struct client_device *device;
	CUresult result = device_get(dev, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!name || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)len, "%s", device->snapshot.name);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	const struct client_device *device;
	CUresult result = device_get(dev, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(uuid->bytes, device->snapshot.uuid, sizeof(uuid->bytes));
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	const struct client_device *device;
	CUresult result = device_get(dev, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(uuid->bytes, device->snapshot.uuid_v2, sizeof(uuid->bytes));
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	const struct client_device *device;
	CUresult result = device_get(dev, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = device->snapshot.total_bytes;
	return CUDA_SUCCESS;
}

/* What the GPU can do and remoting cannot (yet): programs that ask choose
 * another way instead of failing. */
static const CUdevice_attribute withheld[] = {
	/* No coherent link: no pageable memory, and managed memory belongs to the GPU while
	 * anything runs. */
	CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
	CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
	CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
	CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
	CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
	CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED,
	CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
	CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED,
	CU_DEVICE_ATTRIBUTE_INTEGRATED,
	/* The host that the driver knows is the GPU's node: no memory of it is this program's. */
	CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
	CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED,
	CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED,
	CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED,
	CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
	CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED,
	CU_DEVICE_ATTRIBUTE_NUMA_CONFIG,
	/* Handles of this machine's hardware. */
	CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
	CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
	CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
	CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
	/* See docs/coverage.md. */
	CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS,
	CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK,
	CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_MAXIMUM_LENGTH,
	CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED,
	CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED,
};

/* Whose handles are descriptors is shared between programs of the lease, where the server knows of that. */
static bool attribute_of_descriptors(CUdevice_attribute attribute)
{
	return attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED ||
	       attribute == CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES;
}

static bool attribute_withheld(CUdevice_attribute attribute)
{
	for (size_t i = 0; i < sizeof(withheld) / sizeof(withheld[0]); i++)
		if (withheld[i] == attribute)
			return true;
	return false;
}

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
	const struct client_device *device;
	CUresult result = device_get(dev, &device);
	unsigned index = (unsigned)attrib;

	if (result != CUDA_SUCCESS)
		return result;
	if (!pi || index >= WIRE_DEVICE_ATTRIBUTES ||
	    !(device->snapshot.attribute_known[index / 8] >> index % 8 & 1))
		return CUDA_ERROR_INVALID_VALUE;
	if (attrib == CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)
		*pi = client_managed_offered();
	else if (attrib == CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY)
		*pi = farbus_client.mapping != MAPPING_NONE;
	else if (attrib == CU_DEVICE_ATTRIBUTE_NUMA_ID || attrib == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)
		*pi = -1;	/* CUDA's number for none */
	else if (attribute_of_descriptors(attrib))
		*pi = client_session_has(device->session, WIRE_OP_DESCRIPTOR_EXPORT)
			      ? device->snapshot.attributes[index] & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
			      : 0;
	else
		*pi = attribute_withheld(attrib) ? 0 : device->snapshot.attributes[index];
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
	const struct client_device *device;
	CUresult result = device_get(dev, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!pciBusId || len <= (int)strlen(device->snapshot.pci_bus_id))
		return CUDA_ERROR_INVALID_VALUE;
	strcpy(pciBusId, device->snapshot.pci_bus_id);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
	CUresult result = client_enter_any();
	unsigned domain = 0, bus, device, function = 0;

	if (result != CUDA_SUCCESS)
		return result;
	if (!dev || !pciBusId)
		return CUDA_ERROR_INVALID_VALUE;
	if (sscanf(pciBusId, "%x:%x:%x.%x", &domain, &bus, &device, &function) < 3) {
		domain = 0;
		if (sscanf(pciBusId, "%x:%x.%x", &bus, &device, &function) < 2)
			return CUDA_ERROR_INVALID_VALUE;
	}
	for (int i = 0; i < farbus_client.device_count; i++) {
		const int *pci = farbus_client.devices[i].pci;

		if (pci[0] == (int)domain && pci[1] == (int)bus && pci[2] == (int)device) {
			*dev = i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	CUresult result;

	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	result = cuDeviceGetAttribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev);
	if (result == CUDA_SUCCESS)
		result = cuDeviceGetAttribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, dev);
	return result;
}

CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
	const struct {
		int *to;
		CUdevice_attribute attribute;
	} fields[] = {
		{ &prop->maxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK },
		{ &prop->maxThreadsDim[0], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X },
		{ &prop->maxThreadsDim[1], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y },
		{ &prop->maxThreadsDim[2], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z },
		{ &prop->maxGridSize[0], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X },
		{ &prop->maxGridSize[1], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y },
		{ &prop->maxGridSize[2], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z },
		{ &prop->sharedMemPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK },
		{ &prop->totalConstantMemory, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY },
		{ &prop->SIMDWidth, CU_DEVICE_ATTRIBUTE_WARP_SIZE },
		{ &prop->memPitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH },
		{ &prop->regsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK },
		{ &prop->clockRate, CU_DEVICE_ATTRIBUTE_CLOCK_RATE },
		{ &prop->textureAlign, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT },
	};

	if (!prop)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		CUresult result = cuDeviceGetAttribute(fields[i].to, fields[i].attribute, dev);

		if (result != CUDA_SUCCESS)
			return result;
	}
	return CUDA_SUCCESS;
}

/* ---- where multiprocessors lie ---- */

/* Made once, and never freed. */
struct client_layout {
	size_t count, room;		/* of each array: bytes that are told, and that a program gets */
	uint8_t gpcs_then_numbers[];
};

static CUresult layout_ask(const struct client_device *device, struct client_layout **out)
{
	const int32_t multiprocessors = device->snapshot.attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
	const struct client_request request = { .op = WIRE_OP_DEVICE_LAYOUT };
	const struct client_route route = client_route_current();
	struct client_wait wait = { .result = CUDA_ERROR_DEVICE_UNAVAILABLE, .want_tail = true };
	struct client_layout *layout;
	CUresult result;

	/* Without a word: who asks lives with it. */
	if (!client_session_has(route.session, WIRE_OP_DEVICE_LAYOUT))
		return CUDA_ERROR_NOT_SUPPORTED;
	result = client_call_own(&route, &request, &wait);
	if (result == CUDA_SUCCESS && (!wait.tail_bytes || wait.tail_bytes % 2 || multiprocessors < 0 ||
				       wait.tail_bytes / 2 > (size_t)multiprocessors))
		result = CUDA_ERROR_UNKNOWN;
	if (result == CUDA_SUCCESS) {
		layout = malloc(sizeof(*layout) + wait.tail_bytes);
		if (layout) {
			layout->count = wait.tail_bytes / 2;
			layout->room = (size_t)multiprocessors;
			memcpy(layout->gpcs_then_numbers, wait.tail, wait.tail_bytes);
			*out = layout;
		} else {
			result = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	free(wait.tail);
	return result;
}

CUresult client_device_layout(uint8_t **gpcs, uint8_t **numbers)
{
	struct client_layout *layout, *before = NULL;
	struct client_context *context;
	struct client_device *device;
	uint8_t *first, *second;
	CUresult result = client_enter_context(&context);

	if (result != CUDA_SUCCESS)
		return result;
	device = &farbus_client.devices[context->device];
	layout = atomic_load(&device->layout);
	if (!layout) {
		result = layout_ask(device, &layout);
		if (result != CUDA_SUCCESS)
			return result;
		/* Another thread may have asked meanwhile. */
		if (!atomic_compare_exchange_strong(&device->layout, &before, layout)) {
			free(layout);
			layout = before;
		}
	}
	/* How much is read nobody tells, but the device: so what a server leaves out is zero, not somebody's. */
	first = calloc(1, layout->room);
	second = calloc(1, layout->room);
	if (!first || !second) {
		free(first);
		free(second);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memcpy(first, layout->gpcs_then_numbers, layout->count);
	memcpy(second, layout->gpcs_then_numbers + layout->count, layout->count);
	*gpcs = first;
	*numbers = second;
	return CUDA_SUCCESS;
}
