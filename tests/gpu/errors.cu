/* What wrong calls report, and which call reports what went wrong on the device: one line for each.
 *
 * The same lines must come natively and over remoting on one driver.  Nothing here names an object that does not exist:
 * NVIDIA's driver looks into what it is given. */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

__global__ void nothing(void)
{
}

__global__ void __launch_bounds__(64) narrow(int *data)
{
	data[threadIdx.x] = 1;
}

__global__ void many_registers(const float *in, float *out)
{
	float held[200];

#pragma unroll
	for (int i = 0; i < 200; i++)
		held[i] = in[i * 1024 + threadIdx.x];
	__syncthreads();
#pragma unroll
	for (int i = 0; i < 200; i++)
		out[(199 - i) * 1024 + threadIdx.x] = held[i] * held[(i * 7) % 200];
}

__global__ void store(int *data, int value)
{
	*data = value;
}

__global__ void trap(void)
{
	asm("trap;");
}

__global__ void shared_static(int *data)
{
	__shared__ int all[1024];

	all[threadIdx.x] = data[threadIdx.x];
	__syncthreads();
	data[threadIdx.x] = all[1023 - threadIdx.x];
}

__device__ int variable;

static void told(const char *what, cudaError_t error)
{
	printf("%-52s %s\n", what, cudaGetErrorName(error));
}

static void told(const char *what, CUresult result)
{
	static CUresult (*name_of)(CUresult, const char **);
	const char *name = "?";

	if (!name_of)
		cudaGetDriverEntryPointByVersion("cuGetErrorName", (void **)&name_of, 12090, cudaEnableDefault);
	name_of(result, &name);
	printf("%-52s %s\n", what, name);
}

#define TOLD(call) told(#call, call)
#define LAUNCHED(launch)						\
	do {								\
		launch;							\
		cudaError_t at_once = cudaGetLastError();		\
		cudaError_t later = cudaDeviceSynchronize();		\
		printf("%-52s %s, then %s\n", #launch, cudaGetErrorName(at_once), cudaGetErrorName(later)); \
		cudaGetLastError();					\
	} while (0)

static int *device;
static char *pinned;

static void launches(void)
{
	LAUNCHED((nothing<<<1, 1024>>>()));
	LAUNCHED((nothing<<<1, 1025>>>()));
	LAUNCHED((nothing<<<1, 4096>>>()));
	LAUNCHED((nothing<<<1, 0>>>()));
	LAUNCHED((nothing<<<0, 1>>>()));
	LAUNCHED((nothing<<<1, dim3(1, 1, 65)>>>()));
	LAUNCHED((nothing<<<1, dim3(1, 1, 64)>>>()));
	LAUNCHED((nothing<<<1, dim3(32, 33)>>>()));
	LAUNCHED((nothing<<<dim3(1, 65536), 1>>>()));
	LAUNCHED((nothing<<<dim3(1, 1, 65536), 1>>>()));
	LAUNCHED((nothing<<<1, 1, 48 << 10>>>()));
	LAUNCHED((nothing<<<1, 1, (48 << 10) + 1>>>()));
	LAUNCHED((nothing<<<1, 1, 1 << 20>>>()));
	LAUNCHED((shared_static<<<1, 1, 48 << 10>>>(device)));
	LAUNCHED((narrow<<<1, 64>>>(device)));
	LAUNCHED((narrow<<<1, 65>>>(device)));
	LAUNCHED((narrow<<<1, 1024>>>(device)));
	LAUNCHED((many_registers<<<1, 1024>>>((float *)device, (float *)device)));
	TOLD(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10));
	LAUNCHED((nothing<<<1, 1, 64 << 10>>>()));
	TOLD(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20));
	TOLD(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, -1));
	void *arguments[] = {&device, nullptr};
	int one = 1;
	arguments[1] = &one;
	TOLD(cudaLaunchKernel((const void *)store, dim3(1), dim3(1), arguments, 0, 0));
	TOLD(cudaLaunchCooperativeKernel((const void *)nothing, dim3(1 << 20), dim3(1), nullptr, 0, 0));
	cudaLaunchConfig_t config = {};
	cudaLaunchAttribute cluster = {};
	config.gridDim = 9;
	config.blockDim = 32;
	config.attrs = &cluster;
	config.numAttrs = 1;
	cluster.id = cudaLaunchAttributeClusterDimension;
	cluster.val.clusterDim = {2, 1, 1};
	TOLD(cudaLaunchKernelEx(&config, nothing));
	config.gridDim = 32;
	cluster.val.clusterDim = {16, 1, 1};
	TOLD(cudaLaunchKernelEx(&config, nothing));
	cluster.val.clusterDim = {0, 1, 1};
	TOLD(cudaLaunchKernelEx(&config, nothing));
	cudaGetLastError();
	TOLD(cudaDeviceSynchronize());
}

