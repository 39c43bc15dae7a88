// Launches of kernels in all ways that a program has, and of two whose long names differ in the middle alone.
#include "../check.h"

#include <cooperative_groups.h>
#include <cuda.h>
#include <utility>

extern "C" __global__ void plain(int *data)
{
	data[0] += 1;
}

__global__ void add(int *data, int value)
{
	data[0] += value;
}

__global__ void together(int *data)
{
	cooperative_groups::this_grid().sync();
	if (!blockIdx.x && !threadIdx.x)
		data[0] += 1;
}

template <typename Before, int middle, typename After> __global__ void long_name(int *data)
{
	data[0] += middle;
}

using Digits = std::make_integer_sequence<int, 100>;
template <int... n> std::integer_sequence<int, (1000 + n)...> shifted(std::integer_sequence<int, n...>);
using Others = decltype(shifted(Digits()));

static void driver(CUresult result)
{
	if (result != CUDA_SUCCESS)
		FAIL("a call of the driver ended with %d", (int)result);
}

template <typename Function> static Function *find(const char *name)
{
	void *found = nullptr;
	CUDA(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault));
	return reinterpret_cast<Function *>(found);
}

static const char ptx[] = R"(
.version 6.4
.target sm_50
.address_size 64
.visible .entry $of_ptx() { ret; }
)";

int main()
{
	int *data, result = 0, value = 3;
	cudaStream_t stream;
	CUDA(cudaMalloc(&data, sizeof(int)));
	CUDA(cudaMemset(data, 0, sizeof(int)));
	CUDA(cudaStreamCreate(&stream));

	for (int i = 0; i < 5; i++)
		plain<<<1, 1>>>(data);
	for (int i = 0; i < 3; i++)
		add<<<dim3(1, 1, 1), dim3(1, 1, 1), 0, stream>>>(data, 10);
	CUDA(cudaStreamSynchronize(stream));

	void *arguments[] = { &data };
	CUDA(cudaLaunchCooperativeKernel((const void *)together, dim3(2), dim3(32), arguments, 0, stream));
	CUDA(cudaStreamSynchronize(stream));

	cudaLaunchConfig_t config = {};
	config.gridDim = dim3(3, 2, 1);
	config.blockDim = dim3(1, 4, 2);
	config.stream = stream;
	CUDA(cudaLaunchKernelEx(&config, add, data, 0));
	CUDA(cudaStreamSynchronize(stream));

	// The same kernel by its CUkernel, through the driver.
	cudaKernel_t kernel;
	void *both[] = { &data, &value };
	CUDA(cudaGetKernel(&kernel, add));
	auto *launch = find<decltype(cuLaunchKernel)>("cuLaunchKernel");
	driver(launch((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, stream, both, nullptr));
	CUDA(cudaStreamSynchronize(stream));

	CUlibrary library;
	CUkernel of_library;
	driver(find<decltype(cuLibraryLoadData)>("cuLibraryLoadData")(&library, ptx, nullptr, nullptr, 0, nullptr, nullptr,
								      0));
	driver(find<decltype(cuLibraryGetKernel)>("cuLibraryGetKernel")(&of_library, library, "$of_ptx"));
	driver(launch((CUfunction)of_library, 7, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr));

	// What a graph holds counts when it is captured.
	cudaGraph_t graph;
	cudaGraphExec_t runs;
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	plain<<<1, 1, 0, stream>>>(data);
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiate(&runs, graph, 0));
	for (int i = 0; i < 4; i++)
		CUDA(cudaGraphLaunch(runs, stream));
	CUDA(cudaStreamSynchronize(stream));

	long_name<Digits, 1, Others><<<1, 1, 0, stream>>>(data);
	long_name<Digits, 2, Others><<<1, 1, 0, stream>>>(data);
	long_name<Digits, 2, Others><<<1, 1, 0, stream>>>(data);
	CUDA(cudaMemcpyAsync(&result, data, sizeof(int), cudaMemcpyDeviceToHost, stream));
	CUDA(cudaStreamSynchronize(stream));
	EXPECT(result == 5 + 3 * 10 + 1 + 3 + 4 + 5);
	driver(find<decltype(cuLibraryUnload)>("cuLibraryUnload")(library));
	return passed();
}
