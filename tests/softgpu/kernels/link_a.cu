// With link_b.cu: device code in two objects (-rdc=true), with equal local names.
extern __device__ int shared_value;
extern __device__ int from_b(int);
static __device__ __noinline__ int local(int x) { return x + 100; }
extern "C" __global__ void linked(int *out) { *out = from_b(*out) + local(shared_value); }
