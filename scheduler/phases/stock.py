"""Devices that one filter accepts, counted by node; what is asked of them, and what nodes could lend of them."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec
import numpy as np

from farbus.model.device import Route
from farbus.scheduler.phases.base import FAR, NO_ARC, Flags, Offer
from farbus.scheduler.phases.cluster import NEVER, Cluster
from farbus.scheduler.phases.moving import Movable
from farbus.scheduler.phases.tables import Integers


class DeviceRequest(msgspec.Struct, frozen=True):
    """What one task wants: ``count`` devices for which ``filter`` holds, by one of ``routes``.

    Each that is remote takes ``network_mbit_s`` of the links of both nodes.
    Whether they may be of several nodes at once, where no node has so many, ``may_span`` says.
    """

    count: int
    filter: Hashable
    routes: frozenset[Route]
    network_mbit_s: int = 0
    may_span: bool = True


class DeviceKey(msgspec.Struct, frozen=True):
    """What tells groups apart at the desk."""

    request: DeviceRequest
    subject: Hashable


ANY_SITE = -1
"""The site of a bundle that is the same wherever its task runs."""


class Bundle(msgspec.Struct, frozen=True):
    """What one unit of flow is: ``size`` devices.

    One that may be recomposed takes what is at hand at its ``site`` and has
    the rest moved there: it is another at each site.  One that is ``lone`` is
    lent nothing: its node's network has no room for that.
    """

    key: DeviceKey
    size: int
    site: int = ANY_SITE
    lone: bool = False

    @property
    def network(self) -> int:
        """Mbit/s that it takes of the links of both nodes when it is lent."""
        return self.size * self.key.request.network_mbit_s


class Stock:
    """Devices that one filter accepts: which, how many of them each node has, and how many are free there.

    ``free_total`` is the sum of these.  ``nodes`` are the rows of the nodes that have any, ``row`` the place of each
    node among them; ``most`` is how many one node has.  ``movable`` counts those that fabric pools can move; it is
    None where there is no pool.
    """

    def __init__(self, cluster: Cluster, accepted: Flags, free: Flags) -> None:
        self.accepted = accepted
        self.total = np.bincount(cluster.device_node[accepted], minlength=cluster.size).astype(np.int64)
        self.free = np.bincount(cluster.device_node[accepted & free], minlength=cluster.size).astype(np.int64)
        self.free_total = int(self.free.sum())
        self.nodes = np.flatnonzero(self.total)
        self.row = np.full(cluster.size, -1, np.int64)
        self.row[self.nodes] = np.arange(len(self.nodes))
        self.most = int(self.total[~cluster.fabric.is_pool].max(initial=0))
        self.movable = Movable(cluster, accepted, free, self.free) if cluster.fabric.names else None

    def change(self, rows: Integers, nodes: Integers, by: int) -> None:
        """Count devices ``rows`` of ``nodes`` as free (1) or no longer (-1)."""
        mine = nodes[self.accepted[rows]]
        np.add.at(self.free, mine, by)
        self.free_total += by * len(mine)
        if self.movable is not None:
            self.movable.change(rows, by)


class Lenders:
    """What nodes can lend to clients of each of A areas: bundles, and the cost of one, as of ``moment``.

    An area is a zone and the site of its clients.  ``capacity`` and ``cost`` have shape (A, N), N as long as the
    stock's nodes, and ``offers`` shows each area its own row; ``least`` is the least cost, ``lent`` the sum of
    bundles of each area.
    """

    def __init__(self, stock: Stock, areas: int) -> None:
        self.moment = NEVER
        self.linked = NEVER
        """The moment of the nodes' network that this is of, where that matters."""
        self.offers = [Offer(FAR, stock.nodes) for _ in range(areas)]
        self.capacity = np.zeros((areas, len(stock.nodes)), np.int64)
        self.cost = np.full((areas, len(stock.nodes)), NO_ARC, np.int64)
        for offer, capacity, cost in zip(self.offers, self.capacity, self.cost, strict=True):
            offer.capacity, offer.cost, offer.least = capacity, cost, None

    def sum_up(self) -> None:
        """Look at what each area has in all."""
        self.least = self.cost.min(axis=1, initial=NO_ARC)
        self.lent = self.capacity.sum(axis=1)
