"""DRMaestro's utility cost and network-aware policy.

Amaral et al., DRMaestro: orchestrating disaggregated resources on virtualized
data-centers, Journal of Cloud Computing 10 (2021), equations 6 to 8.  Where
the paper's print does not do what its text says, this follows the text:

* Eq. 6 with z = 10 punishes nothing at all, so z is less than 10 here.
* The expected time is "multiplied by a sensitivity factor sf*l": as printed an
  idle network (l = 0) would end every job at once.  The factor here is
  1 + sf*l: 1 on an idle network, and sf is the slowdown that full load adds.
* Eq. 8 makes waiting as cheap as placing at first (W = 0), while the text
  wants it dearer: the market prices waiting above every arc.
* With a growing W alone, postponing would end silently or never.  Violating
  arcs are removed for a stated number of rounds, and are back afterwards.
* W is added to the price of one job's arc.  Here waiting raises a job's rank,
  every hundred rounds its priority: no sum of costs is to outweigh a wait.
* The goal is the expected completion time itself ("SLO is defined as the
  task's expected completion time"), so that any slowdown at all would miss
  it.  A job may state its own (:class:`farbus.model.job.Goal`); where it does
  not, the goal is that time with some slack.
* An unknown application costs a neutral 1 wherever it goes.  Here it costs
  what the default policy says, which tells local from remote.
* The print leaves P open.  Here it is 1 for the node that phase 1 chose, and 2
  for others.
* A device that a fabric moves to the node is neither of its two cases.  It is
  as good as local there, once it has come: the time of moving is added to the
  expected one.  Drives over the network are remote devices.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from farbus.errors import InvalidInput
from farbus.model.decision import PendingJob
from farbus.model.device import Route
from farbus.model.job import Goal, TaskGroup
from farbus.model.node import STORAGE_ATTACH_S
from farbus.model.profile import ApplicationProfile
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.policy import FORBIDDEN, SCALE, Integers, Policy, to_cost
from farbus.scheduler.phases.cluster import Cluster

Floats = npt.NDArray[np.float64]

MAX_STRETCH = 10.0
"""An expected time counts as at most so many times the goal, so that one hopeless job does not set the scale."""

LOCAL_PREFERENCE = 1.0
REMOTE_PREFERENCE = 2.0
"""P of eq. 7: the node that phase 1 chose is preferred to others, for equal utility."""

PACKING = 0.1
"""Weight of the default policy's node cost, which eq. 7 leaves equal for all nodes."""

GOAL_SLACK = 1.1
"""A goal that is not given is so many times the time that is expected with local devices."""

LOADS = 1001
"""Loads are told apart in thousandths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is known of an application.

    ``goal_s`` is tau, the completion time wanted; ``expected_s`` phi, the one
    expected with local devices; ``importance`` z, from 1 (a missed goal counts
    in full) to below 10; ``sensitivity`` sf, the relative slowdown that a fully
    loaded network causes when devices are remote.
    """

    goal_s: float
    expected_s: float
    importance: float = 1.0
    sensitivity: float = 0.0
    remote_s: float = 0.0
    """phi with remote devices and an idle network; 0 where it is not known, and the local time stands for it."""
    recomposed_s: float = 0.0
    """phi with devices that were moved to the node; 0 where it is not known, and the local time stands for it."""

    def __post_init__(self) -> None:
        if not self.goal_s > 0 or not self.expected_s >= 0:
            raise InvalidInput(f"profile: goal {self.goal_s} s and expected {self.expected_s} s must be times")
        if not 1 <= self.importance < 10:
            raise InvalidInput(f"profile: importance {self.importance} is not from 1 to below 10")
        if not self.remote_s >= 0 or not self.recomposed_s >= 0:
            raise InvalidInput(f"profile: remote {self.remote_s} s or recomposed {self.recomposed_s} s is negative")
        if not self.sensitivity >= 0:
            raise InvalidInput(f"profile: sensitivity {self.sensitivity} is negative")


def utility(expected_s: Floats, goal_s: float, importance: float) -> Floats:
    """Return eq. 6: from 1 down to 0 while the goal is met, negative and growing with the miss beyond."""
    gain = (goal_s - np.minimum(expected_s, MAX_STRETCH * goal_s)) / goal_s
    return np.where(gain >= 0, gain, gain * (10 - importance) / 9)


