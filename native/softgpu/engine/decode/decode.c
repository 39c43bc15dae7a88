/* decode.c - a function's body, statement by statement. */
#include "decoder.h"

#include <stdio.h>

#define LOCAL_BYTES_MAX (16u << 20)

/* ---- binding by the form's operand list ---- */

static int32_t *binding_field(struct instruction *instruction, char letter)
{
	switch (letter) {
	case 'a': return &instruction->a;
	case 'b': return &instruction->b;
	case 'c': return &instruction->c;
	case 'x': return &instruction->x;
	case 'y': return &instruction->y;
	default: return &instruction->dst;
	}
}

/* See struct form for the language of `operands`. */
static void bind(struct decoder *decoder, const struct form *form, struct instruction *draft)
{
	struct statement *statement = decoder->statement;
	const char *word = form->operands;
	unsigned at = 0;

	for (; *word; at++) {
		const struct operand *operand = &statement->operands[at];
		unsigned bytes = word[1] == 'p' ? 0 : (unsigned)(word[1] - '0');
		bool optional = false;

		if (at >= statement->operand_count) {
			/* shfl and vote before PTX 6.0 had no member mask */
			optional = true;
			if (word[0] != 'y')
				decode_unsupported(decoder, "too few operands");
		}
		if (optional) {
			draft->y = decode_constant(decoder, 4, 0xffffffffu);
		} else if (word[0] == 'd') {
			draft->dst = decode_destination(decoder, operand, bytes);
		} else if (word[0] == 'i') {
			if (operand->kind != OPERAND_INTEGER)
				decode_unsupported(decoder, "a constant operand is needed");
			if (word[1] == 'x')
				draft->x = (int32_t)operand->value;
			else
				draft->imm = (int64_t)operand->value;
		} else if (word[0] == 'k') {
			if (form->run_immediate && decode_is_constant(operand)) {
				draft->imm = (int64_t)decode_literal(operand, bytes);
				draft->run = form->run_immediate;
			} else {
				draft->b = decode_source(decoder, operand, bytes);
			}
		} else {
			*binding_field(draft, word[0]) =
				bytes ? decode_source(decoder, operand, bytes)
				      : decode_predicate_source(decoder, operand);
		}
		word += 2;
		word += *word == ' ';
	}
	if (at < statement->operand_count)
		decode_unsupported(decoder, "too many operands");
}

/* Emit one instruction of `form` with operands bound as it says. */
static struct instruction *emit_bound(struct decoder *decoder, const struct form *form)
{
	struct statement *statement = decoder->statement;
	struct instruction draft = {
		.run = form->run, .dst = -1, .a = -1, .b = -1, .c = -1, .imm = -1, .x = form->x,
		.line = decoder->parser->lexer.line,
	};
	struct instruction *instruction;

	/* Operands may emit instructions of their own: bind before taking room. */
	bind(decoder, form, &draft);
	if (statement->has_second)
		draft.imm = statement->second.kind == OPERAND_SINK ? -1 : statement->second.slot;
	instruction = ARENA_PUSH(decoder->arena, decoder->function->code,
				 decoder->function->code_count);
	*instruction = draft;
	return instruction;
}

/* min and max of three inputs (PTX 8.8): one of two, and one with its result.  .abs goes
 * for every input. */
static bool decode_three_inputs(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const char *flush, *nan;
	struct instruction *instruction;
	int32_t sources[3], dst;

	if ((!statement_is(statement, "min") && !statement_is(statement, "max")) ||
	    statement->operand_count != 4 || statement->type_count != 1 ||
	    statement->types[0].kind != 'f' || statement->types[0].bytes != 4)
		return false;
	flush = statement_has(statement, "ftz") ? ".ftz" : "";
	nan = statement_has(statement, "NaN") ? ".NaN" : "";
	for (unsigned k = 0; k < 3; k++) {
		sources[k] = decode_source(decoder, &statement->operands[k + 1], 4);
		if (statement_has(statement, "abs")) {
			dst = decode_slot(decoder, 4);
			instruction = decode_emit(decoder, "abs.f32");
			instruction->dst = dst;
			instruction->a = sources[k];
			sources[k] = dst;
		}
	}
	for (unsigned k = 1; k < 3; k++) {
		dst = k == 1 ? decode_slot(decoder, 4)
			     : decode_destination(decoder, &statement->operands[0], 4);
		instruction = decode_emitf(decoder, "%s%s%s.f32", statement->opcode, flush, nan);
		instruction->dst = dst;
		instruction->a = sources[0];
		instruction->b = sources[k];
		sources[0] = dst;
	}
	return true;
}

