/* remoting_bench - what remoting costs, beside what a bare socket costs.
 *
 *	remoting_bench measure		run under the shim: prints "NAME VALUE UNIT BYTES"
 *	remoting_bench first-launch	only comes to its first launch
 *
 * The bare figures are taken in the same run, between two processes of this
 * machine over TCP, with the same alternation of spinning and sleeping.
 */
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../generated/cuda_abi.h"
#include "../transport/transport.h"

#define REPEATS 5
#define SPIN_NS 60000

static const char ptx[] =
	".version 6.4\n"
	".target sm_50\n"
	".address_size 64\n"
	".visible .entry nothing(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)\n"
	"{\n\tret;\n}\n";

#define DRIVER_FUNCTIONS(X) \
	X(cuInit, (unsigned)) \
	X(cuDeviceGet, (CUdevice *, int)) \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
	X(cuCtxSetCurrent, (CUcontext)) \
	X(cuCtxSynchronize, (void)) \
	X(cuModuleLoadData, (CUmodule *, const void *)) \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
	X(cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
	X(cuMemHostAlloc, (void **, size_t, unsigned)) \
	X(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t)) \
	X(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t)) \
	X(cuCtxGetLimit, (size_t *, CUlimit)) \
	X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
			   unsigned, CUstream, void **, void **))

static struct {
#define MEMBER(name, parameters) CUresult (*name) parameters;
	DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER
} driver;

static void die(const char *what, int code)
{
	fprintf(stderr, "remoting_bench: %s: error %d\n", what, code);
	exit(1);
}

static void check(CUresult result, const char *what)
{
	if (result != CUDA_SUCCESS)
		die(what, (int)result);
}

#define CHECK(call) check(driver.call, #call)

static int order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, int count)
{
	qsort(values, (size_t)count, sizeof(*values), order);
	return values[count / 2];
}

static double seconds_since(uint64_t start)
{
	return (double)(transport_now_ns() - start) * 1e-9;
}

static void report(const char *name, double value, const char *unit, size_t bytes)
{
	printf("%s %.6g %s %zu\n", name, value, unit, bytes);
	fflush(stdout);
}

/* ---- the bare socket ---- */

/* Read exactly; spin first, then sleep, as the transport does. */
static void bare_read(int descriptor, void *data, size_t bytes)
{
	char *at = data;
	uint64_t start = 0;

	while (bytes) {
		ssize_t got = recv(descriptor, at, bytes, MSG_DONTWAIT);

		if (got > 0) {
			at += got;
			bytes -= (size_t)got;
			start = 0;
			continue;
		}
		if (got == 0)
			exit(0);
		if (!start)
			start = transport_now_ns();
		if (transport_now_ns() - start < SPIN_NS) {
			transport_relax();
		} else {
			struct pollfd there = { .fd = descriptor, .events = POLLIN };

			poll(&there, 1, -1);
		}
	}
}

static void bare_write(int descriptor, const void *data, size_t bytes)
{
	const char *at = data;

	while (bytes) {
		ssize_t sent = send(descriptor, at, bytes, MSG_NOSIGNAL);

		if (sent < 0)
			die("send", errno);
		at += sent;
		bytes -= (size_t)sent;
	}
}

struct order_to_peer {
	uint64_t receive;	/* bytes that follow */
	uint64_t send;		/* bytes to answer with */
	uint8_t padding[48];	/* a small call's size */
};

static void peer_serve(int descriptor)
{
	static uint8_t buffer[1 << 20];
	struct order_to_peer told;

	for (;;) {
		bare_read(descriptor, &told, sizeof(told));
		while (told.receive) {
			size_t now = told.receive < sizeof(buffer) ? told.receive : sizeof(buffer);

			bare_read(descriptor, buffer, now);
			told.receive -= now;
		}
		while (told.send) {
			size_t now = told.send < sizeof(buffer) ? told.send : sizeof(buffer);

			bare_write(descriptor, buffer, now);
			told.send -= now;
		}
	}
}

static int peer_start(pid_t *child)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t size = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, descriptor;

	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(listener, 1) < 0 || getsockname(listener, (struct sockaddr *)&address, &size) < 0)
		die("listen on the loopback", errno);
	*child = fork();
	if (*child == 0) {
		descriptor = accept(listener, NULL, NULL);
		setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		peer_serve(descriptor);
	}
	descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(descriptor, (struct sockaddr *)&address, sizeof(address)) < 0)
		die("connect to the loopback", errno);
	setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	close(listener);
	return descriptor;
}

static void bare_round_trip(int descriptor, int count)
{
	const struct order_to_peer told = { .send = 64 };
	uint8_t answer[64];

	for (int i = 0; i < count; i++) {
		bare_write(descriptor, &told, sizeof(told));
		bare_read(descriptor, answer, sizeof(answer));
	}
}

static void bare_copy(int descriptor, uint8_t *memory, size_t bytes, bool out)
{
	const struct order_to_peer told = { .receive = out ? bytes : 0, .send = out ? 64 : bytes };
	uint8_t answer[64];

	bare_write(descriptor, &told, sizeof(told));
	if (out) {
		bare_write(descriptor, memory, bytes);
		bare_read(descriptor, answer, sizeof(answer));
	} else {
		bare_read(descriptor, memory, bytes);
	}
}

