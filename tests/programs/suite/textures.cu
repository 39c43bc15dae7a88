// Textures of arrays, of pitched and of linear memory, point and linear filters, layers, and
// surfaces that kernels write.
#define PROGRAM "textures"
#include "check.h"

#include <algorithm>
#include <cmath>
#include <iterator>

struct Filtered {
	float value, tolerance;
};

/// The weights of a linear filter have 8 bits of fraction (CUDA C++ Programming Guide, "Linear Filtering"), and as an
/// H100 shows, the product of two has no more.  Rounded or cut, each of the four weights is then off by less than 1/256,
/// and together they stay 1: the sum is off by less than 2/256 of what the texels lie apart.
static Filtered filtered(const std::vector<float> &texels, int width, int height, float x, float y)
{
	const long fx = std::lround((x - 0.5) * 256 - 0.25), fy = std::lround((y - 0.5) * 256 - 0.25);
	const auto at = [&](long column, long row) {
		column = column < 0 ? 0 : column >= width ? width - 1 : column;
		row = row < 0 ? 0 : row >= height ? height - 1 : row;
		return static_cast<double>(texels[row * width + column]);
	};
	const long i = fx >> 8, j = fy >> 8;
	const double a = (fx & 255) / 256.0, b = (fy & 255) / 256.0;
	const double four[] = {at(i, j), at(i + 1, j), at(i, j + 1), at(i + 1, j + 1)};
	const double value = (1 - a) * (1 - b) * four[0] + a * (1 - b) * four[1] + (1 - a) * b * four[2] + a * b * four[3];
	const auto range = std::minmax_element(std::begin(four), std::end(four));
	return {static_cast<float>(value), static_cast<float>((*range.second - *range.first) * 2 / 256) + 1e-6f};
}

__global__ void sample(cudaTextureObject_t texture, float *out, int width, int height, float step, float shift)
{
	const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
	if (x < width && y < height)
		out[y * width + x] = tex2D<float>(texture, x * step + shift, y * step + shift);
}

__global__ void sum_layers(cudaTextureObject_t texture, uchar4 *out, int width, int layers)
{
	const int x = threadIdx.x, y = blockIdx.x;
	uchar4 sum = make_uchar4(0, 0, 0, 0);
	for (int layer = 0; layer < layers; layer++) {
		const uchar4 texel = tex2DLayered<uchar4>(texture, x + 0.5f, y + 0.5f, layer);
		sum.x += texel.x, sum.y += texel.y, sum.z += texel.z, sum.w += texel.w;
	}
	out[y * width + x] = sum;
}

__global__ void reverse(cudaTextureObject_t texture, int *out, int count)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		out[i] = tex1Dfetch<int>(texture, count - 1 - i);
}

__global__ void paint(cudaSurfaceObject_t surface, int width)
{
	const int x = threadIdx.x, y = blockIdx.x;
	surf2Dwrite(static_cast<float>(x * 100 + y), surface, (width - 1 - x) * static_cast<int>(sizeof(float)), y);
}

