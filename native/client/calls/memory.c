/* Device memory: how a program takes it and gives it back. */
#include "../addresses/exports.h"
#include "../addresses/place.h"
#include "../addresses/ranges.h"
#include "../exchange/captures.h"
#include "../exchange/exchange.h"
#include "../ground/message.h"
#include "../ground/thread.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "../managed/managed_alloc.h"

/* An allocation by an operation of its own. */
struct allocation {
	struct client_route route;
	struct client_request request;
	void *reply;
	size_t reply_bytes;
	const uint64_t *address;	/* in the reply */
	const uint64_t *pitch;		/* of one whose rows are padded; else NULL */
	uint64_t bytes;			/* of it, or of rows */
};

static CUresult allocation_take(void *opaque, unsigned attempt, struct client_range *range)
{
	struct allocation *allocation = opaque;
	struct client_wait wait = {
		.reply = allocation->reply,
		.reply_bytes = allocation->reply_bytes,
	};
	CUresult result = client_call_to(&allocation->route, &allocation->request, &wait);

	(void)attempt;
	if (result != CUDA_SUCCESS)
		return result;
	range->base = *allocation->address;
	range->bytes = allocation->pitch ? *allocation->pitch * allocation->bytes : allocation->bytes;
	return CUDA_SUCCESS;
}

static void allocation_give(void *opaque, const struct client_range *range, uint64_t address)
{
	const struct allocation *allocation = opaque;

	(void)range;
	client_memory_free_quietly(&allocation->route, address);
}

static CUresult allocate(struct allocation *allocation, struct client_context *context)
{
	const struct client_placement placement = {
		.take = allocation_take,
		.give = allocation_give,
		.opaque = allocation,
		.fill = true,
	};
	struct client_range range = { .kind = MEMORY_DEVICE, .context = context };

	allocation->route = client_route_context(context);
	return client_memory_place(&placement, &range);
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	const struct wire_memory_alloc request = { .bytes = bytesize };
	struct wire_memory_alloc_reply reply;
	struct allocation allocation = {
		.request = { WIRE_OP_MEMORY_ALLOC, &request, sizeof(request), NULL, 0 },
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.address = &reply.address,
		.bytes = bytesize,
	};
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr || !bytesize)
		return CUDA_ERROR_INVALID_VALUE;
	result = allocate(&allocation, client_context_current());
	if (result == CUDA_SUCCESS)
		*dptr = reply.address;
	return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
			    unsigned int ElementSizeBytes)
{
	const struct wire_memory_alloc_pitch request = {
		.width = WidthInBytes,
		.height = Height,
		.element = ElementSizeBytes,
	};
	struct wire_memory_alloc_pitch_reply reply;
	struct allocation allocation = {
		.request = { WIRE_OP_MEMORY_ALLOC_PITCH, &request, sizeof(request), NULL, 0 },
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.address = &reply.address,
		.pitch = &reply.pitch,
		.bytes = Height,
	};
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr || !pPitch || !WidthInBytes || !Height ||
	    (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16))
		return CUDA_ERROR_INVALID_VALUE;
	result = allocate(&allocation, client_context_current());
	if (result == CUDA_SUCCESS) {
		*dptr = reply.address;
		*pPitch = reply.pitch;
	}
	return result;
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	const struct wire_memory_free request = { .address = dptr };
	const struct client_request call = {
		.op = WIRE_OP_MEMORY_FREE,
		.fixed = &request,
		.fixed_bytes = sizeof(request),
	};
	struct client_wait wait = { .result = CUDA_ERROR_DEVICE_UNAVAILABLE };
	struct client_range range;
	struct client_route route;
	CUresult result = client_enter_any();

	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr && !client_context_current())
		return CUDA_SUCCESS;
	result = client_enter();
	if (result != CUDA_SUCCESS || !dptr)
		return result;
	/* Whether a graph has allocated it, the server knows. */
	if (client_memory_find(dptr, &range) && range.graph && range.base == dptr) {
		route = client_route_context(range.context);
		return client_call_to(&route, &call, &wait);
	}
	if (client_memory_find(dptr, &range) && range.mapped)
		return CUDA_ERROR_INVALID_VALUE;
	if (client_managed_free(dptr, &result))
		return result;
	if (!client_memory_leave(dptr, &range))
		return CUDA_ERROR_INVALID_VALUE;
	route = client_route_context(range.context);
	result = client_call_to(&route, &call, &wait);
	/* What the call reports may be an earlier operation's failure. */
	client_memory_left(&range, wait.result == CUDA_SUCCESS);
	return result;
}

