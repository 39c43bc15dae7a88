/* memory.c - loads, stores, atomics (PTX ISA 9.7.9, 9.7.13).
 *
 * Global, const, local and generic addresses are pointers of this process; a
 * bad one raises SIGSEGV (machine/fault.c).  Shared addresses are 32-bit offsets that
 * wrap, checked against the block's shared memory.  Sixteen lanes at a time are
 * recognised as consecutive (one copy) or equal (one load); the others are
 * done lane by lane.
 */
#include "../machine/handler.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define HALF 16

/* ---- address patterns ---- */

static inline bool consecutive_64(const u64 *a, u64 stride)
{
#if defined(__AVX512F__)
	const __m512i first = _mm512_set1_epi64((s64)a[0]);
	const __m512i step = _mm512_setr_epi64(0, stride, 2 * stride, 3 * stride, 4 * stride,
					       5 * stride, 6 * stride, 7 * stride);
	const __m512i low = _mm512_add_epi64(first, step);
	const __m512i high = _mm512_add_epi64(low, _mm512_set1_epi64((s64)(8 * stride)));

	return !(_mm512_cmpneq_epi64_mask(low, _mm512_load_si512(a)) |
		 _mm512_cmpneq_epi64_mask(high, _mm512_load_si512(a + 8)));
#elif defined(__AVX2__)
	__m256i expected = _mm256_add_epi64(
		_mm256_set1_epi64x((s64)a[0]),
		_mm256_setr_epi64x(0, (s64)stride, 2 * (s64)stride, 3 * (s64)stride));
	__m256i same = _mm256_set1_epi64x(-1);

	for (int l = 0; l < HALF; l += 4) {
		same = _mm256_and_si256(same, _mm256_cmpeq_epi64(
			expected, _mm256_load_si256((const __m256i *)(a + l))));
		expected = _mm256_add_epi64(expected, _mm256_set1_epi64x(4 * (s64)stride));
	}
	return _mm256_movemask_epi8(same) == -1;
#else
	u64 different = 0;

	for (u64 l = 0; l < HALF; l++)
		different |= a[l] ^ (a[0] + l * stride);
	return !different;
#endif
}

static inline bool equal_64(const u64 *a)
{
#if defined(__AVX512F__)
	const __m512i first = _mm512_set1_epi64((s64)a[0]);

	return !(_mm512_cmpneq_epi64_mask(first, _mm512_load_si512(a)) |
		 _mm512_cmpneq_epi64_mask(first, _mm512_load_si512(a + 8)));
#elif defined(__AVX2__)
	return consecutive_64(a, 0);
#else
	u64 different = 0;

	for (int l = 0; l < HALF; l++)
		different |= a[l] ^ a[0];
	return !different;
#endif
}

static inline bool consecutive_32(const u32 *a, u32 stride)
{
#if defined(__AVX512F__)
	const __m512i step = _mm512_mullo_epi32(
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
		_mm512_set1_epi32((s32)stride));
	const __m512i expected = _mm512_add_epi32(_mm512_set1_epi32((s32)a[0]), step);

	return !_mm512_cmpneq_epi32_mask(expected, _mm512_load_si512(a));
#elif defined(__AVX2__)
	const __m256i step = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
						_mm256_set1_epi32((s32)stride));
	const __m256i low = _mm256_add_epi32(_mm256_set1_epi32((s32)a[0]), step);
	const __m256i high = _mm256_add_epi32(low, _mm256_set1_epi32((s32)(8 * stride)));

	return _mm256_movemask_epi8(_mm256_and_si256(
		       _mm256_cmpeq_epi32(low, _mm256_load_si256((const __m256i *)a)),
		       _mm256_cmpeq_epi32(high, _mm256_load_si256((const __m256i *)(a + 8))))) == -1;
#else
	u32 different = 0;

	for (u32 l = 0; l < HALF; l++)
		different |= a[l] ^ (a[0] + l * stride);
	return !different;
