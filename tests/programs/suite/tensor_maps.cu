// Copies by tensor maps: tiles of up to five dimensions with every type, swizzle and edge, into shared memory, out of it,
// added up, for all blocks of a cluster, and pixels under a filter.
#define PROGRAM "tensor_maps"
#include "driver.h"

#include <cuda/barrier>
#include <cuda/ptx>

#include <cmath>

namespace cde = cuda::device::experimental;
namespace ptx = cuda::ptx;
using barrier_t = cuda::barrier<cuda::thread_scope_block>;

static constexpr int RANK_MAX = 5, ROOM = 32 << 10;

struct Place {
	int at[RANK_MAX];
};

// ---- kernels ----

extern __shared__ __align__(1024) unsigned char tile[];

template <int RANK> __device__ static void fetch(const CUtensorMap *map, const Place &from, uint64_t *barrier)
{
	int32_t at[RANK];
	for (int d = 0; d < RANK; d++)
		at[d] = from.at[d];
	ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile, map, at, barrier);
}

template <int RANK>
__global__ void load(const __grid_constant__ CUtensorMap map, Place from, int bytes, unsigned char *out)
{
	__shared__ alignas(8) uint64_t barrier;
	if (threadIdx.x == 0) {
		ptx::mbarrier_init(&barrier, 1);
		ptx::fence_proxy_async(ptx::space_shared);
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		fetch<RANK>(&map, from, &barrier);
		ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, bytes);
	}
	while (!ptx::mbarrier_try_wait_parity(&barrier, 0))
		;
	for (int i = threadIdx.x; i < bytes; i += blockDim.x)
		out[i] = tile[i];
}

template <int RANK>
__global__ void store(const __grid_constant__ CUtensorMap map, Place to, int bytes, const unsigned char *in)
{
	int32_t at[RANK];
	for (int d = 0; d < RANK; d++)
		at[d] = to.at[d];
	for (int i = threadIdx.x; i < bytes; i += blockDim.x)
		tile[i] = in[i];
	ptx::fence_proxy_async(ptx::space_shared);
	__syncthreads();
	if (threadIdx.x == 0) {
		ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &map, at, tile);
		ptx::cp_async_bulk_commit_group();
		ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
	}
}

// As the programming guide has it: a tile per block, changed in place and stored.
template <int SIDE>
__global__ void increment(const __grid_constant__ CUtensorMap map, int rows)
{
	__shared__ alignas(128) int values[SIDE][SIDE];
#pragma nv_diag_suppress static_var_with_dynamic_init
	__shared__ barrier_t barrier;
	if (threadIdx.x == 0) {
		init(&barrier, blockDim.x);
		cde::fence_proxy_async_shared_cta();
	}
	__syncthreads();
	for (int y = 0; y < rows; y += SIDE) {
		barrier_t::arrival_token token;
		if (threadIdx.x == 0) {
			cde::cp_async_bulk_tensor_2d_global_to_shared(values, &map, blockIdx.x * SIDE, y, barrier);
			token = cuda::device::barrier_arrive_tx(barrier, 1, sizeof(values));
		} else {
			token = barrier.arrive();
		}
		barrier.wait(std::move(token));
		for (int i = threadIdx.x; i < SIDE * SIDE; i += blockDim.x)
			values[i / SIDE][i % SIDE] += 1 + i;
		cde::fence_proxy_async_shared_cta();
		__syncthreads();
		if (threadIdx.x == 0) {
			cde::cp_async_bulk_tensor_2d_shared_to_global(&map, blockIdx.x * SIDE, y, values);
			cde::cp_async_bulk_commit_group();
			cde::cp_async_bulk_wait_group_read<0>();
		}
		__syncthreads();
	}
}

// Every block adds its tile to the same place.
__global__ void add_up(const __grid_constant__ CUtensorMap map, int columns)
{
	__shared__ alignas(128) unsigned values[16][16];
	values[threadIdx.x / 16][threadIdx.x % 16] = hash(threadIdx.x + 256 * blockIdx.x) % 1000;
	ptx::fence_proxy_async(ptx::space_shared);
	__syncthreads();
	if (threadIdx.x == 0) {
		const int32_t at[2] = { columns - 8, -3 };
		ptx::cp_reduce_async_bulk_tensor(ptx::space_global, ptx::space_shared, ptx::op_add, &map, at, values);
		ptx::cp_async_bulk_commit_group();
		ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
	}
}

