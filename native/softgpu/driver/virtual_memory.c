#include "virtual_memory.h"

#include "handle.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t virtual_lock = PTHREAD_MUTEX_INITIALIZER;

void driver_virtual_lock(void)
{
	pthread_mutex_lock(&virtual_lock);
}

void driver_virtual_unlock(void)
{
	pthread_mutex_unlock(&virtual_lock);
}

CUresult driver_virtual_begin(void)
{
	CUresult result = driver_ready();

	if (!result)
		driver_virtual_lock();
	return result;
}

CUresult driver_virtual_end(CUresult result)
{
	driver_virtual_unlock();
	return result;
}

bool driver_virtual_memory_drop(struct memory *memory)
{
	if (memory->handles || memory->mappings || memory->parts)
		return false;
	if (!memory->team && memory->fd >= 0)
		close(memory->fd);
	if (memory->counted)
		board_memory_give(memory->device->board, memory->size);
	free(memory);
	return true;
}

struct memory *driver_virtual_memory_of(CUmemGenericAllocationHandle handle)
{
	struct memory *memory = (struct memory *)(uintptr_t)handle;

	return driver_handle_is(memory, DRIVER_KIND_MEMORY) ? memory : NULL;
}

int driver_virtual_memory_name(struct memory *memory)
{
	if (!memory->handles && driver_handle_add(memory, DRIVER_KIND_MEMORY, NULL))
		return -ENOMEM;
	memory->handles++;
	return 0;
}

CUresult driver_virtual_hold(struct memory *memory, size_t offset, size_t size, struct driver_part *part)
{
	if (!memory || memory->team || !memory->device || offset > memory->size ||
	    size > memory->size - offset)
		return CUDA_ERROR_INVALID_VALUE;
	*part = (struct driver_part){
		.memory = memory, .device = memory->device, .offset = offset, .shareable = memory->shareable,
		.fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0),
	};
	if (part->fd < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memory->parts++;
	return CUDA_SUCCESS;
}

void driver_virtual_let_go(struct driver_part *part)
{
	close(part->fd);
	if (!part->memory)
		return;
	part->memory->parts--;
	driver_virtual_memory_drop(part->memory);
}
