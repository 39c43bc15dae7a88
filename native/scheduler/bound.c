/*
 * Lagrangian relaxation of capacities, its prices raised by Polyak's steps (Fisher: The
 * Lagrangian relaxation method for solving integer programming problems, Management Science
 * 27(1), 1981).
 */
#include "bound.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A way for units of one source: an arc, or, of no place, what lies beyond those that were left out. */
struct way {
	double base; /* what a unit costs without prices */
	int64_t capacity;
	int32_t place; /* -1 for none */
	int32_t tier;
};

struct value {
	double cost; /* with prices */
	int32_t way;
};

struct climb {
	const struct bound_problem *problem;
	struct way *way;
	int32_t *start;       /* of each source's ways */
	int32_t *class_start; /* of each source's classes */
	struct value *value;  /* as many as one source has ways, at most, twice */
	int64_t *sum;         /* by place */
	/* Places x R and T: prices now and at the best bound, and what is used beyond what there is, */
	double *here, *best_here, *over;
	double *whole, *best_whole, *over_whole;
};

/* Non-negative numbers have the order of their bits. */
static uint64_t digits(double cost)
{
	uint64_t bits;

	memcpy(&bits, &cost, sizeof(bits));
	return bits;
}

/* Sorts by cost, and those of equal cost as they came; returns where the sorted ones are, of the two. */
static struct value *values_sort(struct value *from, struct value *to, int32_t count)
{
	enum { BITS = 11, DIGITS = 1 << BITS };
	uint64_t all = ~UINT64_C(0), any = 0;

	if (count < 48) {
		for (int32_t row = 1; row < count; row++) {
			struct value moved = from[row];
			int32_t at = row;

			for (; at > 0 && from[at - 1].cost > moved.cost; at--)
				from[at] = from[at - 1];
			from[at] = moved;
		}
		return from;
	}
	for (int32_t row = 0; row < count; row++) {
		all &= digits(from[row].cost);
		any |= digits(from[row].cost);
	}
	for (int shift = 0; shift < 64; shift += BITS) {
		int32_t start[DIGITS] = {0}, sum = 0;

		/* Digits that are the same in all change nothing. */
		if (!((all ^ any) >> shift & (DIGITS - 1)))
			continue;
		for (int32_t row = 0; row < count; row++)
			start[digits(from[row].cost) >> shift & (DIGITS - 1)]++;
		for (int32_t digit = 0; digit < DIGITS; digit++) {
			int32_t length = start[digit];

			start[digit] = sum;
			sum += length;
		}
		for (int32_t row = 0; row < count; row++)
			to[start[digits(from[row].cost) >> shift & (DIGITS - 1)]++] = from[row];
		struct value *swap = from;

		from = to;
		to = swap;
	}
	return from;
}

static int problem_check(const struct bound_problem *p)
{
	if (p->sources < 0 || p->arcs < 0 || p->places < 0 || p->resources < 0 || p->commons < 0 || p->tiers < 1 ||
	    p->classes < 0 || p->arcs + p->sources > INT32_MAX / 2 || p->places > INT32_MAX / 2)
		return -EINVAL;
	for (int64_t arc = 0; arc < p->arcs; arc++) {
		const struct table_arc *a = &p->arc[arc];

		if (a->source < 0 || a->source >= p->sources || a->place < 0 || a->place >= p->places ||
		    a->tier < 0 || a->tier >= p->tiers || a->capacity < 0)
			return -EINVAL;
	}
	for (int64_t row = 0; row < p->classes; row++)
		if (p->class_source[row] < (row ? p->class_source[row - 1] : 0) || p->class_source[row] >= p->sources)
			return -EINVAL;
	return 0;
}

