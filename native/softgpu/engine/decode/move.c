/* move.c - mov, cvta, isspacep: values that come from symbols. */
#include "decoder.h"

static void emit_unpack(struct decoder *decoder, const struct operand *vector, int32_t source,
			unsigned bytes)
{
	struct statement *statement = decoder->statement;
	unsigned count = vector->element_count;
	unsigned part = bytes / count;
	int32_t slots[4] = { -1, -1, -1, -1 };
	struct instruction *unpack;

	for (unsigned k = 0; k < count; k++) {
		const struct operand *element = &statement->elements[vector->first_element + k];

		if (element->kind != OPERAND_SINK)
			slots[k] = decode_destination(decoder, element, part);
	}
	unpack = decode_emitf(decoder, "@unpack.%ux%u", count, part * 8);
	unpack->a = source;
	unpack->dst = slots[0];
	unpack->b = slots[1];
	unpack->c = slots[2];
	unpack->x = slots[3];
}

static void emit_pack(struct decoder *decoder, const struct operand *vector, int32_t dst,
		      unsigned bytes)
{
	struct statement *statement = decoder->statement;
	unsigned count = vector->element_count;
	unsigned part = bytes / count;
	int32_t slots[4] = { -1, -1, -1, -1 };
	struct instruction *pack;

	for (unsigned k = 0; k < count; k++)
		slots[k] = decode_source(decoder, &statement->elements[vector->first_element + k],
					 part);
	pack = decode_emitf(decoder, "@pack.%ux%u", count, part * 8);
	pack->dst = dst;
	pack->a = slots[0];
	pack->b = slots[1];
	pack->c = slots[2];
	pack->x = slots[3];
}

static void decode_vector_move(struct decoder *decoder, unsigned bytes)
{
	const struct operand *to = &decoder->statement->operands[0];
	const struct operand *from = &decoder->statement->operands[1];
	const struct operand *vector = to->kind == OPERAND_VECTOR ? to : from;
	unsigned count = vector->element_count;

	if ((count != 2 && count != 4) || bytes / count < 1 || bytes > 8)
		decode_unsupported(decoder, "this vector");
	if (to->kind == OPERAND_VECTOR)
		emit_unpack(decoder, to, decode_source(decoder, from, bytes), bytes);
	else
		emit_pack(decoder, from, decode_destination(decoder, to, bytes), bytes);
}

/* A register of 128 bits is a buffer of 16 bytes a lane (handlers/memory.c). */
static void move_half(struct decoder *decoder, bool unpacks, int32_t wide, int32_t half,
		      unsigned offset)
{
	struct instruction *move = decode_emit(decoder, unpacks ? "@unpack.u64.64" : "@pack.u64.64");

	move->dst = half;
	move->a = wide;
	move->imm = offset;
}

static void decode_wide_move(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const struct operand *to = &statement->operands[0], *from = &statement->operands[1];
	const struct operand *elements = statement->elements;
	int32_t to_slot = -1, from_slot = -1;

	if ((to->kind == OPERAND_VECTOR && (to->element_count != 2 || from->kind == OPERAND_VECTOR)) ||
	    (from->kind == OPERAND_VECTOR && from->element_count != 2))
		decode_unsupported(decoder, "this vector");
	if (from->kind != OPERAND_VECTOR)
		from_slot = decode_source(decoder, from, 16);
	if (to->kind != OPERAND_VECTOR)
		to_slot = decode_destination(decoder, to, 16);
	for (unsigned k = 0; k < 2; k++) {
		int32_t half;

		if (from_slot < 0) {
			half = decode_source(decoder, &elements[from->first_element + k], 8);
		} else {
			const struct operand *element = &elements[to->first_element + k];

			half = to_slot < 0 ? decode_destination(decoder, element, 8)
					   : decode_slot(decoder, 8);
			move_half(decoder, true, from_slot, half, 8 * k);
		}
		if (to_slot >= 0)
			move_half(decoder, false, to_slot, half, 8 * k);
	}
}

