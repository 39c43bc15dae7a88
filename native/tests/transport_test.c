/* Shared memory as a transport: order, back-pressure, the peer's end, hostile peers. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../transport/frames/inbox.h"
#include "../transport/ground/crew.h"
#include "../transport/ground/streaming.h"
#include "../transport/rings/shm.h"
#include "../transport/sockets/socket.h"
#include "../transport/transport.h"
#include "../wire/digest.h"

#undef NDEBUG

#define LARGE (8u << 20)
#define PATIENCE_MS 20000

/* A client's and a server's end in one process; *memory is mapped as a hostile peer has it. */
static void pair_make(struct transport *client, struct transport *server, uint64_t **memory)
{
	struct shm *ours, *theirs;
	int pair[2], descriptor;
	off_t bytes;

	assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	assert(transport_socket_init(client, pair[0]) == 0);
	assert(transport_socket_init(server, pair[1]) == 0);
	assert(transport_shm_make(&ours, &descriptor) == 0);
	bytes = lseek(descriptor, 0, SEEK_END);
	*memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
	assert(*memory != MAP_FAILED);
	assert(transport_shm_take(&theirs, server, descriptor) == 0);
	transport_shm_switch(client, ours, false);
	transport_shm_switch(server, theirs, true);
	assert(strcmp(client->ops->name, "shm") == 0 && client->ops->direct);
}

static uint8_t pattern(size_t at)
{
	return (uint8_t)(at * 2654435761u >> 11);
}

static unsigned threads_of_this_process(void)
{
	DIR *tasks = opendir("/proc/self/task");
	unsigned count = 0;

	assert(tasks);
	for (struct dirent *task; (task = readdir(tasks));)
		count += task->d_name[0] != '.';
	closedir(tasks);
	return count;
}

/* Of a client with processors for them, several threads copy them. */
static void test_bytes_arrive_in_order_through_a_ring_that_is_too_small(unsigned processors, unsigned threads)
{
	unsigned before = threads_of_this_process();
	struct transport client, server;
	uint8_t *sent = malloc(LARGE), *got = malloc(LARGE);
	struct shm *ours, *theirs;
	int pair[2], descriptor, status;
	pid_t child;

	crew_set_processors(processors);
	for (size_t i = 0; i < LARGE; i++)
		sent[i] = pattern(i);
	assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	assert(transport_shm_make(&ours, &descriptor) == 0);
	child = fork();
	if (child == 0) {
		close(pair[0]);
		assert(transport_socket_init(&server, pair[1]) == 0);
		assert(transport_shm_take(&theirs, &server, descriptor) == 0);
		transport_shm_switch(&server, theirs, true);
		assert(transport_read_all(&server, got, LARGE, PATIENCE_MS) == 0);
		assert(memcmp(got, sent, LARGE) == 0);
		assert(transport_write_all(&server, got, LARGE) == 0);
		assert(threads_of_this_process() == 1);
		/* Its end comes behind what it wrote. */
		_exit(0);
	}
	close(pair[1]);
	close(descriptor);
	assert(transport_socket_init(&client, pair[0]) == 0);
	transport_shm_switch(&client, ours, false);
	assert(transport_write_all(&client, sent, LARGE) == 0);
	memset(got, 0, LARGE);
	assert(transport_read_all(&client, got, LARGE, PATIENCE_MS) == 0);
	assert(memcmp(got, sent, LARGE) == 0);
	assert(transport_read_all(&client, got, 1, PATIENCE_MS) == -EPIPE);
	assert(waitpid(child, &status, 0) == child && status == 0);
	assert(threads_of_this_process() == before + threads);
	transport_release(&client);
	assert(threads_of_this_process() == before);
	free(sent);
	free(got);
}

static void test_a_writer_hears_of_the_peer_s_end(void)
{
	struct transport client, server;
	uint8_t *bytes = calloc(1, LARGE);
	uint64_t *memory;

	pair_make(&client, &server, &memory);
	transport_release(&server);
	assert(transport_write_all(&client, bytes, LARGE) == -EPIPE);
	transport_release(&client);
	free(bytes);
}

