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


@given(networks())
@settings(max_examples=150)
def test_a_shortened_network_costs_the_same(problem: Network) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "LEAST_SHORTENED", 1)
        short = solve(problem)
        patch.setattr(solver, "LEAST_SHORTENED", len(problem.supply) + 1)
        whole = solve(problem)
    certify(problem, short)
    assert short.cost == whole.cost


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
