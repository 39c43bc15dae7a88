"""How long a chassis takes: distributions that have the moments and quantiles that were measured.

A measured table gives mean, standard deviation, smallest, median, nine tenths
and largest.  The quantile function that is drawn from goes through the four of
them: a power of its argument below the median, between, and above nine tenths.
The first and the last are what mean and standard deviation decide; between it
is a line unless no such pair can give both.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from farbus.model.fabric import FabricStep

MAX_POWER = 64.0
STEPS = 60
"""Halvings of an interval of powers: more than a double can tell."""


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row of a table of measured times, in seconds."""

    mean_s: float
    sd_s: float
    min_s: float
    p50_s: float
    p90_s: float
    max_s: float


KUBECOMP: Mapping[FabricStep, Measured] = {
    FabricStep.LIST: Measured(mean_s=3.32, sd_s=1.40, min_s=1.00, p50_s=3.19, p90_s=5.17, max_s=8.81),
    FabricStep.UNASSIGN: Measured(mean_s=7.29, sd_s=1.59, min_s=5.01, p50_s=7.09, p90_s=9.70, max_s=13.4),
    FabricStep.ASSIGN: Measured(mean_s=13.59, sd_s=2.68, min_s=6.01, p50_s=13.5, p90_s=16.6, max_s=18.2),
}
"""Times of an H3 Falcon 4005 with 8 GPUs and 2 nodes, from the log archive of KubeComp's testbed (72 to 74 of each)."""


@dataclass(frozen=True)
class Latency:
    """A distribution over times; ``below``, ``between`` and ``above`` are its powers."""

    row: Measured
    below: float
    between: float
    above: float

    def at(self, part: float) -> float:
        """Return the time that ``part`` (0 to 1) of all do not exceed, in seconds."""
        row = self.row
        if part < 0.5:
            return row.min_s + (row.p50_s - row.min_s) * math.pow(part / 0.5, self.below)
        if part < 0.9:
            return row.p50_s + (row.p90_s - row.p50_s) * math.pow((part - 0.5) / 0.4, self.between)
        return row.p90_s + (row.max_s - row.p90_s) * math.pow(min(1.0, (part - 0.9) / 0.1), self.above)

    @property
    def mean_s(self) -> float:
        """The expected time."""
        return self._moment(1)

    @property
    def sd_s(self) -> float:
        """The standard deviation."""
        return math.sqrt(max(0.0, self._moment(2) - self.mean_s**2))

    def _moment(self, order: int) -> float:
        """Return the first or second moment: integrals of ``(a + d * t**k) ** order`` over each part."""
        row = self.row
        parts = (
            (0.5, row.min_s, row.p50_s - row.min_s, self.below),
            (0.4, row.p50_s, row.p90_s - row.p50_s, self.between),
            (0.1, row.p90_s, row.max_s - row.p90_s, self.above),
        )
        if order == 1:
            return sum(weight * (start + width / (power + 1)) for weight, start, width, power in parts)
        return sum(
            weight * (start**2 + 2 * start * width / (power + 1) + width**2 / (2 * power + 1))
            for weight, start, width, power in parts
        )


BETWEEN = (1.0, 0.8, 1.25, 0.6, 1.6, 0.5, 2.0, 0.35, 2.8, 0.25, 4.0)
"""Powers that are tried between median and nine tenths, those near a line first."""

CLOSE = 0.001
"""Part by which a standard deviation may be off."""


@functools.cache
def fit(row: Measured) -> Latency:
    """Return the distribution of ``row``; where no powers give both moments, the mean is kept and sd is nearest."""
    assert row.min_s <= row.p50_s <= row.p90_s <= row.max_s
    best: Latency | None = None
    for between in BETWEEN:
        found = _with_between(row, between)
        if best is None or _miss(found) < _miss(best):
            best = found
        if _miss(best) <= CLOSE * row.sd_s:
            break
    assert best is not None
    return best


def _miss(latency: Latency) -> float:
    row = latency.row
    return abs(latency.sd_s - row.sd_s) + abs(latency.mean_s - row.mean_s)


def _with_between(row: Measured, between: float) -> Latency:
    """Return the distribution with that power between whose moments are nearest."""
    best = min((_with_above(row, between, 1.1**step) for step in range(-30, 44)), key=_miss)
    # Around the best of a coarse grid the miss has one minimum.
    low, high = best.above / 1.1, min(MAX_POWER, best.above * 1.1)
    for _ in range(STEPS):
        thirds = low + (high - low) / 3, high - (high - low) / 3
        misses = [_miss(_with_above(row, between, above)) for above in thirds]
        low, high = (low, thirds[1]) if misses[0] <= misses[1] else (thirds[0], high)
    return _with_above(row, between, (low + high) / 2)


def _with_above(row: Measured, between: float, above: float) -> Latency:
    """Return the distribution with those powers whose mean is right, as far as the lowest power can make it so."""
    low, high = 1 / MAX_POWER, MAX_POWER
    for _ in range(STEPS):
        below = math.sqrt(low * high)
        # A larger power below the median means shorter times.
        if Latency(row, below, between, above).mean_s > row.mean_s:
            low = below
        else:
            high = below
    return Latency(row, math.sqrt(low * high), between, above)