/* min and max with .xorsign.abs choose among the magnitudes, and give what they chose the
 * sign that the inputs' signs make by an exclusive or. */
static bool decode_magnitudes(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const struct modifier *type;
	unsigned bytes = statement->types[0].bytes;
	int32_t sources[2], magnitudes[2], sign, dst;
	struct instruction *instruction;

	if ((!statement_is(statement, "min") && !statement_is(statement, "max")) ||
	    !statement_has(statement, "xorsign") || !statement_has(statement, "abs") ||
	    statement->operand_count != 3 || statement->type_count != 1 ||
	    !strchr("fhxy", statement->types[0].kind) || bytes > 4)
		return false;
	type = &statement->modifiers[statement->modifier_count - 1];
	for (unsigned k = 0; k < 2; k++) {
		sources[k] = decode_source(decoder, &statement->operands[k + 1], bytes);
		magnitudes[k] = decode_slot(decoder, bytes);
		instruction = decode_emitf(decoder, "abs.%.*s", (int)type->length, type->text);
		instruction->dst = magnitudes[k];
		instruction->a = sources[k];
	}
	sign = decode_slot(decoder, bytes);
	instruction = decode_emitf(decoder, "xor.b%u", 8 * bytes);
	instruction->dst = sign;
	instruction->a = sources[0];
	instruction->b = sources[1];
	instruction = decode_emitf(decoder, "and.b%u", 8 * bytes);
	instruction->dst = instruction->a = sign;
	instruction->b = decode_constant(decoder, bytes, bytes == 2		      ? 0x8000
							 : statement->types[0].kind == 'f' ? 0x80000000
											   : 0x80008000);
	dst = decode_destination(decoder, &statement->operands[0], bytes);
	instruction = decode_emitf(decoder, "%s%s%s.%.*s", statement->opcode,
				   statement_has(statement, "ftz") ? ".ftz" : "",
				   statement_has(statement, "NaN") ? ".NaN" : "", (int)type->length, type->text);
	instruction->dst = dst;
	instruction->a = magnitudes[0];
	instruction->b = magnitudes[1];
	instruction = decode_emitf(decoder, "or.b%u", 8 * bytes);
	instruction->dst = instruction->a = dst;
	instruction->b = sign;
	return true;
}

/* add, sub and fma of mixed precision (PTX 8.6: add.f32.f16): the narrow inputs become f32,
 * exactly, and the rest of the statement is that of f32. */
static void widen_inputs(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	bool fma = statement_is(statement, "fma");
	unsigned last = statement->modifier_count - 1, narrow = fma ? 2 : 1;
	const struct ptx_type *types = statement->types;

	if ((!fma && !statement_is(statement, "add") && !statement_is(statement, "sub")) ||
	    statement->type_count != 2 || types[0].kind != 'f' || types[0].bytes != 4 ||
	    types[1].bytes != 2 || (types[1].kind != 'f' && types[1].kind != 'h'))
		return;
	for (unsigned k = 1; k <= narrow && k < statement->operand_count; k++) {
		struct operand *operand = &statement->operands[k];
		int32_t from = decode_source(decoder, operand, 2), to = decode_slot(decoder, 4);
		struct instruction *instruction =
			decode_emit(decoder, types[1].kind == 'h' ? "cvt.f32.bf16" : "cvt.f32.f16");

		instruction->dst = to;
		instruction->a = from;
		*operand = (struct operand){ .kind = OPERAND_REGISTER, .bytes = 4, .slot = to };
	}
	statement->modifier_count = last;
	statement->type_count = 1;
}

