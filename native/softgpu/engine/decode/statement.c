/* statement.c - one statement: guard, opcode, modifiers, operands. */
#include "../ptx/declare.h"
#include "decoder.h"

/* ---- symbols of the function ---- */

struct symbol *decode_add_symbol(struct decoder *decoder, const char *name, uint32_t length,
				 enum symbol_kind kind)
{
	struct symbol *symbol = ARENA_NEW(decoder->arena, struct symbol);

	*symbol = (struct symbol){
		.name = name, .length = length, .kind = kind,
		.scope = decoder->scope_count,
		.shadowed = name_map_get(&decoder->symbol_names, name, length),
	};
	*(ARENA_PUSH(decoder->arena, decoder->symbols, decoder->symbol_count)) = symbol;
	name_map_set(&decoder->symbol_names, decoder->arena, name, length, symbol);
	return symbol;
}

/* A list of registers and a name that is spelt as it are two: ".reg .b32 a; .reg .f16 a<2>;"
 * are a, a0 and a1. */
static struct symbol *find_spelling(struct decoder *decoder, const char *name, uint32_t length,
				    bool list)
{
	struct symbol *symbol = name_map_get(&decoder->symbol_names, name, length);

	while (symbol && (symbol->kind == SYMBOL_REGISTER_ARRAY) != list)
		symbol = symbol->shadowed;
	return symbol;
}

/* "%r12" is element 12 of ".reg .b32 %r<100>": try each split into name and
 * number, the longest name first. */
static struct symbol *find_array_element(struct decoder *decoder, const char *name,
					 uint32_t length, int32_t *slot)
{
	uint64_t number = 0, scale = 1;

	for (uint32_t digits = 1; digits < length && digits < 10; digits++) {
		char c = name[length - digits];
		struct symbol *symbol;

		if (c < '0' || c > '9')
			break;
		number += (uint64_t)(c - '0') * scale;
		scale *= 10;
		symbol = find_spelling(decoder, name, length - digits, true);
		if (symbol && number < symbol->count) {
			*slot = symbol->slot + (int32_t)number * (symbol->bytes
				? symbol->bytes * WARP_LANES : 4);
			return symbol;
		}
	}
	return NULL;
}

struct symbol *decode_find_symbol(struct decoder *decoder, const char *name, uint32_t length,
				  int32_t *slot)
{
	struct symbol *symbol = find_spelling(decoder, name, length, false);

	if (symbol) {
		*slot = symbol->slot;
		return symbol;
	}
	return find_array_element(decoder, name, length, slot);
}

/* ---- operands ---- */

static void take_addend(struct decoder *decoder, struct operand *operand)
{
	struct ptx_parser *parser = decoder->parser;

	while (ptx_is(parser, "+") || ptx_is(parser, "-")) {
		bool minus = ptx_is(parser, "-");
		int64_t value;

		ptx_advance(parser);
		if (ptx_accept(parser, "-"))
			minus = !minus;
		value = (int64_t)ptx_take_integer(parser);
		operand->addend = (int64_t)((uint64_t)operand->addend +
					    (minus ? 0 - (uint64_t)value : (uint64_t)value));
	}
}

/* "table[%r1 + 2]": the register behind the bracket counts elements. */
static void take_element_by_register(struct decoder *decoder, struct operand *operand, unsigned bytes)
{
	struct operand index = { .text = decoder->parser->lexer.token.text };
	int32_t address, count, size;
	struct instruction *element;

	index.text = ptx_take_name(decoder->parser, &index.length);
	index.symbol = decode_find_symbol(decoder, index.text, index.length, &index.slot);
	if (!index.symbol || (index.symbol->bytes != 4 && index.symbol->bytes != 8) ||
	    (index.symbol->kind != SYMBOL_REGISTER && index.symbol->kind != SYMBOL_REGISTER_ARRAY))
		ptx_fail(decoder->parser, ENGINE_INVALID_PTX, "'%.*s' is no index", (int)index.length, index.text);
	take_addend(decoder, &index);
	operand->addend += index.addend * bytes;
	address = decode_source(decoder, operand, 8);
	count = decode_resize(decoder, index.slot, index.symbol->bytes, 8, false);
	size = decode_constant(decoder, 8, bytes);
	element = decode_emit(decoder, "mad.lo.u64");
	element->dst = decode_slot(decoder, 8);
	element->a = count;
	element->b = size;
	element->c = address;
	*operand = (struct operand){ .kind = OPERAND_REGISTER, .bytes = 8, .slot = element->dst };
}

