/* cluster.c - clusters, mbarriers, and the copies that complete them. */
#include "decoder.h"

#include "../machine/mbarrier.h"

/* ---- mapa, getctarank ---- */

static void decode_map(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	bool shared = statement_says_shared(statement);
	unsigned bytes = statement->type_count ? statement->types[0].bytes : 0;
	unsigned width = shared ? 4 : 8;
	struct instruction *map;
	int32_t a, b, dst, result;

	if (statement->operand_count != 3 || (bytes != 4 && bytes != 8) || (!shared && bytes != 8))
		decode_unsupported(decoder, NULL);
	a = decode_source(decoder, &statement->operands[1], width);
	b = decode_source(decoder, &statement->operands[2], 4);
	dst = decode_destination(decoder, &statement->operands[0], bytes);
	result = width == bytes ? dst : decode_slot(decoder, width);
	map = decode_emit(decoder, shared ? "mapa.shared::cluster.u32" : "mapa.u64");
	map->dst = result;
	map->a = a;
	map->b = b;
	if (result != dst) {
		map = decode_emit(decoder, "@resize.u32.64");
		map->dst = dst;
		map->a = result;
	}
}

static void decode_rank(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	bool shared = statement_says_shared(statement);
	struct instruction *rank;
	int32_t a, dst;

	if (statement->operand_count != 2)
		decode_unsupported(decoder, NULL);
	a = decode_source(decoder, &statement->operands[1], shared ? 4 : 8);
	dst = decode_destination(decoder, &statement->operands[0], 4);
	rank = decode_emit(decoder, shared ? "getctarank.shared::cluster.u32" : "getctarank.u64");
	rank->dst = dst;
	rank->a = a;
}

/* ---- mbarrier ---- */

static int32_t count_operand(struct decoder *decoder, unsigned index)
{
	if (index >= decoder->statement->operand_count)
		return decode_constant(decoder, 4, 1);
	return decode_source(decoder, &decoder->statement->operands[index], 4);
}

/* mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 state, [address], bytes */
static void decode_arrive(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	bool drops = statement_has(statement, "arrive_drop");
	bool expects = statement_has(statement, "expect_tx");
	struct instruction *arrive;
	int32_t pointer, count, tx = -1, dst = -1;
	unsigned at = 1;

	/* The destination may be left out where it would be a sink. */
	if (statement->operand_count && statement->operands[0].kind == OPERAND_ADDRESS)
		at = 0;
	if (statement->operand_count <= at)
		decode_unsupported(decoder, "too few operands");
	pointer = decode_pointer(decoder, &statement->operands[at], statement_says_shared(statement), 8);
	if (expects) {
		tx = count_operand(decoder, at + 1);
		count = decode_constant(decoder, 4, 1);
	} else {
		count = count_operand(decoder, at + 1);
	}
	if (at && statement->operands[0].kind != OPERAND_SINK)
		dst = decode_destination(decoder, &statement->operands[0], 8);
	arrive = decode_emit(decoder, drops ? "mbarrier.arrive_drop.b64" : "mbarrier.arrive.b64");
	arrive->dst = dst;
	arrive->a = pointer;
	arrive->b = count;
	arrive->c = tx;
}

static void decode_wait(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	bool parity = statement_has(statement, "parity");
	struct instruction *test;
	int32_t pointer, state, dst;

	if (statement->operand_count < 3)
		decode_unsupported(decoder, "too few operands");
	pointer = decode_pointer(decoder, &statement->operands[1], statement_says_shared(statement), 8);
	state = decode_source(decoder, &statement->operands[2], parity ? 4 : 8);
	dst = decode_destination(decoder, &statement->operands[0], 0);
	test = decode_emit(decoder, parity ? "mbarrier.test_wait.parity.b64"
					   : "mbarrier.test_wait.b64");
	test->dst = dst;
	test->a = pointer;
	test->b = state;
}

