/* patience FLAGS TRIES: which waits of a context with these flags spin on, as processors.c sees it. */
#include "../calls.h"

#include <unistd.h>

/* fill(address, count): the word at `address` counts up to that */
static const char fill_code[] =
".version 7.0\n"
".target sm_75\n"
".address_size 64\n"
".visible .entry fill(.param .u64 pa, .param .u32 pcount)\n"
"{\n"
"	.reg .pred %p<2>;\n"
"	.reg .b32 %r<3>;\n"
"	.reg .b64 %rd<2>;\n"
"	ld.param.u64 %rd1, [pa];\n"
"	ld.param.u32 %r1, [pcount];\n"
"	mov.u32 %r2, 0;\n"
"more:\n"
"	add.u32 %r2, %r2, 1;\n"
"	st.volatile.global.u32 [%rd1], %r2;\n"
"	setp.ne.u32 %p1, %r2, %r1;\n"
"	@%p1 bra more;\n"
"	ret;\n"
"}\n";

static CUfunction fill;

/* Far longer than anybody spins without patience. */
static void work(void)
{
	unsigned count = 300000;
	static CUdeviceptr word;

	if (!word)
		word = words(1, 0);
	CHECK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){ &word, &count }, NULL));
	(void)unlink(getenv("PROCESSORS_WANTED"));
}

static bool spun(void)
{
	return access(getenv("PROCESSORS_WANTED"), F_OK) == 0;
}

/* Where the thread that reads for all has just begun to, a caller sleeps, and on a busy machine more often: so who is to
 * spin may try again. */

static void wait_for_stream(int tries)
{
	bool spins = false;

	for (int i = 0; i < tries && !spins; i++) {
		work();
		CHECK(cuStreamSynchronize(NULL));
		spins = spun();
	}
	printf("%s\n", spins ? "spins" : "sleeps");
}

static void wait_for_event(unsigned flags, int tries)
{
	bool spins = false;
	CUevent event;

	CHECK(cuEventCreate(&event, flags));
	for (int i = 0; i < tries && !spins; i++) {
		work();
		CHECK(cuEventRecord(event, NULL));
		CHECK(cuEventSynchronize(event));
		spins = spun();
	}
	printf("%s\n", spins ? "spins" : "sleeps");
}

int main(int argc, char **argv)
{
	CUmodule module;
	int tries;

	REQUIRE(argc == 3);
	tries = atoi(argv[2]);
	CHECK(cuInit(0));
	CHECK(cuDevicePrimaryCtxSetFlags_v2(0, (unsigned)atoi(argv[1])));
	begin();
	CHECK(cuModuleLoadData(&module, fill_code));
	CHECK(cuModuleGetFunction(&fill, module, "fill"));
	wait_for_stream(tries);
	wait_for_event(CU_EVENT_DEFAULT, tries);
	wait_for_event(CU_EVENT_BLOCKING_SYNC, 3);
	return 0;
}
