/* Two rings of bytes, each in the memory of who reads it, written by the network adapter of who writes.
 *
 *	written - taken		bytes that are in a ring, at most RDMA_RING_BYTES
 *
 * Each direction has a queue pair of its own, with its completion queue and channel, so that who writes and
 * who reads on one side do not find each other's completions:
 *
 *	writer		copies bytes into its mirror of the ring, from where RDMA WRITE WITH IMMEDIATE puts them to the same
 *			place in the ring; the immediate is how many they are.  What is small goes inline, with the request.
 *	reader		learns of them by the completions of its receives, which have no memory of their own, and tells
 *			what it has taken by the immediate of a write of nothing, a quarter of the ring (or of the receives)
 *			at a time.
 *
 * A writer never has more messages under way than the reader has receives, so that none finds none.  The mirror is
 * written again only where the reader has taken what was there: by then no request reads it any more.
 *
 * The other process writes all of the ring at any time, whatever it says: bytes are copied out before anybody looks at
 * them, and what it claims to have written or taken is refused where that cannot be.
 *
 * A reader sleeps on an epoll(7) descriptor of both channels, of the device's events, since of one that has gone nothing
 * else may tell, and of the TCP connection, whose end is the peer's.  The writer's channel is among them since a request
 * that fails is an answer that never comes, and nobody writes any more.  Only few requests have a completion if they
 * succeed, so that it is seldom woken for nothing; what it finds there it tells the writer, who may sleep for room.
 */
#include "rdma.h"
#include "clofork.h"
#include "sleeper.h"
#include "socket.h"
#include "verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#ifndef FARBUS_VERBS

int transport_rdma_make(struct rdma **rdma, const struct transport *transport, char why[RDMA_WHY_BYTES])
{
	(void)transport;
	*rdma = NULL;
	snprintf(why, RDMA_WHY_BYTES, "farbus was built without RDMA; build it where <infiniband/verbs.h> is "
		 "(package libibverbs-dev or rdma-core-devel)");
	return -EPROTONOSUPPORT;
}

int transport_rdma_start(struct transport *transport, struct rdma *rdma, bool server, int timeout_ms)
{
	(void)transport;
	(void)rdma;
	(void)server;
	(void)timeout_ms;
	return -EPROTONOSUPPORT;
}

bool transport_is_rdma(const struct transport *transport)
{
	(void)transport;
	return false;
}

void transport_rdma_drop(struct rdma *rdma)
{
	(void)rdma;
}

#else

/* What 200 Gb/s carry in 40 us.  Part of the protocol, as is how many receives a reader has. */
#define RDMA_RING_BYTES (1u << 20)
#define RDMA_MESSAGES 256u
/* One message of something larger: while it travels the next is copied, and the one before it taken. */
#define RDMA_STEP_BYTES (128u << 10)
/* What a writer must be able to hear: a reader tells of a quarter at a time, and a writer that does not listen writes
 * no more than there is room for. */
#define RDMA_CREDITS 32u
/* Receives that are posted again with one call. */
#define RDMA_AGAIN 16u
/* Completions that are fetched with one call. */
#define RDMA_COMPLETIONS 16
/* So little goes with the request where the device has room for it: it spares the adapter a read of memory. */
#define RDMA_INLINE_BYTES 220u
/* One request in so many has a completion of its own, of a writer's and of a reader's; and from so many on a writer
 * looks for them also where it has room. */
#define RDMA_SIGNAL 64u
#define RDMA_CREDIT_SIGNAL 8u
/* Who may write without waiting has room for this: a record of nothing, in two messages where it crosses the ring's end. */
#define RDMA_WRITABLE_BYTES 64u
#define RDMA_WRITABLE_MESSAGES 2u
#define RDMA_ROOM_SPIN_NS 50000u
/* InfiniBand Architecture, 9.9.2.4 (4.096 us * 2^14 is 67 ms, 6 times) and 9.7.5.2.8: a network that loses what is
 * sent for half a second to two is cut, and the session resumed over TCP. */
#define RDMA_TIMEOUT 14
#define RDMA_RETRIES 6	/* soft-RoCE takes seven for "for ever" */
#define RDMA_RECEIVER_RETRIES 7	/* which it is here */
#define RDMA_RECEIVER_TIMER 12
/* Routers a packet may pass. */
#define RDMA_HOPS 64
/* The kernel gives all valid ones of a device or none. */
#define RDMA_GIDS 1024
/* How long what was written last may take at the end. */
#define RDMA_DRAIN_MS 1000
#define RDMA_PROBE_MS 3000

/* What a reader has taken: messages, and below them bytes, both modulo what is more than can be under way. */
#define CREDIT_BYTES_BITS 22u
#define CREDIT_BYTES_MASK ((1u << CREDIT_BYTES_BITS) - 1)
#define CREDIT_MESSAGES_MASK ((1u << (32 - CREDIT_BYTES_BITS)) - 1)
_Static_assert(RDMA_RING_BYTES <= CREDIT_BYTES_MASK && RDMA_MESSAGES <= CREDIT_MESSAGES_MASK, "distances are told apart");

/* One of the two sides' queue pairs, as the other has to know it. */
struct rdma_end {
	uint32_t number;
	uint32_t first;			/* the number of its first packet */
};

