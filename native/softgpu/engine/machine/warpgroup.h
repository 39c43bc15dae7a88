/* warpgroup.h - wgmma: four warps multiply matrices together (PTX ISA, "Asynchronous warpgroup level matrix
 * instructions").
 *
 * The product is computed at the instruction, by the last of the four warps that comes to it and for all of them, so
 * that a thread behind wgmma.wait_group knows that no warp of its group reads shared memory any more.  In strict mode
 * the results go to their registers where the threads wait for them.
 */
#ifndef FARBUS_SOFTGPU_WARPGROUP_H
#define FARBUS_SOFTGPU_WARPGROUP_H

#include "matrix_instruction.h"
#include "state.h"

#define WARPGROUP_WARPS 4
#define WARPGROUP_DEPTH_BYTES 32	/* of K in a row of A, or a column of B */
#define WARPGROUP_RESULTS_MAX 128	/* registers of D: 256 columns of 32 bits */

struct warpgroup_product {
	enum matrix_element a, b, d;
	bool is_bits;			/* .b1, which counts where both have a bit; a and b say nothing */
	bool a_is_in_registers;
	bool a_is_transposed, b_is_transposed;	/* M or N runs fastest in memory, not K */
	bool negates;			/* one of the two imm-scale is -1 */
	bool saturates;
	uint32_t columns;		/* N */
	uint32_t result_count;
	int32_t a_slots[4];		/* or the descriptor's in the first */
	int32_t b_slot;
	int32_t scale_slot;		/* predicate: D is added to */
	int32_t results[WARPGROUP_RESULTS_MAX];
};

/* All four warps, each with its registers; they stand at one instruction. */
struct warpgroup {
	struct warp *warps[WARPGROUP_WARPS];
	char *registers[WARPGROUP_WARPS];
};

/* True for the last warp that comes, which goes on for all: warpgroup_part lets the others go.  Else this one waits:
 * go on at *next. */
bool warpgroup_meet(struct warp *warp, const struct instruction *instruction, struct warpgroup *group,
		    const struct instruction **next);
void warpgroup_part(struct warp *warp, const struct warpgroup *group);

/* ---- in strict mode: results that nothing has waited for ---- */

/* They are kept apart, and their registers are not numbers: who reads them too early sees it.  Without memory they stay
 * where they are. */
void warpgroup_hold(const struct warpgroup *group, const struct warpgroup_product *product);
/* Before the same registers are added to: this needs no wait. */
void warpgroup_take_back(const struct warpgroup *group, const struct warpgroup_product *product);
/* Those of groups up to this number are there. */
void warpgroup_release(struct warp *warp, uint32_t number);
void warpgroup_forget(struct warp *warp);

#endif
