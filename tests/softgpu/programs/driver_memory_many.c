/* Many allocations, freed in another order: none overlaps another, none moves,
 * and nothing is left at the end. */
#include "driver.h"

#define COUNT 600

static CUdeviceptr memory[COUNT];
static size_t sizes[COUNT];

int main(void)
{
	size_t before, after, total;
	unsigned word;

	begin();
	CHECK(cuMemGetInfo(&before, &total));
	for (int round = 0; round < 3; round++) {
		for (unsigned i = 0; i < COUNT; i++) {
			sizes[i] = 4 + (i * 7919u + (unsigned)round * 104729u) % 300000 / 4 * 4;
			CHECK(cuMemAlloc(&memory[i], sizes[i]));
			REQUIRE_EQUAL(memory[i] % 512, 0);
			CHECK(cuMemsetD32(memory[i], i, sizes[i] / 4));
		}
		for (unsigned i = 0; i < COUNT; i++) {
			unsigned j = i * 7 % COUNT;

			CHECK(cuMemcpyDtoH(&word, memory[j], 4));
			REQUIRE_EQUAL(word, j);
			CHECK(cuMemcpyDtoH(&word, memory[j] + sizes[j] - 4, 4));
			REQUIRE_EQUAL(word, j);
			/* 7 and COUNT have no common divisor: each goes once. */
			CHECK(cuMemFree(memory[j]));
		}
		CHECK(cuMemGetInfo(&after, &total));
		REQUIRE_EQUAL(after, before);
	}
	return 0;
}
