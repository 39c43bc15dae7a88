/* decoder.h - a function's PTX to instructions: what the files here share. */
#ifndef FARBUS_SOFTGPU_DECODER_H
#define FARBUS_SOFTGPU_DECODER_H

#include <string.h>

#include "../machine/mbarrier.h"
#include "../machine/state.h"
#include "../ptx/parse.h"

#define OPERANDS_MAX 8
#define ELEMENTS_MAX 160		/* of all vectors and argument lists of one instruction */
#define MODIFIERS_MAX 24

enum symbol_kind {
	SYMBOL_REGISTER,
	SYMBOL_REGISTER_ARRAY,	/* .reg .b32 %r<100>; */
	SYMBOL_LOCAL,		/* .local, or .param of a device function: in the local frame */
	SYMBOL_KERNEL_PARAMETER,
	SYMBOL_SHARED,
	SYMBOL_DYNAMIC_SHARED,
	SYMBOL_JUMP_TABLE,
	SYMBOL_LABEL,
};

struct symbol {
	const char *name;
	uint32_t length;
	enum symbol_kind kind;
	int32_t slot;		/* register slot, or offset */
	uint8_t bytes;		/* of a register; 0 for a predicate */
	uint32_t count;		/* of a register array */
	uint32_t size;
	uint8_t element_bytes;
	uint32_t at;		/* label: instruction index */
	uint32_t scope;		/* label: where it was defined */
	struct jump_table *table;
	struct symbol *shadowed;
};

enum operand_kind {
	OPERAND_REGISTER,
	OPERAND_PREDICATE,
	OPERAND_INTEGER,
	OPERAND_FLOAT,
	OPERAND_SPECIAL,	/* %tid.x ... */
	OPERAND_SYMBOL,		/* an object of the function */
	OPERAND_VARIABLE,
	OPERAND_FUNCTION,
	OPERAND_SINK,		/* _ */
	OPERAND_NAME,		/* a label, or nothing known */
	OPERAND_ADDRESS,	/* [base + offset] */
	OPERAND_VECTOR,		/* {a, b} */
	OPERAND_LIST,		/* (a, b) */
	OPERAND_TEXEL,		/* [texture, {x, y}]: base in slot, coordinates in elements */
};

struct operand {
	enum operand_kind kind;
	enum operand_kind base;		/* of an address: register, integer, symbol, variable */
	bool negated;
	bool is_element;		/* of an array, by its index: loads and stores take it as an address */
	uint8_t bytes;			/* of a register */
	uint8_t float_bytes;
	int32_t slot;
	uint64_t value;
	int64_t addend;
	const struct symbol *symbol;
	const struct variable *variable;
	struct engine_function *function;
	const struct special_name *special;
	const char *text;
	uint32_t length;
	uint16_t first_element, element_count;
};

struct modifier {
	const char *text;
	uint32_t length;
	bool used;
};

/* One PTX statement, before it is decoded. */
struct statement {
	char opcode[24];
	struct modifier modifiers[MODIFIERS_MAX];
	unsigned modifier_count;
	struct ptx_type types[4];	/* type modifiers in order */
	unsigned type_count;
	struct operand operands[OPERANDS_MAX];
	unsigned operand_count;
	struct operand second;		/* destination behind '|' */
	bool has_second;
	struct operand elements[ELEMENTS_MAX];
	unsigned element_count;
	bool has_guard, guard_negated;
	int32_t guard;			/* predicate slot */
};

struct label_reference {
	const char *name;
	uint32_t length;
	uint32_t *index;		/* gets the label's instruction index + 1 */
	uint32_t instruction;		/* or this instruction's branch_to when index is NULL */
	uint32_t line;
};

struct scope {
	uint32_t first_symbol, first_reference;
};

struct decoder {
	struct ptx_parser *parser;
	struct arena *arena;
	struct engine_function *function;
	struct statement *statement;
	size_t code_capacity;
	uint32_t frame_bytes, local_bytes, local_align;
	struct name_map symbol_names;
	struct symbol **symbols;
	size_t symbol_count;
	struct label_reference *references;
	size_t reference_count;
	struct jump_table **tables;
	size_t table_count;
	struct scope scopes[256];
	unsigned scope_count;
};

/* ---- opcodes.c ---- */
bool opcode_is_known(const char *name);

/* ---- decode.c ---- */
/* Decode the body of one function; unwinds to parser->recover on errors. */
void decode_function(struct ptx_parser *parser, struct engine_function *function);

