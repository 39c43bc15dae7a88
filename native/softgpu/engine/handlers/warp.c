/* warp.c - operations across the lanes of a warp (PTX ISA 9.7.13, 9.7.9.6). */
#include "../machine/handler.h"

/* An operation of the lanes that a member mask names.  The body runs for lanes
 * that name the same `members`, all of which have come; mostly these are the
 * active lanes, and no other has to be looked for. */
#define COLLECTIVE(name, operands)                                                             \
	static void name##_together(struct warp *w, const struct instruction *i, u32 members); \
	HANDLER(name)                                                                          \
	{                                                                                      \
		const u32 *named_ = REGISTER(u32, i->y);                                       \
		u32 members_ = named_[__builtin_ctz(w->mask)], differ_ = 0, mask_ = w->mask;   \
		FOR_LANES differ_ |= (mask_ >> l & 1) ? named_[l] ^ members_ : 0;              \
		if (UNLIKELY(differ_ || (members_ & w->live & ~mask_)))                        \
			return warp_collective(w, i, name##_together, operands);               \
		name##_together(w, i, members_);                                               \
		NEXT;                                                                          \
	}                                                                                      \
	static void name##_together(struct warp *w, const struct instruction *i, u32 members)

COLLECTIVE(warp_barrier, "y4")
{
	(void)w;
	(void)i;
	(void)members;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* ---- shfl ---- */

enum { SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_BUTTERFLY, SHUFFLE_INDEX };

/* PTX ISA, "shfl.sync": c holds the clamp value and the segment mask. */
static inline int shuffle_source(int mode, int lane, int b, int clamp, int segment, bool *valid)
{
	int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
	int source;

	switch (mode) {
	case SHUFFLE_UP:
		source = lane - b;
		*valid = source >= last;
		break;
	case SHUFFLE_DOWN:
		source = lane + b;
		*valid = source <= last;
		break;
	case SHUFFLE_BUTTERFLY:
		source = lane ^ b;
		*valid = source <= last;
		break;
	default:
		source = first | (b & ~segment);
		*valid = source <= last;
		break;
	}
	return *valid ? source & 31 : lane;
}

#define SHUFFLE_OPERANDS "d4 a4 b4 c4 y4"
#define DEFINE_SHUFFLE(name, mode)                                                             \
	COLLECTIVE(shuffle_##name, SHUFFLE_OPERANDS)                                           \
	{                                                                                      \
		(void)members;                                                                 \
		u32 *d = REGISTER(u32, i->dst);                                                \
		const u32 *b = REGISTER(u32, i->b), *c = REGISTER(u32, i->c);                  \
		u32 values[WARP_LANES], valid_lanes = 0;                                       \
		memcpy(values, REGISTER(u32, i->a), sizeof(values));                           \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			bool valid;                                                            \
			d[l] = values[shuffle_source(mode, (int)l, b[l] & 31, c[l] & 31,       \
						     c[l] >> 8 & 31, &valid)];                 \
			valid_lanes |= (u32)valid << l;                                        \
		}                                                                              \
		if (i->imm >= 0)                                                               \
			SET_PREDICATE(i->imm, valid_lanes);                                    \
	}
DEFINE_SHUFFLE(up, SHUFFLE_UP)
DEFINE_SHUFFLE(down, SHUFFLE_DOWN)
DEFINE_SHUFFLE(butterfly, SHUFFLE_BUTTERFLY)
DEFINE_SHUFFLE(index, SHUFFLE_INDEX)

/* ---- vote, match, elect ---- */

COLLECTIVE(vote_ballot, "d4 ap y4")
{
	u32 *d = REGISTER(u32, i->dst);
	u32 result = PREDICATE(i->a) & w->mask & members;

	STORE(u32, result);
}

#define VOTE_ROWS(X)                                                                           \
	X("vote.all.pred", vote_all, votes == voters)                                          \
	X("vote.any.pred", vote_any, votes != 0)                                               \
	X("vote.uni.pred", vote_uniform, votes == voters || votes == 0)
#define VOTE_OPERANDS "dp ap y4"
#define DEFINE_VOTE(names, id, expression)                                                     \
	COLLECTIVE(id, VOTE_OPERANDS)                                                          \
	{                                                                                      \
		u32 voters = w->mask & members, votes = PREDICATE(i->a) & voters;              \
		SET_PREDICATE(i->dst, (expression) ? ALL_LANES : 0);                           \
	}
#define FORM_VOTE(names, id, expression) { names, VOTE_OPERANDS, id, NULL, 0, true },
VOTE_ROWS(DEFINE_VOTE)

#define DEFINE_MATCH(T)                                                                        \
	COLLECTIVE(match_any_##T, "d4 a" WIDTH_##T " y4")                                      \
	{                                                                                      \
		u32 *d = REGISTER(u32, i->dst);                                                \
		T values[WARP_LANES];                                                          \
		memcpy(values, REGISTER(T, i->a), sizeof(values));                             \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			u32 same = 0;                                                          \
			for (u32 k = 0; k < WARP_LANES; k++)                                   \
				same |= (u32)(values[k] == values[l]) << k;                    \
			d[l] = same & w->mask & members;                                       \
		}                                                                              \
	}                                                                                      \
	COLLECTIVE(match_all_##T, "d4 a" WIDTH_##T " y4")                                      \
	{                                                                                      \
		u32 *d = REGISTER(u32, i->dst);                                                \
		const T *a = REGISTER(T, i->a);                                                \
		T first = a[__builtin_ctz(w->mask)];                                           \
		u32 all = w->mask & members, result = all;                                     \
		FOR_ACTIVE(all, l) result = a[l] == first ? result : 0;                        \
		STORE(u32, result);                                                            \
		if (i->imm >= 0)                                                               \
			SET_PREDICATE(i->imm, result ? ALL_LANES : 0);                         \
	}
DEFINE_MATCH(u32)
DEFINE_MATCH(u64)

COLLECTIVE(elect, "d4 y4")
{
	u32 *d = REGISTER(u32, i->dst);
	u32 leader = (u32)__builtin_ctz(w->mask & members ? w->mask & members : w->mask);

	STORE(u32, leader);
	if (i->imm >= 0)
		SET_PREDICATE(i->imm, 1u << leader);
}

HANDLER(activemask)
{
	u32 *d = REGISTER(u32, i->dst);
	u32 result = w->mask;

	STORE(u32, result);
	NEXT;
}

/* ---- redux ---- */

#define REDUCE_ROWS(X)                                                                         \
	X("redux.add.u32 redux.add.s32", redux_add, u32, total + a[l])                         \
	X("redux.min.u32", redux_min_u32, u32, a[l] < total ? a[l] : total)                    \
	X("redux.max.u32", redux_max_u32, u32, a[l] > total ? a[l] : total)                    \
	X("redux.min.s32", redux_min_s32, s32, a[l] < total ? a[l] : total)                    \
	X("redux.max.s32", redux_max_s32, s32, a[l] > total ? a[l] : total)                    \
	X("redux.and.b32", redux_and, u32, total & a[l])                                       \
	X("redux.or.b32", redux_or, u32, total | a[l])                                         \
	X("redux.xor.b32", redux_xor, u32, total ^ a[l])
#define REDUX_OPERANDS "d4 a4 y4"
#define DEFINE_REDUCE(names, id, T, expression)                                                \
	COLLECTIVE(id, REDUX_OPERANDS)                                                         \
	{                                                                                      \
		(void)members;                                                                 \
		T *d = REGISTER(T, i->dst);                                                    \
		const T *a = REGISTER(T, i->a);                                                \
		T total = a[__builtin_ctz(w->mask)];                                           \
		FOR_ACTIVE(w->mask & (w->mask - 1), l) total = (expression);                   \
		STORE(T, total);                                                               \
	}
#define FORM_REDUCE(names, id, T, expression) { names, REDUX_OPERANDS, id, NULL, 0, true },
REDUCE_ROWS(DEFINE_REDUCE)

/* NaN is left out, or with .NaN is the result. */
static inline f32 reduce_f32(f32 total, f32 a, bool wants_max, bool keeps_nan)
{
	if (total != total || a != a)
		return keeps_nan ? (total != total ? total : a) : total != total ? a : total;
	if (total == a)
		return (signbit(a) != 0) == wants_max ? total : a;
	return (a > total) == wants_max ? a : total;
}

static inline f32 canonical_nan(f32 value)
{
	const u32 bits = 0x7fffffff;

	if (value != value)
		memcpy(&value, &bits, sizeof(value));
	return value;
}

#define REDUCE_FLOAT_ROWS(X)                                                                   \
	X("redux.min.f32", redux_min_f32, a[l], false, false)                                  \
	X("redux.max.f32", redux_max_f32, a[l], true, false)                                   \
	X("redux.min.NaN.f32", redux_min_nan_f32, a[l], false, true)                           \
	X("redux.max.NaN.f32", redux_max_nan_f32, a[l], true, true)                            \
	X("redux.min.abs.f32", redux_min_abs_f32, fabsf(a[l]), false, false)                   \
	X("redux.max.abs.f32", redux_max_abs_f32, fabsf(a[l]), true, false)                    \
	X("redux.min.abs.NaN.f32", redux_min_abs_nan_f32, fabsf(a[l]), false, true)            \
	X("redux.max.abs.NaN.f32", redux_max_abs_nan_f32, fabsf(a[l]), true, true)
#define DEFINE_REDUCE_FLOAT(names, id, value, wants_max, keeps_nan)                            \
	COLLECTIVE(id, REDUX_OPERANDS)                                                         \
	{                                                                                      \
		(void)members;                                                                 \
		f32 *d = REGISTER(f32, i->dst);                                                \
		const f32 *a = REGISTER(f32, i->a);                                            \
		u32 l = (u32)__builtin_ctz(w->mask);                                           \
		f32 total = (value);                                                           \
		FOR_ACTIVE(w->mask & (w->mask - 1), l)                                         \
		total = reduce_f32(total, (value), wants_max, keeps_nan);                      \
		total = canonical_nan(total);                                                  \
		STORE(f32, total);                                                             \
	}
#define FORM_REDUCE_FLOAT(names, id, value, wants_max, keeps_nan)                              \
	{ names, REDUX_OPERANDS, id, NULL, 0, true },
REDUCE_FLOAT_ROWS(DEFINE_REDUCE_FLOAT)

static const struct form forms[] = {
	{ "@warp_barrier", NULL, warp_barrier, NULL, 0, true },
	{ "shfl.up.b32", SHUFFLE_OPERANDS, shuffle_up, NULL, 0, true },
	{ "shfl.down.b32", SHUFFLE_OPERANDS, shuffle_down, NULL, 0, true },
	{ "shfl.bfly.b32", SHUFFLE_OPERANDS, shuffle_butterfly, NULL, 0, true },
	{ "shfl.idx.b32", SHUFFLE_OPERANDS, shuffle_index, NULL, 0, true },
	{ "vote.ballot.b32", "d4 ap y4", vote_ballot, NULL, 0, true },
	VOTE_ROWS(FORM_VOTE)
	{ "match.any.b32", "d4 a4 y4", match_any_u32, NULL, 0, true },
	{ "match.any.b64", "d4 a8 y4", match_any_u64, NULL, 0, true },
	{ "match.all.b32", "d4 a4 y4", match_all_u32, NULL, 0, true },
	{ "match.all.b64", "d4 a8 y4", match_all_u64, NULL, 0, true },
	{ "elect", "d4 y4", elect, NULL, 0, true },
	{ "activemask.b32", "d4", activemask, NULL, 0, false },
	REDUCE_ROWS(FORM_REDUCE)
	REDUCE_FLOAT_ROWS(FORM_REDUCE_FLOAT)
};

TABLE(forms_warp, forms);
