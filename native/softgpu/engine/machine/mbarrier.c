/* mbarrier.c - mbarrier objects and the bulk copies that complete them.
 *
 * All that may touch an mbarrier runs on one thread (grid/block.c), and copies are
 * complete when they are issued.  What is left is counting (PTX ISA 9.7.13.15).
 */
#include "mbarrier.h"

#include "handler.h"
#include "../running.h"
#include "strict.h"

/* ---- the object: 64 bits, opaque to programs ---- */

#define COUNT_MASK 0xfffffu		/* PTX: counts have 20 bits */
#define TX_MAX 0xfffff

struct mbarrier {
	u64 pending : 20;	/* arrivals that this phase still waits for */
	u64 expected : 20;	/* arrivals of the next phase */
	s64 tx : 22;		/* bytes expected and not yet copied */
	u64 parity : 1;		/* of the phase */
	u64 is_valid : 1;
};

_Static_assert(sizeof(struct mbarrier) == 8, "an mbarrier has 64 bits");

static struct mbarrier load_any(struct warp *w, const struct instruction *i, u64 pointer)
{
	struct mbarrier barrier;

	if (pointer & 7)
		warp_fail(w, ENGINE_MISALIGNED, "mbarrier at %#llx, which is not a multiple of 8 "
			  "(PTX line %u)", (unsigned long long)pointer, i->line);
	memcpy(&barrier, (const void *)(uintptr_t)pointer, sizeof(barrier));
	return barrier;
}

static struct mbarrier load(struct warp *w, const struct instruction *i, u64 pointer)
{
	struct mbarrier barrier = load_any(w, i, pointer);

	if (!barrier.is_valid)
		warp_fail(w, ENGINE_LAUNCH_FAILED, "mbarrier at %#llx is not initialised (PTX line %u)",
			  (unsigned long long)pointer, i->line);
	return barrier;
}

static void store(struct warp *w, u64 pointer, const struct mbarrier *barrier)
{
	memcpy((void *)(uintptr_t)pointer, barrier, sizeof(*barrier));
	if (w->block->strict) {
		strict_sync(w);
		strict_written(w, pointer, sizeof(*barrier));
	}
}

static void complete_if_due(struct mbarrier *barrier)
{
	if (barrier->pending || barrier->tx)
		return;
	barrier->parity = !barrier->parity;
	barrier->pending = barrier->expected;
}

static void add_tx(struct warp *w, const struct instruction *i, struct mbarrier *barrier, s64 bytes)
{
	s64 tx = barrier->tx + bytes;

	if (tx > TX_MAX || tx < -TX_MAX)
		warp_fail(w, ENGINE_LAUNCH_FAILED, "an mbarrier's tx-count of %lld (PTX line %u)",
			  (long long)tx, i->line);
	barrier->tx = tx;
}

HANDLER(init)
{
	const u64 *a = REGISTER(u64, i->a);
	const u32 *b = REGISTER(u32, i->b);

	w->ip = i;
	FOR_ACTIVE(w->mask, l)
	{
		struct mbarrier barrier = { .pending = b[l] & COUNT_MASK,
					    .expected = b[l] & COUNT_MASK, .is_valid = 1 };

		if (!b[l] || b[l] > COUNT_MASK)
			warp_fail(w, ENGINE_LAUNCH_FAILED, "mbarrier.init with count %u (PTX line %u)",
				  b[l], i->line);
		store(w, a[l], &barrier);
	}
	return i + 1;
}

/* Hardware leaves the object as it was, and threads that still wait at it, as in libcu++'s own tests, go on.  Strict
 * mode ends it. */
HANDLER(invalidate)
{
	const u64 *a = REGISTER(u64, i->a);
	const struct mbarrier none = { .is_valid = 0 };

	w->ip = i;
	FOR_ACTIVE(w->mask, l)
	{
		load_any(w, i, a[l]);
		if (!w->block->strict)
			continue;
		load(w, i, a[l]);
		store(w, a[l], &none);
	}
	return i + 1;
}

