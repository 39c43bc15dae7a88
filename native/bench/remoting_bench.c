/* remoting_bench - what remoting costs, beside what the bare transport costs.
 *
 *	remoting_bench measure TRANSPORT RTT_US GBPS
 *		run under the shim: prints "NAME BYTES MEDIAN LEAST PROCESSOR" (us)
 *	remoting_bench first-launch
 *		only comes to the end of its first kernel: prints the clock's nanoseconds
 *	remoting_bench emulate PORT RTT_US GBPS
 *		prints the port of an emulated network to PORT of the loopback
 *
 * The bare figures are taken in the same run, in turn with remoting's, between two
 * processes of this machine over the same transport (and an emulated network of the
 * same kind), with the same alternation of spinning and sleeping, and the same
 * server that leaves a processor which both share.
 *
 * A copy has two of them.  bare_: the bytes come to rest in the peer's memory, or come from
 * there, as a copy's do in the device's: over sockets by way of staging (64 KiB to the device, where
 * more gains nothing, and 1 MiB from there, where it gains most), one copy of
 * memory beside the kernel's two, which is what a device that the processor plays costs at least;
 * over shared memory directly, as a session's do.  wire_: the same without staging, which is what a device
 * that reads and writes host memory by itself costs at least.  Over shared memory they are one.
 *
 * Copies that are smaller than the largest are made as many times in turn as make up the largest.  The first of
 * each such burst is reported by itself (_first): it wakes the other side.
 *
 * From pinned memory over shared memory no bytes need travel: bare_ is then a message, one memcpy by the peer
 * from or to memory that both have mapped, and its answer; wire_ is what the other kinds are compared
 * with, the bytes by way of the ring.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../generated/cuda_abi.h"
#include "../transport/frames/inbox.h"
#include "../transport/ground/clofork.h"
#include "../transport/rings/memory.h"
#include "../transport/rings/rdma.h"
#include "../transport/rings/shm.h"
#include "../transport/sockets/socket.h"
#include "../transport/sockets/tls.h"
#include "../transport/transport.h"
#include "emulator.h"

#define REPEATS 9
#define BURSTS 15
#define BURST_BYTES COPY_LARGEST
#define SAMPLES 1024	/* of the smallest copies: 15 bursts of 64 */
#define COPY_LARGEST ((size_t)64 << 20)
#define HANDSHAKE_TIMEOUT_MS 60000
#define STAGING_BYTES ((size_t)64 << 10)
#define STAGING_SENT_BYTES ((size_t)1 << 20)

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
	X(cuStreamQuery, (CUstream)) \
	X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
			   unsigned, CUstream, void **, void **))

static struct {
#define MEMBER(name, parameters) CUresult (*name) parameters;
	DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER
} driver;

/* The machine's own address that TCP goes over: an RDMA device's is none of the loopback's. */
static struct in_addr bench_address;

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

/* What was measured again and again: wall and this process's processor time, per piece. */
struct samples {
	double wall[SAMPLES];
	double busy[SAMPLES];
	int count;
	uint64_t wall_ns;
	uint64_t busy_ns;
};

static uint64_t busy_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void begin(struct samples *samples)
{
	samples->busy_ns = busy_now_ns();
	samples->wall_ns = transport_now_ns();
}

static void end(struct samples *samples, int pieces)
{
	double wall = (double)(transport_now_ns() - samples->wall_ns) / pieces;
	double busy = (double)(busy_now_ns() - samples->busy_ns) / pieces;

	samples->wall[samples->count] = wall * 1e-3;
	samples->busy[samples->count++] = busy * 1e-3;
}

static int order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Name, bytes, then in microseconds: median, least, and median of the processor time. */
static void report(const char *name, const char *kind, struct samples *samples, size_t bytes)
{
	qsort(samples->wall, (size_t)samples->count, sizeof(double), order);
	qsort(samples->busy, (size_t)samples->count, sizeof(double), order);
	printf("%s%s %zu %.6g %.6g %.6g\n", name, kind, bytes, samples->wall[samples->count / 2],
	       samples->wall[0], samples->busy[samples->count / 2]);
	fflush(stdout);
}

/* ---- the bare transport ---- */

