// What softgpu_bench.c launches.  It embeds this file's PTX, which is kept beside it:
//	nvcc -ptx -arch=compute_75 softgpu_kernels.cu

#define KERNEL extern "C" __global__ void

KERNEL empty() {}

KERNEL vector_add(const float *a, const float *b, float *c, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		c[i] = a[i] + b[i];
}

template <int TILE> __device__ void multiply(const float *a, const float *b, float *c, int n)
{
	__shared__ float left[TILE][TILE], right[TILE][TILE];
	int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
	float sum = 0;

	for (int k = 0; k < n; k += TILE) {
		left[y][x] = a[row * n + k + x];
		right[y][x] = b[(k + y) * n + column];
		__syncthreads();
		for (int inner = 0; inner < TILE; inner++)
			sum += left[y][inner] * right[inner][x];
		__syncthreads();
	}
	c[row * n + column] = sum;
}

KERNEL matmul_16(const float *a, const float *b, float *c, int n) { multiply<16>(a, b, c, n); }
KERNEL matmul_32(const float *a, const float *b, float *c, int n) { multiply<32>(a, b, c, n); }

KERNEL stencil(const float *in, float *out, int n)
{
	int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;

	if (x > 0 && y > 0 && x < n - 1 && y < n - 1)
		out[y * n + x] = 0.25f * (in[y * n + x - 1] + in[y * n + x + 1] + in[(y - 1) * n + x] +
					  in[(y + 1) * n + x]);
}

KERNEL reduce(const int *in, int *out, int n)
{
	__shared__ int sums[32];
	int sum = 0;

	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		sum += in[i];
	for (int offset = 16; offset; offset /= 2)
		sum += __shfl_down_sync(~0u, sum, offset);
	if (threadIdx.x % 32 == 0)
		sums[threadIdx.x / 32] = sum;
	__syncthreads();
	if (threadIdx.x == 0) {
		for (int k = 1; k < (int)blockDim.x / 32; k++)
			sum += sums[k];
		atomicAdd(out, sum);
	}
}

KERNEL histogram(const int *in, int *out, int n)
{
	__shared__ int bins[256];

	bins[threadIdx.x] = 0;
	__syncthreads();
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		atomicAdd(&bins[in[i] * 2654435761u >> 24], 1);
	__syncthreads();
	atomicAdd(&out[threadIdx.x], bins[threadIdx.x]);
}

// Branches that lanes of a warp take apart.
KERNEL collatz(int *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x, steps = 0;

	if (i >= n)
		return;
	for (unsigned value = i + 1; value != 1; steps++)
		value = value % 2 ? 3 * value + 1 : value / 2;
	out[i] = steps;
}

KERNEL transcendental(const float *in, float *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n) {
		float x = in[i];

		for (int k = 0; k < 8; k++)
			x = sinf(x) * expf(-x * x) + sqrtf(fabsf(x)) + logf(1 + fabsf(x));
		out[i] = x;
	}
}