static void test_a_shutdown_wakes_the_reader(void)
{
	struct transport client, server;
	uint64_t *memory;
	char byte;

	pair_make(&client, &server, &memory);
	client.ops->shutdown(&client);
	assert(client.ops->wait(&client, PATIENCE_MS) == 0);
	assert(client.ops->read(&client, &byte, 1) == -EPIPE);
	transport_release(&client);
	transport_release(&server);
}

/* Words of the memory: written and taken of the ring to the server, then to the client. */
enum { TO_SERVER_WRITTEN = 0, TO_SERVER_TAKEN = 8, TO_CLIENT_WRITTEN = 32 };

static void test_impossible_indices_are_refused(void)
{
	struct transport client, server;
	uint8_t *bytes = calloc(1, LARGE);
	uint64_t *memory;

	pair_make(&client, &server, &memory);
	memory[TO_CLIENT_WRITTEN] = 1ull << 40;
	assert(client.ops->read(&client, bytes, LARGE) == -EPROTO);
	memory[TO_CLIENT_WRITTEN] = ~0ull;
	assert(client.ops->read(&client, bytes, LARGE) == -EPROTO);
	memory[TO_SERVER_TAKEN] = 1ull << 63;
	assert(transport_write_all(&client, bytes, LARGE) == -EPROTO);
	memory[TO_SERVER_WRITTEN] = 1ull << 20;
	assert(server.ops->read(&server, bytes, LARGE) == -EPROTO);
	transport_release(&client);
	transport_release(&server);
	free(bytes);
}

static void test_memory_that_its_maker_could_cut_off_is_refused(void)
{
	struct transport client, server;
	struct shm *shm;
	uint64_t *memory;
	int loose, bytes, sealed;

	pair_make(&client, &server, &memory);
	assert(transport_shm_make(&shm, &sealed) == 0);
	bytes = (int)lseek(sealed, 0, SEEK_END);
	transport_shm_drop(shm);
	close(sealed);
	loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert(ftruncate(loose, bytes) == 0);
	assert(transport_shm_take(&shm, &server, dup(loose)) == -EPROTO);
	assert(ftruncate(loose, bytes / 2) == 0);
	assert(fcntl(loose, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
	assert(transport_shm_take(&shm, &server, loose) == -EPROTO);
	assert(transport_shm_take(&shm, &server, dup(STDIN_FILENO)) == -EPROTO);
	transport_release(&client);
	transport_release(&server);
}

/* The first processor that this process may use, or the one behind `before`; -1: there is none. */
static int processor_behind(int before)
{
	cpu_set_t may;

	assert(sched_getaffinity(0, sizeof(may), &may) == 0);
	for (int i = before + 1; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &may))
			return i;
	return -1;
}

static void processor_enter(int processor)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(processor, &set);
	assert(sched_setaffinity(0, sizeof(set), &set) == 0);
}

static void test_a_reader_knows_whether_the_writer_was_on_its_processor(void)
{
	int first = processor_behind(-1), second = processor_behind(first);
	struct transport client, server;
	uint64_t *memory;
	cpu_set_t before;

	pair_make(&client, &server, &memory);
	assert(!server.ops->apart(&server));
	assert(sched_getaffinity(0, sizeof(before), &before) == 0);
	processor_enter(first);
	assert(transport_write_all(&client, "x", 1) == 0);
	assert(!server.ops->apart(&server));
	if (second >= 0) {
		processor_enter(second);
		assert(server.ops->apart(&server));
		assert(transport_write_all(&client, "x", 1) == 0);
		assert(!server.ops->apart(&server));
	}
	assert(sched_setaffinity(0, sizeof(before), &before) == 0);
	transport_release(&client);
	transport_release(&server);
}

/* A peer that answers at the second look, or when it has been slept for. */
static struct {
	bool apart;
	int looks;
	int sleeps;
} peer;

static ssize_t peer_read(struct transport *transport, void *buffer, size_t bytes)
{
	(void)transport;
	(void)bytes;
	if (++peer.looks % 2)
		return -EAGAIN;
	*(uint8_t *)buffer = 1;
	return 1;
}

