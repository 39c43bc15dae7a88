/* tensor.c - copies by tensor maps, and instructions that change such maps. */
#include "decoder.h"

#include "../machine/tensor.h"

/* ---- cp.async.bulk.tensor, cp.reduce.async.bulk.tensor ---- */

static int32_t map_pointer(struct decoder *decoder, const struct operand *operand)
{
	struct operand address = *operand;

	address.kind = OPERAND_ADDRESS;
	return decode_pointer(decoder, &address, false, 1);
}

static void take_mode(struct decoder *decoder, struct tensor_copy *copy)
{
	struct statement *statement = decoder->statement;

	if (statement_has(statement, "im2col::w") || statement_has(statement, "im2col::w::128"))
		decode_unsupported(decoder, "im2col::w");
	/* Some write .im2col where .im2col_no_offs is meant: stores have no offsets. */
	if (statement_has(statement, "im2col") || statement_has(statement, "im2col_no_offs"))
		copy->mode = TENSOR_MODE_IM2COL;
	else if (statement_has(statement, copy->stores ? "tile::scatter4" : "tile::gather4"))
		copy->mode = TENSOR_MODE_ROWS;
}

static unsigned take_rank(struct decoder *decoder)
{
	static const char *const words[] = { "1d", "2d", "3d", "4d", "5d" };

	for (unsigned k = 0; k < TENSOR_RANK_MAX; k++)
		if (statement_has(decoder->statement, words[k]))
			return k + 1;
	decode_unsupported(decoder, "no dimension");
}

static void take_coordinates(struct decoder *decoder, struct tensor_copy *copy, const struct operand *texel)
{
	unsigned count = copy->mode == TENSOR_MODE_ROWS ? 1 + TENSOR_ROWS : copy->rank;

	if (texel->kind != OPERAND_TEXEL || texel->element_count != count ||
	    (copy->mode == TENSOR_MODE_ROWS && copy->rank != 2))
		decode_unsupported(decoder, "these coordinates");
	copy->map = map_pointer(decoder, texel);
	for (unsigned k = 0; k < count; k++)
		copy->coordinates[k] =
			decode_source(decoder, &decoder->statement->elements[texel->first_element + k], 4);
}

/* Behind the barrier: {im2col offsets}, multicast mask, cache policy. */
static void take_load_options(struct decoder *decoder, struct tensor_copy *copy)
{
	struct statement *statement = decoder->statement;
	const struct operand *operands = statement->operands;
	unsigned at = 3;

	if (copy->mode == TENSOR_MODE_IM2COL) {
		const struct operand *offsets = &operands[at++];

		if (at > statement->operand_count || offsets->kind != OPERAND_VECTOR ||
		    offsets->element_count + 2u != copy->rank)
			decode_unsupported(decoder, "these offsets");
		for (unsigned k = 0; k < offsets->element_count; k++)
			copy->offsets[k] = decode_source(
				decoder, &statement->elements[offsets->first_element + k], 2);
	}
	if (statement_has(statement, "multicast::cluster")) {
		if (at >= statement->operand_count)
			decode_unsupported(decoder, "too few operands");
		copy->ranks = decode_source(decoder, &operands[at], 2);
	}
}

static void decode_copy(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const struct operand *operands = statement->operands;
	struct tensor_copy *copy = ARENA_NEW(decoder->arena, struct tensor_copy);

	if (statement->operand_count < 2)
		decode_unsupported(decoder, "too few operands");
	*copy = (struct tensor_copy){
		.stores = operands[0].kind == OPERAND_TEXEL, .barrier = -1, .ranks = -1,
		.offsets = { -1, -1, -1 }, .pairs = statement_has(statement, "cta_group::2"),
	};
	copy->rank = (uint8_t)take_rank(decoder);
	take_mode(decoder, copy);
	if (statement_has(statement, "reduce"))
		copy->operation = decode_bulk_operation(decoder);
	if (copy->stores) {
		take_coordinates(decoder, copy, &operands[0]);
		copy->shared = decode_pointer(decoder, &operands[1], true, 1);
	} else {
		if (statement->operand_count < 3 || copy->operation != BULK_COPY)
			decode_unsupported(decoder, NULL);
		copy->shared = decode_pointer(decoder, &operands[0], true, 1);
		take_coordinates(decoder, copy, &operands[1]);
		copy->barrier = decode_pointer(decoder, &operands[2], true, 8);
		take_load_options(decoder, copy);
	}
	decode_emit(decoder, "cp.async.bulk.tensor")->target = copy;
}