static void memory(void)
{
	void *large = nullptr;
	char host[4096];
	size_t available, total;
	cudaPointerAttributes attributes;
	unsigned flags;

	cudaMemGetInfo(&available, &total);
	TOLD(cudaMalloc(&large, total * 2));
	TOLD(cudaMalloc(&large, ~(size_t)0));
	TOLD(cudaMalloc(&large, 0));
	TOLD(cudaMallocAsync(&large, total * 2, 0));
	TOLD(cudaFree(nullptr));
	TOLD(cudaFree((char *)device + 4));
	TOLD(cudaFree(host));
	TOLD(cudaFreeHost(host));
	TOLD(cudaFreeHost(nullptr));
	TOLD(cudaFreeAsync(nullptr, 0));
	TOLD(cudaHostUnregister(host));
	TOLD(cudaHostGetFlags(&flags, host));
	TOLD(cudaHostRegister(pinned, 4096, 0));
	TOLD(cudaMemcpy(device, host, sizeof(host), cudaMemcpyHostToDevice));
	TOLD(cudaMemcpy((char *)device + (1 << 20) - 16, host, sizeof(host), cudaMemcpyHostToDevice));
	TOLD(cudaMemcpy(host, (char *)device + (1 << 20) - 16, sizeof(host), cudaMemcpyDeviceToHost));
	TOLD(cudaMemcpy(host, host + 16, 16, cudaMemcpyDeviceToDevice));
	TOLD(cudaMemcpy(host, device, 16, cudaMemcpyHostToDevice));
	TOLD(cudaMemcpy(device, host, 16, (cudaMemcpyKind)9));
	TOLD(cudaMemcpyAsync((char *)device + (1 << 20) - 16, pinned, 4096, cudaMemcpyHostToDevice, 0));
	TOLD(cudaMemset(device, 0, (1 << 20) + 1));
	TOLD(cudaMemset((char *)device + (1 << 20), 0, 1));
	TOLD(cudaMemset2D(device, 16, 0, 32, 4));
	TOLD(cudaMemcpy2D(device, 16, host, 32, 32, 4, cudaMemcpyHostToDevice));
	TOLD(cudaMemcpyToSymbol(variable, host, 64, 0, cudaMemcpyHostToDevice));
	TOLD(cudaMemcpyToSymbol(variable, host, 4, 4, cudaMemcpyHostToDevice));
	TOLD(cudaPointerGetAttributes(&attributes, host));
	printf("  type %d\n", attributes.type);
	TOLD(cudaPointerGetAttributes(&attributes, pinned + 5));
	printf("  type %d\n", attributes.type);
	TOLD(cudaPointerGetAttributes(&attributes, device + 5));
	printf("  type %d\n", attributes.type);
	TOLD(cudaHostAlloc(&large, total * 64, 0));
	cudaGetLastError();
}

static void nowhere(void)
{
	char host[16];

	TOLD(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyHostToDevice));
	TOLD(cudaMemcpy(nullptr, host, 16, cudaMemcpyHostToDevice));
	TOLD(cudaMemcpy(host, nullptr, 16, cudaMemcpyDeviceToHost));
	TOLD(cudaMemset(nullptr, 0, 16));
	TOLD(cudaMemcpy(nullptr, device, 16, cudaMemcpyDeviceToHost));
	TOLD(cudaMemcpy(device, nullptr, 16, cudaMemcpyHostToDevice));
}

