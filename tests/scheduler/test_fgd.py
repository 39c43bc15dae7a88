"""Fragmentation gradient descent: the measure, worked out by hand, and where tasks go because of it."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farbus.model.decision import PendingJob, Snapshot
from farbus.model.device import Route
from farbus.scheduler.costs import fgd
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.fgd import FIRST_LOOK, FGDPolicy, History, Workload
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.round import decide
from tests.scheduler.worlds import GIB, gpu, job, node, node_of

CPU = 1000
SMALL, LARGE, PLAIN = (1 * CPU, GIB, 0, 1), (8 * CPU, GIB, 0, 2), (1 * CPU, GIB, 0, 0)


def policy(*tasks: fgd.Demand) -> FGDPolicy:
    return FGDPolicy(workload=Workload.of(dict.fromkeys(tasks, 1.0)), history=None)


def test_fragments_are_the_popularity_of_what_finds_no_room_times_what_is_free() -> None:
    workload = Workload.of({SMALL: 3, LARGE: 1})
    has = np.array(
        [
            (8 * CPU, GIB, 9, 4),  # room for both
            (4 * CPU, GIB, 9, 4),  # none for a large one: a quarter of four
            (8 * CPU, GIB, 9, 1),  # a GPU short for a large one: a quarter of one
            (0, GIB, 9, 3),  # no processors: all are fragments
            (8 * CPU, GIB, 9, 0),
        ]
    )
    assert workload.fragments(has).tolist() == [0, 1, 0.25, 3, 0]


def test_for_a_task_without_gpus_all_free_ones_are_fragments() -> None:
    assert Workload.of({SMALL: 1, PLAIN: 1}).fragments(np.array([(8 * CPU, GIB, 9, 4)])).tolist() == [2]


def test_the_price_is_the_growth_of_fragments_and_what_is_taken() -> None:
    world = columns.from_snapshot(Snapshot(nodes=(node("a"),), devices=()))
    free, devices = np.array([(8 * CPU, GIB, 9)]), np.array([2])
    price = policy(SMALL, LARGE).devices_cost
    # A small task leaves one GPU, of no use for a large one: half a GPU more than before, and one taken.
    assert price(world, np.zeros(1, int), free, (CPU, 0, 0), devices, 1).tolist() == [1500]
    # Without a GPU it leaves two that a large one has no processors for.
    assert price(world, np.zeros(1, int), free, (CPU, 0, 0), devices, 0).tolist() == [1000]
    # A large task takes both and leaves nothing to be fragments.
    assert price(world, np.zeros(1, int), free, LARGE[:3], devices, 2).tolist() == [2000]


AMOUNT = st.integers(0, 9)


@given(
    tasks=st.dictionaries(st.tuples(AMOUNT, AMOUNT, AMOUNT, st.integers(0, 4)), st.floats(0.1, 9)),
    free=st.tuples(AMOUNT, AMOUNT, AMOUNT),
    demand=st.tuples(AMOUNT, AMOUNT, AMOUNT),
    devices=st.integers(0, 8),
    part=st.integers(0, 8),
)
@settings(max_examples=200)
def test_no_price_is_negative_or_more_than_the_free_devices(
    tasks: dict[fgd.Demand, float], free: tuple[int, ...], demand: tuple[int, ...], devices: int, part: int
) -> None:
    demand, taken = tuple(map(min, demand, free)), min(part, devices)
    workload = Workload.of(tasks)
    before, after = ((*free, devices), (*map(operator.sub, free, demand), devices - taken))
    growth = (workload.fragments(np.array([after])) - workload.fragments(np.array([before])))[0] + taken
    assert -1e-9 <= growth <= devices + 1e-9


def two_nodes() -> Snapshot:
    # b has one GPU with processors to spare, a has two with just enough for a large task.
    return Snapshot(
        nodes=(node("a", cpus=8), node("b", cpus=16)), devices=(gpu("a0", "a"), gpu("a1", "a"), gpu("b0", "b"))
    )


def test_a_small_task_leaves_room_for_large_ones() -> None:
    decision = decide(two_nodes(), [job("j", gpus=1)], policy=policy(SMALL, LARGE))
    assert node_of(decision, "j") == ["b"]


def test_a_task_without_devices_keeps_off_processors_that_devices_need() -> None:
    # By packing it would go to a, whose GPUs would be useless for large tasks then.
    assert node_of(decide(two_nodes(), [job("j")], policy=policy(LARGE)), "j") == ["b"]
    equal = Snapshot(nodes=(node("a", cpus=8), node("b", cpus=16)), devices=())
    assert node_of(decide(equal, [job("j")], policy=policy(LARGE)), "j") == ["a"]


def test_no_fragmentation_is_as_dear_as_a_remote_device() -> None:
    # Its own GPU, though that leaves seven useless for large tasks, before one that is lent.
    world = Snapshot(
        nodes=(node("a", cpus=8), node("b", cpus=1)),
        devices=(*(gpu(f"a{n}", "a") for n in range(8)), gpu("b0", "b")),
    )
    decision = decide(world, [job("j", gpus=1, node="a")], policy=policy(LARGE))
    assert [device.route for device in decision.placements[0].tasks[0].devices] == [Route.LOCAL]


def test_the_workload_is_learned_from_what_is_asked_for() -> None:
    history = History()
    few = [job(f"j{n}", gpus=1, cpus=1) for n in range(FIRST_LOOK - 1)]
    assert not history.take(few)
    assert history.take([*few, job("large", gpus=2, cpus=8)])
    # Each job counts once, however long it waits.
    assert not history.take(few)
    assert history.workload().popularity.tolist() == [(FIRST_LOOK - 1) / FIRST_LOOK, 1 / FIRST_LOOK]


def test_prices_are_kept_until_another_workload_is_looked_at() -> None:
    learning = FGDPolicy()
    first = learning.seeing([job("a")])
    assert learning.seeing([job("b")]) is first
    many = learning.seeing([job(f"j{n}", gpus=2) for n in range(FIRST_LOOK)])
    assert many is not first
    assert len(many.workload.popularity) == 2
    assert learning.seeing([]) is many


def test_what_was_asked_for_long_ago_counts_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fgd, "MEMORY", 32)
    history = History()
    for number in range(400):
        history.take([job(f"old{number}", gpus=1)])
    for number in range(400):
        history.take([job(f"new{number}", gpus=2)])
    workload = history.workload()
    assert workload.demands[0][-1] == 2
    assert workload.popularity[0] > 0.9


def test_only_a_policy_that_prices_devices_is_asked() -> None:
    class Silent(DefaultPolicy):
        def devices_cost(self, *_: object) -> None:  # type: ignore[override]
            raise AssertionError("asked")

    pending: list[PendingJob] = [job("j", gpus=1)]
    assert decide(two_nodes(), pending, policy=Silent()) == decide(two_nodes(), pending, policy=DefaultPolicy())
