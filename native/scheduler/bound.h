/*
 * Lower bound of a round: subgradient steps on the prices of what places and the cluster have
 * (farbus/scheduler/phases/bound.py says what is bounded).
 */
#ifndef SCHEDULER_BOUND_H
#define SCHEDULER_BOUND_H

#include "tables.h"

#include <stdint.h>

struct bound_problem {
	int64_t sources;
	int64_t arcs;
	int64_t places;
	int64_t resources; /* R, of a place */
	int64_t commons;   /* T, of the cluster */
	int64_t tiers;
	int64_t classes;
	const struct table_arc *arc; /* place is a row of room */
	/* By source: units wanted, and how many can be served; what any arc that was left out costs at
	 * least, no_arc where there is none. */
	const int64_t *units;
	const int64_t *limit;
	const int64_t *beyond;
	int64_t no_arc;
	/* By source and price, the dearest first: units, and the price of each that waits. */
	const int64_t *class_source;
	const int64_t *class_count;
	const int64_t *class_price;
	const double *room;  /* places x R */
	const double *stock; /* T */
	const double *need;  /* sources x tiers x R: what a unit uses of its place */
	const double *share; /* sources x T: what it uses of the cluster */
	/* The score of a plan, which steps aim at; how many there are at most, and after how many without
	 * a better bound they become half as long, down to least. */
	double score;
	int64_t steps;
	int64_t patience;
	double least;
};

/*
 * Begins at the prices given, places x R and T, none negative, and writes those of the best bound; returns 0 and
 * the bound; or
 *	-EINVAL	an index is outside of its range
 *	-ENOMEM
 */
int bound_climb(const struct bound_problem *problem, double *place_price, double *common_price, double *bound);

#endif
