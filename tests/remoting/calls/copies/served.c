/* Memory that the program protects, and whose faults it serves, is copied to and from as any other is. */
#include "../calls.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES ((size_t)4 << 20)

static unsigned char *memory;
static volatile sig_atomic_t served;

/* A page at a time becomes what it is used as. */
static void serve(int number, siginfo_t *info, void *unused)
{
	unsigned char *at = info->si_addr;

	(void)number, (void)unused;
	if (at < memory || at >= memory + BYTES)
		_exit(4);
	served++;
	if (mprotect((void *)((unsigned long)at & ~4095ul), 4096, PROT_READ | PROT_WRITE))
		_exit(5);
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = serve, .sa_flags = SA_SIGINFO };
	unsigned char *expected = malloc(BYTES);
	CUdeviceptr device;

	(void)begin();
	CHECK(cuMemAlloc_v2(&device, BYTES));
	for (size_t i = 0; i < BYTES; i++)
		expected[i] = (unsigned char)(i * 2654435761u >> 11);
	CHECK(cuMemcpyHtoD_v2(device, expected, BYTES));
	memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(memory != MAP_FAILED);
	REQUIRE(sigaction(SIGSEGV, &action, NULL) == 0);
	for (size_t bytes = 1000; bytes <= BYTES; bytes *= 8) {
		memset(memory, 0, bytes);
		REQUIRE(mprotect(memory, BYTES, PROT_READ) == 0);
		CHECK(cuMemcpyDtoH_v2(memory, device, bytes));
		REQUIRE(memcmp(memory, expected, bytes) == 0);
		REQUIRE(mprotect(memory, BYTES, PROT_READ | PROT_WRITE) == 0);
	}
	REQUIRE(served > 0);
	puts("ok");
	return 0;
}
