"""Devices that one filter accepts, counted by node; what is asked of them, and what nodes could lend of them."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec
import numpy as np

from farbus.model.device import Route
from farbus.scheduler.phases.base import FAR, Flags, Offer
from farbus.scheduler.phases.cluster import NEVER, Cluster
from farbus.scheduler.phases.moving import Movable
from farbus.scheduler.phases.tables import Integers


class DeviceRequest(msgspec.Struct, frozen=True):
    """What one task wants: ``count`` devices for which ``filter`` holds, by one of ``routes``."""

    count: int
    filter: Hashable
    routes: frozenset[Route]


class DeviceKey(msgspec.Struct, frozen=True):
    """What tells groups apart at the desk."""

    request: DeviceRequest
    subject: Hashable


ANY_SITE = -1
"""The site of a bundle that is the same wherever its task runs."""


class Bundle(msgspec.Struct, frozen=True):
    """What one unit of flow is: ``size`` devices.

    One that may be recomposed takes what is at hand at its ``site`` and has
    the rest moved there: it is another at each site.
    """

    key: DeviceKey
    size: int
    site: int = ANY_SITE


class Stock:
    """Devices that one filter accepts: which, how many of them each node has, and how many are free there.

    ``nodes`` are the rows of the nodes that have any, ``row`` the place of each node among them; ``most`` is how
    many one node has.  ``movable`` counts those that fabric pools can move; it is None where there is no pool.
    """

    def __init__(self, cluster: Cluster, accepted: Flags, free: Flags) -> None:
        self.accepted = accepted
        self.total = np.bincount(cluster.device_node[accepted], minlength=cluster.size).astype(np.int64)
        self.free = np.bincount(cluster.device_node[accepted & free], minlength=cluster.size).astype(np.int64)
        self.nodes = np.flatnonzero(self.total)
        self.row = np.full(cluster.size, -1, np.int64)
        self.row[self.nodes] = np.arange(len(self.nodes))
        self.most = int(self.total[~cluster.fabric.is_pool].max(initial=0))
        self.movable = Movable(cluster, accepted, free, self.free) if cluster.fabric.names else None

    def change(self, rows: Integers, nodes: Integers, by: int) -> None:
        """Count devices ``rows`` of ``nodes`` as free (1) or no longer (-1)."""
        np.add.at(self.free, nodes[self.accepted[rows]], by)
        if self.movable is not None:
            self.movable.change(rows, by)


class Lenders:
    """What the nodes of a zone can lend to clients of one site: bundles, and the cost of one, as of ``moment``."""

    def __init__(self, stock: Stock) -> None:
        self.moment = NEVER
        self.offer = Offer(FAR, stock.nodes)
