"""The cluster as columns: what the phases calculate on.

Nodes are rows in the order of their names, so that neither the order in which
agents connected nor that of the snapshot has any influence on a decision.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from farbus.errors import InvalidInput
from farbus.model.cluster import LinkLoad, network_load
from farbus.model.decision import DeviceView, NodeView, Snapshot, StorageShare
from farbus.model.device import ATTACH_S, Device
from farbus.model.job import ServiceRequest
from farbus.model.node import DIMENSIONS, REMOTING_TLS, STORAGE_ATTACH_S, Resources, amounts_of
from farbus.scheduler.phases.room import Room
from farbus.scheduler.phases.tables import distinct

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

CPU, MEMORY, NETWORK = range(len(DIMENSIONS))
"""Columns of the vector resources: thousandths of a processor, bytes, Mbit/s."""

PACKED = slice(sum(dimension.packs for dimension in DIMENSIONS))
"""The columns that policies go by where they pack or spread tasks."""

UNCOUNTED = 2**40
"""Stands for a capacity that nobody knows: more than a round could take, and no sum over a cluster overflows."""

MAX_UNITS = 2**20
"""Most units that one place can offer and one group can want: above any cluster, below any overflow."""

MAX_NOTES = 100_000
"""Changed rows that are remembered beyond the number of rows: a round on a small cluster changes each row often."""

LOOKED_AT = 256
"""Rows of a snapshot that are compared with those of the one before at a time."""

MAX_MEMO = 1_024
"""Answers about all nodes that are kept, of some kilobytes each in a large cluster: more kinds are found anew."""


class Changes:
    """Which rows changed, in the order in which they did: what is kept by row is brought up to date with it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._parts: list[Integers] = []
        self._first = 0
        self._length = 0
        self._known: tuple[int, int, Integers] = (0, 0, np.zeros(0, np.int64))

    @property
    def now(self) -> int:
        """Return the present moment, for :meth:`since`."""
        return self._first + len(self._parts)

    def note(self, rows: Integers) -> None:
        """Note that ``rows`` change; ``rows`` may not be written to afterwards."""
        if not len(rows):
            return
        self._parts.append(rows)
        self._length += len(rows)
        if self._length > self._size + MAX_NOTES:
            # Whoever is behind looks at all rows, which is no more work.
            self._first = self.now
            self._parts, self._length = [], 0

    def since(self, moment: int) -> Integers:
        """Return the rows that changed since ``moment``, each once; all rows where nobody knows."""
        if moment == self.now:
            return np.zeros(0, np.int64)
        if moment < self._first:
            return np.arange(self._size)
        if self._known[:2] != (moment, self.now):
            rows = np.concatenate(self._parts[moment - self._first :])
            if len(rows) < self._size // 16:
                rows = distinct(rows)
            else:
                touched = np.zeros(self._size, bool)
                touched[rows] = True
                rows = np.flatnonzero(touched)
            self._known = (moment, self.now, rows)
        return self._known[2]


NEVER = -1
"""A moment before all changes."""


