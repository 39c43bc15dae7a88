/* memory.c - loads, stores, atomics, multicast, fences. */
#include "decoder.h"

#include "../running.h"
#include "../machine/strict.h"

static struct address shared_register_address(struct decoder *decoder, int32_t slot,
					      unsigned bytes, int64_t offset)
{
	return (struct address){
		"shared", decode_resize(decoder, slot, bytes, 4, false), offset, true,
	};
}

static struct address symbol_address(struct decoder *decoder, const struct operand *operand)
{
	const struct symbol *symbol = operand->symbol;
	int64_t offset = symbol->slot + operand->addend;

	switch (symbol->kind) {
	case SYMBOL_KERNEL_PARAMETER:
		return (struct address){ "parameter", -1, offset, false };
	case SYMBOL_LOCAL:
		return (struct address){ "local", -1, offset, false };
	case SYMBOL_SHARED:
		return (struct address){ "shared_absolute", -1, offset, true };
	case SYMBOL_DYNAMIC_SHARED:
		return (struct address){ "shared", decode_source(decoder, operand, 4), 0, true };
	default:
		ptx_fail(decoder->parser, ENGINE_INVALID_PTX, "%.*s is no address",
			 (int)operand->length, operand->text);
	}
}

static struct address variable_address(struct decoder *decoder, const struct operand *operand)
{
	const struct variable *variable = operand->variable;

	if (variable->is_declaration)
		ptx_fail(decoder->parser, ENGINE_UNRESOLVED, "variable %s is defined nowhere",
			 variable->name);
	if (variable->space == SPACE_REFERENCE)
		decode_unsupported(decoder, "the address of a texture or surface reference");
	if (variable->is_dynamic)
		return (struct address){ "shared", decode_source(decoder, operand, 4), 0, true };
	return (struct address){
		variable->space == SPACE_SHARED ? "shared_absolute" : "absolute", -1,
		(int64_t)variable->address + operand->addend, variable->space == SPACE_SHARED,
	};
}

int32_t decode_local_pointer(struct decoder *decoder, int32_t slot)
{
	struct instruction *pointer = decode_emit(decoder, "@local_pointer");

	pointer->a = slot;
	return pointer->dst = decode_slot(decoder, 8);
}

/* `shared`: the instruction says .shared, so that a register holds an offset. */
struct address decode_address(struct decoder *decoder, const struct operand *operand,
				   bool shared)
{
	struct operand base = *operand;

	if (operand->kind != OPERAND_ADDRESS && !operand->is_element)
		decode_unsupported(decoder, "the address is not in []");
	if (operand->kind == OPERAND_ADDRESS)
		base.kind = operand->base;
	switch (base.kind) {
	case OPERAND_REGISTER:
		if (shared)
			return shared_register_address(decoder, operand->slot, operand->bytes,
						       operand->addend);
		if (operand->bytes == 4 && statement_has(decoder->statement, "local"))
			return (struct address){
				"pointer", decode_local_pointer(decoder, operand->slot), operand->addend, false,
			};
		return (struct address){
			"pointer", decode_resize(decoder, operand->slot, operand->bytes, 8, false),
			operand->addend, false,
		};
	case OPERAND_INTEGER:
		return (struct address){
			shared ? "shared_absolute" : "absolute", -1,
			(int64_t)(operand->value + (uint64_t)operand->addend), shared,
		};
	case OPERAND_SYMBOL:
		return symbol_address(decoder, &base);
	case OPERAND_VARIABLE:
		return variable_address(decoder, &base);
	case OPERAND_NAME:
		ptx_fail(decoder->parser, ENGINE_INVALID_PTX, "address %.*s is not declared",
			 (int)operand->length, operand->text);
	default:
		decode_unsupported(decoder, "this kind of address");
	}
}

/* The address in a register, for accesses with no form of their own for it. */
struct address decode_address_in_register(struct decoder *decoder, struct address address)
{
	struct instruction *instruction;
	int32_t slot;

