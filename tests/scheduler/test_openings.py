"""What would have to end so that a job has room: by the decision maker itself, no more than needed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from farbus.model.decision import Decision, PendingJob, Snapshot
from farbus.model.node import Resources
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.openings import Found, Holding, find_opening, without
from farbus.scheduler.round import decide
from farbus.scheduler.words import describe_span
from tests.scheduler.worlds import GIB, gpu, group, job, node


async def ask(snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
    return decide(snapshot, pending, policy=DefaultPolicy())


async def search(snapshot: Snapshot, wanted: PendingJob, holdings: Sequence[Holding]) -> Found | None:
    return await find_opening(ask, snapshot, wanted.job, holdings)


def names(found: Found | None) -> list[str]:
    assert found is not None
    return [held.job for held in found.needed]


def held(name: str, on: str, *, cpus: int = 0, devices: Sequence[str] = ()) -> Holding:
    room = {on: Resources(cpu_milli=cpus * 1000, memory_bytes=cpus * GIB)} if cpus else {}
    return Holding(job=name, room=room, devices=dict.fromkeys(devices, on))


TAKEN = Snapshot(
    nodes=(node("a", free_cpus=0, free_memory_gib=0), node("b", free_cpus=4)),
    devices=(gpu("g0", "a", free=False), gpu("g1", "a", free=False), gpu("g2", "b", free=False)),
)


async def test_a_job_that_fits_needs_nothing_to_end() -> None:
    assert names(await search(TAKEN, job("j", cpus=2), [held("x", "a", cpus=8)])) == []


async def test_the_first_that_makes_room_is_named_and_no_other() -> None:
    holdings = [held("x", "a", cpus=1), held("y", "b", cpus=1, devices=["g2"]), held("z", "a", cpus=1, devices=["g0"])]
    assert names(await search(TAKEN, job("j", gpus=1), holdings)) == ["y"]


async def test_all_that_a_task_needs_on_one_node_is_named() -> None:
    holdings = [held("x", "a", cpus=3), held("y", "b", cpus=2), held("z", "a", cpus=5)]
    assert names(await search(TAKEN, job("j", cpus=7, memory_gib=7), holdings)) == ["x", "z"]


async def test_devices_on_one_node_need_the_jobs_of_that_node_alone() -> None:
    holdings = [held("x", "a", devices=["g0"]), held("y", "b", devices=["g2"]), held("z", "a", devices=["g1"])]
    assert names(await search(TAKEN, job("j", gpus=2), holdings)) == ["x", "z"]


async def test_where_no_end_helps_nothing_is_found() -> None:
    assert await search(TAKEN, job("j", gpus=2), [held("x", "a", devices=["g0"])]) is None


async def test_a_gang_counts_as_a_whole() -> None:
    wanted = job("j", group("one", cpus=4), group("two", cpus=8, memory_gib=8))
    assert names(await search(TAKEN, wanted, [held("x", "a", cpus=8)])) == ["x"]


async def test_it_takes_few_decisions() -> None:
    asked = 0

    async def counted(snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        nonlocal asked
        asked += 1
        return await ask(snapshot, pending)

    nodes = tuple(node(f"n{number:03}", free_cpus=0, free_memory_gib=0) for number in range(256))
    holdings = [held(f"j{number:03}", f"n{number:03}", cpus=number // 32) for number in range(256)]
    found = await find_opening(counted, Snapshot(nodes=nodes, devices=()), job("w", cpus=7).job, holdings)
    assert names(found) == ["j224"]
    assert asked <= 10


def test_what_ends_frees_no_more_than_there_is_and_leaves_the_rest_as_it_is() -> None:
    freed = without(TAKEN, [held("x", "b", cpus=8, devices=["g2"])])
    assert freed.nodes[1].free.cpu_milli == freed.nodes[1].capacity.cpu_milli
    assert freed.nodes[0] is TAKEN.nodes[0]
    assert [view.free for view in freed.devices] == [False, False, True]
    assert freed.devices[0] is TAKEN.devices[0]


@pytest.mark.parametrize(
    ("seconds", "told"), [(0, "0 s"), (59.6, "1 min"), (3_725, "1 h 2 min"), (90_000, "1 d 1 h"), (125, "2 min 5 s")]
)
def test_spans_are_told_in_two_units(seconds: float, told: str) -> None:
    assert describe_span(seconds) == told
