// A random program with pinned memory that kernels use by its address, checked against a model on the
// processor.  Pinned blocks are handed out in pieces, which share pages: each piece is used by the processor
// or by work of the GPU, and other pieces by the other meanwhile.  Its arguments: a seed, a number of steps,
// and "strict" where the processor may touch pinned memory only while the GPU does nothing.
#include "random.h"

#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <sys/mman.h>
#include <vector>

typedef uint8_t byte;

__device__ void linger(unsigned turns)
{
	volatile unsigned done = 0;

	while (done < turns)
		done = done + 1;
}

__global__ void add_words(uint32_t *to, unsigned count, unsigned stride, unsigned by, unsigned turns)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i == 0)
		linger(turns);
	if (i < count)
		to[i * stride] += by + i;
}

__global__ void add_bytes(byte *to, unsigned count, unsigned by)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < count)
		to[i] += (byte)(by + i);
}

__global__ void add_wide(uint64_t *to, unsigned count, uint64_t by)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < count)
		to[i] += by * (i + 1);
}

__global__ void add_atomically(unsigned *to, unsigned count, unsigned by)
{
	atomicAdd(&to[threadIdx.x % count], by);
}

__global__ void mix(byte *to, const byte *from, unsigned count)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < count)
		to[i] = (byte)(to[i] * 3 + from[i]);
}

enum { PIECES = 14, BLOCKS = 6, PLAIN = 80000, THREADS = 96 };

// A block's words are a piece's, the other thread's, or nobody's.
struct block {
	uint32_t *words;
	std::vector<bool> taken;
	std::vector<size_t> beside;		// words of the other thread
	std::vector<uint32_t> beside_model;
};

struct piece {
	byte *data;
	size_t bytes;
	block *in;		// or none: memory of the device
	clocks used;
	std::vector<byte> model;
};

// A kernel on one piece, and copies by way of the device's memory to another.
struct recorded {
	cudaGraphExec_t graph;
	piece *one, *other;
	size_t words, copied;
	unsigned by;
};

static cudaStream_t streams[STREAMS];
static std::vector<block *> blocks;
static std::vector<piece *> pieces;
static std::vector<recorded> graphs;
static piece plain, scratch;
static bool strict, stopping;
static std::mutex beside_lock;
static int step, files;

static void post(int stream, piece *one, piece *other = nullptr)
{
	behind[stream] = order(stream);
	behind[stream].at[stream] = ++posted.at[stream];
	one->used.at[stream] = posted.at[stream];
	if (other)
		other->used.at[stream] = posted.at[stream];
}

static void waited(int stream)
{
	seen.join(behind[stream]);
}

static void wait_all()
{
	CUDA(cudaDeviceSynchronize());
	seen = posted;
}

static bool stream_may(int stream, const piece *one)
{
	return order(stream).covers(one->used);
}

static bool host_may(const piece *one)
{
	return seen.covers(strict ? posted : one->used);
}

static piece *any()
{
	return pieces.empty() ? nullptr : pieces[next(pieces.size())];
}

static piece *any_or_plain()
{
	return next(4) ? any() : &plain;
}

static void span(const piece *one, size_t most, size_t &first, size_t &count)
{
	first = next(one->bytes);
	count = 1 + next(one->bytes - first);
	count = count > most ? most : count;
}

static void compare(const piece *one, size_t first, size_t count, const byte *data, const char *what)
{
	for (size_t i = 0; i < count; i++)
		if (data[i] != one->model[first + i])
			FAIL("step %d, %s: byte %zu of %zu at %p is %u, not %u", step, what, first + i, one->bytes,
			     (void *)(one->data + first + i), data[i], one->model[first + i]);
}

template <typename word> static word model_get(const piece *one, size_t at)
{
	word value;

	memcpy(&value, &one->model[at], sizeof(value));
	return value;
}

template <typename word> static void model_set(piece *one, size_t at, word value)
{
	memcpy(&one->model[at], &value, sizeof(value));
}

// ---- blocks and pieces ----

static void block_allocate()
{
	const size_t sizes[] = { 1, 1024, 3000, 5000, 70000, 700000 };
	const size_t apart[] = { 40, 500, 3000, 1u << 30 };
	block *one = new block();
	size_t words = sizes[next(6)] + next(100), stride = apart[next(4)];
	void *memory;

	CUDA(cudaHostAlloc(&memory, words * 4, next(2) ? cudaHostAllocMapped : cudaHostAllocPortable));
	one->words = (uint32_t *)memory;
	one->taken.assign(words, false);
	for (size_t at = stride + next(10); at < words && !strict; at += stride) {
		one->beside.push_back(at);
		one->taken[at] = true;
		one->beside_model.push_back(one->words[at] = next(1000));
	}
	std::lock_guard<std::mutex> guard(beside_lock);
	blocks.push_back(one);
}

