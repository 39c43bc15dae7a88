"""Devices, named by what stays the same when they move: UUID, serial, NQN."""

from __future__ import annotations

import enum

from farbus.model.states import DeviceState
from farbus.model.value import Value


class DeviceKind(enum.StrEnum):
    """What sort of device it is."""

    GPU = "gpu"
    NVME = "nvme"
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


class Device(Value, frozen=True, kw_only=True):
    """One device as the agent of its node reports it.

    ``id`` is a GPU's UUID (``GPU-...``), a drive's serial with its model, or a
    PCI function's stable identity; never an index.  ``memory_bytes`` is a
    GPU's memory or a drive's capacity.
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
