"""The native kernels beside plain loops that say the same; tests/scheduler/test_solver.py has the solver."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farbus.errors import Unavailable
from farbus.scheduler import kernels
from farbus.scheduler.phases.base import NO_ARC, Offer
from farbus.scheduler.phases.tables import ARC, Integers, Table


def column(values: list[int]) -> Integers:
    return np.array(values, np.int64)


def arcs_of(rows: list[tuple[int, int, int, int, int]]) -> Table:
    """Return rows of source, place, tier, capacity and cost as a table."""
    return np.array(rows, ARC)


def test_kernels_that_are_not_built_are_told_of_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "farbus.scheduler._kernels", None)
    spec = importlib.util.spec_from_file_location("kernels_again", kernels.__file__)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(Unavailable, match=r"^the scheduler's kernels are not built \(.*\); run make build$"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


# ---- the bound ----


class Relaxation:
    """One problem of the bound, and its steps as loops."""

    def __init__(self, draw: st.DrawFn) -> None:
        number = st.integers(0, 5)
        self.sources, self.places = draw(st.integers(1, 3)), draw(st.integers(1, 4))
        resources, commons = draw(st.integers(0, 2)), draw(st.integers(0, 1))
        ends = (st.integers(0, self.sources - 1), st.integers(0, self.places - 1), st.integers(0, 2))
        self.arcs = draw(st.lists(st.tuples(*ends, number, st.integers(0, 3)), max_size=12))
        # Each source and price once, the dearest first.
        self.classes = [
            (source, draw(number), price)
            for source in range(self.sources)
            for price in (9, 4, 2)
            if draw(st.booleans())
        ]
        self.units = [sum(count for mine, count, _ in self.classes if mine == source) for source in range(self.sources)]
        self.limit = [draw(st.sampled_from([2, 99])) for _ in range(self.sources)]
        self.beyond = [draw(st.sampled_from([NO_ARC, 3])) for _ in range(self.sources)]
        amounts = st.integers(0, 3)

        def table(*shape: int) -> list[float]:
            return [draw(amounts) / 2 for _ in range(int(np.prod(shape)))]

        self.room = np.array(table(self.places, resources)).reshape(self.places, resources)
        self.stock = np.array(table(commons))
        self.need = np.array(table(self.sources, 3, resources)).reshape(self.sources, 3, resources)
        self.share = np.array(table(self.sources, commons)).reshape(self.sources, commons)
        self.score, self.steps = draw(st.integers(0, 99)), draw(st.integers(1, 12))

    def climb(self, start: tuple[np.ndarray, np.ndarray] | None = None) -> tuple[float, np.ndarray, np.ndarray]:
        return kernels.climb(
            arcs_of(self.arcs),
            room=self.room,
            stock=self.stock,
            need=self.need,
            share=self.share,
            units=column(self.units),
            limit=column(self.limit),
            beyond=column(self.beyond),
            no_arc=NO_ARC,
            classes=tuple(column([row[n] for row in self.classes]) for n in (0, 1, 2)),
            score=self.score,
            steps=self.steps,
            patience=2,
            least=0.01,
            start=start,
        )

    def relaxed(self, here: np.ndarray, whole: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Serve unit by unit: who is dearest to leave, by the cheapest way that has room."""
        cost, over, over_whole = 0.0, -self.room, -self.stock
        for source in range(self.sources):
            ways = []
            for mine, place, tier, capacity, price in self.arcs:
                if mine == source:
                    total = sum(row[3] for row in self.arcs if row[0] == source and row[1] == place)
                    value = price + here[place] @ self.need[source, tier] + self.share[source] @ whole
                    ways += [(value, place, tier)] * (capacity if tier == 0 else total)
            if self.beyond[source] < NO_ARC:
                ways += [(self.beyond[source] + self.share[source] @ whole, -1, 0)] * self.units[source]
            ways = sorted(ways, key=lambda way: way[0])[: self.limit[source]]
            waiting = [price for mine, count, price in self.classes if mine == source for _ in range(count)]
            for number, price in enumerate(waiting):
                if number >= len(ways) or ways[number][0] >= price:
                    cost += price
                    continue
                value, place, tier = ways[number]
                cost += value
                over_whole = over_whole + self.share[source]
                if place >= 0:
                    over[place] += self.need[source, tier]
        return cost - float((here * self.room).sum() + whole @ self.stock), over, over_whole

    def stepped(self) -> float:
        here, whole = np.zeros_like(self.room), np.zeros_like(self.stock)
        best, best_here, best_whole, length, idle = -np.inf, here, whole, 1.0, 0
        for step in range(self.steps):
            value, over, over_whole = self.relaxed(here, whole)
            if value > best + 0.5:
                best, best_here, best_whole, idle = value, here, whole, 0
            else:
                idle += 1
                if idle >= 2:
                    length, idle, here, whole = length / 2, 0, best_here, best_whole
            over, over_whole = (
                np.where((here > 0) | (over > 0), over, 0),
                np.where((whole > 0) | (over_whole > 0), over_whole, 0),
            )
            norm = float((over * over).sum() + over_whole @ over_whole)
            if self.score - value < 1 or norm == 0 or length < 0.01 or step + 1 >= self.steps:
                break
            move = length * (self.score - value) / norm
            here, whole = np.maximum(here + move * over, 0), np.maximum(whole + move * over_whole, 0)
        return best


