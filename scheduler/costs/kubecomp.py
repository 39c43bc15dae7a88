"""KubeComp's choice of nodes and donors.

Ting et al., KubeComp: a resource-centric composable container orchestrator for
GPU pooling (its Kubernetes scheduler and Reconfig-Mgr, sections IV and V).
Equation 1 scores a node for a pod that wants devices: best fit where the node
has enough, least demand where devices must come from elsewhere.  Algorithm 1
takes devices first from the nodes with the fewest free ones.  With several
pools a node is left out when its pool has too few free devices (V-C).

:func:`choose_node` and :func:`choose_donors` are the paper's own procedure, one
pod after the other: what the experiment runs.  :class:`KubeCompPolicy` turns
the same terms into costs for a round.  Its departures:

* A round places many jobs at once, so a score becomes a cost: best fit is
  1 - req/avail, least demand one for each device that the node lacks.
* The paper breaks no ties.  Here the packing of processors does, scaled down,
  then the order of names.
* The time that moving takes does not occur in the paper's scores: it only
  argues that fewer devices take less (table III).  The phases price what was
  measured, as any policy's :meth:`~farbus.scheduler.costs.policy.Policy.move_cost`.
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


def donor_scores(nodes: Integers) -> Integers:
    """Return Algorithm 1: for each free device, given its node, minus the number of free devices there."""
    _, row, count = np.unique(nodes, return_inverse=True, return_counts=True)
    scores: Integers = -count[row.reshape(-1)].astype(np.int64)
    return scores


def choose_node(
    wanted: int,
    available: Integers,
    eligible: npt.NDArray[np.bool_],
    pools: Integers,
    *,
    best_fit: bool = True,
    least_demand: bool = True,
    order: Integers | None = None,
) -> int:
    """Return the node for a pod of ``wanted`` devices, -1 for none: sections IV-C, V-A and V-C.

    ``available`` counts the free devices of each node, ``eligible`` says where
    processors and memory suffice, ``pools`` which pool each node is at.  Without
    ``best_fit`` or ``least_demand`` that half of equation 1 is 0, as of a
    scheduler that does not know it.  Of equal scores the least in ``order`` is
    taken, by number without it: the paper breaks no ties.
    """
    free = np.bincount(pools, weights=available, minlength=int(pools.max(initial=0)) + 1)
    possible = np.flatnonzero(eligible & (free[pools] >= wanted))
    if not len(possible):
        return -1
    enough = available >= wanted
    points = score(wanted, available)
    points = np.where(enough, points if best_fit else 0.0, points if least_demand else 0.0)
    ties = np.arange(len(available)) if order is None else order
    return int(possible[np.lexsort((ties[possible], -points[possible]))[0]])


def choose_donors(
    node: int, wanted: int, available: Integers, pools: Integers, *, fewest_first: bool = True
) -> list[int]:
    """Return the nodes that give one device each to ``node``, in order, until it has ``wanted``.

    The candidates are the free devices of the other nodes at the same pool, by
    :func:`donor_scores`, found once, as the Reconfig-Mgr does; without
    ``fewest_first`` by number.  Raises :class:`ValueError` where they are too few.
    """
    demand = max(0, wanted - int(available[node]))
    others = np.flatnonzero((pools == pools[node]) & (np.arange(len(pools)) != node))
    candidates = np.repeat(others, available[others])
    if demand > len(candidates):
        raise ValueError(f"pool {pools[node]} has {len(candidates)} free devices for {demand}")
    keys = (candidates, -donor_scores(candidates)) if fewest_first else (candidates,)
    chosen: list[int] = candidates[np.lexsort(keys)][:demand].tolist()
    return chosen


class KubeCompPolicy(DefaultPolicy):
    """Best fit, least demand, fewest free devices first."""

    name = "kubecomp"

    def node_cost(
        self,
        cluster: Cluster,
        nodes: Integers,
        free: Integers,
        demand: tuple[int, ...],
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
        self,
        cluster: Cluster,
        lenders: Integers,
        wanted: int,
        available: Integers,
        site: Integers | int,
        subject: Hashable,
    ) -> Integers:
        """Return Algorithm 1 as a cost: the fewer free devices a donor has, the sooner it gives."""
        del cluster, lenders, wanted, site, subject
        return to_cost(ELSEWHERE + FEWEST_FIRST * available)
