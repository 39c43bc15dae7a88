/* parse.c - the pieces that declarations and statements are made of. */
#include "parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define OBJECT_BYTES_MAX ((uint64_t)1 << 40)	/* so that sizes cannot wrap */

void ptx_fail(struct ptx_parser *parser, enum engine_status status, const char *format, ...)
{
	va_list arguments;
	int used;

	used = snprintf(parser->message, sizeof(parser->message), "PTX line %u: ",
			parser->lexer.line);
	va_start(arguments, format);
	vsnprintf(parser->message + used, sizeof(parser->message) - (size_t)used, format,
		  arguments);
	va_end(arguments);
	parser->status = status;
	longjmp(*parser->recover, 1);
}

bool ptx_is(const struct ptx_parser *parser, const char *text)
{
	return ptx_token_is(&parser->lexer.token, text);
}

void ptx_advance(struct ptx_parser *parser)
{
	ptx_lexer_advance(&parser->lexer);
}

bool ptx_accept(struct ptx_parser *parser, const char *text)
{
	if (!ptx_is(parser, text))
		return false;
	ptx_advance(parser);
	return true;
}

void ptx_expect(struct ptx_parser *parser, const char *text)
{
	if (!ptx_accept(parser, text))
		ptx_fail(parser, ENGINE_INVALID_PTX, "expected '%s' before '%.24s'", text,
			 parser->lexer.token.text);
}

uint64_t ptx_take_integer(struct ptx_parser *parser)
{
	uint64_t value = parser->lexer.token.value;

	if (parser->lexer.token.kind != PTX_INTEGER)
		ptx_fail(parser, ENGINE_INVALID_PTX, "expected a number before '%.24s'",
			 parser->lexer.token.text);
	ptx_advance(parser);
	return value;
}

/* ---- constant expressions (PTX ISA, "Constants") ---- */

#define CONSTANT_DEPTH_MAX 64	/* of what stands in another: it is read by calls */

/* 64 bits; what has been written with U, or is the result of that, is compared, divided and shifted as unsigned. */
struct constant_value {
	uint64_t bits;
	bool is_unsigned;
};

/* Longer ones stand before those that they begin with. */
enum constant_operator {
	CONSTANT_OR, CONSTANT_AND, CONSTANT_EQUAL, CONSTANT_UNEQUAL, CONSTANT_AT_MOST, CONSTANT_AT_LEAST,
	CONSTANT_SHIFT_LEFT, CONSTANT_SHIFT_RIGHT, CONSTANT_BITS_OR, CONSTANT_BITS_XOR, CONSTANT_BITS_AND,
	CONSTANT_LESS, CONSTANT_MORE, CONSTANT_ADD, CONSTANT_SUBTRACT, CONSTANT_MULTIPLY, CONSTANT_DIVIDE,
	CONSTANT_REMAINDER, CONSTANT_OPERATORS,
};

static const struct {
	const char *text;
	unsigned precedence;
} constant_operators[CONSTANT_OPERATORS] = {
	{ "||", 1 }, { "&&", 2 }, { "==", 6 }, { "!=", 6 }, { "<=", 7 }, { ">=", 7 }, { "<<", 8 }, { ">>", 8 },
	{ "|", 3 },  { "^", 4 },  { "&", 5 },  { "<", 7 },  { ">", 7 },  { "+", 9 },  { "-", 9 },  { "*", 10 },
	{ "/", 10 }, { "%", 10 },
};

/* The operator that stands here, or CONSTANT_OPERATORS.  Each of its characters is a token. */
static enum constant_operator constant_operator(const struct ptx_parser *parser)
{
	const struct ptx_token *token = &parser->lexer.token;
	unsigned k = 0;

	if (token->kind == PTX_END || token->length != 1)
		return CONSTANT_OPERATORS;
	while (k < CONSTANT_OPERATORS &&
	       strncmp(token->text, constant_operators[k].text, strlen(constant_operators[k].text)))
		k++;
	return (enum constant_operator)k;
}

static struct constant_value constant_quotient(struct ptx_parser *parser, bool remainder, struct constant_value a,
					       struct constant_value b)
{
	int64_t x = (int64_t)a.bits, y = (int64_t)b.bits;

