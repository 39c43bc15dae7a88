/* convert.c - cvt: rounding, saturation and registers wider than values. */
#include "decoder.h"

#include "../machine/narrow.h"

#include <stdio.h>

enum rounding { ROUND_NEAREST, ROUND_ZERO, ROUND_DOWN, ROUND_UP };

static const char *type_name(struct ptx_type type, char name[8])
{
	switch (type.kind) {
	case 'h':
		return "bf16";
	case 't':
		return "tf32";
	case 'b':
		snprintf(name, 8, "u%u", type.bytes * 8);
		return name;
	default:
		snprintf(name, 8, "%c%u", type.kind, type.bytes * 8);
		return name;
	}
}

static bool is_float(struct ptx_type type)
{
	return type.kind == 'f' || type.kind == 'h' || type.kind == 't';
}

static bool is_integer(struct ptx_type type)
{
	return strchr("bus", type.kind) && type.bytes && type.bytes <= 8;
}

static int32_t emit_unary(struct decoder *decoder, const char *form, int32_t dst, int32_t a)
{
	struct instruction *instruction = decode_emit(decoder, form);

	instruction->dst = dst;
	instruction->a = a;
	return dst;
}

/* cvt.rn.f16x2.f32 d, a, b: a goes into the upper half */
static void decode_packed(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	bool relu = statement_has(statement, "relu");
	struct instruction *convert;
	int32_t a, b, dst;

	if (statement->operand_count != 3 || statement->types[1].kind != 'f' ||
	    statement->types[1].bytes != 4 || statement_has(statement, "rs") ||
	    statement_has(statement, "satfinite"))
		decode_unsupported(decoder, NULL);
	a = decode_source(decoder, &statement->operands[1], 4);
	b = decode_source(decoder, &statement->operands[2], 4);
	dst = decode_destination(decoder, &statement->operands[0], 4);
	convert = decode_emit(decoder, statement->types[0].kind == 'x' ? "cvt.f16x2.f32"
								       : "cvt.bf16x2.f32");
	convert->dst = dst;
	convert->a = a;
	convert->b = b;
	convert->x = statement_has(statement, "rz") ? ROUND_ZERO : ROUND_NEAREST;
	convert->y = relu;
}

/* The conversion's own form; `dst` holds at least 16 bits a lane. */
static void emit_conversion(struct decoder *decoder, struct ptx_type to, struct ptx_type from,
			    int32_t dst, int32_t source)
{
	struct statement *statement = decoder->statement;
	bool to_integral = statement_has_prefix(statement, "rni") ||
			   statement_has(statement, "rzi") || statement_has(statement, "rmi") ||
			   statement_has(statement, "rpi");
	enum rounding rounding =
		statement_has(statement, "rz") || statement_has(statement, "rzi")   ? ROUND_ZERO
		: statement_has(statement, "rm") || statement_has(statement, "rmi") ? ROUND_DOWN
		: statement_has(statement, "rp") || statement_has(statement, "rpi") ? ROUND_UP
										    : ROUND_NEAREST;
	bool saturates = statement_has(statement, "sat") && is_integer(to) && is_integer(from);
	struct instruction *convert;
	char to_name[8], from_name[8];

	if (statement_has(statement, "rna") && to.kind != 't')
		decode_unsupported(decoder, NULL);
	convert = decode_emitf(decoder, "cvt%s%s.%s.%s", saturates ? ".sat" : "",
			       is_float(to) && is_float(from) && to_integral ? ".integral" : "",
			       type_name(to, to_name), type_name(from, from_name));
	convert->dst = dst;
	convert->a = source;
	convert->x = rounding;
	if (to.kind == 't')
		convert->x = statement_has(statement, "rna") ? ROUND_UP : rounding;
}

static void flush_subnormals(struct decoder *decoder, struct ptx_type type, int32_t *slot)
{
	if (type.kind != 'f' || type.bytes != 4)
		return;
	*slot = emit_unary(decoder, "@flush.f32", decode_slot(decoder, 4), *slot);
}

