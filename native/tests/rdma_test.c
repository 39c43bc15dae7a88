/* RDMA as a transport: order, room, ends, hostile peers, cuts.  Over whatever libibverbs.so.1 there is and has 127.0.0.1:
 * soft-RoCE, or the tests' own (tests/verbs). */
#include "../transport/rings/rdma_rings.c"
#include "../transport/rings/rdma.c"
#include "../transport/sockets/socket.h"

#include <arpa/inet.h>
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../transport/resumed/resume.h"

#undef NDEBUG

#ifndef FARBUS_VERBS

int main(void)
{
	puts("skipped: built without <infiniband/verbs.h>");
	return 0;
}

#else

#define PATIENCE_MS 60000
#define STREAM_BYTES ((size_t)24 << 20)
#define CUTS 12

static uint8_t pattern(size_t at)
{
	return (uint8_t)(at * 2654435761u >> 13);
}

/* Both ends of a connection, over TCP on the loopback. */
static void tcp_make(struct transport *client, struct transport *server)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), near = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t bytes = sizeof(address);

	assert(listener >= 0 && near >= 0);
	assert(bind(listener, (struct sockaddr *)&address, bytes) == 0 && listen(listener, 1) == 0);
	assert(getsockname(listener, (struct sockaddr *)&address, &bytes) == 0);
	assert(connect(near, (struct sockaddr *)&address, bytes) == 0);
	assert(transport_socket_init(client, near) == 0);
	assert(transport_socket_init(server, accept(listener, NULL, NULL)) == 0);
	close(listener);
}

struct start {
	struct transport *transport;
	struct rdma *rdma;
	pthread_t thread;
};

static void *start_server(void *opaque)
{
	struct start *start = opaque;

	assert(transport_rdma_start(start->transport, start->rdma, true, PATIENCE_MS) == 0);
	return NULL;
}

/* Both ends as they are after agreeing; `spoil` is what is done to the client's beforehand. */
static void agreed_make(struct transport *client, struct transport *server, void (*spoil)(struct rdma *))
{
	struct start far = { .transport = server };
	char why[RDMA_WHY_BYTES] = "";
	struct rdma *near;

	tcp_make(client, server);
	if (transport_rdma_make(&near, client, why) || transport_rdma_make(&far.rdma, server, why)) {
		fprintf(stderr, "%s\n", why);
		abort();
	}
	if (spoil)
		spoil(near);
	assert(pthread_create(&far.thread, NULL, start_server, &far) == 0);
	assert(transport_rdma_start(client, near, false, PATIENCE_MS) == 0);
	pthread_join(far.thread, NULL);
}

static void pair_make(struct transport *client, struct transport *server)
{
	agreed_make(client, server, NULL);
	assert(strcmp(client->ops->name, "rdma") == 0 && strcmp(server->ops->name, "rdma") == 0);
	assert(transport_is_rdma(client) && transport_is_rdma(server));
}

static void pair_drop(struct transport *client, struct transport *server)
{
	transport_release(client);
	transport_release(server);
}

/* ---- streams ---- */

struct stream {
	struct transport *transport;
	size_t bytes;
	size_t step;			/* 0: of all sizes */
	unsigned seed;
	pthread_t thread;
};

static size_t piece(struct stream *stream, size_t left)
{
	size_t bytes = stream->step;

	stream->seed = stream->seed * 1103515245u + 12345u;
	if (!bytes)
		bytes = 1 + (stream->seed >> 8) % (1u << (stream->seed >> 28) << 5);
	return bytes < left ? bytes : left;
}

static void *stream_write(void *opaque)
{
	struct stream *stream = opaque;
	uint8_t *bytes = malloc(stream->bytes);

	for (size_t i = 0; i < stream->bytes; i++)
		bytes[i] = pattern(i);
	for (size_t at = 0; at < stream->bytes;) {
		size_t now = piece(stream, stream->bytes - at);
		/* As frames are: a header and what belongs to it, and nothing between. */
		struct iovec vector[3] = { { bytes + at, now / 3 }, { NULL, 0 }, { bytes + at + now / 3, now - now / 3 } };

		assert(stream->transport->ops->write(stream->transport, vector, 3) == 0);
		at += now;
	}
	free(bytes);
	return NULL;
}