RELAXATIONS = st.composite(Relaxation)()


@given(RELAXATIONS)
@settings(max_examples=300)
def test_bound_is_what_the_relaxation_costs_at_its_prices(problem: Relaxation) -> None:
    bound, here, whole = problem.climb()
    assert (here >= 0).all()
    assert (whole >= 0).all()
    assert bound == pytest.approx(problem.relaxed(here, whole)[0], abs=1e-6)


@given(RELAXATIONS)
@settings(max_examples=300)
def test_first_step_towards_the_bound_is_what_a_loop_does(problem: Relaxation) -> None:
    # Later steps may part: where two ways cost the same to the last digit but one, either may be taken.
    problem.steps = min(problem.steps, 2)
    assert problem.climb()[0] == pytest.approx(problem.stepped(), abs=1e-6)


@given(RELAXATIONS, st.integers(0, 3))
@settings(max_examples=100)
def test_the_first_bound_is_that_of_the_prices_to_start_with(problem: Relaxation, price: int) -> None:
    start = np.full(problem.room.shape, price / 2), np.full(problem.stock.shape, price / 4)
    problem.steps = 1
    bound, here, whole = problem.climb(start)
    assert bound == pytest.approx(problem.relaxed(*start)[0], abs=1e-6)
    assert (here == start[0]).all()
    assert (whole == start[1]).all()


def test_many_ways_of_one_source_are_taken_by_cost() -> None:
    rng = np.random.default_rng(5)
    count = 500
    costs = rng.integers(0, 100_000, count)
    arcs = arcs_of([(0, place, 0, 1, int(cost)) for place, cost in enumerate(costs)])
    bound, _, _ = kernels.climb(
        arcs,
        room=np.ones((count, 1)),
        stock=np.zeros(0),
        need=np.ones((1, 3, 1)),
        share=np.zeros((1, 0)),
        units=column([200]),
        limit=column([300]),
        beyond=column([NO_ARC]),
        no_arc=NO_ARC,
        classes=(column([0]), column([200]), column([10**9])),
        score=0,
        steps=1,
        patience=8,
        least=0.01,
    )
    assert bound == np.sort(costs)[:200].sum()


def test_an_arc_of_no_source_is_refused() -> None:
    problem = dict.fromkeys(("units", "limit", "beyond"), column([1]))
    with pytest.raises(ValueError, match="EINVAL"):
        kernels.climb(
            arcs_of([(1, 0, 0, 1, 1)]),
            room=np.ones((1, 1)),
            stock=np.zeros(0),
            need=np.ones((1, 3, 1)),
            share=np.zeros((1, 0)),
            **problem,
            no_arc=NO_ARC,
            classes=(column([0]), column([1]), column([1])),
            score=0,
            steps=1,
            patience=8,
            least=0.01,
        )


