/* Events of other processes, by a handle that says which descriptor of which process is theirs. */
#include "../driver/event_share.h"

#include "../driver/context_stack.h"
#include "../driver/event.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EVENT_MAGIC 0x54564546u		/* "FEVT" */

struct event_handle {
	uint32_t magic;
	int32_t pid;
	int32_t fd;
	uint32_t reserved;
	uint64_t inode, device;		/* of the page: what that descriptor is must be it */
};

_Static_assert(sizeof(struct event_handle) <= sizeof(CUipcEventHandle), "a handle has 64 bytes");

DRIVER_EXPORT CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent event)
{
	DRIVER_CALL;
	struct event_handle handle = { .magic = EVENT_MAGIC, .pid = getpid() };
	struct stat status;
	CUresult result = driver_event_of(event);

	if (result)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	/* An event that was not made for it leaves a handle of zeros, by which Warp's tests know it. */
	memset(out, 0, sizeof *out);
	if (!event->shared)
		return CUDA_ERROR_INVALID_HANDLE;
	handle.fd = driver_shared_event_file(event->shared);
	if (fstat(handle.fd, &status))
		return CUDA_ERROR_OPERATING_SYSTEM;
	handle.inode = status.st_ino;
	handle.device = status.st_dev;
	memcpy(out, &handle, sizeof handle);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle told)
{
	DRIVER_CALL;
	struct driver_shared_event *shared;
	struct event_handle handle;
	struct CUctx_st *context;
	struct stat status;
	CUresult result = driver_context_enter(&context);
	char path[48];
	int fd;

	if (result)
		return result;
	memcpy(&handle, &told, sizeof handle);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (handle.magic != EVENT_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	if (handle.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)handle.pid, (int)handle.fd);
	fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return CUDA_ERROR_INVALID_HANDLE;
	if (fstat(fd, &status) || status.st_ino != handle.inode || status.st_dev != handle.device) {
		close(fd);
		return CUDA_ERROR_INVALID_HANDLE;
	}
	shared = driver_shared_event_open(fd);
	if (!shared)
		return CUDA_ERROR_INVALID_HANDLE;
	return driver_event_make(context, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS, shared,
				 out);
}
