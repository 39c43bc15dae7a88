"""The cluster as columns: what the phases calculate on.

Nodes are rows in the order of their names, so that neither the order in which
agents connected nor that of the snapshot has any influence on a decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from farbus.errors import InvalidInput
from farbus.model.cluster import network_load
from farbus.model.decision import DeviceView, NodeView, Snapshot
from farbus.model.device import Device

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

CPU, MEMORY = 0, 1
"""Columns of the vector resources: thousandths of a processor, bytes."""

MAX_UNITS = 2**20
"""Most units that one place can offer and one group can want: above any cluster, below any overflow."""


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
    network_load: Floats
    """Of each node, shape (M,): how busy its busiest link is, from 0 to 1; 0 where nobody knows."""
    device_certain: Flags
    """False for a device that several nodes claim: nobody is given it."""
    memo: dict[Hashable, npt.NDArray[Any]] = field(default_factory=dict)
    """What was found once about nodes or devices that does not depend on what is free."""

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
            has = [all(labels.get(key) == value for key, value in wanted) for labels in self.labels]
            found = self.memo[wanted] = self.schedulable & np.array(has, bool)
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
            network_load=self.network_load,
            device_certain=self.device_certain,
            memo=self.memo,
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
    names = tuple(sorted(nodes.keys() | {view.node for view in snapshot.devices}))
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
    device_node = np.array([index[view.node] for view in devices], np.int64)
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
        device_free=np.array([view.free for view in devices], bool) & certain,
        network_load=np.array(
            [network_load(view.links, snapshot.at) if view and view.links else 0.0 for view in views], np.float64
        ),
        device_certain=certain,
    )


def _devices(views: Iterable[DeviceView], index: Mapping[str, int]) -> list[DeviceView]:
    return sorted(views, key=lambda view: (index[view.node], view.device.memory_bytes, view.device.id))


def fitting(free: Integers, cpu_milli: int, memory_bytes: int) -> Integers:
    """Return how many tasks fit into each row of ``free`` (M, 2), at most :data:`MAX_UNITS`."""
    count = np.full(len(free), MAX_UNITS, np.int64)
    if cpu_milli:
        count = np.minimum(count, free[:, CPU] // cpu_milli)
    if memory_bytes:
        count = np.minimum(count, free[:, MEMORY] // memory_bytes)
    return count
