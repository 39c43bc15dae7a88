"""Learns profiles of applications from the runs that ended.  Pure.

DRMaestro's inference engine keeps the average completion time of each
application by the state of the cluster, from profiling ahead ("The inference
engine"); this one learns while the cluster works.  Departures:

* Medians for averages: one run that was stuck would move an average for long.
* The latest :data:`WINDOW` runs of each flavour count, so that a new version
  of a program is learned.
* The state of the cluster is the flavour, the sharing and the network's load;
  of the load, what is kept is its effect, the sensitivity.
* DRMaestro gives an unknown application a neutral cost.  Here it has no
  profile, and the default policy's prices hold.

The runs are in the ledger (:class:`farbus.scheduler.events.PersistRun`), from
which a scheduler that starts learns them again.
"""

from __future__ import annotations

import hashlib
import statistics
from collections import OrderedDict, deque
from collections.abc import Iterable

import msgspec

from farbus.errors import InvalidInput
from farbus.model.device import Route
from farbus.model.job import Job, JobStatus, TaskPlacement
from farbus.model.profile import ApplicationProfile, FlavourTime, ObservedRun, application_of
from farbus.model.quantity import MAX_SECONDS
from farbus.model.states import JobState

WINDOW = 32
"""Latest runs of an application in one flavour and sharing that count."""

LATEST = 64
"""Latest runs of an application in any flavour that are remembered, to tell what jobs of one shape take."""

MAX_APPLICATIONS = 4_096
"""Applications that are remembered, of some kilobytes each; those that ended longest ago go first."""

MAX_SET = 4_096
"""Profiles that operators may set."""

SHAPE_DIGITS = 16
"""Hexadecimal digits of a shape's digest: enough to tell the shapes of one application apart."""

MAX_FLAVOURS = 16
"""Flavours and sharings of one application that are remembered."""

IDLE = 0.1
"""A network that is loaded less than this counts as idle: the slowdown would be lost in the noise."""

MAX_RUNS_EXPECTED = 8
"""Latest runs of a shape by which it is told how long its like take."""

Key = tuple[str, str]
"""A user and an application's name."""

_Flavour = tuple[Route | None, int]


class _Application:
    def __init__(self) -> None:
        self.runs: OrderedDict[_Flavour, deque[ObservedRun]] = OrderedDict()
        self.latest: deque[ObservedRun] = deque(maxlen=LATEST)
        """Of all flavours."""
        self.profile: ApplicationProfile | None = None


class InferenceEngine:
    """What is known of applications: running estimates from observed runs, and what operators have set.

    What was set counts before what was learned, of a user before what holds
    for everybody; learning goes on beside it.  Runs are remembered for each
    user apart, so that nobody's runs change what is expected of others' jobs.
    """

    def __init__(self) -> None:
        self._applications: OrderedDict[Key, _Application] = OrderedDict()
        self._set: dict[Key, ApplicationProfile] = {}

    def observe(self, run: ObservedRun) -> None:
        """Take in a run that ended well; raise :class:`farbus.errors.InvalidInput` for one that can't be."""
        run.check()
        key = (run.user, run.application)
        known = self._applications.setdefault(key, _Application())
        self._applications.move_to_end(key)
        while len(self._applications) > MAX_APPLICATIONS:
            self._applications.popitem(last=False)
        flavour = (run.flavour, run.sharing)
        known.runs.setdefault(flavour, deque(maxlen=WINDOW)).append(run)
        known.runs.move_to_end(flavour)
        while len(known.runs) > MAX_FLAVOURS:
            known.runs.popitem(last=False)
        known.latest.append(run)
        known.profile = None

    def check_room(self, profile: ApplicationProfile) -> None:
        """Raise :class:`InvalidInput` where too many profiles are set for another."""
        if (profile.user, profile.application) not in self._set and len(self._set) >= MAX_SET:
            raise InvalidInput(f"profiles: {MAX_SET} are set already", hint="farbus profiles forget frees some")

    def set(self, profile: ApplicationProfile) -> None:
        """Have ``profile``, which has been checked, count before what is learned."""
        self._set[profile.user, profile.application] = profile

    def forget(self, application: str, user: str | None = None) -> tuple[ApplicationProfile, ...]:
        """Forget an application, of one user (the empty name is everybody) or of all; return what was known."""
        known = self.of(application, user)
        for each in known:
            (self._set if each.set_by else self._applications).pop((each.user, application))
        return known

    def known(self, job: Job) -> ApplicationProfile | None:
        """Return what is known of a job's application; None where nothing is."""
        key = application_of(job)
        return self._set.get(key) or self._set.get(("", key[1])) or self.learned(*key)

    def learned(self, user: str, application: str) -> ApplicationProfile | None:
        """Return what was learned from the runs of one user's application; None for an unknown one."""
        known = self._applications.get((user, application))
        if known is None:
            return None
        if known.profile is None:
            known.profile = _infer(user, application, known)
        return known.profile

    def profiles(self) -> tuple[ApplicationProfile, ...]:
        """Return what is known of all applications, by name and user; what was set before what was learned."""
        found = [self.learned(*key) for key in self._applications]
        both = (*self._set.values(), *(profile for profile in found if profile is not None))
        return tuple(sorted(both, key=lambda each: (each.application, each.user, not each.set_by)))

    def of(self, application: str, user: str | None = None) -> tuple[ApplicationProfile, ...]:
        """Return what is known of one application, of one user or of all."""
        return tuple(each for each in self.profiles() if each.application == application and user in (None, each.user))

    def with_runs(self, profile: ApplicationProfile) -> ApplicationProfile:
        """Return a profile with the latest of the runs that it was learned from; what was set has none."""
        known = self._applications.get((profile.user, profile.application))
        if profile.set_by or known is None:
            return profile
        return msgspec.structs.replace(profile, runs=tuple(known.latest))

    def expected_s(self, job: Job) -> float | None:
        """Return how long jobs that asked for the same as ``job`` took, the median of their latest runs.

        Where none of this application did, None.  It is told to people; what
        policies go by is :meth:`known`.
        """
        known = self._applications.get(application_of(job))
        if known is None:
            return None
        shape = shape_of(job)
        runs = [run.seconds for run in known.latest if run.shape == shape][-MAX_RUNS_EXPECTED:]
        return statistics.median(runs) if runs else None