def utility_cost(expected_s: Floats, profile: Profile, preference: float) -> Floats:
    """Return eq. 7: (1 - Ut) P, from 0 to P while the goal is met."""
    return (1 - utility(expected_s, profile.goal_s, profile.importance)) * preference


LOCAL_FIRST = (Route.LOCAL, Route.RECOMPOSED, None, Route.REMOTE)
"""Flavours whose time is expected with local devices, the nearest to it first."""


def learned(known: ApplicationProfile) -> Profile | None:
    """Return what was learned of an application as the policy needs it; None while it is of no use.

    Two digits are kept: an estimate is no better, and jobs of one application
    stay alike for some rounds.
    """
    times = (known.time(flavour) for flavour in LOCAL_FIRST)
    expected = next((time.median_s for time in times if time is not None), 0.0)
    if not expected:
        return None
    expected = _two_digits(expected)
    return Profile(
        goal_s=GOAL_SLACK * expected,
        expected_s=expected,
        sensitivity=_two_digits(known.sensitivity),
        remote_s=_known_s(known, Route.REMOTE),
        recomposed_s=_known_s(known, Route.RECOMPOSED),
    )


def _known_s(known: ApplicationProfile, flavour: Route) -> float:
    time = known.time(flavour)
    return _two_digits(time.median_s) if time is not None else 0.0


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


@dataclass(frozen=True, slots=True)
class _Subject:
    profile: Profile
    patient: bool


def _with_goal(profile: Profile, goal: Goal) -> Profile:
    """Return what is known with the job's own word on tau and z; of tau two digits: so that jobs stay alike."""
    if not goal.slo_s and not goal.importance:
        return profile
    goal_s = _two_digits(goal.slo_s) if goal.slo_s else profile.goal_s
    return replace(profile, goal_s=goal_s, importance=goal.importance or profile.importance)


def _local(profile: Profile) -> Floats:
    """Return eq. 7 for what is local."""
    return utility_cost(np.array([profile.expected_s]), profile, LOCAL_PREFERENCE)


def _moved(seconds: Floats, profile: Profile) -> Floats:
    """Return eq. 7 for what is as good as local once it has been moved for so many seconds."""
    return utility_cost((profile.recomposed_s or profile.expected_s) + seconds, profile, LOCAL_PREFERENCE)


