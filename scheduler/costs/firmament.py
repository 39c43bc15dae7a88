"""A flow over servers alone, to compare with: what DRMaestro is measured against.

Gog et al., Firmament: fast, centralized cluster scheduling at scale, OSDI
2016, its load-spreading policy: one aggregator for all tasks, and an arc to
each machine that is dearer the more runs there.  DRMaestro's evaluation does
not say which of Firmament's policies it ran.  Departures:

* Firmament counts tasks on a machine; here the cost is the mean share of its
  processors and memory that would be in use, as tasks differ in size.
* Firmament places one more task per machine and solve; here capacities and
  the decoding of flows are those of all policies.
* Devices are the node's own, whatever routes a job allows.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from farbus.scheduler.costs.policy import FORBIDDEN, Integers, Policy, to_cost
from farbus.scheduler.phases.cluster import PACKED, Cluster


class FirmamentPolicy(Policy):
    """Spread load over machines; use no remote device."""

    name = "firmament"

    def node_cost(
        self,
        cluster: Cluster,
        nodes: Integers,
        free: Integers,
        demand: tuple[int, ...],
        spare: Integers,
        subject: Hashable,
    ) -> Integers:
        """Return the mean share of the node that would be in use."""
        del spare, subject
        left = (free[:, PACKED] - np.array(demand[PACKED], np.int64)).clip(min=0)
        return to_cost(1 - (left / cluster.capacity[nodes, PACKED].clip(min=1)).mean(axis=1))

    def near_cost(self, wanted: int, available: Integers, subject: Hashable) -> Integers:
        """Return nothing: a machine with room is as good as another."""
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
        """Return that there is no such arc: servers are whole."""
        del cluster, wanted, available, site, subject
        return np.full(len(lenders), FORBIDDEN, np.int64)
