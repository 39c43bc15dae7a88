/* module.c - load, link, ask, unload. */
#include "loaded.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode/decoder.h"
#include "images/fatbin.h"
#include "images/object.h"
#include "ptx/declare.h"

/* ---- linking ---- */

/* Device functions are known to kernels by the address of their record. */
static enum engine_status apply_fix(const struct initializer_fix *fix,
				    struct engine_diagnostic *why)
{
	const struct variable *variable =
		unit_variable(fix->unit, fix->symbol, fix->symbol_length);
	const struct engine_function *function =
		unit_function(fix->unit, fix->symbol, fix->symbol_length);
	uint64_t value;

	if (variable && variable->space == SPACE_REFERENCE) {
		snprintf(why->text, sizeof(why->text),
			 "PTX line %u: the address of a texture or surface reference (%.*s)",
			 fix->line, (int)fix->symbol_length, fix->symbol);
		return ENGINE_UNSUPPORTED;
	}
	if (variable && !variable->is_declaration) {
		value = variable->address;
	} else if (function) {
		value = (uintptr_t)function;
	} else {
		snprintf(why->text, sizeof(why->text),
			 "PTX line %u: initializer names %.*s, which is defined nowhere", fix->line,
			 (int)fix->symbol_length, fix->symbol);
		return ENGINE_UNRESOLVED;
	}
	value = (value + (uint64_t)fix->addend) >> fix->shift;
	memcpy(fix->at, &value, fix->bytes);
	return ENGINE_OK;
}

#define THREADS_PER_BLOCK 1024u
#define WARPS_PER_MULTIPROCESSOR 64u
#define REGISTER_GRANULES 256u		/* of a multiprocessor: 65536 registers by 256 */
#define REGISTERS_PER_THREAD (256 / WARP_LANES)	/* of one granule */
#define REGISTERS_MAX 255u		/* of a thread */
#define REGISTERS_MIN 24u		/* that ptxas can be bound to, of compute_75 to compute_120 */

/* The most registers of a thread that .maxnreg allows, or without any such directive the
 * options of the load (-maxrregcount), and with which the largest block that the function
 * allows still fits, as often as .minnctapersm asks: ptxas spills above that.  Warps get
 * registers in granules, a block's warps by four (CUDA Occupancy Calculator). */
static uint32_t register_limit(const struct engine_function *function)
{
	uint32_t threads = function->max_threads;
	uint32_t blocks = threads && function->min_blocks ? function->min_blocks : 1;
	uint32_t asked = function->max_registers || threads ? function->max_registers :
							      function->unit->max_registers;
	uint32_t warps, registers;

	if (!threads || threads > THREADS_PER_BLOCK)
		threads = THREADS_PER_BLOCK;
	warps = (threads + WARP_LANES * 4 - 1) / (WARP_LANES * 4) * 4;
	if (blocks > WARPS_PER_MULTIPROCESSOR / warps)
		blocks = WARPS_PER_MULTIPROCESSOR / warps;
	registers = REGISTER_GRANULES / (warps * blocks) * REGISTERS_PER_THREAD;
	if (registers > REGISTERS_MAX)
		registers = REGISTERS_MAX;
	if (asked && asked < REGISTERS_MIN)
		asked = REGISTERS_MIN;
	return asked && asked < registers ? asked : registers;
}

/* The engine keeps virtual registers as they are, so their number is a guess from the
 * window's size, and a guess must not refuse a launch. */
static void describe(struct engine_function *function)
{
	struct arena *arena = &function->module->arena;
	uint32_t words = function->frame_bytes / (WARP_LANES * 4);
	uint32_t limit = register_limit(function);
	uint32_t guess = words < 16 ? 16 : words / 4 + 12;

	function->register_estimate = guess < limit ? guess : limit;
	function->engine_parameters =
		arena_alloc(arena, (function->parameter_count + 1) * sizeof(struct engine_param));
	for (size_t k = 0; k < function->parameter_count; k++)
		function->engine_parameters[k] = (struct engine_param){
			function->parameters[k].offset, function->parameters[k].size,
		};
}

/* Decode one function; a missing instruction, or more of something than the engine has room for,
 * makes only it unusable: which of a library's images the runtime loads first is chance (cudart
 * finds a kernel that several have, as CUB's empty one, by addresses). */
static enum engine_status decode_one(struct ptx_parser *parser, struct engine_function *function)
{
	jmp_buf recover, *outer = parser->recover;
	enum engine_status status = ENGINE_OK;

	parser->recover = &recover;
	if (!setjmp(recover)) {
		decode_function(parser, function);
	} else if (parser->status == ENGINE_UNSUPPORTED) {
		function->status = ENGINE_UNSUPPORTED;
		function->unsupported = arena_strndup(&function->module->arena, parser->message,
						      strlen(parser->message));
		function->code_count = 0;
	} else {
		status = parser->status;
	}
	parser->recover = outer;
	return status;
}