/* The context whose memory a stream allocates: the current one, where the stream is of the
 * same server. */
static struct client_context *stream_context(uint64_t stream)
{
	struct client_context *current = client_context_current();
	struct client_context *context = client_stream_context(stream);

	return context && (!current || context->session != current->session) ? context : current;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	struct wire_memory_alloc_async request = { .bytes = bytesize };
	struct wire_memory_alloc_async_reply reply;
	struct allocation allocation = {
		.request = { WIRE_OP_MEMORY_ALLOC_ASYNC, &request, sizeof(request), NULL, 0 },
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.address = &reply.address,
		.bytes = bytesize,
	};
	CUresult result = client_stream_enter(hStream, &request.stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr)
		return CUDA_ERROR_INVALID_VALUE;
	result = allocate(&allocation, stream_context(request.stream));
	if (result == CUDA_SUCCESS)
		*dptr = reply.address;
	/* In a captured stream it is the graph that will have it. */
	if (result == CUDA_SUCCESS && client_stream_captured(request.stream))
		client_memory_set_graph(reply.address);
	return result;
}

/* A capture of another stream may forbid it. */
static CUresult free_while_captured(const struct wire_memory_free_async *request)
{
	const struct client_request call = {
		.op = WIRE_OP_MEMORY_FREE_GRAPH,
		.fixed = request,
		.fixed_bytes = sizeof(*request),
	};
	struct client_wait wait = { .result = CUDA_ERROR_DEVICE_UNAVAILABLE };
	struct client_range range;
	CUresult result;

	if (!client_memory_leave(request->address, &range))
		return CUDA_ERROR_INVALID_VALUE;
	result = client_call_wide(&call, &wait);
	client_memory_left(&range, wait.result == CUDA_SUCCESS);
	return result;
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	struct wire_memory_free_async request = { .address = dptr };
	struct client_range range;
	CUresult result = client_stream_enter(hStream, &request.stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr)
		return CUDA_SUCCESS;
	if (client_memory_find(dptr, &range) && range.session &&
	    range.session != client_stream_session(request.stream)) {
		client_message("freeing memory of %s in a stream of %s is not supported over remoting: "
			       "free it in a stream of its own device", range.session->peer,
			       client_stream_session(request.stream)->peer);
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (client_memory_find(dptr, &range) && range.base == dptr &&
	    (range.graph || client_stream_captured(request.stream))) {
		client_memory_set_graph(dptr);
		return client_call(WIRE_OP_MEMORY_FREE_GRAPH, &request, sizeof(request), NULL, 0);
	}
	if (client_memory_find(dptr, &range) && range.managed)
		return CUDA_ERROR_INVALID_VALUE;
	if (client_captures())
		return free_while_captured(&request);
	if (!client_memory_remove(dptr, MEMORY_DEVICE, &range))
		return CUDA_ERROR_INVALID_VALUE;
	return client_post(WIRE_OP_MEMORY_FREE_ASYNC, &request, sizeof(request), NULL, 0);
}

/* The driver leaves out what is not asked for. */
CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	struct wire_memory_info_reply reply;
	CUresult result = client_enter();

	client_descriptors_look();
	if (result == CUDA_SUCCESS)
		result = client_call(WIRE_OP_MEMORY_INFO, NULL, 0, &reply, sizeof(reply));
	if (result != CUDA_SUCCESS)
		return result;
	if (free)
		*free = reply.free;
	if (total)
		*total = reply.total;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
	struct client_range range;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!client_memory_find(dptr, &range))
		return CUDA_ERROR_NOT_FOUND;
	if (pbase)
		*pbase = range.base;
	if (psize)
		*psize = range.bytes;
	return CUDA_SUCCESS;
}
