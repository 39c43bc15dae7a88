/* client.h - the shim: a libcuda.so.1 whose device is somewhere else.
 *
 * A guest in somebody's program: needs libc only, does nothing before the first
 * call, starts threads (signals blocked) at cuInit, and answers what it can from
 * the snapshot that the server sent when the session began.
 *
 * A program's devices may sit at several servers: there is a session for each, and
 * every object belongs to one.  A request goes to the session of the handles that it
 * names (wire_op_infos[].routes), and where it names none, to the current context's.
 *
 * Locks, in the order in which they are taken:
 *	client.init  >  context_lock  >  pages (pages.h)  >  memory_lock  >  outbox.write  >
 *	outbox.append  >  session.wait_lock
 */
#ifndef FARBUS_CLIENT_CLIENT_H
#define FARBUS_CLIENT_CLIENT_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The shim's own calls of the driver API go past the entries that programs call (generated/client_entries.c). */
#define CLIENT_BODY(name) __asm__("farbus_" #name)

#include "../generated/client_api.h"
#include "../generated/cuda_abi.h"
#include "../transport/frames/inbox.h"
#include "../transport/frames/outbox.h"
#include "../wire/frame.h"
#include "../wire/handle.h"
#include "../wire/hello.h"
#include "../wire/kernel.h"
#include "ground/trace.h"

/* The newest CUDA version that the shim implements the driver API of. */
#define CLIENT_DRIVER_VERSION 13000

/* ---- entries: the driver API as a table (generated/client_entries.c) ---- */

struct client_entry {
	const char *name;
	const char *symbol;
	void *function;
	int version;
	int thread_version;		/* 0: no per-thread-stream form */
	void *thread_function;
	const char *thread_symbol;
	int number;
	const char *reason;		/* why it is unsupported, or NULL */
};

extern const struct client_entry client_entries[];
extern const size_t client_entry_count;

/* Say once, by name, that a function is not there; that this server does not have it. */
CUresult client_unsupported(int number);
struct client_session;
CUresult client_missing(const struct client_session *session, int number);

/* ---- objects ---- */

struct client_library;			/* library.h */
struct client_session;

/* Most servers of one program: what the server names carries their number in four bits. */
#define CLIENT_SERVERS 16

/* Streams of a context whose events may be known to be over. */
#define CLIENT_SETTLED_STREAMS 16u

/* How far the events of a context are over (events.c), by the number of their last record. */
struct client_events {
	pthread_mutex_t lock;		/* over what events say of their records, too */
	uint64_t recorded;		/* records so far */
	uint64_t ended;			/* up to this one they were of a context that has ended */
	uint64_t settled_all;		/* of any stream up to this number */
	struct client_settled {
		uint64_t stream;
		uint64_t number;
	} settled[CLIENT_SETTLED_STREAMS];
};

/* Limits of a context, by their CUlimit, that are remembered. */
#define CLIENT_LIMITS 32

struct client_context {
	CUcontext handle;
	struct client_session *session;
	int device;			/* ordinal as the program sees it */
	bool primary;
	bool active;			/* the server has it */
	unsigned references;		/* of a primary context */
	_Atomic unsigned attached;	/* cuCtxAttach: users beside the one that made it */
	unsigned flags;
	unsigned long long id;
	_Atomic CUfunc_cache cache;
	_Atomic CUresult sticky;	/* what every later call returns */
	_Atomic CUresult late;		/* a posted operation's; the next call that waits reports it */
	_Atomic uint32_t limits_known;	/* bit n: limits[n] is what the driver said */
	_Atomic uint64_t limits[CLIENT_LIMITS];
	_Atomic unsigned limits_epoch;	/* how often they were forgotten */
	_Atomic int priorities_known;
	int least_priority;
	int greatest_priority;
	struct across_helper *helpers;	/* idle ones (helpers.c), the one of copies, and how often it has ended */
	struct across_helper *copier;
	unsigned epoch;
	_Atomic unsigned ends;		/* the same, for streams */
	struct client_events events;
};

struct client_green;			/* green.c */

/* Where its context has ended it is none any more.  Its name stays taken: a server may have kept its own for it. */
struct client_stream {
	CUstream handle;
	struct client_context *context;
	unsigned ends;			/* of the context, when it was made */
	struct client_green *green;	/* whose it is; or NULL */
	unsigned flags;
	int priority;
	unsigned long long id;
};

