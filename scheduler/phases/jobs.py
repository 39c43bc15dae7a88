"""The jobs of a round as columns.

Jobs that ask for the same are of one *form*: phases look at one example of
each and treat all of a form alike.  Forms are kept from round to round, by the
identity of the job, so that a queue is read once and not every round.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from farbus.model.decision import PendingJob
from farbus.model.job import MAX_ALTERNATIVE_COST, MAX_DRIVES, Job, TaskGroup
from farbus.model.quantity import MAX_BYTES, MAX_CPU_MILLI
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.phases.cluster import MAX_UNITS
from farbus.scheduler.phases.tables import AWARD, Integers, Table, ranges

if TYPE_CHECKING:
    from farbus.scheduler.phases.base import Phase

MAX_KEPT_JOBS = 50_000
"""Jobs whose form is remembered: several times what one round considers, of some hundred bytes each."""

MAX_MORE = 10_000
"""Tasks beyond what their jobs need that are considered in a round, those of best rank first."""

DUPLICATE = "another job of this round has the same id"


@dataclass(eq=False, slots=True)
class Form:
    """What jobs that are alike ask for; forms compare by identity."""

    example: PendingJob

    @property
    def groups(self) -> tuple[TaskGroup, ...]:
        """Return the groups of tasks, alike in all jobs of the form but for their commands."""
        return self.example.job.groups


@dataclass(frozen=True, slots=True)
class _Read:
    """What is remembered of a job: why it can't be scheduled at all, or what it asks for.

    ``least`` is the job with the tasks that it needs, ``more`` one job of one
    task for each group that would have more.
    """

    job: Job
    fault: str
    asks: Hashable
    least: Job
    more: tuple[tuple[int, Job], ...] = ()


class Forms:
    """Finds the form of each job."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        self._phases = phases
        self._read: dict[str, _Read] = {}
        self._asks: dict[Hashable, Hashable] = {}

    def readable(self, pending: Iterable[PendingJob]) -> tuple[list[PendingJob], list[tuple[str, str]]]:
        """Split off the jobs that can't be scheduled whatever the cluster looks like, each as its id and the fault."""
        seen: set[str] = set()
        readable, faults = [], []
        known = self._read
        for entry in pending:
            job = entry.job
            name = job.id
            if name in seen:
                faults.append((name, DUPLICATE))
                continue
            seen.add(name)
            read = known.get(name)
            if read is None or read.job is not job:
                read = known[name] = self._look(entry)
            if read.fault:
                faults.append((name, read.fault))
            else:
                readable.append(entry)
        if len(known) > MAX_KEPT_JOBS:
            self._read = {name: known[name] for name in seen}
            self._asks = {read.asks: read.asks for read in self._read.values()}
        return readable, faults

    def jobs(self, ranked: Sequence[tuple[PendingJob, int]], policy: Policy) -> Jobs:
        """Return readable jobs in the order of their rank, each with its tier of urgency, as columns."""
        forms: dict[Hashable, int] = {}
        examples: list[Form] = []
        numbers = []
        entries: list[PendingJob] = []
        more: list[tuple[int, int, Job]] = []
        tells = type(policy).subject is not Policy.subject
        known = self._read
        for row, (entry, _) in enumerate(ranked):
            job = entry.job
            read = known.get(job.id)
            if read is None or read.job is not job:
                read = self._look(entry)
            # What is equal is the same object here.
            asks: Hashable = id(read.asks)
            if tells:
                asks = (asks, *(policy.subject(entry, group) for group in job.groups))
            number = forms.get(asks)
            if read.least is not job:
                entry = replace(entry, job=read.least)  # noqa: PLW2901 - the part needed
                more += [(row, group, single) for group, single in read.more]
            if number is None:
                number = forms[asks] = len(examples)
                examples.append(Form(entry))
            numbers.append(number)
            entries.append(entry)
        tiers = [tier for _, tier in ranked]
        parents: list[tuple[int, int]] = []
        for row, group, single in more:
            room = MAX_MORE - len(parents)
            extra = replace(entries[row], job=single)
            tasks = min(ranked[row][0].job.groups[group].count - entries[row].job.groups[group].count, room)
            asks = (numbers[row], group)
            if asks not in forms and tasks:
                forms[asks] = len(examples)
                examples.append(Form(extra))
            for _ in range(tasks):
                numbers.append(forms[asks])
                entries.append(extra)
                tiers.append(tiers[row])
                parents.append((row, group))
        return Jobs(entries, np.array(tiers, np.int64), np.array(numbers, np.int64), examples, parents)

    def _look(self, entry: PendingJob) -> _Read:
        job = entry.job
        fault = _fault(job) or _alternative_fault(job)
        if fault:
            return _Read(job, fault, None, job)
        asked = self._asked(entry)
        for each in job.alternatives:
            alternative = replace(entry, job=job.in_flavour(each.name))
            asked = (*asked, (each.name, each.cost), *self._asked(alternative))
        asks = _Asks(asked)
        least, more = _parts(job)
        return _Read(job, "", self._asks.setdefault(asks, asks), least, more)

    def _asked(self, entry: PendingJob) -> tuple[Hashable, ...]:
        """Return what each group asks for."""
        return tuple(
            (
                group.name,
                group.count,
                group.least,
                group.requests,
                group.node,
                tuple(sorted(group.labels.items())),
                group.routes,
                *(phase.asks(entry, group) for phase in self._phases),
            )
            for group in entry.job.groups
        )


def _parts(job: Job) -> tuple[Job, tuple[tuple[int, Job], ...]]:
    """Split ``job`` into what it needs and single tasks that it would have beyond that, by the number of the group."""
    if all(group.least == group.count for group in job.groups):
        return job, ()
    groups = tuple(replace(group, count=group.least, min_count=0) for group in job.groups)
    more = tuple(
        (number, replace(job, groups=(replace(group, count=1, min_count=0),)))
        for number, group in enumerate(job.groups)
        if group.least < group.count
    )
    return replace(job, groups=groups), more


