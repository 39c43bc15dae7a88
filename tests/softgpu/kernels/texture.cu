// Fetches from textures and accesses to surfaces, one a thread.
#include <cuda_runtime.h>

#define KERNEL extern "C" __global__ void
#define THREAD int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return

KERNEL fetch_1d(cudaTextureObject_t t, const float *x, float4 *out, int n) { THREAD; out[i] = tex1D<float4>(t, x[i]); }
KERNEL fetch_2d(cudaTextureObject_t t, const float2 *x, float4 *out, int n) { THREAD; out[i] = tex2D<float4>(t, x[i].x, x[i].y); }
KERNEL fetch_3d(cudaTextureObject_t t, const float3 *x, float4 *out, int n) { THREAD; out[i] = tex3D<float4>(t, x[i].x, x[i].y, x[i].z); }
KERNEL fetch_1d_layer(cudaTextureObject_t t, const float2 *x, float4 *out, int n) { THREAD; out[i] = tex1DLayered<float4>(t, x[i].x, (int)x[i].y); }
KERNEL fetch_2d_layer(cudaTextureObject_t t, const float3 *x, float4 *out, int n) { THREAD; out[i] = tex2DLayered<float4>(t, x[i].x, x[i].y, (int)x[i].z); }
KERNEL fetch_cube(cudaTextureObject_t t, const float3 *x, float4 *out, int n) { THREAD; out[i] = texCubemap<float4>(t, x[i].x, x[i].y, x[i].z); }
KERNEL fetch_level(cudaTextureObject_t t, const float2 *x, float4 *out, int n) { THREAD; out[i] = tex2DLod<float4>(t, x[i].x, x[i].y, 0); }
KERNEL gather(cudaTextureObject_t t, const float2 *x, float4 *out, int n) { THREAD; out[i] = tex2Dgather<float4>(t, x[i].x, x[i].y, 2); }
KERNEL fetch_integers(cudaTextureObject_t t, const float2 *x, int4 *out, int n) { THREAD; out[i] = tex2D<int4>(t, x[i].x, x[i].y); }
KERNEL fetch_index(cudaTextureObject_t t, const int *x, float4 *out, int n) { THREAD; out[i] = tex1Dfetch<float4>(t, x[i]); }

KERNEL copy_surface(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int width, int height)
{
	int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;

	if (x < width)
		surf2Dwrite(surf2Dread<uchar4>(from, x * 4, y), to, (width - 1 - x) * 4, y);
}

KERNEL surface_edges(cudaSurfaceObject_t s, int *out)
{
	out[0] = surf2Dread<int>(s, -4, 0, cudaBoundaryModeZero);
	out[1] = surf2Dread<int>(s, -4, 1, cudaBoundaryModeClamp);
	out[2] = surf2Dread<int>(s, 400, 99, cudaBoundaryModeClamp);
	surf2Dwrite(-7, s, 400, 0, cudaBoundaryModeZero);
	surf2Dwrite(77, s, 400, 0, cudaBoundaryModeClamp);
}

KERNEL surface_trap(cudaSurfaceObject_t s) { surf2Dwrite(1, s, 0, 99); }
KERNEL surface_volume(cudaSurfaceObject_t s, int layered)
{
	short2 value = make_short2(threadIdx.x * 10 + threadIdx.y, threadIdx.z);

	if (layered)
		surf2DLayeredwrite(value, s, threadIdx.x * 4, threadIdx.y, threadIdx.z);
	else
		surf3Dwrite(value, s, threadIdx.x * 4, threadIdx.y, threadIdx.z);
}

KERNEL sizes(cudaTextureObject_t t, cudaSurfaceObject_t s, int *out)
{
	asm("txq.width.b32 %0, [%1];" : "=r"(out[0]) : "l"(t));
	asm("txq.height.b32 %0, [%1];" : "=r"(out[1]) : "l"(t));
	asm("txq.depth.b32 %0, [%1];" : "=r"(out[2]) : "l"(t));
	asm("suq.width.b32 %0, [%1];" : "=r"(out[3]) : "l"(s));
}
