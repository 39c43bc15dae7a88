/* contract.c - what RDMA of CUDA calls leans upon, asked of a device: the tests' own or the kernel's soft-RoCE.
 *
 *	contract listen ADDRESS PORT	the far side; port 0 is any, and is printed
 *	contract call ADDRESS PEER PORT CASE...	the near side, which says which cases are run
 *	contract list	their names
 *
 * ADDRESS is a GID of the device to use, PEER the other side's address.  Each case runs in a process of its own on both
 * sides, with the connection between the two for what is said outside RDMA.  Both print "CASE: ok" and end with 0,
 * or a line that says what was not so and with 1. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MEMORY_BYTES (256u << 10)
#define DEPTH 64
#define PATIENCE_MS 60000	/* for what must come: an emulated machine is slow */

static const char *case_name = "contract";
static int case_line;	/* of its last completion */
static const char *own_address;
static int peer;	/* the connection */

#define FAIL(...)						\
	do {							\
		printf("%s: line %d: ", case_name, __LINE__);	\
		printf(__VA_ARGS__);				\
		printf("\n");					\
		fflush(stdout);					\
		_exit(1);					\
	} while (0)
#define MUST(what)				\
	do {					\
		if (!(what))			\
			FAIL("not so: %s (errno %d)", #what, errno);	\
	} while (0)

/* ---- what is said outside RDMA ---- */

static void tell(const void *what, size_t size)
{
	MUST(send(peer, what, size, MSG_NOSIGNAL) == (ssize_t)size);
}

static void hear(void *what, size_t size)
{
	MUST(recv(peer, what, size, MSG_WAITALL) == (ssize_t)size);
}

static void tell_word(uint64_t word)
{
	tell(&word, sizeof(word));
}

static uint64_t hear_word(void)
{
	uint64_t word;

	hear(&word, sizeof(word));
	return word;
}

/* Both sides have come here. */
static void meet(void)
{
	tell_word(1);
	hear_word();
}

/* ---- an end of a connection ---- */

struct choice {
	size_t memory;		/* 0: MEMORY_BYTES */
	int access;		/* of the region, 0: local and remote write */
	int receives;		/* posted before it is connected */
	uint8_t rnr_retry;	/* plus one; 0: seven, which is without end */
	int depth;		/* of the queues, 0: DEPTH */
};

struct place {
	uint64_t address;
	uint32_t rkey, number, psn;
	union ibv_gid gid;
};

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *memory;
	size_t size;
	struct ibv_port_attr port;
	int gid_index;
	struct place here, there;
};

/* Memory that nobody else has pages of. */
static unsigned char *map(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	MUST(memory != MAP_FAILED);
	return memory;
}

static void end_find(struct end *end)
{
	struct ibv_device **devices;
	struct ibv_gid_entry gids[256];
	union ibv_gid wanted = {0};
	ssize_t count;
	int there;

	if (inet_pton(AF_INET, own_address, &wanted.raw[12]) == 1)
		wanted.raw[10] = wanted.raw[11] = 0xff;
	else
		MUST(inet_pton(AF_INET6, own_address, wanted.raw) == 1);
	devices = ibv_get_device_list(&there);
	MUST(devices);
	for (int index = 0; index < there && !end->context; index++) {
		struct ibv_context *context = ibv_open_device(devices[index]);

		MUST(context);
		count = ibv_query_gid_table(context, gids, 256, 0);
		MUST(count >= 0);
		for (ssize_t gid = 0; gid < count && !end->context; gid++)
			if (gids[gid].gid_type == IBV_GID_TYPE_ROCE_V2 && !memcmp(gids[gid].gid.raw, wanted.raw, 16)) {
				end->context = context;
				end->gid_index = gids[gid].gid_index;
				MUST(gids[gid].port_num == 1 && gids[gid].ndev_ifindex);
			}
		if (!end->context)
			MUST(!ibv_close_device(context));
	}
	ibv_free_device_list(devices);
	if (!end->context)
		FAIL("no device has the GID of %s", own_address);
	end->here.gid = wanted;
	MUST(!ibv_query_port(end->context, 1, &end->port));
	MUST(end->port.state == IBV_PORT_ACTIVE && end->port.link_layer == IBV_LINK_LAYER_ETHERNET);
}

