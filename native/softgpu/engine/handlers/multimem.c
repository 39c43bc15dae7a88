/* multimem.c - operations on all memory behind multicast addresses (PTX ISA 9.7.9, "multimem").
 *
 * The elements of a lane, up to 16 bytes, lie side by side in a buffer in the register window, as those of vectors
 * do (memory.c); pairs of 16-bit numbers are two elements.  x: how many bytes that are.  Each element is
 * read, written or changed as a whole, in the memory of one device after the other.
 */
#include "../machine/handler.h"

#include "../running.h"

#define BUFFER_BYTES 16

/* ---- multimem.st ---- */

#define DEFINE_STORE(id, T)                                                                    \
	HANDLER(store_##id)                                                                    \
	{                                                                                      \
		const u64 *addresses = REGISTER(u64, i->a);                                    \
		const char *buffer = REGISTER(char, i->dst);                                   \
		struct engine_replicas at = { .bytes = 0 };                                    \
		w->ip = i;                                                                     \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			const T *b = (const T *)(buffer + l * BUFFER_BYTES);                   \
			u64 offset = multimem_offset(w, i, addresses[l] + (u64)i->imm, (u32)i->x, &at); \
			for (u32 r = 0; r < at.count; r++)                                     \
				for (u32 k = 0; k < (u32)i->x / sizeof(T); k++)                \
					((volatile T *)(at.memory[r] + offset))[k] = b[k];     \
		}                                                                              \
		NEXT;                                                                          \
	}
#define FORM_STORE(id, T) { "@multimem.store." #id, NULL, store_##id, NULL, 0, 0 },
#define STORE_ROWS(X) X(u32, u32) X(u64, u64)
STORE_ROWS(DEFINE_STORE)

/* ---- multimem.ld_reduce: T in memory, A while it is added up ---- */

#define DEFINE_REDUCE(op, id, T, A, in, out, expression)                                       \
	HANDLER(reduce_##op##_##id)                                                            \
	{                                                                                      \
		const u64 *addresses = REGISTER(u64, i->a);                                    \
		char *buffer = REGISTER(char, i->dst);                                         \
		struct engine_replicas at = { .bytes = 0 };                                    \
		w->ip = i;                                                                     \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			T *d = (T *)(buffer + l * BUFFER_BYTES);                               \
			u64 offset = multimem_offset(w, i, addresses[l] + (u64)i->imm, (u32)i->x, &at); \
			for (u32 k = 0; k < (u32)i->x / sizeof(T); k++) {                      \
				A a = in(((const volatile T *)(at.memory[0] + offset))[k]);    \
				for (u32 r = 1; r < at.count; r++) {                           \
					A b = in(((const volatile T *)(at.memory[r] + offset))[k]); \
					a = (A)(expression);                                   \
				}                                                              \
				d[k] = out(a);                                                 \
			}                                                                      \
		}                                                                              \
		NEXT;                                                                          \
	}