struct client_event {
	CUevent handle;
	struct client_context *context;
	unsigned flags;
	bool elsewhere;			/* a graph, say, may record it, too */
	uint64_t stream;		/* of the last record, and its number; 0: nothing is known of it */
	uint64_t number;
	uint64_t behind;		/* records up to this one were sent no later than it */
	unsigned recording;		/* threads that record it at this time, */
	bool overlaps;			/* several of them */
};

struct client_layout;			/* device.c */

struct client_device {
	struct wire_device snapshot;
	struct client_session *session;
	uint32_t server_ordinal;
	int pci[3];			/* domain, bus, device */
	struct client_context *primary;
	struct client_layout *_Atomic layout;	/* NULL: not asked for */
};

/* ---- the session ---- */

/* Where the bytes of a copy to host memory go: rows of `width` bytes. */
struct client_target {
	struct client_target *next;
	struct client_session *session;
	uint64_t sequence;
	uint8_t *host;
	size_t pitch;
	size_t width;
	size_t height;
	size_t missing;			/* bytes that have not arrived */
	bool owned;			/* freed when the last byte is there */
	bool kept;			/* a graph's: the bytes come as often as it runs */
};

struct client_wait {
	struct client_wait *next;
	struct client_session *session;
	uint64_t sequence;
	_Atomic uint32_t state;		/* enum client_wait_state; waited on */
	bool asleep;			/* its request has left, and another reads the answer */
	CUresult result;
	void *reply;
	size_t reply_bytes;
	uint8_t *tail;			/* malloc'ed by the reader, if wanted */
	size_t tail_bytes;
	bool want_tail;
	bool spins;			/* as the driver would (client_wait_spins) */
	struct client_target *target;
};

enum client_wait_state { WAIT_PENDING, WAIT_DONE, WAIT_LEAD };

/* Work that one stream may hold behind a host function.  A driver queues some 1,000
 * operations and then makes the caller wait; here the caller must wait before the
 * server's reader would, since that must read what the host function answers. */
#define CLIENT_BEHIND_LIMIT 896
/* A share of that: a piece of a copy takes several of a driver's operations. */
#define CLIENT_WEIGHT_HOST_FUNCTION 1
#define CLIENT_WEIGHT_WORK 7
/* Pieces of copies (WIRE_BULK_BYTES each) behind host functions, in all streams: half of
 * the server's staging buffers, for its reader must never wait for one of those. */
#define CLIENT_BEHIND_PIECES 512
#define CLIENT_BEHIND_SLOTS 64

struct client_resume;

struct client_session {
	unsigned index;			/* in client.sessions */
	int driver_version;
	struct client_device *devices;	/* until all sessions are open: then client.devices */
	int device_count;
	struct transport transport;
	struct outbox outbox;
	struct inbox inbox;
	char peer[160];			/* for messages */
	char ending[160];		/* how the server has ended, in its supervisor's words; or empty */
	/* What that is asked with; number 0: nobody can be asked. */
	uint64_t number;
	uint8_t key[WIRE_SECRET_BYTES];	/* wire_resume_key */
	uint8_t lease[WIRE_LEASE_BYTES];	/* what the lease is called in descriptors of its programs */
	char local[108];		/* where the supervisor of this machine listens; or empty */
	uid_t local_user;		/* and whose it is */
	bool stranger;			/* it has refused this user */
	_Atomic uint32_t telling;	/* a thread that has found the connection lost says so */
	uint8_t operations[WIRE_OPERATION_BYTES]; /* bit n: the server has operation n */
	uint16_t major, minor;		/* of the protocol that the server speaks */
	uint64_t connection;		/* wire_hello_connection of the hello that it began with */
	unsigned connections;		/* how many it is to have */
	_Atomic bool connects_late;	/* and the further ones not before something large passes, which it has not */
	bool patient;			/* there are processors for waits that spin as long as the driver's */
	bool keeps_images;		/* and may be asked for one by its digest */
	bool own_lane;			/* the server has WIRE_LANE_OWN */
	_Atomic bool has_conditions;	/* it has given a handle of one */
	struct client_resume *resume;	/* how it goes on after a cut, or NULL: not at all */