static void post_receives(struct end *end, int count)
{
	struct ibv_recv_wr wr = {0}, *bad;

	while (count--)
		MUST(!ibv_post_recv(end->qp, &wr, &bad));
}

static void end_make(struct end *end, const struct choice *choice)
{
	uint32_t depth = choice->depth ? choice->depth : DEPTH;
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_inline_data = 32},
	};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};

	*end = (struct end){.size = choice->memory ? choice->memory : MEMORY_BYTES};
	end_find(end);
	end->memory = map(end->size);
	MUST((end->pd = ibv_alloc_pd(end->context)));
	if (choice->access)
		end->mr = ibv_reg_mr(end->pd, end->memory, end->size, choice->access);
	else
		end->mr = ibv_reg_mr(end->pd, end->memory, end->size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	MUST(end->mr);
	MUST((end->channel = ibv_create_comp_channel(end->context)));
	MUST(!fcntl(end->channel->fd, F_SETFL, fcntl(end->channel->fd, F_GETFL) | O_NONBLOCK));
	MUST((end->cq = ibv_create_cq(end->context, 2 * depth, end, end->channel, 0)));
	init.send_cq = init.recv_cq = end->cq;
	MUST((end->qp = ibv_create_qp(end->pd, &init)));
	MUST(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	post_receives(end, choice->receives);
	end->here.address = (uintptr_t)end->memory;
	end->here.rkey = end->mr->rkey;
	end->here.number = end->qp->qp_num;
	end->here.psn = end->qp->qp_num * 7 & 0xffffff;
}

static void end_connect(struct end *end, const struct choice *choice)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = end->port.active_mtu,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 1,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = end->gid_index, .hop_limit = 64}},
	};

	tell(&end->here, sizeof(end->here));
	hear(&end->there, sizeof(end->there));
	attr.dest_qp_num = end->there.number;
	attr.rq_psn = end->there.psn;
	attr.ah_attr.grh.dgid = end->there.gid;
	MUST(!ibv_modify_qp(end->qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.sq_psn = end->here.psn,
		.timeout = 14,
		.retry_cnt = 6,	/* seven is without end on soft-RoCE */
		.rnr_retry = choice->rnr_retry ? choice->rnr_retry - 1 : 7,
		.max_rd_atomic = 1,
	};
	MUST(!ibv_modify_qp(end->qp, &attr,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				    IBV_QP_MAX_QP_RD_ATOMIC));
	/* The peer listens: what is sent now finds it ready. */
	meet();
}

static void end_open(struct end *end, const struct choice *choice)
{
	end_make(end, choice);
	end_connect(end, choice);
}

/* Nothing is in use when all is given back. */
static void end_close(struct end *end)
{
	MUST(!ibv_destroy_qp(end->qp));
	MUST(!ibv_destroy_cq(end->cq));
	MUST(!ibv_destroy_comp_channel(end->channel));
	if (end->mr)
		MUST(!ibv_dereg_mr(end->mr));
	MUST(!ibv_dealloc_pd(end->pd));
	MUST(!ibv_close_device(end->context));
}

/* ---- requests and completions ---- */

#define SIGNALED IBV_SEND_SIGNALED
#define INLINE IBV_SEND_INLINE

/* Write own memory from one offset to another of the peer's. */
static int post(struct end *end, size_t from, size_t to, size_t size, unsigned flags, const uint32_t *imm)
{
	static uint64_t id;
	struct ibv_sge sge = {.addr = (uintptr_t)end->memory + from, .length = size, .lkey = end->mr->lkey};
	struct ibv_send_wr *bad, wr = {
		.wr_id = ++id,
		.sg_list = &sge,
		.num_sge = size ? 1 : 0,
		.opcode = imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
		.send_flags = flags,
		.imm_data = imm ? htonl(*imm) : 0,
		.wr.rdma = {.remote_addr = end->there.address + to, .rkey = end->there.rkey},
	};

	return ibv_post_send(end->qp, &wr, &bad);
}

static void write_memory(struct end *end, size_t from, size_t to, size_t size, unsigned flags)
{
	MUST(!post(end, from, to, size, flags, NULL));
}

static void write_immediate(struct end *end, uint32_t imm, unsigned flags)
{
	MUST(!post(end, 0, 0, 0, flags, &imm));
}