def shape_of(job: Job) -> str:
    """Return a digest of what a job asks for: commands are long."""
    return hashlib.sha256(msgspec.json.encode((job.groups, job.stage_in))).hexdigest()[:SHAPE_DIGITS]


def _infer(user: str, application: str, known: _Application) -> ApplicationProfile:
    times, slowdowns = [], []
    for (flavour, sharing), runs in sorted(known.runs.items(), key=lambda item: (item[0][0] or "", item[0][1])):
        calm = [run.seconds for run in runs if run.network_load < IDLE]
        loaded = [(run.network_load, run.seconds) for run in runs if run.network_load >= IDLE]
        if flavour is Route.REMOTE:
            slowdowns += _slowdowns(calm, loaded)
        # Of what is slowed by the network, the time without it is told, as long as that was ever seen.
        counted = calm or [seconds for _, seconds in loaded]
        median = statistics.median(counted)
        spread = statistics.median(abs(seconds - median) for seconds in counted)
        times.append(
            FlavourTime(flavour=flavour, sharing=sharing, count=len(counted), median_s=median, spread_s=spread)
        )
    return ApplicationProfile(
        application=application,
        user=user,
        times=tuple(times),
        sensitivity=max(0.0, statistics.median(slowdowns)) if slowdowns else 0.0,
        sensitivity_count=len(slowdowns),
    )


def _slowdowns(calm: list[float], loaded: list[tuple[float, float]]) -> list[float]:
    """Return sf as each loaded run tells it: time = calm time (1 + sf load).

    Where no run was calm, pairs of loaded ones tell: of two loads l < m with
    times t < u, the calm time is (t m - u l) / (m - l).
    """
    if calm:
        base = statistics.median(calm)
        return [(seconds / base - 1) / load for load, seconds in loaded]
    found = []
    for number, (load, seconds) in enumerate(loaded):
        for other, longer in loaded[:number]:
            if abs(other - load) < IDLE:
                continue
            base = (seconds * other - longer * load) / (other - load)
            if base > 0:
                found.append((longer - seconds) / (other - load) / base)
    return found


def ends_of(placements: Iterable[TaskPlacement]) -> frozenset[str]:
    """Return the nodes at both ends of remote devices."""
    return frozenset(
        end
        for task in placements
        for device in task.devices
        if device.route is Route.REMOTE
        for end in (task.node, device.node)
    )


def observed_run(status: JobStatus, network_load: float, *, seconds: float) -> ObservedRun | None:
    """Return what a job that has ended after ``seconds`` tells of its application; None for one that tells nothing.

    A job tells how long it takes when it succeeded, by itself and not by a
    person's hand (interactive).  ``network_load`` is the mean of the busiest of
    the nodes at either end of its remote devices, 0 without any.
    """
    useful = (
        status.state is JobState.SUCCEEDED
        and status.started_at
        and not (status.job.interactive or status.job.attachment)
    )
    if not useful or not 0 < seconds <= MAX_SECONDS:
        return None
    routes = {device.route for task in status.placements for device in task.devices}
    flavour = next((route for route in (Route.REMOTE, Route.RECOMPOSED, Route.LOCAL) if route in routes), None)
    user, application = application_of(status.job)
    return ObservedRun(
        application=application,
        user=user,
        shape=shape_of(status.job),
        flavour=flavour,
        network_load=network_load,
        seconds=seconds,
    )