static void decode_mov(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const struct operand *to = &statement->operands[0];
	const struct operand *from = &statement->operands[1];
	unsigned bytes = statement->types[0].bytes;
	struct instruction *move;
	int32_t source, dst;

	if (statement->operand_count != 2 || statement->type_count != 1)
		decode_unsupported(decoder, NULL);
	if (bytes == 16) {
		decode_wide_move(decoder);
		return;
	}
	if (to->kind == OPERAND_VECTOR || from->kind == OPERAND_VECTOR) {
		decode_vector_move(decoder, bytes);
		return;
	}
	if (!bytes) {
		source = decode_predicate_source(decoder, from);
		dst = decode_destination(decoder, to, 0);
		move = decode_emit(decoder, "@move.pred");
	} else if (decode_is_constant(from)) {
		dst = decode_destination(decoder, to, bytes);
		move = decode_emitf(decoder, "@set.b%u", bytes * 8);
		move->dst = dst;
		move->imm = (int64_t)decode_literal(from, bytes);
		return;
	} else {
		source = decode_source(decoder, from, bytes);
		dst = decode_destination(decoder, to, bytes);
		move = decode_emitf(decoder, "mov.b%u", bytes * 8);
	}
	move->dst = dst;
	move->a = source;
}

/* Global, const, local and parameter addresses are pointers of this process;
 * shared ones are offsets. */
static void decode_cvta(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	bool to_space = statement_has(statement, "to");
	bool is_shared = statement_has_prefix(statement, "shared");
	const struct operand *from = &statement->operands[1];
	struct instruction *convert;
	int32_t source, dst;

	if (statement->operand_count != 2 || !statement->type_count ||
	    statement->types[0].bytes != 8)
		decode_unsupported(decoder, NULL);
	source = decode_source(decoder, from, 8);
	dst = decode_destination(decoder, &statement->operands[0], 8);
	if (to_space && statement_has(statement, "shared::cluster")) {
		convert = decode_emit(decoder, "@generic_to_window");
		convert->dst = dst;
		convert->a = source;
		return;
	}
	if (is_shared && !to_space && statement_has(statement, "shared::cluster")) {
		source = decode_resize(decoder, source, 8, 4, false);
		convert = decode_emit(decoder, "@cluster_pointer");
		convert->dst = dst;
		convert->a = source;
		convert->x = 1;
		return;
	}
	/* It may have been widened from 32 bits. */
	if (!to_space && statement_has(statement, "local"))
		source = decode_local_pointer(decoder, decode_resize(decoder, source, 8, 4, false));
	convert = decode_emit(decoder, !is_shared ? "mov.b64"
				       : to_space ? "@generic_to_shared"
						  : "@shared_to_generic");
	convert->dst = dst;
	convert->a = source;
}

static void decode_isspacep(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	struct instruction *test;
	int32_t source, dst;

	if (statement->operand_count != 2)
		decode_unsupported(decoder, NULL);
	source = decode_source(decoder, &statement->operands[1], 8);
	dst = decode_destination(decoder, &statement->operands[0], 0);
	test = decode_emit(decoder, statement_has(statement, "shared::cluster") ? "@is_in_cluster"
				    : statement_has_prefix(statement, "shared") ? "@is_shared"
				    : statement_has(statement, "local")	      ? "@is_local"
				    : statement_has(statement, "global")      ? "@is_global"
				    : statement_has_prefix(statement, "param") ? "@is_parameter"
									       : "@is_const");
	test->dst = dst;
	test->a = source;
}

bool decode_move(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;

	if (statement_is(statement, "mov"))
		decode_mov(decoder);
	else if (statement_is(statement, "cvta"))
		decode_cvta(decoder);
	else if (statement_is(statement, "isspacep"))
		decode_isspacep(decoder);
	else
		return false;
	return true;
}
