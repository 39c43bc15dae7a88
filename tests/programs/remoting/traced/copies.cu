// Copies, fills and allocations of known bytes, each of its own length, so that a trace tells them apart.
#include "../check.h"

#include <cuda.h>

static void driver(CUresult result)
{
	if (result != CUDA_SUCCESS)
		FAIL("a call of the driver ended with %d", (int)result);
}

template <typename Function> static Function *find(const char *name)
{
	void *found = nullptr;
	CUDA(cudaGetDriverEntryPointByVersion(name, &found, 12080, cudaEnableDefault));
	return reinterpret_cast<Function *>(found);
}

int main()
{
	static char pageable[8192];
	char *device, *other, *pinned, *managed, *pitched;
	size_t pitch;
	cudaStream_t stream;

	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaMalloc(&device, 100001));
	CUDA(cudaMallocAsync(&other, 100002, stream));
	CUDA(cudaMallocHost(&pinned, 100003));
	CUDA(cudaMallocManaged(&managed, 100004));
	CUDA(cudaMallocPitch(&pitched, &pitch, 100, 1001));
	CUDA(cudaStreamSynchronize(stream));

	CUDA(cudaMemcpy(device, pageable, 1001, cudaMemcpyHostToDevice));
	CUDA(cudaMemcpyAsync(device, pinned, 1002, cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemcpyAsync(device, pageable, 1003, cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemcpy(pageable, device, 1004, cudaMemcpyDeviceToHost));
	CUDA(cudaMemcpyAsync(pinned, device, 1005, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaMemcpy(other, device, 1006, cudaMemcpyDeviceToDevice));
	CUDA(cudaMemcpyAsync(other, pinned, 1007, cudaMemcpyDefault, stream));
	CUDA(cudaMemcpy(pageable, pinned, 1008, cudaMemcpyDefault));
	CUDA(cudaDeviceSynchronize());
	CUDA(cudaMemcpy(managed, device, 1009, cudaMemcpyDefault));

	// Rectangles and boxes: their bytes, whatever lies between rows.
	CUDA(cudaMemcpy2D(pitched, pitch, pageable, 110, 11, 10, cudaMemcpyHostToDevice));
	cudaMemcpy3DParms box = {};
	box.srcPtr = make_cudaPitchedPtr(device, 20, 20, 10);
	box.dstPtr = make_cudaPitchedPtr(pinned, 20, 20, 10);
	box.extent = make_cudaExtent(3, 5, 7);
	box.kind = cudaMemcpyDeviceToHost;
	CUDA(cudaMemcpy3DAsync(&box, stream));
	cudaArray_t array;
	const cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned char>();
	CUDA(cudaMallocArray(&array, &format, 64, 64));
	CUDA(cudaMemcpy2DToArray(array, 0, 0, pageable, 64, 13, 10, cudaMemcpyHostToDevice));
	CUDA(cudaMemcpy2DFromArray(device, 64, array, 0, 0, 14, 10, cudaMemcpyDeviceToDevice));

	// Arrays: what their elements take, in all levels.
	cudaArray_t volume, layers;
	cudaMipmappedArray_t levels;
	const cudaChannelFormatDesc wide = cudaCreateChannelDesc<float2>();
	CUDA(cudaMalloc3DArray(&volume, &wide, make_cudaExtent(5, 6, 7)));
	CUDA(cudaMalloc3DArray(&layers, &format, make_cudaExtent(5, 0, 7), cudaArrayLayered));
	CUDA(cudaMallocMipmappedArray(&levels, &wide, make_cudaExtent(8, 4, 0), 3));

	CUDA(cudaMemset(device, 1, 2001));
	CUDA(cudaMemsetAsync(device, 1, 2002, stream));
	CUDA(cudaMemset2D(pitched, pitch, 1, 15, 10));
	driver(find<CUresult(CUdeviceptr, unsigned short, size_t)>("cuMemsetD16")((CUdeviceptr)device, 1, 1001));
	driver(find<CUresult(CUdeviceptr, unsigned, size_t, CUstream)>("cuMemsetD32Async")((CUdeviceptr)device, 1, 501,
											  stream));

	// Several by one call, of one kind and of two.
	CUdeviceptr to[2] = { (CUdeviceptr)device, (CUdeviceptr)other };
	CUdeviceptr from[2] = { (CUdeviceptr)pinned, (CUdeviceptr)pinned };
	size_t sizes[2] = { 1100, 11 }, none = 0, failed;
	CUmemcpyAttributes attributes = {};
	attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
	auto *batch = find<CUresult(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t,
				    size_t *, CUstream)>("cuMemcpyBatchAsync");
	driver(batch(to, from, sizes, 2, &attributes, &none, 1, &failed, stream));
	from[1] = (CUdeviceptr)pageable;
	sizes[1] = 12;
	driver(batch(to, from, sizes, 2, &attributes, &none, 1, &failed, stream));

	// Boxes, and between arrays and memory, where lengths are in elements.
	CUDA_MEMCPY3D_BATCH_OP boxes[2] = {};
	for (CUDA_MEMCPY3D_BATCH_OP &each : boxes) {
		each.src.type = each.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
		each.src.op.ptr.ptr = (CUdeviceptr)pinned;
		each.dst.op.ptr.ptr = (CUdeviceptr)device;
		each.extent = { 3, 5, 7 };
		each.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
	}
	auto *box_batch = find<CUresult(size_t, CUDA_MEMCPY3D_BATCH_OP *, size_t *, unsigned long long, CUstream)>(
		"cuMemcpy3DBatchAsync");
	driver(box_batch(2, boxes, &failed, 0, stream));
	boxes[1].dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
	boxes[1].dst.op.array = {};
	boxes[1].dst.op.array.array = (CUarray)volume;
	boxes[1].extent = { 2, 3, 4 };
	driver(box_batch(2, boxes, &failed, 0, stream));
	driver(box_batch(1, &boxes[1], &failed, 0, stream));
	boxes[1].extent = { 20, 30, 40 };
	if (box_batch(2, boxes, &failed, 0, stream) == CUDA_SUCCESS)
		FAIL("a box that is larger than its array was copied");
	CUDA(cudaDeviceSynchronize());
	return passed();
}