/* ---- remoting ---- */

static CUfunction first_launch(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	CUcontext context;
	CUdevice device;
	CUfunction function;
	CUmodule module;

	if (!library) {
		fprintf(stderr, "remoting_bench: %s\n", dlerror());
		exit(1);
	}
#define LOAD(name, parameters) \
	*(void **)&driver.name = dlsym(library, #name); \
	if (!driver.name) \
		die(#name " is not there", 0);
	DRIVER_FUNCTIONS(LOAD)
#undef LOAD
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuModuleLoadData(&module, ptx));
	CHECK(cuModuleGetFunction(&function, module, "nothing"));
	return function;
}

static void launch(CUfunction function)
{
	uint64_t pointers[3] = { 0 };
	uint32_t count = 0;
	void *parameters[] = { &pointers[0], &pointers[1], &pointers[2], &count };

	CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
}

static void measure_calls(CUfunction function, int descriptor)
{
	enum { LAUNCHES = 1000, CALLS = 2000 };
	double posted[REPEATS], called[REPEATS], bare[REPEATS];
	size_t value;

	for (int r = 0; r < REPEATS; r++) {
		uint64_t start;

		CHECK(cuCtxSynchronize());
		start = transport_now_ns();
		for (int i = 0; i < LAUNCHES; i++)
			launch(function);
		posted[r] = seconds_since(start) / LAUNCHES * 1e6;
		CHECK(cuCtxSynchronize());
		start = transport_now_ns();
		for (int i = 0; i < CALLS; i++)
			/* A call that costs a driver next to nothing. */
			CHECK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
		called[r] = seconds_since(start) / CALLS * 1e6;
		start = transport_now_ns();
		bare_round_trip(descriptor, CALLS);
		bare[r] = seconds_since(start) / CALLS * 1e6;
	}
	report("posted_call", median(posted, REPEATS), "us", 0);
	report("round_trip", median(called, REPEATS), "us", 0);
	report("bare_round_trip", median(bare, REPEATS), "us", 0);
}

static void measure_copies(CUdeviceptr device, uint8_t *host, const char *kind, size_t bytes,
			   int descriptor)
{
	double to[REPEATS], from[REPEATS], bare_to[REPEATS], bare_from[REPEATS];
	char name[32];

	for (int r = -1; r < REPEATS; r++) {
		int slot = r < 0 ? 0 : r;	/* the first round warms everything up */
		double rate = (double)bytes * 1e-9;
		uint64_t start = transport_now_ns();

		CHECK(cuMemcpyHtoD_v2(device, host, bytes));
		to[slot] = rate / seconds_since(start);
		start = transport_now_ns();
		CHECK(cuMemcpyDtoH_v2(host, device, bytes));
		from[slot] = rate / seconds_since(start);
		start = transport_now_ns();
		bare_copy(descriptor, host, bytes, true);
		bare_to[slot] = rate / seconds_since(start);
		start = transport_now_ns();
		bare_copy(descriptor, host, bytes, false);
		bare_from[slot] = rate / seconds_since(start);
	}
	snprintf(name, sizeof(name), "h2d_%s", kind);
	report(name, median(to, REPEATS), "GB/s", bytes);
	snprintf(name, sizeof(name), "bare_h2d_%s", kind);
	report(name, median(bare_to, REPEATS), "GB/s", bytes);
	snprintf(name, sizeof(name), "d2h_%s", kind);
	report(name, median(from, REPEATS), "GB/s", bytes);
	snprintf(name, sizeof(name), "bare_d2h_%s", kind);
	report(name, median(bare_from, REPEATS), "GB/s", bytes);
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = { 1 << 20, 16 << 20, 64 << 20 };
	size_t largest = sizes[sizeof(sizes) / sizeof(sizes[0]) - 1];
	CUdeviceptr device;
	CUfunction function;
	uint8_t *pageable;
	void *pinned;
	pid_t child;
	int descriptor;

	if (argc == 2 && strcmp(argv[1], "first-launch") == 0) {
		launch(first_launch());
		CHECK(cuCtxSynchronize());
		return 0;
	}
	if (argc != 2 || strcmp(argv[1], "measure") != 0) {
		fprintf(stderr, "usage: remoting_bench measure | first-launch\n");
		return 2;
	}
	descriptor = peer_start(&child);
	function = first_launch();
	launch(function);
	measure_calls(function, descriptor);
	CHECK(cuMemAlloc_v2(&device, largest));
	CHECK(cuMemHostAlloc(&pinned, largest, 0));
	pageable = malloc(largest);
	if (!pageable)
		die("out of memory", 0);
	/* Bytes that nothing can compress. */
	for (size_t i = 0; i < largest; i++)
		pageable[i] = (uint8_t)(i * 2654435761u >> 13);
	memcpy(pinned, pageable, largest);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		measure_copies(device, pageable, "pageable", sizes[i], descriptor);
		measure_copies(device, pinned, "pinned", sizes[i], descriptor);
	}
	close(descriptor);
	waitpid(child, NULL, 0);
	return 0;
}
