/* state.h - the state of a running block and its warps.
 *
 * A warp is a set of *fragments*: lanes that stand at one instruction in one
 * call frame.  The deepest frame runs first, then the lowest instruction;
 * where a fragment reaches a label at or behind which another one of its frame
 * waits, the two may merge.  No control-flow analysis is needed.  Back edges
 * and calls burn fuel; without fuel the turn ends and the fragment that ran
 * longest ago is next, so that a lane may wait for another lane of its warp.
 */
#ifndef FARBUS_SOFTGPU_STATE_H
#define FARBUS_SOFTGPU_STATE_H

#include <setjmp.h>

#include "../loaded.h"

#define WARP_LANES 32
#define WARP_FUEL 2000			/* back edges a turn: tens of microseconds */
#define BLOCK_BARRIERS 16		/* PTX: barrier resources of a block */
#define CLUSTER_BARRIER BLOCK_BARRIERS	/* the number under which barrier.cluster waits */
#define WARPGROUP_BARRIER (CLUSTER_BARRIER + 1)	/* the same of wgmma */
#define CLUSTER_BLOCKS_MAX 16		/* CUDA: with the non-portable cluster size allowed */
#define CALL_DEPTH_MAX 4096		/* frames; the local stack usually ends before */
#define LOCAL_STACK_BYTES (64u << 10)	/* per lane, beyond the kernel's own frame */
#define REGISTER_STACK_BYTES (16u << 20)	/* per warp, beyond the kernel's own window */

struct launch;
struct slot;

struct call_argument {
	int32_t offset;		/* in the caller's local frame */
	uint32_t bytes;
};

struct call_site {
	struct engine_function *callee;	/* NULL: through a register */
	struct call_argument *arguments;
	uint32_t argument_count;
	bool has_result;
	struct call_argument result;
};

struct jump_table {
	uint32_t count;
	const struct instruction **targets;
	uint32_t *indices;	/* while decoding */
};

struct frame {
	struct frame *caller;
	const struct instruction *return_to;
	const struct call_site *site;
	const struct engine_function *function;
	char *registers;	/* a window of its own: lanes of one register lie where another
				 * function has lanes of another */
	struct frame *below;	/* whose window ends where this one starts */
	size_t local_offset;
	uint32_t depth;
	uint32_t references;	/* fragments in it, and frames called from it */
	struct frame *next_owned;	/* all frames that the warp has allocated */
};

enum fragment_state {
	FRAGMENT_READY,
	FRAGMENT_AT_BARRIER,	/* bar.sync: until the barrier completes */
	FRAGMENT_AT_WARP_SYNC,	/* shfl.sync and its kind: until its lanes have come */
};

struct fragment {
	const struct instruction *ip;
	struct frame *frame;
	uint32_t mask;
	uint8_t state;
	uint8_t barrier;
	uint64_t last_turn;
};

struct warp {
	/* of the running fragment */
	char *registers;
	uint32_t mask;
	uint32_t guarded_mask;		/* mask to restore behind a guarded instruction */
	const struct instruction *merge_at;	/* lowest place where another fragment waits */
	int32_t fuel;
	uint32_t carry;			/* condition code: a bit a lane */
	struct frame *frame;
	size_t local_offset;

	/* fixed for a block */
	char *shared;
	uint32_t shared_bytes;
	uint32_t alignment_checked;	/* ~0 in strict mode, else 0 */
	const char *parameters;
	char *local;			/* lane 0; the next lane is local_stride further */
	size_t local_stride;
	struct block *block;
	uint32_t index;

	uint64_t reach_base, reach_bytes;	/* memory that the device may use (reach.c) */
	const struct instruction *ip;	/* last one that may fault */
	uint32_t live;			/* lanes that have not exited */
	uint32_t fragment_count;
	uint64_t turn;
	uint32_t cluster_parity;	/* a bit a lane: of the phase in which it arrived last */
	bool force_sync;		/* let an incomplete warp-wide operation proceed */
	bool rotate;			/* the oldest fragment is next, not the deepest */
	bool preempted;
	struct warpgroup_results *unfinished;	/* in strict mode: of wgmma (warpgroup.h) */
	struct frame *free_frames, *owned_frames;
	struct frame *top_window;
	char *register_base;
	size_t register_bytes;
	struct frame root;		/* the kernel's own frame */
	struct fragment fragments[WARP_LANES];
	uint32_t thread_index[3][WARP_LANES] __attribute__((aligned(64)));
};