static void *stream_read(void *opaque)
{
	struct stream *stream = opaque;
	uint8_t *bytes = malloc(1u << 21);

	for (size_t at = 0; at < stream->bytes;) {
		size_t now = piece(stream, stream->bytes - at);

		assert(transport_read_all(stream->transport, bytes, now, PATIENCE_MS) == 0);
		for (size_t i = 0; i < now; i++)
			assert(bytes[i] == pattern(at + i));
		at += now;
	}
	free(bytes);
	return NULL;
}

/* Both ways at once. */
static void streams_run(struct transport *client, struct transport *server, size_t bytes, size_t step)
{
	struct stream streams[4] = {
		{ client, bytes, step, 1, 0 }, { server, bytes, step, 2, 0 },
		{ server, bytes, step, 3, 0 }, { client, bytes, step, 4, 0 },
	};

	for (int i = 0; i < 4; i++)
		assert(pthread_create(&streams[i].thread, NULL, i % 2 ? stream_read : stream_write, &streams[i]) == 0);
	for (int i = 0; i < 4; i++)
		pthread_join(streams[i].thread, NULL);
}

static void test_both_streams_arrive_whole(void)
{
	struct transport client, server;

	pair_make(&client, &server);
	streams_run(&client, &server, STREAM_BYTES, 0);
	/* More messages than there are receives, and than the counts that travel can hold. */
	streams_run(&client, &server, 40000, 8);
	streams_run(&client, &server, 3 * RDMA_RING_BYTES, RDMA_RING_BYTES + 1);
	pair_drop(&client, &server);
}

/* ---- waiting and ends ---- */

static void *wait_reader(void *opaque)
{
	struct transport *transport = opaque;
	int rc = transport->ops->wait(transport, PATIENCE_MS);

	assert(rc == 0);
	return NULL;
}

static void test_who_waits_hears_of_bytes_and_of_the_end(void)
{
	struct transport client, server;
	uint8_t got[4] = { 0 };
	pthread_t thread;

	pair_make(&client, &server);
	assert(server.ops->wait(&server, 0) == -ETIMEDOUT);
	assert(server.ops->read(&server, got, 1) == -EAGAIN);
	assert(pthread_create(&thread, NULL, wait_reader, &server) == 0);
	assert(transport_write_all(&client, "four", 4) == 0);
	pthread_join(thread, NULL);
	assert(transport_read_all(&server, got, 4, PATIENCE_MS) == 0 && memcmp(got, "four", 4) == 0);
	assert(pthread_create(&thread, NULL, wait_reader, &server) == 0);
	client.ops->shutdown(&client);
	pthread_join(thread, NULL);
	assert(server.ops->read(&server, got, 1) == -EPIPE);
	pair_drop(&client, &server);
}

static void test_what_was_written_before_the_end_is_read(void)
{
	struct transport client, server;
	uint8_t bytes[100000] = { 7 }, got[sizeof(bytes)];

	pair_make(&client, &server);
	assert(transport_write_all(&client, bytes, sizeof(bytes)) == 0);
	client.ops->drain(&client);
	client.ops->shutdown(&client);
	transport_release(&client);
	assert(transport_read_all(&server, got, sizeof(got), PATIENCE_MS) == 0);
	assert(memcmp(bytes, got, sizeof(got)) == 0);
	while (server.ops->read(&server, got, 1) == -EAGAIN)
		assert(server.ops->wait(&server, PATIENCE_MS) == 0);
	assert(server.ops->read(&server, got, 1) == -EPIPE);
	transport_release(&server);
}