	if (!strcmp(address.form, "pointer") || !strcmp(address.form, "shared"))
		return address;
	if (!strcmp(address.form, "shared_absolute"))
		return (struct address){
			"shared", decode_constant(decoder, 4, (uint64_t)address.offset), 0, true,
		};
	if (!strcmp(address.form, "absolute"))
		return (struct address){
			"pointer", decode_constant(decoder, 8, (uint64_t)address.offset), 0, false,
		};
	slot = decode_slot(decoder, 8);
	instruction = decode_emit(decoder, !strcmp(address.form, "local") ? "@local_address"
									   : "@parameter_address");
	instruction->dst = slot;
	instruction->imm = address.offset;
	return (struct address){ "pointer", slot, 0, false };
}

struct address decode_cluster_pointer(struct decoder *decoder, struct address address,
				      unsigned bytes)
{
	int32_t slot = decode_slot(decoder, 8);
	struct instruction *pointer;

	address = decode_address_in_register(decoder, address);
	pointer = decode_emit(decoder, "@cluster_pointer");
	pointer->dst = slot;
	pointer->a = address.slot;
	pointer->imm = address.offset;
	pointer->x = (int32_t)bytes;
	return (struct address){ "pointer", slot, 0, false };
}

int32_t decode_pointer(struct decoder *decoder, const struct operand *operand, bool shared, unsigned bytes)
{
	struct address address = decode_address(decoder, operand, shared);
	struct instruction *add;
	int32_t slot;

	if (address.is_shared)
		return decode_cluster_pointer(decoder, address, bytes).slot;
	address = decode_address_in_register(decoder, address);
	if (!address.offset)
		return address.slot;
	slot = decode_constant(decoder, 8, (uint64_t)address.offset);
	add = decode_emit(decoder, "add.u64");
	add->dst = decode_slot(decoder, 8);
	add->a = address.slot;
	add->b = slot;
	return add->dst;
}

bool statement_says_shared(struct statement *statement)
{
	if (statement_has(statement, "shared::cluster"))
		return true;
	return statement_has(statement, "shared") || statement_has(statement, "shared::cta");
}

void decode_check(struct decoder *decoder, const struct address *address, unsigned bytes,
		  unsigned access)
{
	struct instruction *check;

	if (!strcmp(address->form, "local") || !strcmp(address->form, "parameter"))
		return;
	if (decoder->function->module->asks_reach && !address->is_shared && address->slot >= 0) {
		check = decode_emit(decoder, "@reach");
		check->a = address->slot;
		check->imm = address->offset;
	}
	if (!pool_options.strict)
		return;
	check = decode_emit(decoder, "@check");
	check->a = address->slot;
	check->imm = address->offset;
	check->x = (int32_t)bytes;
	check->y = (int32_t)(access | (address->is_shared ? STRICT_SHARED : 0));
}

/* ---- ld, st ---- */

/* Whether other blocks may depend on what this access does. */
static bool is_strong(struct statement *statement)
{
	static const char *const words[] = {
		"volatile", "relaxed", "acquire", "release", "mmio", "cg", "cv", "wt",
	};

	for (size_t k = 0; k < sizeof(words) / sizeof(words[0]); k++)
		if (statement_has(statement, words[k]))
			return true;
	return false;
}

/* What comes before a release and behind an acquire keeps that order.  x86 orders loads among themselves, and so it does
 * stores; there an acquire or release needs nothing but its access. */
static void emit_order(struct decoder *decoder, const char *word)
{
#if !defined(__x86_64__)
	if (statement_has(decoder->statement, word))
		decode_emit(decoder, "@fence");
#else
	(void)decoder;
	(void)word;
#endif
}

/* `verb` is load or store with the kind of address, or unpack or pack with a buffer for it. */
static void emit_access(struct decoder *decoder, const char *verb, const struct address *address,
			struct ptx_type type, unsigned register_bytes, int32_t slot, int64_t offset)
{
	struct instruction *access;
	bool is_load = verb[0] == 'l' || verb[0] == 'u';
	bool extends = is_load && type.kind == 's' && register_bytes > type.bytes;

	access = decode_emitf(decoder, "@%s%s%s.%c%u.%u", verb, *address->form ? "." : "",
			      address->form, extends ? 's' : 'u', type.bytes * 8,
			      register_bytes * 8);
	access->dst = slot;
	access->a = address->slot;
	access->imm = address->offset + offset;
}

