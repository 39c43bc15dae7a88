"""In-network devices as vectors: what services have of them, shared parts counted once.

HIRE's non-linear resources (sections 3.1 and 5.1, figure 5): of the resources
that a service *shares* a device gives once what its instances need, of its
*own* resources each instance takes its part.  So what one more instance takes
depends on what runs there.  Equation 4 divides the shared demands of a
service's instances by their number; where these are not equal the greatest is
taken here, as the mean would not do for whoever needs more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from farbus.model.device import DeviceKind
from farbus.model.job import ServiceRequest
from farbus.scheduler.phases.cluster import MAX_UNITS, Cluster

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

SERVICES = 9
"""How many services a device that takes all of them counts as able to run, at least: as many as HIRE's store has."""

_Instance = tuple[int, Integers, Integers]


class ServiceDevices:
    """The in-network devices of a cluster: D of them, each with R resources."""

    def __init__(self, cluster: Cluster) -> None:
        devices = cluster.devices
        self.rows = np.array([row for row, device in enumerate(devices) if device.kind is DeviceKind.NETWORK], np.int64)
        """Their rows among the devices of the cluster."""
        self.node = cluster.device_node[self.rows]
        mine = [devices[row] for row in self.rows.tolist()]
        self.resources = sorted({name for device in mine for name in device.resources})
        self.capacity = np.array(
            [[max(device.resources.get(name, 0), 0) for name in self.resources] for device in mine], np.int64
        ).reshape(len(mine), len(self.resources))
        self._offered = [frozenset(device.services) for device in mine]
        self._services: dict[str, int] = {}
        self._supports: list[Flags] = []
        self.load(cluster)

    def __len__(self) -> int:
        return len(self.rows)

    def load(self, cluster: Cluster) -> None:
        """Take up what runs now."""
        self.free = cluster.device_free[self.rows]
        self._instances: list[list[_Instance]] = [[] for _ in self.rows]
        self.own = np.zeros_like(self.capacity)
        """What the instances on each device have for themselves."""
        self._shared: dict[int, Integers] = {}
        for number, row in enumerate(self.rows.tolist()):
            for request in cluster.device_instances.get(row, ()):
                self.add(number, request)

    def service(self, name: str) -> int:
        """Return the number of a service."""
        found = self._services.get(name)
        if found is None:
            found = self._services[name] = len(self._supports)
            self._supports.append(np.array([not offered or name in offered for offered in self._offered], bool))
        return found

    def supports(self, name: str) -> Flags:
        """Return which devices can run the service at all."""
        return self._supports[self.service(name)]

    def shared(self, service: int) -> Integers:
        """Return, shape (D, R), what devices give to all instances of a service together."""
        found = self._shared.get(service)
        return np.zeros_like(self.capacity) if found is None else found

    @property
    def room(self) -> Integers:
        """Return, shape (D, R), what is left."""
        left = self.capacity - self.own
        for each in self._shared.values():
            left = left - each
        return left.clip(min=0)

    @property
    def active(self) -> Integers:
        """Return how many different services run on each device."""
        return np.array([len({service for service, _, _ in each}) for each in self._instances], np.int64)

    @property
    def most(self) -> Integers:
        """Return how many different services each device could run; at least :data:`SERVICES` where it takes all."""
        known = max(len(self._supports), SERVICES)
        return np.array([len(offered) or known for offered in self._offered], np.int64)

    def runs(self, name: str) -> Flags:
        """Return which devices have an instance of the service."""
        service = self.service(name)
        return np.array([any(each == service for each, _, _ in some) for some in self._instances], bool)

    def vector(self, amounts: dict[str, int]) -> Integers | None:
        """Return amounts as a row; None where there is one of a resource that no device has."""
        if any(amount and name not in self.resources for name, amount in amounts.items()):
            return None
        return np.array([amounts.get(name, 0) for name in self.resources], np.int64)

    def takes(self, request: ServiceRequest) -> Integers | None:
        """Return, shape (D, R), what one more instance would take of each device; None where none has such."""
        own, shared = self.vector(request.own), self.vector(request.shared)
        if own is None or shared is None:
            return None
        taken: Integers = own + (shared - self.shared(self.service(request.name))).clip(min=0)
        return taken

    def fit(self, request: ServiceRequest) -> Integers:
        """Return how many more instances each device has room for."""
        taken, own = self.takes(request), self.vector(request.own)
        if taken is None or own is None:
            return np.zeros(len(self), np.int64)
        left = self.room - (taken - own)
        count = np.full(len(self), MAX_UNITS, np.int64)
        for column in np.flatnonzero(own).tolist():
            count = np.minimum(count, left[:, column] // own[column])
        possible = (left >= 0).all(axis=1) & self.supports(request.name) & self.free
        return np.where(possible, count.clip(min=0), 0)

    def add(self, number: int, request: ServiceRequest) -> None:
        """Let an instance run on device ``number``; what it takes of resources that no device has is nothing."""
        own, shared = self._known(request.own), self._known(request.shared)
        service = self.service(request.name)
        self._instances[number].append((service, own, shared))
        self.own[number] += own
        if service not in self._shared:
            self._shared[service] = np.zeros_like(self.capacity)
        self._shared[service][number] = np.maximum(self._shared[service][number], shared)

    def remove(self, number: int, request: ServiceRequest) -> None:
        """End an instance on device ``number``; the shared part goes with the last that needs it."""
        own, shared = self._known(request.own), self._known(request.shared)
        service, mine = self.service(request.name), self._instances[number]
        at = next(
            at
            for at, (other, its, theirs) in enumerate(mine)
            if other == service and (its == own).all() and (theirs == shared).all()
        )
        del mine[at]
        self.own[number] -= own
        left = [theirs for other, _, theirs in mine if other == service]
        self._shared[service][number] = np.max(left, axis=0) if left else 0

    def _known(self, amounts: dict[str, int]) -> Integers:
        return np.array([amounts.get(name, 0) for name in self.resources], np.int64)
