/* rdma.h - bytes that the network adapter carries from one process's memory into the other's: RDMA verbs over RoCE v2.
 *
 * Begins on a connected TCP transport, encrypted or not, which stays as sign of life and carries nothing
 * else from then on.  What goes by RDMA is encrypted by nobody.
 *
 *	server			client
 *	rdma_terms	->
 *			<-	rdma_terms
 *	rdma_word	->		that it is connected, and has written to the client
 *			<-	rdma_word
 *
 * Either side can say that it can't, at each step; then both go on over TCP.  A peer whose GID is not the address of the
 * connection's other end is one that can't.
 */
#ifndef FARBUS_TRANSPORT_RDMA_H
#define FARBUS_TRANSPORT_RDMA_H

#include "../transport.h"

#define RDMA_WHY_BYTES 192u

struct rdma;

/* Get ready to go on by RDMA from where `transport` is connected: the device that has its address, memory,
 * queue pairs.  0, or -errno with one line in `why`: -EPROTONOSUPPORT (no library, or built without), -ENODEV (no
 * device with that address), -ENOMEM (often RLIMIT_MEMLOCK), others of libibverbs. */
int transport_rdma_make(struct rdma **rdma, const struct transport *transport, char why[RDMA_WHY_BYTES]);

/* Agree with the peer, which has made its own, and go on by RDMA if that works; else `transport` is as before.
 * `rdma` is taken over in any case.  0, or what was met on the transport. */
int transport_rdma_start(struct transport *transport, struct rdma *rdma, bool server, int timeout_ms);

bool transport_is_rdma(const struct transport *transport);
void transport_rdma_drop(struct rdma *rdma);

#endif
