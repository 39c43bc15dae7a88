/* mbarrier.h - what decode_cluster.c and mbarrier.c agree on. */
#ifndef FARBUS_SOFTGPU_MBARRIER_H
#define FARBUS_SOFTGPU_MBARRIER_H

#include <stdint.h>

#define BULK_UNIT 16	/* bytes: what sizes and addresses of bulk copies are multiples of */

/* instruction.x of mbarrier.arrive */
enum mbarrier_arrive { ARRIVE_DROPS = 1 };

enum bulk_operation {
	BULK_COPY, BULK_ADD, BULK_MIN, BULK_MAX, BULK_INC, BULK_DEC, BULK_AND, BULK_OR, BULK_XOR,
};

/* A bulk copy or reduction, a store or reduction of st.async and red.async. */
struct bulk_copy {
	enum bulk_operation operation;
	uint8_t element_bytes;	/* of a reduction */
	char element_kind;	/* as in struct ptx_type */
	int32_t to, from;	/* slots of pointers */
	int32_t size;		/* slot, bytes */
	int32_t barrier;	/* slot of a pointer, or -1 */
	int32_t ranks;		/* slot of the multicast mask, or -1 */
	int32_t bytes_mask;	/* slot of .cp_mask, or -1 */
};

#endif
