"""Telemetry of an initiator: what goes over each path, in which state it is, and how often it was lost.

Linux counts no reconnects that it would tell.  It does send a uevent when a
controller is connected (``NVME_EVENT=connected``, nvme_start_ctrl of
drivers/nvme/host/core.c), the first time and each time again; those are
counted by whoever listens.
"""

from __future__ import annotations

from collections.abc import Iterable

from farbus.linux.nvme import NvmeFabrics
from farbus.model.nvmeof import Controller, PathFigures, subsystem_name
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


def figures(nvme: NvmeFabrics, reconnects: Reconnects | None = None) -> tuple[PathFigures, ...]:
    """Return the figures of all paths of leases, as they are now."""
    return tuple(_figures(nvme, nvme.controllers(), reconnects))


def _figures(
    nvme: NvmeFabrics, controllers: Iterable[Controller], reconnects: Reconnects | None
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
            )
