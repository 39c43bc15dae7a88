/*
 * Min-cost flow of one phase's network.
 *
 * Arrays are int64_t, as NumPy has them; nothing is kept between calls.
 */
#ifndef SCHEDULER_FLOW_H
#define SCHEDULER_FLOW_H

#include <stdint.h>

/* One entry per arc in tail, head, capacity and cost, one per node in supply; a node with
 * negative supply is a sink.  Parallel arcs and negative costs are allowed. */
struct flow_network {
	int64_t nodes;
	int64_t arcs;
	const int64_t *tail;
	const int64_t *head;
	const int64_t *capacity;
	const int64_t *cost;
	const int64_t *supply;
	/* Largest product of the greatest cost and the number of nodes plus one; at most 2^60. */
	int64_t cost_budget;
	/* Largest sum of supplies; at most 2^31. */
	int64_t max_flow;
	/* Arcs priced and nodes moved, together, after which it gives up. */
	int64_t work;
};

/* What a solve came to. */
struct flow_effort {
	int64_t pivots;
	/* Arcs priced and nodes moved. */
	int64_t work;
};

/*
 * Writes units per arc of a flow of least cost that moves all supplies.  The same network gives
 * the same flow.  Returns 0, or with units undefined
 *	-EINVAL	an index, a capacity or the sum of supplies is wrong
 *	-ERANGE	a cost or the sum of supplies is beyond its limit
 *	-ENOENT	no flow moves all supplies
 *	-ETIME	the work is used up
 *	-ENOMEM
 */
int flow_solve(const struct flow_network *network, int64_t *units, struct flow_effort *effort);

#endif