static void emit_load(struct decoder *decoder, const char *verb, const struct address *address,
		      struct ptx_type type, const struct operand *element, int64_t offset)
{
	if (element->kind == OPERAND_SINK)
		return;
	if (element->kind != OPERAND_REGISTER || element->bytes < type.bytes)
		decode_unsupported(decoder, "the destination does not hold the value");
	emit_access(decoder, verb, address, type, element->bytes, element->slot, offset);
}

static void emit_store(struct decoder *decoder, const char *verb, const struct address *address,
		       struct ptx_type type, const struct operand *element, int64_t offset)
{
	unsigned bytes = type.bytes < 2 ? 2 : type.bytes;
	int32_t slot;

	if (element->kind == OPERAND_REGISTER && element->bytes >= type.bytes) {
		bytes = element->bytes;
		slot = element->slot;
	} else {
		slot = decode_source(decoder, element, bytes);
	}
	emit_access(decoder, verb, address, type, bytes, slot, offset);
}

/* All elements at once (handlers/memory.c says why), by a buffer. */
static void emit_whole_vector(struct decoder *decoder, bool stores, struct address address,
			      struct ptx_type type, const struct operand *elements,
			      unsigned count)
{
	struct address buffer = { "", decode_slot(decoder, 16), 0, false };
	struct instruction *move;

	address = decode_address_in_register(decoder, address);
	for (unsigned k = 0; stores && k < count; k++)
		emit_store(decoder, "pack", &buffer, type, &elements[k], k * type.bytes);
	move = decode_emitf(decoder, "@%s_vector.%u", stores ? "store" : "load",
			    count * type.bytes);
	move->dst = buffer.slot;
	move->a = address.slot;
	move->imm = address.offset;
	for (unsigned k = 0; !stores && k < count; k++)
		emit_load(decoder, "unpack", &buffer, type, &elements[k], k * type.bytes);
}

/* A vector load must not overwrite its own address before its last element. */
static void protect_address(struct decoder *decoder, struct address *address,
			    const struct operand *elements, unsigned count)
{
	unsigned bytes = address->is_shared ? 4 : 8;
	struct instruction *copy;
	int32_t slot;

	for (unsigned k = 0; k + 1 < count; k++) {
		if (elements[k].kind != OPERAND_REGISTER || elements[k].slot != address->slot)
			continue;
		slot = decode_slot(decoder, bytes);
		copy = decode_emitf(decoder, "mov.b%u", bytes * 8);
		copy->dst = slot;
		copy->a = address->slot;
		address->slot = slot;
		return;
	}
}

/* A register of 128 bits is the buffer of a whole vector. */
static void decode_wide_access(struct decoder *decoder, bool stores)
{
	struct statement *statement = decoder->statement;
	const struct operand *value = &statement->operands[stores ? 1 : 0];
	struct address address = decode_address(decoder, &statement->operands[stores ? 0 : 1],
						statement_says_shared(statement));
	struct instruction *move;
	int32_t slot;

	address = address.is_shared ? decode_cluster_pointer(decoder, address, 16)
				    : decode_address_in_register(decoder, address);
	decode_check(decoder, &address, 16, (stores ? STRICT_WRITE : STRICT_READ) |
					    (is_strong(statement) ? STRICT_SYNC : 0));
	slot = stores ? decode_source(decoder, value, 16) : decode_destination(decoder, value, 16);
	if (stores)
		emit_order(decoder, "release");
	move = decode_emit(decoder, stores ? "@store_vector.16" : "@load_vector.16");
	move->dst = slot;
	move->a = address.slot;
	move->imm = address.offset;
	if (!stores)
		emit_order(decoder, "acquire");
}

