"""Asks the decision maker, away from the event loop, and survives what it can't digest."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import time
from collections.abc import Iterator
from typing import Protocol

import msgspec
import structlog

from farbus.errors import InvalidInput
from farbus.model.decision import Decision, JobMiss, PendingJob, Snapshot
from farbus.model.job import Job, Miss
from farbus.scheduler.costs.named import POLICIES
from farbus.scheduler.phases.cluster import Columns
from farbus.scheduler.phases.jobs import Forms
from farbus.scheduler.round import PHASES, decide_on

_log = structlog.get_logger()


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
    name = policy or next(iter(POLICIES))
    if name not in POLICIES:
        raise InvalidInput(f"policy: there is no policy {name!r}", hint=f"choose from {', '.join(POLICIES)}")
    columns, forms = Columns(), Forms(PHASES)
    policy_of_rounds = POLICIES[name]()

    def decide_on_kept(snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        cluster = columns.of(snapshot)
        with collector_paused():
            return decide_on(cluster, pending, policy=policy_of_rounds, clock=time.perf_counter, forms=forms)

    return decide_on_kept


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector from running.

    A round makes many thousand objects that live on in its decision, and none
    in cycles; looking for those among all that the scheduler holds, over and
    over, takes a quarter of a large round.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class DecisionMaker:
    """Runs a decision maker in a thread, one round at a time."""

    def __init__(self, maker: Decide) -> None:
        self._decide = maker
        self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="decide")

    async def decide(self, snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        """Decide a round."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, _decide_safely, self._decide, snapshot, pending)

    async def would_be(self, snapshot: Snapshot, job: Job) -> Decision:
        """Decide as if ``job`` alone were waiting."""
        return await self.decide(snapshot, (PendingJob(job=job),))

    def close(self) -> None:
        """Let the thread end after what it is doing."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _decide_safely(maker: Decide, snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
    """Decide; where that fails because of single jobs, decide on the others and say so of those.

    One poisoned job never stops the others: halving finds it in as many
    further solves as the queue's length has binary digits.
    """
    try:
        return maker(snapshot, pending)
    except Exception as error:
        poisoned = _find_poisoned(maker, snapshot, pending)
        if not poisoned:
            raise
        _log.exception("decision failed", jobs=sorted(poisoned), error=str(error))
    healthy = tuple(waiting for waiting in pending if waiting.job.id not in poisoned)
    decision = maker(snapshot, healthy)
    misses = tuple(
        JobMiss(
            job=job_id,
            misses=(Miss(phase="decision", resource="job", message=f"a defect in the decision maker: {told}"),),
            feasible_alone=False,
        )
        for job_id, told in poisoned.items()
    )
    return msgspec.structs.replace(decision, misses=decision.misses + misses)


def _find_poisoned(maker: Decide, snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> dict[str, str]:
    try:
        maker(snapshot, pending)
    except Exception as error:
        if len(pending) == 1:
            return {pending[0].job.id: f"{type(error).__name__}: {error}"}
        middle = len(pending) // 2
        first = _find_poisoned(maker, snapshot, pending[:middle])
        return {**first, **_find_poisoned(maker, snapshot, pending[middle:])}
    return {}
