/*
 * The network of one phase: which arcs of an aggregator are kept, and how all are laid out
 * (farbus/scheduler/phases/market.py).
 */
#ifndef SCHEDULER_MARKET_H
#define SCHEDULER_MARKET_H

#include "tables.h"

#include <stdint.h>

enum { MARKET_BLOCK = 16 };

/* Arcs of an aggregator to rows of places, ascending; there is none where cost is no_arc. */
struct market_offer {
	int64_t tier;
	int64_t places;
	const int64_t *place;
	const int64_t *capacity;
	const int64_t *cost;
	/* Of each block of MARKET_BLOCK rows the least cost, so that most rows need no look; NULL where nobody knows. */
	const int64_t *least;
	/* What no arc that was of use last time cost more than; the greatest one is where the search begins.
	 * Written. */
	int64_t bound;
};

/* The cheapest arcs of offers. */
struct market_choice {
	int64_t offers; /* by tier */
	struct market_offer *offer;
	int64_t no_arc;
	int64_t source; /* what to write there */
	/* Units that the arcs are to hold, of which one place counts no more than all; how many more arcs are kept. */
	int64_t units;
	int64_t spare;
	/* Written: whether that was reached, and cost and tier of the dearest arc that is kept. */
	int64_t complete;
	int64_t cost;
	int64_t tier;
};

/*
 * Writes the cheapest arcs, by cost, tier and place, of which all together hold the units, and
 * the spare ones; all arcs where they do not.  They are written by tier and place.  Returns their
 * number, -ENOSPC where there is no room for them, or -ENOMEM.
 */
int64_t market_choose(struct market_choice *choice, int64_t room, struct table_arc *arc);

/* Columns of an offer, as above, which are written to. */
struct market_columns {
	int64_t places;
	int64_t *capacity;
	int64_t *cost;
	int64_t *least; /* may be NULL */
	int64_t no_arc;
};

/*
 * Replaces the arcs of rows at, each once, by such of capacity and cost; there is none where the
 * capacity is 0.  Returns 0, or -EINVAL where a row is not there: then nothing has changed.
 */
int64_t market_write(struct market_columns *columns, int64_t count, const int64_t *at, const int64_t *capacity,
		     const int64_t *cost);

/*
 * Writes the different places of arcs, ascending, and the row of each arc's place among them.
 * Places are below size.  Returns their number, or -EINVAL or -ENOMEM.
 */
int64_t market_places(int64_t size, int64_t arcs, const struct table_arc *arc, int64_t *place, int64_t *row);

/* What a network is laid out from: nodes are sources with arcs of their own, pools, places, and the sink. */
struct market_plan {
	int64_t sources;
	int64_t pools;
	int64_t places;
	int64_t first_pool; /* node of the first pool */
	int64_t units;
	/* Own arcs, source by source, then those of the pools, whose source is the pool; row of each one's place. */
	int64_t own;
	int64_t arcs;
	const struct table_arc *arc;
	const int64_t *row;
	const int64_t *node; /* by source, where its units enter */
	/* By pool, whether a place takes of it no more than its arcs say together. */
	const int64_t *summed;
	/* Sources that have arcs and a pool, and the nodes of their pools. */
	int64_t joins;
	const int64_t *join;
	const int64_t *join_pool;
	/* Who may wait: sources, and units. */
	int64_t claims;
	const int64_t *claim_source;
	const int64_t *claim_count;
};

/*
 * Writes arcs + places + joins + claims arcs of a network: to places, from these to the sink, to
 * pools, and for those who wait, whose costs are left to the caller; and the supply of each node.
 * room has units that each place could take of the pools that are not summed; it is raised to what
 * fits in all.  Returns 0, -EINVAL or -ENOMEM.
 */
int market_lay_out(const struct market_plan *plan, int64_t *room, int64_t *tail, int64_t *head, int64_t *capacity,
		   int64_t *cost, int64_t *supply);

#endif
