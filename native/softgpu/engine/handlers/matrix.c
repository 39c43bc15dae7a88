/* matrix.c - matrix multiply-accumulate of a warp (PTX ISA 9.7.14).
 *
 * Most products of mma are made by tiles (matrix_tile.h).  Other fragments are
 * gathered into plain matrices, multiplied, and scattered.  Sums
 * of floats are kept in double and rounded once, which is at least as close to
 * the exact result as the hardware's own order of additions.
 */
#include "../machine/strict.h"
#include "matrix_tile.h"

#define ROWS_MAX 32
#define COLUMNS_MAX 32

struct matrix {
	f64 at[ROWS_MAX][COLUMNS_MAX];
};

/* Visit the elements of a fragment: lane, byte in its registers, row, column. */
struct place {
	u32 index;	/* of the element among the lane's own */
	u32 row, column;
};

static u32 elements_per_lane(const struct matrix_fragment *fragment)
{
	return (u32)fragment->rows * fragment->columns / WARP_LANES;
}

static struct place place_of(const struct matrix_fragment *fragment, u32 lane, u32 index)
{
	u32 group = lane >> 2, thread = lane & 3;
	u32 bytes = bytes_of(fragment->element);
	u32 packed = bytes < 4 ? 4 / bytes : 1;		/* elements in a register */
	u32 reg = index / packed, part = index % packed;
	u32 linear = lane * elements_per_lane(fragment) + index;

	switch (fragment->layout) {
	case LAYOUT_MMA_A:
		return (struct place){ index, group + 8 * (reg & 1),
				       thread * packed + part + 4 * packed * (reg >> 1) };
	case LAYOUT_MMA_B:
		return (struct place){ index, thread * packed + part + 4 * packed * reg, group };
	case LAYOUT_MMA_C:
		return (struct place){ index, group + 8 * (index >> 1), thread * 2 + (index & 1) };
	default:
		return (struct place){ index, linear / fragment->columns, linear % fragment->columns };
	}
}

static char *element_address(const struct warp *w, const struct matrix_fragment *fragment,
			     u32 lane, u32 index)
{
	u32 offset = index * bytes_of(fragment->element);

	if (fragment->element == ELEMENT_F64)
		return w->registers + fragment->slots[index] + lane * 8;

	return w->registers + fragment->slots[offset / 4] + lane * 4 + offset % 4;
}

static void gather(const struct warp *w, const struct matrix_fragment *fragment,
		   struct matrix *matrix)
{
	for (u32 lane = 0; lane < WARP_LANES; lane++) {
		for (u32 k = 0; k < elements_per_lane(fragment); k++) {
			struct place place = place_of(fragment, lane, k);

			matrix->at[place.row][place.column] = read_element(
				fragment->element, element_address(w, fragment, lane, k));
		}
	}
}

/* Fragments of mma, of all but f64: by tiles. */
static void multiply_tile(const struct warp *w, const struct matrix_operation *operation)
{
	const struct matrix_fragment *a = &operation->a, *b = &operation->b;
	u32 bytes = b->register_count * 16u;
	struct rows rows;
	struct lines lines;
	struct columns columns;
	struct tile tile;

	if (a->rows < TILE_ROWS)
		memset(rows.bytes, 0, sizeof(rows.bytes));
	rows_load(&rows, w->registers, a->slots, a->register_count);
	rows_widen(&rows, a->element, bytes, 1);
	lines_load(&lines, w->registers, b->slots, b->register_count);
	columns_widen(&columns, &lines, b->element, bytes);
	tile_load(&tile, w->registers, operation->c.slots, operation->c.element, a->rows);
	tile_add(&tile, &rows, &columns, bytes / bytes_of(b->element), a->rows);
	tile_store(&tile, w->registers, operation->d.slots, operation->d.element, a->rows, operation->saturates);
}

/* The scale of a line (PTX ISA, "Block scaling for mma.sync"): of A two lanes of the four have those of row r and r + 8,
 * of B one has that of the column. */