# ---- the cheapest arcs, places, networks ----


@st.composite
def offered(draw: st.DrawFn) -> list[Offer]:
    """Draw the offers of one aggregator, one a tier, with arcs to some of their places."""
    offers = []
    for tier in range(draw(st.integers(1, 3))):
        place = sorted(draw(st.sets(st.integers(0, 30), max_size=12)))
        offer = Offer(tier, column(place))
        for row in range(len(place)):
            offer.write(column([row]), column([draw(st.integers(0, 4))]), column([draw(st.integers(0, 9))]))
        # What a round before found may be too low, or of no use.
        offer.bound = draw(st.sampled_from([NO_ARC - 1, 3, 8, -1]))
        if draw(st.booleans()):
            offer.least = None
        offers.append(offer)
    return offers


@given(offered(), st.integers(1, 12), st.integers(0, 3))
@settings(max_examples=300)
def test_cheapest_arcs_are_those_that_sorting_all_finds(offers: list[Offer], units: int, spare: int) -> None:
    everything = sorted(
        (int(offer.cost[row]), offer.tier, int(offer.place[row]), int(offer.capacity[row]))
        for offer in offers
        for row in offer.arcs()
    )
    kept, held = 0, 0
    while kept < len(everything) and held < units:
        held += everything[kept][3]
        kept += 1
    complete = held >= units and kept + spare <= len(everything)
    expected = everything[: kept + spare]
    for _ in range(2):
        arcs, dearest = kernels.choose(offers, source=7, units=units, spare=spare, no_arc=NO_ARC, kind=ARC)
        rows = [tuple(row) for row in arcs[["cost", "tier", "place", "capacity"]].tolist()]
        assert rows == sorted(expected, key=lambda row: row[1:3])
        assert (arcs["source"] == 7).all()
        assert dearest == (expected[-1][:2] if complete else None)


WRITES = st.lists(
    st.dictionaries(st.integers(0, 39), st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1), max_size=8
)
"""Some writes, each of capacities and costs by row."""


@given(WRITES)
def test_the_least_cost_of_each_block_follows_what_is_written(writes: list[dict[int, tuple[int, int]]]) -> None:
    offer, arcs = Offer(0, np.arange(40)), dict.fromkeys(range(40), (0, NO_ARC))
    for rows in writes:
        offer.write(
            column(list(rows)), column([room for room, _ in rows.values()]), column([c for _, c in rows.values()])
        )
        arcs |= {row: (room, cost if room else NO_ARC) for row, (room, cost) in rows.items()}
    assert list(zip(offer.capacity.tolist(), offer.cost.tolist(), strict=True)) == list(arcs.values())
    assert offer.least is not None
    blocks = range(0, 40, kernels.BLOCK)
    assert offer.least.tolist() == [int(offer.cost[first : first + kernels.BLOCK].min()) for first in blocks]


@pytest.mark.parametrize("row", [-1, 40])
def test_an_arc_to_a_row_that_is_not_there_is_refused_and_nothing_is_written(row: int) -> None:
    offer = Offer(0, np.arange(40))
    with pytest.raises(ValueError, match="EINVAL"):
        offer.write(column([3, row]), column([1, 1]), column([2, 2]))
    assert not len(offer.arcs())


def test_many_arcs_of_wide_costs_are_chosen_by_cost_and_place() -> None:
    rng = np.random.default_rng(3)
    offer = Offer(0, np.arange(5000))
    offer.write(np.arange(5000), np.ones(5000, np.int64), rng.integers(0, 2**40, 5000) // 2**30 * 2**30)
    arcs, _ = kernels.choose([offer], source=0, units=700, spare=0, no_arc=NO_ARC, kind=ARC)
    assert arcs["place"].tolist() == sorted(np.lexsort((offer.place, offer.cost))[:700].tolist())
    assert offer.bound < NO_ARC - 1
    again, _ = kernels.choose([offer], source=0, units=700, spare=0, no_arc=NO_ARC, kind=ARC)
    assert np.array_equal(arcs, again)


@given(st.lists(st.integers(0, 199), max_size=40))
def test_places_are_numbered_in_their_order(named: list[int]) -> None:
    places, row = kernels.places(200, arcs_of([(0, place, 0, 1, 1) for place in named]))
    assert places.tolist() == sorted(set(named))
    assert places[row].tolist() == named


def test_a_place_beyond_the_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match="EINVAL"):
        kernels.places(5, arcs_of([(0, 5, 0, 1, 1)]))


