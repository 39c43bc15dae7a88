// Mistakes with copies by tensor maps, as strict_findings.cu has them with other accesses.
#include <cstdio>
#include <cstring>

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda/ptx>

namespace ptx = cuda::ptx;

constexpr int SIDE = 32, THREADS = 64;

struct Maps {
	CUtensorMap in, out, short_of_memory, unwritten;
};

struct Tile {
	alignas(128) int values[8][SIDE];
	uint64_t barriers[2];
};

__device__ static void start(Tile &tile)
{
	if (threadIdx.x == 0) {
		ptx::mbarrier_init(&tile.barriers[0], 1);
		ptx::mbarrier_init(&tile.barriers[1], 1);
		ptx::fence_proxy_async(ptx::space_shared);
	}
	__syncthreads();
}

__device__ static void fetch(Tile &tile, const CUtensorMap *map, int row, int round = 0)
{
	const int32_t at[2] = { 0, row };

	if (threadIdx.x != (round ? THREADS - 1 : 0))
		return;
	ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile.values, map, at,
				  &tile.barriers[round]);
	ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &tile.barriers[round],
				       sizeof(tile.values));
}

__device__ static void wait(Tile &tile, int round = 0)
{
	while (!ptx::mbarrier_try_wait_parity(&tile.barriers[round], 0))
		;
}

__device__ static void put(Tile &tile, const CUtensorMap *map, int row)
{
	const int32_t at[2] = { 0, row };

	if (threadIdx.x)
		return;
	ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, map, at, tile.values);
	ptx::cp_async_bulk_commit_group();
	ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
}

// Nobody waits at the mbarrier for the tile.
template <bool RIGHT> __global__ void no_wait(const __grid_constant__ Maps maps, int *out)
{
	__shared__ Tile tile;

	start(tile);
	fetch(tile, &maps.in, 0);
	if (RIGHT || threadIdx.x < 32)
		wait(tile);
	out[threadIdx.x] = tile.values[threadIdx.x / SIDE][threadIdx.x % SIDE];
}

// The next tile, which another warp fetches, overwrites what a slower one still reads.
template <bool RIGHT> __global__ void next_tile(const __grid_constant__ Maps maps, int *out)
{
	__shared__ Tile tile;
	int sum = 0;

	start(tile);
	for (int round = 0; round < 2; round++) {
		fetch(tile, &maps.in, 8 * round, round);
		wait(tile, round);
		sum += tile.values[threadIdx.x / SIDE][threadIdx.x % SIDE];
		if (RIGHT)
			__syncthreads();
	}
	out[threadIdx.x] = sum;
}

// The tile is stored before the other warp has written its part.
template <bool RIGHT> __global__ void early_store(const __grid_constant__ Maps maps, int *)
{
	__shared__ Tile tile;

	for (int i = threadIdx.x; i < 8 * SIDE; i += THREADS)
		tile.values[i / SIDE][i % SIDE] = i;
	ptx::fence_proxy_async(ptx::space_shared);
	if (RIGHT)
		__syncthreads();
	else
		__syncwarp();
	put(tile, &maps.out, 0);
}

// Blocks store tiles that overlap.
template <bool RIGHT> __global__ void overlap(const __grid_constant__ Maps maps, int *)
{
	__shared__ Tile tile;

	for (int i = threadIdx.x; i < 8 * SIDE; i += THREADS)
		tile.values[i / SIDE][i % SIDE] = i;
	ptx::fence_proxy_async(ptx::space_shared);
	__syncthreads();
	put(tile, &maps.out, (RIGHT ? 8 : 4) * blockIdx.x);
}

// The tensor is described as longer than its memory.
template <bool RIGHT> __global__ void beyond_the_end(const __grid_constant__ Maps maps, int *)
{
	__shared__ Tile tile;

	start(tile);
	fetch(tile, RIGHT ? &maps.in : &maps.short_of_memory, SIDE - 4);
	wait(tile);
}

template <bool RIGHT> __global__ void unwritten(const __grid_constant__ Maps maps, int *)
{
	__shared__ Tile tile;

	start(tile);
	fetch(tile, RIGHT ? &maps.in : &maps.unwritten, 0);
	wait(tile);
}

#define CASE(name) { #name, name<false>, name<true> }

static CUtensorMap describe(PFN_cuTensorMapEncodeTiled_v12000 encode, int *memory, cuuint64_t rows)
{
	const cuuint64_t extents[] = { SIDE, rows }, strides[] = { SIDE * sizeof(int) };
	const cuuint32_t box[] = { SIDE, 8 }, steps[] = { 1, 1 };
	CUtensorMap map;

	if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_INT32, 2, memory, extents, strides, box, steps,
		   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
		   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
		std::puts("no map");
	return map;
}

int main(int, char **words)
{
	static const struct {
		const char *name;
		void (*wrong)(Maps, int *), (*right)(Maps, int *);
	} cases[] = {
		CASE(no_wait), CASE(next_tile), CASE(early_store), CASE(overlap), CASE(beyond_the_end), CASE(unwritten),
	};
	cudaDriverEntryPointQueryResult found;
	void *encode;
	int *in, *out, *unwritten;

	cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
	cudaMalloc(&in, SIDE * SIDE * sizeof(int));
	cudaMalloc(&out, SIDE * SIDE * sizeof(int));
	cudaMalloc(&unwritten, SIDE * SIDE * sizeof(int));
	cudaMemset(in, 0, SIDE * SIDE * sizeof(int));
	const auto function = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(encode);
	const Maps maps = { describe(function, in, SIDE), describe(function, out, SIDE),
			    describe(function, in, 2 * SIDE), describe(function, unwritten, SIDE) };
	for (const auto &each : cases) {
		if (std::strcmp(each.name, words[1]))
			continue;
		const int blocks = std::strcmp(words[1], "overlap") ? 1 : 4;
		(std::strcmp(words[2], "right") ? each.wrong : each.right)<<<blocks, THREADS>>>(maps, out);
		std::puts(cudaGetErrorName(cudaDeviceSynchronize()));
	}
}
