/* matrix.c - mma, wmma, ldmatrix, stmatrix, movmatrix, wgmma. */
#include "decoder.h"

#include <stdio.h>

#include "../running.h"
#include "../machine/warpgroup.h"

bool statement_is_matrix(const struct statement *statement)
{
	return statement_is(statement, "mma") || statement_is(statement, "wmma") ||
	       statement_is(statement, "ldmatrix") || statement_is(statement, "stmatrix") ||
	       statement_is(statement, "movmatrix") || statement_is(statement, "wgmma");
}

struct shape {
	uint8_t m, n, k;
};

static struct shape take_shape(struct decoder *decoder)
{
	static const struct {
		const char *name;
		struct shape shape;
	} shapes[] = {
		{ "m16n8k4", { 16, 8, 4 } },	{ "m16n8k8", { 16, 8, 8 } },
		{ "m16n8k16", { 16, 8, 16 } },	{ "m16n8k32", { 16, 8, 32 } },
		{ "m16n16k16", { 16, 16, 16 } }, { "m32n8k16", { 32, 8, 16 } },
		{ "m8n32k16", { 8, 32, 16 } },	{ "m16n16k8", { 16, 16, 8 } },
		{ "m8n8k4", { 8, 8, 4 } },	{ "m8n8k16", { 8, 8, 16 } },
	};

	for (size_t k = 0; k < sizeof(shapes) / sizeof(shapes[0]); k++)
		if (statement_has(decoder->statement, shapes[k].name))
			return shapes[k].shape;
	decode_unsupported(decoder, "this shape");
}

static enum matrix_element element_of(struct decoder *decoder, struct ptx_type type)
{
	switch (type.kind) {
	case 'h':
		return ELEMENT_BF16;
	case 't':
		return ELEMENT_TF32;
	case 'f':
		return type.bytes == 2   ? ELEMENT_F16
		       : type.bytes == 4 ? ELEMENT_F32
					 : ELEMENT_F64;
	case 'm':
		return ELEMENT_E4M3;
	case 'n':
		return ELEMENT_E5M2;
	case 's':
		if (type.bytes == 1 || type.bytes == 4)
			return type.bytes == 1 ? ELEMENT_S8 : ELEMENT_S32;
		break;
	case 'u':
		if (type.bytes == 1)
			return ELEMENT_U8;
		break;
	}
	decode_unsupported(decoder, "these elements");
}

static unsigned element_bytes(enum matrix_element element)
{
	static const uint8_t bytes[] = { 2, 2, 4, 4, 8, 1, 1, 4, 1, 1 };

	return bytes[element];
}

static void bind_fragment(struct decoder *decoder, struct matrix_fragment *fragment,
			  const struct operand *vector, bool writes)
{
	struct statement *statement = decoder->statement;
	const struct operand *elements = vector;
	unsigned width = fragment->element == ELEMENT_F64 ? 8 : 4;
	unsigned needed = (unsigned)(fragment->rows * fragment->columns / WARP_LANES) *
			  element_bytes(fragment->element);

	fragment->register_count = 1;
	if (vector->kind == OPERAND_VECTOR) {
		elements = &statement->elements[vector->first_element];
		fragment->register_count = (uint8_t)vector->element_count;
	}
	if (fragment->register_count > MATRIX_REGISTERS_MAX ||
	    fragment->register_count * width < needed)
		decode_unsupported(decoder, "fragments of this size");
	for (unsigned k = 0; k < fragment->register_count; k++)
		fragment->slots[k] = writes ? decode_destination(decoder, &elements[k], width)
					    : decode_source(decoder, &elements[k], width);
}

static struct matrix_fragment fragment_of(enum matrix_element element, enum matrix_layout layout,
					  uint8_t rows, uint8_t columns)
{
	return (struct matrix_fragment){
		.element = element, .layout = layout, .rows = rows, .columns = columns,
	};
}

