"""The two interfaces of a chassis: what a dialect has to bring, and what the rest of Farbus works with.

A :class:`Driver` speaks one dialect.  It asks and reads, and believes nothing:
what a chassis answers to a request does not say what it has done (H3's replies
``false`` to assignments that happened).  A :class:`Fabric` is what hot-plug
uses: its steps are verified by reading the chassis again, are repeatable, and
their errors say what is known.  :class:`farbus.hotplug.fabric.service.ChassisService`
makes the second of the first.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from farbus.model.fabric import ChassisView, FabricDevice, FabricStep


class Answer(NamedTuple):
    """What a chassis says to a request: yes or no, and in its own words why. Only reading tells what it did."""

    accepted: bool
    remark: str = ""


class Driver(Protocol):
    """One chassis in one dialect. No retries, no deadlines, no verification: those are the service's."""

    chassis: str
    parallel: int
    """Requests that the chassis takes at once; 1 for one that is strictly serial."""

    async def read(self) -> ChassisView:
        """Read all ports and devices.

        Raises :class:`ChassisUnavailable`, :class:`ChassisRefused` and
        :class:`BadReply`: a failure is never an empty list.
        """
        ...

    def has_port(self, port: str) -> bool:
        """Say whether the newest reading has a port, beside that it is configured; true where this can't be told."""
        ...

    async def ask_assign(self, device: FabricDevice, port: str) -> Answer:
        """Ask for ``device`` to be assigned to ``port``; return what the chassis answers, which is a hint.

        Raises as :meth:`read` does; then too it may have happened.
        """
        ...

    async def ask_unassign(self, device: FabricDevice) -> Answer:
        """Ask for ``device`` to be taken from the port where it was read; as :meth:`ask_assign`."""
        ...

    async def close(self) -> None:
        """Let connections and sessions go."""
        ...


class Fabric(Protocol):
    """One chassis, for those who move devices. ``device`` and ``port`` are names as :class:`ChassisView` finds them.

    Calls may be made at any time from any task; they wait for their turn.  A
    caller who is cancelled leaves a step that has begun to its end: half asked
    is worse than done, and the next reading shows it.
    """

    chassis: str

    async def list(self) -> ChassisView:
        """Read the chassis; raise an error of :mod:`farbus.hotplug.fabric.errors` rather than tell half of it."""
        ...

    async def assign(self, device: str, port: str) -> FabricDevice:
        """Assign a free device, and return it as it was read afterwards; at once where it is there already.

        Raises :class:`DeviceElsewhere` when it is at another port, and the
        errors of :mod:`farbus.hotplug.fabric.errors`.
        """
        ...

    async def unassign(self, device: str, *, source: str = "") -> FabricDevice:
        """Take a device from its port, and return it as it was read afterwards; at once where it is at none.

        ``source`` is the port where the caller believes it to be:
        :class:`DeviceElsewhere` is raised when it is at another one.
        """
        ...

    async def move(self, device: str, port: str) -> FabricDevice:
        """Take a device from where it is and assign it to ``port``; where that fails, back; else raise MoveStranded.

        For devices that no node uses; hot-plug does the two steps itself, with the nodes' part between them.
        """
        ...

    def expected_s(self, step: FabricStep) -> float:
        """Return how many seconds ``step`` is likely to take, by what was measured."""
        ...

    def deadline_s(self, step: FabricStep) -> float:
        """Return after how many seconds ``step`` is given up."""
        ...