/* "mov.u64 %rd1, table[3]": the address of an element, which takes no addend; "ld.global.u32 %r1, table[3]": the
 * element. */
static void take_element_or_addend(struct decoder *decoder, struct operand *operand)
{
	unsigned bytes = operand->kind == OPERAND_VARIABLE ? operand->variable->element_bytes
							   : operand->symbol->element_bytes;

	if (!ptx_accept(decoder->parser, "[")) {
		take_addend(decoder, operand);
		return;
	}
	if (decoder->parser->lexer.token.kind == PTX_INTEGER)
		operand->addend = (int64_t)(ptx_take_constant(decoder->parser, false) * bytes);
	else
		take_element_by_register(decoder, operand, bytes);
	operand->is_element = true;
	ptx_expect(decoder->parser, "]");
}

static void note_shared(struct engine_function *function, struct variable *variable)
{
	uint32_t align = (uint32_t)variable->align;

	if (variable->space != SPACE_SHARED || variable->is_dynamic || variable->named_by == function)
		return;
	variable->named_by = function;
	function->named_shared_bytes = (function->named_shared_bytes + align - 1) & ~(align - 1);
	function->named_shared_bytes += (uint32_t)variable->size;
}

static void name_operand(struct decoder *decoder, struct operand *operand)
{
	struct ptx_parser *parser = decoder->parser;
	struct symbol *symbol;
	struct variable *variable;

	operand->text = ptx_take_name(parser, &operand->length);
	if (operand->length == 1 && *operand->text == '_') {
		operand->kind = OPERAND_SINK;
		return;
	}
	symbol = decode_find_symbol(decoder, operand->text, operand->length, &operand->slot);
	if (symbol && symbol->kind != SYMBOL_LABEL) {
		operand->symbol = symbol;
		if (symbol->kind == SYMBOL_REGISTER || symbol->kind == SYMBOL_REGISTER_ARRAY) {
			operand->bytes = symbol->bytes;
			operand->kind = symbol->bytes ? OPERAND_REGISTER : OPERAND_PREDICATE;
		} else {
			operand->kind = OPERAND_SYMBOL;
		}
		return;
	}
	operand->kind = OPERAND_NAME;
	if (*operand->text == '%') {
		operand->kind = OPERAND_SPECIAL;
		operand->special = decode_special_named(operand->text, operand->length);
		return;
	}
	if (operand->length == 7 && !memcmp(operand->text, "WARP_SZ", 7)) {
		operand->kind = OPERAND_INTEGER;
		operand->value = WARP_LANES;
		return;
	}
	variable = unit_variable(decoder->function->unit, operand->text, operand->length);
	if (variable) {
		note_shared(decoder->function, variable);
		operand->variable = variable;
		operand->kind = OPERAND_VARIABLE;
		return;
	}
	operand->function = unit_function(decoder->function->unit, operand->text, operand->length);
	if (operand->function)
		operand->kind = OPERAND_FUNCTION;
}

