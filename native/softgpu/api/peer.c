#include "../driver/peer.h"

#include "../driver/context_stack.h"
#include "../driver/handle.h"

/* ---- contexts ---- */

DRIVER_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);
	uint32_t bit;

	if (result)
		return result;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!driver_handle_is(peer, DRIVER_KIND_CONTEXT))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (peer->device == context->device)
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	bit = 1u << peer->device->ordinal;
	if (__atomic_fetch_or(&context->peers, bit, __ATOMIC_RELAXED) & bit)
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);
	uint32_t bit;

	if (result)
		return result;
	if (!driver_handle_is(peer, DRIVER_KIND_CONTEXT))
		return CUDA_ERROR_INVALID_CONTEXT;
	bit = 1u << peer->device->ordinal;
	if (!(__atomic_fetch_and(&context->peers, ~bit, __ATOMIC_RELAXED) & bit))
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	return CUDA_SUCCESS;
}

/* ---- devices ---- */

DRIVER_EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice from, CUdevice to)
{
	DRIVER_CALL;
	struct driver_device *one, *other;
	CUresult result = driver_device_of(from, &one);

	if (!result)
		result = driver_device_of(to, &other);
	if (result)
		return result;
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	*can = one != other;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute,
					       CUdevice from, CUdevice to)
{
	DRIVER_CALL;
	struct driver_device *one, *other;
	CUresult result = driver_device_of(from, &one);

	if (!result)
		result = driver_device_of(to, &other);
	if (result)
		return result;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (one == other)
		return CUDA_ERROR_INVALID_DEVICE;
	switch (attribute) {
	case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
		*value = 0;
		return CUDA_SUCCESS;
	case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
	case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
		*value = 1;
		return CUDA_SUCCESS;
	case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
		*value = 0;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* ---- atomic operations across ---- */

/* All devices and the host share the processor that does them. */
static CUresult tell_atomics(unsigned *out, const CUatomicOperation *operations, unsigned count)
{
	if (!out || !operations || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned k = 0; k < count; k++) {
		if ((unsigned)operations[k] > CU_ATOMIC_OPERATION_FLOAT_MAX)
			return CUDA_ERROR_INVALID_VALUE;
		out[k] = CU_ATOMIC_CAPABILITY_SCALAR_32 | CU_ATOMIC_CAPABILITY_SCALAR_64 |
			 CU_ATOMIC_CAPABILITY_REDUCTION;
		if (operations[k] < CU_ATOMIC_OPERATION_FLOAT_ADD)
			out[k] |= CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED;
	}
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDeviceGetHostAtomicCapabilities(unsigned int *out,
							 const CUatomicOperation *operations,
							 unsigned int count, CUdevice ordinal)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	return result ? result : tell_atomics(out, operations, count);
}

DRIVER_EXPORT CUresult cuDeviceGetP2PAtomicCapabilities(unsigned int *out,
							const CUatomicOperation *operations,
							unsigned int count, CUdevice from, CUdevice to)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = driver_device_of(from, &device);

	if (!result)
		result = driver_device_of(to, &device);
	if (!result && from == to)
		result = CUDA_ERROR_INVALID_DEVICE;
	return result ? result : tell_atomics(out, operations, count);
}
