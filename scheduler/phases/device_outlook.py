"""What phase 1 is told of devices: for which tasks a node's own would do, and where others could lend them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farbus.model.device import Route
from farbus.scheduler.costs.policy import FORBIDDEN
from farbus.scheduler.phases.base import NO_ARC, Flags, Outlook
from farbus.scheduler.phases.cluster import NEVER
from farbus.scheduler.phases.stock import Bundle, DeviceKey
from farbus.scheduler.phases.tables import Integers

if TYPE_CHECKING:
    from farbus.scheduler.phases.device_desk import DeviceDesk


class DeviceOutlook(Outlook):
    """What is kept of one request: how many tasks each node could serve itself, as of ``moment``."""

    def __init__(self, desk: DeviceDesk, key: DeviceKey) -> None:
        size = desk.cluster.size
        self.moment = NEVER
        self._marked: tuple[int, int] = (NEVER, NEVER)
        self.near = np.zeros(size, np.int64)
        self.near_cost = np.zeros(size, np.int64)
        self.bundles = np.zeros(size, np.int64)
        self._bundles = 0
        self._desk = desk
        self._key = key
        request = key.request
        self.spans = desk.spans(request)
        self.size = request.count
        # What a task is lent at once, and how often.
        self._bundle = Bundle(key, 1 if self.spans else request.count)
        self._times = request.count if self.spans else 1
        self._moving = desk.moving(key)
        self.network = desk.outlook_network(key)

    def write(self, rows: Integers) -> None:
        """Bring nodes ``rows`` up to date, and what is known of the whole cluster."""
        desk, request = self._desk, self._key.request
        stock = desk.stock(request.filter)
        free = stock.free[rows]
        bundles = free // request.count
        self._bundles += int((bundles - self.bundles[rows]).sum())
        self.bundles[rows] = bundles
        cost = desk.policy.near_cost(request.count, free, self._key.subject)
        self.near_cost[rows] = cost
        if Route.LOCAL in request.routes and not self.spans:
            near = np.minimum(free, desk.spare(rows)).clip(min=0) // request.count
            self.near[rows] = np.where((cost == FORBIDDEN) | desk.cluster.fabric.is_pool[rows], 0, near)
        moments = desk.moments(self._bundle)
        if self._marked == moments:
            return
        self._marked = moments
        self.total = stock.free_total // request.count if self.spans else self._bundles
        self._lenders = desk.lenders(self._bundle) if Route.REMOTE in request.routes else None
        least = NO_ARC if self._lenders is None else int(self._lenders.least.min(initial=NO_ARC))
        # Some of a bundle from several nodes may be at hand already; never all of it.
        at_hand = self._times - 1 if self.spans and Route.LOCAL in request.routes else 0
        self.floor = min(NO_ARC, least * (self._times - at_hand))
        if self._moving is not None:
            desk.write_moving(self._moving, request.filter)
            self.floor = min(self.floor, self._moving.floor)
            self.total = stock.free_total // request.count

    def far(self, nodes: Integers) -> tuple[Flags, Integers]:
        """Say which nodes others of the zone can lend to, or a fabric move devices to, and the least that costs."""
        desk, request = self._desk, self._key.request
        far = np.zeros(len(nodes), bool)
        cost = np.zeros(len(nodes), np.int64)
        if self._lenders is None and self._moving is None:
            return far, cost
        stock = desk.stock(request.filter)
        if self._lenders is not None and len(self._lenders.least):
            # Nobody lends to itself: what counts for a client is what the others have.
            area, row = desk.area_of[nodes], stock.row[nodes]
            left = self._lenders.lent[area]
            own = np.flatnonzero(row >= 0)
            left[own] -= self._lenders.capacity[area[own], row[own]]
            # Of a bundle from several nodes, the task's own may have a part.
            lent = np.full(len(nodes), self._times)
            if self.spans and Route.LOCAL in request.routes:
                at_hand = np.minimum(stock.free[nodes], desk.spare(nodes)).clip(min=0)
                lent = (lent - at_hand).clip(min=0)
            far = (left >= lent) & (area >= 0)
            if self._bundle.network:
                far &= desk.network.room.network[nodes] >= self._bundle.network * lent
            cost = np.where(far, self._lenders.least[area] * lent, 0)
        if self._moving is not None:
            moved, moving_cost = self._moving.far(nodes)
            cost = np.where(moved & (~far | (moving_cost < cost)), moving_cost, cost)
            far |= moved
        return far, cost + desk.policy.shortfall_cost(request.count, stock.free[nodes], self._key.subject)
