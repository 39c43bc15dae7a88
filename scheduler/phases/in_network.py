"""The shadow network: instances of in-network services on programmable switches and network cards.

After HIRE (Bloecher et al., ASPLOS 2021).  A task that asks for a service runs
at a node that has such a device (the switch's own processor, the host of a
network card), and takes of the device what the service takes
(:mod:`farbus.scheduler.phases.services`).  Phase 1 therefore decides servers
and in-network devices in one flow, and their nearness by one price, as HIRE's
two planes do; this phase tells it what fits where, and hands out.

Tasks of one group are for different devices, as each of HIRE's resource nodes
takes one task in a solve: a chain of three on one switch would be no chain.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import msgspec
import numpy as np

from farbus.model.decision import PendingJob
from farbus.model.job import GroupVariant, Miss, ServiceRequest, TaskGroup
from farbus.scheduler.costs.policy import FORBIDDEN, Policy, ServiceSites
from farbus.scheduler.phases.base import NEAR, NO_ARC, Alternatives, Desk, Flags, Offer, Outlook, Phase
from farbus.scheduler.phases.cluster import MAX_UNITS, Cluster
from farbus.scheduler.phases.jobs import Jobs
from farbus.scheduler.phases.reasons import Reasons, literal, told
from farbus.scheduler.phases.services import ServiceDevices
from farbus.scheduler.phases.tables import ARC, Integers, Table, table, wants_by_node

MAX_KEPT_SHAPES = 1_024
"""Shapes that a desk is kept with; those of jobs that ended are forgotten with it."""


class ServiceKey(msgspec.Struct, frozen=True):
    """What tells groups apart at the desk.  ``spread`` names the job of several tasks, for different devices each."""

    name: str
    own: tuple[tuple[str, int], ...]
    shared: tuple[tuple[str, int], ...]
    subject: Hashable
    spread: str = ""

    @property
    def request(self) -> ServiceRequest:
        """Return the service and what it takes."""
        return ServiceRequest(name=self.name, own=dict(self.own), shared=dict(self.shared))


class InNetworkPhase(Phase):
    """In-network services, as a plug-in of the round."""

    name = "in-network"

    def concerns(self, group: TaskGroup | GroupVariant) -> bool:
        """Say whether the group asks for a service, which no alternative changes."""
        return isinstance(group, TaskGroup) and group.service is not None

    def asks(self, pending: PendingJob, group: TaskGroup) -> Hashable:
        """Return the service; jobs whose groups are spread over devices are alike to no other."""
        return service_key(pending, group, None)

    def open(self, cluster: Cluster, policy: Policy, later: Sequence[Desk]) -> Desk:
        """Return the desk of the last round, brought up to date, or a new one."""
        del later
        kept = cluster.kept.desks.get(self.name)
        if isinstance(kept, InNetworkDesk) and kept.policy is policy and len(kept.shapes) <= MAX_KEPT_SHAPES:
            kept.renew(cluster)
            return kept
        cluster.kept.desks[self.name] = desk = InNetworkDesk(cluster, policy)
        return desk


def service_key(pending: PendingJob, group: TaskGroup, subject: Hashable) -> ServiceKey | None:
    """Return what ``group`` asks for; None for nothing."""
    request = group.service
    if request is None:
        return None
    own, shared = tuple(sorted(request.own.items())), tuple(sorted(request.shared.items()))
    return ServiceKey(request.name, own, shared, subject, pending.job.id if group.count > 1 else "")


class ServiceOutlook(Outlook):
    """How many instances each node's devices have room for, and what the next one costs."""

    def __init__(self, desk: InNetworkDesk, key: ServiceKey) -> None:
        self._desk = desk
        self._key = key
        self.near = np.zeros(desk.cluster.size, np.int64)
        self.near_cost = np.zeros(desk.cluster.size, np.int64)
        self.moment = -1
        # Nothing is served from elsewhere.
        self.floor = NO_ARC

    def write(self) -> None:
        """Bring all of it up to date."""
        desk = self._desk
        fit, cost = desk.fit(self._key)
        self.near[:] = 0
        np.add.at(self.near, desk.devices.node, fit)
        if self._key.spread:
            np.minimum(self.near, 1, out=self.near)
            self.near[desk.noted(self._key)] = 0
        least = np.full(desk.cluster.size, NO_ARC, np.int64)
        np.minimum.at(least, desk.devices.node[fit > 0], cost[fit > 0])
        self.near_cost[:] = np.where(least < NO_ARC, least, 0)
        self.total = int(self.near.sum())

    def far(self, nodes: Integers) -> tuple[Flags, Integers]:
        """Say that a task runs beside its device or nowhere."""
        return np.zeros(len(nodes), bool), np.zeros(len(nodes), np.int64)


