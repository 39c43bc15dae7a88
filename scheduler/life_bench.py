"""What a job of many tasks costs the scheduler from its submission to its end: the machine's events and the ledger.

Agents answer each command at once and well; each task has a GPU of another
node, and ends by itself.  Sixteen answers share a commit.  The round is left
out: where the tasks go is known.  ``life_ms`` is processor time for each task;
the reference is that of the smallest job in the same run, so that a ratio of 1
says that a task costs the same however many there are.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from farbus.model.decision import Decision, JobPlacement, RoundReport
from farbus.model.device import Device, DeviceKind, Route
from farbus.model.job import DevicePlacement, Job, Requests, TaskGroup, TaskPlacement, TaskState, TaskStatus
from farbus.model.node import Node, Resources
from farbus.scheduler import events
from farbus.scheduler.ledger import Ledger
from farbus.scheduler.lifecycle import ClusterMachine

TASKS = (256, 1_024, 4_096)
"""Tasks of the jobs: the last is the most that one may have."""
QUICK_TASKS = (64, 256)
TASKS_PER_NODE = 16
COMMIT_EVERY = 16
"""Answers of nodes that share a commit."""
GIB = 2**30
JOB = "j1"


class Life:
    """One job of ``tasks`` tasks, its machine, and nodes that do as they are told; see the module."""

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks
        self.nodes = max(2, -(-tasks // TASKS_PER_NODE))
        secrets = itertools.count(1)
        self.machine = ClusterMachine(
            term=1, lease_ttl_s=1e6, new_secret=lambda: f"{next(secrets):064x}", boot_id="boot"
        )
        self._asked: deque[events.SendToNode] = deque()
        self._now = 1_000.0

    def joins(self) -> Iterable[events.Event]:
        """Yield the hellos of all nodes."""
        for number in range(self.nodes):
            yield events.NodeJoined(node=_node(number), session=number + 1, instance="first")

    def happens(self) -> Iterable[events.Event]:
        """Yield what happens to the job, each once what came of the one before has been taken in."""
        requests = Requests(cpu_milli=1_000, memory_bytes=GIB, gpus=1)
        group = TaskGroup(name="main", command=("program",), count=self.tasks, requests=requests)
        yield events.JobSubmitted(job=Job(id=JOB, name="large", user="ada", groups=(group,), submitted_at=1.0))
        _, _, generation = self.machine.round_input(self._now)
        placement = JobPlacement(job=JOB, tasks=tuple(map(self._place, range(self.tasks))))
        report = RoundReport(pending=1, placed=1, decision_ms=0.0, solves=0, certified=False)
        decision = Decision(placements=(placement,), misses=(), report=report)
        yield events.RoundDecided(decision=decision, generation=generation)
        yield from self._answers()
        for number in range(self.tasks):
            node = number // TASKS_PER_NODE
            status = TaskStatus(task=f"main.{number}", state=TaskState.EXITED, node=_name(node))
            yield events.TaskReported(node=_name(node), session=node + 1, job_id=JOB, status=status)
        yield from self._answers()

    def _place(self, number: int) -> TaskPlacement:
        node = number // TASKS_PER_NODE
        lender = (node + 1) % self.nodes
        gpu = DevicePlacement(device=f"GPU-{lender}-{number % TASKS_PER_NODE}", node=_name(lender), route=Route.REMOTE)
        return TaskPlacement(task=f"main.{number}", node=_name(node), devices=(gpu,), cost=12, why="least cost")

    def _answers(self) -> Iterable[events.Event]:
        while self._asked:
            sent = self._asked.popleft()
            assert not isinstance(sent.command, events.HeartbeatReply | events.ServeChassis | events.CancelMove)
            yield events.OutcomeArrived(
                node=sent.node, session=sent.session, command_id=sent.command.command_id, ok=True, endpoint="a:7000"
            )

    def tell(self, event: events.Event) -> list[events.Persist]:
        """Have an event taken in; return what is to be written."""
        self._now += 0.001
        lasting: list[events.Persist] = []
        for effect in self.machine.handle(event, now=self._now, wall=1_700_000_000.0 + self._now):
            if isinstance(effect, events.Persist):
                lasting.append(effect)
            elif isinstance(effect, events.SendToNode):
                self._asked.append(effect)
        return lasting


def run(*, quick: bool) -> list[dict[str, Any]]:
    """Let jobs live; return the benchmark's rows."""
    rows: list[dict[str, Any]] = []
    for tasks in QUICK_TASKS if quick else TASKS:
        value = round(1_000 * _live(tasks) / tasks, 4)
        reference = rows[0]["value"] if rows else value
        row = {"name": "life_ms", "value": value, "unit": "ms", "reference": reference}
        rows.append({**row, "ratio": round(value / reference, 2), "reference_name": "smallest job", "tasks": tasks})
    return rows


def _live(tasks: int) -> float:
    """Return the seconds of processor time that the life of a job takes."""
    with tempfile.TemporaryDirectory(prefix="farbus-bench-") as directory:
        ledger = Ledger(directory)
        life = Life(tasks)
        ledger.write([effect for event in life.joins() for effect in life.tell(event)]).result()
        began = time.process_time()
        waiting: list[events.Persist] = []
        for number, event in enumerate(life.happens()):
            waiting += life.tell(event)
            if number % COMMIT_EVERY == 0:
                ledger.write(waiting).result()
                waiting = []
        ledger.write(waiting).result()
        took = time.process_time() - began
        assert not life.machine.jobs, "the job has not ended"
        ledger.close()
    return took


def _name(number: int) -> str:
    return f"n{number:05}"


def _node(number: int) -> Node:
    return Node(
        name=_name(number),
        address="127.0.0.1",
        boot_id="boot",
        agent_version="1",
        capacity=Resources(cpu_milli=1_000 * TASKS_PER_NODE, memory_bytes=GIB * TASKS_PER_NODE),
        devices=tuple(
            Device(id=f"GPU-{number}-{slot}", kind=DeviceKind.GPU, model="A100", memory_bytes=80 * GIB)
            for slot in range(TASKS_PER_NODE)
        ),
    )
