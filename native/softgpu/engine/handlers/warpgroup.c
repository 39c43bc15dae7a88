/* warpgroup.c - wgmma: the product of a warpgroup (PTX ISA, "Asynchronous warpgroup level matrix
 * instructions"; where elements lie in shared memory: its "Canonical layouts").
 *
 * Eight columns of B at a time become doubles, which serve all four warps.  Sums are kept as those of mma are: in
 * double, rounded once.
 */
#include "../machine/strict.h"
#include "../machine/warpgroup.h"
#include "matrix_tile.h"

#define CHUNK_BYTES 16		/* shared memory is read in rows of a core matrix */

/* What a matrix descriptor says, in bytes. */
struct view {
	u32 start, leading, stride;
	u32 width;		/* of the swizzled rows: 16 is none */
	u32 phase_mask, phase;	/* of the pattern, which is repeated every eight rows or less */
	struct warp *const *readers;	/* for strict mode */
	u32 reader_count;
};

static struct view view_of(u64 descriptor, struct warp *const *readers, u32 reader_count)
{
	static const u8 widths[] = { 16, 128, 64, 32 };
	u32 width = widths[descriptor >> 62];

	return (struct view){
		.start = (u32)(descriptor & 0x3fff) << 4,
		.leading = (u32)(descriptor >> 16 & 0x3fff) << 4,
		.stride = (u32)(descriptor >> 32 & 0x3fff) << 4,
		.width = width,
		.phase_mask = width / 16 - 1,
		.phase = (u32)(descriptor >> 49 & 7),
		.readers = readers,
		.reader_count = reader_count,
	};
}

/* 16 bytes; swizzling exchanges those of a row by the row's number in the pattern. */
static const u8 *chunk_at(const struct instruction *i, const struct view *view, u32 distance)
{
	struct warp *w = view->readers[0];
	u32 address = view->start + distance;

	address ^= (((address >> 7) - view->phase) & view->phase_mask) * CHUNK_BYTES;
	if ((u64)address + CHUNK_BYTES > w->shared_bytes)
		warp_fail(w, ENGINE_LAUNCH_FAILED,
			  "shared memory access at %#x of %#x bytes by a matrix descriptor (PTX line %u)", address,
			  w->shared_bytes, i->line);
	for (u32 k = 0; UNLIKELY(w->block->strict) && k < view->reader_count; k++)
		strict_group_read(view->readers[k], i, address, CHUNK_BYTES);
	return (const u8 *)w->shared + address;
}

/* The `index`th eight lines.  K runs fastest in memory: both halves of a line in one piece, or `leading` apart. */
static void read_lines(const struct instruction *i, const struct view *view, u32 index, struct lines *lines)
{
	u32 half = view->width == CHUNK_BYTES ? view->leading : CHUNK_BYTES;

	for (u32 line = 0; line < LINES; line++) {
		u32 row = index * view->stride + line * view->width;

		memcpy(lines->at[line], chunk_at(i, view, row), CHUNK_BYTES);
		memcpy(lines->at[line] + CHUNK_BYTES, chunk_at(i, view, row + half), CHUNK_BYTES);
	}
}

/* The same where M or N runs fastest: a chunk has one element, of 16 bits, of each of the eight lines. */
static void read_transposed(const struct instruction *i, const struct view *view, u32 index, struct lines *lines)
{
	u32 chunks = view->width / CHUNK_BYTES;		/* lines that a swizzled row has, by eights */
	bool is_swizzled = chunks > 1;
	u32 column = index / chunks * (is_swizzled ? view->leading : view->stride) + index % chunks * CHUNK_BYTES;
	u32 next = is_swizzled ? view->stride : view->leading;

	for (u32 k = 0; k < LINE_BYTES / 2; k++) {
		const u8 *chunk = chunk_at(i, view, column + k / LINES * next + k % LINES * view->width);

		for (u32 line = 0; line < LINES; line++)
			memcpy(&lines->at[line][2 * k], chunk + 2 * line, 2);
	}
}

