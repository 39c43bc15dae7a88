#include "market.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int64_t lesser(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* ---- the cheapest arcs ---- */

struct candidate {
	int64_t cost;
	int32_t offer;
	int32_t row;
	bool kept;
};

enum { FEW_CANDIDATES = 256 };

struct choosing {
	struct candidate *found;
	int32_t *order; /* of the candidates, by cost */
	int32_t *spare;
	int32_t count;
};

static void choosing_release(struct choosing *c)
{
	free(c->found);
	free(c->order);
	free(c->spare);
	c->found = NULL;
	c->order = c->spare = NULL;
}

static int64_t block_end(int64_t places, int64_t first)
{
	return lesser(first + MARKET_BLOCK, places);
}

static bool block_is_of_use(const struct market_offer *offer, int64_t first, int64_t bound)
{
	return !offer->least || offer->least[first / MARKET_BLOCK] <= bound;
}

/* Notes the arcs that cost no more than bound: by tier and place. */
static int choosing_find(struct choosing *c, const struct market_choice *choice, int64_t bound)
{
	size_t count = 1;

	for (int32_t number = 0; number < choice->offers; number++) {
		const struct market_offer *offer = &choice->offer[number];

		for (int64_t first = 0; first < offer->places; first += MARKET_BLOCK)
			if (block_is_of_use(offer, first, bound))
				for (int64_t row = first; row < block_end(offer->places, first); row++)
					count += offer->cost[row] <= bound;
	}
	choosing_release(c);
	if (count > INT32_MAX)
		return -ENOMEM;
	c->found = malloc(count * sizeof(*c->found));
	c->order = malloc(count * sizeof(*c->order));
	c->spare = malloc(count * sizeof(*c->spare));
	if (!c->found || !c->order || !c->spare)
		return -ENOMEM;
	c->count = 0;
	for (int32_t number = 0; number < choice->offers; number++) {
		const struct market_offer *offer = &choice->offer[number];
		const int64_t *cost = offer->cost;

		for (int64_t first = 0; first < offer->places; first += MARKET_BLOCK)
			if (block_is_of_use(offer, first, bound))
				for (int64_t row = first; row < block_end(offer->places, first); row++)
					if (cost[row] <= bound)
						c->found[c->count++] =
							(struct candidate){cost[row], number, (int32_t)row, false};
	}
	return 0;
}

/* Sorts the candidates by cost, those of equal cost as they were found. */
static void choosing_sort(struct choosing *c)
{
	enum { BITS = 11, DIGITS = 1 << BITS };
	const struct candidate *found = c->found;
	int64_t least = INT64_MAX, most = INT64_MIN;

	for (int32_t at = 0; at < c->count; at++) {
		c->order[at] = at;
		if (found[at].cost < least)
			least = found[at].cost;
		if (found[at].cost > most)
			most = found[at].cost;
	}
	for (int shift = 0; c->count && shift < 64 && ((uint64_t)most - (uint64_t)least) >> shift; shift += BITS) {
		int32_t start[DIGITS] = {0}, sum = 0, *sorted = c->spare;

		for (int32_t at = 0; at < c->count; at++)
			start[((uint64_t)found[c->order[at]].cost - (uint64_t)least) >> shift & (DIGITS - 1)]++;
		for (int32_t digit = 0; digit < DIGITS; digit++) {
			int32_t length = start[digit];

			start[digit] = sum;
			sum += length;
		}
		for (int32_t at = 0; at < c->count; at++) {
			int32_t row = c->order[at];

			sorted[start[((uint64_t)found[row].cost - (uint64_t)least) >> shift & (DIGITS - 1)]++] = row;
		}
		c->spare = c->order;
		c->order = sorted;
	}
}

/* Keeps as many of the cheapest as are needed; returns how many, and whether these were enough. */
static int32_t choosing_keep(struct choosing *c, const struct market_choice *choice, bool *complete)
{
	int64_t held = 0, spare = choice->spare;
	int32_t kept = 0;

	for (; kept < c->count && (held < choice->units || spare > 0); kept++) {
		struct candidate *row = &c->found[c->order[kept]];
		int64_t capacity = choice->offer[row->offer].capacity[row->row];

		row->kept = true;
		if (held >= choice->units)
			spare--;
		else
			held += lesser(capacity, choice->units);
	}
	*complete = held >= choice->units && spare == 0;
	return kept;
}