static void graphs_forget(const piece *one)
{
	for (size_t i = graphs.size(); i-- > 0;)
		if (graphs[i].one == one || graphs[i].other == one) {
			wait_all();
			CUDA(cudaGraphExecDestroy(graphs[i].graph));
			graphs.erase(graphs.begin() + i);
		}
}

static void piece_release(size_t index)
{
	piece *one = pieces[index];
	size_t first = (size_t)((uint32_t *)one->data - one->in->words);

	graphs_forget(one);
	for (size_t i = 0; i < one->bytes / 4; i++)
		one->in->taken[first + i] = false;
	pieces.erase(pieces.begin() + index);
	delete one;
}

// With work in the queues that uses it: CUDA waits for that.
static void block_release()
{
	size_t index = next(blocks.size());
	block *one = blocks[index];

	for (size_t i = pieces.size(); i-- > 0;)
		if (pieces[i]->in == one)
			piece_release(i);
	std::lock_guard<std::mutex> guard(beside_lock);
	CUDA(cudaFreeHost(one->words));
	seen = posted;
	blocks.erase(blocks.begin() + index);
	delete one;
}

static void piece_allocate()
{
	block *in = blocks[next(blocks.size())];
	const size_t most[] = { 1, 30, 1024, 6000, 300000 };
	size_t first = next(in->taken.size()), words = 1 + next(most[next(5)]), end = first;
	piece *one;

	while (end < in->taken.size() && end - first < words && !in->taken[end])
		end++;
	if (end == first)
		return;
	one = new piece();
	one->data = (byte *)(in->words + first);
	one->bytes = 4 * (end - first);
	one->in = in;
	one->model.assign(one->bytes, 0);
	for (size_t i = first; i < end; i++)
		in->taken[i] = true;
	pieces.push_back(one);
	// What others have left there some work may still be writing.
	one->used = posted;
	if (strict || next(2))
		wait_all();
	if (host_may(one)) {
		memset(one->data, 0, one->bytes);
	} else {
		behind[1].join(posted);
		for (int i = 0; i < STREAMS; i++) {
			cudaEvent_t event;

			CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
			CUDA(cudaEventRecord(event, streams[i]));
			CUDA(cudaStreamWaitEvent(streams[1], event, 0));
			CUDA(cudaEventDestroy(event));
		}
		CUDA(cudaMemsetAsync(one->data, 0, one->bytes, streams[1]));
		post(1, one);
	}
}

// ---- the processor ----

static void host_writes(piece *one)
{
	size_t first, count, stride = next(3) ? 1 : 1 + next(5000);
	volatile byte *data = one->data;

	span(one, 100000, first, count);
	switch (next(5)) {
	case 0:
		for (size_t i = first; i < first + count; i += stride)
			data[i] = one->model[i] = (byte)(state >> 8) + (byte)i;
		return;
	case 1:
		for (size_t i = first; i + 8 <= first + count; i += 8 * stride) {
			uint64_t value = state * (i + 1);

			memcpy(one->data + i, &value, 8);
			model_set(one, i, value);
		}
		return;
	case 2:
		for (size_t i = first & ~(size_t)3; i + 4 <= first + count; i += 4 * stride) {
			__atomic_fetch_add((uint32_t *)(one->data + i), (uint32_t)stride, __ATOMIC_RELAXED);
			model_set(one, i, model_get<uint32_t>(one, i) + (uint32_t)stride);
		}
		return;
	case 3:
		for (size_t i = first & ~(size_t)1; i + 2 <= first + count; i += 2 * stride) {
			*(volatile uint16_t *)(data + i) = (uint16_t)(state + i);
			model_set(one, i, (uint16_t)(state + i));
		}
		return;
	default:
		memset(one->data + first, (int)(state & 3), count);
		memset(&one->model[first], (int)(state & 3), count);
	}
}

static void host_reads(piece *one)
{
	size_t first, count;

	span(one, 100000, first, count);
	compare(one, first, count, one->data + first, "read");
}