static void rows_of_memory(const struct instruction *i, const struct view *view, u32 first, struct rows *rows)
{
	const struct warpgroup_product *product = i->target;
	struct lines lines;

	for (u32 k = 0; k < TILE_ROWS / LINES; k++) {
		(product->a_is_transposed ? read_transposed : read_lines)(i, view, first / LINES + k, &lines);
		memcpy(rows->bytes[LINES * k], lines.at, sizeof(lines.at));
	}
}

static void tile_add_bits(struct tile *tile, const struct rows *rows, const struct lines *b)
{
	for (u32 row = 0; row < TILE_ROWS; row++) {
		for (u32 column = 0; column < LINES; column++) {
			u32 both = 0;

			for (u32 k = 0; k < LINE_BYTES; k++)
				both += (u32)__builtin_popcount(rows->bytes[row][k] & b->at[column][k]);
			tile->at[row][column] += both;
		}
	}
}

/* ---- the instruction ---- */

static void read_a(const struct warpgroup *group, const struct instruction *i, struct rows rows[WARPGROUP_WARPS])
{
	const struct warpgroup_product *product = i->target;

	for (u32 k = 0; k < WARPGROUP_WARPS; k++) {
		if (product->a_is_in_registers) {
			rows_load(&rows[k], group->registers[k], product->a_slots, 4);
		} else {
			struct view view = view_of(*(const u64 *)(group->registers[k] + product->a_slots[0]),
						   &group->warps[k], 1);

			rows_of_memory(i, &view, TILE_ROWS * k, &rows[k]);
		}
		if (!product->is_bits)
			rows_widen(&rows[k], product->a, LINE_BYTES, product->negates ? -1 : 1);
	}
}

/* What all threads of the group give alike is taken from the first. */
static void multiply_group(const struct warpgroup *group, const struct instruction *i)
{
	const struct warpgroup_product *product = i->target;
	struct view view = view_of(*(const u64 *)(group->registers[0] + product->b_slot), group->warps,
				   WARPGROUP_WARPS);
	bool adds = *(const u32 *)(group->registers[0] + product->scale_slot) & 1;
	struct rows rows[WARPGROUP_WARPS];
	struct lines lines;
	struct tile tile;
	struct columns b;

	read_a(group, i, rows);
	for (u32 column = 0; column < product->columns / LINES; column++) {
		const s32 *results = product->results + column * (product->d == ELEMENT_F16 ? 2 : 4);

		(product->b_is_transposed ? read_transposed : read_lines)(i, &view, column, &lines);
		if (!product->is_bits)
			columns_widen(&b, &lines, product->b, LINE_BYTES);
		for (u32 k = 0; k < WARPGROUP_WARPS; k++) {
			if (adds)
				tile_load(&tile, group->registers[k], results, product->d, TILE_ROWS);
			else
				memset(&tile, 0, sizeof(tile));
			if (product->is_bits)
				tile_add_bits(&tile, &rows[k], &lines);
			else
				tile_add(&tile, &rows[k], &b, LINE_BYTES / bytes_of(product->b), TILE_ROWS);
			tile_store(&tile, group->registers[k], results, product->d, TILE_ROWS, product->saturates);
		}
	}
}

HANDLER(multiply)
{
	const struct warpgroup_product *product = i->target;
	const struct instruction *next;
	struct warpgroup group;

	WAIT_FOR_WARP;
	w->ip = i;
	if (!warpgroup_meet(w, i, &group, &next))
		return next;
	if (UNLIKELY(w->block->strict))
		warpgroup_take_back(&group, product);
	multiply_group(&group, i);
	if (UNLIKELY(w->block->strict))
		warpgroup_hold(&group, product);
	warpgroup_part(w, &group);
	return i + 1;
}

/* These two are in strict mode's code alone. */
HANDLER(commit)
{
	WAIT_FOR_WARP;
	if (w->block->strict)
		strict_group_commit(w);
	return i + 1;
}

HANDLER(wait)
{
	WAIT_FOR_WARP;
	if (w->block->strict)
		warpgroup_release(w, strict_group_wait(w, (u32)i->imm));
	return i + 1;
}

static const struct form forms[] = {
	{ "@warpgroup.multiply", NULL, multiply, NULL, 0, true },
	{ "@warpgroup.commit", NULL, commit, NULL, 0, true },
	{ "@warpgroup.wait", NULL, wait, NULL, 0, true },
};

TABLE(forms_warpgroup, forms);
