// Objects in managed memory that point to others there, passed by value and by reference.
#include "../check.h"

#include <cstring>
#include <new>

struct managed {
	void *operator new(size_t bytes)
	{
		void *memory;

		CUDA(cudaMallocManaged(&memory, bytes));
		CUDA(cudaDeviceSynchronize());
		return memory;
	}
	void operator delete(void *memory)
	{
		CUDA(cudaDeviceSynchronize());
		CUDA(cudaFree(memory));
	}
};

struct text : managed {
	int length = 0;
	char *data = nullptr;

	text() = default;
	explicit text(const char *from) { assign(from); }
	text(const text &other) { assign(other.data); }
	~text() { cudaFree(data); }
	void assign(const char *from)
	{
		length = (int)strlen(from);
		CUDA(cudaMallocManaged(&data, length + 1));
		memcpy(data, from, length + 1);
	}
};

struct element : managed {
	text name;
	int value;

	element(const char *n, int v) : name(n), value(v) {}
};

__global__ void by_reference(element &e)
{
	e.value += e.name.length;
	e.name.data[0] = 'B';
}

__global__ void by_value(element e, int *out)
{
	*out = e.value * 100 + e.name.data[0];
}

int main()
{
	element *e = new element("alpha", 10);
	int *out;

	CUDA(cudaMallocManaged(&out, sizeof(int)));
	by_reference<<<1, 1>>>(*e);
	CUDA(cudaDeviceSynchronize());
	EXPECT(e->value == 15 && strcmp(e->name.data, "Blpha") == 0);
	by_value<<<1, 1>>>(*e, out);
	CUDA(cudaDeviceSynchronize());
	EXPECT(*out == 15 * 100 + 'B');
	delete e;
	return passed();
}