/* With 8 rows there are only the shapes of f64 and of 8-bit integers. */
static bool shape_is_wrong(struct shape shape, struct ptx_type a, struct ptx_type d)
{
	bool is_double = d.kind == 'f' && d.bytes == 8;

	if (is_double)
		return a.bytes != 8 || shape.n != 8 || (shape.m == 8 && shape.k != 4);
	if (shape.m == 8 && shape.n == 8)
		return shape.k != 16 || a.bytes != 1 || d.bytes != 4;
	return false;
}

/* Products of f64 may ask for another rounding than to nearest. */
static bool rounds(struct statement *statement)
{
	return statement_has(statement, "rz") || statement_has(statement, "rm") ||
	       statement_has(statement, "rp");
}

static unsigned tile_registers(const struct matrix_fragment *fragment)
{
	return fragment->rows / 8u * (fragment->element == ELEMENT_F16 ? 1 : 2);
}

/* All of mma but f64 and scales, where no registers are left over. */
static bool is_tile(const struct matrix_operation *operation)
{
	const struct matrix_fragment *a = &operation->a, *b = &operation->b;

	return a->element != ELEMENT_F64 && operation->scale_a.data < 0 &&
	       element_bytes(a->element) == element_bytes(b->element) &&
	       b->rows * element_bytes(b->element) == 16u * b->register_count &&
	       a->register_count == a->rows / 8 * b->register_count &&
	       operation->c.register_count == tile_registers(&operation->c) &&
	       operation->d.register_count == tile_registers(&operation->d);
}

/* scale, {byte, thread} */
static struct matrix_scale take_scale(struct decoder *decoder, unsigned at)
{
	struct statement *statement = decoder->statement;
	const struct operand *selector = &statement->operands[at + 1];
	const struct operand *elements = &statement->elements[selector->first_element];

	if (at + 1 >= statement->operand_count || selector->kind != OPERAND_VECTOR || selector->element_count != 2)
		decode_unsupported(decoder, "too few operands");
	return (struct matrix_scale){
		.data = decode_source(decoder, &statement->operands[at], 4),
		.byte = decode_source(decoder, &elements[0], 2),
		.thread = decode_source(decoder, &elements[1], 2),
	};
}

/* Products of eight-bit floats with a scale for each row of A and each column of B (compute_120a). */
static void take_scales(struct decoder *decoder, struct matrix_operation *operation)
{
	struct statement *statement = decoder->statement;

	if (!statement_has(statement, "kind::mxf8f6f4") || !statement_has(statement, "ue8m0") ||
	    statement_has(statement, "scale_vec::2X") || statement_has(statement, "scale_vec::4X"))
		decode_unsupported(decoder, NULL);
	operation->scale_a = take_scale(decoder, 4);
	operation->scale_b = take_scale(decoder, 6);
}

/* mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 d, a, b, c */
static void decode_multiply(struct decoder *decoder, bool is_wmma)
{
	struct statement *statement = decoder->statement;
	struct matrix_operation *operation = ARENA_NEW(decoder->arena, struct matrix_operation);
	const struct ptx_type *types = statement->types;
	struct shape shape = take_shape(decoder);
	struct ptx_type d = types[0], a, b, c;
	bool has_scales = statement_has(statement, "block_scale");

	if (is_wmma && statement->type_count == 2 && types[0].bytes <= 4) {
		/* wmma.mma...f32.f16: the types of d and c; a and b are f16 */
		a = b = (struct ptx_type){ 2, 'f' };
		c = types[1];
	} else if (statement->type_count == 4) {
		a = types[1];
		b = types[2];
		c = types[3];
	} else {
		decode_unsupported(decoder, "these types");
	}
	if (statement->operand_count != (has_scales ? 8 : 4) || statement_has(statement, "sp") ||
	    (!is_wmma && shape.n != 8) || shape_is_wrong(shape, a, d) || rounds(statement))
		decode_unsupported(decoder, NULL);
	operation->a = fragment_of(element_of(decoder, a), is_wmma ? LAYOUT_LINEAR : LAYOUT_MMA_A,
				   shape.m, shape.k);
	operation->b = fragment_of(element_of(decoder, b), is_wmma ? LAYOUT_LINEAR : LAYOUT_MMA_B,
				   shape.k, shape.n);
	operation->c = fragment_of(element_of(decoder, c), is_wmma ? LAYOUT_LINEAR : LAYOUT_MMA_C,
				   shape.m, shape.n);
	operation->d = operation->c;
	operation->d.element = element_of(decoder, d);
	operation->saturates = statement_has(statement, "satfinite");
	operation->scale_a.data = operation->scale_b.data = -1;
	if (has_scales)
		take_scales(decoder, operation);
	bind_fragment(decoder, &operation->a, &statement->operands[1], false);
	bind_fragment(decoder, &operation->b, &statement->operands[2], false);
	bind_fragment(decoder, &operation->c, &statement->operands[3], false);
	bind_fragment(decoder, &operation->d, &statement->operands[0], true);
	operation->is_tile = !is_wmma && is_tile(operation);
	decode_emit(decoder, "@matrix.multiply")->target = operation;
}

/* wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 r, [p], stride */
static void decode_transfer(struct decoder *decoder, bool stores)
{
	struct statement *statement = decoder->statement;
	const struct operand *operands = statement->operands;
	struct matrix_transfer *transfer = ARENA_NEW(decoder->arena, struct matrix_transfer);
	struct shape shape = take_shape(decoder);
	enum matrix_element element;
	struct address address;
	uint8_t rows = shape.m, columns = shape.n;

	if (statement->operand_count < 2 || !statement->type_count)
		decode_unsupported(decoder, NULL);
	element = element_of(decoder, statement->types[0]);
	if (statement_has(statement, "a"))
		columns = shape.k;
	else if (statement_has(statement, "b"))
		rows = shape.k;
	transfer->fragment = fragment_of(element, LAYOUT_LINEAR, rows, columns);
	transfer->column_major = statement_has(statement, "col");
	address = decode_address_in_register(
		decoder, decode_address(decoder, &operands[stores ? 0 : 1],
					statement_says_shared(statement)));
	transfer->is_shared = address.is_shared;
	transfer->address_slot = address.slot;
	transfer->offset = address.offset;
	transfer->stride_slot =
		statement->operand_count > 2
			? decode_source(decoder, &operands[2], 4)
			: decode_constant(decoder, 4, transfer->column_major ? rows : columns);
	bind_fragment(decoder, &transfer->fragment, &operands[stores ? 1 : 0], !stores);
	decode_emit(decoder, stores ? "@matrix.store" : "@matrix.load")->target = transfer;
}

/* ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 r, [p] */
static void decode_tiles(struct decoder *decoder, bool stores)
{
	struct statement *statement = decoder->statement;
	const struct operand *operands = statement->operands;
	struct matrix_transfer *transfer = ARENA_NEW(decoder->arena, struct matrix_transfer);
	unsigned count = statement_has(statement, "x4") ? 4 : statement_has(statement, "x2") ? 2 : 1;
	struct address address;

	if (statement->operand_count != 2 || !statement_has(statement, "m8n8") ||
	    !statement_has(statement, "b16"))
		decode_unsupported(decoder, NULL);
	transfer->fragment = fragment_of(ELEMENT_F16, LAYOUT_LINEAR, 8, (uint8_t)(8 * count));
	transfer->column_major = statement_has(statement, "trans");
	address = decode_address_in_register(
		decoder, decode_address(decoder, &operands[stores ? 0 : 1],
					statement_says_shared(statement)));
	transfer->is_shared = address.is_shared;
	transfer->address_slot = address.slot;
	transfer->offset = address.offset;
	bind_fragment(decoder, &transfer->fragment, &operands[stores ? 1 : 0], !stores);
	decode_emit(decoder, stores ? "@matrix.store_tiles" : "@matrix.load_tiles")->target =
		transfer;
}

