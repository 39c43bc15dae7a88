#include "../ground/clofork.h"
#include "../transport.h"
#include "socket.h"
#include "zerocopy.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* No call here is a cancellation point: callers hold locks, and the thread that is
 * cancelled may be the one that reads for all others. */
int transport_cancel_disable(void)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

void transport_cancel_restore(int before)
{
	pthread_setcancelstate(before, &before);
}

/* Signals do not prolong the time-out: a program's interval timer may fire often. */
int transport_poll_all(struct pollfd *on, unsigned count, int timeout_ms)
{
	uint64_t end = transport_now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000u;
	int cancel = transport_cancel_disable();
	int rc;

	for (;;) {
		rc = poll(on, count, timeout_ms);
		if (rc >= 0 || errno != EINTR)
			break;
		if (timeout_ms > 0)
			timeout_ms = transport_left_ms(end);
	}
	if (rc < 0)
		rc = -errno;
	else
		rc = rc ? 0 : -ETIMEDOUT;
	transport_cancel_restore(cancel);
	return rc;
}

int transport_poll(int descriptor, short events, int timeout_ms)
{
	struct pollfd on = { .fd = descriptor, .events = events };

	return transport_poll_all(&on, 1, timeout_ms);
}

/* A congestion control that does not pace and that every user may choose (tcp(7)). */
#define SOCKET_UNPACED "reno"
/* A message of so few bytes is gathered sooner than its parts are described to the kernel. */
#define SOCKET_GATHER_BYTES 256u
/* From here on what an aligned copy spares is more than a system call. */
#define SOCKET_APART_BYTES (64u << 10)

/* One part by the call that is for one: the kernel fetches no vector then, which takes as long as a fifth of
 * a system call that finds nothing to read. */
static ssize_t socket_send(int descriptor, struct iovec *vector, int count, int flags)
{
	struct msghdr message = { .msg_iov = vector, .msg_iovlen = (size_t)count };

	return count == 1 ? send(descriptor, vector->iov_base, vector->iov_len, MSG_NOSIGNAL | flags)
			  : sendmsg(descriptor, &message, MSG_NOSIGNAL | flags);
}

static bool socket_hear(struct transport *transport)
{
	return transport->zerocopy && zerocopy_take(transport->zerocopy, transport->descriptor);
}

/* A send has failed (errno): wait where it would have had to.  0: once more, or -errno. */
static int socket_send_failed(struct transport *transport)
{
	if (errno == EINTR)
		return 0;
	if (errno != EAGAIN)
		return -errno;
	(void)socket_hear(transport);
	return transport_poll(transport->descriptor, POLLOUT, -1);
}

static int socket_write_all(struct transport *transport, struct iovec *vector, int count, int flags)
{
	while (count) {
		ssize_t sent;

		TRANSPORT_SENDS(transport);
		sent = socket_send(transport->descriptor, vector, count, flags);
		if (sent < 0) {
			int rc = socket_send_failed(transport);

			if (rc)
				return rc;
			continue;
		}
		while (count && (size_t)sent >= vector->iov_len) {
			sent -= (ssize_t)vector->iov_len;
			vector++;
			count--;
		}
		if (count) {
			vector->iov_base = (char *)vector->iov_base + sent;
			vector->iov_len -= (size_t)sent;
		}
	}
	return 0;
}

/* All parts in one, if they have room there: how many bytes they are.  0: they have not. */
static size_t socket_gather(uint8_t whole[SOCKET_GATHER_BYTES], const struct iovec *vector, int count)
{
	size_t bytes = 0;

	for (int i = 0; i < count; i++) {
		if (vector[i].iov_len > SOCKET_GATHER_BYTES - bytes)
			return 0;
		memcpy(whole + bytes, vector[i].iov_base, vector[i].iov_len);
		bytes += vector[i].iov_len;
	}
	return bytes;
}

static int socket_write(struct transport *transport, struct iovec *vector, int count)
{
	uint8_t whole[SOCKET_GATHER_BYTES];
	size_t bytes = count > 1 ? socket_gather(whole, vector, count) : 0;
	struct iovec gathered = { .iov_base = whole, .iov_len = bytes };
	int cancel = transport_cancel_disable();
	int rc = socket_write_all(transport, bytes ? &gathered : vector, bytes ? 1 : count, 0);

	transport_cancel_restore(cancel);
	return rc;
}