#endif
}

static inline bool equal_32(const u32 *a)
{
#if defined(__AVX512F__)
	return !_mm512_cmpneq_epi32_mask(_mm512_set1_epi32((s32)a[0]), _mm512_load_si512(a));
#elif defined(__AVX2__)
	return consecutive_32(a, 0);
#else
	u32 different = 0;

	for (int l = 0; l < HALF; l++)
		different |= a[l] ^ a[0];
	return !different;
#endif
}

static _Noreturn void out_of_shared(struct warp *w, const struct instruction *i, u32 offset)
{
	warp_fail(w, ENGINE_LAUNCH_FAILED, "shared memory access at %#x of %#x bytes (PTX line %u)",
		  offset, w->shared_bytes, i->line);
}

static _Noreturn void misaligned(struct warp *w, const struct instruction *i, u64 address)
{
	warp_fail(w, ENGINE_MISALIGNED, "misaligned address %#llx (PTX line %u)",
		  (unsigned long long)address, i->line);
}

#define CHECK_ALIGNMENT(address, bytes)                                                        \
	do {                                                                                   \
		if (UNLIKELY((address) & ((bytes)-1) & w->alignment_checked))                  \
			misaligned(w, i, (address));                                           \
	} while (0)
#define CHECK_SHARED(offset, bytes)                                                            \
	do {                                                                                   \
		if (UNLIKELY((u64)(offset) + (bytes) > w->shared_bytes))                       \
			out_of_shared(w, i, (offset));                                         \
		CHECK_ALIGNMENT(offset, bytes);                                                \
	} while (0)

/* ---- loads: M in memory, R in the register ---- */

