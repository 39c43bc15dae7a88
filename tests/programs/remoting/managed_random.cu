// A random program that obeys the rules of managed memory, checked against a model on the processor.
// Its arguments: a seed and a number of steps.
#include "random.h"

#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

typedef uint32_t word;

__global__ void add(word *to, word count, word stride, word by)
{
	word i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < count)
		to[i * stride] += by + i;
}

__global__ void mix(word *to, const word *from, word count)
{
	word i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < count)
		to[i] = to[i] * 3 + from[i];
}

enum { MOST = 12, PLAIN_WORDS = 20000 };
enum attachment { TO_ALL, TO_HOST, TO_STREAM };

struct buffer {
	word *data;
	size_t words;
	attachment to;
	int stream;
	clocks used;
	std::vector<word> model;
	bool managed;
};

struct recorded {
	cudaGraphExec_t graph;
	word *data;		// of the buffer
	size_t first, count, stride;
	word by;
};

static cudaStream_t streams[STREAMS];
static std::vector<buffer *> buffers;
static std::vector<recorded> graphs;
static buffer plain;
static int step, files;

static void post(int stream)
{
	behind[stream] = order(stream);
	behind[stream].at[stream] = ++posted.at[stream];
}

static void use(int stream, buffer *one)
{
	one->used.at[stream] = posted.at[stream];
}

static bool stream_may(int stream, const buffer *one)
{
	if (one->managed && (one->to == TO_HOST || (one->to == TO_STREAM && one->stream != stream)))
		return false;
	return order(stream).covers(one->used);
}

static bool host_may(const buffer *one)
{
	if (one->to == TO_ALL)
		return seen.covers(posted);
	if (one->to == TO_STREAM)
		return seen.at[one->stream] == posted.at[one->stream];
	return true;
}

static buffer *any()
{
	return buffers.empty() ? nullptr : buffers[next((word)buffers.size())];
}

static buffer *any_or_plain()
{
	return next(4) ? any() : &plain;
}

static void span(const buffer *one, size_t most, size_t &first, size_t &count)
{
	first = next((word)one->words);
	count = 1 + next((word)(one->words - first));
	count = count > most ? most : count;
}

static void compare(const buffer *one, size_t first, size_t count, const word *data, const char *what)
{
	for (size_t i = 0; i < count; i++)
		if (data[i] != one->model[first + i])
			FAIL("step %d, %s: word %zu of %zu is %u, not %u", step, what, first + i, one->words,
			     data[i], one->model[first + i]);
}

static void allocate()
{
	const word kinds[] = { 1, 300, 1024, 5000, 70000, 300000 };
	buffer *one = new buffer();
	bool host = next(5) == 0;

	one->words = 1 + next(kinds[next(6)]);
	one->managed = true;
	one->to = host ? TO_HOST : TO_ALL;
	one->model.assign(one->words, 0);
	CUDA(cudaMallocManaged(&one->data, one->words * sizeof(word),
			       host ? cudaMemAttachHost : cudaMemAttachGlobal));
	buffers.push_back(one);
	// What a driver leaves in it is nobody's business.
	if (!host) {
		CUDA(cudaMemset(one->data, 0, one->words * sizeof(word)));
		post(LEGACY);
		use(LEGACY, one);
	} else {
		memset(one->data, 0, one->words * sizeof(word));
	}
}

static void wait_all()
{
	CUDA(cudaDeviceSynchronize());
	seen = posted;
}

static void release()
{
	size_t index = next((word)buffers.size());
	buffer *one = buffers[index];

	for (size_t i = graphs.size(); i-- > 0;)
		if (graphs[i].data == one->data) {
			wait_all();
			CUDA(cudaGraphExecDestroy(graphs[i].graph));
			graphs.erase(graphs.begin() + i);
		}
	wait_all();
	CUDA(cudaFree(one->data));
	buffers.erase(buffers.begin() + index);
	delete one;
}

