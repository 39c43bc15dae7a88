/* Memory that another process made and gave away by a descriptor: whoever imports it has it for himself. */
#include "driver.h"
#include "descriptor.h"

#include <fcntl.h>

#define FILE_TYPE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

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
	};
	CUmemGenericAllocationHandle memory, plain;
	CUdeviceptr base;
	unsigned value;
	char byte;
	int fd;

	begin();
	/* Only what was made for it is given away. */
	CHECK(cuMemCreate(&plain, size, &properties, 0));
	EXPECT(cuMemExportToShareableHandle(&fd, plain, FILE_TYPE, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemRelease(plain));
	properties.requestedHandleTypes = FILE_TYPE;
	CHECK(cuMemCreate(&memory, size, &properties, 0));
	base = map(memory, size);
	CHECK(cuMemsetD32(base, 1234, 1));
	CHECK(cuCtxSynchronize());
	EXPECT(cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_NONE, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemExportToShareableHandle(NULL, memory, FILE_TYPE, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemExportToShareableHandle(&fd, 0x1230, FILE_TYPE, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemExportToShareableHandle(&fd, memory, FILE_TYPE, 0));
	send_descriptor(channel, fd);
	REQUIRE(!close(fd));
	/* What the other one has written is there, in the same memory. */
	REQUIRE(read(channel, &byte, 1) == 1);
	CHECK(cuMemcpyDtoH(&value, base, 4));
	REQUIRE_EQUAL(value, 4321);
	/* And stays the other's. */
	CHECK(cuMemUnmap(base, size));
	CHECK(cuMemRelease(memory));
	REQUIRE(write(channel, "", 1) == 1);
	exit(0);
}

static void none(int fd)
{
	CUmemGenericAllocationHandle memory;

	EXPECT(cuMemImportFromShareableHandle(&memory, (void *)(intptr_t)fd, FILE_TYPE), CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
	size_t size = 4ul << 20;
	CUmemGenericAllocationHandle memory, again;
	CUmemAllocationProp properties;
	CUdeviceptr first, second;
	int channel[2], fd, other[2], status;
	unsigned value = 0;
	char byte, text[8];
	pid_t child;

	REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
	child = fork();
	if (!child) {
		close(channel[0]);
		export(channel[1], size);
	}
	close(channel[1]);
	fd = receive_descriptor(channel[0]);
	begin();
	CHECK(cuMemImportFromShareableHandle(&memory, (void *)(intptr_t)fd, FILE_TYPE));
	EXPECT(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_NONE),
	       CUDA_ERROR_INVALID_VALUE);
	/* As often as one likes, by any copy of it. */
	other[0] = dup(fd);
	REQUIRE(!close(fd));
	CHECK(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)other[0], FILE_TYPE));
	REQUIRE(!close(other[0]));
	CHECK(cuMemGetAllocationPropertiesFromHandle(&properties, memory));
	REQUIRE(properties.requestedHandleTypes == FILE_TYPE && properties.location.id == 0);
	first = map(memory, size);
	second = map(again, size);
	CHECK(cuMemcpyDtoH(&value, first, 4));
	REQUIRE_EQUAL(value, 1234);
	CHECK(launch_store(kernel("store"), first, 4321, NULL));
	CHECK(cuCtxSynchronize());
	CHECK(cuMemcpyDtoH(&value, second, 4));
	REQUIRE_EQUAL(value, 4321);
	CHECK(cuMemUnmap(first, size));
	CHECK(cuMemRelease(memory));

	REQUIRE(write(channel[0], "", 1) == 1 && read(channel[0], &byte, 1) == 1);
	CHECK(cuMemcpyDtoH(&value, second, 4));
	REQUIRE_EQUAL(value, 4321);
	REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	CHECK(launch_store(kernel("store"), second, 5, NULL));
	CHECK(cuCtxSynchronize());
	CHECK(cuMemcpyDtoH(&value, second, 4));
	REQUIRE_EQUAL(value, 5);

	/* Anything else is none: a file, nothing, and a socket, which keeps what is in it. */
	none(open("/dev/null", O_RDWR));
	none(1 << 20);
	none(-1);
	for (int type = SOCK_STREAM; type <= SOCK_SEQPACKET; type++) {
		if (type != SOCK_STREAM && type != SOCK_DGRAM && type != SOCK_SEQPACKET)
			continue;
		REQUIRE(!socketpair(AF_UNIX, type, 0, other));
		none(other[1]);
		REQUIRE(write(other[0], "message", 8) == 8);
		none(other[1]);
		REQUIRE(read(other[1], text, 8) == 8 && !strcmp(text, "message"));
	}
	return 0;
}
