"""The jobs of a round as columns.

Jobs that ask for the same are of one *form*: phases look at one example of
each and treat all of a form alike.  Forms are kept from round to round, by the
identity of the job, so that a queue is read once and not every round.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from farbus.errors import InvalidInput
from farbus.model.decision import PendingJob
from farbus.model.job import Job, TaskGroup
from farbus.scheduler.costs.policy import Policy, Waiting, ranked
from farbus.scheduler.phases.checks import check_demand
from farbus.scheduler.phases.tables import AWARD, Integers, Table, ranges

if TYPE_CHECKING:
    from farbus.scheduler.phases.base import Phase

Flags = npt.NDArray[np.bool_]

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

    ``asks`` is a number that jobs have in common that ask for the same.
    ``least`` is the job with the tasks that it needs, ``more`` one job of one
    task for each group that would have more.
    """

    job: Job
    fault: str
    asks: int
    least: Job
    more: tuple[tuple[int, Job], ...] = ()


_LINE = np.dtype([(name, np.int64) for name in ("fault", "part", "name", "asks", "priority", "turn")])
"""Whether a job can't be scheduled at all, whether it needs only a part of its tasks, numbers of its id and of what it
asks for, its priority, and how many known jobs come before it by submission."""


@dataclass(slots=True)
class Queue:
    """The jobs of a round that can be scheduled, in any order."""

    entries: Sequence[PendingJob]
    lines: Integers
    columns: Table
    waiting: Waiting