struct rdma_terms {
	uint32_t status;		/* 0: it can; else the rest says nothing */
	uint32_t mtu;			/* enum ibv_mtu */
	struct rdma_end reader;
	struct rdma_end writer;
	uint64_t ring;			/* where its ring lies */
	uint32_t key;			/* that lets the peer write there */
	uint32_t ring_bytes;
	uint8_t gid[16];
};
_Static_assert(sizeof(struct rdma_terms) == 56, "wire layout");

struct rdma_word {
	uint32_t status;		/* 0: it works */
};

/* One direction's queues: used by one thread at a time. */
struct half {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	uint32_t first;			/* of its packets */
	uint64_t posted;		/* requests */
	uint64_t done;			/* of those, as far as completions tell */
	unsigned signal;		/* one in so many has one */
	unsigned consumed;		/* receives to be posted again */
	int error;			/* sticky */
};

struct rdma {
	const struct verbs *verbs;
	struct transport below;		/* the TCP connection, once it is no more than a sign of life */
	struct ibv_context *context;
	struct ibv_pd *domain;
	uint8_t port;
	uint32_t gid_index;
	union ibv_gid gid;
	union ibv_gid peer_gid;		/* of the connection's other end: nobody else is written to */
	enum ibv_mtu mtu;
	uint8_t *memory;		/* the ring, and behind it the mirror of the peer's */
	struct ibv_mr *ring_region;
	struct ibv_mr *mirror_region;

	/* Of the writer, and of the reader that looks after it. */
	pthread_mutex_t lock;
	struct sleeper writer;		/* who waits for room */
	struct half out;
	uint64_t peer_ring;
	uint32_t peer_key;
	uint32_t inline_bytes;
	uint64_t written;
	uint64_t out_taken;		/* as far as the writer knows */
	uint32_t sent;			/* messages */
	uint32_t sent_taken;

	struct half in;
	uint64_t there;			/* bytes that have come */
	uint64_t taken;
	uint64_t told;			/* of those taken */
	uint32_t messages;		/* that have come */
	uint32_t messages_told;
	int ended;			/* what the TCP connection has ended with */
	int epoll;			/* what a reader sleeps on, until it is the transport's descriptor */
};

static uint8_t *mirror(struct rdma *rdma)
{
	return rdma->memory + RDMA_RING_BYTES;
}

/* ---- both directions ---- */

/* Count a completion: is there more to do, for what the peer has said, or for an error? */
static bool half_done(struct half *half, const struct ibv_wc *done)
{
	bool heard = done->opcode & IBV_WC_RECV;

	if (done->status == IBV_WC_SUCCESS && !heard) {
		half->done = done->wr_id;
		return false;
	}
	/* What follows an error is flushed. */
	if (done->status == IBV_WC_RETRY_EXC_ERR && !half->error)
		half->error = -ETIMEDOUT;
	else if (done->status != IBV_WC_SUCCESS && !half->error)
		half->error = -EIO;
	else if (!(done->wc_flags & IBV_WC_WITH_IMM) && !half->error)
		half->error = -EPROTO;
	return true;
}

static int half_receive(struct half *half, unsigned count)
{
	struct ibv_recv_wr requests[RDMA_AGAIN], *bad;

	while (count) {
		unsigned now = count < RDMA_AGAIN ? count : RDMA_AGAIN;

		memset(requests, 0, sizeof(requests[0]) * now);
		for (unsigned i = 0; i + 1 < now; i++)
			requests[i].next = &requests[i + 1];
		if (ibv_post_recv(half->qp, requests, &bad))
			return half->error = -EIO;
		count -= now;
	}
	return 0;
}

static int half_send(struct half *half, struct ibv_send_wr *request)
{
	struct ibv_send_wr *bad;

	request->wr_id = half->posted + 1;
	if (request->wr_id % half->signal == 0)
		request->send_flags |= IBV_SEND_SIGNALED;
	if (ibv_post_send(half->qp, request, &bad))
		return half->error = half->error ? half->error : -EIO;
	half->posted++;
	return 0;
}

static bool half_is_full(const struct half *half, unsigned sends)
{
	return half->posted - half->done >= sends;
}

/* Take in completions, and let `hear` have what the peer has said: 0, or the error that the direction has ended with. */
static int half_poll(struct rdma *rdma, struct half *half, int (*hear)(struct rdma *rdma, uint32_t immediate))
{
	struct ibv_wc done[RDMA_COMPLETIONS];
	int count;

	do {
		count = half->error ? 0 : ibv_poll_cq(half->cq, RDMA_COMPLETIONS, done);
		if (count < 0)
			half->error = -EIO;
		for (int i = 0; i < count; i++)
			if (half_done(half, &done[i]) && (half->error || hear(rdma, ntohl(done[i].imm_data))))
				return half->error;
	} while (count == RDMA_COMPLETIONS);
	return half->error;
}

/* Take what the channel has told; have it tell of the next completion. */
static int half_arm(struct rdma *rdma, struct half *half)
{
	struct ibv_cq *cq;
	void *context;

	while (rdma->verbs->ibv_get_cq_event(half->channel, &cq, &context) == 0)
		rdma->verbs->ibv_ack_cq_events(cq, 1);
	if (ibv_req_notify_cq(half->cq, 0))
		return half->error = -EIO;
	return 0;
}

