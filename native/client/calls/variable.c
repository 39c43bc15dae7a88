/* Variables of libraries and modules. */
#include "../addresses/ranges.h"
#include "../exchange/exchange.h"
#include "../ground/message.h"
#include "../ground/thread.h"
#include "../handles/route.h"
#include "../libraries/library.h"
#include "../managed/managed.h"
#include "../managed/managed_alloc.h"

#include <string.h>

/* A server of protocol 2.1 does not say what is managed: there nothing is. */
static CUresult variable_find(const void *handle, const char *name, bool managed, CUdeviceptr *address, size_t *bytes)
{
	const struct wire_library_variable fixed = { .library = (uint64_t)(uintptr_t)handle };
	struct client_request request = {
		.op = client_managed_offered() ? WIRE_OP_LIBRARY_VARIABLE : WIRE_OP_LIBRARY_GLOBAL,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
		.tail = name,
	};
	struct wire_library_variable_reply reply = { 0 };
	struct client_wait wait = {
		.reply = &reply,
		.reply_bytes = request.op == WIRE_OP_LIBRARY_VARIABLE
				       ? sizeof(reply)
				       : sizeof(struct wire_library_global_reply),
	};
	struct client_range range = { .kind = MEMORY_DEVICE, .global = true };
	struct client_route route;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!name || (!address && !bytes))
		return CUDA_ERROR_INVALID_VALUE;
	range.library = client_library_get(handle);
	if (!range.library)
		return CUDA_ERROR_INVALID_HANDLE;
	/* A library has one in each context; a module is of one. */
	range.context = range.library->context ? range.library->context : client_context_current();
	route = client_route_context(range.context);
	result = client_library_bring(range.library, route.session);
	if (result != CUDA_SUCCESS)
		return result;
	request.tail_bytes = strlen(name) + 1;
	if (request.tail_bytes > 4096)
		return CUDA_ERROR_NOT_FOUND;
	result = client_call_to(&route, &request, &wait);
	if (result != CUDA_SUCCESS)
		return result;
	if (managed && !reply.managed)
		return CUDA_ERROR_NOT_FOUND;
	range.base = reply.address;
	range.bytes = reply.bytes;
	range.managed = reply.managed;
	if (reply.bytes && client_memory_add(&range)) {
		struct client_range known;

		/* Asked for before; or its addresses are taken in this process. */
		if (!client_memory_find(reply.address, &known) || known.base != reply.address ||
		    known.bytes != reply.bytes) {
			client_message("the variable %s lies at an address that this process uses; "
				       "start the program again", name);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	if (reply.managed && reply.bytes) {
		result = client_managed_variable(range.library, range.context, reply.address,
						 reply.bytes);
		if (result != CUDA_SUCCESS)
			return result;
	}
	if (address)
		*address = reply.address;
	if (bytes)
		*bytes = reply.bytes;
	return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
	return variable_find(hmod, name, false, dptr, bytes);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
	return variable_find(library, name, false, dptr, bytes);
}

/* The runtime asks before there is any context.  Then it is the first device's own, which is
 * needed from here on: the program may touch the variable before it does anything else. */
CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
	static _Atomic bool held;
	CUresult result = client_enter_any();
	CUcontext primary = NULL;

	if (result != CUDA_SUCCESS)
		return result;
	if (!client_managed_offered())
		return client_managed_refuse();
	if (client_context_current())
		return variable_find(library, name, true, dptr, bytes);
	result = cuDevicePrimaryCtxRetain(&primary, 0);
	if (result != CUDA_SUCCESS)
		return result;
	result = cuCtxPushCurrent_v2(primary);
	if (result == CUDA_SUCCESS) {
		result = variable_find(library, name, true, dptr, bytes);
		cuCtxPopCurrent_v2(&primary);
	}
	/* One of these holds is kept for all variables. */
	if (result != CUDA_SUCCESS || atomic_exchange(&held, true))
		cuDevicePrimaryCtxRelease_v2(0);
	return result;
}
