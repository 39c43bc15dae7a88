/* declare.c - directives at module level: variables, functions, targets. */
#include <stdlib.h>
#include <string.h>

#include "../images/fatbin.h"
#include "declare.h"

#define INITIALIZER_DEPTH_MAX 64
#define PARAMETER_BYTES_MAX (1u << 20)

struct linkage {
	bool is_visible, is_extern, is_weak;
};

/* A symbol without linkage is seen by its own PTX text alone. */
static bool linkage_is_local(struct linkage linkage)
{
	return !linkage.is_visible && !linkage.is_extern && !linkage.is_weak;
}

struct engine_function *unit_function(const struct module_unit *unit, const char *name,
				      uint32_t length)
{
	struct engine_function *function = name_map_get(&unit->function_names, name, length);

	if (!function)
		function = name_map_get(&unit->module->function_names, name, length);
	while (function && function->alias_of)
		function = function->alias_of;
	return function;
}

struct variable *unit_variable(const struct module_unit *unit, const char *name, uint32_t length)
{
	struct variable *variable = name_map_get(&unit->variable_names, name, length);

	return variable ? variable : name_map_get(&unit->module->variable_names, name, length);
}

static void skip_block(struct ptx_parser *parser)
{
	unsigned depth = 0;

	do {
		if (parser->lexer.token.kind == PTX_END)
			ptx_fail(parser, ENGINE_INVALID_PTX, "the text ends inside a block");
		if (ptx_is(parser, "{"))
			depth++;
		else if (ptx_is(parser, "}"))
			depth--;
		ptx_advance(parser);
	} while (depth);
}

static void skip_statement(struct ptx_parser *parser)
{
	while (!ptx_is(parser, ";")) {
		if (parser->lexer.token.kind == PTX_END)
			ptx_fail(parser, ENGINE_INVALID_PTX, "the text ends inside a directive");
		ptx_advance(parser);
	}
	ptx_advance(parser);
}

/* ---- variables ---- */

/* The 0xFF00(symbol) operator picks bytes of an address. */
static void take_symbol_initializer(struct ptx_parser *parser, char *at, uint8_t bytes)
{
	struct engine_module *module = parser->module;
	struct initializer_fix fix = {
		.at = at, .bytes = bytes, .unit = parser->unit, .line = parser->lexer.line,
	};
	unsigned parentheses = 0;

	if (parser->lexer.token.kind == PTX_INTEGER) {
		uint64_t mask = ptx_take_integer(parser);

		fix.shift = (uint8_t)__builtin_ctzll(mask | 1ull << 63);
		ptx_expect(parser, "(");
		parentheses++;
	}
	if (ptx_accept(parser, "generic")) {
		ptx_expect(parser, "(");
		parentheses++;
	}
	fix.symbol = ptx_take_name(parser, &fix.symbol_length);
	for (;;) {
		if (parentheses && ptx_accept(parser, ")")) {
			parentheses--;
		} else if (ptx_accept(parser, "+")) {
			fix.addend = (int64_t)((uint64_t)fix.addend + ptx_take_integer(parser));
		} else if (ptx_accept(parser, "-")) {
			fix.addend = (int64_t)((uint64_t)fix.addend - ptx_take_integer(parser));
		} else {
			break;
		}
	}
	if (parentheses)
		ptx_expect(parser, ")");
	if (at)
		*(ARENA_PUSH(&module->arena, module->fixes, module->fix_count)) = fix;
}

static bool starts_mask_operator(const struct ptx_parser *parser)
{
	struct ptx_lexer ahead = parser->lexer;

	ptx_lexer_advance(&ahead);
	return ptx_token_is(&ahead.token, "(");
}

/* Writes one scalar at `at`, or only parses it when `at` is NULL. */
static void take_scalar_initializer(struct ptx_parser *parser, struct ptx_type type, char *at)
{
	const struct ptx_token *token;
	bool negative = ptx_accept(parser, "-");
	uint64_t value;

	token = &parser->lexer.token;
	if (token->kind == PTX_INTEGER && !starts_mask_operator(parser)) {
		value = negative ? 0 - token->value : token->value;
		if (type.kind == 'f') {
			double number = negative ? -(double)token->value : (double)token->value;

			memcpy(&value, &number, sizeof(value));
			value = ptx_float_bits(value, 8, type.bytes);
		}
	} else if (token->kind == PTX_FLOAT) {
		value = ptx_float_bits(token->value, token->float_bytes, type.bytes);
		if (negative)
			value ^= 1ull << (type.bytes * 8 - 1);
	} else {
		take_symbol_initializer(parser, at, type.bytes);
		return;
	}
	ptx_advance(parser);
	if (at)
		memcpy(at, &value, type.bytes > 8 ? 8 : type.bytes);
}