static f64 scale_of(const struct warp *w, const struct matrix_scale *scale, u32 line, bool of_rows)
{
	u32 thread = REGISTER(u16, scale->thread)[0], byte = REGISTER(u16, scale->byte)[0] & 3;
	u32 lane = line % 8 * 4 + (of_rows ? (thread & 1) * 2 + line / 8 : thread & 3);
	u32 exponent = REGISTER(u32, scale->data)[lane] >> 8 * byte & 0xff;

	return exponent == 0xff ? (f64)NAN : ldexp(1, (int)exponent - 127);
}

static void apply_scales(const struct warp *w, const struct matrix_operation *operation, struct matrix *a,
			 struct matrix *b)
{
	if (operation->scale_a.data < 0)
		return;
	for (u32 k = 0; k < operation->a.columns; k++) {
		for (u32 row = 0; row < operation->a.rows; row++)
			a->at[row][k] *= scale_of(w, &operation->scale_a, row, true);
		for (u32 column = 0; column < operation->b.columns; column++)
			b->at[k][column] *= scale_of(w, &operation->scale_b, column, false);
	}
}

HANDLER(multiply)
{
	const struct matrix_operation *operation = i->target;
	struct matrix a, b, c;
	bool is_double = operation->d.element == ELEMENT_F64;
	u32 m = operation->a.rows, k = operation->a.columns, n = operation->b.columns;

	WAIT_FOR_WARP;
	if (operation->is_tile && w->mask == ALL_LANES) {
		multiply_tile(w, operation);
		return i + 1;
	}
	gather(w, &operation->a, &a);
	gather(w, &operation->b, &b);
	gather(w, &operation->c, &c);
	apply_scales(w, operation, &a, &b);
	/* Products are exact in a double, except those of doubles. */
	for (u32 row = 0; row < m; row++)
		for (u32 inner = 0; inner < k; inner++)
			for (u32 column = 0; column < n; column++)
				c.at[row][column] =
					is_double ? fma(a.at[row][inner], b.at[inner][column],
							c.at[row][column])
						  : c.at[row][column] +
							    a.at[row][inner] * b.at[inner][column];
	for (u32 lane = 0; lane < WARP_LANES; lane++) {
		for (u32 index = 0; index < elements_per_lane(&operation->d); index++) {
			struct place place = place_of(&operation->d, lane, index);

			if (w->mask >> lane & 1)
				write_element(operation->d.element,
					      element_address(w, &operation->d, lane, index),
					      c.at[place.row][place.column], operation->saturates);
		}
	}
	return i + 1;
}

/* ---- transfers ---- */

static char *checked_address(struct warp *w, const struct instruction *i,
			     const struct matrix_transfer *transfer, u32 lane, u64 distance, u32 bytes,
			     bool stores)
{
	char *address;

	if (transfer->is_shared) {
		u32 offset = REGISTER(u32, transfer->address_slot)[lane] +
			     (u32)transfer->offset + (u32)distance;

		if ((u64)offset + bytes > w->shared_bytes)
			warp_fail(w, ENGINE_LAUNCH_FAILED,
				  "shared memory access at %#x of %#x bytes (PTX line %u)", offset,
				  w->shared_bytes, i->line);
		address = w->shared + offset;
	} else {
		address = (char *)(uintptr_t)(REGISTER(u64, transfer->address_slot)[lane] +
					      (u64)transfer->offset + distance);
		reach_memory(w, i, (u64)(uintptr_t)address, bytes);
	}
	if (UNLIKELY(w->block->strict))
		strict_pointer_access(w, i, lane, (u64)(uintptr_t)address, bytes,
				      stores ? STRICT_WRITE : STRICT_READ);
	return address;
}

