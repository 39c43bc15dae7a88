// Matrix products by wgmma, as kernels for compute capability 9.0 do them: operands in shared memory with each kind of
// swizzle, by rows and by columns, or in registers; a loader warp that fills a ring of tiles by bulk copies for two
// warpgroups.  Elements are small whole numbers, so every sum is exact in any order.
#define PROGRAM "warpgroup_matmul"
#include "check.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

static const int ROWS = 64, COLUMNS = 64;	// of a warpgroup's tile
static const int LINE = 128;			// bytes of K that are staged at a time
static const int THREADS = 128;

enum Swizzle { PLAIN, BYTES_128, BYTES_64, BYTES_32 };

// ---- instructions ----

#define RESULTS                                                                                \
	"{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
	"%23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define FOUR(kind, d, k) "+" kind(d[k]), "+" kind(d[k + 1]), "+" kind(d[k + 2]), "+" kind(d[k + 3])
#define OUTPUTS(kind, d)                                                                       \
	FOUR(kind, d, 0), FOUR(kind, d, 4), FOUR(kind, d, 8), FOUR(kind, d, 12), FOUR(kind, d, 16),  \
		FOUR(kind, d, 20), FOUR(kind, d, 24), FOUR(kind, d, 28)

/// d = a * b + (adds ? d : 0), where `a` and `b` are descriptors.
#define DEFINE_MULTIPLY(name, T, kind, types, tail)                                            \
	struct name {                                                                          \
		typedef T Sum;                                                                 \
		static __device__ void multiply(T (&d)[32], uint64_t a, uint64_t b, int adds)  \
		{                                                                              \
			asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; "                 \
				     "wgmma.mma_async.sync.aligned.m64n64" types RESULTS       \
				     ", %32, %33, p" tail "; }"                                \
				     : OUTPUTS(kind, d)                                        \
				     : "l"(a), "l"(b), "r"(adds)                               \
				     : "memory");                                              \
		}                                                                              \
	};

DEFINE_MULTIPLY(Half, float, "f", "k16.f32.f16.f16 ", ", 1, 1, 0, 0")
DEFINE_MULTIPLY(HalfByColumns, float, "f", "k16.f32.f16.f16 ", ", 1, 1, 1, 1")
DEFINE_MULTIPLY(Bfloat, float, "f", "k16.f32.bf16.bf16 ", ", 1, 1, 0, 1")
DEFINE_MULTIPLY(Tf32, float, "f", "k8.f32.tf32.tf32 ", ", 1, 1")
DEFINE_MULTIPLY(Eight, float, "f", "k32.f32.e4m3.e5m2 ", ", 1, 1")
DEFINE_MULTIPLY(Integers, int, "r", "k32.s32.s8.u8 ", "")

static __device__ void multiply_registers(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int adds)
{
	asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " RESULTS
		     ", {%32, %33, %34, %35}, %36, p, -1, -1, 0; }"
		     : OUTPUTS("f", d)
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds)
		     : "memory");
}

static __device__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> static __device__ void wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }
static __device__ void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

