"""What a node has: devices by what stays the same about them, processors, memory, network."""

from __future__ import annotations

import fnmatch
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

import msgspec

from farbus import __version__
from farbus.agent.config import AgentConfig
from farbus.errors import FarbusError
from farbus.linux.links import resolved
from farbus.linux.node_facts import NodeFacts
from farbus.linux.nvml import DRIVER, GpuList, Nvml
from farbus.linux.sysfs import NvmeController, PciFunction, Sysfs, own_drives
from farbus.model.device import Device, DeviceKind, share_id
from farbus.model.node import Link, Node, Resources

# PCI class codes (PCI Code and ID Assignment): 3D controller, processing accelerator.
_CLASS_3D_CONTROLLER = 0x0302
_CLASS_ACCELERATOR = 0x1200


class GpuSource(msgspec.Struct, frozen=True):
    """A driver to ask, and whether its GPUs are software."""

    nvml: Nvml
    software: bool


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, and what could not be asked, in one line each."""

    node: Node
    troubles: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """What is here and not listed, since something else has its name, or its driver says nothing of it: a line each."""


def gpu_devices(found: GpuList, *, software: bool) -> tuple[Device, ...]:
    """Return a driver's GPUs as devices."""
    attributes = {
        name: value
        for name, value in (("driver_version", found.driver_version), ("cuda_version", found.cuda_version))
        if value
    }
    return tuple(
        Device(
            id=gpu.uuid,
            kind=DeviceKind.GPU,
            model=gpu.name,
            memory_bytes=gpu.memory_bytes,
            software=software,
            pci_address=gpu.pci_address,
            numa_node=gpu.numa_node,
            compute_capability=gpu.compute_capability,
            attributes=attributes,
        )
        for gpu in found.gpus
    )


def shared_gpus(gpus: Sequence[Device], shares: Mapping[str, int]) -> tuple[Device, ...]:
    """Return ``gpus`` with each that a pattern of ``shares`` matches in equal parts instead.

    The first pattern that matches the UUID or the model counts.
    """
    found: list[Device] = []
    for gpu in gpus:
        number = next(
            (
                number
                for pattern, number in shares.items()
                if fnmatch.fnmatchcase(gpu.id, pattern) or fnmatch.fnmatchcase(gpu.model.lower(), pattern.lower())
            ),
            0,
        )
        found += [
            msgspec.structs.replace(
                gpu,
                id=share_id(gpu.id, part),
                memory_bytes=gpu.memory_bytes // number,
                share_milli=1000 // number,
            )
            for part in range(1, number + 1)
        ] or [gpu]
    return tuple(found)


def nvme_devices(controllers: Sequence[NvmeController]) -> tuple[Device, ...]:
    """Return this node's own drives as devices, each name once; those of a fabric are another node's."""
    return tuple(
        Device(
            id=name,
            kind=DeviceKind.NVME,
            model=controller.model,
            memory_bytes=controller.capacity_bytes,
            pci_address=controller.address,
            numa_node=controller.numa_node,
            attributes={"controller": controller.name, "subsystem_nqn": controller.subsystem_nqn},
        )
        for name, controller in own_drives(controllers).items()
    )


def namesakes(controllers: Sequence[NvmeController]) -> Iterator[str]:
    """Yield, in words, which drives or ports of drives are not listed, since another one has the same name."""
    listed = own_drives(controllers)
    for one in controllers:
        for name in own_drives((one,)):
            if (first := listed[name]) is not one:
                yield f"{one.name} at {one.address}: {first.name} at {first.address} is called {name}, too"


def untold_gpus(functions: Sequence[PciFunction], gpus: Sequence[Device]) -> tuple[PciFunction, ...]:
    """Return what NVIDIA's driver has and NVML does not tell of: GPUs that are broken, or all while it can't be asked.

    They are nothing else than GPUs meanwhile: a job may have one.
    """
    told = {gpu.pci_address for gpu in gpus}
    return tuple(function for function in functions if function.driver == DRIVER and function.address not in told)


def _no_names(_: Sequence[Device]) -> Mapping[str, str]:
    """Where nobody names devices but their drivers."""
    return {}


