// Kernels for test_engine_matrix.py: one warp multiplies small matrices.
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

template <typename T, typename S, typename C, int M, int N, int K>
static __device__ void multiply(const S *a, const S *b, C *c)
{
	wmma::fragment<wmma::matrix_a, M, N, K, T, wmma::row_major> fa;
	wmma::fragment<wmma::matrix_b, M, N, K, T, wmma::col_major> fb;
	wmma::fragment<wmma::accumulator, M, N, K, C> fc;
	wmma::load_matrix_sync(fa, a, K);
	wmma::load_matrix_sync(fb, b, K);
	wmma::load_matrix_sync(fc, c, N, wmma::mem_row_major);
	wmma::mma_sync(fc, fa, fb, fc);
	wmma::store_matrix_sync(c, fc, N, wmma::mem_row_major);
}

extern "C" __global__ void wmma_half(const half *a, const half *b, float *c) { multiply<half, half, float, 16, 16, 16>(a, b, c); }
extern "C" __global__ void wmma_half_wide(const half *a, const half *b, float *c) { multiply<half, half, float, 8, 32, 16>(a, b, c); }
extern "C" __global__ void wmma_half_half(const half *a, const half *b, half *c) { multiply<half, half, half, 32, 8, 16>(a, b, c); }
extern "C" __global__ void wmma_bfloat(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c) { multiply<__nv_bfloat16, __nv_bfloat16, float, 16, 16, 16>(a, b, c); }
extern "C" __global__ void wmma_tf32(const float *a, const float *b, float *c) { multiply<wmma::precision::tf32, float, float, 16, 16, 8>(a, b, c); }
extern "C" __global__ void wmma_int8(const signed char *a, const signed char *b, int *c) { multiply<signed char, signed char, int, 16, 16, 16>(a, b, c); }

// a: 16 x 16 row-major, b: 16 x 8 row-major (loaded transposed), through shared memory and ldmatrix
extern "C" __global__ void mma_half(const half *a, const half *b, float *c)
{
	__shared__ __align__(16) half sa[16][16], sb[16][8];
	int lane = threadIdx.x;
	for (int k = lane; k < 256; k += 32)
		sa[k / 16][k % 16] = a[k];
	for (int k = lane; k < 128; k += 32)
		sb[k / 8][k % 8] = b[k];
	__syncwarp();
	uint32_t ra[4], rb[2];
	uint32_t pa = (uint32_t)__cvta_generic_to_shared(&sa[lane % 16][lane / 16 * 8]);
	uint32_t pb = (uint32_t)__cvta_generic_to_shared(&sb[lane % 16][0]);
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(pa));
	asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
		     : "=r"(rb[0]), "=r"(rb[1]) : "r"(pb));
	float d[4] = { 0, 0, 0, 0 };
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		     : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
	for (int k = 0; k < 4; k++)
		c[(lane / 4 + 8 * (k / 2)) * 8 + lane % 4 * 2 + k % 2] = d[k];
}

// a: 16 x 32, b: 8 x 32 (columns of the second matrix side by side)
extern "C" __global__ void mma_int8(const uint32_t *a, const uint32_t *b, int *c)
{
	int lane = threadIdx.x, group = lane / 4, thread = lane % 4;
	int d[4] = { 0, 0, 0, 0 };
	asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
		     : "r"(a[group * 8 + thread]), "r"(a[(group + 8) * 8 + thread]), "r"(a[group * 8 + thread + 4]),
		       "r"(a[(group + 8) * 8 + thread + 4]), "r"(b[group * 8 + thread]), "r"(b[group * 8 + thread + 4]));
	for (int k = 0; k < 4; k++)
		c[(group + 8 * (k / 2)) * 8 + thread * 2 + k % 2] = d[k];
}

