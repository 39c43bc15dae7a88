// Copies by tensor maps: one tile into shared memory and out of it again, or the other way.
#include <cuda.h>
#include <cuda/ptx>

namespace ptx = cuda::ptx;

struct place {
	int at[5];
};

enum { ADD, MIN, MAX, INC, DEC, AND, OR, XOR };

// A static variable in front of it: what is dynamic is aligned all the same.
__shared__ alignas(8) uint64_t barrier;
extern __shared__ __align__(1024) unsigned char tile[];

__device__ static void begin(unsigned room)
{
	for (unsigned k = threadIdx.x; k < room; k += blockDim.x)
		tile[k] = 0xee;
	if (threadIdx.x == 0) {
		ptx::mbarrier_init(&barrier, 1);
		ptx::fence_proxy_async(ptx::space_shared);
	}
	__syncthreads();
}

__device__ static void finish(unsigned char *out, unsigned room, unsigned bytes)
{
	if (threadIdx.x == 0)
		ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, bytes);
	while (!ptx::mbarrier_try_wait_parity(&barrier, 0))
		;
	for (unsigned k = threadIdx.x; k < room; k += blockDim.x)
		out[k] = tile[k];
}

template <int RANK>
__device__ static void load(const CUtensorMap *map, const place &from, unsigned offset, unsigned char *out,
			    unsigned room, unsigned bytes)
{
	int32_t at[RANK];
	for (int k = 0; k < RANK; k++)
		at[k] = from.at[k];
	begin(room);
	if (threadIdx.x == 0)
		ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile + offset, map, at, &barrier);
	finish(out, room, bytes);
}

__device__ static void fill(const unsigned char *in, unsigned room)
{
	for (unsigned k = threadIdx.x; k < room; k += blockDim.x)
		tile[k] = in[k];
	ptx::fence_proxy_async(ptx::space_shared);
	__syncthreads();
}

__device__ static void wait_for_stores()
{
	ptx::cp_async_bulk_commit_group();
	ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
}

template <int RANK>
__device__ static void store(const CUtensorMap *map, const place &to, unsigned offset, const unsigned char *in,
			     unsigned room)
{
	int32_t at[RANK];
	for (int k = 0; k < RANK; k++)
		at[k] = to.at[k];
	fill(in, room);
	if (threadIdx.x == 0) {
		ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, map, at, tile + offset);
		wait_for_stores();
	}
}

#define DIMENSION(RANK)                                                                                  \
	extern "C" __global__ void load_##RANK##d(const __grid_constant__ CUtensorMap map, place from,   \
						  unsigned offset, unsigned char *out, unsigned room,    \
						  unsigned bytes)                                        \
	{                                                                                                \
		load<RANK>(&map, from, offset, out, room, bytes);                                        \
	}                                                                                                \
	extern "C" __global__ void store_##RANK##d(const __grid_constant__ CUtensorMap map, place to,    \
						   unsigned offset, const unsigned char *in, unsigned room) \
	{                                                                                                \
		store<RANK>(&map, to, offset, in, room);                                                 \
	}
DIMENSION(1)
DIMENSION(2)
DIMENSION(3)
DIMENSION(4)
DIMENSION(5)

// Where else a map may be, and where not.
__constant__ CUtensorMap constant_map;

extern "C" __global__ void load_by_constant(place from, unsigned char *out, unsigned room, unsigned bytes)
{
	load<2>(&constant_map, from, 0, out, room, bytes);
}

extern "C" __global__ void load_by_global(const CUtensorMap *map, place from, unsigned char *out, unsigned room,
					  unsigned bytes)
{
	load<2>(map, from, 0, out, room, bytes);
}

extern "C" __global__ void load_by_copy(CUtensorMap map, place from, unsigned char *out, unsigned room, unsigned bytes)
{
	load<2>(&map, from, 0, out, room, bytes);
}

extern "C" __global__ void load_by_shared(const __grid_constant__ CUtensorMap map, place from, unsigned char *out,
					  unsigned room, unsigned bytes)
{
	__shared__ alignas(128) CUtensorMap copy;
	copy = map;
	load<2>(&copy, from, 0, out, room, bytes);
}

#define REDUCE(NAME, op)                                                                          \
	case NAME:                                                                                \
		asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta." #op             \
			     ".tile.bulk_group [%0, {%1, %2}], [%3];"                             \
			     : : "l"(&map), "r"(to.at[0]), "r"(to.at[1]), "r"(from) : "memory");  \
		break;