/* ---- writing; `lock` is held ---- */

static int out_credit(struct rdma *rdma, uint32_t immediate)
{
	uint32_t bytes = (immediate - (uint32_t)rdma->out_taken) & CREDIT_BYTES_MASK;
	uint32_t messages = ((immediate >> CREDIT_BYTES_BITS) - rdma->sent_taken) & CREDIT_MESSAGES_MASK;

	/* Of nothing there would be no end. */
	if ((!bytes && !messages) || bytes > rdma->written - rdma->out_taken || messages > rdma->sent - rdma->sent_taken)
		return rdma->out.error = -EPROTO;
	rdma->out_taken += bytes;
	rdma->sent_taken += messages;
	return half_receive(&rdma->out, 1);
}

static int out_poll(struct rdma *rdma)
{
	return half_poll(rdma, &rdma->out, out_credit);
}

/* Room for bytes in so many messages. */
static size_t out_room(const struct rdma *rdma, unsigned messages)
{
	unsigned most = RDMA_MESSAGES - messages;

	if (rdma->sent - rdma->sent_taken > most || half_is_full(&rdma->out, most + 1))
		return 0;
	return RDMA_RING_BYTES - (size_t)(rdma->written - rdma->out_taken);
}

static bool out_has_room(const struct rdma *rdma)
{
	return out_room(rdma, 1);
}

static bool out_is_writable(const struct rdma *rdma)
{
	return out_room(rdma, RDMA_WRITABLE_MESSAGES) >= RDMA_WRITABLE_BYTES;
}

static bool out_is_done(const struct rdma *rdma)
{
	return rdma->out.done == rdma->out.posted;
}

/* The device has something to say: does it work no longer, or a queue of it?  `revents` is what poll(2) has said. */
static void device_hear(struct rdma *rdma, short revents)
{
	bool ends = revents & ~POLLIN;
	struct ibv_async_event event;

	while (rdma->verbs->ibv_get_async_event(rdma->context, &event) == 0) {
		switch (event.event_type) {
		case IBV_EVENT_DEVICE_FATAL:
		case IBV_EVENT_CQ_ERR:
		case IBV_EVENT_QP_FATAL:
		case IBV_EVENT_QP_REQ_ERR:
		case IBV_EVENT_QP_ACCESS_ERR:
			ends = true;
			break;
		default:
			break;
		}
		rdma->verbs->ibv_ack_async_event(&event);
	}
	if (ends && !rdma->out.error)
		rdma->out.error = -EIO;
}

/* Sleep until there is something for the writer to look at, at most so long; `lock` is let go meanwhile.  -EPIPE: the
 * peer has gone. */
static int out_sleep(struct rdma *rdma, int timeout_ms)
{
	struct pollfd on[4] = {
		{ .fd = rdma->out.channel->fd, .events = POLLIN },
		{ .fd = rdma->below.descriptor, .events = POLLRDHUP },
		{ .fd = rdma->writer.wake, .events = POLLIN },
		{ .fd = rdma->context->async_fd, .events = POLLIN },
	};
	int rc;

	pthread_mutex_unlock(&rdma->lock);
	rc = transport_poll_all(on, 4, timeout_ms);
	pthread_mutex_lock(&rdma->lock);
	if (on[3].revents)
		device_hear(rdma, on[3].revents);
	sleeper_awake(&rdma->writer, on[2].revents);
	return on[1].revents ? -EPIPE : rc == -ETIMEDOUT ? 0 : rc;
}

/* Wait until it `is` so, at most timeout_ms (-1: as long as it takes); `lock` is let go meanwhile. */
static int out_await(struct rdma *rdma, bool (*is)(const struct rdma *rdma), int timeout_ms)
{
	uint64_t start = transport_now_ns(), end = start + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000u;

	while (!out_poll(rdma) && !is(rdma)) {
		int left = timeout_ms < 0 ? TRANSPORT_LOOK_MS : transport_left_ms(end), rc;

		if (!left)
			return -ETIMEDOUT;
		if (transport_now_ns() - start < RDMA_ROOM_SPIN_NS) {
			pthread_mutex_unlock(&rdma->lock);
			transport_relax();
			pthread_mutex_lock(&rdma->lock);
			continue;
		}
		/* Said before it is looked at for the last time: a reader that takes the event wakes it. */
		atomic_store(&rdma->writer.asleep, true);
		if (half_arm(rdma, &rdma->out) || out_poll(rdma) || is(rdma)) {
			atomic_store(&rdma->writer.asleep, false);
			continue;
		}
		rc = out_sleep(rdma, left);
		if (rc)
			return rc;
	}
	return rdma->out.error;
}

/* Have what lies in the mirror written to the ring; `counts` of it are bytes of the stream. */
static int out_message(struct rdma *rdma, size_t bytes, size_t counts, bool signal)
{
	size_t at = rdma->written % RDMA_RING_BYTES;
	struct ibv_sge part = {
		.addr = (uintptr_t)(mirror(rdma) + at),
		.length = (uint32_t)bytes,
		.lkey = rdma->mirror_region->lkey,
	};
	struct ibv_send_wr request = {
		.sg_list = &part,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.send_flags = (bytes <= rdma->inline_bytes ? IBV_SEND_INLINE : 0) | (signal ? IBV_SEND_SIGNALED : 0),
		.imm_data = htonl((uint32_t)counts),
		.wr.rdma = { .remote_addr = rdma->peer_ring + at, .rkey = rdma->peer_key },
	};
	int rc;

	TRANSPORT_SENDS(rdma);
	rc = half_send(&rdma->out, &request);
	if (rc)
		return rc;
	rdma->written += counts;
	rdma->sent++;
	return 0;
}

