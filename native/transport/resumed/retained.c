#include "retained.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "../ground/processor.h"
#include "../transport.h"
#include "resume.h"

/* Of short records one in so many begins a round: it costs two readings of the clock. */
#define SHORT_ROUNDS 16u
#define LINE_BYTES 64u

static void loans_prune(struct retained *retained)
{
	uint64_t acknowledged = atomic_load(&retained->acknowledged);

	while (retained->loan_count) {
		const struct retained_loan *first = &retained->loans[retained->loan_first];

		if (first->bytes && first->offset + first->bytes > acknowledged)
			return;
		retained->loan_first = (retained->loan_first + 1) % RETAINED_LOANS;
		retained->loan_count--;
	}
}

static struct retained_loan *loan_at(struct retained *retained, unsigned i)
{
	return &retained->loans[(retained->loan_first + i) % RETAINED_LOANS];
}

/* What is written next lies there.  There is a place in the list. */
static void loan_add(struct retained *retained, const uint8_t *at, size_t bytes)
{
	*loan_at(retained, retained->loan_count++) =
		(struct retained_loan){ .offset = atomic_load(&retained->written), .bytes = bytes, .at = at };
}

/* ---- the ring ---- */

static size_t ring_index(const struct retained *retained, uint64_t offset)
{
	return (offset - retained->base) & (retained->window - 1);
}

static void ring_put(struct retained *retained, uint64_t offset, const uint8_t *from, size_t bytes)
{
	size_t index = ring_index(retained, offset), first = retained->window - index;

	if (first > bytes)
		first = bytes;
	memcpy(retained->ring + index, from, first);
	memcpy(retained->ring, from + first, bytes - first);
}

/* What is not acknowledged moves to its place in a ring of that size.  The kernel may still send it from where it was
 * (zerocopy.h): until all of it is acknowledged no more is written than the window before had room for, and so none of these places
 * is another's, as there the byte to come a window later would be. */
void retained_grow(struct retained *retained)
{
	size_t wanted = atomic_load(&retained->window_wanted);

	if (retained->limit < retained->window && atomic_load(&retained->acknowledged) < retained->moved_end)
		return;
	retained->limit = retained->window;
	while (retained->window < wanted) {
		size_t window = retained->window;
		uint64_t at = atomic_load(&retained->acknowledged), end = atomic_load(&retained->written);

		/* Half of the places stay.  The others are at the same distance in the new half. */
		while (at < end) {
			size_t index = ring_index(retained, at), bytes = window - index;

			if (bytes > end - at)
				bytes = (size_t)(end - at);
			if ((at - retained->base) & window)
				memcpy(retained->ring + window + index, retained->ring + index, bytes);
			at += bytes;
		}
		retained->window = 2 * window;
	}
	retained->moved_end = atomic_load(&retained->written);
	if (atomic_load(&retained->acknowledged) == retained->moved_end)
		retained->limit = retained->window;
}

void retained_rewind(struct retained *retained)
{
	uint64_t written = atomic_load(&retained->written);

	if (written == atomic_load(&retained->acknowledged)) {
		loans_prune(retained);
		retained->base = written;
	}
	retained_grow(retained);
}

void retained_add(struct retained *retained, const uint8_t *from, size_t bytes, bool lend)
{
	uint64_t written = atomic_load(&retained->written);

	lend = lend && bytes >= RETAINED_LOAN_BYTES;
	if (lend)
		loans_prune(retained);
	if (lend && retained->loan_count < RETAINED_LOANS)
		loan_add(retained, from, bytes);
	else
		ring_put(retained, written, from, bytes);
	atomic_store(&retained->written, written + bytes);
}

size_t retained_piece(struct retained *retained, uint64_t offset, size_t most, const uint8_t **at)
{
	size_t index = ring_index(retained, offset);

	for (unsigned i = 0; i < retained->loan_count; i++) {
		const struct retained_loan *loan = loan_at(retained, i);

		if (!loan->bytes || loan->offset + loan->bytes <= offset)
			continue;
		if (loan->offset <= offset) {
			size_t skipped = (size_t)(offset - loan->offset);

			*at = loan->at + skipped;
			return most < loan->bytes - skipped ? most : loan->bytes - skipped;
		}
		if (most > loan->offset - offset)
			most = (size_t)(loan->offset - offset);
		break;
	}
	*at = retained->ring + index;
	return most < retained->window - index ? most : retained->window - index;
}

bool retained_keeps(const struct retained *retained, const void *at)
{
	return (uintptr_t)at - (uintptr_t)retained->staging < retained->staging_bytes + retained->most;
}

/* What the peer has not acknowledged goes to the place that the ring has for it. */
void retained_settle(struct retained *retained, const void *at, size_t bytes)
{
	/* Before those go that are acknowledged by now: what is left is not, up to here. */
	uint64_t acknowledged = atomic_load(&retained->acknowledged);

	loans_prune(retained);
	for (unsigned i = 0; i < retained->loan_count; i++) {
		struct retained_loan *loan = loan_at(retained, i);
		size_t done;

		if (!loan->bytes || (uintptr_t)loan->at - (uintptr_t)at >= bytes)
			continue;
		/* The place of what is acknowledged may be another's by now. */
		done = loan->offset < acknowledged ? (size_t)(acknowledged - loan->offset) : 0;
		ring_put(retained, loan->offset + done, loan->at + done, loan->bytes - done);
		loan->bytes = 0;
	}
	loans_prune(retained);
}

/* ---- staging ---- */