	pthread_mutex_t wait_lock;	/* over what follows */
	pthread_cond_t receiver_wake;
	struct client_wait *waits;
	struct client_target *targets;	/* of asynchronous copies */
	struct client_target *finished;	/* to be freed by whoever posts */
	_Atomic unsigned outstanding;	/* host functions and pulled copies */
	unsigned awaited;		/* gates that nothing is paced behind */
	pthread_cond_t settled;		/* outstanding has become 0, or the session is dead */
	unsigned behind[CLIENT_BEHIND_SLOTS]; /* work posted to streams since it was 0 */
	size_t behind_pieces;
	bool leader;			/* somebody reads the inbox */
	struct client_wait *leader_wait; /* what the leader waits for, if it is a caller */
	bool led;			/* a caller has been the leader since the receiver thread last slept */
	bool receiver_parked;		/* the receiver thread waits without a time-out */
	bool receiver_dozes;		/* the receiver thread sleeps, expecting nothing */
	_Atomic uint64_t used_ns;	/* the last answer, or piece of a large copy, was then */
	_Atomic bool dead;
	_Atomic uint8_t failures_said[WIRE_OP_LIMIT];
	_Atomic uint8_t missing_said[WIRE_OP_LIMIT];
};

enum client_state {
	CLIENT_FRESH = 0,
	CLIENT_CONNECTING,		/* some thread is at it */
	CLIENT_CONNECTED,		/* the hello has been answered; no threads */
	CLIENT_READY,			/* cuInit has succeeded */
	CLIENT_FAILED,			/* for good: see client.failure */
	CLIENT_FORKED,			/* the child of a process that used CUDA */
};

/* Whether kernels use pinned memory by its address. */
enum client_mapping {
	MAPPING_NONE,
	MAPPING_SHARED,			/* the server has it at the same address (pinned.c) */
	MAPPING_MANAGED,		/* it is managed memory: FARBUS_MAPPED_MEMORY */
};

struct client_request;
struct client_route;
/* What managed memory has to do when others do something (managed.c). */
struct client_managed {
	/* A call has succeeded; it may have waited for the device, for what was posted until it began. */
	void (*called)(const struct client_route *route, const struct client_request *request, uint64_t since);
	/* Around a host function that a stream (its key) waits for; 0: a graph's. */
	void (*host_begin)(uint64_t stream);
	void (*host_end)(uint64_t stream);
};

/* The shim's only global. */
struct client {
	pthread_mutex_t init;
	_Atomic int state;		/* enum client_state */
	CUresult failure;
	struct client_session sessions[CLIENT_SERVERS];	/* as the session file orders them */
	unsigned session_count;
	_Atomic unsigned lost;		/* sessions that are dead */
	void (*session_lost)(struct client_session *session);	/* where there are several: whom that is told (across.c) */
	_Atomic unsigned contexts_ended;
	struct client_device *devices;	/* as the program numbers them */
	int device_count;
	/* It is NVML's (native/client_nvml): CUDA_VISIBLE_DEVICES is not for it, and its
	 * few small questions are not worth shared memory. */
	bool management;
	int driver_version;
	struct handle_table handles;
	pthread_key_t thread_key;
	_Atomic uint32_t lanes_used[WIRE_LANES / 32];
	_Atomic unsigned long long next_id;
	_Atomic bool several;		/* there may be more contexts than one */
	_Atomic bool ends;		/* the program does, and sessions have been told */
	_Atomic int capturing;		/* captures that go on; never fewer than there are */
	const struct client_managed *_Atomic managed;	/* NULL: there never was any such memory */
	_Atomic uint64_t postings;	/* of work that may use it (active.c): which is the last until now */
	_Atomic bool paging;		/* its pages come when they are touched */
	enum client_mapping mapping;
};

extern struct client farbus_client;

/* Is there one server alone?  Then nothing has to be looked for. */
static inline bool client_alone(void)
{
	return farbus_client.session_count == 1;
}

/* ---- threads (thread.c) ---- */

/* Most contexts that one thread may push. */
#define CLIENT_CONTEXT_STACK 64

struct client_thread {
	bool registered;
	uint16_t lane;
	unsigned per_thread;		/* inside a _ptds or _ptsz entry */
	bool host_function;		/* runs one for a stream: no CUDA call is allowed */
	bool managed;			/* holds the lock of pages.h */
	unsigned guards;		/* client_guard_begin, nested */
	sigset_t signals;		/* blocked before the first of them */
	unsigned depth;
	CUcontext contexts[CLIENT_CONTEXT_STACK];
	CUstreamCaptureMode capture_mode;
};

