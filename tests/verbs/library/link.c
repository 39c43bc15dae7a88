/* What a device does by itself: one thread for each pair. */
#define _GNU_SOURCE
#include "fake_verbs.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Most that is taken in at a time: greetings, headers, pieces of data. */
#define MOST_TAKEN 64

/* RNR timer values in microseconds (InfiniBand specification, encoding for RNR NAK timer field). */
static const uint32_t rnr_us[32] = {
	655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920,
	2560, 3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520,
};

/* Of a local acknowledgement timeout of 0, which is doubled as often as that says (InfiniBand specification). */
#define TIMEOUT_NS 4096ull

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ull + now.tv_nsec / 1000000;
}

static int left_ms(uint64_t until_ms)
{
	uint64_t now = now_ms();

	return until_ms > now ? (int)(until_ms - now) : 0;
}

/* In the abstract name space, where names last as long as their sockets. */
static socklen_t link_name(struct sockaddr_un *name, uint32_t number)
{
	*name = (struct sockaddr_un){.sun_family = AF_UNIX};
	return offsetof(struct sockaddr_un, sun_path) + 1 +
	       snprintf(name->sun_path + 1, sizeof(name->sun_path) - 1, "fake-verbs-pair-%06x", number);
}

static int link_socket(void)
{
	return unseen(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

int link_listen(struct pair *pair, uint32_t number)
{
	struct sockaddr_un name;
	socklen_t size = link_name(&name, number);
	int error;

	pair->listening = link_socket();
	if (pair->listening < 0)
		return errno;
	if (!bind(pair->listening, (struct sockaddr *)&name, size) && !listen(pair->listening, 8))
		return 0;
	error = errno;
	close(pair->listening);
	pair->listening = -1;
	return error;
}

static void link_shut(int *socket)
{
	if (*socket >= 0)
		close(*socket);
	*socket = -1;
}

void link_close(struct pair *pair)
{
	link_shut(&pair->listening);
	link_shut(&pair->inbound);
	link_shut(&pair->outbound);
}

static const struct ibv_gid_entry *link_gid(const struct pair *pair)
{
	const struct device *device = FAKE_OUTER(pair->qp.context->device, struct device, device);

	return &device->gids[pair->attr.ah_attr.grh.sgid_index];
}

/* ---- completions ---- */

static struct request *link_request(struct pair *pair, uint64_t number)
{
	return &pair->requests[number % pair->init.cap.max_send_wr];
}

/* The next request is over; success is told of those alone that ask for it. */
static void link_complete(struct pair *pair, enum ibv_wc_status status)
{
	const struct request *request = link_request(pair, pair->completed);
	struct completion completion = {
		.wc = {
			.wr_id = request->wr_id,
			.status = status,
			.opcode = IBV_WC_RDMA_WRITE,
			.byte_len = request->length,
			.qp_num = pair->qp.qp_num,
		},
		.pair = pair,
		.frees = pair->completed + 1,
	};

	pair->completed++;
	if (status == IBV_WC_SUCCESS)
		pair->bytes_written += request->length;
	if (status != IBV_WC_SUCCESS || pair->init.sq_sig_all || request->flags & IBV_SEND_SIGNALED)
		queue_push(pair->qp.send_cq, &completion, false);
}

static void link_receive(struct pair *pair, enum ibv_wc_status status)
{
	const struct header *header = &pair->header;
	struct completion completion = {
		.wc = {
			.wr_id = pair->receives[pair->receives_used++ % pair->init.cap.max_recv_wr],
			.status = status,
			.qp_num = pair->qp.qp_num,
		},
		.pair = pair,
	};

	if (status == IBV_WC_SUCCESS) {
		completion.wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
		completion.wc.byte_len = header->length;
		completion.wc.imm_data = header->imm;
		completion.wc.wc_flags = IBV_WC_WITH_IMM;
		completion.wc.src_qp = pair->attr.dest_qp_num;
	} else {
		completion.wc.opcode = IBV_WC_RECV;
	}
	queue_push(pair->qp.recv_cq, &completion, header->solicited);
}

/* Complete what can be: all that the peer has, then what has failed, and then all the rest, unsent or not. */
static void link_settle(struct pair *pair)
{
	if (pairs_are_held() && !pair->said_held && pair->completed < pair->done) {
		pair->said_held = true;
		say("%d holds %06x\n", getpid(), pair->qp.qp_num);
	}
	if (!pairs_are_held()) {
		while (pair->completed < pair->done)
			link_complete(pair, IBV_WC_SUCCESS);
		if (pair->failure && pair->completed == pair->failed && pair->state != IBV_QPS_ERR) {
			say("%d failed %06x: %s\n", getpid(), pair->qp.qp_num, ibv_wc_status_str(pair->failure));
			link_complete(pair, pair->failure);
			pair->state = IBV_QPS_ERR;
		}
	}
	if (pairs_are_gone() && pair->state != IBV_QPS_RESET)
		pair->state = IBV_QPS_ERR;
	if (pair->state != IBV_QPS_ERR)
		return;
	link_close(pair);
	if (!pairs_are_held() || pairs_are_gone()) {
		while (pair->completed < pair->posted)
			link_complete(pair, IBV_WC_WR_FLUSH_ERR);
		pair->done = pair->sent = pair->posted;
	}
	while (pair->receives_used < pair->receives_posted)
		link_receive(pair, IBV_WC_WR_FLUSH_ERR);
}

static void link_fail(struct pair *pair, uint64_t request, enum ibv_wc_status status)
{
	/* What fails first counts. */
	if (pair->failure && pair->failed <= request)
		return;
	pair->failure = status;
	pair->failed = request;
}

/* ---- the requester ---- */

/* Copy a piece of a request's data that lies in one part of its memory; how much, or 0 where a key does not fit. */
static size_t link_fetch(struct pair *pair, const struct request *request, unsigned char *to, size_t most)
{
	uint64_t offset = pair->offset;
	int part = 0;

	if (most > request->length - offset)
		most = request->length - offset;
	if (request->flags & IBV_SEND_INLINE) {
		memcpy(to, request->data + offset, most);
		return most;
	}
	while (offset >= request->sge[part].length)
		offset -= request->sge[part++].length;
	if (most > request->sge[part].length - offset)
		most = request->sge[part].length - offset;
	return memory_fetch(pair->qp.pd, &request->sge[part], offset, to, most) ? most : 0;
}

/* Stage the next bytes to send; false where there are none. */
static bool link_stage(struct pair *pair)
{
	const struct request *request;
	size_t size = 0;

	if (pair->sent == pair->posted || pair->failure)
		return false;
	request = link_request(pair, pair->sent);
	if (request->fails || request->length > setting("FAKE_VERBS_MAX_MESSAGE", 8 << 20)) {
		link_fail(pair, pair->sent, request->fails ? IBV_WC_RETRY_EXC_ERR : IBV_WC_LOC_LEN_ERR);
		return false;
	}
	if (!pair->staged) {
		const struct header header = {
			.opcode = request->opcode,
			.solicited = request->flags & IBV_SEND_SOLICITED,
			.imm = request->imm,
			.rkey = request->rkey,
			.to = request->to,
			.length = request->length,
		};

		memcpy(pair->out, &header, sizeof(header));
		size = sizeof(header);
		pair->offset = 0;
	}
	while (pair->offset < request->length && size < STAGING_BYTES) {
		size_t piece = link_fetch(pair, request, pair->out + size, STAGING_BYTES - size);

		if (!piece) {
			link_fail(pair, pair->sent, IBV_WC_LOC_PROT_ERR);
			return false;
		}
		size += piece;
		pair->offset += piece;
	}
	pair->staged = true;
	pair->out_begin = 0;
	pair->out_end = size;
	return true;
}

/* Send as much as the connection takes. */
static void link_send(struct pair *pair)
{
	while (pair->out_begin < pair->out_end || link_stage(pair)) {
		ssize_t size = send(pair->outbound, pair->out + pair->out_begin, pair->out_end - pair->out_begin,
				    MSG_NOSIGNAL);

		/* A peer that has gone has perhaps answered before: link_hear() finds its end behind its answers. */
		if (size < 0)
			return;
		pair->out_begin += size;
		if (pair->out_begin == pair->out_end && pair->staged &&
		    pair->offset == link_request(pair, pair->sent)->length) {
			pair->sent++;
			pair->staged = false;
		}
	}
}

static void link_hear(struct pair *pair)
{
	for (;;) {
		ssize_t size = recv(pair->outbound, (char *)&pair->answer + pair->answer_bytes,
				    sizeof(pair->answer) - pair->answer_bytes, 0);

		if (size < 0 && errno == EAGAIN)
			return;
		if (size <= 0) {
			pair->gone = true;
			link_shut(&pair->outbound);
			return;
		}
		pair->answer_bytes += size;
		if (pair->answer_bytes < sizeof(pair->answer))
			continue;
		pair->answer_bytes = 0;
		pair->done = pair->answer.done;
		if (pair->answer.status)
			link_fail(pair, pair->done, pair->answer.status);
	}
}

static void link_connect(struct pair *pair)
{
	struct sockaddr_un name;
	socklen_t size = link_name(&name, pair->attr.dest_qp_num);
	const struct ibv_gid_entry *gid = link_gid(pair);
	struct greeting greeting = {
		.from = pair->qp.qp_num,
		.to = pair->attr.dest_qp_num,
		.psn = pair->attr.sq_psn,
		.gid_type = gid->gid_type,
		.rnr_retry = pair->attr.rnr_retry,
	};

	memcpy(greeting.from_gid, gid->gid.raw, 16);
	memcpy(greeting.to_gid, pair->attr.ah_attr.grh.dgid.raw, 16);
	pair->outbound = link_socket();
	/* An empty socket takes what is so small whole. */
	if (pair->outbound < 0 || connect(pair->outbound, (struct sockaddr *)&name, size) ||
	    send(pair->outbound, &greeting, sizeof(greeting), MSG_NOSIGNAL) != sizeof(greeting)) {
		pair->gone = true;
		link_shut(&pair->outbound);
	}
}

static void link_request_all(struct pair *pair)
{
	if (pair->state != IBV_QPS_RTS)
		return;
	if (pair->outbound < 0 && !pair->gone)
		link_connect(pair);
	if (pair->outbound >= 0)
		link_hear(pair);
	if (pair->outbound >= 0)
		link_send(pair);
	/* A peer that has gone is noticed when there is something for it, after as many tries as are asked for: what else
	 * tells of a process's end tells of it earlier.  Seven times is for ever, as with soft-RoCE. */
	if (!pair->gone || pair->done == pair->posted || pair->attr.retry_cnt == 7 || !pair->attr.timeout)
		return;
	if (!pair->tries_until)
		pair->tries_until = now_ms() + 1 +
				    (pair->attr.retry_cnt + 1) * (TIMEOUT_NS << pair->attr.timeout) / 1000000;
	if (now_ms() >= pair->tries_until)
		link_fail(pair, pair->done, IBV_WC_RETRY_EXC_ERR);
}

/* ---- the responder ---- */

static void link_reply(struct pair *pair)
{
	ssize_t size;

	if (!pair->reply_due || pair->inbound < 0)
		return;
	size = send(pair->inbound, &pair->reply, sizeof(pair->reply), MSG_NOSIGNAL);
	/* The requester reads always: what does not fit now fits soon.  When it has gone, what it sent before is there. */
	pair->reply_due = size < 0 && errno == EAGAIN;
	if (size >= 0 && size < (ssize_t)sizeof(pair->reply))
		link_shut(&pair->inbound);
}

/* The request is refused: the requester is told, and this pair is in error as its own is. */
static void link_refuse(struct pair *pair, enum ibv_wc_status status)
{
	pair->reply.status = status;
	pair->reply_due = true;
	link_reply(pair);
	say("%d refused %06x: %s\n", getpid(), pair->qp.qp_num, ibv_wc_status_str(status));
	pair->state = IBV_QPS_ERR;
}

/* Data and header of a request are there; false while it needs a receive. */
static bool link_finish(struct pair *pair)
{
	if (pair->header.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
		uint32_t tries = pair->greeting.rnr_retry;

		if (pair->receives_used == pair->receives_posted && !pair->waits) {
			pair->waits = true;
			/* Seven is without end. */
			pair->waits_until =
				tries == 7 ? 0 : now_ms() + 1 + tries * rnr_us[pair->attr.min_rnr_timer] / 1000;
			return false;
		}
		if (pair->receives_used == pair->receives_posted) {
			if (pair->waits_until && now_ms() >= pair->waits_until)
				link_refuse(pair, IBV_WC_RNR_RETRY_EXC_ERR);
			return false;
		}
		pair->waits = false;
		link_receive(pair, IBV_WC_SUCCESS);
	}
	pair->has_header = false;
	pair->in_bytes = 0;
	pair->reply.done++;
	pair->reply_due = true;
	return true;
}

static enum ibv_wc_status link_check(const struct pair *pair)
{
	if (!(pair->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE))
		return IBV_WC_REM_INV_REQ_ERR;
	if (!memory_permits(pair->qp.pd, pair->header.to, pair->header.rkey, pair->header.length))
		return IBV_WC_REM_ACCESS_ERR;
	return IBV_WC_SUCCESS;
}

/* Whether the greeting is from whom this pair is to hear: a device drops the packets of others. */
static bool link_expects(const struct pair *pair)
{
	const struct greeting *greeting = &pair->greeting;
	const struct ibv_gid_entry *gid = link_gid(pair);

	return greeting->from == pair->attr.dest_qp_num && greeting->to == pair->qp.qp_num &&
	       greeting->psn == pair->attr.rq_psn && greeting->gid_type == gid->gid_type &&
	       !memcmp(greeting->from_gid, pair->attr.ah_attr.grh.dgid.raw, 16) &&
	       !memcmp(greeting->to_gid, gid->gid.raw, 16);
}

/* Read up to size bytes in all; false while they are not there, or nobody is any more. */
static bool link_read(struct pair *pair, void *into, size_t size)
{
	ssize_t got;

	while (pair->in_bytes < size) {
		got = recv(pair->inbound, (char *)into + pair->in_bytes, size - pair->in_bytes, 0);
		if (got < 0 && errno == EAGAIN)
			return false;
		if (got <= 0) {
			link_shut(&pair->inbound);
			return false;
		}
		pair->in_bytes += got;
	}
	return true;
}

/* Take in the next that has come; false where that is nothing. */
static bool link_take(struct pair *pair)
{
	enum ibv_wc_status status;
	uint64_t left;
	ssize_t size;

	if (!pair->greeted) {
		if (!link_read(pair, &pair->greeting, sizeof(pair->greeting)))
			return false;
		pair->greeted = true;
		pair->in_bytes = 0;
		if (link_expects(pair))
			return true;
		say("%d does not know %06x, which calls %06x\n", getpid(), pair->greeting.from, pair->qp.qp_num);
		link_shut(&pair->inbound);
		return false;
	}
	if (!pair->has_header) {
		if (!link_read(pair, &pair->header, sizeof(pair->header)))
			return false;
		pair->has_header = true;
		pair->landed = 0;
		status = link_check(pair);
		if (status) {
			link_refuse(pair, status);
			return false;
		}
	}
	left = pair->header.length - pair->landed;
	/* Nothing more comes of it that would have this thread look again. */
	if (!left)
		return link_finish(pair);
	size = recv(pair->inbound, pair->in, left < STAGING_BYTES ? left : STAGING_BYTES, 0);
	if (size < 0 && errno == EAGAIN)
		return false;
	if (size <= 0) {
		link_shut(&pair->inbound);
		return false;
	}
	if (!memory_land(pair->qp.pd, pair->header.to + pair->landed, pair->header.rkey, pair->in, size)) {
		link_refuse(pair, IBV_WC_REM_ACCESS_ERR);
		return false;
	}
	pair->landed += size;
	return pair->landed < pair->header.length || link_finish(pair);
}

static void link_respond(struct pair *pair)
{
	if (pair->state != IBV_QPS_RTR && pair->state != IBV_QPS_RTS)
		return;
	if (pair->inbound < 0 && pair->listening >= 0) {
		pair->inbound = unseen(accept4(pair->listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
		pair->greeted = pair->has_header = pair->waits = pair->reply_due = false;
		pair->in_bytes = 0;
		pair->reply = (struct answer){0};
	}
	/* The program gets at its pair in between. */
	for (int count = 0; count < MOST_TAKEN && pair->inbound >= 0 && pair->state != IBV_QPS_ERR; count++)
		if (!link_take(pair))
			break;
	link_reply(pair);
}

/* ---- the thread ---- */

static void link_wait(struct pair *pair)
{
	enum { WAKE, LISTENING, INBOUND, OUTBOUND, SOCKETS };
	struct pollfd polled[SOCKETS] = {[WAKE] = {.fd = pair->wake, .events = POLLIN}};
	bool responds = pair->state == IBV_QPS_RTR || pair->state == IBV_QPS_RTS;
	int limit_ms = -1;
	uint64_t count;

	polled[LISTENING] = (struct pollfd){.fd = responds && pair->inbound < 0 ? pair->listening : -1, .events = POLLIN};
	/* While it waits for a receive it reads nothing. */
	polled[INBOUND] = (struct pollfd){
		.fd = pair->waits && !pair->reply_due ? -1 : pair->inbound,
		.events = (pair->waits ? 0 : POLLIN) | (pair->reply_due ? POLLOUT : 0),
	};
	polled[OUTBOUND] = (struct pollfd){
		.fd = pair->outbound,
		.events = POLLIN | (pair->out_begin < pair->out_end ? POLLOUT : 0),
	};
	if (pair->waits && pair->waits_until)
		limit_ms = left_ms(pair->waits_until);
	if (pair->state == IBV_QPS_RTS && pair->tries_until && !pair->failure) {
		int left = left_ms(pair->tries_until);

		limit_ms = limit_ms >= 0 && limit_ms < left ? limit_ms : left;
	}
	pthread_mutex_unlock(&pair->lock);
	poll(polled, SOCKETS, limit_ms);
	(void)!read(pair->wake, &count, sizeof(count));
	pthread_mutex_lock(&pair->lock);
}

void *link_run(void *argument)
{
	struct pair *pair = argument;

	pthread_mutex_lock(&pair->lock);
	while (!pair->leaving) {
		if (pairs_are_silent()) {
			link_close(pair);
		} else {
			link_request_all(pair);
			link_respond(pair);
			link_settle(pair);
		}
		link_wait(pair);
	}
	pthread_mutex_unlock(&pair->lock);
	return NULL;
}