static void decode_mbarrier(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const char *form = statement_has(statement, "init")	     ? "mbarrier.init.b64"
			   : statement_has(statement, "inval")	     ? "mbarrier.inval.b64"
			   : statement_has(statement, "complete_tx") ? "mbarrier.complete_tx.b64"
								     : "mbarrier.expect_tx.b64";
	struct instruction *instruction;
	int32_t pointer, count, dst;

	if (statement_has(statement, "arrive") || statement_has(statement, "arrive_drop")) {
		decode_arrive(decoder);
		return;
	}
	if (statement_has(statement, "test_wait") || statement_has(statement, "try_wait")) {
		decode_wait(decoder);
		return;
	}
	if (statement_has(statement, "pending_count")) {
		if (statement->operand_count != 2)
			decode_unsupported(decoder, NULL);
		pointer = decode_source(decoder, &statement->operands[1], 8);
		dst = decode_destination(decoder, &statement->operands[0], 4);
		instruction = decode_emit(decoder, "mbarrier.pending_count.b64");
		instruction->dst = dst;
		instruction->a = pointer;
		return;
	}
	if (!statement->operand_count ||
	    (statement->operand_count < 2 && !statement_has(statement, "inval")))
		decode_unsupported(decoder, "too few operands");
	pointer = decode_pointer(decoder, &statement->operands[0], statement_says_shared(statement), 8);
	count = count_operand(decoder, 1);
	instruction = decode_emit(decoder, form);
	instruction->a = pointer;
	instruction->b = count;
}

/* cp.async.mbarrier.arrive: copies are complete, so that it counts up and down
 * again, and with .noinc is an arrival. */
static void decode_copy_arrive(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	struct instruction *arrive;
	int32_t pointer;

	if (statement->operand_count != 1)
		decode_unsupported(decoder, NULL);
	if (!statement_has(statement, "noinc"))
		return;
	pointer = decode_pointer(decoder, &statement->operands[0], statement_says_shared(statement), 8);
	arrive = decode_emit(decoder, "mbarrier.arrive.b64");
	arrive->a = pointer;
	arrive->b = decode_constant(decoder, 4, 1);
}

/* ---- bulk copies ---- */

enum bulk_operation decode_bulk_operation(struct decoder *decoder)
{
	static const struct {
		const char *name;
		enum bulk_operation operation;
	} names[] = {
		{ "add", BULK_ADD }, { "min", BULK_MIN }, { "max", BULK_MAX }, { "inc", BULK_INC },
		{ "dec", BULK_DEC }, { "and", BULK_AND }, { "or", BULK_OR },   { "xor", BULK_XOR },
	};

	for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++)
		if (statement_has(decoder->statement, names[k].name))
			return names[k].operation;
	decode_unsupported(decoder, NULL);
}

static void take_reduction(struct decoder *decoder, struct bulk_copy *copy)
{
	struct statement *statement = decoder->statement;
	struct ptx_type type;

	copy->reduction.operation = decode_bulk_operation(decoder);
	if (!statement->type_count)
		decode_unsupported(decoder, NULL);
	type = statement->types[statement->type_count - 1];
	if (!strchr("busfh", type.kind) || type.bytes < 2 || type.bytes > 8 ||
	    (strchr("fh", type.kind) && copy->reduction.operation > BULK_MAX))
		decode_unsupported(decoder, NULL);
	copy->reduction.element_bytes = type.bytes;
	copy->reduction.element_kind = type.kind;
}

/* Whether the n-th modifier behind "bulk" says shared memory. */
static bool bulk_side_is_shared(const struct statement *statement, unsigned n)
{
	for (unsigned k = 0; k + n < statement->modifier_count; k++) {
		const struct modifier *side = &statement->modifiers[k + n];

		if (statement->modifiers[k].length == 4 &&
		    !memcmp(statement->modifiers[k].text, "bulk", 4))
			return side->length >= 6 && !memcmp(side->text, "shared", 6);
	}
	return false;
}