struct client_thread *client_thread(void);

/* Around holding what a page of managed memory may need to come here: a handler of the
 * program's that touched it then would wait for its own thread.  Blocks signals where there
 * is such memory, else it costs a look.  They nest. */
void client_guard_begin(void);
void client_guard_end(void);
/* Once, by cuInit: `ends` is called on each thread of the program's that has used CUDA when it ends. */
int client_threads_init(void (*ends)(void *thread));
/* Its lane may be another's from here on. */
void client_thread_leave(struct client_thread *thread);

void client_per_thread_begin(void);
void client_per_thread_end(void);

/* The current context, or NULL. */
struct client_context *client_context_current(void);
struct client_context *client_context_get(CUcontext handle);

/* Begin a call that needs a context: initialised, current, not destroyed, no
 * sticky error.  client_enter_any: initialised and connected. */
CUresult client_enter(void);
CUresult client_enter_any(void);
/* The same as client_enter, telling the current context on success. */
CUresult client_enter_context(struct client_context **current);

/* ---- streams and events as handles (streams.c, events.c) ---- */

/* What travels for a handle; the result that CUDA gives for a wrong one. */
CUresult client_stream_wire(CUstream stream, uint64_t *wire);
/* Begin a call about a stream: as client_enter, but one that the program made has a context, so that none
 * need be current. */
CUresult client_enter_stream(CUstream stream);
/* Both, for work that goes into the stream, and the sticky error of its own context. */
CUresult client_stream_enter(CUstream stream, uint64_t *wire);
CUresult client_event_wire(CUevent event, uint64_t *wire);
/* The context that a stream works in, as named on the wire: CUDA's special streams are the
 * current context's.  NULL: there is none. */
struct client_context *client_stream_context(uint64_t stream);
struct client_context *client_event_context(uint64_t event);
/* NULL for one that was never made, is destroyed or has ended with its context. */
struct client_stream *client_stream_find(uint64_t stream);
/* Would the driver spin where this request, made in `context`, waits?  By default it does (cuCtxCreate's and
 * cuEventCreate's flags). */
bool client_wait_spins(CUcontext context, enum wire_op op, const void *fixed);

/* ---- what servers name (route.c) ----
 *
 * Graphs, arrays, pools and their like: a program gets the server's name with the session's
 * index in it, so that names of two servers differ. */

/* The name for the program; 0 stays 0. */
static inline uint64_t client_named_take(const struct client_session *session, uint64_t wire)
{
	return wire ? wire | session->index : 0;
}

/* The server's name, and whose it is; what no server can have named stays as it is, and
 * is the current context's server's to refuse. */
uint64_t client_named_wire(const void *name, struct client_session **session);

/* ---- where a request goes (route.c) ---- */

struct client_request {
	enum wire_op op;
	const void *fixed;
	size_t fixed_bytes;
	const void *tail;
	size_t tail_bytes;
};

/* Where a request goes, and the context that it is made in: its handle, or 0.  `own`: by the lane of the shim's own, if the
 * server knows of it (WIRE_LANE_OWN): it is executed before what others have posted and the server has not begun with. */
struct client_route {
	struct client_session *session;
	uint64_t context;
	bool own;
};

/* The current context's, or the first server's that is there. */
struct client_route client_route_current(void);
/* Is it alive, and not the current one? */
bool client_context_elsewhere(const struct client_context *context);
/* An object's of that context: of the current one, if that is of the same server. */
struct client_route client_route_context(const struct client_context *context);
/* That context's, whichever the current one is: its streams are no other one's. */
static inline struct client_route client_route_made_in(const struct client_context *context, bool own)
{
	return (struct client_route){
		.session = context->session,
		.context = (uint64_t)(uintptr_t)context->handle,
		.own = own,
	};
}
/* A stream's: of its own context. */
struct client_route client_route_stream(uint64_t stream);
/* A primary context at that server; NULL: none is active. */
struct client_context *client_session_context(const struct client_session *session);
/* Something of that server's that no context has. */
struct client_route client_route_session(struct client_session *session);
struct client_session *client_stream_session(uint64_t stream);

/* ---- requests (exchange.c) ---- */