/* The place for so many bytes that is nearest to the beginning of staging, or NULL: behind one that is taken,
 * unless another one is in the way.  In its line it lies as it will in the kernel's, where a stream that was all acknowledged
 * mostly begins a page: so it is copied fastest (docs/performance.md).  On AMD's processors the driver's copy to there loses more
 * by that than the kernel's gains, and without it two frames of 1 MiB have room. */
static uint8_t *staging_place(struct retained *retained, size_t bytes)
{
	size_t lead = processor_is_amd() ? 0
					 : (size_t)(atomic_load(&retained->written) - retained->base + retained->lead) % LINE_BYTES;
	size_t at = lead;
	unsigned i = 0;

	loans_prune(retained);
	if (retained->loan_count == RETAINED_LOANS)
		return NULL;
	while (i < retained->loan_count && at + bytes <= retained->staging_bytes) {
		const struct retained_loan *loan = loan_at(retained, i++);
		/* What is elsewhere is far beyond the end. */
		size_t taken = (size_t)((uintptr_t)loan->at - (uintptr_t)retained->staging), end;

		if (!loan->bytes || taken >= at + bytes || taken + loan->bytes <= at)
			continue;
		end = taken + loan->bytes;
		at = (end + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES + lead;
		i = 0;
	}
	return at + bytes <= retained->staging_bytes ? retained->staging + at : NULL;
}

size_t retained_place(struct retained *retained, uint8_t **at, size_t bytes)
{
	size_t index = ring_index(retained, atomic_load(&retained->written)), end;

	*at = retained->making = staging_place(retained, bytes);
	if (*at)
		return bytes;
	*at = retained->ring + index;
	/* Not across the end of what retained_memory tells: drivers take memory for one or the other. */
	end = index < RESUME_WINDOW_BYTES && RESUME_WINDOW_BYTES < retained->window ? RESUME_WINDOW_BYTES
										    : retained->window;
	return bytes < end - index ? bytes : end - index;
}

void retained_made(struct retained *retained, size_t bytes)
{
	if (retained->making)
		loan_add(retained, retained->making, bytes);
	atomic_store(&retained->written, atomic_load(&retained->written) + bytes);
}

void retained_memory(struct retained *retained, void **at, size_t *bytes)
{
	*at = retained->staging;
	/* What is larger is rarely used, and pinned memory is everybody's. */
	*bytes = retained->staging_bytes + RESUME_WINDOW_BYTES;
}

/* ---- rounds ---- */

static void round_start(struct retained *retained, uint64_t end)
{
	retained->round_acknowledged = atomic_load(&retained->acknowledged);
	retained->round_ns = transport_now_ns();
	atomic_store(&retained->round_end, end);
}

void retained_round_begin(struct retained *retained, bool bulk, uint64_t end)
{
	if (!retained->grows || atomic_load(&retained->round_end))
		return;
	/* Of little there is nothing to learn but the shortest time, and of that as much from some. */
	if (!bulk && retained->short_records++ % SHORT_ROUNDS)
		return;
	round_start(retained, end);
}

void retained_round_begin_full(struct retained *retained, size_t last)
{
	if (!retained->grows || atomic_load(&retained->round_full) || retained->window == retained->most ||
	    retained_room(retained))
		return;
	round_start(retained, atomic_load(&retained->written) - last);
	atomic_store(&retained->round_full, true);
}

/* Twice what the network holds, so that a window which was the limit shows that it is too small. */
static void window_learn(struct retained *retained, uint64_t acknowledged)
{
	uint64_t end = atomic_load(&retained->round_end), elapsed_ns, delivered;
	size_t wanted = atomic_load(&retained->window_wanted);
	double held;

	if (!end || acknowledged < end)
		return;
	elapsed_ns = transport_now_ns() - retained->round_ns + 1;
	delivered = acknowledged - retained->round_acknowledged;
	held = (double)delivered;
	/* A full one began behind what it holds: it tells nothing of the shortest, and was no shorter. */
	if (!atomic_load(&retained->round_full) && (!retained->round_least_ns || elapsed_ns < retained->round_least_ns))
		retained->round_least_ns = elapsed_ns;
	if (retained->round_least_ns && elapsed_ns > retained->round_least_ns)
		held *= (double)retained->round_least_ns / (double)elapsed_ns;
	while (wanted < retained->most && (double)wanted < 2 * held)
		wanted *= 2;
	atomic_store(&retained->window_wanted, wanted);
	atomic_store(&retained->round_full, false);
	atomic_store(&retained->round_end, 0);
}

void retained_acknowledge(struct retained *retained, uint64_t acknowledged)
{
	atomic_store(&retained->acknowledged, acknowledged);
	window_learn(retained, acknowledged);
}

void retained_go_on(struct retained *retained, uint64_t acknowledged)
{
	atomic_store(&retained->acknowledged, acknowledged);
	retained->round_least_ns = 0;
	atomic_store(&retained->round_full, false);
	atomic_store(&retained->round_end, 0);
}

/* ---- */

int retained_make(struct retained *retained, size_t window, size_t most, size_t staging_bytes, unsigned lead)
{
	/* Pages that no stream ever fills cost nothing. */
	uint8_t *memory = mmap(NULL, staging_bytes + most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return -ENOMEM;
	(void)madvise(memory, staging_bytes + most, MADV_DONTFORK);
	memset(retained, 0, sizeof(*retained));
	retained->grows = window < most;
	retained->most = most;
	retained->staging_bytes = staging_bytes;
	retained->lead = lead;
	retained->staging = memory;
	retained->ring = memory + staging_bytes;
	retained->window = window;
	retained->limit = window;
	atomic_store(&retained->window_wanted, window);
	return 0;
}

void retained_drop(struct retained *retained)
{
	munmap(retained->staging, retained->staging_bytes + retained->most);
}
