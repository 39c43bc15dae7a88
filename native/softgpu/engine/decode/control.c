/* control.c - branches, calls, barriers: what guards itself by a branch. */
#include "decoder.h"

/* ---- guards ---- */

int64_t decode_guard_branch(struct decoder *decoder)
{
	const struct statement *statement = decoder->statement;
	struct instruction *branch;

	if (!statement->has_guard)
		return -1;
	branch = decode_emit(decoder, statement->guard_negated ? "@branch.if" : "@branch.unless");
	branch->a = statement->guard;
	return (int64_t)decoder->function->code_count - 1;
}

void decode_guard_end(struct decoder *decoder, int64_t branch)
{
	if (branch < 0)
		return;
	decode_emit(decoder, "@label");
	decoder->function->code[branch].branch_to = (uint32_t)decoder->function->code_count;
}

/* ---- branches ---- */

static void decode_branch(struct decoder *decoder)
{
	const struct statement *statement = decoder->statement;
	const struct operand *target = &statement->operands[0];
	struct instruction *branch;

	if (statement->operand_count != 1)
		decode_unsupported(decoder, "a branch has one operand");
	branch = decode_emit(decoder, !statement->has_guard      ? "@branch"
				      : statement->guard_negated ? "@branch.unless"
								 : "@branch.if");
	branch->a = statement->guard;
	decode_branch_reference(decoder, target->text, target->length, NULL);
	if (statement->has_guard)
		decode_emit(decoder, "@label");	/* where those that went on may meet again */
}

static void decode_indexed_branch(struct decoder *decoder)
{
	const struct statement *statement = decoder->statement;
	const struct operand *table = &statement->operands[1];
	int64_t guard = decode_guard_branch(decoder);
	struct instruction *jump;
	int32_t index;

	if (statement->operand_count != 2 || !table->symbol ||
	    table->symbol->kind != SYMBOL_JUMP_TABLE)
		decode_unsupported(decoder, "needs an index and a list of targets");
	index = decode_source(decoder, &statement->operands[0], 4);
	jump = decode_emit(decoder, "@jump");
	jump->a = index;
	jump->target = table->symbol->table;
	decode_guard_end(decoder, guard);
}

/* ---- calls ---- */

static void note_callee(struct decoder *decoder, struct engine_function *callee)
{
	struct engine_function *function = decoder->function;

	if (callee->called_by == function)
		return;
	callee->called_by = function;
	*(ARENA_PUSH(decoder->arena, function->callees, function->callee_count)) = callee;
}

static struct call_argument call_argument(struct decoder *decoder, const struct operand *operand)
{
	const struct symbol *symbol = operand->symbol;

	if (operand->kind != OPERAND_SYMBOL || symbol->kind != SYMBOL_LOCAL)
		decode_unsupported(decoder, "arguments other than .param variables");
	return (struct call_argument){ symbol->slot, symbol->size };
}

static void take_arguments(struct decoder *decoder, const struct operand *list,
			   struct call_site *site)
{
	const struct statement *statement = decoder->statement;

	site->argument_count = list->element_count;
	site->arguments = arena_alloc(decoder->arena,
				      list->element_count * sizeof(*site->arguments));
	for (unsigned k = 0; k < list->element_count; k++)
		site->arguments[k] = call_argument(
			decoder, &statement->elements[list->first_element + k]);
}

/* What kernels that launch kernels, or set up streams and events, ask a driver for: by the names of the
 * device runtime, and by those that libcudadevrt.a has beneath them. */
static bool is_of_device_runtime(const char *name)
{
	static const char *const beginnings[] = { "cuda", "__cudaCDP2", "cnp", "__cuda_syscall_" };

	for (size_t k = 0; k < sizeof(beginnings) / sizeof(*beginnings); k++)
		if (!strncmp(name, beginnings[k], strlen(beginnings[k])))
			return true;
	return false;
}

static void decode_call(struct decoder *decoder)
{
	const struct statement *statement = decoder->statement;
	struct call_site *site = ARENA_NEW(decoder->arena, struct call_site);
	int64_t guard = decode_guard_branch(decoder);
	const struct operand *target;
	struct instruction *call;
	unsigned at = 0;

	if (statement->operand_count && statement->operands[0].kind == OPERAND_LIST) {
		const struct operand *results = &statement->operands[at++];

		if (results->element_count > 1)
			decode_unsupported(decoder, "several results");
		if (results->element_count) {
			site->has_result = true;
			site->result = call_argument(
				decoder, &statement->elements[results->first_element]);
		}
	}
	if (at >= statement->operand_count)
		decode_unsupported(decoder, "no target");
	target = &statement->operands[at++];
	if (at < statement->operand_count && statement->operands[at].kind == OPERAND_LIST)
		take_arguments(decoder, &statement->operands[at], site);
	decoder->function->has_calls = true;
	if (target->kind == OPERAND_REGISTER) {
		int32_t slot = decode_source(decoder, target, 8);

		decoder->function->calls_by_register = true;
		call = decode_emit(decoder, "@call.indirect");
		call->a = slot;
	} else if (target->kind == OPERAND_FUNCTION) {
		struct engine_function *callee = target->function;

		site->callee = callee;
		if (!callee->is_defined && !callee->builtin) {
			if (is_of_device_runtime(callee->name))
				decode_unsupported(decoder, callee->name);
			ptx_fail(decoder->parser, ENGINE_UNRESOLVED,
				 "function %s is declared and defined nowhere", callee->name);
		}
		call = decode_emit(decoder, "@call");
		if (callee->builtin)
			call->run = callee->builtin;
		else
			note_callee(decoder, callee);
	} else {
		ptx_fail(decoder->parser, ENGINE_INVALID_PTX, "call of unknown function %.*s",
			 (int)target->length, target->text);
	}
	call->target = site;
	decode_guard_end(decoder, guard);
}

