/* See rdma.h: the device, what a session has of it, and the two sides' agreement.  What then goes by it: rdma_rings.h. */
#include "../ground/clofork.h"
#include "../ground/sleeper.h"
#include "../sockets/socket.h"
#include "rdma.h"
#include "rdma_rings.h"
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

/* So little goes with the request where the device has room for it: it spares the adapter a read of memory. */
#define RDMA_INLINE_BYTES 220u
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
#define RDMA_PROBE_MS 3000

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

	return rc ? -rc : rdma_half_receive(half, receives);
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
	rdma->mirror_region = rdma->ring_region ? rdma->verbs->ibv_reg_mr(rdma->domain, rdma_mirror(rdma), RDMA_RING_BYTES, 0)
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

static void rdma_drop(struct transport *transport)
{
	transport_rdma_drop(transport->rdma);
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
		failed = rdma_probe(rdma, RDMA_PROBE_MS);
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
	failed = rdma_probe(rdma, RDMA_PROBE_MS);
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
	rdma->ops = rdma_ops;
	rdma->ops.drop = rdma_drop;
	*transport = (struct transport){ .ops = &rdma->ops, .descriptor = rdma->epoll, .rdma = rdma };
	rdma->epoll = -1;
	return 0;
}

#endif