static int peer_wait(struct transport *transport, int timeout_ms)
{
	(void)transport;
	(void)timeout_ms;
	peer.sleeps++;
	return 0;
}

static bool peer_apart(struct transport *transport)
{
	(void)transport;
	return peer.apart;
}

static void test_waits_that_do_not_spin_do_so_where_the_peer_is_on_another_processor(void)
{
	static const struct transport_ops ops = {
		.name = "peer",
		.read = peer_read,
		.wait = peer_wait,
		.apart = peer_apart,
	};
	struct transport transport = { .ops = &ops, .descriptor = -1 };
	struct inbox inbox;
	uint8_t byte;

	assert(inbox_init(&inbox, &transport) == 0);
	inbox.sleeps = 2;
	assert(inbox_take(&inbox, &byte, 1) == 0);
	assert(peer.sleeps == 1);
	peer.apart = true;
	assert(inbox_take(&inbox, &byte, 1) == 0);
	assert(peer.sleeps == 1 && inbox.sleeps == 0);
	inbox_release(&inbox);
}

/* Words of the ring to the server. */
enum { TO_SERVER_CALLED_NS = 2, TO_SERVER_WOKEN_NS = 9, TO_SERVER_READER_ASLEEP = 16 };

static void test_a_writer_knows_how_long_the_peer_that_it_woke_takes(void)
{
	struct transport client, server;
	uint64_t *memory;

	pair_make(&client, &server, &memory);
	assert(transport_write_all(&client, "x", 1) == 0);
	assert(client.ops->waking(&client) == 0);
	memory[TO_SERVER_READER_ASLEEP] = 1;
	memory[TO_SERVER_WOKEN_NS] = 7000;
	assert(transport_write_all(&client, "x", 1) == 0);
	assert(memory[TO_SERVER_CALLED_NS] != 0);
	assert(client.ops->waking(&client) == 7000);
	/* What nobody has measured, and what nobody would believe. */
	memory[TO_SERVER_WOKEN_NS] = 0;
	assert(client.ops->waking(&client) == INBOX_WAKE_NS);
	memory[TO_SERVER_WOKEN_NS] = UINT64_MAX;
	assert(client.ops->waking(&client) == INBOX_WAKE_NS);
	assert(client.ops->woken(&client) == INBOX_WAKE_NS);
	assert(client.ops->waking(&client) == 0 && client.ops->woken(&client) == 0);
	/* The server finds it at once: it has not slept. */
	assert(server.ops->wait(&server, PATIENCE_MS) == 0);
	assert(server.ops->woken(&server) == 0);
	transport_release(&client);
	transport_release(&server);
}

static bool peer_beside(struct transport *transport)
{
	(void)transport;
	return !peer.apart;
}

static void test_who_keeps_waking_where_the_peer_is_goes_on_elsewhere_and_may_come_back(void)
{
	static const struct transport_ops ops = {
		.name = "peer",
		.read = peer_read,
		.wait = peer_wait,
		.beside = peer_beside,
	};
	struct transport transport = { .ops = &ops, .descriptor = -1 };
	struct inbox inbox;
	cpu_set_t before, after;
	uint8_t byte;

	assert(sched_getaffinity(0, sizeof(before), &before) == 0);
	assert(inbox_init(&inbox, &transport) == 0);
	peer.apart = false;
	/* A program's thread is its own. */
	inbox.sleeps = 100;
	for (unsigned i = 0; i <= INBOX_BESIDE; i++)
		assert(inbox_take(&inbox, &byte, 1) == 0);
	assert(!inbox.leaves && inbox.part_again_ns == 0);
	inbox.parts = true;
	for (unsigned i = 0; i < INBOX_BESIDE; i++)
		assert(!inbox.leaves && inbox_take(&inbox, &byte, 1) == 0);
	assert(inbox.leaves && inbox.part_again_ns != 0 && inbox.part_pause_ns == 2 * INBOX_PART_MIN_NS);
	peer.apart = true;
	assert(inbox_take(&inbox, &byte, 1) == 0);
	assert(!inbox.leaves && inbox.part_pause_ns == INBOX_PART_MIN_NS);
	assert(sched_getaffinity(0, sizeof(after), &after) == 0 && CPU_EQUAL(&before, &after));
	inbox_release(&inbox);
}