static int socket_write_in_place(struct transport *transport, const struct iovec *part)
{
	for (size_t at = 0; at < part->iov_len;) {
		ssize_t sent;

		TRANSPORT_SENDS(transport);
		sent = zerocopy_send(transport->zerocopy, transport->descriptor, (char *)part->iov_base + at,
				     part->iov_len - at);
		if (sent < 0) {
			int rc = socket_send_failed(transport);

			if (rc)
				return rc;
			continue;
		}
		at += (size_t)sent;
	}
	return 0;
}

/* What is small lies where it may change: it is copied, and leaves together with what follows. */
static int socket_write_kept(struct transport *transport, struct iovec *vector, int count)
{
	int cancel = transport_cancel_disable(), rc = 0;

	while (count && !rc && zerocopy_is_on(transport->zerocopy)) {
		int small = 0;

		while (small < count && vector[small].iov_len < TRANSPORT_KEPT_BYTES)
			small++;
		if (small)
			rc = socket_write_all(transport, vector, small, small < count ? MSG_MORE : 0);
		vector += small;
		count -= small;
		if (count && !rc) {
			rc = socket_write_in_place(transport, vector++);
			count--;
		}
	}
	if (count && !rc)
		rc = socket_write(transport, vector, count);
	transport_cancel_restore(cancel);
	return rc;
}

/* A large last part begins a message of its own, and so a page of the kernel's: what lies at a page's beginning is then
 * copied from page to page on both sides.  Behind a header of 40 bytes it takes nearly twice as long (docs/performance.md). */
static int unix_write(struct transport *transport, struct iovec *vector, int count)
{
	int rc = 0;

	if (count > 1 && vector[count - 1].iov_len >= SOCKET_APART_BYTES) {
		rc = socket_write(transport, vector, count - 1);
		vector += count - 1;
		count = 1;
	}
	return rc ? rc : socket_write(transport, vector, count);
}

/* The kernel can't write there, but the program may serve the fault, as it would natively; if not, it ends as natively. */
static ssize_t socket_receive_by_hand(int descriptor, const struct iovec *into)
{
	uint8_t bytes[4096];
	ssize_t got = recv(descriptor, bytes, into->iov_len < sizeof(bytes) ? into->iov_len : sizeof(bytes), MSG_DONTWAIT);

	if (got > 0)
		memcpy(into->iov_base, bytes, (size_t)got);
	return got;
}

static ssize_t socket_receive(struct transport *transport, struct iovec *into, size_t count)
{
	struct msghdr message = { .msg_iov = into, .msg_iovlen = count };
	int cancel = transport_cancel_disable();
	ssize_t got;

	/* By the call that is for one part, if it is one: as in sending. */
	do {
		got = count == 1 ? recv(transport->descriptor, into->iov_base, into->iov_len, MSG_DONTWAIT)
				 : recvmsg(transport->descriptor, &message, MSG_DONTWAIT);
	} while (got < 0 && errno == EINTR);
	if (got < 0 && errno == EFAULT)
		got = socket_receive_by_hand(transport->descriptor, into);
	TRANSPORT_RECEIVED(transport);
	if (got < 0)
		got = -errno;
	else if (!got)
		got = -EPIPE;
	transport_cancel_restore(cancel);
	return got;
}

static ssize_t socket_read(struct transport *transport, void *buffer, size_t bytes)
{
	return socket_receive(transport, &(struct iovec){ buffer, bytes }, 1);
}

static ssize_t socket_scatter(struct transport *transport, void *buffer, size_t bytes, void *behind,
			      size_t behind_bytes)
{
	struct iovec into[2] = { { buffer, bytes }, { behind, behind_bytes } };

	return socket_receive(transport, into, 2);
}

static int socket_wait(struct transport *transport, int timeout_ms)
{
	struct pollfd on = { .fd = transport->descriptor, .events = POLLIN };
	uint64_t end;
	int rc;

	if (!transport->zerocopy)
		return transport_poll(transport->descriptor, POLLIN, timeout_ms);
	end = transport_now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000u;
	for (;;) {
		rc = transport_poll_all(&on, 1, timeout_ms);
		if (rc || on.revents != POLLERR || !socket_hear(transport))
			return rc;
		if (timeout_ms > 0)
			timeout_ms = transport_left_ms(end);
	}
}

static void socket_shutdown(struct transport *transport)
{
	shutdown(transport->descriptor, SHUT_RDWR);
}

static void socket_drop(struct transport *transport)
{
	transport_zerocopy_drop(transport->zerocopy);
}

static const struct transport_ops tcp_ops = {
	.name = "tcp",
	.write = socket_write,
	.write_kept = socket_write_kept,
	.hear = socket_hear,
	.read = socket_read,
	.wait = socket_wait,
	.shutdown = socket_shutdown,
	.drop = socket_drop,
};

