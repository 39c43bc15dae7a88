/* Memory and events between the processes of a lease. */
#include "../../generated/client_raw.h"
#include "../addresses/ranges.h"
#include "../exchange/exchange.h"
#include "../ground/message.h"
#include "../ground/thread.h"
#include "../handles/events.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

CUresult cuIpcGetEventHandle(CUipcEventHandle *pHandle, CUevent event)
{
	struct wire_event_share request;
	struct wire_event_share_reply reply;
	CUresult result = client_enter();

	if (result == CUDA_SUCCESS)
		result = client_event_wire(event, &request.event);
	if (result != CUDA_SUCCESS)
		return result;
	if (!pHandle)
		return CUDA_ERROR_INVALID_VALUE;
	/* An event that was not made for it leaves a handle of zeros, by which Warp's tests know it. */
	memset(pHandle, 0, sizeof(*pHandle));
	result = client_call(WIRE_OP_EVENT_SHARE, &request, sizeof(request), &reply, sizeof(reply));
	if (result == CUDA_SUCCESS)
		memcpy(pHandle, reply.handle, sizeof(*pHandle));
	return result;
}

CUresult cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle handle)
{
	struct wire_event_open request = { 0 };
	struct client_event *event;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!phEvent)
		return CUDA_ERROR_INVALID_VALUE;
	event = calloc(1, sizeof(*event));
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	event->context = client_context_current();
	event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
	if (handle_open(&farbus_client.handles, HANDLE_EVENT, event, &request.event)) {
		free(event);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	event->handle = (CUevent)(uintptr_t)request.event;
	memcpy(request.handle, &handle, sizeof(handle));
	result = client_call(WIRE_OP_EVENT_OPEN, &request, sizeof(request), NULL, 0);
	if (result == CUDA_SUCCESS)
		*phEvent = event->handle;
	else
		free(handle_close(&farbus_client.handles, HANDLE_EVENT, request.event));
	return result;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
	struct wire_memory_open request = { .flags = Flags };
	struct wire_memory_open_reply reply;
	struct client_range range = { .kind = MEMORY_DEVICE, .opened = 1 };
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!pdptr)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(request.handle, &handle, sizeof(handle));
	result = client_call(WIRE_OP_MEMORY_OPEN, &request, sizeof(request), &reply, sizeof(reply));
	if (result != CUDA_SUCCESS)
		return result;
	range.base = reply.address;
	range.bytes = reply.bytes;
	range.context = client_context_current();
	/* Opened once more, it has the same addresses. */
	if (!client_memory_opened(reply.address, 1) && client_memory_add(&range)) {
		client_message("the addresses of another process's memory are in use in this one");
		client_raw_cuIpcCloseMemHandle(reply.address);
		return CUDA_ERROR_MAP_FAILED;
	}
	*pdptr = reply.address;
	return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
	return cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
	struct client_range range;
	CUresult result = client_raw_cuIpcCloseMemHandle(dptr);

	if (result == CUDA_SUCCESS && client_memory_opened(dptr, -1) == 0)
		client_memory_remove(dptr, MEMORY_DEVICE, &range);
	return result;
}