class Forms:
    """Finds the form of each job, and keeps what was found of it for as long as it waits.

    A round looks at new jobs one by one; all that it needs of the others are
    columns that were made before, by the job's *line*: a number that it has
    for as long as it is known.
    """

    def __init__(self, phases: Sequence[Phase]) -> None:
        self._phases = phases
        self._asks: dict[Hashable, int] = {}
        self._forget()

    def _forget(self) -> None:
        self._lines: dict[int, int] = {}
        """By the identity of jobs, which are kept alive by what was read."""
        self._read: list[_Read] = []
        self._by_turn: list[tuple[float, str, int]] = []
        self._ids: dict[str, int] = {}
        self._columns = np.zeros(0, _LINE)
        self._last: tuple[list[Job], Integers] = ([], np.zeros(0, np.int64))

    def queue(self, pending: Sequence[PendingJob]) -> tuple[Queue, list[tuple[str, str]]]:
        """Return the jobs that can be scheduled, and the id and the fault of each that can't be on any cluster."""
        jobs = [entry.job for entry in pending]
        lines = self._lines_of(jobs, pending)
        columns = self._columns[lines]
        bad = columns["fault"].astype(bool)
        # Few ids are there twice, but each time somebody has to be told.
        ids = np.bincount(columns["name"], minlength=1)
        faults: list[tuple[str, str]] = []
        if bad.any() or ids.max() > 1:
            first = np.zeros(len(jobs), bool)
            first[np.unique(columns["name"], return_index=True)[1]] = True
            bad |= ~first
            for row in np.flatnonzero(bad).tolist():
                faults.append((jobs[row].id, self._read[lines[row]].fault if first[row] else DUPLICATE))
            good = np.flatnonzero(~bad)
            columns, lines, pending = columns[good], lines[good], [pending[row] for row in good.tolist()]
        return Queue(pending, lines, columns, Waiting(pending, columns["priority"])), faults

    def _lines_of(self, jobs: list[Job], pending: Sequence[PendingJob]) -> Integers:
        last, lines = self._last
        if len(jobs) == len(last) and all(map(operator.is_, jobs, last)):
            return lines
        found: list[int | None] = list(map(self._lines.get, map(id, jobs)))
        if None in found:
            if len(self._read) + len(jobs) > MAX_KEPT_JOBS:
                # Those who wait now are the ones to know.
                self._forget()
                self._asks.clear()
            self._take_in(entry for entry in pending if id(entry.job) not in self._lines)
            found = list(map(self._lines.get, map(id, jobs)))
        lines = np.array(found, np.int64)
        self._last = (jobs, lines)
        return lines

    def _take_in(self, entries: Iterable[PendingJob]) -> None:
        """Look at jobs never seen."""
        rows = []
        for entry in entries:
            job = entry.job
            if id(job) in self._lines:
                continue
            read, line = self._look(entry), len(self._read)
            self._read.append(read)
            self._lines[id(job)] = line
            self._by_turn.append((job.submitted_at, job.id, line))
            name = self._ids.setdefault(job.id, len(self._ids))
            rows.append((bool(read.fault), read.least is not job, name, read.asks, _sane(job.priority), 0))
        self._columns = np.concatenate((self._columns, np.array(rows, _LINE)))
        # Sorted but for the new ones, and told apart before the third entry.
        self._by_turn.sort()
        self._columns["turn"][[line for _, _, line in self._by_turn]] = np.arange(len(self._by_turn))

    def jobs(self, in_rank: Sequence[tuple[PendingJob, int]], policy: Policy) -> Jobs:
        """Return readable jobs in the order of their rank, each with its tier of urgency, as columns."""
        entries = [entry for entry, _ in in_rank]
        reads = [self._reading(entry) for entry in entries]
        parts = [row for row, read in enumerate(reads) if read.least is not read.job]
        tier = np.array([tier for _, tier in in_rank], np.int64)
        asks = np.array([read.asks for read in reads], np.int64)
        return self._laid_out(entries, tier, asks, {row: reads[row] for row in parts}, policy)

    def in_order(self, queue: Queue, policy: Policy) -> Jobs:
        """Return the jobs of a queue in the order of their rank, as columns."""
        order, tier = ranked(policy.urgency(queue.waiting), queue.columns["turn"])
        columns = queue.columns[order]
        parts = np.flatnonzero(columns["part"]).tolist()
        reads = {row: self._read[queue.lines[order[row]]] for row in parts}
        entries = [queue.entries[row] for row in order.tolist()]
        made = self._laid_out(entries, tier, columns["asks"], reads, policy)
        made.rounds_waited = queue.waiting.rounds_waited[order]
        return made

    def _reading(self, entry: PendingJob) -> _Read:
        line = self._lines.get(id(entry.job))
        return self._look(entry) if line is None else self._read[line]

    def _laid_out(
        self, entries: list[PendingJob], tier: Integers, asks: Integers, parts: Mapping[int, _Read], policy: Policy
    ) -> Jobs:
        """Find the form of each job; ``parts`` need only a part of themselves."""
        keys: dict[Hashable, int] = {}
        if type(policy).subject is Policy.subject:
            form, firsts = _numbered(asks)
        else:
            form, firsts = np.zeros(len(entries), np.int64), []
            for row, (entry, what) in enumerate(zip(entries, asks.tolist(), strict=True)):
                key = (what, *(policy.subject(entry, group) for group in entry.job.groups))
                form[row] = keys.setdefault(key, len(keys))
                if form[row] == len(firsts):
                    firsts.append(row)
        whole = {row: entries[row].job for row in parts}
        for row, read in parts.items():
            # The part needed.
            entries[row] = replace(entries[row], job=read.least)
        examples = [Form(entries[row]) for row in firsts]
        more: list[PendingJob] = []
        forms: list[int] = []
        tiers: list[int] = []
        parents: list[tuple[int, int]] = []
        kinds: dict[tuple[int, int], int] = {}
        for row, read in parts.items():
            for group, single in read.more:
                room = MAX_MORE - len(parents)
                tasks = min(whole[row].groups[group].count - entries[row].job.groups[group].count, room)
                extra = replace(entries[row], job=single)
                kind = (int(form[row]), group)
                if kind not in kinds and tasks:
                    kinds[kind] = len(examples)
                    examples.append(Form(extra))
                for _ in range(tasks):
                    forms.append(kinds[kind])
                    more.append(extra)
                    tiers.append(int(tier[row]))
                    parents.append((row, group))
        if more:
            entries = entries + more
            tier = np.concatenate((tier, np.array(tiers, np.int64)))
            form = np.concatenate((form, np.array(forms, np.int64)))
        return Jobs(entries, tier, form, examples, parents)

    def _look(self, entry: PendingJob) -> _Read:
        job = entry.job
        fault = _fault(job)
        if fault:
            return _Read(job, fault, -1, job)
        asked = self.asked(entry)
        for each in job.alternatives:
            alternative = replace(entry, job=job.in_flavour(each.name))
            asked = (*asked, (each.name, each.cost), *self.asked(alternative))
        asks = _Asks(asked)
        least, more = _parts(job)
        return _Read(job, "", self._asks.setdefault(asks, len(self._asks)), least, more)

    def asked(self, entry: PendingJob) -> tuple[Hashable, ...]:
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
                group.flavour,
                *(phase.asks(entry, group) for phase in self._phases),
            )
            for group in entry.job.groups
        )