static void others(void)
{
	cudaStream_t stream;
	cudaEvent_t first, second;
	cudaGraph_t graph;
	cudaDeviceProp properties;
	int value;
	float milliseconds;

	TOLD(cudaSetDevice(99));
	TOLD(cudaSetDevice(-1));
	TOLD(cudaGetDeviceProperties(&properties, 99));
	TOLD(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 99));
	TOLD(cudaDeviceGetAttribute(&value, (cudaDeviceAttr)9999, 0));
	TOLD(cudaDeviceCanAccessPeer(&value, 0, 0));
	TOLD(cudaDeviceEnablePeerAccess(0, 0));
	TOLD(cudaDeviceSetLimit((cudaLimit)99, 1));
	TOLD(cudaStreamCreateWithFlags(&stream, 99));
	TOLD(cudaStreamCreate(&stream));
	TOLD(cudaEventCreateWithFlags(&first, 0xff00));
	TOLD(cudaEventCreate(&first));
	TOLD(cudaEventCreateWithFlags(&second, cudaEventDisableTiming));
	TOLD(cudaEventQuery(first));
	TOLD(cudaEventElapsedTime(&milliseconds, first, first));
	TOLD(cudaEventRecord(first, stream));
	TOLD(cudaEventRecord(second, stream));
	TOLD(cudaStreamSynchronize(stream));
	TOLD(cudaEventElapsedTime(&milliseconds, first, second));
	TOLD(cudaEventElapsedTime(&milliseconds, first, first));
	TOLD(cudaStreamWaitEvent(stream, first, 99));
	TOLD(cudaStreamEndCapture(stream, &graph));
	TOLD(cudaStreamBeginCapture(0, cudaStreamCaptureModeGlobal));
	TOLD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	TOLD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	TOLD(cudaMalloc((void **)&value, 64));
	TOLD(cudaStreamSynchronize(stream));
	TOLD(cudaStreamEndCapture(stream, &graph));
	cudaGetLastError();
	TOLD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
	nothing<<<1, 2000, 0, stream>>>();
	TOLD(cudaGetLastError());
	nothing<<<1, 1, 0, stream>>>();
	TOLD(cudaGetLastError());
	TOLD(cudaEventQuery(first));
	TOLD(cudaStreamQuery(stream));
	TOLD(cudaStreamEndCapture(stream, &graph));
	cudaGetLastError();
	TOLD(cudaStreamDestroy(stream));
	TOLD(cudaEventDestroy(first));
	TOLD(cudaEventDestroy(second));
}

