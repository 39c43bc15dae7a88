/* worker [SOCKET] - does what it reads, a line at a time, and answers with one: a number, "ok" or "error N".
 *
 *	device NUMBER		what follows is about that
 *	make BYTES		memory, as an object, mapped and zero
 *	plain BYTES		memory of cuMemAlloc's, as an object
 *	export OBJECT		its descriptor
 *	import DESCRIPTOR	an object, mapped
 *	put OBJECT VALUE	by a kernel
 *	get OBJECT
 *	release OBJECT		with its mapping
 *	pool, pool-export POOL, pool-import DESCRIPTOR, pool-destroy POOL
 *	allocate POOL BYTES	an object
 *	tell OBJECT		where in its pool it is, as hexadecimal digits
 *	open POOL DIGITS	an object of another process's
 *	free OBJECT
 *	close DESCRIPTOR, send DESCRIPTOR, receive
 *	ends			how many sockets of this process's are of the kind that descriptors are
 *	fork			a child that waits until it is told to go on: how many such it has, and what an export gets
 *	end			of the child
 *	attribute NUMBER	of the device
 *	told OBJECT NUMBER	what an attribute of its address is
 *	available		bytes of the device
 *	others TYPE		what memory, a pool and an export of object 0 get for handles of that type
 */
#include "../calls.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILE_TYPE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define MOST 4096

static struct {
	CUmemGenericAllocationHandle memory;
	CUdeviceptr address;
	size_t bytes;
} objects[MOST];
static CUmemoryPool pools[MOST];
static int object_count, pool_count, device, channel = -1, hold[2];
static pid_t child;

static int answer(CUresult result, long long value)
{
	return result == CUDA_SUCCESS ? printf("%lld\n", value) : printf("error %d\n", result);
}

static CUresult use(int number)
{
	CUcontext context;
	CUresult result = cuDevicePrimaryCtxRetain(&context, number);

	device = number;
	return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

static CUresult map(int object)
{
	CUmemAccessDesc open = { { CU_MEM_LOCATION_TYPE_DEVICE, device }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr *address = &objects[object].address;
	size_t bytes = objects[object].bytes;
	CUresult result = cuMemAddressReserve(address, bytes, 0, 0, 0);

	if (result == CUDA_SUCCESS)
		result = cuMemMap(*address, bytes, 0, objects[object].memory, 0);
	return result == CUDA_SUCCESS ? cuMemSetAccess(*address, bytes, &open, 1) : result;
}

static CUresult make(size_t bytes)
{
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, device },
		.requestedHandleTypes = FILE_TYPE,
	};
	CUresult result = cuMemCreate(&objects[object_count].memory, bytes, &properties, 0);

	objects[object_count].bytes = bytes;
	return result == CUDA_SUCCESS ? map(object_count) : result;
}

static CUresult release(int object)
{
	CUresult result = cuMemUnmap(objects[object].address, objects[object].bytes);

	if (result == CUDA_SUCCESS)
		result = cuMemAddressFree(objects[object].address, objects[object].bytes);
	return result == CUDA_SUCCESS ? cuMemRelease(objects[object].memory) : result;
}

static CUresult pool_make(void)
{
	const CUmemPoolProps properties = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = FILE_TYPE,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, device },
	};

	return cuMemPoolCreate(&pools[pool_count], &properties);
}

static void others(CUmemAllocationHandleType type)
{
	const CUmemAllocationProp memory = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, device },
		.requestedHandleTypes = type,
	};
	const CUmemPoolProps pool = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = type,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, device },
	};
	CUmemGenericAllocationHandle made;
	CUmemoryPool made_pool;
	char handle[64];

	printf("%d %d %d\n", (int)cuMemCreate(&made, objects[0].bytes, &memory, 0),
	       (int)cuMemPoolCreate(&made_pool, &pool),
	       (int)cuMemExportToShareableHandle(handle, objects[0].memory, type, 0));
}

static CUresult put(int object, unsigned value)
{
	static CUmodule modules[8];
	CUdeviceptr address = objects[object].address;
	void *parameters[] = { &address, &value };
	CUfunction store;
	CUresult result;

	if (!modules[device])
		CHECK(cuModuleLoadData(&modules[device], code));
	CHECK(cuModuleGetFunction(&store, modules[device], "store"));
	result = cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);

	return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
}

static int move(int descriptor, bool send)
{
	char room[CMSG_SPACE(sizeof(int))] = "", byte = 0;
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof(room) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	if (!send) {
		REQUIRE(recvmsg(channel, &message, 0) == 1);
		memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
		return descriptor;
	}
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
	return sendmsg(channel, &message, 0) == 1 ? 0 : -1;
}

static int ends(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	int count = 0;

	while ((entry = readdir(folder))) {
		int domain = 0, type = 0;
		socklen_t bytes = sizeof(int);

		getsockopt(atoi(entry->d_name), SOL_SOCKET, SO_DOMAIN, &domain, &bytes);
		getsockopt(atoi(entry->d_name), SOL_SOCKET, SO_TYPE, &type, &bytes);
		count += domain == AF_UNIX && type == SOCK_SEQPACKET;
	}
	closedir(folder);
	return count;
}

static void fork_child(void)
{
	char byte;

	REQUIRE(!pipe(hold));
	child = fork();
	if (child) {
		close(hold[0]);
		return;
	}
	close(hold[1]);
	/* It has the program's ends alone. */
	printf("%d error %d\n", ends(), (int)cuMemExportToShareableHandle(&hold[1], objects[0].memory, FILE_TYPE, 0));
	fflush(stdout);
	_exit(read(hold[0], &byte, 1) != 0);
}

