// System calls that read into and write out of managed memory, before and after kernels.
#include "../check.h"

#include <cstdlib>
#include <cstring>
#include <sys/uio.h>
#include <unistd.h>
#include <vector>

__global__ void invert(unsigned char *data, size_t n)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;

	if (i < n)
		data[i] = (unsigned char)~data[i];
}

int main()
{
	const size_t n = 3000000;
	char path[] = "/tmp/farbus-managed-XXXXXX";
	int file = mkstemp(path);
	std::vector<unsigned char> wanted(n), back(n);
	unsigned char *data;

	EXPECT(file >= 0 && unlink(path) == 0);
	for (size_t i = 0; i < n; i++)
		wanted[i] = (unsigned char)(i * 31 + i / 1000);
	EXPECT(write(file, wanted.data(), n) == (ssize_t)n);
	CUDA(cudaMallocManaged(&data, n));
	for (int round = 0; round < 3; round++) {
		EXPECT(pread(file, data, n, 0) == (ssize_t)n);
		invert<<<(n + 255) / 256, 256>>>(data, n);
		CUDA(cudaGetLastError());
		CUDA(cudaDeviceSynchronize());
		// Nothing has touched it here since the kernel: the system call is the first.
		EXPECT(pwrite(file, data, n, 0) == (ssize_t)n);
		for (unsigned char &byte : wanted)
			byte = (unsigned char)~byte;
		EXPECT(pread(file, back.data(), n, 0) == (ssize_t)n);
		EXPECT(back == wanted);
	}
	// Into a page that is here as it is on the GPU, and into a part of one that is away.
	EXPECT(data[100000] == wanted[100000]);
	EXPECT(pread(file, data + 100001, 10, 5) == 10);
	invert<<<(n + 255) / 256, 256>>>(data, n);
	CUDA(cudaDeviceSynchronize());
	EXPECT(pread(file, data + 200001, 10, 5) == 10);
	EXPECT(data[100001] == (unsigned char)~wanted[5] && data[100000] == (unsigned char)~wanted[100000]);
	EXPECT(data[200001] == wanted[5] && data[200000] == (unsigned char)~wanted[200000]);
	// The C library's own buffers, and several pieces at once.
	FILE *stream = fdopen(dup(file), "r+");
	EXPECT(stream && fseek(stream, 0, SEEK_SET) == 0);
	EXPECT(fread(data, 1, n, stream) == n && memcmp(data, wanted.data(), n) == 0);
	invert<<<(n + 255) / 256, 256>>>(data, n);
	CUDA(cudaDeviceSynchronize());
	EXPECT(fseek(stream, 0, SEEK_SET) == 0 && fwrite(data, 1, n, stream) == n && fflush(stream) == 0);
	struct iovec pieces[2] = { { data + 10, 100 }, { data + 1000000, 100 } };
	EXPECT(preadv(file, pieces, 2, 0) == 200);
	EXPECT(data[10] == (unsigned char)~wanted[0] && data[1000000] == (unsigned char)~wanted[100]);
	fclose(stream);
	return passed();
}
