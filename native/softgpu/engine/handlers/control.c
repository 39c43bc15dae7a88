/* control.c - branches, guards, predicates, moves, special registers. */
#include "../machine/strict.h"
#include "../machine/handler.h"

extern const struct form_table LEVEL(forms_integer), LEVEL(forms_float), LEVEL(forms_half),
	LEVEL(forms_convert), LEVEL(forms_memory), LEVEL(forms_multimem), LEVEL(forms_warp),
	LEVEL(forms_matrix), LEVEL(forms_warpgroup), LEVEL(forms_control);

/* ---- control flow ---- */

HANDLER(label)
{
	if (UNLIKELY(i >= w->merge_at))
		return warp_merge(w, i);
	NEXT;
}

/* Only back edges burn fuel: everything else ends by itself. */
#define BRANCH_TO(to)                                                                          \
	do {                                                                                   \
		const struct instruction *target_ = (to);                                      \
		if (target_ <= i && UNLIKELY(--w->fuel <= 0))                                  \
			return warp_preempt(w, target_);                                       \
		GO(target_);                                                                   \
	} while (0)

HANDLER(branch)
{
	BRANCH_TO((const struct instruction *)i->target);
}

HANDLER(branch_if)
{
	u32 taken = PREDICATE(i->a) & w->mask;
	const struct instruction *next;

	if (!taken)
		NEXT;
	if (taken == w->mask)
		BRANCH_TO((const struct instruction *)i->target);
	next = warp_split(w, i, taken);
	if (!next)
		return NULL;
	GO(next);
}

HANDLER(branch_unless)
{
	u32 taken = ~PREDICATE(i->a) & w->mask;
	const struct instruction *next;

	if (!taken)
		NEXT;
	if (taken == w->mask)
		BRANCH_TO((const struct instruction *)i->target);
	next = warp_split(w, i, taken);
	if (!next)
		return NULL;
	GO(next);
}

HANDLER(jump)
{
	return warp_jump(w, i);
}

HANDLER(call)
{
	const struct call_site *site = i->target;

	return warp_call(w, i, site->callee);
}

HANDLER(call_indirect)
{
	return warp_call_indirect(w, i);
}

HANDLER(ret)
{
	(void)i;
	return warp_return(w);
}

HANDLER(exit_)
{
	(void)i;
	return warp_exit(w);
}

HANDLER(trap)
{
	warp_fail(w, ENGINE_TRAP, "trap (PTX line %u)", i->line);
}

HANDLER(barrier)
{
	return barrier_arrive(w, i);
}

static const struct barrier *finished_barrier(struct warp *w, const struct instruction *i)
{
	u32 index = i->x >= 0 ? (u32)i->x : REGISTER(u32, i->b)[__builtin_ctz(w->mask)];

	return &w->block->barriers[index % BLOCK_BARRIERS];
}

HANDLER(barrier_population)
{
	u32 *d = REGISTER(u32, i->dst);
	u32 result = finished_barrier(w, i)->result;

	STORE(u32, result);
	NEXT;
}

HANDLER(barrier_all)
{
	const struct barrier *barrier_ = finished_barrier(w, i);

	SET_PREDICATE(i->dst, barrier_->result == barrier_->result_threads ? ALL_LANES : 0);
	NEXT;
}

HANDLER(barrier_any)
{
	SET_PREDICATE(i->dst, finished_barrier(w, i)->result ? ALL_LANES : 0);
	NEXT;
}

/* ---- guards of single instructions ---- */

HANDLER(guard)
{
	u32 mask = w->mask & PREDICATE(i->a);

	if (!mask)
		GO(i + 1 + i->x);
	w->guarded_mask = w->mask;
	w->mask = mask;
	NEXT;
}

HANDLER(guard_not)
{
	u32 mask = w->mask & ~PREDICATE(i->a);

	if (!mask)
		GO(i + 1 + i->x);
	w->guarded_mask = w->mask;
	w->mask = mask;
	NEXT;
}

HANDLER(unguard)
{
	w->mask = w->guarded_mask;
	NEXT;
}

