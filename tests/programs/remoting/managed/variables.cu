// __managed__ variables, with and without initial values, changed by both sides.
#include "../check.h"

__managed__ int counter = 40;
__managed__ int zero;
__managed__ double table[3000] = { 1.5, 2.5 };
__device__ int private_to_the_gpu = 7;
__managed__ struct {
	char name[16];
	int *to;
} record = { "first", nullptr };

__global__ void change()
{
	counter++;
	zero += 3;
	private_to_the_gpu++;
	for (int i = 0; i < 3000; i++)
		table[i] += i;
	if (record.to)
		*record.to += 1000;
	record.name[0]++;
}

int main()
{
	EXPECT(counter == 40 && zero == 0 && table[1] == 2.5 && record.name[0] == 'f');
	counter++;
	change<<<1, 1>>>();
	CUDA(cudaDeviceSynchronize());
	EXPECT(counter == 42 && zero == 3);
	EXPECT(table[0] == 1.5 && table[1] == 3.5 && table[2999] == 2999);
	EXPECT(record.name[0] == 'g');
	record.to = &counter;
	zero = 10;
	for (int round = 0; round < 5; round++) {
		counter++;
		change<<<1, 1>>>();
		CUDA(cudaDeviceSynchronize());
	}
	EXPECT(counter == 42 + 5 * 1002);
	EXPECT(zero == 25);
	EXPECT(record.name[0] == 'l');
	int own;
	CUDA(cudaMemcpyFromSymbol(&own, private_to_the_gpu, sizeof(own)));
	EXPECT(own == 13);
	return passed();
}
