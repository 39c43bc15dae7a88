/* Freeing waits for the kernels that may still use the memory. */
#include "driver.h"

static struct gate gate;
static bool opened;

static void *opens_the_gate(void *unused)
{
	__atomic_store_n(&opened, true, __ATOMIC_SEQ_CST);
	gate_open(&gate);
	return unused;
}

int main(void)
{
	CUfunction store;
	CUdeviceptr word;
	pthread_t thread;
	CUstream stream;

	begin();
	store = kernel("store");
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuMemAlloc(&word, 4ul << 20));
	gate_close(&gate, stream);
	CHECK(launch_store(store, word, 1, stream));
	REQUIRE(!pthread_create(&thread, NULL, opens_the_gate, NULL));
	CHECK(cuMemFree(word));
	REQUIRE(__atomic_load_n(&opened, __ATOMIC_SEQ_CST));
	pthread_join(thread, NULL);
	CHECK(cuCtxSynchronize());
	return 0;
}
