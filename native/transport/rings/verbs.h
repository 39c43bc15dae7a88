/* verbs.h - the functions of libibverbs that rdma.c and rdma_rings.c call, found when the first session needs them.
 *
 * The shim is a guest in somebody's program and links nothing but libc.  Structures and
 * constants are rdma-core's own (<infiniband/verbs.h>): its library has kept them since 2006.
 */
#ifndef FARBUS_TRANSPORT_VERBS_H
#define FARBUS_TRANSPORT_VERBS_H

#if !defined(FARBUS_NO_VERBS) && __has_include(<infiniband/verbs.h>)
#define FARBUS_VERBS 1
#include <infiniband/verbs.h>

/* The header's macros of these names lead to functions that would have to be linked. */
#undef ibv_reg_mr
#undef ibv_query_port

/* X(result, name, parameters) */
#define VERBS_FUNCTIONS(X) \
	X(int, ibv_fork_init, (void)) \
	X(struct ibv_device **, ibv_get_device_list, (int *)) \
	X(void, ibv_free_device_list, (struct ibv_device **)) \
	X(struct ibv_context *, ibv_open_device, (struct ibv_device *)) \
	X(int, ibv_close_device, (struct ibv_context *)) \
	X(int, ibv_get_async_event, (struct ibv_context *, struct ibv_async_event *)) \
	X(void, ibv_ack_async_event, (struct ibv_async_event *)) \
	X(int, ibv_query_port, (struct ibv_context *, uint8_t, struct ibv_port_attr *)) \
	X(ssize_t, _ibv_query_gid_table, (struct ibv_context *, struct ibv_gid_entry *, size_t, uint32_t, size_t)) \
	X(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context *)) \
	X(int, ibv_dealloc_pd, (struct ibv_pd *)) \
	X(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *, void *, size_t, int)) \
	X(int, ibv_dereg_mr, (struct ibv_mr *)) \
	X(struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context *)) \
	X(int, ibv_destroy_comp_channel, (struct ibv_comp_channel *)) \
	X(struct ibv_cq *, ibv_create_cq, (struct ibv_context *, int, void *, struct ibv_comp_channel *, int)) \
	X(int, ibv_destroy_cq, (struct ibv_cq *)) \
	X(int, ibv_get_cq_event, (struct ibv_comp_channel *, struct ibv_cq **, void **)) \
	X(void, ibv_ack_cq_events, (struct ibv_cq *, unsigned int)) \
	X(struct ibv_qp *, ibv_create_qp, (struct ibv_pd *, struct ibv_qp_init_attr *)) \
	X(int, ibv_modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int)) \
	X(int, ibv_destroy_qp, (struct ibv_qp *))

struct verbs {
#define VERBS_MEMBER(result, name, parameters) result (*name) parameters;
	VERBS_FUNCTIONS(VERBS_MEMBER)
#undef VERBS_MEMBER
};

/* The table, or NULL, and one line in *why.  The library is opened once and never closed. */
const struct verbs *verbs_open(const char **why);
#endif

#endif