static cudaTextureObject_t texture_of(const cudaResourceDesc &resource, cudaTextureFilterMode filter)
{
	cudaTextureDesc description = {};
	description.addressMode[0] = description.addressMode[1] = cudaAddressModeClamp;
	description.filterMode = filter;
	cudaTextureObject_t texture;
	CUDA(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
	return texture;
}

static void check_filters(const std::vector<float> &texels, int width, int height, const cudaResourceDesc &resource)
{
	float *const out = device_array<float>(texels.size());
	for (const float step : {1.0f, 0.75f}) {
		for (const auto filter : {cudaFilterModePoint, cudaFilterModeLinear}) {
			const float shift = 0.53125f;
			const cudaTextureObject_t texture = texture_of(resource, filter);
			sample<<<dim3((width + 63) / 64, height), 64>>>(texture, out, width, height, step, shift);
			CUDA(cudaGetLastError());
			const std::vector<float> result = to_host(out, texels.size());
			CUDA(cudaDestroyTextureObject(texture));
			for (int y = 0; y < height; y++) {
				for (int x = 0; x < width; x++) {
					const float u = x * step + shift, v = y * step + shift;
					const int i = u < width ? static_cast<int>(u) : width - 1;
					const int j = v < height ? static_cast<int>(v) : height - 1;
					const Filtered expected = filter == cudaFilterModePoint
						? Filtered{texels[j * width + i], 0} : filtered(texels, width, height, u, v);
					if (!(std::fabs(result[y * width + x] - expected.value) <= expected.tolerance))
						FAIL("texel (%d, %d): %g instead of %g", x, y,
						     result[y * width + x], expected.value);
				}
			}
		}
	}
	CUDA(cudaFree(out));
}

static void check_plane(int width, int height)
{
	std::vector<float> texels(width * height);
	for (size_t i = 0; i < texels.size(); i++)
		texels[i] = static_cast<float>(hash(i) % 1024) / 1024;
	const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
	cudaResourceDesc resource = {};
	resource.resType = cudaResourceTypeArray;
	CUDA(cudaMallocArray(&resource.res.array.array, &format, width, height));
	CUDA(cudaMemcpy2DToArray(resource.res.array.array, 0, 0, texels.data(), width * sizeof(float),
				 width * sizeof(float), height, cudaMemcpyHostToDevice));
	check_filters(texels, width, height, resource);
	CUDA(cudaFreeArray(resource.res.array.array));

	cudaResourceDesc pitched = {};
	pitched.resType = cudaResourceTypePitch2D;
	pitched.res.pitch2D.desc = format;
	pitched.res.pitch2D.width = width;
	pitched.res.pitch2D.height = height;
	CUDA(cudaMallocPitch(&pitched.res.pitch2D.devPtr, &pitched.res.pitch2D.pitchInBytes,
			     width * sizeof(float), height));
	CUDA(cudaMemcpy2D(pitched.res.pitch2D.devPtr, pitched.res.pitch2D.pitchInBytes, texels.data(),
			  width * sizeof(float), width * sizeof(float), height, cudaMemcpyHostToDevice));
	check_filters(texels, width, height, pitched);
	CUDA(cudaFree(pitched.res.pitch2D.devPtr));
}

static void check_layers()
{
	const int width = 20, height = 7, layers = 5;
	std::vector<uchar4> texels(width * height * layers);
	for (size_t i = 0; i < texels.size(); i++) {
		const uint32_t value = hash(i);
		std::memcpy(&texels[i], &value, sizeof value);
	}
	const cudaChannelFormatDesc format = cudaCreateChannelDesc<uchar4>();
	cudaResourceDesc resource = {};
	resource.resType = cudaResourceTypeArray;
	CUDA(cudaMalloc3DArray(&resource.res.array.array, &format, make_cudaExtent(width, height, layers),
			       cudaArrayLayered));
	cudaMemcpy3DParms copy = {};
	copy.srcPtr = make_cudaPitchedPtr(texels.data(), width * sizeof(uchar4), width, height);
	copy.dstArray = resource.res.array.array;
	copy.extent = make_cudaExtent(width, height, layers);
	copy.kind = cudaMemcpyHostToDevice;
	CUDA(cudaMemcpy3D(&copy));
	const cudaTextureObject_t texture = texture_of(resource, cudaFilterModePoint);
	uchar4 *const out = device_array<uchar4>(width * height);
	sum_layers<<<height, width>>>(texture, out, width, layers);
	CUDA(cudaGetLastError());
	const std::vector<uchar4> result = to_host(out, width * height);
	for (int i = 0; i < width * height; i++) {
		uchar4 sum = make_uchar4(0, 0, 0, 0);
		for (int layer = 0; layer < layers; layer++) {
			const uchar4 texel = texels[layer * width * height + i];
			sum.x += texel.x, sum.y += texel.y, sum.z += texel.z, sum.w += texel.w;
		}
		if (std::memcmp(&sum, &result[i], sizeof sum))
			FAIL("sum of layers at %d", i);
	}
	CUDA(cudaDestroyTextureObject(texture));
	CUDA(cudaFreeArray(resource.res.array.array));
	CUDA(cudaFree(out));
}

static void check_linear_memory()
{
	const int count = 1000;
	std::vector<int> values(count);
	for (int i = 0; i < count; i++)
		values[i] = static_cast<int>(hash(i));
	cudaResourceDesc resource = {};
	resource.resType = cudaResourceTypeLinear;
	resource.res.linear.devPtr = to_device(values);
	resource.res.linear.desc = cudaCreateChannelDesc<int>();
	resource.res.linear.sizeInBytes = count * sizeof(int);
	const cudaTextureObject_t texture = texture_of(resource, cudaFilterModePoint);
	int *const out = device_array<int>(count);
	reverse<<<(count + 127) / 128, 128>>>(texture, out, count);
	CUDA(cudaGetLastError());
	const std::vector<int> result = to_host(out, count);
	for (int i = 0; i < count; i++)
		if (result[i] != values[count - 1 - i])
			FAIL("element %d of linear memory", i);
	CUDA(cudaDestroyTextureObject(texture));
	CUDA(cudaFree(resource.res.linear.devPtr));
	CUDA(cudaFree(out));
}

static void check_surface()
{
	const int width = 50, height = 9;
	const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
	cudaResourceDesc resource = {};
	resource.resType = cudaResourceTypeArray;
	CUDA(cudaMallocArray(&resource.res.array.array, &format, width, height, cudaArraySurfaceLoadStore));
	cudaSurfaceObject_t surface;
	CUDA(cudaCreateSurfaceObject(&surface, &resource));
	paint<<<height, width>>>(surface, width);
	CUDA(cudaGetLastError());
	std::vector<float> result(width * height);
	CUDA(cudaMemcpy2DFromArray(result.data(), width * sizeof(float), resource.res.array.array, 0, 0,
				   width * sizeof(float), height, cudaMemcpyDeviceToHost));
	for (int y = 0; y < height; y++)
		for (int x = 0; x < width; x++)
			if (result[y * width + x] != static_cast<float>((width - 1 - x) * 100 + y))
				FAIL("surface at (%d, %d): %g", x, y, result[y * width + x]);
	CUDA(cudaDestroySurfaceObject(surface));
	CUDA(cudaFreeArray(resource.res.array.array));
}

int main(int argc, char **argv)
{
	const int width = static_cast<int>(size_option(argc, argv, 100, 2, 4096));
	check_plane(width, width / 2);
	check_layers();
	check_linear_memory();
	check_surface();
	std::printf("ok textures of %d x %d\n", width, width / 2);
}
