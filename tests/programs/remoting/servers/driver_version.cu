// Prints the driver's version as the runtime tells it.
#include "../check.h"

int main()
{
	int version;
	CUDA(cudaDriverGetVersion(&version));
	std::printf("%d\n", version);
	return 0;
}