static void tell(int object)
{
	CUmemPoolPtrExportData data;
	CUresult result = cuMemPoolExportPointer(&data, objects[object].address);

	if (result != CUDA_SUCCESS) {
		answer(result, 0);
		return;
	}
	for (size_t i = 0; i < sizeof(data); i++)
		printf("%02x", data.reserved[i]);
	printf("\n");
}

static CUresult pointer_open(int pool, const char *digits)
{
	CUmemPoolPtrExportData data = { { 0 } };
	unsigned byte;

	for (size_t i = 0; i < sizeof(data) && sscanf(digits + 2 * i, "%2x", &byte) == 1; i++)
		data.reserved[i] = (unsigned char)byte;
	return cuMemPoolImportPointer(&objects[object_count].address, pools[pool], &data);
}

static bool is(const char *word, const char *command)
{
	return strcmp(word, command) == 0;
}

static void run(const char *word, const char *rest)
{
	unsigned long long first = 0, second = 0, wide = 0;
	unsigned value = 0;
	size_t free_bytes = 0, total;
	int descriptor = -1, number = 0, status;
	CUresult result;

	sscanf(rest, "%llu %llu", &first, &second);
	if (is(word, "device")) {
		answer(use((int)first), 0);
	} else if (is(word, "make")) {
		result = make(first);
		answer(result, object_count);
		object_count += result == CUDA_SUCCESS;
	} else if (is(word, "plain")) {
		result = cuMemAlloc_v2(&objects[object_count].address, first);
		answer(result, object_count);
		object_count += result == CUDA_SUCCESS;
	} else if (is(word, "export")) {
		result = cuMemExportToShareableHandle(&descriptor, objects[first].memory, FILE_TYPE, 0);
		answer(result, descriptor);
	} else if (is(word, "import")) {
		result = cuMemImportFromShareableHandle(&objects[object_count].memory, (void *)(uintptr_t)first,
							FILE_TYPE);
		objects[object_count].bytes = second;
		if (result == CUDA_SUCCESS)
			result = map(object_count);
		answer(result, object_count);
		object_count += result == CUDA_SUCCESS;
	} else if (is(word, "put")) {
		answer(put((int)first, (unsigned)second), 0);
	} else if (is(word, "get")) {
		result = cuMemcpyDtoH_v2(&value, objects[first].address, sizeof(value));
		answer(result, value);
	} else if (is(word, "release")) {
		answer(release((int)first), 0);
	} else if (is(word, "pool")) {
		result = pool_make();
		answer(result, pool_count);
		pool_count += result == CUDA_SUCCESS;
	} else if (is(word, "pool-export")) {
		result = cuMemPoolExportToShareableHandle(&descriptor, pools[first], FILE_TYPE, 0);
		answer(result, descriptor);
	} else if (is(word, "pool-import")) {
		result = cuMemPoolImportFromShareableHandle(&pools[pool_count], (void *)(uintptr_t)first, FILE_TYPE, 0);
		answer(result, pool_count);
		pool_count += result == CUDA_SUCCESS;
	} else if (is(word, "pool-destroy")) {
		answer(cuMemPoolDestroy(pools[first]), 0);
	} else if (is(word, "allocate")) {
		result = cuMemAllocFromPoolAsync(&objects[object_count].address, second, pools[first], NULL);
		if (result == CUDA_SUCCESS)
			result = cuCtxSynchronize();
		answer(result, object_count);
		object_count += result == CUDA_SUCCESS;
	} else if (is(word, "tell")) {
		tell((int)first);
	} else if (is(word, "open")) {
		result = pointer_open((int)first, strchr(rest, ' ') + 1);
		answer(result, object_count);
		object_count += result == CUDA_SUCCESS;
	} else if (is(word, "free")) {
		result = cuMemFreeAsync(objects[first].address, NULL);
		answer(result == CUDA_SUCCESS ? cuCtxSynchronize() : result, 0);
	} else if (is(word, "close")) {
		printf("%d\n", close((int)first));
	} else if (is(word, "send")) {
		printf("%d\n", move((int)first, true));
	} else if (is(word, "receive")) {
		printf("%d\n", move(-1, false));
	} else if (is(word, "ends")) {
		printf("%d\n", ends());
	} else if (is(word, "fork")) {
		fork_child();
	} else if (is(word, "end")) {
		close(hold[1]);
		REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status));
		printf("%d\n", WEXITSTATUS(status));
	} else if (is(word, "attribute")) {
		result = cuDeviceGetAttribute(&number, (CUdevice_attribute)first, 0);
		answer(result, number);
	} else if (is(word, "told")) {
		result = cuPointerGetAttribute(&wide, (CUpointer_attribute)second, objects[first].address);
		answer(result, (long long)wide);
	} else if (is(word, "others")) {
		others((CUmemAllocationHandleType)first);
	} else if (is(word, "available")) {
		result = cuMemGetInfo_v2(&free_bytes, &total);
		answer(result, (long long)free_bytes);
	} else {
		printf("what is %s?\n", word);
	}
	fflush(stdout);
}

int main(int argc, char **argv)
{
	char line[512];

	if (argc > 1)
		channel = atoi(argv[1]);
	begin();
	while (fgets(line, sizeof(line), stdin)) {
		char *rest = strpbrk(line, " \n");

		*rest++ = '\0';
		run(line, rest);
	}
	return 0;
}
