/* decode_matrix.c - mma, wmma, ldmatrix, stmatrix, movmatrix. */
#include "decode.h"

#include "matrix.h"

bool statement_is_matrix(const struct statement *statement)
{
	return statement_is(statement, "mma") || statement_is(statement, "wmma") ||
	       statement_is(statement, "ldmatrix") || statement_is(statement, "stmatrix") ||
	       statement_is(statement, "movmatrix");
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

/* mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 d, a, b, c */
static void decode_multiply(struct decoder *decoder, bool is_wmma)
{
	struct statement *statement = decoder->statement;
	struct matrix_operation *operation = ARENA_NEW(decoder->arena, struct matrix_operation);
	const struct ptx_type *types = statement->types;
	struct shape shape = take_shape(decoder);
	struct ptx_type d = types[0], a, b, c;

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
	if (statement->operand_count != 4 || statement_has(statement, "sp") ||
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
	bind_fragment(decoder, &operation->a, &statement->operands[1], false);
	bind_fragment(decoder, &operation->b, &statement->operands[2], false);
	bind_fragment(decoder, &operation->c, &statement->operands[3], false);
	bind_fragment(decoder, &operation->d, &statement->operands[0], true);
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

bool decode_matrix(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;

	if (!statement_is_matrix(statement))
		return false;
	if (statement_is(statement, "mma"))
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
