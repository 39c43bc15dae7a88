/* What two devices are to each other: of one server, that knows; of two, nothing reaches
 * across but copies. */
#include "../../generated/client_raw.h"
#include "../ground/thread.h"

#include <string.h>

/* Are they devices of two servers?  No device is one of none. */
static bool apart(CUdevice one, CUdevice other)
{
	const struct client *client = &farbus_client;

	return atomic_load(&client->state) == CLIENT_READY && one >= 0 && other >= 0 &&
	       one < client->device_count && other < client->device_count &&
	       client->devices[one].session != client->devices[other].session;
}

CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
	CUresult result;

	if (!apart(dev, peerDev))
		return client_raw_cuDeviceCanAccessPeer(canAccessPeer, dev, peerDev);
	result = client_enter_any();
	if (result != CUDA_SUCCESS)
		return result;
	if (!canAccessPeer)
		return CUDA_ERROR_INVALID_VALUE;
	*canAccessPeer = 0;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
				 CUdevice dstDevice)
{
	CUresult result;

	if (!apart(srcDevice, dstDevice))
		return client_raw_cuDeviceGetP2PAttribute(value, attrib, srcDevice, dstDevice);
	result = client_enter_any();
	if (result != CUDA_SUCCESS)
		return result;
	if (!value || attrib < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
	    attrib > CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED)
		return CUDA_ERROR_INVALID_VALUE;
	*value = 0;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAtomicCapabilities(unsigned int *capabilities,
					  const CUatomicOperation *operations, unsigned int count,
					  CUdevice srcDevice, CUdevice dstDevice)
{
	CUresult result;

	if (!apart(srcDevice, dstDevice))
		return client_raw_cuDeviceGetP2PAtomicCapabilities(capabilities, operations, count,
								   srcDevice, dstDevice);
	result = client_enter_any();
	if (result != CUDA_SUCCESS)
		return result;
	if (!capabilities || !operations || !count)
		return CUDA_ERROR_INVALID_VALUE;
	memset(capabilities, 0, count * sizeof(*capabilities));
	return CUDA_SUCCESS;
}

/* Is it another server's than the current one? */
static bool context_apart(CUcontext handle)
{
	const struct client_context *current = client_context_current();
	const struct client_context *peer = client_context_get(handle);

	return current && peer && current->session != peer->session;
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
	CUresult result = client_enter();

	if (result == CUDA_SUCCESS && Flags == 0 && context_apart(peerContext))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	return client_raw_cuCtxEnablePeerAccess(peerContext, Flags);
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext)
{
	CUresult result = client_enter();

	if (result == CUDA_SUCCESS && context_apart(peerContext))
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	return client_raw_cuCtxDisablePeerAccess(peerContext);
}
