/* transport.h - an ordered stream of bytes in each direction, whatever carries it.
 *
 * The one interface of TCP and Unix sockets (socket.c), of shared memory (shm.c), of TLS
 * over TCP (tls.h), of several connections (bundle.h), of RDMA beside TCP (rdma.h), and of streams that outlive their
 * connection (resume.h); above it (outbox.h, inbox.h) nothing knows which one it is.
 */
#ifndef FARBUS_TRANSPORT_TRANSPORT_H
#define FARBUS_TRANSPORT_TRANSPORT_H

#include "ground/clock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct transport;

/* How often who waits looks whether the network is still there. */
#define TRANSPORT_LOOK_MS 5000

/* Less is copied sooner than its pages are held (docs/performance.md). */
#define TRANSPORT_KEPT_BYTES (64u << 10)

/* What is sent happens before what is then received: the peer answers, and orders its streams.
 * ThreadSanitizer sees nothing of the peer: what it orders is told to it here, by who writes
 * and by who has read. */
#ifdef __SANITIZE_THREAD__
void __tsan_release(void *address);
void __tsan_acquire(void *address);
#define TRANSPORT_SENDS(transport) __tsan_release(transport)
#define TRANSPORT_RECEIVED(transport) __tsan_acquire(transport)
#else
#define TRANSPORT_SENDS(transport) ((void)(transport))
#define TRANSPORT_RECEIVED(transport) ((void)(transport))
#endif

struct transport_ops {
	const char *name;		/* as FARBUS_TRANSPORT and status spell it */
	/* Writing makes no system call while the peer is awake: frames are not worth
	 * collecting. */
	bool direct;
	/* Write all of the vector, waiting for room as long as it takes.  One
	 * caller at a time.  0 or -errno; the vector is consumed. */
	int (*write)(struct transport *transport, struct iovec *vector, int count);
	/* Read what is there, at most `bytes`, at least one.  One caller at a
	 * time.  -EAGAIN: nothing there; -EPIPE: the peer has gone. */
	ssize_t (*read)(struct transport *transport, void *buffer, size_t bytes);
	/* Like read, but what is there behind the first `bytes` goes to `behind`, at most
	 * `behind_bytes`, with the same system call; NULL where that saves none. */
	ssize_t (*scatter)(struct transport *transport, void *buffer, size_t bytes, void *behind,
			   size_t behind_bytes);
	/* Wait until read has something to say, or until timeout_ms (-1: none)
	 * is over.  0, -ETIMEDOUT or -errno. */
	int (*wait)(struct transport *transport, int timeout_ms);
	/* Where the bytes to read lie, and where bytes to write may go, for who can use them
	 * there; NULL where they lie nowhere.  The same callers as of read and write.
	 *
	 * peek: at most `bytes` that read would give, and how many; none is taken, and the
	 * peer may change them.  taken: so many of them are done with.
	 * room: wait for room for at least one byte, say where it is and how many fit.
	 * written: so many of them are now what write would have written; `more` follows at once.
	 * 0 or -errno. */
	ssize_t (*peek)(struct transport *transport, const void **at, size_t bytes);
	void (*taken)(struct transport *transport, size_t bytes);
	ssize_t (*room)(struct transport *transport, void **at, size_t bytes);
	int (*written)(struct transport *transport, size_t bytes, bool more);
	/* Like peek and room, but behind `ahead` bytes that are still in use where they lie, being neither taken nor
	 * written yet; without waiting, and 0 where there is nothing.  NULL: there are none. */
	ssize_t (*peek_behind)(struct transport *transport, size_t ahead, const void **at, size_t bytes);
	ssize_t (*room_behind)(struct transport *transport, size_t ahead, void **at, size_t bytes);
	/* Like write, but the vector's last part may be read where it lies until it is settled:
	 * NULL where write has no use for that. */
	int (*lend)(struct transport *transport, struct iovec *vector, int count);
	/* What was lent of this memory is the caller's again.  From any thread. */
	void (*settle)(struct transport *transport, const void *at, size_t bytes);
	/* Like write, but it may leave together with what is written next, which follows at once;
	 * NULL where that saves nothing. */
	int (*append)(struct transport *transport, struct iovec *vector, int count);
	/* Like write, but parts of TRANSPORT_KEPT_BYTES and more stay as they are until the peer's reader has them, so that they
	 * need not be copied; the others are the caller's again.  NULL: they would be, all the same. */
	int (*write_kept)(struct transport *transport, struct iovec *vector, int count);
	/* Take what poll(2) has told of by POLLERR, if that is no error of a connection but the kernel's word of what it has sent.
	 * false: it was not.  From any thread.  NULL: it never is. */
	bool (*hear)(struct transport *transport);
	/* Did the peer write what came last on another processor than this thread's?  Where that is so,
	 * to spin for an answer keeps it from nothing.  NULL, and false: not known. */
	bool (*apart)(struct transport *transport);
	/* Did it on the same one?  NULL, and false: not known. */
	bool (*beside)(struct transport *transport);
	/* What wake-ups take of a wait, in ns: of the peer's, if it was woken since `woken` was asked last (what
	 * it has to be given before its answer can be expected), and ours besides.  NULL: nobody knows. */
	uint64_t (*waking)(struct transport *transport);
	uint64_t (*woken)(struct transport *transport);
	/* Do several threads carry what is large, so that more at once goes faster?  NULL: no. */
	bool (*wide)(struct transport *transport);
	/* Would write find room for some bytes without waiting?  If not, wait comes back when that may have changed.  The
	 * same caller as of write.  NULL: poll(2) says it of the descriptor. */
	bool (*writable)(struct transport *transport);
	/* Wait, not for long, until the peer's machine has what was written.  The same caller as of write.  NULL: the
	 * kernel sees to it, also when this process has ended. */
	void (*drain)(struct transport *transport);
	/* All the memory that peek and room lead into. */
	void (*memory)(struct transport *transport, void **at, size_t *bytes);
	/* End the stream in both directions: waiters and writers wake. */
	void (*shutdown)(struct transport *transport);
	/* Free what it is made of, but for its descriptor, which is closed by now.  NULL: it is made of nothing else. */
	void (*drop)(struct transport *transport);
};

struct shm;
struct resume;
struct tls;
struct bundle;
struct rdma;
struct zerocopy;

struct transport {
	const struct transport_ops *ops;
	int descriptor;			/* close-on-exec; -1: none */
	struct shm *shm;		/* of a transport over shared memory */
	struct resume *resume;		/* of one that outlives its connection */
	struct tls *tls;		/* of one that encrypts */
	struct bundle *bundle;		/* of one over several connections */
	struct rdma *rdma;		/* of one by RDMA */
	struct zerocopy *zerocopy;	/* of one whose kernel sends from where it lies */
};

/* Close this process's end without telling the peer (it may be shared). */
void transport_release(struct transport *transport);

/* Write and read exactly; the deadline covers the whole of it. */
int transport_write_all(struct transport *transport, const void *data, size_t bytes);
int transport_read_all(struct transport *transport, void *data, size_t bytes, int timeout_ms);

static inline bool transport_is_wide(struct transport *transport)
{
	return transport->ops->wide && transport->ops->wide(transport);
}

#endif