/* cvt.rn.satfinite.e4m3x2.f32 d, a, b; cvt.rn.f16x2.e4m3x2 d, a */
static bool decode_narrow(struct decoder *decoder)
{
	static const char *const formats[NARROW_FORMATS] = {
		[NARROW_E4M3] = "e4m3x2", [NARROW_E5M2] = "e5m2x2", [NARROW_E2M3] = "e2m3x2",
		[NARROW_E3M2] = "e3m2x2", [NARROW_E2M1] = "e2m1x2", [NARROW_UE8M0] = "ue8m0x2",
	};
	struct statement *statement = decoder->statement;
	const struct modifier *last;
	const char *other = statement_has(statement, "f16x2")	 ? "f16x2"
			    : statement_has(statement, "bf16x2") ? "bf16x2"
								 : "f32";
	const char *format = NULL;
	struct instruction *convert;
	bool widens, two;
	int32_t a, b = -1, dst;

	for (unsigned k = 0; k < NARROW_FORMATS; k++)
		if (statement_has(statement, formats[k]))
			format = formats[k];
	if (!format)
		return false;
	last = &statement->modifiers[statement->modifier_count - 1];
	widens = last->length == strlen(format) && !memcmp(last->text, format, last->length);
	two = !strcmp(other, "f32");
	if (statement->operand_count != (two ? 3 : 2) || statement_has(statement, "rs") ||
	    statement_has_prefix(statement, "scaled") || (widens && two))
		decode_unsupported(decoder, NULL);
	a = decode_source(decoder, &statement->operands[1], widens ? 2 : 4);
	if (two)
		b = decode_source(decoder, &statement->operands[2], 4);
	dst = decode_destination(decoder, &statement->operands[0], widens ? 4 : 2);
	convert = widens ? decode_emitf(decoder, "cvt.%s.%s", other, format)
			 : decode_emitf(decoder, "cvt.%s.%s", format, other);
	convert->dst = dst;
	convert->a = a;
	convert->b = b;
	convert->y = (statement_has(statement, "relu") ? NARROW_RELU : 0) |
		     (statement_has(statement, "satfinite") ? NARROW_SATFINITE : 0) |
		     (statement_has(statement, "rp") ? NARROW_UP : 0);
	return true;
}

static void decode_cvt(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const struct operand *to_operand = &statement->operands[0];
	struct ptx_type to = statement->types[0], from = statement->types[1];
	unsigned container = to.bytes < 2 ? 2 : to.bytes;
	bool flushes = statement_has(statement, "ftz");
	int32_t source, dst, converted;
	unsigned dst_bytes;

	if (decode_narrow(decoder))
		return;
	if (statement->type_count != 2 || statement->operand_count < 2)
		decode_unsupported(decoder, NULL);
	if (to.kind == 'x' || to.kind == 'y') {
		decode_packed(decoder);
		return;
	}
	if (statement->operand_count != 2 || !(is_float(to) || is_integer(to)) ||
	    !(is_float(from) || is_integer(from)) || statement_has(statement, "satfinite"))
		decode_unsupported(decoder, NULL);
	source = decode_source(decoder, &statement->operands[1], from.bytes);
	if (flushes)
		flush_subnormals(decoder, from, &source);
	dst = decode_destination(decoder, to_operand, to.bytes);
	dst_bytes = to_operand->kind == OPERAND_SINK ? container : to_operand->bytes;
	converted = dst_bytes > container ? decode_slot(decoder, container) : dst;
	emit_conversion(decoder, to, from, converted, source);
	if (statement_has(statement, "sat") && is_float(to)) {
		if (to.kind != 'f')
			decode_unsupported(decoder, NULL);
		decode_emitf(decoder, "@saturate.f%u", to.bytes * 8);
		decoder->function->code[decoder->function->code_count - 1].dst = converted;
		decoder->function->code[decoder->function->code_count - 1].a = converted;
	}
	if (statement_has(statement, "relu")) {
		if (to.kind != 'h' && !(to.kind == 'f' && to.bytes < 8))
			decode_unsupported(decoder, NULL);
		emit_unary(decoder, to.kind == 'h' ? "@relu.bf16"
				    : to.bytes == 4 ? "@relu.f32" : "@relu.f16",
			   converted, converted);
	}
	if (flushes && to.kind == 'f' && to.bytes == 4)
		emit_unary(decoder, "@flush.f32", converted, converted);
	if (converted != dst) {
		struct instruction *resize =
			decode_emitf(decoder, "@resize.%c%u.%u", to.kind == 's' ? 's' : 'u',
				     container * 8, dst_bytes * 8);

		resize->dst = dst;
		resize->a = converted;
	}
}

bool decode_convert(struct decoder *decoder)
{
	if (!statement_is(decoder->statement, "cvt"))
		return false;
	decode_cvt(decoder);
	return true;
}