def accelerator_devices(
    functions: Sequence[PciFunction],
    gpus: Sequence[Device],
    *,
    names: Callable[[Sequence[Device]], Mapping[str, str]] = _no_names,
    moved: Collection[str] = (),
) -> tuple[Device, ...]:
    """Return accelerators on the bus that no driver here has claimed as a GPU, and what else was ``moved`` here.

    ``names`` tells what devices are called wherever they are
    (:func:`farbus.model.pci.identities`), by the address of their first
    function; it is asked where there are any.  One without a name has that of
    its address, and stays.
    """
    claimed = {gpu.pci_address for gpu in gpus}
    found = [
        function
        for function in functions
        if function.address not in claimed
        and (function.pci_class >> 8 in (_CLASS_3D_CONTROLLER, _CLASS_ACCELERATOR) or function.address in moved)
    ]
    called = names(gpus) if found else {}
    return tuple(
        Device(
            id=called.get(function.address) or f"PCI-{function.address}",
            kind=DeviceKind.PCI,
            model=f"{function.vendor:04x}:{function.device:04x}",
            pci_address=function.address,
            numa_node=function.numa_node,
            attributes={"driver": function.driver} if function.driver else {},
        )
        for function in found
    )


async def _network_mbit_s(config: AgentConfig, facts: NodeFacts) -> int:
    """Return the speed of the link by which other nodes reach this one; 0 where nobody knows it.

    Not the sum of all: what remote devices cause goes by that one link, whatever others there are for
    management, storage or storage's replicas.
    """
    if config.network_mbit_s is not None:
        return config.network_mbit_s
    return facts.link_speed(await resolved(config.address))


async def take_inventory(
    config: AgentConfig,
    *,
    facts: NodeFacts,
    sysfs: Sysfs,
    gpu_sources: Sequence[GpuSource],
    names: Callable[[Sequence[Device]], Mapping[str, str]] = _no_names,
    moved: Collection[str] = (),
    storage: Callable[[Sequence[Device]], Awaitable[Sequence[Device]]] | None = None,
) -> Inventory:
    """Look at the whole node.  A driver that can't answer is a trouble, and its devices are not offered.

    ``names`` is asked, with the GPUs and drives that were found, what devices
    are called by the addresses of their first functions; ``moved`` are the
    addresses of devices that were moved to this node.  ``storage`` returns the
    devices with those drives changed that are stored on, and the parts of volumes.
    """
    devices: list[Device] = []
    troubles: list[str] = []
    for source in gpu_sources:
        try:
            found = await source.nvml.list()
            if found.absent and source.software:
                troubles.append(f"software GPUs: {found.absent}")
            troubles += [f"software GPUs: {one}" if source.software else f"NVML: {one}" for one in found.troubles]
            devices += shared_gpus(gpu_devices(found, software=source.software), config.gpu_shares)
        except FarbusError as error:
            troubles.append(f"software GPUs: {error}" if source.software else str(error))
    left_out: tuple[str, ...] = ()
    if config.physical_devices:
        controllers = sysfs.nvme_controllers()
        drives: Sequence[Device] = nvme_devices(controllers)
        left_out = tuple(namesakes(controllers))
        if storage is not None:
            try:
                drives = await storage(drives)
            except FarbusError as error:
                troubles.append(f"storage: {error}")
        devices += drives
        functions = sysfs.pci_functions()
        untold = untold_gpus(functions, devices)
        if not troubles:
            left_out += tuple(
                f"GPU at {one.address}: its driver has it, and NVML does not tell of it; see nvidia-smi and dmesg"
                for one in untold
            )
        others = [function for function in functions if function not in untold]
        devices += accelerator_devices(others, devices, names=names, moved=moved)
    node = Node(
        name=config.name,
        address=config.address,
        boot_id=facts.boot_id(),
        agent_version=__version__,
        capacity=Resources(
            cpu_milli=config.cpu_milli or facts.cpu_count() * 1000,
            memory_bytes=config.memory_bytes or facts.memory_bytes(),
            network_mbit_s=await _network_mbit_s(config, facts),
        ),
        labels=config.labels,
        devices=tuple(devices),
        links=tuple(Link(name=link.name, speed_mbit_s=link.speed_mbit) for link in facts.links() if link.up),
        remoting_tls=config.remoting_tls,
    )
    return Inventory(node=node, troubles=tuple(troubles), left_out=left_out)
