/* Pointer attributes: answered from the table of what the program was given, but for how it may be shared. */
#include "../addresses/ranges.h"
#include "../exchange/exchange.h"
#include "../ground/thread.h"
#include "../handles/route.h"

/* Store `value` with the type that the attribute has.  CUDA's booleans are four
 * bytes here: cudart and NCCL read an int. */
#define STORE(type, value) (*(type *)data = (type)(value), CUDA_SUCCESS)

/* What the server's driver says of device memory; false where it can't be asked. */
static bool attribute_told(CUpointer_attribute attribute, uint64_t pointer, const struct client_range *range,
			   uint64_t *value)
{
	const struct wire_pointer_attribute fixed = { .address = pointer, .attribute = attribute };
	const struct client_request request = { WIRE_OP_POINTER_ATTRIBUTE, &fixed, sizeof(fixed), NULL, 0 };
	struct wire_pointer_attribute_reply reply = { 0 };
	struct client_wait wait = {
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.result = CUDA_ERROR_DEVICE_UNAVAILABLE,
	};
	struct client_route route;

	if (!range->session || !client_session_has(range->session, WIRE_OP_POINTER_ATTRIBUTE))
		return false;
	route = client_route_session(range->session);
	if (client_call_own(&route, &request, &wait) != CUDA_SUCCESS)
		return false;
	*value = reply.value;
	return true;
}

static uint64_t attribute_asked(CUpointer_attribute attribute, uint64_t pointer, const struct client_range *range)
{
	uint64_t value = 0;

	return attribute_told(attribute, pointer, range, &value) ? value : 0;
}

/* Memory of pools and what is mapped is on whatever device, of which only the driver knows. */
static int device_of(uint64_t pointer, const struct client_range *range)
{
	uint64_t ordinal;

	if (range->apart && farbus_client.device_count > 1 &&
	    attribute_told(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer, range, &ordinal)) {
		for (int i = 0; i < farbus_client.device_count; i++)
			if (farbus_client.devices[i].session == range->session &&
			    farbus_client.devices[i].server_ordinal == (uint32_t)ordinal)
				return i;
	}
	return range->context ? range->context->device : 0;
}

static CUresult attribute_known(void *data, CUpointer_attribute attribute, uint64_t pointer,
				const struct client_range *range)
{
	bool device = range->kind == MEMORY_DEVICE, host = !device || range->mapped;

	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		return STORE(CUcontext, range->context ? range->context->handle : NULL);
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		return STORE(unsigned, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		/* Pinned memory is mapped only where the server has it too, or the program has asked for it. */
		if (!device && !range->mapped) {
			*(CUdeviceptr *)data = 0;
			return CUDA_ERROR_INVALID_VALUE;
		}
		return STORE(CUdeviceptr, pointer);
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (device && !range->managed) {
			*(void **)data = NULL;
			return CUDA_ERROR_INVALID_VALUE;
		}
		return STORE(uintptr_t, pointer);
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		return STORE(unsigned long long, range->id);
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		return STORE(int, range->managed && !range->mapped);
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		return STORE(int, false);
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		return STORE(int, range->sync);
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		return STORE(int, device_of(pointer, range));
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		return STORE(int, attribute_asked(attribute, pointer, range) != 0);
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		return STORE(CUdeviceptr, range->base);
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		return STORE(size_t, range->bytes);
	case CU_POINTER_ATTRIBUTE_MAPPED:
		return STORE(int, device || range->mapped);
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		return STORE(unsigned long long, attribute_asked(attribute, pointer, range) &
							 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		return STORE(int, false);
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		return STORE(unsigned, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		return STORE(CUmemoryPool, range->pool);
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		return STORE(size_t, range->bytes);
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		return STORE(CUdeviceptr, range->base);
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		return STORE(unsigned long long, range->id);
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

/* No context need be current: cudart asks without one for PyTorch's thread that pins memory. */
static CUresult pointer_enter(void)
{
	CUresult result = client_enter();

	return result == CUDA_ERROR_INVALID_CONTEXT ? client_enter_any() : result;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct client_range range;
	CUresult result = pointer_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!data || !client_memory_find(ptr, &range))
		return CUDA_ERROR_INVALID_VALUE;
	return attribute_known(data, attribute, ptr, &range);
}

/* What cuPointerGetAttributes says of memory that the driver does not know. */
static void attribute_unknown(void *data, CUpointer_attribute attribute)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		*(uint64_t *)data = 0;
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		*(unsigned *)data = 0;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = CU_DEVICE_INVALID;
		break;
	default:
		*(int *)data = false;
		break;
	}
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
				void **data, CUdeviceptr ptr)
{
	struct client_range range;
	CUresult result = pointer_enter();
	bool known;

	if (result != CUDA_SUCCESS)
		return result;
	if (!numAttributes || !attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	known = client_memory_find(ptr, &range);
	for (unsigned i = 0; i < numAttributes; i++) {
		attribute_unknown(data[i], attributes[i]);
		if (known)
			attribute_known(data[i], attributes[i], ptr, &range);
	}
	return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct client_range range;
	CUresult result = pointer_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
	    !client_memory_find(ptr, &range) || range.kind != MEMORY_DEVICE || range.mapped)
		return CUDA_ERROR_INVALID_VALUE;
	return client_memory_set_sync(ptr, *(const unsigned *)value != 0) ? CUDA_SUCCESS
									  : CUDA_ERROR_INVALID_VALUE;
}