static int rdma_write(struct transport *transport, struct iovec *vector, int count)
{
	struct rdma *rdma = transport->rdma;
	int cancel = transport_cancel_disable(), rc;

	pthread_mutex_lock(&rdma->lock);
	rc = half_is_full(&rdma->out, RDMA_SIGNAL) ? out_poll(rdma) : rdma->out.error;
	while (!rc) {
		size_t room, filled = 0, at = rdma->written % RDMA_RING_BYTES;

		while (count && !vector->iov_len) {
			vector++;
			count--;
		}
		if (!count)
			break;
		room = out_room(rdma, 1);
		if (!room) {
			rc = out_await(rdma, out_has_room, -1);
			continue;
		}
		if (room > RDMA_STEP_BYTES)
			room = RDMA_STEP_BYTES;
		if (room > RDMA_RING_BYTES - at)
			room = RDMA_RING_BYTES - at;
		/* All parts that fit are one message. */
		while (count && filled < room) {
			size_t now = vector->iov_len < room - filled ? vector->iov_len : room - filled;

			if (now)
				memcpy(mirror(rdma) + at + filled, vector->iov_base, now);
			filled += now;
			vector->iov_base = (char *)vector->iov_base + now;
			vector->iov_len -= now;
			if (!vector->iov_len) {
				vector++;
				count--;
			}
		}
		rc = out_message(rdma, filled, filled, false);
	}
	pthread_mutex_unlock(&rdma->lock);
	transport_cancel_restore(cancel);
	return rc;
}

/* Take in what the writer's channel tells, and have it tell of what comes next. */
static int out_hear(struct rdma *rdma)
{
	int rc = half_arm(rdma, &rdma->out);

	return rc ? rc : out_poll(rdma);
}

static bool rdma_writable(struct transport *transport)
{
	struct rdma *rdma = transport->rdma;
	int cancel = transport_cancel_disable();
	bool now;

	pthread_mutex_lock(&rdma->lock);
	now = out_poll(rdma) || out_is_writable(rdma) || out_hear(rdma) || out_is_writable(rdma);
	pthread_mutex_unlock(&rdma->lock);
	transport_cancel_restore(cancel);
	return now;
}

/* What is posted last is complete when all before it is: a message of nothing, which has a completion. */
static void rdma_drain(struct transport *transport)
{
	struct rdma *rdma = transport->rdma;
	int cancel = transport_cancel_disable();

	pthread_mutex_lock(&rdma->lock);
	if (!out_await(rdma, out_has_room, RDMA_DRAIN_MS) && !out_is_done(rdma) && !out_message(rdma, 0, 0, true))
		(void)out_await(rdma, out_is_done, RDMA_DRAIN_MS);
	pthread_mutex_unlock(&rdma->lock);
	transport_cancel_restore(cancel);
}

/* ---- reading ---- */

static int in_message(struct rdma *rdma, uint32_t bytes)
{
	/* Each has a receive that was told of, or messages of nothing would have no end. */
	if (bytes > RDMA_RING_BYTES - (rdma->there - rdma->taken) || rdma->messages - rdma->messages_told >= RDMA_MESSAGES)
		return rdma->in.error = -EPROTO;
	rdma->there += bytes;
	rdma->messages++;
	if (++rdma->in.consumed < RDMA_AGAIN)
		return 0;
	rdma->in.consumed = 0;
	return half_receive(&rdma->in, RDMA_AGAIN);
}

static int in_poll(struct rdma *rdma)
{
	int rc = half_poll(rdma, &rdma->in, in_message);

	TRANSPORT_RECEIVED(rdma);
	return rc;
}

/* Let the writer know what was taken, where that is worth a message.  Of receives those are told that are posted again. */
static void in_tell(struct rdma *rdma)
{
	uint32_t messages = rdma->messages - rdma->in.consumed;
	struct ibv_send_wr request = {
		.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.imm_data = htonl((messages & CREDIT_MESSAGES_MASK) << CREDIT_BYTES_BITS |
				  ((uint32_t)rdma->taken & CREDIT_BYTES_MASK)),
	};

	if (rdma->taken - rdma->told < RDMA_RING_BYTES / 4 && messages - rdma->messages_told < RDMA_MESSAGES / 4)
		return;
	/* The next time then, or when one of those under way is complete, if nothing comes until then. */
	if (rdma->in.error ||
	    (half_is_full(&rdma->in, RDMA_CREDITS) && (in_poll(rdma) || half_is_full(&rdma->in, RDMA_CREDITS))))
		return;
	if (half_send(&rdma->in, &request))
		return;
	rdma->told = rdma->taken;
	rdma->messages_told = messages;
}

