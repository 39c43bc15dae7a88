/* server_ops.h - the engine's inside: session, threads, and what a handler sees.
 *
 * Locks, in the order in which they are taken; those that are not named are taken alone:
 *
 *	leader				>  all others
 *	shared_end			>  shared_lock
 *	text_lock, a token's asking (token.h)	>  write
 *	write, resume.lock		>  the transport's (resume_stream.h)
 *	a context's making		>  its lock
 *	names' lock, lock, a context's lock, a token's asking	>  holds_lock
 *	exports_lock			>  quota's lock
 *	holds_lock, shared_lock, names' lock	>  a handle table's
 */
#ifndef FARBUS_SERVER_SERVER_OPS_H
#define FARBUS_SERVER_SERVER_OPS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "../generated/cuda_abi.h"
#include "../generated/server_driver.h"
#include "../generated/server_handlers.h"
#include "../transport/frames/inbox.h"
#include "../transport/transport.h"
#include "../wire/digest.h"
#include "../wire/frame.h"
#include "../wire/handle.h"
#include "../wire/hello.h"
#include "../wire/jit.h"
#include "../wire/resource.h"
#include "ground/aside.h"
#include "server.h"

/* Calls that may wait for the device at the same time: one per lane.  One thread must be left to read what they wait
 * for (the answers of host functions), and one to serve what is read. */
#define SERVER_THREADS ((int)WIRE_LANES + 2)

struct server_names;			/* named.c */

struct server_staging_pool;

/* Bytes that are on their way between the socket and the device. */
struct server_staging {
	struct server_staging *next;
	struct server_staging_pool *pool;
	uint8_t *memory;		/* WIRE_BULK_BYTES, pinned where the driver can */
	CUevent event;			/* recorded behind the copy that uses it */
};

struct server_staging_pool {
	struct server_staging *idle;
	struct server_staging *busy_first;	/* oldest copy first */
	struct server_staging **busy_last;
	unsigned count;			/* of all, also those in use */
	pthread_cond_t returned;		/* a buffer has become idle */
};

/* A capture that the client has begun.  To the driver all are relaxed, since any thread
 * here may serve any lane; what other modes forbid is refused in capture.c. */
struct server_capture {
	struct server_capture *next;
	CUstream stream;
	CUcontext context;		/* of the stream */
	uint16_t lane;
	uint32_t mode;			/* CUstreamCaptureMode */
	uint64_t number;		/* 1 is that of the session's first */
};

/* Kinds of objects that the server names; SERVER_<type> for the walk of that type. */
enum server_type {
	SERVER_CUarray = 1,
	SERVER_CUdevResourceDesc,
	SERVER_CUgraph,
	SERVER_CUgraphConditionalHandle,
	SERVER_CUgraphExec,
	SERVER_CUgraphNode,
	SERVER_CUgreenCtx,
	SERVER_CUlinkState,
	SERVER_CUmemGenericAllocationHandle,
	SERVER_CUmemoryPool,
	SERVER_CUmipmappedArray,
	SERVER_CUmodule,
	SERVER_CUsurfObject,
	SERVER_CUsurfref,
	SERVER_CUtexObject,
	SERVER_CUtexref,
	SERVER_CUuserObject,
};

/* Streams of a context that are asked before its legacy one is taken for idle. */
#define SERVER_BLOCKING 16u

/* Most staging buffers of one context: 1 GiB.  They are made as copies need them; a
 * client stops long before (CLIENT_BEHIND_LIMIT) when a stream does not move. */
#define SERVER_STAGING_LIMIT 1024

/* Where the bytes of a copy out of the client's pinned memory are gathered (gather.h). */
struct server_gathered {
	struct server_gathered *next;
	uint8_t *memory;		/* the driver's pinned memory, of the context */
	size_t bytes;
};

struct server_lane_stream {
	struct server_lane_stream *next;
	struct server_context *context;
	uint16_t lane;
	CUstream stream;
};

/* Copies between the transport's memory and the device, one way, for as many at a time as hide how long one takes to
 * start and to end.  Made when the first copy is. */
#define SERVER_FLIGHTS 4u
struct server_flights {
	_Atomic bool made;
	CUstream stream;		/* nothing else is put in it */
	CUevent ends[SERVER_FLIGHTS];
};

/* Streams of one context that wait for words of memory (gate.c). */
#define SERVER_GATES 1024u
struct server_gates {
	bool tried, there;		/* under `making` */
	_Atomic uint32_t *words;
	uint16_t idle[SERVER_GATES];	/* under `lock` */
	unsigned idle_count;
};

