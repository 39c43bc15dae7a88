// io_uring reads into and writes out of managed memory: at once, by the kernel's workers, and by its polling thread.
#include "../check.h"

#include <cstdlib>
#include <cstring>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

__global__ void add(unsigned char *data, int n)
{
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		data[i]++;
}

struct Ring {
	explicit Ring(unsigned flags) : params()
	{
		params.flags = flags;
		ring = (int)syscall(SYS_io_uring_setup, 4, &params);
		if (ring < 0)
			return;
		submit = map(params.sq_off.array + params.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
		complete = map(params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING);
		entries = reinterpret_cast<io_uring_sqe *>(map(params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
	}

	~Ring()
	{
		close(ring);
	}

	char *map(size_t bytes, off_t what) const
	{
		void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, what);

		EXPECT(at != MAP_FAILED);
		return static_cast<char *>(at);
	}

	// What the operation answers.
	int run(unsigned char operation, int file, void *at, unsigned bytes, unsigned char flags) const
	{
		const bool polled = params.flags & IORING_SETUP_SQPOLL;
		unsigned *tail = reinterpret_cast<unsigned *>(submit + params.sq_off.tail);
		unsigned *head = reinterpret_cast<unsigned *>(complete + params.cq_off.head);
		unsigned index = *tail % params.sq_entries;
		io_uring_sqe *entry = &entries[index];
		int result;

		*entry = io_uring_sqe();
		entry->opcode = operation;
		entry->fd = file;
		entry->addr = reinterpret_cast<unsigned long>(at);
		entry->len = bytes;
		entry->flags = flags;
		reinterpret_cast<unsigned *>(submit + params.sq_off.array)[index] = index;
		__atomic_store_n(tail, *tail + 1, __ATOMIC_SEQ_CST);
		while (__atomic_load_n(reinterpret_cast<unsigned *>(complete + params.cq_off.tail), __ATOMIC_ACQUIRE) == *head)
			syscall(SYS_io_uring_enter, ring, polled ? 0 : 1, 1,
				IORING_ENTER_GETEVENTS | (polled ? IORING_ENTER_SQ_WAKEUP : 0), nullptr, 0);
		result = reinterpret_cast<io_uring_cqe *>(complete + params.cq_off.cqes)[*head % params.cq_entries].res;
		__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
		return result;
	}

	io_uring_params params;
	int ring;
	char *submit, *complete;
	io_uring_sqe *entries;
};

static void compute(unsigned char *data, int n)
{
	add<<<1, 256>>>(data, n);
	CUDA(cudaGetLastError());
	CUDA(cudaDeviceSynchronize());
}

int main()
{
	const int n = 1 << 20;
	char path[] = "/tmp/farbus-io-uring-XXXXXX";
	std::vector<unsigned char> file_bytes(n);
	int file = mkstemp(path);
	unsigned char *data;

	EXPECT(file >= 0 && unlink(path) == 0);
	CUDA(cudaMallocManaged(&data, n));
	for (int way = 0; way < 3; way++) {
		Ring ring(way == 2 ? IORING_SETUP_SQPOLL : 0);
		const unsigned char flags = way == 1 ? IOSQE_ASYNC : 0;

		// Kernels without it, or that keep it from this process.
		if (ring.ring < 0)
			break;
		std::memset(data, 10 * way, n);
		compute(data, n);
		EXPECT(ring.run(IORING_OP_WRITE, file, data, n, flags) == n);
		EXPECT(pread(file, file_bytes.data(), n, 0) == n);
		for (unsigned char byte : file_bytes)
			EXPECT(byte == 10 * way + 1);
		std::memset(file_bytes.data(), 100 + way, n);
		EXPECT(pwrite(file, file_bytes.data(), n, 0) == n);
		compute(data, n);
		EXPECT(ring.run(IORING_OP_READ, file, data, n, flags) == n);
		compute(data, n);
		for (int i = 0; i < n; i++)
			EXPECT(data[i] == 101 + way);
	}
	return passed();
}
