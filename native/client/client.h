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
	_Atomic int ending_thread;	/* ends the program, and sessions have been told; 0: none does (thread.h) */
	uint64_t ends_ns;		/* since when */
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

/* Is any stream being captured?  Else no server need be asked. */
static inline bool client_captures(void)
{
	return atomic_load_explicit(&farbus_client.capturing, memory_order_relaxed) > 0;
}

/* Has the program managed memory?  Else that costs nothing. */
static inline bool client_managed_any(void)
{
	return atomic_load_explicit(&farbus_client.managed, memory_order_relaxed) != NULL;
}

/* Do its pages come when they are touched?  Then the receiver thread alone reads. */
static inline bool client_paging(void)
{
	return atomic_load_explicit(&farbus_client.paging, memory_order_relaxed);
}

/* Has the session's server the operation?  An older one may not; the hello says. */
static inline bool client_session_has(const struct client_session *session, enum wire_op op)
{
	return session->operations[op / 8] >> op % 8 & 1;
}

#endif
