#define _GNU_SOURCE
#include "../driver/arena.h"
#include "../driver/context_life.h"
#include "../driver/context_stack.h"
#include "../driver/memory.h"
#include "../driver/virtual_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Device memory of another process, by a handle of 64 bytes that it tells.
 *
 * The handle says which descriptor of which process is the memory; the kernel
 * lets those open it that may look into that process (proc(5), /proc/pid/fd).
 * Memory that was opened stays when the other process frees it or ends.
 */

#define IPC_MAGIC 0x43504946u		/* "FIPC" */

struct ipc_handle {
	uint32_t magic;
	int32_t pid;
	int32_t fd;
	uint32_t reserved;
	uint64_t inode;			/* of the memory: what that descriptor is must be it */
	uint64_t device;
	uint64_t offset, size;		/* bytes */
};

_Static_assert(sizeof(struct ipc_handle) <= sizeof(CUipcMemHandle), "a handle has 64 bytes");

struct opened {
	struct opened *next;
	struct ipc_handle handle;
	CUdeviceptr address;
	uint64_t id;			/* of the allocation there */
	unsigned count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct opened *all_opened;

DRIVER_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
	DRIVER_CALL;
	struct ipc_handle handle = { .magic = IPC_MAGIC, .pid = getpid() };
	struct driver_allocation allocation;
	struct CUctx_st *context;
	struct stat status;
	size_t offset;
	CUresult result = driver_context_enter(&context);
	int fd;

	if (result)
		return result;
	if (!out || !driver_memory_find(address, &allocation) ||
	    allocation.kind != DRIVER_MEMORY_DEVICE || allocation.pool)
		return CUDA_ERROR_INVALID_VALUE;
	fd = driver_arena_share(allocation.device->arena, allocation.base, &offset);
	if (fd < 0 || fstat(fd, &status))
		return CUDA_ERROR_OUT_OF_MEMORY;
	handle.fd = fd;
	handle.inode = status.st_ino;
	handle.device = status.st_dev;
	handle.offset = offset;
	handle.size = allocation.size;
	memset(out, 0, sizeof *out);
	memcpy(out, &handle, sizeof handle);
	return CUDA_SUCCESS;
}

static CUresult open_memory(struct CUctx_st *context, const struct ipc_handle *handle,
			    CUdeviceptr *out)
{
	struct driver_allocation allocation = { .kind = DRIVER_MEMORY_IPC, .size = handle->size,
						.context = context };
	size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = handle->offset % page;
	struct stat status;
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	char path[48], *got;
	int fd;

	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)handle->pid, (int)handle->fd);
	fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return result;
	allocation.device = driver_virtual_device_of(fd);
	if (!allocation.device || fstat(fd, &status) || status.st_ino != handle->inode ||
	    status.st_dev != handle->device || !handle->size ||
	    handle->offset > (uint64_t)status.st_size ||
	    handle->size > (uint64_t)status.st_size - handle->offset)
		goto out_close;
	got = mmap(NULL, inside + handle->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		   (off_t)(handle->offset - inside));
	if (got == MAP_FAILED) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
		goto out_close;
	}
	allocation.base = (uintptr_t)got + inside;
	result = driver_memory_remember(&allocation);
	if (result)
		munmap(got, inside + handle->size);
	else
		*out = allocation.base;
out_close:
	close(fd);
	return result;
}

/* With the lock: a context that ended took its mappings along. */
static void forget_ended(void)
{
	struct opened **link = &all_opened, *opened;
	struct driver_allocation allocation;

	while ((opened = *link)) {
		if (driver_memory_find(opened->address, &allocation) && allocation.id == opened->id) {
			link = &opened->next;
			continue;
		}
		*link = opened->next;
		free(opened);
	}
}

DRIVER_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle told,
					     unsigned int flags)
{
	DRIVER_CALL;
	struct ipc_handle handle;
	struct CUctx_st *context;
	struct opened *opened;
	struct driver_allocation allocation;
	CUresult result = driver_context_enter(&context);

	if (result)
		return result;
	memcpy(&handle, &told, sizeof handle);
	if (!out || flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
	    handle.magic != IPC_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	if (handle.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	forget_ended();
	for (opened = all_opened; opened; opened = opened->next) {
		if (!memcmp(&opened->handle, &handle, sizeof handle))
			break;
	}
	if (opened) {
		opened->count++;
		*out = opened->address;
		goto out_unlock;
	}
	opened = calloc(1, sizeof *opened);
	result = opened ? open_memory(context, &handle, &opened->address) :
			  CUDA_ERROR_OUT_OF_MEMORY;
	if (result) {
		free(opened);
		goto out_unlock;
	}
	driver_memory_find(opened->address, &allocation);
	opened->id = allocation.id;
	opened->handle = handle;
	opened->count = 1;
	opened->next = all_opened;
	all_opened = opened;
	*out = opened->address;
out_unlock:
	pthread_mutex_unlock(&lock);
	return result;
}

DRIVER_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
	DRIVER_CALL;
	struct opened **link, *opened;
	CUresult result = driver_ready();

	if (result)
		return result;
	/* What is queued may use it. */
	driver_context_drain_all();
	pthread_mutex_lock(&lock);
	forget_ended();
	for (link = &all_opened; (opened = *link); link = &opened->next) {
		if (opened->address == address)
			break;
	}
	if (!opened) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else if (!--opened->count) {
		*link = opened->next;
		driver_memory_give(address);
		free(opened);
	}
	pthread_mutex_unlock(&lock);
	return result;
}
