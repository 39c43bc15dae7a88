"""The cluster as rounds see it, kept from round to round.  Pure.

Of a cluster of ten thousand nodes a round changes a hundred: only what has
changed since the last snapshot is looked at again.  A view that did not
change is the same object in every snapshot, by which the columns of the
phases (:class:`farbus.scheduler.phases.cluster.Columns`) know it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from msgspec.structs import replace

from farbus.model.cluster import LinkLoad
from farbus.model.decision import DeviceView, NodeView, Snapshot, StorageShare
from farbus.model.device import PoolReach, Route
from farbus.model.node import STORAGE_ATTACH_S, Resources, amounts_of
from farbus.scheduler.records import DeviceRecord, LeaseRecord, NodeRecord
from farbus.scheduler.stored import orphan_share

NODE_MEMORY_S = 3_600.0
"""How long a node without a session still counts when a job asks whether it could ever fit."""


V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Gains:
    """What there is more of than before, as it is now."""

    nodes: tuple[NodeView, ...] = ()
    """Nodes that may serve what they could not serve before."""
    devices: tuple[DeviceView, ...] = ()
    reaching: tuple[NodeView, ...] = ()
    """Those of the nodes that reach a fabric pool which they did not reach before."""
    lending: bool = False
    """Whether nodes may lend to others than before."""


def in_steps(attach_s: float) -> float:
    """Return the seconds that attaching storage takes as rounds see them: what is typical, or that doubled some times.

    Nodes of one time are one client to policies, and with each change of it
    everything is laid out anew: there are few of them, and they seldom change.
    """
    if attach_s <= STORAGE_ATTACH_S:
        return STORAGE_ATTACH_S
    return STORAGE_ATTACH_S * 2.0 ** round(math.log2(attach_s / STORAGE_ATTACH_S))


class Books(Protocol):
    """What a snapshot is made of: :class:`farbus.scheduler.cluster.ClusterState`."""

    listening_since: float

    @property
    def nodes(self) -> Mapping[str, NodeRecord]:
        """All nodes."""
        ...

    @property
    def devices(self) -> Mapping[str, DeviceRecord]:
        """All devices."""
        ...

    @property
    def devices_of_node(self) -> Mapping[str, set[str]]:
        """Devices whose last known owner a node is."""
        ...

    @property
    def links(self) -> Mapping[str, tuple[LinkLoad, ...]]:
        """The loads of nodes' links, as far as they were measured."""
        ...

    @property
    def leases(self) -> Mapping[str, LeaseRecord]:
        """The leases that are not released."""
        ...

    def free_of(self, node: NodeRecord) -> Resources:
        """Return what is free on a node."""
        ...

    def related(self, device_id: str) -> Collection[str]:
        """Return the same hardware by other names."""
        ...

    def is_free(self, device: DeviceRecord) -> bool:
        """Say whether a device may be leased now."""
        ...

    def pool_of(self, device_id: str) -> str:
        """Return the fabric pool that a device is of; empty where none has it."""
        ...

    def reach_of(self, node: str) -> tuple[PoolReach, ...]:
        """Return the fabric pools that a node is cabled to."""
        ...

    def destination_of(self, device_id: str) -> str:
        """Return the node to which a device is on its way; empty for none."""
        ...