__constant__ CUtensorMap constant_map;

// Each block of a cluster fetches eight rows for all of them, by a map in constant or in global memory.
__global__ void __cluster_dims__(4, 1, 1) share(const CUtensorMap *map, unsigned *out)
{
	__shared__ alignas(128) unsigned values[32][32];
	__shared__ alignas(8) uint64_t barrier;
	const CUtensorMap *const chosen = map ? map : &constant_map;
	const unsigned rank = blockIdx.x % 4;
	if (threadIdx.x == 0) {
		ptx::mbarrier_init(&barrier, 1);
		ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
		ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, sizeof(values));
	}
	ptx::barrier_cluster_arrive();
	ptx::barrier_cluster_wait();
	if (threadIdx.x == 0) {
		asm volatile("prefetch.tensormap [%0];" : : "l"(chosen) : "memory");
		asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
			     ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
			     :
			     : "r"(static_cast<unsigned>(__cvta_generic_to_shared(values[8 * rank]))), "l"(chosen),
			       "r"(0), "r"(8 * rank), "r"(static_cast<unsigned>(__cvta_generic_to_shared(&barrier))),
			       "h"(static_cast<short>(15))
			     : "memory");
	}
	while (!ptx::mbarrier_try_wait_parity(&barrier, 0))
		;
	for (int i = threadIdx.x; i < 32 * 32; i += blockDim.x)
		out[1024 * blockIdx.x + i] = values[i / 32][i % 32];
	ptx::barrier_cluster_arrive();
	ptx::barrier_cluster_wait();
}

// 3 x 3 filters: of image, row and column from where they start, all pixels under one of their nine places.
__global__ void pixels(const __grid_constant__ CUtensorMap map, Place from, int across, int down, int bytes, unsigned char *out)
{
	__shared__ alignas(8) uint64_t barrier;
	if (threadIdx.x == 0) {
		ptx::mbarrier_init(&barrier, 1);
		ptx::fence_proxy_async(ptx::space_shared);
		asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
			     " [%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};"
			     :
			     : "r"(static_cast<unsigned>(__cvta_generic_to_shared(tile))), "l"(&map), "r"(from.at[0]),
			       "r"(from.at[1]), "r"(from.at[2]), "r"(from.at[3]),
			       "r"(static_cast<unsigned>(__cvta_generic_to_shared(&barrier))),
			       "h"(static_cast<short>(across)), "h"(static_cast<short>(down))
			     : "memory");
		ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, bytes);
	}
	__syncthreads();
	while (!ptx::mbarrier_try_wait_parity(&barrier, 0))
		;
	for (int i = threadIdx.x; i < bytes; i += blockDim.x)
		out[i] = tile[i];
}

// ---- tiles against the processor ----

struct Tensor {
	CUtensorMapDataType type;
	int width, rank;
	CUtensorMapSwizzle swizzle;
	bool nan;
	cuuint64_t extents[RANK_MAX], strides[RANK_MAX];
	cuuint32_t box[RANK_MAX], steps[RANK_MAX];
	Place place;
	std::vector<unsigned char> values;
};

static const struct {
	CUtensorMapDataType type;
	int width;
	bool is_float;
} types[] = {
	{ CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, false },   { CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, false },
	{ CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, false },  { CU_TENSOR_MAP_DATA_TYPE_INT32, 4, false },
	{ CU_TENSOR_MAP_DATA_TYPE_UINT64, 8, false },  { CU_TENSOR_MAP_DATA_TYPE_INT64, 8, false },
	{ CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, true },  { CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, true },
	{ CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 8, true },  { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, true },
	{ CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 4, true },
};

static const struct {
	CUtensorMapSwizzle swizzle;
	unsigned span;
} swizzles[] = {
	{ CU_TENSOR_MAP_SWIZZLE_NONE, 96 },
	{ CU_TENSOR_MAP_SWIZZLE_32B, 32 },
	{ CU_TENSOR_MAP_SWIZZLE_64B, 64 },
	{ CU_TENSOR_MAP_SWIZZLE_128B, 128 },
};

static unsigned state = 12345;

static unsigned random(unsigned below)
{
	return (state = hash(state + 1)) % below;
}