static void take_initializer(struct ptx_parser *parser, const struct ptx_declarator *declarator,
			     char *memory)
{
	uint64_t at = 0;
	unsigned depth = 0;

	do {
		while (ptx_accept(parser, "{"))
			if (++depth > INITIALIZER_DEPTH_MAX)
				ptx_fail(parser, ENGINE_INVALID_PTX, "initializer nested too deep");
		if (depth && ptx_is(parser, "}"))
			goto close;
		if (at + declarator->type.bytes > declarator->bytes)
			ptx_fail(parser, ENGINE_INVALID_PTX, "too many initializers for %.*s",
				 (int)declarator->length, declarator->name);
		take_scalar_initializer(parser, declarator->type, memory ? memory + at : NULL);
		at += declarator->type.bytes;
close:
		while (depth && ptx_accept(parser, "}"))
			depth--;
	} while (ptx_accept(parser, ","));
	while (depth--)
		ptx_expect(parser, "}");
}

static void place_variable(struct ptx_parser *parser, struct variable *variable)
{
	struct engine_module *module = parser->module;

	if (variable->space == SPACE_REFERENCE) {
		variable->address = module->reference_count;
		*(ARENA_PUSH(&module->arena, module->references, module->reference_count)) = variable;
		return;
	}
	if (variable->space == SPACE_SHARED) {
		uint32_t align = (uint32_t)variable->align;

		if (variable->is_dynamic) {
			module_align_dynamic(module, align);
			return;
		}
		module->shared_bytes = (module->shared_bytes + align - 1) & ~(align - 1);
		variable->address = module->shared_bytes;
		if (variable->size > 1 << 30)
			ptx_fail(parser, ENGINE_INVALID_PTX, "shared variable %s is too large",
				 variable->name);
		module->shared_bytes += (uint32_t)variable->size;
		return;
	}
	variable->memory = module->device_memory.alloc(module->device_memory.opaque,
						       variable->size ? variable->size : 1,
						       variable->align < 256 ? 256 : variable->align);
	if (!variable->memory)
		ptx_fail(parser, ENGINE_NO_MEMORY, "no device memory for %s (%zu bytes)",
			 variable->name, variable->size);
	memset(variable->memory, 0, variable->size);
	variable->address = (uintptr_t)variable->memory;
	if (variable->space == SPACE_CONST)
		module->const_bytes += (uint32_t)((variable->size + 15) & ~(size_t)15);
}

/* A new variable, seen by all texts or by this one alone. */
static struct variable *add_variable(struct ptx_parser *parser, struct linkage linkage,
				     const char *name, uint32_t length)
{
	struct engine_module *module = parser->module;
	struct variable *variable = ARENA_NEW(&module->arena, struct variable);

	variable->name = arena_strndup(&module->arena, name, length);
	*(ARENA_PUSH(&module->arena, module->variables, module->variable_count)) = variable;
	name_map_set(linkage_is_local(linkage) ? &parser->unit->variable_names
					       : &module->variable_names,
		     &module->arena, variable->name, length, variable);
	return variable;
}

/* ".global .texref a, b;": names without memory.  What they stand for, and how it is sampled,
 * the driver is told (PTX ISA 5.3, "Texture Sampler and Surface Types"). */
static void declare_references(struct ptx_parser *parser, struct linkage linkage)
{
	bool is_surface = ptx_is(parser, ".surfref");

	ptx_advance(parser);
	do {
		uint32_t length;
		const char *name = ptx_take_name(parser, &length);
		struct variable *variable = unit_variable(parser->unit, name, length);

		if (ptx_is(parser, "[") || ptx_is(parser, "="))
			ptx_fail(parser, ENGINE_UNSUPPORTED,
				 "arrays and initializers of references (%.*s)", (int)length, name);
		if (!variable)
			variable = add_variable(parser, linkage, name, length);
		else if (!variable->is_declaration)
			continue;
		variable->space = SPACE_REFERENCE;
		variable->is_surface = is_surface;
		variable->is_declaration = linkage.is_extern;
		if (!linkage.is_extern)
			place_variable(parser, variable);
	} while (ptx_accept(parser, ","));
	ptx_expect(parser, ";");
}

