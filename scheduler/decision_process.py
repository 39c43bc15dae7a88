"""The decision maker in a process of its own, and what travels to it.

The solver holds the interpreter's lock while it works: a large solve in a
thread of the scheduler would stop the heartbeats of all nodes.  In a process
of its own it stops nobody, it can be killed when it takes too long, and what
takes it down takes down nothing else.

A question tells what has changed since the last one: views of nodes and
devices that are the same objects as before, and jobs that were sent before,
do not travel again.  The answer is the plan in columns; where the report of
the round is wanted, it follows when its bound is known: nobody waits for it
who carries the plan out.
"""

from __future__ import annotations

import types
import typing
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from farbus.errors import FarbusError, Unavailable
from farbus.linux.answerer import Answerer
from farbus.model.cluster import LinkLoad
from farbus.model.decision import Decision, DeviceView, JobMiss, NodeView, PendingJob, RoundReport, Snapshot
from farbus.model.job import Job
from farbus.model.profile import ApplicationProfile, application_of
from farbus.model.value import Value
from farbus.scheduler.collector import collector_paused
from farbus.scheduler.phases.cluster import changed_rows
from farbus.scheduler.placed import PackedPlaced, Placed

MAX_KNOWN_JOBS = 25_000
"""Jobs that the process keeps from question to question: those of the largest round, twice over."""

_OF_PENDING = tuple(name for name in PendingJob.__struct_fields__ if name not in ("job", "profile"))
_OF_SNAPSHOT = tuple(name for name in Snapshot.__struct_fields__ if name not in ("nodes", "devices", "links", "at"))
"""Fields that travel as they are, whoever adds them."""
_TYPES = typing.get_type_hints(PendingJob)
# A tuple of the types of those fields, which nobody can write down ahead.
_MORE: msgspec.msgpack.Decoder[list[tuple[Any, ...]]] = msgspec.msgpack.Decoder(
    list[types.GenericAlias(tuple, tuple(_TYPES[name] for name in _OF_PENDING))]  # type: ignore[misc]
)

V = TypeVar("V")


class Question(Value, frozen=True, kw_only=True):
    """A snapshot and who waits, as the difference to the question before."""

    anew: bool
    """Whether ``nodes`` and ``devices`` are all there are; else they replace those in the rows that are named."""
    nodes: tuple[NodeView, ...] = ()
    node_rows: tuple[int, ...] = ()
    devices: tuple[DeviceView, ...] = ()
    device_rows: tuple[int, ...] = ()
    links: dict[str, tuple[LinkLoad, ...]] = {}
    """Those that are others than before; what is not measured any more has none."""
    at: float = 0.0
    rest: Snapshot | None = None
    """The other fields of the snapshot; None where they are the same objects as before."""
    jobs: tuple[Job, ...] = ()
    """Jobs that are not known yet, or whose id is empty."""
    forget: tuple[str, ...] = ()
    profiles: tuple[tuple[str, str, ApplicationProfile | None], ...] = ()
    """By user and application, of which more is known than before; None where nothing is any more."""
    forget_profiles: bool = False
    """Whether all that came before are void."""
    pending: tuple[str, ...] = ()
    """Who waits, by id."""
    more: bytes = b""
    """The other fields of each :class:`PendingJob`, encoded."""
    report: bool = False
    """Whether the report with the round's bound is wanted, too."""


class Answer(Value, frozen=True, kw_only=True):
    """What was decided, or why nothing was."""

    placed: PackedPlaced | None = None
    kinds: tuple[JobMiss, ...] = ()
    """The first job of each kind of misses: those of thousands of jobs may be the same."""
    waiting: tuple[str, ...] = ()
    """Who waits, by id, and the row of the misses in ``kinds``."""
    kind: tuple[int, ...] = ()
    report: RoundReport | None = None
    """Complete but for the gap."""
    error: str = ""


class Decided(Protocol):
    """What a decision maker answers here: :class:`farbus.scheduler.round.Outcome`."""

    @property
    def placed(self) -> Placed:
        """Who goes where."""
        ...

    @property
    def misses(self) -> tuple[JobMiss, ...]:
        """Who waits, and why."""
        ...

    @property
    def report(self) -> RoundReport:
        """How the round went, but for the gap."""
        ...

    def full_report(self) -> RoundReport:
        """Return the report with the gap."""
        ...


class DecisionFault(FarbusError):
    """The decision maker raised, or died: a defect, or input that it can't digest."""