static Tensor random_tensor(unsigned kind, int rank, unsigned swizzle)
{
	Tensor tensor = {};
	tensor.type = types[kind].type;
	tensor.width = types[kind].width;
	tensor.rank = rank;
	tensor.swizzle = swizzles[swizzle].swizzle;
	tensor.nan = types[kind].is_float && random(2);
	cuuint64_t size = tensor.width;
	for (int d = 0; d < rank; d++) {
		tensor.extents[d] = 1 + random(d < 2 ? 40 : 6);
		tensor.box[d] = d ? 1 + random(6) : swizzles[swizzle].span / tensor.width;
		tensor.steps[d] = d ? 1 + random(3) : 1;
		tensor.place.at[d] = static_cast<int>(random(tensor.extents[d] + tensor.box[d])) -
				     static_cast<int>(tensor.box[d]);
		size = (size * tensor.extents[d] + 15) / 16 * 16 + 16 * random(3);
		tensor.strides[d] = size;
	}
	tensor.values.resize(size);
	for (unsigned char &value : tensor.values)
		value = static_cast<unsigned char>(random(256));
	// Whole numbers: how others are rounded is no matter here.
	if (tensor.type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32)
		for (size_t i = 0; i < size / 4; i++) {
			const float value = static_cast<float>(random(1000));
			std::memcpy(&tensor.values[4 * i], &value, 4);
		}
	return tensor;
}

static int tile_rows(const Tensor &tensor)
{
	int rows = 1;
	for (int d = 1; d < tensor.rank; d++)
		rows *= (tensor.box[d] + tensor.steps[d] - 1) / tensor.steps[d];
	return rows;
}

// Which of the 16 bytes of its line a byte of the tile is with, where the pattern begins with the tile.
static size_t swizzled(CUtensorMapSwizzle swizzle, size_t at)
{
	const size_t line = at / 128, chunk = at % 128 / 16, within = at % 16;
	const size_t lines = swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 2 : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 4 : 8;
	return swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? at : line * 128 + (chunk ^ line % lines) * 16 + within;
}

// Calls `visit` with each element's place in the tile, and in the tensor or -1 outside of it.
template <typename Visit> static void visit_tile(const Tensor &tensor, Visit visit)
{
	const int rows = tile_rows(tensor);
	for (int row = 0; row < rows; row++) {
		for (unsigned k = 0; k < tensor.box[0]; k++) {
			long long at = 0, index = tensor.place.at[0] + static_cast<long long>(k);
			bool inside = index >= 0 && index < static_cast<long long>(tensor.extents[0]);
			at += index * tensor.width;
			for (int d = 1, rest = row; d < tensor.rank; d++) {
				const int count = (tensor.box[d] + tensor.steps[d] - 1) / tensor.steps[d];
				index = tensor.place.at[d] + static_cast<long long>(rest % count) * tensor.steps[d];
				rest /= count;
				inside = inside && index >= 0 && index < static_cast<long long>(tensor.extents[d]);
				at += index * static_cast<long long>(tensor.strides[d - 1]);
			}
			visit(swizzled(tensor.swizzle, (static_cast<size_t>(row) * tensor.box[0] + k) * tensor.width),
			      inside ? at : -1);
		}
	}
}

static bool is_nan(const Tensor &tensor, const unsigned char *value)
{
	uint64_t bits = 0;
	std::memcpy(&bits, value, tensor.width);
	switch (tensor.type) {
	case CU_TENSOR_MAP_DATA_TYPE_FLOAT16: return (bits & 0x7fff) > 0x7c00;
	case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return (bits & 0x7fff) > 0x7f80;
	case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return (bits & ~(1ull << 63)) > 0x7ffull << 52;
	default: return (bits & 0x7fffffff) > 0x7f800000;
	}
}