static void host_writes(buffer *one)
{
	size_t first, count, stride = next(3) ? 1 : 1 + next(3000);

	span(one, 40000, first, count);
	for (size_t i = first; i < first + count; i += stride)
		one->data[i] = one->model[i] = (word)(state >> 8) + (word)i;
}

static void host_reads(buffer *one)
{
	size_t first, count;

	span(one, 40000, first, count);
	compare(one, first, count, one->data + first, "read");
}

// The kernel reads and writes it in system calls.
static void host_files(buffer *one)
{
	std::vector<word> copy;
	size_t first, count;

	span(one, 20000, first, count);
	if (next(2)) {
		copy.resize(count);
		EXPECT(pwrite(files, one->data + first, count * 4, 0) == (ssize_t)(count * 4));
		EXPECT(pread(files, copy.data(), count * 4, 0) == (ssize_t)(count * 4));
		compare(one, first, count, copy.data(), "write(2)");
	} else {
		for (size_t i = 0; i < count; i++)
			copy.push_back(one->model[first + i] = (word)state * 7 + (word)i);
		EXPECT(pwrite(files, copy.data(), count * 4, 0) == (ssize_t)(count * 4));
		EXPECT(pread(files, one->data + first, count * 4, 0) == (ssize_t)(count * 4));
	}
}

static void adds(int stream, buffer *one)
{
	size_t first, count, stride = next(2) ? 1 : 1 + next(2000);
	word by = next(1000);

	span(one, 3000, first, count);
	if ((count - 1) * stride >= one->words - first)
		count = (one->words - first - 1) / stride + 1;
	add<<<(count + 127) / 128, 128, 0, streams[stream]>>>(one->data + first, (word)count,
							       (word)stride, by);
	CUDA(cudaGetLastError());
	post(stream);
	use(stream, one);
	for (size_t i = 0; i < count; i++)
		one->model[first + i * stride] += by + (word)i;
}

static void mixes(int stream, buffer *to, buffer *from)
{
	size_t first, count, least = to->words < from->words ? to->words : from->words;

	if (to == from)
		return;
	first = next((word)least);
	count = 1 + next((word)(least - first));
	count = count > 3000 ? 3000 : count;
	mix<<<(count + 63) / 64, 64, 0, streams[stream]>>>(to->data + first, from->data + first, (word)count);
	CUDA(cudaGetLastError());
	post(stream);
	use(stream, to);
	use(stream, from);
	for (size_t i = first; i < first + count; i++)
		to->model[i] = to->model[i] * 3 + from->model[i];
}

static void copies(int stream, buffer *to, buffer *from)
{
	size_t least = to->words < from->words ? to->words : from->words;
	size_t count = 1 + next((word)least), a = next((word)(to->words - count + 1)),
	       b = next((word)(from->words - count + 1));

	if (to == from)
		return;
	CUDA(cudaMemcpyAsync(to->data + a, from->data + b, count * 4, cudaMemcpyDefault, streams[stream]));
	post(stream);
	use(stream, to);
	use(stream, from);
	for (size_t i = 0; i < count; i++)
		to->model[a + i] = from->model[b + i];
}

// Only what was posted to a stream is waited for with it, and what that came behind.
static void waited(int stream)
{
	seen.join(behind[stream]);
}

static void fills(int stream, buffer *one)
{
	size_t first, count;
	word byte = next(256);

	span(one, 100000, first, count);
	CUDA(cudaMemsetAsync(one->data + first, (int)byte, count * 4, streams[stream]));
	post(stream);
	use(stream, one);
	for (size_t i = first; i < first + count; i++)
		one->model[i] = byte * 0x01010101u;
}

