// Conditional nodes of graphs: the Collatz sequence of a number as one launch.  A WHILE node goes on until 1, an IF node
// with an ELSE body makes each step, and a SWITCH node counts steps by their number modulo 4 in three bodies: what has no
// body is not counted.  The launch is captured, with bodies that are built by hand and bodies that are captured into.
#define PROGRAM "graph_conditions"
#include "check.h"

struct State {
	unsigned number, steps, counted[3];
};

__global__ void begin(State *state, cudaGraphConditionalHandle loop)
{
	cudaGraphSetConditional(loop, state->number != 1);
}

__global__ void look(const State *state, cudaGraphConditionalHandle odd, cudaGraphConditionalHandle fourth)
{
	cudaGraphSetConditional(odd, state->number % 2);
	cudaGraphSetConditional(fourth, state->steps % 4);
}

__global__ void up(State *state)
{
	state->number = 3 * state->number + 1;
}

__global__ void down(State *state)
{
	state->number /= 2;
}

__global__ void count(State *state, int which)
{
	state->counted[which]++;
}

__global__ void advance(State *state, cudaGraphConditionalHandle loop)
{
	state->steps++;
	cudaGraphSetConditional(loop, state->number != 1);
}

static State on_the_cpu(unsigned number)
{
	State state = { number, 0, { 0, 0, 0 } };

	while (state.number != 1) {
		state.number = state.number % 2 ? 3 * state.number + 1 : state.number / 2;
		if (state.steps % 4 < 3)
			state.counted[state.steps % 4]++;
		state.steps++;
	}
	return state;
}

static State *state;
static cudaStream_t side;

template <typename... Parameters, typename... Arguments>
static cudaGraphNode_t kernel_node(cudaGraph_t graph, cudaGraphNode_t after, void (*kernel)(Parameters...),
				   Arguments... arguments)
{
	void *pointers[] = { &arguments... };
	cudaKernelNodeParams params = {};
	cudaGraphNode_t node;

	params.func = (void *)kernel;
	params.gridDim = params.blockDim = dim3(1);
	params.kernelParams = pointers;
	CUDA(cudaGraphAddKernelNode(&node, graph, after ? &after : nullptr, after ? 1 : 0, &params));
	return node;
}

static cudaGraphNode_t conditional_node(cudaGraph_t graph, const cudaGraphNode_t *after, size_t count,
					cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type,
					std::vector<cudaGraph_t> &bodies)
{
	cudaGraphNodeParams params = {};
	cudaGraphNode_t node;

	params.type = cudaGraphNodeTypeConditional;
	params.conditional.handle = handle;
	params.conditional.type = type;
	params.conditional.size = (unsigned)bodies.size();
	CUDA(cudaGraphAddNode(&node, graph, after, nullptr, count, &params));
	bodies.assign(params.conditional.phGraph_out, params.conditional.phGraph_out + bodies.size());
	return node;
}

/// One step of the sequence.
static void fill_loop(cudaGraph_t body, cudaGraph_t root, cudaGraphConditionalHandle loop)
{
	std::vector<cudaGraph_t> ways(2), counts(3);
	cudaGraphConditionalHandle odd, fourth;
	cudaGraphNode_t node;
	cudaGraph_t same;

	CUDA(cudaGraphConditionalHandleCreate(&odd, root));
	CUDA(cudaGraphConditionalHandleCreate(&fourth, body));
	node = kernel_node(body, nullptr, look, (const State *)state, odd, fourth);
	node = conditional_node(body, &node, 1, odd, cudaGraphCondTypeIf, ways);
	kernel_node(ways[0], nullptr, up, state);
	kernel_node(ways[1], nullptr, down, state);
	node = conditional_node(body, &node, 1, fourth, cudaGraphCondTypeSwitch, counts);
	for (int i = 0; i < 3; i++) {
		CUDA(cudaStreamBeginCaptureToGraph(side, counts[i], nullptr, nullptr, 0,
							 cudaStreamCaptureModeRelaxed));
		count<<<1, 1, 0, side>>>(state, i);
		CUDA(cudaStreamEndCapture(side, &same));
		if (same != counts[i])
			FAIL("a capture into a body ended with another graph");
	}
	kernel_node(body, node, advance, state, loop);
}

static cudaGraphExec_t build(cudaStream_t stream)
{
	std::vector<cudaGraph_t> bodies(1);
	cudaGraphConditionalHandle loop;
	const cudaGraphNode_t *behind;
	cudaStreamCaptureStatus status;
	cudaGraphExec_t executable;
	cudaGraphNode_t node;
	cudaGraph_t graph;
	size_t count;

	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
	CUDA(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph));
	CUDA(cudaGraphConditionalHandleCreate(&loop, graph, 1, cudaGraphCondAssignDefault));
	begin<<<1, 1, 0, stream>>>(state, loop);
	CUDA(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &behind, nullptr, &count));
	node = conditional_node(graph, behind, count, loop, cudaGraphCondTypeWhile, bodies);
	CUDA(cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1, cudaStreamSetCaptureDependencies));
	fill_loop(bodies[0], graph, loop);
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiate(&executable, graph, 0));
	CUDA(cudaGraphDestroy(graph));
	return executable;
}

int main()
{
	cudaGraphExec_t executable;
	cudaStream_t stream;

	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaStreamCreate(&side));
	CUDA(cudaMalloc(&state, sizeof *state));
	executable = build(stream);
	for (unsigned number : { 1u, 2u, 27u, 6u, 97u }) {
		const State expected = on_the_cpu(number), start = { number, 0, { 0, 0, 0 } };
		State found;

		CUDA(cudaMemcpy(state, &start, sizeof start, cudaMemcpyHostToDevice));
		CUDA(cudaGraphLaunch(executable, stream));
		CUDA(cudaStreamSynchronize(stream));
		CUDA(cudaMemcpy(&found, state, sizeof found, cudaMemcpyDeviceToHost));
		if (std::memcmp(&found, &expected, sizeof found))
			FAIL("%u: %u after %u steps, counted %u %u %u; on the CPU %u after %u, %u %u %u", number, found.number,
			     found.steps, found.counted[0], found.counted[1], found.counted[2], expected.number,
			     expected.steps, expected.counted[0], expected.counted[1], expected.counted[2]);
	}
	CUDA(cudaGraphExecDestroy(executable));
	std::puts("ok " PROGRAM);
	return 0;
}
