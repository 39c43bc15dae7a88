/*
 * Primal network simplex (Ahuja, Magnanti, Orlin: Network Flows, 1993, chapter 11).
 *
 * A basis is a spanning tree, hung from a root.  It is kept strongly feasible: from every node
 * some flow can be sent to the root along the tree, so that pivots that move no flow can't go
 * round in circles (section 11.6).  The entering arc is the best of a block of arcs, blocks are
 * looked at in turn (section 11.5).
 *
 * The first tree is made from a flow: arcs are filled by cost, as far as the ends allow.  What
 * phases ask for is a few pools and many places, each with one arc to the sink; there this flow
 * is close to the least cost, and simplex mends the rest.
 */
#include "flow.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Arcs in a block: enough for a good choice, few enough to be quick where most are bad. */
#define LEAST_BLOCK 32

/* FIXED: it has no room. */
enum state { UPPER = -1, TREE = 0, FIXED = 0, LOWER = 1 };

/* In place of a capacity: more than can flow. */
#define LIMIT (INT64_MAX / 2)

struct node {
	int64_t potential;
	int32_t parent;
	int32_t arc; /* to or from the parent */
	int32_t depth;
	/* Children of one node are a list in both directions. */
	int32_t child;
	int32_t next;
	int32_t previous;
};

struct arc {
	int64_t cost;
	int32_t tail;
	int32_t head;
};

struct simplex {
	int32_t nodes; /* with the root */
	int32_t arcs;  /* of the network; that between node n and the root is arcs + n */
	int32_t root;
	struct node *node;
	struct arc *arc;
	int64_t *capacity;
	int64_t *flow;
	int8_t *state;
	int32_t block;
	int32_t turn; /* where the next block begins */
	int64_t work;
	int64_t pivots;
};