/* Arm, look, sleep: a completion that comes at any moment is found. */
static struct ibv_wc completion(struct end *end)
{
	struct pollfd polled[] = {
		{.fd = end->channel->fd, .events = POLLIN},
		{.fd = end->context->async_fd, .events = POLLIN},
	};
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *told;
	int count;

	for (;;) {
		MUST(!ibv_req_notify_cq(end->cq, 0));
		count = ibv_poll_cq(end->cq, 1, &wc);
		MUST(count >= 0);
		if (count)
			return wc;
		if (poll(polled, 2, PATIENCE_MS) < 1)
			FAIL("no event comes for what line %d waits for", case_line);
		if (polled[1].revents) {
			struct ibv_async_event event;

			MUST(!ibv_get_async_event(end->context, &event));
			ibv_ack_async_event(&event);
			if (event.event_type == IBV_EVENT_DEVICE_FATAL)
				FAIL("the device has gone");
		}
		if (!polled[0].revents)
			continue;
		if (ibv_get_cq_event(end->channel, &cq, &told)) {
			MUST(errno == EAGAIN);
			continue;
		}
		MUST(cq == end->cq && told == end);
		ibv_ack_cq_events(cq, 1);
	}
}

static void completes(struct end *end, enum ibv_wc_status status)
{
	struct ibv_wc wc = completion(end);

	if (wc.status != status)
		FAIL("what line %d waits for says %d (%s) and not %d", case_line, wc.status,
		     ibv_wc_status_str(wc.status), status);
	MUST(wc.qp_num == end->qp->qp_num);
}
#define completes(...) (case_line = __LINE__, completes(__VA_ARGS__))

static uint32_t receives(struct end *end, uint32_t bytes)
{
	struct ibv_wc wc = completion(end);

	if (wc.status)
		FAIL("a receive ends with %d (%s)", wc.status, ibv_wc_status_str(wc.status));
	MUST(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.wc_flags & IBV_WC_WITH_IMM && wc.byte_len == bytes);
	return ntohl(wc.imm_data);
}
#define receives(...) (case_line = __LINE__, receives(__VA_ARGS__))

static bool nothing_completes(struct end *end)
{
	struct ibv_wc wc;

	for (int count = 0; count < 1000; count++)
		if (ibv_poll_cq(end->cq, 1, &wc))
			return false;
	return true;
}

/* Number count of a row that differs from its neighbours in each byte. */
static uint64_t word_of(uint64_t count)
{
	return (count & 0xff) * 0x0101010101010101;
}

static uint64_t read_word(const struct end *end, size_t offset)
{
	return __atomic_load_n((uint64_t *)(end->memory + offset), __ATOMIC_ACQUIRE);
}

static void set_word(struct end *end, size_t offset, uint64_t word)
{
	__atomic_store_n((uint64_t *)(end->memory + offset), word, __ATOMIC_RELEASE);
}

static bool all_are(const unsigned char *memory, unsigned char value, size_t size)
{
	for (size_t index = 0; index < size; index++)
		if (memory[index] != value)
			return false;
	return true;
}