class Kept:
    """What is worth keeping from one round to the next on the same nodes and devices."""

    def __init__(self, size: int) -> None:
        self.changes = Changes(size)
        self.snapshots = Changes(size)
        """Nodes of which a snapshot says something else than the one before."""
        self.desks: dict[str, Any] = {}
        """The desk of each phase, by the phase's name; what it keeps follows what is free."""
        self.room: Room | None = None
        """See :meth:`Cluster.room`."""
        self.verdicts: dict[Hashable, Any] = {}
        """Of the idle cluster: what was found of jobs that the phases could not place there, by what they ask for."""
        self._size = size
        self._idle: Kept | None = None

    def idle(self) -> Kept:
        """Return the same for the idle cluster."""
        if self._idle is None:
            self._idle = Kept(self._size)
        return self._idle

    def forget(self) -> None:
        """Forget everything: a round broke off, and nobody knows what is half done."""
        self.desks.clear()
        self.room = None
        self._idle = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Fabric pools: P of them, each a place of its own, at row ``row[p]`` of the nodes, for devices that no node has.

    Pool ``pool[e]`` can give devices to node ``node[e]``, in ``attach_s[e]``
    seconds each; pairs are sorted by node and pool, those of node m are
    ``start[m]`` up to ``start[m + 1]``.  ``device_pool`` has shape (D,), -1 for
    a device of no pool; ``device_pair`` is the pair of a device's node and
    pool, -1 where the pool can't give anything back to that node.
    """

    names: tuple[str, ...]
    row: Integers
    is_pool: Flags
    """Shape (M,): which rows are pools, and no nodes."""
    node: Integers
    pool: Integers
    attach_s: Floats
    start: Integers
    device_pool: Integers
    device_pair: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One snapshot as arrays.  M nodes, D devices.

    ``capacity`` and ``free`` are int64 of shape (M, R), with a column for each
    of :data:`farbus.model.node.DIMENSIONS`; what nobody knows is ``UNCOUNTED``.
    ``schedulable`` is false for a node that only lends devices.
    Devices are sorted by node, memory and id, so that the first that fits is
    the least that fits; those of node m are ``device_start[m]`` up to
    ``device_start[m + 1]``.
    """

    names: tuple[str, ...]
    index: Mapping[str, int]
    capacity: Integers
    free: Integers
    schedulable: Flags
    labels: tuple[Mapping[str, str], ...]
    rack: Integers
    devices: tuple[Device, ...]
    device_node: Integers
    device_start: Integers
    device_free: Flags
    device_certain: Flags
    """False for a device that several nodes claim: nobody is given it."""
    memo: dict[Hashable, npt.NDArray[Any]] = field(default_factory=dict)
    """What was found once about nodes or devices that does not depend on what is free."""
    label_rows: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """The nodes that have each label, once somebody has asked."""
    links: Mapping[str, tuple[LinkLoad, ...]] = field(default_factory=dict)
    at: float = 0.0
    """When the snapshot was taken, on the clock of the links."""
    round_memo: dict[Hashable, npt.NDArray[Any]] = field(default_factory=dict)
    """What was found once in this snapshot."""
    kept: Kept
    moment: int = 0
    """The moment of ``kept.snapshots`` that this is of."""
    device_shares: Mapping[int, tuple[StorageShare, ...]] = field(default_factory=dict)
    """What leases have of drives that are shared, by the row of the device."""
    device_instances: Mapping[int, tuple[ServiceRequest, ...]] = field(default_factory=dict)
    """What runs on in-network devices, by the row of the device."""
    racks: tuple[str, ...] = ()
    """The names of racks, by their number in ``rack``."""
    fabric: Fabric
    """Who can have devices moved to it, and from where."""
    storage_attach_s: Floats
    """Shape (M,): seconds in which storage of others is attached to each node, at least what is typical."""
    remoting_tls: tuple[str, ...]
    """Of each node, whether sessions with its GPUs are encrypted: those between nodes that differ can't be made."""

    @property
    def size(self) -> int:
        """Return the number of nodes."""
        return len(self.names)

    def room(self) -> Room:
        """Return what is free during the round, which its desks share."""
        kept = self.kept
        if kept.room is None:
            kept.room = Room(self.free, NETWORK, changes=kept.changes, links=Changes(self.size))
        return kept.room

    def labelled(self, wanted: tuple[tuple[str, str], ...]) -> Flags:
        """Return which nodes may run tasks and have all of the ``wanted`` labels."""
        if not wanted:
            return self.schedulable
        found = self.memo.get(wanted)
        if found is None:
            if len(self.memo) >= MAX_MEMO:
                self.memo.clear()
            count = np.zeros(self.size, np.int64)
            for label in wanted:
                count[self._rows_of(label)] += 1
            found = self.memo[wanted] = self.schedulable & (count == len(wanted))
        return found

    def _rows_of(self, label: tuple[str, str]) -> list[int]:
        """Return the nodes with ``label``; all labels are looked through once, as jobs may name thousands of them."""
        if not self.label_rows:
            # Where no node has any label, too, this is done once.
            self.label_rows[label] = []
            for row, labels in enumerate(self.labels):
                for each in labels.items():
                    self.label_rows.setdefault(each, []).append(row)
        return self.label_rows.get(label, [])

    def network_load(self) -> Floats:
        """Return how busy each node's busiest link is, shape (M,), from 0 to 1; 0 where nobody knows."""
        found = self.round_memo.get("network load")
        if found is None:
            loads = [network_load(self.links.get(name, ()), self.at) for name in self.names]
            found = self.round_memo["network load"] = np.array(loads, np.float64)
        return found

    def idle(self) -> Cluster:
        """Return the same cluster as if nothing ran on it."""
        return Cluster(
            names=self.names,
            index=self.index,
            capacity=self.capacity,
            free=self.capacity,
            schedulable=self.schedulable,
            labels=self.labels,
            rack=self.rack,
            devices=self.devices,
            device_node=self.device_node,
            device_start=self.device_start,
            device_free=self.device_certain,
            # Nobody shares a drive of the idle cluster.
            device_shares={},
            racks=self.racks,
            device_certain=self.device_certain,
            memo=self.memo,
            label_rows=self.label_rows,
            links=self.links,
            at=self.at,
            round_memo=self.round_memo,
            kept=self.kept.idle(),
            fabric=self.fabric,
            storage_attach_s=self.storage_attach_s,
            remoting_tls=self.remoting_tls,
        )