static void decode_load_store(struct decoder *decoder, bool stores)
{
	struct statement *statement = decoder->statement;
	const struct operand *operands = statement->operands;
	const struct operand *value, *elements;
	struct ptx_type type;
	struct address address;
	unsigned count = 1, whole;

	/* A third operand is a cache hint. */
	if (statement->operand_count < 2 || !statement->type_count)
		decode_unsupported(decoder, "too few operands");
	type = statement->types[statement->type_count - 1];
	if (type.bytes == 16 && statement->operands[stores ? 1 : 0].kind != OPERAND_VECTOR) {
		decode_wide_access(decoder, stores);
		return;
	}
	if (!type.bytes || type.bytes > 8)
		decode_unsupported(decoder, NULL);
	value = elements = &operands[stores ? 1 : 0];
	address = decode_address(decoder, &operands[stores ? 0 : 1], statement_says_shared(statement));
	if (value->kind == OPERAND_VECTOR) {
		elements = &statement->elements[value->first_element];
		count = value->element_count;
	}
	if (stores && !strcmp(address.form, "parameter"))
		decode_unsupported(decoder, "a store to a kernel parameter");
	whole = count * type.bytes;
	if (address.is_shared && statement_has(statement, "shared::cluster"))
		address = decode_cluster_pointer(decoder, address, whole);
	if (!stores)
		protect_address(decoder, &address, elements, count);
	if (count > 1 && address.slot >= 0) {
		struct instruction *check = decode_emit(
			decoder, address.is_shared ? "@aligned.shared" : "@aligned.pointer");

		check->a = address.slot;
		check->imm = address.offset;
		check->x = (int32_t)(whole - 1);
	}
	decode_check(decoder, &address, whole, (stores ? STRICT_WRITE : STRICT_READ) |
					       (is_strong(statement) ? STRICT_SYNC : 0));
	if (stores)
		emit_order(decoder, "release");
	if (count > 1 && is_strong(statement) && whole <= 16 &&
	    (!strcmp(address.form, "pointer") || !strcmp(address.form, "absolute"))) {
		emit_whole_vector(decoder, stores, address, type, elements, count);
	} else {
		for (unsigned k = 0; k < count; k++) {
			if (stores)
				emit_store(decoder, "store", &address, type, &elements[k], k * type.bytes);
			else
				emit_load(decoder, "load", &address, type, &elements[k], k * type.bytes);
		}
	}
	if (!stores)
		emit_order(decoder, "acquire");
}

/* ---- atom, red ---- */

#define VECTOR_ELEMENTS_MAX 8

static const char *const atomic_operations[] = {
	"add", "and", "or", "xor", "exch", "cas", "min", "max", "inc", "dec",
};

static void emit_atomic(struct decoder *decoder, const char *operation, struct address address,
			struct ptx_type type, int32_t dst, int32_t first, int32_t second)
{
	char kind = strchr("fhxy", type.kind) ? type.kind : 'u';
	struct instruction *instruction;

	if (type.kind == 's' && (!strcmp(operation, "min") || !strcmp(operation, "max")))
		kind = 's';
	instruction = decode_emitf(decoder, "@atomic.%s.%s.%c%u", operation, address.form, kind,
				   type.bytes * 8);
	instruction->dst = dst;
	instruction->a = address.slot;
	instruction->b = first;
	instruction->c = second;
	instruction->imm = address.offset;
}

static int32_t atomic_result(struct decoder *decoder, const struct operand *operand, unsigned bytes)
{
	if (!operand || operand->kind == OPERAND_SINK)
		return -1;
	return decode_destination(decoder, operand, bytes);
}

/* atom.global.v4.f32.add {d...}, [a], {b...}: atomic for each element (PTX ISA, "atom") */
static void decode_vector_atomic(struct decoder *decoder, const char *operation,
				 struct address address, struct ptx_type type,
				 const struct operand *result, const struct operand *value)
{
	const struct operand *elements = decoder->statement->elements;

	if (value->element_count > VECTOR_ELEMENTS_MAX ||
	    (result && result->kind != OPERAND_SINK &&
	     (result->kind != OPERAND_VECTOR || result->element_count != value->element_count)))
		decode_unsupported(decoder, "these vectors");
	for (unsigned k = 0; k < value->element_count; k++) {
		const struct operand *to =
			result && result->kind == OPERAND_VECTOR ? &elements[result->first_element + k]
								 : NULL;
		int32_t source = decode_source(decoder, &elements[value->first_element + k],
					       type.bytes);

		emit_atomic(decoder, operation, address, type,
			    atomic_result(decoder, to, type.bytes), source, -1);
		address.offset += type.bytes;
	}
}

