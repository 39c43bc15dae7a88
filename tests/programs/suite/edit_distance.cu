// Edit distance of two strings, diagonal by diagonal: three diagonals are kept, each launch works
// out one.
#define PROGRAM "edit_distance"
#include "check.h"

#include <algorithm>

/// Cell i of a diagonal stands for i characters of `a` and diagonal - i characters of `b`.
__global__ void wave(const char *a, int a_length, const char *b, int b_length, const int *before, const int *last,
		     int *now, int diagonal)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	const int k = diagonal - i;
	if (i > a_length || k < 0 || k > b_length)
		return;
	if (i == 0 || k == 0)
		now[i] = diagonal;
	else
		now[i] = min(min(last[i - 1], last[i]) + 1, before[i - 1] + (a[i - 1] != b[k - 1]));
}

int main(int argc, char **argv)
{
	const int size = size_option(argc, argv, 300, 1, 1 << 16);
	std::vector<char> a(size), b;
	for (int i = 0; i < size; i++) {
		a[i] = "acgt"[hash(i) % 4];
		const uint32_t change = hash(~i) % 10; // b is a, edited
		if (change != 0)
			b.push_back(change == 1 ? 't' : a[i]);
		if (change == 2)
			b.push_back('g');
	}
	b.push_back('a');
	const int a_length = size, b_length = static_cast<int>(b.size());
	char *device_a = to_device(a), *device_b = to_device(b);
	int *diagonals[3];
	for (int *&diagonal : diagonals)
		diagonal = device_array<int>(a_length + 1);
	for (int d = 0; d <= a_length + b_length; d++) {
		wave<<<(a_length + 1 + 127) / 128, 128>>>(device_a, a_length, device_b, b_length, diagonals[(d + 1) % 3],
							 diagonals[(d + 2) % 3], diagonals[d % 3], d);
		CUDA(cudaGetLastError());
	}
	const int distance = to_host(diagonals[(a_length + b_length) % 3] + a_length, 1)[0];

	std::vector<int> row(b_length + 1);
	for (int k = 0; k <= b_length; k++)
		row[k] = k;
	for (int i = 1; i <= a_length; i++) {
		int corner = row[0];
		row[0] = i;
		for (int k = 1; k <= b_length; k++) {
			const int above = row[k];
			row[k] = std::min(std::min(row[k], row[k - 1]) + 1, corner + (a[i - 1] != b[k - 1]));
			corner = above;
		}
	}
	if (distance != row[b_length])
		FAIL("%d instead of %d", distance, row[b_length]);
	CUDA(cudaFree(device_a));
	CUDA(cudaFree(device_b));
	for (int *diagonal : diagonals)
		CUDA(cudaFree(diagonal));
	std::printf("ok edit_distance of %d and %d characters: %d\n", a_length, b_length, distance);
}
