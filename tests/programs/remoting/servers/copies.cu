// Copies between devices of two servers: every way that CUDA has, in the order of the stream.
#include "two.h"

static const int COUNT = 3000000;	// 12 MB: several pieces, the last one odd

static void directions(int *a, int *b)
{
	const size_t bytes = COUNT * sizeof(int);

	CUDA(cudaSetDevice(0));
	fill_with<<<64, 64>>>(a, COUNT, 11);
	CUDA(cudaMemcpyPeer(b, 1, a, 0, bytes));
	expect_filled(read_back(b, COUNT), 11);

	CUDA(cudaSetDevice(1));
	fill_with<<<64, 64>>>(b, COUNT, 12);
	CUDA(cudaMemcpy(a, b, bytes, cudaMemcpyDeviceToDevice));
	CUDA(cudaDeviceSynchronize());
	expect_filled(read_back(a, COUNT), 12);

	// The current device is neither's concern: it is where the addresses are.
	CUDA(cudaSetDevice(0));
	fill_with<<<64, 64>>>(a, COUNT, 13);
	CUDA(cudaMemcpy(b, a, bytes, cudaMemcpyDefault));
	CUDA(cudaDeviceSynchronize());
	expect_filled(read_back(b, COUNT), 13);
}

// A copy in the legacy stream is behind all work of both devices, and before what comes later on either.
static void legacy(int *a, int *b)
{
	const size_t bytes = COUNT * sizeof(int);

	CUDA(cudaSetDevice(0));
	take_time<<<1, 1>>>(a, 100000);
	fill_with<<<64, 64>>>(a, COUNT, 51);
	CUDA(cudaSetDevice(1));
	take_time<<<1, 1>>>(b, 100000);
	fill_with<<<64, 64>>>(b, COUNT, 52);
	CUDA(cudaMemcpy(b, a, bytes, cudaMemcpyDeviceToDevice));
	CUDA(cudaSetDevice(0));
	fill_with<<<64, 64>>>(a, COUNT, 53);
	CUDA(cudaSetDevice(1));
	add_to<<<64, 64>>>(b, b, COUNT, 100);
	CUDA(cudaSetDevice(0));
	// The stream is the first device's, the bytes are the second's.
	expect_filled(read_back(b, COUNT), 51, 100);
	expect_filled(read_back(a, COUNT), 53);
}

// Behind the source's work and before the target's, in one stream of either.
static void in_order(int *a, int *b, int device)
{
	const size_t bytes = COUNT * sizeof(int);
	cudaStream_t stream;
	int *from = device == 0 ? a : b, *to = device == 0 ? b : a;
	std::vector<int> pageable(COUNT);

	CUDA(cudaSetDevice(device));
	CUDA(cudaStreamCreate(&stream));
	take_time<<<1, 1, 0, stream>>>(from, 100000);
	fill_with<<<64, 64, 0, stream>>>(from, COUNT, 21);
	CUDA(cudaMemcpyPeerAsync(to, 1 - device, from, device, bytes, stream));
	// Only when the copy is over may this be seen.
	fill_with<<<64, 64, 0, stream>>>(from, COUNT, 22);
	CUDA(cudaMemcpyAsync(pageable.data(), from, bytes, cudaMemcpyDefault, stream));
	CUDA(cudaStreamSynchronize(stream));
	expect_filled(pageable, 22);
	expect_filled(read_back(to, COUNT), 21);

	// The stream is the target's, and another's bytes are taken when it gets there.
	fill_with<<<64, 64, 0, stream>>>(from, COUNT, 23);
	CUDA(cudaStreamSynchronize(stream));
	CUDA(cudaSetDevice(1 - device));
	fill_with<<<64, 64>>>(to, COUNT, 24);
	CUDA(cudaDeviceSynchronize());
	CUDA(cudaSetDevice(device));
	CUDA(cudaMemcpyPeerAsync(from, device, to, 1 - device, bytes, stream));
	add_to<<<64, 64, 0, stream>>>(from, from, COUNT, 1000);
	CUDA(cudaStreamSynchronize(stream));
	expect_filled(read_back(from, COUNT), 24, 1000);
	CUDA(cudaStreamDestroy(stream));
}