static enum ibv_qp_state state_of(struct end *end)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	MUST(!ibv_query_qp(end->qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

/* ---- the cases: near requests, far responds ---- */

static const struct choice usual = {0}, receiving = {.receives = DEPTH};

#define ROUNDS 200
#define DATA_BYTES (32u << 10)
#define COUNTER (MEMORY_BYTES - 64)	/* where a word is written */

/* Nothing of a word that is written behind data is seen before the data, without any completion.  Of the word parts can
 * be: soft-RoCE writes bytes. */
static void near_order(void)
{
	struct end end;

	end_open(&end, &usual);
	for (unsigned round = 1; round <= ROUNDS; round++) {
		memset(end.memory, round, DATA_BYTES);
		set_word(&end, COUNTER, round);
		write_memory(&end, 0, 0, DATA_BYTES, 0);
		write_memory(&end, COUNTER, COUNTER, 8, INLINE | SIGNALED);
		completes(&end, IBV_WC_SUCCESS);
		while (read_word(&end, COUNTER + 8) != round)
			;
	}
	meet();
	end_close(&end);
}

static void far_order(void)
{
	struct end end;

	end_open(&end, &usual);
	for (unsigned round = 1; round <= ROUNDS; round++) {
		while (read_word(&end, COUNTER) != round)
			;
		if (!all_are(end.memory, round, DATA_BYTES))
			FAIL("the counter of round %u came before its data", round);
		set_word(&end, COUNTER, round);
		write_memory(&end, COUNTER, COUNTER + 8, 8, INLINE | SIGNALED);
		completes(&end, IBV_WC_SUCCESS);
	}
	meet();
	end_close(&end);
}

/* Whatever was requested before an immediate is there when its receive has completed; immediates come in their order. */
static void near_immediate(void)
{
	struct end end;

	end_open(&end, &receiving);
	for (unsigned round = 1; round <= ROUNDS; round++) {
		memset(end.memory, round, DATA_BYTES);
		for (size_t offset = 0; offset < DATA_BYTES; offset += DATA_BYTES / 8)
			write_memory(&end, offset, offset, DATA_BYTES / 8, 0);
		write_immediate(&end, round, SIGNALED);
		completes(&end, IBV_WC_SUCCESS);
		MUST(hear_word() == round);
	}
	end_close(&end);
}

static void far_immediate(void)
{
	struct end end;

	end_open(&end, &receiving);
	for (unsigned round = 1; round <= ROUNDS; round++) {
		MUST(receives(&end, 0) == round);
		if (!all_are(end.memory, round, DATA_BYTES))
			FAIL("immediate %u came before its data", round);
		post_receives(&end, 1);
		tell_word(round);
	}
	end_close(&end);
}

/* Data and immediate of one request. */
static void near_data_and_immediate(void)
{
	const uint32_t imm = 0x01020304;
	struct end end;

	end_open(&end, &usual);
	memset(end.memory, 9, DATA_BYTES);
	MUST(!post(&end, 0, 64, DATA_BYTES, SIGNALED, &imm));
	completes(&end, IBV_WC_SUCCESS);
	meet();
	end_close(&end);
}

static void far_data_and_immediate(void)
{
	struct end end;

	end_open(&end, &receiving);
	MUST(receives(&end, DATA_BYTES) == 0x01020304);
	MUST(all_are(end.memory, 0, 64) && all_are(end.memory + 64, 9, DATA_BYTES) && !end.memory[64 + DATA_BYTES]);
	meet();
	end_close(&end);
}

/* Inline data is the request's own as soon as it is posted. */
static void near_inline(void)
{
	struct end end;

	end_open(&end, &usual);
	for (unsigned count = 0; count < DEPTH; count++) {
		set_word(&end, 0, word_of(count + 1));
		write_memory(&end, 0, 8 * count, 8, INLINE | SIGNALED);
		set_word(&end, 0, UINT64_MAX);
	}
	for (unsigned count = 0; count < DEPTH; count++)
		completes(&end, IBV_WC_SUCCESS);
	meet();
	end_close(&end);
}

static void far_inline(void)
{
	struct end end;

	end_open(&end, &usual);
	meet();
	for (unsigned count = 0; count < DEPTH; count++)
		MUST(read_word(&end, 8 * count) == word_of(count + 1));
	end_close(&end);
}

/* What has completed is in the peer's memory. */
static void near_completion(void)
{
	struct end end;

	end_open(&end, &usual);
	for (unsigned round = 1; round <= ROUNDS; round++) {
		memset(end.memory, round, DATA_BYTES);
		write_memory(&end, 0, 0, DATA_BYTES, SIGNALED);
		completes(&end, IBV_WC_SUCCESS);
		meet();
		meet();
	}
	end_close(&end);
}

static void far_completion(void)
{
	struct end end;

	end_open(&end, &usual);
	for (unsigned round = 1; round <= ROUNDS; round++) {
		meet();
		MUST(all_are(end.memory, round, DATA_BYTES));
		meet();
	}
	end_close(&end);
}

/* Requests complete in their order, those alone that ask for it, and make room for as many more. */
static void near_signals(void)
{
	const unsigned every = DEPTH / 4, count = 16 * DEPTH;
	struct end end;
	uint64_t last = 0;

	end_open(&end, &usual);
	for (unsigned index = 1; index <= count; index++) {
		/* At most three quarters of the queue are taken by those before the completion that is awaited here. */
		if (index % every == 1 && index > DEPTH / 2) {
			struct ibv_wc wc = completion(&end);

			MUST(!wc.status && wc.opcode == IBV_WC_RDMA_WRITE && wc.wr_id == last + every);
			last = wc.wr_id;
		}
		write_memory(&end, 0, 0, 512, index % every ? 0 : SIGNALED);
	}
	while (last < count) {
		struct ibv_wc wc = completion(&end);

		MUST(!wc.status && wc.wr_id == last + every);
		last = wc.wr_id;
	}
	MUST(nothing_completes(&end));
	meet();
	end_close(&end);
}

static void far_signals(void)
{
	struct end end;

	end_open(&end, &usual);
	meet();
	MUST(nothing_completes(&end));
	end_close(&end);
}

/* Armed and looked at, a queue loses nothing: bursts of all sizes, and a peer that sleeps in between. */
static void near_events(void)
{
	struct end end;
	unsigned sent = 0;

	end_open(&end, &receiving);
	for (unsigned burst = 0; burst < 5 * ROUNDS; burst++) {
		for (unsigned count = 0; count <= burst % 5; count++)
			write_immediate(&end, ++sent, SIGNALED);
		for (unsigned count = 0; count <= burst % 5; count++)
			completes(&end, IBV_WC_SUCCESS);
		if (burst % 7 == 0)
			MUST(hear_word() == sent);
	}
	write_immediate(&end, 0, SIGNALED);
	completes(&end, IBV_WC_SUCCESS);
	meet();
	end_close(&end);
}

static void far_events(void)
{
	struct end end;
	unsigned got = 0;

	end_open(&end, &receiving);
	for (unsigned burst = 0; burst < 5 * ROUNDS; burst++) {
		for (unsigned count = 0; count <= burst % 5; count++) {
			MUST(receives(&end, 0) == ++got);
			post_receives(&end, 1);
		}
		if (burst % 7 == 0)
			tell_word(got);
	}
	MUST(receives(&end, 0) == 0);
	meet();
	end_close(&end);
}

/* No event comes of what was there before the queue was armed, or when it is not armed. */
static void near_no_events(void)
{
	struct end end;

	end_open(&end, &usual);
	write_immediate(&end, 1, SIGNALED);
	completes(&end, IBV_WC_SUCCESS);
	meet();
	end_close(&end);
}

static void far_no_events(void)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	struct end end;
	void *told;

	end_open(&end, &receiving);
	MUST(ibv_get_cq_event(end.channel, &cq, &told) == -1 && errno == EAGAIN);
	meet();
	while (!ibv_poll_cq(end.cq, 1, &wc))
		;
	MUST(ibv_get_cq_event(end.channel, &cq, &told) == -1 && errno == EAGAIN);
	end_close(&end);
}

/* Without a receive an immediate waits, for as long as it takes. */
static void near_no_receive(void)
{
	struct end end;

	end_open(&end, &usual);
	write_immediate(&end, 5, SIGNALED);
	MUST(nothing_completes(&end));
	meet();
	completes(&end, IBV_WC_SUCCESS);
	meet();
	end_close(&end);
}

static void far_no_receive(void)
{
	struct end end;

	end_open(&end, &usual);
	meet();
	MUST(nothing_completes(&end));
	post_receives(&end, 1);
	MUST(receives(&end, 0) == 5);
	meet();
	end_close(&end);
}

/* Unless it is to be tried a few times only. */
static void near_no_receive_in_time(void)
{
	static const struct choice impatient = {.rnr_retry = 1 + 2};
	struct end end;

	end_open(&end, &impatient);
	write_immediate(&end, 5, SIGNALED);
	completes(&end, IBV_WC_RNR_RETRY_EXC_ERR);
	MUST(state_of(&end) == IBV_QPS_ERR);
	meet();
	end_close(&end);
}

static void far_no_receive_in_time(void)
{
	struct end end;

	end_open(&end, &usual);
	meet();
	end_close(&end);
}

/* The peer is killed: the next request fails after its retries, all others are flushed, receives too. */
static void near_peer_ends(void)
{
	static const struct choice some = {.receives = 2};
	struct end end;

	end_open(&end, &some);
	MUST(hear_word() == 128 + SIGKILL);
	write_memory(&end, 0, 0, 8, SIGNALED);
	/* Not signalled: failures are told all the same. */
	write_memory(&end, 0, 0, 8, 0);
	completes(&end, IBV_WC_RETRY_EXC_ERR);
	for (int count = 0; count < 3; count++)
		completes(&end, IBV_WC_WR_FLUSH_ERR);
	MUST(state_of(&end) == IBV_QPS_ERR);
	write_memory(&end, 0, 0, 8, 0);
	completes(&end, IBV_WC_WR_FLUSH_ERR);
	MUST(nothing_completes(&end));
	end_close(&end);
}

static void far_peer_ends(void)
{
	struct end end;

	end_open(&end, &receiving);
	raise(SIGKILL);
}

/* What was posted is flushed when the pair is put in error. */
static void near_flush(void)
{
	static const struct choice some = {.receives = 2};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct end end;

	end_open(&end, &some);
	write_immediate(&end, 1, SIGNALED);
	MUST(!ibv_modify_qp(end.qp, &attr, IBV_QP_STATE));
	for (int count = 0; count < 3; count++)
		completes(&end, IBV_WC_WR_FLUSH_ERR);
	meet();
	end_close(&end);
}

static void far_flush(void)
{
	struct end end;

	end_open(&end, &usual);
	meet();
	MUST(nothing_completes(&end));
	end_close(&end);
}

/* A request that the far side's keys do not permit: refused, and both pairs are in error. */
static void refused(struct end *end, size_t to, size_t size)
{
	memset(end->memory, 7, size);
	write_memory(end, 0, to, size, SIGNALED);
	completes(end, IBV_WC_REM_ACCESS_ERR);
	write_memory(end, 0, 0, 8, SIGNALED);
	completes(end, IBV_WC_WR_FLUSH_ERR);
	MUST(state_of(end) == IBV_QPS_ERR);
	meet();
	end_close(end);
}

static void refuses(struct end *end)
{
	completes(end, IBV_WC_WR_FLUSH_ERR);
	meet();
	MUST(all_are(end->memory, 0, end->size));
	end_close(end);
}

static const struct choice one_receive = {.receives = 1};

static void near_wrong_key(void)
{
	struct end end;

	end_open(&end, &usual);
	end.there.rkey ^= 0x55;
	refused(&end, 0, 64);
}

static void far_wrong_key(void)
{
	struct end end;

	end_open(&end, &one_receive);
	refuses(&end);
}

static void near_out_of_bounds(void)
{
	struct end end;

	end_open(&end, &usual);
	refused(&end, MEMORY_BYTES - 32, 33);
}

static void near_before_bounds(void)
{
	struct end end;

	end_open(&end, &usual);
	refused(&end, (size_t)-8, 16);
}

static void near_not_for_writing(void)
{
	struct end end;

	end_open(&end, &usual);
	refused(&end, 0, 64);
}

static void far_not_for_writing(void)
{
	static const struct choice reading = {.receives = 1, .access = IBV_ACCESS_LOCAL_WRITE};
	struct end end;

	end_open(&end, &reading);
	refuses(&end);
}

/* Once it is deregistered, memory is written no more, and may be gone. */
static void near_deregistered(void)
{
	struct end end;

	end_open(&end, &usual);
	memset(end.memory, 3, 64);
	write_memory(&end, 0, 0, 64, SIGNALED);
	completes(&end, IBV_WC_SUCCESS);
	meet();
	meet();
	refused(&end, 0, 64);
}

static void far_deregistered(void)
{
	struct end end;

	end_open(&end, &one_receive);
	meet();
	MUST(all_are(end.memory, 3, 64));
	MUST(!ibv_dereg_mr(end.mr));
	end.mr = NULL;
	MUST(!munmap(end.memory, end.size));
	meet();
	completes(&end, IBV_WC_WR_FLUSH_ERR);
	meet();
	end_close(&end);
}

/* Other memory can be registered, and another key be used, while the pair works. */
static void near_registered_later(void)
{
	struct end end;

	end_open(&end, &usual);
	for (int round = 1; round <= 20; round++) {
		memset(end.memory, round, DATA_BYTES);
		end.there.address = hear_word();
		end.there.rkey = hear_word();
		write_memory(&end, 0, 0, DATA_BYTES, SIGNALED);
		completes(&end, IBV_WC_SUCCESS);
		meet();
	}
	end_close(&end);
}

static void far_registered_later(void)
{
	struct end end;

	end_open(&end, &usual);
	for (int round = 1; round <= 20; round++) {
		unsigned char *memory = map(DATA_BYTES);
		struct ibv_mr *mr = ibv_reg_mr(end.pd, memory, DATA_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

		MUST(mr);
		tell_word((uintptr_t)memory);
		tell_word(mr->rkey);
		meet();
		MUST(all_are(memory, round, DATA_BYTES));
		MUST(!ibv_dereg_mr(mr) && !munmap(memory, DATA_BYTES));
	}
	end_close(&end);
}

/* Memory that is not there can't be registered, nor can memory be written remotely that can't be locally. */
static void near_unregistered(void)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	unsigned char *memory = map(2 * DATA_BYTES);
	struct end end;

	MUST(!munmap(memory + DATA_BYTES, DATA_BYTES));
	end_open(&end, &usual);
	MUST(!ibv_reg_mr(end.pd, memory, 2 * DATA_BYTES, access) && errno == EFAULT);
	MUST(!ibv_reg_mr(end.pd, memory, DATA_BYTES, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	end_close(&end);
}

static void far_unregistered(void)
{
	struct end end;

	end_open(&end, &usual);
	end_close(&end);
}

/* The longest message that the port takes. */
static void near_longest(void)
{
	struct end end;
	struct choice large = {.memory = 8 << 20};

	end_open(&end, &large);
	MUST(end.port.max_msg_sz >= end.size);
	for (size_t offset = 0; offset < end.size; offset += 8)
		set_word(&end, offset, offset * 0x9e3779b97f4a7c15);
	write_memory(&end, 0, 0, end.size, SIGNALED);
	completes(&end, IBV_WC_SUCCESS);
	meet();
	end_close(&end);
}

static void far_longest(void)
{
	struct end end;
	struct choice large = {.memory = 8 << 20};

	end_open(&end, &large);
	meet();
	for (size_t offset = 0; offset < end.size; offset += 8)
		MUST(read_word(&end, offset) == offset * 0x9e3779b97f4a7c15);
	end_close(&end);
}

/* Both write at once, each in a ring of the other's, told of by immediates; how many of the other's have been read is
 * written behind the ring, so that the other knows which slots are free. */
#define SLOTS 16
#define SLOT_BYTES 4096
#define MESSAGES 500
#define MINE (SLOTS * SLOT_BYTES)	/* what is sent lies behind the ring */
#define READ_BY_ME (2 * MINE)
#define READ_BY_PEER (2 * MINE + 64)

static void both_ways(void)
{
	static const struct choice ring = {.receives = SLOTS};
	unsigned sent = 0, got = 0, told = 0, requests = 0, done = 0;
	struct ibv_wc wc;
	struct end end;

	end_open(&end, &ring);
	while (got < MESSAGES || done < requests || sent < MESSAGES) {
		if (sent < MESSAGES && sent < read_word(&end, READ_BY_PEER) + SLOTS && requests - done < DEPTH) {
			const size_t slot = sent % SLOTS * SLOT_BYTES;
			const uint32_t imm = sent++;

			memset(end.memory + MINE + slot, imm * 3 + 1, SLOT_BYTES);
			MUST(!post(&end, MINE + slot, slot, SLOT_BYTES, SIGNALED, &imm));
			requests++;
		}
		if (told < got && requests - done < DEPTH) {
			set_word(&end, READ_BY_ME, told = got);
			write_memory(&end, READ_BY_ME, READ_BY_PEER, 8, INLINE | SIGNALED);
			requests++;
		}
		if (!ibv_poll_cq(end.cq, 1, &wc))
			continue;
		if (wc.status)
			FAIL("behind message %u: %s", got, ibv_wc_status_str(wc.status));
		if (wc.opcode == IBV_WC_RDMA_WRITE) {
			done++;
			continue;
		}
		MUST(ntohl(wc.imm_data) == got && wc.byte_len == SLOT_BYTES);
		if (!all_are(end.memory + got % SLOTS * SLOT_BYTES, got * 3 + 1, SLOT_BYTES))
			FAIL("message %u is another", got);
		post_receives(&end, 1);
		got++;
	}
	meet();
	end_close(&end);
}

static const struct {
	const char *name;
	void (*near)(void), (*far)(void);
} cases[] = {
	{"order", near_order, far_order},
	{"immediate", near_immediate, far_immediate},
	{"data_and_immediate", near_data_and_immediate, far_data_and_immediate},
	{"inline", near_inline, far_inline},
	{"completion", near_completion, far_completion},
	{"signals", near_signals, far_signals},
	{"events", near_events, far_events},
	{"no_events", near_no_events, far_no_events},
	{"no_receive", near_no_receive, far_no_receive},
	{"no_receive_in_time", near_no_receive_in_time, far_no_receive_in_time},
	{"peer_ends", near_peer_ends, far_peer_ends},
	{"flush", near_flush, far_flush},
	{"wrong_key", near_wrong_key, far_wrong_key},
	{"out_of_bounds", near_out_of_bounds, far_wrong_key},
	{"before_bounds", near_before_bounds, far_wrong_key},
	{"not_for_writing", near_not_for_writing, far_not_for_writing},
	{"deregistered", near_deregistered, far_deregistered},
	{"registered_later", near_registered_later, far_registered_later},
	{"unregistered", near_unregistered, far_unregistered},
	{"longest", near_longest, far_longest},
	{"both_ways", both_ways, both_ways},
};
#define CASES (sizeof(cases) / sizeof(*cases))

/* ---- both sides ---- */

/* Run a side of a case in a process of its own; how that ended, as a shell says it. */
static int run(void (*side)(void))
{
	pid_t child;
	int status;

	fflush(stdout);
	child = fork();
	MUST(child >= 0);
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		side();
		printf("%s: ok\n", case_name);
		fflush(stdout);
		_exit(0);
	}
	MUST(waitpid(child, &status, 0) == child);
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static uint64_t case_find(const char *name)
{
	for (uint64_t index = 0; index < CASES; index++)
		if (!strcmp(cases[index].name, name))
			return index;
	FAIL("there is no case %s", name);
}

static struct addrinfo *resolve(const char *address, const char *port)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
	struct addrinfo *found;

	MUST(!getaddrinfo(address, port, &hints, &found));
	return found;
}

static int contract_listen(const char *port)
{
	struct addrinfo *at = resolve(own_address, port);
	int listening = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), reuse = 1, worst = 0;
	struct sockaddr_storage bound;
	socklen_t size = sizeof(bound);
	uint64_t number;

	MUST(!setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)));
	MUST(!bind(listening, at->ai_addr, at->ai_addrlen) && !listen(listening, 1));
	MUST(!getsockname(listening, (struct sockaddr *)&bound, &size));
	/* Both families have the port in the same place. */
	printf("%d\n", ntohs(((struct sockaddr_in *)&bound)->sin_port));
	fflush(stdout);
	peer = accept(listening, NULL, NULL);
	MUST(peer >= 0);
	while (recv(peer, &number, sizeof(number), MSG_WAITALL) == sizeof(number)) {
		int status;

		MUST(number < CASES);
		case_name = cases[number].name;
		status = run(cases[number].far);
		if (status > worst && status < 128)
			worst = status;
		tell_word(status);
	}
	freeaddrinfo(at);
	return worst;
}

