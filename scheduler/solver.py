"""Min-cost flow on integer arrays, and the proof that an answer is optimal.

The solver is a network simplex of our own (native/scheduler/flow.c), which begins with a flow
that is close to the least cost for what phases ask.  Simplex may take very long where many
sources compete for the same places; after a counted amount of work OR-Tools'
``SimpleMinCostFlow`` (cost scaling push-relabel) takes over, whose time is much the same for
all networks.  It trusts its caller: it cuts floats to integers in silence, crashes the process
when flows are read after a failed solve, and gives other flows of the same cost when arcs are
permuted.  :func:`solve` therefore takes int64 arrays only, checks them, tests the status first,
and leaves the order of arcs to the caller, who keeps it canonical.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farbus.scheduler import kernels

Integers = npt.NDArray[np.int64]

COST_BUDGET = 2**60
"""Largest product of the greatest cost and the number of nodes plus one.

The solver multiplies costs by the number of nodes and answers BAD_COST_RANGE
near 2**62; a quarter of that leaves room for its intermediate sums.
"""

MAX_FLOW = 2**31
"""Largest total supply of one network: far above any round, far below overflow of cost times flow."""


WORK, WORK_PER_ARC = 100_000, 48
"""Arcs priced and nodes moved until simplex gives up: several times what it needs where it is much the faster one.

Networks of rounds take 1 to 12 for each arc.
"""


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


def solve(network: Network) -> Flow:
    """Return a flow of least cost that moves all supplies.

    The caller builds networks that are feasible by construction (every supply
    has an arc that leaves it unscheduled); one that is not raises
    :class:`SolverError`, as do columns of another type or length, arcs that end outside of the
    network, negative capacities, and what is beyond :data:`COST_BUDGET` or :data:`MAX_FLOW`.
    """
    units = simplex(network, WORK + WORK_PER_ARC * len(network.tail))
    if units is None:
        units = scaling(network)
    return Flow(units=units, cost=int(units @ network.cost))


def simplex(network: Network, work: int) -> Integers | None:
    """Return the units of each arc by network simplex; None where ``work`` arcs priced and nodes moved are too few."""
    arcs = len(network.tail)
    for name in ("tail", "head", "capacity", "cost", "supply"):
        column: Integers = getattr(network, name)
        if column.dtype != np.int64 or column.ndim != 1:
            raise SolverError(f"{name} is {column.dtype} with {column.ndim} dimensions, not a list of int64")
        if name != "supply" and len(column) != arcs:
            raise SolverError(f"{name} has {len(column)} entries for {arcs} arcs")
    units, _ = kernels.min_cost_flow(
        network.tail,
        network.head,
        network.capacity,
        network.cost,
        network.supply,
        cost_budget=COST_BUDGET,
        max_flow=MAX_FLOW,
        work=work,
    )
    if not isinstance(units, int):
        return units
    if units == errno.ETIME:
        return None
    raise SolverError(_why(network, units))


def _why(network: Network, error: int) -> str:
    """Say what is wrong with a network that the solver refused with ``error``."""
    nodes = len(network.supply)
    if error == errno.ENOENT:
        return f"INFEASIBLE: no flow moves all supplies over the {len(network.tail)} arcs"
    if len(network.tail):
        if min(network.tail.min(), network.head.min()) < 0 or max(network.tail.max(), network.head.max()) >= nodes:
            return f"an arc ends outside of the {nodes} nodes"
        if network.capacity.min() < 0:
            return "an arc has a negative capacity"
        greatest = max(int(network.cost.max()), -int(network.cost.min()))
        if greatest * (nodes + 1) > COST_BUDGET:
            return f"cost {greatest} with {nodes} nodes is beyond the range of the solver"
    supply = sum(network.supply.tolist())
    if supply:
        return f"supplies sum to {supply}, not to zero"
    return f"more than {MAX_FLOW} units of supply, or {nodes} nodes and {len(network.tail)} arcs are too many"


def scaling(network: Network) -> Integers:
    """Return the units of each arc by OR-Tools; the network is one that :func:`simplex` accepts."""
    from ortools.graph.python import min_cost_flow  # noqa: PLC0415 - takes a tenth of a second, and is rarely needed

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
