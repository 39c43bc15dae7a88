"""The door to what NVIDIA's driver does before a GPU is removed: drain state and persistence mode.

A GPU that drains takes no new clients, and who comes does not see it; persistence mode keeps it initialised,
which is a reference of the driver to itself.  Both are calls of NVML, which
holds the driver open and may hang: each is made in a disposable child.  NVML
counts GPUs anew after one has gone, so they are named by PCI address here, and
a handle lives no longer than a call.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from farbus.errors import Unavailable
from farbus.linux.disposable import run_disposable
from farbus.model.pci import Address
from farbus.model.value import Value


class GpuReadiness(Value, frozen=True, kw_only=True):
    """Whether a GPU takes no new clients, and whether its driver keeps it initialised.

    ``uuid`` is empty and all is false where no driver speaks for it.  Of one
    that drains no more than that is told: who asks now does not see it any more.
    """

    uuid: str = ""
    draining: bool = False
    persistent: bool = False


class Nvidia(Protocol):
    """NVIDIA's GPUs, by PCI address.  Everything may be repeated."""

    async def readiness(self, address: str) -> GpuReadiness:
        """Return how a GPU is; the default where no driver speaks for it."""
        ...

    async def set_draining(self, address: str, *, on: bool) -> None:
        """Let it take no new clients, or let it again."""
        ...

    async def set_persistent(self, address: str, *, on: bool) -> None:
        """Keep it initialised without clients, or not."""
        ...


class DriverNvidia:
    """Asks NVIDIA's driver by NVML."""

    async def readiness(self, address: str) -> GpuReadiness:
        """Ask in a child."""
        return msgspec.convert(await run_disposable(read_gpu, address), GpuReadiness)

    async def set_draining(self, address: str, *, on: bool) -> None:
        """Call nvmlDeviceModifyDrainState in a child."""
        await run_disposable(set_draining, address, on)

    async def set_persistent(self, address: str, *, on: bool) -> None:
        """Call nvmlDeviceSetPersistenceMode in a child."""
        await run_disposable(set_persistent, address, on)


def _nvml() -> Any:
    # Only here, in the child: to load NVML is to hold the driver.
    import pynvml  # noqa: PLC0415

    return pynvml


def _begin(nvml: Any) -> None:
    """Initialise NVML, also where the only GPU drains: then there is none to be seen."""
    nvml.nvmlInitWithFlags(nvml.NVML_INIT_FLAG_NO_GPUS)


def _info(nvml: Any, address: str) -> Any:
    at = Address.parse(address)
    info = nvml.nvmlPciInfo_t()
    info.domain, info.bus, info.device = at.domain, at.bus, at.device
    # NVML's form has a domain of eight digits and a function that is always 0.
    info.busId = f"{at.domain:08X}:{at.bus:02X}:{at.device:02X}.0".encode()
    return info


def read_gpu(address: str) -> dict[str, Any]:
    """Return :class:`GpuReadiness` as JSON can hold it."""
    nvml = _nvml()
    try:
        _begin(nvml)
        try:
            # By its address: a process that comes while it drains is given no handle (nvmlDeviceModifyDrainState).
            draining = bool(nvml.nvmlDeviceQueryDrainState(_info(nvml, address)))
        except nvml.NVMLError:
            draining = False
        if draining:
            return {"draining": True}
        handle = nvml.nvmlDeviceGetHandleByPciBusId_v2(_info(nvml, address).busId)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        persistent = bool(nvml.nvmlDeviceGetPersistenceMode(handle))
    except nvml.NVMLError:
        return {}
    return {"uuid": uuid if isinstance(uuid, str) else uuid.decode(), "persistent": persistent}


def set_draining(address: str, on: bool) -> None:
    """Change a GPU's drain state; raise :class:`Unavailable` with NVML's own words."""
    nvml = _nvml()
    try:
        _begin(nvml)
        nvml.nvmlDeviceModifyDrainState(_info(nvml, address), int(on))
    except nvml.NVMLError as error:
        raise Unavailable(f"drain state of GPU {address}: {error}", hint="it takes root") from error


def set_persistent(address: str, on: bool) -> None:
    """Change a GPU's persistence mode; raise :class:`Unavailable` with NVML's own words."""
    nvml = _nvml()
    try:
        _begin(nvml)
        handle = nvml.nvmlDeviceGetHandleByPciBusId_v2(_info(nvml, address).busId)
        nvml.nvmlDeviceSetPersistenceMode(handle, int(on))
    except nvml.NVMLError as error:
        raise Unavailable(f"persistence mode of GPU {address}: {error}", hint="it takes root") from error


class FakeNvidia:
    """GPUs that a test sets, by address."""

    def __init__(self, gpus: dict[str, GpuReadiness] | None = None) -> None:
        self.gpus = dict(gpus or {})

    async def readiness(self, address: str) -> GpuReadiness:
        """Return what is set; of one that drains nothing else is seen."""
        found = self.gpus.get(address, GpuReadiness())
        return GpuReadiness(draining=True) if found.draining else found

    async def set_draining(self, address: str, *, on: bool) -> None:
        """Set it."""
        self._change(address, draining=on)

    async def set_persistent(self, address: str, *, on: bool) -> None:
        """Set it."""
        self._change(address, persistent=on)

    def _change(self, address: str, **values: bool) -> None:
        if address not in self.gpus:
            raise Unavailable(f"GPU {address}: Not Found")
        self.gpus[address] = msgspec.structs.replace(self.gpus[address], **values)
