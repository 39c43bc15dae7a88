/* A program that lets its files grow no further, in the midst of a trace. */
#include "../calls.h"

#include <sys/resource.h>

int main(void)
{
	struct rlimit limit;
	CUdeviceptr word;

	begin();
	word = words(1, 0);
	CHECK(getrlimit(RLIMIT_FSIZE, &limit));
	limit.rlim_cur = 10000;
	CHECK(setrlimit(RLIMIT_FSIZE, &limit));
	for (unsigned i = 0; i < 1000; i++)
		CHECK(cuMemsetD32_v2(word, i, 1));
	REQUIRE_EQUAL(word_at(word), 999);
	return 0;
}
