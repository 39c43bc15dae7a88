/* hello.h - how a session begins: versions, proof of the secret, and the device snapshot; and how
 * it goes on over another connection.
 *
 *	client                          server
 *	wire_hello            ->
 *	                      <-        wire_hello_reply, text, wire_device[device_count],
 *	                                wire_resume_grant if WIRE_CAPABILITY_RESUME
 *
 *	wire_hello, session   ->
 *	                      <-        wire_hello_reply, text, wire_resumed if it is OK
 *
 * With WIRE_CAPABILITY_RDMA what native/transport/rings/rdma.h says follows each of the two.
 *
 * Without WIRE_CAPABILITY_RESUME the latter asks how that session has ended: the supervisor says
 * WIRE_HELLO_SESSION and a sentence for a person, once it has.
 *
 * Both messages begin with the same 16 bytes in every version of the protocol,
 * so that peers of different versions can tell each other apart and say so.
 */
#ifndef FARBUS_WIRE_HELLO_H
#define FARBUS_WIRE_HELLO_H

#include <stdint.h>
#include <string.h>

#include "../generated/wire_ops.h"

#define WIRE_HELLO_MAGIC 0x0a0d5355u	/* "US\r\n": a text protocol never starts so */
#define WIRE_PROTOCOL_MAJOR 2u		/* peers that differ refuse each other */
#define WIRE_PROTOCOL_MINOR 6u		/* 1: sessions that are resumed; 2: managed memory, images
					 * that are kept; 3: where multiprocessors lie, launches of graphs that are posted;
					 * 4: a lane of the client's own; 5: pinned memory that is mapped, conditional nodes
					 * of graphs; 6: memory and pools by descriptors */
#define WIRE_SECRET_BYTES 32u
#define WIRE_NONCE_BYTES 16u
#define WIRE_PROOF_BYTES 16u
#define WIRE_TOKEN_BYTES 32u
#define WIRE_BYTE_ORDER 0x01020304u

/* Most devices of one session: a chassis of 16 with room. */
#define WIRE_DEVICES 64u
/* Attributes travel as an array indexed by CUdevice_attribute. */
#define WIRE_DEVICE_ATTRIBUTES 256u
#define WIRE_HELLO_TEXT_BYTES 512u
#define WIRE_OPERATION_BYTES 64u

struct wire_hello {
	uint32_t magic;
	uint16_t major;
	uint16_t minor;
	uint32_t byte_order;
	uint32_t spec_version;
	uint64_t capabilities;		/* enum wire_capability bits */
	uint64_t session;		/* 0: a new one; else the one that goes on here */
	uint64_t received;		/* then: how many bytes of its stream have come, or
					 * WIRE_CAPABILITY_CONNECTIONS */
	uint32_t process;
	uint32_t reserved;
	uint8_t nonce[WIRE_NONCE_BYTES]; /* random, never used again */
	uint8_t proof[WIRE_PROOF_BYTES]; /* that the client has the secret: native/wire/proof.h */
	char program[48];		/* for the server's log, NUL-terminated; of a
					 * session that goes on, WIRE_TOKEN_BYTES of its token */
};
_Static_assert(sizeof(struct wire_hello) == 128, "wire layout");

/* Which connection that is, for those that are to be added to it. */
static inline uint64_t wire_hello_connection(const struct wire_hello *hello)
{
	uint64_t connection;

	memcpy(&connection, hello->nonce, sizeof(connection));
	return connection;
}

/* Bits of wire_hello.capabilities, and of the reply's: what both will use. */
enum wire_capability {
	/* Asked for over a Unix socket, with the descriptor of the memory
	 * (native/transport/rings/shm.c); granted: frames go through that. */
	WIRE_CAPABILITY_SHARED_MEMORY = 1,
	/* What follows this hello is TLS (native/transport/sockets/tls.h), in which the hello
	 * is said again, complete: in the clear it has neither process nor program. */
	WIRE_CAPABILITY_TLS = 2,
	/* Asked for over TCP; granted: the stream is one of records
	 * (native/transport/resumed/resume.h), and outlives its connection. */
	WIRE_CAPABILITY_RESUME = 4,
	/* Asked for with that; granted: windows grow beyond RESUME_WINDOW_BYTES, and
	 * readers acknowledge more often (native/transport/resumed/resume.h). */
	WIRE_CAPABILITY_WINDOWS = 8,
	/* Asked for over TCP; granted: the server keeps images for later programs, and may be
	 * asked to load one by its digest (image_load). */
	WIRE_CAPABILITY_IMAGES = 16,
	/* Asked for with WIRE_CAPABILITY_RESUME; granted: the stream is one of chunks, and may
	 * have further connections (native/transport/sockets/bundle.h).  Of a session that goes on: this is
	 * one of those, and `received` the beginning of the nonce of the hello to whose connection it is added. */
	WIRE_CAPABILITY_CONNECTIONS = 32,
	/* Asked for with WIRE_CAPABILITY_WINDOWS; granted: the client acknowledges so often that the
	 * server's window may begin with RESUME_WINDOW_RING. */
	WIRE_CAPABILITY_PROMPT = 64,
	/* Asked for with WIRE_CAPABILITY_RESUME by a client with processors for several threads; granted by a server with
	 * such: the same as WIRE_CAPABILITY_CONNECTIONS. */
	WIRE_CAPABILITY_THREADS = 128,
	/* Asked for with WIRE_CAPABILITY_RESUME, for each connection; granted: both try to go on by RDMA
	 * (native/transport/rings/rdma.h), where there is one connection alone. */
	WIRE_CAPABILITY_RDMA = 256,
};

