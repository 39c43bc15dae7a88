/* Pages of managed memory: their states. */
#include "../exchange/exchange.h"
#include "../exchange/failure.h"
#include "../exchange/jobs.h"
#include "../exchange/outstanding.h"
#include "../ground/message.h"
#include "active.h"
#include "home.h"
#include "pages.h"
#include "paging.h"
#include "regions.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Pages that a fault brings: 64 KiB, and up to 2 MiB where faults follow one another. */
#define RUN_LEAST 16u
#define RUN_MOST 512u
/* Entries of /proc/self/pagemap that are read at a time. */
#define PAGEMAP_ENTRIES 512u
#define PAGEMAP_THERE (3ull << 62)	/* present or swapped out */

static struct {
	bool started;
	int pagemap;			/* descriptor, or -1 */
	uint8_t *bounce;		/* RUN_MOST pages, of the thread that serves faults */
	bool lost_said;
} managed = { .pagemap = -1 };

static uint64_t page_address(const struct managed_region *region, size_t page)
{
	return region->base + page * PAGE_BYTES;
}

/* ---- what travels ---- */

/* Do that with all bytes of these pages that are managed memory; what is fetched lies at the same
 * distance from `to`. */
enum transfer { SEND, FETCH, FETCH_LATER };

static CUresult span(struct managed_region *region, enum transfer transfer, uint64_t address,
		     uint64_t end, uint64_t low, uint8_t *to)
{
	switch (transfer) {
	case SEND:
		return client_home_send(region->home, address, end - address);
	case FETCH:
		return client_home_fetch(region->home, address, end - address, to + (address - low));
	default:
		return client_home_fetch_later(region->home, address, end - address, to + (address - low));
	}
}

static CUresult transfer(struct managed_region *region, enum transfer way, size_t first, size_t count,
			 uint8_t *to)
{
	uint64_t low = page_address(region, first), high = low + count * PAGE_BYTES;
	CUresult result = CUDA_SUCCESS;

	if (region->device)
		return span(region, way, low, high, low, to);
	for (size_t i = 0; i < region->piece_count && result == CUDA_SUCCESS; i++) {
		uint64_t from = region->pieces[i].address;
		uint64_t end = from + region->pieces[i].bytes;

		from = from < low ? low : from;
		end = end > high ? high : end;
		if (from < end)
			result = span(region, way, from, end, low, to);
	}
	return result;
}

/* ---- states ---- */

static bool state_warm(uint8_t state)
{
	return state == PAGE_FRESH || state == PAGE_CLEAN || state == PAGE_DIRTY;
}

static void state_set(struct managed_region *region, size_t first, size_t count, enum page_state state)
{
	bool warm = state_warm(state);

	for (size_t i = first; i < first + count; i++) {
		region->warm -= state_warm(region->state[i]);
		region->away -= region->state[i] == PAGE_AWAY;
		region->state[i] = (uint8_t)state;
	}
	region->away += state == PAGE_AWAY ? count : 0;
	region->warm += warm ? count : 0;
	if (warm) {
		region->warm_low = first < region->warm_low ? first : region->warm_low;
		region->warm_high = first + count > region->warm_high ? first + count
								      : region->warm_high;
	} else if (!region->warm) {
		region->warm_low = region->pages;
		region->warm_high = 0;
	}
}

/* How many pages from `first` on, up to `end`, have its state. */
static size_t state_run(const struct managed_region *region, size_t first, size_t end)
{
	size_t i = first;

	while (i < end && region->state[i] == region->state[first])
		i++;
	return i - first;
}

/* Which of some FRESH pages the kernel has populated: bit by bit.  Where it does not say, all. */
static void populated(uint64_t address, size_t count, bool *there)
{
	uint64_t entries[PAGEMAP_ENTRIES];
	ssize_t bytes = (ssize_t)(count * sizeof(*entries));
	bool known = managed.pagemap >= 0 &&
		     pread(managed.pagemap, entries, (size_t)bytes,
			   (off_t)(address / PAGE_BYTES * sizeof(*entries))) == bytes;

	for (size_t i = 0; i < count; i++)
		there[i] = !known || entries[i] & PAGEMAP_THERE;
}

