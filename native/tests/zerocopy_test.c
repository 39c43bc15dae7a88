/* What the kernel sends from where it lies: it tells where it copies all the same, and that is no error of the connection. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../transport/sockets/socket.h"
#include "../transport/sockets/zerocopy.h"
#include "../transport/transport.h"
#include "kernel.h"

#undef NDEBUG

#define PART_BYTES (4 * (size_t)TRANSPORT_KEPT_BYTES)
#define PARTS 32u
#define PATIENCE_MS 20000

struct pair {
	struct transport near;
	struct transport far;
};

static struct pair pair_make(const char *address)
{
	struct transport_target target;
	struct sockaddr_storage name;
	socklen_t bytes = sizeof(name);
	struct pair pair;
	int ends[2], listening = transport_tcp_socket(address, "0", &target);

	assert(listening >= 0);
	assert(bind(listening, (struct sockaddr *)&target.address, target.length) == 0 && listen(listening, 1) == 0);
	assert(getsockname(listening, (struct sockaddr *)&name, &bytes) == 0);
	ends[0] = socket(name.ss_family, SOCK_STREAM, 0);
	assert(ends[0] >= 0 && connect(ends[0], (struct sockaddr *)&name, bytes) == 0);
	ends[1] = accept(listening, NULL, NULL);
	assert(ends[1] >= 0);
	close(listening);
	assert(transport_socket_init(&pair.near, ends[0]) == 0 && transport_socket_init(&pair.far, ends[1]) == 0);
	transport_zerocopy_begin(&pair.near);
	assert(pair.near.zerocopy && zerocopy_is_on(pair.near.zerocopy));
	return pair;
}

static void pair_drop(struct pair *pair)
{
	transport_release(&pair->near);
	transport_release(&pair->far);
}

static uint8_t pattern(size_t at)
{
	return (uint8_t)(at * 2654435761u >> 27);
}

/* Reads parts and the byte that precedes each. */
static void *parts_read(void *opaque)
{
	struct transport *far = opaque;
	uint8_t *bytes = malloc(1 + PART_BYTES);

	for (unsigned part = 0; part < PARTS; part++) {
		assert(transport_read_all(far, bytes, 1 + PART_BYTES, PATIENCE_MS) == 0);
		assert(bytes[0] == (uint8_t)part);
		for (size_t i = 0; i < PART_BYTES; i++)
			assert(bytes[1 + i] == pattern(part * PART_BYTES + i));
	}
	free(bytes);
	return NULL;
}

/* Write parts that stay as they are, each behind a byte that does not, and have the peer read them. */
static void parts_pass(struct pair *pair)
{
	uint8_t *bytes = malloc(PARTS * PART_BYTES), small;
	pthread_t thread;

	for (size_t i = 0; i < PARTS * PART_BYTES; i++)
		bytes[i] = pattern(i);
	assert(pthread_create(&thread, NULL, parts_read, &pair->far) == 0);
	for (unsigned part = 0; part < PARTS; part++) {
		struct iovec vector[] = { { &small, 1 }, { bytes + part * PART_BYTES, PART_BYTES } };

		small = (uint8_t)part;
		assert(pair->near.ops->write_kept(&pair->near, vector, 2) == 0);
	}
	pthread_join(thread, NULL);
	free(bytes);
}

static void told_await(const struct pair *pair)
{
	struct pollfd on = { .fd = pair->near.descriptor };

	assert(transport_poll_all(&on, 1, PATIENCE_MS) == 0 && on.revents == POLLERR);
}

static void test_where_the_kernel_copies_it_is_given_up_and_all_bytes_arrive(const char *address)
{
	uint64_t copied = zerocopy_bytes(true), others = zerocopy_bytes(false);
	struct pair pair = pair_make(address);

	parts_pass(&pair);
	/* The first ones decide, or what the kernel tells behind the last. */
	while (zerocopy_is_on(pair.near.zerocopy)) {
		told_await(&pair);
		assert(pair.near.ops->hear(&pair.near));
	}
	assert(zerocopy_bytes(true) > copied && zerocopy_bytes(false) == others);
	parts_pass(&pair);
	assert(!zerocopy_is_on(pair.near.zerocopy));
	pair_drop(&pair);
}

/* Neither bytes, nor the peer's end, nor something to be told again. */
static void test_who_waits_waits_on_when_the_kernel_tells_of_sends(void)
{
	struct pair pair = pair_make("127.0.0.1");
	char byte;

	/* To the last part, of which nobody has heard yet. */
	zerocopy_set_stubborn(true);
	parts_pass(&pair);
	zerocopy_set_stubborn(false);
	told_await(&pair);
	assert(pair.near.ops->wait(&pair.near, 0) == -ETIMEDOUT);
	assert(!pair.near.ops->hear(&pair.near));
	assert(pair.near.ops->read(&pair.near, &byte, 1) == -EAGAIN);
	assert(transport_write_all(&pair.far, "x", 1) == 0);
	assert(pair.near.ops->wait(&pair.near, PATIENCE_MS) == 0);
	assert(pair.near.ops->read(&pair.near, &byte, 1) == 1 && byte == 'x');
	pair_drop(&pair);
}

static void test_of_what_the_process_may_not_lock_the_kernel_has_copies(void)
{
	const struct rlimit none = { 0 };
	pid_t child = fork();
	int status;

	assert(child >= 0);
	if (!child) {
		uint64_t sent = zerocopy_bytes(true) + zerocopy_bytes(false);
		struct pair pair;

		/* Root may lock as much as it likes (CAP_IPC_LOCK). */
		assert(setrlimit(RLIMIT_MEMLOCK, &none) == 0 && (getuid() || setuid(65534) == 0));
		pair = pair_make("127.0.0.1");
		parts_pass(&pair);
		assert(!pair.near.ops->hear(&pair.near) && zerocopy_is_on(pair.near.zerocopy));
		assert(zerocopy_bytes(true) + zerocopy_bytes(false) == sent);
		_exit(0);
	}
	assert(waitpid(child, &status, 0) == child && status == 0);
}

static void test_only_sockets_of_tcp_can(void)
{
	struct transport transport;
	int ends[2];

	assert(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	assert(transport_socket_init(&transport, ends[0]) == 0);
	transport_zerocopy_begin(&transport);
	assert(!transport.zerocopy && !zerocopy_is_on(transport.zerocopy));
	transport_release(&transport);
	close(ends[1]);
}

static bool is_there(const char *address)
{
	struct transport_target target;
	int descriptor = transport_tcp_socket(address, "0", &target);
	bool is = descriptor >= 0 && bind(descriptor, (struct sockaddr *)&target.address, target.length) == 0;

	close(descriptor);
	return is;
}

int main(void)
{
	if (!kernel_has_zerocopy()) {
		puts("skipped: this kernel sends nothing from where it lies (SO_ZEROCOPY, Linux 4.14)");
		return 0;
	}
	test_where_the_kernel_copies_it_is_given_up_and_all_bytes_arrive("127.0.0.1");
	/* Its error queue has another form. */
	if (is_there("::1"))
		test_where_the_kernel_copies_it_is_given_up_and_all_bytes_arrive("::1");
	test_who_waits_waits_on_when_the_kernel_tells_of_sends();
	test_of_what_the_process_may_not_lock_the_kernel_has_copies();
	test_only_sockets_of_tcp_can();
	puts("ok");
	return 0;
}
