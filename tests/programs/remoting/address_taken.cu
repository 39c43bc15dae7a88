// Device memory whose address this process already uses is made again elsewhere, and
// no device address ever lies on memory of this process.
#include "check.h"

#include <cstdint>
#include <cstring>
#include <sys/mman.h>

int main()
{
	const size_t bytes = 3 << 20, page = 4096;
	char *first, *again;
	char *mine[8];
	CUDA(cudaMalloc(&first, bytes));
	CUDA(cudaFree(first));
	// Take the addresses that the GPU has just given up, and would give out again.
	int taken = 0;
	for (char *at = first; taken < 8; at += 1 << 20, taken++) {
		char *wanted = (char *)((uintptr_t)at & ~(uintptr_t)(page - 1));
		mine[taken] = (char *)mmap(wanted, page, PROT_READ | PROT_WRITE,
					   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		if (mine[taken] == MAP_FAILED)
			FAIL("address %p is not free", (void *)wanted);
		std::memset(mine[taken], 0x33, page);
	}
	for (int round = 0; round < 10; round++) {
		CUDA(cudaMalloc(&again, bytes));
		for (int i = 0; i < taken; i++)
			if (mine[i] + page > again && mine[i] < again + bytes)
				FAIL("device memory at %p lies on %p", (void *)again, (void *)mine[i]);
		CUDA(cudaMemset(again, 0x44, bytes));
		char back = 0;
		CUDA(cudaMemcpy(&back, again + bytes - 1, 1, cudaMemcpyDefault));
		EXPECT(back == 0x44);
		// Nothing else can come to lie on it.
		void *on_top = mmap((void *)((uintptr_t)again & ~(uintptr_t)(page - 1)), page, PROT_READ,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		EXPECT(on_top == MAP_FAILED);
	}
	for (int i = 0; i < taken; i++)
		for (size_t k = 0; k < page; k++)
			EXPECT(mine[i][k] == 0x33);
	return passed();
}
