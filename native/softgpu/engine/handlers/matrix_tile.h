/* matrix_tile.h - products of sixteen rows and eight columns at a time, as registers of mma and wgmma hold them.
 *
 * Operands become doubles, in which products are exact; a sum is rounded once, when it is stored.  That is at least as
 * close to the exact result as the hardware's own order of additions.
 */
#ifndef FARBUS_SOFTGPU_MATRIX_TILE_H
#define FARBUS_SOFTGPU_MATRIX_TILE_H

#include "matrix_element.h"

#define TILE_ROWS 16
#define LINES 8			/* columns of a tile */
#define LINE_BYTES 32		/* most of a row of A, or a column of B, for one instruction */
#define DEPTH_MAX 32		/* of 8-bit elements */

/* As much of a tile's row as a register of the processor holds. */
#if defined(__AVX512F__)
#define PIECE 8
#elif defined(__AVX__)
#define PIECE 4
#else
#define PIECE 2
#endif
typedef f64 piece __attribute__((vector_size(PIECE * sizeof(f64))));

/* Rows of A, or columns of B, as they lie in memory along K. */
struct lines {
	u8 at[LINES][LINE_BYTES];
};

struct rows {
	u8 bytes[TILE_ROWS][LINE_BYTES];
	f64 at[TILE_ROWS][DEPTH_MAX];
};

struct tile {
	f64 at[TILE_ROWS][LINES] __attribute__((aligned(64)));
};

/* Eight columns of B, as rows. */
struct columns {
	f64 at[DEPTH_MAX][LINES] __attribute__((aligned(64)));
};

#define READ_LINE(element)                                                                     \
	case element:                                                                          \
		for (u32 k = 0; k < bytes / bytes_of(element); k++)                            \
			values[k] = read_element(element, (const char *)line + k * bytes_of(element)); \
		break

static inline void line_widen(enum matrix_element element, const u8 *line, u32 bytes, f64 *values)
{
	switch (element) {
	READ_LINE(ELEMENT_F16);
	READ_LINE(ELEMENT_BF16);
	READ_LINE(ELEMENT_TF32);
	READ_LINE(ELEMENT_E4M3);
	READ_LINE(ELEMENT_E5M2);
	READ_LINE(ELEMENT_S8);
	default:
	READ_LINE(ELEMENT_U8);
	}
}

/* A: four lanes have sixteen bytes of a row, a register each four of them; every second register is eight rows below. */
static inline void rows_load(struct rows *rows, const char *registers, const s32 *slots, u32 count)
{
	for (u32 k = 0; k < count; k++) {
		const char *values = registers + slots[k];

		for (u32 lane = 0; lane < WARP_LANES; lane++)
			memcpy(&rows->bytes[lane / 4 + 8 * (k & 1)][lane % 4 * 4 + 16 * (k >> 1)], values + 4 * lane, 4);
	}
}

static inline void rows_widen(struct rows *rows, enum matrix_element element, u32 bytes, f64 sign)
{
	for (u32 row = 0; row < TILE_ROWS; row++) {
		line_widen(element, rows->bytes[row], bytes, rows->at[row]);
		for (u32 k = 0; k < bytes / bytes_of(element); k++)
			rows->at[row][k] *= sign;
	}
}

/* B: the same, of eight columns. */
static inline void lines_load(struct lines *lines, const char *registers, const s32 *slots, u32 count)
{
	for (u32 k = 0; k < count; k++) {
		const char *values = registers + slots[k];

		for (u32 lane = 0; lane < WARP_LANES; lane++)
			memcpy(&lines->at[lane / 4][lane % 4 * 4 + 16 * k], values + 4 * lane, 4);
	}
}

static inline void columns_widen(struct columns *columns, const struct lines *lines, enum matrix_element element,
				 u32 bytes)
{
	f64 values[DEPTH_MAX];

	for (u32 column = 0; column < LINES; column++) {
		line_widen(element, lines->at[column], bytes, values);
		for (u32 k = 0; k < bytes / bytes_of(element); k++)
			columns->at[k][column] = values[k];
	}
}

/* C and D: registers of 32 bits go in pairs, each with one of two neighbours in a row, for four lanes a row; the second
 * pair, or the second register of f16, has the rows eight below. */
static inline void tile_load(struct tile *tile, const char *registers, const s32 *slots, enum matrix_element element,
			     u32 rows)
{
	for (u32 index = 0; index < rows; index++) {
		f64 *row = tile->at[index];
		u32 half = index / 8, at = index % 8 * 16;

		if (element == ELEMENT_F16) {
			const u16 *values = (const u16 *)(registers + slots[half] + at);

			for (u32 k = 0; k < LINES; k++)
				row[k] = f64_of_f16(values[k]);
			continue;
		}
		for (u32 part = 0; part < 2; part++) {
			const char *values = registers + slots[2 * half + part] + at;

			if (element == ELEMENT_F32)
				for (u32 k = 0; k < 4; k++)
					row[2 * k + part] = (f64)((const f32 *)values)[k];
			else
				for (u32 k = 0; k < 4; k++)
					row[2 * k + part] = (f64)((const s32 *)values)[k];
		}
	}
}

static inline void tile_store(const struct tile *tile, char *registers, const s32 *slots, enum matrix_element element,
			      u32 rows, bool saturates)
{
	for (u32 index = 0; index < rows; index++) {
		const f64 *row = tile->at[index];
		u32 half = index / 8, at = index % 8 * 16;

		if (element == ELEMENT_F16) {
			f16 *values = (f16 *)(registers + slots[half] + at);

			for (u32 k = 0; k < LINES; k++)
				values[k] = f16_of_f64(row[k]);
			continue;
		}
		for (u32 part = 0; part < 2; part++) {
			char *values = registers + slots[2 * half + part] + at;

			if (element == ELEMENT_F32)
				for (u32 k = 0; k < 4; k++)
					((f32 *)values)[k] = (f32)row[2 * k + part];
			else
				for (u32 k = 0; k < 4; k++)
					write_element(ELEMENT_S32, values + 4 * k, row[2 * k + part], saturates);
		}
	}
}

#define ROWS_AT_ONCE 8

static inline void tile_add(struct tile *tile, const struct rows *a, const struct columns *b, u32 depth, u32 rows)
{
	for (u32 first = 0; first < rows; first += ROWS_AT_ONCE) {
		for (u32 column = 0; column < LINES; column += PIECE) {
			piece sums[ROWS_AT_ONCE];

			for (u32 row = 0; row < ROWS_AT_ONCE; row++)
				sums[row] = *(const piece *)&tile->at[first + row][column];
			for (u32 k = 0; k < depth; k++)
				for (u32 row = 0; row < ROWS_AT_ONCE; row++)
					sums[row] += a->at[first + row][k] * *(const piece *)&b->at[k][column];
			for (u32 row = 0; row < ROWS_AT_ONCE; row++)
				*(piece *)&tile->at[first + row][column] = sums[row];
		}
	}
}

#endif
