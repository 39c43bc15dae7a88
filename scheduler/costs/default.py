"""The default policy: pack, keep devices for those who need them, prefer what is local."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from farbus.model.node import DIMENSIONS
from farbus.scheduler.costs.policy import Integers, Policy, to_cost
from farbus.scheduler.phases.cluster import PACKED, Cluster

PACKING = 1.0
"""Cost of a node that would stay all but empty; a node that the task fills exactly costs nothing."""

SPARE_DEVICES = 0.5
"""Cost of putting a task that needs no device beside free ones, which would be stranded without processors."""

FRAGMENT = 0.3
"""Greatest cost of breaking into a large set of free devices: KubeComp's best fit, turned from a score to a cost."""

REMOTE = 2.0
"""Cost of a remote device: more than packing, stranding and fragmenting together, so that local wins where it can."""

OTHER_RACK = 0.2
"""Cost of a device in another rack."""

_PACKING_DIMENSIONS = sum(dimension.packs for dimension in DIMENSIONS)
_EVEN = np.full(_PACKING_DIMENSIONS, 1 / _PACKING_DIMENSIONS)
"""Weights of a mean: over rows as short as these a product takes half the time that a sum does."""


class DefaultPolicy(Policy):
    """Best fit for processor and memory, local before remote devices, small remainders before large sets."""

    name = "default"

    def node_cost(
        self,
        cluster: Cluster,
        nodes: Integers,
        free: Integers,
        demand: tuple[int, ...],
        spare: Integers,
        subject: Hashable,
    ) -> Integers:
        """Return the mean share of processors and memory that stays free, with a charge for stranding devices."""
        del subject
        left = np.maximum(free[:, PACKED] - np.array(demand[PACKED], np.int64), 0)
        share = left / np.maximum(cluster.capacity[nodes][:, PACKED], 1)
        return to_cost(PACKING * (share @ _EVEN) + SPARE_DEVICES * (spare > 0))

    def near_cost(self, wanted: int, available: Integers, subject: Hashable) -> Integers:
        """Return KubeComp's best fit (eq. 1): nothing for a set that is used up, more the more is left over."""
        del subject
        return to_cost(FRAGMENT * _left_over(wanted, available))

    def far_cost(
        self,
        cluster: Cluster,
        lenders: Integers,
        wanted: int,
        available: Integers,
        site: Integers | int,
        subject: Hashable,
    ) -> Integers:
        """Return the remote charge, best fit among the lenders, and a little for another rack."""
        del subject
        away = cluster.rack[lenders] != site
        return to_cost(REMOTE + FRAGMENT * _left_over(wanted, available) + OTHER_RACK * away)


def _left_over(wanted: int, available: Integers) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return 1.0 - wanted / np.maximum(available, max(wanted, 1))