// The kernel reads and writes it in system calls.
static void host_files(piece *one)
{
	std::vector<byte> copy;
	size_t first, count;

	span(one, 60000, first, count);
	copy.resize(count);
	if (next(2)) {
		EXPECT(pwrite(files, one->data + first, count, 0) == (ssize_t)count);
		EXPECT(pread(files, copy.data(), count, 0) == (ssize_t)count);
		compare(one, first, count, copy.data(), "write(2)");
	} else {
		for (size_t i = 0; i < count; i++)
			copy[i] = one->model[first + i] = (byte)(state * 7 + i);
		EXPECT(pwrite(files, copy.data(), count, 0) == (ssize_t)count);
		EXPECT(pread(files, one->data + first, count, 0) == (ssize_t)count);
	}
}

// The other thread's own words lie among those of the pieces, and nobody waits for it.
static void beside()
{
	uint64_t random = 88172645463325252ull;

	for (;;) {
		std::lock_guard<std::mutex> guard(beside_lock);

		if (stopping)
			return;
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		block *one = blocks.empty() ? nullptr : blocks[random % blocks.size()];
		for (size_t n = 0; one && !one->beside.empty() && n < 5; n++) {
			size_t i = (random / 64 + n * 7919) % one->beside.size();
			volatile uint32_t *at = &one->words[one->beside[i]];

			if (*at != one->beside_model[i]) {
				std::printf("the other thread: word %zu at %p is %u, not %u\n", one->beside[i],
					    (void *)at, *at, one->beside_model[i]);
				std::fflush(stdout);
				_exit(1);
			}
			*at = one->beside_model[i] = (uint32_t)random + (uint32_t)n;
		}
	}
}

static void beside_stop()
{
	std::lock_guard<std::mutex> guard(beside_lock);

	stopping = true;
}

// ---- the GPU ----

static size_t aligned(piece *one, size_t least, size_t &first, size_t &count)
{
	size_t begin;

	span(one, 24000, begin, count);
	first = ((uintptr_t)(one->data + begin) + least - 1) / least * least - (uintptr_t)one->data;
	count = first < begin + count ? (begin + count - first) / least : 0;
	return count;
}

static void kernels(int stream, piece *one)
{
	size_t first, count, stride = next(2) ? 1 : 1 + next(600);
	unsigned by = next(1000), kind = next(5);

	if (kind == 0) {
		span(one, 10000, first, count);
		add_bytes<<<(count + 127) / 128, 128, 0, streams[stream]>>>(one->data + first, (unsigned)count, by);
		for (size_t i = 0; i < count; i++)
			one->model[first + i] += (byte)(by + i);
	} else if (kind == 1) {
		if (!aligned(one, 8, first, count))
			return;
		add_wide<<<(count + 63) / 64, 64, 0, streams[stream]>>>((uint64_t *)(one->data + first),
									 (unsigned)count, by * 0x100000001ull);
		for (size_t i = 0; i < count; i++)
			model_set(one, first + 8 * i, model_get<uint64_t>(one, first + 8 * i) +
							      by * 0x100000001ull * (i + 1));
	} else if (kind == 2) {
		if (!aligned(one, 4, first, count))
			return;
		add_atomically<<<1, THREADS, 0, streams[stream]>>>((unsigned *)(one->data + first),
								    (unsigned)count, by);
		for (size_t i = 0; i < THREADS; i++)
			model_set(one, first + i % count * 4,
				  model_get<uint32_t>(one, first + i % count * 4) + by);
	} else {
		if (!aligned(one, 4, first, count))
			return;
		if ((count - 1) * stride >= (one->bytes - first) / 4)
			count = ((one->bytes - first) / 4 - 1) / stride + 1;
		add_words<<<(count + 127) / 128, 128, 0, streams[stream]>>>(
			(uint32_t *)(one->data + first), (unsigned)count, (unsigned)stride, by,
			next(3) ? 0 : next(4000));
		for (size_t i = 0; i < count; i++)
			model_set(one, first + i * stride * 4,
				  model_get<uint32_t>(one, first + i * stride * 4) + by + (uint32_t)i);
	}
	CUDA(cudaGetLastError());
	post(stream, one);
}

static void mixes(int stream, piece *to, piece *from)
{
	size_t first, count, least = to->bytes < from->bytes ? to->bytes : from->bytes;

	if (to == from)
		return;
	first = next(least);
	count = 1 + next(least - first);
	count = count > 9000 ? 9000 : count;
	mix<<<(count + 63) / 64, 64, 0, streams[stream]>>>(to->data + first, from->data + first, (unsigned)count);
	CUDA(cudaGetLastError());
	post(stream, to, from);
	for (size_t i = first; i < first + count; i++)
		to->model[i] = (byte)(to->model[i] * 3 + from->model[i]);
}

