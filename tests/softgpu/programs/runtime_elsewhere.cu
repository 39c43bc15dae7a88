// A library of the program has code for other devices alone: with lazy loading, only what uses it fails.
__global__ void elsewhere() {}

int use_elsewhere()
{
	elsewhere<<<1, 1>>>();
	return cudaGetLastError();
}