static CUtensorMap encode(const Tensor &tensor, void *memory)
{
	CUtensorMap map;
	DRIVER(cuTensorMapEncodeTiled, &map, tensor.type, tensor.rank, memory, tensor.extents, tensor.strides, tensor.box,
	       tensor.steps, CU_TENSOR_MAP_INTERLEAVE_NONE, tensor.swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
	       tensor.nan ? CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA : CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	return map;
}

using Load = void (*)(CUtensorMap, Place, int, unsigned char *);
using Store = void (*)(CUtensorMap, Place, int, const unsigned char *);

static int check_tiles()
{
	static const Load loads[] = { load<1>, load<2>, load<3>, load<4>, load<5> };
	static const Store stores[] = { store<1>, store<2>, store<3>, store<4>, store<5> };
	unsigned char *const out = device_array<unsigned char>(ROOM);
	std::vector<unsigned char> moved(ROOM);
	int checked = 0;
	for (unsigned kind = 0; kind < sizeof(types) / sizeof(types[0]); kind++) {
		for (int rank = 1; rank <= RANK_MAX; rank++) {
			const unsigned swizzle = (kind + rank) % 4;
			Tensor tensor = random_tensor(kind, rank, swizzle);
			const int bytes = tile_rows(tensor) * static_cast<int>(tensor.box[0]) * tensor.width;
			if (bytes > ROOM)
				FAIL("a tile of %d bytes", bytes);
			unsigned char *const memory = to_device(tensor.values);
			const CUtensorMap map = encode(tensor, memory);
			loads[rank - 1]<<<1, 64, ROOM>>>(map, tensor.place, bytes, out);
			CUDA(cudaGetLastError());
			const std::vector<unsigned char> loaded = to_host(out, bytes);
			visit_tile(tensor, [&](size_t in_tile, long long at) {
				static const unsigned char zero[8] = {};
				const unsigned char *got = &loaded[in_tile];
				if (at < 0 && tensor.nan ? !is_nan(tensor, got)
							 : std::memcmp(got, at < 0 ? zero : &tensor.values[at], tensor.width))
					FAIL("type %u, %d dimensions, swizzle %u: byte %zu of the tile is wrong", kind, rank,
					     swizzle, in_tile);
			});
			for (int i = 0; i < bytes; i++)
				moved[i] = static_cast<unsigned char>(random(256));
			if (tensor.type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32)
				std::memset(moved.data(), 0, bytes);
			CUDA(cudaMemcpy(out, moved.data(), bytes, cudaMemcpyHostToDevice));
			stores[rank - 1]<<<1, 64, ROOM>>>(map, tensor.place, bytes, out);
			CUDA(cudaGetLastError());
			visit_tile(tensor, [&](size_t in_tile, long long at) {
				if (at >= 0)
					std::memcpy(&tensor.values[at], &moved[in_tile], tensor.width);
			});
			if (to_host(memory, tensor.values.size()) != tensor.values)
				FAIL("type %u, %d dimensions, swizzle %u: the stored tile is wrong", kind, rank, swizzle);
			CUDA(cudaFree(memory));
			checked++;
		}
	}
	CUDA(cudaFree(out));
	return checked;
}

// ---- the others ----

static CUtensorMap matrix(void *memory, CUtensorMapDataType type, cuuint64_t columns, cuuint64_t rows, cuuint32_t wide,
			  cuuint32_t high)
{
	const cuuint64_t extents[] = { columns, rows }, strides[] = { 4 * columns };
	const cuuint32_t box[] = { wide, high }, steps[] = { 1, 1 };
	CUtensorMap map;
	DRIVER(cuTensorMapEncodeTiled, &map, type, 2, memory, extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
	       CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	return map;
}

static void check_increment()
{
	constexpr int columns = 100, rows = 45, side = 16;
	std::vector<int> values(columns * rows);
	for (size_t i = 0; i < values.size(); i++)
		values[i] = static_cast<int>(hash(static_cast<uint32_t>(i)));
	int *const memory = to_device(values);
	const CUtensorMap map = matrix(memory, CU_TENSOR_MAP_DATA_TYPE_INT32, columns, rows, side, side);
	increment<side><<<(columns + side - 1) / side, 64>>>(map, rows);
	CUDA(cudaGetLastError());
	const std::vector<int> result = to_host(memory, values.size());
	for (int y = 0; y < rows; y++)
		for (int x = 0; x < columns; x++) {
			const int expected = static_cast<int>(static_cast<unsigned>(values[y * columns + x]) + 1 +
							      y % side * side + x % side);
			if (result[y * columns + x] != expected)
				FAIL("increment: (%d, %d) is %d instead of %d", x, y, result[y * columns + x], expected);
		}
	CUDA(cudaFree(memory));
}

static void check_sum()
{
	constexpr int columns = 40, rows = 20, blocks = 30;
	std::vector<unsigned> values(columns * rows);
	unsigned *const memory = to_device(values);
	add_up<<<blocks, 256>>>(matrix(memory, CU_TENSOR_MAP_DATA_TYPE_UINT32, columns, rows, 16, 16), columns);
	CUDA(cudaGetLastError());
	for (int block = 0; block < blocks; block++)
		for (int i = 0; i < 256; i++)
			if (i % 16 < 8 && i / 16 >= 3)
				values[(i / 16 - 3) * columns + columns - 8 + i % 16] += hash(i + 256 * block) % 1000;
	if (to_host(memory, values.size()) != values)
		FAIL("the sums are wrong");
	CUDA(cudaFree(memory));
}

static void check_shares()
{
	constexpr int blocks = 8;
	std::vector<unsigned> values(32 * 32);
	for (size_t i = 0; i < values.size(); i++)
		values[i] = hash(static_cast<uint32_t>(i));
	unsigned *const memory = to_device(values), *const out = device_array<unsigned>(blocks * values.size());
	const CUtensorMap map = matrix(memory, CU_TENSOR_MAP_DATA_TYPE_UINT32, 32, 32, 32, 8);
	CUtensorMap *const in_memory = device_array<CUtensorMap>(1);
	CUDA(cudaMemcpy(in_memory, &map, sizeof(map), cudaMemcpyHostToDevice));
	CUDA(cudaMemcpyToSymbol(constant_map, &map, sizeof(map)));
	for (const CUtensorMap *which : { in_memory, static_cast<CUtensorMap *>(nullptr) }) {
		CUDA(cudaMemset(out, 0, blocks * values.size() * sizeof(unsigned)));
		share<<<blocks, 128>>>(which, out);
		CUDA(cudaGetLastError());
		const std::vector<unsigned> result = to_host(out, blocks * values.size());
		for (size_t i = 0; i < result.size(); i++)
			if (result[i] != values[i % values.size()])
				FAIL("block %zu of the clusters has %u at %zu", i / values.size(), result[i], i % values.size());
	}
	CUDA(cudaFree(memory));
	CUDA(cudaFree(in_memory));
	CUDA(cudaFree(out));
}

static void check_pixels()
{
	constexpr int channels = 8, width = 9, height = 7, count = 3, taken = 4, columns = 64, step = 2;
	std::vector<float> values(channels * width * height * count);
	for (size_t i = 0; i < values.size(); i++)
		values[i] = static_cast<float>(hash(static_cast<uint32_t>(i)) % 10000);
	float *const memory = to_device(values);
	unsigned char *const out = device_array<unsigned char>(ROOM);
	const cuuint64_t extents[] = { channels, width, height, count };
	const cuuint64_t strides[] = { 4 * channels, 4 * channels * width, 4 * channels * width * height };
	const cuuint32_t steps[] = { 1, step, 1, 1 };
	const int lower[] = { -1, -1 }, upper[] = { -1, -1 };
	CUtensorMap map;
	DRIVER(cuTensorMapEncodeIm2col, &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, memory, extents, strides, lower, upper, taken,
	       columns, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
	       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	for (int place = 0; place < 9; place++) {
		const int across = place % 3, down = place / 3;
		const Place from = { { 4, 3, 2, 0 } };
		pixels<<<1, 64, ROOM>>>(map, from, across, down, 4 * taken * columns, out);
		CUDA(cudaGetLastError());
		const std::vector<float> result = to_host(reinterpret_cast<float *>(out), taken * columns);
		int x = 3, y = 2, image = 0;
		for (int column = 0; column < columns; column++) {
			for (int c = 0; c < taken; c++) {
				const int px = x + across, py = y + down;
				const bool inside = px >= 0 && px < width && py >= 0 && py < height && image < count;
				const float expected =
					inside ? values[((image * height + py) * width + px) * channels + 4 + c] : 0;
				if (result[column * taken + c] != expected)
					FAIL("place %d, pixel %d, channel %d is %g instead of %g", place, column, c,
					     result[column * taken + c], expected);
			}
			x += step;
			if (x > width - 2) {
				x = -1;
				if (++y > height - 2) {
					y = -1;
					image++;
				}
			}
		}
	}
	CUDA(cudaFree(memory));
	CUDA(cudaFree(out));
}

int main()
{
	int supported = 0;
	CUDA(cudaFree(nullptr));
	DRIVER(cuDeviceGetAttribute, &supported, CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 0);
	if (!supported) {
		std::puts("ok tensor_maps: not what this device has");
		return 0;
	}
	const int tiles = check_tiles();
	check_increment();
	check_sum();
	check_shares();
	check_pixels();
	std::printf("ok tensor_maps with %d kinds of tiles\n", tiles);
}
