/* compare.c - setp, set, vote, bfind and other forms with special operands. */
#include "decoder.h"

#include <stdio.h>

static const char *const comparisons[] = {
	"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs",
	"equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
};

/* "lo" is "lt" of unsigned values. */
static const char *plain_comparison(const char *comparison)
{
	static const char *const unsigned_names[][2] = {
		{ "lo", "lt" }, { "ls", "le" }, { "hi", "gt" }, { "hs", "ge" },
	};

	for (unsigned k = 0; k < 4; k++)
		if (!strcmp(comparison, unsigned_names[k][0]))
			return unsigned_names[k][1];
	return comparison;
}

static const char *statement_comparison(struct decoder *decoder)
{
	for (size_t k = 0; k < sizeof(comparisons) / sizeof(comparisons[0]); k++)
		if (statement_has(decoder->statement, comparisons[k]))
			return plain_comparison(comparisons[k]);
	decode_unsupported(decoder, "no comparison");
}

/* Emit the comparison itself into the predicate `dst`. */
static void emit_comparison(struct decoder *decoder, struct ptx_type type, int32_t dst)
{
	struct statement *statement = decoder->statement;
	const struct operand *left = &statement->operands[1], *right = &statement->operands[2];
	const char *comparison = statement_comparison(decoder);
	bool is_equality = !strcmp(comparison, "eq") || !strcmp(comparison, "ne");
	const char *ftz = type.kind == 'f' && type.bytes == 4 && statement_has(statement, "ftz")
				  ? "ftz." : "";
	struct instruction *compare;
	const struct form *form;
	int32_t a, b = -1;
	char kind = type.kind;
	char name[48];

	if (strchr("bus", kind))
		kind = is_equality ? 'b' : kind == 's' ? 's' : 'u';
	if (kind == 'h')
		snprintf(name, sizeof(name), "setp.%s.bf16", comparison);
	else
		snprintf(name, sizeof(name), "setp.%s.%s%c%u", comparison, ftz, kind,
			 type.bytes * 8);
	form = form_find(name, strlen(name));
	if (!form)
		decode_unsupported(decoder, NULL);
	a = decode_source(decoder, left, type.bytes);
	if (!decode_is_constant(right) || !form->run_immediate)
		b = decode_source(decoder, right, type.bytes);
	compare = decode_emit(decoder, name);
	compare->dst = dst;
	compare->a = a;
	compare->b = b;
	if (b < 0) {
		compare->run = form->run_immediate;
		compare->imm = (int64_t)decode_literal(right, type.bytes);
	}
}

static const char *combination(struct statement *statement)
{
	return statement_has(statement, "and")	 ? "and.pred"
	       : statement_has(statement, "or")	 ? "or.pred"
	       : statement_has(statement, "xor") ? "xor.pred"
						 : NULL;
}

static void emit_predicate(struct decoder *decoder, const char *form, int32_t dst, int32_t a,
			   int32_t b)
{
	struct instruction *instruction = decode_emit(decoder, form);

	instruction->dst = dst;
	instruction->a = a;
	instruction->b = b;
}

/* setp.lt.and.s32 p|q, a, b, c: p = (a < b) and c, q = !(a < b) and c */
static void decode_setp(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const char *combine = combination(statement);
	struct ptx_type type;
	int32_t dst, compared, other = -1, inverse;
	bool two = statement->has_second && statement->second.kind == OPERAND_PREDICATE;

	if (!statement->type_count || statement->operand_count != (combine ? 4u : 3u))
		decode_unsupported(decoder, NULL);
	type = statement->types[0];
	dst = decode_destination(decoder, &statement->operands[0], 0);
	if (!combine && !two) {
		emit_comparison(decoder, type, dst);
		return;
	}
	compared = decode_slot(decoder, 0);
	emit_comparison(decoder, type, compared);
	if (combine)
		other = decode_predicate_source(decoder, &statement->operands[3]);
	inverse = decode_slot(decoder, 0);
	if (two) {
		emit_predicate(decoder, "not.pred", inverse, compared, -1);
		if (combine)
			emit_predicate(decoder, combine, inverse, inverse, other);
	}
	if (combine)
		emit_predicate(decoder, combine, dst, compared, other);
	else
		emit_predicate(decoder, "@move.pred", dst, compared, -1);
	if (two)
		emit_predicate(decoder, "@move.pred", statement->second.slot, inverse, -1);
}

/* set.lt.u32.s32 d, a, b: all ones or 1.0 where it holds */
static void decode_set(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const char *combine = combination(statement);
	struct instruction *choose;
	int32_t compared, dst;

	if (statement->type_count != 2 || statement->operand_count != (combine ? 4u : 3u) ||
	    !strchr("busfh", statement->types[1].kind) || statement->types[0].bytes > 4)
		decode_unsupported(decoder, NULL);
	compared = decode_slot(decoder, 0);
	emit_comparison(decoder, statement->types[1], compared);
	if (combine)
		emit_predicate(decoder, combine, compared, compared,
			       decode_predicate_source(decoder, &statement->operands[3]));
	dst = decode_destination(decoder, &statement->operands[0], statement->types[0].bytes);
	choose = decode_emitf(decoder, "@choose.b%u", statement->types[0].bytes * 8);
	choose->dst = dst;
	choose->a = compared;
	choose->imm = statement->types[0].kind == 'h'  ? 0x3f80
		      : statement->types[0].kind != 'f'  ? -1
		      : statement->types[0].bytes == 4 ? 0x3f800000
						       : 0x3c00;
}

bool decode_compare(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;

	if (statement_is(statement, "setp")) {
		if (statement->type_count == 1 && strchr("xy", statement->types[0].kind))
			return false;
		decode_setp(decoder);
	} else if (statement_is(statement, "set")) {
		if (statement->type_count == 2 && strchr("xy", statement->types[1].kind))
			return false;
		decode_set(decoder);
	} else {
		return false;
	}
	return true;
}
