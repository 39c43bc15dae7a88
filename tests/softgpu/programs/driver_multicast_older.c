/* softgpu: cc=8.0 */
/* A device without multimem says so, and belongs to no multicast object. */
#include "driver.h"

int main(void)
{
	const CUmulticastObjectProp properties = { .numDevices = 1, .size = 2 << 20 };
	CUmemGenericAllocationHandle team;
	int supported = 7;

	begin();
	CHECK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
	REQUIRE_EQUAL(supported, 0);
	CHECK(cuMulticastCreate(&team, &properties));
	EXPECT(cuMulticastAddDevice(team, 0), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(cuMemRelease(team));
	return 0;
}