/* An event that a thread of this process waits for; so many are made at once. */
#define SERVER_MARKS 8u
struct server_mark {
	struct server_mark *next;
	CUevent event;
};

struct server_context {
	struct server *server;
	struct server_context *base;	/* whose modules are used here; itself, but for green ones */
	uint64_t handle;
	CUcontext real;
	CUdevice device;
	bool primary;
	pthread_mutex_t making;		/* held while flights or gates are made, before `lock` */
	struct server_flights to_device, to_host;
	struct server_gates gates;
	/* Over what follows.  What the driver calls in a stream takes it, too: nobody who has it may call the driver,
	 * where he might wait for that. */
	pthread_mutex_t lock;
	struct server_staging_pool staging;
	struct server_staging_pool reserve;	/* of the client's own lane, whose copies wait for nothing */
	struct server_mark *marks;		/* idle ones */
	CUstream blocking[SERVER_BLOCKING];	/* streams that the legacy one waits for */
	unsigned blocking_count;
	bool blocking_many;			/* once, one found no place there */
	struct server_gathered *gathered_idle;
	uint64_t gathered_idle_bytes;
	struct server_lane_stream *lanes;
	struct server_library *ended;	/* modules that the driver destroys with the context */
	bool gone;			/* its end has begun; set by the leader, under server.holds_lock */
	bool over;			/* the driver has ended it; under server.holds_lock, as is: */
	unsigned host_waits;		/* those of server.host_waits that are its streams' */
};

/* A stream or an event that the client has named. */
struct server_placed {
	void *real;
	struct server_context *context;
};

struct server_blob {
	struct server_blob *next;
	uint64_t handle;
	uint64_t total;
	uint64_t filled;
	uint8_t *data;
};

/* What a link's driver may look at and write into for as long as the link is there (link.c). */
struct server_link {
	unsigned references;		/* under the lock of the names */
	unsigned count;
	CUjit_option options[WIRE_JIT_OPTIONS + 4];
	void *values[WIRE_JIT_OPTIONS + 4];
	unsigned info_at, error_at;	/* of the values that say how much a log has */
	uint32_t info_room, error_room;
	char *info, *error;		/* NULL: the client does not want it */
};

/* What a later connection must prove to go on with the session (resume.c). */
struct server_resume {
	int channel;			/* where the supervisor hands over connections */
	uint32_t grace_ms;
	uint64_t session;		/* its number; 0: it is never resumed */
	bool tls;			/* they are encrypted behind their hello */
	bool grows;			/* the client knows of windows that grow */
	bool prompt;			/* and acknowledges often */
	bool bundles;			/* and of several connections */
	bool rdma;			/* both try to go on by RDMA */
	uint8_t key[WIRE_SECRET_BYTES];	/* wire_resume_key */
	uint8_t token[WIRE_TOKEN_BYTES];

	pthread_mutex_t lock;		/* over the session's going on, and what follows */
	uint64_t handed;		/* connections that came, which numbers them */
	uint64_t taken;			/* the number of the one that the session goes on over, or is to once that is agreed */
	uint64_t connection;		/* wire_hello_connection of that one */
	uint64_t generation;		/* and what the transport calls it */
	unsigned waiting;		/* connections that have not proved yet whose they are */
};

/* The query that found everything done, with nothing but queries since. */
struct server_settled {
	bool known;
	uint16_t opcode, lane;
	uint64_t context, object;
};

/* A stream that had come to its end, as all that it would wait for, with nothing put into any since. */
struct server_idle {
	bool known;
	CUcontext context;
	CUstream stream;
	bool told;			/* a caller that waits was told, and no copy has come since */
};

struct server {
	struct transport transport;
	struct server_resume resume;
	struct inbox inbox;		/* the leader's */
	bool patient;			/* there are processors for a reader that spins on */
	bool own_lane;			/* the client has a lane of its own (WIRE_LANE_OWN) */
	struct server_status *status;	/* calls: the leader's; sent_bytes: under `write` */
	struct server_status unseen;	/* the status where nobody looks */
	struct inbox_meter meter;
	pthread_mutex_t busy_lock;	/* over meter.elsewhere and the status's waiting_since_ns */
	const char *libcuda;		/* the driver's path */
	const uint8_t *sessions;	/* of the lease, SERVER_STATUS_STRIDE bytes each */
	uint32_t session_count;
	struct server_driver driver;
	void *driver_library;
	CUdevice devices[WIRE_DEVICES];
	int device_count;