void decode_plain(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const struct form *form, *saturate;
	struct instruction *instruction;
	int32_t dst;

	if (decode_three_inputs(decoder) || decode_magnitudes(decoder))
		return;
	widen_inputs(decoder);
	form = decode_find_form(decoder, true);
	if (form && form->operands) {
		emit_bound(decoder, form);
		return;
	}
	if (!statement_has(statement, "sat") || !statement->type_count)
		decode_unsupported(decoder, NULL);
	form = decode_find_form(decoder, false);
	if (!form || !form->operands)
		decode_unsupported(decoder, NULL);
	dst = emit_bound(decoder, form)->dst;
	saturate = statement->types[0].kind == 'x'   ? form_find("@saturate.f16x2", 15)
		   : statement->types[0].kind != 'f' ? NULL
		   : statement->types[0].bytes == 2  ? form_find("@saturate.f16", 13)
		   : statement->types[0].bytes == 4  ? form_find("@saturate.f32", 13)
						     : form_find("@saturate.f64", 13);
	if (!saturate)
		decode_unsupported(decoder, NULL);
	instruction = decode_emitf(decoder, "%.*s", (int)strcspn(saturate->names, " "),
				   saturate->names);
	instruction->dst = instruction->a = dst;
}

/* ---- statements ---- */

/* Opcodes that only advise the hardware. */
static bool is_advice(const struct statement *statement)
{
	static const char *const advice[] = {
		"prefetch", "prefetchu", "nanosleep", "pmevent", "griddepcontrol", "discard",
		"applypriority", "setmaxnreg",
	};

	for (size_t k = 0; k < sizeof(advice) / sizeof(advice[0]); k++)
		if (statement_is(statement, advice[k]))
			return true;
	return false;
}

static void decode_unguarded(struct decoder *decoder)
{
	if (is_advice(decoder->statement))
		return;
	if (decode_tensor(decoder) || decode_cluster(decoder) || decode_memory(decoder) || decode_move(decoder) ||
	    decode_compare(decoder) || decode_convert(decoder) || decode_matrix(decoder) || decode_texture(decoder))
		return;
	decode_plain(decoder);
}

static bool may_suspend(struct decoder *decoder)
{
	const struct form *form = decode_find_form(decoder, true);

	return (form && form->suspends) || statement_is_matrix(decoder->statement);
}

static void decode_statement(struct decoder *decoder, const struct ptx_token *opcode)
{
	struct statement *statement = decoder->statement;
	struct engine_function *function = decoder->function;
	struct instruction *guard;
	size_t guard_at;

	decode_take_statement(decoder, opcode);
	if (decode_control(decoder))
		return;
	if (!statement->has_guard) {
		decode_unguarded(decoder);
		return;
	}
	if (may_suspend(decoder)) {
		/* A turn that ends inside a guard would lose the other lanes. */
		int64_t branch = decode_guard_branch(decoder);

		decode_unguarded(decoder);
		decode_guard_end(decoder, branch);
		return;
	}
	guard = decode_emit(decoder, statement->guard_negated ? "@guard.not" : "@guard");
	guard->a = statement->guard;
	guard_at = function->code_count - 1;
	decode_unguarded(decoder);
	decode_emit(decoder, "@unguard");
	function->code[guard_at].x = (int32_t)(function->code_count - 1 - guard_at);
}

static void declare_registers(struct decoder *decoder)
{
	struct ptx_parser *parser = decoder->parser;
	struct ptx_type type;

	if (ptx_is(parser, ".v2") || ptx_is(parser, ".v4"))
		ptx_fail(parser, ENGINE_UNSUPPORTED, "vector registers (.reg %.3s)",
			 parser->lexer.token.text);
	type = ptx_take_type(parser);
	if (type.bytes == 1)
		type.bytes = 2;
	do {
		uint32_t length;
		const char *name = ptx_take_name(parser, &length);
		struct symbol *symbol = decode_add_symbol(decoder, name, length, SYMBOL_REGISTER);

		symbol->bytes = type.bytes;
		if (ptx_accept(parser, "<")) {
			uint64_t count = ptx_take_integer(parser);

			ptx_expect(parser, ">");
			if (count > 1u << 20)
				ptx_fail(parser, ENGINE_UNSUPPORTED, "a list of %llu registers (%.*s)",
					 (unsigned long long)count, (int)length, name);
			symbol->kind = SYMBOL_REGISTER_ARRAY;
			symbol->count = (uint32_t)count;
			symbol->slot = decode_slot(decoder, type.bytes);
			for (uint64_t k = 1; k < count; k++)
				decode_slot(decoder, type.bytes);
		} else {
			symbol->slot = decode_slot(decoder, type.bytes);
		}
	} while (ptx_accept(parser, ","));
	ptx_expect(parser, ";");
}

