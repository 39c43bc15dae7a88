"""Jobs of many tasks: what happens to one of them costs the same however many there are."""

from __future__ import annotations

import sys
from types import FrameType, TracebackType
from typing import Any, Self

import pytest

from farbus.model.states import JobState
from farbus.scheduler import events
from farbus.scheduler.ledger import apart
from farbus.scheduler.life_bench import Life

FEW, MANY = 72, 216
"""Both have more to tell than a story keeps."""
AT_ONCE = 6
"""Events after which all tasks of a job are looked at: the round, when all are prepared, the first and the last start,
the last exit and the last release."""


class Steps:
    """Counts the steps that the interpreter takes in a block."""

    def __init__(self) -> None:
        self.taken = 0

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._count)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.settrace(self._before)

    def _count(self, frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        self.taken += event == "opcode"
        return self._count


@pytest.fixture(scope="module")
def lives() -> dict[int, list[tuple[events.Event, int, int]]]:
    """The events of a job with few tasks and of one with many: each with its steps, and the bytes that it writes."""
    return {tasks: live(tasks) for tasks in (FEW, MANY)}


def live(tasks: int) -> list[tuple[events.Event, int, int]]:
    life = Life(tasks)
    for event in life.joins():
        life.tell(event)
    told = []
    for event in life.happens():
        with Steps() as steps:
            lasting = life.tell(event)
        jobs, rows, _ = apart(lasting)
        size = sum(len(progress) for _, progress in jobs) + sum(map(len, rows.values()))
        told.append((event, steps.taken, size))
    assert not life.machine.jobs, "the job has not ended"
    return told


def test_a_task_costs_the_same_number_of_steps(lives: dict[int, list[tuple[events.Event, int, int]]]) -> None:
    few, many = (sum(steps for _, steps, _ in lives[tasks]) / tasks for tasks in (FEW, MANY))
    assert many < 1.25 * few


def test_a_task_costs_the_same_number_of_bytes(lives: dict[int, list[tuple[events.Event, int, int]]]) -> None:
    few, many = (sum(size for _, _, size in lives[tasks]) / tasks for tasks in (FEW, MANY))
    assert many < 1.25 * few


def test_all_tasks_are_looked_at_a_few_times_alone(lives: dict[int, list[tuple[events.Event, int, int]]]) -> None:
    few, many = (sorted(steps for _, steps, _ in lives[tasks])[-AT_ONCE - 1] for tasks in (FEW, MANY))
    assert many < 1.25 * few


def test_an_answer_writes_what_has_changed_alone(lives: dict[int, list[tuple[events.Event, int, int]]]) -> None:
    few, many = (sorted(size for _, _, size in lives[tasks])[-AT_ONCE - 1] for tasks in (FEW, MANY))
    assert many < 1.25 * few


def coming_back(tasks: int) -> int:
    """Return the steps that it takes to lose a node of a running job and to let it in again, with all that it held."""
    life = Life(tasks)
    for event in life.joins():
        life.tell(event)
    for event in life.happens():
        if isinstance(event, events.TaskReported):
            break
        life.tell(event)
    name, machine = "n00000", life.machine
    (job,) = machine.jobs.values()
    assert job.state is JobState.RUNNING
    node = machine.nodes[name].node
    assert node is not None
    leases = [machine.leases[lease_id] for lease_id in machine.leases_of_node[name]]
    hello = events.NodeJoined(
        node=node,
        session=1_000,
        instance="first",
        held=tuple(
            events.HeldLease(lease_id=each.lease.id, device_side=True, endpoint=each.endpoint) for each in leases
        ),
        tasks=tuple(
            events.HeldTask(job_id=job.job.id, status=run.status()) for run in job.runs.at(name) if run.node == name
        ),
    )
    with Steps() as steps:
        life.tell(events.NodeLost(node=name, session=1))
        life.tell(hello)
    assert job.state is JobState.RUNNING
    return steps.taken


def test_a_node_comes_back_whatever_its_jobs_have_elsewhere() -> None:
    assert coming_back(MANY) < 1.25 * coming_back(FEW)
