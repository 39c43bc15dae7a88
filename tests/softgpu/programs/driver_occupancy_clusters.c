/* How many clusters fit the device: of the size that the launch says, or that the function requires, and none where
 * neither says one or they differ. */
#include "driver.h"

CUresult cuOccupancyMaxActiveClusters(int *, CUfunction, const CUlaunchConfig *);

int main(void)
{
	CUlaunchAttribute pair = { .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = { 2, 1, 1 } };
	CUlaunchConfig config = {
		.gridDimX = 4, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1,
		.attrs = &pair, .numAttrs = 1,
	};
	int said, required;
	CUfunction store;

	begin();
	store = kernel("store");
	CHECK(cuOccupancyMaxActiveClusters(&said, store, &config));
	REQUIRE(said > 0);
	config.numAttrs = 0;
	EXPECT(cuOccupancyMaxActiveClusters(&required, store, &config), CUDA_ERROR_INVALID_CLUSTER_SIZE);
	CHECK(cuFuncSetAttribute(store, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 2));
	CHECK(cuOccupancyMaxActiveClusters(&required, store, &config));
	REQUIRE_EQUAL(required, said);
	config.numAttrs = 1;
	CHECK(cuOccupancyMaxActiveClusters(&required, store, &config));
	REQUIRE_EQUAL(required, said);
	pair.value.clusterDim.x = 4;
	EXPECT(cuOccupancyMaxActiveClusters(&required, store, &config), CUDA_ERROR_INVALID_VALUE);
	return 0;
}
