// k-means (Lloyd's iterations) of points with whole coordinates: distances and sums are exact
// integers, so atomics in any order give the same centres.
#define PROGRAM "kmeans"
#include "check.h"

#include <climits>

static const int DIMENSIONS = 4;
static const int CLUSTERS = 8;

struct Point {
	int coordinate[DIMENSIONS];
};

__constant__ Point centres[CLUSTERS];

__host__ __device__ static int nearest(const Point &point, const Point *all)
{
	long long least = LLONG_MAX;
	int best = 0;
	for (int k = 0; k < CLUSTERS; k++) {
		long long distance = 0;
		for (int d = 0; d < DIMENSIONS; d++) {
			const long long difference = point.coordinate[d] - all[k].coordinate[d];
			distance += difference * difference;
		}
		if (distance < least) {
			least = distance;
			best = k;
		}
	}
	return best;
}

__global__ void assign(const Point *points, int count, int *labels, int *sums, int *sizes)
{
	__shared__ int local_sums[CLUSTERS * DIMENSIONS], local_sizes[CLUSTERS];
	if (threadIdx.x < CLUSTERS * DIMENSIONS)
		local_sums[threadIdx.x] = 0;
	if (threadIdx.x < CLUSTERS)
		local_sizes[threadIdx.x] = 0;
	__syncthreads();
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count) {
		const int k = nearest(points[i], centres);
		labels[i] = k;
		atomicAdd(&local_sizes[k], 1);
		for (int d = 0; d < DIMENSIONS; d++)
			atomicAdd(&local_sums[k * DIMENSIONS + d], points[i].coordinate[d]);
	}
	__syncthreads();
	if (threadIdx.x < CLUSTERS * DIMENSIONS)
		atomicAdd(&sums[threadIdx.x], local_sums[threadIdx.x]);
	if (threadIdx.x < CLUSTERS)
		atomicAdd(&sizes[threadIdx.x], local_sizes[threadIdx.x]);
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 6000, CLUSTERS, 1 << 20);
	const int iterations = 6;
	std::vector<Point> points(count);
	for (int i = 0; i < count; i++)
		for (int d = 0; d < DIMENSIONS; d++) // clouds around eight corners
			points[i].coordinate[d] = (hash(i % CLUSTERS * DIMENSIONS + d) % 1024) +
						  (hash(i * DIMENSIONS + d + 77) % 256);
	Point now[CLUSTERS], expected[CLUSTERS];
	for (int k = 0; k < CLUSTERS; k++)
		now[k] = expected[k] = points[k];

	Point *device_points = to_device(points);
	int *labels = device_array<int>(count), *sums = device_array<int>(CLUSTERS * DIMENSIONS);
	int *sizes = device_array<int>(CLUSTERS);
	for (int iteration = 0; iteration < iterations; iteration++) {
		CUDA(cudaMemcpyToSymbol(centres, now, sizeof now));
		CUDA(cudaMemset(sums, 0, CLUSTERS * DIMENSIONS * sizeof *sums));
		CUDA(cudaMemset(sizes, 0, CLUSTERS * sizeof *sizes));
		assign<<<(count + 127) / 128, 128>>>(device_points, count, labels, sums, sizes);
		CUDA(cudaGetLastError());
		const std::vector<int> totals = to_host(sums, CLUSTERS * DIMENSIONS), members = to_host(sizes, CLUSTERS);
		for (int k = 0; k < CLUSTERS; k++)
			for (int d = 0; d < DIMENSIONS; d++)
				if (members[k])
					now[k].coordinate[d] = totals[k * DIMENSIONS + d] / members[k];
	}

	std::vector<int> expected_labels(count);
	for (int iteration = 0; iteration < iterations; iteration++) {
		std::vector<int> totals(CLUSTERS * DIMENSIONS), members(CLUSTERS);
		for (int i = 0; i < count; i++) {
			const int k = expected_labels[i] = nearest(points[i], expected);
			members[k]++;
			for (int d = 0; d < DIMENSIONS; d++)
				totals[k * DIMENSIONS + d] += points[i].coordinate[d];
		}
		for (int k = 0; k < CLUSTERS; k++)
			for (int d = 0; d < DIMENSIONS; d++)
				if (members[k])
					expected[k].coordinate[d] = totals[k * DIMENSIONS + d] / members[k];
	}
	if (std::memcmp(now, expected, sizeof now))
		FAIL("the centres differ");
	const std::vector<int> found = to_host(labels, count);
	for (int i = 0; i < count; i++)
		if (found[i] != expected_labels[i])
			FAIL("point %d: cluster %d instead of %d", i, found[i], expected_labels[i]);
	CUDA(cudaFree(device_points));
	CUDA(cudaFree(labels));
	CUDA(cudaFree(sums));
	CUDA(cudaFree(sizes));
	std::printf("ok kmeans of %d points, %d clusters, %d iterations\n", count, CLUSTERS, iterations);
}