struct bare {
	struct transport transport;
	struct inbox inbox;
};

/* Read exactly, by what sessions read with: it spins and sleeps as they do. */
static void bare_read(struct bare *peer, void *data, size_t bytes)
{
	if (inbox_take(&peer->inbox, data, bytes))
		exit(0);
}

static void bare_write(struct bare *peer, const void *data, size_t bytes)
{
	int rc = transport_write_all(&peer->transport, data, bytes);

	if (rc)
		die("write to the bare transport", -rc);
}

struct order_to_peer {
	uint64_t receive;	/* bytes that follow */
	uint64_t send;		/* bytes to answer with */
	uint64_t staged;	/* by way of staging */
	uint64_t take;		/* bytes to copy from the memory that both have */
	uint64_t put;		/* bytes to copy to it */
	uint8_t padding[24];	/* a small call's size */
};

/* Bytes come to rest in memory as large as a device's, and come from there.  What goes without staging has memory of its own:
 * used twice as often as the session's device's, it would be nearer to the processor. */
static void peer_serve(struct bare *peer, uint8_t *shared)
{
	uint8_t *memory = calloc(1, COPY_LARGEST), *unstaged = calloc(1, COPY_LARGEST);
	uint8_t *staging = calloc(1, STAGING_SENT_BYTES);
	struct order_to_peer told;

	if (!memory || !unstaged || !staging)
		die("out of memory", 0);
	for (;;) {
		bare_read(peer, &told, sizeof(told));
		memcpy(memory, shared, told.take);
		memcpy(shared, memory, told.put);
		for (size_t at = 0, now; told.staged && at < told.receive; at += now) {
			now = told.receive - at < STAGING_BYTES ? told.receive - at : STAGING_BYTES;
			bare_read(peer, staging, now);
			memcpy(memory + at, staging, now);
		}
		for (size_t at = 0, now; told.staged && at < told.send; at += now) {
			now = told.send - at < STAGING_SENT_BYTES ? told.send - at : STAGING_SENT_BYTES;
			memcpy(staging, memory + at, now);
			bare_write(peer, staging, now);
		}
		if (!told.staged) {
			bare_read(peer, unstaged, told.receive);
			bare_write(peer, unstaged, told.send);
		}
	}
}

/* Two connected sockets, by TCP within this machine, and the emulated network if there is one. */
static void pair_by_tcp(const struct emulated *network, int pair[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = bench_address };
	socklen_t size = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(listener, 1) < 0 || getsockname(listener, (struct sockaddr *)&address, &size) < 0)
		die("listen on the loopback", errno);
	if (network) {
		int port = emulator_start(network, ntohs(address.sin_port));

		if (port < 0)
			die("start the emulator", -port);
		address.sin_port = htons((uint16_t)port);
	}
	pair[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(pair[0], (struct sockaddr *)&address, sizeof(address)) < 0)
		die("connect to the loopback", errno);
	pair[1] = accept(listener, NULL, NULL);
	if (pair[1] < 0)
		die("accept on the loopback", errno);
	close(listener);
}

/* Go on encrypted, both sides with the same key. */
static void bare_encrypt(struct transport *transport, bool server)
{
	static const uint8_t key[TLS_KEY_BYTES] = "the key of a measurement";
	char why[TLS_WHY_BYTES];

	if (transport_tls_start(transport, key, server, HANDSHAKE_TIMEOUT_MS, why)) {
		fprintf(stderr, "remoting_bench: %s\n", why);
		exit(1);
	}
}

/* Go on by RDMA, as a session does. */
static void bare_rdma(struct transport *transport, bool server)
{
	char why[RDMA_WHY_BYTES];
	struct rdma *rdma;

	/* The other side meets the same, and says it. */
	if (transport_rdma_make(&rdma, transport, why) && server)
		_exit(1);
	if (!rdma) {
		fprintf(stderr, "remoting_bench: %s\n", why);
		exit(1);
	}
	if (transport_rdma_start(transport, rdma, server, HANDSHAKE_TIMEOUT_MS) || !transport_is_rdma(transport))
		die("go on by RDMA", 0);
}

