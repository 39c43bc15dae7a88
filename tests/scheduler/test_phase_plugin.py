"""A third phase, for CXL memory, beside processors and GPUs."""

from __future__ import annotations

from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from farbus.model.decision import Decision, DeviceView, PendingJob, Snapshot
from farbus.model.device import Device, DeviceKind, Route
from farbus.model.job import Job
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.round import PHASES, decide
from tests.scheduler.cxl_phase import CxlMemoryPhase
from tests.scheduler.worlds import check_decision, gpu, group, node, pending_jobs, snapshots


def expander(name: str, on: str) -> DeviceView:
    device = Device(id=name, kind=DeviceKind.PCI, model="expander", attributes={"type": "cxl-memory"})
    return DeviceView(device=device, node=on, free=True)


def wanting(name: str, count: int, **more: object) -> PendingJob:
    environment = {"CXL_EXPANDERS": str(count)}
    return PendingJob(
        job=Job(id=name, name=name, user="u", groups=(group(**more),), environment=environment)  # type: ignore[arg-type]
    )


WORLD = Snapshot(
    nodes=(node("a", rack="r1"), node("b", rack="r1"), node("c", rack="r2"), node("d", rack="r2")),
    devices=(expander("x0", "a"), expander("x1", "a"), gpu("g0", "b"), gpu("g1", "c")),
)


def run(*pending: PendingJob) -> Decision:
    return decide(WORLD, pending, policy=DefaultPolicy(), phases=(*PHASES, CxlMemoryPhase()))


def placed(decision: Decision) -> list[tuple[str, str, Route]]:
    return [(device.device, device.node, device.route) for device in decision.placements[0].tasks[0].devices]


def test_the_node_with_the_expanders_is_chosen() -> None:
    decision = run(wanting("j", 2))
    assert decision.placements[0].tasks[0].node == "a"
    assert placed(decision) == [("x0", "a", Route.LOCAL), ("x1", "a", Route.LOCAL)]


def test_two_kinds_of_device_meet_in_one_rack() -> None:
    decision = run(wanting("j", 1, gpus=1, routes=(Route.LOCAL,)))
    assert decision.placements[0].tasks[0].node == "b", "c has a GPU, but no switch to an expander"
    assert placed(decision) == [("g0", "b", Route.LOCAL), ("x0", "a", Route.REMOTE)]


def test_a_node_behind_another_switch_is_lent_nothing() -> None:
    decision = run(wanting("j", 1, node="d"))
    assert not decision.placements
    assert not decision.misses[0].feasible_alone


def test_what_the_third_phase_lacks_is_given_back_by_the_first_two() -> None:
    greedy = wanting("greedy", 3, gpus=1)
    modest = PendingJob(job=Job(id="modest", name="modest", user="u", groups=(group(gpus=1, count=2),)))
    decision = run(greedy, modest)
    assert [placement.job for placement in decision.placements] == ["modest"]
    assert [miss.phase for miss in decision.misses[0].misses] == ["gpu", "cxl"]


def test_jobs_that_differ_in_the_third_phase_alone_are_explained_each_by_itself() -> None:
    decision = run(wanting("six", 6), wanting("seven", 7))
    told = {miss.job: [part.message for part in miss.misses] for miss in decision.misses}
    assert told["six"] == ["6 CXL expanders wanted; the cluster has 2: 4 short"]
    assert told["seven"] == ["7 CXL expanders wanted; the cluster has 2: 5 short"]


def test_a_bundle_larger_than_any_node_has_comes_from_several() -> None:
    world = Snapshot(
        nodes=(node("a", rack="r1"), node("b", rack="r1"), node("c", rack="r1")),
        devices=(expander("x0", "a"), expander("x1", "a"), expander("x2", "b")),
    )
    decision = decide(world, [wanting("j", 3, node="c")], policy=DefaultPolicy(), phases=(*PHASES, CxlMemoryPhase()))
    assert {node for _, node, _ in placed(decision)} == {"a", "b"}


def test_two_phases_that_nobody_can_serve_from_elsewhere_are_told_of() -> None:
    # What each costs from elsewhere is "no arc"; twice that is beyond an int64.
    for world in (Snapshot(nodes=(), devices=()), Snapshot(nodes=(node("a"),), devices=())):
        decision = decide(world, [wanting("j", 2, gpus=1)], policy=DefaultPolicy(), phases=(*PHASES, CxlMemoryPhase()))
        assert not decision.placements


def test_the_documentation_shows_this_very_phase() -> None:
    root = Path(__file__).resolve().parents[2]
    code = (Path(__file__).parent / "cxl_phase.py").read_text()
    page = (root / "docs" / "scheduling.md").read_text()
    shown = page[page.index("class CxlMemoryPhase") :]
    assert code[code.index("class CxlMemoryPhase") :] == shown[: shown.index("```")]


@given(snapshots(), pending_jobs(), st.data())
@settings(max_examples=100)
def test_three_phases_keep_every_promise(snapshot: Snapshot, pending: list[PendingJob], data: st.DataObject) -> None:
    """Some jobs want expanders, some nodes have them: all of the job's devices or nothing, in the node's rack."""
    names = [view.name for view in snapshot.nodes]
    counts = data.draw(st.lists(st.integers(0, 2), min_size=len(names), max_size=len(names)))
    expanders = tuple(expander(f"x{n}-{k}", names[n]) for n, count in enumerate(counts) for k in range(count))
    world = Snapshot(nodes=snapshot.nodes, devices=(*snapshot.devices, *expanders))
    wanted = data.draw(st.lists(st.sampled_from((0, 0, 1, 2)), min_size=len(pending), max_size=len(pending)))
    jobs = [
        PendingJob(
            job=msgspec.structs.replace(entry.job, environment={"CXL_EXPANDERS": str(count)}),
            rounds_waited=entry.rounds_waited,
        )
        for entry, count in zip(pending, wanted, strict=True)
    ]
    decision = decide(world, jobs, policy=DefaultPolicy(), phases=(*PHASES, CxlMemoryPhase()))
    number = {entry.job.id: int(entry.job.environment["CXL_EXPANDERS"]) for entry in jobs}
    racks = {view.name: view.rack for view in world.nodes}
    owned = {view.device.id: view for view in expanders}
    given_out = []
    without = []
    for placement in decision.placements:
        tasks = []
        for task in placement.tasks:
            mine = [device for device in task.devices if device.device in owned]
            assert len(mine) == number[placement.job]
            assert all(racks[device.node] == racks[task.node] for device in mine)
            given_out += [device.device for device in mine]
            others = tuple(device for device in task.devices if device.device not in owned)
            tasks.append(msgspec.structs.replace(task, devices=others))
        without.append(msgspec.structs.replace(placement, tasks=tuple(tasks)))
    assert len(set(given_out)) == len(given_out)
    check_decision(snapshot, jobs, msgspec.structs.replace(decision, placements=tuple(without)))