static void decode_atomic(struct decoder *decoder, bool returns)
{
	struct statement *statement = decoder->statement;
	const struct operand *operands = statement->operands;
	unsigned at = returns ? 1 : 0, bytes;
	const char *operation = NULL;
	struct address address;
	struct ptx_type type;
	int32_t first, second = -1;
	bool is_vector;

	for (size_t k = 0; k < sizeof(atomic_operations) / sizeof(atomic_operations[0]); k++)
		if (statement_has(statement, atomic_operations[k]))
			operation = atomic_operations[k];
	if (!operation || !statement->type_count || statement->operand_count < at + 2)
		decode_unsupported(decoder, NULL);
	type = statement->types[statement->type_count - 1];
	if (!type.bytes)
		decode_unsupported(decoder, NULL);
	is_vector = operands[at + 1].kind == OPERAND_VECTOR;
	bytes = is_vector ? type.bytes * operands[at + 1].element_count : type.bytes;
	address = decode_address_in_register(decoder,
			      decode_address(decoder, &operands[at], statement_says_shared(statement)));
	if (address.is_shared && (statement_has(statement, "shared::cluster") || type.bytes == 16))
		address = decode_cluster_pointer(decoder, address, bytes);
	decode_check(decoder, &address, bytes, STRICT_READ | STRICT_WRITE | STRICT_SYNC);
	if (is_vector) {
		decode_vector_atomic(decoder, operation, address, type,
				     returns ? &operands[0] : NULL, &operands[at + 1]);
		return;
	}
	first = decode_source(decoder, &operands[at + 1], type.bytes);
	if (!strcmp(operation, "cas")) {
		if (statement->operand_count < at + 3)
			decode_unsupported(decoder, "too few operands");
		second = decode_source(decoder, &operands[at + 2], type.bytes);
	}
	emit_atomic(decoder, operation, address, type,
		    atomic_result(decoder, returns ? &operands[0] : NULL, type.bytes), first, second);
}

/* ---- multimem ---- */

static const char *const multimem_operations[] = { "add", "and", "or", "xor", "min", "max" };

/* The form's name for what is done to each element; pairs of 16-bit numbers are two. */
static const char *multimem_element(struct decoder *decoder, const char *operation, struct ptx_type type)
{
	bool sums = !strcmp(operation, "add"), chooses = !strcmp(operation, "min") || !strcmp(operation, "max");

	switch (type.kind) {
	case 'f':
		return type.bytes == 2 ? "f16" : type.bytes == 4 ? "f32" : "f64";
	case 'x':
		return "f16";
	case 'h':
	case 'y':
		return "h16";
	case 's':
		if (chooses)
			return type.bytes == 4 ? "s32" : "s64";
		break;
	case 'u':
	case 'b':
		if (type.kind == 'b' && (sums || chooses))
			decode_unsupported(decoder, NULL);
		break;
	default:
		decode_unsupported(decoder, NULL);
	}
	return type.bytes == 4 ? "u32" : "u64";
}

/* multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {d...}, [a]; */
static void decode_multimem(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const struct operand *operands = statement->operands, *elements;
	bool loads = statement_has(statement, "ld_reduce"), stores = statement_has(statement, "st");
	struct address address, buffer = { "", -1, 0, false };
	const char *operation = NULL, *element;
	struct instruction *instruction;
	unsigned count = 1, whole;
	struct ptx_type type;

	if ((!loads && !stores && !statement_has(statement, "red")) || statement->operand_count < 2 ||
	    !statement->type_count || statement_says_shared(statement))
		decode_unsupported(decoder, NULL);
	for (size_t k = 0; k < sizeof(multimem_operations) / sizeof(multimem_operations[0]); k++)
		if (statement_has(statement, multimem_operations[k]))
			operation = multimem_operations[k];
	type = statement->types[statement->type_count - 1];
	elements = &operands[loads ? 0 : 1];
	if (elements->kind == OPERAND_VECTOR) {
		count = elements->element_count;
		elements = &statement->elements[elements->first_element];
	}
	whole = count * type.bytes;
	if (stores == (operation != NULL) || (whole != 4 && whole != 8 && whole != 16))
		decode_unsupported(decoder, NULL);
	address = decode_address_in_register(decoder, decode_address(decoder, &operands[loads ? 1 : 0], false));
	buffer.slot = decode_slot(decoder, 16);
	if (!loads)
		emit_order(decoder, "release");
	for (unsigned k = 0; !loads && k < count; k++)
		emit_store(decoder, "pack", &buffer, type, &elements[k], k * type.bytes);
	if (stores) {
		instruction = decode_emit(decoder, whole == 4 ? "@multimem.store.u32" : "@multimem.store.u64");
	} else {
		bool wide = loads && !strcmp(operation, "add") && statement_has(statement, "acc::f32");

		element = multimem_element(decoder, operation, type);
		instruction = decode_emitf(decoder, "@multimem.%s.%s.%s%s", loads ? "reduce" : "red", operation,
					   element, wide ? "_wide" : "");
	}
	instruction->dst = buffer.slot;
	instruction->a = address.slot;
	instruction->imm = address.offset;
	instruction->x = (int32_t)whole;
	for (unsigned k = 0; loads && k < count; k++)
		emit_load(decoder, "unpack", &buffer, type, &elements[k], k * type.bytes);
	if (loads)
		emit_order(decoder, "acquire");
}

