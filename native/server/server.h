/* server.h - the remoting server's engine: serves one client process.
 *
 * One process per client process.  The engine opens a libcuda.so.1, NVIDIA's or
 * the software GPU's, by path; it needs nothing of Python, which only starts it.
 */
#ifndef FARBUS_SERVER_SERVER_H
#define FARBUS_SERVER_SERVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What a server counts while it works: a slot of the memory that it shares with its
 * supervisor (remoting/status.py has the same layout).  The server writes `calls` and
 * what follows, without locks; others may look at any time.  Over TLS it also says who
 * the client is, which is not in the supervisor's sight. */
struct server_status {
	uint32_t server_pid;
	uint32_t client_pid;
	char program[48];
	_Atomic uint64_t calls;
	_Atomic uint64_t received_bytes;
	_Atomic uint64_t sent_bytes;
	_Atomic uint64_t busy_ns;	/* in which a call was served, waiting for the device included;
					 * without the wait that goes on */
	_Atomic uint64_t transport;	/* bytes: "shm", "unix", "tcp", "tls" or "rdma", NUL-terminated; changed by resuming */
	_Atomic uint64_t memory_bytes;	/* of devices, held; counted where there is a limit */
	_Atomic uint64_t waiting_since_ns;	/* CLOCK_MONOTONIC: since when calls wait, one at least; 0: none does */
	_Atomic uint64_t reading_since_ns;	/* since when it has frames to serve; 0: it waits for the client's next */
	_Atomic uint32_t operation;	/* of the call taken last: its opcode, and above it, where that serves many functions,
					 * 1 + the function's number */
	_Atomic uint32_t uncopied_mib;	/* of what was sent, without a copy of the kernel's (zerocopy.h), as far as that has told */
};
_Static_assert(sizeof(struct server_status) == 128, "layout of remoting/status.py");

/* From one slot to the next. */
#define SERVER_STATUS_STRIDE 128u

/* A server that has its driver ready, and no client yet. */
struct server;

struct server_options {
	struct server *prepared;	/* by server_prepare with the same options, or NULL */
	int descriptor;			/* the connected socket; taken over */
	const char *libcuda;		/* path of the driver to open */
	uint8_t *secret;		/* WIRE_SECRET_BYTES of the lease; cleared when used */
	struct server_status *status;	/* NULL: nothing is counted */
	const void *sessions;		/* the slots of all the lease's servers, or NULL */
	uint32_t session_count;
	uint64_t memory_limit;		/* bytes of devices' memory that the lease has, 0: all */
	uint64_t session;		/* its number at the supervisor, 0: it has none */
	int resume_channel;		/* a Unix socket on which later connections come, one
					 * descriptor per datagram; 0: none; taken over */
	uint32_t grace_ms;		/* how long the session may be cut, 0: it ends at once */
	const char *image_directory;	/* where images are kept for later programs; NULL: nowhere */
	uint64_t image_bytes;		/* of all that are kept */
	bool tls;			/* the client has to go on encrypted behind its hello */
	bool rdma;			/* and may then go on by RDMA, unencrypted */
	int exchange;			/* a Unix socket to the supervisor, which keeps descriptors for
					 * the sessions of the lease; 0: none; taken over */
};

/* Open and initialise the driver ahead of the client: most of a server's start.  Of the
 * options it reads libcuda and memory_limit.  NULL: it did not succeed; server_serve,
 * which tries again, tells the client why. */
struct server *server_prepare(const struct server_options *options);

/* Serve until the client has gone.  0: it came and went; -errno: it never got as
 * far as a session, and `why` (bytes long) says why in one line.
 *
 * Threads may still be inside the driver when this returns (a kernel that never
 * ends): the caller must end the process with _exit. */
int server_serve(const struct server_options *options, char *why, int bytes);

#endif