/* The state before the arrival tells its phase. */
HANDLER(arrive)
{
	u64 *d = i->dst >= 0 ? REGISTER(u64, i->dst) : NULL;
	const u64 *a = REGISTER(u64, i->a);
	const u32 *b = REGISTER(u32, i->b);
	const u32 *c = i->c >= 0 ? REGISTER(u32, i->c) : NULL;

	w->ip = i;
	FOR_ACTIVE(w->mask, l)
	{
		struct mbarrier barrier = load(w, i, a[l]);
		const struct mbarrier before = barrier;

		if (c)
			add_tx(w, i, &barrier, c[l]);
		if (b[l] > barrier.pending)
			warp_fail(w, ENGINE_LAUNCH_FAILED,
				  "%u arrivals at an mbarrier that expects %u more (PTX line %u)", b[l],
				  (u32)barrier.pending, i->line);
		barrier.pending -= b[l];
		if (i->x & ARRIVE_DROPS)
			barrier.expected -= b[l] < barrier.expected ? b[l] : barrier.expected;
		complete_if_due(&barrier);
		store(w, a[l], &barrier);
		if (d)
			memcpy(&d[l], &before, sizeof(before));
	}
	return i + 1;
}

HANDLER(change_tx)
{
	const u64 *a = REGISTER(u64, i->a);
	const u32 *b = REGISTER(u32, i->b);

	w->ip = i;
	FOR_ACTIVE(w->mask, l)
	{
		struct mbarrier barrier = load(w, i, a[l]);

		add_tx(w, i, &barrier, i->x * (s64)b[l]);
		if (i->x < 0)
			complete_if_due(&barrier);
		store(w, a[l], &barrier);
	}
	return i + 1;
}

/* try_wait may sleep: the turn ends at the next back edge. */
static void after_test(struct warp *w, u32 passed)
{
	if (w->block->strict && passed)
		strict_sync(w);
	if ((w->mask & ~passed) && w->fuel > 1)
		w->fuel = 1;
}

HANDLER(test_state)
{
	const u64 *a = REGISTER(u64, i->a), *b = REGISTER(u64, i->b);
	u32 passed = 0;

	w->ip = i;
	FOR_ACTIVE(w->mask, l)
	{
		struct mbarrier barrier = load(w, i, a[l]), token;

		memcpy(&token, &b[l], sizeof(token));
		passed |= (u32)(barrier.parity != token.parity) << l;
	}
	SET_PREDICATE(i->dst, passed);
	after_test(w, passed);
	return i + 1;
}

HANDLER(test_parity)
{
	const u64 *a = REGISTER(u64, i->a);
	const u32 *b = REGISTER(u32, i->b);
	u32 passed = 0;

	w->ip = i;
	FOR_ACTIVE(w->mask, l) passed |= (u32)(load(w, i, a[l]).parity != (b[l] & 1)) << l;
	SET_PREDICATE(i->dst, passed);
	after_test(w, passed);
	return i + 1;
}

HANDLER(pending_count)
{
	u32 *d = REGISTER(u32, i->dst);
	const u64 *a = REGISTER(u64, i->a);

	FOR_ACTIVE(w->mask, l) d[l] = (u32)a[l] & COUNT_MASK;
	return i + 1;
}

/* ---- bulk copies ---- */

static u64 apply_integer(enum bulk_operation operation, bool is_signed, u32 bytes, u64 a, u64 b)
{
	u32 shift = 64 - 8 * bytes;
	s64 sa = (s64)(a << shift) >> shift, sb = (s64)(b << shift) >> shift;
	bool a_first = is_signed ? sa < sb : a < b;

	switch (operation) {
	case BULK_ADD: return a + b;
	case BULK_MIN: return a_first ? a : b;
	case BULK_MAX: return a_first ? b : a;
	case BULK_INC: return a >= b ? 0 : a + 1;
	case BULK_DEC: return !a || a > b ? b : a - 1;
	case BULK_AND: return a & b;
	case BULK_OR: return a | b;
	case BULK_XOR: return a ^ b;
	default: return b;
	}
}

/* PTX: min and max of a number and NaN are the number. */
static f64 apply_float(enum bulk_operation operation, f64 a, f64 b)
{
	switch (operation) {
	case BULK_MIN: return a != a || b < a ? b : a;
	case BULK_MAX: return a != a || b > a ? b : a;
	default: return a + b;
	}
}