/* These go where the handles in `fixed` belong; where those are of two servers the
 * result is CUDA_ERROR_INVALID_HANDLE, as with objects of two contexts. */
CUresult client_post(enum wire_op op, const void *fixed, size_t fixed_bytes, const void *tail,
		     size_t tail_bytes);
/* The same for what puts work into a stream: while anything is captured, the result is the driver's. */
CUresult client_post_work(enum wire_op op, const void *fixed, size_t fixed_bytes, const void *tail, size_t tail_bytes);
/* Of what has been posted on the route, where that is known already: the driver's result while anything is captured. */
CUresult client_confirm(const struct client_route *route);
/* The same with a tail that may be read where it lies until it is settled. */
CUresult client_post_lent(enum wire_op op, const void *fixed, size_t fixed_bytes, const void *tail,
			  size_t tail_bytes);
void client_settle(const void *at, size_t bytes);
CUresult client_call(enum wire_op op, const void *fixed, size_t fixed_bytes, void *reply,
		     size_t reply_bytes);
/* A call with a tail in either direction, or whose bytes go to a target.  The
 * caller sets reply, reply_bytes, want_tail and target of `wait`. */
CUresult client_call_wide(const struct client_request *request, struct client_wait *wait);
/* The same to where the caller says. */
CUresult client_call_to(const struct client_route *route, const struct client_request *request,
			struct client_wait *wait);
CUresult client_post_to(const struct client_route *route, const struct client_request *request);
/* The same; `on_sequence` is told the request's sequence before anything of it can come back. */
CUresult client_post_registered(const struct client_route *route, const struct client_request *request,
				void (*on_sequence)(void *opaque, uint64_t sequence), void *opaque);
CUresult client_post_on(const struct client_route *route, enum wire_op op, const void *fixed,
			size_t fixed_bytes, const void *tail, size_t tail_bytes);
/* What was posted leaves now.  0, or -errno. */
int client_flush(struct client_session *session);
/* A call of the shim's own: what it reports of earlier work is still the program's to be told.
 * The call's own result. */
CUresult client_call_own(const struct client_route *route, const struct client_request *request,
			 struct client_wait *wait);
/* No thread of the program reads the inbox any more (pages.h): whoever reads for all must not be
 * interrupted by a handler that waits for a page. */
void client_session_unlead(struct client_session *session);
/* Post a request whose answer is data for `target`, which it takes over. */
CUresult client_post_target(const struct client_request *request, struct client_target *target);
CUresult client_post_target_to(const struct client_route *route, const struct client_request *request,
			       struct client_target *target);

/* Has the session's server the operation?  An older one may not; the hello says. */
static inline bool client_session_has(const struct client_session *session, enum wire_op op)
{
	return session->operations[op / 8] >> op % 8 & 1;
}

/* ---- who reads (receive.c), and what has failed (failure.c) ---- */

int client_session_start(struct client_session *session);
/* The connection is lost: say so once, wake everybody. */
void client_session_fail(struct client_session *session, int error);
/* May this CUresult only be got rid of by ending the context? */
bool client_result_is_sticky(CUresult result);

/* ---- before more is posted (stream.c, pace.c) ---- */

/* Wait until this process may do what a stream would do next, with what that waits for of the legacy stream and others. */
CUresult client_stream_reach(uint64_t stream);
/* Wait, if needed, before posting more work to a stream (named as on the wire), with
 * that many pieces of copies. */
void client_stream_pace(uint64_t stream, unsigned weight, size_t pieces);

/* ---- what else many need ---- */

/* Where the current context's device has its multiprocessors; both malloc'ed (device.c). */
CUresult client_device_layout(uint8_t **gpcs, uint8_t **numbers);

/* Move a descriptor to a high number; where none is free, it stays.  Its number now. */
int client_raise_descriptor(int descriptor);
/* One line on stderr: "farbus: ...". */
void client_message(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Its two halves, for who holds a lock: the line on stderr, and in the log, whose callbacks are the program's. */
struct client_line {
	char text[512];
	size_t length;
};
void client_line_write(struct client_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
void client_line_log(const struct client_line *line);
/* Keep a line for cuLogs*, and tell those who have asked (log.c). */
void client_log(const char *line, size_t length);
/* This thread reads for all, so that it can't call and wait for a reply; it does no longer: tell callbacks what was
 * logged meanwhile. */
void client_log_lead(void);
void client_log_led(void);

#endif