/* ---- tensormap.replace.tile.FIELD.shared::cta.b1024.b32 [map], ord, value ---- */

static void decode_replace(struct decoder *decoder)
{
	static const struct {
		const char *name;
		enum tensor_field field;
		bool is_indexed;
		uint8_t bytes;
	} fields[] = {
		{ "global_address", TENSOR_FIELD_ADDRESS, false, 8 },
		{ "rank", TENSOR_FIELD_RANK, false, 4 },
		{ "box_dim", TENSOR_FIELD_BOX, true, 4 },
		{ "global_dim", TENSOR_FIELD_EXTENT, true, 4 },
		{ "global_stride", TENSOR_FIELD_STRIDE, true, 8 },
		{ "element_stride", TENSOR_FIELD_STEP, true, 4 },
		{ "elemtype", TENSOR_FIELD_TYPE, false, 4 },
		{ "interleave_layout", TENSOR_FIELD_INTERLEAVE, false, 4 },
		{ "swizzle_mode", TENSOR_FIELD_SWIZZLE, false, 4 },
		{ "swizzle_atomicity", TENSOR_FIELD_ATOM, false, 4 },
		{ "fill_mode", TENSOR_FIELD_FILL, false, 4 },
	};
	struct statement *statement = decoder->statement;
	const struct operand *operands = statement->operands;
	struct instruction *replace;
	int32_t map, value;
	size_t k = 0;
	uint64_t ordinal = 0;

	while (k < sizeof(fields) / sizeof(fields[0]) && !statement_has(statement, fields[k].name))
		k++;
	if (k == sizeof(fields) / sizeof(fields[0]) || !statement_has(statement, "tile") ||
	    statement->operand_count != 2u + fields[k].is_indexed)
		decode_unsupported(decoder, NULL);
	if (fields[k].is_indexed) {
		ordinal = operands[1].value;
		if (operands[1].kind != OPERAND_INTEGER ||
		    ordinal >= TENSOR_RANK_MAX - (fields[k].field == TENSOR_FIELD_STRIDE))
			decode_unsupported(decoder, "this dimension");
	}
	map = decode_pointer(decoder, &operands[0], statement_says_shared(statement), TENSOR_MAP_BYTES);
	value = decode_source(decoder, &operands[1 + fields[k].is_indexed], fields[k].bytes);
	replace = decode_emit(decoder, "tensormap.replace");
	replace->a = map;
	replace->b = value;
	replace->x = (int32_t)fields[k].field;
	replace->imm = (int64_t)ordinal;
}

/* tensormap.cp_fenceproxy.global.shared::cta... [to], [from], 128: memory here is coherent. */
static void decode_copy_map(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const struct operand *operands = statement->operands;
	struct instruction *copy;
	int32_t to, from;

	if (statement->operand_count != 3 || operands[2].kind != OPERAND_INTEGER ||
	    operands[2].value != TENSOR_MAP_BYTES)
		decode_unsupported(decoder, NULL);
	to = decode_pointer(decoder, &operands[0], false, TENSOR_MAP_BYTES);
	from = decode_pointer(decoder, &operands[1], true, TENSOR_MAP_BYTES);
	copy = decode_emit(decoder, "tensormap.cp_fenceproxy");
	copy->a = to;
	copy->b = from;
}

bool decode_tensor(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;

	if (statement_is(statement, "cp") && statement_has(statement, "tensor") &&
	    !statement_has(statement, "prefetch"))
		decode_copy(decoder);
	else if (statement_is(statement, "tensormap") && statement_has(statement, "replace"))
		decode_replace(decoder);
	else if (statement_is(statement, "tensormap") && statement_has(statement, "cp_fenceproxy"))
		decode_copy_map(decoder);
	else
		return false;
	return true;
}
