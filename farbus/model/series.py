"""How a node's series travel: everything once, then what has changed by more than its resolution.

A series is named by a number that holds for one session.  Values are whole
numbers of steps, so that a percentage is one byte and both sides agree on what
was said.  The first update of a session has the number 0 and holds everything;
a reader who misses one asks for everything again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from farbus.model.metrics import METRICS, Series, Values
from farbus.model.value import Value

RELATIVE_STEP = 0.05
"""Large values are told again when they have changed by this share, however fine their step is."""

MAX_SERIES = 16_384
"""Series of one node that are told or believed: 16 GPUs and thousands of sessions stay below."""

MAX_LABEL_CHARACTERS = 256
"""Longest value of a label that is believed: a device's identity or a program's name."""

MAX_STEPS = 2**62
"""Largest value in steps: a 64-bit number on the wire."""


class SeriesStart(Value, frozen=True, kw_only=True):
    """A series that is told from now on under the number ``series``, in steps of ``step``."""

    series: int
    metric: str
    labels: dict[str, str] = {}
    step: float = 1.0


class CollectorState(Value, frozen=True, kw_only=True):
    """A collector whose figures are old, and why."""

    name: str
    reason: str


class CollectorStates(Value, frozen=True, kw_only=True):
    """All collectors that are stale."""

    stale: tuple[CollectorState, ...] = ()


class TelemetryUpdate(Value, frozen=True, kw_only=True):
    """What has changed: ``series[i]`` is now ``values[i]`` steps.  ``collectors`` is there when it has changed."""

    number: int = 0
    started: tuple[SeriesStart, ...] = ()
    ended: tuple[int, ...] = ()
    series: tuple[int, ...] = ()
    values: tuple[int, ...] = ()
    collectors: CollectorStates | None = None


MAX_STEP = 1e12
"""Largest step that is believed: a value of as many steps as there can be is still a number, and so is its square."""


class SeriesEncoder:
    """Makes the updates of one session."""

    def __init__(self) -> None:
        self._number = 0
        self._next = 1
        self._known: dict[Series, tuple[int, float]] = {}
        """Number of each series, and the value that was last told."""
        self._collectors: CollectorStates | None = None

    def restart(self) -> None:
        """Tell everything in the next update: the reader has missed one."""
        self.__init__()  # type: ignore[misc]

    def update(self, values: Values, stale: tuple[CollectorState, ...] = ()) -> TelemetryUpdate:
        """Return what the reader does not know yet of ``values`` and of the ``stale`` collectors."""
        started, numbers, steps = [], [], []
        for each, value in values.items():
            metric = METRICS[each.metric]
            if not metric.step or not math.isfinite(value):
                continue
            known = self._known.get(each)
            if known is None:
                if len(self._known) >= MAX_SERIES:
                    continue
                known = (self._next, math.inf)
                self._next += 1
                labels = dict(zip(metric.labels, each.labels, strict=True))
                started.append(
                    SeriesStart(series=known[0], metric=each.metric, labels=labels, step=metric.step)
                )  # fmt: skip
            number, told = known
            now = max(-MAX_STEPS, min(MAX_STEPS, round(value / metric.step)))
            # What has come to rest is told as zero, also from within a step of it.
            rests = not now and told >= metric.step / 2
            if told == math.inf or rests or abs(value - told) >= max(metric.step, RELATIVE_STEP * abs(told)):
                self._known[each] = (number, value)
                numbers.append(number)
                steps.append(now)
        ended = tuple(self._known.pop(each)[0] for each in [each for each in self._known if each not in values])
        states = CollectorStates(stale=stale)
        news = states if states != self._collectors and (stale or self._collectors is not None) else None
        self._collectors = states
        number, self._number = self._number, self._number + 1
        return TelemetryUpdate(
            number=number,
            started=tuple(started),
            ended=ended,
            series=tuple(numbers),
            values=tuple(steps),
            collectors=news,
        )


class SeriesDecoder:
    """Puts the updates of a session together again; believes nothing that a node could not have said."""

    def __init__(self) -> None:
        self.values: dict[Series, float] = {}
        self.stale: Mapping[str, str] = {}
        """Reasons of the collectors that are stale, by name."""
        self._expected = 0
        self._known: dict[int, tuple[Series, float]] = {}

    def take(self, update: TelemetryUpdate) -> bool:
        """Take in an update; False when one is missing or it makes no sense: everything must be told again."""
        if update.number == 0:
            self.__init__()  # type: ignore[misc]
        if update.number != self._expected or not self._sound(update):
            # Nothing fits until everything is told again.
            self._expected = -1
            return False
        self._expected += 1
        for start in update.started:
            metric = METRICS.get(start.metric)
            # Of a newer agent's metric nobody here knows what to do with it; its number must be known all the same.
            names = metric.labels if metric else ()
            labels = tuple(start.labels.get(name, "")[:MAX_LABEL_CHARACTERS] for name in names)
            self._known[start.series] = (Series(start.metric, labels), start.step)
        for number in update.ended:
            known = self._known.pop(number, None)
            if known is not None:
                self.values.pop(known[0], None)
        for number, steps in zip(update.series, update.values, strict=True):
            each, step = self._known[number]
            if each.metric in METRICS:
                self.values[each] = steps * step
        if update.collectors is not None:
            self.stale = {state.name: state.reason for state in update.collectors.stale}
        return True

    def _sound(self, update: TelemetryUpdate) -> bool:
        numbers = self._known.keys() | {start.series for start in update.started}
        return (
            len(numbers) <= MAX_SERIES
            and len(update.series) == len(update.values)
            and all(number in numbers for number in update.series)
            and not set(update.series) & set(update.ended)
            and all(0 < start.step <= MAX_STEP for start in update.started)
        )
