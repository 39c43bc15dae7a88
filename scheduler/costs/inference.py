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

What is learned is kept in memory alone, and begins anew with the scheduler.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence

from farbus.model.cluster import LinkLoad, network_load
from farbus.model.device import Route
from farbus.model.job import JobStatus
from farbus.model.profile import ApplicationProfile, FlavourTime, ObservedRun
from farbus.model.quantity import MAX_SECONDS
from farbus.model.states import JobState

WINDOW = 32
"""Latest runs of an application in one flavour and sharing that count."""

MAX_APPLICATIONS = 4_096
"""Applications that are remembered, of some kilobytes each; those that ended longest ago go first."""

MAX_FLAVOURS = 16
"""Flavours and sharings of one application that are remembered."""

IDLE = 0.1
"""A network that is loaded less than this counts as idle: the slowdown would be lost in the noise."""

_Flavour = tuple[Route | None, int]


class _Application:
    def __init__(self) -> None:
        self.runs: OrderedDict[_Flavour, deque[tuple[float, float]]] = OrderedDict()
        """Load and seconds of each run."""
        self.profile: ApplicationProfile | None = None


class InferenceEngine:
    """Running estimates of execution times and sensitivities, by application."""

    def __init__(self) -> None:
        self._applications: OrderedDict[str, _Application] = OrderedDict()

    def observe(self, run: ObservedRun) -> None:
        """Take in a run that ended well; raise :class:`farbus.errors.InvalidInput` for one that can't be."""
        run.check()
        known = self._applications.setdefault(run.application, _Application())
        self._applications.move_to_end(run.application)
        while len(self._applications) > MAX_APPLICATIONS:
            self._applications.popitem(last=False)
        flavour = (run.flavour, run.sharing)
        known.runs.setdefault(flavour, deque(maxlen=WINDOW)).append((run.network_load, run.seconds))
        known.runs.move_to_end(flavour)
        while len(known.runs) > MAX_FLAVOURS:
            known.runs.popitem(last=False)
        known.profile = None

    def profile(self, application: str) -> ApplicationProfile | None:
        """Return what is known of an application; None for an unknown one."""
        known = self._applications.get(application)
        if known is None:
            return None
        if known.profile is None:
            known.profile = _infer(application, known)
        return known.profile

    def profiles(self) -> tuple[ApplicationProfile, ...]:
        """Return what is known of all applications, by name."""
        found = (self.profile(name) for name in sorted(self._applications))
        return tuple(profile for profile in found if profile is not None)


def _infer(application: str, known: _Application) -> ApplicationProfile:
    times, slowdowns = [], []
    for (flavour, sharing), runs in sorted(known.runs.items(), key=lambda item: (item[0][0] or "", item[0][1])):
        calm = [seconds for load, seconds in runs if load < IDLE]
        loaded = [(load, seconds) for load, seconds in runs if load >= IDLE]
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


def observed_run(status: JobStatus, links: Mapping[str, Sequence[LinkLoad]], now: float) -> ObservedRun | None:
    """Return what a job that has ended tells of its application; None for one that tells nothing.

    A job tells how long it takes when it succeeded, by itself and not by a
    person's hand (interactive).  The load is that of the busiest link at either
    end of its remote devices as it ended, its own traffic included: nobody
    keeps what it was before.
    """
    seconds = status.ended_at - status.started_at
    useful = status.state is JobState.SUCCEEDED and status.started_at and not status.job.interactive
    if not useful or not 0 < seconds <= MAX_SECONDS:
        return None
    routes = {device.route for task in status.placements for device in task.devices}
    flavour = next((route for route in (Route.REMOTE, Route.RECOMPOSED, Route.LOCAL) if route in routes), None)
    ends = {
        end
        for task in status.placements
        for device in task.devices
        if device.route is Route.REMOTE
        for end in (task.node, device.node)
    }
    load = max((network_load(links.get(end, ()), now) for end in ends), default=0.0)
    return ObservedRun(application=status.job.name, flavour=flavour, network_load=load, seconds=seconds)