extern "C" __global__ void reduce_2d(const __grid_constant__ CUtensorMap map, place to, const unsigned char *in,
				     unsigned room, int operation)
{
	unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(tile));
	fill(in, room);
	if (threadIdx.x)
		return;
	switch (operation) {
		REDUCE(ADD, add)
		REDUCE(MIN, min)
		REDUCE(MAX, max)
		REDUCE(INC, inc)
		REDUCE(DEC, dec)
		REDUCE(AND, and)
		REDUCE(OR, or)
		REDUCE(XOR, xor)
	}
	wait_for_stores();
}

extern "C" __global__ void pixels_3d(const __grid_constant__ CUtensorMap map, place from, place offsets,
				     unsigned char *out, unsigned room, unsigned bytes)
{
	begin(room);
	if (threadIdx.x == 0)
		asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
			     " [%0], [%1, {%2, %3, %4}], [%5], {%6};"
			     :
			     : "r"((unsigned)__cvta_generic_to_shared(tile)), "l"(&map), "r"(from.at[0]),
			       "r"(from.at[1]), "r"(from.at[2]), "r"((unsigned)__cvta_generic_to_shared(&barrier)),
			       "h"((short)offsets.at[0])
			     : "memory");
	finish(out, room, bytes);
}

extern "C" __global__ void pixels_4d(const __grid_constant__ CUtensorMap map, place from, place offsets,
				     unsigned char *out, unsigned room, unsigned bytes)
{
	begin(room);
	if (threadIdx.x == 0)
		asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
			     " [%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};"
			     :
			     : "r"((unsigned)__cvta_generic_to_shared(tile)), "l"(&map), "r"(from.at[0]),
			       "r"(from.at[1]), "r"(from.at[2]), "r"(from.at[3]),
			       "r"((unsigned)__cvta_generic_to_shared(&barrier)), "h"((short)offsets.at[0]),
			       "h"((short)offsets.at[1])
			     : "memory");
	finish(out, room, bytes);
}

extern "C" __global__ void pixels_5d(const __grid_constant__ CUtensorMap map, place from, place offsets,
				     unsigned char *out, unsigned room, unsigned bytes)
{
	begin(room);
	if (threadIdx.x == 0)
		asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
			     " [%0], [%1, {%2, %3, %4, %5, %6}], [%7], {%8, %9, %10};"
			     :
			     : "r"((unsigned)__cvta_generic_to_shared(tile)), "l"(&map), "r"(from.at[0]),
			       "r"(from.at[1]), "r"(from.at[2]), "r"(from.at[3]), "r"(from.at[4]),
			       "r"((unsigned)__cvta_generic_to_shared(&barrier)), "h"((short)offsets.at[0]),
			       "h"((short)offsets.at[1]), "h"((short)offsets.at[2])
			     : "memory");
	finish(out, room, bytes);
}

extern "C" __global__ void store_pixels_4d(const __grid_constant__ CUtensorMap map, place to, const unsigned char *in,
					   unsigned room)
{
	fill(in, room);
	if (threadIdx.x == 0) {
		asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group"
			     " [%0, {%1, %2, %3, %4}], [%5];"
			     :
			     : "l"(&map), "r"(to.at[0]), "r"(to.at[1]), "r"(to.at[2]), "r"(to.at[3]),
			       "r"((unsigned)__cvta_generic_to_shared(tile))
			     : "memory");
		wait_for_stores();
	}
}

// Each of four blocks fetches eight rows of 16 bytes for all of them.  With `pairs` both barriers of a pair are the
// even block's.
extern "C" __global__ void __cluster_dims__(4, 1, 1)
	multicast(const __grid_constant__ CUtensorMap map, unsigned char *out, int pairs)
{
	unsigned rank, done, at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
	unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(tile));

	asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
	if (threadIdx.x == 0) {
		ptx::mbarrier_init(&barrier, 1);
		ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
		unsigned bytes = !pairs ? 512 : rank & 1 ? 0 : 1024;
		ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, bytes);
	}
	ptx::barrier_cluster_arrive();
	ptx::barrier_cluster_wait();
	if (threadIdx.x == 0 && !pairs)
		asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
			     ".multicast::cluster [%0], [%1, {0, %2}], [%3], %4;"
			     :
			     : "r"(to + 128 * rank), "l"(&map), "r"(8 * rank), "r"(at), "h"((short)15)
			     : "memory");
#if defined(__CUDA_ARCH_FEAT_SM100_ALL)
	if (threadIdx.x == 0 && pairs) {
		unsigned even;
		asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(even) : "r"(at), "r"(rank & ~1u));
		asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
			     ".multicast::cluster.cta_group::2 [%0], [%1, {0, %2}], [%3], %4;"
			     :
			     : "r"(to + 128 * rank), "l"(&map), "r"(8 * rank), "r"(even), "h"((short)15)
			     : "memory");
	}
