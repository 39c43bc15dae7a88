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

/* ---- frames.c: to the client ---- */

/* Add to a counter that has one writer at a time: no lock, and readers see whole numbers. */
static inline void server_count(_Atomic uint64_t *counter, uint64_t more)
{
	uint64_t before = atomic_load_explicit(counter, memory_order_relaxed);

	atomic_store_explicit(counter, before + more, memory_order_relaxed);
}
/* Send one frame; parts with no bytes are left out. */
int server_send(struct server *server, uint16_t opcode, uint16_t lane, uint64_t sequence,
		uint64_t argument, const void *fixed, size_t fixed_bytes, const void *tail,
		size_t tail_bytes);
/* Send bytes of a copy to the host, which belong at `offset`; `replied`: they are the last ones, and the reply follows at once. */
int server_send_data(struct server *server, uint16_t lane, uint64_t sequence, uint64_t offset, const void *bytes,
		     size_t count, bool replied);
/* Begin a frame that the caller finishes: it writes `tail_bytes` to the transport, and lets
 * go of server->write whatever this returns. */
int server_send_begin(struct server *server, uint16_t opcode, uint16_t lane, uint64_t sequence,
		      const void *fixed, size_t fixed_bytes, size_t tail_bytes);
/* Take the tail's next bytes from the inbox; for operations with bulk tails. */
CUresult server_take(struct server_call *call, void *target, size_t bytes);
/* A reply's tail of as many bytes as there may be; `server_tail_close` says how many there are. */
struct wire_writer;
CUresult server_tail_open(struct server_call *call, struct wire_writer *writer);
void server_tail_close(struct server_call *call, const struct wire_writer *writer);
/* Let others see what carries the calls. */
void server_status_carried(struct server *server, const struct transport *transport);

/* ---- serve.c: the session ---- */

/* Serve frames until the session has ended.  The caller never enters the driver, so that nothing in there can keep the
 * process from ending.  0, or -errno: it has not begun. */
int server_run(struct server *server);

/* ---- lead.c: which thread reads ---- */

/* One more thread that serves; 0 or -errno. */
int server_thread_start(struct server *server, void *(*run)(void *));
/* Let another thread read, which the caller has done. */
void server_lead_pass(struct server *server);
/* Let another thread lead, if this one still does: from here on the call may wait, and takes no
 * names away.  It holds its context. */
void server_pass(struct server_call *call);
/* Nobody finds the object any more: wait until nobody uses it.  May let go of the lead. */
void server_await_users(struct server_call *call, const void *object);
/* Is the thread that leads, which asks, the only one that is in the driver? */
bool server_is_alone(const struct server *server);
/* Is the frame of the client's own lane (WIRE_LANE_OWN)? */
static inline bool server_is_own(const struct server_call *call)
{
	return call->header.lane == WIRE_LANE_OWN && call->server->own_lane;
}

/* ---- hold.c: what a call uses ---- */

/* Hold an object until the end of the call; a context, unless its end has begun, and whether it
 * has; the object of that name, held where it must be, or NULL; the end of the call. */
CUresult server_hold(struct server_call *call, const void *object);
CUresult server_hold_context(struct server_call *call, const struct server_context *context);
bool server_context_is_gone(struct server *server, const struct server_context *context);
void *server_find(struct server_call *call, enum handle_kind kind, uint64_t handle);
/* Give an object the client's name for it; SERVER_MALFORMED: that is not free, or no name. */
CUresult server_bind(struct server_call *call, enum handle_kind kind, uint64_t handle, void *object);
/* The same of streams and events, whose context is held as well and must not have ended; to name one; and
 * to take the name away, so that the driver may destroy it: not where it has already, with its context. */