static const struct transport_ops unix_ops = {
	.name = "unix",
	.write = unix_write,
	.read = socket_read,
	.scatter = socket_scatter,
	.wait = socket_wait,
	.shutdown = socket_shutdown,
};

bool transport_is_local(int descriptor)
{
	struct sockaddr_storage ours = { .ss_family = AF_UNSPEC }, theirs = { .ss_family = AF_UNSPEC };
	socklen_t ours_bytes = sizeof(ours), theirs_bytes = sizeof(theirs);

	if (getsockname(descriptor, (struct sockaddr *)&ours, &ours_bytes) < 0 ||
	    getpeername(descriptor, (struct sockaddr *)&theirs, &theirs_bytes) < 0 ||
	    ours.ss_family != theirs.ss_family)
		return false;
	if (ours.ss_family == AF_UNIX)
		return true;
	if (ours.ss_family == AF_INET)
		return ((struct sockaddr_in *)&ours)->sin_addr.s_addr ==
		       ((struct sockaddr_in *)&theirs)->sin_addr.s_addr;
	return ours.ss_family == AF_INET6 && memcmp(&((struct sockaddr_in6 *)&ours)->sin6_addr,
						    &((struct sockaddr_in6 *)&theirs)->sin6_addr,
						    sizeof(struct in6_addr)) == 0;
}

int transport_socket_init(struct transport *transport, int descriptor)
{
	int one = 1, family = AF_UNSPEC;
	socklen_t size = sizeof(family);
	int flags = fcntl(descriptor, F_GETFD);

	if (flags < 0 || fcntl(descriptor, F_SETFD, flags | FD_CLOEXEC) < 0)
		return -errno;
	/* Frames are batched by the outbox; the kernel must not wait for more.
	 * A Unix socket has no such option, which is fine. */
	(void)setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	/* What paces (BBR) would hold copies back to what it believes that the network carries, and there
	 * is none: memory is copied from one process to the other. */
	if (transport_is_local(descriptor))
		(void)setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, SOCKET_UNPACED, strlen(SOCKET_UNPACED));
	/* A peer whose machine has died sends nothing at all: without keep-alive
	 * a waiting thread would wait for ever.  It is missed after 18 s; a connection that only
	 * the peer knows to be lost, after 3. */
	(void)setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	one = 3;
	(void)setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof(one));
	one = 3;
	(void)setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &one, sizeof(one));
	one = 5;
	(void)setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &one, sizeof(one));
	(void)getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &family, &size);
	transport->ops = family == AF_UNIX ? &unix_ops : &tcp_ops;
	transport->descriptor = descriptor;
	transport->shm = NULL;
	transport->resume = NULL;
	transport->tls = NULL;
	transport->bundle = NULL;
	transport->rdma = NULL;
	transport->zerocopy = NULL;
	return 0;
}

/* Connect a fresh socket within timeout_ms; closes it on failure. */
static int socket_connect(struct transport *transport, int descriptor, const struct sockaddr *address,
			  socklen_t length, int timeout_ms)
{
	int rc = 0, error = 0;
	socklen_t size = sizeof(error);
	int flags = fcntl(descriptor, F_GETFL);

	if (flags < 0 || fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) < 0) {
		rc = -errno;
		goto fail;
	}
	if (connect(descriptor, address, length) < 0) {
		if (errno != EINPROGRESS) {
			rc = -errno;
			goto fail;
		}
		rc = transport_poll(descriptor, POLLOUT, timeout_ms);
		if (rc)
			goto fail;
		if (getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
			error = errno;
		if (error) {
			rc = -error;
			goto fail;
		}
	}
	if (fcntl(descriptor, F_SETFL, flags) < 0) {
		rc = -errno;
		goto fail;
	}
	rc = transport_socket_init(transport, descriptor);
	if (rc)
		goto fail;
	return 0;
fail:
	clofork_close(descriptor);
	return rc;
}

/* One that the child of a fork has no part in.  The descriptor, or -errno. */
static int socket_make(int family)
{
	struct clofork_section section;
	int descriptor;

	clofork_begin(&section);
	descriptor = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (descriptor < 0)
		descriptor = -errno;
	clofork_note(descriptor);
	clofork_end(&section);
	return descriptor;
}

