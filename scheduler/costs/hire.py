"""HIRE's cost model: servers and in-network devices in one flow, near each other, services together.

Bloecher, Eugster, Wang, Schmidt: Switches for HIRE: resource scheduling for
data center in-network computing, ASPLOS 2021, appendix A.  Table 4 gives each
kind of arc a vector of costs, flattened to its mean, plus a penalty; table 5
names the terms.  The functions below are the terms one by one;
:class:`HirePolicy` makes arcs of them:

===========  ==============================================================
arc          cost
===========  ==============================================================
G^s -> M^s   mean of avg(d/r), stddev(d/r), loc, 1, prio
G^n -> M^n   mean of avg(d/r), stddev(d/r), loc, new, prio
M^s -> K     mean of avg(u), 1 - stddev(u)
M^n -> K     mean of avg(u), 1 - stddev(u), ToR, active services
F -> G       flavour + pref
F -> P       wait + 3
G -> P       delay + 5
===========  ==============================================================

with d what a task takes, r what is left, u what is in use.  In Farbus an arc
of phase 1 leads through a machine to the sink, so the prices of G -> M and
M -> K are added.  Departures, and why:

* G -> P: waiting is dearer than any chain of arcs here, in strict order of
  rank (docs/scheduling.md), and jobs are whole.  The order that
  :func:`delay` gives to jobs none of whose tasks run is that of the rank: the
  longest wait first.  S -> F, the same for all, changes nothing.
* Jobs are whole, so nothing of a job runs when its tasks are placed, and
  equation 6 would be 1 everywhere.  A job of several tasks is therefore
  *anchored* first, to the smallest part of the topology that has room for it
  (:meth:`HirePolicy.prepare`), and algorithm 1 spreads the gain from there.
  Where a job names one that runs (``beside``), equation 6 and algorithm 1 are as printed.
* loc of a server is that of its place in the topology; how many tasks of the
  group run on the server itself (case c of the paper's) does not count beside it.
* Shortcuts to inner nodes of the topology are left out: an aggregator and
  exact pruning do what they are for.
* The paper prints neither gamma nor xi: :data:`GAMMA`, :data:`DECAY`.
* :func:`tor` is meant to make devices that are far from servers dearer;
  "inversely proportional to the number of hops" would do the opposite.
* :func:`preference` is as in the authors' simulator (github.com/mblo/hire-cluster-simulator,
  ``HireCostModel``), where the print is at odds with itself: it penalises the
  flavours on servers alone, begins at 3, and its ratio is the part of the
  range that has been waited.  As printed it would be the same for all
  flavours, and a flavour with switches, which saves a tenth of the servers at
  most, would hardly ever be the cheapest.
* Waiting, in :func:`preference` and :func:`wait`, begins when a round first
  puts the choice off, not with the submission: here the choice is made anew as
  long as the job waits, be it for servers.
* Devices of servers (GPUs, drives) are not in the paper: the default policy prices them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from farbus.model.decision import Neighbour, PendingJob
from farbus.model.flavour import Standing, standing, undecided
from farbus.model.job import Job, TaskGroup
from farbus.model.node import DIMENSIONS, amounts_of
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.policy import FORBIDDEN, Integers, ServiceSites, to_cost
from farbus.scheduler.phases.cluster import PACKED, Cluster
from farbus.scheduler.phases.topology import Tree, tree_of

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

GAMMA, DECAY = 64, 4
"""Locality gain at a task's own place, and by what it is divided with each hop: nothing is left four hops away."""

LOWER_S, UPPER_S = 0.5, 2.0
"""Section 6.2: the thresholds of the preference penalty."""

WAIT_S = 0.5
"""Section 6.2: the threshold of the price of deciding later."""

SERVER_PENALTY = 3.0
"""The greatest penalty of flavours without in-network services: of the authors' script."""

POSTPONE_PENALTY = 3.0
"""Table 4, F -> P."""

MAX_ANCHORED = 800
"""Jobs that are anchored in a round, those submitted first: section 6.2 has as many groups in the network."""

MAX_PRIORITY = 1_000
"""Priorities run from minus to plus this."""

PLANE, NETWORK = "plane", "network"
"""A node with this label and value is a switch: HIRE's shadow network, on which no task without a service runs."""


def utilisation(taken: Floats, left: Floats) -> tuple[Floats, Floats]:
    """Return avg(d/r) and stddev(d/r) of table 4, of what is taken (N, R) and left (N, R); 0/0 is 0, and 1 is most."""
    ratio = np.minimum(np.divide(taken, left, out=(taken > 0).astype(np.float64), where=left > 0), 1.0)
    return ratio.mean(axis=1), ratio.std(axis=1)


def sink(used: Floats, *others: Floats) -> Floats:
    """Return M -> K of table 4: the mean of avg(u), 1 - stddev(u) and ``others``, of shares in use (N, R)."""
    terms = [used.mean(axis=1), 1 - used.std(axis=1), *others]
    mean: Floats = np.mean(terms, axis=0)
    return mean


