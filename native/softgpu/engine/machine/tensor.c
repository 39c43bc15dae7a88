/* tensor.c - copies by tensor maps (PTX ISA 5.5 "Tensors", 9.7.9.27, 9.7.9.28).
 *
 * A copy is a sequence of rows: elements that lie side by side in dimension 0, which in shared
 * memory stand one behind the other.  A row goes through a buffer, where what lies outside of the
 * tensor is filled in, and gets to shared memory chunk by chunk as the map's swizzle says.  As all
 * copies here it is complete when it is issued.
 */
#include "tensor.h"

#include "handler.h"
#include "../running.h"
#include "strict.h"

#define SHARED_ALIGN 128	/* bytes, of the tile in shared memory */
#define CHUNK 16
#define ROW_BYTES_MAX (256 * 8)

/* ---- the map ---- */

static struct tensor_map load_map(struct warp *w, const struct instruction *i, u32 l, u64 pointer)
{
	struct tensor_map map;

	if (cluster_block_at(w, pointer))
		warp_fail(w, ENGINE_ILLEGAL_ADDRESS, "a tensor map in shared memory (PTX line %u)", i->line);
	if (pointer - (u64)(uintptr_t)w->local < w->local_stride * WARP_LANES)
		warp_fail(w, ENGINE_ILLEGAL_ADDRESS,
			  "a tensor map in local memory; declare the parameter const __grid_constant__ "
			  "(PTX line %u)", i->line);
	reach_memory(w, i, pointer, TENSOR_MAP_BYTES);
	if (w->block->strict)
		strict_pointer_access(w, i, l, pointer, TENSOR_MAP_BYTES, STRICT_READ);
	memcpy(&map, (const void *)(uintptr_t)pointer, sizeof(map));
	if (map.magic != TENSOR_MAP_MAGIC)
		warp_fail(w, ENGINE_LAUNCH_FAILED, "no tensor map at %#llx (PTX line %u)",
			  (unsigned long long)pointer, i->line);
	return map;
}

static u32 row_elements(const struct tensor_map *map)
{
	return map->kind == TENSOR_TILED ? map->last_in_box[0] + 1u : map->channels;
}

/* Why this map can't be copied by; fields may have been replaced one by one. */
static const char *map_fault(const struct tensor_map *map, const struct tensor_copy *copy)
{
	u32 row;

	if (map->kind != (copy->mode == TENSOR_MODE_IM2COL ? TENSOR_IM2COL : TENSOR_TILED))
		return copy->mode == TENSOR_MODE_IM2COL ? "it is none for im2col" : "it is none of tiles";
	if (map->last_dimension + 1u != copy->rank)
		return "it has other dimensions";
	if (map->type >= TENSOR_TYPES)
		return "elements of 4 or 6 bits are not there";
	if (map->interleave)
		return "interleaved layouts are not there";
	if (map->swizzle > TENSOR_SWIZZLE_128 || map->atom > TENSOR_ATOM_64 ||
	    (map->atom && map->swizzle != TENSOR_SWIZZLE_128))
		return "this swizzle is not there";
	if (copy->mode == TENSOR_MODE_ROWS && map->last_in_box[1])
		return "its box has more than one row";
	row = row_elements(map) * tensor_element_bytes[map->type];
	if (!row || row % CHUNK || row > ROW_BYTES_MAX)
		return "its rows are no multiple of 16 bytes";
	if (map->swizzle && row > tensor_swizzle_span(map))
		return "its rows are longer than its swizzle";
	if (map->fills_nan && map->type < TENSOR_F16)
		return "its elements have no NaN to fill with";
	return NULL;
}

/* ---- which rows ---- */

/* Position of a row's first element, and where each dimension begins anew and ends. */
struct walk {
	const struct tensor_map *map;
	s64 at[TENSOR_RANK_MAX], first[TENSOR_RANK_MAX], last[TENSOR_RANK_MAX];
	u32 rank;
	u64 rows;
};