static __device__ uint32_t shared_address(const void *pointer)
{
	return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- where elements lie ----

__host__ __device__ static int width_of(Swizzle swizzle)
{
	return swizzle == BYTES_128 ? 128 : swizzle == BYTES_64 ? 64 : swizzle == BYTES_32 ? 32 : 16;
}

/// In a tile that starts at a multiple of 1024.
__host__ __device__ static int swizzled(Swizzle swizzle, int offset)
{
	return offset ^ (offset / 128 % (width_of(swizzle) / 16)) * 16;
}

/// Byte `k` of a line of LINE bytes, where K runs fastest: panels as wide as the swizzle, one behind the other.
__host__ __device__ static int by_rows(Swizzle swizzle, int line, int k)
{
	const int width = width_of(swizzle);
	return k / width * (64 * width) + swizzled(swizzle, line * width + k % width);
}

/// Element (line, k) of 16 bits where lines run fastest: panels of as many lines as the swizzle has room for.
__host__ __device__ static int by_columns(Swizzle swizzle, int line, int k)
{
	const int width = width_of(swizzle), lines = width / 2;
	return line / lines * (LINE / 2 * width) + swizzled(swizzle, k * width + line % lines * 2);
}

static __device__ uint64_t descriptor(Swizzle swizzle, uint32_t start, uint32_t leading, uint32_t stride)
{
	return start >> 4 | static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32 |
	       static_cast<uint64_t>(swizzle) << 62;
}

/// Of the `step`th 32 bytes of K.
static __device__ uint64_t rows_descriptor(Swizzle swizzle, uint32_t tile, int step)
{
	const int width = width_of(swizzle), at = 32 * step;
	return descriptor(swizzle, tile + at / width * (64 * width) + at % width, 64 * width, 8 * width);
}

/// Of the `step`th sixteen of K.
static __device__ uint64_t columns_descriptor(Swizzle swizzle, uint32_t tile, int step)
{
	const int width = width_of(swizzle), panel = LINE / 2 * width, eight = 8 * width;
	const uint32_t start = tile + 2 * step * eight;
	return swizzle == PLAIN ? descriptor(swizzle, start, eight, panel) : descriptor(swizzle, start, panel, eight);
}

/// The element of this thread's `k`th sum.
static __device__ void place_of(int thread, int k, int &row, int &column)
{
	row = thread / 32 * 16 + thread % 32 / 4 + k / 2 % 2 * 8;
	column = k / 4 * 8 + thread % 4 * 2 + k % 2;
}

// ---- kernels: `a` has rows, `b` columns, each of `bytes` of K; a block has a tile of `c` ----

template <typename Kind, Swizzle SWIZZLE, bool A_BY_COLUMNS, bool B_BY_COLUMNS>
__global__ void __launch_bounds__(THREADS) product(const uint8_t *a, const uint8_t *b, typename Kind::Sum *c, int bytes, int columns)
{
	__shared__ __align__(1024) uint8_t tile_a[ROWS * LINE], tile_b[COLUMNS * LINE];
	const int first_row = blockIdx.y * ROWS, first_column = blockIdx.x * COLUMNS;
	typename Kind::Sum sums[32];
	for (int k = 0; k < 32; k++)
		sums[k] = 0;
	for (int at = 0; at < bytes; at += LINE) {
		for (int k = threadIdx.x; k < ROWS * LINE / 2; k += THREADS) {
			const int line = k / (LINE / 2), pair = k % (LINE / 2);
			const uint16_t from_a = *reinterpret_cast<const uint16_t *>(a + (first_row + line) * bytes + at + 2 * pair);
			const uint16_t from_b = *reinterpret_cast<const uint16_t *>(b + (first_column + line) * bytes + at + 2 * pair);
			const int to_a = A_BY_COLUMNS ? by_columns(SWIZZLE, line, pair) : by_rows(SWIZZLE, line, 2 * pair);
			const int to_b = B_BY_COLUMNS ? by_columns(SWIZZLE, line, pair) : by_rows(SWIZZLE, line, 2 * pair);
			*reinterpret_cast<uint16_t *>(tile_a + to_a) = from_a;
			*reinterpret_cast<uint16_t *>(tile_b + to_b) = from_b;
		}
		show_to_tensor_cores();
		__syncthreads();
		fence();
		for (int step = 0; step < LINE / 32; step++) {
			const uint32_t from_a = shared_address(tile_a), from_b = shared_address(tile_b);
			Kind::multiply(sums,
				       A_BY_COLUMNS ? columns_descriptor(SWIZZLE, from_a, step) : rows_descriptor(SWIZZLE, from_a, step),
				       B_BY_COLUMNS ? columns_descriptor(SWIZZLE, from_b, step) : rows_descriptor(SWIZZLE, from_b, step),
				       at || step);
		}
		commit();
		wait<0>();
		__syncthreads();
	}
	for (int k = 0; k < 32; k++) {
		int row, column;
		place_of(threadIdx.x, k, row, column);
		c[(first_row + row) * columns + first_column + column] = sums[k];
	}
}

/// A straight from global memory to registers.
__global__ void __launch_bounds__(THREADS) product_of_registers(const uint8_t *a, const uint8_t *b, float *c, int bytes, int columns)
{
	__shared__ __align__(1024) uint8_t tile[COLUMNS * LINE];
	const int first_row = blockIdx.y * ROWS, first_column = blockIdx.x * COLUMNS;
	const int row = first_row + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
	float sums[32] = {};
	for (int at = 0; at < bytes; at += LINE) {
		for (int k = threadIdx.x; k < COLUMNS * LINE; k += THREADS)
			tile[by_rows(BYTES_128, k / LINE, k % LINE)] = b[(first_column + k / LINE) * bytes + at + k % LINE];
		show_to_tensor_cores();
		__syncthreads();
		for (int step = 0; step < LINE / 32; step++) {
			uint32_t held[4];
			for (int k = 0; k < 4; k++)
				held[k] = *reinterpret_cast<const uint32_t *>(
					a + (row + k % 2 * 8) * bytes + at + 32 * step + threadIdx.x % 4 * 4 + k / 2 * 16);
			fence();
			multiply_registers(sums, held, rows_descriptor(BYTES_128, shared_address(tile), step), at || step);
			commit();
			wait<0>();	// before the registers change
		}
		__syncthreads();
	}
	for (int k = 0; k < 32; k++) {
		int r, column;
		place_of(threadIdx.x, k, r, column);
		c[(first_row + r) * columns + first_column + column] = sums[k];
	}
}

// ---- a loader and two warpgroups that multiply ----

static const int STAGES = 3, CONSUMERS = 2;

struct Ring {
	uint8_t a[STAGES][CONSUMERS][ROWS * LINE];
	uint8_t b[STAGES][COLUMNS * LINE];
	uint64_t full[STAGES], empty[STAGES];
};

static __device__ void barrier_wait(uint64_t *barrier, int parity)
{
	asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(
			     shared_address(barrier)),
		     "r"(parity)
		     : "memory");
}

