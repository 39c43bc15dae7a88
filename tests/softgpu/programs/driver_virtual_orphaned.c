/* Memory that a process has given away by a descriptor is there for who has that, when the process has ended. */
#include "driver.h"
#include "descriptor.h"

#include <signal.h>

static CUdeviceptr map(CUmemGenericAllocationHandle memory, size_t size)
{
	CUmemAccessDesc open = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr base;

	CHECK(cuMemAddressReserve(&base, size, 0, 0, 0));
	CHECK(cuMemMap(base, size, 0, memory, 0));
	CHECK(cuMemSetAccess(base, size, &open, 1));
	return base;
}

static void export(int channel, size_t size)
{
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	};
	CUmemGenericAllocationHandle memory;
	int fd;

	begin();
	CHECK(cuMemCreate(&memory, size, &properties, 0));
	CHECK(cuMemsetD32(map(memory, size), 1234, 1));
	CHECK(cuCtxSynchronize());
	CHECK(cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	send_descriptor(channel, fd);
	pause();
}

int main(void)
{
	size_t size = 4ul << 20;
	CUmemGenericAllocationHandle memory;
	unsigned value = 0;
	int channel[2], fd;
	pid_t child;

	REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
	child = fork();
	if (!child)
		export(channel[1], size);
	fd = receive_descriptor(channel[0]);
	REQUIRE(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	begin();
	CHECK(cuMemImportFromShareableHandle(&memory, (void *)(uintptr_t)fd,
					     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	REQUIRE(!close(fd));
	CHECK(cuMemcpyDtoH(&value, map(memory, size), 4));
	REQUIRE(value == 1234);
	return 0;
}
