// Copies of random sizes at random alignments between the device and all kinds of host memory,
// waited for and not, compared byte for byte with what plain memory would hold.
//	copies_of_all_sizes [MOST_KIB [COUNT [SEED]]]
#include "check.h"

#include <cstdint>
#include <cstring>
#include <vector>

static uint64_t state;

static uint64_t random_below(uint64_t limit)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (state >> 24) % limit;
}

// Small ones, ones around the sizes that copies are cut at, and large ones.
static size_t random_size(size_t most)
{
	const size_t edges[] = { 4096, 16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 16 << 20 };
	size_t size;

	switch (random_below(3)) {
	case 0:
		size = 1 + random_below(300);
		break;
	case 1:
		size = edges[random_below(sizeof(edges) / sizeof(edges[0]))] - 40 + random_below(80);
		break;
	default:
		size = 1 + random_below(most);
	}
	return size < most ? size : most;
}

static void fill(unsigned char *at, size_t bytes)
{
	uint64_t word = random_below(~0ull >> 24);

	for (size_t i = 0; i < bytes; i++)
		at[i] = (unsigned char)((word + i) * 2654435761u >> 13);
}

int main(int argc, char **argv)
{
	const size_t most = (size_t)(argc > 1 ? atol(argv[1]) : 3000) << 10;
	const int count = argc > 2 ? atoi(argv[2]) : 60;
	const size_t slack = 128;
	unsigned char *device, *pinned;
	cudaStream_t stream;

	state = argc > 3 ? (uint64_t)atol(argv[3]) : 1;
	std::vector<unsigned char> model(most + slack), pageable(most + slack), registered(most + slack);
	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaMalloc(&device, most + slack));
	CUDA(cudaMallocHost(&pinned, most + slack));
	CUDA(cudaHostRegister(registered.data(), registered.size(), 0));
	CUDA(cudaMemset(device, 0, most + slack));
	unsigned char *hosts[] = { pageable.data(), pinned, registered.data() };

	for (int i = 0; i < count; i++) {
		const size_t bytes = random_size(most), at = random_below(most + slack - bytes + 1);
		const size_t where = random_below(most + slack - bytes + 1);
		unsigned char *host = hosts[random_below(3)];
		const bool async = random_below(2), to_device = random_below(2);

		if (to_device) {
			fill(host + where, bytes);
			std::memcpy(model.data() + at, host + where, bytes);
		} else {
			std::memset(host, 0xee, most + slack);
		}
		const auto kind = to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
		void *to = to_device ? device + at : host + where;
		const void *from = to_device ? host + where : device + at;
		if (async) {
			CUDA(cudaMemcpyAsync(to, from, bytes, kind, stream));
			// Pageable memory is the caller's again at once.
			if (to_device && host == hosts[0])
				std::memset(host, 0x55, most + slack);
			CUDA(cudaStreamSynchronize(stream));
		} else {
			CUDA(cudaMemcpy(to, from, bytes, kind));
		}
		if (to_device)
			continue;
		if (std::memcmp(host + where, model.data() + at, bytes))
			FAIL("copy %d: %zu bytes at %zu differ", i, bytes, at);
		for (size_t k = 0; k < most + slack; k++)
			if ((k < where || k >= where + bytes) && host[k] != 0xee)
				FAIL("copy %d: byte %zu beside %zu bytes at %zu was written", i, k, bytes, where);
	}
	CUDA(cudaMemcpy(pageable.data(), device, most + slack, cudaMemcpyDeviceToHost));
	EXPECT(std::memcmp(pageable.data(), model.data(), most + slack) == 0);
	return passed();
}