static void decode_bulk_copy(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	const struct operand *operands = statement->operands;
	struct bulk_copy *copy;
	unsigned at = 3;

	if (statement_has(statement, "commit_group") || statement_has(statement, "wait_group") ||
	    statement_has(statement, "prefetch"))
		return;
	if (statement->operand_count < 3)
		decode_unsupported(decoder, NULL);
	copy = ARENA_NEW(decoder->arena, struct bulk_copy);
	*copy = (struct bulk_copy){ .barrier = -1, .ranks = -1, .bytes_mask = -1 };
	if (statement_has(statement, "reduce"))
		take_reduction(decoder, copy);
	copy->to = decode_pointer(decoder, &operands[0], bulk_side_is_shared(statement, 1), 1);
	copy->from = decode_pointer(decoder, &operands[1], bulk_side_is_shared(statement, 2), 1);
	copy->size = decode_source(decoder, &operands[2], 4);
	if (statement_has_prefix(statement, "mbarrier::complete_tx")) {
		if (at >= statement->operand_count)
			decode_unsupported(decoder, "too few operands");
		copy->barrier = decode_pointer(decoder, &operands[at++], true, 8);
	}
	if (statement_has(statement, "multicast::cluster")) {
		if (at >= statement->operand_count || copy->barrier < 0)
			decode_unsupported(decoder, "too few operands");
		copy->ranks = decode_source(decoder, &operands[at++], 2);
	}
	if (statement_has(statement, "L2::cache_hint"))
		at++;
	if (statement_has(statement, "cp_mask")) {
		if (at >= statement->operand_count)
			decode_unsupported(decoder, "too few operands");
		copy->bytes_mask = decode_source(decoder, &operands[at], 2);
	}
	decode_emit(decoder, "cp.async.bulk")->target = copy;
}

/* st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [a], {...}, [barrier] */
static void decode_async_store(struct decoder *decoder, bool reduces)
{
	struct statement *statement = decoder->statement;
	const struct operand *value = &statement->operands[1], *elements = value;
	unsigned count = 1;
	struct ptx_type type;
	int32_t to, barrier;

	if (statement->operand_count != 3 || !statement->type_count ||
	    !statement_has_prefix(statement, "mbarrier::complete_tx"))
		decode_unsupported(decoder, NULL);
	type = statement->types[statement->type_count - 1];
	if (type.bytes < 4 || type.bytes > 8)
		decode_unsupported(decoder, NULL);
	if (value->kind == OPERAND_VECTOR) {
		elements = &statement->elements[value->first_element];
		count = value->element_count;
	}
	to = decode_pointer(decoder, &statement->operands[0], true, count * type.bytes);
	barrier = decode_pointer(decoder, &statement->operands[2], true, 8);
	for (unsigned k = 0; k < count; k++) {
		struct bulk_copy *copy = ARENA_NEW(decoder->arena, struct bulk_copy);
		int32_t slot = decode_source(decoder, &elements[k], type.bytes);
		struct instruction *instruction;

		*copy = (struct bulk_copy){ .barrier = barrier, .ranks = -1, .bytes_mask = -1 };
		if (reduces)
			take_reduction(decoder, copy);
		copy->from = decode_slot(decoder, 8);
		copy->size = decode_constant(decoder, 4, type.bytes);
		copy->to = to;
		if (k) {
			copy->to = decode_slot(decoder, 8);
			instruction = decode_emit(decoder, "add.u64");
			instruction->dst = copy->to;
			instruction->a = to;
			instruction->b = decode_constant(decoder, 8, k * type.bytes);
		}
		instruction = decode_emit(decoder, "@value_pointer");
		instruction->dst = copy->from;
		instruction->a = slot;
		instruction->x = type.bytes;
		decode_emit(decoder, "st.async")->target = copy;
	}
}

/* createpolicy: a hint for caches that are not here */
static void decode_policy(struct decoder *decoder)
{
	int32_t dst = decode_destination(decoder, &decoder->statement->operands[0], 8);

	decode_emit(decoder, "@set.b64")->dst = dst;
}

bool decode_cluster(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	bool async = statement_has(statement, "async");

	if (statement_is(statement, "mapa"))
		decode_map(decoder);
	else if (statement_is(statement, "getctarank"))
		decode_rank(decoder);
	else if (statement_is(statement, "createpolicy") && statement->operand_count)
		decode_policy(decoder);
	else if (statement_is(statement, "mbarrier"))
		decode_mbarrier(decoder);
	else if (async && statement_is(statement, "st") && !statement_has(statement, "bulk"))
		decode_async_store(decoder, false);
	else if (async && statement_is(statement, "red"))
		decode_async_store(decoder, true);
	else if (async && statement_is(statement, "cp") && statement_has(statement, "bulk"))
		decode_bulk_copy(decoder);
	else if (async && statement_is(statement, "cp") && statement_has(statement, "mbarrier"))
		decode_copy_arrive(decoder);
	else
		return false;
	return true;
}
