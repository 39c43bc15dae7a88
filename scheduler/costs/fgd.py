"""Fragmentation gradient descent: a task goes where it makes the fewest free devices useless for the tasks to come.

Weng et al., Beware of fragmentation: scheduling GPU-sharing workloads with
fragmentation gradient descent, USENIX ATC 2023.  With R_ng what is left of GPU
g of node n, a task m of demand D_m that comes with popularity p_m finds

    F_n(m) = sum over g of R_ng                                 where m can't run on n, or wants no GPU
    F_n(m) = sum over g of R_ng [R_ng < min(D_m GPU, 1)]        elsewhere
    F_n(M) = sum over m of p_m F_n(m)

fragmented there, and a task goes to the node of least F_n-(M) - F_n(M), n-
being the node with the task.  Where it departs:

* Farbus's GPUs are exclusive: each R_ng is 0 or 1, so that the second line is 0, and F_n(m) is the number of
  free GPUs of a node on which m has no room for processors, memory, network or GPUs.
* Costs are not negative: the difference is raised by the GPUs that the task takes, which lies from 0 to the number
  of the node's free ones, and is the same for all nodes.
* The paper takes the target workload M from the past of its cluster; so does the simulator.  Of a scheduler's own
  past what it has been asked for counts, each task once (:class:`History`).
* Constraints on the model of GPUs do not count: a free GPU is one that m could use.
* A round places many tasks at once, and prices those that it adds to a node alike.
* The paper has no remote devices.  Here they are dearer than any fragmentation.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from farbus.model.decision import PendingJob
from farbus.model.job import Requests
from farbus.model.node import DIMENSIONS, amounts_of
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.policy import SCALE, Floats, Integers, to_cost
from farbus.scheduler.phases.cluster import Cluster

MAX_CLASSES = 64
"""Classes of tasks that the workload is made of, the most popular ones: each is looked at for each node."""

PACKING = 0.01
"""Weight of the default policy's node cost, where fragmentation is equal."""

FIRST_LOOK = 16
"""Tasks after which the workload is first taken from what was asked for; then whenever their number has doubled."""

PERIOD = 4_096
"""Most tasks between two such looks."""

MEMORY = 65_536
"""Tasks that are remembered: beyond it old ones count half, so that a new mix of work is learned.  Jobs, too."""

Demand = tuple[int, ...]
"""What one task wants of each dimension of nodes, and GPUs."""


def demand_of(requests: Requests) -> Demand:
    """Return what a task of ``requests`` wants."""
    return (*amounts_of(requests), requests.gpus)


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """M: the demands of K classes of tasks, int64 of shape (K, R + 1), and their popularities, which add up to 1."""

    demands: Integers
    popularity: Floats

    @staticmethod
    def of(tasks: Mapping[Demand, float]) -> Workload:
        """Return the workload in which each demand is as popular as ``tasks`` says, one against the other."""
        most = sorted(tasks.items(), key=lambda item: (-item[1], item[0]))[:MAX_CLASSES]
        counts = np.array([count for _, count in most], np.float64)
        demands = np.array([demand for demand, _ in most], np.int64).reshape(-1, len(DIMENSIONS) + 1)
        return Workload(demands, counts / max(counts.sum(), 1.0))

    def fragments(self, has: Integers) -> Floats:
        """Return F_n(M) in GPUs for nodes that have ``has`` left, shape (N, R + 1): each dimension, and GPUs."""
        useless = np.zeros(len(has))
        # Of most nodes of a busy cluster no GPU is free.
        rows = np.flatnonzero(has[:, -1] > 0)
        left = has[rows]
        fits = np.broadcast_to(self.demands[:, -1] > 0, (len(rows), len(self.demands)))
        for column in np.flatnonzero(self.demands.any(axis=0)).tolist():
            fits = fits & (self.demands[:, column] <= left[:, column, None])
        useless[rows] = left[:, -1] * (self.popularity.sum() - fits @ self.popularity)
        return useless