// Between two pinned pieces CUDA's copies have ended when they return.
static void copies(int stream, piece *to, piece *from)
{
	size_t least = to->bytes < from->bytes ? to->bytes : from->bytes;
	size_t count = 1 + next(least), a = next(to->bytes - count + 1), b = next(from->bytes - count + 1);
	bool now = next(4) == 0 && to != &plain && from != &plain;

	if (to == from)
		return;
	if (next(3) || count < 8) {
		CUDA(cudaMemcpyAsync(to->data + a, from->data + b, count, cudaMemcpyDefault, streams[stream]));
	} else {
		size_t pitch = 1 + count / 64 + next(count / 2), height = count / pitch;

		count = pitch * height;
		CUDA(cudaMemcpy2DAsync(to->data + a, pitch, from->data + b, pitch, pitch, height, cudaMemcpyDefault,
				       streams[stream]));
	}
	memcpy(&to->model[a], &from->model[b], count);
	post(stream, to, from);
	if (now) {
		waited(stream);
		if (host_may(to))
			compare(to, 0, to->bytes, to->data, "copied within the host");
	}
}

static void copies_now(piece *to, piece *from)
{
	size_t least = to->bytes < from->bytes ? to->bytes : from->bytes;
	size_t count = 1 + next(least), a = next(to->bytes - count + 1), b = next(from->bytes - count + 1);

	if (to == from || (to == &plain && from == &plain))
		return;
	CUDA(cudaMemcpy(to->data + a, from->data + b, count, cudaMemcpyDefault));
	memcpy(&to->model[a], &from->model[b], count);
	post(LEGACY, to, from);
	waited(LEGACY);
}

static void fills(int stream, piece *one)
{
	size_t first, count;
	unsigned value = next(256);

	span(one, 100000, first, count);
	memset(&one->model[first], (int)value, count);
	if (one != &plain && next(3) == 0 && stream_may(LEGACY, one)) {
		CUDA(cudaMemset(one->data + first, (int)value, count));
		post(LEGACY, one);
		waited(LEGACY);
		return;
	}
	CUDA(cudaMemsetAsync(one->data + first, (int)value, count, streams[stream]));
	post(stream, one);
}

// Between the program's own memory and a piece; the source is overwritten at once.
static void copies_out(int stream, piece *one)
{
	std::vector<byte> mine;
	size_t first, count;

	span(one, 400000, first, count);
	mine.resize(count);
	if (next(2)) {
		CUDA(cudaMemcpyAsync(mine.data(), one->data + first, count, cudaMemcpyDefault, streams[stream]));
		post(stream, one);
		waited(stream);
		compare(one, first, count, mine.data(), "copied out");
	} else {
		for (size_t i = 0; i < count; i++)
			one->model[first + i] = mine[i] = (byte)(state + i * 5);
		CUDA(cudaMemcpyAsync(one->data + first, mine.data(), count, cudaMemcpyDefault, streams[stream]));
		post(stream, one);
		waited(stream);
		if (host_may(one))
			compare(one, 0, one->bytes, one->data, "copied in");
	}
}

struct errand {
	byte *data;
	size_t count;
	byte by;
};

static void CUDART_CB run_errand(void *opaque)
{
	errand *job = (errand *)opaque;

	for (size_t i = 0; i < job->count; i++)
		job->data[i] = (byte)(job->data[i] * 5 + job->by);
	delete job;
}

static void errands(int stream, piece *one)
{
	size_t first, count;
	errand *job;

	if (strict && !order(stream).covers(posted))
		return;
	span(one, 20000, first, count);
	job = new errand{ one->data + first, count, (byte)next(100) };
	for (size_t i = first; i < first + count; i++)
		one->model[i] = (byte)(one->model[i] * 5 + job->by);
	CUDA(cudaLaunchHostFunc(streams[stream], run_errand, job));
	post(stream, one);
	// What comes behind it is no business of its.
	if (strict && next(2)) {
		kernels(stream, one);
		copies(stream, one, &plain);
	}
	if (strict)
		wait_all();
}