// Between the program's own memory and a buffer; the source is overwritten at once.
static void copies_out(int stream, buffer *one)
{
	std::vector<word> mine;
	size_t first, count;

	span(one, 100000, first, count);
	mine.resize(count);
	if (next(2)) {
		CUDA(cudaMemcpyAsync(mine.data(), one->data + first, count * 4, cudaMemcpyDefault,
				     streams[stream]));
		post(stream);
		use(stream, one);
		CUDA(cudaStreamSynchronize(streams[stream]));
		waited(stream);
		compare(one, first, count, mine.data(), "copied out");
	} else {
		for (size_t i = 0; i < count; i++)
			one->model[first + i] = mine[i] = (word)state + (word)i * 5;
		CUDA(cudaMemcpyAsync(one->data + first, mine.data(), count * 4, cudaMemcpyDefault,
				     streams[stream]));
		post(stream);
		use(stream, one);
	}
}

struct errand {
	word *data;
	size_t count;
	word by;
};

static void CUDART_CB run_errand(void *opaque)
{
	errand *job = (errand *)opaque;

	for (size_t i = 0; i < job->count; i++)
		job->data[i] = job->data[i] * 5 + job->by;
	delete job;
}

// A host function: all memory is its own if it comes behind all other work.
static void errands(int stream, buffer *one)
{
	size_t first, count;
	bool alone = one->to == TO_STREAM || order(stream).covers(posted);
	errand *job;

	if (!alone)
		return;
	span(one, 5000, first, count);
	job = new errand{ one->data + first, count, next(100) };
	for (size_t i = first; i < first + count; i++)
		one->model[i] = one->model[i] * 5 + job->by;
	CUDA(cudaLaunchHostFunc(streams[stream], run_errand, job));
	post(stream);
	use(stream, one);
	// Nothing else may run beside it.
	if (one->to != TO_STREAM || next(2)) {
		CUDA(cudaStreamSynchronize(streams[stream]));
		waited(stream);
	}
}

static void records(buffer *one)
{
	recorded made = { nullptr, one->data, 0, 0, 1 + next(3), next(50) };
	cudaGraph_t graph;

	if (one->to != TO_ALL || graphs.size() > 4)
		return;
	span(one, 2000, made.first, made.count);
	if ((made.count - 1) * made.stride >= one->words - made.first)
		made.count = (one->words - made.first - 1) / made.stride + 1;
	CUDA(cudaStreamBeginCapture(streams[BESIDE], cudaStreamCaptureModeThreadLocal));
	add<<<(made.count + 127) / 128, 128, 0, streams[BESIDE]>>>(one->data + made.first, (word)made.count,
								    (word)made.stride, made.by);
	CUDA(cudaStreamEndCapture(streams[BESIDE], &graph));
	CUDA(cudaGraphInstantiate(&made.graph, graph, nullptr, nullptr, 0));
	CUDA(cudaGraphDestroy(graph));
	graphs.push_back(made);
}

static void replays(int stream)
{
	if (graphs.empty())
		return;
	recorded &made = graphs[next((word)graphs.size())];
	for (buffer *one : buffers) {
		if (one->data != made.data || !stream_may(stream, one))
			continue;
		CUDA(cudaGraphLaunch(made.graph, streams[stream]));
		post(stream);
		use(stream, one);
		for (size_t i = 0; i < made.count; i++)
			one->model[made.first + i * made.stride] += made.by + (word)i;
	}
}

static void attaches(buffer *one)
{
	int stream = 1 + (int)next(STREAMS - 1);
	attachment to = (attachment)next(3);

	for (const recorded &made : graphs)
		if (made.data == one->data)
			return;
	if (!seen.covers(one->used))
		return;
	CUDA(cudaStreamAttachMemAsync(streams[stream], one->data, 0,
				      to == TO_ALL    ? cudaMemAttachGlobal
				      : to == TO_HOST ? cudaMemAttachHost
						      : cudaMemAttachSingle));
	CUDA(cudaStreamSynchronize(streams[stream]));
	waited(stream);
	one->to = to;
	one->stream = stream;
}

