/* emit.c - making instructions: slots of registers, constants, operands. */
#include <stdarg.h>
#include <stdio.h>

#include "decoder.h"

#define FRAME_BYTES_MAX (256u << 20)	/* of a warp: 2 Mi 32-bit registers; cudf's hashes have 300,000 */
#define CODE_COUNT_MAX (1u << 24)

void decode_unsupported(struct decoder *decoder, const char *why)
{
	const struct statement *statement = decoder->statement;
	const struct modifier *modifiers = statement->modifiers;
	char name[128];
	int used = snprintf(name, sizeof(name), "%s", statement->opcode);

	for (unsigned k = 0; k < statement->modifier_count && used < (int)sizeof(name); k++)
		used += snprintf(name + used, sizeof(name) - (size_t)used, ".%.*s",
				 (int)modifiers[k].length, modifiers[k].text);
	if (!opcode_is_known(statement->opcode) &&
	    decoder->function->unit->isa <= PTX_ISA_KNOWN)
		ptx_fail(decoder->parser, ENGINE_INVALID_PTX, "unknown instruction '%s'", name);
	ptx_fail(decoder->parser, ENGINE_UNSUPPORTED, "%s%s%s", name, why ? ": " : "",
		 why ? why : "");
}

struct instruction *decode_emit(struct decoder *decoder, const char *form_name)
{
	struct engine_function *function = decoder->function;
	const struct form *form = form_find(form_name, strlen(form_name));
	struct instruction *instruction;

	if (!form)
		decode_unsupported(decoder, form_name);
	if (function->code_count >= CODE_COUNT_MAX)
		ptx_fail(decoder->parser, ENGINE_UNSUPPORTED, "a function of more than %u steps",
			 CODE_COUNT_MAX);
	instruction = ARENA_PUSH(decoder->arena, function->code, function->code_count);
	*instruction = (struct instruction){
		.run = form->run, .dst = -1, .a = -1, .b = -1, .c = -1, .x = form->x,
		.line = decoder->parser->lexer.line,
	};
	return instruction;
}

struct instruction *decode_emitf(struct decoder *decoder, const char *format, ...)
{
	char name[96];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(name, sizeof(name), format, arguments);
	va_end(arguments);
	return decode_emit(decoder, name);
}

int32_t decode_slot(struct decoder *decoder, unsigned bytes)
{
	uint32_t size = bytes ? bytes * WARP_LANES : 4;
	uint32_t align = bytes ? 64 : 4;
	uint32_t slot = (decoder->frame_bytes + align - 1) & ~(align - 1);

	if (slot + size > FRAME_BYTES_MAX)
		ptx_fail(decoder->parser, ENGINE_UNSUPPORTED, "a function with registers of more than %u MiB a warp",
			 FRAME_BYTES_MAX >> 20);
	decoder->frame_bytes = slot + size;
	return (int32_t)slot;
}

int32_t decode_constant(struct decoder *decoder, unsigned bytes, uint64_t value)
{
	struct engine_function *function = decoder->function;
	struct constant *constant;

	if (bytes > 8)
		decode_unsupported(decoder, "a constant of 128 bits");
	if (bytes && bytes < 8)
		value &= (1ull << bytes * 8) - 1;
	for (size_t k = 0; k < function->constant_count; k++) {
		constant = &function->constants[k];
		if (constant->bytes == bytes && constant->value == value)
			return constant->slot;
	}
	constant = ARENA_PUSH(decoder->arena, function->constants, function->constant_count);
	*constant = (struct constant){ decode_slot(decoder, bytes), (uint8_t)bytes, value };
	return constant->slot;
}

bool decode_is_constant(const struct operand *operand)
{
	return operand->kind == OPERAND_INTEGER || operand->kind == OPERAND_FLOAT;
}

uint64_t decode_literal(const struct operand *operand, unsigned bytes)
{
	if (operand->kind == OPERAND_FLOAT)
		return ptx_float_bits(operand->value, operand->float_bytes, bytes);
	return operand->value;
}

