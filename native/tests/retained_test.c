/* What is written and not acknowledged: however it was written, it is there, in order, until it is. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../transport/resume.h"
#include "../transport/retained.h"

#undef NDEBUG

#define STEPS 20000u
#define LENT_BYTES ((size_t)8 << 20)

static struct retained retained;
/* The writer's memory, which is his again as soon as it is settled. */
static uint8_t lent[LENT_BYTES];
static uint32_t random_state = 1;

static uint32_t random_below(uint32_t limit)
{
	random_state = random_state * 1664525u + 1013904223u;
	return (random_state >> 8) % limit;
}

static uint8_t pattern(uint64_t at)
{
	return (uint8_t)(at * 2654435761u >> 11);
}

static void fill(uint8_t *to, uint64_t offset, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		to[i] = pattern(offset + i);
}

/* At some offsets; all of them would take long. */
static void check(void)
{
	uint64_t from = atomic_load(&retained.acknowledged), end = atomic_load(&retained.written);

	for (uint64_t at = from; at < end;) {
		const uint8_t *where;
		size_t bytes = retained_piece(&retained, at, (size_t)(end - at), &where);

		assert(bytes && bytes <= end - at);
		for (size_t i = 0; i < bytes; i += 1 + random_below(997))
			assert(where[i] == pattern(at + i));
		assert(where[bytes - 1] == pattern(at + bytes - 1));
		at += bytes;
	}
}

static void write_some(void)
{
	uint64_t written = atomic_load(&retained.written), room = retained_room(&retained);
	size_t bytes = 1 + random_below(random_below(4) ? 5000 : 700000), at;
	uint8_t *place;

	if (bytes > room)
		bytes = (size_t)room;
	if (!bytes)
		return;
	switch (random_below(3)) {
	case 0:
		bytes = retained_place(&retained, &place, bytes);
		assert(bytes);
		fill(place, written, bytes);
		retained_made(&retained, bytes);
		break;
	case 1:
		at = random_below((uint32_t)(LENT_BYTES - bytes));
		/* Nothing of it is lent any more. */
		retained_settle(&retained, lent, LENT_BYTES);
		fill(lent + at, written, bytes);
		retained_add(&retained, lent + at, bytes, true);
		break;
	default:
		place = malloc(bytes);
		fill(place, written, bytes);
		retained_add(&retained, place, bytes, false);
		memset(place, 0, bytes);
		free(place);
	}
	assert(atomic_load(&retained.written) == written + bytes);
}

static void test_what_is_not_acknowledged_is_there(bool grows)
{
	size_t most = grows ? RESUME_WINDOW_BYTES : RESUME_WINDOW_RING;

	assert(retained_make(&retained, RESUME_WINDOW_RING, most, RESUME_WINDOW_RING, 8) == 0);
	for (unsigned step = 0; step < STEPS; step++) {
		uint64_t left = atomic_load(&retained.written) - atomic_load(&retained.acknowledged);

		assert(left <= retained.window && retained.window <= retained.most);
		if (random_below(3)) {
			retained_rewind(&retained);
			write_some();
		} else if (left) {
			/* All of it now and then: the ring begins anew. */
			uint64_t more = random_below(4) ? random_below((uint32_t)left) + 1 : left;

			retained_acknowledge(&retained, atomic_load(&retained.acknowledged) + more);
		}
		if (!random_below(STEPS / 2) && grows)
			atomic_store(&retained.window_wanted, retained.window * 2);
		if (step % 16 == 0)
			check();
	}
	check();
	retained_drop(&retained);
}

static void test_more_is_lent_than_the_list_has_places(void)
{
	const uint8_t *where;

	assert(retained_make(&retained, RESUME_WINDOW_BYTES, RESUME_WINDOW_BYTES, RESUME_WINDOW_RING, 8) == 0);
	fill(lent, 0, LENT_BYTES);
	for (unsigned i = 0; i < RETAINED_LOANS; i++)
		/* One piece could not be told from the next if they lay side by side. */
		retained_add(&retained, lent + (i % 2 ? 0 : RETAINED_LOAN_BYTES), RETAINED_LOAN_BYTES, true);
	assert(retained.loan_count == RETAINED_LOANS);
	retained_add(&retained, lent, RETAINED_LOAN_BYTES, true);
	assert(retained.loan_count == RETAINED_LOANS);
	assert(retained_piece(&retained, RETAINED_LOANS * RETAINED_LOAN_BYTES, RETAINED_LOAN_BYTES, &where) ==
	       RETAINED_LOAN_BYTES);
	assert(where != lent && memcmp(where, lent, RETAINED_LOAN_BYTES) == 0);
	/* The first one acknowledged makes a place. */
	retained_acknowledge(&retained, RETAINED_LOAN_BYTES);
	retained_add(&retained, lent, RETAINED_LOAN_BYTES, true);
	assert(retained.loan_count == RETAINED_LOANS);
	retained_drop(&retained);
}

int main(void)
{
	test_what_is_not_acknowledged_is_there(false);
	test_what_is_not_acknowledged_is_there(true);
	test_more_is_lent_than_the_list_has_places();
	puts("ok");
	return 0;
}