extern "C" __global__ void async_copy(const float4 *in, float4 *out)
{
	__shared__ float4 tile[32];
	uint32_t to = (uint32_t)__cvta_generic_to_shared(&tile[threadIdx.x]);
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\ncp.async.commit_group;\ncp.async.wait_group 0;"
		     :: "r"(to), "l"(in + threadIdx.x) : "memory");
	__syncthreads();
	out[threadIdx.x] = tile[31 - threadIdx.x];
}

extern "C" __global__ void bfloat_arithmetic(const __nv_bfloat162 *a, const __nv_bfloat162 *b, __nv_bfloat162 *out)
{
	int i = threadIdx.x;
	out[3 * i] = __hadd2(a[i], b[i]);
	out[3 * i + 1] = __hmul2(a[i], b[i]);
	out[3 * i + 2] = __hmax2(a[i], b[i]);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 80
extern "C" __global__ void wmma_double(const double *a, const double *b, double *c) { multiply<double, double, double, 8, 8, 4>(a, b, c); }

// a: 8 x 4, b: 8 x 4 (columns side by side), c: 8 x 8
extern "C" __global__ void mma_double(const double *a, const double *b, double *c)
{
	int lane = threadIdx.x, group = lane / 4, thread = lane % 4;
	double d0 = c[group * 8 + thread * 2], d1 = c[group * 8 + thread * 2 + 1];
	asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
		     : "+d"(d0), "+d"(d1) : "d"(a[group * 4 + thread]), "d"(b[group * 4 + thread]));
	c[group * 8 + thread * 2] = d0;
	c[group * 8 + thread * 2 + 1] = d1;
}

// a: 8 x 16, b: 8 x 16
extern "C" __global__ void mma_int8_small(const uint32_t *a, const uint32_t *b, int *c)
{
	int lane = threadIdx.x, group = lane / 4, thread = lane % 4;
	int d0 = 0, d1 = 0;
	asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
		     : "+r"(d0), "+r"(d1) : "r"(a[lane]), "r"(b[lane]));
	c[group * 8 + thread * 2] = d0;
	c[group * 8 + thread * 2 + 1] = d1;
}
#endif

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 90
// a: 16 x 16, b: 8 x 16, c: 16 x 8
extern "C" __global__ void mma_double_large(const double *a, const double *b, double *c)
{
	int lane = threadIdx.x, group = lane / 4, thread = lane % 4;
	double ra[8], rb[4], d[4];
	for (int k = 0; k < 8; k++)
		ra[k] = a[(group + 8 * (k % 2)) * 16 + thread + 4 * (k / 2)];
	for (int k = 0; k < 4; k++)
		rb[k] = b[group * 16 + thread + 4 * k];
	for (int k = 0; k < 4; k++)
		d[k] = c[(group + 8 * (k / 2)) * 8 + thread * 2 + k % 2];
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, {%0,%1,%2,%3};"
		     : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
		     : "d"(ra[0]), "d"(ra[1]), "d"(ra[2]), "d"(ra[3]), "d"(ra[4]), "d"(ra[5]), "d"(ra[6]), "d"(ra[7]),
		       "d"(rb[0]), "d"(rb[1]), "d"(rb[2]), "d"(rb[3]));
	for (int k = 0; k < 4; k++)
		c[(group + 8 * (k / 2)) * 8 + thread * 2 + k % 2] = d[k];
}

// a: 16 x 32 e4m3, b: 8 x 32 e5m2
extern "C" __global__ void mma_fp8(const uint32_t *a, const uint32_t *b, float *c)
{
	int lane = threadIdx.x, group = lane / 4, thread = lane % 4;
	float d[4] = { 0, 0, 0, 0 };
	asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		     : "r"(a[group * 8 + thread]), "r"(a[(group + 8) * 8 + thread]), "r"(a[group * 8 + thread + 4]),
		       "r"(a[(group + 8) * 8 + thread + 4]), "r"(b[group * 8 + thread]), "r"(b[group * 8 + thread + 4]));
	for (int k = 0; k < 4; k++)
		c[(group + 8 * (k / 2)) * 8 + thread * 2 + k % 2] = d[k];
}
#endif