/* ---- emit.c: instructions, slots, operands ---- */
struct instruction *decode_emit(struct decoder *decoder, const char *form_name);
struct instruction *decode_emitf(struct decoder *decoder, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
int32_t decode_slot(struct decoder *decoder, unsigned bytes);
int32_t decode_constant(struct decoder *decoder, unsigned bytes, uint64_t value);
/* The slot from which an operand of this width can be read. */
int32_t decode_source(struct decoder *decoder, const struct operand *operand, unsigned bytes);
int32_t decode_predicate_source(struct decoder *decoder, const struct operand *operand);
/* Like decode_source, from the operand's own register width. */
int32_t decode_resize(struct decoder *decoder, int32_t slot, unsigned from_bytes,
		      unsigned to_bytes, bool is_signed);
int32_t decode_destination(struct decoder *decoder, const struct operand *operand, unsigned bytes);
bool decode_is_constant(const struct operand *operand);
/* The bits of a literal as an element of `type`. */
uint64_t decode_literal(const struct operand *operand, unsigned bytes);
const struct special_name *decode_special_named(const char *name, uint32_t length);
/* The statement is one that PTX has and the engine does not; what PTX has not either fails the load. */
_Noreturn void decode_unsupported(struct decoder *decoder, const char *why);

/* ---- statement.c ---- */
void decode_take_operand(struct decoder *decoder, struct operand *operand);
void decode_take_statement(struct decoder *decoder, const struct ptx_token *opcode);
struct symbol *decode_find_symbol(struct decoder *decoder, const char *name, uint32_t length,
				  int32_t *slot);
struct symbol *decode_add_symbol(struct decoder *decoder, const char *name, uint32_t length,
				 enum symbol_kind kind);
bool statement_has(struct statement *statement, const char *modifier);
bool statement_has_prefix(struct statement *statement, const char *prefix);
bool statement_is(const struct statement *statement, const char *opcode);

/* ---- addresses (memory.c) ---- */
/* How an address is formed; `form` names the form of the access. */
struct address {
	const char *form;	/* "pointer", "absolute", "parameter", "local", "shared", ... */
	int32_t slot;		/* register, or -1 */
	int64_t offset;
	bool is_shared;
};
/* `shared`: the instruction says .shared, so that a register holds an offset. */
struct address decode_address(struct decoder *decoder, const struct operand *operand, bool shared);
/* The pointer, 64 bits, of a local address in 32 bits. */
int32_t decode_local_pointer(struct decoder *decoder, int32_t slot);
/* The address in a register, for accesses with no form of their own for it. */
struct address decode_address_in_register(struct decoder *decoder, struct address address);
bool statement_says_shared(struct statement *statement);
/* In strict mode: the step that looks at an access first (enum strict_access). */
void decode_check(struct decoder *decoder, const struct address *address, unsigned bytes,
		  unsigned access);
/* An address of .shared::cluster as a pointer to `bytes` of memory. */
struct address decode_cluster_pointer(struct decoder *decoder, struct address address,
				      unsigned bytes);
/* The slot of a pointer to `bytes` of shared memory (`shared`) or of any memory. */
int32_t decode_pointer(struct decoder *decoder, const struct operand *operand, bool shared, unsigned bytes);
/* What the modifiers of a bulk reduction say. */
enum bulk_operation decode_bulk_operation(struct decoder *decoder);

/* ---- the groups of instructions that need more than a form's operand list ---- */
/* Each returns false when the opcode is not of its group. */
bool decode_control(struct decoder *decoder);	/* guards itself */
bool decode_memory(struct decoder *decoder);
bool decode_move(struct decoder *decoder);
bool decode_compare(struct decoder *decoder);
bool decode_convert(struct decoder *decoder);
bool decode_matrix(struct decoder *decoder);
bool decode_cluster(struct decoder *decoder);
bool decode_tensor(struct decoder *decoder);
bool decode_texture(struct decoder *decoder);
/* Needs all lanes of the warp together. */
bool statement_is_matrix(const struct statement *statement);
void decode_plain(struct decoder *decoder);	/* by the form's operand list */
/* The form whose name is opcode and modifiers, NULL when there is none; `with_saturation`: .sat among them. */
const struct form *decode_find_form(struct decoder *decoder, bool with_saturation);
/* The instruction made last branches to a label, or takes its place from *index (struct label_reference). */
void decode_branch_reference(struct decoder *decoder, const char *name, uint32_t length,
			     uint32_t *index);
/* Branch around what follows when the guard is false; end with decode_guard_end. */
int64_t decode_guard_branch(struct decoder *decoder);
void decode_guard_end(struct decoder *decoder, int64_t branch);

#endif
