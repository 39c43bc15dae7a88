"""The solver's guards, its answers beside networkx, and the certificate."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farbus.scheduler import solver
from farbus.scheduler.solver import Flow, Network, SolverError, certify, solve


def network(arcs: list[tuple[int, int, int, int]], supply: list[int]) -> Network:
    table = np.array(arcs, np.int64).reshape(-1, 4)
    tail, head, capacity, cost = (np.ascontiguousarray(table[:, column]) for column in range(4))
    return Network(tail=tail, head=head, capacity=capacity, cost=cost, supply=np.array(supply, np.int64))


def least_cost(problem: Network) -> int:
    graph = networkx.MultiDiGraph()
    for name, supply in enumerate(problem.supply.tolist()):
        graph.add_node(name, demand=-supply)
    columns = (problem.tail, problem.head, problem.capacity, problem.cost)
    for tail, head, capacity, cost in zip(*(column.tolist() for column in columns), strict=True):
        graph.add_edge(tail, head, capacity=capacity, weight=cost)
    cost, _ = networkx.network_simplex(graph)
    return int(cost)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Draw a network with an unscheduled arc from every source, so that it is feasible by construction."""
    nodes = draw(st.integers(2, 7))
    sink = nodes - 1
    ends = st.integers(0, sink)
    arcs = draw(st.lists(st.tuples(ends, ends, st.integers(0, 5), st.integers(0, 20)), max_size=20))
    supply = draw(st.lists(st.integers(0, 4), min_size=sink, max_size=sink))
    arcs = [arc for arc in arcs if arc[0] != arc[1]]
    arcs += [(name, sink, amount, 50) for name, amount in enumerate(supply)]
    return network(arcs, [*supply, -sum(supply)])


@given(networks())
@settings(max_examples=150)
def test_costs_what_networkx_finds_and_is_certified(problem: Network) -> None:
    flow = solve(problem)
    certify(problem, flow)
    assert flow.cost == least_cost(problem)


@st.composite
def any_networks(draw: st.DrawFn) -> Network:
    """Draw a network with several sinks, loops, parallel arcs, no room on some, and costs below zero."""
    nodes = draw(st.integers(1, 6))
    ends = st.integers(0, nodes - 1)
    arcs = draw(st.lists(st.tuples(ends, ends, st.integers(0, 4), st.integers(-9, 9)), max_size=18))
    supply = draw(st.lists(st.integers(-4, 4), min_size=nodes, max_size=nodes))
    supply[-1] -= sum(supply)
    return network(arcs, supply)


@st.composite
def phases(draw: st.DrawFn) -> Network:
    """Draw what a phase asks: sources with preferences that join pools, pools, places, and arcs for those who wait.

    Few different costs and capacities make many flows equally dear; there may be less room than units.
    """
    sources, pools, places = (draw(st.integers(low, high)) for low, high in ((0, 6), (1, 4), (1, 12)))
    first = sources + pools
    sink = first + places
    costs = st.integers(0, draw(st.sampled_from([0, 3, 1000])))
    units = st.integers(0, draw(st.sampled_from([1, 5])))
    arcs, supply = [], []
    for source in range(first):
        amount = draw(units)
        supply.append(amount)
        for place in range(places):
            if source >= sources or draw(st.integers(0, 3)) == 0:
                arcs.append((source, first + place, draw(units), draw(costs)))
        if source < sources and draw(st.booleans()):
            arcs.append((source, sources + draw(st.integers(0, pools - 1)), amount, 0))
        while amount:
            part = draw(st.integers(1, amount))
            arcs.append((source, sink, part, 1001 + draw(costs)))
            amount -= part
    arcs += [(first + place, sink, draw(units), 0) for place in range(places)]
    return network(arcs, [*supply, *[0] * places, -sum(supply)])


PLENTY = 2**40