def _violates(expected: Floats, subject: _Subject) -> npt.NDArray[np.bool_]:
    """Return which ways the network-aware policy removes: those that would miss a goal which is met at home.

    Whoever misses the goal at home gains nothing from waiting.
    """
    profile = subject.profile
    return (expected > profile.goal_s) & (subject.patient and profile.expected_s <= profile.goal_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DRMaestroPolicy(DefaultPolicy):
    """Utility costs by profile; jobs without a profile cost what the default policy says.

    ``profiles`` go by the job's name, and come before what was learned of its
    application (:attr:`farbus.model.decision.PendingJob.profile`).  A node's network load, from 0 to 1, is
    what was measured of its links, unless ``loads`` names another; the load of
    a remote device is that of the busier end.  With
    ``network_aware`` a remote device that would miss the goal is no option
    until the job has waited ``postpone_rounds``.
    """

    profiles: Mapping[str, Profile] = field(default_factory=dict)
    loads: Mapping[str, float] = field(default_factory=dict)
    network_aware: bool = True
    postpone_rounds: int = 10
    name: str = "drmaestro"

    def subject(self, pending: PendingJob, group: TaskGroup) -> Hashable:
        """Return the job's profile, and whether it would rather wait than miss its goal."""
        del group
        profile = self.profiles.get(pending.job.name)
        if profile is None and pending.profile is not None:
            profile = learned(pending.profile)
        if profile is None:
            return None
        profile = _with_goal(profile, pending.job.goal)
        return _Subject(profile, self.network_aware and pending.rounds_waited < self.postpone_rounds)

    def unconditional(self) -> Policy:
        """Return this policy without postponement."""
        return replace(self, postpone_rounds=0)

    def sites(self, cluster: Cluster) -> Integers:
        """Return rack and load of each node as one number."""
        return cluster.rack * LOADS + self._load_milli(cluster)

    def node_cost(
        self,
        cluster: Cluster,
        nodes: Integers,
        free: Integers,
        demand: tuple[int, ...],
        spare: Integers,
        subject: Hashable,
    ) -> Integers:
        """Return eq. 7 for the preferred node, with a little of the default policy's packing to break ties."""
        packing = DefaultPolicy.node_cost(self, cluster, nodes, free, demand, spare, subject)
        if not isinstance(subject, _Subject):
            return packing
        return to_cost(_local(subject.profile) + PACKING * packing / SCALE)

    def near_cost(self, wanted: int, available: Integers, subject: Hashable) -> Integers:
        """Return eq. 7 for local devices: no network, the preferred node."""
        if not isinstance(subject, _Subject):
            return DefaultPolicy.near_cost(self, wanted, available, subject)
        expected = np.full(len(available), subject.profile.expected_s)
        return to_cost(utility_cost(expected, subject.profile, LOCAL_PREFERENCE))

    def far_cost(
        self,
        cluster: Cluster,
        lenders: Integers,
        wanted: int,
        available: Integers,
        site: Integers | int,
        subject: Hashable,
    ) -> Integers:
        """Return eq. 7 with the expected time stretched by the load of the busier end."""
        if not isinstance(subject, _Subject):
            return DefaultPolicy.far_cost(self, cluster, lenders, wanted, available, site // LOADS, subject)
        expected = self._over_network(cluster, lenders, site, subject.profile)
        cost = to_cost(utility_cost(expected, subject.profile, REMOTE_PREFERENCE))
        return np.where(_violates(expected, subject), FORBIDDEN, cost)

    def move_cost(self, wanted: int, moved: Integers, attach_s: Floats, subject: Hashable) -> Integers:
        """Return eq. 7 for devices that are local once the fabric has moved them, one after the other."""
        if not isinstance(subject, _Subject):
            return DefaultPolicy.move_cost(self, wanted, moved, attach_s, subject)
        return to_cost(_moved(moved * attach_s, subject.profile))

    def drives_move_cost(self, drives: int, attach_s: Floats, subject: Hashable) -> Integers:
        """Return by how much eq. 7 is dearer with drives that have to be moved first than with local ones."""
        if not isinstance(subject, _Subject):
            return DefaultPolicy.drives_move_cost(self, drives, attach_s, subject)
        return to_cost((_moved(drives * attach_s, subject.profile) - _local(subject.profile)).clip(min=0))

    def storage_cost(
        self, cluster: Cluster, targets: Integers, site: int, attach_s: float, subject: Hashable
    ) -> Integers:
        """Return by how much eq. 7 is dearer for drives over the network than for local ones.

        What attaching them takes beyond what is typical comes on top of the expected time; nobody waits for that to
        become less.
        """
        if not isinstance(subject, _Subject):
            return DefaultPolicy.storage_cost(self, cluster, targets, site // LOADS, attach_s, subject)
        expected = self._over_network(cluster, targets, site, subject.profile)
        remote = utility_cost(expected + (attach_s - STORAGE_ATTACH_S), subject.profile, REMOTE_PREFERENCE)
        cost = to_cost((remote - _local(subject.profile)).clip(min=0))
        return np.where(_violates(expected, subject), FORBIDDEN, cost)

    def _over_network(self, cluster: Cluster, others: Integers, site: Integers | int, profile: Profile) -> Floats:
        """Return phi (1 + sf l) for devices of the nodes ``others``; l is the load of the busier end."""
        load = np.maximum(self._load_milli(cluster)[others], site % LOADS) / (LOADS - 1)
        idle = profile.remote_s or profile.expected_s
        slowdown: Floats = profile.sensitivity * load if self.network_aware else 0 * load
        return idle * (1 + slowdown)

    def _load_milli(self, cluster: Cluster) -> Integers:
        known = cluster.round_memo.get(self)
        if known is None:
            measured = cluster.network_load().tolist()
            pairs = zip(cluster.names, measured, strict=True)
            loads = np.array([self.loads.get(name, load) for name, load in pairs], np.float64)
            known = cluster.round_memo[self] = np.rint(loads.clip(0, 1) * (LOADS - 1)).astype(np.int64)
        return known
