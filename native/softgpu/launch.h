/* launch.h - one running grid, and what a thread needs to run its blocks. */
#ifndef FARBUS_SOFTGPU_LAUNCH_H
#define FARBUS_SOFTGPU_LAUNCH_H

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>

#include "warp.h"

#define GRID_WORKSPACE_WORDS 64

struct launch {
	const struct engine_launch *request;
	const struct engine_function *function;
	uint64_t block_total;
	/* A gang is what must run together on one thread: one block of an ordinary
	 * launch, a cluster, or the whole of a cooperative launch. */
	uint64_t gang_total, gang_blocks;
	uint32_t cluster[3], cluster_blocks;
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
	uint64_t member_count;

	uint64_t helpers_due;		/* time stamp counter; 0: no helpers to call */
	struct warp *running;

	jmp_buf recover;		/* where errors in a kernel unwind to */
	enum engine_status status;
	uintptr_t fault_address;
	struct engine_diagnostic why;
};

/* ---- block.c ---- */
/* Run gangs of the launch until none is left or it fails. */
void slot_run(struct slot *slot, struct launch *launch);
/* Room for a gang; nothing to do when the launch before was alike. */
enum engine_status slot_prepare(struct slot *slot, const struct launch *launch,
				struct engine_diagnostic *why);
void slot_release(struct slot *slot);

/* ---- pool.c ---- */
extern struct engine_options pool_options;
void pool_run(struct launch *launch);
void pool_call_helpers(struct launch *launch);
void pool_fail(struct launch *launch, enum engine_status status,
	       const struct engine_diagnostic *why);

/* ---- fault.c ---- */
void fault_handlers_install(void);
/* From here to fault_disarm, SIGSEGV and SIGBUS of this thread unwind to
 * slot->recover with slot->status and why set. */
void fault_arm(struct slot *slot);
/* Returns the slot that was armed, to arm it again. */
struct slot *fault_disarm(void);

/* ---- print.c ---- */
/* Format as CUDA's printf does and hand the text to the launch's callback. */
int print_format(struct launch *launch, const char *format, const char *arguments);
void print_text(struct launch *launch, const char *text, size_t length);

uint64_t clock_monotonic_ns(void);

static inline uint64_t time_stamp_counter(void)
{
	return __builtin_ia32_rdtsc();
}

#endif
