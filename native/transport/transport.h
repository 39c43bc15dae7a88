/* transport.h - an ordered stream of bytes in each direction, whatever carries it.
 *
 * The one interface that TCP implements today and shared memory and RDMA verbs
 * will: above it (outbox.h, inbox.h) nothing knows sockets.  A transport that
 * needs no system call to move bytes answers `read` from its ring; one that
 * encrypts does so behind the same four calls.
 */
#ifndef FARBUS_TRANSPORT_TRANSPORT_H
#define FARBUS_TRANSPORT_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct transport;

struct transport_ops {
	const char *name;
	/* Write all of the vector, waiting for room as long as it takes.  One
	 * caller at a time.  0 or -errno; the vector is consumed. */
	int (*write)(struct transport *transport, struct iovec *vector, int count);
	/* Read what is there, at most `bytes`, at least one.  One caller at a
	 * time.  -EAGAIN: nothing there; -EPIPE: the peer has gone. */
	ssize_t (*read)(struct transport *transport, void *buffer, size_t bytes);
	/* Wait until read has something to say, or until timeout_ms (-1: none)
	 * is over.  0, -ETIMEDOUT or -errno. */
	int (*wait)(struct transport *transport, int timeout_ms);
	/* End the stream in both directions: waiters and writers wake. */
	void (*shutdown)(struct transport *transport);
};

struct transport {
	const struct transport_ops *ops;
	int descriptor;			/* close-on-exec; -1: none */
};

/* Take over a connected socket (TCP or Unix). */
int transport_socket_init(struct transport *transport, int descriptor);

/* Connect to a TCP address within timeout_ms.  0 or -errno. */
int transport_tcp_connect(struct transport *transport, const char *address, const char *port,
			  int timeout_ms);

/* Connect to a Unix socket's path within timeout_ms.  0 or -errno. */
int transport_unix_connect(struct transport *transport, const char *path, int timeout_ms);

/* Close this process's end without telling the peer (it may be shared). */
void transport_release(struct transport *transport);

/* Write and read exactly; the deadline covers the whole of it. */
int transport_write_all(struct transport *transport, const void *data, size_t bytes);
int transport_read_all(struct transport *transport, void *data, size_t bytes, int timeout_ms);

/* Nanoseconds of the monotonic clock. */
uint64_t transport_now_ns(void);

/* Tell the processor that this is a spin loop. */
static inline void transport_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield");
#endif
}

#endif
