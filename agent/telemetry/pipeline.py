"""Runs collectors, each in a task of its own: one that hangs or fails goes stale, the others go on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from farbus.agent.telemetry.rates import RateTable
from farbus.errors import FarbusError
from farbus.linux.clock import Clock
from farbus.model.metrics import METRICS, Series, Values
from farbus.model.series import CollectorState, SeriesEncoder, TelemetryUpdate

_log = structlog.get_logger()

PERIOD_S = 3.0
"""How often most collectors look: as often as an agent beats at the default lease time.  Oftener costs an idle node
processor time and shows nobody more."""

STALE_PERIODS = 3.0
"""Figures that are older than so many periods of their collector are told no more."""

MAX_SERIES = 4096
"""Series that one collector may bring; more are left out, and said."""


class Collector(Protocol):
    """Measures one part of the node.

    A sample that takes longer than ``deadline_s`` is given up.  Whatever can
    hang in the kernel is done in a child or a thread that can be left behind
    (:mod:`farbus.linux.blocking`).
    """

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def period_s(self) -> float:
        """Seconds from one sample to the next."""
        ...

    @property
    def deadline_s(self) -> float:
        """Longest time that a sample may take."""
        ...

    async def sample(self) -> Values:
        """Measure: metrics of :data:`farbus.model.metrics.METRICS`, counters as they stand.  May raise anything."""
        ...


@dataclass
class CollectorReport:
    """How a collector fares, for whoever looks after the agent."""

    name: str
    period_s: float
    reason: str = ""
    """Why it is stale; empty when it is not."""
    measured_at: float | None = None
    """Monotonic time of the last good sample."""
    took_s: float = 0.0
    failures: int = 0
    left_out: int = 0
    """Series above :data:`MAX_SERIES` in the last sample."""


@dataclass
class _State:
    collector: Collector
    report: CollectorReport
    rates: RateTable = field(default_factory=RateTable)
    values: dict[Series, float] = field(default_factory=dict)
    left_behind: asyncio.Task[Values] | None = None


class Pipeline:
    """All collectors of a node, and what they last found."""

    def __init__(self, collectors: Iterable[Collector], *, clock: Clock) -> None:
        self._clock = clock
        self._states = [
            _State(collector=each, report=CollectorReport(name=each.name, period_s=each.period_s))
            for each in collectors
        ]  # fmt: skip

    async def run(self) -> None:
        """Measure until cancelled."""
        # All by one beat: what woke the processor for one finds the others due as well.
        first = self._clock.monotonic()
        async with asyncio.TaskGroup() as group:
            for state in self._states:
                group.create_task(self._keep(state, first), name=f"collector {state.report.name}")

    async def _keep(self, state: _State, first: float) -> None:
        """Measure at ``first`` (monotonic) and every period after it; a sample that takes longer leaves beats out."""
        due, period = first, state.collector.period_s
        while True:
            began = self._clock.monotonic()
            await self._sample(state)
            now = self._clock.monotonic()
            state.report.took_s = now - began
            # Counted from what was due, not from now: a sleep may end a moment early, and would then be repeated.
            due += period * max(1, math.ceil((now - due) / period))
            await self._clock.sleep(due - now)

    async def _sample(self, state: _State) -> None:
        if state.left_behind is not None:
            if not state.left_behind.done():
                # Cancelled long ago: what does not even heed that is not asked again.
                self._fail(state, "its last sample still hangs")
                return
            state.left_behind = None
        limit_s = state.collector.deadline_s
        sample = asyncio.ensure_future(state.collector.sample())
        deadline: asyncio.Future[None] | None = None
        try:
            # What has nothing to wait for is done with its first step, and needs no deadline.
            await asyncio.sleep(0)
            if not sample.done():
                deadline = asyncio.ensure_future(self._clock.sleep(limit_s))
                await asyncio.wait((sample, deadline), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if deadline is not None:
                deadline.cancel()
            if not sample.done():
                sample.cancel()
                sample.add_done_callback(_look_away)
                state.left_behind = sample
        if state.left_behind is not None:
            self._fail(state, f"no answer after {limit_s:g} s")
            return
        if sample.cancelled():
            self._fail(state, "its sample was cancelled")
            return
        try:
            self._take(state, sample.result())
        except FarbusError as error:
            self._fail(state, str(error))
        except Exception as error:
            # A defect of one collector, or a file of the kernel's that is not as it was: no reason to stop the node.
            self._fail(state, f"{type(error).__name__}: {error}")

    def _take(self, state: _State, found: Values) -> None:
        now = self._clock.monotonic()
        values = {each: float(value) for each, value in found.items() if each.metric in METRICS}
        if unknown := sorted({each.metric for each in found} - METRICS.keys()):
            raise KeyError(f"metrics that no table has: {', '.join(unknown)}")
        values |= state.rates.rates(values, now)
        state.report.left_out = max(0, len(values) - MAX_SERIES)
        state.values = dict(list(values.items())[:MAX_SERIES]) if state.report.left_out else values
        state.report.measured_at = now
        if state.report.reason:
            _log.info("collector works again", collector=state.report.name)
        state.report.reason = ""

    def _fail(self, state: _State, reason: str) -> None:
        state.report.failures += 1
        if reason != state.report.reason:
            _log.warning("collector failed", collector=state.report.name, reason=reason)
        state.report.reason = reason

    def values(self) -> dict[Series, float]:
        """Return what is known now; the figures of collectors that have been stale for a while are not."""
        now = self._clock.monotonic()
        found: dict[Series, float] = {}
        for state in self._states:
            report = state.report
            if report.measured_at is not None and (
                not report.reason or now - report.measured_at <= STALE_PERIODS * report.period_s
            ):
                found |= state.values
        return found

    def update(self, encoder: SeriesEncoder) -> TelemetryUpdate:
        """Return what the reader of ``encoder`` does not know yet."""
        return encoder.update(self.values(), self.stale())

    def stale(self) -> tuple[CollectorState, ...]:
        """Return the collectors that failed when they were last asked."""
        return tuple(
            CollectorState(name=state.report.name, reason=state.report.reason)
            for state in self._states
            if state.report.reason
        )

    def reports(self) -> tuple[CollectorReport, ...]:
        """Return how each collector fares."""
        return tuple(state.report for state in self._states)


def _look_away(left_behind: asyncio.Task[Values]) -> None:
    """Fetch the error of a sample that nobody waits for, so that it is not logged as forgotten."""
    if not left_behind.cancelled():
        left_behind.exception()