/* Lays ways out source by source, in the order of arcs. */
static void climb_prepare(struct climb *c)
{
	const struct bound_problem *p = c->problem;
	int32_t sum = 0, row = 0;

	for (int64_t arc = 0; arc < p->arcs; arc++)
		c->start[p->arc[arc].source]++;
	for (int64_t source = 0; source <= p->sources; source++) {
		int32_t count = c->start[source];

		c->start[source] = sum;
		sum += count + (source < p->sources && p->beyond[source] < p->no_arc);
		while (row < p->classes && p->class_source[row] < source)
			row++;
		c->class_start[source] = row;
	}
	for (int64_t arc = 0; arc < p->arcs; arc++) {
		const struct table_arc *a = &p->arc[arc];

		c->way[c->start[a->source]++] =
			(struct way){(double)a->cost, a->capacity, (int32_t)a->place, (int32_t)a->tier};
	}
	for (int64_t source = 0; source < p->sources; source++)
		if (p->beyond[source] < p->no_arc)
			c->way[c->start[source]++] = (struct way){(double)p->beyond[source], p->units[source], -1, 0};
	/* What was counted up to the end of each source is where the next one begins. */
	memmove(c->start + 1, c->start, (size_t)p->sources * sizeof(*c->start));
	c->start[0] = 0;
	/* A place takes no more of a source than by all its tiers together; a unit may be served from afar where there
	 * were only near arcs. */
	for (int64_t source = 0; source < p->sources; source++) {
		struct way *end = c->way + c->start[source + 1];

		for (struct way *way = c->way + c->start[source]; way < end; way++)
			if (way->place >= 0)
				c->sum[way->place] = 0;
		for (struct way *way = c->way + c->start[source]; way < end; way++)
			if (way->place >= 0)
				c->sum[way->place] += way->capacity;
		for (struct way *way = c->way + c->start[source]; way < end; way++)
			if (way->place >= 0 && way->tier > 0)
				way->capacity = c->sum[way->place];
	}
}

static double product(const double *a, const double *b, int64_t count)
{
	double sum = 0;

	for (int64_t row = 0; row < count; row++)
		sum += a[row] * b[row];
	return sum;
}

static void add(double *to, const double *what, double times, int64_t count)
{
	for (int64_t row = 0; row < count; row++)
		to[row] += times * what[row];
}

/*
 * Serves one source by the cheapest ways at these prices, the units first that are dearest to
 * leave; who waits for less than any way costs does.  Returns what that costs.
 */
static double source_relax(struct climb *c, int32_t source)
{
	const struct bound_problem *p = c->problem;
	const double *share = p->share + source * p->commons;
	double common = product(share, c->whole, p->commons), cost = 0;
	int32_t ways = c->start[source + 1] - c->start[source];
	int64_t left = p->units[source] < p->limit[source] ? p->units[source] : p->limit[source];

	for (int32_t row = 0; row < ways; row++) {
		const struct way *way = &c->way[c->start[source] + row];
		double value = way->base + common;

		if (way->place >= 0)
			value += product(c->here + way->place * p->resources,
					 p->need + (source * p->tiers + way->tier) * p->resources, p->resources);
		c->value[row] = (struct value){value, c->start[source] + row};
	}
	struct value *value = values_sort(c->value, c->value + ways, ways), *end = value + ways;
	int64_t taken = 0;

	for (int32_t row = c->class_start[source]; row < c->class_start[source + 1]; row++) {
		int64_t count = p->class_count[row];
		double price = (double)p->class_price[row];

		while (count > 0) {
			while (value < end && taken == c->way[value->way].capacity) {
				value++;
				taken = 0;
			}
			if (value == end || left == 0 || value->cost >= price)
				break;
			const struct way *way = &c->way[value->way];
			int64_t units = way->capacity - taken;

			units = units < count ? units : count;
			units = units < left ? units : left;
			cost += (double)units * value->cost;
			add(c->over_whole, share, (double)units, p->commons);
			if (way->place >= 0)
				add(c->over + way->place * p->resources,
				    p->need + (source * p->tiers + way->tier) * p->resources, (double)units,
				    p->resources);
			taken += units;
			left -= units;
			count -= units;
		}
		cost += (double)count * price;
	}
	return cost;
}

