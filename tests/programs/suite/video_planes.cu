// NV12: the planes of an array of video as textures and surfaces, from which colours are computed.
#define PROGRAM "video_planes"
#include "check.h"

constexpr int width = 96, height = 64;

__host__ __device__ static inline int clamp(int value)
{
	return value < 0 ? 0 : value > 255 ? 255 : value;
}

// Whole numbers, as ITU-R BT.601 has them for video of 8 bits.
__host__ __device__ static inline uchar4 colour(int y, int u, int v)
{
	const int c = 298 * (y - 16), d = u - 128, e = v - 128;
	return make_uchar4(clamp((c + 409 * e + 128) >> 8), clamp((c - 100 * d - 208 * e + 128) >> 8),
			   clamp((c + 516 * d + 128) >> 8), 255);
}

__global__ void darken(cudaSurfaceObject_t brightness)
{
	const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
	const unsigned char value = surf2Dread<unsigned char>(brightness, x, y);
	surf2Dwrite<unsigned char>(value - value / 4, brightness, x, y);
}

__global__ void convert(cudaTextureObject_t brightness, cudaTextureObject_t colours, uchar4 *out)
{
	const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
	const uchar2 uv = tex2D<uchar2>(colours, x / 2, y / 2);
	out[y * width + x] = colour(tex2D<unsigned char>(brightness, x, y), uv.x, uv.y);
}

static cudaTextureObject_t texture_of(cudaArray_t plane)
{
	cudaResourceDesc resource = {};
	cudaTextureDesc texture = {};
	cudaTextureObject_t object;
	resource.resType = cudaResourceTypeArray;
	resource.res.array.array = plane;
	texture.readMode = cudaReadModeElementType;
	CUDA(cudaCreateTextureObject(&object, &resource, &texture, nullptr));
	return object;
}

int main()
{
	const cudaChannelFormatDesc nv12 = cudaCreateChannelDesc(8, 8, 8, 0, cudaChannelFormatKindNV12);
	std::vector<unsigned char> y(width * height), uv(width * height / 2);
	cudaArray_t video, planes[2];
	CUDA(cudaMallocArray(&video, &nv12, width, height, cudaArraySurfaceLoadStore));
	for (int plane = 0; plane < 2; plane++) {
		cudaChannelFormatDesc format;
		cudaExtent extent;
		unsigned flags;
		CUDA(cudaArrayGetPlane(&planes[plane], video, plane));
		CUDA(cudaArrayGetInfo(&format, &extent, &flags, planes[plane]));
		if (format.f != cudaChannelFormatKindUnsigned || format.x != 8 || format.y != 8 * plane || format.z)
			FAIL("plane %d has channels of %d, %d and %d bits", plane, format.x, format.y, format.z);
		if (extent.width != width >> plane || extent.height != height >> plane)
			FAIL("plane %d has %zu times %zu texels", plane, extent.width, extent.height);
	}
	cudaArray_t third;
	if (cudaArrayGetPlane(&third, video, 2) != cudaErrorInvalidValue || cudaGetLastError() != cudaErrorInvalidValue)
		FAIL("there is a third plane");
	for (size_t i = 0; i < y.size(); i++)
		y[i] = hash(i);
	for (size_t i = 0; i < uv.size(); i++)
		uv[i] = hash(i + y.size());
	CUDA(cudaMemcpy2DToArray(planes[0], 0, 0, y.data(), width, width, height, cudaMemcpyHostToDevice));
	CUDA(cudaMemcpy2DToArray(planes[1], 0, 0, uv.data(), width, width, height / 2, cudaMemcpyHostToDevice));

	cudaResourceDesc resource = {};
	cudaSurfaceObject_t surface;
	resource.resType = cudaResourceTypeArray;
	resource.res.array.array = planes[0];
	CUDA(cudaCreateSurfaceObject(&surface, &resource));
	const cudaTextureObject_t brightness = texture_of(planes[0]), colours = texture_of(planes[1]);
	uchar4 *const out = device_array<uchar4>(width * height);
	darken<<<dim3(width / 32, height), 32>>>(surface);
	convert<<<dim3(width / 32, height), 32>>>(brightness, colours, out);
	CUDA(cudaGetLastError());
	const std::vector<uchar4> result = to_host(out, width * height);
	for (int row = 0; row < height; row++)
		for (int x = 0; x < width; x++) {
			const int value = y[row * width + x];
			const unsigned char *both = &uv[row / 2 * width + x / 2 * 2];
			const uchar4 right = colour(value - value / 4, both[0], both[1]), got = result[row * width + x];
			if (std::memcmp(&right, &got, sizeof(right)))
				FAIL("pixel %d, %d is %d %d %d instead of %d %d %d", x, row, got.x, got.y, got.z, right.x,
				     right.y, right.z);
		}
	CUDA(cudaDestroySurfaceObject(surface));
	CUDA(cudaDestroyTextureObject(brightness));
	CUDA(cudaDestroyTextureObject(colours));
	CUDA(cudaFree(out));
	CUDA(cudaFreeArray(video));
	std::printf("ok video_planes of %d times %d pixels\n", width, height);
}
