"""What a policy answers: who comes first, and what each way of serving a task costs.

Costs are int64 in thousandths of DRMaestro's normalised utility cost, where 1
is the cost of finishing exactly at the goal (eq. 7 with preference 1).  They
are never negative; :data:`FORBIDDEN` in an array of costs means that there is
no arc at all.  Costs are made from floats by :func:`to_cost` alone.
"""

from __future__ import annotations

import abc
import enum
import functools
import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from farbus.model.decision import PendingJob
from farbus.model.job import TaskGroup
from farbus.model.node import STORAGE_ATTACH_S
from farbus.scheduler.composition.profiles import PROFILES, StorageProfile
from farbus.scheduler.composition.rules import CompositionRule, FewestDrives
from farbus.scheduler.phases.cluster import Cluster

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

SCALE = 1000
"""Costs are thousandths."""

MAX_COST = 10**7
"""Dearest answer of a policy, in thousandths: keeps every network inside the solver's range of costs."""

FORBIDDEN = -1
"""In an array of costs: no arc."""

RECOMPOSED = 1.8
"""Cost of having devices moved at all: as much as packing, stranding and fragmenting together, so that what is at hand
wins; less than that of remote devices, because what was moved is as fast as local."""

ATTACH_SECOND = 0.02
"""Cost of a second of attaching: a fabric that takes ten seconds for a device is no better than the network."""

NETWORK_STORAGE = 0.5
"""Cost of drives that are reached over the network: NVMe over Fabrics is nearly as fast as a local drive.  Attaching
them is in it as far as it takes :data:`~farbus.model.node.STORAGE_ATTACH_S`; each second more is one of attaching."""

FEWEST_FIRST = 0.001
"""Cost per free device of the donor; smaller than anything else, as it only chooses among donors."""

AGING_ROUNDS = 100
"""A job gains one step of priority for every so many rounds that it waited though it alone would have fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSites:
    """In-network devices that might run one more instance of a service: D of them, each with R resources.

    ``taken`` (D, R) is what the instance would take of each, ``room`` what is
    left, ``capacity`` what there is; ``runs`` (D,) says where the service runs
    already, ``active`` how many services do, ``most`` how many could.
    """

    nodes: Integers
    taken: Integers
    room: Integers
    capacity: Integers
    runs: Flags
    active: Integers
    most: Integers


def to_cost(values: npt.NDArray[np.floating[Any]]) -> Integers:
    """Scale costs to thousandths, half to even; the solver would cut floats in silence."""
    # One sum tells: what is not finite makes it so, too.
    assert np.isfinite(values.sum()), "a cost is not a number"
    scaled: Integers = np.minimum(np.maximum(np.rint(values * SCALE), 0), MAX_COST).astype(np.int64)
    return scaled


class Choice(enum.Enum):
    """How places are chosen: all at once by a flow, or one after the other by a simple rule."""

    FLOW = "flow"
    FIRST = "first"
    BEST = "best"
    RANDOM = "random"


class Waiting:
    """Jobs that wait as columns, one row each: what :meth:`Policy.urgency` is told of them."""

    def __init__(self, entries: Sequence[PendingJob], priority: Integers) -> None:
        self.entries = entries
        self.priority = priority

    @staticmethod
    def of(entries: Sequence[PendingJob]) -> Waiting:
        """Return the columns of any jobs."""
        return Waiting(entries, np.array([entry.job.priority for entry in entries], np.int64))

    @functools.cached_property
    def rounds_waited(self) -> Integers:
        """Rounds that each job waited."""
        return np.fromiter(map(_ROUNDS_WAITED, self.entries), np.int64, len(self.entries))

    @functools.cached_property
    def left_s(self) -> Floats:
        """Seconds until each job's deadline, negative when it is over; infinite without one."""
        return np.fromiter(map(_LEFT_S, self.entries), np.float64, len(self.entries))


_ROUNDS_WAITED, _LEFT_S = operator.attrgetter("rounds_waited"), operator.attrgetter("left_s")


