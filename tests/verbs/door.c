/* The few verbs that a peer written in Python uses (tests/verbs/door.py), of whichever libibverbs.so.1 it is linked to.
 *
 * A line is a reliable connected queue pair with a completion queue of its own.  What fails says -errno, or NULL and
 * errno. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOST_GIDS 256
#define MOST_AT_ONCE 64
/* As native/transport/rings/rdma.c has them, but that nobody here waits for a receive for ever. */
#define HOPS 64
#define TIMEOUT 14
#define RETRIES 6
#define RECEIVER_TIMER 12

struct door {
	struct ibv_context *context;
	struct ibv_pd *domain;
	uint8_t port;
	uint8_t index;
	uint8_t gid[16];
	int mtu;
};

struct line {
	struct door *door;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

struct done {
	uint64_t id;
	uint32_t status;
	uint32_t heard;			/* what came, and not what was asked for */
	uint32_t immediate;
};

static int find(struct door *door, const struct ibv_gid_entry *entries, ssize_t count)
{
	for (ssize_t i = 0; i < count; i++) {
		struct ibv_port_attr port;

		if (entries[i].gid_type != IBV_GID_TYPE_ROCE_V2 || memcmp(&entries[i].gid, door->gid, sizeof(door->gid)) ||
		    ibv_query_port(door->context, (uint8_t)entries[i].port_num, &port))
			continue;
		door->port = (uint8_t)entries[i].port_num;
		door->index = (uint8_t)entries[i].gid_index;
		door->mtu = port.active_mtu;
		return 1;
	}
	return 0;
}

void door_close(struct door *door)
{
	if (door->domain)
		ibv_dealloc_pd(door->domain);
	if (door->context)
		ibv_close_device(door->context);
	free(door);
}

/* The device with that address. */
struct door *door_open(const uint8_t gid[16])
{
	struct ibv_gid_entry *entries = calloc(MOST_GIDS, sizeof(*entries));
	int count;
	struct ibv_device **devices = ibv_get_device_list(&count);
	struct door *door = calloc(1, sizeof(*door));

	memcpy(door->gid, gid, sizeof(door->gid));
	for (int i = 0; devices && i < count && !door->mtu; i++) {
		door->context = ibv_open_device(devices[i]);
		if (door->context && !find(door, entries, ibv_query_gid_table(door->context, entries, MOST_GIDS, 0))) {
			ibv_close_device(door->context);
			door->context = NULL;
		}
	}
	if (devices)
		ibv_free_device_list(devices);
	free(entries);
	if (door->context)
		door->domain = ibv_alloc_pd(door->context);
	if (door->domain)
		return door;
	door_close(door);
	errno = ENODEV;
	return NULL;
}

int door_mtu(const struct door *door)
{
	return door->mtu;
}

struct ibv_mr *door_register(struct door *door, void *memory, size_t bytes, uint32_t *local, uint32_t *remote)
{
	struct ibv_mr *region = ibv_reg_mr(door->domain, memory, bytes,
					   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);

	if (region) {
		*local = region->lkey;
		*remote = region->rkey;
	}
	return region;
}

void door_forget(struct ibv_mr *region)
{
	ibv_dereg_mr(region);
}

void line_close(struct line *line)
{
	if (line->qp)
		ibv_destroy_qp(line->qp);
	if (line->cq)
		ibv_destroy_cq(line->cq);
	if (line->channel)
		ibv_destroy_comp_channel(line->channel);
	free(line);
}

/* For so many requests and receives under way. */
struct line *line_make(struct door *door, unsigned sends, unsigned receives)
{
	struct ibv_qp_init_attr wanted = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = sends, .max_recv_wr = receives, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_INIT,
		.port_num = door->port,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	struct line *line = calloc(1, sizeof(*line));

	line->door = door;
	line->channel = ibv_create_comp_channel(door->context);
	if (line->channel)
		line->cq = ibv_create_cq(door->context, (int)(sends + receives), NULL, line->channel, 0);
	wanted.send_cq = wanted.recv_cq = line->cq;
	if (line->cq)
		line->qp = ibv_create_qp(door->domain, &wanted);
	if (line->qp && fcntl(line->channel->fd, F_SETFL, O_NONBLOCK) == 0 &&
	    ibv_modify_qp(line->qp, &attributes,
			  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0)
		return line;
	line_close(line);
	return NULL;
}

uint32_t line_number(const struct line *line)
{
	return line->qp->qp_num;
}

int line_connect(struct line *line, uint32_t number, uint32_t theirs, uint32_t ours, int mtu, const uint8_t gid[16])
{
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = (enum ibv_mtu)mtu,
		.dest_qp_num = number,
		.rq_psn = theirs,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = RECEIVER_TIMER,
		.ah_attr = {
			.is_global = 1,
			.port_num = line->door->port,
			.grh = { .sgid_index = line->door->index, .hop_limit = HOPS },
		},
	};
	int rc;

	memcpy(&attributes.ah_attr.grh.dgid, gid, 16);
	rc = ibv_modify_qp(line->qp, &attributes,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (rc)
		return -rc;
	attributes = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.sq_psn = ours,
		.timeout = TIMEOUT,
		.retry_cnt = RETRIES,
		.rnr_retry = RETRIES,
		.max_rd_atomic = 1,
	};
	return -ibv_modify_qp(line->qp, &attributes,
			      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				      IBV_QP_MAX_QP_RD_ATOMIC);
}

int line_receive(struct line *line, unsigned count)
{
	struct ibv_recv_wr request = { 0 }, *bad;
	int rc = 0;

	for (unsigned i = 0; i < count && !rc; i++)
		rc = ibv_post_recv(line->qp, &request, &bad);
	return -rc;
}

/* One request, which has a completion: enum ibv_wr_opcode. */
int line_post(struct line *line, int opcode, uint64_t id, uint64_t at, uint32_t local, uint32_t bytes, uint64_t remote,
	      uint32_t key, uint32_t immediate)
{
	struct ibv_sge part = { .addr = at, .length = bytes, .lkey = local };
	struct ibv_send_wr request = {
		.wr_id = id,
		.sg_list = &part,
		.num_sge = bytes ? 1 : 0,
		.opcode = (enum ibv_wr_opcode)opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = htobe32(immediate),
		.wr.rdma = { .remote_addr = remote, .rkey = key },
	}, *bad;

	return -ibv_post_send(line->qp, &request, &bad);
}

/* What is complete, at most so many. */
int line_poll(struct line *line, struct done *done, int most)
{
	struct ibv_wc completions[MOST_AT_ONCE];
	int count = ibv_poll_cq(line->cq, most < MOST_AT_ONCE ? most : MOST_AT_ONCE, completions);

	for (int i = 0; i < count; i++)
		done[i] = (struct done){
			.id = completions[i].wr_id,
			.status = completions[i].status,
			.heard = completions[i].opcode & IBV_WC_RECV,
			.immediate = be32toh(completions[i].imm_data),
		};
	return count;
}

int line_descriptor(const struct line *line)
{
	return line->channel->fd;
}

/* Have the descriptor tell of what is complete from now on. */
int line_arm(struct line *line)
{
	struct ibv_cq *cq;
	void *context;

	while (ibv_get_cq_event(line->channel, &cq, &context) == 0)
		ibv_ack_cq_events(cq, 1);
	return -ibv_req_notify_cq(line->cq, 0);
}

/* From now on it answers nothing. */
int line_break(struct line *line)
{
	struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_ERR };

	return -ibv_modify_qp(line->qp, &attributes, IBV_QP_STATE);
}