/* Nobody may write a page between its being sent and its being taken away: who does waits,
 * and finds it again as it was sent.  With copies the program's own rules say so. */
static CUresult hold(const struct managed_region *region, size_t first, size_t count)
{
	uint64_t address = page_address(region, first), bytes = count * PAGE_BYTES;
	int rc = 0;

	if (client_paging() && region->state[first] == PAGE_FRESH)
		rc = paging_register(address, bytes);
	if (client_paging() && !rc)
		rc = paging_protect(address, bytes, true);
	return rc ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

static CUresult send_fresh(struct managed_region *region, size_t first, size_t count)
{
	CUresult result = CUDA_SUCCESS;
	bool there[PAGEMAP_ENTRIES];

	while (count && result == CUDA_SUCCESS) {
		size_t now = count < PAGEMAP_ENTRIES ? count : PAGEMAP_ENTRIES;

		populated(page_address(region, first), now, there);
		for (size_t i = 0; i < now && result == CUDA_SUCCESS;) {
			size_t run = 1;

			while (i + run < now && there[i + run] == there[i])
				run++;
			if (there[i])
				result = transfer(region, SEND, first + i, run, NULL);
			i += run;
		}
		first += now;
		count -= now;
	}
	return result;
}

/* Copies: what differs from what the GPU has. */
static CUresult send_changed(struct managed_region *region, size_t first, size_t count)
{
	const uint8_t *here = client_pointer(region->base);
	CUresult result = CUDA_SUCCESS;

	for (size_t i = first; i < first + count && result == CUDA_SUCCESS;) {
		size_t run = 0;

		while (i + run < first + count &&
		       memcmp(here + (i + run) * PAGE_BYTES, region->twin + (i + run) * PAGE_BYTES,
			      PAGE_BYTES) != 0)
			run++;
		if (run) {
			memcpy(region->twin + i * PAGE_BYTES, here + i * PAGE_BYTES, run * PAGE_BYTES);
			result = transfer(region, SEND, i, run, NULL);
		}
		i += run ? run : 1;
	}
	return result;
}

static uint32_t word(const uint8_t *bytes, size_t at)
{
	uint32_t value;

	memcpy(&value, bytes + at, sizeof(value));
	return value;
}

/* Pinned memory, paging: this process may write some words of a page while the GPU writes others, which
 * managed memory's rule forbids.  So of what came meanwhile only the words that were written travel. */
static CUresult send_words(struct managed_region *region, size_t first, size_t count)
{
	const uint8_t *here = client_pointer(region->base);
	size_t end = (first + count) * PAGE_BYTES;
	CUresult result = CUDA_SUCCESS;

	for (size_t at = first * PAGE_BYTES; at < end && result == CUDA_SUCCESS;) {
		size_t to = at;

		while (to < end && word(here, to) != word(region->twin, to))
			to += sizeof(uint32_t);
		if (to > at)
			result = client_home_send(region->home, region->base + at, to - at);
		at = to + sizeof(uint32_t);
	}
	return result;
}

static CUresult send_dirty(struct managed_region *region, size_t first, size_t count)
{
	size_t at = first * PAGE_BYTES;
	CUresult result = region->twin && region->provisional ? send_words(region, first, count)
							      : transfer(region, SEND, first, count, NULL);

	if (region->twin)
		memcpy(region->twin + at, client_pointer(region->base + at), count * PAGE_BYTES);
	return result;
}

static int drop(uint64_t address, uint64_t bytes)
{
	int rc = madvise(client_pointer(address), bytes, MADV_DONTNEED);

	/* The program has locked what it has (mlockall): the kernel drops no locked pages. */
	if (rc && errno == EINVAL && !munlock(client_pointer(address), bytes))
		rc = madvise(client_pointer(address), bytes, MADV_DONTNEED);
	return rc;
}

/* Pages of any state but FREE, registered where faults are served, are away from here on; who
 * touches them waits, or is wrong. */
static CUresult take_away(struct managed_region *region, size_t first, size_t count)
{
	uint64_t address = page_address(region, first), bytes = count * PAGE_BYTES;

	if (client_paging() ? drop(address, bytes) : mprotect(client_pointer(address), bytes, PROT_NONE))
		return CUDA_ERROR_OPERATING_SYSTEM;
	state_set(region, first, count, PAGE_AWAY);
	return CUDA_SUCCESS;
}

static const uint8_t zeros[PAGE_BYTES];

/* What the program itself has dropped (madvise) is zero, as with memory of its own.  To be read by
 * the holder of the lock it must be there: who would serve its fault waits for the lock. */
static CUresult refill_dropped(const struct managed_region *region, size_t first, size_t count)
{
	bool there[PAGEMAP_ENTRIES];

	while (count) {
		size_t now = count < PAGEMAP_ENTRIES ? count : PAGEMAP_ENTRIES;

		populated(page_address(region, first), now, there);
		for (size_t i = 0; i < now; i++)
			if (!there[i] &&
			    paging_fill(page_address(region, first + i), zeros, PAGE_BYTES, false))
				return CUDA_ERROR_OPERATING_SYSTEM;
		first += now;
		count -= now;
	}
	return CUDA_SUCCESS;
}

CUresult client_pages_flush(struct managed_region *region, size_t first, size_t count, bool keep)
{
	size_t end = first + count < region->warm_high ? first + count : region->warm_high;
	CUresult result = CUDA_SUCCESS;
	size_t begin, run;

	first = first > region->warm_low ? first : region->warm_low;
	for (size_t i = first; i < end && result == CUDA_SUCCESS; i += run) {
		run = state_run(region, i, end);
		switch (region->state[i]) {
		case PAGE_FRESH:
			/* Kept ones stay plain memory, and are sent again next time. */
			if (!keep)
				result = hold(region, i, run);
			if (result == CUDA_SUCCESS)
				result = send_fresh(region, i, run);
			break;
		case PAGE_DIRTY:
			if (!client_paging()) {
				result = send_changed(region, i, run);
				break;
			}
			result = refill_dropped(region, i, run);
			if (result == CUDA_SUCCESS)
				result = hold(region, i, run);
			if (result == CUDA_SUCCESS) {
				result = send_dirty(region, i, run);
				state_set(region, i, run, PAGE_CLEAN);
			}
			break;
		default:
			break;
		}
	}
	/* In as few calls of the kernel as there are stretches. */
	for (size_t i = first; i < end && result == CUDA_SUCCESS && !keep; i++) {
		if (!state_warm(region->state[i]))
			continue;
		for (begin = i; i < end && state_warm(region->state[i]); i++)
			;
		result = take_away(region, begin, i - begin);
	}
	return result;
}

void client_pages_drop(struct managed_region *region)
{
	size_t run;

	for (size_t i = region->warm_low; i < region->warm_high; i += run) {
		run = state_run(region, i, region->warm_high);
		/* What this process has written goes to what the GPU has. */
		if (region->mapped && region->state[i] == PAGE_DIRTY)
			client_pages_flush(region, i, run, true);
		if (region->state[i] == PAGE_CLEAN)
			take_away(region, i, run);
	}
	region->provisional = false;
}

void client_pages_doubt(void)
{
	for (size_t i = 0; client_paging() && i < client_pages_count(); i++) {
		struct managed_region *region = client_pages_at(i);

		region->provisional |= region->mapped && region->warm;
	}
}

/* ---- copies: everything comes back at once ---- */

CUresult client_pages_bring(struct managed_region *region, size_t first, size_t count)
{
	/* Later, they would come by a function that NVIDIA's driver calls behind those of the program. */
	enum transfer way = client_host_functions() ? FETCH : FETCH_LATER;
	CUresult result = CUDA_SUCCESS;
	size_t run;

	for (size_t i = first; i < first + count && result == CUDA_SUCCESS; i += run) {
		run = state_run(region, i, first + count);
		if (region->state[i] != PAGE_AWAY)
			continue;
		/* Still in the way, so that nobody sees them before they are whole. */
		result = transfer(region, way, i, run, region->twin + i * PAGE_BYTES);
		if (result == CUDA_SUCCESS)
			state_set(region, i, run, PAGE_CLEAN);
	}
	return result;
}

CUresult client_pages_bring_finish(void)
{
	CUresult result = client_homes_settle();

	for (size_t r = 0; r < client_pages_count(); r++) {
		struct managed_region *region = client_pages_at(r);
		struct client_session *session = region->home->context->session;
		size_t run;

		/* A server that says it is done has sent everything before. */
		if (result == CUDA_SUCCESS &&
		    client_target_owed(session, region->twin, region->pages * PAGE_BYTES)) {
			client_session_fail(session, -EPROTO);
			result = CUDA_ERROR_DEVICE_UNAVAILABLE;
		}

		for (size_t i = region->warm_low; i < region->warm_high; i += run) {
			uint64_t address = page_address(region, i);

			run = state_run(region, i, region->warm_high);
			if (region->state[i] != PAGE_CLEAN)
				continue;
			if (result != CUDA_SUCCESS ||
			    mprotect(client_pointer(address), run * PAGE_BYTES, PROT_READ | PROT_WRITE)) {
				state_set(region, i, run, PAGE_AWAY);
				continue;
			}
			memcpy(client_pointer(address), region->twin + i * PAGE_BYTES, run * PAGE_BYTES);
			state_set(region, i, run, PAGE_DIRTY);
		}
	}
	return result;
}

/* ---- paging: a page comes back when it is touched ---- */

/* The bytes are lost with the session: to touch them is a fault as of any memory that is
 * not there, and a system call says EFAULT. */
static void lose(struct managed_region *region, size_t first, size_t count)
{
	uint64_t address = page_address(region, first);

	if (!managed.lost_said)
		client_message("managed memory at %#llx was on the GPU, which can't be reached: touching "
			       "it ends the program", (unsigned long long)address);
	managed.lost_said = true;
	mprotect(client_pointer(address), count * PAGE_BYTES, PROT_NONE);
}

static bool same_attachment(const struct managed_region *region, size_t a, size_t b)
{
	const struct managed_block *one, *other;

	if (!region->block_count)
		return true;
	one = client_pages_block((struct managed_region *)region, a);
	other = client_pages_block((struct managed_region *)region, b);
	return one == other || (one && other && one->attach == other->attach &&
				one->stream == other->stream);
}

static void fault_missing(struct managed_region *region, size_t page, bool write)
{
	size_t end, run = page == region->next ? 2 * region->run : RUN_LEAST;
	uint64_t address = page_address(region, page);
	int rc;

	run = run > RUN_MOST ? RUN_MOST : run < RUN_LEAST ? RUN_LEAST : run;
	for (end = page; end < region->pages && end < page + run && region->state[end] == PAGE_AWAY &&
			 same_attachment(region, page, end); end++)
		;
	if (transfer(region, FETCH, page, end - page, managed.bounce) != CUDA_SUCCESS) {
		lose(region, page, 1);
		paging_wake(address, PAGE_BYTES);
		return;
	}
	region->next = end;
	region->run = run;
	if (region->twin)
		memcpy(region->twin + page * PAGE_BYTES, managed.bounce, (end - page) * PAGE_BYTES);
	if (client_active_any())
		region->provisional = true;
	/* The others first: who waits goes on with the last of it. */
	rc = end > page + 1 ? paging_fill(address + PAGE_BYTES, managed.bounce + PAGE_BYTES,
					  (end - page - 1) * PAGE_BYTES, true)
			    : 0;
	if (!rc)
		state_set(region, page + 1, end - page - 1, PAGE_CLEAN);
	rc = paging_fill(address, managed.bounce, PAGE_BYTES, !write);
	if (!rc)
		state_set(region, page, 1, write ? PAGE_DIRTY : PAGE_CLEAN);
	else
		paging_wake(address, PAGE_BYTES);
}

/* It was to be sent when the session was lost, or the program has dropped it. */
static void fault_fresh(const struct managed_region *region, size_t page)
{
	if (paging_fill(page_address(region, page), zeros, PAGE_BYTES, false))
		paging_wake(page_address(region, page), PAGE_BYTES);
}

/* A page that is here: another thread's fault has brought it meanwhile, or the program has dropped
 * it (madvise).  Then its bytes are the GPU's, or as with memory of its own, zero. */
static void fault_dropped(struct managed_region *region, size_t page, bool write)
{
	bool there;

	populated(page_address(region, page), 1, &there);
	if (there) {
		paging_wake(page_address(region, page), PAGE_BYTES);
	} else if (region->state[page] == PAGE_CLEAN) {
		state_set(region, page, 1, PAGE_AWAY);
		fault_missing(region, page, write);
	} else {
		fault_fresh(region, page);
	}
}

/* A page that is to be written becomes DIRTY, and so do those behind it when that goes on. */
static void fault_protected(struct managed_region *region, size_t page)
{
	size_t end, run = page == region->next_write ? 2 * region->write_run : 1;

	run = run > RUN_MOST ? RUN_MOST : run;
	for (end = page; end < region->pages && end < page + run && region->state[end] == PAGE_CLEAN; end++)
		;
	if (end == page) {
		if (region->state[page] == PAGE_DIRTY || region->state[page] == PAGE_FRESH)
			paging_protect(page_address(region, page), PAGE_BYTES, false);
		paging_wake(page_address(region, page), PAGE_BYTES);
		return;
	}
	state_set(region, page, end - page, PAGE_DIRTY);
	region->next_write = end;
	region->write_run = run;
	paging_protect(page_address(region, page), (end - page) * PAGE_BYTES, false);
}

/* A thread waits for this page.  Called without a lock. */
static void page_fault(uint64_t address, bool write, bool protected_page)
{
	struct managed_region *region;

	client_pages_lock();
	region = client_pages_find(address);
	if (region) {
		size_t page = (address - region->base) / PAGE_BYTES;

		if (protected_page)
			fault_protected(region, page);
		else if (region->state[page] == PAGE_AWAY)
			fault_missing(region, page, write);
		else if (region->state[page] == PAGE_FRESH)
			fault_fresh(region, page);
		else if (region->state[page] != PAGE_FREE)
			fault_dropped(region, page, write);
		else
			paging_wake(page_address(region, page), PAGE_BYTES);
	} else {
		paging_wake(address & ~(PAGE_BYTES - 1), PAGE_BYTES);
	}
	client_pages_unlock();
}

int client_pages_start(void)
{
	const char *wanted = getenv("FARBUS_MANAGED_MEMORY");
	bool any = wanted && strcmp(wanted, "paging") == 0;
	bool copies = wanted && strcmp(wanted, "copies") == 0;

	if (managed.started)
		return 0;
	managed.bounce = mmap(NULL, RUN_MOST * PAGE_BYTES, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (managed.bounce == MAP_FAILED)
		return -ENOMEM;
	managed.pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (!copies && paging_open(any, page_fault) == 0) {
		atomic_store(&farbus_client.paging, true);
		for (unsigned i = 0; i < farbus_client.session_count; i++)
			client_session_unlead(&farbus_client.sessions[i]);
	}
	managed.started = true;
	return 0;
}

CUresult client_pages_fresh(struct managed_region *region, size_t first, size_t count)
{
	uint64_t address = page_address(region, first), bytes = count * PAGE_BYTES;
	CUresult result;

	if (client_pages_map(address, bytes, PROT_READ | PROT_WRITE))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = client_home_clear(region->home, address, bytes);
	if (result == CUDA_SUCCESS)
		result = client_homes_sent();
	if (result == CUDA_SUCCESS)
		state_set(region, first, count, PAGE_FRESH);
	else
		client_pages_map(address, bytes, PROT_NONE);
	return result;
}

CUresult client_pages_known(struct managed_region *region)
{
	if (client_pages_map(region->base, region->pages * PAGE_BYTES, PROT_READ | PROT_WRITE))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (client_paging() && paging_register(region->base, region->pages * PAGE_BYTES))
		return CUDA_ERROR_OPERATING_SYSTEM;
	state_set(region, 0, region->pages, PAGE_CLEAN);
	return take_away(region, 0, region->pages);
}

void client_pages_free(struct managed_region *region, size_t first, size_t count)
{
	client_pages_map(page_address(region, first), count * PAGE_BYTES, PROT_NONE);
	if (client_paging())
		paging_wake(page_address(region, first), count * PAGE_BYTES);
	state_set(region, first, count, PAGE_FREE);
	if (region->twin)
		madvise(region->twin + first * PAGE_BYTES, count * PAGE_BYTES, MADV_DONTNEED);
}
