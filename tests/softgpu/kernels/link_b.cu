__device__ int shared_value = 7;
static __device__ __noinline__ int local(int x) { return x * 2; }
__device__ int from_b(int x) { return local(x); }
