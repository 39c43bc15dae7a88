/* fake_verbs.h - an RDMA device of no hardware, for tests alone: what its files share.
 *
 * Built as libibverbs.so.1 (tests/verbs/fake.py), it stands in for rdma-core where a program is started
 * with it in LD_LIBRARY_PATH.  It has reliable connected queue pairs with RDMA writes, with and without
 * immediate data, between processes of one machine; no sends, reads, atomics or shared receive queues.
 * Where the standard leaves room it is as strict as some device is: a slot of a send queue is free once
 * a completion at or behind it has been polled, messages are limited as soft-RoCE says it limits them,
 * short ones land byte by byte and a retry count of seven is without end, as there, keys of a region differ for local and
 * remote use.  tests/verbs/contract.c holds for it and for the kernel's soft-RoCE.
 *
 * The environment of a process:
 *	FAKE_VERBS_GIDS		addresses of its devices, "10.0.0.1%eth0,fd00::1;127.0.0.1" for two of them;
 *				"127.0.0.1,::1" when unset, no device when empty, no such kernel when "none".
 *				Each address has a GID of RoCE v1, then one of v2; the interface is lo when left out
 *	FAKE_VERBS_REG_MR_FAILS	"3" the third registration fails with ENOMEM, "3+" each from the third on
 *	FAKE_VERBS_POST_FAILS	the same of requests: that one completes with IBV_WC_RETRY_EXC_ERR
 *	FAKE_VERBS_POST_KILLS	the same: that one ends the process, as SIGKILL does, before anything of it has gone
 *	FAKE_VERBS_MAX_LOCKED	bytes that may be registered at a time, as RLIMIT_MEMLOCK limits them
 *	FAKE_VERBS_MAX_MR_SIZE, FAKE_VERBS_MAX_INLINE, FAKE_VERBS_MAX_MESSAGE	limits of the device, in bytes
 *	FAKE_VERBS_HOLD		non-empty: begin as after an "h" in the next
 *	FAKE_VERBS_CONTROL	path of a FIFO, for this process alone.  Written to it: "h" holds completions of
 *				requests back, "r" releases them.  "g" takes the devices away, with all that is posted
 *				flushed; "s" does too, but nothing completes any more: IBV_EVENT_DEVICE_FATAL alone
 *				tells of it.  What is asked of a device that is away fails with EIO
 *	FAKE_VERBS_LOG		path of a file to which a line is added when the program says that it may fork, when
 *				a queue pair is ready to send, when a completion is held back first, when it fails or
 *				refuses a request, and when it is destroyed, with what it wrote
 *
 * Locks are taken in this order: a pair's, then a queue's, then its channel's; the memory's below any.
 */
#ifndef FAKE_VERBS_H
#define FAKE_VERBS_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* These lead elsewhere in the header, and are what is defined here. */
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define FAKE_EXPORT __attribute__((visibility("default")))
#define FAKE_OUTER(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))

#define MOST_DEVICES 4
#define MOST_GIDS 16
#define MOST_SGE 4
#define MOST_REQUESTS 16384	/* of a queue of a pair */
#define MOST_COMPLETIONS 65535
#define MOST_REGIONS 4096

/* ---- device.c ---- */

struct device {
	struct ibv_device device;
	struct ibv_gid_entry gids[MOST_GIDS];
	unsigned gid_count;
};

struct context {
	unsigned users;			/* domains, queues, channels */
	struct context *next;		/* of all in the process */
	struct verbs_context verbs;	/* ends with what programs see */
};

struct domain {
	struct ibv_pd pd;
	unsigned users;			/* regions, pairs */
};

struct context *context_of(struct ibv_context *context);
/* The same descriptor where no program that closes and reuses low ones meets it: hardware has none there. */
#define UNSEEN_LOWEST 400
int unseen(int descriptor);
void contexts_tell(void);		/* that the device has gone */
void users_add(unsigned *users, int change);
bool users_none(const unsigned *users);

/* A non-negative number of the environment. */
uint64_t setting(const char *name, uint64_t otherwise);

/* Whether the environment has the next thing counted by *count fail. */
bool setting_fails(const char *name, unsigned *count);

void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- memory.c ---- */

/* Copy between registered memory and memory of the library; false where the key does not permit that. */
bool memory_fetch(const struct ibv_pd *pd, const struct ibv_sge *from, uint64_t offset, void *to, size_t size);
bool memory_land(const struct ibv_pd *pd, uint64_t to, uint32_t rkey, const void *from, size_t size);

