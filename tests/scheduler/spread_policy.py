"""A policy that spreads tasks over nodes, as docs/scheduling.md shows it."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.policy import Integers, to_cost
from farbus.scheduler.phases.cluster import PACKED, Cluster


class SpreadPolicy(DefaultPolicy):
    """The node that stays the emptiest first; devices as by default."""

    name = "spread"

    def node_cost(
        self,
        cluster: Cluster,
        nodes: Integers,
        free: Integers,
        demand: tuple[int, ...],
        spare: Integers,
        subject: Hashable,
    ) -> Integers:
        """Return the larger of the shares of processors and memory that are in use with the task, from 0 to 1."""
        left = np.maximum(free[:, PACKED] - np.array(demand[PACKED], np.int64), 0)
        return to_cost(1.0 - (left / np.maximum(cluster.capacity[nodes, PACKED], 1)).min(axis=1))
