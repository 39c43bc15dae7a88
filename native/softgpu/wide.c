/* wide.c - atomic operations on 128 bits (atom.exch, atom.cas; PTX ISA 9.7.13.5). */
#include "handlers.h"

/* *memory becomes `wanted` when it is *expected; *expected becomes what it was.
 * cmpxchg16b is not in the compiler's x86-64 baseline, but in every processor that
 * has AVX. */
static bool compare_exchange(u64 *memory, u64 expected[2], const u64 wanted[2])
{
	bool done;

	__asm__ volatile("lock cmpxchg16b %1"
			 : "=@ccz"(done), "+m"(*(u64(*)[2])memory), "+a"(expected[0]),
			   "+d"(expected[1])
			 : "b"(wanted[0]), "c"(wanted[1])
			 : "memory");
	return done;
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

static const struct form forms[] = {
	{ "@atomic.exch.pointer.u128", NULL, atomic_16, NULL, 0, false },
	{ "@atomic.cas.pointer.u128", NULL, atomic_16, NULL, 0, false },
};

const struct form_table forms_wide = { forms, sizeof(forms) / sizeof(forms[0]) };