/* Nothing comes before who waits for it sleeps. */
static ssize_t peer_read_slept(struct transport *transport, void *buffer, size_t bytes)
{
	(void)transport;
	(void)bytes;
	if (!peer.sleeps)
		return -EAGAIN;
	peer.sleeps = 0;
	*(uint8_t *)buffer = 1;
	return 1;
}

/* Where the transport does not tell: an answer that comes as soon as this thread sleeps had waited for its processor. */
static void test_who_keeps_the_peer_from_the_processor_by_spinning_goes_on_elsewhere(void)
{
	static const struct transport_ops ops = { .name = "peer", .read = peer_read_slept, .wait = peer_wait };
	struct transport transport = { .ops = &ops, .descriptor = -1 };
	struct inbox inbox;
	uint8_t byte;

	peer.sleeps = 0;
	assert(inbox_init(&inbox, &transport) == 0);
	/* Who sleeps without having spun has seen nothing, and a program's thread is its own. */
	inbox.parts = true;
	inbox.sleeps = 100;
	for (unsigned i = 0; i <= INBOX_BESIDE; i++)
		assert(inbox_take(&inbox, &byte, 1) == 0 && !inbox.leaves && !inbox.beside);
	inbox.parts = false;
	inbox.sleeps = 0;
	for (unsigned i = 0; i <= INBOX_BESIDE; i++)
		assert(inbox_take(&inbox, &byte, 1) == 0 && !inbox.leaves && !inbox.beside);
	/* A wait in which another process ran is not counted. */
	inbox.parts = true;
	for (unsigned i = 0; i < INBOX_MISSED_MOST / 2 && !inbox.leaves; i++)
		assert(inbox_take(&inbox, &byte, 1) == 0);
	assert(inbox.leaves && inbox.part_again_ns != 0 && inbox.part_pause_ns == 2 * INBOX_PART_MIN_NS);
	inbox_release(&inbox);
}

/* More looks than a spin that adapts has time for. */
#define PEER_LATE_LOOKS 100000

static ssize_t peer_read_late(struct transport *transport, void *buffer, size_t bytes)
{
	(void)transport;
	(void)bytes;
	if (!peer.sleeps && ++peer.looks < PEER_LATE_LOOKS)
		return -EAGAIN;
	*(uint8_t *)buffer = 1;
	return 1;
}

/* How often a wait for that slept. */
static int late_sleeps(struct inbox *inbox)
{
	uint8_t byte;

	peer.looks = 0;
	peer.sleeps = 0;
	assert(inbox_take(inbox, &byte, 1) == 0);
	return peer.sleeps;
}

/* How often this thread was taken off its processor for another: at each question that many times more. */
static long switches, switches_more;

int getrusage(__rusage_who_t who, struct rusage *usage)
{
	assert(who == RUSAGE_THREAD);
	memset(usage, 0, sizeof(*usage));
	usage->ru_nivcsw = switches += switches_more;
	return 0;
}

static void test_who_is_patient_spins_on_while_nobody_else_wants_the_processor(void)
{
	static const struct transport_ops ops = { .name = "peer", .read = peer_read_late, .wait = peer_wait };
	struct transport transport = { .ops = &ops, .descriptor = -1 };
	struct inbox inbox;

	assert(inbox_init(&inbox, &transport) == 0);
	assert(late_sleeps(&inbox) == 1);
	inbox.patience_ns = 10 * 1000000000ull;
	assert(late_sleeps(&inbox) == 0);
	inbox.patience_ns = 0;
	assert(late_sleeps(&inbox) == 1);
	/* Nor where a spin would only keep the peer from the processor. */
	inbox.patience_ns = 10 * 1000000000ull;
	inbox.sleeps = 1;
	assert(late_sleeps(&inbox) == 1);
	inbox_release(&inbox);
}