CUresult server_find_placed(struct server_call *call, enum handle_kind kind, uint64_t handle, void **real);
CUresult server_place(struct server_call *call, enum handle_kind kind, uint64_t handle, void *real);
CUresult server_unplace(struct server_call *call, enum handle_kind kind, uint64_t handle, void **real);
/* Streams of a context that has ended: their names are free. */
void server_displace(struct server *server, const struct server_context *context);
void server_let_go(struct server_call *call);
/* Does another call hold it?  And wait until none does. */
bool server_others_hold(struct server_call *call, const void *object);
void server_await_others(struct server_call *call, const void *object);

/* ---- resolve.c: what the client's handles stand for ---- */

/* Make a context current on this thread. */
CUresult server_context_enter(struct server_thread *thread, struct server_context *context);

CUresult server_resolve_context(struct server_call *call, uint64_t handle, CUcontext *context);
CUresult server_resolve_stream(struct server_call *call, uint64_t handle, CUstream *stream);
CUresult server_resolve_event(struct server_call *call, uint64_t handle, CUevent *event);
/* What launches take: a function, or a library's kernel as it is. */
CUresult server_resolve_function(struct server_call *call, uint64_t handle, CUfunction *function);
/* The function in the current context, which is what graphs take. */
CUresult server_resolve_function_here(struct server_call *call, uint64_t handle, CUfunction *function);
/* Is it a library's kernel? */
bool server_is_kernel(struct server_call *call, uint64_t handle);
/* How `functions` keeps a library's kernel. */
void *server_kernel_marked(CUkernel kernel);
/* A stream that the legacy one waits for is there, or is no more. */
void server_blocking_add(struct server_context *context, CUstream stream);
void server_blocking_remove(struct server_context *context, CUstream stream);

/* ---- stream.c ---- */

/* Name an event that the driver has just made or opened; it is destroyed where it can't be. */
CUresult server_place_event(struct server_call *call, uint64_t handle, CUevent event);

/* ---- context.c, primary.c: contexts ---- */

/* A context of the driver's under the client's handle (`base`: of a green one's, or NULL),
 * and the end of that. */
CUresult server_context_bind(struct server_call *call, uint64_t handle, CUcontext real,
			     CUdevice device, struct server_context *base,
			     struct server_context **out);
/* The context's end has begun: nobody finds it or its modules any more, and nobody uses it when this
 * returns.  The caller leads, and no longer does then. */
void server_context_end(struct server_call *call, struct server_context *context);
/* The primary context of a device, NULL: it has none, or that ends just now.  The caller leads. */
struct server_context *server_primary(struct server *server, uint32_t ordinal);
/* The same until the driver has ended it; and what it is, from any thread. */
struct server_context *server_primary_any(struct server *server, uint32_t ordinal);
void server_primary_set(struct server *server, uint32_t ordinal, struct server_context *context);
/* The client's own reference keeps it: the one of server_enter_any is not needed any more. */
void server_primary_let_go(struct server_call *call, uint32_t ordinal);
/* Let some context be current: the call's, or else the device's primary one.  Code may be loaded before a program
 * has a context, but NVIDIA's driver tells the parameters of kernels in one only.  It is held until the client
 * asks for it. */
CUresult server_enter_any(struct server_call *call, CUdevice device);

/* ---- named.c: what is named here ---- */

/* Objects that are named here.  The name of `real`, making it if it has none, in
 * `owner` (a name, or 0); `again` counts one more holder of what is there already. */
struct server_names *server_names_make(void);
CUresult server_name(struct server_call *call, enum server_type type, uint64_t real, uint64_t owner,
		     bool again, uint64_t *wire);
/* `owner`: gets the name of what it lies in, or is NULL. */
bool server_named(struct server_call *call, enum server_type type, uint64_t wire, uint64_t *real,
		  uint64_t *owner);
/* The driver's object of that name and type, or NULL. */
void *server_object(struct server_call *call, enum server_type type, uint64_t wire);
/* Launches of an executable graph repeat (graph.c). */
void server_named_set_repeats(struct server *server, uint64_t executable);
bool server_named_repeats(struct server *server, uint64_t executable);
/* What a link has made, the driver's until the link is destroyed; `image`: keep that. */
const void *server_named_image(struct server *server, uint64_t wire, const void *image,
			       size_t *bytes);