static int32_t place_local(struct decoder *decoder, uint64_t bytes, uint32_t align)
{
	uint32_t offset;

	if (align < 8)
		align = 8;
	offset = (decoder->local_bytes + align - 1) & ~(align - 1);
	if (bytes > LOCAL_BYTES_MAX || offset + bytes > LOCAL_BYTES_MAX)
		ptx_fail(decoder->parser, ENGINE_INVALID_PTX, "function %s has too much local memory",
			 decoder->function->name);
	decoder->local_bytes = offset + (uint32_t)bytes;
	if (decoder->local_align < align)
		decoder->local_align = align;
	return (int32_t)offset;
}

static void declare_objects(struct decoder *decoder, enum symbol_kind kind)
{
	struct ptx_parser *parser = decoder->parser;
	struct engine_function *function = decoder->function;
	struct ptx_declarator base;

	ptx_take_object_type(parser, &base);
	do {
		struct ptx_declarator declarator = base;
		struct symbol *symbol;

		ptx_take_declarator(parser, &declarator);
		symbol = decode_add_symbol(decoder, declarator.name, declarator.length, kind);
		symbol->size = (uint32_t)declarator.bytes;
		symbol->element_bytes = declarator.type.bytes;
		if (kind == SYMBOL_LOCAL) {
			symbol->slot = place_local(decoder, declarator.bytes, declarator.align);
		} else if (declarator.is_unsized) {
			symbol->kind = SYMBOL_DYNAMIC_SHARED;
			module_align_dynamic(function->module, declarator.align);
			function->uses_dynamic_shared = true;
		} else {
			uint32_t align = declarator.align;

			function->shared_bytes = (function->shared_bytes + align - 1) & ~(align - 1);
			if (declarator.bytes > 1 << 24)
				ptx_fail(parser, ENGINE_INVALID_PTX, "%.*s is too large",
					 (int)declarator.length, declarator.name);
			symbol->slot = (int32_t)function->shared_bytes;
			function->shared_bytes += (uint32_t)declarator.bytes;
		}
		if (ptx_is(parser, "="))
			ptx_fail(parser, ENGINE_UNSUPPORTED, "initializer of %.*s",
				 (int)declarator.length, declarator.name);
	} while (ptx_accept(parser, ","));
	ptx_expect(parser, ";");
}

/* "$L_table: .branchtargets L1, L2;" */
static void declare_jump_table(struct decoder *decoder, const struct ptx_token *name)
{
	struct ptx_parser *parser = decoder->parser;
	struct jump_table *table = ARENA_NEW(decoder->arena, struct jump_table);
	struct ptx_token *labels = NULL;
	size_t count = 0;

	do {
		struct ptx_token *label = ARENA_PUSH(decoder->arena, labels, count);

		*label = parser->lexer.token;
		ptx_advance(parser);
	} while (ptx_accept(parser, ","));
	ptx_expect(parser, ";");
	table->count = (uint32_t)count;
	table->targets = arena_alloc(decoder->arena, count * sizeof(*table->targets));
	table->indices = arena_alloc(decoder->arena, count * sizeof(*table->indices));
	for (size_t k = 0; k < count; k++)
		decode_branch_reference(decoder, labels[k].text, labels[k].length,
					&table->indices[k]);
	*(ARENA_PUSH(decoder->arena, decoder->tables, decoder->table_count)) = table;
	decode_add_symbol(decoder, name->text, name->length, SYMBOL_JUMP_TABLE)->table = table;
}

