// What CUDA's own headers turn into instructions; test_engine_headers.py loads it, so that
// every one of them must be there.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/atomic>

namespace cg = cooperative_groups;

#define KERNEL extern "C" __global__ void
#define PUT(expression) *out++ = (expression)

template <typename Pair> __device__ void pairs(Pair *out)
{
	Pair a = out[0], b = out[1], c = out[2];

	PUT(__hfma2_relu(a, b, c)); PUT(__hfma2_sat(a, b, c)); PUT(h2tanh(a)); PUT(h2exp2(a));
	PUT(h2log(a)); PUT(h2sin(a)); PUT(h2cos(a)); PUT(h2rcp(a)); PUT(h2rsqrt(a)); PUT(h2sqrt(a));
	PUT(__hmax2_nan(a, b)); PUT(__hmin2(a, b)); PUT(__hcmadd(a, b, c)); PUT(h2ceil(a));
	PUT(h2floor(a)); PUT(h2rint(a)); PUT(h2trunc(a)); PUT(__h2div(a, b)); PUT(__hneg2(a));
	PUT(__habs2(a)); PUT(__hsub2(a, b)); PUT(__hmul2_sat(a, b)); PUT(__heq2(a, b)); PUT(__hgtu2(a, b));
	PUT(atomicAdd(out + 1, a));
}

KERNEL half_pairs(__half2 *out) { pairs(out); }
KERNEL bfloat_pairs(__nv_bfloat162 *out) { pairs(out); }

KERNEL halves(__half *out, int *bits)
{
	__half a = out[0], b = out[1];

	PUT(htanh(a)); PUT(hexp(a)); PUT(hcos(a)); PUT(__hadd_sat(a, b)); PUT(atomicAdd(out + 9, a));
	PUT(__ushort2half_rz(bits[4])); PUT(__ll2half_ru(bits[5])); PUT(__double2half(bits[3]));
	PUT(__float2half_ru(bits[3])); PUT(__float2half_rd(bits[2])); PUT(__hmax_nan(a, b));
	bits[0] = __half2int_rd(a) + __heq(a, b) + __hisnan(a) + __half2ull_ru(a) + __hlt(a, b) +
		  __half2uint_rn(b) + __half2char_rz(a) + __hleu(a, b);
}

KERNEL bfloats(__nv_bfloat16 *out, int *bits)
{
	__nv_bfloat16 a = out[0], b = out[1];

	PUT(hexp(a)); PUT(hcos(a)); PUT(__hadd_sat(a, b)); PUT(atomicAdd(out + 9, a));
	PUT(__ushort2bfloat16_rz(bits[4])); PUT(__ll2bfloat16_ru(bits[5])); PUT(__double2bfloat16(bits[3]));
	PUT(__float2bfloat16_ru(bits[3])); PUT(__float2bfloat16_rd(bits[2])); PUT(__hmin(a, b));
	PUT(hfloor(a));
	bits[0] = __bfloat162int_rd(a) + __heq(a, b) + __hisnan(a) + __bfloat162ull_ru(a) + __hgtu(a, b);
}

KERNEL narrow(unsigned short *out, const float *in, const unsigned *bits)
{
	PUT(__nv_cvt_float_to_fp8(in[0], __NV_SATFINITE, __NV_E4M3));
	PUT(__nv_cvt_float_to_fp8(in[0], __NV_NOSAT, __NV_E5M2));
	PUT(__nv_cvt_bfloat16raw2_to_fp8x2(__nv_bfloat162_raw{1, 2}, __NV_SATFINITE, __NV_E4M3));
	PUT(__nv_cvt_fp8x2_to_halfraw2(bits[0], __NV_E5M2).x);
	PUT(__nv_cvt_float_to_e8m0(in[1], __NV_SATFINITE, cudaRoundPosInf));
	PUT(__nv_cvt_e8m0x2_to_bf162raw(bits[1]).x);
	PUT(__nv_cvt_float_to_fp6(in[2], __NV_E2M3, cudaRoundNearest));
	PUT(__nv_cvt_float2_to_fp6x2(make_float2(in[3], in[4]), __NV_E3M2, cudaRoundNearest));
	PUT(__nv_cvt_fp6x2_to_halfraw2(bits[2], __NV_E2M3).x);
	PUT(__nv_cvt_float2_to_fp4x2(make_float2(in[3], in[4]), __NV_E2M1, cudaRoundNearest));
	PUT(__nv_cvt_fp4x2_to_halfraw2(bits[3], __NV_E2M1).x);
}

KERNEL groups(int *out, float *sums)
{
	auto block = cg::this_thread_block();
	auto tile = cg::tiled_partition<32>(block);
	auto eight = cg::tiled_partition<8>(block);
	auto labelled = cg::labeled_partition(tile, out[3] & 1);
	auto active = cg::coalesced_threads();

	sums[0] = cg::reduce(tile, sums[threadIdx.x], cg::greater<float>());
	PUT(cg::reduce(tile, out[threadIdx.x], cg::plus<int>()));
	PUT(cg::inclusive_scan(eight, out[threadIdx.x]));
	PUT(cg::reduce(labelled, out[5], cg::bit_xor<int>()));
	PUT(cg::binary_partition(tile, out[3] & 1).size());
	PUT(cg::exclusive_scan(active, out[8]));
	PUT(tile.match_any(out[10]));
	PUT(cg::invoke_one_broadcast(tile, [&] { return 5; }));
	block.sync();
}