static __device__ void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
			     shared_address(to)),
		     "l"(from), "r"(bytes), "r"(shared_address(barrier))
		     : "memory");
}

/// `a` and `b` are tiles of half as shared memory has them, those of a row of tiles, or of a column, side by side.
__global__ void __launch_bounds__(THREADS *(1 + CONSUMERS)) product_of_ring(const uint8_t *a, const uint8_t *b, float *c, int tiles, int columns)
{
	extern __shared__ __align__(1024) uint8_t memory[];
	Ring &ring = *reinterpret_cast<Ring *>(memory);
	const int group = threadIdx.x / THREADS, thread = threadIdx.x % THREADS;
	const uint32_t tile_bytes = ROWS * LINE;
	if (threadIdx.x == 0) {
		for (int stage = 0; stage < STAGES; stage++) {
			asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&ring.full[stage])) : "memory");
			asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&ring.empty[stage])), "n"(CONSUMERS) : "memory");
		}
		asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	}
	__syncthreads();
	if (group == 0) {
		asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
		if (thread)
			return;
		for (int k = 0; k < tiles; k++) {
			const int stage = k % STAGES;
			if (k >= STAGES)
				barrier_wait(&ring.empty[stage], (k / STAGES - 1) % 2);
			asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&ring.full[stage])),
				     "r"((CONSUMERS + 1) * tile_bytes)
				     : "memory");
			for (int consumer = 0; consumer < CONSUMERS; consumer++)
				bulk_copy(ring.a[stage][consumer], a + ((blockIdx.y * CONSUMERS + consumer) * tiles + k) * tile_bytes,
					  tile_bytes, &ring.full[stage]);
			bulk_copy(ring.b[stage], b + (blockIdx.x * tiles + k) * tile_bytes, tile_bytes, &ring.full[stage]);
		}
		return;
	}
	asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
	float sums[32] = {};
	for (int k = 0; k < tiles; k++) {
		const int stage = k % STAGES;
		barrier_wait(&ring.full[stage], k / STAGES % 2);
		fence();
		for (int step = 0; step < LINE / 32; step++)
			Half::multiply(sums, rows_descriptor(BYTES_128, shared_address(ring.a[stage][group - 1]), step),
				       rows_descriptor(BYTES_128, shared_address(ring.b[stage]), step), 1);
		commit();
		// The one before is complete, and all four warps have read its tiles: one thread says so for them.
		wait<1>();
		if (k && thread == 32)
			asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&ring.empty[(k - 1) % STAGES])) : "memory");
	}
	wait<0>();
	for (int k = 0; k < 32; k++) {
		int row, column;
		place_of(thread, k, row, column);
		c[((blockIdx.y * CONSUMERS + group - 1) * ROWS + row) * columns + blockIdx.x * COLUMNS + column] = sums[k];
	}
}