static void peer_start(const char *name, const struct emulated *network, struct bare *peer,
		       pid_t *child)
{
	bool shared = strcmp(name, "shm") == 0, encrypted = strcmp(name, "tls") == 0, rdma = strcmp(name, "rdma") == 0;
	struct shm *ours = NULL, *theirs = NULL;
	int pair[2], memory, common, rc = 0;
	void *both = NULL;

	if (encrypted || rdma || strcmp(name, "tcp") == 0)
		pair_by_tcp(network, pair);
	else if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		die("make a pair of sockets", errno);
	if (shared) {
		rc = transport_shm_make(&ours, &memory);
		if (!rc)
			rc = transport_memory_make("bench", COPY_LARGEST, &both, &common);
		if (rc)
			die("make shared memory", -rc);
	}
	*child = fork();
	if (*child == 0) {
		/* Or the other end would never be seen to close. */
		close(pair[0]);
		rc = transport_socket_init(&peer->transport, pair[1]);
		if (!rc && shared)
			rc = transport_shm_take(&theirs, &peer->transport, memory);
		if (!rc && shared)
			rc = transport_memory_take(&peer->transport, common, COPY_LARGEST, true, &both);
		if (rc)
			die("take the bare transport", -rc);
		if (shared)
			transport_shm_switch(&peer->transport, theirs, true);
		if (encrypted)
			bare_encrypt(&peer->transport, true);
		if (rdma)
			bare_rdma(&peer->transport, true);
		if (inbox_init(&peer->inbox, &peer->transport))
			die("out of memory", 0);
		/* As a session's server. */
		peer->inbox.parts = true;
		peer_serve(peer, both);
	}
	close(pair[1]);
	rc = transport_socket_init(&peer->transport, pair[0]);
	if (rc)
		die("take the bare transport", -rc);
	if (shared) {
		close(memory);
		clofork_close(common);
		transport_shm_switch(&peer->transport, ours, false);
	}
	if (encrypted)
		bare_encrypt(&peer->transport, false);
	if (rdma)
		bare_rdma(&peer->transport, false);
	if (inbox_init(&peer->inbox, &peer->transport))
		die("out of memory", 0);
}

static void bare_round_trip(struct bare *peer, int count)
{
	const struct order_to_peer told = { .send = 64 };
	uint8_t answer[64];

	for (int i = 0; i < count; i++) {
		bare_write(peer, &told, sizeof(told));
		bare_read(peer, answer, sizeof(answer));
	}
}

static void bare_copy(struct bare *peer, uint8_t *memory, size_t bytes, bool out, bool staged)
{
	const struct order_to_peer told = {
		.receive = out ? bytes : 0,
		.send = out ? 64 : bytes,
		.staged = staged,
	};
	uint8_t answer[64];

	bare_write(peer, &told, sizeof(told));
	if (out) {
		bare_write(peer, memory, bytes);
		bare_read(peer, answer, sizeof(answer));
	} else {
		bare_read(peer, memory, bytes);
	}
}