int32_t decode_resize(struct decoder *decoder, int32_t slot, unsigned from_bytes,
		      unsigned to_bytes, bool is_signed)
{
	struct instruction *instruction;
	int32_t resized;

	if (from_bytes == to_bytes)
		return slot;
	resized = decode_slot(decoder, to_bytes);
	instruction = decode_emitf(decoder, "@resize.%c%u.%u", is_signed ? 's' : 'u',
				   from_bytes * 8, to_bytes * 8);
	instruction->dst = resized;
	instruction->a = slot;
	return resized;
}

/* ---- special registers ---- */

struct special_name {
	const char *name;
	const char *form;	/* how to read it */
	uint8_t bytes;
	int32_t x;
};

static const struct special_name special_names[] = {
	{ "%tid.x", "@thread", 4, 0 },
	{ "%tid.y", "@thread", 4, 1 },
	{ "%tid.z", "@thread", 4, 2 },
	{ "%ntid.x", "@special.32", 4, SPECIAL_NTID_X },
	{ "%ntid.y", "@special.32", 4, SPECIAL_NTID_Y },
	{ "%ntid.z", "@special.32", 4, SPECIAL_NTID_Z },
	{ "%ctaid.x", "@special.32", 4, SPECIAL_CTAID_X },
	{ "%ctaid.y", "@special.32", 4, SPECIAL_CTAID_Y },
	{ "%ctaid.z", "@special.32", 4, SPECIAL_CTAID_Z },
	{ "%nctaid.x", "@special.32", 4, SPECIAL_NCTAID_X },
	{ "%nctaid.y", "@special.32", 4, SPECIAL_NCTAID_Y },
	{ "%nctaid.z", "@special.32", 4, SPECIAL_NCTAID_Z },
	{ "%laneid", "@lane", 4, 0 },
	{ "%lanemask_eq", "@lane", 4, 1 },
	{ "%lanemask_lt", "@lane", 4, 2 },
	{ "%lanemask_le", "@lane", 4, 3 },
	{ "%lanemask_gt", "@lane", 4, 4 },
	{ "%lanemask_ge", "@lane", 4, 5 },
	{ "%warpid", "@special.32", 4, SPECIAL_WARPID },
	{ "%nwarpid", "@special.32", 4, SPECIAL_NWARPID },
	{ "%smid", "@special.32", 4, SPECIAL_SMID },
	{ "%nsmid", "@special.32", 4, SPECIAL_NSMID },
	{ "%gridid", "@special.64", 8, SPECIAL_GRIDID },
	{ "%clock", "@special.32", 4, SPECIAL_CLOCK },
	{ "%clock_hi", "@special.32", 4, SPECIAL_CLOCK_HI },
	{ "%clock64", "@special.64", 8, SPECIAL_CLOCK64 },
	{ "%globaltimer", "@special.64", 8, SPECIAL_GLOBALTIMER },
	{ "%globaltimer_lo", "@special.32", 4, SPECIAL_GLOBALTIMER_LO },
	{ "%globaltimer_hi", "@special.32", 4, SPECIAL_GLOBALTIMER_HI },
	{ "%total_smem_size", "@special.32", 4, SPECIAL_TOTAL_SHARED },
	{ "%dynamic_smem_size", "@special.32", 4, SPECIAL_DYNAMIC_SHARED },
	{ "%aggr_smem_size", "@special.32", 4, SPECIAL_AGGREGATE_SHARED },
	/* Cooperative groups find the grid's workspace in these two. */
	{ "%envreg1", "@special.32", 4, SPECIAL_ENVREG_WORKSPACE_HIGH },
	{ "%envreg2", "@special.32", 4, SPECIAL_ENVREG_WORKSPACE_LOW },
	{ "%is_explicit_cluster", "@special.predicate", 0, SPECIAL_IS_EXPLICIT_CLUSTER },
	{ "%clusterid.x", "@special.32", 4, SPECIAL_CLUSTERID_X },
	{ "%clusterid.y", "@special.32", 4, SPECIAL_CLUSTERID_Y },
	{ "%clusterid.z", "@special.32", 4, SPECIAL_CLUSTERID_Z },
	{ "%nclusterid.x", "@special.32", 4, SPECIAL_NCLUSTERID_X },
	{ "%nclusterid.y", "@special.32", 4, SPECIAL_NCLUSTERID_Y },
	{ "%nclusterid.z", "@special.32", 4, SPECIAL_NCLUSTERID_Z },
	{ "%cluster_ctaid.x", "@special.32", 4, SPECIAL_CLUSTER_CTAID_X },
	{ "%cluster_ctaid.y", "@special.32", 4, SPECIAL_CLUSTER_CTAID_Y },
	{ "%cluster_ctaid.z", "@special.32", 4, SPECIAL_CLUSTER_CTAID_Z },
	{ "%cluster_nctaid.x", "@special.32", 4, SPECIAL_CLUSTER_NCTAID_X },
	{ "%cluster_nctaid.y", "@special.32", 4, SPECIAL_CLUSTER_NCTAID_Y },
	{ "%cluster_nctaid.z", "@special.32", 4, SPECIAL_CLUSTER_NCTAID_Z },
	{ "%cluster_ctarank", "@special.32", 4, SPECIAL_CLUSTER_CTARANK },
	{ "%cluster_nctarank", "@special.32", 4, SPECIAL_CLUSTER_NCTARANK },
};

