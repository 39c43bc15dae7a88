/* Prints the PCI buses of the devices in their order. */
#include "../calls.h"

int main(void)
{
	int count, bus;

	CHECK(cuInit(0));
	CHECK(cuDeviceGetCount(&count));
	for (int device = 0; device < count; device++) {
		CHECK(cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device));
		printf("%d ", bus);
	}
	printf("\n");
	return 0;
}
