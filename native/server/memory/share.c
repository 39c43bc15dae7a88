/* Memory and events between the processes of a lease: their servers share a node, so the
 * driver's own handles say what is meant. */
#include "../ground/resolve.h"
#include "../streams/stream.h"
#include "share.h"

#include <string.h>

_Static_assert(sizeof(CUipcMemHandle) == 64 && sizeof(CUipcEventHandle) == 64, "wire layout");

CUresult serve_event_share(struct server_call *call)
{
	const struct wire_event_share *request = call->request;
	struct wire_event_share_reply *reply = call->reply;
	CUipcEventHandle handle;
	CUevent event;
	CUresult result = server_resolve_event(call, request->event, &event);

	if (result != CUDA_SUCCESS)
		return result;
	if (!call->driver->cuIpcGetEventHandle)
		return CUDA_ERROR_NOT_SUPPORTED;
	result = call->driver->cuIpcGetEventHandle(&handle, event);
	if (result == CUDA_SUCCESS)
		memcpy(reply->handle, &handle, sizeof(handle));
	return result;
}

CUresult serve_event_open(struct server_call *call)
{
	const struct wire_event_open *request = call->request;
	CUipcEventHandle handle;
	CUevent event;
	CUresult result;

	if (!call->driver->cuIpcOpenEventHandle)
		return CUDA_ERROR_NOT_SUPPORTED;
	memcpy(&handle, request->handle, sizeof(handle));
	result = call->driver->cuIpcOpenEventHandle(&event, handle);
	return result == CUDA_SUCCESS ? server_place_event(call, request->event, event) : result;
}

CUresult server_range_behind(const struct server_driver *driver, CUdeviceptr address, uint64_t *bytes)
{
	CUdeviceptr base;
	size_t whole;
	CUresult result = driver->cuMemGetAddressRange_v2(&base, &whole, address);

	if (result == CUDA_SUCCESS)
		*bytes = whole - (address - base);
	return result;
}

CUresult serve_memory_open(struct server_call *call)
{
	const struct wire_memory_open *request = call->request;
	struct wire_memory_open_reply *reply = call->reply;
	const struct server_driver *driver = call->driver;
	CUipcMemHandle handle;
	CUdeviceptr address;
	CUresult result;

	if (!driver->cuIpcOpenMemHandle_v2 || !driver->cuIpcCloseMemHandle ||
	    !driver->cuMemGetAddressRange_v2)
		return CUDA_ERROR_NOT_SUPPORTED;
	memcpy(&handle, request->handle, sizeof(handle));
	result = driver->cuIpcOpenMemHandle_v2(&address, handle, request->flags);
	if (result != CUDA_SUCCESS)
		return result;
	result = server_range_behind(driver, address, &reply->bytes);
	if (result != CUDA_SUCCESS) {
		driver->cuIpcCloseMemHandle(address);
		return result;
	}
	reply->address = address;
	return CUDA_SUCCESS;
}