def tor(hops: Integers, most: int) -> Floats:
    """Return the cost of devices whose closest server is so many hops away, as a part of the most there are."""
    return hops / max(most, 1)


def active_services(active: Integers, most: Integers) -> Floats:
    """Return how many services run on a device, as a part of those that could."""
    return np.minimum(active / np.maximum(most, 1), 1.0)


def new_service(runs: Flags, active: Integers, most: Integers) -> Floats:
    """Return 0 where the service runs already, else 1/(delta + 1), delta being :func:`active_services`."""
    return np.where(runs, 0.0, 1 / (active_services(active, most) + 1))


def priority(value: int) -> float:
    """Return 0 for the highest priority, 1 for the lowest."""
    return (MAX_PRIORITY - min(max(value, -MAX_PRIORITY), MAX_PRIORITY)) / (2 * MAX_PRIORITY)


def preference(waited_s: float, *, lower_s: float = LOWER_S, upper_s: float = UPPER_S) -> float:
    """Return the penalty of a flavour on servers alone: 3 before the range, 0 after it, 3 tanh(3 - 3 ratio) within."""
    ratio = (min(max(waited_s, lower_s), upper_s) - lower_s) / (upper_s - lower_s)
    return SERVER_PENALTY if ratio <= 0 else -SERVER_PENALTY * math.tanh(3 * ratio - 3)


def wait(waited_s: float, *, threshold_s: float = WAIT_S) -> float:
    """Return the cost of deciding later: from 0 to 1 at the threshold, by half a cosine."""
    if waited_s >= threshold_s:
        return 1.0
    return 0.5 * math.cos((waited_s / threshold_s - 1) * math.pi) + 0.5


def delay(waited_s: float, longest_s: float, placed: int, tasks: int) -> float:
    """Return the cost of leaving a group waiting, with ``placed`` of its ``tasks`` running: G -> P before its penalty.

    From 0 to 1: w exp(placed/tasks) / (max w e).
    """
    return waited_s * math.exp(placed / tasks) / (longest_s * math.e) if longest_s > 0 else 0.0


def flavour(estimates: Integers) -> Floats:
    """Return what each flavour is estimated to cost, as a part of the dearest."""
    return estimates / max(int(estimates.max(initial=0)), 1)


def locality(tree: Tree, absence: Floats, tasks: int, gain: Integers, in_network: int) -> Floats:
    """Return loc at each place: the mean of equation 6 and of the gain of algorithm 1, by the tasks behind either.

    The gain is made a cost by its greatest value.  Where nothing runs it is 1 everywhere.
    """
    if tasks + in_network == 0:
        return np.ones(len(tree.paths))
    far = 1 - gain / max(int(gain.max(initial=0)), 1)
    mean: Floats = (tasks * absence + in_network * far) / (tasks + in_network)
    return mean


