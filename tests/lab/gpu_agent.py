"""Runs in a guest: the agent, for whom each card of QEMU's model ``edu`` is a GPU with a driver.

A guest has no GPU, and a software GPU is on no bus.  Card, bus and hot-plug are the kernel's here; only what NVML would
say of the card is made up.  The argument is a file with the agent's settings, as ``FARBUS_SETTINGS=print farbus agent``
prints them.
"""

import sys
from pathlib import Path

from farbus.agent import daemon, doors
from farbus.agent.config import AgentConfig
from farbus.linux.nvml import FakeNvml, Gpu, GpuList
from farbus.model.value import from_json

IDS = ("0x1234", "0x11e8")
"""Vendor and device (docs/specs/edu.rst of QEMU)."""

UUID = "GPU-00000000-0000-4000-8000-0000000000ed"


def cards():
    found = []
    for place in sorted(Path("/sys/bus/pci/devices").iterdir()):
        if ((place / "vendor").read_text().strip(), (place / "device").read_text().strip()) == IDS:
            found.append(Gpu(uuid=UUID, name="edu", memory_bytes=2**30, pci_address=place.name))
    return tuple(found)


class CardNvml(FakeNvml):
    async def list(self):
        self.gpus = GpuList(gpus=cards())
        return await super().list()


if __name__ == "__main__":
    doors.WorkerNvml = CardNvml
    sys.exit(daemon.main(from_json(Path(sys.argv[1]).read_bytes(), AgentConfig)))