static int64_t lesser(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* ---- the tree ---- */

static void tree_attach(struct simplex *s, int32_t child, int32_t parent, int32_t arc)
{
	struct node *n = &s->node[child];

	assert(child >= 0 && child < s->nodes && parent >= 0 && parent < s->nodes && child != parent);
	assert(s->arc[arc].tail == child ? s->arc[arc].head == parent
					 : s->arc[arc].tail == parent && s->arc[arc].head == child);
	n->parent = parent;
	n->arc = arc;
	n->previous = -1;
	n->next = s->node[parent].child;
	if (n->next >= 0)
		s->node[n->next].previous = child;
	s->node[parent].child = child;
}

static void tree_detach(struct simplex *s, int32_t child)
{
	struct node *n = &s->node[child];

	if (n->next >= 0)
		s->node[n->next].previous = n->previous;
	if (n->previous >= 0)
		s->node[n->previous].next = n->next;
	else
		s->node[n->parent].child = n->next;
}

/* Adds to the potentials of all nodes below top, and top; sets their depths by its parent's. */
static void tree_shift(struct simplex *s, int32_t top, int64_t by)
{
	struct node *node = s->node;
	int32_t at = top;

	for (;;) {
		node[at].potential += by;
		node[at].depth = node[node[at].parent].depth + 1;
		s->work++;
		if (node[at].child >= 0) {
			at = node[at].child;
			continue;
		}
		while (at != top && node[at].next < 0)
			at = node[at].parent;
		if (at == top)
			return;
		at = node[at].next;
	}
}

/* Hangs the part of the tree below old, in which top is, from parent by arc instead. */
static void tree_move(struct simplex *s, int32_t old, int32_t top, int32_t parent, int32_t arc)
{
	int32_t at = top;

	for (;;) {
		int32_t above = s->node[at].parent, by = s->node[at].arc;
		bool last = at == old;

		tree_detach(s, at);
		tree_attach(s, at, parent, arc);
		if (last)
			return;
		parent = at;
		arc = by;
		at = above;
	}
}

/* ---- pivots ---- */

/* What one more unit on an arc costs, by the potentials. */
static int64_t reduced(const struct simplex *s, int32_t arc)
{
	const struct arc *a = &s->arc[arc];

	return a->cost + s->node[a->tail].potential - s->node[a->head].potential;
}

/* Returns the arc that promises most of the first block that has any, -1 where none does. */
static int32_t entering(struct simplex *s)
{
	int32_t arc = s->turn, best = -1;
	int64_t least = 0;

	for (int32_t left = s->arcs; left > 0;) {
		int32_t count = left < s->block ? left : s->block;

		left -= count;
		s->work += count;
		while (count-- > 0) {
			int64_t cost = s->state[arc] * reduced(s, arc);

			if (cost < least) {
				least = cost;
				best = arc;
			}
			if (++arc == s->arcs)
				arc = 0;
		}
		if (best >= 0)
			break;
	}
	s->turn = arc;
	return best;
}

static void pivot(struct simplex *s, int32_t in)
{
	const struct node *node = s->node;
	bool raise = s->state[in] == LOWER;
	/* Flow goes from the join down to first, by the arc to second, and up to the join. */
	int32_t first = raise ? s->arc[in].tail : s->arc[in].head;
	int32_t second = raise ? s->arc[in].head : s->arc[in].tail;
	int32_t a = first, b = second, old = -1;
	int64_t most = s->capacity[in], cost;
	bool by_first = false;

	/* Of the arcs that block, the last one on this way leaves: that keeps the basis strongly feasible. */
	while (a != b) {
		s->work++;
		if (node[a].depth >= node[b].depth) {
			int32_t arc = node[a].arc;
			int64_t room = s->arc[arc].tail == a ? s->flow[arc] : s->capacity[arc] - s->flow[arc];

			if (room < most) {
				most = room;
				old = a;
				by_first = true;
			}
			a = node[a].parent;
		} else {
			b = node[b].parent;
		}
	}
	int32_t join = a;

	for (b = second; b != join; b = node[b].parent) {
		int32_t arc = node[b].arc;
		int64_t room = s->arc[arc].tail == b ? s->capacity[arc] - s->flow[arc] : s->flow[arc];

		if (room <= most) {
			most = room;
			old = b;
			by_first = false;
		}
	}
	assert(most >= 0);
	if (most > 0) {
		s->flow[in] += raise ? most : -most;
		for (a = first; a != join; a = node[a].parent)
			s->flow[node[a].arc] += s->arc[node[a].arc].tail == a ? -most : most;
		for (b = second; b != join; b = node[b].parent)
			s->flow[node[b].arc] += s->arc[node[b].arc].tail == b ? most : -most;
	}
	s->pivots++;
	if (old < 0) {
		s->state[in] = raise ? UPPER : LOWER;
		return;
	}
	int32_t out = node[old].arc, top = by_first ? first : second;

	cost = reduced(s, in);
	s->state[out] = s->flow[out] == 0 ? LOWER : UPPER;
	s->state[in] = TREE;
	tree_move(s, old, top, by_first ? second : first, in);
	tree_shift(s, top, top == s->arc[in].head ? cost : -cost);
}

/* ---- the network ---- */

/* Of each node how many arcs enter and leave it, and the last of each. */
struct ends {
	int32_t entering;
	int32_t leaving;
	int32_t in;
	int32_t out;
};


/* What is known of the nodes of the simplex while the first tree is made. */
struct role {
	int64_t excess; /* units that have not left */
	int32_t exit;   /* of a place: its only leaving arc, to the root; else -1 */
	bool entered;   /* an arc enters */
	bool joins;     /* none does, and one leads to a node that is neither place nor root */
};

/* What laying a network out needs beside the simplex. */
struct layout {
	struct ends *ends; /* of the network's nodes */
	int32_t *number;   /* of each of them in the simplex; PASSED: it is none there */
	int32_t *origin;   /* of each arc of the simplex, the network's */
	struct role *role;
	int32_t *order; /* arcs of the simplex by cost */
	int32_t *spare;
	bool one_sink;
};

#define PASSED (-1)

static int network_check(const struct flow_network *network)
{
	int64_t greatest = 0, sum = 0, positive = 0;

	if (network->nodes < 1 || network->arcs < 0)
		return -EINVAL;
	if (network->nodes + network->arcs > INT32_MAX / 2)
		return -ERANGE;
	for (int64_t arc = 0; arc < network->arcs; arc++) {
		int64_t cost = network->cost[arc];

		if (network->tail[arc] < 0 || network->tail[arc] >= network->nodes ||
		    network->head[arc] < 0 || network->head[arc] >= network->nodes || network->capacity[arc] < 0)
			return -EINVAL;
		if (cost > network->cost_budget || cost < -network->cost_budget)
			return -ERANGE;
		if (cost < 0)
			cost = -cost;
		if (cost > greatest)
			greatest = cost;
	}
	if (greatest > network->cost_budget / (network->nodes + 1))
		return -ERANGE;
	for (int64_t node = 0; node < network->nodes; node++) {
		int64_t supply = network->supply[node];

		if (supply > network->max_flow || supply < -network->max_flow)
			return -ERANGE;
		sum += supply;
		if (supply > 0)
			positive += supply;
		if (positive > network->max_flow)
			return -ERANGE;
	}
	return sum == 0 ? 0 : -EINVAL;
}

/*
 * Numbers nodes and arcs of the simplex.  Nodes that one arc enters and one leaves are none
 * there: their two arcs are one.  Many places of a phase are of interest to one shape alone.
 */
static void network_lay_out(const struct flow_network *network, struct simplex *s, struct layout *l)
{
	int32_t nodes = 0, arcs = 0, sinks = 0;

	memset(l->number, 0, (size_t)network->nodes * sizeof(*l->number));
	memset(l->ends, 0, (size_t)network->nodes * sizeof(*l->ends));
	for (int32_t arc = 0; arc < network->arcs; arc++) {
		struct ends *tail = &l->ends[network->tail[arc]], *head = &l->ends[network->head[arc]];

		tail->leaving++;
		tail->out = arc;
		head->entering++;
		head->in = arc;
	}
	for (int32_t node = 0; node < network->nodes; node++) {
		const struct ends *ends = &l->ends[node];

		/* Of a row of such nodes every other one stays. */
		if (ends->entering == 1 && ends->leaving == 1 && network->supply[node] == 0 &&
		    ends->in != ends->out && l->number[network->tail[ends->in]] != PASSED &&
		    l->number[network->head[ends->out]] != PASSED)
			l->number[node] = PASSED;
	}
	for (int32_t node = 0; node < network->nodes; node++) {
		if (l->number[node] == PASSED)
			continue;
		l->role[nodes].excess = network->supply[node];
		if (network->supply[node] < 0) {
			s->root = nodes;
			sinks++;
		}
		l->number[node] = nodes++;
	}
	/* The root is the sink, or a node of its own. */
	l->one_sink = sinks == 1;
	if (!l->one_sink) {
		s->root = nodes;
		l->role[nodes++].excess = 0;
	}
	s->nodes = nodes;
	for (int32_t arc = 0; arc < network->arcs; arc++) {
		int64_t tail = network->tail[arc], head = network->head[arc];
		int64_t capacity = network->capacity[arc], cost = network->cost[arc];

		if (l->number[tail] == PASSED)
			continue;
		if (l->number[head] == PASSED) {
			int32_t out = l->ends[head].out;

			capacity = lesser(capacity, network->capacity[out]);
			cost += network->cost[out];
			head = network->head[out];
		}
		/* What all units of its tail fit on never needs to be told apart from a full one. */
		if (l->ends[tail].entering == 0 && capacity > 0 && capacity >= network->supply[tail])
			capacity = LIMIT;
		s->arc[arcs] = (struct arc){cost, l->number[tail], l->number[head]};
		s->capacity[arcs] = capacity;
		s->flow[arcs] = 0;
		s->state[arcs] = capacity > 0 ? LOWER : FIXED;
		l->origin[arcs] = arc;
		arcs++;
	}
	s->arcs = arcs;
}

/* Sorts arcs by cost, those of equal cost by number: least significant digits first. */
static void arcs_sort(const struct simplex *s, struct layout *l)
{
	enum { BITS = 11, DIGITS = 1 << BITS };
	int64_t least = 0, most = 0;
	int32_t *from = l->order, *to = l->spare;

	for (int32_t arc = 0; arc < s->arcs; arc++) {
		from[arc] = arc;
		if (arc == 0 || s->arc[arc].cost < least)
			least = s->arc[arc].cost;
		if (arc == 0 || s->arc[arc].cost > most)
			most = s->arc[arc].cost;
	}
	for (int shift = 0; shift < 63 && (most - least) >> shift; shift += BITS) {
		int32_t start[DIGITS] = {0}, sum = 0;

		for (int32_t at = 0; at < s->arcs; at++)
			start[(s->arc[from[at]].cost - least) >> shift & (DIGITS - 1)]++;
		for (int32_t digit = 0; digit < DIGITS; digit++) {
			int32_t count = start[digit];

			start[digit] = sum;
			sum += count;
		}
		for (int32_t at = 0; at < s->arcs; at++)
			to[start[(s->arc[from[at]].cost - least) >> shift & (DIGITS - 1)]++] = from[at];
		int32_t *swap = from;

		from = to;
		to = swap;
	}
	l->order = from;
	l->spare = to;
}

/* ---- the first tree ---- */

/*
 * Sends what fits on an arc, and hangs one of its ends from the other: a place that is full
 * from whom filled it, whoever has nothing left from the first that has room then.
 *
 * A node is given its parent before its parent is given one: so no way up comes round.
 */
static void crash_send(struct simplex *s, struct role *role, int32_t arc)
{
	int32_t tail = s->arc[arc].tail, head = s->arc[arc].head, exit = role[head].exit;
	int64_t room = exit >= 0 ? s->capacity[exit] - s->flow[exit] : LIMIT;
	int64_t units = lesser(lesser(role[tail].excess, room), s->capacity[arc]);

	if (s->node[tail].parent >= 0 || room == 0 || s->capacity[arc] == 0)
		return;
	s->flow[arc] = units;
	role[tail].excess -= units;
	if (exit >= 0)
		s->flow[exit] += units;
	else if (head != s->root)
		role[head].excess += units;
	if (units == room) {
		s->node[head].parent = tail;
		s->node[head].arc = arc;
	} else if (role[tail].excess == 0 && units < s->capacity[arc]) {
		s->node[tail].parent = head;
		s->node[tail].arc = arc;
	} else {
		s->state[arc] = units > 0 ? UPPER : LOWER;
		return;
	}
	s->state[arc] = TREE;
}

/* Finds out who joins whom, and which nodes are places. */
static bool crash_roles(const struct simplex *s, struct role *role)
{
	bool any = false;

	for (int32_t node = 0; node < s->nodes; node++) {
		role[node].exit = -1;
		role[node].entered = role[node].joins = false;
	}
	for (int32_t arc = 0; arc < s->arcs; arc++) {
		int32_t tail = s->arc[arc].tail;

		role[s->arc[arc].head].entered = true;
		role[tail].exit = role[tail].exit == -1 && s->arc[arc].head == s->root ? arc : -2;
	}
	for (int32_t node = 0; node < s->nodes; node++)
		if (role[node].exit < 0 || role[node].excess != 0 || !role[node].entered)
			role[node].exit = -1;
	for (int32_t arc = 0; arc < s->arcs; arc++) {
		const struct arc *a = &s->arc[arc];

		if (a->head != s->root && role[a->head].exit < 0 && !role[a->tail].entered)
			any = role[a->tail].joins = true;
	}
	return any;
}

/*
 * Fills arcs by cost: first those of whoever may also join another node, to places; then all
 * that they have left joins; then all other arcs to places and to the sink.
 */
static void crash_fill(struct simplex *s, struct layout *l)
{
	struct role *role = l->role;
	bool any = crash_roles(s, role);

	arcs_sort(s, l);
	for (int turn = any ? 0 : 2; turn < 3; turn++) {
		for (int32_t at = 0; at < s->arcs; at++) {
			int32_t arc = l->order[at], tail = s->arc[arc].tail, head = s->arc[arc].head;
			bool place = role[head].exit >= 0;

			if (role[tail].exit >= 0 || tail == s->root || tail == head)
				continue;
			if (turn == 2 ? head == s->root || (place && !role[tail].joins)
				      : head != s->root && role[tail].joins && place == (turn == 0))
				crash_send(s, role, arc);
		}
	}
	/* Places that are not full hang from the root. */
	for (int32_t node = 0; node < s->nodes; node++) {
		int32_t exit = role[node].exit;

		if (exit < 0)
			continue;
		if (s->flow[exit] < s->capacity[exit]) {
			s->node[node].parent = s->root;
			s->node[node].arc = exit;
			s->state[exit] = TREE;
		} else if (s->capacity[exit] > 0) {
			s->state[exit] = UPPER;
		}
	}
}

/* Sets depths and potentials of all nodes: those of tree arcs are level. */
static int32_t tree_settle(struct simplex *s)
{
	struct node *node = s->node;
	int32_t at = s->root, count = 1;

	node[at].potential = 0;
	node[at].depth = 0;
	for (;;) {
		int32_t next = node[at].child;

		while (next < 0 && at != s->root) {
			next = node[at].next;
			at = node[at].parent;
		}
		if (next < 0)
			return count;
		const struct arc *by = &s->arc[node[next].arc];

		at = node[next].parent;
		node[next].potential = node[at].potential + (by->head == next ? by->cost : -by->cost);
		node[next].depth = node[at].depth + 1;
		count++;
		at = next;
	}
}

/* Makes a first flow and its tree.  What finds no way leaves by arcs to the root that are dearer than any. */
static void crash(const struct flow_network *network, struct simplex *s, struct layout *l)
{
	int64_t greatest = 0;

	for (int32_t node = 0; node < s->nodes; node++)
		s->node[node] = (struct node){.parent = -1, .child = -1, .next = -1, .previous = -1};
	for (int64_t arc = 0; arc < network->arcs; arc++) {
		int64_t cost = network->cost[arc] < 0 ? -network->cost[arc] : network->cost[arc];

		greatest = cost > greatest ? cost : greatest;
	}
	if (l->one_sink)
		crash_fill(s, l);
	for (int32_t node = 0; node < s->nodes; node++) {
		int32_t arc = s->arcs + node;
		int64_t excess = l->role[node].excess;

		if (node == s->root)
			continue;
		s->arc[arc] = (struct arc){greatest * network->nodes + 1, node, s->root};
		s->capacity[arc] = LIMIT;
		s->flow[arc] = excess;
		if (excess < 0) {
			s->arc[arc].tail = s->root;
			s->arc[arc].head = node;
			s->flow[arc] = -excess;
		}
		if (s->node[node].parent < 0) {
			s->node[node].parent = s->root;
			s->node[node].arc = arc;
		}
	}
	for (int32_t node = 0; node < s->nodes; node++)
		if (node != s->root)
			tree_attach(s, node, s->node[node].parent, s->node[node].arc);
	int32_t reached = tree_settle(s);

	assert(reached == s->nodes);
	(void)reached;
}

/* ---- the whole ---- */

static void *take(char **memory, size_t count, size_t bytes)
{
	void *taken = *memory;

	*memory += (count * bytes + 15) / 16 * 16;
	return taken;
}

int flow_solve(const struct flow_network *network, int64_t *units, struct flow_effort *effort)
{
	int status = network_check(network);

	if (status < 0)
		return status;
	/* One node and as many arcs more than the network has nodes: the root. */
	size_t nodes = (size_t)network->nodes + 1, arcs = (size_t)network->arcs + nodes;
	char *memory = malloc(nodes * (sizeof(struct node) + sizeof(struct ends) + sizeof(struct role) + 4) +
			      arcs * (sizeof(struct arc) + 8 + 8 + 1 + 4 + 4 + 4) + 10 * 16);
	char *at = memory;

	if (!memory)
		return -ENOMEM;
	struct simplex s = {
		.node = take(&at, nodes, sizeof(struct node)),
		.arc = take(&at, arcs, sizeof(struct arc)),
		.capacity = take(&at, arcs, 8),
		.flow = take(&at, arcs, 8),
		.state = take(&at, arcs, 1),
	};
	struct layout l = {
		.ends = take(&at, nodes, sizeof(struct ends)),
		.number = take(&at, nodes, 4),
		.role = take(&at, nodes, sizeof(struct role)),
		.origin = take(&at, arcs, 4),
		.order = take(&at, arcs, 4),
		.spare = take(&at, arcs, 4),
	};

	network_lay_out(network, &s, &l);
	crash(network, &s, &l);
	s.block = LEAST_BLOCK;
	while ((int64_t)s.block * s.block < s.arcs)
		s.block++;
	for (int32_t in; status == 0 && (in = entering(&s)) >= 0;) {
		pivot(&s, in);
		if (s.work > network->work)
			status = -ETIME;
	}
	for (int32_t node = 0; status == 0 && node < s.nodes; node++)
		if (node != s.root && s.flow[s.arcs + node] > 0)
			status = -ENOENT;
	if (status == 0) {
		memset(units, 0, (size_t)network->arcs * sizeof(*units));
		for (int32_t arc = 0; arc < s.arcs; arc++) {
			int64_t head = network->head[l.origin[arc]];

			units[l.origin[arc]] = s.flow[arc];
			if (l.number[head] == PASSED)
				units[l.ends[head].out] = s.flow[arc];
		}
	}
	effort->pivots = s.pivots;
	effort->work = s.work;
	free(memory);
	return status;
}
