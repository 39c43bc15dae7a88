"""Devices that a chassis has assigned to this node and that are not on its bus.

A device may be so for a moment: somebody assigns it by hand, and the kernel
finds it by itself.  So each has a grace time, counted from a moment that is
written down; then the node scans for it, and where that brings nothing it is
told as trouble (docs/decisions/0020-moves-of-devices.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

import msgspec
import structlog

from farbus.agent.ports import Ports, bridges_of
from farbus.agent.state_files import read_state, write_state
from farbus.errors import FarbusError
from farbus.linux.clock import Clock
from farbus.model.fabric import ChassisView, FabricDevice
from farbus.model.pci import Identity, PciTree
from farbus.model.value import Value

_log = structlog.get_logger()

GRACE_S = 300.0
"""How long a device may be assigned here and not be on the bus: longer than any kernel takes to find one by itself."""


class Missing(Value, frozen=True, kw_only=True):
    """A device that is assigned to a port of this node and not on its bus; ``since`` is wall time, in seconds."""

    chassis: str
    device: str
    port: str
    since: float
    looked_for: bool = False
    """Whether the bus was scanned for it, in vain."""

    @property
    def key(self) -> str:
        """Names it."""
        return f"{self.chassis}/{self.device}"


def missing_of(
    view: ChassisView,
    tree: PciTree,
    names: Mapping[str, Identity],
    *,
    node: str,
    ports: Ports,
    busy: Callable[[FabricDevice], bool],
    known: Mapping[str, Missing],
    now: float,
) -> tuple[Missing, ...]:
    """Return what a chassis has assigned to ``node`` that is not on its bus, in no move, and since when.  Pure.

    A device that has no name of its own is there while the bridges of its port
    have as many devices without one as the chassis has assigned there.
    """
    found = []
    mine = {port.id for port in view.ports if port.node == node}
    strong = [identity.name for identity in names.values() if not identity.weak]
    for port in sorted(mine):
        assigned = view.at(port)
        # A weak name may be of any of them, wherever nothing says which bridge the port leads to.
        bridges = set(bridges_of(tree, ports, chassis=view.chassis, port=port))
        unnamed = sum(1 for address, identity in names.items() if identity.weak and tree.at(address).parent in bridges)
        for device in assigned:
            if any(device.answers_to(name) for name in strong):
                continue
            if not (device.uuid or device.serial) and unnamed > 0:
                unnamed -= 1
                continue
            if busy(device):
                continue
            one = Missing(chassis=view.chassis, device=device.id, port=port, since=now)
            before = known.get(one.key)
            found.append(before if before is not None and before.port == port else one)
    return tuple(found)


class Orphans:
    """Keeps when each was missed first in ``path``, and has ``scan`` look for those whose grace time is over."""

    def __init__(
        self,
        path: Path,
        *,
        node: str,
        ports: Ports,
        clock: Clock,
        tree: Callable[[], PciTree],
        names: Callable[[PciTree], Mapping[str, Identity]],
        busy: Callable[[FabricDevice], bool],
        scan: Callable[[FabricDevice, ChassisView], Awaitable[None]],
        grace_s: float = GRACE_S,
    ) -> None:
        self._path = path
        self._node = node
        self._ports = ports
        self._clock = clock
        self._tree = tree
        self._names = names
        self._busy = busy
        self._scan = scan
        self._grace_s = grace_s
        self._missing = read_state(path, dict[str, Missing], default={})

    def troubles(self) -> dict[str, str]:
        """Return what was looked for in vain, by device, with why."""
        return {
            one.device: f"chassis {one.chassis} has it assigned to port {one.port}, which leads here, and it is not on "
            "the bus, also after a scan; is the cable in, and the slot powered? farbus detach takes it back"
            for one in self._missing.values()
            if one.looked_for
        }

    async def look(self, view: ChassisView) -> None:
        """Compare a reading with the bus, and look for what has been missing for too long."""
        now = self._clock.wall()
        self._compare(view, now)
        for one in self._due(view.chassis, now):
            try:
                await self._scan(view.device(one.device), view)
            except (FarbusError, OSError) as error:
                _log.error("device not found", device=one.device, chassis=one.chassis, port=one.port, error=str(error))
        due = {one.key for one in self._due(view.chassis, now)}
        # Once more: what the scan has brought is missing no longer.
        self._compare(view, now)
        self._keep(
            {
                key: msgspec.structs.replace(one, looked_for=one.looked_for or key in due)
                for key, one in self._missing.items()
            }
        )

    def _due(self, chassis: str, now: float) -> Collection[Missing]:
        return [
            one
            for one in self._missing.values()
            # A clock that was set back ends the time, rather than stretch it.
            if one.chassis == chassis and not one.looked_for and not 0 <= now - one.since < self._grace_s
        ]

    def _compare(self, view: ChassisView, now: float) -> None:
        tree = self._tree()
        found = missing_of(
            view,
            tree,
            self._names(tree),
            node=self._node,
            ports=self._ports,
            busy=self._busy,
            known=self._missing,
            now=now,
        )
        others = {key: one for key, one in self._missing.items() if one.chassis != view.chassis}
        self._keep({**others, **{one.key: one for one in found}})

    def _keep(self, missing: dict[str, Missing]) -> None:
        if missing == self._missing:
            return
        self._missing = missing
        write_state(self._path, missing)
