"""What phase 1 is told of storage: for which tasks a node's own drives would do, and where others could serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farbus.model.device import Route
from farbus.scheduler.phases.base import NO_ARC, Flags, Outlook
from farbus.scheduler.phases.cluster import MAX_UNITS, NEVER
from farbus.scheduler.phases.drives import StorageShape
from farbus.scheduler.phases.tables import Integers

if TYPE_CHECKING:
    from farbus.scheduler.phases.storage import StorageDesk


class StorageOutlook(Outlook):
    """For tasks that want all of ``shapes``; as of what was free at the last :meth:`write`.

    Where a task wants several, each is looked at as if it were alone, near
    units are divided among them, and *far* is where any of them is not near.
    """

    def __init__(self, desk: StorageDesk, shapes: tuple[StorageShape, ...]) -> None:
        self._desk = desk
        self._shapes = shapes
        self._moment = NEVER
        size = desk.cluster.size
        self.near = np.zeros(size, np.int64)
        self.near_cost = np.zeros(size, np.int64)
        self._far = np.zeros(size, bool)
        self._far_cost = np.zeros(size, np.int64)

    def write(self) -> None:
        """Bring it up to date."""
        desk = self._desk
        if self._moment == desk.marks.now:
            return
        self._moment = desk.marks.now
        size = desk.cluster.size
        near = np.full(size, MAX_UNITS, np.int64)
        near_cost = np.zeros(size, np.int64)
        far = np.ones(size, bool)
        far_cost = np.zeros(size, np.int64)
        self.total, self.floor = MAX_UNITS, 0
        for shape in self._shapes:
            options = desk.options(shape)
            units, least = np.zeros(size, np.int64), np.full(size, NO_ARC, np.int64)
            units[options.place], least[options.place] = options.units(), options.least()
            own = np.where((Route.LOCAL in shape.routes) & ~desk.cluster.fabric.is_pool, units, 0)
            near = np.minimum(near, own // len(self._shapes))
            near_cost += np.where(own > 0, least, 0)
            elsewhere = self._elsewhere(shape, units, least)
            least = np.where(own > 0, np.minimum(elsewhere, least), elsewhere) if len(self._shapes) > 1 else elsewhere
            far &= least < NO_ARC
            far_cost += np.where(least < NO_ARC, least, 0)
            if Route.RECOMPOSED not in shape.routes or not len(desk.cluster.fabric.node):
                # What is moved together may be apart now.
                self.total = min(self.total, int(units.sum()))
            self.floor += int(elsewhere.min(initial=NO_ARC)) if len(self._shapes) == 1 else 0
        self.near[:], self.near_cost[:] = near, near_cost
        self._far, self._far_cost = far, far_cost
        if not far.any():
            self.floor = NO_ARC

    def _elsewhere(self, shape: StorageShape, units: Integers, least: Integers) -> Integers:
        """Return for each node the least cost of storage from elsewhere; ``NO_ARC`` where there is none."""
        desk = self._desk
        cluster = desk.cluster
        found = np.full(cluster.size, NO_ARC, np.int64)
        places = np.flatnonzero(units)
        if Route.REMOTE in shape.routes and len(places):
            for site in np.unique(desk.sites).tolist():
                cost = least[places] + desk.network_cost(places, site, shape.subject)
                order = np.argsort(cost, kind="stable")
                best = order[cost[order] < NO_ARC][:2]
                clients = np.flatnonzero(desk.sites == site)
                for other in best[::-1].tolist():
                    theirs = clients[clients != places[other]]
                    found[theirs] = cost[other]
        if Route.RECOMPOSED in shape.routes:
            for pair, node in enumerate(cluster.fabric.node.tolist()):
                for _, _, cost_of_move in desk.moves(shape, pair):
                    found[node] = min(found[node], cost_of_move)
        return found

    def far(self, nodes: Integers) -> tuple[Flags, Integers]:
        """Say which nodes could be served from elsewhere, or in part, and the least that costs."""
        return self._far[nodes].copy(), self._far_cost[nodes].copy()