/* Returns the least cost at these prices; over says by how much it exceeds what there is. */
static double climb_relax(struct climb *c)
{
	const struct bound_problem *p = c->problem;
	double cost = 0;

	for (int64_t row = 0; row < p->places * p->resources; row++)
		c->over[row] = -p->room[row];
	for (int64_t row = 0; row < p->commons; row++)
		c->over_whole[row] = -p->stock[row];
	for (int32_t source = 0; source < p->sources; source++)
		cost += source_relax(c, source);
	return cost - product(c->here, p->room, p->places * p->resources) - product(c->whole, p->stock, p->commons);
}

/* Returns the square of the length of a step; what is not exceeded and costs nothing has nowhere to go. */
static double square(const double *price, double *over, int64_t count)
{
	for (int64_t row = 0; row < count; row++)
		if (price[row] <= 0 && over[row] <= 0)
			over[row] = 0;
	return product(over, over, count);
}

static void advance(double *price, const double *over, double by, int64_t count)
{
	for (int64_t row = 0; row < count; row++) {
		price[row] += by * over[row];
		if (price[row] < 0)
			price[row] = 0;
	}
}

static double climb_run(struct climb *c)
{
	const struct bound_problem *p = c->problem;
	int64_t prices = p->places * p->resources, idle = 0;
	size_t bytes = (size_t)prices * sizeof(double), whole_bytes = (size_t)p->commons * sizeof(double);
	double best = 0, length = 1;

	for (int64_t step = 0;; step++) {
		double value = climb_relax(c);

		if (step == 0 || value > best + 0.5) {
			best = value;
			memcpy(c->best_here, c->here, bytes);
			memcpy(c->best_whole, c->whole, whole_bytes);
			idle = 0;
		} else if (++idle >= p->patience) {
			length /= 2;
			idle = 0;
			memcpy(c->here, c->best_here, bytes);
			memcpy(c->whole, c->best_whole, whole_bytes);
		}
		double norm = square(c->here, c->over, prices) + square(c->whole, c->over_whole, p->commons);

		if (p->score - value < 1 || norm <= 0 || length < p->least || step + 1 >= p->steps)
			return best;
		advance(c->here, c->over, length * (p->score - value) / norm, prices);
		advance(c->whole, c->over_whole, length * (p->score - value) / norm, p->commons);
	}
}

int bound_climb(const struct bound_problem *problem, double *place_price, double *common_price, double *bound)
{
	int status = problem_check(problem);

	if (status < 0)
		return status;
	size_t ways = (size_t)(problem->arcs + problem->sources), prices = (size_t)(problem->places * problem->resources);
	struct climb c = {
		.problem = problem,
		.way = malloc((ways + 1) * sizeof(*c.way)),
		.start = calloc((size_t)problem->sources + 2, sizeof(*c.start)),
		.class_start = calloc((size_t)problem->sources + 2, sizeof(*c.class_start)),
		.value = malloc(2 * (ways + 1) * sizeof(*c.value)),
		.sum = malloc(((size_t)problem->places + 1) * sizeof(*c.sum)),
		.here = calloc(2 * prices + 1, sizeof(double)),
		.whole = calloc(2 * (size_t)problem->commons + 1, sizeof(double)),
		.best_here = place_price,
		.best_whole = common_price,
	};

	if (c.way && c.start && c.class_start && c.value && c.sum && c.here && c.whole) {
		c.over = c.here + prices;
		c.over_whole = c.whole + problem->commons;
		memcpy(c.here, place_price, prices * sizeof(double));
		memcpy(c.whole, common_price, (size_t)problem->commons * sizeof(double));
		climb_prepare(&c);
		*bound = climb_run(&c);
	} else {
		status = -ENOMEM;
	}
	free(c.way);
	free(c.start);
	free(c.class_start);
	free(c.value);
	free(c.sum);
	free(c.here);
	free(c.whole);
	return status;
}
