// Shuffles: up, down, xor and indexed, all widths, values of 4 and 8 bytes, in whole warps and
// among the lanes of a mask, against a simulation lane by lane.
#define PROGRAM "warp_shuffle"
#include "check.h"

static const int KINDS = 4;
static const int WIDTHS = 6;

template <typename T> __device__ static T shuffle(unsigned mask, int kind, T value, int by, int width)
{
	switch (kind) {
	case 0:
		return __shfl_up_sync(mask, value, by, width);
	case 1:
		return __shfl_down_sync(mask, value, by, width);
	case 2:
		return __shfl_xor_sync(mask, value, by, width);
	default:
		return __shfl_sync(mask, value, by, width);
	}
}

template <typename T> __global__ void exchange(const T *values, T *out, int count, int by)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	const T value = values[i];
	for (int kind = 0; kind < KINDS; kind++)
		for (int k = 0; k < WIDTHS; k++)
			out[(kind * WIDTHS + k) * count + i] = shuffle(0xffffffffu, kind, value, by, 1 << k);
}

/// Among every third lane only; the others stay away.
__global__ void exchange_thirds(const unsigned *values, unsigned *out)
{
	const int lane = threadIdx.x;
	if (lane % 3 == 0)
		out[lane] = __shfl_sync(0x49249249u, values[lane], (lane + 9) % 33);
}

/// The lane that `lane` reads from.
static int source_of(int kind, int lane, int by, int width)
{
	const int segment = lane / width * width;
	int source;
	switch (kind) {
	case 0:
		source = lane - by;
		return source < segment ? lane : source;
	case 1:
		source = lane + by;
		return source >= segment + width ? lane : source;
	case 2:
		source = lane ^ by;
		return source >= segment + width ? lane : source;
	default:
		return segment + by % width;
	}
}

template <typename T> static void check(const char *type, int count)
{
	std::vector<T> values(count);
	for (int i = 0; i < count; i++)
		values[i] = static_cast<T>(hash(i) * 1e5);
	T *device_values = to_device(values), *out = device_array<T>(count * KINDS * WIDTHS);
	for (int by = 0; by < 32; by++) {
		exchange<<<count / 64, 64>>>(device_values, out, count, by);
		CUDA(cudaGetLastError());
		const std::vector<T> found = to_host(out, count * KINDS * WIDTHS);
		for (size_t n = 0; n < found.size(); n++) {
			const int kind = n / count / WIDTHS, width = 1 << n / count % WIDTHS, i = n % count;
			if (found[n] != values[i / 32 * 32 + source_of(kind, i % 32, by, width)])
				FAIL("%s, kind %d by %d, width %d, lane %d is wrong", type, kind, by, width, i);
		}
	}
	CUDA(cudaFree(device_values));
	CUDA(cudaFree(out));
}

int main(int argc, char **argv)
{
	const int count = 64 * size_option(argc, argv, 2, 1, 1 << 20);
	check<int>("int", count);
	check<float>("float", count);
	check<unsigned long long>("unsigned long long", count);
	check<double>("double", count);

	std::vector<unsigned> values(32);
	for (int lane = 0; lane < 32; lane++)
		values[lane] = hash(lane);
	unsigned *device_values = to_device(values), *out = device_array<unsigned>(32);
	exchange_thirds<<<1, 32>>>(device_values, out);
	CUDA(cudaGetLastError());
	const std::vector<unsigned> found = to_host(out, 32);
	for (int lane = 0; lane < 32; lane += 3)
		if (found[lane] != values[(lane + 9) % 33])
			FAIL("every third lane: lane %d is wrong", lane);
	CUDA(cudaFree(device_values));
	CUDA(cudaFree(out));
	std::printf("ok warp_shuffle of %d lanes\n", count);
}