static u64 apply(const struct bulk_reduction *reduction, u64 a, u64 b)
{
	f16 half_a, half_b;
	f32 single_a, single_b;
	f64 double_a, double_b;

	if (reduction->element_kind == 'h')
		return f32_to_bf16((f32)apply_float(reduction->operation, (f64)bf16_to_f32((u16)a),
						    (f64)bf16_to_f32((u16)b)));
	if (reduction->element_kind != 'f')
		return apply_integer(reduction->operation, reduction->element_kind == 's',
				     reduction->element_bytes, a, b);
	switch (reduction->element_bytes) {
	case 2:
		memcpy(&half_a, &a, 2);
		memcpy(&half_b, &b, 2);
		half_a = (f16)apply_float(reduction->operation, (f64)half_a, (f64)half_b);
		memcpy(&a, &half_a, 2);
		return a;
	case 4:
		memcpy(&single_a, &a, 4);
		memcpy(&single_b, &b, 4);
		single_a = (f32)apply_float(reduction->operation, (f64)single_a, (f64)single_b);
		memcpy(&a, &single_a, 4);
		return a;
	default:
		memcpy(&double_a, &a, 8);
		memcpy(&double_b, &b, 8);
		double_a = apply_float(reduction->operation, double_a, double_b);
		memcpy(&a, &double_a, 8);
		return a;
	}
}

#define REDUCE_ELEMENT(T)                                                                      \
	do {                                                                                   \
		T *memory_ = (T *)(to + at), value_, old_, new_;                               \
		memcpy(&value_, from + at, sizeof(value_));                                    \
		old_ = __atomic_load_n(memory_, __ATOMIC_RELAXED);                             \
		do                                                                             \
			new_ = (T)apply(reduction, old_, value_);                              \
		while (!__atomic_compare_exchange_n(memory_, &old_, new_, false,               \
						    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));      \
	} while (0)

void bulk_reduce(const struct bulk_reduction *reduction, char *to, const char *from, uint32_t size)
{
	for (u32 at = 0; at + reduction->element_bytes <= size; at += reduction->element_bytes) {
		if (reduction->element_bytes == 2)
			REDUCE_ELEMENT(u16);
		else if (reduction->element_bytes == 4)
			REDUCE_ELEMENT(u32);
		else
			REDUCE_ELEMENT(u64);
	}
}

void bulk_note(struct warp *w, const struct instruction *i, unsigned lane, const char *to, const char *from,
	       uint32_t size, bool reduces)
{
	if (!w->block->strict || !size)
		return;
	strict_pointer_access(w, i, lane, (u64)(uintptr_t)from, size, STRICT_READ);
	if (reduces)
		strict_sync(w);
	strict_pointer_access(w, i, lane, (u64)(uintptr_t)to, size, STRICT_WRITE | (reduces ? STRICT_READ : 0));
	if (reduces)
		strict_sync(w);
}

static void move(struct warp *w, const struct instruction *i, u32 l, const struct bulk_copy *copy, char *to,
		 const char *from, u32 size, u32 mask)
{
	bulk_note(w, i, l, to, from, size, copy->reduction.operation != BULK_COPY);
	if (copy->reduction.operation != BULK_COPY) {
		bulk_reduce(&copy->reduction, to, from, size);
	} else if (copy->bytes_mask < 0) {
		memmove(to, from, size);
	} else {
		for (u32 k = 0; k < size; k++)
			if (mask >> k % BULK_UNIT & 1)
				to[k] = from[k];
	}
}

/* Shared memory is checked here, since only the first byte was when the pointer was made. A
 * value of st.async lies in a register, which is everybody's. */
void bulk_check_range(struct warp *w, const struct instruction *i, uint64_t pointer, uint32_t size)
{
	const struct block *block = cluster_block_at(w, pointer);

	if (block && pointer - (u64)(uintptr_t)block->shared + size > block->shared_bytes)
		warp_fail(w, ENGINE_LAUNCH_FAILED,
			  "bulk copy of %#x bytes leaves the shared memory (PTX line %u)", size, i->line);
	if (!block)
		reach_memory(w, i, pointer, size);
}

uint64_t bulk_in_block(struct warp *w, const struct instruction *i, uint64_t pointer, uint32_t rank)
{
	const struct cluster *cluster = w->block->cluster;
	const struct block *home = cluster_block_at(w, pointer);

	if (!home || rank >= cluster->count)
		warp_fail(w, ENGINE_LAUNCH_FAILED, "multicast to block %u of a cluster of %u (PTX line %u)",
			  rank, cluster->count, i->line);
	return pointer - (u64)(uintptr_t)home->shared + (u64)(uintptr_t)cluster->blocks[rank]->shared;
}