/* The kernels, or all other functions. */
static enum engine_status decode_all(struct engine_module *module, struct ptx_parser *parser, bool entries,
				     struct engine_diagnostic *why)
{
	for (size_t k = 0; k < module->function_count; k++) {
		struct engine_function *function = module->functions[k];
		enum engine_status status;

		if (!function->is_defined || function->is_entry != entries)
			continue;
		status = decode_one(parser, function);
		if (status != ENGINE_OK) {
			snprintf(why->text, sizeof(why->text), "%.290s, in function " ENGINE_NAME,
				 parser->message, function->name);
			return status;
		}
		function->own_shared_bytes = function->shared_bytes - module->shared_bytes;
		if (!entries)
			module->shared_bytes = function->shared_bytes;
		describe(function);
	}
	return ENGINE_OK;
}

/* What counts against a block's room: a compiler gives a kernel those shared variables that it and the functions
 * below it use, where here all of the module have their place in every block. */
static uint32_t shared_below(struct engine_function *kernel, struct engine_function **todo)
{
	uint64_t bytes = 0;
	size_t count = 0;

	kernel->counted_for = kernel;
	todo[count++] = kernel;
	while (count) {
		const struct engine_function *function = todo[--count];

		if (function->calls_by_register)
			return kernel->shared_bytes;
		bytes += function->own_shared_bytes + function->named_shared_bytes;
		for (size_t k = 0; k < function->callee_count; k++) {
			struct engine_function *callee = function->callees[k];

			if (callee->counted_for == kernel)
				continue;
			callee->counted_for = kernel;
			todo[count++] = callee;
		}
	}
	/* What two of them name was counted twice. */
	return bytes < kernel->shared_bytes ? (uint32_t)bytes : kernel->shared_bytes;
}

static void count_shared(struct engine_module *module)
{
	struct engine_function **todo =
		arena_alloc(&module->arena, (module->function_count + 1) * sizeof(struct engine_function *));

	for (size_t k = 0; k < module->function_count; k++)
		if (module->functions[k]->is_defined && module->functions[k]->is_entry)
			module->functions[k]->static_shared_bytes = shared_below(module->functions[k], todo);
}

static enum engine_status link_module(struct engine_module *module, struct ptx_parser *parser,
				      struct engine_diagnostic *why)
{
	for (size_t k = 0; k < module->function_count; k++) {
		struct engine_function *function = module->functions[k];

		if (!function->is_defined)
			function->builtin = builtin_handler(function->name);
	}
	/* Functions before kernels: their own shared variables lie behind the module's, and a kernel's behind both. */
	for (unsigned entries = 0; entries < 2; entries++) {
		enum engine_status status = decode_all(module, parser, entries, why);

		if (status != ENGINE_OK)
			return status;
	}
	count_shared(module);
	for (size_t k = 0; k < module->function_count; k++) {
		struct engine_function *function = module->functions[k];

		if (function->is_defined)
			*(ARENA_PUSH(&module->arena, module->public_functions,
				     module->public_function_count)) = function;
	}
	for (size_t k = 0; k < module->fix_count; k++) {
		enum engine_status status = apply_fix(&module->fixes[k], why);

		if (status != ENGINE_OK)
			return status;
	}
	for (size_t k = 0; k < module->variable_count; k++) {
		struct variable *variable = module->variables[k];

		if (variable->space != SPACE_SHARED && variable->memory)
			*(ARENA_PUSH(&module->arena, module->public_variables,
				     module->public_variable_count)) = variable;
	}
	return ENGINE_OK;
}

static enum engine_status load_texts(struct engine_module *module, unsigned sm, uint32_t max_registers,
				     const struct fatbin_texts *texts,
				     struct engine_diagnostic *why)
{
	struct ptx_parser parser = { .module = module, .sm = sm };
	jmp_buf recover;

	parser.recover = &recover;
	if (setjmp(recover)) {
		snprintf(why->text, sizeof(why->text), "%s", parser.message);
		return parser.status;
	}
	for (size_t k = 0; k < texts->count; k++) {
		parser.unit = ARENA_NEW(&module->arena, struct module_unit);
		parser.unit->module = module;
		parser.unit->max_registers = max_registers ? max_registers : texts->texts[k].max_registers;
		/* The text is the unit's: names point into it. */
		ptx_declare_module(&parser, arena_strndup(&module->arena, texts->texts[k].ptx,
							  strlen(texts->texts[k].ptx)));
	}
	return link_module(module, &parser, why);
}

