"""What the scheduler keeps of moves of devices, and of the chassis that they go through."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from farbus.errors import NotFound
from farbus.model.device import ATTACH_S
from farbus.model.fabric import ChassisView, FabricDevice, FabricStep, StepHistory, serials_in
from farbus.model.move import MoveState
from farbus.model.pci import Function
from farbus.model.value import Value

BACK = ".back"
"""Ends the id by which the node that gave a device is asked to take it back: a sequence of its own in its journal."""


class StoredMove(Value, frozen=True, kw_only=True):
    """A move as the ledger has it; times in seconds since the epoch.

    ``to_node`` is empty where the device is only to go, ``from_node`` where it
    was at no node.  ``job`` names the job for which the scheduler moves it by
    itself.
    """

    id: str
    device: str
    from_node: str = ""
    to_node: str = ""
    chassis: str = ""
    from_port: str = ""
    port: str = ""
    evict: bool = False
    drain_s: float = 0.0
    dry_run: bool = False
    by: str
    at: float
    job: str = ""
    epoch: int = 0
    """The device's, from this move on."""
    state: MoveState
    returning: bool = False
    """Whether the node that gave it is to take it back, since the other could not have it."""
    functions: tuple[Function, ...] = ()
    """What the node that gave it saw of it."""
    error: str = ""
    hint: str = ""
    path: str = ""
    ended_at: float = 0.0
    taken_over_by: str = ""
    """The move by which somebody who has looked asked again for a device that was stuck."""
    stuck_at: str = ""
    """The node that could neither finish nor undo its part; empty for one that an earlier scheduler has ended."""
    called_off: str = ""
    """Who has called it off; empty while nobody has."""

    @property
    def holds(self) -> bool:
        """Whether nobody else may have the device."""
        if self.dry_run:
            return False
        return not self.state.has_ended or (self.state is MoveState.STUCK and not self.taken_over_by)

    @property
    def node(self) -> str:
        """The node that has to do the next part of it; empty where there is none."""
        if self.state.has_ended:
            return ""
        if self.state is MoveState.DETACHING or self.returning:
            return self.from_node
        return self.to_node

    @property
    def asked_as(self) -> str:
        """The id by which that node is asked for it."""
        return self.id + BACK if self.returning else self.id

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that take part in it."""
        return tuple(dict.fromkeys(name for name in (self.from_node, self.to_node) if name))


class Part(msgspec.Struct, eq=False):
    """What one node has said of its part of a move, since the scheduler was started."""

    step: int = 0
    steps: int = 0
    says: str = ""
    expected_s: float = 0.0


class MoveRecord(msgspec.Struct, eq=False):
    """A move that holds its device, or a dry run that has not ended."""

    move: StoredMove
    began: float
    """Monotonic time; of one that an earlier scheduler began, by the wall clock."""
    parts: dict[str, Part] = {}
    """By the id under which a node was asked for its part, and the node."""
    plan: tuple[str, ...] = ()
    in_the_way: tuple[str, ...] = ()
    asked: bool = False
    """Whether the node that has to do the next part may have heard of it."""
    begun: bool = False
    """Whether its turn at its chassis has come."""
    rehearsal: str = ""
    """The dry run that has to end before the first node is asked; empty for none."""
    rehearses: str = ""
    """Of a dry run, the move that waits for it."""

    def part(self) -> Part:
        """Return the part that is under way."""
        return self.parts.setdefault(f"{self.move.asked_as}@{self.move.node}", Part())


class ChassisRecord(msgspec.Struct, eq=False):
    """A chassis that some agent has, or had, the credentials for."""

    name: str
    term: int = 0
    """Counts namings of who serves it; it is written down before anybody is told."""
    served_by: str = ""
    """The node whose agent serves it; empty where none does."""
    offers: set[str] = set()
    """Nodes with a session whose agents have its credentials."""
    view: ChassisView | None = None
    history: StepHistory = StepHistory()
    parallel: int = 1
    """Requests that it takes at once."""
    trouble: str = ""
    """Why who serves it can't read it now; empty when it can."""

    @property
    def attach_s(self) -> float:
        """How long it took to have a device moved to a port, with the readings around it; a guess at first."""
        if not self.history.times.get(FabricStep.ASSIGN):
            return ATTACH_S
        return self.history.expected_s(FabricStep.ASSIGN) + 2 * self.history.expected_s(FabricStep.LIST)

    def ports_of(self, node: str) -> tuple[str, ...]:
        """Return the ports that lead to a node."""
        return tuple(port.id for port in self.view.ports if port.node == node) if self.view is not None else ()

    def put(self, name: str, port: str) -> None:
        """Note that a device is at a port now, empty for none, as an agent has verified; the next reading says more."""
        if self.view is not None:
            try:
                found = self.view.device(name).id
            except NotFound:
                return
            devices = tuple(
                msgspec.structs.replace(device, port=port) if device.id == found else device
                for device in self.view.devices
            )
            self.view = msgspec.structs.replace(self.view, devices=devices)

    def nodes(self) -> set[str]:
        """Return the nodes that are cabled to it."""
        return {port.node for port in self.view.ports if port.node} if self.view is not None else set()


class Slots:
    """What is in all chassis, by every name that a device has there or at a node.

    A name that several devices have means none of them: each chassis counts its
    slots from one, and what the reading of one says of another's device is no
    reason to move it.
    """

    def __init__(self, chassis: Iterable[ChassisRecord]) -> None:
        self._named: dict[str, tuple[ChassisRecord, FabricDevice]] = {}
        self._serials: dict[str, tuple[ChassisRecord, FabricDevice]] = {}
        self._several: dict[str, list[tuple[ChassisRecord, FabricDevice]]] = {}
        for record in chassis:
            for device in record.view.devices if record.view is not None else ():
                for name in device.names:
                    first = self._named.setdefault(name, (record, device))
                    if first != (record, device):
                        self._several.setdefault(name, [first]).append((record, device))
                if device.serial:
                    self._serials.setdefault(device.serial, (record, device))

    def find(self, name: str) -> tuple[ChassisRecord, FabricDevice] | None:
        """Return the device of that name, and its chassis; None where none has it, or several have."""
        if not self._named:
            return None
        found = self._named.get(name)
        if found is None:
            # A serial is among the names, too.
            name = self._serial_in(name)
            found = self._serials.get(name)
        return None if name in self._several else found

    @property
    def shares_names(self) -> bool:
        """Whether there is a name that several devices have."""
        return bool(self._several)

    def _serial_in(self, name: str) -> str:
        """Return the serial in a node's name for a drive: of those that are known the longest; empty for none."""
        return next((each for each in reversed(serials_in(name)) if each in self._serials), "")

    def several(self, name: str) -> tuple[str, ...]:
        """Return all that have a name which several have, as CHASSIS/DEVICE; empty for any other."""
        if self._named and name not in self._named:
            name = self._serial_in(name)
        return tuple(f"{record.name}/{device.id}" for record, device in self._several.get(name, ()))
