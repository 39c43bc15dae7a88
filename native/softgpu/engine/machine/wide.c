/* wide.c - atomic operations on 128 bits (atom.exch, atom.cas; PTX ISA 9.7.13.5), and
 * pairs of floats in 64 bits (.f32x2). */
#include "handler.h"

/* *memory becomes `wanted` when it is *expected; *expected becomes what it was.
 * cmpxchg16b is not in the compiler's x86-64 baseline, but in every processor that
 * has AVX; arm64 has its pair of exclusive accesses from the beginning. */
static bool compare_exchange(u64 *memory, u64 expected[2], const u64 wanted[2])
{
#if defined(__x86_64__)
	bool done;

	__asm__ volatile("lock cmpxchg16b %1"
			 : "=@ccz"(done), "+m"(*(u64(*)[2])memory), "+a"(expected[0]),
			   "+d"(expected[1])
			 : "b"(wanted[0]), "c"(wanted[1])
			 : "memory");
	return done;
#else
	u64 low, high, differs;
	u32 failed;

	/* What was read is one value only if it could be written back as it was. */
	do {
		__asm__ volatile("ldaxp %[low], %[high], %[memory]\n\t"
				 "eor %[differs], %[low], %[expected_low]\n\t"
				 "cmp %[high], %[expected_high]\n\t"
				 "csinc %[differs], %[differs], xzr, eq\n\t"
				 "cbnz %[differs], 1f\n\t"
				 "stlxp %w[failed], %[wanted_low], %[wanted_high], %[memory]\n\t"
				 "b 2f\n"
				 "1:\n\t"
				 "stlxp %w[failed], %[low], %[high], %[memory]\n"
				 "2:"
				 : [low] "=&r"(low), [high] "=&r"(high), [differs] "=&r"(differs),
				   [failed] "=&r"(failed), [memory] "+Q"(*(u64(*)[2])memory)
				 : [expected_low] "r"(expected[0]), [expected_high] "r"(expected[1]),
				   [wanted_low] "r"(wanted[0]), [wanted_high] "r"(wanted[1])
				 : "cc", "memory");
	} while (failed);
	expected[0] = low;
	expected[1] = high;
	return !differs;
#endif
}

/* a: address, b: new value (exch) or compared value (cas), c: new value of cas */
HANDLER(atomic_16)
{
	const u64 *a = REGISTER(u64, i->a);
	const char *b = REGISTER(char, i->b), *c = i->c >= 0 ? REGISTER(char, i->c) : NULL;
	char *d = i->dst >= 0 ? REGISTER(char, i->dst) : NULL;

	w->ip = i;
	FOR_ACTIVE(w->mask, l)
	{
		u64 address = a[l] + (u64)i->imm, old[2], compared[2], wanted[2];

		if (address & 15)
			warp_fail(w, ENGINE_MISALIGNED, "misaligned address %#llx (PTX line %u)",
				  (unsigned long long)address, i->line);
		memcpy(old, (const void *)(uintptr_t)address, sizeof(old));
		memcpy(wanted, (c ? c : b) + 16 * l, sizeof(wanted));
		memcpy(compared, b + 16 * l, sizeof(compared));
		if (c)
			memcpy(old, compared, sizeof(old));
		while (!compare_exchange((u64 *)(uintptr_t)address, old, wanted) && !c)
			;
		if (d)
			memcpy(d + 16 * l, old, sizeof(old));
	}
	return i + 1;
}

/* ---- pairs of floats ---- */

#define DEFINE_PAIR(name, expression)                                                          \
	static f32 name##_one(f32 a, f32 b, f32 c, bool flushes)                               \
	{                                                                                      \
		if (flushes) {                                                                 \
			a = flush_f32(a);                                                      \
			b = flush_f32(b);                                                      \
			c = flush_f32(c);                                                      \
		}                                                                              \
		(void)c;                                                                       \
		a = (expression);                                                              \
		return flushes ? flush_f32(a) : a;                                             \
	}                                                                                      \
	HANDLER(name)                                                                          \
	{                                                                                      \
		f32(*d)[2] = (f32(*)[2])(w->registers + i->dst);                               \
		const f32(*a)[2] = (const f32(*)[2])(w->registers + i->a);                     \
		const f32(*b)[2] = (const f32(*)[2])(w->registers + i->b);                     \
		const f32(*c)[2] = i->c >= 0 ? (const f32(*)[2])(w->registers + i->c) : b;     \
		FOR_ACTIVE(w->mask, l)                                                         \
		for (int k = 0; k < 2; k++)                                                    \
			d[l][k] = name##_one(a[l][k], b[l][k], c[l][k], i->x);                 \
		return i + 1;                                                                  \
	}
DEFINE_PAIR(add_pair, a + b)
DEFINE_PAIR(sub_pair, a - b)
DEFINE_PAIR(mul_pair, a *b)
DEFINE_PAIR(fma_pair, fmaf(a, b, c))

static const struct form forms[] = {
	{ "add.f32x2", "d8 a8 b8", add_pair, NULL, false, false },
	{ "add.ftz.f32x2", "d8 a8 b8", add_pair, NULL, true, false },
	{ "sub.f32x2", "d8 a8 b8", sub_pair, NULL, false, false },
	{ "sub.ftz.f32x2", "d8 a8 b8", sub_pair, NULL, true, false },
	{ "mul.f32x2", "d8 a8 b8", mul_pair, NULL, false, false },
	{ "mul.ftz.f32x2", "d8 a8 b8", mul_pair, NULL, true, false },
	{ "fma.f32x2", "d8 a8 b8 c8", fma_pair, NULL, false, false },
	{ "fma.ftz.f32x2", "d8 a8 b8 c8", fma_pair, NULL, true, false },
	{ "@atomic.exch.pointer.u128", NULL, atomic_16, NULL, 0, false },
	{ "@atomic.cas.pointer.u128", NULL, atomic_16, NULL, 0, false },
};

const struct form_table forms_wide = { forms, sizeof(forms) / sizeof(forms[0]) };
