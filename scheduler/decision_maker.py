"""Asks the decision maker, away from the event loop, in bounded time, and survives what it can't digest."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog

from farbus.errors import FarbusError, InvalidInput, TimedOut
from farbus.linux.blocking import BlockingCaller
from farbus.model.decision import Decision, JobMiss, PendingJob, RoundReport, Snapshot
from farbus.model.job import Job, Miss
from farbus.model.profile import ApplicationProfile
from farbus.scheduler.collector import collector_paused
from farbus.scheduler.costs.named import POLICIES
from farbus.scheduler.decision_process import DecisionFault, DecisionProcess
from farbus.scheduler.phases.cluster import Columns
from farbus.scheduler.phases.jobs import Forms
from farbus.scheduler.round import PHASES, Outcome, plan_on

_log = structlog.get_logger()

FAULT = "decision"
"""The phase of the miss of a job with which no decision comes about (:mod:`farbus.scheduler.deciding`)."""
MAX_FAULTY = 8
"""Most jobs of one round that are left out because of faults; with more, it is not the jobs."""
ROUND_LIMIT_S = 10.0
"""Longest time that a decision may take, unless the configuration says otherwise."""


CERTIFY_EVERY = 16
"""One round in so many is certified, the first among them: a certificate costs as much as the solve at times."""


class Decide(Protocol):
    """The decision maker: pure, total, in bounded time."""

    def __call__(self, snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        """Place what can be placed; say of the rest why not."""
        ...


def decision_maker(policy: str) -> Decide:
    """Return the decision maker with the policy of that name; raise :class:`InvalidInput` for one that there is not.

    An empty name means the default policy.  It keeps columns and the forms of
    jobs from round to round: one thread at a time may call it.
    """
    plan = plan_maker(policy)
    return lambda snapshot, pending: plan(snapshot, pending).decision()


def plan_maker(policy: str) -> Callable[[Snapshot, tuple[PendingJob, ...]], Outcome]:
    """Return what :func:`decision_maker` does, for those who put plan and report together themselves."""
    name = policy or next(iter(POLICIES))
    if name not in POLICIES:
        raise InvalidInput(f"policy: there is no policy {name!r}", hint=f"choose from {', '.join(POLICIES)}")
    columns, forms = Columns(), Forms(PHASES)
    rounds = itertools.count()
    policy_of_rounds = POLICIES[name]()

    def plan_on_kept(snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Outcome:
        with collector_paused():
            return plan_on(
                columns.of(snapshot),
                pending,
                policy=policy_of_rounds,
                certify=next(rounds) % CERTIFY_EVERY == 0,
                clock=time.perf_counter,
                forms=forms,
            )

    return plan_on_kept


class DecisionThread:
    """Asks a decision maker in a thread of this process, for tests and small tools; one that hangs is left behind."""

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        self._caller = BlockingCaller("decision maker")
        self._report: RoundReport | None = None

    async def start(self) -> None:
        """Stand where nothing has to be started."""

    async def ask(
        self, snapshot: Snapshot, pending: tuple[PendingJob, ...], *, limit_s: float, report: bool = False
    ) -> Decision:
        """Return the decision; see :meth:`farbus.scheduler.decision_process.DecisionProcess.ask`."""
        del report
        try:
            async with asyncio.timeout(limit_s):
                decision = await self._caller.call(lambda: self._decide(snapshot, pending))
                self._report = decision.report
                return decision
        except TimeoutError as error:
            self._caller = BlockingCaller("decision maker")
            raise TimedOut(f"no decision after {limit_s:g} s") from error
        except Exception as error:
            raise DecisionFault(f"{type(error).__name__}: {error}") from error

    async def read_report(self, *, limit_s: float) -> RoundReport:
        """Return the report of the last decision, which was complete."""
        del limit_s
        assert self._report is not None
        return self._report

    async def end(self) -> None:
        """Stand where the thread keeps nobody from ending."""

    def close(self) -> None:
        """Stand where the thread keeps nobody from ending."""


class DecisionMaker:
    """Has rounds decided within a time limit, and survives jobs that no decision comes about with."""

    def __init__(self, asked: DecisionProcess | DecisionThread, *, limit_s: float = ROUND_LIMIT_S) -> None:
        self._asked = asked
        self._turn = asyncio.Lock()
        self.limit_s = limit_s
        """Longest time that one decision may take."""
        self._asking: set[asyncio.Task[None]] = set()
        self.asked = 0
        """Decisions that were asked for."""

    async def start(self) -> None:
        """Get ready ahead of the first question."""
        await self._asked.start()

    async def decide(
        self,
        snapshot: Snapshot,
        pending: tuple[PendingJob, ...],
        *,
        report: Callable[[RoundReport], None] | None = None,
    ) -> Decision:
        """Decide a round; ``report`` is told how it went once its bound is known, which is after this returns.

        Where that fails because of single jobs, decide on the others; the
        misses of those name the fault.  Raises :class:`DecisionFault` where it
        fails without any job, or because of more than :data:`MAX_FAULTY`, and
        :class:`farbus.errors.TimedOut`: what comes too late is not used, since
        nobody knows when it would come.
        """
        faulty: dict[str, str] = {}
        asked_again = False
        while True:
            healthy = tuple(entry for entry in pending if entry.job.id not in faulty)
            try:
                decision = await self._ask(snapshot, healthy, report)
                break
            except DecisionFault as error:
                if not asked_again:
                    # What killed the process may have come from outside: no job is to blame for that.
                    _log.warning("decision failed; asking again", error=str(error))
                    asked_again = True
                    continue
                if len(faulty) == MAX_FAULTY:
                    raise
                culprit, told = await self._find_faulty(snapshot, healthy, error)
                _log.error("decision failed", job=culprit, error=told)
                faulty[culprit] = told
        misses = tuple(
            fault_miss(job_id, f"no decision comes about with it: {told}") for job_id, told in faulty.items()
        )
        return msgspec.structs.replace(decision, misses=decision.misses + misses)

    async def would_be(self, snapshot: Snapshot, job: Job, *, profile: ApplicationProfile | None = None) -> Decision:
        """Decide as if ``job`` alone were waiting, of whose application ``profile`` is known."""
        left_s = job.due_at - job.submitted_at
        return await self.decide(snapshot, (PendingJob(job=job, left_s=left_s, profile=profile),))

    async def _ask(
        self,
        snapshot: Snapshot,
        pending: tuple[PendingJob, ...],
        report: Callable[[RoundReport], None] | None = None,
    ) -> Decision:
        # Who gives up waiting leaves the question behind: it would take the process along, and others' questions come.
        decided: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        asking = asyncio.create_task(self._ask_in_turn(snapshot, pending, decided, report), name="decision")
        # The event loop itself keeps no task alive.
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        decided.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(decided)

    async def _ask_in_turn(
        self,
        snapshot: Snapshot,
        pending: tuple[PendingJob, ...],
        decided: asyncio.Future[Decision],
        report: Callable[[RoundReport], None] | None,
    ) -> None:
        async with self._turn:
            self.asked += 1
            try:
                decision = await self._asked.ask(snapshot, pending, limit_s=self.limit_s, report=report is not None)
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError):
                    decided.cancel()
                    raise
                decided.set_exception(error)
                return
            decided.set_result(decision)
            if report is None:
                return
            try:
                report(await self._asked.read_report(limit_s=self.limit_s))
            except FarbusError as error:
                # The plan is good without it.
                _log.warning("no bound of a round", reason=str(error))

    async def _find_faulty(
        self, snapshot: Snapshot, pending: tuple[PendingJob, ...], error: DecisionFault
    ) -> tuple[str, str]:
        """Return the job with which the shortest failing part of the queue ends, and how it fails.

        Bisection takes as many decisions as the queue's length has binary
        digits; it also finds a job that fails only beside others.
        """
        least, most, told = 0, len(pending), str(error)
        while least < most:
            middle = (least + most) // 2
            try:
                await self._ask(snapshot, pending[:middle])
            except DecisionFault as fault:
                most, told = middle, str(fault)
            else:
                least = middle + 1
        if not most:
            raise DecisionFault(told)
        return pending[most - 1].job.id, told

    async def end(self) -> None:
        """Let go of the process or thread; wait for the process."""
        await self._asked.end()

    def close(self) -> None:
        """Let go of the process or thread."""
        self._asked.close()


def fault_miss(job_id: str, message: str) -> JobMiss:
    """Say that there is no decision because of a job."""
    return JobMiss(job=job_id, misses=(Miss(phase=FAULT, resource="job", message=message),), feasible_alone=False)