	if (!y)
		ptx_fail(parser, ENGINE_INVALID_PTX, "a constant is divided by zero");
	if (a.is_unsigned || b.is_unsigned)
		return (struct constant_value){ remainder ? a.bits % b.bits : a.bits / b.bits, true };
	if (y == -1)	/* the least number has no opposite */
		return (struct constant_value){ remainder ? 0 : 0 - a.bits, false };
	return (struct constant_value){ (uint64_t)(remainder ? x % y : x / y), false };
}

static struct constant_value constant_apply(struct ptx_parser *parser, enum constant_operator operator,
					    struct constant_value a, struct constant_value b)
{
	bool is_unsigned = a.is_unsigned || b.is_unsigned;
	bool less = is_unsigned ? a.bits < b.bits : (int64_t)a.bits < (int64_t)b.bits;
	uint64_t x = a.bits, y = b.bits;
	struct constant_value result = { 0, is_unsigned };

	switch (operator) {
	case CONSTANT_ADD: result.bits = x + y; return result;
	case CONSTANT_SUBTRACT: result.bits = x - y; return result;
	case CONSTANT_MULTIPLY: result.bits = x * y; return result;
	case CONSTANT_DIVIDE: return constant_quotient(parser, false, a, b);
	case CONSTANT_REMAINDER: return constant_quotient(parser, true, a, b);
	case CONSTANT_BITS_OR: result.bits = x | y; return result;
	case CONSTANT_BITS_XOR: result.bits = x ^ y; return result;
	case CONSTANT_BITS_AND: result.bits = x & y; return result;
	case CONSTANT_SHIFT_LEFT: return (struct constant_value){ y > 63 ? 0 : x << y, a.is_unsigned };
	case CONSTANT_SHIFT_RIGHT:
		if (a.is_unsigned)
			return (struct constant_value){ y > 63 ? 0 : x >> y, true };
		return (struct constant_value){ (uint64_t)((int64_t)x >> (y > 63 ? 63 : y)), false };
	case CONSTANT_OR: result.bits = x || y; break;
	case CONSTANT_AND: result.bits = x && y; break;
	case CONSTANT_EQUAL: result.bits = x == y; break;
	case CONSTANT_UNEQUAL: result.bits = x != y; break;
	case CONSTANT_AT_MOST: result.bits = less || x == y; break;
	case CONSTANT_AT_LEAST: result.bits = !less; break;
	case CONSTANT_LESS: result.bits = less; break;
	default: result.bits = !less && x != y; break;
	}
	result.is_unsigned = false;
	return result;
}

static struct constant_value constant_binary(struct ptx_parser *parser, unsigned least, unsigned depth);

static struct constant_value constant_unary(struct ptx_parser *parser, unsigned depth)
{
	const struct ptx_token *token = &parser->lexer.token;
	struct constant_value value;

	if (depth > CONSTANT_DEPTH_MAX)
		ptx_fail(parser, ENGINE_INVALID_PTX, "a constant with more than %d levels", CONSTANT_DEPTH_MAX);
	if (ptx_accept(parser, "~")) {
		value = constant_unary(parser, depth + 1);
		value.bits = ~value.bits;
	} else if (ptx_accept(parser, "-")) {
		value = constant_unary(parser, depth + 1);
		value.bits = 0 - value.bits;
	} else if (ptx_accept(parser, "!")) {
		value = constant_unary(parser, depth + 1);
		value = (struct constant_value){ !value.bits, false };
	} else if (ptx_accept(parser, "+")) {
		value = constant_unary(parser, depth + 1);
	} else if (ptx_accept(parser, "(")) {
		if (ptx_is(parser, ".s64") || ptx_is(parser, ".u64")) {
			bool is_unsigned = token->text[1] == 'u';

			ptx_advance(parser);
			ptx_expect(parser, ")");
			value = constant_unary(parser, depth + 1);
			value.is_unsigned = is_unsigned;
			return value;
		}
		value = constant_binary(parser, 1, depth + 1);
		ptx_expect(parser, ")");
	} else {
		value.is_unsigned = token->kind == PTX_INTEGER && token->text[token->length - 1] == 'U';
		value.bits = ptx_take_integer(parser);
		value.is_unsigned |= (int64_t)value.bits < 0;
	}
	return value;
}

