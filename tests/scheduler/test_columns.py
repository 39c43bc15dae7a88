"""Columns that are kept from round to round are those that would be laid out anew."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farbus.model.decision import DeviceView, NodeView, Snapshot
from farbus.model.device import PoolReach, Route
from farbus.model.node import Resources
from farbus.scheduler import bench
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.phases.cluster import (
    MAX_NOTES,
    NEVER,
    UNCOUNTED,
    Changes,
    Cluster,
    Columns,
    Fabric,
    from_snapshot,
)
from farbus.scheduler.phases.jobs import Forms
from farbus.scheduler.round import PHASES, decide, decide_on
from tests.scheduler.worlds import after, gpu, job, node, pending_jobs, snapshots, world


def assert_equal(kept: Cluster | Fabric, fresh: Cluster | Fabric) -> None:
    for field in dataclasses.fields(fresh):
        if field.name in ("memo", "label_rows", "kept", "moment"):
            continue
        ours, theirs = getattr(kept, field.name), getattr(fresh, field.name)
        if isinstance(theirs, Fabric):
            assert_equal(ours, theirs)
        elif isinstance(theirs, np.ndarray):
            assert ours.dtype == theirs.dtype, field.name
            assert np.array_equal(ours, theirs), field.name
        else:
            assert ours == theirs, field.name


RESOURCES = st.builds(Resources, cpu_milli=st.integers(-1, 9000), memory_bytes=st.integers(-1, 2**36))


WHOLE = ("capacity", "labels", "rack", "pools", "attaching", "encryption", "gone")
"""What makes other columns of them."""


@st.composite
def changed(draw: st.DrawFn, before: Snapshot) -> Snapshot:
    """Draw what a cluster may have become: mostly other room, sometimes other nodes or devices."""
    nodes: list[NodeView] = []
    for view in before.nodes:
        change = draw(st.sampled_from(["nothing", "nothing", "free", "free", *WHOLE]))
        changes: dict[str, Any] = {
            "nothing": {},
            "free": {"free": draw(RESOURCES)},
            "capacity": {"capacity": draw(RESOURCES)},
            "labels": {"labels": {"zone": "z2"}},
            "rack": {"rack": "r9"},
            "pools": {"pools": (PoolReach(pool="p"),)},
            "encryption": {"remoting_tls": draw(st.sampled_from(["", "on", "off"]))},
            "attaching": {"storage_attach_s": draw(st.sampled_from([0.0, 4.0, float("nan")]))},
        }.get(change, {})
        if change != "gone":
            nodes.append(msgspec.structs.replace(view, **changes) if changes else view)
    devices: list[DeviceView] = []
    for view in before.devices:
        change = draw(st.sampled_from(["nothing", "nothing", "free", "free", "equal", "node", "gone"]))
        if change != "gone":
            moved = {"free": {"free": not view.free}, "equal": {"free": view.free}, "node": {"node": "elsewhere"}}
            devices.append(msgspec.structs.replace(view, **moved[change]) if change in moved else view)
    names = {view.name for view in nodes}
    if draw(st.booleans()):
        nodes.append(node(draw(st.sampled_from([f"new-{n}" for n in range(8) if f"new-{n}" not in names]))))
    if draw(st.booleans()):
        devices.append(gpu(f"GPU-new-{draw(st.integers(0, 1))}", "elsewhere"))
    return Snapshot(nodes=tuple(nodes), devices=tuple(devices))


@settings(max_examples=50)
@given(snapshots(), st.data())
def test_kept_columns_are_those_laid_out_anew(first: Snapshot, data: st.DataObject) -> None:
    columns, snapshot = Columns(), first
    for _ in range(4):
        assert_equal(columns.of(snapshot), from_snapshot(snapshot))
        snapshot = data.draw(changed(snapshot))


@settings(max_examples=30)
@given(snapshots(), pending_jobs(), st.data())
def test_decisions_on_kept_columns_are_the_same(first: Snapshot, jobs: list[Any], data: st.DataObject) -> None:
    columns, snapshot, policy = Columns(), first, DefaultPolicy()
    for _ in range(4):
        kept = decide_on(columns.of(snapshot), jobs, policy=policy)
        assert kept == decide(snapshot, jobs, policy=policy)
        snapshot = data.draw(changed(snapshot))


def test_only_the_rows_of_what_changed_are_written() -> None:
    columns = Columns()
    world = Snapshot(nodes=(node("a"), node("b")), devices=(gpu("g", "a"),))
    before = columns.of(world)
    fuller = msgspec.structs.replace(world.nodes[1], free=Resources(cpu_milli=1000, memory_bytes=1))
    after = columns.of(Snapshot(nodes=(world.nodes[0], fuller), devices=world.devices))
    assert after.names is before.names
    assert after.devices is before.devices
    assert after.free.tolist() == [before.free[0].tolist(), [1000, 1, UNCOUNTED]]
    # An earlier round's columns stay as they were.
    assert before.free[1].tolist() != after.free[1].tolist()


def test_what_was_found_about_labels_is_kept_within_a_limit() -> None:
    cluster = from_snapshot(Snapshot(nodes=(node("a", labels={"k": "v7"}),), devices=()))
    for number in range(5000):
        assert cluster.labelled((("k", f"v{number}"),)).tolist() == [number == 7]
    assert len(cluster.memo) <= 1024


def test_a_job_is_decided_on_what_is_free_now() -> None:
    columns = Columns()
    world = Snapshot(nodes=(node("a", cpus=4),), devices=())
    full = msgspec.structs.replace(world.nodes[0], free=Resources())
    assert decide_on(columns.of(world), [job("j", cpus=4)], policy=DefaultPolicy()).placements
    taken = Snapshot(nodes=(full,), devices=())
    assert not decide_on(columns.of(taken), [job("j", cpus=4)], policy=DefaultPolicy()).placements
    assert decide_on(columns.of(world), [job("j", cpus=4)], policy=DefaultPolicy()).placements


def test_rounds_that_follow_one_another_decide_as_rounds_that_know_nothing() -> None:
    columns, snapshot, policy, forms = Columns(), bench.make_cluster(160), DefaultPolicy(), Forms(PHASES)
    queue = bench.make_jobs(400)
    for number in range(8):
        # Few jobs and many, so that what bounded the search for cheap arcs is at times too little.
        pending = queue[: (5, 60, 200)[number % 3]]
        decision = decide_on(columns.of(snapshot), pending, policy=policy, forms=forms)
        assert decision == decide(snapshot, pending, policy=policy)
        placed = {placement.job for placement in decision.placements}
        queue = [entry for entry in queue if entry.job.id not in placed]
        snapshot = after(snapshot, pending, decision)


def test_a_round_that_broke_off_leaves_nothing_half_done() -> None:
    class Breaking(DefaultPolicy):
        broken = False

        def far_cost(self, *arguments: Any) -> Any:
            if self.broken:
                raise ZeroDivisionError
            return super().far_cost(*arguments)

    world = Snapshot(nodes=(node("a"), node("b")), devices=(gpu("g", "a"), gpu("h", "b")))
    columns, policy = Columns(), Breaking()
    pending = [job("j", gpus=1, count=2)]
    first = decide_on(columns.of(world), pending, policy=policy)
    policy.broken = True
    with pytest.raises(ZeroDivisionError):
        decide_on(columns.of(world), [job("k", gpus=1, node="b", routes=(Route.REMOTE,))], policy=policy)
    policy.broken = False
    assert decide_on(columns.of(world), pending, policy=policy) == first


@given(st.lists(st.one_of(st.none(), st.lists(st.integers(0, 5), max_size=4)), max_size=12), st.integers(0, 12))
def test_changes_tell_what_changed_since_a_moment(steps: list[list[int] | None], start: int) -> None:
    changes = Changes(6)
    moment, expected = NEVER, set(range(6))
    for number, rows in enumerate(steps):
        if number == start:
            moment, expected = changes.now, set()
        if rows is not None:
            changes.note(np.array(rows, np.int64))
            expected |= set(rows)
    assert set(changes.since(moment).tolist()) == expected


def test_changes_too_long_ago_are_all_rows() -> None:
    changes = Changes(3)
    moment = changes.now
    for _ in range(MAX_NOTES // 2 + 3):
        changes.note(np.array([1, 1]))
    assert changes.since(moment).tolist() == [0, 1, 2]
    assert changes.since(changes.now).tolist() == []


@pytest.mark.parametrize("labels", [{}, {"disk": "ssd", "zone": "a"}])
def test_the_labels_of_nodes_are_looked_through_once(labels: dict[str, str]) -> None:
    """Thousands of jobs may each name a label of their own."""

    class Counted(dict[str, str]):
        looks = 0

        def items(self) -> Any:
            type(self).looks += 1
            return super().items()

        def get(self, *arguments: Any) -> Any:
            type(self).looks += 1
            return super().get(*arguments)

    snapshot = world(node("n0"), node("n1", labels=labels))
    table = dataclasses.replace(from_snapshot(snapshot), labels=({}, Counted(labels)))
    for number in range(10):
        assert not table.labelled((("own", str(number)),)).any()
    assert table.labelled((("disk", "ssd"), ("zone", "a"))).tolist() == [False, bool(labels)]
    assert not table.labelled((("disk", "ssd"), ("zone", "b"))).any()
    assert Counted.looks == 1