/* Let a link's memory go with its name; -ENOENT: there is no such link.  Taken, it stays until it
 * is let go of with server_named_link_put; NULL: there is none. */
int server_named_link_set(struct server *server, uint64_t wire, struct server_link *link);
struct server_link *server_named_link_take(struct server *server, uint64_t wire);
void server_named_link_put(struct server *server, struct server_link *link);
void server_name_drop(struct server *server, enum server_type type, uint64_t real);
/* The driver is about to destroy it: from here on nobody finds it, nor what lies in it, and nobody uses
 * it any more.  NULL: somebody else still has it.  Settled, it is gone, or back. */
struct named;
struct named *server_name_hide(struct server_call *call, enum server_type type, uint64_t real);
void server_name_settle(struct server *server, struct named *hidden, bool gone);
/* A context is about to end, and with it these: nobody finds them any more.  Then, when the caller no longer
 * leads, nobody uses them either, and their names are free. */
struct named *server_names_hide(struct server *server, const struct server_context *context);
void server_names_end(struct server_call *call, struct named *hidden);

/* ---- library.c, kernel.c: code ---- */

/* The modules of a context: nobody finds them any more; and, when the driver has destroyed them with the
 * context, the memory that it may have pointed into until then. */
void server_libraries_forget(struct server_context *context);
void server_libraries_free(struct server_context *context);
CUresult server_resolve_library(struct server_call *call, uint64_t handle, CUlibrary *library);
/* A module, and the name (named.c) under which its references lie. */
CUresult server_resolve_module(struct server_call *call, uint64_t handle, CUmodule *module,
			       uint64_t *name);
/* The client's name of a kernel that the driver shows, or 0. */
uint64_t server_function_name(struct server_call *call, CUfunction function);
/* Options of the just-in-time compiler from a message: those that are plain numbers, the others
 * are left out.  Room is for WIRE_JIT_OPTIONS. */
struct wire_reader;
CUresult server_jit_options(struct wire_reader *reader, uint32_t count, CUjit_option *options,
			    void **values, unsigned *taken);

/* ---- images.c: kept for later programs ---- */

/* Bytes behind every image, zero, so that a malformed one ends there. */
#define SERVER_IMAGE_SLACK 16u

/* Images that are kept in a directory of this process's user, who alone may enter it; NULL:
 * there is none such.  `limit` is for the bytes of all of them. */
struct server_images *server_images_open(const char *path, uint64_t limit);
/* The image of that digest and length, malloc'ed; NULL: it is not there. */
void *server_image_find(struct server_images *images, const uint8_t digest[WIRE_DIGEST_BYTES],
			uint64_t bytes);
bool server_image_is(const void *data, size_t bytes, const uint8_t digest[WIRE_DIGEST_BYTES]);
/* Keep an image, whose digest that is, if nothing hinders it. */
void server_image_keep(struct server_images *images, const uint8_t digest[WIRE_DIGEST_BYTES],
		       const void *data, uint64_t bytes);

/* ---- blob.c ---- */

/* A blob that has arrived whole; its data becomes the caller's.  NULL: there is none such. */
void *server_blob_take(struct server *server, uint64_t handle, uint64_t bytes);

/* ---- staging.c, in_place.c, copies.c: bytes ---- */

/* A new context has no buffers. */
void server_staging_init(struct server_context *context);
/* Have some staging buffers before a stream waits for the client: then the driver may make none. */
void server_staging_reserve(struct server_call *call);
/* Has a stream come to its end, and so has what it would wait for?  Also false where that
 * can't be asked. */
bool server_stream_is_idle(struct server_call *call, CUstream stream);
/* Are these sizes that a plane of bytes may have? */
bool server_plane_sane(uint64_t pitch, uint64_t width, uint64_t height);

/* ---- capture.c, graph.c ---- */