class Views:
    """The views of all nodes and devices.

    Records note themselves in ``changed_nodes`` and ``changed_devices`` when
    one of their fields that a round sees is set (:mod:`farbus.scheduler.records`).
    """

    def __init__(self, books: Books) -> None:
        self._books = books
        self.changed_nodes: set[str] = set()
        self.changed_devices: set[str] = set()
        self._nodes: dict[str, NodeView] = {}
        self._devices: dict[str, DeviceView] = {}
        self._sorted = True
        """Whether nodes and devices are in the order of their names."""
        self._away: set[str] = set()
        """Nodes without a session: time alone may have them forgotten."""
        self._gained_nodes: dict[str, NodeView] = {}
        self._gained_devices: dict[str, DeviceView] = {}
        self._reaching: set[str] = set()
        self._lending = False

    def take_gains(self) -> Gains:
        """Return what snapshots have shown since the last call to have more to give than before, as it is now."""
        nodes = tuple(self._nodes[name] for name in sorted(self._gained_nodes) if name in self._nodes)
        devices = tuple(self._devices[name] for name in sorted(self._gained_devices) if name in self._devices)
        reaching = tuple(view for view in nodes if view.name in self._reaching)
        self._gained_nodes.clear()
        self._gained_devices.clear()
        self._reaching.clear()
        lending, self._lending = self._lending, False
        return Gains(nodes, devices, reaching, lending)

    def snapshot(self, now: float) -> Snapshot:
        """Return the cluster at ``now``, monotonic seconds.

        A node whose session is lost is there with nothing free, so that a job
        that fits only there waits instead of being called impossible.
        """
        self.look(now)
        return Snapshot(
            nodes=tuple(self._nodes.values()),
            devices=tuple(self._devices.values()),
            # Apart from the nodes: they change with every heartbeat.
            links=dict(self._books.links),
            at=now,
        )

    def look(self, now: float) -> None:
        """Take in what has changed.

        Also behind what a round has given: who was told that it is taken
        gains by its end, even where that comes before the next snapshot.
        """
        for name in self._away:
            if self._is_known(self._books.nodes[name], now) != (name in self._nodes):
                self.changed_nodes.add(name)
        for name in self.changed_nodes:
            self._look_at_node(self._books.nodes[name], now)
            self.changed_devices |= self._books.devices_of_node.get(name, set())
        for device_id in tuple(self.changed_devices):
            self.changed_devices.update(
                other for other in self._books.related(device_id) if other in self._books.devices
            )
        for device_id in self.changed_devices:
            self._look_at_device(self._books.devices[device_id])
        self.changed_nodes.clear()
        self.changed_devices.clear()
        if not self._sorted:
            self._nodes, self._devices = dict(sorted(self._nodes.items())), dict(sorted(self._devices.items()))
            self._sorted = True

    def _is_known(self, record: NodeRecord, now: float) -> bool:
        heard = max(record.seen, self._books.listening_since)
        return record.node is not None and (record.connected or now - heard < NODE_MEMORY_S)

    def _look_at_node(self, record: NodeRecord, now: float) -> None:
        if record.connected:
            self._away.discard(record.name)
        else:
            self._away.add(record.name)
        view = None
        if record.node is not None and self._is_known(record, now):
            view = NodeView(
                name=record.name,
                capacity=record.node.capacity,
                free=self._books.free_of(record),
                labels=record.node.labels,
                rack=record.node.labels.get("rack", ""),
                pools=self._pools(record),
                storage_attach_s=in_steps(record.node.storage_attach_s),
                remoting_tls=record.node.remoting_tls,
            )
        before = self._nodes.get(record.name)
        if view is not None and _has_more(before, view):
            self._gained_nodes[record.name] = view
            known = {reach.pool for reach in before.pools} if before is not None else set()
            if any(reach.pool not in known for reach in view.pools):
                self._reaching.add(record.name)
            self._lending |= before is not None and before.remoting_tls != view.remoting_tls
        self._put(self._nodes, record.name, view)

    def _look_at_device(self, record: DeviceRecord) -> None:
        node = self._books.nodes.get(record.node)
        view = None
        pool = self._books.pool_of(record.id) if record.device is not None and not record.device.pool else ""
        # What a node that is there does not report any more is gone; what one had that is away may come back.
        if (
            record.device is not None
            and record.node in self._nodes
            and (record.present or node is None or not node.connected)
        ):
            view = DeviceView(
                device=replace(record.device, pool=pool) if pool else record.device,
                node=record.node,
                free=self._books.is_free(record),
                destination=self._destination(record),
                shares=_shares_of(record) if record.shares or record.orphan_bytes else (),
            )
        elif record.device is not None and not record.node and pool:
            view = DeviceView(
                device=replace(record.device, pool=pool),
                node="",
                free=self._books.is_free(record),
                destination=self._books.destination_of(record.id),
            )
        if view is not None and _is_gain(self._devices.get(record.id), view):
            self._gained_devices[record.id] = view
        self._put(self._devices, record.id, view)

    def _pools(self, record: NodeRecord) -> tuple[PoolReach, ...]:
        """Return the pools that a node reaches: those that it reports, and the chassis that it is cabled to."""
        assert record.node is not None
        told = {reach.pool for reach in record.node.pools}
        return (*record.node.pools, *(reach for reach in self._books.reach_of(record.name) if reach.pool not in told))

    def _destination(self, record: DeviceRecord) -> str:
        """Return where a fabric takes a device, from the grant of its lease until its node reports that it is there."""
        if destination := self._books.destination_of(record.id):
            return destination
        lease = self._books.leases[record.lease].lease if record.lease else None
        moves = lease is not None and lease.route is Route.RECOMPOSED and lease.client_node != record.node
        return lease.client_node if lease is not None and moves else ""

    def _put(self, views: dict[str, V], key: str, view: V | None) -> None:
        """Keep ``view``, the old object where it is equal."""
        if view is None:
            views.pop(key, None)
        elif views.get(key) != view:
            self._sorted = self._sorted and key in views
            views[key] = view


def _shares_of(record: DeviceRecord) -> tuple[StorageShare, ...]:
    """Return what is taken of a drive, whoever knows by whom."""
    orphans = orphan_share(record)
    shares = (record.shares[key] for key in sorted(record.shares))
    return (*shares, orphans) if orphans is not None else tuple(shares)


def _has_more(before: NodeView | None, now: NodeView) -> bool:
    """Say whether a node may serve what it could not serve before."""
    return (
        before is None
        or any(map(operator.gt, amounts_of(now.free), amounts_of(before.free)))
        or now.capacity != before.capacity
        or now.labels != before.labels
        or now.rack != before.rack
        or now.pools != before.pools
        or now.storage_attach_s != before.storage_attach_s
        or now.remoting_tls != before.remoting_tls
    )


def _is_gain(before: DeviceView | None, now: DeviceView) -> bool:
    """Say whether a device may serve what it could not serve before."""
    return (
        before is None
        or (now.free and not before.free)
        or now.node != before.node
        or now.device != before.device
        or (bool(before.destination) and not now.destination)
        or (bool(before.shares) and _has_more_room(before.shares, now.shares))
    )


def _has_more_room(before: Sequence[StorageShare], now: Sequence[StorageShare]) -> bool:
    """Say whether less of a drive is taken, or by fewer."""
    return (
        len(now) < len(before)
        or sum(share.size_bytes for share in now) < sum(share.size_bytes for share in before)
        or sum(share.bandwidth_bytes_per_s for share in now) < sum(share.bandwidth_bytes_per_s for share in before)
    )


def fresh_snapshot(books: Books, now: float) -> Snapshot:
    """Return the snapshot of ``books`` without anything kept: what :meth:`Views.snapshot` must be equal to."""
    views = Views(books)
    views.changed_nodes |= books.nodes.keys()
    views.changed_devices |= books.devices.keys()
    return views.snapshot(now)