static ssize_t rdma_read(struct transport *transport, void *buffer, size_t bytes)
{
	struct rdma *rdma = transport->rdma;
	int cancel = transport_cancel_disable(), rc = 0;
	size_t got = 0;

	if (rdma->there - rdma->taken < bytes)
		rc = in_poll(rdma);
	while (got < bytes && rdma->there != rdma->taken) {
		size_t at = rdma->taken % RDMA_RING_BYTES, now = RDMA_RING_BYTES - at;

		if (now > rdma->there - rdma->taken)
			now = (size_t)(rdma->there - rdma->taken);
		if (now > bytes - got)
			now = bytes - got;
		memcpy((char *)buffer + got, rdma->memory + at, now);
		got += now;
		rdma->taken += now;
		in_tell(rdma);
	}
	transport_cancel_restore(cancel);
	if (got)
		return (ssize_t)got;
	return rc ? rc : rdma->ended ? rdma->ended : -EAGAIN;
}

/* Look after the writer, who may have nothing more to write: its error, or 0. */
static int in_look_after(struct rdma *rdma, short device)
{
	int rc;

	pthread_mutex_lock(&rdma->lock);
	if (device)
		device_hear(rdma, device);
	rc = out_hear(rdma);
	pthread_mutex_unlock(&rdma->lock);
	/* It may have been for who waits for room. */
	sleeper_wake(&rdma->writer);
	return rc;
}

/* Has anybody else something to say: the writer's half, the device, the TCP connection, which can only end? */
static void in_hear(struct rdma *rdma)
{
	struct pollfd on[2] = {
		{ .fd = rdma->context->async_fd, .events = POLLIN },
		{ .fd = rdma->below.descriptor, .events = POLLIN | POLLRDHUP },
	};
	uint8_t byte;
	ssize_t got;
	int rc;

	(void)transport_poll_all(on, 2, 0);
	rc = in_look_after(rdma, on[0].revents);
	if (rc && !rdma->in.error)
		rdma->in.error = rc;
	if (rdma->ended || !on[1].revents)
		return;
	got = rdma->below.ops->read(&rdma->below, &byte, sizeof(byte));
	if (got != -EAGAIN)
		rdma->ended = got < 0 ? (int)got : -EPROTO;
}

/* What is not found here is told by the epoll descriptor when it comes. */
static int rdma_wait(struct transport *transport, int timeout_ms)
{
	struct rdma *rdma = transport->rdma;
	uint64_t end = transport_now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000u;
	int cancel = transport_cancel_disable(), rc;

	for (;;) {
		(void)half_arm(rdma, &rdma->in);
		(void)in_poll(rdma);
		in_tell(rdma);
		in_hear(rdma);
		/* What came before the end may have come since it was looked for. */
		if (rdma->ended)
			(void)in_poll(rdma);
		rc = 0;
		if (rdma->there != rdma->taken || rdma->in.error || rdma->ended)
			break;
		rc = -ETIMEDOUT;
		if (!timeout_ms || (timeout_ms > 0 && transport_now_ns() >= end))
			break;
		rc = transport_poll(transport->descriptor, POLLIN, timeout_ms < 0 ? -1 : transport_left_ms(end));
		if (rc && rc != -ETIMEDOUT)
			break;
	}
	transport_cancel_restore(cancel);
	return rc;
}

static void rdma_shutdown(struct transport *transport)
{
	struct rdma *rdma = transport->rdma;

	rdma->below.ops->shutdown(&rdma->below);
}

static const struct transport_ops rdma_ops = {
	.name = "rdma",
	.write = rdma_write,
	.read = rdma_read,
	.wait = rdma_wait,
	.writable = rdma_writable,
	.drain = rdma_drain,
	.shutdown = rdma_shutdown,
};

/* ---- the device ---- */

/* The address of one end of a connection, getsockname(2) or getpeername(2), as RoCE writes it (InfiniBand Architecture,
 * annex A17). */
static int address_gid(int descriptor, int (*name)(int, struct sockaddr *, socklen_t *), union ibv_gid *gid)
{
	struct sockaddr_storage address;
	socklen_t bytes = sizeof(address);

	if (name(descriptor, (struct sockaddr *)&address, &bytes) < 0)
		return -errno;
	memset(gid, 0, sizeof(*gid));
	if (address.ss_family == AF_INET) {
		gid->raw[10] = gid->raw[11] = 0xff;
		memcpy(gid->raw + 12, &((struct sockaddr_in *)&address)->sin_addr, 4);
	} else if (address.ss_family == AF_INET6) {
		memcpy(gid->raw, &((struct sockaddr_in6 *)&address)->sin6_addr, 16);
	} else {
		return -EPROTONOSUPPORT;
	}
	return 0;
}

static const char *gid_text(const union ibv_gid *gid, char text[INET6_ADDRSTRLEN])
{
	bool is_v4 = IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)gid->raw);

	return inet_ntop(is_v4 ? AF_INET : AF_INET6, gid->raw + (is_v4 ? 12 : 0), text, INET6_ADDRSTRLEN);
}

/* Has the opened device that address, on a port that works? */
static bool device_has(struct rdma *rdma, const struct ibv_gid_entry *entries, ssize_t count)
{
	for (ssize_t i = 0; i < count; i++) {
		struct ibv_port_attr port;

		memset(&port, 0, sizeof(port));
		if (entries[i].gid_type != IBV_GID_TYPE_ROCE_V2 ||
		    memcmp(&entries[i].gid, &rdma->gid, sizeof(rdma->gid)) != 0 ||
		    rdma->verbs->ibv_query_port(rdma->context, (uint8_t)entries[i].port_num, &port) ||
		    port.state != IBV_PORT_ACTIVE)
			continue;
		rdma->port = (uint8_t)entries[i].port_num;
		rdma->gid_index = entries[i].gid_index;
		rdma->mtu = port.active_mtu;
		return true;
	}
	return false;
}

