"""Devices, named by what stays the same when they move: UUID, serial, NQN."""

from __future__ import annotations

import enum

from farbus.model.states import DeviceState
from farbus.model.value import Value


class DeviceKind(enum.StrEnum):
    """What sort of device it is."""

    GPU = "gpu"
    NVME = "nvme"
    VOLUME = "volume"
    """A part of a volume that its node stores (:mod:`farbus.model.volume`)."""
    PCI = "pci"
    NETWORK = "network"
    """A programmable switch or network card that runs in-network services."""


class Route(enum.StrEnum):
    """How a device is given to a node."""

    LOCAL = "local"
    REMOTE = "remote"
    RECOMPOSED = "recomposed"


ATTACH_S = 5.0
"""Seconds that a fabric takes to give one device to a node, where nobody has measured it."""


class PoolReach(Value, frozen=True, kw_only=True):
    """A fabric pool that a node can have devices from, and the seconds that attaching one took there."""

    pool: str
    attach_s: float = ATTACH_S


MAX_SHARES = 100
"""Shares of a GPU; NVIDIA's MPS, which limits how much of the processor each has, counts in hundredths."""


class Device(Value, frozen=True, kw_only=True):
    """One device as the agent of its node reports it.

    ``id`` is a GPU's UUID (``GPU-...``), a drive's serial with its model, or a
    PCI function's stable identity; never an index.  ``memory_bytes`` is a
    GPU's memory or a drive's capacity.  A share of a GPU is a device of its own,
    named by :func:`share_id`, with its part of the memory.
    """

    id: str
    kind: DeviceKind
    model: str
    memory_bytes: int = 0
    software: bool = False
    pci_address: str = ""
    numa_node: int = -1
    compute_capability: str = ""
    attributes: dict[str, str] = {}
    pool: str = ""
    """The fabric pool that can give it to another node; empty where nothing can."""
    bandwidth_bytes_per_s: int = 0
    """What a drive reads or writes in a second; 0 where its node does not offer it as storage."""
    resources: dict[str, int] = {}
    """What an in-network device has of each resource that services take: ``stages``, ``sram_bytes``."""
    services: tuple[str, ...] = ()
    """The in-network services that it can run; empty for all."""
    share_milli: int = 0
    """The part of a GPU that it is a share of, in thousandths; 0 for a whole device."""


def share_id(whole: str, number: int) -> str:
    """Return the name of a GPU's share ``number``, counted from 1."""
    return f"{whole}/{number}"


def whole_of(device_id: str) -> str:
    """Return the GPU that a share is of, and a whole device's own name."""
    return device_id.partition("/")[0]


class GpuFilter(Value, frozen=True):
    """Which GPUs will do.  ``model`` is a part of the model's name in lower case."""

    model: str = ""
    memory_bytes: int = 0
    share_milli: int = 0
    """Least part of a GPU that others have too, in thousandths; 0 for a whole one."""

    def takes(self, device: Device) -> bool:
        """Say whether ``device``, a GPU, will do."""
        return (
            self.model in device.model.lower() and device.memory_bytes >= self.memory_bytes and self.takes_part(device)
        )

    def takes_part(self, device: Device) -> bool:
        """Say whether ``device`` is whole, or a share large enough, as asked for."""
        return device.share_milli >= self.share_milli and (device.share_milli > 0) == (self.share_milli > 0)


class DeviceStatus(Value, frozen=True, kw_only=True):
    """A device with what the scheduler knows of its use.

    ``cordon`` says who has cordoned it or its node, when and why; it is empty
    when nobody has.
    """

    device: Device
    node: str
    state: DeviceState
    epoch: int = 0
    lease: str = ""
    job: str = ""
    used_by: str = ""
    cordon: str = ""
    trouble: str = ""
    """Why its node can't take it back, with the story; empty when nothing is wrong."""
    chassis: str = ""
    """The chassis that it is in; empty where none is known."""
    move: str = ""
    """The move that has it; empty where none has."""
    kept_for: str = ""
    """The job, and whose it is, that it is kept for until all that the job needs has come; empty for none."""