/* The peer copies by itself. */
static void bare_direct(struct bare *peer, size_t bytes, bool out)
{
	const struct order_to_peer told = {
		.send = 64,
		.take = out ? bytes : 0,
		.put = out ? 0 : bytes,
	};
	uint8_t answer[64];

	bare_write(peer, &told, sizeof(told));
	bare_read(peer, answer, sizeof(answer));
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

static void measure_calls(CUfunction function, struct bare *peer, const struct emulated *network)
{
	enum { LAUNCHES = 500, CALLS = 500, SLOW_CALLS = 5 };
	/* What takes milliseconds needs no mean of hundreds. */
	const int calls = network && network->rtt_ns >= 1000000 ? SLOW_CALLS : CALLS;
	struct samples posted = { .count = 0 }, called = { .count = 0 }, bare = { .count = 0 };

	for (int r = 0; r < REPEATS; r++) {
		CHECK(cuCtxSynchronize());
		begin(&posted);
		for (int i = 0; i < LAUNCHES; i++)
			launch(function);
		end(&posted, LAUNCHES);
		CHECK(cuCtxSynchronize());
		begin(&called);
		for (int i = 0; i < calls; i++)
			/* Asked of the driver each time, which it costs next to nothing: nothing runs. */
			CHECK(cuStreamQuery(NULL));
		end(&called, calls);
		begin(&bare);
		bare_round_trip(peer, calls);
		end(&bare, calls);
	}
	report("posted_call", "", &posted, 0);
	report("round_trip", "", &called, 0);
	report("bare_round_trip", "", &bare, 0);
}

/* What is measured of copies in one direction: the session's, and the bare transport's two. */
struct copies {
	CUdeviceptr device;
	uint8_t *host;
	size_t bytes;
	struct bare *peer;
	bool out;	/* to the device */
	bool staged;	/* the bare bytes come to rest by way of staging */
	bool direct;	/* the bare peer copies by itself from memory that both have */
};

static void session_copy(const struct copies *copies)
{
	if (copies->out)
		CHECK(cuMemcpyHtoD_v2(copies->device, copies->host, copies->bytes));
	else
		CHECK(cuMemcpyDtoH_v2(copies->host, copies->device, copies->bytes));
}

static void reference_copy(const struct copies *copies)
{
	if (copies->direct)
		bare_direct(copies->peer, copies->bytes, copies->out);
	else
		bare_copy(copies->peer, copies->host, copies->bytes, copies->out, copies->staged);
}

static void wire_copy(const struct copies *copies)
{
	bare_copy(copies->peer, copies->host, copies->bytes, copies->out, false);
}

/* One after the other.  The first follows a pause of its pair, while the other pairs were measured, so that it
 * wakes the peer; the others find it awake or, if it has that much to do, busy. */
static void burst(void (*copy)(const struct copies *), const struct copies *copies, int count,
		  struct samples *first, struct samples *rest)
{
	begin(first);
	copy(copies);
	end(first, 1);
	for (int i = 1; i < count; i++) {
		begin(rest);
		copy(copies);
		end(rest, 1);
	}
}

/* The largest are measured one by one: a wake-up is nothing to them. */
static void report_copies(const char *prefix, const struct copies *copies, const char *kind, int count,
			  struct samples *first, struct samples *rest)
{
	char name[32];

	snprintf(name, sizeof(name), "%s%s_", prefix, copies->out ? "h2d" : "d2h");
	report(name, kind, count == 1 ? first : rest, copies->bytes);
	if (count == 1)
		return;
	snprintf(name, sizeof(name), "%s%s_first_", prefix, copies->out ? "h2d" : "d2h");
	report(name, kind, first, copies->bytes);
}

/* Over a slow network, too, copies are measured one by one. */
static void measure_copies(CUdeviceptr device, uint8_t *host, const char *kind, size_t bytes,
			   struct bare *peer, const struct emulated *network)
{
	void (*const copy[])(const struct copies *) = { session_copy, reference_copy, wire_copy };
	static const char *const prefix[] = { "", "bare_", "wire_" };
	static struct samples first[2][3], rest[2][3];
	const int count = bytes < BURST_BYTES && !network ? (int)(BURST_BYTES / bytes) : 1;
	const int repeats = count > 1 ? BURSTS : REPEATS;
	struct copies copies = {
		.device = device,
		.host = host,
		.bytes = bytes,
		.peer = peer,
		.staged = !peer->transport.ops->peek,
		.direct = peer->transport.shm && strcmp(kind, "pinned") == 0,
	};
	const int kinds = copies.staged || copies.direct ? 3 : 2;

	memset(first, 0, sizeof(first));
	memset(rest, 0, sizeof(rest));
	for (int r = -1; r < repeats; r++) {
		for (int out = 1; out >= 0; out--) {
			copies.out = out;
			/* Forwards and backwards in turn, so that each follows each of the others as often: it finds the caches as
			 * they left them. */
			for (int turn = 0; turn < kinds; turn++) {
				int each = (turn * (r % 2 ? 1 : kinds - 1) + r + 1) % kinds;

				burst(copy[each], &copies, count, &first[out][each], &rest[out][each]);
			}
		}
		/* The first round warms everything up. */
		if (r < 0) {
			memset(first, 0, sizeof(first));
			memset(rest, 0, sizeof(rest));
		}
	}
	for (int out = 1; out >= 0; out--) {
		copies.out = out;
		for (int each = 0; each < kinds; each++)
			report_copies(prefix[each], &copies, kind, count, &first[out][each], &rest[out][each]);
	}
}

/* A handshake between two processes that are both awake, and each has had one before. */
static void measure_handshake(const struct emulated *network)
{
	struct samples samples = { .count = 0 };

	for (int r = 0; r < REPEATS; r++) {
		struct transport transport;
		int pair[2];
		char ready;
		pid_t child;

		pair_by_tcp(network, pair);
		child = fork();
		if (child == 0) {
			close(pair[0]);
			if (transport_socket_init(&transport, pair[1]) || write(pair[1], "r", 1) != 1)
				_exit(1);
			bare_encrypt(&transport, true);
			_exit(0);
		}
		close(pair[1]);
		if (transport_socket_init(&transport, pair[0]) || read(pair[0], &ready, 1) != 1)
			die("start the other side of a handshake", 0);
		begin(&samples);
		bare_encrypt(&transport, false);
		end(&samples, 1);
		transport_release(&transport);
		waitpid(child, NULL, 0);
	}
	report("handshake", "", &samples, 0);
}

static void measure(const char *transport, const struct emulated *network)
{
	static const size_t sizes[] = { 1 << 20, 16 << 20, COPY_LARGEST };
	struct bare peer;
	CUdeviceptr device;
	CUfunction function;
	uint8_t *pageable;
	void *pinned;
	pid_t child;

	peer_start(transport, network, &peer, &child);
	if (peer.transport.tls)
		measure_handshake(network);
	function = first_launch();
	launch(function);
	measure_calls(function, &peer, network);
	CHECK(cuMemAlloc_v2(&device, COPY_LARGEST));
	CHECK(cuMemHostAlloc(&pinned, COPY_LARGEST, 0));
	pageable = malloc(COPY_LARGEST);
	if (!pageable)
		die("out of memory", 0);
	/* Bytes that nothing can compress. */
	for (size_t i = 0; i < COPY_LARGEST; i++)
		pageable[i] = (uint8_t)(i * 2654435761u >> 13);
	memcpy(pinned, pageable, COPY_LARGEST);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		measure_copies(device, pageable, "pageable", sizes[i], &peer, network);
		measure_copies(device, pinned, "pinned", sizes[i], &peer, network);
	}
	transport_release(&peer.transport);
	waitpid(child, NULL, 0);
}