static void *write_much(void *opaque)
{
	uint8_t *bytes = calloc(1, 2 * RDMA_RING_BYTES);
	int rc = transport_write_all(opaque, bytes, 2 * RDMA_RING_BYTES);

	assert(rc == -EPIPE || rc == -EIO || rc == -ETIMEDOUT);
	free(bytes);
	return NULL;
}

static void test_a_writer_without_room_hears_of_the_end(void)
{
	struct transport client, server;
	pthread_t thread;

	pair_make(&client, &server);
	assert(pthread_create(&thread, NULL, write_much, &client) == 0);
	while (server.rdma->there < RDMA_RING_BYTES)
		assert(in_poll(server.rdma) == 0);
	server.ops->shutdown(&server);
	pthread_join(thread, NULL);
	pair_drop(&client, &server);
}

static void test_writable_says_when_there_is_room_again(void)
{
	struct transport client, server;
	static uint8_t bytes[RDMA_RING_BYTES];

	pair_make(&client, &server);
	assert(client.ops->writable(&client));
	assert(transport_write_all(&client, bytes, sizeof(bytes)) == 0);
	assert(!client.ops->writable(&client));
	assert(transport_read_all(&server, bytes, sizeof(bytes), PATIENCE_MS) == 0);
	/* Completions of its own requests wake it, too. */
	do
		assert(transport_poll(client.descriptor, POLLIN, PATIENCE_MS) == 0);
	while (!client.ops->writable(&client));
	pair_drop(&client, &server);
}

/* Less than a record, or a place for a part of it, would have who asked wait after all. */
static void test_writable_has_room_for_a_record(void)
{
	static uint8_t bytes[RDMA_RING_BYTES];
	struct transport client, server;

	pair_make(&client, &server);
	assert(transport_write_all(&client, bytes, sizeof(bytes) - 3) == 0);
	assert(!client.ops->writable(&client));
	assert(transport_read_all(&server, bytes, sizeof(bytes) - 3, PATIENCE_MS) == 0);
	while (!client.ops->writable(&client))
		assert(transport_poll(client.descriptor, POLLIN, PATIENCE_MS) == 0);
	/* What crosses the end of the ring is two messages. */
	for (unsigned i = client.rdma->sent - client.rdma->sent_taken; i < RDMA_MESSAGES - 1; i++)
		assert(transport_write_all(&client, bytes, 1) == 0);
	assert(!client.ops->writable(&client));
	pair_drop(&client, &server);
}

/* What is under way when there is no place for another may be all that the writer hears: nothing comes from it then. */
static void test_who_could_not_be_told_is_told_later(void)
{
	static uint8_t bytes[RDMA_RING_BYTES];
	struct transport client, server;

	pair_make(&client, &server);
	server.rdma->in.posted += RDMA_CREDITS;
	assert(transport_write_all(&client, bytes, sizeof(bytes)) == 0);
	assert(transport_read_all(&server, bytes, sizeof(bytes), PATIENCE_MS) == 0);
	assert(!client.ops->writable(&client));
	server.rdma->in.done = server.rdma->in.posted;
	assert(server.ops->wait(&server, 0) == -ETIMEDOUT);
	while (!client.ops->writable(&client))
		assert(transport_poll(client.descriptor, POLLIN, PATIENCE_MS) == 0);
	pair_drop(&client, &server);
}

/* ---- hostile peers ---- */

/* A peer that keeps a reader busy for ever with nothing. */
static void test_more_messages_than_receives_are_refused(void)
{
	struct transport client, server;

	pair_make(&client, &server);
	while (!in_poll(server.rdma)) {
		assert(server.rdma->messages <= RDMA_MESSAGES);
		if (!half_is_full(&client.rdma->out, RDMA_MESSAGES))
			assert(out_message(client.rdma, 0, 0, true) == 0);
		(void)out_poll(client.rdma);
	}
	assert(server.rdma->in.error == -EPROTO);
	pair_drop(&client, &server);
}