def test_a_network_is_laid_out_arc_by_arc() -> None:
    # Source 0 has arcs of two tiers to place 10, and joins pool 0, which is source 1; pool 1 has its own count of room.
    arcs = arcs_of(
        [(0, 10, 0, 2, 5), (0, 10, 2, 9, 6), (0, 12, 0, 1, 4), (0, 11, 0, 3, 7), (0, 11, 2, 1, 8), (1, 12, 0, 9, 1)]
    )
    places, row = kernels.places(20, arcs)
    tail, head, capacity, cost, supply = kernels.lay_out(
        arcs,
        row,
        own=3,
        node=column([0, 1]),
        first_pool=1,
        summed=column([1, 0]),
        room=column([0, 0, 2]),
        joins=(column([0]), column([1])),
        claims=(column([0, 1, 0]), column([3, 2, 1])),
        units=6,
    )
    assert places.tolist() == [10, 11, 12]
    sink = 6
    assert list(zip(tail.tolist(), head.tolist(), capacity.tolist(), cost.tolist(), strict=True)) == [
        *[(0, 3, 2, 5), (0, 3, 6, 6), (0, 5, 1, 4), (1, 4, 3, 7), (1, 4, 1, 8), (2, 5, 6, 1)],
        *[(3, sink, 6, 0), (4, sink, 4, 0), (5, sink, 2, 0)],
        (0, 1, 4, 0),
        *[(0, sink, 3, 0), (1, sink, 2, 0), (0, sink, 1, 0)],
    ]
    assert supply.tolist() == [4, 2, 0, 0, 0, 0, -6]


@pytest.mark.parametrize(
    "wrong",
    [
        {"row": column([3])},
        {"node": column([5])},
        {"own": 2},
        {"joins": (column([1]), column([0]))},
        {"joins": (column([0]), column([2]))},
        {"claims": (column([-1]), column([1]))},
    ],
)
def test_a_network_with_an_end_that_does_not_exist_is_refused(wrong: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {
        "row": column([0]),
        "own": 1,
        "node": column([0]),
        "first_pool": 1,
        "summed": column([]),
        "room": column([0]),
        "joins": (column([]), column([])),
        "claims": (column([]), column([])),
        "units": 1,
    }
    kernels.lay_out(arcs_of([(0, 0, 0, 1, 1)]), **arguments)
    with pytest.raises(ValueError, match="EINVAL"):
        kernels.lay_out(arcs_of([(0, 0, 0, 1, 1)]), **(arguments | wrong))


def read_only(length: int) -> Integers:
    """Return a column that nobody may write to."""
    made = np.zeros(length, np.int64)
    made.flags.writeable = False
    return made


@pytest.mark.parametrize("room", [np.zeros(4, np.int64)[::2], np.zeros(2), np.zeros(2, np.int32), read_only(2)])
def test_what_a_kernel_can_not_write_in_place_is_refused_not_lost(room: Integers) -> None:
    with pytest.raises(ValueError, match="can't write int64_t to this array"):
        kernels.lay_out(
            arcs_of([(0, 0, 0, 2, 1), (0, 1, 0, 2, 1)]),
            column([0, 1]),
            own=2,
            node=column([0]),
            first_pool=1,
            summed=column([]),
            room=room,
            joins=(column([]), column([])),
            claims=(column([]), column([])),
            units=3,
        )
    with pytest.raises(ValueError, match="can't write int64_t to this array"):
        kernels.write_arcs((room, column([0, 0]), None), column([0]), column([1]), column([1]), no_arc=NO_ARC)
    assert not room.any()


def test_a_queue_without_a_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="EINVAL"):
        kernels.limited(column([0, 1]), column([1, 1]), column([1]))