	pthread_mutex_t leader;		/* who holds it reads frames */
	_Atomic unsigned host_waits;	/* streams that wait for answers of the client, or will (token.h) */
	struct aside aside;		/* what is read while another frame is served */
	pthread_mutex_t write;		/* over the transport's writing side */
	_Atomic int waiting;		/* threads that wait to lead */
	_Atomic int threads;
	void *(*reads)(void *server);	/* what a thread does that leads in its turn, and one that serves what was kept */
	void *(*serves)(void *server);
	_Atomic bool ended;		/* set under `lock`, which `end` goes with */
	pthread_cond_t end;
	_Atomic uint64_t context_epoch;	/* counts contexts that have ended */

	struct handle_table objects;	/* named by the client */
	struct handle_table functions;	/* named here */
	int text_read;			/* what the driver prints; -1: not caught */
	int said_read, said_write;	/* what a software GPU says; -1: not heard */
	pthread_mutex_t text_lock;	/* over reading it */
	struct server_settled settled;	/* the leader's */
	struct server_idle idle;	/* the leader's, while it is alone */

	int exchange;			/* see server_options */
	pthread_mutex_t exchange_lock;	/* over asking there */
	uint32_t exchange_number;	/* of the last question */
	bool exchange_silent;		/* the last one was not answered in time, nor has anything come since */
	pthread_mutex_t exports_lock;	/* over what follows (descriptor.c); before that of quota.h */
	struct server_export *exports;
	unsigned export_count;

	struct server_names *names;
	struct server_images *images;	/* kept of earlier programs (images.c); NULL: none are */
	uint8_t capture_modes[WIRE_LANES];	/* CUstreamCaptureMode of each lane; the leader's */

	pthread_mutex_t shared_end;	/* held while shared memory ends; before shared_lock */
	pthread_mutex_t shared_lock;	/* over what follows (pinned.c) */
	struct server_shared *shared;
	unsigned shared_count;
	uint64_t shared_bytes;

	pthread_mutex_t lock;		/* over what follows */
	struct server_capture *captures;
	uint64_t captures_begun;
	_Atomic int capture_count;	/* of those; read without the lock */
	struct server_blob *blobs;
	uint64_t blob_bytes;
	struct server_context *primaries[WIRE_DEVICES];
	pthread_mutex_t held_lock;
	CUcontext held[WIRE_DEVICES];	/* primary ones that only this process uses (server_enter_any) */
	struct server_resource *resources;	/* green.c */
	unsigned resource_count;
	struct server_management *management;	/* management.c; made by the first query */

	pthread_mutex_t holds_lock;	/* over what follows (hold.c) */
	struct server_holds *holds;
	pthread_cond_t let_go;		/* a call no longer holds what it did */
};

/* What one call uses that others must not destroy. */
struct server_holds {
	struct server_holds *next;	/* of the calls that hold something */
	unsigned count, room;		/* room: of `more` */
	const void *few[8];
	const void **more;
};

struct server_thread {
	struct server *server;
	struct server_context *current;
	uint64_t epoch;			/* of server.context_epoch when it was made current */
	uint8_t tail[128 << 10];
};

struct server_call {
	struct server *server;
	const struct server_driver *driver;
	struct server_thread *thread;
	struct server_context *context;	/* the current one, or NULL */
	struct inbox *inbox;		/* what it takes its tail from */
	int descriptor;			/* that came with an offer of memory; the handler's, -1: none */
	struct wire_header header;
	const void *request;		/* the fixed part, aligned */
	const uint8_t *tail;		/* NULL when the handler takes it itself */
	size_t tail_bytes;
	void *reply;			/* WIRE_FIXED_BYTES zeroed bytes */
	uint8_t *reply_tail;		/* malloc'ed by the handler, freed by the engine */
	size_t reply_tail_bytes;
	bool due;			/* what it waits for is over */
	bool passed;			/* another thread leads, or may */
	bool beside;			/* so does another one, but this one reads */
	bool lent;			/* another thread reads for this one, which serves what is read */
	struct server_holds holds;
};

typedef CUresult (*server_handler)(struct server_call *call);
extern const server_handler server_handlers[];

/* A result that ends the session: the client does not speak the protocol. */
#define SERVER_MALFORMED ((CUresult)-1)

#endif