int64_t market_choose(struct market_choice *choice, int64_t room, struct table_arc *arc)
{
	int64_t bound = choice->offers ? 0 : choice->no_arc - 1, written = 0;
	struct choosing c = {0};
	int32_t kept = 0;
	bool complete;

	for (int64_t number = 0; number < choice->offers; number++)
		if (choice->offer[number].bound > bound)
			bound = lesser(choice->offer[number].bound, choice->no_arc - 1);
	for (;;) {
		if (choosing_find(&c, choice, bound) < 0) {
			choosing_release(&c);
			return -ENOMEM;
		}
		choosing_sort(&c);
		kept = choosing_keep(&c, choice, &complete);
		if (complete || bound == choice->no_arc - 1)
			break;
		bound = choice->no_arc - 1;
	}
	/* Some more than was needed, so that the bound lasts for some rounds; few are no work, and the next network may
	 * want more units. */
	int32_t wanted = kept > FEW_CANDIDATES / 2 ? 2 * kept : FEW_CANDIDATES;

	if (complete && c.count / 2 > wanted)
		bound = c.found[c.order[wanted]].cost;
	for (int64_t number = 0; number < choice->offers; number++)
		choice->offer[number].bound = bound;
	choice->complete = complete;
	if (kept) {
		choice->cost = c.found[c.order[kept - 1]].cost;
		choice->tier = choice->offer[c.found[c.order[kept - 1]].offer].tier;
	}
	for (int32_t at = 0; at < c.count && kept <= room; at++) {
		const struct candidate *row = &c.found[at];
		const struct market_offer *offer = &choice->offer[row->offer];

		if (row->kept)
			arc[written++] = (struct table_arc){choice->source, offer->place[row->row], offer->tier,
							    offer->capacity[row->row], row->cost};
	}
	choosing_release(&c);
	return kept <= room ? written : -ENOSPC;
}

int64_t market_write(struct market_columns *columns, int64_t count, const int64_t *at, const int64_t *capacity,
		     const int64_t *cost)
{
	for (int64_t row = 0; row < count; row++)
		if (at[row] < 0 || at[row] >= columns->places)
			return -EINVAL;
	for (int64_t row = 0; row < count; row++) {
		int64_t old = columns->cost[at[row]], new = capacity[row] > 0 ? cost[row] : columns->no_arc;

		columns->capacity[at[row]] = capacity[row];
		columns->cost[at[row]] = new;
		if (!columns->least)
			continue;
		int64_t *least = &columns->least[at[row] / MARKET_BLOCK];

		if (new <= *least) {
			*least = new;
		} else if (old == *least) {
			int64_t first = at[row] / MARKET_BLOCK * MARKET_BLOCK;

			*least = new;
			for (int64_t other = first; other < block_end(columns->places, first); other++)
				*least = lesser(*least, columns->cost[other]);
		}
	}
	return 0;
}

/* ---- places ---- */

int64_t market_places(int64_t size, int64_t arcs, const struct table_arc *arc, int64_t *place, int64_t *row)
{
	if (size < 0 || size > INT32_MAX)
		return -EINVAL;
	/* One bit for each place, and how many there are before each word of them. */
	size_t words = (size_t)size / 64 + 1;
	uint64_t *named = calloc(words, sizeof(*named));
	int32_t *before = malloc(words * sizeof(*before));
	int64_t count = -ENOMEM;

	if (!named || !before)
		goto end;
	count = -EINVAL;
	for (int64_t at = 0; at < arcs; at++) {
		if (arc[at].place < 0 || arc[at].place >= size)
			goto end;
		named[arc[at].place / 64] |= UINT64_C(1) << arc[at].place % 64;
	}
	count = 0;
	for (size_t word = 0; word < words; word++) {
		before[word] = (int32_t)count;
		for (uint64_t left = named[word]; left; left &= left - 1)
			place[count++] = (int64_t)word * 64 + __builtin_ctzll(left);
	}
	for (int64_t at = 0; at < arcs; at++) {
		int64_t word = arc[at].place / 64;
		uint64_t lower = (UINT64_C(1) << arc[at].place % 64) - 1;

		row[at] = before[word] + __builtin_popcountll(named[word] & lower);
	}
end:
	free(named);
	free(before);
	return count;
}