static void decode_transpose(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	struct instruction *move;
	int32_t source, dst;

	if (statement->operand_count != 2 || !statement_has(statement, "m8n8") ||
	    !statement_has(statement, "trans"))
		decode_unsupported(decoder, NULL);
	source = decode_source(decoder, &statement->operands[1], 4);
	dst = decode_destination(decoder, &statement->operands[0], 4);
	move = decode_emit(decoder, "@matrix.transpose");
	move->dst = dst;
	move->a = source;
}

/* ---- wgmma ---- */

/* "m64n128k16": M is always 64. */
static bool take_warpgroup_shape(const struct statement *statement, unsigned *n, unsigned *k)
{
	for (unsigned index = 0; index < statement->modifier_count; index++) {
		const struct modifier *modifier = &statement->modifiers[index];
		int end = 0;
		char text[16];

		if (modifier->length >= sizeof(text))
			continue;
		memcpy(text, modifier->text, modifier->length);
		text[modifier->length] = 0;
		if (sscanf(text, "m64n%3uk%3u%n", n, k, &end) == 2 && end == (int)modifier->length)
			return *n >= 8 && *n <= 256 && *n % 8 == 0;
	}
	return false;
}

/* The types and the K that belong together: K elements take 32 bytes. */
static void take_warpgroup_types(struct decoder *decoder, struct warpgroup_product *product, unsigned k)
{
	struct statement *statement = decoder->statement;
	const struct ptx_type *types = statement->types;
	bool fits;

	if (!statement->type_count)
		decode_unsupported(decoder, "these types");
	product->d = element_of(decoder, types[0]);
	product->is_bits = statement_has(statement, "b1");
	if (product->is_bits) {
		if (k != 256 || product->d != ELEMENT_S32 || !statement_has(statement, "and") ||
		    !statement_has(statement, "popc"))
			decode_unsupported(decoder, "these types");
		return;
	}
	if (statement->type_count != 3)
		decode_unsupported(decoder, "these types");
	product->a = element_of(decoder, types[1]);
	product->b = element_of(decoder, types[2]);
	switch (product->a) {
	case ELEMENT_F16:
		fits = product->b == product->a && (product->d == ELEMENT_F16 || product->d == ELEMENT_F32);
		break;
	case ELEMENT_BF16:
	case ELEMENT_TF32:
		fits = product->b == product->a && product->d == ELEMENT_F32;
		break;
	case ELEMENT_E4M3:
	case ELEMENT_E5M2:
		fits = (product->b == ELEMENT_E4M3 || product->b == ELEMENT_E5M2) &&
		       (product->d == ELEMENT_F16 || product->d == ELEMENT_F32);
		break;
	case ELEMENT_S8:
	case ELEMENT_U8:
		fits = (product->b == ELEMENT_S8 || product->b == ELEMENT_U8) && product->d == ELEMENT_S32;
		break;
	default:
		fits = false;
	}
	if (!fits || k * element_bytes(product->a) != WARPGROUP_DEPTH_BYTES)
		decode_unsupported(decoder, "these types");
}

/* A register of 32 bits that is read and written. */
static int32_t result_slot(struct decoder *decoder, const struct operand *operand)
{
	if (operand->kind != OPERAND_REGISTER || operand->bytes != 4)
		decode_unsupported(decoder, "registers of 32 bits are needed");
	return operand->slot;
}

static int take_sign(struct decoder *decoder, const struct operand *operand)
{
	int64_t value = (int64_t)operand->value;

	if (operand->kind != OPERAND_INTEGER || (value != 1 && value != -1))
		decode_unsupported(decoder, "a scale is 1 or -1");
	return (int)value;
}

static bool take_transposition(struct decoder *decoder, const struct operand *operand)
{
	if (operand->kind != OPERAND_INTEGER || operand->value > 1)
		decode_unsupported(decoder, "a transposition is 0 or 1");
	return operand->value;
}

/* wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {d...}, a, b, scale-d, scale-a, scale-b, trans-a, trans-b
 * where a is a descriptor or {a...}, which has no trans-a; only 16-bit elements have the last two, and only floats
 * the last four. */
static void decode_warpgroup_product(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const struct operand *operands = statement->operands;
	struct warpgroup_product *product = ARENA_NEW(decoder->arena, struct warpgroup_product);
	unsigned n, k, at = 4, scales, transpositions;

	if (statement_has(statement, "sp") || !take_warpgroup_shape(statement, &n, &k) ||
	    statement->operand_count < 4 || operands[0].kind != OPERAND_VECTOR)
		decode_unsupported(decoder, NULL);
	take_warpgroup_types(decoder, product, k);
	product->columns = n;
	product->result_count = product->d == ELEMENT_F16 ? n / 4 : n / 2;
	product->a_is_in_registers = operands[1].kind == OPERAND_VECTOR;
	product->saturates = statement_has(statement, "satfinite");
	scales = product->d == ELEMENT_S32 ? 0 : 2;
	transpositions = product->is_bits || element_bytes(product->a) != 2 ? 0
			 : product->a_is_in_registers			     ? 1
									     : 2;
	if (operands[0].element_count != product->result_count ||
	    (product->a_is_in_registers && operands[1].element_count != 4) ||
	    statement->operand_count != 4 + scales + transpositions)
		decode_unsupported(decoder, "operands");
	if (scales) {
		product->negates = take_sign(decoder, &operands[at]) != take_sign(decoder, &operands[at + 1]);
		at += 2;
	}
	if (transpositions == 2)
		product->a_is_transposed = take_transposition(decoder, &operands[at++]);
	if (transpositions)
		product->b_is_transposed = take_transposition(decoder, &operands[at]);
	for (unsigned index = 0; index < product->result_count; index++)
		product->results[index] =
			result_slot(decoder, &statement->elements[operands[0].first_element + index]);
	for (unsigned index = 0; product->a_is_in_registers && index < 4; index++)
		product->a_slots[index] =
			decode_source(decoder, &statement->elements[operands[1].first_element + index], 4);
	if (!product->a_is_in_registers)
		product->a_slots[0] = decode_source(decoder, &operands[1], 8);
	product->b_slot = decode_source(decoder, &operands[2], 8);
	product->scale_slot = decode_predicate_source(decoder, &operands[3]);
	decode_emit(decoder, "@warpgroup.multiply")->target = product;
}

/* Fences change nothing here, groups something in strict mode alone (machine/warpgroup.h). */
static void decode_warpgroup(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const struct operand *pending = &statement->operands[0];

	if (statement_has(statement, "mma_async")) {
		decode_warpgroup_product(decoder);
	} else if (statement_has(statement, "wait_group")) {
		if (statement->operand_count != 1 || pending->kind != OPERAND_INTEGER)
			decode_unsupported(decoder, "a constant operand is needed");
		if (pool_options.strict)
			decode_emit(decoder, "@warpgroup.wait")->imm = (int64_t)pending->value;
	} else if (statement_has(statement, "commit_group")) {
		if (pool_options.strict)
			decode_emit(decoder, "@warpgroup.commit");
	} else if (!statement_has(statement, "fence")) {
		decode_unsupported(decoder, NULL);
	}
}

bool decode_matrix(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;

	if (!statement_is_matrix(statement))
		return false;
	if (statement_is(statement, "wgmma"))
		decode_warpgroup(decoder);
	else if (statement_is(statement, "mma"))
		decode_multiply(decoder, false);
	else if (statement_is(statement, "wmma") && statement_has(statement, "mma"))
		decode_multiply(decoder, true);
	else if (statement_is(statement, "wmma"))
		decode_transfer(decoder, statement_has(statement, "store"));
	else if (statement_is(statement, "movmatrix"))
		decode_transpose(decoder);
	else
		decode_tiles(decoder, statement_is(statement, "stmatrix"));
	return true;
}