/* Nor a writer. */
static void test_a_word_that_says_nothing_new_is_refused(void)
{
	struct ibv_send_wr nothing = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM };
	struct transport client, server;

	pair_make(&client, &server);
	assert(half_send(&server.rdma->in, &nothing) == 0);
	while (!out_poll(client.rdma))
		;
	assert(client.rdma->out.error == -EPROTO);
	pair_drop(&client, &server);
}

static void test_a_length_that_can_t_be_is_refused(void)
{
	struct transport client, server;
	uint8_t got;

	pair_make(&client, &server);
	assert(out_message(client.rdma, 8, RDMA_RING_BYTES + 1, false) == 0);
	while (server.ops->read(&server, &got, 1) == -EAGAIN)
		assert(server.ops->wait(&server, PATIENCE_MS) == 0);
	assert(server.ops->read(&server, &got, 1) == -EPROTO);
	pair_drop(&client, &server);
}

static void test_bytes_taken_that_were_never_written_are_refused(void)
{
	struct transport client, server;

	for (int i = 0; i < 2; i++) {
		pair_make(&client, &server);
		server.rdma->taken = i ? 0 : RDMA_RING_BYTES / 2;
		server.rdma->messages = i ? RDMA_MESSAGES / 2 : 0;
		in_tell(server.rdma);
		assert(server.rdma->in.error == 0 && server.rdma->in.posted == 1);
		while (!out_poll(client.rdma))
			assert(transport_poll(server.descriptor, POLLIN, 0) <= 0);
		assert(client.rdma->out.error == -EPROTO);
		assert(transport_write_all(&client, "x", 1) == -EPROTO);
		pair_drop(&client, &server);
	}
}

static void test_a_word_over_tcp_is_the_end(void)
{
	struct transport client, server;
	uint8_t got;

	pair_make(&client, &server);
	assert(client.rdma->below.ops->write(&client.rdma->below, &(struct iovec){ "x", 1 }, 1) == 0);
	while (server.ops->read(&server, &got, 1) == -EAGAIN)
		assert(server.ops->wait(&server, PATIENCE_MS) == 0);
	assert(server.ops->read(&server, &got, 1) == -EPROTO);
	pair_drop(&client, &server);
}

/* ---- agreeing ---- */

static void spoil_key(struct rdma *rdma)
{
	rdma->ring_region->rkey ^= 0x5a5a;
}

static void spoil_reader(struct rdma *rdma)
{
	rdma->in.first ^= 1;
	rdma->in.qp->qp_num ^= 1;
}

static void spoil_mtu(struct rdma *rdma)
{
	rdma->mtu = 0;
}

/* The connection that there is stays, whatever is wrong with the other. */
static void test_what_does_not_work_leaves_tcp(void)
{
	void (*const spoils[])(struct rdma *) = { spoil_key, spoil_reader, spoil_mtu };

	for (size_t i = 0; i < sizeof(spoils) / sizeof(spoils[0]); i++) {
		struct transport client, server;
		uint8_t got[4];

		agreed_make(&client, &server, spoils[i]);
		assert(strcmp(client.ops->name, "tcp") == 0 && strcmp(server.ops->name, "tcp") == 0);
		assert(transport_write_all(&client, "four", 4) == 0);
		assert(transport_read_all(&server, got, 4, PATIENCE_MS) == 0 && memcmp(got, "four", 4) == 0);
		assert(transport_write_all(&server, "more", 4) == 0);
		assert(transport_read_all(&client, got, 4, PATIENCE_MS) == 0 && memcmp(got, "more", 4) == 0);
		pair_drop(&client, &server);
	}
}

/* ---- fork ---- */

