/* Pinned memory: this process's, and the server's too where that is on this node (pinned.c); or managed memory, where
 * the program asks for it (managed.c).  cuMemHostAlloc and its like, and what a program registers. */
#include "../addresses/pinned.h"
#include "../addresses/ranges.h"
#include "../exchange/jobs.h"
#include "../exchange/mapping.h"
#include "../ground/message.h"
#include "../ground/thread.h"
#include "../managed/managed_alloc.h"
#include "../streams/context.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../transport/rings/memory.h"

static size_t page_round(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (bytes + page - 1) & ~(page - 1);
}

/* Does the program have it as pinned memory? */
static bool pinned(const struct client_range *range)
{
	return range->kind == MEMORY_PINNED || range->mapped;
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
	const unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |
			       CU_MEMHOSTALLOC_WRITECOMBINED;
	struct client_range range = {
		.kind = MEMORY_PINNED,
		.bytes = bytesize,
		.flags = Flags,
	};
	CUresult result = client_enter();
	void *memory;

	if (result != CUDA_SUCCESS)
		return result;
	if (!pp || !bytesize || Flags & ~known)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytesize > SIZE_MAX / 2 || !transport_memory_is_there(bytesize))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (farbus_client.mapping == MAPPING_MANAGED) {
		uint64_t address = 0;

		result = client_mapped_alloc(bytesize, Flags, &address);
		if (result == CUDA_SUCCESS)
			*pp = (void *)(uintptr_t)address;
		return result;
	}
	if (client_pinned_share(page_round(bytesize), &range)) {
		memory = (void *)(uintptr_t)range.base;
	} else {
		/* Unless it is the server that has gone, or the context that has failed. */
		result = client_enter();
		if (result != CUDA_SUCCESS)
			return result;
		memory = mmap(NULL, page_round(bytesize), PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED)
			return CUDA_ERROR_OUT_OF_MEMORY;
		/* As the driver's own pinned memory, it is not the child's after a fork. */
		madvise(memory, page_round(bytesize), MADV_DONTFORK);
		range.base = (uint64_t)(uintptr_t)memory;
	}
	range.context = client_context_current();
	if (client_memory_add(&range)) {
		if (range.shared)
			client_pinned_release(range.shared);
		munmap(memory, page_round(bytesize));
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*pp = memory;
	if (!range.mapped) {
		client_pinned_alone();
		client_pinned_note(Flags);
	}
	return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
	return cuMemHostAlloc(pp, bytesize, 0);
}

CUresult cuMemFreeHost(void *p)
{
	struct client_range range;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!p)
		return CUDA_SUCCESS;
	if (!client_memory_find((uint64_t)(uintptr_t)p, &range) ||
	    range.base != (uint64_t)(uintptr_t)p || !pinned(&range) || range.registered)
		return CUDA_ERROR_INVALID_VALUE;
	if (range.managed)
		return client_managed_free(range.base, &result) ? result : CUDA_ERROR_INVALID_VALUE;
	/* Copies that are still to write there must be over, as with a GPU. */
	if (client_host_busy()) {
		result = client_contexts_synchronize();
		if (result != CUDA_SUCCESS)
			return result;
	}
	if (!client_memory_remove(range.base, MEMORY_PINNED, &range))
		return CUDA_ERROR_INVALID_VALUE;
	if (range.shared)
		client_pinned_release(range.shared);
	munmap(p, page_round(range.bytes));
	return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
	struct client_range range;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!pFlags || !client_memory_find((uint64_t)(uintptr_t)p, &range) || !pinned(&range))
		return CUDA_ERROR_INVALID_VALUE;
	*pFlags = range.flags;
	return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
	static _Atomic bool said;
	struct client_range range;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (farbus_client.mapping == MAPPING_NONE) {
		if (!atomic_exchange(&said, true))
			client_message("cuMemHostGetDevicePointer_v2 is not supported over remoting: a remote GPU "
				       "cannot read or write memory of this machine directly; "
				       "CAN_MAP_HOST_MEMORY is 0; %s", client_mapping_hint().text);
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (!pdptr || Flags || !client_memory_find((uint64_t)(uintptr_t)p, &range))
		return CUDA_ERROR_INVALID_VALUE;
	if (!range.mapped) {
		/* On a local GPU it has an address, asked to be mapped or not. */
		if (range.kind == MEMORY_PINNED)
			client_pinned_note(CU_MEMHOSTALLOC_DEVICEMAP);
		return range.registered && range.flags & CU_MEMHOSTREGISTER_DEVICEMAP ? CUDA_ERROR_NOT_SUPPORTED
										      : CUDA_ERROR_INVALID_VALUE;
	}
	*pdptr = (CUdeviceptr)(uintptr_t)p;
	return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
	struct client_range range = {
		.kind = MEMORY_PINNED,
		.base = (uint64_t)(uintptr_t)p,
		.bytes = bytesize,
		.flags = Flags,
		.registered = true,
	}, found;
	CUresult result = client_enter();
	int rc;

	if (result != CUDA_SUCCESS)
		return result;
	if (!p || !bytesize || Flags & ~0xfu)
		return CUDA_ERROR_INVALID_VALUE;
	if (Flags & (CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (bytesize > UINT64_MAX - range.base)
		return CUDA_ERROR_INVALID_VALUE;
	range.context = client_context_current();
	/* Device addresses are only reserved here: nothing can be read at them. */
	if (client_memory_find(range.base, &found))
		return found.registered ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
					: CUDA_ERROR_INVALID_VALUE;
	if (!client_pinned_share_file(&range)) {
		/* Unless it is the server that has gone, or the context that has failed. */
		result = client_enter();
		if (result != CUDA_SUCCESS)
			return result;
	}
	rc = client_memory_add(&range);
	if (rc && range.shared)
		client_pinned_release(range.shared);
	if (rc)
		return rc == -EEXIST ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_ERROR_OUT_OF_MEMORY;
	if (!range.mapped)
		client_pinned_note(Flags);
	return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *p)
{
	struct client_range range;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	if (!client_memory_find((uint64_t)(uintptr_t)p, &range) || !range.registered)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	if (range.base != (uint64_t)(uintptr_t)p)
		return CUDA_ERROR_INVALID_VALUE;
	if (client_host_busy()) {
		result = client_contexts_synchronize();
		if (result != CUDA_SUCCESS)
			return result;
	}
	if (client_memory_remove(range.base, MEMORY_PINNED, &range) && range.shared)
		client_pinned_release(range.shared);
	return CUDA_SUCCESS;
}
