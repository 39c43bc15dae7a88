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

/* ---- shared memory (shm.c), over a connected Unix socket, which stays as doorbell
 * and as sign of life ----
 *
 * The client makes the memory and sends its descriptor with the hello; the server
 * takes it or not.  Once both know, both switch: from then on bytes go through it. */

/* Make memory for a session: *descriptor is to be sent and then closed (clofork_close).  0 or -errno. */
int transport_shm_make(struct shm **shm, int *descriptor);
/* Map what a peer sent, which is closed in any case.  -EPROTO: not what may be offered
 * (size, seals, or not of the socket's other user). */
int transport_shm_take(struct shm **shm, const struct transport *transport, int descriptor);
void transport_shm_drop(struct shm *shm);
/* Go on over `shm`, which the transport then owns. */
void transport_shm_switch(struct transport *transport, struct shm *shm, bool server);

/* Make memory of `bytes` (whole pages) to share with the peer, all of it there and never to be
 * cut off; `name` is what /proc calls it.  *descriptor is to be passed and then closed
 * (clofork_close).  0 or -errno; -EFBIG: beyond the process's RLIMIT_FSIZE. */
int transport_memory_make(const char *name, size_t bytes, void **memory, int *descriptor);
/* Have all pages of a part of a file in memory be there.  0 or -errno: -ENOSPC, -ENOMEM, -EFBIG. */
int transport_memory_populate(int descriptor, off_t offset, size_t bytes);
/* Whether the machine can give so much: of more the kernel would end processes (MemAvailable, proc_meminfo(5)). */
bool transport_memory_is_there(size_t bytes);
/* Map what a peer passed, which is closed in any case.  -EPROTO: not what may be shared (size,
 * seals, pages that are not there, of which the last does not matter unless it has to be `populated`, or not of the
 * socket's other user). */
int transport_memory_take(const struct transport *transport, int descriptor, size_t bytes, bool populated,
			  void **memory);
/* The same for a part of a file that the peer has in memory (tmpfs), whole pages: others may have it, too, and cut it
 * off, which ends whoever touches it then. */
int transport_file_take(const struct transport *transport, int descriptor, uint64_t offset, size_t bytes,
			void **memory);
/* Over shared memory: pass a descriptor to the server, ahead of what is written next.  0 or
 * -errno, -EAGAIN among them: it never waits. */
int transport_shm_pass(struct transport *transport, int descriptor);
/* The oldest descriptor that was passed here and not taken yet, now the caller's; -1: there is
 * none.  For who reads. */
int transport_shm_passed(struct transport *transport);

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