// ---- here ----

/// Bits of a small whole number.
struct Format {
	int bytes, least, most;
	uint32_t (*encode)(int value);
};

static uint32_t bits_of(float value)
{
	uint32_t bits;
	std::memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static const Format HALF = { 2, -8, 8, [](int value) -> uint32_t { return __half_as_ushort(__float2half(static_cast<float>(value))); } };
static const Format BFLOAT = { 2, -8, 8, [](int value) -> uint32_t { return bits_of(static_cast<float>(value)) >> 16; } };
static const Format TF32 = { 4, -8, 8, [](int value) -> uint32_t { return bits_of(static_cast<float>(value)); } };
static const Format E4M3 = { 1, -8, 8, [](int value) -> uint32_t {
	return __nv_cvt_float_to_fp8(static_cast<float>(value), __NV_SATFINITE, __NV_E4M3);
} };
static const Format E5M2 = { 1, -4, 4, [](int value) -> uint32_t {
	return __nv_cvt_float_to_fp8(static_cast<float>(value), __NV_SATFINITE, __NV_E5M2);
} };
static const Format SIGNED = { 1, -128, 127, [](int value) -> uint32_t { return static_cast<uint8_t>(value); } };
static const Format UNSIGNED = { 1, 0, 255, [](int value) -> uint32_t { return static_cast<uint8_t>(value); } };

/// Lines of whole numbers along K, and their bytes.
struct Lines {
	std::vector<int> values;
	std::vector<uint8_t> bytes;

	Lines(const Format &format, int lines, int depth, uint32_t seed) : values(lines * depth), bytes(lines * depth * format.bytes)
	{
		for (size_t k = 0; k < values.size(); k++) {
			values[k] = format.least + static_cast<int>(hash(static_cast<uint32_t>(k) + seed) %
								    static_cast<uint32_t>(format.most - format.least + 1));
			const uint32_t bits = format.encode(values[k]);
			std::memcpy(&bytes[k * format.bytes], &bits, format.bytes);
		}
	}
};

/// The tiles of all lines, 64 of them by LINE bytes, as shared memory is to have them.
static std::vector<uint8_t> in_tiles(const std::vector<uint8_t> &lines, int bytes)
{
	std::vector<uint8_t> tiles(lines.size());
	for (size_t k = 0; k < lines.size(); k++) {
		const int line = static_cast<int>(k / bytes), at = static_cast<int>(k % bytes);
		const size_t tile = line / 64 * (bytes / LINE) + at / LINE;
		tiles[tile * 64 * LINE + by_rows(BYTES_128, line % 64, at % LINE)] = lines[k];
	}
	return tiles;
}

template <typename Sum>
static void expect(const char *what, const Sum *device, const Lines &a, const Lines &b, int rows, int columns, int depth)
{
	CUDA(cudaGetLastError());
	const std::vector<Sum> c = to_host(device, rows * columns);
	for (int row = 0; row < rows; row++)
		for (int column = 0; column < columns; column++) {
			int sum = 0;
			for (int k = 0; k < depth; k++)
				sum += a.values[row * depth + k] * b.values[column * depth + k];
			if (c[row * columns + column] != static_cast<Sum>(sum))
				FAIL("%s: element (%d, %d): %g instead of %d", what, row, column,
				     static_cast<double>(c[row * columns + column]), sum);
		}
}

static const int ALL_ROWS = 2 * ROWS, ALL_COLUMNS = 2 * COLUMNS, DEPTH_BYTES = 4 * LINE;

typedef void (*Launch)(const uint8_t *a, const uint8_t *b, void *c);

template <typename Kind, Swizzle SWIZZLE, bool A_BY_COLUMNS = false, bool B_BY_COLUMNS = false>
static void check(const char *what, const Format &a_format, const Format &b_format)
{
	const int depth = DEPTH_BYTES / a_format.bytes;
	const Lines a(a_format, ALL_ROWS, depth, 1), b(b_format, ALL_COLUMNS, depth, 1000000);
	uint8_t *device_a = to_device(a.bytes), *device_b = to_device(b.bytes);
	auto *c = device_array<typename Kind::Sum>(ALL_ROWS * ALL_COLUMNS);
	product<Kind, SWIZZLE, A_BY_COLUMNS, B_BY_COLUMNS>
		<<<dim3(ALL_COLUMNS / COLUMNS, ALL_ROWS / ROWS), THREADS>>>(device_a, device_b, c, DEPTH_BYTES, ALL_COLUMNS);
	expect(what, c, a, b, ALL_ROWS, ALL_COLUMNS, depth);
	CUDA(cudaFree(device_a));
	CUDA(cudaFree(device_b));
	CUDA(cudaFree(c));
}

static void check_registers_and_ring()
{
	const int depth = DEPTH_BYTES / 2;
	const Lines a(HALF, ALL_ROWS, depth, 2), b(HALF, ALL_COLUMNS, depth, 2000000);
	uint8_t *device_a = to_device(a.bytes), *device_b = to_device(b.bytes);
	uint8_t *tiles_a = to_device(in_tiles(a.bytes, DEPTH_BYTES)), *tiles_b = to_device(in_tiles(b.bytes, DEPTH_BYTES));
	float *c = device_array<float>(ALL_ROWS * ALL_COLUMNS);
	product_of_registers<<<dim3(ALL_COLUMNS / COLUMNS, ALL_ROWS / ROWS), THREADS>>>(device_a, device_b, c, DEPTH_BYTES, ALL_COLUMNS);
	expect("A in registers", c, a, b, ALL_ROWS, ALL_COLUMNS, depth);
	CUDA(cudaMemset(c, 0xff, ALL_ROWS * ALL_COLUMNS * sizeof(float)));
	CUDA(cudaFuncSetAttribute(product_of_ring, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Ring)));
	product_of_ring<<<dim3(ALL_COLUMNS / COLUMNS, ALL_ROWS / (CONSUMERS * ROWS)), THREADS * (1 + CONSUMERS), sizeof(Ring)>>>(
		tiles_a, tiles_b, c, DEPTH_BYTES / LINE, ALL_COLUMNS);
	expect("ring", c, a, b, ALL_ROWS, ALL_COLUMNS, depth);
	CUDA(cudaFree(device_a));
	CUDA(cudaFree(device_b));
	CUDA(cudaFree(tiles_a));
	CUDA(cudaFree(tiles_b));
	CUDA(cudaFree(c));
}

int main()
{
	check<Half, BYTES_128>("half, 128-byte swizzle", HALF, HALF);
	check<Half, PLAIN>("half, no swizzle", HALF, HALF);
	check<HalfByColumns, BYTES_128, true, true>("half by columns, 128-byte swizzle", HALF, HALF);
	check<HalfByColumns, PLAIN, true, true>("half by columns, no swizzle", HALF, HALF);
	check<Bfloat, BYTES_64, false, true>("bfloat16, 64-byte swizzle, B by columns", BFLOAT, BFLOAT);
	check<Tf32, BYTES_32>("tf32, 32-byte swizzle", TF32, TF32);
	check<Eight, BYTES_64>("e4m3 and e5m2, 64-byte swizzle", E4M3, E5M2);
	check<Integers, BYTES_128>("8-bit integers, 128-byte swizzle", SIGNED, UNSIGNED);
	check_registers_and_ring();
	std::printf("ok warpgroup_matmul of %d x %d, ten ways\n", ALL_ROWS, ALL_COLUMNS);
}