/* ---- the network ---- */

static bool plan_is_sound(const struct market_plan *p)
{
	if (p->own < 0 || p->own > p->arcs || p->units < 0)
		return false;
	for (int64_t at = 0; at < p->arcs; at++) {
		int64_t source = p->arc[at].source;

		if (p->row[at] < 0 || p->row[at] >= p->places || source < 0 ||
		    source >= (at < p->own ? p->sources : p->pools))
			return false;
	}
	for (int64_t at = 0; at < p->sources; at++)
		if (p->node[at] < 0 || p->node[at] >= p->first_pool + p->pools)
			return false;
	for (int64_t at = 0; at < p->joins; at++)
		if (p->join[at] < 0 || p->join[at] >= p->sources || p->join_pool[at] < 0 ||
		    p->join_pool[at] >= p->first_pool + p->pools)
			return false;
	for (int64_t at = 0; at < p->claims; at++)
		if (p->claim_source[at] < 0 || p->claim_source[at] >= p->sources)
			return false;
	return true;
}

/* Raises room to what arcs of one source say together of each place: the rows of arcs from at up to end. */
static void room_raise(const struct market_plan *p, int64_t at, int64_t end, const int64_t *capacity, int64_t *sum,
		       int64_t *room)
{
	for (int64_t row = at; row < end; row++)
		sum[p->row[row]] += capacity[row];
	for (int64_t row = at; row < end; row++) {
		int64_t place = p->row[row];

		if (sum[place] > room[place])
			room[place] = sum[place];
	}
	for (int64_t row = at; row < end; row++)
		sum[p->row[row]] = 0;
}

int market_lay_out(const struct market_plan *p, int64_t *room, int64_t *tail, int64_t *head, int64_t *capacity,
		   int64_t *cost, int64_t *supply)
{
	int64_t first_place = p->first_pool + p->pools, sink = first_place + p->places, next = 0;

	if (!plan_is_sound(p))
		return -EINVAL;
	/* By place, and then by source. */
	int64_t *sum = calloc((size_t)(p->places + p->sources) + 1, sizeof(*sum));
	int64_t *supplied = sum ? sum + p->places : NULL;

	if (!sum)
		return -ENOMEM;
	for (; next < p->arcs; next++) {
		const struct table_arc *arc = &p->arc[next];

		tail[next] = next < p->own ? p->node[arc->source] : p->first_pool + arc->source;
		head[next] = first_place + p->row[next];
		capacity[next] = lesser(arc->capacity, p->units);
		cost[next] = arc->cost;
	}
	/* One source may have arcs of several tiers to one place. */
	for (int64_t at = 0, end; at < p->arcs; at = end) {
		bool own = at < p->own;

		for (end = at + 1; end < (own ? p->own : p->arcs) && p->arc[end].source == p->arc[at].source;)
			end++;
		if (own || p->summed[p->arc[at].source])
			room_raise(p, at, end, capacity, sum, room);
	}
	for (int64_t place = 0; place < p->places; place++, next++) {
		tail[next] = first_place + place;
		head[next] = sink;
		capacity[next] = lesser(room[place], p->units);
		cost[next] = 0;
	}
	memset(supply, 0, ((size_t)sink + 1) * sizeof(*supply));
	for (int64_t claim = 0; claim < p->claims; claim++) {
		int64_t count = p->claim_count[claim], source = p->claim_source[claim];

		supplied[source] += count;
		supply[p->node[source]] += count;
		supply[sink] -= count;
	}
	for (int64_t join = 0; join < p->joins; join++, next++) {
		tail[next] = p->node[p->join[join]];
		head[next] = p->join_pool[join];
		capacity[next] = supplied[p->join[join]];
		cost[next] = 0;
	}
	for (int64_t claim = 0; claim < p->claims; claim++, next++) {
		tail[next] = p->node[p->claim_source[claim]];
		head[next] = sink;
		capacity[next] = p->claim_count[claim];
		cost[next] = 0;
	}
	free(sum);
	return 0;
}
