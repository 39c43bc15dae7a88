/* softgpu: count=2 */
/* A multicast object that two processes have: each adds its device and binds its memory, and both reach all of it. */
#include "driver.h"
#include "descriptor.h"
#include "multicast.h"

#define SIZE GRANULE

static CUmemGenericAllocationHandle team, memory;
static CUdeviceptr plain, multi, out;

/* Both have come here. */
static void meet(int channel)
{
	char byte;

	REQUIRE(write(channel, "", 1) == 1 && read(channel, &byte, 1) == 1);
}

static void device_begin(CUdevice device)
{
	CUcontext context;

	CHECK(cuInit(0));
	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	memory = memory_of_device(device, SIZE, true);
	plain = map_for(device, memory, 0, SIZE);
	CHECK(cuMemAlloc(&out, 16));
}

static void together(int channel, CUdevice device)
{
	CUmemGenericAllocationHandle closed = memory_of_device(device, SIZE, false);
	unsigned value = 0, add = 1000;

	/* Mapping waits until both belong to it, also where the other process adds itself last. */
	CHECK(cuMulticastAddDevice(team, device));
	multi = map_for(device, team, 0, SIZE);
	/* What others can have takes no other memory. */
	EXPECT(cuMulticastBindMem(team, 0, closed, 0, SIZE, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemRelease(closed));
	CHECK(cuMulticastBindMem(team, 0, memory, 0, SIZE, 0));
	CHECK(cuMemsetD32(plain, 10 + (unsigned)device, 4));
	CHECK(cuCtxSynchronize());
	meet(channel);
	CHECK(multimem("sum_u32", multi, &out));
	CHECK(cuMemcpyDtoH(&value, out, 4));
	REQUIRE_EQUAL(value, 21);
	meet(channel);
	if (device)
		CHECK(multimem("add_u32", multi, &add));
	meet(channel);
	CHECK(cuMemcpyDtoH(&value, plain, 4));
	REQUIRE_EQUAL(value, 1010 + device);
	meet(channel);
}

static void owner(int channel)
{
	CUmulticastObjectProp properties = { .numDevices = 2, .size = SIZE };
	CUmemGenericAllocationHandle unshared;
	int fd;

	device_begin(0);
	CHECK(cuMulticastCreate(&unshared, &properties));
	EXPECT(cuMemExportToShareableHandle(&fd, unshared, FILE_TYPE, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemRelease(unshared));
	properties.handleTypes = FILE_TYPE;
	CHECK(cuMulticastCreate(&team, &properties));
	CHECK(cuMemExportToShareableHandle(&fd, team, FILE_TYPE, 0));
	send_descriptor(channel, fd);
	REQUIRE(!close(fd));
	together(channel, 0);
	exit(0);
}

int main(void)
{
	CUmemGenericAllocationHandle again;
	int channel[2], fd, status;
	unsigned value = 0;
	pid_t child;

	REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
	child = fork();
	if (!child) {
		close(channel[0]);
		owner(channel[1]);
	}
	close(channel[1]);
	fd = receive_descriptor(channel[0]);
	device_begin(1);
	CHECK(cuMemImportFromShareableHandle(&team, (void *)(intptr_t)fd, FILE_TYPE));
	CHECK(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, FILE_TYPE));
	EXPECT(cuMulticastAddDevice(again, 2), CUDA_ERROR_INVALID_DEVICE);
	CHECK(cuMemRelease(again));
	REQUIRE(!close(fd));
	together(channel[0], 1);
	/* What is bound and was reached stays when the other one has ended, until it is unbound. */
	REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	CHECK(multimem("sum_u32", multi, &out));
	CHECK(cuMemcpyDtoH(&value, out, 4));
	REQUIRE_EQUAL(value, 2021);
	CHECK(cuMulticastUnbind(team, 0, 0, SIZE));
	EXPECT(multimem("sum_u32", multi, &out), CUDA_ERROR_ILLEGAL_ADDRESS);
	return 0;
}