static void walk_tile(struct walk *walk)
{
	const struct tensor_map *map = walk->map;

	for (u32 d = 1; d < walk->rank; d++) {
		walk->first[d] = walk->at[d];
		walk->last[d] = walk->at[d] + map->last_in_box[d];
		walk->rows *= map->last_in_box[d] / (map->skipped[d] + 1u) + 1;
	}
}

/* Pixels of one image after the other, as far as their number goes: the filter moves within its
 * bounding box, and the offsets say which of the pixels under it is taken. */
static void walk_im2col(struct walk *walk, const s64 *offsets)
{
	const struct tensor_map *map = walk->map;

	for (u32 d = 1; d + 1 < walk->rank; d++) {
		walk->at[d] += offsets[d - 1];
		walk->first[d] = map->lower[d - 1] + offsets[d - 1];
		walk->last[d] = (s64)map->last[d] + map->upper[d - 1] + offsets[d - 1];
	}
	walk->last[walk->rank - 1] = INT64_MAX;
	walk->rows = map->pixels;
}

static void walk_next(struct walk *walk)
{
	for (u32 d = 1; d < walk->rank; d++) {
		walk->at[d] += walk->map->skipped[d] + 1u;
		if (walk->at[d] <= walk->last[d])
			return;
		walk->at[d] = walk->first[d];
	}
}

/* The elements of a row from *begin to before *end lie in the tensor, at the address returned. */
static u64 walk_within(const struct walk *walk, u32 elements, u32 *begin, u32 *end)
{
	const struct tensor_map *map = walk->map;
	s64 extent = (s64)map->last[0] + 1;
	u64 address = map->address;

	*begin = walk->at[0] < 0 ? (u32)-walk->at[0] : 0;
	*end = extent <= walk->at[0] ? 0 : extent - walk->at[0] < elements ? (u32)(extent - walk->at[0]) : elements;
	for (u32 d = 1; d < walk->rank; d++) {
		if (walk->at[d] < 0 || walk->at[d] > map->last[d])
			*end = 0;
		address += (u64)walk->at[d] * map->strides[d - 1];
	}
	if (*begin >= *end)
		*begin = *end = 0;
	return address + (u64)(walk->at[0] + *begin) * tensor_element_bytes[map->type];
}

/* ---- a row and shared memory ---- */

/* Where a byte of a tile gets to: bits of the line that it is in, of 128 bytes, choose the chunk. */
static u32 swizzled(const struct tensor_map *map, u32 offset)
{
	switch (map->swizzle) {
	case TENSOR_SWIZZLE_32: return offset ^ (offset >> 3 & 0x10);
	case TENSOR_SWIZZLE_64: return offset ^ (offset >> 3 & 0x30);
	case TENSOR_SWIZZLE_128: break;
	default: return offset;
	}
	switch (map->atom) {
	case TENSOR_ATOM_32: return offset ^ (offset >> 2 & 0x60);
	case TENSOR_ATOM_32_FLIP_8: return offset ^ (offset >> 2 & 0x60) ^ (offset >> 4 & 8);
	case TENSOR_ATOM_64: return offset ^ (offset >> 1 & 0x40);
	default: return offset ^ (offset >> 3 & 0x70);
	}
}

/* `shared`: of a block; `offset`: of the row in it. */
static void move_row(const struct tensor_map *map, char *row, u32 bytes, char *shared, u32 offset, bool gathers)
{
	u32 piece = !map->swizzle ? bytes : map->atom == TENSOR_ATOM_32_FLIP_8 ? CHUNK / 2 : CHUNK;

	for (u32 at = 0; at < bytes; at += piece) {
		char *chunk = shared + swizzled(map, offset + at);

		if (gathers)
			memcpy(row + at, chunk, piece);
		else
			memcpy(chunk, row + at, piece);
	}
}