int transport_tcp_socket(const char *address, const char *port, struct transport_target *target)
{
	struct addrinfo hints = {
		.ai_family = AF_UNSPEC,
		.ai_socktype = SOCK_STREAM,
		/* Session files hold addresses: a resolver would load libraries
		 * into the program and may take minutes. */
		.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
	};
	struct addrinfo *found;
	int descriptor;

	if (getaddrinfo(address, port, &hints, &found))
		return -EADDRNOTAVAIL;
	descriptor = socket_make(found->ai_family);
	target->length = found->ai_addrlen;
	memcpy(&target->address, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	return descriptor;
}

int transport_tcp_join(struct transport *transport, int descriptor,
		       const struct transport_target *target, int timeout_ms)
{
	return socket_connect(transport, descriptor, (const struct sockaddr *)&target->address,
			      target->length, timeout_ms);
}

int transport_tcp_connect(struct transport *transport, const char *address, const char *port,
			  int timeout_ms)
{
	struct transport_target target;
	int descriptor = transport_tcp_socket(address, port, &target);

	return descriptor < 0 ? descriptor : transport_tcp_join(transport, descriptor, &target, timeout_ms);
}

int transport_unix_connect(struct transport *transport, const char *path, int timeout_ms)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
	int descriptor;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	strcpy(address.sun_path, path);
	if (path[0] == '@')
		address.sun_path[0] = 0;
	else
		length++;
	descriptor = socket_make(AF_UNIX);
	if (descriptor < 0)
		return descriptor;
	return socket_connect(transport, descriptor, (struct sockaddr *)&address, length,
			      timeout_ms);
}

void transport_release(struct transport *transport)
{
	if (transport->descriptor >= 0)
		clofork_close(transport->descriptor);
	if (transport->ops && transport->ops->drop)
		transport->ops->drop(transport);
	*transport = (struct transport){ .descriptor = -1 };
}

int transport_write_all(struct transport *transport, const void *data, size_t bytes)
{
	struct iovec vector = { .iov_base = (void *)data, .iov_len = bytes };

	return transport->ops->write(transport, &vector, 1);
}

int transport_read_all(struct transport *transport, void *data, size_t bytes, int timeout_ms)
{
	uint64_t end = transport_now_ns() + (uint64_t)timeout_ms * 1000000u;
	char *at = data;

	while (bytes) {
		ssize_t got = transport->ops->read(transport, at, bytes);

		if (got > 0) {
			at += got;
			bytes -= (size_t)got;
		} else if (got == -EAGAIN) {
			int left = transport_left_ms(end);
			int rc = left ? transport->ops->wait(transport, left) : -ETIMEDOUT;

			if (rc)
				return rc;
		} else {
			return (int)got;
		}
	}
	return 0;
}

int transport_write_descriptor(struct transport *transport, const void *data, size_t bytes,
			       int descriptor)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { .room = { 0 } };
	struct iovec vector = { .iov_base = (void *)data, .iov_len = bytes };
	struct msghdr message = {
		.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	int cancel = transport_cancel_disable();
	ssize_t sent;

	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	control.header.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.header), &descriptor, sizeof(int));
	do {
		sent = sendmsg(transport->descriptor, &message, MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	transport_cancel_restore(cancel);
	if (sent < 0)
		return -errno;
	/* Where that was all, the peer may have hung up by now. */
	if ((size_t)sent == bytes)
		return 0;
	return transport_write_all(transport, (const char *)data + sent, bytes - (size_t)sent);
}

/* In the padding of room for one there is room for a second. */
int transport_descriptor_of(struct msghdr *message)
{
	int taken = -1;

	for (struct cmsghdr *each = CMSG_FIRSTHDR(message); each; each = CMSG_NXTHDR(message, each)) {
		size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			int descriptor;

			memcpy(&descriptor, CMSG_DATA(each) + i * sizeof(int), sizeof(int));
			if (taken < 0)
				taken = descriptor;
			else
				close(descriptor);
		}
	}
	return taken;
}

int transport_read_descriptor(struct transport *transport, void *data, size_t bytes, int timeout_ms,
			      int *descriptor)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec vector = { .iov_base = data, .iov_len = bytes };
	struct msghdr message = {
		.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t got;
	int rc = transport_poll(transport->descriptor, POLLIN, timeout_ms);

	if (rc)
		return rc;
	got = recvmsg(transport->descriptor, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (got <= 0)
		return got ? -errno : -EPIPE;
	*descriptor = transport_descriptor_of(&message);
	rc = transport_read_all(transport, (char *)data + got, bytes - (size_t)got, timeout_ms);
	if (rc && *descriptor >= 0) {
		close(*descriptor);
		*descriptor = -1;
	}
	return rc;
}