@given(phases())
@settings(max_examples=300)
def test_both_engines_cost_the_same_on_what_phases_ask(problem: Network) -> None:
    units = solver.simplex(problem, PLENTY)
    assert units is not None
    flow = Flow(units=units, cost=int(units @ problem.cost))
    certify(problem, flow)
    assert flow.cost == int(solver.scaling(problem) @ problem.cost)


@given(any_networks())
@settings(max_examples=300)
def test_both_engines_find_the_same_cost_or_none(problem: Network) -> None:
    try:
        expected = int(solver.scaling(problem) @ problem.cost)
    except SolverError:
        with pytest.raises(SolverError, match="INFEASIBLE"):
            solver.simplex(problem, PLENTY)
        return
    units = solver.simplex(problem, PLENTY)
    assert units is not None
    certify(problem, Flow(units=units, cost=expected))


def random_phase(sources: int, pools: int, places: int, *, preferences: int, dearest: int, seed: int) -> Network:
    """Return a network of sources with preferences anywhere, each of which may also join a pool: a *hub*."""
    rng = np.random.default_rng(seed)
    first, sink = sources + pools, sources + pools + places
    mine = np.repeat(np.arange(sources), preferences)
    pooled = np.repeat(np.arange(sources, first), places)
    ends = np.arange(sources)
    rooms = np.arange(first, sink)
    parts = (
        (
            mine,
            first + rng.integers(0, places, len(mine)),
            rng.integers(1, 5, len(mine)),
            rng.integers(0, dearest, len(mine)),
        ),
        (ends, sources + ends % pools, np.full(sources, 10), np.zeros(sources)),
        (pooled, np.tile(rooms, pools), np.full(len(pooled), 9), rng.integers(0, dearest, len(pooled))),
        (rooms, np.full(places, sink), np.full(places, 9), np.zeros(places)),
        (ends, np.full(sources, sink), np.full(sources, 10), 10 * dearest + ends),
    )
    supply = [10] * sources + [0] * (pools + places) + [-10 * sources]
    table = np.concatenate([np.stack(part, axis=1) for part in parts]).astype(int)
    return network([tuple(row) for row in table.tolist()], supply)


@pytest.mark.parametrize(("places", "pools", "dearest"), [(200, 3, 500), (80, 2, 500), (200, 8, 3)])
def test_both_engines_cost_the_same_where_sources_crowd(places: int, pools: int, dearest: int) -> None:
    problem = random_phase(150, pools, places, preferences=4, dearest=dearest, seed=places + pools)
    units = solver.simplex(problem, PLENTY)
    assert units is not None
    flow = Flow(units=units, cost=int(units @ problem.cost))
    certify(problem, flow)
    assert flow.cost == int(solver.scaling(problem) @ problem.cost)


def test_a_network_that_takes_too_much_work_is_solved_by_the_other_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_phase(60, 2, 40, preferences=3, dearest=500, seed=1)
    assert solver.simplex(problem, 1000) is None
    expected = solve(problem)
    monkeypatch.setattr(solver, "WORK", 1000)
    monkeypatch.setattr(solver, "WORK_PER_ARC", 0)
    flow = solve(problem)
    certify(problem, flow)
    assert flow.cost == expected.cost