static struct constant_value constant_rest(struct ptx_parser *parser, struct constant_value value, unsigned least,
					   unsigned depth)
{
	enum constant_operator k;

	while ((k = constant_operator(parser)) < CONSTANT_OPERATORS && constant_operators[k].precedence >= least) {
		for (const char *c = constant_operators[k].text; *c; c++)
			ptx_advance(parser);
		value = constant_apply(parser, k, value,
				       constant_binary(parser, constant_operators[k].precedence + 1, depth + 1));
	}
	return value;
}

static struct constant_value constant_binary(struct ptx_parser *parser, unsigned least, unsigned depth)
{
	return constant_rest(parser, constant_unary(parser, depth), least, depth);
}

uint64_t ptx_take_constant(struct ptx_parser *parser, bool negative)
{
	struct constant_value value = constant_unary(parser, 0);

	if (negative)
		value.bits = 0 - value.bits;
	return constant_rest(parser, value, 1, 0).bits;
}

const char *ptx_take_name(struct ptx_parser *parser, uint32_t *length)
{
	const char *name = parser->lexer.token.text;

	if (parser->lexer.token.kind != PTX_WORD)
		ptx_fail(parser, ENGINE_INVALID_PTX, "expected a name before '%.24s'", name);
	*length = parser->lexer.token.length;
	ptx_advance(parser);
	return name;
}

static const struct {
	const char *name;
	struct ptx_type type;
} ptx_types[] = {
	{ "b8", { 1, 'b' } },	     { "b16", { 2, 'b' } },    { "b32", { 4, 'b' } },
	{ "b64", { 8, 'b' } },	     { "b128", { 16, 'b' } },  { "u8", { 1, 'u' } },
	{ "u16", { 2, 'u' } },	     { "u32", { 4, 'u' } },    { "u64", { 8, 'u' } },
	{ "s8", { 1, 's' } },	     { "s16", { 2, 's' } },    { "s32", { 4, 's' } },
	{ "s64", { 8, 's' } },	     { "f16", { 2, 'f' } },    { "f32", { 4, 'f' } },
	{ "f64", { 8, 'f' } },	     { "pred", { 0, 'p' } },   { "f16x2", { 4, 'x' } },
	{ "bf16", { 2, 'h' } },	     { "bf16x2", { 4, 'y' } }, { "tf32", { 4, 't' } },
	{ "e4m3x2", { 2, 'e' } },    { "e5m2x2", { 2, 'e' } }, { "u16x2", { 4, 'v' } },
	{ "s16x2", { 4, 'w' } },     { "f32x2", { 8, 'z' } },
	{ "e4m3", { 1, 'm' } },	     { "e5m2", { 1, 'n' } },
};

bool ptx_type_named(const char *name, size_t length, struct ptx_type *type)
{
	for (size_t k = 0; k < sizeof(ptx_types) / sizeof(ptx_types[0]); k++) {
		if (strlen(ptx_types[k].name) == length &&
		    !memcmp(ptx_types[k].name, name, length)) {
			*type = ptx_types[k].type;
			return true;
		}
	}
	return false;
}

struct ptx_type ptx_take_type(struct ptx_parser *parser)
{
	const struct ptx_token *token = &parser->lexer.token;
	struct ptx_type type;

	if (token->kind != PTX_WORD || token->text[0] != '.' ||
	    !ptx_type_named(token->text + 1, token->length - 1, &type))
		ptx_fail(parser, ENGINE_INVALID_PTX, "expected a type before '%.24s'", token->text);
	ptx_advance(parser);
	return type;
}

uint64_t ptx_float_bits(uint64_t bits, unsigned from_bytes, unsigned to_bytes)
{
	float narrow;
	double wide;
	uint32_t word;
	_Float16 half;
	uint16_t half_bits;

	if (from_bytes == to_bytes)
		return bits;
	if (from_bytes == 4) {
		word = (uint32_t)bits;
		memcpy(&narrow, &word, sizeof(narrow));
		wide = (double)narrow;
	} else {
		memcpy(&wide, &bits, sizeof(wide));
		narrow = (float)wide;
	}
	switch (to_bytes) {
	case 8:
		memcpy(&bits, &wide, sizeof(bits));
		return bits;
	case 2:
		half = (_Float16)wide;
		memcpy(&half_bits, &half, sizeof(half_bits));
		return half_bits;
	default:
		memcpy(&word, &narrow, sizeof(word));
		return word;
	}
}

