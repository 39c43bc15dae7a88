/* The log of what this library says, core dumps, and what a remote GPU does not do: each by
 * the attribute that says so and by its error. */
#include "calls.h"

#include <unistd.h>

/* Not served. */
extern CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *memory, unsigned flags);

static char heard[512];

static void hear(void *opaque, CUlogLevel level, char *message, size_t length)
{
	REQUIRE(opaque == heard && level == CU_LOG_LEVEL_ERROR && length < sizeof(heard));
	memcpy(heard, message, length + 1);
}

static int attribute(CUdevice_attribute name)
{
	int value = -1;

	CHECK(cuDeviceGetAttribute(&value, name, 0));
	return value;
}

static void logs(void)
{
	char text[1024], path[] = "/tmp/farbus-call-XXXXXX";
	CUlogsCallbackHandle callback;
	size_t size = sizeof(text);
	CUlogIterator before, after;
	bool on = true;
	FILE *file;

	CHECK(cuLogsRegisterCallback(hear, heard, &callback));
	CHECK(cuLogsCurrent(&before, 0));
	size = sizeof(on);
	EXPECT(cuCoredumpSetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, &on, &size),
	       CUDA_ERROR_NOT_SUPPORTED);
	REQUIRE(strstr(heard, "core dumps"));
	CHECK(cuLogsCurrent(&after, 0));
	REQUIRE_EQUAL(after - before, 1);
	size = sizeof(text);
	CHECK(cuLogsDumpToMemory(&before, text, &size, 0));
	REQUIRE(before == after && size == strlen(text) && !strcmp(text, heard));
	size = sizeof(text);
	CHECK(cuLogsDumpToMemory(&before, text, &size, 0));
	REQUIRE_EQUAL(size, 0);

	REQUIRE(close(mkstemp(path)) == 0);
	CHECK(cuLogsDumpToFile(NULL, path, 0));
	file = fopen(path, "r");
	REQUIRE(file && fgets(text, sizeof(text), file));
	fclose(file);
	unlink(path);
	REQUIRE(!strncmp(text, "farbus: ", 8));

	CHECK(cuLogsUnregisterCallback(callback));
	EXPECT(cuLogsUnregisterCallback(callback), CUDA_ERROR_INVALID_VALUE);
	heard[0] = '\0';
	size = sizeof(on);
	EXPECT(cuCoredumpSetAttribute(CU_COREDUMP_TRIGGER_HOST, &on, &size), CUDA_ERROR_NOT_SUPPORTED);
	REQUIRE(!heard[0]);
}

static void core_dumps(void)
{
	bool on = true;
	char name[16] = "x";
	size_t size = sizeof(on);

	CHECK(cuCoredumpGetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &on, &size));
	REQUIRE(!on && size == sizeof(on));
	CHECK(cuCoredumpSetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &on, &size));
	CHECK(cuCoredumpSetAttributeGlobal(CU_COREDUMP_LIGHTWEIGHT, &on, &size));
	size = sizeof(name);
	CHECK(cuCoredumpGetAttributeGlobal(CU_COREDUMP_FILE, name, &size));
	REQUIRE(!name[0] && size == 1);
	EXPECT(cuCoredumpGetAttributeGlobal(CU_COREDUMP_MAX, name, &size), CUDA_ERROR_INVALID_VALUE);
}

/* Whether pinned memory is mapped is told beforehand; managed memory is the GPU's while it works. */
static void no_coherent_memory(void)
{
	const bool maps = attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
	CUdeviceptr address;
	void *memory;

	REQUIRE_EQUAL(attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY), 1);
	REQUIRE_EQUAL(attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS), 0);
	REQUIRE_EQUAL(attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS), 0);
	REQUIRE_EQUAL(attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM), 0);
	REQUIRE_EQUAL(attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED), 1);
	CHECK(cuMemHostAlloc(&memory, 4096, 0));
	EXPECT(cuMemHostGetDevicePointer_v2(&address, memory, 0), maps ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
	CHECK(cuMemFreeHost(memory));
}

/* One copy with what a batch says of each. */
static void copies(void)
{
	CUmemcpyAttributes how = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
	CUdeviceptr from = words(2, 31), to = words(2, 0);
	CUDA_MEMCPY3D_BATCH_OP box = {
		.src = { .type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr = { .ptr = from } },
		.dst = { .type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr = { .ptr = to + 4 } },
		.extent = { 4, 1, 1 },
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
	};
	CUstream stream;

	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuMemcpyWithAttributesAsync(to, from, 4, &how, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE(word_at(to) == 31 && word_at(to + 4) == 0);
	CHECK(cuMemcpy3DWithAttributesAsync(&box, 0, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(to + 4), 31);
}

int main(void)
{
	begin();
	logs();
	core_dumps();
	no_coherent_memory();
	copies();
	return 0;
}
