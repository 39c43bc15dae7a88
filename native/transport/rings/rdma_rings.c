/* See rdma_rings.h. */
#include "rdma_rings.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "../sockets/socket.h"

#ifdef FARBUS_VERBS

/* One message of something larger: while it travels the next is copied, and the one before it taken. */
#define RDMA_STEP_BYTES (128u << 10)
/* Receives that are posted again with one call. */
#define RDMA_AGAIN 16u
/* Completions that are fetched with one call. */
#define RDMA_COMPLETIONS 16
/* Who may write without waiting has room for this: a record of nothing, in two messages where it crosses the ring's end. */
#define RDMA_WRITABLE_BYTES 64u
#define RDMA_WRITABLE_MESSAGES 2u
#define RDMA_ROOM_SPIN_NS 50000u
/* How long what was written last may take at the end. */
#define RDMA_DRAIN_MS 1000

/* What a reader has taken: messages, and below them bytes, both modulo what is more than can be under way. */
#define CREDIT_BYTES_BITS 22u
#define CREDIT_BYTES_MASK ((1u << CREDIT_BYTES_BITS) - 1)
#define CREDIT_MESSAGES_MASK ((1u << (32 - CREDIT_BYTES_BITS)) - 1)
_Static_assert(RDMA_RING_BYTES <= CREDIT_BYTES_MASK && RDMA_MESSAGES <= CREDIT_MESSAGES_MASK, "distances are told apart");

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

int rdma_half_receive(struct half *half, unsigned count)
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
	return rdma_half_receive(&rdma->out, 1);
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
		.addr = (uintptr_t)(rdma_mirror(rdma) + at),
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
				memcpy(rdma_mirror(rdma) + at + filled, vector->iov_base, now);
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
	return rdma_half_receive(&rdma->in, RDMA_AGAIN);
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

const struct transport_ops rdma_ops = {
	.name = "rdma",
	.write = rdma_write,
	.read = rdma_read,
	.wait = rdma_wait,
	.writable = rdma_writable,
	.drain = rdma_drain,
	.shutdown = rdma_shutdown,
};

int rdma_probe(struct rdma *rdma, int timeout_ms)
{
	int rc;

	pthread_mutex_lock(&rdma->lock);
	rc = out_message(rdma, 128u << rdma->mtu, 0, true);
	if (!rc)
		rc = out_await(rdma, out_is_done, timeout_ms);
	pthread_mutex_unlock(&rdma->lock);
	return rc;
}

#endif