class Subject(msgspec.Struct, frozen=True):
    """What tells tasks apart in cost: where their like is, their priority, and whether they are for switches."""

    near: str
    neighbours: tuple[Neighbour, ...]
    priority: int
    service: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HirePolicy(DefaultPolicy):
    """Table 4, with the parameters of section 6.2."""

    name: str = "hire"
    lower_s: float = LOWER_S
    upper_s: float = UPPER_S
    threshold_s: float = WAIT_S

    def prepare(self, cluster: Cluster, pending: Sequence[PendingJob]) -> Sequence[PendingJob]:
        """Anchor each job of several tasks to the smallest part of the topology that has room for it.

        Of parts of one level the one that would be left with least processors
        free is taken; what earlier jobs will need there is counted as gone.
        """
        tree = tree_of(cluster.racks)
        if len(tree.paths) == 1:
            return pending
        server = ~_is_network(cluster)
        room = tree.totals(tree.places(cluster.rack), cluster.free * server[:, None])
        order = sorted(range(len(pending)), key=lambda row: (pending[row].job.submitted_at, pending[row].job.id))
        anchored = list(pending)
        for row in order[:MAX_ANCHORED]:
            entry = pending[row]
            demand, tasks = _demand(entry.job)
            if tasks < 2 or entry.job.beside:
                continue
            fits = np.flatnonzero((room >= demand).all(axis=1))
            if not len(fits):
                continue
            place = int(fits[np.lexsort((fits, room[fits, 0], -tree.depth[fits]))[0]])
            anchored[row] = replace(entry, near=tree.paths[place])
            while place >= 0:
                room[place] -= demand
                place = int(tree.parent[place])
        return anchored

    def subject(self, pending: PendingJob, group: TaskGroup) -> Hashable:
        """Return what the costs of a group's tasks depend on beside their requests."""
        return Subject(pending.near, pending.neighbours, pending.job.priority, group.service is not None)

    def node_cost(
        self,
        cluster: Cluster,
        nodes: Integers,
        free: Integers,
        demand: tuple[int, ...],
        spare: Integers,
        subject: Hashable,
    ) -> Integers:
        """Return G^s -> M^s and M^s -> K of table 4; of a task with a service, the part of loc in G^n -> M^n."""
        del spare
        what = _subject(subject)
        near = self._locality(cluster, what)[nodes]
        if what.service:
            return to_cost(near / 5)
        left, capacity = free[:, PACKED], cluster.capacity[nodes, PACKED]
        taken = np.broadcast_to(np.array(demand[PACKED], np.float64), left.shape)
        mean, spread = utilisation(taken, left.astype(np.float64))
        used = 1 - left / capacity.clip(min=1)
        used[capacity == 0] = 0
        cost = (mean + spread + near + 1 + priority(what.priority)) / 5 + sink(used)
        return np.where(_is_network(cluster)[nodes], FORBIDDEN, to_cost(cost))

    def service_cost(self, cluster: Cluster, sites: ServiceSites, subject: Hashable) -> Integers:
        """Return G^n -> M^n of table 4 without the part of loc, and M^n -> K."""
        what = _subject(subject)
        mean, spread = utilisation(sites.taken.astype(np.float64), sites.room.astype(np.float64))
        new = new_service(sites.runs, sites.active, sites.most)
        used = 1 - sites.room / sites.capacity.clip(min=1)
        used[sites.capacity == 0] = 0
        hops = _hops(cluster)
        onward = sink(used, tor(hops[sites.nodes], int(hops.max(initial=0))), active_services(sites.active, sites.most))
        return to_cost((mean + spread + new + priority(what.priority)) / 5 + onward)

    def flavour_costs(
        self, estimates: Integers, possible: Flags, in_network: Flags, waited_s: float
    ) -> tuple[Integers, int | None]:
        """Return F -> G for each flavour, and F -> P, of table 4; who has nothing to hope for waits for nothing."""
        share = flavour(np.where(possible, estimates, 0))
        if not in_network.any():
            return to_cost(share), None
        penalty = preference(waited_s, lower_s=self.lower_s, upper_s=self.upper_s)
        later = POSTPONE_PENALTY + wait(waited_s, threshold_s=self.threshold_s)
        return to_cost(share + np.where(in_network, 0.0, penalty)), int(to_cost(np.array([later]))[0])

    def _locality(self, cluster: Cluster, what: Subject) -> Floats:
        """Return loc for each node."""
        memo = ("hire locality", what.near, what.neighbours)
        found = cluster.round_memo.get(memo)
        if found is not None:
            return found
        tree = tree_of(cluster.racks)
        places = tree.places(cluster.rack)
        server = ~_is_network(cluster)
        running = np.zeros(cluster.size, np.int64)
        starts: list[int] = []
        for each in what.neighbours:
            row = cluster.index.get(each.node, -1)
            if row >= 0:
                running[row] += each.tasks - each.in_network
                starts += [int(places[row])] * each.in_network
        if what.near:
            starts.append(tree.index.get(what.near, 0))
        tasks = int(running.sum())
        absence = tree.absence(places[server], running[server], tasks)
        gain = tree.gain(starts, GAMMA, DECAY)
        found = cluster.round_memo[memo] = locality(tree, absence, tasks, gain, len(starts))[places]
        return found


def _subject(subject: Hashable) -> Subject:
    assert isinstance(subject, Subject)
    return subject


def _demand(job: Job) -> tuple[Integers, int]:
    """Return what the groups take that are in every flavour, and how many tasks they have; all where there is none."""
    start = undecided(job.vectors)
    groups = [group for group in job.groups if standing(group.flavour, start) is Standing.DECIDED] or list(job.groups)
    total = np.zeros(len(DIMENSIONS), np.int64)
    for group in groups:
        if group.service is None:
            total += np.array(amounts_of(group.requests), np.int64) * group.count
    return total, sum(group.count for group in job.groups)


def _is_network(cluster: Cluster) -> Flags:
    """Return which nodes are switches."""
    memo = "hire network"
    found = cluster.memo.get(memo)
    if found is None:
        found = cluster.memo[memo] = np.array([labels.get(PLANE) == NETWORK for labels in cluster.labels], bool)
    return found


def _hops(cluster: Cluster) -> Integers:
    """Return how many hops below each node's place in the topology the closest server is, one for the link to it."""
    memo = "hire hops"
    found = cluster.memo.get(memo)
    if found is None:
        tree = tree_of(cluster.racks)
        places = tree.places(cluster.rack)
        far = int(tree.depth.max(initial=0)) + 2
        hops = np.full(len(tree.paths), far, np.int64)
        hops[places[~_is_network(cluster)]] = 1
        for place in range(len(tree.paths) - 1, 0, -1):
            parent = tree.parent[place]
            hops[parent] = min(hops[parent], hops[place] + 1)
        found = cluster.memo[memo] = hops[places]
    return found