class History:
    """The workload as it was asked for: the tasks of all jobs that rounds have seen, each job once."""

    def __init__(self) -> None:
        self._tasks: Counter[Demand] = Counter()
        self._jobs: OrderedDict[str, None] = OrderedDict()
        self._total = 0
        self._next_look = FIRST_LOOK
        self.policy: FGDPolicy | None = None
        """The policy with the workload as it was looked at last."""

    def take(self, pending: Sequence[PendingJob]) -> bool:
        """Count the jobs that are new; say whether the workload is to be looked at anew."""
        for entry in pending:
            job = entry.job
            if not job.id or job.id in self._jobs:
                continue
            self._jobs[job.id] = None
            for group in job.groups:
                self._tasks[demand_of(group.requests)] += group.count
                self._total += group.count
        while len(self._jobs) > MEMORY:
            self._jobs.popitem(last=False)
        if self._total < self._next_look:
            return False
        if self._total > MEMORY:
            self._tasks = Counter({demand: count // 2 for demand, count in self._tasks.items() if count > 1})
            self._total = self._tasks.total()
        self._next_look = self._total + min(self._total, PERIOD)
        return True

    def workload(self) -> Workload:
        """Return what has been asked for."""
        return Workload.of(self._tasks)


NOTHING = Workload(np.zeros((0, len(DIMENSIONS) + 1), np.int64), np.zeros(0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FGDPolicy(DefaultPolicy):
    """The least growth of expected fragments; remote devices only where there is no room otherwise.

    ``workload`` is M; without one it is learned from what is asked for.  Until
    something is known all nodes are alike, but for the default policy's packing.
    """

    workload: Workload = NOTHING
    history: History | None = field(default_factory=History)
    name: str = "fgd"
    prices_devices: bool = True

    def seeing(self, pending: Sequence[PendingJob]) -> FGDPolicy:
        """Return this policy with the workload that the jobs so far make."""
        if self.history is None:
            return self
        if self.history.take(pending) or self.history.policy is None:
            self.history.policy = replace(self, workload=self.history.workload())
        return self.history.policy

    def node_cost(
        self,
        cluster: Cluster,
        nodes: Integers,
        free: Integers,
        demand: tuple[int, ...],
        spare: Integers,
        subject: Hashable,
    ) -> Integers:
        """Return a little of the default policy's packing: what a node costs is :meth:`devices_cost`."""
        packing = DefaultPolicy.node_cost(self, cluster, nodes, free, demand, np.zeros_like(spare), subject)
        return to_cost(PACKING * packing / SCALE)

    def devices_cost(
        self, cluster: Cluster, nodes: Integers, free: Integers, demand: tuple[int, ...], devices: Integers, taken: int
    ) -> Integers:
        """Return F_n-(M) - F_n(M) + the GPUs taken, a GPU being 1; what has no room costs anything."""
        del cluster, nodes
        before = np.column_stack((free, devices))
        after = (before - np.array((*demand, taken), np.int64)).clip(min=0)
        growth = self.workload.fragments(after) - self.workload.fragments(before) + taken
        return to_cost(growth.clip(min=0))

    def near_cost(self, wanted: int, available: Integers, subject: Hashable) -> Integers:
        """Return nothing: the node was chosen with its devices in view."""
        del wanted, subject
        return np.zeros(len(available), np.int64)

    def far_cost(
        self,
        cluster: Cluster,
        lenders: Integers,
        wanted: int,
        available: Integers,
        site: Integers | int,
        subject: Hashable,
    ) -> Integers:
        """Return the default policy's cost, dearer by as many GPUs as any node has: no fragmentation is as dear."""
        cost = DefaultPolicy.far_cost(self, cluster, lenders, wanted, available, site, subject)
        return cost + SCALE * _most_devices(cluster)


def _most_devices(cluster: Cluster) -> int:
    found: npt.NDArray[np.int64] | None = cluster.memo.get("most devices")
    if found is None:
        counts = np.diff(cluster.device_start)
        found = cluster.memo["most devices"] = np.array(counts.max(initial=0), np.int64)
    return int(found)