/* Whether size bytes can be written there from elsewhere; nothing can't be refused. */
bool memory_permits(const struct ibv_pd *pd, uint64_t to, uint32_t rkey, uint64_t size);

/* ---- queue.c ---- */

struct pair;

struct completion {
	struct ibv_wc wc;
	struct pair *pair;
	uint64_t frees;		/* a request's: how many slots are free or polled once it has been polled; 0 a receive's */
};

void queue_push(struct ibv_cq *cq, const struct completion *completion, bool solicited);
void queue_forget(struct ibv_cq *cq, const struct pair *pair);
void queue_users(struct ibv_cq *cq, int change);
int queue_poll(struct ibv_cq *cq, int most, struct ibv_wc *out);
int queue_arm(struct ibv_cq *cq, int solicited_only);

/* ---- pair.c, link.c ---- */

struct request {
	uint64_t wr_id;
	enum ibv_wr_opcode opcode;
	unsigned flags;
	uint32_t imm;
	uint32_t rkey;
	uint64_t to;
	uint64_t length;
	int parts;
	struct ibv_sge sge[MOST_SGE];
	unsigned char *data;		/* inline data, copied when it was posted */
	bool fails;			/* as the environment says */
};

/* What crosses a connection from a requester to a responder: a greeting, then requests, each with its data. */
struct greeting {
	uint32_t from, to;		/* numbers of pairs */
	uint32_t psn;
	uint32_t gid_type;
	uint8_t from_gid[16], to_gid[16];
	uint32_t rnr_retry;
};

struct header {
	uint32_t opcode;
	uint32_t solicited;
	uint32_t imm;
	uint32_t rkey;
	uint64_t to;
	uint64_t length;
};

/* And back. */
struct answer {
	uint64_t done;			/* requests, since the greeting */
	uint64_t status;		/* of the one behind those, when it is an error: enum ibv_wc_status */
};

#define STAGING_BYTES (128u << 10)

/* A pair has a thread, which moves what the device would move.  Its connection to the peer's listening socket carries
 * its requests, and the one that the peer makes carries the peer's: each direction has a requester and a responder. */
struct pair {
	struct ibv_qp qp;
	struct context *context;
	struct pair *next;		/* of all in the process */
	pthread_mutex_t lock;
	pthread_t thread;
	bool has_thread, leaving;
	int wake;			/* eventfd: look again */
	int listening, inbound, outbound;
	enum ibv_qp_state state;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	/* The send queue.  Numbers count up; completed <= done <= sent <= posted, posted - freed <= size. */
	struct request *requests;
	uint64_t posted, sent, done, completed;
	_Atomic uint64_t freed;
	uint64_t offset;		/* of the data of request number sent that has been staged */
	bool staged;			/* its header has been */
	unsigned char *out;
	size_t out_begin, out_end;
	struct answer answer;
	size_t answer_bytes;
	bool gone;			/* the peer is */
	uint64_t tries_until;		/* CLOCK_MONOTONIC in ms: how long a request is sent again; 0: none is */
	bool said_held;
	enum ibv_wc_status failure;	/* of request number failed, once those before have completed */
	uint64_t failed;

	/* The receive queue, of wr_ids, and what has come of a request. */
	uint64_t *receives;
	uint64_t receives_posted, receives_used;
	bool greeted, has_header, waits;	/* waits for a receive */
	uint64_t waits_until;		/* CLOCK_MONOTONIC in ms, 0 without end */
	struct greeting greeting;
	struct header header;
	size_t in_bytes;		/* of the greeting or header */
	uint64_t landed;
	unsigned char *in;
	struct answer reply;
	bool reply_due;

	uint64_t bytes_written;
};

static inline struct pair *pair_of(struct ibv_qp *qp)
{
	return FAKE_OUTER(qp, struct pair, qp);
}

int pair_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int pair_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
void pairs_control(void);		/* begin to read FAKE_VERBS_CONTROL */
bool pairs_are_held(void);
bool pairs_are_gone(void);
bool pairs_are_silent(void);		/* gone, and nothing tells of it but the event */

int link_listen(struct pair *pair, uint32_t number);
void link_close(struct pair *pair);
void *link_run(void *pair);

#endif