/* "MICROSECONDS", "GBPS" and "GBPS" for each connection of the emulated network; NULL: none. */
static const struct emulated *network_of(struct emulated *network, char **words)
{
	network->rtt_ns = (uint64_t)(atof(words[0]) * 1e3);
	network->gbps = atof(words[1]);
	network->connection_gbps = atof(words[2]);
	return network->rtt_ns || network->gbps > 0 || network->connection_gbps > 0 ? network : NULL;
}

int main(int argc, char **argv)
{
	struct emulated network;
	char closed;
	int port;

	if (argc == 2 && strcmp(argv[1], "first-launch") == 0) {
		launch(first_launch());
		CHECK(cuCtxSynchronize());
		printf("%llu\n", (unsigned long long)transport_now_ns());
		return 0;
	}
	bench_address.s_addr = htonl(INADDR_LOOPBACK);
	if ((argc == 6 || (argc == 7 && inet_aton(argv[6], &bench_address))) && strcmp(argv[1], "measure") == 0) {
		measure(argv[2], network_of(&network, argv + 3));
		return 0;
	}
	if (argc == 6 && strcmp(argv[1], "emulate") == 0) {
		(void)network_of(&network, argv + 3);
		port = emulator_start(&network, (uint16_t)atoi(argv[2]));
		if (port < 0)
			die("start the emulator", -port);
		printf("%d\n", port);
		fflush(stdout);
		while (read(STDIN_FILENO, &closed, 1) > 0)
			;
		return 0;
	}
	fprintf(stderr, "usage: remoting_bench measure TRANSPORT RTT_US GBPS GBPS_PER_CONNECTION [ADDRESS]\n"
			"       remoting_bench first-launch\n"
			"       remoting_bench emulate PORT RTT_US GBPS GBPS_PER_CONNECTION\n");
	return 2;
}