class DecisionProcess:
    """Asks a decision maker with the policy of that name, in a process of its own."""

    def __init__(self, policy: str) -> None:
        self._answerer = Answerer("farbus.scheduler.decision_worker", policy)
        self._starts = 0
        self._snapshot = Snapshot(nodes=(), devices=())
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._profiles: dict[tuple[str, str], ApplicationProfile] = {}

    @property
    def pid(self) -> int:
        """The process's id; 0 where there is none."""
        return self._answerer.pid

    async def start(self) -> None:
        """Start the process ahead of the first question."""
        await self._answerer.start()

    async def ask(
        self, snapshot: Snapshot, pending: tuple[PendingJob, ...], *, limit_s: float, report: bool = False
    ) -> Decision:
        """Return the decision; raise :class:`DecisionFault`, or :class:`farbus.errors.TimedOut` after ``limit_s``.

        Its report has no gap.  With ``report`` the next call must be :meth:`read_report`.
        """
        await self._answerer.start()
        if self._answerer.starts != self._starts:
            self._starts = self._answerer.starts
            self._snapshot = Snapshot(nodes=(), devices=())
            self._jobs.clear()
            self._profiles.clear()
        question = self._question(snapshot, pending, report=report)
        self._snapshot = snapshot
        try:
            reply = await self._answerer.ask(msgspec.msgpack.encode(question), limit_s=limit_s)
        except Unavailable as error:
            raise DecisionFault(str(error)) from error
        with collector_paused():
            return _decision(msgspec.msgpack.decode(reply, type=Answer))

    async def read_report(self, *, limit_s: float) -> RoundReport:
        """Return the complete report of what was asked for last; raise as :meth:`ask` does."""
        try:
            reply = await self._answerer.read(limit_s=limit_s)
        except Unavailable as error:
            raise DecisionFault(str(error)) from error
        answer = msgspec.msgpack.decode(reply, type=Answer)
        if answer.report is None:
            raise DecisionFault(answer.error)
        return answer.report

    def _question(self, snapshot: Snapshot, pending: tuple[PendingJob, ...], *, report: bool = False) -> Question:
        before = self._snapshot
        anew = len(before.nodes) != len(snapshot.nodes) or len(before.devices) != len(snapshot.devices)
        nodes, node_rows = _changed(() if anew else before.nodes, snapshot.nodes)
        devices, device_rows = _changed(() if anew else before.devices, snapshot.devices)
        links = {name: loads for name, loads in snapshot.links.items() if before.links.get(name) is not loads}
        links |= dict.fromkeys(before.links.keys() - snapshot.links.keys(), ())
        jobs = []
        for entry in pending:
            job = entry.job
            if not job.id or self._jobs.get(job.id) is not job:
                jobs.append(job)
            if job.id:
                self._jobs[job.id] = job
                self._jobs.move_to_end(job.id)
        profiles, forget_profiles = self._new_profiles(pending)
        forget = []
        while len(self._jobs) > max(MAX_KNOWN_JOBS, len(pending)):
            forget.append(self._jobs.popitem(last=False)[0])
        return Question(
            anew=anew,
            nodes=nodes,
            node_rows=node_rows,
            devices=devices,
            device_rows=device_rows,
            links=links,
            at=snapshot.at,
            jobs=tuple(jobs),
            forget=tuple(forget),
            rest=None if _same_rest(before, snapshot) else _without_views(snapshot),
            profiles=profiles,
            forget_profiles=forget_profiles,
            pending=tuple(entry.job.id for entry in pending),
            more=msgspec.msgpack.encode([[getattr(entry, name) for name in _OF_PENDING] for entry in pending]),
            report=report,
        )

    def _new_profiles(
        self, pending: tuple[PendingJob, ...]
    ) -> tuple[tuple[tuple[str, str, ApplicationProfile | None], ...], bool]:
        """Return the profiles to send, and whether those that were sent are to be forgotten."""
        forget = len(self._profiles) > MAX_KNOWN_JOBS
        if forget:
            self._profiles.clear()
        new: dict[tuple[str, str], ApplicationProfile | None] = {}
        for entry in pending:
            key, profile = application_of(entry.job), entry.profile
            if self._profiles.get(key) is profile:
                continue
            new[key] = profile
            if profile is None:
                del self._profiles[key]
            else:
                self._profiles[key] = profile
        return tuple((*key, profile) for key, profile in new.items()), forget

    async def end(self) -> None:
        """End the process and wait until it has."""
        await self._answerer.end()

    def close(self) -> None:
        """End the process."""
        self._answerer.close()


def _without_views(snapshot: Snapshot) -> Snapshot:
    return msgspec.structs.replace(snapshot, nodes=(), devices=(), links={})


def _same_rest(before: Snapshot, now: Snapshot) -> bool:
    return all(getattr(before, name) is getattr(now, name) for name in _OF_SNAPSHOT)


