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
        self._marked = NEVER
        self.near = np.zeros(size, np.int64)
        self.near_cost = np.zeros(size, np.int64)
        self.bundles = np.zeros(size, np.int64)
        self._desk = desk
        self._key = key
        request = key.request
        self.spans = desk.spans(request)
        self.size = request.count
        # What a task is lent at once, and how often.
        self._bundle = Bundle(key, 1 if self.spans else request.count)
        self._times = request.count if self.spans else 1
        self._moving = desk.moving(key)

    def write(self, rows: Integers) -> None:
        """Bring nodes ``rows`` up to date, and what is known of the whole cluster."""
        desk, request = self._desk, self._key.request
        stock = desk.stock(request.filter)
        free = stock.free[rows]
        self.bundles[rows] = free // request.count
        cost = desk.policy.near_cost(request.count, free, self._key.subject)
        self.near_cost[rows] = cost
        if Route.LOCAL in request.routes and not self.spans:
            near = np.minimum(free, desk.spare(rows)).clip(min=0) // request.count
            self.near[rows] = np.where((cost == FORBIDDEN) | desk.cluster.fabric.is_pool[rows], 0, near)
        if self._marked == desk.marks.now:
            return
        self._marked = desk.marks.now
        self.total = int(stock.free.sum()) // request.count if self.spans else int(self.bundles.sum())
        lent = [] if Route.REMOTE not in request.routes else [desk.lenders(self._bundle, *area) for area in desk.areas]
        least = [int(offer.cost.min(initial=NO_ARC)) for offer in lent]
        self.floor = min(NO_ARC, min(least, default=NO_ARC) * self._times)
        self._least = np.array([*least, NO_ARC], np.int64)
        self._lent = [int(offer.capacity.sum()) for offer in lent]
        self._offers = lent
        if self._moving is not None:
            desk.write_moving(self._moving, request.filter)
            self.floor = min(self.floor, self._moving.floor)
            self.total = int(stock.free.sum()) // request.count

    def far(self, nodes: Integers) -> tuple[Flags, Integers]:
        """Say which nodes others of the zone can lend to, or a fabric move devices to, and the least that costs."""
        desk, request = self._desk, self._key.request
        far = np.zeros(len(nodes), bool)
        if not self._offers and self._moving is None:
            return far, np.zeros(len(nodes), np.int64)
        stock = desk.stock(request.filter)
        area = desk.area_of[nodes]
        for number, (offer, lent) in enumerate(zip(self._offers, self._lent, strict=True)):
            if not lent:
                continue
            # Nobody lends to itself: what counts for a client is what the others have.
            clients = np.flatnonzero(area == number)
            row = stock.row[nodes[clients]]
            own = np.where(row >= 0, offer.capacity[row], 0)
            far[clients] = lent - own >= self._times
        cost = np.where(far, self._least[np.where(far, area, -1)] * self._times, 0)
        if self._moving is not None:
            moved, moving_cost = self._moving.far(nodes)
            cost = np.where(moved & (~far | (moving_cost < cost)), moving_cost, cost)
            far |= moved
        return far, cost + desk.policy.shortfall_cost(request.count, stock.free[nodes], self._key.subject)
