"""Which drives to use as one: the paper's policies as prices of flavours, for the storage phase.

A *flavour* is a number of drives at one place, unused ones (a new
composition) or such as others of the same kind use already (shared).  A rule
prices each; the flow chooses among them for all jobs at once.  Sources: the
workload-aware placement paper, algorithms 1 and 2, equations 1, 2 and 4; the
simulator runs them as printed in :mod:`farbus.scheduler.composition.policies`.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farbus.scheduler.composition.policies import HIGH_LOAD, LOW_LOAD
from farbus.scheduler.composition.profiles import StorageProfile

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

MOST_DRIVES = 3
"""Most drives of a composition that nobody asked for by number: the models are measured up to three."""

MAX_SHARERS = 7
"""Most leases of programs with a profile on one drive; the models were measured for six."""

FURTHER_DRIVE = 0.2
"""Cost of each drive beyond the first where nothing is known to run faster on them."""

NEW = 1.0
"""Cost of a new composition where the paper looks at those in use first: more than any cost among those."""

AMONG_SHARED = 0.5
"""Greatest cost among compositions in use."""

BREAK_INTO = 0.5
"""Cost of beginning to use the drives of a place, where fragments are to be avoided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What one task wants of storage; ``left_s`` until its deadline, negative when it is over."""

    size_bytes: int
    bytes_per_s: int
    profile: StorageProfile | None = None
    left_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavours:
    """``drives`` drives as one, at N places: what those that would be taken have together, each array of shape (N,).

    ``sharers`` use them already; ``in_use`` says whether any drive of the place is used.
    """

    drives: int
    is_new: bool
    bytes_per_s: Integers
    free_bytes: Integers
    free_bytes_per_s: Integers
    sharers: Integers
    in_use: Flags


@dataclass(frozen=True, slots=True)
class Load:
    """Parts, from 0 to 1, of all bandwidth and all capacity that leases have."""

    bandwidth: float
    capacity: float


class CompositionRule(abc.ABC):
    """Prices of flavours; infinite for one that is no option."""

    name: str

    def costs(self, wanted: Wanted, flavours: Flavours, load: Load) -> Floats:
        """Return what each flavour costs, in normalised utility cost.

        One that would miss a deadline which can still be met is no option (the paper's section III.C).
        """
        expected = expected_s(wanted, flavours)
        late = (expected > wanted.left_s) & (wanted.left_s >= 0)
        return np.where(late, np.inf, self._costs(wanted, flavours, expected, load))

    @abc.abstractmethod
    def _costs(self, wanted: Wanted, flavours: Flavours, expected: Floats, load: Load) -> Floats:
        """Return the costs; ``expected`` is how long the program would run, 0 where nobody knows."""


def expected_s(wanted: Wanted, flavours: Flavours) -> Floats:
    """Return how long a newcomer would run on each flavour by its model; 0 without one."""
    profile = wanted.profile
    if profile is None:
        return np.zeros(len(flavours.sharers))
    pairs = np.stack((flavours.bytes_per_s, flavours.sharers + 1), axis=1)
    distinct, row = np.unique(pairs, axis=0, return_inverse=True)
    times = [profile.execution_s(bytes_per_s, sharers) for bytes_per_s, sharers in distinct.tolist()]
    return np.array(times, np.float64)[row.reshape(-1)]


def _left_over(wanted: Wanted, flavours: Flavours) -> Floats:
    """Return the mean share of bandwidth and capacity that stays free: equation 1's fitness, from 0 to 1."""
    bandwidth = wanted.bytes_per_s / np.maximum(flavours.free_bytes_per_s, max(wanted.bytes_per_s, 1))
    capacity = wanted.size_bytes / np.maximum(flavours.free_bytes, max(wanted.size_bytes, 1))
    return 1 - (bandwidth + capacity) / 2


class FewestDrives(CompositionRule):
    """Best fit on as few drives as will do."""

    name = "fewest drives"

    def _costs(self, wanted: Wanted, flavours: Flavours, expected: Floats, load: Load) -> Floats:
        del expected, load
        new = FURTHER_DRIVE / 2 if flavours.is_new else 0.0
        return AMONG_SHARED * _left_over(wanted, flavours) + FURTHER_DRIVE * (flavours.drives - 1) + new


class MaximizeComposition(CompositionRule):
    """Algorithm 1: share where all keep their deadlines, else more drives for as long as it runs faster on them."""

    name = "maximize composition"

    def _costs(self, wanted: Wanted, flavours: Flavours, expected: Floats, load: Load) -> Floats:
        del load
        if not flavours.is_new:
            return AMONG_SHARED * _left_over(wanted, flavours)
        profile = wanted.profile
        if profile is None:
            return np.full(len(expected), NEW + FURTHER_DRIVE * (flavours.drives - 1))
        beyond = (flavours.bytes_per_s > profile.peak_bytes_per_s) & (flavours.drives > 1)
        # Among equals a place that is in use comes first.
        return np.where(beyond, np.inf, NEW + expected / profile.base_s + np.where(flavours.in_use, 0, 0.001))


class MinimizeFragmentation(CompositionRule):
    """Algorithm 2: leave as little as possible unused beside what is used (equation 2's alpha, without processors)."""

    name = "minimize fragmentation"

    def _costs(self, wanted: Wanted, flavours: Flavours, expected: Floats, load: Load) -> Floats:
        del expected, load
        if not flavours.is_new:
            return AMONG_SHARED * _left_over(wanted, flavours)
        return NEW + FURTHER_DRIVE * (flavours.drives - 1) + np.where(flavours.in_use, 0, BREAK_INTO)


class DisaggregationAware(CompositionRule):
    """Equation 4 as printed: maximise composition where drives are idle, or busy but not full; else no fragments."""

    name = "disaggregation-aware"

    def __init__(self) -> None:
        self._maximize = MaximizeComposition()
        self._minimize = MinimizeFragmentation()

    def choose(self, load: Load) -> CompositionRule:
        """Return the rule for the present load."""
        idle = load.bandwidth <= LOW_LOAD and load.capacity <= LOW_LOAD
        busy = load.bandwidth >= HIGH_LOAD and load.capacity <= HIGH_LOAD
        return self._maximize if idle or busy else self._minimize

    def _costs(self, wanted: Wanted, flavours: Flavours, expected: Floats, load: Load) -> Floats:
        return self.choose(load)._costs(wanted, flavours, expected, load)