static void test_a_forked_child_keeps_no_descriptor(void)
{
	struct transport client, server;
	struct stat status;
	pid_t child;
	int ended;

	assert(pthread_atfork(clofork_prepare, clofork_parent, clofork_child) == 0);
	pair_make(&client, &server);
	child = fork();
	assert(child >= 0);
	if (!child) {
		const struct rdma *rdma = client.rdma;
		/* That of TCP is this test's own. */
		const int descriptors[] = { client.descriptor, rdma->out.channel->fd, rdma->in.channel->fd,
					    rdma->context->async_fd, rdma->context->cmd_fd };
		int left = 0;

		for (size_t i = 0; i < sizeof(descriptors) / sizeof(descriptors[0]); i++)
			left += fstat(descriptors[i], &status) == 0;
		_exit(left);
	}
	assert(waitpid(child, &ended, 0) == child && ended == 0);
	streams_run(&client, &server, 1u << 20, 0);
	pair_drop(&client, &server);
}

/* ---- cuts ---- */

struct cut_pair {
	struct transport client;
	struct transport server;
	pthread_mutex_t lock;
	_Atomic unsigned dials;
	_Atomic int tcp;		/* the client's socket of the connection that there is */
};

static int dial(void *opaque, uint64_t received, int left_ms, struct transport *fresh, uint64_t *peer_received)
{
	struct cut_pair *pair = opaque;
	struct transport other;
	int rc;

	(void)left_ms;
	pthread_mutex_lock(&pair->lock);
	/* Every third one is TCP, as where RDMA has become impossible. */
	if (pair->dials % 3 == 2) {
		tcp_make(fresh, &other);
		atomic_store(&pair->tcp, pair->client.descriptor);
	} else {
		agreed_make(fresh, &other, NULL);
		atomic_store(&pair->tcp, fresh->rdma->below.descriptor);
	}
	pair->dials++;
	rc = transport_resume_hold(&pair->server, received, peer_received);
	if (!rc)
		rc = transport_resume_adopt(&pair->server, &other, received);
	else
		transport_release(&other);
	if (rc)
		transport_release(fresh);
	pthread_mutex_unlock(&pair->lock);
	return rc;
}

static void *cut_often(void *opaque)
{
	struct cut_pair *pair = opaque;

	for (unsigned i = 0; i < CUTS; i++) {
		unsigned dials = pair->dials;

		/* One that is just being taken over may not have that number yet. */
		while (pair->dials == dials) {
			(void)shutdown(atomic_load(&pair->tcp), SHUT_RDWR);
			sched_yield();
		}
	}
	return NULL;
}

static unsigned descriptors_open(void)
{
	unsigned count = 0;

	for (int i = 0; i < 4096; i++)
		count += fcntl(i, F_GETFD) >= 0;
	return count;
}

static void test_both_streams_outlive_cuts(void)
{
	unsigned before = descriptors_open();
	struct cut_pair pair = { .lock = PTHREAD_MUTEX_INITIALIZER };
	struct resume_options options = {
		.grace_ms = PATIENCE_MS, .closed_grace_ms = PATIENCE_MS, .grows = true, .prompt = true, .dial = dial, .opaque = &pair,
	};
	pthread_t cutter;
	uint8_t byte;

	pair_make(&pair.client, &pair.server);
	pair.tcp = pair.client.rdma->below.descriptor;
	assert(transport_resume_wrap(&pair.client, &options) == 0);
	options.dial = NULL;
	assert(transport_resume_wrap(&pair.server, &options) == 0);
	assert(strcmp(pair.client.ops->name, "rdma") == 0);
	assert(pthread_create(&cutter, NULL, cut_often, &pair) == 0);
	for (int i = 0; i < 3; i++)
		streams_run(&pair.client, &pair.server, STREAM_BYTES, 0);
	pthread_join(cutter, NULL);
	streams_run(&pair.client, &pair.server, 1u << 20, 0);
	assert(pair.dials >= CUTS);
	/* The end is said, and is not waited for. */
	pair.client.ops->shutdown(&pair.client);
	while (pair.server.ops->read(&pair.server, &byte, 1) == -EAGAIN)
		assert(pair.server.ops->wait(&pair.server, PATIENCE_MS) == 0);
	assert(pair.server.ops->read(&pair.server, &byte, 1) == -EPIPE);
	pair_drop(&pair.client, &pair.server);
	assert(descriptors_open() == before);
}