#endif
	do
		asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;"
			     " selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at) : "memory");
	while (!done);
	ptx::barrier_cluster_arrive();
	ptx::barrier_cluster_wait();
	for (unsigned k = threadIdx.x; k < 512; k += blockDim.x)
		out[512 * blockIdx.x + k] = tile[k];
}

// A map of zeros, of which all fields are replaced: how compilers make one in a kernel.
extern "C" __global__ void make_map(void *tensor, CUtensorMap *map, place extents, place box, uint64_t stride,
				    place from, unsigned char *out, unsigned room, unsigned bytes)
{
	__shared__ alignas(128) unsigned made[32];
	unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(made));

	if (threadIdx.x < 32) {
		made[threadIdx.x] = 0;
		__syncwarp();
		if (threadIdx.x == 0) {
#define FIELD(field, type, letter, value)                                                           \
	asm volatile("tensormap.replace.tile." field ".shared::cta.b1024." type " [%0], %1;"        \
		     : : "r"(at), letter(value) : "memory")
#define INDEXED(field, index, type, letter, value)                                                  \
	asm volatile("tensormap.replace.tile." field ".shared::cta.b1024." type " [%0], " #index ", %1;" \
		     : : "r"(at), letter(value) : "memory")
			FIELD("global_address", "b64", "l", tensor);
			FIELD("rank", "b32", "n", 1);
			INDEXED("box_dim", 0, "b32", "r", box.at[0]);
			INDEXED("box_dim", 1, "b32", "r", box.at[1]);
			INDEXED("global_dim", 0, "b32", "r", extents.at[0]);
			INDEXED("global_dim", 1, "b32", "r", extents.at[1]);
			INDEXED("global_stride", 0, "b64", "l", stride);
			INDEXED("element_stride", 0, "b32", "r", 1);
			INDEXED("element_stride", 1, "b32", "r", 2);
			FIELD("elemtype", "b32", "n", 7);
			FIELD("interleave_layout", "b32", "n", 0);
			FIELD("swizzle_mode", "b32", "n", 3);
			FIELD("fill_mode", "b32", "n", 1);
		}
		__syncwarp();
		asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
			     " [%0], [%1], 128;" : : "l"(map), "r"(at) : "memory");
	}
	__syncthreads();
	asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" : : "l"(map) : "memory");
	asm volatile("prefetch.tensormap [%0];" : : "l"(map) : "memory");
	asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];"
		     : : "l"(map), "r"(from.at[0]), "r"(from.at[1]) : "memory");
	load<2>(map, from, 0, out, room, bytes);
}

// What came with compute capability 10.0.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM100_ALL)

extern "C" __global__ void gather(const __grid_constant__ CUtensorMap map, place rows, unsigned char *out,
				  unsigned room, unsigned bytes)
{
	begin(room);
	if (threadIdx.x == 0)
		asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
			     " [%0], [%1, {%2, %3, %4, %5, %6}], [%7];"
			     :
			     : "r"((unsigned)__cvta_generic_to_shared(tile)), "l"(&map), "r"(rows.at[0]),
			       "r"(rows.at[1]), "r"(rows.at[2]), "r"(rows.at[3]), "r"(rows.at[4]),
			       "r"((unsigned)__cvta_generic_to_shared(&barrier))
			     : "memory");
	finish(out, room, bytes);
}

extern "C" __global__ void scatter(const __grid_constant__ CUtensorMap map, place rows, const unsigned char *in,
				   unsigned room)
{
	fill(in, room);
	if (threadIdx.x == 0) {
		asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"
			     " [%0, {%1, %2, %3, %4, %5}], [%6];"
			     :
			     : "l"(&map), "r"(rows.at[0]), "r"(rows.at[1]), "r"(rows.at[2]), "r"(rows.at[3]),
			       "r"(rows.at[4]), "r"((unsigned)__cvta_generic_to_shared(tile))
			     : "memory");
		wait_for_stores();
	}
}

extern "C" __global__ void pixels_wide(const __grid_constant__ CUtensorMap map)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cta.global.im2col::w.mbarrier::complete_tx::bytes"
		     " [%0], [%1, {0, 0, 0}], [%2], {%3, %3};"
		     :
		     : "r"((unsigned)__cvta_generic_to_shared(tile)), "l"(&map),
		       "r"((unsigned)__cvta_generic_to_shared(&barrier)), "h"((short)0)
		     : "memory");
}

#endif