static void declare_variables(struct ptx_parser *parser, enum variable_space space,
			      struct linkage linkage)
{
	struct ptx_declarator base;
	bool is_managed = false;

	while (ptx_accept(parser, ".attribute")) {
		ptx_expect(parser, "(");
		while (!ptx_accept(parser, ")")) {
			is_managed |= ptx_is(parser, ".managed");
			if (parser->lexer.token.kind == PTX_END)
				ptx_fail(parser, ENGINE_INVALID_PTX, "unfinished .attribute");
			ptx_advance(parser);
		}
	}
	if (space == SPACE_GLOBAL && (ptx_is(parser, ".texref") || ptx_is(parser, ".surfref"))) {
		declare_references(parser, linkage);
		return;
	}
	ptx_take_object_type(parser, &base);
	do {
		struct ptx_declarator declarator = base;
		struct variable *variable;
		bool is_declaration, fresh;

		ptx_take_declarator(parser, &declarator);
		is_declaration = linkage.is_extern && space != SPACE_SHARED;
		variable = unit_variable(parser->unit, declarator.name, declarator.length);
		fresh = !variable || (variable->is_declaration && !is_declaration);
		if (!variable)
			variable = add_variable(parser, linkage, declarator.name, declarator.length);
		if (fresh) {
			variable->space = space;
			variable->size = declarator.bytes;
			variable->align = declarator.align;
			variable->is_managed = is_managed;
			variable->is_weak = linkage.is_weak;
			variable->is_declaration = is_declaration;
			/* With a size, .extern says nothing where no other object has the variable:
			 * ptxas ignores it, and compilers (Taichi's) go by that. */
			variable->is_dynamic = space == SPACE_SHARED && !declarator.bytes;
			variable->element_bytes = declarator.type.bytes;
			if (!is_declaration) {
				if (ptx_is(parser, "=") && declarator.is_unsized)
					ptx_fail(parser, ENGINE_INVALID_PTX,
						 "initializer of unsized %s", variable->name);
				place_variable(parser, variable);
			}
		}
		if (ptx_accept(parser, "="))
			take_initializer(parser, &declarator,
					 fresh && !is_declaration ? variable->memory : NULL);
	} while (ptx_accept(parser, ","));
	ptx_expect(parser, ";");
}

/* ---- functions ---- */

static uint32_t take_product(struct ptx_parser *parser, uint32_t values[3])
{
	uint64_t product = 1;
	unsigned k = 0;

	do {
		uint64_t value = ptx_take_integer(parser);

		if (value > 1u << 30)
			ptx_fail(parser, ENGINE_INVALID_PTX, "dimension %llu",
				 (unsigned long long)value);
		if (k < 3)
			values[k] = (uint32_t)value;
		k++;
		product *= value;
	} while (k < 3 && ptx_accept(parser, ","));
	return product > 1u << 30 ? 1u << 30 : (uint32_t)product;
}

static bool begins_declaration(const struct ptx_parser *parser)
{
	static const char *const words[] = {
		".visible", ".extern", ".weak", ".common", ".entry", ".func", ".global", ".const", ".shared",
	};

	for (size_t k = 0; k < sizeof(words) / sizeof(words[0]); k++)
		if (ptx_is(parser, words[k]))
			return true;
	return false;
}

static void take_performance_directives(struct ptx_parser *parser,
					struct engine_function *function)
{
	uint32_t values[3];

	while (!ptx_is(parser, "{") && !ptx_is(parser, ";") && !begins_declaration(parser)) {
		if (ptx_accept(parser, ".maxntid") || ptx_accept(parser, ".reqntid")) {
			function->max_threads = take_product(parser, values);
		} else if (ptx_accept(parser, ".minnctapersm")) {
			function->min_blocks = take_product(parser, values);
		} else if (ptx_accept(parser, ".maxnreg")) {
			function->max_registers = take_product(parser, values);
		} else if (ptx_accept(parser, ".reqnctapercluster")) {
			values[0] = values[1] = values[2] = 1;
			take_product(parser, values);
			memcpy(function->cluster, values, sizeof(values));
		} else if (parser->lexer.token.kind == PTX_END) {
			ptx_fail(parser, ENGINE_INVALID_PTX, "the text ends behind %s",
				 function->name);
		} else {
			ptx_advance(parser);
		}
	}
}

