"""Recorded workloads as submissions to a simulated cluster.

* *openb*: nodes and pods of Alibaba's cluster-trace-gpu-v2023 (the traces of
  FGD, USENIX ATC 2023), as ``openb_node_list_*.csv`` and ``openb_pod_list_*.csv``.
* *philly*: jobs that the authors of Chronus (SoCC 2021) derived from
  Microsoft's Philly trace, with a completion time expected of each.

The traces are other people's: Farbus reads them and does not carry them.
"""

from __future__ import annotations

import csv
import enum
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from farbus.errors import InvalidInput
from farbus.model.decision import DeviceView, NodeView
from farbus.model.device import Device, DeviceKind
from farbus.model.job import Goal, Job, Requests, TaskGroup
from farbus.model.node import Resources
from farbus.model.quantity import MAX_BYTES, MAX_CPU_MILLI, MAX_SECONDS
from farbus.scheduler.costs.drmaestro import Profile

MIB, GIB = 2**20, 2**30

MAX_ROWS = 1_000_000
"""Most nodes or jobs of a trace: more than any that is known, less than would fill the memory."""

MAX_GPUS = 1024
"""Most GPUs of one node or one job."""


class Shares(enum.StrEnum):
    """What becomes of jobs that want a part of a GPU: shares are cut by operators, and no trace says how."""

    WHOLE = "whole"
    """They are given a whole one."""
    SKIP = "skip"
    """They are left out."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One job of a trace: when it comes and for how long it runs on local devices, in seconds.

    Submissions of equal ``kind`` ask for the same.  ``gpus_used`` is what it
    makes use of: less than the GPUs that it is given where it shared them in
    the trace.  ``profile`` is what is known of its application beforehand.
    """

    job: Job
    at_s: float
    runs_s: float
    kind: Hashable
    gpus: int
    gpus_used: float
    profile: Profile | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """A cluster, idle, and what is submitted to it, in the order of time."""

    nodes: tuple[NodeView, ...]
    devices: tuple[DeviceView, ...]
    submissions: tuple[Submission, ...]


