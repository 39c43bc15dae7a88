#define _GNU_SOURCE
#include "../driver/pool.h"

#include "../driver/arena.h"
#include "../driver/context_stack.h"
#include "../driver/memory.h"
#include "../driver/virtual_file.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Pools of other processes: their file, and where in it an allocation is.
 *
 * What was imported stays when the other process frees it; what that gives to somebody
 * else then is shared with him, so CUDA asks the importer to free first.
 */

#define POINTER_MAGIC 0x52545046u	/* "FPTR" */

struct exported_pointer {
	uint32_t magic, reserved;
	uint64_t inode, device;		/* of the pool's file */
	uint64_t offset, size;		/* bytes, in the file */
};

_Static_assert(sizeof(struct exported_pointer) <= sizeof(CUmemPoolPtrExportData),
	       "an exported pointer has 64 bytes");

DRIVER_EXPORT CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool,
							CUmemAllocationHandleType type,
							unsigned long long flags)
{
	DRIVER_CALL;
	CUresult result = driver_pool_of(pool);
	int fd;

	if (result)
		return result;
	if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    !pool->is_shareable)
		return CUDA_ERROR_INVALID_VALUE;
	fd = fcntl(pool->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle,
							  CUmemAllocationHandleType type,
							  unsigned long long flags)
{
	DRIVER_CALL;
	struct CUmemPoolHandle_st *pool;
	struct driver_device *device;
	CUresult result = driver_ready();
	int fd;

	if (result)
		return result;
	if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	/* The descriptor itself is told in the pointer's place. */
	fd = fcntl((int)(intptr_t)handle, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	device = driver_virtual_device_of(fd);
	pool = device ? driver_pool_make(device, fd, 0) : NULL;
	if (!pool) {
		close(fd);
		return device ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
	}
	pool->is_imported = true;
	*out = pool;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr address)
{
	DRIVER_CALL;
	struct driver_allocation allocation;
	struct exported_pointer told = { .magic = POINTER_MAGIC };
	struct stat status;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!out || !driver_memory_find(address, &allocation) || !allocation.pool ||
	    !allocation.pool->is_shareable || allocation.base != address)
		return CUDA_ERROR_INVALID_VALUE;
	if (fstat(allocation.pool->fd, &status))
		return CUDA_ERROR_OPERATING_SYSTEM;
	told.inode = status.st_ino;
	told.device = status.st_dev;
	told.offset = driver_arena_offset(allocation.device->arena, address);
	told.size = allocation.size;
	memset(out, 0, sizeof *out);
	memcpy(out, &told, sizeof told);
	return CUDA_SUCCESS;
}

static CUresult map_pointer(struct CUctx_st *context, struct CUmemPoolHandle_st *pool,
			    const struct exported_pointer *told, CUdeviceptr *out)
{
	struct driver_allocation allocation = {
		.kind = DRIVER_MEMORY_IPC, .size = told->size, .context = context,
		.device = pool->device, .pool = pool,
	};
	size_t inside = told->offset % (size_t)sysconf(_SC_PAGESIZE);
	CUresult result;
	char *got = mmap(NULL, inside + told->size, PROT_READ | PROT_WRITE, MAP_SHARED, pool->fd,
			 (off_t)(told->offset - inside));

	if (got == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	allocation.base = (uintptr_t)got + inside;
	result = driver_memory_remember(&allocation);
	if (result) {
		munmap(got, inside + told->size);
		return result;
	}
	driver_pool_count(pool, told->size);
	*out = allocation.base;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool,
					      CUmemPoolPtrExportData *data)
{
	DRIVER_CALL;
	struct CUctx_st *context = NULL;
	struct exported_pointer told;
	struct stat status;
	CUresult result = driver_pool_of(pool);

	/* The pool says whose memory it is: no context need be current. */
	if (!result && driver_context_top())
		result = driver_context_enter(&context);
	if (result)
		return result;
	if (!out || !data || !pool->is_imported)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&told, data, sizeof told);
	if (told.magic != POINTER_MAGIC || fstat(pool->fd, &status) ||
	    told.inode != status.st_ino || told.device != status.st_dev || !told.size ||
	    told.offset > (uint64_t)status.st_size ||
	    told.size > (uint64_t)status.st_size - told.offset)
		return CUDA_ERROR_INVALID_VALUE;
	return map_pointer(context, pool, &told, out);
}
