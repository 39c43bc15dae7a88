"""Recomposition: devices of fabric pools that one filter accepts, and what it costs to move them to a node.

A bundle that is recomposed uses what its node has free, where the job allows
local devices, and has the rest moved from one pool: a *shortfall* of one
device up to the whole bundle.  Of a pool, those devices go first whose
donors the policy finds cheapest (KubeComp, Algorithm 1: the node with the
fewest free devices), those that no node has before all others.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from farbus.model.job import Miss
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.phases.base import NO_ARC, Flags
from farbus.scheduler.phases.cluster import NEVER, Cluster
from farbus.scheduler.phases.misses import DeviceNeed
from farbus.scheduler.phases.tables import Integers


class Movable:
    """Free devices of pools: by pool, ``free`` and ``total`` of shape (P,), and by pair of node and pool.

    ``own`` counts those that the node of a pair has itself, shape (E,): nobody has them moved to where they are.
    ``held``, which others keep up to date, counts what each node has free, of a pool or not.
    """

    def __init__(self, cluster: Cluster, accepted: Flags, free: Flags, held: Integers) -> None:
        self.cluster = cluster
        self._held = held
        fabric = cluster.fabric
        self._accepted = accepted & (fabric.device_pool >= 0)
        self.total = self._count(fabric.device_pool, self._accepted, len(fabric.names))
        self.own_total = self._count(fabric.device_pair, self._accepted, len(fabric.node))
        self.free = self._count(fabric.device_pool, self._accepted & free, len(fabric.names))
        self.own = self._count(fabric.device_pair, self._accepted & free, len(fabric.node))

    @staticmethod
    def _count(number: Integers, counted: Flags, size: int) -> Integers:
        return np.bincount(number[counted & (number >= 0)], minlength=size).astype(np.int64)

    def change(self, rows: Integers, by: int) -> None:
        """Count devices ``rows`` as free (1) or no longer (-1)."""
        fabric = self.cluster.fabric
        rows = rows[self._accepted[rows]]
        np.add.at(self.free, fabric.device_pool[rows], by)
        paired = fabric.device_pair[rows]
        np.add.at(self.own, paired[paired >= 0], by)

    def donors(self, pool: int, site: int, free: Flags, policy: Policy, subject: Hashable) -> tuple[Integers, Integers]:
        """Return the devices that can be moved out of ``pool`` to ``site``, in the order in which to take them.

        The second answer is what each adds to the cost.
        """
        cluster = self.cluster
        rows = np.flatnonzero(self._accepted & free & (cluster.fabric.device_pool == pool))
        rows = rows[cluster.device_node[rows] != site]
        return self._in_order(rows, policy, subject)

    def _in_order(self, rows: Integers, policy: Policy, subject: Hashable) -> tuple[Integers, Integers]:
        node = self.cluster.device_node[rows]
        # What no node has is nobody's remainder.
        cost = policy.donor_cost(np.where(self.cluster.fabric.is_pool[node], 0, self._held[node]), subject)
        order = np.lexsort((rows, node, cost))
        return rows[order], cost[order]

    def donations(self, free: Flags, policy: Policy, subject: Hashable) -> tuple[Integers, Integers]:
        """Return what taking the n first devices of each pool adds to the cost: pool p's from the n-th row of its own.

        The first answer says where the rows of each pool begin.  Node's own
        devices are among them, so this is a lower bound of what it pays.
        """
        pool_of = self.cluster.fabric.device_pool
        rows, cost = self._in_order(np.flatnonzero(self._accepted & free), policy, subject)
        order = np.argsort(pool_of[rows], kind="stable")
        sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(cost[order])))
        start = np.searchsorted(pool_of[rows][order], np.arange(len(self.free)))
        return start.astype(np.int64), sums


class MovingOutlook:
    """Which nodes could have a bundle of ``count`` recomposed, and the least that costs; for what is free now."""

    def __init__(self, movable: Movable, count: int, *, mixes: bool, policy: Policy, subject: Hashable) -> None:
        self._movable = movable
        self._count = count
        self._mixes = mixes
        self._policy = policy
        self._subject = subject
        self._moment = NEVER
        size = movable.cluster.size
        self._can = np.zeros(size, bool)
        self._cost = np.full(size, NO_ARC, np.int64)
        self.floor = NO_ARC
        """No bundle that is recomposed costs less."""

    def write(self, moment: int, held: Integers, free: Flags) -> None:
        """Bring it up to date with what is free: ``held`` devices on each node, ``free`` ones of all."""
        if moment == self._moment:
            return
        self._moment = moment
        movable, count = self._movable, self._count
        fabric = movable.cluster.fabric
        at_hand = held[fabric.node] % count if self._mixes else np.zeros(len(fabric.node), np.int64)
        moved = count - at_hand
        there = movable.free[fabric.pool] - movable.own
        pairs = np.flatnonzero(there >= moved)
        self._can[:] = False
        self._cost[:] = NO_ARC
        self.floor = NO_ARC
        if not len(pairs):
            return
        moved = moved[pairs]
        cost = self._policy.move_cost(count, moved, fabric.attach_s[pairs], self._subject)
        start, sums = movable.donations(free, self._policy, self._subject)
        first = start[fabric.pool[pairs]]
        cost = cost + sums[first + moved] - sums[first]
        self._can[fabric.node[pairs]] = True
        np.minimum.at(self._cost, fabric.node[pairs], cost)
        self.floor = int(cost.min())

    def far(self, nodes: Integers) -> tuple[Flags, Integers]:
        """Say which of ``nodes`` could be served, and at which cost; it is ``NO_ARC`` for the others."""
        return self._can[nodes], self._cost[nodes]


def moving_miss(
    cluster: Cluster, need: DeviceNeed, total: Integers, free: Integers, movable: Movable | None
) -> Miss | None:
    """Say why nothing can be moved that would serve ``need``; None if it can.  ``total``, ``free``: on each node."""
    fabric = cluster.fabric
    pairs = np.flatnonzero(fabric.node == need.site if need.site >= 0 else cluster.schedulable[fabric.node])
    if movable is None or not len(pairs):
        where = f"node {cluster.names[need.site]} reaches" if need.site >= 0 else "the nodes reach"
        message = f"{need.noun}s are to be moved by a fabric, but {where} no fabric pool"
        return Miss(phase=need.phase, resource="fabric pool", message=message, permanent=True)
    for held, there, permanent in (
        (total, movable.total[fabric.pool] - movable.own_total, True),
        (free, movable.free[fabric.pool] - movable.own, False),
    ):
        could_have = there[pairs] + (held[fabric.node[pairs]] if need.local else 0)
        best = int(np.argmax(could_have))
        most, pair = int(could_have[best]), int(pairs[best])
        now = "" if permanent else " now"
        if most < need.count:
            message = (
                f"{need.count} {need.noun}{'s' if need.count != 1 else ''} on one node wanted; {most} is what "
                f"{cluster.names[fabric.node[pair]]} could have{now}, moved from pool {fabric.names[fabric.pool[pair]]}"
            )
            return Miss(
                phase=need.phase,
                resource=need.noun.lower(),
                message=message,
                short_by=need.count - most,
                permanent=permanent,
            )
        whole = int(held.sum())
        if whole < need.count * need.tasks:
            message = f"{need.count * need.tasks} {need.noun}s wanted; the cluster has {whole}{now}"
            return Miss(
                phase=need.phase,
                resource=need.noun.lower(),
                message=message,
                short_by=need.count * need.tasks - whole,
                permanent=permanent,
            )
    return None
