// Thrust: transform, reduce, inner product, scan, counting and extrema, with functors of ours and a
// counting iterator.
#define PROGRAM "thrust_reduce"
#include "check.h"

#include <exception>

#include <thrust/count.h>
#include <thrust/device_vector.h>
#include <thrust/extrema.h>
#include <thrust/functional.h>
#include <thrust/host_vector.h>
#include <thrust/inner_product.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/transform.h>
#include <thrust/transform_reduce.h>

struct Mix {
	__host__ __device__ uint32_t operator()(uint32_t i) const { return hash(i) % 1000; }
};

struct IsEven {
	__host__ __device__ bool operator()(uint32_t x) const { return x % 2 == 0; }
};

struct Square {
	__host__ __device__ unsigned long long operator()(uint32_t x) const { return 1ull * x * x; }
};

int main(int argc, char **argv)
try {
	const int count = size_option(argc, argv, 20000, 1, 1 << 26);
	thrust::device_vector<uint32_t> values(count), sums(count);
	const thrust::counting_iterator<uint32_t> first(0);
	thrust::transform(first, first + count, values.begin(), Mix());
	const thrust::host_vector<uint32_t> host = values;

	uint32_t sum = 0, largest_place = 0;
	unsigned long long squares = 0;
	int even = 0;
	for (int i = 0; i < count; i++) {
		if (host[i] != hash(i) % 1000)
			FAIL("transform, element %d: %u", i, host[i]);
		sum += host[i];
		squares += 1ull * host[i] * host[i];
		even += host[i] % 2 == 0;
		largest_place = host[i] > host[largest_place] ? i : largest_place;
	}
	if (thrust::reduce(values.begin(), values.end()) != sum)
		FAIL("reduce: instead of %u", sum);
	if (thrust::transform_reduce(values.begin(), values.end(), Square(), 0ull, thrust::plus<unsigned long long>()) != squares)
		FAIL("transform_reduce: instead of %llu", squares);
	if (thrust::inner_product(values.begin(), values.end(), values.begin(), 0ull) != squares)
		FAIL("inner_product: instead of %llu", squares);
	if (thrust::count_if(values.begin(), values.end(), IsEven()) != even)
		FAIL("count_if: instead of %d", even);
	const auto largest = thrust::max_element(values.begin(), values.end()) - values.begin();
	if (largest != largest_place)
		FAIL("max_element: place %td instead of %u", static_cast<ptrdiff_t>(largest), largest_place);
	thrust::inclusive_scan(values.begin(), values.end(), sums.begin());
	const thrust::host_vector<uint32_t> host_sums = sums;
	uint32_t running = 0;
	for (int i = 0; i < count; i++)
		if (host_sums[i] != (running += host[i]))
			FAIL("inclusive_scan, element %d: %u instead of %u", i, host_sums[i], running);
	std::printf("ok thrust_reduce of %d numbers: sum %u\n", count, sum);
} catch (const std::exception &error) {
	FAIL("%s", error.what());
}