class InNetworkDesk(Desk):
    """In-network devices during one round."""

    phase = InNetworkPhase.name

    def __init__(self, cluster: Cluster, policy: Policy) -> None:
        super().__init__(cluster)
        self.policy = policy
        self.devices = ServiceDevices(cluster)
        self._of_row = {row: number for number, row in enumerate(self.devices.rows.tolist())}
        self._looks: dict[ServiceKey, ServiceOutlook] = {}
        self._notes: dict[tuple[ServiceKey, int], list[int]] = {}
        self._holds: list[tuple[int, ServiceRequest]] = []
        self._moment = 0

    def renew(self, cluster: Cluster) -> None:
        """Begin a round: take up what runs now."""
        super().renew(cluster)
        self._notes.clear()
        self._holds.clear()
        self._looks.clear()
        self.devices.load(cluster)
        self._changed(self.devices.node)

    def _changed(self, nodes: Integers) -> None:
        self._moment += 1
        if len(nodes):
            self.cluster.kept.changes.note(np.array(nodes, np.int64))

    def fit(self, key: ServiceKey) -> tuple[Integers, Integers]:
        """Return how many instances each device has room for, and what one costs there."""
        devices, request = self.devices, key.request
        fit, taken = devices.fit(request), devices.takes(request)
        if taken is None or not fit.any():
            return np.zeros(len(devices), np.int64), np.zeros(len(devices), np.int64)
        sites = ServiceSites(
            nodes=devices.node,
            taken=taken,
            room=devices.room,
            capacity=devices.capacity,
            runs=devices.runs(key.name),
            active=devices.active,
            most=devices.most,
        )
        cost = self.policy.service_cost(self.cluster, sites, key.subject)
        return np.where(cost == FORBIDDEN, 0, fit), cost

    def _key(self, shape: int) -> ServiceKey:
        key = self.shapes[shape]
        assert isinstance(key, ServiceKey)
        return key

    # Phase 1 asks what to expect.

    def outlook_key(self, pending: PendingJob, group: TaskGroup) -> Hashable | None:
        """Return the service with what tells tasks apart in cost."""
        return service_key(pending, group, self.policy.subject(pending, group))

    def outlook(self, key: Hashable) -> Outlook:
        """Return where instances have room."""
        assert isinstance(key, ServiceKey)
        look = self._looks.get(key)
        if look is None:
            look = self._looks[key] = ServiceOutlook(self, key)
        if look.moment != self._moment:
            look.write()
            look.moment = self._moment
        return look

    def pencil(self, key: Hashable, places: Integers, counts: Integers) -> None:
        """Let instances of phase 1 take what they will need."""
        assert isinstance(key, ServiceKey)
        for place, count in zip(places.tolist(), counts.tolist(), strict=True):
            taken = self._notes.setdefault((key, place), [])
            for _ in range(count):
                number = self._put(key, place)
                if number is None:
                    break
                taken.append(number)
            for _ in range(min(-count, len(taken))):
                self.devices.remove(taken.pop(), key.request)
        self._changed(places)

    def noted(self, key: ServiceKey) -> list[int]:
        """Return the places at which phase 1 counts on instances of ``key``."""
        return [place for (other, place), taken in self._notes.items() if taken and other == key]

    def clear_pencil(self) -> None:
        """Forget what was taken for phase 1."""
        places = []
        for (key, place), taken in self._notes.items():
            for number in taken:
                self.devices.remove(number, key.request)
                places.append(place)
        self._notes.clear()
        if places:
            self._changed(np.unique(np.array(places, np.int64)))

    def _put(self, key: ServiceKey, place: int) -> int | None:
        """Start an instance on the device of ``place`` that costs least; return its number, None without room."""
        fit, cost = self.fit(key)
        there = np.flatnonzero((self.devices.node == place) & (fit > 0))
        if not len(there):
            return None
        number = int(there[np.argmin(cost[there])])
        self.devices.add(number, key.request)
        return number

    # The market asks.

    def wants(self, jobs: Jobs, rows: Integers) -> Table:
        """Return one want per group and node that phase 1 chose."""
        wants, places = wants_by_node(jobs.awards("compute").of(rows))
        for number, place in enumerate(places.tolist()):
            form = jobs.form_of(int(wants["job"][number]))
            key = self.outlook_key(form.example, form.groups[int(wants["group"][number])])
            if key is None:
                wants["count"][number] = 0
            else:
                wants["source"][number] = self.source(self.number(key), place)
        return wants[wants["count"] > 0]

    def pools(self, sources: Integers) -> Integers:
        """Return that a task has its own node and no other."""
        return np.full(len(sources), -1, np.int64)

    def offers(self, pool: int) -> Sequence[Offer]:
        """Return nothing: there are no aggregators here."""
        del pool
        return ()

    def arcs(self, sources: Integers) -> Table:
        """Return the arc of each source to its own node.

        What one source leaves there is room for another, so a place has no
        capacity of its own: units are checked when they are handed out.
        """
        shapes, sites = self.split(sources)
        parts = [np.zeros(0, ARC)]
        for number in np.unique(shapes).tolist():
            look = self.outlook(self._key(number))
            rows = np.flatnonzero(shapes == number)
            room = np.where(look.near[sites[rows]] > 0, MAX_UNITS, 0)
            cost = look.near_cost[sites[rows]]
            arcs = table(ARC, len(rows), source=rows, place=sites[rows], tier=NEAR, capacity=room, cost=cost)
            parts.append(arcs[room > 0])
        arcs = np.concatenate(parts)
        return arcs[np.argsort(arcs["source"], kind="stable")]

    def take(self, shape: int, places: Integers, tiers: Integers, counts: Integers) -> tuple[Integers, Integers]:
        """Start instances, each on the device of its place that costs least then."""
        del tiers
        key = self._key(shape)
        taken = np.zeros(len(places), np.int64)
        rows: list[int] = []
        for at, (place, count) in enumerate(zip(places.tolist(), counts.tolist(), strict=True)):
            while taken[at] < count and (number := self._put(key, place)) is not None:
                taken[at] += 1
                rows.append(int(self.devices.rows[number]))
        self._changed(places)
        return taken, np.array(rows, np.int64)

    def size(self, shape: int) -> int:
        """Return that an instance is on one device."""
        del shape
        return 1

    def give_back(self, awards: Table, devices: Integers) -> None:
        """End instances."""
        shapes, _ = self.split(awards["source"])
        row = np.repeat(np.arange(len(awards)), awards["count"])
        for at, device in zip(row.tolist(), devices.tolist(), strict=True):
            self.devices.remove(self._of_row[device], self._key(int(shapes[at])).request)
        self._changed(awards["place"])

    def hold(self, shape: Hashable, award: Table, devices: Integers) -> bool:
        """Start what fits of the award's instances on its devices."""
        del award
        assert isinstance(shape, ServiceKey)
        fit, _ = self.fit(shape)
        kept = [number for number in (self._of_row[row] for row in devices.tolist()) if fit[number] > 0]
        for number in kept:
            self.devices.add(number, shape.request)
            self._holds.append((number, shape.request))
        self._changed(self.devices.node[kept])
        return len(kept) == len(devices)

    def end_holds(self, *, release: bool) -> None:
        """End what was held, or leave it running."""
        for number, request in self._holds if release else ():
            self.devices.remove(number, request)
        nodes = self.devices.node[[number for number, _ in self._holds]]
        self._holds.clear()
        self._changed(nodes)

    # People ask.

    def reasons(self, awards: Table, first: Mapping[int, Alternatives]) -> Reasons:
        """Name the service and its device's node."""
        del first
        shapes, _ = self.split(awards["source"])

        def text(shape: int) -> str:
            return f"{literal(self._key(shape).name)} on {{0}} at cost {{1}}"

        return told(shapes, text, place=awards["place"], cost=awards["cost"])

    def misses(self, pending: PendingJob) -> list[Miss]:
        """Return which services of a job find no room, and of what."""
        found = []
        for group in pending.job.groups:
            key = self.outlook_key(pending, group)
            if key is None:
                continue
            assert isinstance(key, ServiceKey)
            miss = self._miss(key, group.count)
            if miss is not None:
                found.append(miss)
        return found

    def _miss(self, key: ServiceKey, tasks: int) -> Miss | None:
        devices = self.devices
        supports = devices.supports(key.name)
        if not supports.any():
            return Miss(
                phase=self.phase,
                resource=key.name,
                message=f"no node has an in-network device that runs {key.name}",
                permanent=True,
            )
        room = int(self.outlook(key).total)
        if room >= tasks:
            return None
        most = len(np.unique(devices.node[supports]))
        return Miss(
            phase=self.phase,
            resource=key.name,
            message=f"{key.name} has room for {room} of {tasks} instances on the {most} nodes that run it",
            short_by=tasks - room,
            permanent=bool(key.spread) and most < tasks,
            nodes=most,
        )