static void scalar_operand(struct decoder *decoder, struct operand *operand)
{
	struct ptx_parser *parser = decoder->parser;
	const struct ptx_token *token = &parser->lexer.token;
	bool minus;

	*operand = (struct operand){ .text = token->text, .length = token->length };
	operand->negated = ptx_accept(parser, "!");
	minus = ptx_accept(parser, "-");
	if (token->kind == PTX_INTEGER || ptx_is(parser, "~") || (minus && ptx_is(parser, "("))) {
		operand->kind = OPERAND_INTEGER;
		operand->value = ptx_take_constant(parser, minus);
	} else if (token->kind == PTX_FLOAT) {
		operand->kind = OPERAND_FLOAT;
		operand->float_bytes = token->float_bytes;
		operand->value = token->value;
		if (minus)
			operand->value ^= 1ull << (token->float_bytes * 8 - 1);
		ptx_advance(parser);
	} else {
		if (minus)
			ptx_fail(parser, ENGINE_INVALID_PTX, "'-' before '%.24s'", token->text);
		name_operand(decoder, operand);
	}
}

static void take_elements(struct decoder *decoder, struct operand *operand, const char *close)
{
	struct statement *statement = decoder->statement;
	unsigned first = statement->element_count;

	while (!ptx_is(decoder->parser, close)) {
		struct operand *element;

		if (statement->element_count >= ELEMENTS_MAX)
			ptx_fail(decoder->parser, ENGINE_UNSUPPORTED,
				 "%s with more than %d operands in lists", statement->opcode,
				 ELEMENTS_MAX);
		element = &statement->elements[statement->element_count++];
		scalar_operand(decoder, element);
		take_addend(decoder, element);
		if (!ptx_accept(decoder->parser, ","))
			break;
	}
	ptx_expect(decoder->parser, close);
	operand->first_element = (uint16_t)first;
	operand->element_count = (uint16_t)(statement->element_count - first);
}

void decode_take_operand(struct decoder *decoder, struct operand *operand)
{
	struct ptx_parser *parser = decoder->parser;
	const char *text = parser->lexer.token.text;

	if (ptx_accept(parser, "[")) {
		scalar_operand(decoder, operand);
		operand->base = operand->kind;
		operand->kind = OPERAND_ADDRESS;
		take_addend(decoder, operand);
		if (ptx_accept(parser, ",")) {
			if (!ptx_accept(parser, "{"))
				decode_unsupported(decoder, "textures and samplers apart");
			operand->kind = OPERAND_TEXEL;
			take_elements(decoder, operand, "}");
		}
		ptx_expect(parser, "]");
	} else if (ptx_accept(parser, "{")) {
		*operand = (struct operand){ .kind = OPERAND_VECTOR, .text = text, .length = 1 };
		take_elements(decoder, operand, "}");
	} else if (ptx_accept(parser, "(")) {
		*operand = (struct operand){ .kind = OPERAND_LIST, .text = text, .length = 1 };
		take_elements(decoder, operand, ")");
	} else {
		scalar_operand(decoder, operand);
		if (operand->kind == OPERAND_SYMBOL || operand->kind == OPERAND_VARIABLE)
			take_element_or_addend(decoder, operand);
	}
}

/* ---- opcode and modifiers ---- */

bool statement_is(const struct statement *statement, const char *opcode)
{
	return !strcmp(statement->opcode, opcode);
}

bool statement_has(struct statement *statement, const char *modifier)
{
	size_t length = strlen(modifier);

	for (unsigned k = 0; k < statement->modifier_count; k++) {
		struct modifier *candidate = &statement->modifiers[k];

		if (candidate->length == length && !memcmp(candidate->text, modifier, length)) {
			candidate->used = true;
			return true;
		}
	}
	return false;
}

bool statement_has_prefix(struct statement *statement, const char *prefix)
{
	size_t length = strlen(prefix);

	for (unsigned k = 0; k < statement->modifier_count; k++) {
		struct modifier *candidate = &statement->modifiers[k];

		if (candidate->length >= length && !memcmp(candidate->text, prefix, length)) {
			candidate->used = true;
			return true;
		}
	}
	return false;
}

/* ptxas takes .ftz behind the type too (ex2.approx.f32.ftz, which cuDNN has); forms have it
 * before. */
