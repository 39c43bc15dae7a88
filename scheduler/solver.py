"""Min-cost flow on integer arrays, and the proof that an answer is optimal.

The solver is OR-Tools' ``SimpleMinCostFlow`` (cost scaling push-relabel).  It
is fast and trusts its caller: it cuts floats to integers in silence, crashes
the process when flows are read after a failed solve, and gives other flows of
the same cost when arcs are permuted.  :func:`solve` therefore takes int64
arrays only, checks them, tests the status first, and leaves the order of arcs
to the caller, who keeps it canonical.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ortools.graph.python import min_cost_flow

Integers = npt.NDArray[np.int64]

COST_BUDGET = 2**60
"""Largest product of the greatest cost and the number of nodes plus one.

The solver multiplies costs by the number of nodes and answers BAD_COST_RANGE
near 2**62; a quarter of that leaves room for its intermediate sums.
"""

MAX_FLOW = 2**31
"""Largest total supply of one network: far above any round, far below overflow of cost times flow."""


LEAST_SHORTENED = 16
"""Nodes to leave out below which a network is solved as it is."""


class SolverError(Exception):
    """A network that must not be solved, or an answer that must not be used: a defect of the caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A min-cost flow problem.

    ``tail``, ``head``, ``capacity`` and ``cost`` have one int64 entry per arc,
    ``supply`` one per node; a node with negative supply is a sink.  Supplies
    sum to zero.  Parallel arcs and negative costs are allowed.
    """

    tail: Integers
    head: Integers
    capacity: Integers
    cost: Integers
    supply: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """An optimal flow: units per arc, in the order of the network's arcs, and its total cost."""

    units: Integers
    cost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Proof of optimality: potentials under which no residual arc has a negative reduced cost.

    ``potential`` has one entry per node, in the unit of costs.  By linear
    programming duality the difference of two potentials is what one more unit
    of flow between the two nodes would cost: a shadow price.
    """

    potential: Integers
    iterations: int


def check(network: Network) -> None:
    """Raise :class:`SolverError` when ``network`` breaks what :func:`solve` needs."""
    arcs = len(network.tail)
    for name in ("tail", "head", "capacity", "cost", "supply"):
        column: Integers = getattr(network, name)
        if column.dtype != np.int64 or column.ndim != 1:
            raise SolverError(f"{name} is {column.dtype} with {column.ndim} dimensions, not a list of int64")
        if name != "supply" and len(column) != arcs:
            raise SolverError(f"{name} has {len(column)} entries for {arcs} arcs")
    nodes = len(network.supply)
    if arcs:
        if min(network.tail.min(), network.head.min()) < 0 or max(network.tail.max(), network.head.max()) >= nodes:
            raise SolverError(f"an arc ends outside of the {nodes} nodes")
        if network.capacity.min() < 0:
            raise SolverError("an arc has a negative capacity")
        greatest = int(max(network.cost.max(), -network.cost.min()))
        if greatest * (nodes + 1) > COST_BUDGET:
            raise SolverError(f"cost {greatest} with {nodes} nodes is beyond the range of the solver")
    if int(network.supply.sum()) != 0:
        raise SolverError(f"supplies sum to {int(network.supply.sum())}, not to zero")
    if int(network.supply.clip(min=0).sum()) > MAX_FLOW:
        raise SolverError(f"more than {MAX_FLOW} units of supply")


def solve(network: Network) -> Flow:
    """Return a flow of least cost that moves all supplies.

    The caller builds networks that are feasible by construction (every supply
    has an arc that leaves it unscheduled); one that is not raises
    :class:`SolverError`, as does anything that :func:`check` refuses.
    """
    check(network)
    if not len(network.tail):
        if network.supply.any():
            raise SolverError("supplies without arcs")
        return Flow(units=np.zeros(0, np.int64), cost=0)
    short = _shortened(network)
    units = _flows(network) if short is None else short.expanded(_flows(short.network))
    return Flow(units=units, cost=int(units @ network.cost))


def _flows(network: Network) -> Integers:
    """Return the units of each arc in a flow of least cost."""
    engine = min_cost_flow.SimpleMinCostFlow()
    engine.add_arcs_with_capacity_and_unit_cost(
        network.tail.astype(np.int32), network.head.astype(np.int32), network.capacity, network.cost
    )
    engine.set_nodes_supplies(np.arange(len(network.supply), dtype=np.int32), network.supply)
    status = engine.solve()
    # Reading flows after any other status ends the process with SIGSEGV (OR-Tools 9.15).
    if status != engine.OPTIMAL:
        raise SolverError(f"the solver answered {status.name} for {len(network.tail)} arcs")
    return np.asarray(engine.flows(np.arange(len(network.tail), dtype=np.int32)), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Short:
    """A network without the nodes that one arc enters and one leaves, and the way back.

    The two arcs are one in ``network``, and so are all pairs of the same ends
    and cost: their first arcs ``entering``, in the order in which they are
    filled, ``leaving`` and their capacities, each for the arc ``merged``.  The
    arcs ``kept`` come first.
    """

    network: Network
    kept: Integers
    entering: Integers
    leaving: Integers
    capacity: Integers
    merged: Integers

    def expanded(self, units: Integers) -> Integers:
        """Return the flow of the whole network."""
        whole = np.zeros(len(self.kept) + 2 * len(self.entering), np.int64)
        whole[self.kept] = units[: len(self.kept)]
        ends = np.cumsum(self.capacity)
        starts = ends - self.capacity
        first = np.flatnonzero(np.concatenate(([True], self.merged[1:] != self.merged[:-1])))
        before = starts - np.repeat(starts[first], np.diff(np.append(first, len(starts))))
        share = np.clip(units[len(self.kept) :][self.merged] - before, 0, self.capacity)
        whole[self.entering] = share
        whole[self.leaving] = share
        return whole


def _shortened(network: Network) -> _Short | None:
    """Leave out the nodes without supply that one arc enters and one leaves; None where that gains little.

    Many places of a phase are of interest to one shape alone: each is one arc
    to the sink then, and places of one cost are one arc together.
    """
    nodes = len(network.supply)
    tail, head = network.tail, network.head
    through = (
        (np.bincount(head, minlength=nodes) == 1) & (np.bincount(tail, minlength=nodes) == 1) & (network.supply == 0)
    )
    # A row of such nodes is shortened at its last one.
    through[tail[through[head]]] = False
    entering = np.flatnonzero(through[head])
    if len(entering) < LEAST_SHORTENED:
        return None
    leaving_of = np.zeros(nodes, np.int64)
    leaving_of[tail] = np.arange(len(tail))
    leaving = leaving_of[head[entering]]
    cost = network.cost[entering] + network.cost[leaving]
    capacity = np.minimum(network.capacity[entering], network.capacity[leaving])
    start, end = tail[entering], head[leaving]
    order = np.lexsort((entering, cost, end, start))
    entering, leaving, cost, capacity, start, end = (
        column[order] for column in (entering, leaving, cost, capacity, start, end)
    )
    new = np.concatenate(([True], (start[1:] != start[:-1]) | (end[1:] != end[:-1]) | (cost[1:] != cost[:-1])))
    first = np.flatnonzero(new)
    kept = np.flatnonzero(~through[head] & ~through[tail])
    number = np.cumsum(~through) - 1
    return _Short(
        network=Network(
            tail=np.concatenate((number[tail[kept]], number[start[first]])),
            head=np.concatenate((number[head[kept]], number[end[first]])),
            capacity=np.concatenate((network.capacity[kept], np.add.reduceat(capacity, first))),
            cost=np.concatenate((network.cost[kept], cost[first])),
            supply=network.supply[~through],
        ),
        kept=kept,
        entering=entering,
        leaving=leaving,
        capacity=capacity,
        merged=np.cumsum(new) - 1,
    )


def certify(network: Network, flow: Flow) -> Certificate:
    """Prove that ``flow`` is feasible and of least cost, or raise :class:`SolverError`.

    A feasible flow is optimal if and only if its residual network has no
    negative cycle (Ahuja, Magnanti, Orlin: Network Flows, theorem 9.1).
    Bellman-Ford from a virtual root settles on potentials then, and keeps
    falling for as many iterations as there are nodes otherwise.
    """
    units = flow.units
    if len(units) != len(network.tail) or (units < 0).any() or (units > network.capacity).any():
        raise SolverError("a flow is outside of its arc's capacity")
    balance = np.zeros(len(network.supply), np.int64)
    np.add.at(balance, network.tail, units)
    np.subtract.at(balance, network.head, units)
    if not np.array_equal(balance, network.supply):
        raise SolverError("flow is lost or made at a node")
    if int(units @ network.cost) != flow.cost:
        raise SolverError("the stated cost is not the cost of the flow")

    forward = np.flatnonzero(units < network.capacity)
    backward = np.flatnonzero(units > 0)
    tail = np.concatenate((network.tail[forward], network.head[backward]))
    head = np.concatenate((network.head[forward], network.tail[backward]))
    cost = np.concatenate((network.cost[forward], -network.cost[backward]))
    potential = np.zeros(len(network.supply), np.int64)
    if not len(tail):
        return Certificate(potential=potential, iterations=0)
    order = np.argsort(head, kind="stable")
    tail, head, cost = tail[order], head[order], cost[order]
    starts = np.flatnonzero(np.concatenate(([True], head[1:] != head[:-1])))
    heads = head[starts]
    for iteration in range(len(network.supply) + 1):
        reached = np.minimum.reduceat(potential[tail] + cost, starts)
        lower = reached < potential[heads]
        if not lower.any():
            return Certificate(potential=potential, iterations=iteration)
        potential[heads[lower]] = reached[lower]
    raise SolverError("the residual network has a negative cycle: the flow is not of least cost")