/* wmma.load, wmma.store: the address and stride are the same for all lanes */
static void transfer_linear(struct warp *w, const struct instruction *i, bool stores)
{
	const struct matrix_transfer *transfer = i->target;
	const struct matrix_fragment *fragment = &transfer->fragment;
	u32 bytes = bytes_of(fragment->element), first = (u32)__builtin_ctz(w->mask);
	u64 stride = REGISTER(u32, transfer->stride_slot)[first];

	w->ip = i;
	FOR_ACTIVE(w->mask, lane)
	{
		for (u32 k = 0; k < elements_per_lane(fragment); k++) {
			struct place place = place_of(fragment, lane, k);
			u64 distance = transfer->column_major
					       ? place.column * stride + place.row
					       : place.row * stride + place.column;
			char *memory = checked_address(w, i, transfer, first, distance * bytes, bytes,
						       stores);
			char *value = element_address(w, fragment, lane, k);

			memcpy(stores ? memory : value, stores ? value : memory, bytes);
		}
	}
}

HANDLER(load)
{
	WAIT_FOR_WARP;
	transfer_linear(w, i, false);
	return i + 1;
}

HANDLER(store)
{
	WAIT_FOR_WARP;
	transfer_linear(w, i, true);
	return i + 1;
}

/* Lane l has elements 2 (l mod 4) and the next one of row l / 4: rows one behind the other, or columns. */
static void transpose_tile(u32 tile[WARP_LANES])
{
	u16 from[8][8], to[8][8];

	memcpy(from, tile, sizeof(from));
	for (u32 row = 0; row < 8; row++)
		for (u32 column = 0; column < 8; column++)
			to[row][column] = from[column][row];
	memcpy(tile, to, sizeof(to));
}

/* Tile t of 8 x 8 16-bit elements has its rows where lanes 8t to 8t+7 point. */
static void transfer_tiles(struct warp *w, const struct instruction *i, bool stores)
{
	const struct matrix_transfer *transfer = i->target;
	u32 registers[4][WARP_LANES];
	u32 tiles = transfer->fragment.register_count;

	w->ip = i;
	for (u32 tile = 0; tile < tiles; tile++) {
		if (stores)
			memcpy(registers[tile], REGISTER(u32, transfer->fragment.slots[tile]),
			       sizeof(registers[tile]));
		if (stores && transfer->column_major)
			transpose_tile(registers[tile]);
		for (u32 row = 0; row < 8; row++) {
			char *memory = checked_address(w, i, transfer, tile * 8 + row, 0, 16, stores);
			char *values = (char *)&registers[tile][4 * row];

			memcpy(stores ? memory : values, stores ? values : memory, 16);
		}
		if (!stores && transfer->column_major)
			transpose_tile(registers[tile]);
	}
	for (u32 tile = 0; tile < tiles && !stores; tile++) {
		u32 *d = REGISTER(u32, transfer->fragment.slots[tile]);

		STORE(u32, registers[tile][l]);
	}
}

HANDLER(load_tiles)
{
	WAIT_FOR_WARP;
	transfer_tiles(w, i, false);
	return i + 1;
}

HANDLER(store_tiles)
{
	WAIT_FOR_WARP;
	transfer_tiles(w, i, true);
	return i + 1;
}

HANDLER(transpose)
{
	u32 tile[WARP_LANES], *d = REGISTER(u32, i->dst);

	WAIT_FOR_WARP;
	memcpy(tile, REGISTER(u32, i->a), sizeof(tile));
	transpose_tile(tile);
	STORE(u32, tile[l]);
	return i + 1;
}

static const struct form forms[] = {
	{ "@matrix.multiply", NULL, multiply, NULL, 0, true },
	{ "@matrix.load", NULL, load, NULL, 0, true },
	{ "@matrix.store", NULL, store, NULL, 0, true },
	{ "@matrix.load_tiles", NULL, load_tiles, NULL, 0, true },
	{ "@matrix.store_tiles", NULL, store_tiles, NULL, 0, true },
	{ "@matrix.transpose", NULL, transpose, NULL, 0, true },
};

TABLE(forms_matrix, forms);
