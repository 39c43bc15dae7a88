/* socket.h - what the transports share of system calls. */
#ifndef FARBUS_TRANSPORT_SOCKET_H
#define FARBUS_TRANSPORT_SOCKET_H

#include <poll.h>
#include <sys/socket.h>

#include "../transport.h"

/* No call of a transport is a cancellation point: callers hold locks, and the thread
 * that is cancelled may be the one that reads for all others. */
int transport_cancel_disable(void);
void transport_cancel_restore(int before);

/* poll(2), prolonged by no signal; on several descriptors, or on one.  0, -ETIMEDOUT or -errno. */
int transport_poll_all(struct pollfd *on, unsigned count, int timeout_ms);
int transport_poll(int descriptor, short events, int timeout_ms);

/* The two halves of transport_tcp_connect: where a socket is to be connected to. */
struct transport_target {
	struct sockaddr_storage address;
	socklen_t length;
};

/* A socket for a TCP address, and the target to connect it to.  The descriptor, or -errno. */
int transport_tcp_socket(const char *address, const char *port, struct transport_target *target);

/* Connect a socket within timeout_ms.  0, or -errno, and the socket is closed. */
int transport_tcp_join(struct transport *transport, int descriptor,
		       const struct transport_target *target, int timeout_ms);

/* Is the peer on this machine?  Its address is then ours. */
bool transport_is_local(int descriptor);

/* The first descriptor that came with a message, whose others are closed; -1: none came. */
struct msghdr;
int transport_descriptor_of(struct msghdr *message);

#endif
