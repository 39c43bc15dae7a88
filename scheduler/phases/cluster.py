"""The cluster as columns: what the phases calculate on.

Nodes are rows in the order of their names, so that neither the order in which
agents connected nor that of the snapshot has any influence on a decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from farbus.errors import InvalidInput
from farbus.model.cluster import LinkLoad, network_load
from farbus.model.decision import DeviceView, NodeView, Snapshot, StorageShare
from farbus.model.device import ATTACH_S, Device
from farbus.model.job import ServiceRequest
from farbus.scheduler.phases.tables import distinct

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

CPU, MEMORY = 0, 1
"""Columns of the vector resources: thousandths of a processor, bytes."""

MAX_UNITS = 2**20
"""Most units that one place can offer and one group can want: above any cluster, below any overflow."""

MAX_NOTES = 100_000
"""Changed rows that are remembered beyond the number of rows: a round on a small cluster changes each row often."""

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

    ``capacity`` and ``free`` are int64 of shape (M, 2), columns ``CPU`` and
    ``MEMORY``.  ``schedulable`` is false for a node that only lends devices.
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

    @property
    def size(self) -> int:
        """Return the number of nodes."""
        return len(self.names)

    def labelled(self, wanted: tuple[tuple[str, str], ...]) -> Flags:
        """Return which nodes may run tasks and have all of the ``wanted`` labels."""
        if not wanted:
            return self.schedulable
        found = self.memo.get(wanted)
        if found is None:
            if len(self.memo) >= MAX_MEMO:
                self.memo.clear()
            has = [all(labels.get(key) == value for key, value in wanted) for labels in self.labels]
            found = self.memo[wanted] = self.schedulable & np.array(has, bool)
        return found

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
            links=self.links,
            at=self.at,
            round_memo=self.round_memo,
            kept=self.kept.idle(),
            fabric=self.fabric,
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
    names = tuple(
        sorted(nodes.keys() | {_place(view) for view in snapshot.devices} | {pool_place(pool) for pool in pools})
    )
    index = {name: row for row, name in enumerate(names)}
    views = [nodes.get(name) for name in names]
    capacity = np.array(
        [(view.capacity.cpu_milli, view.capacity.memory_bytes) if view else (0, 0) for view in views], np.int64
    ).reshape(-1, 2)
    free = np.array(
        [(view.free.cpu_milli, view.free.memory_bytes) if view else (0, 0) for view in views], np.int64
    ).reshape(-1, 2)
    racks = {name: number for number, name in enumerate(sorted({view.rack for view in views if view}))}
    devices = _devices(snapshot.devices, index)
    claimed = Counter(view.device.id for view in snapshot.devices)
    certain = np.array([claimed[view.device.id] == 1 for view in devices], bool)
    device_node = np.array([index[_place(view)] for view in devices], np.int64)
    return Cluster(
        names=names,
        index=index,
        capacity=capacity.clip(min=0),
        free=np.minimum(free.clip(min=0), capacity.clip(min=0)),
        schedulable=np.array([view is not None for view in views], bool),
        labels=tuple(view.labels if view else {} for view in views),
        rack=np.array([racks[view.rack] if view else -1 for view in views], np.int64),
        devices=tuple(view.device for view in devices),
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
    )


def pool_place(pool: str) -> str:
    """Return the name of the place of devices that no node has; no node is called so."""
    return f"pool {pool}"


def _place(view: DeviceView) -> str:
    """Return where a device counts: where it will be when it is on its way."""
    return view.destination or view.node or pool_place(view.device.pool)


def _is_free(view: DeviceView) -> bool:
    return view.free and not view.destination


def _fabric(
    pools: Sequence[str],
    index: Mapping[str, int],
    views: Sequence[NodeView | None],
    devices: Sequence[DeviceView],
    device_node: Integers,
) -> Fabric:
    number = {name: row for row, name in enumerate(pools)}
    pairs = sorted(
        {
            (row, number[reach.pool]): reach.attach_s
            for row, view in enumerate(views)
            if view is not None
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
        nodes = [(old, new) for old, new in zip(before.nodes, snapshot.nodes, strict=True) if old is not new]
        devices = [(old, new) for old, new in zip(before.devices, snapshot.devices, strict=True) if old is not new]
        if any(
            old.name != new.name
            or old.capacity != new.capacity
            or old.labels != new.labels
            or old.rack != new.rack
            or old.pools != new.pools
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
        for row, (_, view) in zip(rows.tolist(), nodes, strict=True):
            room = (max(view.free.cpu_milli, 0), max(view.free.memory_bytes, 0))
            free[row] = np.minimum(room, cluster.capacity[row])
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


def _devices(views: Iterable[DeviceView], index: Mapping[str, int]) -> list[DeviceView]:
    return sorted(views, key=lambda view: (index[_place(view)], view.device.memory_bytes, view.device.id))


def fitting(free: Integers, cpu_milli: int, memory_bytes: int) -> Integers:
    """Return how many tasks fit into each row of ``free`` (M, 2), at most :data:`MAX_UNITS`."""
    count = np.full(len(free), MAX_UNITS, np.int64)
    if cpu_milli:
        count = np.minimum(count, free[:, CPU] // cpu_milli)
    if memory_bytes:
        count = np.minimum(count, free[:, MEMORY] // memory_bytes)
    return count