static void place_entry_parameters(struct ptx_parser *parser, struct engine_function *function)
{
	uint32_t offset = 0;

	for (size_t k = 0; k < function->parameter_count; k++) {
		struct parameter *parameter = &function->parameters[k];

		offset = (offset + parameter->align - 1) & ~(parameter->align - 1);
		parameter->offset = offset;
		offset += parameter->size;
		if (offset > PARAMETER_BYTES_MAX)
			ptx_fail(parser, ENGINE_INVALID_PTX, "parameters of %s are too large",
				 function->name);
	}
	function->parameter_bytes = offset;
}

static struct engine_function *function_named(struct ptx_parser *parser, struct linkage linkage)
{
	struct engine_module *module = parser->module;
	uint32_t length;
	const char *name = ptx_take_name(parser, &length);
	struct engine_function *function = unit_function(parser->unit, name, length);

	if (function)
		return function;
	function = ARENA_NEW(&module->arena, struct engine_function);
	function->module = module;
	function->name = arena_strndup(&module->arena, name, length);
	*(ARENA_PUSH(&module->arena, module->functions, module->function_count)) = function;
	name_map_set(linkage_is_local(linkage) ? &parser->unit->function_names
					       : &module->function_names,
		     &module->arena, function->name, length, function);
	return function;
}

static void declare_function(struct ptx_parser *parser, bool is_entry, struct linkage linkage)
{
	struct parameter *results = NULL, *parameters = NULL;
	size_t result_count = 0, parameter_count = 0;
	struct engine_function *function;
	bool redefines;

	while (ptx_is(parser, ".noreturn") || ptx_is(parser, ".attribute")) {
		bool has_list = ptx_is(parser, ".attribute");

		ptx_advance(parser);
		if (has_list) {
			ptx_expect(parser, "(");
			while (!ptx_accept(parser, ")")) {
				if (parser->lexer.token.kind == PTX_END)
					ptx_fail(parser, ENGINE_INVALID_PTX, "unfinished .attribute");
				ptx_advance(parser);
			}
		}
	}
	if (!is_entry && ptx_is(parser, "(")) {
		ptx_take_parameters(parser, &results, &result_count);
		if (result_count > 1)
			ptx_fail(parser, ENGINE_UNSUPPORTED, "functions with several results");
	}
	function = function_named(parser, linkage);
	if (ptx_is(parser, "("))
		ptx_take_parameters(parser, &parameters, &parameter_count);
	redefines = function->is_defined;
	if (!redefines) {
		function->is_entry = is_entry;
		function->parameters = parameters;
		function->parameter_count = parameter_count;
		function->has_result = result_count;
		if (result_count)
			function->result = results[0];
		if (is_entry)
			place_entry_parameters(parser, function);
		take_performance_directives(parser, function);
	} else {
		struct engine_function ignored = { .name = function->name };

		take_performance_directives(parser, &ignored);
	}
	/* XLA's kernels for conditional nodes have an external function without a semicolon, which ptxas takes. */
	if (ptx_accept(parser, ";") || (linkage.is_extern && begins_declaration(parser)))
		return;
	if (redefines && !linkage.is_weak && !function->is_weak)
		ptx_fail(parser, ENGINE_INVALID_PTX, "function %s is defined twice", function->name);
	if (!redefines) {
		function->is_defined = true;
		function->is_weak = linkage.is_weak;
		function->ptx_version = parser->ptx_version;
		function->unit = parser->unit;
		function->body = parser->lexer;
	}
	skip_block(parser);
}

/* ".alias name, function;": both are declared; a chain of aliases never closes, since
 * the function behind it is found before the name becomes an alias. */
static void declare_alias(struct ptx_parser *parser)
{
	uint32_t length, target_length;
	const char *name = ptx_take_name(parser, &length), *target_name;
	struct engine_function *alias = unit_function(parser->unit, name, length), *target;

	ptx_expect(parser, ",");
	target_name = ptx_take_name(parser, &target_length);
	target = unit_function(parser->unit, target_name, target_length);
	if (!alias || !target || alias == target || alias->is_defined || alias->is_entry)
		ptx_fail(parser, ENGINE_INVALID_PTX, ".alias %.*s, %.*s: needs a declared and another function",
			 (int)length, name, (int)target_length, target_name);
	alias->alias_of = target;
	ptx_expect(parser, ";");
}

