"""KubeComp's choice of nodes and donors.

KubeComp: resource-centric composable container orchestration (its Kubernetes
scheduler, section V).  Equation 1 scores a node for a pod that wants devices:
best fit where the node has enough, least demand where devices must come from
elsewhere.  Algorithm 1 takes devices first from the nodes with the fewest free
ones.  KubeComp moves devices over a PCIe fabric; until a phase offers that
route, the same choice decides which node lends them.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.policy import SCALE, Integers, to_cost
from farbus.scheduler.phases.cluster import Cluster

ELSEWHERE = 2.0
"""Cost of taking devices from another node at all: more than the worst best fit with the worst packing."""

FEWEST_FIRST = 0.001
"""Cost per free device of the donor; smaller than anything else, as it only chooses among donors."""

PACKING = 0.1
"""Weight of the default policy's node cost: KubeComp leaves processors and memory to filters."""


def score(wanted: int, available: Integers) -> npt.NDArray[np.float64]:
    """Return eq. 1: percent of the node's devices used where there are enough, else minus the number missing."""
    enough = available >= wanted
    return np.where(enough, 100.0 * wanted / np.maximum(available, 1), available - wanted)


class KubeCompPolicy(DefaultPolicy):
    """Best fit, least demand, fewest free devices first."""

    name = "kubecomp"

    def node_cost(
        self,
        cluster: Cluster,
        nodes: Integers,
        free: Integers,
        demand: tuple[int, int],
        spare: Integers,
        subject: Hashable,
    ) -> Integers:
        """Return the default policy's packing, scaled down to break ties."""
        packing = super().node_cost(cluster, nodes, free, demand, spare, subject)
        return to_cost(PACKING * packing / SCALE)

    def near_cost(self, wanted: int, available: Integers, subject: Hashable) -> Integers:
        """Return best fit as a cost: 1 less the score as a share."""
        del subject
        return to_cost(1 - score(wanted, np.maximum(available, wanted)) / 100)

    def shortfall_cost(self, wanted: int, available: Integers, subject: Hashable) -> Integers:
        """Return least demand as a cost: one for each device that the node itself lacks."""
        del subject
        return to_cost(-score(wanted, np.minimum(available, wanted - 1)))

    def far_cost(
        self, cluster: Cluster, lenders: Integers, wanted: int, available: Integers, site: int, subject: Hashable
    ) -> Integers:
        """Return Algorithm 1 as a cost: the fewer free devices a donor has, the sooner it gives."""
        del cluster, lenders, wanted, site, subject
        return to_cost(ELSEWHERE + FEWEST_FIRST * available)