def from_snapshot(snapshot: Snapshot) -> Cluster:
    """Lay ``snapshot`` out as columns.

    A node that reports less than nothing free counts as full.  A device that
    two nodes claim is given to nobody: which of them tells the truth can't be
    known here.  Two nodes of one name raise :class:`InvalidInput`.
    """
    nodes: dict[str, NodeView] = {node.name: node for node in snapshot.nodes}
    if len(nodes) != len(snapshot.nodes):
        twice = sorted(name for name, count in Counter(node.name for node in snapshot.nodes).items() if count > 1)
        raise InvalidInput(f"snapshot: more than one node is called {twice[0]}")
    pools = sorted(
        {reach.pool for view in snapshot.nodes for reach in view.pools}
        | {view.device.pool for view in snapshot.devices if view.device.pool}
    )
    places = [view.destination or view.node or pool_place(view.device.pool) for view in snapshot.devices]
    # Snapshots are in the order of names, mostly: a sort that begins there has little to do.
    names = tuple(sorted(dict.fromkeys((*nodes, *places, *map(pool_place, pools)))))
    index = dict(zip(names, range(len(names)), strict=True))
    views = [nodes.get(name, _NO_NODE) for name in names]
    capacity, free = _counted(
        *(
            np.stack([np.fromiter(map(column, views), np.int64, len(views)) for column in columns], axis=1)
            for columns in (_CAPACITY, _FREE)
        )
    )
    racks = {name: number for number, name in enumerate(sorted({view.rack for view in nodes.values()}))}
    racks[_NO_NODE.rack] = racks.get(_NO_NODE.rack, -1)
    known = np.fromiter((view is not _NO_NODE for view in views), bool, len(views))
    rack = np.fromiter((racks[view.rack] for view in views), np.int64, len(views))
    at = [index[place] for place in places]
    memory, ids = (list(map(key, snapshot.devices)) for key in _ORDER)
    order = [number for *_, number in sorted(zip(at, memory, ids, range(len(at)), strict=True))]
    devices = [snapshot.devices[number] for number in order]
    certain = np.ones(len(ids), bool)
    if len(set(ids)) < len(ids):
        claimed = Counter(ids)
        certain = np.array([claimed[view.device.id] == 1 for view in devices], bool)
    device_node = np.array(at, np.int64)[order]
    return Cluster(
        names=names,
        index=index,
        capacity=capacity,
        free=free,
        schedulable=known,
        labels=tuple([view.labels for view in views]),
        rack=np.where(known, rack, -1),
        devices=tuple([view.device for view in devices]),
        device_node=device_node,
        device_start=np.searchsorted(device_node, np.arange(len(names) + 1)).astype(np.int64),
        device_free=np.array([_is_free(view) for view in devices], bool) & certain,
        device_certain=certain,
        links=snapshot.links,
        at=snapshot.at,
        kept=Kept(len(names)),
        device_shares={row: view.shares for row, view in enumerate(devices) if view.shares},
        device_instances={row: view.instances for row, view in enumerate(devices) if view.instances},
        racks=tuple(racks),
        fabric=_fabric(pools, index, views, devices, device_node),
        storage_attach_s=_attach_s(views),
        remoting_tls=_remoting_tls(views),
    )