/* "sm_90a, debug" -> 90; a = this device alone, f = its family */
static void take_target(struct ptx_parser *parser)
{
	do {
		const struct ptx_token *token = &parser->lexer.token;

		if (token->kind == PTX_WORD && token->length > 3 && !memcmp(token->text, "sm_", 3)) {
			parser->ptx_version = (uint32_t)strtoul(token->text + 3, NULL, 10);
			if (!fatbin_target_runs(parser->ptx_version,
						token->text[token->length - 1], parser->sm))
				ptx_fail(parser, ENGINE_INVALID_PTX,
					 ".target %.*s is not for compute capability %u.%u; "
					 "compile with -arch=compute_%u", (int)token->length,
					 token->text, parser->sm / 10, parser->sm % 10, parser->sm);
		}
		ptx_advance(parser);
	} while (ptx_accept(parser, ","));
}

static void declare_one(struct ptx_parser *parser)
{
	struct linkage linkage = { false, false, false };

	for (;; ptx_advance(parser)) {
		if (ptx_is(parser, ".extern"))
			linkage.is_extern = true;
		else if (ptx_is(parser, ".weak") || ptx_is(parser, ".common"))
			linkage.is_weak = true;
		else if (ptx_is(parser, ".visible"))
			linkage.is_visible = true;
		else
			break;
	}
	if (ptx_accept(parser, ".entry"))
		declare_function(parser, true, linkage);
	else if (ptx_accept(parser, ".func"))
		declare_function(parser, false, linkage);
	else if (ptx_accept(parser, ".global"))
		declare_variables(parser, SPACE_GLOBAL, linkage);
	else if (ptx_accept(parser, ".const"))
		declare_variables(parser, SPACE_CONST, linkage);
	else if (ptx_accept(parser, ".shared"))
		declare_variables(parser, SPACE_SHARED, linkage);
	else if (ptx_accept(parser, ".target"))
		take_target(parser);
	else if (ptx_is(parser, ".version") || ptx_is(parser, ".file"))
		ptx_lexer_skip_line(&parser->lexer);
	else if (ptx_accept(parser, ".address_size")) {
		if (ptx_take_integer(parser) != 64)
			ptx_fail(parser, ENGINE_UNSUPPORTED, "32-bit PTX");
	} else if (ptx_accept(parser, ".section")) {
		while (!ptx_is(parser, "{") && parser->lexer.token.kind != PTX_END)
			ptx_advance(parser);
		skip_block(parser);
	} else if (ptx_accept(parser, ".alias")) {
		declare_alias(parser);
	} else if (ptx_is(parser, ".pragma")) {
		skip_statement(parser);
	} else if (!ptx_accept(parser, ";")) {
		ptx_fail(parser, ENGINE_INVALID_PTX, "unexpected '%.24s' at module level",
			 parser->lexer.token.text);
	}
}

/* "9.0" -> 90.  Another major version may mean anything; a minor one adds instructions, and functions that
 * have none of them still run. */
static void take_version(struct ptx_parser *parser)
{
	const struct ptx_token *token = &parser->lexer.token;
	unsigned long major, minor;
	char *point;

	if (token->kind != PTX_FLOAT)
		ptx_fail(parser, ENGINE_INVALID_PTX, "expected a version before '%.24s'", token->text);
	major = strtoul(token->text, &point, 10);
	minor = *point == '.' ? strtoul(point + 1, NULL, 10) : 0;
	if (major > PTX_ISA_KNOWN / 10)
		ptx_fail(parser, ENGINE_UNSUPPORTED_VERSION, ".version %.*s is newer than %u.x",
			 (int)token->length, token->text, PTX_ISA_KNOWN / 10);
	parser->unit->isa = (uint32_t)(major * 10 + minor);
	ptx_advance(parser);
}

void ptx_declare_module(struct ptx_parser *parser, const char *text)
{
	ptx_lexer_open(&parser->lexer, text);
	if (!ptx_accept(parser, ".version"))
		ptx_fail(parser, ENGINE_INVALID_IMAGE, "does not start with .version");
	take_version(parser);
	while (parser->lexer.token.kind != PTX_END)
		declare_one(parser);
}