#define FORM_REDUCE(op, id, T, A, in, out, expression)                                         \
	{ "@multimem.reduce." #op "." #id, NULL, reduce_##op##_##id, NULL, 0, 0 },
#define SAME(value) (value)
#define f16_to_f32(value) ((f32)(value))
#define f32_to_f16(value) ((f16)(value))
/* .acc::f32, and then once rounded */
#define WIDE_ROWS(X)                                                                           \
	X(add, f16_wide, f16, f32, f16_to_f32, f32_to_f16, a + b)                              \
	X(add, h16_wide, u16, f32, bf16_to_f32, f32_to_bf16, a + b)
WIDE_ROWS(DEFINE_REDUCE)

/* ---- multimem.red; U: unsigned type of the same size ---- */

#define DEFINE_RED(op, id, T, U, expression)                                                   \
	HANDLER(red_##op##_##id)                                                               \
	{                                                                                      \
		const u64 *addresses = REGISTER(u64, i->a);                                    \
		const char *buffer = REGISTER(char, i->dst);                                   \
		struct engine_replicas at = { .bytes = 0 };                                    \
		w->ip = i;                                                                     \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			const T *given = (const T *)(buffer + l * BUFFER_BYTES);               \
			u64 offset = multimem_offset(w, i, addresses[l] + (u64)i->imm, (u32)i->x, &at); \
			for (u32 r = 0; r < at.count; r++) {                                   \
				U *memory = (U *)(at.memory[r] + offset);                      \
				for (u32 k = 0; k < (u32)i->x / sizeof(T); k++) {              \
					T a, b = given[k], result;                             \
					U old = __atomic_load_n(&memory[k], __ATOMIC_RELAXED), new_; \
					do {                                                   \
						memcpy(&a, &old, sizeof(a));                   \
						result = (T)(expression);                      \
						memcpy(&new_, &result, sizeof(new_));          \
					} while (!__atomic_compare_exchange_n(&memory[k], &old, new_, false, \
									      __ATOMIC_SEQ_CST, \
									      __ATOMIC_SEQ_CST)); \
				}                                                              \
			}                                                                      \
		}                                                                              \
		NEXT;                                                                          \
	}
#define FORM_RED(op, id, T, U, expression)                                                     \
	{ "@multimem.red." #op "." #id, NULL, red_##op##_##id, NULL, 0, 0 },

#define INTEGER_ROWS(X, N)                                                                     \
	X(add, u##N, u##N, u##N, a + b) X(and, u##N, u##N, u##N, a & b)                        \
	X(or, u##N, u##N, u##N, a | b) X(xor, u##N, u##N, u##N, a ^ b)                         \
	X(min, u##N, u##N, u##N, a < b ? a : b) X(max, u##N, u##N, u##N, a > b ? a : b)        \
	X(min, s##N, s##N, u##N, a < b ? a : b) X(max, s##N, s##N, u##N, a > b ? a : b)
#define SUM_ROWS(X)                                                                            \
	X(add, f32, f32, u32, a + b) X(add, f64, f64, u64, a + b)                              \
	X(add, f16, f16, u16, (f16)((f32)a + (f32)b))                                          \
	X(add, h16, u16, u16, f32_to_bf16(bf16_to_f32(a) + bf16_to_f32(b)))
/* Of these there is ld_reduce alone. */
#define CHOICE_ROWS(X)                                                                         \
	X(min, f16, f16, u16, least_f16(a, b)) X(max, f16, f16, u16, greatest_f16(a, b))       \
	X(min, h16, u16, u16, least_bf16(a, b)) X(max, h16, u16, u16, greatest_bf16(a, b))

#define DEFINE_REDUCE_SAME(op, id, T, U, expression) DEFINE_REDUCE(op, id, T, T, SAME, SAME, expression)
#define FORM_REDUCE_SAME(op, id, T, U, expression) FORM_REDUCE(op, id, T, T, SAME, SAME, expression)
#define DEFINE_BOTH(...) DEFINE_REDUCE_SAME(__VA_ARGS__) DEFINE_RED(__VA_ARGS__)
#define FORM_BOTH(...) FORM_REDUCE_SAME(__VA_ARGS__) FORM_RED(__VA_ARGS__)
INTEGER_ROWS(DEFINE_BOTH, 32)
INTEGER_ROWS(DEFINE_BOTH, 64)
SUM_ROWS(DEFINE_BOTH)
CHOICE_ROWS(DEFINE_REDUCE_SAME)

static const struct form forms[] = {
	STORE_ROWS(FORM_STORE)
	WIDE_ROWS(FORM_REDUCE)
	INTEGER_ROWS(FORM_BOTH, 32)
	INTEGER_ROWS(FORM_BOTH, 64)
	SUM_ROWS(FORM_BOTH)
	CHOICE_ROWS(FORM_REDUCE_SAME)
};

TABLE(forms_multimem, forms);