/* ---- predicates ---- */

#define PREDICATE_ROWS(X)                                                                      \
	X("and.pred", and_pred, "dp ap bp", PREDICATE(i->a) & PREDICATE(i->b))                 \
	X("or.pred", or_pred, "dp ap bp", PREDICATE(i->a) | PREDICATE(i->b))                   \
	X("xor.pred", xor_pred, "dp ap bp", PREDICATE(i->a) ^ PREDICATE(i->b))                 \
	X("not.pred", not_pred, "dp ap", ~PREDICATE(i->a))                                     \
	X("@move.pred", move_pred, "dp ap", PREDICATE(i->a))
#define DEFINE_PREDICATE(names, id, operands, expression)                                      \
	HANDLER(id)                                                                            \
	{                                                                                      \
		u32 value = (expression);                                                      \
		SET_PREDICATE(i->dst, value);                                                  \
		NEXT;                                                                          \
	}
#define FORM_PREDICATE(names, id, operands, expression) { names, operands, id, NULL, 0, 0 },
PREDICATE_ROWS(DEFINE_PREDICATE)

/* ---- selection ---- */

#define DEFINE_SELECT(N)                                                                       \
	HANDLER(selp_##N)                                                                      \
	{                                                                                      \
		u##N *d = REGISTER(u##N, i->dst);                                              \
		const u##N *a = REGISTER(u##N, i->a), *b = REGISTER(u##N, i->b);               \
		u32 p = PREDICATE(i->c);                                                       \
		STORE(u##N, (p >> l & 1) ? a[l] : b[l]);                                       \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(choose_##N)                                                                    \
	{                                                                                      \
		u##N *d = REGISTER(u##N, i->dst);                                              \
		u32 p = PREDICATE(i->a);                                                       \
		u##N value = (u##N)i->imm;                                                     \
		STORE(u##N, (p >> l & 1) ? value : 0);                                         \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(set_##N)                                                                       \
	{                                                                                      \
		u##N *d = REGISTER(u##N, i->dst);                                              \
		u##N value = (u##N)i->imm;                                                     \
		STORE(u##N, value);                                                            \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(slct_s32_##N)                                                                  \
	{                                                                                      \
		u##N *d = REGISTER(u##N, i->dst);                                              \
		const u##N *a = REGISTER(u##N, i->a), *b = REGISTER(u##N, i->b);               \
		const s32 *c = REGISTER(s32, i->c);                                            \
		STORE(u##N, c[l] >= 0 ? a[l] : b[l]);                                          \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(slct_f32_##N)                                                                  \
	{                                                                                      \
		u##N *d = REGISTER(u##N, i->dst);                                              \
		const u##N *a = REGISTER(u##N, i->a), *b = REGISTER(u##N, i->b);               \
		const f32 *c = REGISTER(f32, i->c);                                            \
		STORE(u##N, c[l] >= 0 ? a[l] : b[l]);                                          \
		NEXT;                                                                          \
	}
#define SPELLINGS(op, N, tail) op ".b" #N tail " " op ".u" #N tail " " op ".s" #N tail " " op ".f" #N tail
#define FORM_SELECT(N)                                                                         \
	{ SPELLINGS("selp", N, ""), "d" WIDTH_u##N " a" WIDTH_u##N " b" WIDTH_u##N " cp",      \
	  selp_##N, NULL, 0, 0 },                                                              \
	{ SPELLINGS("slct", N, ".s32"), "d" WIDTH_u##N " a" WIDTH_u##N " b" WIDTH_u##N " c4",  \
	  slct_s32_##N, NULL, 0, 0 },                                                          \
	{ SPELLINGS("slct", N, ".f32"), "d" WIDTH_u##N " a" WIDTH_u##N " b" WIDTH_u##N " c4",  \
	  slct_f32_##N, NULL, 0, 0 },                                                          \
	{ "@choose.b" #N, NULL, choose_##N, NULL, 0, 0 },                                      \
	{ "@set.b" #N, NULL, set_##N, NULL, 0, 0 },
DEFINE_SELECT(16)
DEFINE_SELECT(32)
DEFINE_SELECT(64)

/* ---- widths ---- */

#define RESIZE_ROWS(X)                                                                         \
	X(s8, u16, s, 8, 16) X(s8, u32, s, 8, 32) X(s8, u64, s, 8, 64)                         \
	X(s16, u32, s, 16, 32) X(s16, u64, s, 16, 64) X(s32, u64, s, 32, 64)                   \
	X(u8, u16, u, 8, 16) X(u16, u32, u, 16, 32) X(u16, u64, u, 16, 64)                     \
	X(u32, u64, u, 32, 64) X(u32, u16, u, 32, 16) X(u64, u16, u, 64, 16)                   \
	X(u64, u32, u, 64, 32) X(u32, u16, s, 32, 16) X(u64, u16, s, 64, 16)                   \
	X(u64, u32, s, 64, 32)
#define DEFINE_RESIZE(S, D, kind, from, to)                                                    \
	HANDLER(resize_##kind##from##_##to)                                                    \
	{                                                                                      \
		D *d = REGISTER(D, i->dst);                                                    \
		const S *a = REGISTER(S, i->a);                                                \
		STORE(D, (D)a[l]);                                                             \
		NEXT;                                                                          \
	}
#define FORM_RESIZE(S, D, kind, from, to)                                                      \
	{ "@resize." #kind #from "." #to, NULL, resize_##kind##from##_##to, NULL, 0, 0 },
RESIZE_ROWS(DEFINE_RESIZE)

/* ---- packing: element 0 lies in the low bits ---- */

#define DEFINE_PACK(count, PART, WHOLE, bits)                                                  \
	HANDLER(pack_##count##x##bits)                                                         \
	{                                                                                      \
		WHOLE *d = REGISTER(WHOLE, i->dst);                                            \
		const PART *parts[4] = {                                                       \
			REGISTER(PART, i->a), REGISTER(PART, i->b),                            \
			count > 2 ? REGISTER(PART, i->c) : NULL,                               \
			count > 2 ? REGISTER(PART, i->x) : NULL,                               \
		};                                                                             \
		WHOLE packed[WARP_LANES];                                                      \
		FOR_LANES                                                                      \
		{                                                                              \
			WHOLE value = 0;                                                       \
			for (int k = 0; k < count; k++)                                        \
				value |= (WHOLE)(parts[k][l] & (WHOLE)~(~(u64)0 << (bits - 1) << 1)) << k * bits; \
			packed[l] = value;                                                     \
		}                                                                              \
		STORE(WHOLE, packed[l]);                                                       \
		return i + 1;                                                                  \
	}                                                                                      \
	HANDLER(unpack_##count##x##bits)                                                       \
	{                                                                                      \
		WHOLE whole[WARP_LANES];                                                       \
		const int32_t slots[4] = { i->dst, i->b, i->c, i->x };                         \
		memcpy(whole, REGISTER(WHOLE, i->a), sizeof(whole));                           \
		for (int k = 0; k < count; k++) {                                              \
			PART *d;                                                               \
			if (slots[k] < 0)                                                      \
				continue;                                                      \
			d = REGISTER(PART, slots[k]);                                          \
			STORE(PART, (PART)((whole[l] >> k * bits) & (WHOLE)~(~(u64)0 << (bits - 1) << 1))); \
		}                                                                              \
		return i + 1;                                                                  \
	}
#define FORM_PACK(count, PART, WHOLE, bits)                                                    \
	{ "@pack." #count "x" #bits, NULL, pack_##count##x##bits, NULL, 0, 0 },                \
	{ "@unpack." #count "x" #bits, NULL, unpack_##count##x##bits, NULL, 0, 0 },
DEFINE_PACK(2, u32, u64, 32)
DEFINE_PACK(2, u16, u32, 16)
DEFINE_PACK(4, u16, u64, 16)
DEFINE_PACK(2, u16, u16, 8)
DEFINE_PACK(4, u16, u32, 8)

/* ---- special registers and addresses ---- */

HANDLER(thread)
{
	u32 *d = REGISTER(u32, i->dst);
	const u32 *index = w->thread_index[i->x];

	STORE(u32, index[l]);
	NEXT;
}

HANDLER(lane)
{
	u32 *d = REGISTER(u32, i->dst);

	FOR_ACTIVE(w->mask, l)
	{
		u32 below = (1u << l) - 1, here = 1u << l;
		const u32 values[] = { l, here, below, below | here, ~(below | here), ~below };

		d[l] = values[i->x];
	}
	return i + 1;
}

HANDLER(special_32)
{
	u32 *d = REGISTER(u32, i->dst);
	u32 value = (u32)special_read(w, (enum special_register)i->x);

	STORE(u32, value);
	NEXT;
}

HANDLER(special_64)
{
	u64 *d = REGISTER(u64, i->dst);
	u64 value = special_read(w, (enum special_register)i->x);

	STORE(u64, value);
	NEXT;
}

HANDLER(special_predicate)
{
	SET_PREDICATE(i->dst, special_read(w, (enum special_register)i->x) ? ALL_LANES : 0);
	NEXT;
}

HANDLER(dynamic_shared)
{
	u32 *d = REGISTER(u32, i->dst);
	u32 offset = w->block->dynamic_offset + (u32)i->imm;

	STORE(u32, offset);
	NEXT;
}

HANDLER(local_address)
{
	u64 *d = REGISTER(u64, i->dst);
	u64 base = (u64)(uintptr_t)w->local + w->local_offset + (u64)i->imm;
	u64 stride = w->local_stride;

	STORE(u64, base + (u64)l * stride);
	NEXT;
}

/* A local address in 32 bits, as compilers for short pointers write it: the other bits are those of the lane's own
 * memory, where it lies. */
HANDLER(local_pointer)
{
	u64 *d = REGISTER(u64, i->dst);
	const u32 *a = REGISTER(u32, i->a);
	u64 base = (u64)(uintptr_t)w->local;
	u64 stride = w->local_stride;

	STORE(u64, base + (u64)l * stride + (u32)(a[l] - (u32)(base + (u64)l * stride)));
	NEXT;
}

HANDLER(parameter_address)
{
	u64 *d = REGISTER(u64, i->dst);
	u64 address = (u64)(uintptr_t)w->parameters + (u64)i->imm;

	STORE(u64, address);
	NEXT;
}

HANDLER(shared_to_generic)
{
	u64 *d = REGISTER(u64, i->dst);
	const u64 *a = REGISTER(u64, i->a);
	u64 base = (u64)(uintptr_t)w->shared;

	STORE(u64, (u32)a[l] + base);
	NEXT;
}

HANDLER(generic_to_shared)
{
	u64 *d = REGISTER(u64, i->dst);
	const u64 *a = REGISTER(u64, i->a);
	u64 base = (u64)(uintptr_t)w->shared;

	STORE(u64, a[l] - base);
	NEXT;
}

static inline bool is_within(u64 address, const void *start, u64 bytes)
{
	return address - (u64)(uintptr_t)start < bytes;
}

#define SPACE_ROWS(X)                                                                          \
	X("@is_shared", is_shared, is_within(a[l], w->shared, w->shared_bytes))                \
	X("@is_local", is_local, is_within(a[l], w->local, w->local_stride * WARP_LANES))      \
	X("@is_parameter", is_parameter, is_within(a[l], w->parameters, parameter_bytes))      \
	X("@is_const", is_const, false)                                                        \
	X("@is_global", is_global,                                                             \
	  !is_within(a[l], w->shared, w->shared_bytes) &&                                      \
		  !is_within(a[l], w->local, w->local_stride * WARP_LANES))
#define DEFINE_SPACE(names, id, expression)                                                    \
	HANDLER(id)                                                                            \
	{                                                                                      \
		const u64 *a = REGISTER(u64, i->a);                                            \
		u64 parameter_bytes = w->root.function->parameter_bytes;                       \
		u32 result = 0;                                                                \
		(void)a;                                                                       \
		(void)parameter_bytes;                                                         \
		FOR_ACTIVE(w->mask, l) result |= (u32)(expression) << l;                       \
		SET_PREDICATE(i->dst, result);                                                 \
		NEXT;                                                                          \
	}
#define FORM_SPACE(names, id, expression) { names, NULL, id, NULL, 0, 0 },
SPACE_ROWS(DEFINE_SPACE)

static const struct form forms[] = {
	{ "@label", NULL, label, NULL, 0, 0 },
	{ "@branch", NULL, branch, NULL, 0, 0 },
	{ "@branch.if", NULL, branch_if, NULL, 0, 0 },
	{ "@branch.unless", NULL, branch_unless, NULL, 0, 0 },
	{ "@jump", NULL, jump, NULL, 0, 0 },
	{ "@call", NULL, call, NULL, 0, 0 },
	{ "@call.indirect", NULL, call_indirect, NULL, 0, 0 },
	{ "ret", NULL, ret, NULL, 0, 0 },
	{ "exit", NULL, exit_, NULL, 0, 0 },
	{ "trap", NULL, trap, NULL, 0, 0 },
	{ "@barrier", NULL, barrier, NULL, 0, 0 },
	{ "@barrier.population", NULL, barrier_population, NULL, 0, 0 },
	{ "@barrier.all", NULL, barrier_all, NULL, 0, 0 },
	{ "@barrier.any", NULL, barrier_any, NULL, 0, 0 },
	{ "@guard", NULL, guard, NULL, 0, 0 },
	{ "@guard.not", NULL, guard_not, NULL, 0, 0 },
	{ "@unguard", NULL, unguard, NULL, 0, 0 },
	PREDICATE_ROWS(FORM_PREDICATE)
	FORM_SELECT(16)
	FORM_SELECT(32)
	FORM_SELECT(64)
	RESIZE_ROWS(FORM_RESIZE)
	FORM_PACK(2, u32, u64, 32)
	FORM_PACK(2, u16, u32, 16)
	FORM_PACK(4, u16, u64, 16)
	FORM_PACK(2, u16, u16, 8)
	FORM_PACK(4, u16, u32, 8)
	{ "@thread", NULL, thread, NULL, 0, 0 },
	{ "@lane", NULL, lane, NULL, 0, 0 },
	{ "@special.32", NULL, special_32, NULL, 0, 0 },
	{ "@special.64", NULL, special_64, NULL, 0, 0 },
	{ "@special.predicate", NULL, special_predicate, NULL, 0, 0 },
	{ "@dynamic_shared", NULL, dynamic_shared, NULL, 0, 0 },
	{ "@local_address", NULL, local_address, NULL, 0, 0 },
	{ "@local_pointer", NULL, local_pointer, NULL, 0, 0 },
	{ "@parameter_address", NULL, parameter_address, NULL, 0, 0 },
	{ "@shared_to_generic", NULL, shared_to_generic, NULL, 0, 0 },
	{ "@generic_to_shared", NULL, generic_to_shared, NULL, 0, 0 },
	SPACE_ROWS(FORM_SPACE)
};

TABLE(forms_control, forms);

static void warp_run(struct warp *warp)
{
	const struct instruction *ip = warp_resume(warp);

	while (ip)
		ip = ip->run(warp, ip);
}

static const struct form_table *const tables[] = {
	&LEVEL(forms_integer), &LEVEL(forms_float), &LEVEL(forms_half), &LEVEL(forms_convert),
	&LEVEL(forms_memory), &LEVEL(forms_multimem), &LEVEL(forms_warp), &LEVEL(forms_matrix),
	&LEVEL(forms_warpgroup),
	&LEVEL(forms_control),
	&forms_cluster, &forms_mbarrier, &forms_tensor, &forms_narrow, &forms_video, &forms_wide,
	&forms_texture, &forms_surface, &forms_strict, &forms_reach, NULL,
};

#define NAME_(level) #level
#define NAME(level) NAME_(level)
const struct isa LEVEL(isa) = { NAME(ISA), tables, warp_run };