const struct special_name *decode_special_named(const char *name, uint32_t length)
{
	for (size_t k = 0; k < sizeof(special_names) / sizeof(special_names[0]); k++) {
		if (strlen(special_names[k].name) == length &&
		    !memcmp(special_names[k].name, name, length))
			return &special_names[k];
	}
	return NULL;
}

static int32_t read_special(struct decoder *decoder, const struct operand *operand, unsigned bytes)
{
	const struct special_name *special = operand->special;
	struct instruction *instruction;
	int32_t slot;

	if (!special)
		ptx_fail(decoder->parser, ENGINE_UNSUPPORTED, "special register %.*s",
			 (int)operand->length, operand->text);
	slot = decode_slot(decoder, special->bytes);
	instruction = decode_emit(decoder, special->form);
	instruction->dst = slot;
	instruction->x = special->x;
	if (!special->bytes || !bytes)
		return slot;
	return decode_resize(decoder, slot, special->bytes, bytes, false);
}

/* ---- operands ---- */

static int32_t local_address(struct decoder *decoder, const char *form, int64_t offset)
{
	int32_t slot = decode_slot(decoder, 8);
	struct instruction *instruction = decode_emit(decoder, form);

	instruction->dst = slot;
	instruction->imm = offset;
	return slot;
}

static int32_t read_symbol(struct decoder *decoder, const struct operand *operand, unsigned bytes)
{
	const struct symbol *symbol = operand->symbol;
	int64_t offset = symbol->slot + operand->addend;
	struct instruction *instruction;
	int32_t slot;

	switch (symbol->kind) {
	case SYMBOL_SHARED:
		return decode_constant(decoder, bytes, (uint64_t)offset);
	case SYMBOL_DYNAMIC_SHARED:
		slot = decode_slot(decoder, 4);
		instruction = decode_emit(decoder, "@dynamic_shared");
		instruction->dst = slot;
		instruction->imm = operand->addend;
		return decode_resize(decoder, slot, 4, bytes, false);
	case SYMBOL_LOCAL:
		return local_address(decoder, "@local_address", offset);
	case SYMBOL_KERNEL_PARAMETER:
		return local_address(decoder, "@parameter_address", offset);
	default:
		ptx_fail(decoder->parser, ENGINE_INVALID_PTX, "%.*s is not a value",
			 (int)operand->length, operand->text);
	}
}