static void put_flushing_first(struct statement *statement)
{
	struct modifier *modifiers = statement->modifiers;
	unsigned last = statement->modifier_count - 1;
	struct modifier flushing;

	if (statement->modifier_count < 2 || statement->type_count != 1 ||
	    modifiers[last].length != 3 || memcmp(modifiers[last].text, "ftz", 3))
		return;
	flushing = modifiers[last];
	modifiers[last] = modifiers[last - 1];
	modifiers[last - 1] = flushing;
}

static void split_opcode(struct decoder *decoder, const struct ptx_token *token)
{
	struct statement *statement = decoder->statement;
	const char *end = token->text + token->length;
	const char *at = memchr(token->text, '.', token->length);
	size_t length = (size_t)((at ? at : end) - token->text);

	if (length >= sizeof(statement->opcode))
		ptx_fail(decoder->parser, ENGINE_INVALID_PTX, "unknown instruction '%.*s'",
			 (int)length, token->text);
	memcpy(statement->opcode, token->text, length);
	statement->opcode[length] = 0;
	while (at) {
		const char *start = at + 1;
		struct modifier *modifier;

		at = memchr(start, '.', (size_t)(end - start));
		if (statement->modifier_count >= MODIFIERS_MAX)
			ptx_fail(decoder->parser, ENGINE_INVALID_PTX, "too many modifiers on %s",
				 statement->opcode);
		modifier = &statement->modifiers[statement->modifier_count++];
		*modifier = (struct modifier){ start, (uint32_t)((at ? at : end) - start), false };
		if (statement->type_count < 4 &&
		    ptx_type_named(start, modifier->length,
				   &statement->types[statement->type_count]))
			statement->type_count++;
	}
	put_flushing_first(statement);
}

/* The opcode has been taken; everything up to the ';' follows. */
void decode_take_statement(struct decoder *decoder, const struct ptx_token *opcode)
{
	struct statement *statement = decoder->statement;
	struct ptx_parser *parser = decoder->parser;

	split_opcode(decoder, opcode);
	while (!ptx_is(parser, ";")) {
		struct operand *operand;

		if (statement->operand_count >= OPERANDS_MAX)
			decode_unsupported(decoder, "too many operands");
		operand = &statement->operands[statement->operand_count++];
		decode_take_operand(decoder, operand);
		if (statement->operand_count == 1 && ptx_accept(parser, "|")) {
			decode_take_operand(decoder, &statement->second);
			statement->has_second = true;
		}
		if (!ptx_accept(parser, ","))
			break;
	}
	ptx_expect(parser, ";");
}

/* ---- its form ---- */

/* Modifiers that change nothing for an engine that executes one instruction
 * after the other for all lanes of a warp, with coherent memory. */
static bool modifier_is_silent(const struct modifier *modifier)
{
	static const char *const silent[] = { "uni", "sync", "aligned", "rn" };

	for (size_t k = 0; k < sizeof(silent) / sizeof(silent[0]); k++) {
		if (strlen(silent[k]) == modifier->length &&
		    !memcmp(silent[k], modifier->text, modifier->length))
			return true;
	}
	return false;
}

const struct form *decode_find_form(struct decoder *decoder, bool with_saturation)
{
	const struct statement *statement = decoder->statement;
	char name[96];
	size_t used = strlen(statement->opcode);

	memcpy(name, statement->opcode, used);
	for (unsigned k = 0; k < statement->modifier_count; k++) {
		const struct modifier *modifier = &statement->modifiers[k];

		/* vote.uni is a vote of its own, other .uni say that lanes go together. */
		if (modifier_is_silent(modifier) &&
		    !(statement_is(statement, "vote") && modifier->text[0] == 'u'))
			continue;
		if (!with_saturation && modifier->length == 3 && !memcmp(modifier->text, "sat", 3))
			continue;
		if (used + 1 + modifier->length >= sizeof(name))
			return NULL;
		name[used++] = '.';
		memcpy(name + used, modifier->text, modifier->length);
		used += modifier->length;
	}
	return form_find(name, used);
}