static int dial_nowhere(void *opaque, uint64_t received, int left_ms, struct transport *fresh, uint64_t *peer_received)
{
	(void)opaque, (void)received, (void)left_ms, (void)fresh, (void)peer_received;
	return -EAGAIN;
}

/* Whoever meets it first: a writer, here. */
static void test_a_word_that_can_t_be_is_no_cut(void)
{
	struct resume_options options = { .grace_ms = PATIENCE_MS, .closed_grace_ms = PATIENCE_MS, .dial = dial_nowhere };
	struct ibv_send_wr nothing = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM };
	struct transport client, server;
	uint8_t byte;

	pair_make(&client, &server);
	assert(transport_resume_wrap(&client, &options) == 0);
	assert(half_send(&server.rdma->in, &nothing) == 0);
	while (transport_write_all(&client, "x", 1) == 0)
		;
	assert(client.ops->read(&client, &byte, 1) == -EPROTO);
	pair_drop(&client, &server);
}

/* RDMA did not work when the session began. */
static void test_who_began_over_tcp_hears_by_rdma(void)
{
	struct cut_pair pair = { .lock = PTHREAD_MUTEX_INITIALIZER };
	struct resume_options options = { .grace_ms = PATIENCE_MS, .closed_grace_ms = PATIENCE_MS, .dial = dial, .opaque = &pair };
	pthread_t thread;
	char got[4];

	tcp_make(&pair.client, &pair.server);
	assert(transport_resume_wrap(&pair.client, &options) == 0);
	options.dial = NULL;
	assert(transport_resume_wrap(&pair.server, &options) == 0);
	assert(shutdown(pair.client.descriptor, SHUT_RDWR) == 0);
	assert(transport_write_all(&pair.client, "four", 4) == 0);
	assert(transport_read_all(&pair.server, got, 4, PATIENCE_MS) == 0);
	assert(pair.dials == 1);
	assert(pair.server.ops->wait(&pair.server, 0) == -ETIMEDOUT);
	assert(pthread_create(&thread, NULL, wait_reader, &pair.server) == 0);
	assert(transport_write_all(&pair.client, "more", 4) == 0);
	pthread_join(thread, NULL);
	assert(transport_read_all(&pair.server, got, 4, PATIENCE_MS) == 0 && memcmp(got, "more", 4) == 0);
	pair.client.ops->shutdown(&pair.client);
	pair_drop(&pair.client, &pair.server);
}

int main(void)
{
	struct transport client, server;
	char why[RDMA_WHY_BYTES];
	struct rdma *rdma;

	tcp_make(&client, &server);
	if (transport_rdma_make(&rdma, &client, why)) {
		printf("skipped: %s\n", why);
		return 0;
	}
	transport_rdma_drop(rdma);
	pair_drop(&client, &server);
	test_both_streams_arrive_whole();
	test_who_waits_hears_of_bytes_and_of_the_end();
	test_what_was_written_before_the_end_is_read();
	test_a_writer_without_room_hears_of_the_end();
	test_writable_says_when_there_is_room_again();
	test_writable_has_room_for_a_record();
	test_who_could_not_be_told_is_told_later();
	test_more_messages_than_receives_are_refused();
	test_a_word_that_says_nothing_new_is_refused();
	test_a_length_that_can_t_be_is_refused();
	test_bytes_taken_that_were_never_written_are_refused();
	test_a_word_over_tcp_is_the_end();
	test_what_does_not_work_leaves_tcp();
	test_a_forked_child_keeps_no_descriptor();
	test_both_streams_outlive_cuts();
	test_a_word_that_can_t_be_is_no_cut();
	test_who_began_over_tcp_hears_by_rdma();
	puts("ok");
	return 0;
}

#endif