enum engine_status module_load_texts(struct engine_module **out, const struct fatbin_texts *texts,
				     const struct engine_load_options *options,
				     struct engine_diagnostic *why)
{
	static _Atomic uint64_t generation;
	struct engine_module *volatile module = calloc(1, sizeof(*module));
	enum engine_status status;
	jmp_buf out_of_memory;

	if (!module) {
		snprintf(why->text, sizeof(why->text), "out of memory loading a module");
		return ENGINE_NO_MEMORY;
	}
	module->device_memory = options->memory;
	module->asks_reach = options->asks_reach;
	module->generation = atomic_fetch_add(&generation, 1) + 1;
	module->arena.out_of_memory = &out_of_memory;
	if (setjmp(out_of_memory)) {
		snprintf(why->text, sizeof(why->text), "out of memory loading a module");
		status = ENGINE_NO_MEMORY;
	} else {
		status = load_texts(module, options->sm, options->max_registers, texts, why);
	}
	if (status != ENGINE_OK)
		engine_module_unload(module);
	else
		*out = module;
	return status;
}

enum engine_status engine_module_load(struct engine_module **out, const void *image,
				      const struct engine_load_options *options,
				      struct engine_diagnostic *why)
{
	struct fatbin_texts texts;
	enum engine_status status =
		fatbin_read(image, FATBIN_BYTES_UNKNOWN, options->sm, &texts, why);

	if (status != ENGINE_OK)
		return status;
	status = module_load_texts(out, &texts, options, why);
	fatbin_texts_free(&texts);
	return status;
}

size_t engine_image_bytes(const void *image, size_t limit)
{
	return object_extent(image, limit);
}

void engine_module_unload(struct engine_module *module)
{
	for (size_t k = 0; k < module->variable_count; k++)
		if (module->variables[k]->memory)
			module->device_memory.free(module->device_memory.opaque,
						   module->variables[k]->memory);
	arena_release(&module->arena);
	free(module);
}

/* ---- asking ---- */

size_t engine_module_function_count(const struct engine_module *module)
{
	return module->public_function_count;
}

struct engine_function *engine_module_function_at(const struct engine_module *module, size_t index)
{
	return index < module->public_function_count ? module->public_functions[index] : NULL;
}

struct engine_function *engine_module_function(const struct engine_module *module, const char *name)
{
	struct engine_function *function =
		name_map_get(&module->function_names, name, (uint32_t)strlen(name));

	if (function && function->is_defined)
		return function;
	for (size_t k = 0; k < module->public_function_count; k++)
		if (!strcmp(module->public_functions[k]->name, name))
			return module->public_functions[k];
	return NULL;
}

void engine_function_info(const struct engine_function *function, struct engine_function_info *info)
{
	*info = (struct engine_function_info){
		.name = function->name,
		.status = function->status,
		.unsupported = function->unsupported,
		.is_entry = function->is_entry,
		.param_count = (uint32_t)function->parameter_count,
		.params = function->engine_parameters,
		.param_bytes = function->parameter_bytes,
		.registers = function->register_estimate,
		.static_shared_bytes = function->static_shared_bytes,
		.const_bytes = function->module->const_bytes,
		.local_bytes = function->local_bytes,
		.max_threads_per_block = function->max_threads ? function->max_threads : 1024,
		.ptx_version = function->ptx_version,
	};
	memcpy(info->required_cluster, function->cluster, sizeof(info->required_cluster));
}

size_t engine_module_reference_count(const struct engine_module *module)
{
	return module->reference_count;
}

void engine_module_reference_at(const struct engine_module *module, size_t index,
				struct engine_reference_info *info)
{
	*info = (struct engine_reference_info){
		.name = module->references[index]->name,
		.is_surface = module->references[index]->is_surface,
	};
}

size_t engine_module_variable_count(const struct engine_module *module)
{
	return module->public_variable_count;
}

static void variable_info(const struct variable *variable, struct engine_variable_info *info)
{
	*info = (struct engine_variable_info){
		.name = variable->name,
		.address = variable->memory,
		.size = variable->size,
		.is_const = variable->space == SPACE_CONST,
		.is_managed = variable->is_managed,
	};
}

void engine_module_variable_at(const struct engine_module *module, size_t index,
			       struct engine_variable_info *info)
{
	variable_info(module->public_variables[index], info);
}

enum engine_status engine_module_variable(const struct engine_module *module, const char *name,
					  struct engine_variable_info *info)
{
	for (size_t k = 0; k < module->public_variable_count; k++) {
		if (!strcmp(module->public_variables[k]->name, name)) {
			variable_info(module->public_variables[k], info);
			return ENGINE_OK;
		}
	}
	return ENGINE_NOT_FOUND;
}