struct barrier {
	uint32_t arrived;	/* threads */
	uint32_t expected;	/* threads; 0: all that live */
	uint32_t population;	/* bar.red: threads with a true predicate */
	uint32_t result;	/* population of the completed phase */
	uint32_t result_threads;
};

/* Blocks that run together and see each other's shared memory (cluster.c). */
struct cluster {
	uint32_t count;
	uint32_t arrived;		/* threads, at barrier.cluster */
	uint32_t parity;		/* of the barrier's phase: 0 or ~0 */
	struct block *blocks[CLUSTER_BLOCKS_MAX];	/* by rank */
};

struct block {
	struct warp *warps;
	uint32_t warp_count;
	uint32_t live;			/* threads */
	uint32_t barriers_in_use;	/* a bit each, CLUSTER_BARRIER's too */
	uint32_t index[3];
	uint32_t rank;			/* in the cluster */
	struct cluster *cluster;	/* `alone` without a cluster launch */
	struct cluster alone;
	struct strict_block *strict;	/* NULL without strict mode */
	char *shared;
	uint32_t shared_bytes;		/* static and dynamic */
	uint32_t dynamic_offset;
	struct barrier barriers[BLOCK_BARRIERS];
	struct launch *launch;
	struct slot *slot;
};

/* ---- fragments (warp.c) ---- */
const struct instruction *warp_resume(struct warp *warp);
const struct instruction *warp_split(struct warp *warp, const struct instruction *branch,
				     uint32_t taken);
const struct instruction *warp_preempt(struct warp *warp, const struct instruction *next);
const struct instruction *warp_merge(struct warp *warp, const struct instruction *label);
const struct instruction *warp_call(struct warp *warp, const struct instruction *call,
				    struct engine_function *callee);
const struct instruction *warp_call_indirect(struct warp *warp, const struct instruction *call);
const struct instruction *warp_return(struct warp *warp);
const struct instruction *warp_exit(struct warp *warp);
const struct instruction *warp_jump(struct warp *warp, const struct instruction *jump);
/* True: all lanes of `lanes` that can still come are here.  False: the
 * fragment waits, go on at *next. */
bool warp_sync(struct warp *warp, const struct instruction *instruction, uint32_t lanes,
	       const struct instruction **next);
/* Take in the fragments that stand at the same instruction of the same frame. */
void warp_join_same_place(struct warp *warp, const struct instruction *instruction);
/* After fragments changed while one runs. */
void warp_find_merge_point(struct warp *warp);
void warp_add_fragment(struct warp *warp, const struct instruction *ip, uint32_t mask,
		       struct frame *frame, enum fragment_state state, unsigned barrier);
/* What is the same for all blocks that the warp runs for a launch. */
void warp_set_kernel(struct warp *warp, const struct engine_function *kernel);
/* Start a warp at the kernel's first instruction. */
void warp_start(struct warp *warp, uint32_t live);
/* After an error: whatever was called is called no more. */
void warp_reclaim_frames(struct warp *warp);
bool warp_is_ready(const struct warp *warp);
/* Fill the slots of constants in a register window. */
void frame_set_constants(const struct engine_function *function, char *registers, uint32_t mask);