class _Asks:
    """What a job asks for, hashed once."""

    __slots__ = ("_hash", "_what")

    def __init__(self, what: Hashable) -> None:
        self._what = what
        self._hash = hash(what)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Asks) and self._what == other._what)


def _fault(job: Job) -> str:
    """Say why ``job`` can't be scheduled whatever the cluster looks like."""
    if not job.groups:
        return "the job has no tasks"
    names = [group.name for group in job.groups]
    if len(set(names)) != len(names):
        return "two groups of the job have the same name"
    for group in job.groups:
        wanted = group.requests
        limits = (
            ("count", group.count, 1, MAX_UNITS),
            ("min_count", group.min_count, 0, group.count),
            ("cpu_milli", wanted.cpu_milli, 0, MAX_CPU_MILLI),
            ("memory_bytes", wanted.memory_bytes, 0, MAX_BYTES),
            ("gpus", wanted.gpus, 0, MAX_UNITS),
            ("gpu_memory_bytes", wanted.gpu_memory_bytes, 0, MAX_BYTES),
        )
        fault = _outside(f"group {group.name}", limits) or _storage_fault(group)
        if fault:
            return fault
        if group.count * max(wanted.gpus, 1) > MAX_UNITS:
            return f"group {group.name}: {group.count} tasks with {wanted.gpus} GPUs each are more than {MAX_UNITS}"
        if wanted.gpus and not group.routes:
            return f"group {group.name}: wants GPUs but allows no route to them"
    return ""


def _outside(whose: str, limits: Iterable[tuple[str, int, int, int]]) -> str:
    """Return which value, by its name, is not between its least and its most; empty where all are."""
    for name, value, least, most in limits:
        if not least <= value <= most:
            return f"{whose}: {name} is {value}, not between {least} and {most}"
    return ""


def _alternative_fault(job: Job) -> str:
    names = ["", *(each.name for each in job.alternatives)]
    if len(set(names)) != len(names):
        return "two alternatives of the job have the same name, or one has none"
    for each in job.alternatives:
        if not 0 <= each.cost <= MAX_ALTERNATIVE_COST:
            return f"alternative {each.name}: cost is {each.cost}, not between 0 and {MAX_ALTERNATIVE_COST}"
        fault = _fault(job.in_flavour(each.name))
        if fault:
            return f"alternative {each.name}: {fault}"
    return ""


def _storage_fault(group: TaskGroup) -> str:
    names = [request.name for request in group.storage]
    if len(set(names)) != len(names):
        return f"group {group.name}: two storages have the same name"
    for request in group.storage:
        limits = (
            ("size_bytes", request.size_bytes, 1, MAX_BYTES),
            ("bandwidth_bytes_per_s", request.bandwidth_bytes_per_s, 0, MAX_BYTES),
            ("devices", request.devices, 0, MAX_DRIVES),
        )
        fault = _outside(f"group {group.name}: storage {request.name}", limits)
        if fault:
            return fault
        if not request.routes and not group.routes:
            return f"group {group.name}: wants storage but allows no route to it"
    return ""


@dataclass(eq=False, slots=True)
class Awards:
    """What one phase gave: a table of :data:`AWARD`, and the devices of all its units, one after the other."""

    table: Table
    devices: Integers

    def add(self, table: Table, devices: Integers) -> None:
        """Append awards whose ``first`` counts from the start of ``devices``."""
        table["first"] += len(self.devices)
        self.table = np.concatenate((self.table, table))
        self.devices = np.concatenate((self.devices, devices))

    def remove(self, jobs: Integers) -> Table:
        """Take the awards of ``jobs`` out and return them."""
        theirs = np.isin(self.table["job"], jobs)
        removed = self.table[theirs]
        self.table = self.table[~theirs]
        return removed

    def of(self, jobs: Integers) -> Table:
        """Return the awards of ``jobs``, job by job, each in the order in which they were given."""
        theirs = self.table[np.isin(self.table["job"], jobs)]
        return theirs[np.argsort(theirs["job"], kind="stable")]

    def devices_of(self, table: Table) -> Integers:
        """Return the devices of all units of ``table``, one after the other."""
        return self.devices[ranges(table["first"], table["count"] * table["size"])]


class Jobs:
    """Jobs in the order of their rank; a job's number is its row.

    ``tier`` (greater is more urgent) and ``form`` have shape (N,).  Of a job
    that needs only some of its tasks, what it needs is a job like any other;
    each task beyond that is a job by itself, in the rows from ``count`` on:
    ``parents`` names the job and the number of its group.
    """

    def __init__(
        self,
        pending: Sequence[PendingJob],
        tier: Integers,
        form: Integers,
        forms: Sequence[Form],
        parents: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.pending = list(pending)
        self.parents = parents
        self.count = len(pending) - len(parents)
        self.tier = tier
        self.form = form
        self.forms = list(forms)
        self._awards: dict[str, Awards] = {}

    def replace(self, job: int, entry: PendingJob, form: int) -> None:
        """Let a job ask for what ``entry`` does, which is of another form."""
        self.pending[job] = entry
        self.form[job] = form

    def form_of(self, job: int) -> Form:
        """Return the form of one job."""
        return self.forms[int(self.form[job])]

    def awards(self, phase: str) -> Awards:
        """Return what ``phase`` gave so far."""
        found = self._awards.get(phase)
        if found is None:
            found = self._awards[phase] = Awards(np.zeros(0, AWARD), np.zeros(0, np.int64))
        return found
