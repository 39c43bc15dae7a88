/* running.h - one running grid, and what a thread needs to run its blocks. */
#ifndef FARBUS_SOFTGPU_RUNNING_H
#define FARBUS_SOFTGPU_RUNNING_H

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>

#include "machine/state.h"

#define GRID_WORKSPACE_WORDS 64

/* What stays on one thread as long as it has it: the blocks of a cluster, or one
 * block. */
struct unit {
	struct unit *next;
	struct slot *members;		/* launch->cluster_blocks of them */
};

/* The threads that run a cooperative launch together: its units are theirs, each
 * with one thread.  A thread without units waits until another one, at the end of a
 * round of turns, gives it half of its own. */
struct crew {
	pthread_mutex_t mutex;
	pthread_cond_t changed;		/* something is offered, or less is live */
	struct unit *offered;		/* under the mutex: to the first that takes them */
	_Atomic unsigned threads;	/* changed under the mutex */
	_Atomic unsigned hungry;	/* threads that wait for units */
	_Atomic uint64_t live;		/* units that have not ended; 0 without a crew */
};

struct launch {
	const struct engine_launch *request;
	const struct engine_function *function;
	uint64_t block_total;
	/* A gang is what must run together: one block of an ordinary launch, a
	 * cluster, or the whole of a cooperative launch, which a crew runs. */
	uint64_t gang_total, gang_blocks;
	uint32_t cluster[3], cluster_blocks;
	struct crew crew;
	uint32_t multiprocessors;	/* that the blocks may use */
	unsigned helpers_most;		/* threads beside the one that launches */
	int32_t fuel;			/* back edges of a warp's turn */
	bool is_explicit_cluster;
	uint32_t number;		/* in strict mode */
	bool noted;			/* a read of shared memory that is not written */
	uint32_t threads_per_block;
	uint32_t warps_per_block;
	uint32_t local_stride;		/* bytes a lane */
	size_t register_bytes;		/* a warp */
	uint32_t dynamic_offset, shared_bytes;
	uint64_t deadline_ns;		/* CLOCK_MONOTONIC; 0: none */

	_Atomic uint64_t next_gang;
	_Atomic int status;		/* enum engine_status: the first error wins */
	struct engine_diagnostic why;	/* of that error, under pool.mutex */

	/* Under pool.mutex: */
	struct launch *next;		/* in the queue for helpers */
	bool is_queued;
	unsigned helpers;		/* threads other than the caller inside */

	/* %envreg1/2 point here: cooperative groups keep the grid barrier in it. */
	uint32_t workspace[GRID_WORKSPACE_WORDS] __attribute__((aligned(64)));
};

/* Memory and state to run one block; kept between launches because mapping
 * it anew costs more than a small grid. */
struct slot {
	struct slot *next;		/* while idle */
	struct block block;
	char *memory;			/* shared memory, then the warps' registers and locals */
	size_t memory_bytes;
	struct warp *warps;
	uint32_t warp_capacity;
	/* What the memory is laid out for: nothing to do when the next launch is alike. */
	uint64_t prepared_generation;
	const struct engine_function *prepared_function;
	uint32_t prepared_block[3];
	uint32_t prepared_shared_bytes, prepared_local_stride;
	size_t prepared_register_bytes;

	/* For gangs of several blocks: */
	struct slot *members;
	struct cluster *clusters;
	struct unit *units;
	uint64_t member_count;

	uint64_t helpers_due;		/* time stamp counter; 0: no helpers to call */
	struct warp *running;

	jmp_buf recover;		/* where errors in a kernel unwind to */
	enum engine_status status;
	uintptr_t fault_address;
	struct engine_diagnostic why;
};

/* ---- grid/block.c ---- */
/* Run gangs of the launch until none is left or it fails. */
void slot_run(struct slot *slot, struct launch *launch, bool is_helper);
/* Room for a gang; nothing to do when the launch before was alike. */
enum engine_status slot_prepare(struct slot *slot, const struct launch *launch,
				struct engine_diagnostic *why);
bool slot_prepare_block(struct slot *slot, const struct launch *launch);
void slot_release(struct slot *slot);
/* After a launch, when nobody runs its blocks any more. */
void slot_settle(struct slot *slot, const struct launch *launch);

enum step_result {
	STEP_DONE,
	STEP_AGAIN,
	STEP_WAITS,	/* for other blocks of its cluster */
	STEP_STOP,
};

/* One turn for every warp of the block that can run, on `driver`'s thread. */
enum step_result block_step(struct slot *driver, struct block *block, void (*run)(struct warp *warp));
void block_start(struct block *block, const struct launch *launch, uint64_t number);
_Noreturn void block_fail_deadlocked(struct block *block);
/* Whether the launch is to end early; sets its status when it is the first to say so. */
bool launch_must_stop(struct launch *launch, const struct block *block);

/* ---- grid/gang.c ---- */
/* Run gangs of several blocks until none is left or the launch fails.  A cooperative
 * launch is one gang, in the slot of its first thread: helpers run what they are given. */
void gang_run(struct slot *slot, struct launch *launch, bool is_helper);
/* On the way out of it, also by an error. */
void gang_leave(struct launch *launch);
void gang_release(struct slot *slot);
bool gang_prepare(struct slot *slot, const struct launch *launch);
bool gang_wants_help(const struct launch *launch);

/* ---- grid/pool.c ---- */
extern struct engine_options pool_options;
void pool_run(struct launch *launch);
/* How many threads run the blocks of a launch, the launching one included. */
unsigned pool_threads(void);
void pool_call_helpers(struct launch *launch);
void pool_fail(struct launch *launch, enum engine_status status,
	       const struct engine_diagnostic *why);

/* ---- machine/fault.c ---- */
void fault_handlers_install(void);
/* From here to fault_disarm, SIGSEGV and SIGBUS of this thread unwind to
 * slot->recover with slot->status and why set. */
void fault_arm(struct slot *slot);
/* Returns the slot that was armed, to arm it again. */
struct slot *fault_disarm(void);

/* ---- machine/print.c ---- */
/* Format as CUDA's printf does and hand the text to the launch's callback. */
int print_format(struct launch *launch, const char *format, const char *arguments);
void print_text(struct launch *launch, const char *text, size_t length);

#endif