/* That shows when the other has waited for it: so it is not to happen at each wait. */
static void test_whose_processor_was_wanted_does_not_spin_on_for_a_while(void)
{
	static const struct transport_ops ops = { .name = "peer", .read = peer_read_late, .wait = peer_wait };
	struct transport transport = { .ops = &ops, .descriptor = -1 };
	struct inbox inbox;

	assert(inbox_init(&inbox, &transport) == 0);
	inbox.patience_ns = 10 * 1000000000ull;
	for (unsigned times = 1; times <= 4; times *= 2) {
		switches_more = 1;
		assert(late_sleeps(&inbox) == 1);
		switches_more = 0;
		for (unsigned i = 0; i < times * INBOX_HURRIES_LEAST; i++) {
			/* These sleep for another reason. */
			inbox.missed = 0;
			assert(late_sleeps(&inbox) == 1);
		}
	}
	assert(late_sleeps(&inbox) == 0 && late_sleeps(&inbox) == 0);
	switches_more = 1;
	assert(late_sleeps(&inbox) == 1 && inbox.hurries == INBOX_HURRIES_LEAST);
	switches_more = 0;
	inbox_release(&inbox);
}

/* So that it begins at the beginning of a page of the kernel's. */
static void test_a_large_part_begins_a_message_of_its_own_over_a_unix_socket(void)
{
	static uint8_t head[40] = "head", large[64 << 10], got[sizeof(head) + sizeof(large)];
	struct transport writer, reader;
	int pair[2];

	memset(large, 'x', sizeof(large));
	assert(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	assert(transport_socket_init(&writer, pair[0]) == 0 && transport_socket_init(&reader, pair[1]) == 0);
	for (size_t bytes = sizeof(large); bytes >= sizeof(large) - 1; bytes--) {
		struct iovec vector[3] = { { head, 24 }, { head + 24, 16 }, { large, bytes } };
		bool apart = bytes == sizeof(large);

		assert(writer.ops->write(&writer, vector, 3) == 0);
		assert(reader.ops->read(&reader, got, sizeof(got)) == (ssize_t)(apart ? 40 : 40 + bytes));
		assert(memcmp(got, head, sizeof(head)) == 0);
		if (apart)
			assert(reader.ops->read(&reader, got, sizeof(got)) == (ssize_t)bytes && got[0] == 'x');
	}
	transport_release(&writer);
	transport_release(&reader);
}

static void test_nothing_paces_what_goes_to_this_machine(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t size = sizeof(address);
	struct transport ends[2];

	assert(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 1) == 0);
	assert(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
	ends[0].descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert(connect(ends[0].descriptor, (struct sockaddr *)&address, size) == 0);
	ends[1].descriptor = accept(listener, NULL, NULL);
	for (unsigned i = 0; i < 2; i++) {
		char name[16] = "";

		size = sizeof(name);
		assert(transport_socket_init(&ends[i], ends[i].descriptor) == 0);
		assert(getsockopt(ends[i].descriptor, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0);
		assert(strcmp(name, "reno") == 0);
	}
	transport_release(&ends[0]);
	transport_release(&ends[1]);
	close(listener);
}

/* Of a Unix socket, where what follows a payload is read along with it. */
static void test_frames_of_all_sizes_arrive_and_are_counted(void)
{
	static const size_t sizes[] = { 1, 4095, 4096, 4097, 0, 32767, 32768, 70000, 24, 131072, 131073, 300000 };
	enum { FRAMES = 500, MOST = 300000 };
	static uint8_t payload[MOST];
	_Atomic uint64_t received = 0, busy = 0, reading = 0;
	struct inbox_meter meter = { .received_bytes = &received, .busy_ns = &busy, .reading_since_ns = &reading };
	struct transport transport;
	struct inbox inbox;
	uint64_t sent = 0;
	int pair[2], status;
	pid_t child;

	assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	child = fork();
	if (child == 0) {
		assert(transport_socket_init(&transport, pair[0]) == 0);
		for (uint64_t i = 0; i < FRAMES; i++) {
			struct wire_header header = { .length = (uint32_t)sizes[i * 7 % 12], .sequence = i };
			struct iovec vector[2] = { { &header, sizeof(header) }, { payload, header.length } };

			for (size_t at = 0; at < header.length; at++)
				payload[at] = pattern(at + i);
			assert(transport.ops->write(&transport, vector, header.length ? 2 : 1) == 0);
		}
		_exit(0);
	}
	close(pair[0]);
	assert(transport_socket_init(&transport, pair[1]) == 0 && transport.ops->scatter);
	assert(inbox_init(&inbox, &transport) == 0);
	inbox.meter = &meter;
	for (uint64_t i = 0; i < FRAMES; i++) {
		struct wire_header header;

		assert(inbox_header(&inbox, &header, PATIENCE_MS) == 0);
		assert(header.sequence == i && header.length == sizes[i * 7 % 12]);
		for (size_t at = 0, now; at < header.length; at += now) {
			now = i % 3 && header.length - at > 5000 ? 5000 * (i % 3) / 2 : header.length - at;
			assert(inbox_take(&inbox, payload + at, now) == 0);
		}
		for (size_t at = 0; at < header.length; at++)
			assert(payload[at] == pattern(at + i));
		sent += sizeof(header) + header.length;
	}
	assert(received == sent);
	assert(waitpid(child, &status, 0) == child && status == 0);
	inbox_release(&inbox);
	transport_release(&transport);
}

static void test_digests_are_as_the_standard_s_examples(void)
{
	static const uint8_t abc[4] = { 0xba, 0x78, 0x16, 0xbf }, two[4] = { 0x24, 0x8d, 0x6a, 0x61 };
	uint8_t digest[WIRE_DIGEST_BYTES];

	wire_digest("abc", 3, digest);
	assert(memcmp(digest, abc, 4) == 0 && digest[31] == 0xad);
	wire_digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, digest);
	assert(memcmp(digest, two, 4) == 0 && digest[31] == 0xc1);
}

/* From and to every place in a line, and not one byte beyond. */
static void test_copies_past_the_cache_are_whole(void)
{
	enum { MARGIN = 64, MOST = STREAMING_BYTES + 200 };
	static uint8_t from[MARGIN + MOST], to[MARGIN + MOST + MARGIN], expected[sizeof(to)];

	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (uint8_t)(i * 2654435761u >> 13);
	for (size_t at = 0; at < MARGIN; at++) {
		for (size_t bytes = STREAMING_BYTES - 1; bytes <= MOST; bytes += 67) {
			const uint8_t *source = from + at * 7 % MARGIN;

			memset(to, 0xa5, sizeof(to));
			memset(expected, 0xa5, sizeof(expected));
			memcpy(expected + at, source, bytes);
			streaming_copy(to + at, source, bytes);
			assert(memcmp(to, expected, sizeof(to)) == 0);
		}
	}
}

int main(void)
{
	test_copies_past_the_cache_are_whole();
	test_bytes_arrive_in_order_through_a_ring_that_is_too_small(UINT_MAX, 0);
	test_bytes_arrive_in_order_through_a_ring_that_is_too_small(0, 2 * CREW_THREADS);
	test_a_writer_hears_of_the_peer_s_end();
	test_a_shutdown_wakes_the_reader();
	test_impossible_indices_are_refused();
	test_memory_that_its_maker_could_cut_off_is_refused();
	test_a_reader_knows_whether_the_writer_was_on_its_processor();
	test_waits_that_do_not_spin_do_so_where_the_peer_is_on_another_processor();
	test_a_writer_knows_how_long_the_peer_that_it_woke_takes();
	test_who_keeps_waking_where_the_peer_is_goes_on_elsewhere_and_may_come_back();
	test_who_keeps_the_peer_from_the_processor_by_spinning_goes_on_elsewhere();
	test_who_is_patient_spins_on_while_nobody_else_wants_the_processor();
	test_whose_processor_was_wanted_does_not_spin_on_for_a_while();
	test_a_large_part_begins_a_message_of_its_own_over_a_unix_socket();
	test_nothing_paces_what_goes_to_this_machine();
	test_frames_of_all_sizes_arrive_and_are_counted();
	test_digests_are_as_the_standard_s_examples();
	puts("ok");
	return 0;
}
