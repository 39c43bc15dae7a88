/* layout [ROUNDS] [REFUSED]: prints how each device's multiprocessors lie, by the private table that cuBLASLt asks.
 * REFUSED: the table must answer that error instead, and the context be as good as before.  Without rounds: there is
 * nothing to tell without a context. */
#include "../calls.h"

typedef CUresult (*give_function)(uint8_t **gpcs, uint8_t **numbers);
typedef CUresult (*take_back_function)(uint8_t *gpcs, uint8_t *numbers);

static const struct {
	size_t bytes;
	void (*functions[16])(void);
} *table;

static void print(CUdevice device, const uint8_t *gpcs, const uint8_t *numbers)
{
	bool there[256][256] = { 0 };
	int multiprocessors;

	CHECK(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
	for (int pair = 0; pair < (multiprocessors + 1) / 2; pair++) {
		REQUIRE(!there[gpcs[pair]][numbers[pair]]);
		there[gpcs[pair]][numbers[pair]] = true;
		printf("%u.%u ", gpcs[pair], numbers[pair]);
	}
	for (unsigned gpc = 0; gpc < 256; gpc++)
		for (unsigned number = 1; number < 256; number++)
			REQUIRE(!there[gpc][number] || there[gpc][number - 1]);
	printf("\n");
}

int main(int argc, char **argv)
{
	static const CUuuid id = { { 0x17, 0x34, (char)0xdc, 0x26, (char)0x80, 0x0d, 0x47, 0x45,
				     (char)0x87, 0x26, (char)0xc0, (char)0xf1, (char)0xe7, (char)0xdd,
				     (char)0x8b, (char)0xca } };
	const int rounds = argc > 1 ? atoi(argv[1]) : 1, refused = argc > 2 ? atoi(argv[2]) : 0;
	uint8_t mark, *gpcs = &mark, *numbers = &mark;
	take_back_function take_back;
	give_function give;
	CUcontext context;
	int count;

	CHECK(cuInit(0));
	CHECK(cuGetExportTable((const void **)&table, &id));
	REQUIRE(table->bytes == sizeof(*table));
	give = (give_function)table->functions[3];
	take_back = (take_back_function)table->functions[12];
	if (!rounds)
		EXPECT(give(&gpcs, &numbers), CUDA_ERROR_INVALID_CONTEXT);
	CHECK(cuDeviceGetCount(&count));
	for (CUdevice device = 0; device < count; device++) {
		CHECK(cuDevicePrimaryCtxRetain(&context, device));
		CHECK(cuCtxSetCurrent(context));
		for (int round = 0; round < rounds; round++) {
			gpcs = numbers = &mark;
			EXPECT(give(&gpcs, &numbers), refused);
			if (refused) {
				REQUIRE(gpcs == &mark && numbers == &mark);
				continue;
			}
			if (round == 0)
				print(device, gpcs, numbers);
			/* The copies are this program's own: nobody sees what it writes there. */
			gpcs[0] = numbers[0] = 77;
			CHECK(take_back(gpcs, numbers));
		}
		REQUIRE_EQUAL(word_at(words(1, 7)), 7);
	}
	CHECK(take_back(NULL, NULL));
	return 0;
}
