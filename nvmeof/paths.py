"""Telemetry of an initiator: what goes over each path, its state, how often it was lost, and its errors.

Linux counts no reconnects that it would tell.  It does send a uevent when a
controller is connected (``NVME_EVENT=connected``, nvme_start_ctrl of
drivers/nvme/host/core.c), the first time and each time again; those are
counted by whoever listens.

Errors of commands are counted by the other side: each path's controller keeps an
error log from when it was connected, and its SMART log tells how many entries that has
(Linux's target: nvmet_set_error of drivers/nvme/target/core.c).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from farbus.errors import FarbusError
from farbus.linux.nvme import NvmeFabrics
from farbus.model.nvmeof import Controller, ControllerState, PathFigures, subsystem_name
from farbus.model.pci import Lost, Uevent


class Reconnects:
    """Counts, by the kernel's name of a controller, how often it came back.

    A name is given again: its count begins anew when its controller is removed.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self.lost_events = 0
        """How often the kernel had more to tell than was heard: the counts are too low from then on."""

    def hear(self, message: Uevent | Lost) -> None:
        """Take a uevent."""
        if isinstance(message, Lost):
            self.lost_events += 1
            return
        name = message.devpath.rpartition("/")[2]
        if message.subsystem != "nvme":
            return
        if message.action in ("add", "remove"):
            # What is counted from its beginning has been connected once more than it has come back.
            self._counts.pop(name, None)
            if message.action == "add":
                self._counts[name] = -1
        elif message.properties.get("NVME_EVENT") == "connected":
            self._counts[name] = self._counts.get(name, 0) + 1

    def of(self, name: str) -> int:
        """Return how often a controller came back since it is listened to."""
        return max(0, self._counts.get(name, 0))


ERRORS_DEADLINE_S = 10.0
"""Within which a controller tells of its errors, or is left out."""


class PathErrors:
    """Entries of the error logs of leases' controllers, by the kernel's name of each, as of the last look."""

    def __init__(self) -> None:
        self._entries: dict[str, int] = {}

    async def look(self, nvme: NvmeFabrics) -> None:
        """Ask all that are live; who does not answer has no number until the next look."""
        found = {}
        for controller in nvme.controllers():
            if controller.state is not ControllerState.LIVE or subsystem_name(controller.nqn) is None:
                continue
            try:
                async with asyncio.timeout(ERRORS_DEADLINE_S):
                    found[controller.name] = (await nvme.smart_log(controller.name)).error_log_entries
            except (FarbusError, OSError):
                # Its state tells why.
                continue
        self._entries = found

    def of(self, name: str) -> int | None:
        """Return how many a controller had; None where it is not known."""
        return self._entries.get(name)


def figures(
    nvme: NvmeFabrics, reconnects: Reconnects | None = None, errors: PathErrors | None = None
) -> tuple[PathFigures, ...]:
    """Return the figures of all paths of leases, as they are now."""
    return tuple(_figures(nvme, nvme.controllers(), reconnects, errors))


def _figures(
    nvme: NvmeFabrics, controllers: Iterable[Controller], reconnects: Reconnects | None, errors: PathErrors | None
) -> Iterable[PathFigures]:
    for controller in controllers:
        if subsystem_name(controller.nqn) is None:
            continue
        for path in controller.namespaces:
            yield PathFigures(
                nqn=controller.nqn,
                address=controller.address,
                uuid=path.uuid,
                state=controller.state,
                ana_state=path.ana_state,
                statistics=nvme.statistics(path.path),
                reconnects=reconnects.of(controller.name) if reconnects is not None else 0,
                errors=errors.of(controller.name) if errors is not None else None,
            )
