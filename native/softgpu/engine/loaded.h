/* loaded.h - what a loaded module consists of. */
#ifndef FARBUS_SOFTGPU_LOADED_H
#define FARBUS_SOFTGPU_LOADED_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine.h"
#include "instruction.h"
#include "ptx/arena.h"
#include "ptx/lex.h"
#include "ptx/names.h"

struct call_site;

enum variable_space { SPACE_GLOBAL, SPACE_CONST, SPACE_SHARED, SPACE_REFERENCE };

struct variable {
	const char *name;
	enum variable_space space;
	size_t size, align;
	uint8_t element_bytes;
	bool is_declaration;	/* .extern without a definition so far */
	bool is_dynamic;	/* .extern .shared x[]: starts where static shared memory ends */
	bool is_managed;
	bool is_weak;
	char *memory;		/* global and const */
	uint64_t address;	/* what the kernel sees; an offset for shared, a place for references */
	bool is_surface;	/* of a reference: .surfref, else .texref */
	const struct engine_function *named_by;	/* of shared: the last one */
};

struct parameter {
	const char *name;
	uint32_t size, align;
	uint32_t offset;	/* in the kernel's buffer, or in the callee's local frame */
};

/* A constant that instructions read like a register, set up once per frame. */
struct constant {
	int32_t slot;
	uint8_t bytes;		/* a lane; 0 for a predicate */
	uint64_t value;
};

struct engine_function {
	const char *name;
	struct engine_module *module;
	bool is_entry, is_weak;
	bool is_defined;	/* has a body, or is a builtin */
	bool has_calls;
	bool calls_by_register;	/* some function or other */
	struct engine_function **callees;	/* of the module, each once */
	size_t callee_count;
	const struct engine_function *called_by;	/* the last one whose callee it became */
	const struct engine_function *counted_for;	/* the last kernel whose shared memory it was counted for */
	bool uses_dynamic_shared;
	struct engine_function *alias_of;	/* .alias */
	handler_fn builtin;	/* vprintf and its kind */
	enum engine_status status;
	const char *unsupported;

	struct parameter *parameters;
	size_t parameter_count;
	struct engine_param *engine_parameters;	/* the same, for the driver */
	struct parameter result;
	bool has_result;
	uint32_t parameter_bytes;
	uint32_t max_threads;	/* of .maxntid or .reqntid; 0 without */
	uint32_t min_blocks;	/* of .minnctapersm, which ptxas ignores without max_threads; 0 without */
	uint32_t max_registers;	/* of .maxnreg; 0 without */
	uint32_t cluster[3];

	struct module_unit *unit;	/* where the body is */
	struct ptx_lexer body;	/* at its '{' */
	uint32_t ptx_version;	/* of its .target */

	struct instruction *code;
	size_t code_count;
	struct constant *constants;
	size_t constant_count;
	uint32_t frame_bytes;	/* register window */
	uint32_t local_bytes;	/* per lane: .local, .param of calls */
	uint32_t local_align;	/* where that begins; at least 16 */
	uint32_t shared_bytes;	/* static: where the dynamic part begins */
	uint32_t own_shared_bytes;	/* of those that it declares itself */
	uint32_t static_shared_bytes;	/* of a kernel, with what its callees use */
	uint32_t named_shared_bytes;	/* of the module's variables, those that its instructions name */
	uint32_t register_estimate;
};

/* An address or part of one that an initialiser stores once all is known. */
struct initializer_fix {
	char *at;
	uint8_t bytes, shift;
	const char *symbol;
	uint32_t symbol_length;
	const struct module_unit *unit;
	int64_t addend;
	uint32_t line;
};

#define PTX_ISA_KNOWN 90u	/* that decode/opcodes.c lists */

/* One PTX text of those linked into a module, with the names only it sees. */
struct module_unit {
	struct engine_module *module;
	uint32_t isa;		/* of its .version: 90 for 9.0 */
	uint32_t max_registers;	/* of the load or of its entry; 0 without */
	struct name_map function_names, variable_names;
};

struct engine_module {
	struct arena arena;
	struct engine_memory device_memory;
	struct name_map function_names, variable_names;
	struct engine_function **functions;
	size_t function_count;
	struct variable **variables;
	size_t variable_count;
	struct engine_function **public_functions;	/* defined ones */
	size_t public_function_count;
	struct variable **public_variables;		/* global and const */
	size_t public_variable_count;
	struct variable **references;	/* .texref and .surfref, by their place */
	size_t reference_count;
	struct initializer_fix *fixes;
	size_t fix_count;
	uint32_t shared_bytes;	/* of variables at module level */
	uint32_t dynamic_align;	/* of dynamic shared memory, the most that any name of it asks for */
	uint32_t local_align;	/* of local memory, the most that any function asks for */
	uint32_t const_bytes;
	bool asks_reach;
	uint64_t generation;	/* never reused: tells a cached frame that its code is gone */
};

struct fatbin_texts;

/* Load texts as one module. */
enum engine_status module_load_texts(struct engine_module **out, const struct fatbin_texts *texts,
				     const struct engine_load_options *options,
				     struct engine_diagnostic *why);
static inline void module_align_dynamic(struct engine_module *module, uint32_t align)
{
	if (module->dynamic_align < align)
		module->dynamic_align = align;
}

#endif
