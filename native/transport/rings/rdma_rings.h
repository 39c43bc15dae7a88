/* rdma_rings.h - two rings of bytes, each in the memory of who reads it, written by the network adapter of who writes.
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
#ifndef FARBUS_TRANSPORT_RDMA_RINGS_H
#define FARBUS_TRANSPORT_RDMA_RINGS_H

#include <pthread.h>

#include "../ground/sleeper.h"
#include "rdma.h"
#include "verbs.h"

#ifdef FARBUS_VERBS

/* What 200 Gb/s carry in 40 us.  Part of the protocol, as is how many receives a reader has. */
#define RDMA_RING_BYTES (1u << 20)
#define RDMA_MESSAGES 256u
/* What a writer must be able to hear: a reader tells of a quarter at a time, and a writer that does not listen writes
 * no more than there is room for. */
#define RDMA_CREDITS 32u
/* One request in so many has a completion of its own, of a writer's and of a reader's; and from so many on a writer
 * looks for them also where it has room. */
#define RDMA_SIGNAL 64u
#define RDMA_CREDIT_SIGNAL 8u

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
	struct transport_ops ops;	/* rdma_ops, and how what is here goes */
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

static inline uint8_t *rdma_mirror(struct rdma *rdma)
{
	return rdma->memory + RDMA_RING_BYTES;
}

/* What a transport over them does, but for going. */
extern const struct transport_ops rdma_ops;

/* Post so many receives.  0, or the error that the direction has ended with. */
int rdma_half_receive(struct half *half, unsigned count);

/* A whole packet arrives, or the network between lets none, or only small ones, through.  It is no byte of the stream.
 * 0, -ETIMEDOUT or -errno. */
int rdma_probe(struct rdma *rdma, int timeout_ms);

#endif

#endif