def submitted(pending: Sequence[PendingJob]) -> Integers:
    """Return for each job how many come before it by submission and id, and by the order here where they are equal."""
    keyed = sorted((entry.job.submitted_at, entry.job.id, number) for number, entry in enumerate(pending))
    turn = np.empty(len(keyed), np.int64)
    turn[[number for _, _, number in keyed]] = np.arange(len(keyed))
    return turn


def ranked(urgency: Sequence[Integers | Floats], turn: Integers) -> tuple[Integers, Integers]:
    """Return the rows in the order of urgency, of one urgency in that of ``turn``, and the tier of each in this order.

    Tiers count from 0, the least urgent.
    """
    keys = [key for key in urgency if (key != key[:1]).any()]
    order = np.lexsort((turn, *reversed(keys)))
    steps = np.zeros(max(len(turn) - 1, 0), bool)
    for key in keys:
        in_order = key[order]
        steps |= in_order[1:] != in_order[:-1]
    later = np.cumsum(steps[::-1])[::-1]
    return order, np.concatenate((later, np.zeros(min(len(turn), 1), np.int64)))


class Policy(abc.ABC):
    """Prices of one scheduling policy.  Everything here is pure: arrays in, arrays out; M is the number of nodes.

    A price depends on nothing but the subject, what is passed of the node's
    own row, its labels and its capacity, and on :meth:`sites`: prices are kept
    for as long as those stay the same.
    """

    name: str
    choice: Choice = Choice.FLOW
    seed: int = 0
    """Where random choices begin."""
    composition: CompositionRule = FewestDrives()
    """How many drives are used as one, and which."""
    storage_profiles: Mapping[str, StorageProfile] = PROFILES
    """What is known of programs that use drives, by name."""
    prices_devices: bool = False
    """Whether :meth:`devices_cost` has anything to say; who leaves this False is never asked."""

    def seeing(self, pending: Sequence[PendingJob]) -> Policy:
        """Return the policy for a round that begins with ``pending``, having taken note of them.

        Another one than in the round before where prices are others now: what
        was kept with the old prices is forgotten then.
        """
        del pending
        return self

    def urgency(self, waiting: Waiting) -> Sequence[Integers | Floats]:
        """Return what tiers of urgency go by, the most significant first, each of shape (N,): the least goes first.

        Priority, raised by one for every :data:`AGING_ROUNDS` waited; then the
        longest wait, as DRMaestro's queue (Algorithm 1).
        """
        return -(waiting.priority + waiting.rounds_waited // AGING_ROUNDS), -waiting.rounds_waited

    def rank(self, pending: Sequence[PendingJob]) -> list[tuple[PendingJob, int]]:
        """Return the jobs, first come first, each with its tier of urgency (greater is more urgent).

        Of one tier the earlier submission is first, and the job's id comes last, so that the order is total.
        """
        order, tier = ranked(self.urgency(Waiting.of(pending)), submitted(pending))
        return [(pending[row], step) for row, step in zip(order.tolist(), tier.tolist(), strict=True)]

    def prepare(self, cluster: Cluster, pending: Sequence[PendingJob]) -> Sequence[PendingJob]:
        """Return the jobs with what the policy wants to know of each at the round's begin, by the whole cluster."""
        del cluster
        return pending

    def subject(self, pending: PendingJob, group: TaskGroup) -> Hashable:
        """Return what else, beyond requests, tells tasks apart in cost: equal subjects share aggregators."""
        del pending, group
        return None

    def unconditional(self) -> Policy:
        """Return the policy that judges whether a job could ever be placed: without what only delays jobs."""
        return self

    def shortfall_cost(self, wanted: int, available: Integers, subject: Hashable) -> Integers:
        """Return the cost of choosing a node for a task whose ``wanted`` devices must be lent to it.

        ``available`` counts the fitting devices of each node itself.
        """
        del wanted, subject
        return np.zeros(len(available), np.int64)

    def sites(self, cluster: Cluster) -> Integers:
        """Return, shape (M,), what tells nodes apart in the cost of remote devices: equal clients share arcs."""
        return cluster.rack

    @abc.abstractmethod
    def node_cost(
        self,
        cluster: Cluster,
        nodes: Integers,
        free: Integers,
        demand: tuple[int, ...],
        spare: Integers,
        subject: Hashable,
    ) -> Integers:
        """Return the cost of one more task of ``demand`` (thousandths of processors, bytes, ...) on each of ``nodes``.

        ``nodes`` are N rows, ``free`` is int64 of shape (N, R), with the columns
        of :attr:`~farbus.scheduler.phases.cluster.Cluster.free`, of which
        :data:`~farbus.scheduler.phases.cluster.PACKED` are those to pack by;
        ``spare`` counts free devices that the task does not use.
        """

    def devices_cost(
        self, cluster: Cluster, nodes: Integers, free: Integers, demand: tuple[int, ...], devices: Integers, taken: int
    ) -> Integers:
        """Return what a task costs beyond :meth:`node_cost` by what it leaves of the devices of each of ``nodes``.

        ``nodes``, ``free`` and ``demand`` are those of :meth:`node_cost`;
        ``devices`` counts all that are free there, of which the task uses
        ``taken``: none where it needs none or others lend them.
        """
        del cluster, free, demand, devices, taken
        return np.zeros(len(nodes), np.int64)

    @abc.abstractmethod
    def near_cost(self, wanted: int, available: Integers, subject: Hashable) -> Integers:
        """Return the cost of ``wanted`` devices of the task's own node, for nodes of which ``available`` fit."""

    @abc.abstractmethod
    def far_cost(
        self,
        cluster: Cluster,
        lenders: Integers,
        wanted: int,
        available: Integers,
        site: Integers | int,
        subject: Hashable,
    ) -> Integers:
        """Return the cost of ``wanted`` devices lent by each of the nodes ``lenders`` (rows) to a client at ``site``.

        ``available`` counts the fitting free devices of each lender; it and
        the answer are as long as ``lenders``, and so is ``site`` where lenders are asked about for several.
        """

    def move_cost(self, wanted: int, moved: Integers, attach_s: Floats, subject: Hashable) -> Integers:
        """Return the cost of serving a task that wants ``wanted`` devices by moving ``moved`` of them to its node.

        ``attach_s`` is what moving one takes there, in seconds; ``moved``, it
        and the answer have one entry for each way.  A fabric moves one device
        after the other (KubeComp, V-B: the time grows with their number alone).
        """
        del wanted, subject
        return to_cost(RECOMPOSED + ATTACH_SECOND * moved * attach_s)

    def drives_move_cost(self, drives: int, attach_s: Floats, subject: Hashable) -> Integers:
        """Return by how much ``drives`` that are moved to a task's node are dearer than local ones, which cost nothing.

        ``attach_s`` and the answer have one entry for each way.
        """
        return self.move_cost(drives, np.full(len(attach_s), drives, np.int64), attach_s, subject)

    def donor_cost(self, available: Integers, subject: Hashable) -> Integers:
        """Return the cost of each device that is moved away from a node of which ``available`` are free.

        KubeComp's Algorithm 1: nodes with few free devices give first, as those are fragments soon.
        """
        del subject
        return to_cost(FEWEST_FIRST * available)

    def storage_cost(
        self, cluster: Cluster, targets: Integers, site: int, attach_s: float, subject: Hashable
    ) -> Integers:
        """Return the cost of drives of the nodes ``targets`` (rows) over the network, for a client at ``site``.

        ``attach_s`` is what attaching them takes there, in seconds, and at least what is typical.
        """
        del cluster, site, subject
        return to_cost(np.full(len(targets), NETWORK_STORAGE + ATTACH_SECOND * (attach_s - STORAGE_ATTACH_S)))

    def service_cost(self, cluster: Cluster, sites: ServiceSites, subject: Hashable) -> Integers:
        """Return the cost of one more instance of an in-network service on each device of ``sites``."""
        del cluster, subject
        return to_cost((sites.taken / sites.capacity.clip(min=1)).mean(axis=1))

    def flavour_costs(
        self, estimates: Integers, possible: Flags, in_network: Flags, waited_s: float
    ) -> tuple[Integers, int | None]:
        """Return what it costs to choose each flavour, and to choose none in this round; None for dearer than any.

        ``estimates`` are what each would cost by its cheapest arcs, in
        thousandths, where it is ``possible``; ``in_network`` says which bring tasks with in-network services.
        """
        del possible, in_network, waited_s
        return estimates, None