static int32_t read_variable(struct decoder *decoder, const struct operand *operand, unsigned bytes)
{
	const struct variable *variable = operand->variable;

	if (variable->is_declaration)
		ptx_fail(decoder->parser, ENGINE_UNRESOLVED, "variable %s is defined nowhere",
			 variable->name);
	if (variable->space == SPACE_REFERENCE)
		decode_unsupported(decoder, "the address of a texture or surface reference");
	if (variable->is_dynamic) {
		int32_t slot = decode_slot(decoder, 4);
		struct instruction *instruction = decode_emit(decoder, "@dynamic_shared");

		instruction->dst = slot;
		instruction->imm = operand->addend;
		return decode_resize(decoder, slot, 4, bytes, false);
	}
	return decode_constant(decoder, bytes, variable->address + (uint64_t)operand->addend);
}

int32_t decode_source(struct decoder *decoder, const struct operand *operand, unsigned bytes)
{
	switch (operand->kind) {
	case OPERAND_REGISTER:
		if (operand->bytes >= bytes && bytes)
			return decode_resize(decoder, operand->slot, operand->bytes,
					     bytes < 2 ? 2 : bytes, false);
		return decode_resize(decoder, operand->slot, operand->bytes, bytes, false);
	case OPERAND_PREDICATE:
		if (!bytes)
			return decode_predicate_source(decoder, operand);
		break;
	case OPERAND_INTEGER:
	case OPERAND_FLOAT:
		return decode_constant(decoder, bytes < 2 ? 2 : bytes,
				       decode_literal(operand, bytes));
	case OPERAND_SPECIAL:
		return read_special(decoder, operand, bytes);
	case OPERAND_FUNCTION:
		return decode_constant(decoder, 8, (uintptr_t)operand->function);
	case OPERAND_SYMBOL:
		return read_symbol(decoder, operand, bytes);
	case OPERAND_VARIABLE:
		return read_variable(decoder, operand, bytes);
	default:
		break;
	}
	ptx_fail(decoder->parser, ENGINE_INVALID_PTX, "operand '%.*s' of %s cannot be read",
		 (int)operand->length, operand->text ? operand->text : "",
		 decoder->statement->opcode);
}

int32_t decode_predicate_source(struct decoder *decoder, const struct operand *operand)
{
	struct instruction *instruction;
	int32_t slot;

	if (operand->kind == OPERAND_INTEGER)
		return decode_constant(decoder, 0, (operand->value != 0) != operand->negated);
	if (operand->kind == OPERAND_SPECIAL)
		return read_special(decoder, operand, 0);
	if (operand->kind != OPERAND_PREDICATE)
		ptx_fail(decoder->parser, ENGINE_INVALID_PTX, "%s needs a predicate, not '%.*s'",
			 decoder->statement->opcode, (int)operand->length,
			 operand->text ? operand->text : "");
	if (!operand->negated)
		return operand->slot;
	slot = decode_slot(decoder, 0);
	instruction = decode_emit(decoder, "not.pred");
	instruction->dst = slot;
	instruction->a = operand->slot;
	return slot;
}

int32_t decode_destination(struct decoder *decoder, const struct operand *operand, unsigned bytes)
{
	if (operand->kind == OPERAND_SINK)
		return decode_slot(decoder, bytes == 1 ? 2 : bytes);
	if (operand->kind == OPERAND_PREDICATE && !bytes)
		return operand->slot;
	if (operand->kind == OPERAND_REGISTER && bytes && operand->bytes >= bytes)
		return operand->slot;
	ptx_fail(decoder->parser, ENGINE_INVALID_PTX, "%s cannot write to '%.*s'",
		 decoder->statement->opcode, (int)operand->length,
		 operand->text ? operand->text : "");
}

void decode_branch_reference(struct decoder *decoder, const char *name, uint32_t length,
			     uint32_t *index)
{
	struct label_reference *reference =
		ARENA_PUSH(decoder->arena, decoder->references, decoder->reference_count);

	*reference = (struct label_reference){
		.name = name, .length = length, .index = index,
		.instruction = (uint32_t)decoder->function->code_count - 1,
		.line = decoder->parser->lexer.line,
	};
}