static void rows(void)
{
	const size_t width = 1000 * sizeof(int), height = 300;
	size_t pitch_a, pitch_b;
	char *a, *b;
	std::vector<int> host(1000 * height), back(1000 * height);

	for (size_t i = 0; i < host.size(); i++)
		host[i] = 5 + 3 * (int)i;
	CUDA(cudaSetDevice(0));
	CUDA(cudaMallocPitch((void **)&a, &pitch_a, width, height));
	CUDA(cudaSetDevice(1));
	CUDA(cudaMallocPitch((void **)&b, &pitch_b, width + 4096, height));
	EXPECT(pitch_a != pitch_b);
	CUDA(cudaMemcpy2D(a, pitch_a, host.data(), width, width, height, cudaMemcpyDefault));
	CUDA(cudaMemset2D(b, pitch_b, 0x5a, width + 4096, height));
	CUDA(cudaMemcpy2D(b + 16, pitch_b, a, pitch_a, width, height, cudaMemcpyDefault));
	CUDA(cudaMemcpy2D(back.data(), width, b + 16, pitch_b, width, height, cudaMemcpyDefault));
	expect_filled(back, 5);
	unsigned char edge[2];
	CUDA(cudaMemcpy(&edge[0], b + 15, 1, cudaMemcpyDefault));
	CUDA(cudaMemcpy(&edge[1], b + 16 + width, 1, cudaMemcpyDefault));
	EXPECT(edge[0] == 0x5a && edge[1] == 0x5a);

	// Rows that are wider than what travels at once.
	const size_t wide = (3 << 20) + 12;
	char *wide_a = allocate_on<char>(0, 3 * wide), *wide_b = allocate_on<char>(1, 3 * (wide + 64));
	std::vector<char> lines(3 * wide), got(3 * wide);
	for (size_t i = 0; i < lines.size(); i++)
		lines[i] = (char)(i * 7 + i / 251);
	CUDA(cudaMemcpy(wide_a, lines.data(), lines.size(), cudaMemcpyHostToDevice));
	CUDA(cudaMemcpy2D(wide_b, wide + 64, wide_a, wide, wide, 3, cudaMemcpyDeviceToDevice));
	CUDA(cudaMemcpy2D(got.data(), wide, wide_b, wide + 64, wide, 3, cudaMemcpyDefault));
	EXPECT(memcmp(lines.data(), got.data(), lines.size()) == 0);

	cudaMemcpy3DPeerParms box = {};
	box.srcPtr = make_cudaPitchedPtr(a, pitch_a, width, height / 3);
	box.srcDevice = 0;
	box.dstPtr = make_cudaPitchedPtr(b, pitch_b, width, height / 3);
	box.dstDevice = 1;
	box.extent = make_cudaExtent(width, height / 3, 3);
	CUDA(cudaMemset2D(b, pitch_b, 0, width, height));
	CUDA(cudaMemcpy3DPeer(&box));
	CUDA(cudaMemcpy2D(back.data(), width, b, pitch_b, width, height, cudaMemcpyDefault));
	expect_filled(back, 5);
}

// One side is memory of this process and the stream is the other server's.
static void foreign_stream(int *b)
{
	const size_t bytes = COUNT * sizeof(int);
	std::vector<int> pageable(COUNT);
	cudaStream_t stream;
	int *pinned, *flag = allocate_on(0, 1);

	CUDA(cudaMallocHost((void **)&pinned, bytes));
	CUDA(cudaStreamCreate(&stream));
	for (int i = 0; i < COUNT; i++)
		pageable[i] = pinned[i] = 31 + 3 * i;
	take_time<<<1, 1, 0, stream>>>(flag, 100000);
	CUDA(cudaMemcpyAsync(b, pageable.data(), bytes, cudaMemcpyHostToDevice, stream));
	// Pageable memory has been read when the call returns.
	pageable.assign(COUNT, 0);
	CUDA(cudaMemcpyAsync(pinned, b, bytes, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaStreamSynchronize(stream));
	expect_filled(std::vector<int>(pinned, pinned + COUNT), 31);
	for (int i = 0; i < COUNT; i++)
		pinned[i] = 32 + 3 * i;
	CUDA(cudaMemcpyAsync(b, pinned, bytes, cudaMemcpyDefault, stream));
	CUDA(cudaStreamSynchronize(stream));
	CUDA(cudaMemcpy(pageable.data(), b, bytes, cudaMemcpyDefault));
	expect_filled(pageable, 32);
	CUDA(cudaFreeHost(pinned));
}

int main()
{
	int count, can = -1;
	CUDA(cudaGetDeviceCount(&count));
	EXPECT(count == 2);
	CUDA(cudaDeviceCanAccessPeer(&can, 0, 1));
	EXPECT(can == 0);
	CUDA(cudaSetDevice(0));
	EXPECT_ERROR(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessUnsupported);
	EXPECT_ERROR(cudaDeviceDisablePeerAccess(1), cudaErrorPeerAccessNotEnabled);
	CUDA(cudaDeviceGetP2PAttribute(&can, cudaDevP2PAttrAccessSupported, 0, 1));
	EXPECT(can == 0);
	(void)cudaGetLastError();

	int *a = allocate_on(0, COUNT), *b = allocate_on(1, COUNT);
	cudaPointerAttributes where;
	CUDA(cudaPointerGetAttributes(&where, a));
	EXPECT(where.device == 0);
	CUDA(cudaPointerGetAttributes(&where, b));
	EXPECT(where.device == 1);
	directions(a, b);
	legacy(a, b);
	in_order(a, b, 0);
	in_order(a, b, 1);
	rows();
	foreign_stream(b);
	// Memory of one server is freed while the other's device is current.
	CUDA(cudaSetDevice(0));
	CUDA(cudaFree(b));
	CUDA(cudaSetDevice(1));
	CUDA(cudaFree(a));
	return passed();
}