def test_rows_of_places_that_one_source_uses_are_filled_by_cost() -> None:
    places = 40
    arcs = [(0, 1 + place, 2, place // 10) for place in range(places)]
    arcs += [(1 + place, places + 1, 1, 0) for place in range(places)] + [(0, places + 1, 99, 1000)]
    problem = network(arcs, [25, *[0] * places, -25])
    flow = solve(problem)
    certify(problem, flow)
    assert flow.units[:places].tolist() == [1] * 25 + [0] * 15


def test_same_input_gives_the_same_flow() -> None:
    rng = np.random.default_rng(7)
    arcs = [(int(a), 20 + int(b), 3, int(c)) for a, b, c in rng.integers(0, 20, (200, 3))]
    arcs += [(name, 40, 3, 99) for name in range(20)] + [(20 + name, 40, 2, 0) for name in range(20)]
    problem = network(arcs, [3] * 20 + [0] * 20 + [-60])
    assert np.array_equal(solve(problem).units, solve(problem).units)


@pytest.mark.parametrize("cost", [2**60 // 8, -(2**60 // 8)])
def test_the_dearest_costs_in_range_overflow_nowhere(cost: int) -> None:
    arcs = [(0, 1, 2, cost), (1, 2, 2, cost), (2, 3, 2, cost), (3, 4, 2, cost), (4, 5, 2, cost), (5, 6, 2, cost)]
    problem = network([*arcs, (0, 6, 1, 0)], [2, 0, 0, 0, 0, 0, -2])
    flow = solver.simplex(problem, PLENTY)
    assert flow is not None
    assert flow.tolist() == ([1] * 7 if cost > 0 else [2] * 6 + [0])


def test_parallel_arcs_fill_the_cheaper_first() -> None:
    problem = network([(0, 1, 2, 9), (0, 1, 2, 1)], [3, -3])
    flow = solve(problem)
    assert flow.units.tolist() == [1, 2]
    assert flow.cost == 11


def test_an_infeasible_network_is_an_error_not_a_crash() -> None:
    with pytest.raises(SolverError, match="INFEASIBLE"):
        solve(network([(0, 1, 1, 1)], [2, -2]))


def test_an_unbalanced_network_is_refused() -> None:
    with pytest.raises(SolverError, match="sum to 1"):
        solve(network([(0, 1, 5, 1)], [2, -1]))


def test_float_costs_are_refused() -> None:
    good = network([(0, 1, 5, 1)], [1, -1])
    bad = Network(
        tail=good.tail,
        head=good.head,
        capacity=good.capacity,
        cost=np.array([0.7]),  # type: ignore[arg-type]
        supply=good.supply,
    )
    with pytest.raises(SolverError, match="cost is float64"):
        solve(bad)


def test_costs_beyond_the_range_are_refused() -> None:
    with pytest.raises(SolverError, match="beyond the range"):
        solve(network([(0, 1, 5, 2**60)], [1, -1]))


@pytest.mark.parametrize("arc", [(0, 2, 1, 1), (-1, 1, 1, 1), (0, 1, -1, 1)])
def test_arcs_outside_of_the_network_are_refused(arc: tuple[int, int, int, int]) -> None:
    with pytest.raises(SolverError):
        solve(network([arc], [1, -1]))


def test_nothing_to_move_costs_nothing() -> None:
    flow = solve(network([], [0, 0]))
    assert flow.cost == 0
    assert certify(network([], [0, 0]), flow).iterations == 0


def test_certificate_refuses_a_dearer_flow() -> None:
    problem = network([(0, 1, 2, 9), (0, 1, 2, 1)], [2, -2])
    with pytest.raises(SolverError, match="negative cycle"):
        certify(problem, Flow(units=np.array([2, 0], np.int64), cost=18))


def test_certificate_refuses_a_flow_that_loses_units() -> None:
    problem = network([(0, 1, 2, 1)], [2, -2])
    with pytest.raises(SolverError, match="lost or made"):
        certify(problem, Flow(units=np.array([1], np.int64), cost=1))


def test_certificate_refuses_a_flow_over_capacity() -> None:
    problem = network([(0, 1, 2, 1)], [2, -2])
    with pytest.raises(SolverError, match="capacity"):
        certify(problem, Flow(units=np.array([3], np.int64), cost=3))


def test_potentials_are_prices() -> None:
    # Two machines of one unit at costs 1 and 5, two units to place: one more unit would stay unscheduled at 50.
    problem = network([(0, 1, 1, 1), (0, 2, 1, 5), (0, 3, 2, 50), (1, 3, 1, 0), (2, 3, 1, 0)], [2, 0, 0, -2])
    flow = solve(problem)
    price = certify(problem, flow).potential
    reduced = problem.cost + price[problem.tail] - price[problem.head]
    assert (reduced[flow.units < problem.capacity] >= 0).all()
    assert (reduced[flow.units > 0] <= 0).all()
