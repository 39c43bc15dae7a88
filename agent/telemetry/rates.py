"""Rates from counters that may wrap or begin again.  Pure."""

from __future__ import annotations

from collections.abc import Mapping

from farbus.model.metrics import METRICS, Series, Values

IDLE_MODES = frozenset({"idle", "iowait"})
"""Processor time in which no program ran; waiting for a disk is none of a program's work."""


def increase(before: float, now: float, *, wraps_at: int) -> float:
    """Return by how much a counter has grown.

    One that went back from its upper quarter to its lower one has wrapped; any
    other that went back began again at zero (a driver was loaded anew), as
    Prometheus takes it.
    """
    if now >= before:
        return now - before
    if before >= wraps_at * 0.75 and now < wraps_at * 0.25:
        return wraps_at - before + now
    return now


class RateTable:
    """Remembers the counters of one collector."""

    def __init__(self) -> None:
        self._before: dict[Series, float] = {}
        self._at = 0.0

    def rates(self, values: Values, at: float) -> dict[Series, float]:
        """Return the rates of ``values``, read ``at`` (monotonic seconds); a series has one from its second time on."""
        seconds = at - self._at
        before = self._before
        found = {}
        now = {}
        for each, value in values.items():
            metric = METRICS[each.metric]
            if not metric.rate:
                continue
            now[each] = value
            if seconds > 0 and each in before:
                grown = increase(before[each], value, wraps_at=metric.wraps_at)
                found[Series(metric.rate, each.labels)] = grown / seconds
        # Forgets series that are gone: what has their name later is something new.
        self._before, self._at = now, at
        return found


def busy_fraction(before: Mapping[str, float], now: Mapping[str, float]) -> float | None:
    """Return the share of processor time that programs had, from seconds by mode; None when no time has passed."""
    grown = {mode: max(0.0, spent - before.get(mode, 0.0)) for mode, spent in now.items()}
    every = sum(grown.values())
    if every <= 0:
        return None
    return 1.0 - sum(spent for mode, spent in grown.items() if mode in IDLE_MODES) / every
