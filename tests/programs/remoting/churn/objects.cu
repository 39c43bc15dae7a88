// Objects of one kind, made and destroyed again and again: neither memory nor descriptors may grow.
// Usage: objects KIND CYCLES; it waits for a line behind each of two rounds, for who looks at the server.
#include "../check.h"

#include <cstdlib>
#include <cstring>
#include <dirent.h>

#include <cuda.h>
#include <dlfcn.h>

static const char ptx[] = ".version 6.4\n.target sm_50\n.address_size 64\n"
			  ".global .align 4 .b8 bytes[64];\n.visible .entry nothing() { ret; }\n";

static cudaStream_t stream;
static int *counter;
static decltype(&cuModuleLoadData) load;
static decltype(&cuModuleUnload) unload;
static decltype(&cuModuleGetFunction) find;

__global__ void add(int *data)
{
	atomicAdd(data, 1);
}

static void a_stream()
{
	cudaStream_t made;

	CUDA(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
	add<<<1, 1, 0, made>>>(counter);
	CUDA(cudaStreamDestroy(made));
}

static void an_event()
{
	cudaEvent_t made;

	CUDA(cudaEventCreate(&made));
	CUDA(cudaEventRecord(made, stream));
	CUDA(cudaEventDestroy(made));
}

static void a_module()
{
	CUmodule made;
	CUfunction function;

	EXPECT(load(&made, ptx) == CUDA_SUCCESS);
	EXPECT(find(&function, made, "nothing") == CUDA_SUCCESS);
	EXPECT(unload(made) == CUDA_SUCCESS);
}

static void an_allocation()
{
	void *made;

	CUDA(cudaMalloc(&made, 10000));
	CUDA(cudaFree(made));
}

static void an_ordered_allocation()
{
	void *made;

	CUDA(cudaMallocAsync(&made, 10000, stream));
	CUDA(cudaFreeAsync(made, stream));
}

static void a_pinned_allocation()
{
	void *made;

	CUDA(cudaMallocHost(&made, 10000));
	CUDA(cudaFreeHost(made));
}

static void a_managed_allocation()
{
	int *made;

	CUDA(cudaMallocManaged(&made, 10000));
	made[0] = 1;
	CUDA(cudaFree(made));
}

static void a_pool()
{
	cudaMemPoolProps props = {};
	cudaMemPool_t made;
	void *memory;

	props.allocType = cudaMemAllocationTypePinned;
	props.location.type = cudaMemLocationTypeDevice;
	CUDA(cudaMemPoolCreate(&made, &props));
	CUDA(cudaMallocFromPoolAsync(&memory, 1000, made, stream));
	CUDA(cudaFreeAsync(memory, stream));
	CUDA(cudaMemPoolDestroy(made));
}

static void a_graph()
{
	cudaGraphExec_t executable;
	cudaGraph_t made;

	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	add<<<1, 1, 0, stream>>>(counter);
	CUDA(cudaMemsetAsync(counter, 0, sizeof(*counter), stream));
	CUDA(cudaStreamEndCapture(stream, &made));
	CUDA(cudaGraphInstantiate(&executable, made, 0));
	CUDA(cudaGraphLaunch(executable, stream));
	CUDA(cudaGraphExecDestroy(executable));
	CUDA(cudaGraphDestroy(made));
}

static cudaArray_t an_array()
{
	const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
	cudaArray_t made;

	CUDA(cudaMallocArray(&made, &format, 64, 16, cudaArraySurfaceLoadStore));
	return made;
}

static void an_array_again()
{
	CUDA(cudaFreeArray(an_array()));
}

static void a_texture()
{
	static cudaArray_t array;
	cudaResourceDesc resource = {};
	cudaTextureDesc description = {};
	cudaTextureObject_t made;
	cudaSurfaceObject_t surface;

	if (!array)
		array = an_array();
	resource.resType = cudaResourceTypeArray;
	resource.res.array.array = array;
	CUDA(cudaCreateTextureObject(&made, &resource, &description, nullptr));
	CUDA(cudaCreateSurfaceObject(&surface, &resource));
	CUDA(cudaDestroySurfaceObject(surface));
	CUDA(cudaDestroyTextureObject(made));
}

static void CUDART_CB nothing(void *) {}

static void a_host_function()
{
	CUDA(cudaLaunchHostFunc(stream, nothing, nullptr));
}

static void a_copy()
{
	static void *device;
	static char here[4096];

	if (!device)
		CUDA(cudaMalloc(&device, sizeof(here)));
	CUDA(cudaMemcpyAsync(device, here, sizeof(here), cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemcpyAsync(here, device, sizeof(here), cudaMemcpyDeviceToHost, stream));
}

static const struct {
	const char *name;
	void (*cycle)();
} kinds[] = {
	{ "stream", a_stream },
	{ "event", an_event },
	{ "module", a_module },
	{ "allocation", an_allocation },
	{ "ordered", an_ordered_allocation },
	{ "pinned", a_pinned_allocation },
	{ "managed", a_managed_allocation },
	{ "pool", a_pool },
	{ "graph", a_graph },
	{ "array", an_array_again },
	{ "texture", a_texture },
	{ "host-function", a_host_function },
	{ "copy", a_copy },
};

static long descriptors()
{
	DIR *folder = opendir("/proc/self/fd");
	long found = -1; /* its own */

	while (readdir(folder))
		found++;
	closedir(folder);
	return found;
}

static void tell()
{
	long pages, resident;
	FILE *file = std::fopen("/proc/self/statm", "r");
	char line[8];

	CUDA(cudaDeviceSynchronize());
	EXPECT(file && std::fscanf(file, "%ld %ld", &pages, &resident) == 2);
	std::fclose(file);
	std::printf("%ld %ld %ld\n", pages * 4096, resident * 4096, descriptors());
	std::fflush(stdout);
	EXPECT(std::fgets(line, sizeof(line), stdin));
}

int main(int words_count, char **words)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	void (*cycle)() = nullptr;
	long cycles = words_count == 3 ? std::atol(words[2]) : 0;

	load = reinterpret_cast<decltype(load)>(dlsym(driver, "cuModuleLoadData"));
	unload = reinterpret_cast<decltype(unload)>(dlsym(driver, "cuModuleUnload"));
	find = reinterpret_cast<decltype(find)>(dlsym(driver, "cuModuleGetFunction"));
	for (const auto &kind : kinds)
		if (words_count == 3 && !std::strcmp(kind.name, words[1]))
			cycle = kind.cycle;
	EXPECT(cycle && cycles);
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaMalloc(&counter, sizeof(*counter)));
	for (int round = 0; round < 2; round++) {
		for (long i = 0; i < (round ? cycles : cycles / 4); i++) {
			cycle();
			if (i % 1000 == 999)
				CUDA(cudaStreamSynchronize(stream));
		}
		tell();
	}
	return passed();
}
