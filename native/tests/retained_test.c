/* What is written and not acknowledged: however it was written, it is there, in order, until it is. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../transport/resumed/resume.h"
#include "../transport/resumed/retained.h"

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
	return (uint8_t)(at * 2654435761u >> 27);
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

static void add(size_t bytes)
{
	uint8_t *place = malloc(bytes);

	fill(place, atomic_load(&retained.written), bytes);
	retained_add(&retained, place, bytes, false);
	free(place);
}

/* The kernel may have been given what was not acknowledged before the window grew, to send it from where it was. */
static void test_what_has_moved_stays_where_it_was_until_it_is_acknowledged(void)
{
	const size_t half = RESUME_WINDOW_RING / 2;
	const uint8_t *before;

	assert(retained_make(&retained, 2 * half, 8 * half, RESUME_WINDOW_RING, 8) == 0);
	add(2 * half);
	retained_acknowledge(&retained, half);
	add(half);
	assert(retained_piece(&retained, 2 * half, half, &before) == half && retained_keeps(&retained, before));
	atomic_store(&retained.window_wanted, 4 * half);
	while (atomic_load(&retained.acknowledged) < 3 * half) {
		retained_rewind(&retained);
		assert(retained.window == 4 * half);
		add((size_t)retained_room(&retained));
		for (size_t i = 0; i < half; i++)
			if (2 * half + i >= atomic_load(&retained.acknowledged))
				assert(before[i] == pattern(2 * half + i));
		check();
		retained_acknowledge(&retained, atomic_load(&retained.acknowledged) + half / 4);
	}
	/* From then on the window is as large as it is. */
	retained_rewind(&retained);
	assert(retained_room(&retained) > 2 * half);
	add((size_t)retained_room(&retained));
	check();
	retained_drop(&retained);
}

static void test_only_what_is_lent_may_change_before_it_is_acknowledged(void)
{
	const uint8_t *at;
	uint8_t *place;

	assert(retained_make(&retained, RESUME_WINDOW_RING, RESUME_WINDOW_RING, RESUME_WINDOW_RING, 8) == 0);
	retained_add(&retained, lent, RETAINED_LOAN_BYTES, true);
	add(1);
	assert(retained_place(&retained, &place, LENT_BYTES / 8) == LENT_BYTES / 8);
	retained_made(&retained, LENT_BYTES / 8);
	assert(retained_piece(&retained, 0, 1, &at) == 1 && !retained_keeps(&retained, at));
	assert(retained_piece(&retained, RETAINED_LOAN_BYTES, 1, &at) == 1 && retained_keeps(&retained, at));
	assert(retained_piece(&retained, RETAINED_LOAN_BYTES + 1, 1, &at) == 1 && at == place &&
	       retained_keeps(&retained, at));
	retained_drop(&retained);
}

int main(void)
{
	test_what_is_not_acknowledged_is_there(false);
	test_what_is_not_acknowledged_is_there(true);
	test_more_is_lent_than_the_list_has_places();
	test_what_has_moved_stays_where_it_was_until_it_is_acknowledged();
	test_only_what_is_lent_may_change_before_it_is_acknowledged();
	puts("ok");
	return 0;
}
