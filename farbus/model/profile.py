"""What is known of applications: how long they run, and how much a loaded network slows them down.

A run is *observed* when it has ended; runs of one application make a profile.
Farbus knows an application by the name of its jobs.
"""

from __future__ import annotations

import math

from farbus.errors import InvalidInput
from farbus.model.device import Route
from farbus.model.quantity import MAX_SECONDS
from farbus.model.value import Value

MAX_APPLICATION = 128
"""Characters of an application's name: those of a job's."""


class ObservedRun(Value, frozen=True, kw_only=True):
    """One run that ended well.

    ``flavour`` is how it was given its devices; None for a run without any.
    ``sharing`` counts those that used one of them at a time, itself included;
    ``network_load`` is that of the busier end while it ran, from 0 to 1, and
    of other traffic than its own as far as that is known.
    """

    application: str
    flavour: Route | None = None
    sharing: int = 1
    network_load: float = 0.0
    seconds: float

    def check(self) -> None:
        """Raise :class:`InvalidInput` naming the field that can't be."""
        _check(0 < len(self.application) <= MAX_APPLICATION, "application", "is no name", self.application)
        _check(1 <= self.sharing <= 1024, "sharing", "is not from 1 to 1024", self.sharing)
        _check(0 <= self.network_load <= 1, "network_load", "is not from 0 to 1", self.network_load)
        _check(0 < self.seconds <= MAX_SECONDS, "seconds", "is not a time above 0", self.seconds)


class FlavourTime(Value, frozen=True, kw_only=True):
    """How long an application runs in one flavour and sharing: median and median absolute deviation of ``count``."""

    flavour: Route | None = None
    sharing: int = 1
    count: int
    median_s: float
    spread_s: float


class ApplicationProfile(Value, frozen=True, kw_only=True):
    """What is known of one application.

    ``sensitivity`` is the relative slowdown that a fully loaded network causes
    when devices are remote (sf of DRMaestro), from ``sensitivity_count`` runs
    under load; 0 from none says only that nobody knows.
    """

    application: str
    times: tuple[FlavourTime, ...]
    sensitivity: float = 0.0
    sensitivity_count: int = 0

    def time(self, flavour: Route | None, sharing: int = 1) -> FlavourTime | None:
        """Return what is known of one flavour and sharing."""
        for each in self.times:
            if (each.flavour, each.sharing) == (flavour, sharing):
                return each
        return None


def _check(good: bool, field: str, why: str, value: object) -> None:
    if not good or (isinstance(value, float) and not math.isfinite(value)):
        raise InvalidInput(f"observed run: {field} {value!r} {why}")