/* Skips what says nothing to us: ".ptr .global" of parameters. */
static void take_alignment(struct ptx_parser *parser, struct ptx_declarator *base)
{
	bool is_pointer = false;

	for (;;) {
		if (ptx_accept(parser, ".align")) {
			uint64_t align = ptx_take_integer(parser);

			if (!align || align > 4096 || align & (align - 1))
				ptx_fail(parser, ENGINE_INVALID_PTX, "alignment %llu",
					 (unsigned long long)align);
			/* Behind .ptr it speaks of what is pointed at. */
			if (!is_pointer)
				base->align = (uint32_t)align;
		} else if (ptx_accept(parser, ".ptr")) {
			is_pointer = true;
		} else if (is_pointer &&
			   (ptx_accept(parser, ".global") || ptx_accept(parser, ".shared") ||
			    ptx_accept(parser, ".const") || ptx_accept(parser, ".local"))) {
			continue;
		} else {
			return;
		}
	}
}

void ptx_take_object_type(struct ptx_parser *parser, struct ptx_declarator *base)
{
	uint32_t lanes = 1;

	*base = (struct ptx_declarator){ 0 };
	take_alignment(parser, base);
	if (ptx_accept(parser, ".v2"))
		lanes = 2;
	else if (ptx_accept(parser, ".v4"))
		lanes = 4;
	if (ptx_is(parser, ".samplerref"))
		ptx_fail(parser, ENGINE_UNSUPPORTED, "samplers apart from textures (.samplerref)");
	base->type = ptx_take_type(parser);
	if (!base->type.bytes)
		ptx_fail(parser, ENGINE_INVALID_PTX, "an object of type .pred");
	take_alignment(parser, base);
	base->elements = lanes;
	if (!base->align)
		base->align = base->type.bytes * lanes;
}

void ptx_take_declarator(struct ptx_parser *parser, struct ptx_declarator *declarator)
{
	uint64_t count = declarator->elements;

	declarator->name = ptx_take_name(parser, &declarator->length);
	declarator->is_unsized = false;
	while (ptx_accept(parser, "[")) {
		if (ptx_is(parser, "]")) {
			declarator->is_unsized = true;
		} else {
			uint64_t dimension = ptx_take_integer(parser);

			if (dimension > OBJECT_BYTES_MAX ||
			    (dimension && count > OBJECT_BYTES_MAX / dimension))
				ptx_fail(parser, ENGINE_INVALID_PTX, "array %.*s is too large",
					 (int)declarator->length, declarator->name);
			count *= dimension;
		}
		ptx_expect(parser, "]");
	}
	declarator->elements = count;
	declarator->bytes = declarator->is_unsized ? 0 : count * declarator->type.bytes;
}

void ptx_take_parameters(struct ptx_parser *parser, struct parameter **parameters, size_t *count)
{
	struct arena *arena = &parser->module->arena;

	ptx_expect(parser, "(");
	while (!ptx_is(parser, ")")) {
		struct ptx_declarator declarator;
		struct parameter *parameter;

		if (ptx_is(parser, ".reg"))
			ptx_fail(parser, ENGINE_UNSUPPORTED, ".reg parameters of functions");
		ptx_expect(parser, ".param");
		ptx_take_object_type(parser, &declarator);
		ptx_take_declarator(parser, &declarator);
		if (declarator.bytes > 1 << 20)
			ptx_fail(parser, ENGINE_INVALID_PTX, "parameter %.*s is too large",
				 (int)declarator.length, declarator.name);
		parameter = ARENA_PUSH(arena, *parameters, *count);
		*parameter = (struct parameter){
			.name = arena_strndup(arena, declarator.name, declarator.length),
			.size = (uint32_t)declarator.bytes,
			.align = declarator.align,
		};
		if (!ptx_accept(parser, ","))
			break;
	}
	ptx_expect(parser, ")");
}