_NO_NODE = NodeView(name="", capacity=Resources(), free=Resources())
"""Stands where there is no node: a fabric pool, or a node that only lends devices."""
_CAPACITY = [operator.attrgetter(f"capacity.{dimension.name}") for dimension in DIMENSIONS]
_FREE = [operator.attrgetter(f"free.{dimension.name}") for dimension in DIMENSIONS]
_UNKNOWABLE = [column for column, dimension in enumerate(DIMENSIONS) if dimension.may_be_unknown]
_ORDER = operator.attrgetter("device.memory_bytes"), operator.attrgetter("device.id")


def pool_place(pool: str) -> str:
    """Return the name of the place of devices that no node has; no node is called so."""
    return f"pool {pool}"


def _counted(capacity: Integers, free: Integers) -> tuple[Integers, Integers]:
    """Return what nodes have and what of it is free, without nonsense, ``UNCOUNTED`` where that is not known."""
    capacity, free = capacity.clip(min=0), free.clip(min=0)
    for column in _UNKNOWABLE:
        unknown = capacity[:, column] == 0
        capacity[unknown, column] = free[unknown, column] = UNCOUNTED
    return capacity, np.minimum(free, capacity)


def counted(capacity: Resources, free: Resources) -> Integers:
    """Return what of one node is free as a row of :attr:`Cluster.free`."""
    row: Integers = _counted(np.array([amounts_of(capacity)], np.int64), np.array([amounts_of(free)], np.int64))[1][0]
    return row


def _attach_s(views: Sequence[NodeView]) -> Floats:
    seconds = np.fromiter((view.storage_attach_s for view in views), np.float64, len(views))
    # What is quicker is not told apart, and what is reported may be nonsense.
    return np.where((seconds > STORAGE_ATTACH_S) & (seconds < np.inf), seconds, STORAGE_ATTACH_S)


def _remoting_tls(views: Sequence[NodeView]) -> tuple[str, ...]:
    told = {view.remoting_tls for view in views if view.remoting_tls}
    # An older agent does not tell it: it is taken for one of the others where these agree.
    silent = told.pop() if len(told) == 1 else REMOTING_TLS
    return tuple([view.remoting_tls or silent for view in views])


def _is_free(view: DeviceView) -> bool:
    return view.free and not view.destination


def _fabric(
    pools: Sequence[str],
    index: Mapping[str, int],
    views: Sequence[NodeView],
    devices: Sequence[DeviceView],
    device_node: Integers,
) -> Fabric:
    number = {name: row for row, name in enumerate(pools)}
    pairs = sorted(
        {
            (row, number[reach.pool]): reach.attach_s
            for row, view in enumerate(views)
            if view.pools
            for reach in view.pools
        }.items()
    )
    node = np.array([row for (row, _), _ in pairs], np.int64)
    pool = np.array([which for (_, which), _ in pairs], np.int64)
    device_pool = np.array([number.get(view.device.pool, -1) for view in devices], np.int64)
    device_pair = np.full(len(devices), -1, np.int64)
    if pairs:
        key, wanted = node * len(pools) + pool, device_node * len(pools) + device_pool
        at = np.searchsorted(key, wanted).clip(max=len(key) - 1)
        device_pair = np.where((device_pool >= 0) & (key[at] == wanted), at, -1)
    rows = np.array([index[pool_place(name)] for name in pools], np.int64)
    is_pool = np.zeros(len(index), bool)
    is_pool[rows] = True
    return Fabric(
        names=tuple(pools),
        row=rows,
        is_pool=is_pool,
        node=node,
        pool=pool,
        # Nobody attaches in no time, or never: what a node reports may be nonsense.
        attach_s=np.array([seconds if 0 <= seconds < np.inf else ATTACH_S for _, seconds in pairs], np.float64),
        start=np.searchsorted(node, np.arange(len(index) + 1)).astype(np.int64),
        device_pool=device_pool,
        device_pair=device_pair,
    )


