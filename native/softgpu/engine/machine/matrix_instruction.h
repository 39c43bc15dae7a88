/* matrix_instruction.h - a matrix instruction as decode/matrix.c hands it to handlers/matrix.c. */
#ifndef FARBUS_SOFTGPU_MATRIX_INSTRUCTION_H
#define FARBUS_SOFTGPU_MATRIX_INSTRUCTION_H

#include <stdbool.h>
#include <stdint.h>

#define MATRIX_REGISTERS_MAX 16

enum matrix_element {
	ELEMENT_F16, ELEMENT_BF16, ELEMENT_TF32, ELEMENT_F32, ELEMENT_F64,
	ELEMENT_S8, ELEMENT_U8, ELEMENT_S32, ELEMENT_E4M3, ELEMENT_E5M2,
};

/* Where the elements of a fragment lie. */
enum matrix_layout {
	LAYOUT_MMA_A, LAYOUT_MMA_B, LAYOUT_MMA_C,	/* PTX ISA, "Matrix fragments for mma" */
	LAYOUT_LINEAR,		/* wmma, which leaves it open: lane l has the l-th share, row by row */
};

struct matrix_fragment {
	enum matrix_element element;
	enum matrix_layout layout;
	uint8_t rows, columns;
	uint8_t register_count;
	int32_t slots[MATRIX_REGISTERS_MAX];
};

/* The scales of an operand, powers of two (ue8m0): which byte of a register, of which lanes of each four. */
struct matrix_scale {
	int32_t data, byte, thread;	/* slots; data -1: none */
};

struct matrix_operation {
	struct matrix_fragment a, b, c, d;
	struct matrix_scale scale_a, scale_b;
	bool saturates;		/* .satfinite of integers */
	bool is_tile;		/* fragments of mma that handlers/matrix_tile.h knows */
};

/* wmma.load and wmma.store */
struct matrix_transfer {
	struct matrix_fragment fragment;
	bool column_major;
	bool is_shared;
	int32_t address_slot;
	int32_t stride_slot;	/* in elements, 32 bits */
	int64_t offset;
};

#endif
