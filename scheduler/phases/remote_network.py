"""What devices that are lent take of the network: of the lender's link, and of the link of the task's own node.

Who lends to whom is known only when a flow has been decoded, and of a pool's
units not even then which node they are for.  So the lender's part is checked
when its devices are taken, as one more dimension of what it has; that of the
task's own node is set aside beforehand for all tasks that may come to need
it.  Where a node's link has no room for all of them, those have it that phase 1
placed there because others can lend to them, the first ones first; the others
are bundles of their own, which are lent nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from farbus.model.device import Route
from farbus.model.job import Miss, TaskGroup
from farbus.model.node import DIMENSIONS, amounts_of
from farbus.scheduler.phases.base import FAR, NEAR, Flags
from farbus.scheduler.phases.cluster import NETWORK, fitting
from farbus.scheduler.phases.jobs import Jobs
from farbus.scheduler.phases.stock import DeviceRequest
from farbus.scheduler.phases.tables import Integers, Table

if TYPE_CHECKING:
    from farbus.scheduler.phases.device_desk import DeviceDesk


class RemoteNetwork:
    """The part of one desk of devices in what is free of nodes' network."""

    def __init__(self, desk: DeviceDesk) -> None:
        self._desk = desk
        self.room = desk.cluster.room()
        self._holds: list[tuple[Integers, Integers]] = []

    def of_lent(self, awards: Table) -> tuple[Integers, Integers, Integers]:
        """Return the rows of ``awards`` that are lent, the nodes of their tasks, and what each takes of either end."""
        lent = np.flatnonzero(awards["tier"] == FAR)
        shape, site = self._desk.split(awards["source"][lent])
        amount = self._of_units(shape) * awards["count"][lent]
        some = np.flatnonzero(amount)
        return lent[some], site[some], amount[some]

    def _of_units(self, shapes: Integers) -> Integers:
        """Return what a unit of each of ``shapes`` takes where it is lent."""
        kinds, row = np.unique(shapes, return_inverse=True)
        amounts = np.array([self._desk.bundle(kind).network for kind in kinds.tolist()], np.int64)
        found: Integers = amounts[row.reshape(-1)]
        return found

    def reserve(self, jobs: Jobs, wants: Table) -> Table:
        """Set aside what wants may take of their own nodes; split off what there is no room for."""
        shape, site = self._desk.split(wants["source"])
        each = self._of_units(shape)
        if not each.any():
            return wants
        total = np.zeros(self._desk.cluster.size, np.int64)
        np.add.at(total, site, each * wants["count"])
        scarce = np.flatnonzero((total[site] > self.room.network[site]) & (each > 0))
        if len(scarce):
            wants = self._split(jobs, wants, scarce)
            shape, site = self._desk.split(wants["source"])
            each = self._of_lendable(shape)
        some = np.flatnonzero(each)
        self.room.pencil(site[some], each[some] * wants["count"][some])
        return wants

    def _of_lendable(self, shapes: Integers) -> Integers:
        lone = np.array([self._desk.bundle(shape).lone for shape in shapes.tolist()], bool)
        return np.where(lone, 0, self._of_units(shapes))

    def _split(self, jobs: Jobs, wants: Table, scarce: Integers) -> Table:
        """Let as many units of wants ``scarce`` be lent as their nodes' network has room for."""
        awards = jobs.awards("compute").of(np.unique(wants["job"][scarce]))
        far: dict[tuple[int, int, int], int] = {}
        for award in awards[awards["tier"] != NEAR]:
            key = (int(award["job"]), int(award["group"]), int(award["place"]))
            far[key] = far.get(key, 0) + int(award["count"])
        left: dict[int, int] = {}
        wants = wants.copy()
        more = []
        for row in scarce.tolist():
            want = wants[row]
            number, site = (int(each) for each in self._desk.split(want["source"]))
            bundle = self._desk.bundle(number)
            units = far.get((int(want["job"]), int(want["group"]), site), 0) * bundle.key.request.count // bundle.size
            room = left.setdefault(site, int(self.room.network[site]))
            lent = min(units, int(want["count"]), room // bundle.network)
            left[site] = room - lent * bundle.network
            alone = want.copy()
            alone["source"] = self._desk.source(self._desk.number(msgspec.structs.replace(bundle, lone=True)), site)
            alone["count"] = int(want["count"]) - lent
            more.append(alone)
            wants["count"][row] = lent
        wants = np.concatenate((wants, np.array(more, wants.dtype)))
        wants = wants[wants["count"] > 0]
        return wants[np.argsort(wants["job"], kind="stable")]

    def fit(self, shape: int, places: Integers, tiers: Integers, counts: Integers) -> Integers:
        """Return how many of ``counts`` bundles the network of their places allows."""
        each = self._desk.bundle(shape).network
        if not each:
            return counts
        fit: Integers = np.where(tiers == FAR, np.minimum(counts, self.room.network[places] // each), counts)
        return fit

    def take(self, shape: int, places: Integers, tiers: Integers, counts: Integers) -> None:
        """Take what bundles that are lent from ``places`` use there."""
        each = self._desk.bundle(shape).network
        lent = np.flatnonzero((tiers == FAR) & (counts > 0)) if each else np.zeros(0, np.int64)
        if len(lent):
            self.room.take_network(places[lent], counts[lent] * each)

    def awarded(self, awards: Table) -> Table:
        """Take what was set aside for tasks that have been lent something; return all as of the bundles at first."""
        _, site, amount = self.of_lent(awards)
        if len(site):
            self.room.settle(site, amount)
        shape, site = self._desk.split(awards["source"])
        for number in np.unique(shape).tolist():
            bundle = self._desk.bundle(number)
            if bundle.lone:
                rows = shape == number
                whole = self._desk.number(msgspec.structs.replace(bundle, lone=False))
                awards["source"][rows] = self._desk.source(whole, site[rows])
        return awards

    def give_back(self, awards: Table) -> None:
        """Give back what awards took at both ends."""
        rows, site, amount = self.of_lent(awards)
        if len(rows):
            self.room.take_network(np.concatenate((site, awards["place"][rows])), -np.concatenate((amount, amount)))

    def hold(self, network: int, award: Table) -> bool:
        """Take as much of what units of ``network`` need at both ends as is free; say whether it is all."""
        if award["tier"] != FAR or not network:
            return True
        whole = True
        for node in (int(self._desk.split(award["source"])[1]), int(award["place"])):
            needed = int(award["count"]) * network
            kept = min(needed, int(self.room.network[node]))
            self._holds.append((np.array([node]), np.array([kept])))
            self.room.take_network(*self._holds[-1])
            whole = whole and kept == needed
        return whole

    def end_holds(self, *, release: bool) -> None:
        """Give back what was held, or leave it taken."""
        for node, kept in self._holds if release else ():
            self.room.take_network(node, -kept)
        self._holds.clear()

    def miss(self, request: DeviceRequest, group: TaskGroup, served: Flags) -> Miss | None:
        """Say which end has no network for the devices of a task of ``group``; None where that is not what is missing.

        ``served`` says where a task could have its devices, whatever else it needs there.
        """
        desk = self._desk
        needed = request.count * request.network_mbit_s
        if not needed or Route.REMOTE not in request.routes:
            return None
        demand, allowed = amounts_of(group.requests), self._allowed(group)
        hosts = allowed & (fitting(self.room.free, demand) > 0)
        if (hosts & served).any():
            return None
        nodes, stock = ~desk.cluster.fabric.is_pool, desk.stock(request.filter)
        size = 1 if desk.spans(request) else request.count
        capacity = desk.cluster.capacity
        near = allowed & (fitting(capacity, demand) > 0) & (stock.total >= request.count)
        if request.routes == {Route.REMOTE} or not near.any():
            found = self._short(needed, allowed, nodes & (stock.total >= size), capacity[:, NETWORK])
            if found is not None:
                return self._told(request, group, *found, permanent=True)
        found = self._short(needed, hosts, nodes & (stock.free >= size), self.room.network)
        return None if found is None else self._told(request, group, *found, permanent=False)

    def _allowed(self, group: TaskGroup) -> Flags:
        cluster = self._desk.cluster
        allowed = cluster.labelled(tuple(sorted(group.labels.items())))
        if group.node:
            allowed = allowed & (np.arange(cluster.size) == cluster.index.get(group.node, -1))
        return allowed

    @staticmethod
    def _short(needed: int, clients: Flags, lenders: Flags, there: Integers) -> tuple[str, Flags, Integers] | None:
        """Return the end at which all nodes have too little of what is ``there``, its nodes, and what they have."""
        for told, end in (("the task's own node", clients), ("a lender", lenders)):
            if end.any() and not (end & (there >= needed)).any():
                return told, end, there
        return None

    def _told(
        self, request: DeviceRequest, group: TaskGroup, told: str, end: Flags, there: Integers, *, permanent: bool
    ) -> Miss:
        kind, dimension = self._desk.kind, DIMENSIONS[NETWORK]
        needed = request.count * request.network_mbit_s
        closest = int(np.argmax(np.where(end, there, -1)))
        name, has = self._desk.cluster.names[closest], int(there[closest])
        left = "in all" if permanent else f"free: {dimension.write(needed - has)} short"
        message = (
            f"a task of group {group.name} takes {dimension.write(needed)} of network at both ends of "
            f"{request.count} remote {kind.noun}{'s' if request.count != 1 else ''}; "
            f"of {told} the closest, {name}, has {dimension.write(has)} {left}"
        )
        return Miss(
            phase=kind.name,
            resource=dimension.name,
            message=message,
            short_by=needed - has,
            permanent=permanent,
            nodes=int(end.sum()),
            nodes_short=int(end.sum()),
            closest=name,
            closest_short_by=needed - has,
        )