/* ---- errors (fault.c) ---- */
/* End the launch with an error; does not return. */
_Noreturn void warp_fail(struct warp *warp, enum engine_status status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* ---- operations across lanes (collective.c) ---- */
/* Executes one for the lanes of warp->mask, which all name `members`. */
typedef void (*collective_fn)(struct warp *warp, const struct instruction *instruction,
			      uint32_t members);
/* The member mask is in the register `y`; `operands` as in struct form.  Returns what comes next. */
const struct instruction *warp_collective(struct warp *warp, const struct instruction *instruction,
					  collective_fn run, const char *operands);

/* ---- barriers: what they have counted (barrier.c), and a warp that comes to one (arrive.c) ---- */
/* Let who waits go on, if all have come. */
void barrier_complete_if_full(struct block *block, unsigned index);
/* The same of the cluster's barrier: threads that have exited need not arrive. */
void cluster_recheck(struct block *block);
/* After threads have exited: barriers that waited for them may be complete. */
void barrier_recheck(struct block *block);
enum barrier_mode { BARRIER_SYNC, BARRIER_ARRIVE, BARRIER_REDUCE };
const struct instruction *barrier_arrive(struct warp *warp, const struct instruction *instruction);

/* ---- clusters (cluster.c) ---- */
/* The memory behind an address of the .shared::cluster window, `bytes` of it. */
char *cluster_memory(struct warp *warp, const struct instruction *instruction, uint32_t address,
		     uint32_t bytes);
/* The block of the cluster whose shared memory holds `pointer`, or NULL. */
static inline struct block *cluster_block_at(const struct warp *warp, uint64_t pointer)
{
	const struct cluster *cluster = warp->block->cluster;

	for (uint32_t k = 0; k < cluster->count; k++) {
		struct block *block = cluster->blocks[k];

		if (pointer - (uint64_t)(uintptr_t)block->shared < block->shared_bytes)
			return block;
	}
	return NULL;
}
extern const struct form_table forms_cluster, forms_mbarrier, forms_narrow, forms_video, forms_wide,
	forms_texture, forms_surface, forms_reach, forms_tensor;

/* ---- memory of other devices (reach.c) ---- */
/* Ends the launch when the device may not use all of it. */
void reach_memory(struct warp *warp, const struct instruction *instruction, uint64_t pointer,
		  uint64_t bytes);

/* ---- multicast addresses (multimem.c) ---- */
/* How far behind found->base an address lies, where `found` is what it last was: asks anew where that does not hold
 * all of `bytes`.  Ends the launch when it is no address of a multicast object. */
uint64_t multimem_offset(struct warp *warp, const struct instruction *instruction, uint64_t address, uint32_t bytes,
			 struct engine_replicas *found);
bool multimem_is_at(const struct launch *launch, uint64_t address);

/* ---- functions that the engine provides (builtin.c) ---- */
handler_fn builtin_handler(const char *name);

/* ---- special registers that are the same for all lanes (special.c) ---- */
enum special_register {
	SPECIAL_NTID_X, SPECIAL_NTID_Y, SPECIAL_NTID_Z,
	SPECIAL_CTAID_X, SPECIAL_CTAID_Y, SPECIAL_CTAID_Z,
	SPECIAL_NCTAID_X, SPECIAL_NCTAID_Y, SPECIAL_NCTAID_Z,
	SPECIAL_WARPID, SPECIAL_NWARPID, SPECIAL_SMID, SPECIAL_NSMID, SPECIAL_GRIDID,
	SPECIAL_CLOCK, SPECIAL_CLOCK_HI, SPECIAL_CLOCK64, SPECIAL_GLOBALTIMER,
	SPECIAL_GLOBALTIMER_LO, SPECIAL_GLOBALTIMER_HI,
	SPECIAL_TOTAL_SHARED, SPECIAL_DYNAMIC_SHARED, SPECIAL_AGGREGATE_SHARED,
	SPECIAL_ENVREG_WORKSPACE_HIGH, SPECIAL_ENVREG_WORKSPACE_LOW,
	SPECIAL_CLUSTERID_X, SPECIAL_CLUSTERID_Y, SPECIAL_CLUSTERID_Z,
	SPECIAL_NCLUSTERID_X, SPECIAL_NCLUSTERID_Y, SPECIAL_NCLUSTERID_Z,
	SPECIAL_CLUSTER_CTAID_X, SPECIAL_CLUSTER_CTAID_Y, SPECIAL_CLUSTER_CTAID_Z,
	SPECIAL_CLUSTER_NCTAID_X, SPECIAL_CLUSTER_NCTAID_Y, SPECIAL_CLUSTER_NCTAID_Z,
	SPECIAL_CLUSTER_CTARANK, SPECIAL_CLUSTER_NCTARANK, SPECIAL_IS_EXPLICIT_CLUSTER,
};
uint64_t special_read(const struct warp *warp, enum special_register which);

#endif