def _numbered(asks: Integers) -> tuple[Integers, list[int]]:
    """Number what is asked for in the order of its first occurrence; also return the rows of these."""
    first = np.full(int(asks.max(initial=-1)) + 1, len(asks))
    # Written from the last to the first, the first stays.
    first[asks[::-1]] = np.arange(len(asks))[::-1]
    order = np.argsort(first, kind="stable")
    order = order[first[order] < len(asks)]
    number = np.zeros(len(first), np.int64)
    number[order] = np.arange(len(order))
    return number[asks], first[order].tolist()


def _sane(priority: int) -> int:
    """Return a priority within what arrays hold; the others are all the same."""
    return max(-(2**62), min(priority, 2**62))


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
    """Say why ``job`` can't be decided on whatever the cluster looks like; empty for nothing."""
    try:
        check_demand(job)
    except InvalidInput as error:
        return error.message
    return "composites: they were not expanded" if job.composites else ""


# Rows of jobs are small numbers, so that looking them up beats sorting them, as NumPy's functions of sets do.


def among(rows: Integers, some: Integers) -> Flags:
    """Say which of ``rows`` are among ``some``."""
    if not len(rows) or not len(some):
        return np.zeros(len(rows), bool)
    found = np.zeros(max(int(rows.max()), int(some.max())) + 1, bool)
    found[some] = True
    return found[rows]


def without(rows: Integers, some: Integers) -> Integers:
    """Return ``rows`` but for those among ``some``, in their order."""
    return rows[~among(rows, some)] if len(some) else rows


def both(rows: Integers, others: Integers) -> Integers:
    """Return the different ones of ``rows`` and ``others``, ascending."""
    if not len(rows) or not len(others):
        return rows if len(rows) else others
    found = np.zeros(max(int(rows.max()), int(others.max())) + 1, bool)
    found[rows] = found[others] = True
    return np.flatnonzero(found)


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
        theirs = among(self.table["job"], jobs)
        removed = self.table[theirs]
        self.table = self.table[~theirs]
        return removed

    def of(self, jobs: Integers) -> Table:
        """Return the awards of ``jobs``, job by job, each in the order in which they were given."""
        theirs = self.table[among(self.table["job"], jobs)]
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

    @functools.cached_property
    def rounds_waited(self) -> Integers:
        """Rounds that each job waited, without the rows from ``count`` on."""
        return Waiting.of(self.pending[: self.count]).rounds_waited

    def afresh(self) -> Jobs:
        """Return the same jobs, to which nothing was given yet."""
        jobs = Jobs(self.pending, self.tier, self.form.copy(), self.forms, self.parents)
        jobs.rounds_waited = self.rounds_waited
        return jobs

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