def read_openb(nodes: Path, pods: Path, *, shares: Shares = Shares.WHOLE) -> Trace:
    """Read nodes and pods; raise :class:`InvalidInput` naming file, line and field that are wrong.

    A pod runs from its creation to its deletion, less what it waited in the
    trace: those still running at its end count as ended there.
    """
    views: list[NodeView] = []
    devices: list[DeviceView] = []
    for row in _rows(nodes, ("sn", "cpu_milli", "memory_mib", "gpu", "model")):
        name = row.text("sn")
        capacity = Resources(
            cpu_milli=row.integer("cpu_milli", most=MAX_CPU_MILLI),
            memory_bytes=row.integer("memory_mib", most=MAX_BYTES // MIB) * MIB,
        )
        views.append(NodeView(name=name, capacity=capacity, free=capacity))
        devices += _gpus(name, row.integer("gpu", most=MAX_GPUS), row.text("model", empty=True))
    submissions = []
    fields = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time")
    for row in _rows(pods, (*fields, "scheduled_time")):
        gpus = row.integer("num_gpu", most=MAX_GPUS)
        part = row.integer("gpu_milli", most=1000) / 1000 if gpus else 0.0
        if 0 < part < 1 and shares is Shares.SKIP:
            continue
        created, deleted = row.seconds("creation_time"), row.seconds("deletion_time")
        began = row.seconds("scheduled_time", empty=created)
        if deleted < began or began < created:
            row.refuse("deletion_time", "lies before the pod began, or that before its creation")
        requests = Requests(
            cpu_milli=row.integer("cpu_milli", most=MAX_CPU_MILLI),
            memory_bytes=row.integer("memory_mib", most=MAX_BYTES // MIB) * MIB,
            gpus=gpus,
        )
        kind = (requests.cpu_milli, requests.memory_bytes, gpus)
        job = _job(row.text("name"), created, TaskGroup(name="main", command=("true",), requests=requests))
        submissions.append(Submission(job, created, deleted - began, kind, gpus, gpus * part))
    return _trace(nodes, pods, views, devices, submissions)


PHILLY_SENSITIVITY = 0.5
"""Relative slowdown by a fully loaded network of a job with remote GPUs: the trace does not know it."""

CPU_MILLI_PER_GPU, MEMORY_PER_GPU = 4000, 32 * GIB
"""What a Philly job takes beside each GPU: the trace does not say."""


def read_philly(jobs: Path, *, machines: int, gpus_per_machine: int = 8) -> Trace:
    """Read the jobs, for a cluster of equal machines: the trace has none.

      Each machine has half as much processor and memory again as its GPUs' jobs
      take.  A job of more GPUs than a machine has is a gang of equal tasks.  Its
      goal (tau) is the completion time that the trace expects of it, and that
    after its submission its deadline.
    """
    if not 1 <= machines <= MAX_ROWS or not 1 <= gpus_per_machine <= MAX_GPUS:
        raise InvalidInput(f"--machines: {machines} with {gpus_per_machine} GPUs each are not a cluster")
    capacity = Resources(
        cpu_milli=gpus_per_machine * CPU_MILLI_PER_GPU * 3 // 2, memory_bytes=gpus_per_machine * MEMORY_PER_GPU * 3 // 2
    )
    views = [NodeView(name=f"n{number:05}", capacity=capacity, free=capacity) for number in range(machines)]
    devices = [device for view in views for device in _gpus(view.name, gpus_per_machine, "")]
    submissions = []
    for row in _rows(jobs, ("job_id", "num_gpu", "submit_time", "duration", "expect_time_list", "model_name")):
        gpus = row.integer("num_gpu", most=MAX_GPUS)
        at_s, runs_s = row.seconds("submit_time"), row.seconds("duration")
        goal_s = max(row.seconds("expect_time_list"), 1.0)
        tasks = max(1, math.ceil(gpus / gpus_per_machine))
        each = math.ceil(gpus / tasks)
        requests = Requests(
            cpu_milli=CPU_MILLI_PER_GPU * max(each, 1), memory_bytes=MEMORY_PER_GPU * max(each, 1), gpus=each
        )
        job = _job(
            f"philly-{row.text('job_id')}",
            at_s,
            TaskGroup(name="main", command=("true",), count=tasks, requests=requests),
        )
        job = msgspec.structs.replace(job, goal=Goal(deadline_s=goal_s))
        profile = Profile(goal_s=goal_s, expected_s=runs_s, sensitivity=PHILLY_SENSITIVITY if gpus else 0.0)
        submissions.append(Submission(job, at_s, runs_s, (tasks, each), tasks * each, float(gpus), profile))
    return _trace(jobs, jobs, views, devices, submissions)


def compress(submissions: Sequence[Submission], factor: float) -> tuple[Submission, ...]:
    """Return the submissions with ``factor`` times as many in a second; how long each runs stays."""
    if not math.isfinite(factor) or not 0 < factor <= 1e9:
        raise InvalidInput(f"--compress: {factor:g} is not a number above 0")
    return tuple(
        Submission(each.job, each.at_s / factor, each.runs_s, each.kind, each.gpus, each.gpus_used, each.profile)
        for each in submissions
    )


def shrink(trace: Trace, keep: int) -> Trace:
    """Return the trace with one of ``keep`` nodes of each shape, the first of them by name, and all submissions."""
    if keep < 1:
        raise InvalidInput(f"--shrink: {keep} is less than 1")
    models = {view.node: view.device.model for view in trace.devices}
    gpus = Counter(view.node for view in trace.devices)
    shapes: defaultdict[Hashable, list[str]] = defaultdict(list)
    for view in sorted(trace.nodes, key=lambda view: view.name):
        shapes[view.capacity, gpus[view.name], models.get(view.name, "")].append(view.name)
    kept = {name for names in shapes.values() for name in names[::keep]}
    return Trace(
        tuple(view for view in trace.nodes if view.name in kept),
        tuple(view for view in trace.devices if view.node in kept),
        trace.submissions,
    )


def _job(name: str, at_s: float, group: TaskGroup) -> Job:
    return Job(id=name, name=name, user="trace", groups=(group,), submitted_at=at_s)


def _gpus(node: str, count: int, model: str) -> list[DeviceView]:
    return [
        DeviceView(device=Device(id=f"GPU-{node}-{slot}", kind=DeviceKind.GPU, model=model), node=node, free=True)
        for slot in range(count)
    ]


def _trace(
    nodes: Path, jobs: Path, views: list[NodeView], devices: list[DeviceView], submissions: list[Submission]
) -> Trace:
    if not views:
        raise InvalidInput(f"{nodes}: has no nodes")
    if not submissions:
        raise InvalidInput(f"{jobs}: has no jobs")
    for path, names in ((nodes, [view.name for view in views]), (jobs, [each.job.id for each in submissions])):
        if len(set(names)) != len(names):
            raise InvalidInput(f"{path}: has a name twice")
    submissions.sort(key=lambda each: (each.at_s, each.job.id))
    return Trace(tuple(views), tuple(devices), tuple(submissions))


@dataclass(frozen=True, slots=True)
class _Row:
    path: Path
    line: int
    cells: dict[str, str | None]

    def refuse(self, field: str, why: str) -> None:
        raise InvalidInput(f"{self.path}:{self.line}: {field} {self.cells[field]!r} {why}")

    def text(self, field: str, *, empty: bool = False) -> str:
        text = (self.cells[field] or "").strip()
        if not text and not empty:
            self.refuse(field, "is empty")
        return text

    def integer(self, field: str, *, most: int) -> int:
        text = self.text(field)
        if not text.isascii() or not text.isdigit() or len(text) > 20 or int(text) > most:
            self.refuse(field, f"is not a whole number from 0 to {most}")
        return int(text)

    def seconds(self, field: str, *, empty: float | None = None) -> float:
        text = self.text(field, empty=empty is not None)
        if not text and empty is not None:
            return empty
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= MAX_SECONDS:
            self.refuse(field, f"is not a number of seconds from 0 to {MAX_SECONDS:g}")
        return value


def _rows(path: Path, fields: Sequence[str]) -> Iterator[_Row]:
    """Yield the rows of a CSV file that has ``fields`` in its first line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [field for field in fields if field not in (reader.fieldnames or ())]
            if missing:
                raise InvalidInput(f"{path}: its first line names no {missing[0]!r}")
            for number, cells in enumerate(reader):
                if number >= MAX_ROWS:
                    raise InvalidInput(f"{path}: has more than {MAX_ROWS} rows")
                yield _Row(path, reader.line_num, cells)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise InvalidInput(f"{path}: can't be read: {reason}", hint="check the path and its permissions") from error