/* ---- barriers ---- */

/* bar.sync a, b; bar.arrive a, b; bar.red.popc.u32 d, a, b, p; barrier.* */
static void decode_block_barrier(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const struct operand *operands = statement->operands;
	bool reduces = statement_has(statement, "red");
	int64_t guard = decode_guard_branch(decoder);
	struct instruction draft = { .x = 0, .b = -1, .c = -1, .a = -1 };
	struct instruction *barrier;
	unsigned at = reduces ? 1 : 0;

	if (statement->operand_count < at + 1 + (reduces ? 1 : 0))
		decode_unsupported(decoder, "too few operands");
	if (operands[at].kind == OPERAND_INTEGER) {
		if (operands[at].value >= BLOCK_BARRIERS)
			ptx_fail(decoder->parser, ENGINE_INVALID_PTX, "barrier %llu",
				 (unsigned long long)operands[at].value);
		draft.x = (int32_t)operands[at].value;
	} else {
		draft.x = -1;
		draft.b = decode_source(decoder, &operands[at], 4);
	}
	at++;
	if (at < statement->operand_count && operands[at].kind != OPERAND_PREDICATE) {
		if (operands[at].kind == OPERAND_INTEGER)
			draft.y = (int32_t)operands[at].value;
		else
			draft.c = decode_source(decoder, &operands[at], 4);
		at++;
	}
	draft.imm = statement_has(statement, "arrive") ? BARRIER_ARRIVE : BARRIER_SYNC;
	if (reduces) {
		if (at >= statement->operand_count)
			decode_unsupported(decoder, "too few operands");
		draft.imm = BARRIER_REDUCE;
		draft.a = decode_predicate_source(decoder, &operands[at]);
	}
	barrier = decode_emit(decoder, "@barrier");
	barrier->x = draft.x;
	barrier->y = draft.y;
	barrier->a = draft.a;
	barrier->b = draft.b;
	barrier->c = draft.c;
	barrier->imm = draft.imm;
	if (reduces) {
		bool counts = statement_has(statement, "popc");
		int32_t dst = decode_destination(decoder, &operands[0], counts ? 4 : 0);

		barrier = decode_emit(decoder, counts ? "@barrier.population"
				      : statement_has(statement, "and") ? "@barrier.all"
									: "@barrier.any");
		barrier->dst = dst;
		barrier->x = draft.x;
		barrier->b = draft.b;
	}
	decode_guard_end(decoder, guard);
}

static void decode_warp_barrier(struct decoder *decoder)
{
	struct instruction *barrier;
	int64_t guard = decode_guard_branch(decoder);
	int32_t lanes = decode_source(decoder, &decoder->statement->operands[0], 4);

	barrier = decode_emit(decoder, "@warp_barrier");
	barrier->y = lanes;
	barrier->imm = -1;
	decode_guard_end(decoder, guard);
}

static void decode_simple(struct decoder *decoder, const char *form)
{
	int64_t guard = decode_guard_branch(decoder);

	decode_emit(decoder, form);
	decode_guard_end(decoder, guard);
}

bool decode_control(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;

	if (statement_is(statement, "bra")) {
		decode_branch(decoder);
	} else if (statement_is(statement, "brx")) {
		decode_indexed_branch(decoder);
	} else if (statement_is(statement, "call")) {
		decode_call(decoder);
	} else if (statement_is(statement, "ret") || statement_is(statement, "exit") ||
		   statement_is(statement, "trap")) {
		decode_simple(decoder, statement->opcode);
	} else if (statement_is(statement, "brkpt")) {
		decode_simple(decoder, "trap");
	} else if (statement_is(statement, "bar") || statement_is(statement, "barrier")) {
		if (statement_has(statement, "cluster")) {
			decode_simple(decoder, statement_has(statement, "arrive")
						       ? "barrier.cluster.arrive"
						       : "barrier.cluster.wait");
		} else if (statement_has(statement, "warp")) {
			if (statement->operand_count != 1)
				decode_unsupported(decoder, "one operand is needed");
			decode_warp_barrier(decoder);
		} else {
			decode_block_barrier(decoder);
		}
	} else {
		return false;
	}
	return true;
}