static void define_label(struct decoder *decoder, const struct ptx_token *name)
{
	struct ptx_parser *parser = decoder->parser;
	struct symbol *label;

	if (ptx_accept(parser, ".branchtargets")) {
		declare_jump_table(decoder, name);
		return;
	}
	if (ptx_is(parser, ".callprototype") || ptx_is(parser, ".calltargets")) {
		/* What it says is also in the call and the callee. */
		while (!ptx_is(parser, ";") && parser->lexer.token.kind != PTX_END)
			ptx_advance(parser);
		ptx_expect(parser, ";");
		return;
	}
	label = decode_add_symbol(decoder, name->text, name->length, SYMBOL_LABEL);
	label->at = (uint32_t)decoder->function->code_count;
	decode_emit(decoder, "@label");
}

static void open_scope(struct decoder *decoder)
{
	if (decoder->scope_count >= sizeof(decoder->scopes) / sizeof(decoder->scopes[0]))
		ptx_fail(decoder->parser, ENGINE_UNSUPPORTED, "blocks that are nested so deep");
	decoder->scopes[decoder->scope_count++] = (struct scope){
		(uint32_t)decoder->symbol_count, (uint32_t)decoder->reference_count,
	};
}

/* Branches find labels of their own block; the others wait for the block
 * around it. */
static void close_scope(struct decoder *decoder)
{
	const struct scope *scope = &decoder->scopes[decoder->scope_count - 1];
	uint32_t kept = scope->first_reference;

	for (size_t k = scope->first_reference; k < decoder->reference_count; k++) {
		struct label_reference *reference = &decoder->references[k];
		struct symbol *label = name_map_get(&decoder->symbol_names, reference->name,
						    reference->length);

		if (!label || label->kind != SYMBOL_LABEL || label->scope != decoder->scope_count) {
			decoder->references[kept++] = *reference;
			continue;
		}
		if (reference->index)
			*reference->index = label->at + 1;
		else
			decoder->function->code[reference->instruction].branch_to = label->at + 1;
	}
	decoder->scope_count--;
	if (!decoder->scope_count && kept)
		ptx_fail(decoder->parser, ENGINE_INVALID_PTX, "line %u: label %.*s is not defined",
			 decoder->references[0].line, (int)decoder->references[0].length,
			 decoder->references[0].name);
	while (decoder->symbol_count > scope->first_symbol) {
		struct symbol *symbol = decoder->symbols[--decoder->symbol_count];

		name_map_set(&decoder->symbol_names, decoder->arena, symbol->name, symbol->length,
			     symbol->shadowed);
	}
	decoder->reference_count = kept;
}

static void take_guard(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	struct operand operand;

	statement->guard_negated = ptx_accept(decoder->parser, "!");
	decode_take_operand(decoder, &operand);
	if (operand.kind != OPERAND_PREDICATE)
		ptx_fail(decoder->parser, ENGINE_INVALID_PTX, "guard '%.*s' is not a predicate",
			 (int)operand.length, operand.text);
	statement->has_guard = true;
	statement->guard_negated ^= operand.negated;
	statement->guard = operand.slot;
}

static void take_directive_or_statement(struct decoder *decoder)
{
	struct ptx_parser *parser = decoder->parser;
	struct statement *statement = decoder->statement;
	struct ptx_token opcode;

	/* The arrays are written before they are read: clear the rest only. */
	statement->modifier_count = statement->type_count = 0;
	statement->operand_count = statement->element_count = 0;
	statement->has_second = statement->has_guard = statement->guard_negated = false;
	statement->opcode[0] = 0;
	memset(statement->types, 0, sizeof(statement->types));
	if (ptx_accept(parser, "@"))
		take_guard(decoder);
	opcode = parser->lexer.token;
	if (opcode.kind != PTX_WORD)
		ptx_fail(parser, ENGINE_INVALID_PTX, "'%.24s' is no statement", opcode.text);
	if (opcode.length > 5 && !memcmp(opcode.text, ".reg.", 5)) {
		/* ".reg.b32 x;": cuda_fp16.h leaves out the blank */
		parser->lexer.token.text += 4;
		parser->lexer.token.length -= 4;
		declare_registers(decoder);
		return;
	}
	ptx_advance(parser);
	if (opcode.text[0] != '.') {
		if (ptx_accept(parser, ":"))
			define_label(decoder, &opcode);
		else
			decode_statement(decoder, &opcode);
		return;
	}
	if (ptx_token_is(&opcode, ".reg")) {
		declare_registers(decoder);
	} else if (ptx_token_is(&opcode, ".local") || ptx_token_is(&opcode, ".param")) {
		declare_objects(decoder, SYMBOL_LOCAL);
	} else if (ptx_token_is(&opcode, ".shared")) {
		declare_objects(decoder, SYMBOL_SHARED);
	} else if (ptx_token_is(&opcode, ".loc")) {
		ptx_lexer_skip_line(&parser->lexer);
	} else if (ptx_token_is(&opcode, ".pragma")) {
		while (!ptx_is(parser, ";") && parser->lexer.token.kind != PTX_END)
			ptx_advance(parser);
		ptx_expect(parser, ";");
	} else {
		ptx_fail(parser, ENGINE_UNSUPPORTED, "directive %.*s in a function",
			 (int)opcode.length, opcode.text);
	}
}

