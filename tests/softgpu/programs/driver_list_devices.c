/* Used by the tests of visibility: the UUIDs of the devices there are. */
#include "driver.h"

int main(void)
{
	CUresult result = cuInit(0);
	CUuuid uuid;
	int count;

	if (result) {
		printf("%s\n", name_of(result));
		return 0;
	}
	CHECK(cuDeviceGetCount(&count));
	for (int i = 0; i < count; i++) {
		CHECK(cuDeviceGetUuid(&uuid, i));
		for (unsigned b = 0; b < 16; b++)
			printf("%s%02x", b == 4 || b == 6 || b == 8 || b == 10 ? "-" :
			       b ? "" : "GPU-", (unsigned char)uuid.bytes[b]);
		printf("\n");
	}
	return 0;
}
