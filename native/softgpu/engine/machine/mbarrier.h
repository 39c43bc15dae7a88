/* mbarrier.h - mbarriers and bulk copies: what decode/cluster.c, decode/tensor.c, mbarrier.c and tensor.c agree on. */
#ifndef FARBUS_SOFTGPU_MBARRIER_H
#define FARBUS_SOFTGPU_MBARRIER_H

#include <stdbool.h>
#include <stdint.h>

#include "state.h"

#define BULK_UNIT 16	/* bytes: what sizes and addresses of bulk copies are multiples of */

/* instruction.x of mbarrier.arrive */
enum mbarrier_arrive { ARRIVE_DROPS = 1 };

enum bulk_operation {
	BULK_COPY, BULK_ADD, BULK_MIN, BULK_MAX, BULK_INC, BULK_DEC, BULK_AND, BULK_OR, BULK_XOR,
};

/* How a value gets into memory: BULK_COPY alone, or with what is there. */
struct bulk_reduction {
	enum bulk_operation operation;
	uint8_t element_bytes;
	char element_kind;	/* as in struct ptx_type */
};

/* A bulk copy or reduction, a store or reduction of st.async and red.async. */
struct bulk_copy {
	struct bulk_reduction reduction;
	int32_t to, from;	/* slots of pointers */
	int32_t size;		/* slot, bytes */
	int32_t barrier;	/* slot of a pointer, or -1 */
	int32_t ranks;		/* slot of the multicast mask, or -1 */
	int32_t bytes_mask;	/* slot of .cp_mask, or -1 */
};

/* Each element of `to` becomes what the operation makes of it and of that of `from`, atomically. */
void bulk_reduce(const struct bulk_reduction *reduction, char *to, const char *from, uint32_t size);
/* Memory that a copy uses: ends the launch where it leaves the shared memory of its block, or
 * where the device may not use it. */
void bulk_check_range(struct warp *warp, const struct instruction *instruction, uint64_t pointer,
		      uint32_t size);
/* In strict mode: a copy or reduction of one lane reads `from` and writes `to`, before it does. */
void bulk_note(struct warp *warp, const struct instruction *instruction, unsigned lane, const char *to,
	       const char *from, uint32_t size, bool reduces);
/* The same place in the shared memory of another block of the cluster. */
uint64_t bulk_in_block(struct warp *warp, const struct instruction *instruction, uint64_t pointer,
		       uint32_t rank);
/* The copy that the mbarrier at `pointer` waits for is complete. */
void bulk_signal(struct warp *warp, const struct instruction *instruction, uint64_t pointer,
		 uint32_t size);

#endif