static void declare_function_parameters(struct decoder *decoder)
{
	struct engine_function *function = decoder->function;

	for (size_t k = 0; k < function->parameter_count; k++) {
		struct parameter *parameter = &function->parameters[k];
		struct symbol *symbol = decode_add_symbol(
			decoder, parameter->name, (uint32_t)strlen(parameter->name),
			function->is_entry ? SYMBOL_KERNEL_PARAMETER : SYMBOL_LOCAL);

		if (!function->is_entry)
			parameter->offset = (uint32_t)place_local(decoder, parameter->size,
								  parameter->align);
		symbol->slot = (int32_t)parameter->offset;
		symbol->size = parameter->size;
	}
	if (function->has_result) {
		struct parameter *result = &function->result;
		struct symbol *symbol = decode_add_symbol(
			decoder, result->name, (uint32_t)strlen(result->name), SYMBOL_LOCAL);

		result->offset = (uint32_t)place_local(decoder, result->size, result->align);
		symbol->slot = (int32_t)result->offset;
		symbol->size = result->size;
	}
}

/* Indices to addresses, once the code no longer moves. */
static void link_branches(struct decoder *decoder)
{
	struct engine_function *function = decoder->function;

	for (size_t k = 0; k < function->code_count; k++) {
		struct instruction *instruction = &function->code[k];

		if (instruction->branch_to)
			instruction->target = &function->code[instruction->branch_to - 1];
	}
	for (size_t t = 0; t < decoder->table_count; t++) {
		struct jump_table *table = decoder->tables[t];

		for (uint32_t k = 0; k < table->count; k++)
			table->targets[k] = &function->code[table->indices[k] - 1];
	}
}

void decode_function(struct ptx_parser *parser, struct engine_function *function)
{
	struct arena *arena = &function->module->arena;
	struct decoder *decoder = ARENA_NEW(arena, struct decoder);

	*decoder = (struct decoder){ .parser = parser, .arena = arena, .function = function };
	decoder->statement = ARENA_NEW(arena, struct statement);
	parser->lexer = function->body;
	function->code = NULL;
	function->code_count = 0;
	function->constants = NULL;
	function->constant_count = 0;
	function->shared_bytes = function->module->shared_bytes;
	open_scope(decoder);
	declare_function_parameters(decoder);
	ptx_expect(parser, "{");
	open_scope(decoder);
	while (decoder->scope_count > 1) {
		if (ptx_accept(parser, "{")) {
			open_scope(decoder);
		} else if (ptx_is(parser, "}")) {
			/* Ends the function even where the last statement did not. */
			if (decoder->scope_count == 2)
				decode_emit(decoder, "ret");
			close_scope(decoder);
			ptx_advance(parser);
		} else if (!ptx_accept(parser, ";")) {
			take_directive_or_statement(decoder);
		}
	}
	close_scope(decoder);
	link_branches(decoder);
	function->frame_bytes = (decoder->frame_bytes + 63) & ~63u;
	function->local_bytes = (decoder->local_bytes + 15) & ~15u;
	function->local_align = decoder->local_align < 16 ? 16 : decoder->local_align;
	if (function->module->local_align < function->local_align)
		function->module->local_align = function->local_align;
}
