// Pinned memory that program and server may both have: bytes and order of copies from it and to
// it, whole and in part, beside host functions, events, graphs and other kinds of memory.
#include "check.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

static const size_t BYTES = 3 << 20;

static unsigned char byte_of(size_t i, unsigned seed)
{
	return (unsigned char)((i + seed) * 2654435761u >> 13);
}

static void fill(unsigned char *at, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes; i++)
		at[i] = byte_of(i, seed);
}

static bool holds(const unsigned char *at, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes; i++)
		if (at[i] != byte_of(i, seed))
			return false;
	return true;
}

struct step {
	unsigned char *memory;
	unsigned seed;
	std::atomic<int> go{1};
	bool right = false;
};

// The program holds the stream here, so that everything behind is queued before it goes on.
static void look(void *opaque)
{
	step *it = (step *)opaque;
	while (!it->go)
		std::this_thread::yield();
	it->right = holds(it->memory, BYTES, it->seed);
}

static void write_there(void *opaque)
{
	step *it = (step *)opaque;
	while (!it->go)
		std::this_thread::yield();
	fill(it->memory, BYTES, it->seed);
}

static unsigned char *pinned, *second, *device, *other;
static cudaStream_t stream;

// A host function writes what the copy behind it reads; the next one sees what came back.
static void behind_host_functions()
{
	step before{pinned, 1}, after{second, 1};
	before.go = 0;
	std::memset(pinned, 0, BYTES);
	std::memset(second, 0, BYTES);
	CUDA(cudaLaunchHostFunc(stream, write_there, &before));
	CUDA(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemcpyAsync(second, device, BYTES, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaLaunchHostFunc(stream, look, &after));
	before.go = 1;
	CUDA(cudaStreamSynchronize(stream));
	EXPECT(after.right);
}

// An event says that the bytes are in place: without another call, and from another stream.
static void told_by_events()
{
	cudaEvent_t event;
	cudaStream_t waiting;
	CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
	CUDA(cudaStreamCreateWithFlags(&waiting, cudaStreamNonBlocking));
	fill(pinned, BYTES, 2);
	CUDA(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemcpyAsync(second, device, BYTES, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaEventRecord(event, stream));
	while (cudaEventQuery(event) == cudaErrorNotReady)
		std::this_thread::yield();
	EXPECT(holds(second, BYTES, 2));
	// What one stream writes, another reads behind the event.
	fill(pinned, BYTES, 3);
	CUDA(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemcpyAsync(second, device, BYTES, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaEventRecord(event, stream));
	CUDA(cudaStreamWaitEvent(waiting, event, 0));
	CUDA(cudaMemcpyAsync(other, second, BYTES, cudaMemcpyHostToDevice, waiting));
	CUDA(cudaStreamSynchronize(waiting));
	std::memset(pinned, 0, BYTES);
	CUDA(cudaMemcpy(pinned, other, BYTES, cudaMemcpyDeviceToHost));
	EXPECT(holds(pinned, BYTES, 3));
	CUDA(cudaEventDestroy(event));
	CUDA(cudaStreamDestroy(waiting));
}

// Rows with gaps on both sides, from the middle of the memory; what lies between stays.
static void rows()
{
	const size_t width = 1000, height = 300, pitch = 1536, from = 4097;
	fill(pinned, BYTES, 4);
	CUDA(cudaMemsetAsync(device, 0, BYTES, stream));
	CUDA(cudaMemcpy2DAsync(device + 64, 2048, pinned + from, pitch, width, height, cudaMemcpyHostToDevice, stream));
	std::memset(second, 0xee, BYTES);
	CUDA(cudaMemcpy2DAsync(second + 3, pitch + 1, device + 64, 2048, width, height, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaStreamSynchronize(stream));
	for (size_t y = 0; y < height; y++) {
		for (size_t x = 0; x < width; x++)
			EXPECT(second[3 + y * (pitch + 1) + x] == byte_of(from + y * pitch + x, 4));
		EXPECT(second[3 + y * (pitch + 1) + width] == 0xee);
	}
	// The last byte is inside, the one behind it is not.
	CUDA(cudaMemcpy(device, pinned + BYTES - 5, 5, cudaMemcpyHostToDevice));
	CUDA(cudaMemcpy(second, device, 5, cudaMemcpyDeviceToHost));
	EXPECT(std::memcmp(second, pinned + BYTES - 5, 5) == 0);
}

// A graph's copies beside plain ones of the same memory, in one stream.
static void graphs()
{
	cudaGraph_t graph;
	cudaGraphExec_t run;
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	CUDA(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemcpyAsync(second, device, BYTES, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiateWithFlags(&run, graph, 0));
	for (unsigned seed = 5; seed < 8; seed++) {
		fill(pinned, BYTES, seed);
		CUDA(cudaGraphLaunch(run, stream));
		// Reads what the graph has written.
		CUDA(cudaMemcpyAsync(other, second, BYTES, cudaMemcpyHostToDevice, stream));
		// Overwrites it: the graph's bytes must not come later.
		CUDA(cudaMemsetAsync(device, (int)seed, BYTES, stream));
		CUDA(cudaMemcpyAsync(second, device, BYTES, cudaMemcpyDeviceToHost, stream));
		CUDA(cudaStreamSynchronize(stream));
		for (size_t i = 0; i < BYTES; i++)
			EXPECT(second[i] == seed);
		CUDA(cudaMemcpy(second, other, BYTES, cudaMemcpyDeviceToHost));
		EXPECT(holds(second, BYTES, seed));
	}
	CUDA(cudaGraphExecDestroy(run));
	CUDA(cudaGraphDestroy(graph));
}

// An array takes bytes that a copy ahead of it in the stream has still to bring.
static void arrays()
{
	const size_t width = 512, height = 64;
	cudaArray_t array;
	const cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned char>();
	CUDA(cudaMallocArray(&array, &format, width, height));
	fill(pinned, BYTES, 9);
	std::memset(second, 0, BYTES);
	CUDA(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemcpyAsync(second, device, BYTES, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaMemcpy2DToArrayAsync(array, 0, 0, second, width, width, height, cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemcpy2DFromArrayAsync(pinned, width, array, 0, 0, width, height, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaStreamSynchronize(stream));
	EXPECT(holds(pinned, width * height, 9));
	CUDA(cudaFreeArray(array));
}

// Freed with a copy in flight: it is over first, and the addresses may be anybody's then.
static void freed_in_flight()
{
	unsigned char *going;
	step hold{nullptr, 0};
	CUDA(cudaMallocHost(&going, BYTES));
	fill(going, BYTES, 10);
	hold.memory = going;
	hold.seed = 10;
	hold.go = 0;
	CUDA(cudaLaunchHostFunc(stream, look, &hold));
	CUDA(cudaMemcpyAsync(device, going, BYTES, cudaMemcpyHostToDevice, stream));
	hold.go = 1;
	CUDA(cudaFreeHost(going));
	EXPECT(hold.right);
	CUDA(cudaMemcpy(second, device, BYTES, cudaMemcpyDeviceToHost));
	EXPECT(holds(second, BYTES, 10));
	EXPECT_ERROR(cudaFreeHost(second + 1), cudaErrorInvalidValue);
	CUDA(cudaMallocHost(&going, BYTES));
	CUDA(cudaFreeHost(going));
	(void)cudaGetLastError();
	EXPECT_ERROR(cudaFreeHost(going), cudaErrorInvalidValue);
	(void)cudaGetLastError();
}

static void described()
{
	unsigned flags = 99;
	unsigned char *portable;
	cudaPointerAttributes attributes;
	CUDA(cudaHostAlloc(&portable, BYTES, cudaHostAllocPortable | cudaHostAllocWriteCombined));
	CUDA(cudaHostGetFlags(&flags, portable));
	EXPECT((flags & cudaHostAllocWriteCombined) != 0);
	CUDA(cudaPointerGetAttributes(&attributes, portable + 100));
	EXPECT(attributes.type == cudaMemoryTypeHost);
	for (size_t i = 0; i < BYTES; i++)
		EXPECT(portable[i] == 0);
	CUDA(cudaFreeHost(portable));
}

static void thread_of(int number)
{
	const size_t bytes = (size_t)(40 + 8 * (number % 16)) << 10;
	cudaStream_t mine;
	unsigned char *there;
	CUDA(cudaStreamCreateWithFlags(&mine, cudaStreamNonBlocking));
	CUDA(cudaMalloc(&there, bytes));
	for (unsigned round = 0; round < 3; round++) {
		unsigned char *out, *in;
		CUDA(cudaMallocHost(&out, bytes));
		CUDA(cudaMallocHost(&in, bytes));
		fill(out, bytes, (unsigned)number + round);
		CUDA(cudaMemcpyAsync(there, out, bytes, cudaMemcpyHostToDevice, mine));
		CUDA(cudaMemcpyAsync(in, there, bytes, cudaMemcpyDeviceToHost, mine));
		CUDA(cudaStreamSynchronize(mine));
		EXPECT(holds(in, bytes, (unsigned)number + round));
		CUDA(cudaFreeHost(out));
		CUDA(cudaFreeHost(in));
	}
	CUDA(cudaFree(there));
	CUDA(cudaStreamDestroy(mine));
}

static void threads()
{
	std::vector<std::thread> all;
	for (int i = 0; i < 64; i++)
		all.emplace_back(thread_of, i);
	for (auto &thread : all)
		thread.join();
}

int main()
{
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaMallocHost(&pinned, BYTES));
	CUDA(cudaMallocHost(&second, BYTES));
	CUDA(cudaMalloc(&device, BYTES));
	CUDA(cudaMalloc(&other, BYTES));
	behind_host_functions();
	told_by_events();
	rows();
	arrays();
	freed_in_flight();
	described();
	threads();
	graphs();
	return passed();
}