KERNEL atomics(int *words, unsigned long long *longs, float *floats, double *doubles)
{
	cuda::atomic_ref<int, cuda::thread_scope_device> device(words[0]);
	cuda::atomic_ref<float, cuda::thread_scope_system> system(floats[0]);
	cuda::atomic_ref<unsigned long long> wide(longs[0]);
	cuda::atomic_ref<short> narrow(*reinterpret_cast<short *>(words));
	int expected = 3;

	device.fetch_add(1, cuda::memory_order_relaxed);
	device.fetch_max(7);
	device.wait(5);
	device.compare_exchange_weak(expected, 5, cuda::memory_order_acquire);
	system.fetch_add(1.0f);
	wide.fetch_sub(3);
	narrow.fetch_xor(3);
	atomicAdd(doubles, 1.0);
	atomicAdd_system(words + 1, 1);
	atomicCAS_block(words + 2, 1, 2);
	atomicInc(reinterpret_cast<unsigned *>(words) + 3, 5);
	atomicExch(floats + 1, 2.0f);
	atomicMax(reinterpret_cast<long long *>(longs) + 1, 5ll);
#if __CUDA_ARCH__ >= 900
	atomicAdd(reinterpret_cast<float2 *>(floats + 4), make_float2(1, 2));
	atomicAdd(reinterpret_cast<float4 *>(floats + 8), make_float4(1, 2, 3, 4));
#endif
	cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_block);
}

KERNEL float_functions(float *out)
{
	float x = out[0], y = out[1];

	PUT(__fdividef(x, y)); PUT(__expf(x)); PUT(__powf(x, y)); PUT(__sinf(x)); PUT(__tanf(x));
	PUT(tanhf(x)); PUT(erff(x)); PUT(tgammaf(x)); PUT(rsqrtf(x)); PUT(cbrtf(x)); PUT(fmodf(x, y));
	PUT(remainderf(x, y)); PUT(nextafterf(x, y)); PUT(j0f(x)); PUT(normcdff(x)); PUT(__frsqrt_rn(x));
	PUT(__fsqrt_ru(x)); PUT(__fmaf_rd(x, y, x)); PUT(__saturatef(x)); PUT(rintf(x)); PUT(roundf(x));
	PUT(scalbnf(x, 3)); PUT(__logf(x)); PUT(sinpif(x)); PUT(__ll2float_rz(y)); PUT(copysignf(x, y));
	PUT(fdimf(x, y)); PUT(lgammaf(x)); PUT(fmaxf(fmaxf(x, y), 3.0f)); PUT(__fadd_rz(x, y));
#if __CUDA_ARCH__ >= 1000
	float2 pair = __ffma2_rn(make_float2(x, y), make_float2(y, x), make_float2(1, 2));

	pair = __fadd2_rn(pair, __fmul2_rn(pair, make_float2(y, x)));
	PUT(pair.x + pair.y);
#endif
}

KERNEL double_functions(double *out)
{
	double x = out[0], y = out[1];

	PUT(sin(x)); PUT(pow(x, y)); PUT(exp(x)); PUT(fma(x, y, x)); PUT(__ddiv_ru(x, y)); PUT(sqrt(x));
	PUT(rcbrt(x)); PUT(lgamma(x)); PUT(erfcinv(x)); PUT(fmod(x, y)); PUT(__drcp_rz(x)); PUT(log1p(x));
	PUT(rint(x)); PUT(__hiloint2double(3, 4)); PUT(llrint(x)); PUT(norm3d(x, y, x));
}

KERNEL integer_functions(unsigned *out, long long *longs)
{
	unsigned a = out[0], b = out[1], c = out[2];
	bool high, low;
	int predicate;

	longs[1] = __mul64hi(longs[0], longs[3]) + clock64() + __popcll(a) + __clzll(longs[0]);
	PUT(__brev(a)); PUT(__ffs(a)); PUT(__mulhi(a, b)); PUT(__umul24(a, b)); PUT(__fns(a, 2, 3));
	PUT(__shfl_xor_sync(~0u, a, 1)); PUT(__any_sync(~0u, a)); PUT(__match_all_sync(~0u, a, &predicate));
	PUT(__activemask()); PUT(clock()); PUT(__dp2a_lo((int)a, (int)b, 3)); PUT(__dp4a(a, b, c));
	PUT(__isGlobal(out)); PUT(__viaddmax_s16x2(a, b, c)); PUT(__vimin3_u32(a, b, c));
	PUT(__vibmax_s16x2(a, b, &high, &low)); PUT(high + low); PUT(__ldg(out + 1)); PUT(__ldcs(out + 1));
	PUT(__byte_perm(a, b, c)); PUT(__funnelshift_r(a, b, c)); PUT(__vadd2(a, b)); PUT(__vaddus4(a, b));
	PUT(__vabsdiffu4(a, b)); PUT(__vsadu2(a, b)); PUT(__vsads4(a, b)); PUT(__vcmpgts4(a, b));
	PUT(__vavgs2(a, b)); PUT(__vhaddu4(a, b)); PUT(__syncthreads_count(a));
	__stwt(out, 1);
	__nanosleep(3);
	__threadfence_system();
#if __CUDA_ARCH__ >= 800
	PUT(__reduce_add_sync(~0u, a));
#endif
}