/* Open the device that has the address of the transport. */
static int device_open(struct rdma *rdma)
{
	struct ibv_gid_entry *entries = calloc(RDMA_GIDS, sizeof(*entries));
	int count = 0;
	struct ibv_device **devices = entries ? rdma->verbs->ibv_get_device_list(&count) : NULL;

	for (int i = 0; devices && i < count && !rdma->context; i++) {
		rdma->context = rdma->verbs->ibv_open_device(devices[i]);
		if (rdma->context &&
		    !device_has(rdma, entries, rdma->verbs->_ibv_query_gid_table(rdma->context, entries, RDMA_GIDS, 0,
										 sizeof(*entries)))) {
			rdma->verbs->ibv_close_device(rdma->context);
			rdma->context = NULL;
		}
	}
	if (devices)
		rdma->verbs->ibv_free_device_list(devices);
	free(entries);
	return rdma->context ? 0 : -ENODEV;
}

/* ---- what a session needs of it ---- */

/* What the child of a fork is not to have, above the low numbers that programs close and reuse, as the transport's own. */
static int keep(int descriptor, int beside)
{
	struct clofork_section section;

	clofork_begin(&section);
	clofork_note(descriptor);
	clofork_end(&section);
	return clofork_raise(descriptor, beside);
}

static int unblock(int descriptor)
{
	int flags = fcntl(descriptor, F_GETFL);

	return flags < 0 || fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
}

/* What libibverbs has said with an error, if it has: nothing in its manual pages lets one count upon that. */
static int verbs_error(void)
{
	return errno ? -errno : -EIO;
}

/* A queue pair for so many requests and receives. */
static int half_make(struct rdma *rdma, struct half *half, uint32_t sends, uint32_t receives, unsigned signal,
		     uint32_t inline_bytes, int beside)
{
	struct ibv_qp_init_attr wanted = {
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = sends,
			.max_recv_wr = receives,
			.max_send_sge = 1,
			.max_recv_sge = 1,
			.max_inline_data = inline_bytes,
		},
	};
	int rc;

	half->signal = signal;
	half->channel = rdma->verbs->ibv_create_comp_channel(rdma->context);
	if (!half->channel)
		return verbs_error();
	half->channel->fd = keep(half->channel->fd, beside);
	rc = unblock(half->channel->fd);
	if (rc)
		return rc;
	half->cq = rdma->verbs->ibv_create_cq(rdma->context, (int)(sends + receives), NULL, half->channel, 0);
	if (!half->cq)
		return verbs_error();
	wanted.send_cq = wanted.recv_cq = half->cq;
	half->qp = rdma->verbs->ibv_create_qp(rdma->domain, &wanted);
	if (!half->qp && inline_bytes) {
		wanted.cap.max_inline_data = 0;
		half->qp = rdma->verbs->ibv_create_qp(rdma->domain, &wanted);
	}
	if (!half->qp)
		return verbs_error();
	if (inline_bytes)
		rdma->inline_bytes = wanted.cap.max_inline_data < inline_bytes ? wanted.cap.max_inline_data : inline_bytes;
	if (getrandom(&half->first, sizeof(half->first), 0) != sizeof(half->first))
		return -EIO;
	half->first &= 0xffffff;
	return 0;
}