/* ---- cp.async: done at issue, so that groups are always complete ---- */

/* Nothing where the predicate says to ignore the source. */
static int32_t ignored_source_size(struct decoder *decoder, const struct operand *operand,
				   uint64_t bytes)
{
	int32_t ignored = decode_predicate_source(decoder, operand), present = decode_slot(decoder, 0);
	int32_t size = decode_slot(decoder, 4);
	struct instruction *instruction = decode_emit(decoder, "not.pred");

	instruction->dst = present;
	instruction->a = ignored;
	instruction = decode_emit(decoder, "@choose.b32");
	instruction->dst = size;
	instruction->a = present;
	instruction->imm = (int64_t)bytes;
	return size;
}

static void decode_async_copy(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const struct operand *operands = statement->operands;
	struct address to, from;
	struct instruction *copy;
	uint64_t bytes;
	int32_t size = -1;

	if (statement_has(statement, "commit_group") || statement_has(statement, "wait_group") ||
	    statement_has(statement, "wait_all"))
		return;
	if (statement->operand_count < 3 || operands[2].kind != OPERAND_INTEGER)
		decode_unsupported(decoder, NULL);
	bytes = operands[2].value;
	if (bytes != 4 && bytes != 8 && bytes != 16)
		decode_unsupported(decoder, "copies of this size");
	to = decode_address_in_register(decoder, decode_address(decoder, &operands[0], true));
	from = decode_address_in_register(decoder, decode_address(decoder, &operands[1], false));
	if (statement->operand_count > 3) {
		if (operands[3].kind == OPERAND_PREDICATE)
			size = ignored_source_size(decoder, &operands[3], bytes);
		/* A 64-bit operand is a cache policy, a 32-bit one the source size. */
		else if (!(operands[3].kind == OPERAND_REGISTER && operands[3].bytes == 8))
			size = decode_source(decoder, &operands[3], 4);
	}
	if (size < 0)
		decode_check(decoder, &from, (unsigned)bytes, STRICT_READ);
	decode_check(decoder, &to, (unsigned)bytes, STRICT_WRITE);
	copy = decode_emit(decoder, "@copy_async");
	copy->a = to.slot;
	copy->b = from.slot;
	copy->c = size;
	copy->imm = to.offset;
	copy->x = (int32_t)bytes;
	if (from.offset != (int32_t)from.offset)
		decode_unsupported(decoder, "an offset of more than 31 bits");
	copy->y = (int32_t)from.offset;
}

bool decode_memory(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;

	if (statement_is(statement, "ld") || statement_is(statement, "ldu"))
		decode_load_store(decoder, false);
	else if (statement_is(statement, "st"))
		decode_load_store(decoder, true);
	else if (statement_is(statement, "atom"))
		decode_atomic(decoder, true);
	else if (statement_is(statement, "red"))
		decode_atomic(decoder, false);
	else if (statement_is(statement, "multimem"))
		decode_multimem(decoder);
	else if (statement_is(statement, "membar") || statement_is(statement, "fence")) {
		if (pool_options.strict)
			decode_emit(decoder, "@check.sync");
		decode_emit(decoder, "@fence");
	} else if (statement_is(statement, "cp") && statement_has(statement, "async"))
		decode_async_copy(decoder);
	else
		return false;
	return true;
}