/* May this call be made while streams are captured? */
CUresult server_capture_permit(struct server_call *call);
void server_capture_end(struct server *server, CUstream stream);
void server_captures_forget(struct server *server, CUcontext context);
/* The graph that a stream is captured into, or NULL. */
CUgraph server_capture_graph(const struct server_driver *driver, CUstream stream);
/* The driver has made `executable` of `graph`, and it was just named. */
void server_graph_instantiated(struct server_call *call, CUgraph graph, CUgraphExec executable,
			       uint64_t wire);

/* ---- gate.c ---- */

/* Let a stream wait until the gate is opened; false: here it can't.  An event, and its return. */
bool server_gate_close(struct server_call *call, CUstream stream, unsigned *gate);
void server_gate_open(struct server_context *context, unsigned gate);
CUresult server_mark_take(struct server_call *call, struct server_mark **out);
void server_mark_give(struct server_context *context, struct server_mark *mark);

/* ---- pinned.c, share.c, descriptor.c: memory that others have, too ---- */

/* A context is about to end, and with it what is pinned in it.  May wait for its work. */
void server_pinned_forget(struct server_call *call, struct server_context *context);
/* How much of an allocation lies from that address on. */
CUresult server_range_behind(const struct server_driver *driver, CUdeviceptr address, uint64_t *bytes);
/* Is it an operation that needs the supervisor to keep descriptors? */
bool server_descriptor_op(unsigned op);

/* ---- green.c ---- */

/* What the driver keeps in a resource stays here. */
CUresult server_resource_name(struct server *server, const CUdevResource *resource,
			      struct wire_resource *wire);
CUresult server_resource_find(struct server *server, const struct wire_resource *wire,
			      CUdevResource *resource);

/* ---- quota.c: the account of the lease's memory ---- */

/* Count what the driver allocates against the lease's `limit` of bytes (quota.c). */
void server_quota_install(struct server *server, uint64_t limit);
/* What is charged for memory apart from addresses stays so until it is let go of; NULL: nothing is.  And a handle of the
 * same memory, or with NULL of another process's: it stays as long as that, too, and the reference is the handle's. */
struct charge;
struct charge *server_quota_hold(CUmemGenericAllocationHandle handle);
struct charge *server_quota_hold_again(struct charge *charge);
void server_quota_let_go(struct charge *charge);
void server_quota_share(struct charge *charge, CUmemGenericAllocationHandle handle);

/* ---- text.c: what the driver prints ---- */

/* Catch what the driver prints; send what is there now. */
int server_text_start(struct server *server);
void server_text_flush(struct server *server);
/* What a software GPU says of this thread's calls reaches the client otherwise, from now on. */
void server_text_told(bool told);

/* ---- driver.c ---- */

/* Open the driver and start it: what it says is in *result, why it can't be opened in `why`.  0 or -errno. */
int server_driver_start(struct server *server, const struct server_options *options, char *why, size_t bytes,
			CUresult *result);
void server_driver_describe(struct server *server, CUdevice device, struct wire_device *out);
void server_driver_operations(const struct server *server, uint8_t *bits, size_t bytes);

/* ---- hello.c ---- */

/* Hear the client's hello, answer it, and go on over the transport that both agree on.  0, or -errno and why. */
int server_hello(struct server *server, const struct server_options *options, char *why, int bytes);
/* Say why in one line, for the log of whoever started this process; gives `rc` back. */
int server_fail(char *why, int bytes, int rc, const char *format, ...) __attribute__((format(printf, 4, 5)));

/* ---- resume.c ---- */

/* May this session be resumed?  Then tell the client how, as the hello's end, and go on so. */
bool server_resume_may(const struct server *server, const struct server_options *options);
void server_resume_prepare(struct server *server, const struct server_options *options,
			   const struct wire_hello *hello, uint64_t granted);
int server_resume_grant(struct server *server);
int server_resume_start(struct server *server);

#endif