static int contract_call(const char *address, const char *port, char **names)
{
	struct addrinfo *at = resolve(address, port);
	int worst = 0;

	peer = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	MUST(!connect(peer, at->ai_addr, at->ai_addrlen));
	for (; *names; names++) {
		uint64_t number = case_find(*names);
		int status;

		case_name = *names;
		tell_word(number);
		status = run(cases[number].near);
		if (status) {
			/* The two are out of step. */
			worst = status;
			break;
		}
		/* What it heard itself is not said again. */
		if (cases[number].far != far_peer_ends && hear_word())
			worst = 1;
	}
	close(peer);
	freeaddrinfo(at);
	return worst;
}

int main(int count, char **words)
{
	signal(SIGPIPE, SIG_IGN);
	if (count == 2 && !strcmp(words[1], "list")) {
		for (size_t index = 0; index < CASES; index++)
			printf("%s\n", cases[index].name);
		return 0;
	}
	if (count == 4 && !strcmp(words[1], "listen")) {
		own_address = words[2];
		return contract_listen(words[3]);
	}
	if (count >= 6 && !strcmp(words[1], "call")) {
		own_address = words[2];
		return contract_call(words[3], words[4], words + 5);
	}
	fprintf(stderr, "contract listen ADDRESS PORT | call ADDRESS PEER PORT CASE... | list\n");
	return 2;
}