def changed_rows(before: Sequence[object], now: Sequence[object]) -> list[int]:
    """Return the rows in which two sequences of equal length differ; many rows are the same objects."""
    rows = []
    for first in range(0, len(now), LOOKED_AT):
        old, new = before[first : first + LOOKED_AT], now[first : first + LOOKED_AT]
        # Compared all at once, by identity first.
        if old != new:
            rows += [row for row, (one, two) in enumerate(zip(old, new, strict=True), first) if one is not two]
    return rows


class Columns:
    """Columns that are kept from one snapshot to the next.

    Where nodes and devices are the same ones and only what is free has
    changed, those rows alone are written anew; what did not change is known
    by being the same object.  Everything else lays the snapshot out whole.
    """

    def __init__(self) -> None:
        self._snapshot = Snapshot(nodes=(), devices=())
        self._cluster = from_snapshot(self._snapshot)
        self._device_rows: dict[str, int] = {}

    def of(self, snapshot: Snapshot) -> Cluster:
        """Return ``snapshot`` as columns; raise :class:`InvalidInput` as :func:`from_snapshot` does."""
        kept = self._updated(snapshot)
        if kept is None:
            kept = from_snapshot(snapshot)
            self._device_rows = {device.id: row for row, device in enumerate(kept.devices)}
        self._snapshot, self._cluster = snapshot, kept
        return kept

    def _updated(self, snapshot: Snapshot) -> Cluster | None:
        """Return the last columns with what is free now; None where more has changed."""
        before, cluster = self._snapshot, self._cluster
        if len(before.nodes) != len(snapshot.nodes) or len(before.devices) != len(snapshot.devices):
            return None
        nodes = [(before.nodes[row], snapshot.nodes[row]) for row in changed_rows(before.nodes, snapshot.nodes)]
        rows_of_devices = changed_rows(before.devices, snapshot.devices)
        devices = [(before.devices[row], snapshot.devices[row]) for row in rows_of_devices]
        if any(
            old.name != new.name
            or old.capacity != new.capacity
            or old.labels != new.labels
            or old.rack != new.rack
            or old.pools != new.pools
            or old.storage_attach_s != new.storage_attach_s
            or old.remoting_tls != new.remoting_tls
            for old, new in nodes
        ) or any(
            old.node != new.node or old.device != new.device or old.destination != new.destination
            for old, new in devices
        ):
            return None
        free, device_free, shares = cluster.free.copy(), cluster.device_free.copy(), dict(cluster.device_shares)
        instances = dict(cluster.device_instances)
        rows = np.array([cluster.index[view.name] for _, view in nodes], np.int64)
        cluster.kept.snapshots.note(rows)
        if nodes:
            capacity = np.array([amounts_of(view.capacity) for _, view in nodes], np.int64)
            free[rows] = _counted(capacity, np.array([amounts_of(view.free) for _, view in nodes], np.int64))[1]
        for _, device in devices:
            row = self._device_rows[device.device.id]
            device_free[row] = _is_free(device) and bool(cluster.device_certain[row])
            if device.shares:
                shares[row] = device.shares
            else:
                shares.pop(row, None)
            if device.instances:
                instances[row] = device.instances
            else:
                instances.pop(row, None)
        return replace(
            cluster,
            free=free,
            device_free=device_free,
            device_shares=shares,
            device_instances=instances,
            links=snapshot.links,
            at=snapshot.at,
            round_memo={},
            moment=cluster.kept.snapshots.now,
        )


def fitting(free: Integers, demand: Sequence[int]) -> Integers:
    """Return how many tasks of ``demand`` fit into each row of ``free`` (M, R), at most :data:`MAX_UNITS`."""
    count = np.full(len(free), MAX_UNITS, np.int64)
    for column, wanted in enumerate(demand):
        if wanted:
            count = np.minimum(count, free[:, column] // wanted)
    return count