/* What every hello of this version begins with; the rest is zero. */
static inline struct wire_hello wire_hello_ours(void)
{
	return (struct wire_hello){
		.magic = WIRE_HELLO_MAGIC,
		.major = WIRE_PROTOCOL_MAJOR,
		.minor = WIRE_PROTOCOL_MINOR,
		.byte_order = WIRE_BYTE_ORDER,
		.spec_version = WIRE_SPEC_VERSION,
	};
}

/* A supervisor also listens on a Unix socket of the abstract namespace, named
 * WIRE_LOCAL_NAME and the first WIRE_LOCAL_HEX hexadecimal digits of SHA-256 over
 * WIRE_LOCAL_DOMAIN and the secret: only who has the secret can find it, or can have
 * taken its name before.  A container with a network of its own, which does not see it, may
 * have a socket beside its session file, that is called likewise, without the leading zero,
 * over WIRE_SOCKET_DOMAIN. */
#define WIRE_LOCAL_NAME "farbus-remoting-"
#define WIRE_LOCAL_DOMAIN "farbus remoting local 1"
#define WIRE_SOCKET_DOMAIN "farbus remoting socket 1"
#define WIRE_LOCAL_HEX 48
/* What a lease is called where its secret is nobody's business (descriptor.h): the first WIRE_LEASE_BYTES of SHA-256 over
 * this and the secret. */
#define WIRE_LEASE_DOMAIN "farbus remoting lease 1"
#define WIRE_LEASE_BYTES 16u

enum wire_hello_status {
	WIRE_HELLO_OK = 0,
	WIRE_HELLO_VERSION = 1,		/* the protocols have nothing in common */
	WIRE_HELLO_SECRET = 2,		/* not this lease's secret */
	WIRE_HELLO_DRIVER = 3,		/* no driver, or cuInit failed: see result */
	WIRE_HELLO_BUSY = 4,		/* too many processes of this lease */
	WIRE_HELLO_TLS = 5,		/* encrypted or not: the other way round */
	WIRE_HELLO_USER = 6,		/* not this user over a socket of the machine */
	WIRE_HELLO_SESSION = 7,		/* no session that could go on: see the text */
};

struct wire_hello_reply {
	uint32_t magic;
	uint16_t major;
	uint16_t minor;
	uint32_t status;		/* enum wire_hello_status */
	uint32_t spec_version;
	uint64_t capabilities;
	uint64_t session;		/* its number; 0: an older server, of one that can't be resumed */
	int32_t result;			/* CUresult of the driver's cuInit */
	int32_t driver_version;
	uint32_t device_count;
	uint32_t text_bytes;		/* of a sentence for a person, no NUL */
	uint8_t operations[WIRE_OPERATION_BYTES]; /* bit n: operation n is there */
};
_Static_assert(sizeof(struct wire_hello_reply) == 112, "wire layout");

/* What proves that a later connection belongs to this session. */
struct wire_resume_grant {
	uint8_t token[WIRE_TOKEN_BYTES];
	uint32_t grace_ms;		/* how long the server keeps a session that is cut */
	uint32_t reserved;
};
_Static_assert(sizeof(struct wire_resume_grant) == 40, "wire layout");

struct wire_resumed {
	uint64_t received;		/* how many bytes of the session's stream have come; of a further
					 * connection, its number */
};
_Static_assert(sizeof(struct wire_resumed) == 8, "wire layout");

struct wire_device {
	char name[256];
	uint8_t uuid[16];
	uint8_t uuid_v2[16];
	uint64_t total_bytes;
	char pci_bus_id[32];
	uint32_t primary_flags;
	uint32_t reserved;
	int32_t attributes[WIRE_DEVICE_ATTRIBUTES];
	uint8_t attribute_known[WIRE_DEVICE_ATTRIBUTES / 8];
};
_Static_assert(sizeof(struct wire_device) == 1392, "wire layout");

#endif
