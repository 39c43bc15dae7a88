/* Queue pairs, as the program sees them; what their threads do is in link.c. */
#define _GNU_SOURCE
#include "fake_verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

static struct pair *pairs;	/* all of the process */
static pthread_mutex_t pairs_lock = PTHREAD_MUTEX_INITIALIZER;
static bool controlled, at_fork;
static _Atomic bool held, gone, silent;
static unsigned posts, kills;

static void pair_wake(struct pair *pair)
{
	const uint64_t one = 1;

	(void)!write(pair->wake, &one, sizeof(one));
}

/* A device's memory of a pair would last in a child as long as the child keeps the device open.  There is no device
 * here: the pairs are the parent's, and end with it. */
static void pairs_before_fork(void)
{
	pthread_mutex_lock(&pairs_lock);
}

static void pairs_in_parent(void)
{
	pthread_mutex_unlock(&pairs_lock);
}

static void pairs_in_child(void)
{
	for (struct pair *pair = pairs; pair; pair = pair->next) {
		link_close(pair);
		pair->has_thread = false;
	}
	pairs = NULL;
	controlled = false;
	pthread_mutex_unlock(&pairs_lock);
}

static void *pairs_obey(void *path)
{
	/* For both, so that it never ends. */
	int file = open(path, O_RDWR | O_CLOEXEC);
	char order;

	free(path);
	while (file >= 0 && read(file, &order, 1) == 1) {
		if (order == 'h' || order == 'r')
			held = order == 'h';
		if (order == 'g')
			gone = true;
		if (order == 's') {
			gone = silent = true;
			contexts_tell();
		}
		pthread_mutex_lock(&pairs_lock);
		for (struct pair *pair = pairs; pair; pair = pair->next)
			pair_wake(pair);
		pthread_mutex_unlock(&pairs_lock);
	}
	fprintf(stderr, "fake verbs: FAKE_VERBS_CONTROL can't be read: %s\n", strerror(errno));
	abort();
}

