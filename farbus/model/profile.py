"""What is known of applications: how long they run, and how much a loaded network slows them down.

A run is *observed* when it has ended; runs of one application make a profile.
Farbus knows an application by the user whose job it is, and by what the job
calls it, else by the job's name (docs/decisions/0011).
"""

from __future__ import annotations

import math

from farbus.errors import InvalidInput
from farbus.model.device import Route
from farbus.model.job import Job
from farbus.model.quantity import MAX_SECONDS
from farbus.model.value import Value

MAX_APPLICATION = 128
"""Characters of an application's name: those of a job's."""

MAX_USER = 128
"""Characters of a user's name."""

MAX_SHARING = 1024
"""Most runs that use one device at a time."""

MAX_TIMES = 64
"""Flavours and sharings that a profile tells apart."""

MAX_SENSITIVITY = 1000.0
"""Largest sensitivity that anybody may claim: a thousand times as long by a loaded network."""

MAX_COUNT = 2**31 - 1
"""Most runs that a profile may claim to be made of: what its message holds."""


class ObservedRun(Value, frozen=True, kw_only=True):
    """One run that ended well.

    ``flavour`` is how it was given its devices; None for a run without any.
    ``sharing`` counts those that used one of them at a time, itself included;
    ``network_load`` is the mean of the busier end while it ran, from 0 to 1,
    its own traffic included.  ``shape`` is a digest of what its job asked for.
    """

    application: str
    user: str = ""
    shape: str = ""
    flavour: Route | None = None
    sharing: int = 1
    network_load: float = 0.0
    seconds: float

    def check(self) -> None:
        """Raise :class:`InvalidInput` naming the field that can't be."""
        _check_name(self.application, self.user, "observed run: ")
        _check(1 <= self.sharing <= MAX_SHARING, "observed run: sharing", f"is not from 1 to {MAX_SHARING}",
               self.sharing)  # fmt: skip
        _check(0 <= self.network_load <= 1, "observed run: network_load", "is not from 0 to 1", self.network_load)
        _check(0 < self.seconds <= MAX_SECONDS, "observed run: seconds", "is not a time above 0", self.seconds)


class FlavourTime(Value, frozen=True, kw_only=True):
    """How long an application runs in one flavour and sharing: median and median absolute deviation of ``count``."""

    flavour: Route | None = None
    sharing: int = 1
    count: int
    median_s: float
    spread_s: float


class ApplicationProfile(Value, frozen=True, kw_only=True):
    """What is known of one application of one user, or of everybody's where ``user`` is empty.

    ``sensitivity`` is the relative slowdown that a fully loaded network causes
    when devices are remote (sf of DRMaestro), from ``sensitivity_count`` runs
    under load; 0 from none says only that nobody knows.
    """

    application: str
    times: tuple[FlavourTime, ...]
    sensitivity: float = 0.0
    sensitivity_count: int = 0
    user: str = ""
    set_by: str = ""
    """The operator who set it; empty for what was learned."""
    set_at: float = 0.0
    """When, in seconds since the epoch."""
    runs: tuple[ObservedRun, ...] = ()
    """What it was learned from, the latest last; only where that was asked for."""

    def time(self, flavour: Route | None, sharing: int = 1) -> FlavourTime | None:
        """Return what is known of one flavour and sharing."""
        for each in self.times:
            if (each.flavour, each.sharing) == (flavour, sharing):
                return each
        return None

    def check(self) -> None:
        """Raise :class:`InvalidInput` naming the field that can't be: what somebody says is not believed unseen."""
        _check_name(self.application, self.user, "")
        _check(bool(self.times), "times", "says of no flavour how long it takes", ())
        _check(len(self.times) <= MAX_TIMES, "times", f"are more than {MAX_TIMES}", len(self.times))
        for index, each in enumerate(self.times):
            field = f"times[{index}]"
            _check(1 <= each.sharing <= MAX_SHARING, f"{field}.sharing", f"is not from 1 to {MAX_SHARING}",
                   each.sharing)  # fmt: skip
            _check(1 <= each.count <= MAX_COUNT, f"{field}.count", f"is not from 1 to {MAX_COUNT}", each.count)
            _check(0 < each.median_s <= MAX_SECONDS, f"{field}.median_s", "is not a time above 0", each.median_s)
            _check(0 <= each.spread_s <= MAX_SECONDS, f"{field}.spread_s", "is not a time", each.spread_s)
        told = [(each.flavour, each.sharing) for each in self.times]
        _check(len(set(told)) == len(told), "times", "has a flavour and sharing twice", len(told))
        _check(0 <= self.sensitivity <= MAX_SENSITIVITY, "sensitivity", f"is not from 0 to {MAX_SENSITIVITY:g}",
               self.sensitivity)  # fmt: skip
        _check(0 <= self.sensitivity_count <= MAX_COUNT, "sensitivity_count", f"is not from 0 to {MAX_COUNT}",
               self.sensitivity_count)  # fmt: skip


def application_of(job: Job) -> tuple[str, str]:
    """Return the user and the name that a job's application is known by."""
    return job.user, job.application or job.name


def _check_name(application: str, user: str, where: str) -> None:
    good = 0 < len(application) <= MAX_APPLICATION and application.isprintable()
    _check(good, f"{where}application", "is no name", application[: MAX_APPLICATION + 1])
    _check(len(user) <= MAX_USER and user.isprintable(), f"{where}user", "is no user's name", user[: MAX_USER + 1])


def _check(good: bool, field: str, why: str, value: object) -> None:
    if not good or (isinstance(value, float) and not math.isfinite(value)):
        raise InvalidInput(f"{field} {value!r} {why}")
