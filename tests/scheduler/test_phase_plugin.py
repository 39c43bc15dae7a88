"""A third phase, for CXL memory, beside processors and GPUs."""

from __future__ import annotations

from pathlib import Path

from farbus.model.decision import Decision, DeviceView, PendingJob, Snapshot
from farbus.model.device import Device, DeviceKind, Route
from farbus.model.job import Job
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.round import PHASES, decide
from tests.scheduler.cxl_phase import CxlMemoryPhase
from tests.scheduler.worlds import gpu, group, node


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
    modest = PendingJob(job=Job(id="modest", name="modest", user="u", groups=(group(gpus=2, count=1),)))
    decision = run(greedy, modest)
    assert [placement.job for placement in decision.placements] == ["modest"]
    assert [miss.phase for miss in decision.misses[0].misses] == ["gpu", "cxl"]


def test_the_documentation_shows_this_very_phase() -> None:
    root = Path(__file__).resolve().parents[2]
    code = (Path(__file__).parent / "cxl_phase.py").read_text()
    page = (root / "docs" / "scheduling.md").read_text()
    shown = page[page.index("class CxlMemoryPhase") :]
    assert code[code.index("class CxlMemoryPhase") :] == shown[: shown.index("```")]
