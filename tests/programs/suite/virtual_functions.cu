// Classes with virtual functions, made on the GPU by placement new and by the device's heap,
// called through base pointers in a later launch, and destroyed there.
#define PROGRAM "virtual_functions"
#include "check.h"

#include <new>

class Shape {
public:
	__device__ virtual ~Shape() {}
	__device__ virtual int area() const = 0;
	__device__ virtual int corners() const { return 4; }
};

class Rectangle : public Shape {
public:
	__device__ Rectangle(int width, int height) : width_(width), height_(height) {}
	__device__ int area() const override { return width_ * height_; }

protected:
	int width_, height_;
};

class Square : public Rectangle {
public:
	__device__ explicit Square(int side) : Rectangle(side, side) {}
};

class RightTriangle : public Shape {
public:
	__device__ RightTriangle(int base, int height, int *destroyed)
		: base_(base), height_(height), destroyed_(destroyed) {}
	__device__ ~RightTriangle() override { atomicAdd(destroyed_, 1); }
	__device__ int area() const override { return base_ * height_ / 2; }
	__device__ int corners() const override { return 3; }

private:
	int base_, height_;
	int *destroyed_;
};

/// Room for the largest shape.
struct alignas(16) Slot {
	unsigned char bytes[32];
};
static_assert(sizeof(RightTriangle) <= sizeof(Slot), "a slot is too small");

__global__ void make(Slot *slots, Shape **shapes, int count, int *destroyed)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= count)
		return;
	switch (i % 3) {
	case 0:
		shapes[i] = new (&slots[i]) Rectangle(i, i + 1);
		break;
	case 1:
		shapes[i] = new (&slots[i]) Square(i);
		break;
	default:
		shapes[i] = new (&slots[i]) RightTriangle(i, i + 3, destroyed);
	}
}

__global__ void measure(Shape *const *shapes, int count, int *areas, int *corners)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count) {
		areas[i] = shapes[i]->area();
		corners[i] = shapes[i]->corners();
	}
}

__global__ void destroy(Shape *const *shapes, int count)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		shapes[i]->~Shape();
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 1000, 1, 30000);
	const int blocks = (count + 63) / 64;
	Slot *slots = device_array<Slot>(count);
	Shape **shapes = device_array<Shape *>(count);
	int *areas = device_array<int>(count), *corners = device_array<int>(count);
	int *destroyed = to_device(std::vector<int>(1, 0));
	make<<<blocks, 64>>>(slots, shapes, count, destroyed);
	CUDA(cudaGetLastError());
	measure<<<blocks, 64>>>(shapes, count, areas, corners);
	CUDA(cudaGetLastError());
	destroy<<<blocks, 64>>>(shapes, count);
	CUDA(cudaGetLastError());
	const std::vector<int> found_areas = to_host(areas, count), found_corners = to_host(corners, count);
	int triangles = 0;
	for (int i = 0; i < count; i++) {
		const int area = i % 3 == 0 ? i * (i + 1) : i % 3 == 1 ? i * i : i * (i + 3) / 2;
		if (found_areas[i] != area || found_corners[i] != (i % 3 == 2 ? 3 : 4))
			FAIL("shape %d: area %d, %d corners instead of %d, %d", i, found_areas[i], found_corners[i], area,
			     i % 3 == 2 ? 3 : 4);
		triangles += i % 3 == 2;
	}
	if (to_host(destroyed, 1)[0] != triangles)
		FAIL("%d triangles destroyed instead of %d", to_host(destroyed, 1)[0], triangles);
	for (void *array : {(void *)slots, (void *)shapes, (void *)areas, (void *)corners, (void *)destroyed})
		CUDA(cudaFree(array));
	std::printf("ok virtual_functions of %d shapes\n", count);
}