#define DEFINE_LOAD(id, names, M, R)                                                           \
	HANDLER(load_pointer_##id)                                                             \
	{                                                                                      \
		const u64 *addresses = REGISTER(u64, i->a);                                    \
		R *registers = REGISTER(R, i->dst);                                            \
		w->ip = i;                                                                     \
		for (int h = 0; h < WARP_LANES; h += HALF) {                                   \
			const u64 *a = addresses + h;                                          \
			R *d = registers + h;                                                  \
			u32 mask = w->mask >> h & 0xffff;                                      \
			if (mask == 0xffff && consecutive_64(a, sizeof(M))) {                  \
				M values[HALF];                                                \
				u64 address = a[0] + (u64)i->imm;                              \
				CHECK_ALIGNMENT(address, sizeof(M));                           \
				memcpy(values, (const void *)(uintptr_t)address, sizeof(values)); \
				for (int l = 0; l < HALF; l++)                                 \
					d[l] = (R)values[l];                                   \
			} else if (mask == 0xffff && equal_64(a)) {                            \
				u64 address = a[0] + (u64)i->imm;                              \
				R value;                                                       \
				CHECK_ALIGNMENT(address, sizeof(M));                           \
				value = (R)*(const volatile M *)(uintptr_t)address;            \
				for (int l = 0; l < HALF; l++)                                 \
					d[l] = value;                                          \
			} else {                                                               \
				FOR_ACTIVE(mask, l)                                            \
				{                                                              \
					u64 address = a[l] + (u64)i->imm;                      \
					CHECK_ALIGNMENT(address, sizeof(M));                   \
					d[l] = (R)*(const volatile M *)(uintptr_t)address;     \
				}                                                              \
			}                                                                      \
		}                                                                              \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(load_absolute_##id)                                                            \
	{                                                                                      \
		R *d = REGISTER(R, i->dst);                                                    \
		R value;                                                                       \
		w->ip = i;                                                                     \
		CHECK_ALIGNMENT((u64)i->imm, sizeof(M));                                       \
		value = (R)*(const volatile M *)(uintptr_t)i->imm;                             \
		STORE(R, value);                                                               \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(load_parameter_##id)                                                           \
	{                                                                                      \
		R *d = REGISTER(R, i->dst);                                                    \
		M memory;                                                                      \
		R value;                                                                       \
		w->ip = i;                                                                     \
		memcpy(&memory, w->parameters + i->imm, sizeof(memory));                       \
		value = (R)memory;                                                             \
		STORE(R, value);                                                               \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(load_local_##id)                                                               \
	{                                                                                      \
		R *d = REGISTER(R, i->dst);                                                    \
		const char *local = w->local + w->local_offset + i->imm;                       \
		w->ip = i;                                                                     \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			M value;                                                               \
			memcpy(&value, local + l * w->local_stride, sizeof(value));            \
			d[l] = (R)value;                                                       \
		}                                                                              \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(load_shared_##id)                                                              \
	{                                                                                      \
		const u32 *offsets = REGISTER(u32, i->a);                                      \
		const char *shared = w->shared;                                                \
		R *registers = REGISTER(R, i->dst);                                            \
		for (int h = 0; h < WARP_LANES; h += HALF) {                                   \
			const u32 *a = offsets + h;                                            \
			R *d = registers + h;                                                  \
			u32 mask = w->mask >> h & 0xffff;                                      \
			u32 first = a[0] + (u32)i->imm;                                        \
			if (mask == 0xffff && consecutive_32(a, sizeof(M))) {                  \
				M values[HALF];                                                \
				if (UNLIKELY((u64)first + sizeof(values) > w->shared_bytes))   \
					out_of_shared(w, i, first);                            \
				CHECK_ALIGNMENT(first, sizeof(M));                             \
				memcpy(values, shared + first, sizeof(values));                \
				for (int l = 0; l < HALF; l++)                                 \
					d[l] = (R)values[l];                                   \
			} else if (mask == 0xffff && equal_32(a)) {                            \
				M memory;                                                      \
				R value;                                                       \
				CHECK_SHARED(first, sizeof(M));                                \
				memcpy(&memory, shared + first, sizeof(memory));               \
				value = (R)memory;                                             \
				for (int l = 0; l < HALF; l++)                                 \
					d[l] = value;                                          \
			} else {                                                               \
				FOR_ACTIVE(mask, l)                                            \
				{                                                              \
					u32 offset = a[l] + (u32)i->imm;                       \
					M value;                                               \
					CHECK_SHARED(offset, sizeof(M));                       \
					memcpy(&value, shared + offset, sizeof(value));        \
					d[l] = (R)value;                                       \
				}                                                              \
			}                                                                      \
		}                                                                              \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(load_shared_absolute_##id)                                                     \
	{                                                                                      \
		R *d = REGISTER(R, i->dst);                                                    \
		u32 offset = (u32)i->imm;                                                      \
		M memory;                                                                      \
		R value;                                                                       \
		CHECK_SHARED(offset, sizeof(M));                                               \
		memcpy(&memory, w->shared + offset, sizeof(memory));                           \
		value = (R)memory;                                                             \
		STORE(R, value);                                                               \
		NEXT;                                                                          \
	}
#define FORM_LOAD(id, names, M, R)                                                             \
	{ "@load.pointer." names, NULL, load_pointer_##id, NULL, 0, 0 },                       \
	{ "@load.absolute." names, NULL, load_absolute_##id, NULL, 0, 0 },                     \
	{ "@load.parameter." names, NULL, load_parameter_##id, NULL, 0, 0 },                   \
	{ "@load.local." names, NULL, load_local_##id, NULL, 0, 0 },                           \
	{ "@load.shared." names, NULL, load_shared_##id, NULL, 0, 0 },                         \
	{ "@load.shared_absolute." names, NULL, load_shared_absolute_##id, NULL, 0, 0 },
#define LOAD_ROWS(X)                                                                           \
	X(u8_16, "u8.16", u8, u16) X(u8_32, "u8.32", u8, u32) X(u8_64, "u8.64", u8, u64)       \
	X(s8_16, "s8.16", s8, u16) X(s8_32, "s8.32", s8, u32) X(s8_64, "s8.64", s8, u64)       \
	X(u16_16, "u16.16", u16, u16) X(u16_32, "u16.32", u16, u32)                            \
	X(u16_64, "u16.64", u16, u64) X(s16_32, "s16.32", s16, u32)                            \
	X(s16_64, "s16.64", s16, u64) X(u32_32, "u32.32", u32, u32)                            \
	X(u32_64, "u32.64", u32, u64) X(s32_64, "s32.64", s32, u64)                            \
	X(u64_64, "u64.64", u64, u64)
LOAD_ROWS(DEFINE_LOAD)

/* ---- stores: lanes in order, so that the highest lane wins ---- */

#define DEFINE_STORE(id, names, M, R)                                                          \
	HANDLER(store_pointer_##id)                                                            \
	{                                                                                      \
		const u64 *addresses = REGISTER(u64, i->a);                                    \
		const R *registers = REGISTER(R, i->dst);                                      \
		w->ip = i;                                                                     \
		for (int h = 0; h < WARP_LANES; h += HALF) {                                   \
			const u64 *a = addresses + h;                                          \
			const R *d = registers + h;                                            \
			u32 mask = w->mask >> h & 0xffff;                                      \
			if (mask == 0xffff && consecutive_64(a, sizeof(M))) {                  \
				M values[HALF];                                                \
				u64 address = a[0] + (u64)i->imm;                              \
				CHECK_ALIGNMENT(address, sizeof(M));                           \
				for (int l = 0; l < HALF; l++)                                 \
					values[l] = (M)d[l];                                   \
				memcpy((void *)(uintptr_t)address, values, sizeof(values));    \
			} else {                                                               \
				FOR_ACTIVE(mask, l)                                            \
				{                                                              \
					u64 address = a[l] + (u64)i->imm;                      \
					CHECK_ALIGNMENT(address, sizeof(M));                   \
					*(volatile M *)(uintptr_t)address = (M)d[l];           \
				}                                                              \
			}                                                                      \
		}                                                                              \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(store_absolute_##id)                                                           \
	{                                                                                      \
		const R *d = REGISTER(R, i->dst);                                              \
		w->ip = i;                                                                     \
		CHECK_ALIGNMENT((u64)i->imm, sizeof(M));                                       \
		FOR_ACTIVE(w->mask, l) *(volatile M *)(uintptr_t)i->imm = (M)d[l];             \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(store_local_##id)                                                              \
	{                                                                                      \
		const R *d = REGISTER(R, i->dst);                                              \
		char *local = w->local + w->local_offset + i->imm;                             \
		w->ip = i;                                                                     \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			M value = (M)d[l];                                                     \
			memcpy(local + l * w->local_stride, &value, sizeof(value));            \
		}                                                                              \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(store_shared_##id)                                                             \
	{                                                                                      \
		const u32 *offsets = REGISTER(u32, i->a);                                      \
		const R *registers = REGISTER(R, i->dst);                                      \
		char *shared = w->shared;                                                      \
		for (int h = 0; h < WARP_LANES; h += HALF) {                                   \
			const u32 *a = offsets + h;                                            \
			const R *d = registers + h;                                            \
			u32 mask = w->mask >> h & 0xffff;                                      \
			if (mask == 0xffff && consecutive_32(a, sizeof(M))) {                  \
				M values[HALF];                                                \
				u32 first = a[0] + (u32)i->imm;                                \
				if (UNLIKELY((u64)first + sizeof(values) > w->shared_bytes))   \
					out_of_shared(w, i, first);                            \
				CHECK_ALIGNMENT(first, sizeof(M));                             \
				for (int l = 0; l < HALF; l++)                                 \
					values[l] = (M)d[l];                                   \
				memcpy(shared + first, values, sizeof(values));                \
			} else {                                                               \
				FOR_ACTIVE(mask, l)                                            \
				{                                                              \
					u32 offset = a[l] + (u32)i->imm;                       \
					M value = (M)d[l];                                     \
					CHECK_SHARED(offset, sizeof(M));                       \
					memcpy(shared + offset, &value, sizeof(value));        \
				}                                                              \
			}                                                                      \
		}                                                                              \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(store_shared_absolute_##id)                                                    \
	{                                                                                      \
		const R *d = REGISTER(R, i->dst);                                              \
		u32 offset = (u32)i->imm;                                                      \
		CHECK_SHARED(offset, sizeof(M));                                               \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			M value = (M)d[l];                                                     \
			memcpy(w->shared + offset, &value, sizeof(value));                     \
		}                                                                              \
		NEXT;                                                                          \
	}
#define FORM_STORE(id, names, M, R)                                                            \
	{ "@store.pointer." names, NULL, store_pointer_##id, NULL, 0, 0 },                     \
	{ "@store.absolute." names, NULL, store_absolute_##id, NULL, 0, 0 },                   \
	{ "@store.local." names, NULL, store_local_##id, NULL, 0, 0 },                         \
	{ "@store.shared." names, NULL, store_shared_##id, NULL, 0, 0 },                       \
	{ "@store.shared_absolute." names, NULL, store_shared_absolute_##id, NULL, 0, 0 },
#define STORE_ROWS(X)                                                                          \
	X(u8_16, "u8.16", u8, u16) X(u8_32, "u8.32", u8, u32) X(u8_64, "u8.64", u8, u64)       \
	X(u16_16, "u16.16", u16, u16) X(u16_32, "u16.32", u16, u32)                            \
	X(u16_64, "u16.64", u16, u64) X(u32_32, "u32.32", u32, u32)                            \
	X(u32_64, "u32.64", u32, u64) X(u64_64, "u64.64", u64, u64)
STORE_ROWS(DEFINE_STORE)

/* ---- vectors that other blocks may see: a lane's elements at once ---- */

/* Decoupled look-back (CUB) publishes a status and a value in one vector, and
 * reads both in one load.  PTX promises that only for each element (8.2.2,
 * "vector data types"), GPUs do it for all of an aligned vector.  So a lane's vector
 * moves between memory and 16 bytes of a buffer in the register window by one
 * instruction; elements are moved from and to that buffer.  A 16-byte SSE move is
 * atomic on every processor with AVX (Intel SDM volume 3A, 9.1.1; AMD64 manual
 * volume 2, 7.3.2), and so is one of NEON with FEAT_LSE2 (Arm Architecture Reference
 * Manual for A-profile, B2.2.1).  Acquire and release are the decoder's (decode/memory.c). */
#define VECTOR_BYTES 16
typedef u64 vector_16 __attribute__((vector_size(16), may_alias));

static inline void move_vector_16(void *to, const void *from)
{
	/* Volatile, so that it stays one access. */
	if (UNLIKELY(((uintptr_t)to | (uintptr_t)from) & 15))
		memcpy(to, from, 16);	/* misaligned: no GPU does that at all */
	else
		*(volatile vector_16 *)to = *(const volatile vector_16 *)from;
}

#define DEFINE_MOVE_VECTOR(N, T)                                                               \
	static inline void move_vector_##N(void *to, const void *from)                         \
	{                                                                                      \
		*(volatile T *)to = *(const volatile T *)from;                                 \
	}
DEFINE_MOVE_VECTOR(2, u16)
DEFINE_MOVE_VECTOR(4, u32)
DEFINE_MOVE_VECTOR(8, u64)

#define DEFINE_VECTOR(N)                                                                       \
	HANDLER(load_vector_##N)                                                               \
	{                                                                                      \
		const u64 *a = REGISTER(u64, i->a);                                            \
		char *buffer = REGISTER(char, i->dst);                                         \
		w->ip = i;                                                                     \
		FOR_ACTIVE(w->mask, l)                                                         \
		move_vector_##N(buffer + l * VECTOR_BYTES,                                     \
				(const void *)(uintptr_t)(a[l] + (u64)i->imm));                \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(store_vector_##N)                                                              \
	{                                                                                      \
		const u64 *a = REGISTER(u64, i->a);                                            \
		const char *buffer = REGISTER(char, i->dst);                                   \
		w->ip = i;                                                                     \
		FOR_ACTIVE(w->mask, l)                                                         \
		move_vector_##N((void *)(uintptr_t)(a[l] + (u64)i->imm),                       \
				buffer + l * VECTOR_BYTES);                                    \
		NEXT;                                                                          \
	}
DEFINE_VECTOR(2)
DEFINE_VECTOR(4)
DEFINE_VECTOR(8)
DEFINE_VECTOR(16)

/* Element at byte imm of the buffer a. */
#define DEFINE_UNPACK(id, names, M, R)                                                         \
	HANDLER(unpack_##id)                                                                   \
	{                                                                                      \
		const char *buffer = REGISTER(char, i->a) + i->imm;                            \
		R *d = REGISTER(R, i->dst);                                                    \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			M value;                                                               \
			memcpy(&value, buffer + l * VECTOR_BYTES, sizeof(value));              \
			d[l] = (R)value;                                                       \
		}                                                                              \
		NEXT;                                                                          \
	}
#define DEFINE_PACK(id, names, M, R)                                                           \
	HANDLER(pack_##id)                                                                     \
	{                                                                                      \
		char *buffer = REGISTER(char, i->a) + i->imm;                                  \
		const R *d = REGISTER(R, i->dst);                                              \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			M value = (M)d[l];                                                     \
			memcpy(buffer + l * VECTOR_BYTES, &value, sizeof(value));              \
		}                                                                              \
		NEXT;                                                                          \
	}
#define FORM_VECTOR(N)                                                                         \
	{ "@load_vector." #N, NULL, load_vector_##N, NULL, 0, 0 },                             \
	{ "@store_vector." #N, NULL, store_vector_##N, NULL, 0, 0 },
#define FORM_UNPACK(id, names, M, R) { "@unpack." names, NULL, unpack_##id, NULL, 0, 0 },
#define FORM_PACK(id, names, M, R) { "@pack." names, NULL, pack_##id, NULL, 0, 0 },
LOAD_ROWS(DEFINE_UNPACK)
STORE_ROWS(DEFINE_PACK)

/* ---- alignment of vector accesses, in strict mode; x: bytes - 1 ---- */

HANDLER(aligned_pointer)
{
	const u64 *a = REGISTER(u64, i->a);

	if (UNLIKELY(w->alignment_checked))
		FOR_ACTIVE(w->mask, l)
		if ((a[l] + (u64)i->imm) & (u64)i->x)
			misaligned(w, i, a[l] + (u64)i->imm);
	NEXT;
}

HANDLER(aligned_shared)
{
	const u32 *a = REGISTER(u32, i->a);

	if (UNLIKELY(w->alignment_checked))
		FOR_ACTIVE(w->mask, l)
		if ((a[l] + (u32)i->imm) & (u32)i->x)
			misaligned(w, i, a[l] + (u32)i->imm);
	NEXT;
}

/* ---- atomics ---- */

/* Shared memory belongs to the one thread that runs the block; elsewhere other
 * blocks run at the same time.  U: unsigned type of the same size. */
#define DEFINE_ATOMIC(op, id, T, U, expression)                                                \
	HANDLER(op##_pointer_##id)                                                             \
	{                                                                                      \
		const u64 *addresses = REGISTER(u64, i->a);                                    \
		const T *b_ = REGISTER(T, i->b), *c_ = REGISTER(T, i->c >= 0 ? i->c : i->b);   \
		T *d = i->dst >= 0 ? REGISTER(T, i->dst) : NULL;                               \
		w->ip = i;                                                                     \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			u64 address = addresses[l] + (u64)i->imm;                              \
			U *memory = (U *)(uintptr_t)address;                                   \
			T a, b = b_[l], c = c_[l], result;                                     \
			U old, new_;                                                           \
			(void)c;                                                               \
			CHECK_ALIGNMENT(address, sizeof(T));                                   \
			old = __atomic_load_n(memory, __ATOMIC_RELAXED);                       \
			do {                                                                   \
				memcpy(&a, &old, sizeof(a));                                   \
				result = (T)(expression);                                      \
				memcpy(&new_, &result, sizeof(new_));                          \
			} while (!__atomic_compare_exchange_n(memory, &old, new_, false,       \
							      __ATOMIC_SEQ_CST,                \
							      __ATOMIC_SEQ_CST));              \
			if (d)                                                                 \
				memcpy(&d[l], &old, sizeof(old));                              \
		}                                                                              \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(op##_shared_##id)                                                              \
	{                                                                                      \
		const u32 *offsets = REGISTER(u32, i->a);                                      \
		const T *b_ = REGISTER(T, i->b), *c_ = REGISTER(T, i->c >= 0 ? i->c : i->b);   \
		T *d = i->dst >= 0 ? REGISTER(T, i->dst) : NULL;                               \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			u32 offset = offsets[l] + (u32)i->imm;                                 \
			T a, b = b_[l], c = c_[l], result;                                     \
			(void)c;                                                               \
			CHECK_SHARED(offset, sizeof(T));                                       \
			memcpy(&a, w->shared + offset, sizeof(a));                             \
			result = (T)(expression);                                              \
			memcpy(w->shared + offset, &result, sizeof(result));                   \
			if (d)                                                                 \
				d[l] = a;                                                      \
		}                                                                              \
		NEXT;                                                                          \
	}
#define FORM_ATOMIC(op, id, T, U, expression)                                                  \
	{ "@atomic." #op ".pointer." #id, NULL, op##_pointer_##id, NULL, 0, 0 },               \
	{ "@atomic." #op ".shared." #id, NULL, op##_shared_##id, NULL, 0, 0 },
#define ATOMIC_ROWS(X, N)                                                                      \
	X(add, u##N, u##N, u##N, a + b) X(and, u##N, u##N, u##N, a & b)                        \
	X(or, u##N, u##N, u##N, a | b) X(xor, u##N, u##N, u##N, a ^ b)                         \
	X(exch, u##N, u##N, u##N, b) X(cas, u##N, u##N, u##N, a == b ? c : a)                  \
	X(min, u##N, u##N, u##N, a < b ? a : b) X(max, u##N, u##N, u##N, a > b ? a : b)        \
	X(min, s##N, s##N, u##N, a < b ? a : b) X(max, s##N, s##N, u##N, a > b ? a : b)        \
	X(inc, u##N, u##N, u##N, a >= b ? 0 : a + 1)                                           \
	X(dec, u##N, u##N, u##N, a == 0 || a > b ? b : a - 1)
#define ATOMIC_FLOAT_ROWS(X)                                                                   \
	X(add, f32, f32, u32, a + b) X(add, f64, f64, u64, a + b)                              \
	X(add, f16, f16, u16, (f16)((f32)a + (f32)b))                                          \
	X(add, h16, u16, u16, f32_to_bf16(bf16_to_f32(a) + bf16_to_f32(b)))                    \
	X(add, x32, u32, u32, add_f16x2(a, b)) X(add, y32, u32, u32, add_bf16x2(a, b))         \
	X(min, f16, f16, u16, least_f16(a, b)) X(max, f16, f16, u16, greatest_f16(a, b))       \
	X(min, h16, u16, u16, least_bf16(a, b)) X(max, h16, u16, u16, greatest_bf16(a, b))     \
	X(min, x32, u32, u32, PAIRWISE(least_f16_bits, a, b))                                  \
	X(max, x32, u32, u32, PAIRWISE(greatest_f16_bits, a, b))                               \
	X(min, y32, u32, u32, PAIRWISE(least_bf16, a, b))                                      \
	X(max, y32, u32, u32, PAIRWISE(greatest_bf16, a, b))                                   \
	X(cas, u16, u16, u16, a == b ? c : a) X(exch, u16, u16, u16, b)

static inline u32 add_f16x2(u32 a, u32 b)
{
	f16 x[2], y[2];

	memcpy(x, &a, sizeof(x));
	memcpy(y, &b, sizeof(y));
	for (int k = 0; k < 2; k++)
		x[k] = (f16)((f32)x[k] + (f32)y[k]);
	memcpy(&a, x, sizeof(a));
	return a;
}

#define DEFINE_ON_BITS(name)                                                                   \
	static inline u16 name##_bits(u16 a, u16 b)                                            \
	{                                                                                      \
		f16 x, y;                                                                      \
		memcpy(&x, &a, sizeof(x));                                                     \
		memcpy(&y, &b, sizeof(y));                                                     \
		x = name(x, y);                                                                \
		memcpy(&a, &x, sizeof(a));                                                     \
		return a;                                                                      \
	}
DEFINE_ON_BITS(least_f16)
DEFINE_ON_BITS(greatest_f16)

#define PAIRWISE(of, a, b)                                                                     \
	((u32)of((u16)((a) >> 16), (u16)((b) >> 16)) << 16 | of((u16)(a), (u16)(b)))

static inline u32 add_bf16x2(u32 a, u32 b)
{
	u16 low = f32_to_bf16(bf16_to_f32((u16)a) + bf16_to_f32((u16)b));
	u16 high = f32_to_bf16(bf16_to_f32((u16)(a >> 16)) + bf16_to_f32((u16)(b >> 16)));

	return (u32)high << 16 | low;
}

ATOMIC_ROWS(DEFINE_ATOMIC, 32)
ATOMIC_ROWS(DEFINE_ATOMIC, 64)
ATOMIC_FLOAT_ROWS(DEFINE_ATOMIC)

HANDLER(fence)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	NEXT;
}

/* cp.async: x bytes a lane; of those the source has c, the rest are zero */
HANDLER(copy_async)
{
	const u32 *to = REGISTER(u32, i->a);
	const u64 *from = REGISTER(u64, i->b);
	const u32 *sizes = i->c >= 0 ? REGISTER(u32, i->c) : NULL;

	w->ip = i;
	FOR_ACTIVE(w->mask, l)
	{
		u32 offset = to[l] + (u32)i->imm, bytes = (u32)i->x;
		u32 present = sizes && sizes[l] < bytes ? sizes[l] : bytes;
		char values[16] = { 0 };

		CHECK_SHARED(offset, bytes);
		memcpy(values, (const char *)(uintptr_t)(from[l] + (u64)(s64)i->y), present);
		memcpy(w->shared + offset, values, bytes);
	}
	NEXT;
}

static const struct form forms[] = {
	LOAD_ROWS(FORM_LOAD)
	STORE_ROWS(FORM_STORE)
	LOAD_ROWS(FORM_UNPACK)
	STORE_ROWS(FORM_PACK)
	FORM_VECTOR(2) FORM_VECTOR(4) FORM_VECTOR(8) FORM_VECTOR(16)
	ATOMIC_ROWS(FORM_ATOMIC, 32)
	ATOMIC_ROWS(FORM_ATOMIC, 64)
	ATOMIC_FLOAT_ROWS(FORM_ATOMIC)
	{ "@aligned.pointer", NULL, aligned_pointer, NULL, 0, 0 },
	{ "@aligned.shared", NULL, aligned_shared, NULL, 0, 0 },
	{ "@fence", NULL, fence, NULL, 0, 0 },
	{ "@copy_async", NULL, copy_async, NULL, 0, 0 },
};

TABLE(forms_memory, forms);
