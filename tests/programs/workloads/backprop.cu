// Back propagation: training of a perceptron with one hidden layer of 16 and one output.  The
// wide first layer is the GPU's: weighted sums by tiles with a tree in shared memory, then the
// adjustment of all weights with momentum.  The squashing is the CPU's, which also keeps exp out
// of the comparison; all else is + - * in a fixed order, so results agree bit for bit.
// `--size` is the number of inputs (rounded up to 16), `--iterations` of training steps.
#define PROGRAM "backprop"
#include "workload.h"

#include <cmath>

static const int HIDDEN = 16;
static const int TILE = 16; // inputs per block
static const float RATE = 0.3f;
static const float MOMENTUM = 0.3f;

/// Per block, for each hidden unit, the weighted sum of the block's inputs.
__global__ void weighted_sums(const float *inputs, const float *weights, float *partial)
{
	__shared__ float products[TILE][HIDDEN];
	const int unit = threadIdx.x, row = threadIdx.y, input = blockIdx.x * TILE + row;
	products[row][unit] = inputs[input] * weights[static_cast<size_t>(input) * HIDDEN + unit];
	for (int half = TILE / 2; half > 0; half /= 2) {
		__syncthreads();
		if (row < half)
			products[row][unit] += products[row + half][unit];
	}
	if (row == 0)
		partial[blockIdx.x * HIDDEN + unit] = products[0][unit];
}

__host__ __device__ static void adjust(float &weight, float &last, float delta, float input)
{
	const float change = RATE * delta * input + MOMENTUM * last;
	weight += change;
	last = change;
}

__global__ void adjust_weights(const float *inputs, float *weights, float *lasts, const float *deltas)
{
	const int input = blockIdx.x * TILE + threadIdx.y;
	const size_t i = static_cast<size_t>(input) * HIDDEN + threadIdx.x;
	adjust(weights[i], lasts[i], deltas[threadIdx.x], inputs[input]);
}

static float squash(float x)
{
	return 1.0f / (1.0f + std::exp(-x));
}

/// The small second layer: from the hidden sums to the error terms of the hidden units; adjusts
/// its own weights.
struct Head {
	float weights[HIDDEN], lasts[HIDDEN], output;

	Head()
	{
		for (int k = 0; k < HIDDEN; k++) {
			weights[k] = static_cast<int>(hash(1000 + k)) * 0x1p-31f;
			lasts[k] = 0;
		}
	}

	void learn(const float *sums, float target, float *deltas)
	{
		float hidden[HIDDEN], sum = 0;
		for (int k = 0; k < HIDDEN; k++) {
			hidden[k] = squash(sums[k]);
			sum += hidden[k] * weights[k];
		}
		output = squash(sum);
		const float delta = output * (1.0f - output) * (target - output);
		for (int k = 0; k < HIDDEN; k++) {
			deltas[k] = hidden[k] * (1.0f - hidden[k]) * delta * weights[k];
			adjust(weights[k], lasts[k], delta, hidden[k]);
		}
	}
};

int main(int argc, char **argv)
{
	Options options = parse(argc, argv, { 4096, 2 }, 16, 16777216);
	options.size = (options.size + TILE - 1) / TILE * TILE;
	const size_t count = static_cast<size_t>(options.size) * HIDDEN;
	const int blocks = options.size / TILE;
	std::vector<float> inputs(options.size), weights(count), lasts(count, 0.0f);
	for (int i = 0; i < options.size; i++)
		inputs[i] = hash(i) * 0x1p-32f;
	for (size_t i = 0; i < count; i++)
		weights[i] = static_cast<int>(hash(~static_cast<uint32_t>(i))) * 0x1p-34f;

	Stopwatch watch;
	float *device_inputs = to_device(inputs), *device_weights = to_device(weights), *device_lasts = to_device(lasts);
	float *device_partial = device_array<float>(blocks * HIDDEN), *device_deltas = device_array<float>(HIDDEN);
	Head head, expected_head;
	const dim3 threads(HIDDEN, TILE);
	for (int iteration = 0; iteration < options.iterations; iteration++) {
		const float target = iteration % 2 ? 0.9f : 0.1f;
		float sums[HIDDEN] = {}, deltas[HIDDEN];
		watch.start();
		weighted_sums<<<blocks, threads>>>(device_inputs, device_weights, device_partial);
		CUDA(cudaGetLastError());
		watch.stop();
		const std::vector<float> partial = to_host(device_partial, blocks * HIDDEN);
		for (int block = 0; block < blocks; block++)
			for (int k = 0; k < HIDDEN; k++)
				sums[k] += partial[block * HIDDEN + k];
		head.learn(sums, target, deltas);
		CUDA(cudaMemcpy(device_deltas, deltas, sizeof deltas, cudaMemcpyHostToDevice));
		watch.start();
		adjust_weights<<<blocks, threads>>>(device_inputs, device_weights, device_lasts, device_deltas);
		CUDA(cudaGetLastError());
		watch.stop();

		float expected_sums[HIDDEN] = {};
		for (int block = 0; block < blocks; block++)
			for (int k = 0; k < HIDDEN; k++) {
				float products[TILE];
				for (int row = 0; row < TILE; row++) {
					const int input = block * TILE + row;
					products[row] = inputs[input] * weights[static_cast<size_t>(input) * HIDDEN + k];
				}
				for (int half = TILE / 2; half > 0; half /= 2)
					for (int row = 0; row < half; row++)
						products[row] += products[row + half];
				expected_sums[k] += products[0];
			}
		expected_head.learn(expected_sums, target, deltas);
		for (size_t i = 0; i < count; i++)
			adjust(weights[i], lasts[i], deltas[i % HIDDEN], inputs[i / HIDDEN]);
		if (head.output != expected_head.output)
			FAIL("step %d: output %.9g instead of %.9g", iteration, head.output, expected_head.output);
	}
	const std::vector<float> learned = to_host(device_weights, count);
	for (size_t i = 0; i < count; i++)
		if (learned[i] != weights[i])
			FAIL("weight %zu: %.9g instead of %.9g", i, learned[i], weights[i]);
	for (float *array : {device_inputs, device_weights, device_lasts, device_partial, device_deltas})
		CUDA(cudaFree(array));
	report(options, watch);
}