/* A thread that takes no signal of the program's. */
static int thread_begin(pthread_t *thread, void *(*run)(void *), void *argument)
{
	sigset_t all, before;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(thread, NULL, run, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

void pairs_control(void)
{
	const char *path = getenv("FAKE_VERBS_CONTROL"), *hold = getenv("FAKE_VERBS_HOLD");
	pthread_t thread;

	pthread_mutex_lock(&pairs_lock);
	if (!at_fork && pthread_atfork(pairs_before_fork, pairs_in_parent, pairs_in_child))
		abort();
	at_fork = true;
	if (!controlled) {
		controlled = true;
		held = hold && *hold;
		if (path) {
			if (thread_begin(&thread, pairs_obey, strdup(path)))
				abort();
			pthread_detach(thread);
		}
	}
	pthread_mutex_unlock(&pairs_lock);
}

bool pairs_are_held(void)
{
	return held;
}

bool pairs_are_gone(void)
{
	return gone;
}

bool pairs_are_silent(void)
{
	return silent;
}

static void pair_free(struct pair *pair)
{
	link_close(pair);
	if (pair->wake >= 0)
		close(pair->wake);
	for (uint32_t index = 0; pair->requests && index < pair->init.cap.max_send_wr; index++)
		free(pair->requests[index].data);
	free(pair->requests);
	free(pair->receives);
	free(pair->in);
	free(pair->out);
	pthread_mutex_destroy(&pair->lock);
	free(pair);
}

/* A number that no other pair of this machine has: its socket has its name. */
static int pair_number(struct pair *pair)
{
	uint32_t number;

	do {
		if (getrandom(&number, sizeof(number), 0) != sizeof(number))
			return errno;
		number &= 0xffffff;
	} while (number < 2 || link_listen(pair, number) == EADDRINUSE);
	pair->qp.qp_num = number;
	return pair->listening >= 0 ? 0 : ENOMEM;
}

FAKE_EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	uint32_t most_inline = setting("FAKE_VERBS_MAX_INLINE", 256);
	struct pair *pair;

	if (pairs_are_gone()) {
		errno = EIO;
		return NULL;
	}
	if (init->qp_type != IBV_QPT_RC || init->srq || !init->send_cq || !init->recv_cq ||
	    !init->cap.max_send_wr || init->cap.max_send_wr > MOST_REQUESTS || init->cap.max_recv_wr > MOST_REQUESTS ||
	    init->cap.max_send_sge > MOST_SGE || init->cap.max_recv_sge > MOST_SGE ||
	    init->cap.max_inline_data > most_inline) {
		errno = EINVAL;
		return NULL;
	}
	pair = calloc(1, sizeof(*pair));
	if (!pair)
		return NULL;
	pair->listening = pair->inbound = pair->outbound = -1;
	pair->context = context_of(pd->context);
	pair->init = *init;
	pthread_mutex_init(&pair->lock, NULL);
	pair->requests = calloc(init->cap.max_send_wr, sizeof(*pair->requests));
	pair->receives = calloc(init->cap.max_recv_wr + 1, sizeof(*pair->receives));
	pair->in = malloc(STAGING_BYTES);
	pair->out = malloc(STAGING_BYTES);
	pair->wake = unseen(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	pair->qp = (struct ibv_qp){
		.context = pd->context,
		.qp_context = init->qp_context,
		.pd = pd,
		.send_cq = init->send_cq,
		.recv_cq = init->recv_cq,
		.state = IBV_QPS_RESET,
		.qp_type = IBV_QPT_RC,
	};
	if (!pair->requests || !pair->receives || !pair->in || !pair->out || pair->wake < 0)
		goto refuse;
	for (uint32_t index = 0; init->cap.max_inline_data && index < init->cap.max_send_wr; index++) {
		pair->requests[index].data = malloc(init->cap.max_inline_data);
		if (!pair->requests[index].data)
			goto refuse;
	}
	if (pair_number(pair))
		goto refuse;
	pthread_mutex_lock(&pairs_lock);
	if (thread_begin(&pair->thread, link_run, pair)) {
		pthread_mutex_unlock(&pairs_lock);
		goto refuse;
	}
	pair->has_thread = true;
	pair->next = pairs;
	pairs = pair;
	pthread_mutex_unlock(&pairs_lock);
	users_add(&FAKE_OUTER(pd, struct domain, pd)->users, 1);
	queue_users(init->send_cq, 1);
	queue_users(init->recv_cq, 1);
	return &pair->qp;
refuse:
	pair_free(pair);
	errno = ENOMEM;
	return NULL;
}

FAKE_EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct pair *pair = pair_of(qp);

	pthread_mutex_lock(&pairs_lock);
	for (struct pair **place = &pairs; *place; place = &(*place)->next)
		if (*place == pair) {
			*place = pair->next;
			break;
		}
	pthread_mutex_unlock(&pairs_lock);
	if (pair->has_thread) {
		pthread_mutex_lock(&pair->lock);
		pair->leaving = true;
		pthread_mutex_unlock(&pair->lock);
		pair_wake(pair);
		pthread_join(pair->thread, NULL);
		say("%d destroyed %06x, wrote %llu bytes in %llu requests\n", getpid(), qp->qp_num,
		    (unsigned long long)pair->bytes_written, (unsigned long long)pair->completed);
	}
	queue_forget(qp->send_cq, pair);
	queue_forget(qp->recv_cq, pair);
	queue_users(qp->send_cq, -1);
	queue_users(qp->recv_cq, -1);
	users_add(&FAKE_OUTER(qp->pd, struct domain, pd)->users, -1);
	pair_free(pair);
	return 0;
}

/* Which attributes a transition of a reliable connected pair needs, and which it may have besides
 * (InfiniBand specification, table "QP state transition properties"). */
static const struct {
	enum ibv_qp_state from, to;
	int needs, may;
} transitions[] = {
	{IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
	{IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
	{IBV_QPS_INIT, IBV_QPS_RTR,
	 IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
		 IBV_QP_MIN_RNR_TIMER,
	 IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS},
	{IBV_QPS_RTR, IBV_QPS_RTS,
	 IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
	 IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
	{IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
};

static bool pair_may_change(const struct pair *pair, enum ibv_qp_state to, int mask)
{
	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
		return mask == IBV_QP_STATE;
	for (size_t index = 0; index < sizeof(transitions) / sizeof(*transitions); index++)
		if (transitions[index].from == pair->state && transitions[index].to == to)
			return (mask & transitions[index].needs) == transitions[index].needs &&
			       !(mask & ~(transitions[index].needs | transitions[index].may | IBV_QP_STATE));
	return false;
}

static bool pair_attr_is_right(const struct ibv_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	const struct device *device = FAKE_OUTER(qp->context->device, struct device, device);

	if (mask & IBV_QP_PORT && attr->port_num != 1)
		return false;
	if (mask & IBV_QP_PKEY_INDEX && attr->pkey_index)
		return false;
	if (mask & IBV_QP_PATH_MTU && (attr->path_mtu < IBV_MTU_256 || attr->path_mtu > IBV_MTU_1024))
		return false;
	/* On Ethernet every address is global. */
	if (mask & IBV_QP_AV &&
	    (!attr->ah_attr.is_global || attr->ah_attr.port_num != 1 ||
	     attr->ah_attr.grh.sgid_index >= device->gid_count))
		return false;
	if (mask & IBV_QP_DEST_QPN && attr->dest_qp_num > 0xffffff)
		return false;
	return !(mask & IBV_QP_RNR_RETRY && attr->rnr_retry > 7) && !(mask & IBV_QP_RETRY_CNT && attr->retry_cnt > 7) &&
	       !(mask & IBV_QP_TIMEOUT && attr->timeout > 31) && !(mask & IBV_QP_MIN_RNR_TIMER && attr->min_rnr_timer > 31);
}

static void pair_take(struct ibv_qp_attr *into, const struct ibv_qp_attr *from, int mask)
{
#define TAKE(flag, member)			\
	do {					\
		if (mask & (flag))		\
			into->member = from->member; \
	} while (0)
	TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
	TAKE(IBV_QP_PKEY_INDEX, pkey_index);
	TAKE(IBV_QP_PORT, port_num);
	TAKE(IBV_QP_AV, ah_attr);
	TAKE(IBV_QP_PATH_MTU, path_mtu);
	TAKE(IBV_QP_DEST_QPN, dest_qp_num);
	TAKE(IBV_QP_RQ_PSN, rq_psn);
	TAKE(IBV_QP_SQ_PSN, sq_psn);
	TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	TAKE(IBV_QP_TIMEOUT, timeout);
	TAKE(IBV_QP_RETRY_CNT, retry_cnt);
	TAKE(IBV_QP_RNR_RETRY, rnr_retry);
#undef TAKE
}

/* As it was made: nothing posted, nobody connected. */
static int pair_reset(struct pair *pair)
{
	link_close(pair);
	queue_forget(pair->qp.send_cq, pair);
	queue_forget(pair->qp.recv_cq, pair);
	pair->posted = pair->sent = pair->done = pair->completed = pair->offset = 0;
	pair->freed = 0;
	pair->staged = false;
	pair->out_begin = pair->out_end = 0;
	pair->answer_bytes = pair->in_bytes = 0;
	pair->gone = pair->greeted = pair->has_header = pair->waits = pair->reply_due = false;
	pair->failure = IBV_WC_SUCCESS;
	pair->tries_until = 0;
	pair->receives_posted = pair->receives_used = 0;
	pair->reply = (struct answer){0};
	return link_listen(pair, pair->qp.qp_num);
}

FAKE_EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	struct pair *pair = pair_of(qp);
	enum ibv_qp_state to;
	int error = EINVAL;

	if (pairs_are_gone())
		return EIO;
	pthread_mutex_lock(&pair->lock);
	to = mask & IBV_QP_STATE ? attr->qp_state : pair->state;
	if (!pair_may_change(pair, to, mask) || !pair_attr_is_right(qp, attr, mask))
		goto done;
	error = to == IBV_QPS_RESET ? pair_reset(pair) : 0;
	if (error)
		goto done;
	pair_take(&pair->attr, attr, mask);
	if (to == IBV_QPS_RTS && pair->state != to)
		say("%d ready %06x for %06x\n", getpid(), qp->qp_num, pair->attr.dest_qp_num);
	pair->state = qp->state = to;
done:
	pthread_mutex_unlock(&pair->lock);
	pair_wake(pair);
	return error;
}

FAKE_EXPORT int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct pair *pair = pair_of(qp);

	(void)mask;
	pthread_mutex_lock(&pair->lock);
	*attr = pair->attr;
	attr->qp_state = attr->cur_qp_state = qp->state = pair->state;
	attr->cap = pair->init.cap;
	*init = pair->init;
	pthread_mutex_unlock(&pair->lock);
	return 0;
}

/* Takes a request over, the data too where it is inline. */
static int pair_take_request(struct pair *pair, const struct ibv_send_wr *wr)
{
	struct request *request = &pair->requests[pair->posted % pair->init.cap.max_send_wr];
	unsigned char *data = request->data;
	uint64_t length = 0;

	if (pair->state < IBV_QPS_RTS)
		return EINVAL;
	if (pair->posted - pair->freed == pair->init.cap.max_send_wr)
		return ENOMEM;
	if (wr->opcode != IBV_WR_RDMA_WRITE && wr->opcode != IBV_WR_RDMA_WRITE_WITH_IMM)
		return EINVAL;
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > pair->init.cap.max_send_sge)
		return EINVAL;
	if (setting_fails("FAKE_VERBS_POST_KILLS", &kills))
		raise(SIGKILL);
	for (int part = 0; part < wr->num_sge; part++)
		length += wr->sg_list[part].length;
	if (wr->send_flags & IBV_SEND_INLINE && length > pair->init.cap.max_inline_data)
		return ENOMEM;
	*request = (struct request){
		.wr_id = wr->wr_id,
		.opcode = wr->opcode,
		.flags = wr->send_flags,
		.imm = wr->imm_data,
		.rkey = wr->wr.rdma.rkey,
		.to = wr->wr.rdma.remote_addr,
		.length = length,
		.parts = wr->num_sge,
		.data = data,
		.fails = setting_fails("FAKE_VERBS_POST_FAILS", &posts),
	};
	for (int part = 0; part < wr->num_sge; part++) {
		request->sge[part] = wr->sg_list[part];
		if (wr->send_flags & IBV_SEND_INLINE) {
			memcpy(data, (const void *)(uintptr_t)wr->sg_list[part].addr, wr->sg_list[part].length);
			data += wr->sg_list[part].length;
		}
	}
	pair->posted++;
	return 0;
}

int pair_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct pair *pair = pair_of(qp);
	int error = pairs_are_gone() && !pairs_are_silent() ? EIO : 0;

	pthread_mutex_lock(&pair->lock);
	for (; wr && !error; wr = error ? wr : wr->next)
		error = pair_take_request(pair, wr);
	pthread_mutex_unlock(&pair->lock);
	if (error)
		*bad = wr;
	pair_wake(pair);
	return error;
}

int pair_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct pair *pair = pair_of(qp);
	uint32_t most = pair->init.cap.max_recv_wr;
	int error = pairs_are_gone() && !pairs_are_silent() ? EIO : 0;

	pthread_mutex_lock(&pair->lock);
	if (pair->state == IBV_QPS_RESET)
		error = EINVAL;
	for (; wr && !error; wr = error ? wr : wr->next) {
		if (wr->num_sge < 0 || (uint32_t)wr->num_sge > pair->init.cap.max_recv_sge)
			error = EINVAL;
		else if (pair->receives_posted - pair->receives_used == most)
			error = ENOMEM;
		else
			pair->receives[pair->receives_posted++ % most] = wr->wr_id;
	}
	pthread_mutex_unlock(&pair->lock);
	if (error)
		*bad = wr;
	pair_wake(pair);
	return error;
}