static const char code[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
			   ".visible .entry put(.param .u64 at, .param .u32 value)\n{\n"
			   ".reg .u64 %a; .reg .u32 %v;\nld.param.u64 %a, [at];\nld.param.u32 %v, [value];\n"
			   "st.global.u32 [%a], %v;\nret;\n}\n"
			   ".visible .entry bounded()\n.maxntid 64, 1, 1\n{\nret;\n}\n";

static void driver(void)
{
	CUresult (*load)(CUmodule *, const void *);
	CUresult (*unload)(CUmodule);
	CUresult (*get)(CUfunction *, CUmodule, const char *);
	CUresult (*global)(CUdeviceptr *, size_t *, CUmodule, const char *);
	CUresult (*run)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
	CUresult (*attribute)(int *, CUfunction_attribute, CUfunction);
	CUresult (*set)(CUfunction, CUfunction_attribute, int);
	CUresult (*parameter)(CUfunction, size_t, size_t *, size_t *);
	CUresult (*synchronize)(void);
	CUmodule module, none;
	CUfunction put, bounded, absent = (CUfunction)1;
	CUdeviceptr address;
	size_t bytes, offset;
	int value;

#define ENTRY(symbol, function) cudaGetDriverEntryPointByVersion(symbol, (void **)&function, 12090, cudaEnableDefault)
	ENTRY("cuModuleLoadData", load);
	ENTRY("cuModuleUnload", unload);
	ENTRY("cuModuleGetFunction", get);
	ENTRY("cuModuleGetGlobal", global);
	ENTRY("cuLaunchKernel", run);
	ENTRY("cuFuncGetAttribute", attribute);
	ENTRY("cuFuncSetAttribute", set);
	ENTRY("cuFuncGetParamInfo", parameter);
	ENTRY("cuCtxSynchronize", synchronize);
	TOLD(load(&none, "not PTX"));
	TOLD(load(&none, ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry x() { nonsense; }\n"));
	TOLD(load(&none, ".version 99.0\n.target sm_75\n.address_size 64\n"));
	TOLD(load(&none, ".version 9.0\n.target sm_121\n.address_size 64\n"));
	TOLD(load(&module, code));
	TOLD(get(&absent, module, "absent"));
	printf("  %s\n", absent == (CUfunction)1 ? "left alone" : absent ? "written" : "NULL");
	TOLD(get(&put, module, "put"));
	TOLD(get(&bounded, module, "bounded"));
	TOLD(global(&address, &bytes, module, "absent"));
	for (int i = 0; i < 16; i++)
		if (attribute(&value, (CUfunction_attribute)i, bounded) == CUDA_SUCCESS)
			printf("  attribute %d: %d\n", i, value);
		else
			printf("  attribute %d: none\n", i);
	TOLD(attribute(&value, (CUfunction_attribute)99, bounded));
	TOLD(set(bounded, (CUfunction_attribute)99, 1));
	TOLD(set(bounded, CU_FUNC_ATTRIBUTE_NUM_REGS, 1));
	TOLD(parameter(put, 0, &offset, &bytes));
	TOLD(parameter(put, 1, &offset, &bytes));
	TOLD(parameter(put, 2, &offset, &bytes));
	TOLD(run(bounded, 1, 1, 1, 64, 1, 1, 0, 0, nullptr, nullptr));
	TOLD(run(bounded, 1, 1, 1, 65, 1, 1, 0, 0, nullptr, nullptr));
	TOLD(run(bounded, 1, 1, 1, 2000, 1, 1, 0, 0, nullptr, nullptr));
	TOLD(run(bounded, 0, 1, 1, 1, 1, 1, 0, 0, nullptr, nullptr));
	TOLD(run(bounded, 1, 1, 1, 1, 1, 1, 1 << 20, 0, nullptr, nullptr));
	struct {
		int *at;
		unsigned value;
	} buffer = {device, 8};
	for (size_t size = 8; size <= 20; size += 4) {
		void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};

		printf("  buffer of %zu\n", size);
		TOLD(run(put, 1, 1, 1, 1, 1, 1, 0, 0, nullptr, extra));
	}
	TOLD(run(put, 1, 1, 1, 1, 1, 1, 0, 0, nullptr, nullptr));
	void *parameters[] = {&buffer.at, &buffer.value};
	size_t size = 12;
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
	TOLD(run(put, 1, 1, 1, 1, 1, 1, 0, 0, parameters, extra));
	TOLD(synchronize());
	TOLD(unload(module));
}

/* What each call says behind an error of the device. */
static void behind(const char *what)
{
	cudaStream_t stream;
	cudaEvent_t event;
	char host[64], *more;
	cudaDeviceProp properties;
	cudaFuncAttributes attributes;
	size_t available, total;
	int value;

	cudaMalloc(&device, 1 << 20);
	cudaMallocHost(&pinned, 1 << 20);
	cudaStreamCreate(&stream);
	cudaEventCreate(&event);
	cudaDeviceSynchronize();
	printf("-- %s\n", what);
	if (!strcmp(what, "trap"))
		trap<<<1, 1>>>();
	else
		store<<<1, 1>>>((int *)16, 1);
	TOLD(cudaGetLastError());
	TOLD(cudaDeviceSynchronize());
	TOLD(cudaGetLastError());
	TOLD(cudaGetLastError());
	TOLD(cudaPeekAtLastError());
	TOLD(cudaDeviceSynchronize());
	TOLD(cudaStreamSynchronize(stream));
	TOLD(cudaStreamQuery(stream));
	TOLD(cudaEventRecord(event, stream));
	TOLD(cudaEventQuery(event));
	TOLD(cudaEventSynchronize(event));
	TOLD(cudaMalloc(&more, 64));
	TOLD(cudaMallocHost(&more, 64));
	TOLD(cudaMemcpy(device, host, 64, cudaMemcpyHostToDevice));
	TOLD(cudaMemcpy(host, device, 64, cudaMemcpyDeviceToHost));
	TOLD(cudaMemcpyAsync(pinned, device, 64, cudaMemcpyDeviceToHost, stream));
	TOLD(cudaMemset(device, 0, 64));
	TOLD(cudaMemsetAsync(device, 0, 64, stream));
	nothing<<<1, 1>>>();
	TOLD(cudaGetLastError());
	narrow<<<1, 2000>>>(device);
	TOLD(cudaGetLastError());
	TOLD(cudaMemGetInfo(&available, &total));
	TOLD(cudaGetDevice(&value));
	TOLD(cudaSetDevice(0));
	TOLD(cudaGetDeviceProperties(&properties, 0));
	TOLD(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 0));
	TOLD(cudaFuncGetAttributes(&attributes, nothing));
	TOLD(cudaStreamCreate(&stream));
	TOLD(cudaEventCreate(&event));
	TOLD(cudaEventDestroy(event));
	TOLD(cudaFreeHost(pinned));
	TOLD(cudaFree(device));
	TOLD(cudaFree(nullptr));
	TOLD(cudaDeviceReset());
	TOLD(cudaMalloc(&more, 64));
	nothing<<<1, 1>>>();
	TOLD(cudaGetLastError());
	TOLD(cudaDeviceSynchronize());
}

/* Each in a process of its own, before CUDA is used here. */
static void apart(void (*part)(void))
{
	fflush(stdout);
	pid_t child = fork();
	int status;

	if (!child) {
		cudaMalloc(&device, 1 << 20);
		cudaMallocHost(&pinned, 1 << 20);
		part();
		fflush(stdout);
		_exit(0);
	}
	waitpid(child, &status, 0);
	if (status)
		printf("  ended with status %#x\n", status);
}

static void behind_address(void) { behind("address"); }
static void behind_trap(void) { behind("trap"); }

int main(void)
{
	setvbuf(stdout, nullptr, _IOLBF, 0);
	apart(launches);
	apart(memory);
	apart(nowhere);
	apart(others);
	apart(driver);
	apart(behind_address);
	apart(behind_trap);
	return 0;
}