// Events that have happened order nothing but what was before them: they are no work of their own.
static void waits(int stream)
{
	int other = (int)next(STREAMS);
	cudaEvent_t event;

	switch (next(6)) {
	case 0:
		wait_all();
		break;
	case 1:
		CUDA(cudaStreamSynchronize(streams[stream]));
		waited(stream);
		break;
	case 2:
		while (cudaStreamQuery(streams[stream]) == cudaErrorNotReady)
			;
		waited(stream);
		break;
	default:
		CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
		CUDA(cudaEventRecord(event, streams[stream]));
		if (next(2)) {
			CUDA(cudaStreamWaitEvent(streams[other], event, 0));
			behind[other].join(behind[stream]);
		} else if (next(2)) {
			CUDA(cudaEventSynchronize(event));
			seen.join(behind[stream]);
		} else {
			while (cudaEventQuery(event) == cudaErrorNotReady)
				;
			seen.join(behind[stream]);
		}
		CUDA(cudaEventDestroy(event));
	}
}

static void hints(int stream, buffer *one)
{
	int device = next(2) ? 0 : cudaCpuDeviceId;
	cudaMemLocation where = { device < 0 ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice,
				  device < 0 ? 0 : device };

	if (!stream_may(stream, one) || !host_may(one))
		return;
	// A driver may refuse it where processor and GPU can't use memory at once.
	if (cudaMemPrefetchAsync(one->data, one->words * 4, where, 0, streams[stream]) != cudaSuccess)
		(void)cudaGetLastError();
}

static void act()
{
	int stream = (int)next(STREAMS);
	buffer *one = any(), *other = any_or_plain();
	word choice = next(100);

	if (!one || (choice < 6 && buffers.size() < MOST)) {
		allocate();
		return;
	}
	if (choice < 9) {
		release();
	} else if (choice < 34) {
		if (!host_may(one) && next(2))
			waits(stream);
		if (!host_may(one))
			return;
		if (choice < 20)
			host_writes(one);
		else if (choice < 31)
			host_reads(one);
		else
			host_files(one);
	} else if (choice < 46) {
		waits(stream);
	} else if (choice < 51) {
		attaches(one);
	} else if (choice < 53) {
		records(one);
	} else if (choice < 57) {
		replays(stream);
	} else if (!stream_may(stream, one)) {
		return;
	} else if (choice < 74) {
		adds(stream, one);
	} else if (choice < 78) {
		fills(stream, one);
	} else if (choice < 84) {
		copies_out(stream, one);
	} else if (choice < 88) {
		errands(stream, one);
	} else if (choice < 90) {
		hints(stream, one);
	} else if (other && stream_may(stream, other)) {
		if (choice < 95)
			mixes(stream, one, other);
		else if (next(2))
			copies(stream, one, other);
		else
			copies(stream, other, one);
	}
}

int main(int argc, char **argv)
{
	int steps = argc > 2 ? atoi(argv[2]) : 200;

	state = (argc > 1 ? strtoull(argv[1], nullptr, 10) : 1) * 0x9e3779b97f4a7c15ull + 1;
	files = memfd_create("words", 0);
	streams[LEGACY] = cudaStreamLegacy;
	CUDA(cudaStreamCreate(&streams[1]));
	CUDA(cudaStreamCreateWithFlags(&streams[BESIDE], cudaStreamNonBlocking));
	streams[3] = cudaStreamPerThread;
	CUDA(cudaStreamCreate(&streams[4]));
	plain.words = PLAIN_WORDS;
	plain.model.assign(PLAIN_WORDS, 0);
	CUDA(cudaMalloc(&plain.data, PLAIN_WORDS * sizeof(word)));
	CUDA(cudaMemset(plain.data, 0, PLAIN_WORDS * sizeof(word)));
	CUDA(cudaDeviceSynchronize());
	for (step = 0; step < steps; step++)
		act();
	wait_all();
	for (buffer *one : buffers)
		compare(one, 0, one->words, one->data, "the end");
	return passed();
}