/* Let it receive, and the peer write to what it has the key of. */
static int half_begin(struct rdma *rdma, struct half *half, uint32_t receives)
{
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_INIT,
		.port_num = rdma->port,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	int rc = rdma->verbs->ibv_modify_qp(half->qp, &attributes,
					    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	return rc ? -rc : half_receive(half, receives);
}

static int half_connect(struct rdma *rdma, struct half *half, const struct rdma_terms *peer, struct rdma_end end)
{
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = rdma->mtu,
		.dest_qp_num = end.number,
		.rq_psn = end.first,
		.min_rnr_timer = RDMA_RECEIVER_TIMER,
		.ah_attr = {
			.is_global = 1,
			.port_num = rdma->port,
			.grh = { .sgid_index = (uint8_t)rdma->gid_index, .hop_limit = RDMA_HOPS },
		},
	};
	int rc;

	memcpy(&attributes.ah_attr.grh.dgid, peer->gid, sizeof(peer->gid));
	rc = rdma->verbs->ibv_modify_qp(half->qp, &attributes,
					IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (rc)
		return -rc;
	attributes = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.sq_psn = half->first,
		.timeout = RDMA_TIMEOUT,
		.retry_cnt = RDMA_RETRIES,
		.rnr_retry = RDMA_RECEIVER_RETRIES,
	};
	return -rdma->verbs->ibv_modify_qp(half->qp, &attributes,
					   IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						   IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
}

static int memory_make(struct rdma *rdma)
{
	void *memory = mmap(NULL, 2 * RDMA_RING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			    -1, 0);

	if (memory == MAP_FAILED)
		return -errno;
	rdma->memory = memory;
	/* The adapter has these pages and no others: a fork must not leave this process copies of them. */
	if (madvise(memory, 2 * RDMA_RING_BYTES, MADV_DONTFORK) < 0)
		return -errno;
	rdma->ring_region = rdma->verbs->ibv_reg_mr(rdma->domain, memory, RDMA_RING_BYTES,
						    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	rdma->mirror_region = rdma->ring_region ? rdma->verbs->ibv_reg_mr(rdma->domain, mirror(rdma), RDMA_RING_BYTES, 0)
						: NULL;
	return rdma->mirror_region ? 0 : verbs_error();
}

static int epoll_make(struct rdma *rdma, int tcp)
{
	struct epoll_event in = { .events = EPOLLIN }, end = { .events = EPOLLIN | EPOLLRDHUP };

	rdma->epoll = epoll_create1(EPOLL_CLOEXEC);
	rdma->epoll = keep(rdma->epoll, tcp);
	if (rdma->epoll < 0 || epoll_ctl(rdma->epoll, EPOLL_CTL_ADD, rdma->in.channel->fd, &in) < 0 ||
	    epoll_ctl(rdma->epoll, EPOLL_CTL_ADD, rdma->out.channel->fd, &in) < 0 ||
	    epoll_ctl(rdma->epoll, EPOLL_CTL_ADD, rdma->context->async_fd, &in) < 0 ||
	    epoll_ctl(rdma->epoll, EPOLL_CTL_ADD, tcp, &end) < 0)
		return -errno;
	return 0;
}

/* Where it failed is in *what. */
static int rdma_prepare(struct rdma *rdma, int beside, const char **what)
{
	int rc;

	*what = "open a device";
	rdma->context->cmd_fd = keep(rdma->context->cmd_fd, beside);
	rdma->context->async_fd = keep(rdma->context->async_fd, beside);
	rc = unblock(rdma->context->async_fd);
	if (rc)
		return rc;
	errno = 0;
	rdma->domain = rdma->verbs->ibv_alloc_pd(rdma->context);
	if (!rdma->domain)
		return verbs_error();
	*what = "register memory";
	rc = memory_make(rdma);
	if (rc)
		return rc;
	*what = "make queue pairs";
	rc = half_make(rdma, &rdma->out, RDMA_MESSAGES, RDMA_CREDITS, RDMA_SIGNAL, RDMA_INLINE_BYTES, beside);
	if (!rc)
		rc = half_make(rdma, &rdma->in, RDMA_CREDITS, RDMA_MESSAGES, RDMA_CREDIT_SIGNAL, 0, beside);
	if (!rc)
		rc = half_begin(rdma, &rdma->out, RDMA_CREDITS);
	if (!rc)
		rc = half_begin(rdma, &rdma->in, RDMA_MESSAGES);
	if (rc)
		return rc;
	*what = "make descriptors";
	return sleeper_make(&rdma->writer, beside) ? epoll_make(rdma, beside) : -EMFILE;
}

int transport_rdma_make(struct rdma **made, const struct transport *transport, char why[RDMA_WHY_BYTES])
{
	const char *missing, *what;
	const struct verbs *verbs = verbs_open(&missing);
	struct rdma *rdma;
	int rc;

	*made = NULL;
	if (!verbs) {
		snprintf(why, RDMA_WHY_BYTES, "%s", missing);
		return -EPROTONOSUPPORT;
	}
	rdma = calloc(1, sizeof(*rdma));
	if (!rdma) {
		snprintf(why, RDMA_WHY_BYTES, "%s", strerror(ENOMEM));
		return -ENOMEM;
	}
	rdma->verbs = verbs;
	rdma->below.descriptor = -1;
	rdma->epoll = -1;
	rdma->writer.wake = -1;
	pthread_mutex_init(&rdma->lock, NULL);
	rc = address_gid(transport->descriptor, getsockname, &rdma->gid);
	if (!rc)
		rc = address_gid(transport->descriptor, getpeername, &rdma->peer_gid);
	if (!rc)
		rc = device_open(rdma);
	if (rc) {
		char own[INET6_ADDRSTRLEN];

		snprintf(why, RDMA_WHY_BYTES, "no RDMA device with RoCE v2 has this end's address, %s; "
			 "ibv_devinfo -v shows what there is", gid_text(&rdma->gid, own));
	} else {
		rc = rdma_prepare(rdma, transport->descriptor, &what);
		if (rc)
			snprintf(why, RDMA_WHY_BYTES, "%s for RDMA: %s%s", what, strerror(-rc),
				 rc == -ENOMEM ? "; let this process lock more memory (ulimit -l)" : "");
	}
	if (rc)
		transport_rdma_drop(rdma);
	else
		*made = rdma;
	return rc;
}

void transport_rdma_drop(struct rdma *rdma)
{
	if (!rdma)
		return;
	for (int i = 0; i < 2; i++) {
		struct half *half = i ? &rdma->in : &rdma->out;

		if (half->qp)
			rdma->verbs->ibv_destroy_qp(half->qp);
		if (half->cq)
			rdma->verbs->ibv_destroy_cq(half->cq);
		if (half->channel) {
			clofork_forget(half->channel->fd);
			rdma->verbs->ibv_destroy_comp_channel(half->channel);
		}
	}
	if (rdma->mirror_region)
		rdma->verbs->ibv_dereg_mr(rdma->mirror_region);
	if (rdma->ring_region)
		rdma->verbs->ibv_dereg_mr(rdma->ring_region);
	if (rdma->memory)
		munmap(rdma->memory, 2 * RDMA_RING_BYTES);
	if (rdma->domain)
		rdma->verbs->ibv_dealloc_pd(rdma->domain);
	if (rdma->context) {
		clofork_forget(rdma->context->cmd_fd);
		clofork_forget(rdma->context->async_fd);
		rdma->verbs->ibv_close_device(rdma->context);
	}
	transport_release(&rdma->below);
	if (rdma->epoll >= 0)
		clofork_close(rdma->epoll);
	sleeper_drop(&rdma->writer);
	free(rdma);
}

bool transport_is_rdma(const struct transport *transport)
{
	return transport->rdma;
}

/* ---- agreeing ---- */

static struct rdma_terms terms_of(const struct rdma *rdma, uint32_t status)
{
	struct rdma_terms terms = {
		.status = status,
		.mtu = rdma->mtu,
		.reader = { rdma->in.qp->qp_num, rdma->in.first },
		.writer = { rdma->out.qp->qp_num, rdma->out.first },
		.ring = (uintptr_t)rdma->memory,
		.key = rdma->ring_region->rkey,
		.ring_bytes = RDMA_RING_BYTES,
	};

	memcpy(terms.gid, &rdma->gid, sizeof(terms.gid));
	return terms;
}

static int terms_take(struct rdma *rdma, const struct rdma_terms *peer)
{
	int rc;

	if (peer->status || peer->ring_bytes != RDMA_RING_BYTES || peer->mtu < IBV_MTU_256 || peer->mtu > IBV_MTU_4096 ||
	    memcmp(peer->gid, &rdma->peer_gid, sizeof(peer->gid)) != 0)
		return -EPROTO;
	if (peer->mtu < (uint32_t)rdma->mtu)
		rdma->mtu = (enum ibv_mtu)peer->mtu;
	rdma->peer_ring = peer->ring;
	rdma->peer_key = peer->key;
	rc = half_connect(rdma, &rdma->in, peer, peer->writer);
	return rc ? rc : half_connect(rdma, &rdma->out, peer, peer->reader);
}

/* A whole packet arrives, or the network between lets none, or only small ones, through.  It is no byte of the stream. */
static int probe(struct rdma *rdma)
{
	int rc;

	pthread_mutex_lock(&rdma->lock);
	rc = out_message(rdma, 128u << rdma->mtu, 0, true);
	if (!rc)
		rc = out_await(rdma, out_is_done, RDMA_PROBE_MS);
	pthread_mutex_unlock(&rdma->lock);
	return rc;
}

static int word_say(struct transport *transport, int rc)
{
	const struct rdma_word word = { .status = rc ? 1 : 0 };

	return transport_write_all(transport, &word, sizeof(word));
}

static int word_hear(struct transport *transport, int timeout_ms, bool *good)
{
	struct rdma_word word;
	int rc = transport_read_all(transport, &word, sizeof(word), timeout_ms);

	*good = !rc && !word.status;
	return rc;
}

/* *good: both can.  What is returned was met on the transport. */
static int agree_server(struct transport *transport, struct rdma *rdma, int timeout_ms, bool *good)
{
	struct rdma_terms ours = terms_of(rdma, 0), theirs;
	int rc = transport_write_all(transport, &ours, sizeof(ours)), failed;

	if (!rc)
		rc = transport_read_all(transport, &theirs, sizeof(theirs), timeout_ms);
	if (rc || theirs.status)
		return rc;
	failed = terms_take(rdma, &theirs);
	/* Its sends are complete when they are there. */
	rdma->below = *transport;
	if (!failed)
		failed = probe(rdma);
	rc = word_say(transport, failed);
	if (!rc && !failed)
		rc = word_hear(transport, timeout_ms, good);
	return rc;
}

static int agree_client(struct transport *transport, struct rdma *rdma, int timeout_ms, bool *good)
{
	struct rdma_terms ours, theirs;
	int rc = transport_read_all(transport, &theirs, sizeof(theirs), timeout_ms), failed;

	if (rc)
		return rc;
	failed = terms_take(rdma, &theirs);
	ours = terms_of(rdma, failed ? 1 : 0);
	rc = transport_write_all(transport, &ours, sizeof(ours));
	if (!rc && !failed)
		rc = word_hear(transport, timeout_ms + RDMA_PROBE_MS, good);
	if (rc || failed || !*good)
		return rc;
	rdma->below = *transport;
	failed = probe(rdma);
	*good = !failed;
	return word_say(transport, failed);
}

int transport_rdma_start(struct transport *transport, struct rdma *rdma, bool server, int timeout_ms)
{
	bool good = false;
	int rc = server ? agree_server(transport, rdma, timeout_ms, &good) : agree_client(transport, rdma, timeout_ms, &good);

	if (rc || !good) {
		/* The connection stays the caller's. */
		rdma->below = (struct transport){ .descriptor = -1 };
		transport_rdma_drop(rdma);
		return rc;
	}
	*transport = (struct transport){ .ops = &rdma_ops, .descriptor = rdma->epoll, .rdma = rdma };
	rdma->epoll = -1;
	return 0;
}

#endif
