"""Devices that one filter accepts, counted by node; what is asked of them, and what nodes could lend of them."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec
import numpy as np

from farbus.model.device import Route
from farbus.scheduler.phases.base import FAR, Flags, Offer
from farbus.scheduler.phases.cluster import NEVER, Cluster


class DeviceRequest(msgspec.Struct, frozen=True):
    """What one task wants: ``count`` devices for which ``filter`` holds, by one of ``routes``."""

    count: int
    filter: Hashable
    routes: frozenset[Route]


class DeviceKey(msgspec.Struct, frozen=True):
    """What tells groups apart at the desk."""

    request: DeviceRequest
    subject: Hashable


class Bundle(msgspec.Struct, frozen=True):
    """What one unit of flow is: ``size`` devices."""

    key: DeviceKey
    size: int


class Stock:
    """Devices that one filter accepts: which, how many of them each node has, and how many are free there.

    ``nodes`` are the rows of the nodes that have any, ``row`` the place of each node among them.
    """

    def __init__(self, cluster: Cluster, accepted: Flags, free: Flags) -> None:
        self.accepted = accepted
        self.total = np.bincount(cluster.device_node[accepted], minlength=cluster.size).astype(np.int64)
        self.free = np.bincount(cluster.device_node[accepted & free], minlength=cluster.size).astype(np.int64)
        self.nodes = np.flatnonzero(self.total)
        self.row = np.full(cluster.size, -1, np.int64)
        self.row[self.nodes] = np.arange(len(self.nodes))
        self.most = int(self.total.max(initial=0))


class Lenders:
    """What the nodes of a zone can lend to clients of one site: bundles, and the cost of one, as of ``moment``."""

    def __init__(self, stock: Stock) -> None:
        self.moment = NEVER
        self.offer = Offer(FAR, stock.nodes)