static void records(piece *one, piece *other)
{
	recorded made = { nullptr, one, other, 1 + next(one->bytes / 4), 0, next(50) };
	cudaStream_t stream = streams[BESIDE];
	cudaGraph_t graph;

	if (graphs.size() > 4 || one == other)
		return;
	made.copied = 1 + next(one->bytes < other->bytes ? one->bytes : other->bytes);
	made.copied = made.copied > PLAIN ? PLAIN : made.copied;
	made.words = made.words > 4000 ? 4000 : made.words;
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	add_words<<<(made.words + 127) / 128, 128, 0, stream>>>((uint32_t *)one->data, (unsigned)made.words, 1,
								 made.by, 0);
	CUDA(cudaMemcpyAsync(scratch.data, one->data, made.copied, cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemcpyAsync(other->data, scratch.data, made.copied, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiate(&made.graph, graph, nullptr, nullptr, 0));
	CUDA(cudaGraphDestroy(graph));
	graphs.push_back(made);
}

static void replays(int stream)
{
	if (graphs.empty())
		return;
	recorded &made = graphs[next(graphs.size())];
	if (!stream_may(stream, made.one) || !stream_may(stream, made.other) || !stream_may(stream, &scratch))
		return;
	CUDA(cudaGraphLaunch(made.graph, streams[stream]));
	post(stream, made.one, made.other);
	scratch.used.at[stream] = posted.at[stream];
	for (size_t i = 0; i < made.words; i++)
		model_set(made.one, 4 * i, model_get<uint32_t>(made.one, 4 * i) + made.by + (uint32_t)i);
	memcpy(&made.other->model[0], &made.one->model[0], made.copied);
}

static void waits(int stream)
{
	int other = (int)next(STREAMS);
	float between;
	cudaEvent_t event;

	switch (next(7)) {
	case 0:
		wait_all();
		return;
	case 1:
		CUDA(cudaStreamSynchronize(streams[stream]));
		waited(stream);
		return;
	case 2:
		while (cudaStreamQuery(streams[stream]) == cudaErrorNotReady)
			;
		waited(stream);
		return;
	case 3:
		// A time is known when both have happened.
		CUDA(cudaEventCreate(&event));
		CUDA(cudaEventRecord(event, streams[stream]));
		while (cudaEventElapsedTime(&between, event, event) == cudaErrorNotReady)
			;
		(void)cudaGetLastError();
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
			waited(stream);
		} else {
			while (cudaEventQuery(event) == cudaErrorNotReady)
				;
			waited(stream);
		}
	}
	CUDA(cudaEventDestroy(event));
}

static void act()
{
	int stream = (int)next(STREAMS);
	piece *one, *other;
	unsigned choice = next(100);

	if (blocks.empty() || (choice < 2 && blocks.size() < BLOCKS)) {
		block_allocate();
		return;
	}
	if (choice < 4) {
		block_release();
		return;
	}
	if (pieces.empty() || (choice < 12 && pieces.size() < PIECES)) {
		piece_allocate();
		return;
	}
	one = any();
	other = any_or_plain();
	if (choice < 15) {
		piece_release(next(pieces.size()));
	} else if (choice < 40) {
		if (!host_may(one) && next(2))
			waits(stream);
		if (!host_may(one))
			return;
		if (choice < 26)
			host_writes(one);
		else if (choice < 37)
			host_reads(one);
		else
			host_files(one);
	} else if (choice < 50) {
		waits(stream);
	} else if (choice < 52) {
		records(one, any());
	} else if (choice < 56) {
		replays(stream);
	} else if (!stream_may(stream, one)) {
		return;
	} else if (choice < 72) {
		kernels(stream, one);
	} else if (choice < 76) {
		fills(stream, one);
	} else if (choice < 81) {
		copies_out(stream, one);
	} else if (choice < 86) {
		errands(stream, one);
	} else if (other && stream_may(stream, other)) {
		if (choice < 90)
			mixes(stream, one, other);
		else if (choice < 92 && stream_may(LEGACY, one) && stream_may(LEGACY, other))
			copies_now(one, other);
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
	strict = argc > 3;
	files = memfd_create("words", 0);
	streams[LEGACY] = cudaStreamLegacy;
	CUDA(cudaStreamCreate(&streams[1]));
	CUDA(cudaStreamCreateWithFlags(&streams[BESIDE], cudaStreamNonBlocking));
	streams[3] = cudaStreamPerThread;
	CUDA(cudaStreamCreate(&streams[4]));
	for (piece *one : { &plain, &scratch }) {
		one->bytes = PLAIN;
		one->model.assign(PLAIN, 0);
		CUDA(cudaMalloc(&one->data, PLAIN));
		CUDA(cudaMemset(one->data, 0, PLAIN));
	}
	CUDA(cudaDeviceSynchronize());
	std::thread helper;
	if (!strict) {
		helper = std::thread(beside);
		helper.detach();
		// Before the memory goes.
		std::atexit(beside_stop);
	}
	for (step = 0; step < steps; step++)
		act();
	wait_all();
	for (piece *one : pieces)
		compare(one, 0, one->bytes, one->data, "the end");
	return passed();
}