void bulk_signal(struct warp *w, const struct instruction *i, uint64_t pointer, uint32_t size)
{
	struct mbarrier barrier = load(w, i, pointer);

	add_tx(w, i, &barrier, -(s64)size);
	complete_if_due(&barrier);
	store(w, pointer, &barrier);
}

static void copy_lane(struct warp *w, const struct instruction *i, const struct bulk_copy *copy, u32 l)
{
	u64 to = REGISTER(u64, copy->to)[l], from = REGISTER(u64, copy->from)[l];
	u64 barrier = copy->barrier >= 0 ? REGISTER(u64, copy->barrier)[l] : 0;
	u32 size = REGISTER(u32, copy->size)[l];
	u32 mask = copy->bytes_mask >= 0 ? REGISTER(u16, copy->bytes_mask)[l] : 0;
	u32 ranks = copy->ranks >= 0 ? REGISTER(u16, copy->ranks)[l] : 0;

	if (i->x && (size | to | from) % BULK_UNIT)
		warp_fail(w, ENGINE_MISALIGNED,
			  "bulk copy of %#x bytes from %#llx to %#llx, which are not all multiples of 16 "
			  "(PTX line %u)", size, (unsigned long long)from, (unsigned long long)to,
			  i->line);
	bulk_check_range(w, i, from, size);
	bulk_check_range(w, i, to, size);
	if (copy->ranks < 0) {
		move(w, i, l, copy, (char *)(uintptr_t)to, (const char *)(uintptr_t)from, size, mask);
		if (barrier)
			bulk_signal(w, i, barrier, size);
		return;
	}
	for (; ranks; ranks &= ranks - 1) {
		u32 rank = (u32)__builtin_ctz(ranks);

		move(w, i, l, copy, (char *)(uintptr_t)bulk_in_block(w, i, to, rank),
		     (const char *)(uintptr_t)from, size, mask);
		bulk_signal(w, i, bulk_in_block(w, i, barrier, rank), size);
	}
}

HANDLER(bulk)
{
	w->ip = i;
	FOR_ACTIVE(w->mask, l) copy_lane(w, i, i->target, l);
	return i + 1;
}

/* st.async, red.async: a register's value */
HANDLER(value_pointer)
{
	u64 *d = REGISTER(u64, i->dst);
	u64 base = (u64)(uintptr_t)(w->registers + i->a);

	FOR_ACTIVE(w->mask, l) d[l] = base + l * (u64)i->x;
	return i + 1;
}

static const struct form forms[] = {
	{ "mbarrier.init.b64", NULL, init, NULL, 0, false },
	{ "mbarrier.inval.b64", NULL, invalidate, NULL, 0, false },
	{ "mbarrier.arrive.b64 mbarrier.arrive.expect_tx.b64 mbarrier.arrive.noComplete.b64", NULL,
	  arrive, NULL, 0, false },
	{ "mbarrier.arrive_drop.b64 mbarrier.arrive_drop.expect_tx.b64 "
	  "mbarrier.arrive_drop.noComplete.b64", NULL, arrive, NULL, ARRIVE_DROPS, false },
	{ "mbarrier.expect_tx.b64", NULL, change_tx, NULL, 1, false },
	{ "mbarrier.complete_tx.b64", NULL, change_tx, NULL, -1, false },
	{ "mbarrier.test_wait.b64 mbarrier.try_wait.b64", NULL, test_state, NULL, 0, false },
	{ "mbarrier.test_wait.parity.b64 mbarrier.try_wait.parity.b64", NULL, test_parity, NULL, 0,
	  false },
	{ "mbarrier.pending_count.b64", NULL, pending_count, NULL, 0, false },
	{ "cp.async.bulk cp.reduce.async.bulk", NULL, bulk, NULL, 1, false },
	{ "st.async red.async", NULL, bulk, NULL, 0, false },
	{ "@value_pointer", NULL, value_pointer, NULL, 0, false },
};

const struct form_table forms_mbarrier = { forms, sizeof(forms) / sizeof(forms[0]) };
