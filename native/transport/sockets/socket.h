/* socket.h - TCP and Unix sockets as transports, and what the transports share of system calls (socket.c). */
#ifndef FARBUS_TRANSPORT_SOCKET_H
#define FARBUS_TRANSPORT_SOCKET_H

#include <poll.h>
#include <sys/socket.h>

#include "../transport.h"

/* Take over a connected socket (TCP or Unix). */
int transport_socket_init(struct transport *transport, int descriptor);

/* Connect to a TCP address within timeout_ms.  0 or -errno. */
int transport_tcp_connect(struct transport *transport, const char *address, const char *port,
			  int timeout_ms);

/* Connect to a Unix socket within timeout_ms; a name that begins with '@' is one of
 * the abstract namespace.  0 or -errno. */
int transport_unix_connect(struct transport *transport, const char *path, int timeout_ms);

/* Write exactly, with a descriptor for a peer at the other end of a Unix socket. */
int transport_write_descriptor(struct transport *transport, const void *data, size_t bytes,
			       int descriptor);

/* Read exactly, and take the descriptor that came along (-1: none did, or not one). */
int transport_read_descriptor(struct transport *transport, void *data, size_t bytes, int timeout_ms,
			      int *descriptor);

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