/* A GPU's NaN for what is outside has these 16 bits again and again. */
static void fill_row(const struct tensor_map *map, char *row, u32 bytes)
{
	const u16 nan = 0x7ff7;

	if (!map->fills_nan) {
		memset(row, 0, bytes);
		return;
	}
	for (u32 at = 0; at < bytes; at += sizeof(nan))
		memcpy(row + at, &nan, sizeof(nan));
}

/* Rounded to the nearest even number of 10 bits behind the point. */
static u32 round_tf32(u32 bits)
{
	if ((bits & 0x7fffffff) > 0x7f800000)
		return 0x7fffe000;
	return (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
}

static void convert(const struct tensor_map *map, char *values, u32 bytes)
{
	bool flushes = map->type == TENSOR_F32_FTZ || map->type == TENSOR_TF32_FTZ;
	bool rounds = map->type == TENSOR_TF32 || map->type == TENSOR_TF32_FTZ;
	u32 bits;

	for (u32 at = 0; (flushes || rounds) && at < bytes; at += sizeof(bits)) {
		memcpy(&bits, values + at, sizeof(bits));
		if (flushes && !(bits & 0x7f800000))
			bits &= 0x80000000;
		if (rounds)
			bits = round_tf32(bits);
		memcpy(values + at, &bits, sizeof(bits));
	}
}

/* ---- copies ---- */

/* What a reduction makes of elements of the map's type; false: PTX has no such one. */
static bool take_reduction(const struct tensor_map *map, enum bulk_operation operation,
			   struct bulk_reduction *reduction)
{
	static const char kinds[TENSOR_TYPES] = {
		[TENSOR_U32] = 'u', [TENSOR_S32] = 's', [TENSOR_U64] = 'u', [TENSOR_S64] = 's', [TENSOR_F16] = 'f',
		[TENSOR_F32] = 'f', [TENSOR_F32_FTZ] = 'f', [TENSOR_BF16] = 'h',
	};
	bool is_single = map->type == TENSOR_F32 || map->type == TENSOR_F32_FTZ;

	*reduction = (struct bulk_reduction){ operation, tensor_element_bytes[map->type], kinds[map->type] };
	switch (operation) {
	case BULK_ADD: return reduction->element_kind && map->type != TENSOR_S64;
	case BULK_MIN:
	case BULK_MAX: return reduction->element_kind && !is_single;
	case BULK_INC:
	case BULK_DEC: return map->type == TENSOR_U32;
	default: return map->type >= TENSOR_U32 && map->type <= TENSOR_S64;
	}
}

struct transfer {
	const struct tensor_copy *copy;
	struct walk walk;
	struct bulk_reduction reduction;
	char *shared;		/* of the block that has the tile, or is multicast to */
	u32 offset;		/* of the tile there */
	u32 row_bytes, pitch;	/* pitch: from row to row in shared memory */
	u64 barrier;
};

static void load_row(struct warp *w, const struct instruction *i, u32 l, const struct transfer *transfer, u32 row,
		     u32 ranks)
{
	const struct tensor_map *map = transfer->walk.map;
	u32 bytes = tensor_element_bytes[map->type], begin, end;
	u32 offset = transfer->offset + row * transfer->pitch;
	char buffer[ROW_BYTES_MAX];
	u64 from = walk_within(&transfer->walk, transfer->row_bytes / bytes, &begin, &end);

	if (end - begin < transfer->row_bytes / bytes)
		fill_row(map, buffer, transfer->row_bytes);
	if (end) {
		reach_memory(w, i, from, (end - begin) * bytes);
		if (w->block->strict)
			strict_pointer_access(w, i, l, from, (end - begin) * bytes, STRICT_READ);
		memcpy(buffer + begin * bytes, (const void *)(uintptr_t)from, (end - begin) * bytes);
		convert(map, buffer + begin * bytes, (end - begin) * bytes);
	}
	for (; ranks; ranks &= ranks - 1)
		move_row(map, buffer, transfer->row_bytes,
			 w->block->cluster->blocks[__builtin_ctz(ranks)]->shared, offset, false);
}

static void store_row(struct warp *w, const struct instruction *i, u32 l, const struct transfer *transfer, u32 row)
{
	const struct tensor_map *map = transfer->walk.map;
	u32 bytes = tensor_element_bytes[map->type], begin, end, size;
	char buffer[ROW_BYTES_MAX];
	u64 to = walk_within(&transfer->walk, transfer->row_bytes / bytes, &begin, &end);

	if (!end)
		return;
	size = (end - begin) * bytes;
	move_row(map, buffer, transfer->row_bytes, transfer->shared, transfer->offset + row * transfer->pitch, true);
	reach_memory(w, i, to, size);
	bulk_note(w, i, l, (const char *)(uintptr_t)to, buffer + begin * bytes, size,
		  transfer->copy->operation != BULK_COPY);
	if (transfer->copy->operation != BULK_COPY)
		bulk_reduce(&transfer->reduction, (char *)(uintptr_t)to, buffer + begin * bytes, size);
	else
		memcpy((void *)(uintptr_t)to, buffer + begin * bytes, size);
}

/* The tile in shared memory is read or written as a whole. */
static void note_tile(struct warp *w, const struct instruction *i, u32 l, const struct transfer *transfer,
		      const char *shared)
{
	if (w->block->strict)
		strict_pointer_access(w, i, l, (u64)(uintptr_t)shared + transfer->offset,
				      (u32)transfer->walk.rows * transfer->pitch,
				      transfer->copy->stores ? STRICT_READ : STRICT_WRITE);
}

static void complete_tile(struct warp *w, const struct instruction *i, const struct transfer *transfer, u32 ranks)
{
	u32 bytes = (u32)transfer->walk.rows * transfer->row_bytes;
	u32 home = cluster_block_at(w, transfer->barrier)->rank;

	if (transfer->copy->ranks < 0) {
		bulk_signal(w, i, transfer->barrier, bytes);
		return;
	}
	for (; ranks; ranks &= ranks - 1) {
		u32 rank = (u32)__builtin_ctz(ranks);

		if (transfer->copy->pairs)
			rank = (rank & ~1u) | (home & 1);
		bulk_signal(w, i, bulk_in_block(w, i, transfer->barrier, rank), bytes);
	}
}

static void load_tile(struct warp *w, const struct instruction *i, u32 l, struct transfer *transfer, u32 ranks)
{
	const struct cluster *cluster = w->block->cluster;

	if (ranks >> cluster->count)
		warp_fail(w, ENGINE_LAUNCH_FAILED, "multicast to blocks %#x of a cluster of %u (PTX line %u)",
			  ranks, cluster->count, i->line);
	for (u32 rest = ranks; rest; rest &= rest - 1)
		note_tile(w, i, l, transfer, cluster->blocks[__builtin_ctz(rest)]->shared);
	for (u32 row = 0; row < transfer->walk.rows; row++) {
		if (transfer->copy->mode == TENSOR_MODE_ROWS)
			transfer->walk.at[1] = REGISTER(s32, transfer->copy->coordinates[1 + row])[l];
		load_row(w, i, l, transfer, row, ranks);
		walk_next(&transfer->walk);
	}
	complete_tile(w, i, transfer, ranks);
}

static void store_tile(struct warp *w, const struct instruction *i, u32 l, struct transfer *transfer)
{
	note_tile(w, i, l, transfer, transfer->shared);
	for (u32 row = 0; row < transfer->walk.rows; row++) {
		if (transfer->copy->mode == TENSOR_MODE_ROWS)
			transfer->walk.at[1] = REGISTER(s32, transfer->copy->coordinates[1 + row])[l];
		store_row(w, i, l, transfer, row);
		walk_next(&transfer->walk);
	}
}

static void start_walk(struct warp *w, u32 l, const struct tensor_copy *copy, struct walk *walk)
{
	s64 offsets[TENSOR_RANK_MAX - 2];

	for (u32 d = 0; d < copy->rank; d++)
		walk->at[d] = REGISTER(s32, copy->coordinates[d])[l];
	switch (copy->mode) {
	case TENSOR_MODE_TILE:
		walk_tile(walk);
		break;
	case TENSOR_MODE_ROWS:
		walk->rows = TENSOR_ROWS;
		break;
	case TENSOR_MODE_IM2COL:
		for (u32 d = 0; d < TENSOR_RANK_MAX - 2; d++)
			offsets[d] = copy->offsets[d] < 0 ? 0 : REGISTER(u16, copy->offsets[d])[l];
		walk_im2col(walk, offsets);
		break;
	}
}

static void copy_lane(struct warp *w, const struct instruction *i, const struct tensor_copy *copy, u32 l)
{
	u64 pointer = REGISTER(u64, copy->shared)[l];
	const struct block *block = cluster_block_at(w, pointer);
	struct tensor_map map = load_map(w, i, l, REGISTER(u64, copy->map)[l]);
	struct transfer transfer = {
		.copy = copy, .walk = { .map = &map, .rank = copy->rank, .rows = 1 },
		.barrier = copy->barrier >= 0 ? REGISTER(u64, copy->barrier)[l] : 0,
	};
	const char *fault = map_fault(&map, copy);

	if (!block || (transfer.barrier && !cluster_block_at(w, transfer.barrier)))
		warp_fail(w, ENGINE_ILLEGAL_ADDRESS,
			  "tensor copy whose tile or mbarrier is not in shared memory (PTX line %u)", i->line);
	if (fault)
		warp_fail(w, ENGINE_LAUNCH_FAILED, "copy of %ud by the tensor map at %#llx: %s (PTX line %u)",
			  copy->rank, (unsigned long long)REGISTER(u64, copy->map)[l], fault, i->line);
	if (copy->operation != BULK_COPY && !take_reduction(&map, copy->operation, &transfer.reduction))
		warp_fail(w, ENGINE_LAUNCH_FAILED,
			  "the elements of the tensor map at %#llx have no such reduction (PTX line %u)",
			  (unsigned long long)REGISTER(u64, copy->map)[l], i->line);
	transfer.shared = block->shared;
	transfer.offset = (u32)(pointer - (u64)(uintptr_t)block->shared);
	if (transfer.offset % SHARED_ALIGN)
		warp_fail(w, ENGINE_MISALIGNED,
			  "tensor copy with shared memory at %#x, which is no multiple of 128 (PTX line %u)",
			  transfer.offset, i->line);
	transfer.row_bytes = row_elements(&map) * tensor_element_bytes[map.type];
	/* Rows that are shorter than what is exchanged have that much room. */
	transfer.pitch = map.swizzle ? tensor_swizzle_span(&map) : transfer.row_bytes;
	start_walk(w, l, copy, &transfer.walk);
	if (transfer.walk.rows > (block->shared_bytes - transfer.offset) / transfer.pitch)
		warp_fail(w, ENGINE_LAUNCH_FAILED,
			  "a tile of %llu rows of %u bytes at %#x leaves the shared memory (PTX line %u)",
			  (unsigned long long)transfer.walk.rows, transfer.pitch, transfer.offset, i->line);
	if (copy->stores)
		store_tile(w, i, l, &transfer);
	else
		load_tile(w, i, l, &transfer,
			  copy->ranks >= 0 ? REGISTER(u16, copy->ranks)[l] : 1u << block->rank);
}

HANDLER(copy)
{
	w->ip = i;
	FOR_ACTIVE(w->mask, l) copy_lane(w, i, i->target, l);
	return i + 1;
}

/* ---- tensormap ---- */

/* Compilers make a map of 128 bytes of zeros: one of tiles. */
static bool begin_map(struct tensor_map *map, const void *memory)
{
	static const char zeros[TENSOR_MAP_BYTES];

	memcpy(map, memory, sizeof(*map));
	if (map->magic == TENSOR_MAP_MAGIC)
		return true;
	if (memcmp(memory, zeros, TENSOR_MAP_BYTES))
		return false;
	map->magic = TENSOR_MAP_MAGIC;
	return true;
}

static void replace_field(struct tensor_map *map, enum tensor_field field, u32 ordinal, u64 value)
{
	switch (field) {
	case TENSOR_FIELD_ADDRESS: map->address = value; break;
	case TENSOR_FIELD_RANK: map->last_dimension = (u8)value; break;	/* less one in PTX too */
	case TENSOR_FIELD_BOX: map->last_in_box[ordinal] = (u8)(value - 1); break;
	case TENSOR_FIELD_EXTENT: map->last[ordinal] = (u32)value - 1; break;
	case TENSOR_FIELD_STRIDE: map->strides[ordinal] = value; break;
	case TENSOR_FIELD_STEP: map->skipped[ordinal] = ordinal ? (u8)(value - 1) : 0; break;
	case TENSOR_FIELD_TYPE: map->type = (u8)value; break;
	case TENSOR_FIELD_INTERLEAVE: map->interleave = (u8)value; break;
	case TENSOR_FIELD_SWIZZLE: map->swizzle = (u8)value; break;
	case TENSOR_FIELD_ATOM: map->atom = (u8)value; break;
	case TENSOR_FIELD_FILL: map->fills_nan = value != 0; break;
	}
}

/* a: pointer; b: value; x: enum tensor_field; imm: dimension */
HANDLER(replace)
{
	const u64 *a = REGISTER(u64, i->a);
	bool is_wide = i->x == TENSOR_FIELD_ADDRESS || i->x == TENSOR_FIELD_STRIDE;

	w->ip = i;
	FOR_ACTIVE(w->mask, l)
	{
		u64 value = is_wide ? REGISTER(u64, i->b)[l] : REGISTER(u32, i->b)[l];
		struct tensor_map map;

		bulk_check_range(w, i, a[l], TENSOR_MAP_BYTES);
		if (w->block->strict)
			strict_pointer_access(w, i, l, a[l], TENSOR_MAP_BYTES, STRICT_READ | STRICT_WRITE);
		/* A GPU replaces bits of whatever is there.  It stays no map, which a copy by it will say. */
		if (!begin_map(&map, (const void *)(uintptr_t)a[l]) && !w->block->strict)
			continue;
		if (map.magic != TENSOR_MAP_MAGIC || map.kind != TENSOR_TILED)
			warp_fail(w, ENGINE_LAUNCH_FAILED,
				  "tensormap.replace: no tensor map of tiles at %#llx (PTX line %u)",
				  (unsigned long long)a[l], i->line);
		replace_field(&map, (enum tensor_field)i->x, (u32)i->imm, value);
		memcpy((void *)(uintptr_t)a[l], &map, sizeof(map));
	}
	return i + 1;
}

HANDLER(copy_map)
{
	const u64 *a = REGISTER(u64, i->a), *b = REGISTER(u64, i->b);

	w->ip = i;
	FOR_ACTIVE(w->mask, l)
	{
		bulk_check_range(w, i, a[l], TENSOR_MAP_BYTES);
		bulk_check_range(w, i, b[l], TENSOR_MAP_BYTES);
		bulk_note(w, i, l, (const char *)(uintptr_t)a[l], (const char *)(uintptr_t)b[l], TENSOR_MAP_BYTES,
			  false);
		memcpy((void *)(uintptr_t)a[l], (const void *)(uintptr_t)b[l], TENSOR_MAP_BYTES);
	}
	if (w->block->strict)
		strict_sync(w);
	return i + 1;
}

static const struct form forms[] = {
	{ "cp.async.bulk.tensor cp.reduce.async.bulk.tensor", NULL, copy, NULL, 0, false },
	{ "tensormap.replace", NULL, replace, NULL, 0, false },
	{ "tensormap.cp_fenceproxy", NULL, copy_map, NULL, 0, false },
};

const struct form_table forms_tensor = { forms, sizeof(forms) / sizeof(forms[0]) };