def _changed(before: Sequence[V], now: Sequence[V]) -> tuple[tuple[V, ...], tuple[int, ...]]:
    """Return what is another than before, with its rows; everything where nothing was before."""
    if not before:
        return tuple(now), ()
    rows = tuple(changed_rows(before, now))
    return tuple([now[row] for row in rows]), rows


class Reader:
    """The other end: makes questions whole again and has ``decide`` answer them."""

    def __init__(self, decide: Callable[[Snapshot, tuple[PendingJob, ...]], Decided]) -> None:
        self._decide = decide
        self._nodes: list[NodeView] = []
        self._devices: list[DeviceView] = []
        self._links: dict[str, tuple[LinkLoad, ...]] = {}
        self._rest = Snapshot(nodes=(), devices=())
        self._jobs: dict[str, Job] = {}
        self._profiles: dict[tuple[str, str], ApplicationProfile] = {}

    def answer(self, question: bytes) -> Iterable[bytes]:
        """Return the answer to a question, in one or two parts; what the decision maker raises is one, too."""
        with collector_paused():
            return self._answer(question)

    def _answer(self, question: bytes) -> Iterable[bytes]:
        asked = msgspec.msgpack.decode(question, type=Question)
        snapshot, pending = self._read(asked)
        try:
            decided = self._decide(snapshot, pending)
            kinds, rows = _kinds(decided.misses)
            plan = Answer(
                placed=decided.placed.packed(),
                kinds=kinds,
                waiting=tuple([miss.job for miss in decided.misses]),
                kind=rows,
                report=decided.report,
            )
            first = msgspec.msgpack.encode(plan)
        except Exception as error:
            return (_failed(error),)
        return _parts(first, decided) if asked.report else (first,)

    def _read(self, question: Question) -> tuple[Snapshot, tuple[PendingJob, ...]]:
        if question.anew:
            self._nodes, self._devices = list(question.nodes), list(question.devices)
        else:
            for row, node in zip(question.node_rows, question.nodes, strict=True):
                self._nodes[row] = node
            for row, device in zip(question.device_rows, question.devices, strict=True):
                self._devices[row] = device
        self._links |= question.links
        self._rest = question.rest or self._rest
        snapshot = msgspec.structs.replace(
            self._rest,
            nodes=tuple(self._nodes),
            devices=tuple(self._devices),
            links=dict(self._links),
            at=question.at,
        )
        unnamed = iter([job for job in question.jobs if not job.id])
        self._jobs |= {job.id: job for job in question.jobs if job.id}
        if question.forget_profiles:
            self._profiles.clear()
        for user, application, profile in question.profiles:
            if profile is None:
                self._profiles.pop((user, application), None)
            else:
                self._profiles[user, application] = profile
        pending = tuple(
            self._pending_job(self._jobs[job_id] if job_id else next(unnamed), more)
            for job_id, more in zip(question.pending, _MORE.decode(question.more), strict=True)
        )
        for job_id in question.forget:
            self._jobs.pop(job_id, None)
        return snapshot, pending

    def _pending_job(self, job: Job, more: tuple[Any, ...]) -> PendingJob:
        fields = dict(zip(_OF_PENDING, more, strict=True))
        return PendingJob(job=job, profile=self._profiles.get(application_of(job)), **fields)


def _decision(answer: Answer) -> Decision:
    """Return what an answer says, in objects and words; raise :class:`DecisionFault` where there is no plan."""
    if answer.placed is None or answer.report is None:
        raise DecisionFault(answer.error)
    kinds = [(kind.misses, kind.feasible_alone) for kind in answer.kinds]
    misses = [
        JobMiss(job=job, misses=kinds[row][0], feasible_alone=kinds[row][1])
        for job, row in zip(answer.waiting, answer.kind, strict=True)
    ]
    placements = tuple(Placed.unpacked(answer.placed).placements())
    return Decision(placements=placements, misses=tuple(misses), report=answer.report)


def _kinds(misses: Sequence[JobMiss]) -> tuple[tuple[JobMiss, ...], tuple[int, ...]]:
    """Return one of those that share their misses, by identity, and the row among these of each."""
    known: dict[tuple[int, bool], int] = {}
    rows = tuple([known.setdefault((id(miss.misses), miss.feasible_alone), len(known)) for miss in misses])
    first = dict(zip(reversed(rows), reversed(misses), strict=True))
    return tuple([first[row] for row in range(len(known))]), rows


def _parts(first: bytes, decided: Decided) -> Iterator[bytes]:
    yield first
    try:
        yield msgspec.msgpack.encode(Answer(report=decided.full_report()))
    except Exception as error:
        yield _failed(error)


def _failed(error: Exception) -> bytes:
    return msgspec.msgpack.encode(Answer(error=f"{type(error).__name__}: {error}"))
