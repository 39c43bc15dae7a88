"""Everything through which an agent touches its machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from farbus.agent.chassis import driver_of
from farbus.agent.config import AgentConfig
from farbus.agent.inventory import GpuSource
from farbus.agent.remoting_host import SupervisorProgram, software_gpu_directory, software_gpu_environment
from farbus.agent.storage import StorageDoors, storage_doors
from farbus.hotplug.fabric.config import ChassisAccess
from farbus.hotplug.fabric.driver import Driver
from farbus.linux.cgroups import Cgroups, KernelCgroups
from farbus.linux.clock import Clock, SystemClock
from farbus.linux.holders import Holders, KernelHolders
from farbus.linux.kept import KeptProcesses
from farbus.linux.node_facts import KernelNodeFacts, NodeFacts
from farbus.linux.notify import Notifier, SystemdNotifier
from farbus.linux.nvidia import DriverNvidia, Nvidia
from farbus.linux.nvml import WorkerNvml
from farbus.linux.pci import KernelPci, Pci
from farbus.linux.process_states import KernelProcessStates, ProcessStates
from farbus.linux.processes import Processes
from farbus.linux.rdma import RdmaDevice, rdma_devices
from farbus.linux.shared_memory import KernelSharedMemory, SharedMemory
from farbus.linux.sysfs import KernelSysfs, Sysfs
from farbus.linux.uevents import KernelUevents, Uevents
from farbus.linux.users import SystemUsers, Users
from farbus.remoting import paths

MARKS = ("FARBUS_UP_STATE",)
"""Variables by which a command that runs this agent finds all that belongs to it."""

SYSTEMD = Path("/run/systemd/system")


class Doors(msgspec.Struct, frozen=True, kw_only=True):
    """One door for each part of the machine; tests put others in their place."""

    processes: Processes
    cgroups: Cgroups
    users: Users
    clock: Clock
    facts: NodeFacts
    sysfs: Sysfs
    notifier: Notifier
    gpu_sources: tuple[GpuSource, ...]
    shared: SharedMemory
    states: ProcessStates = KernelProcessStates()
    remoting: SupervisorProgram = SupervisorProgram()
    rdma: Callable[[], Sequence[RdmaDevice]] = rdma_devices
    pci: Pci | None = None
    uevents: Uevents | None = None
    """Both where the machine's own devices are offered: what comes and goes is listed at once."""
    holders: Holders | None = None
    nvidia: Nvidia | None = None
    """Both where devices can be moved."""
    storage: StorageDoors | None = None
    """Where this node stores for others, or uses what they store."""
    chassis_driver: Callable[[ChassisAccess, Clock], Driver] = driver_of


def real_doors(config: AgentConfig) -> Doors:
    """Return the doors to this machine."""
    sources = []
    if config.physical_devices:
        sources.append(GpuSource(WorkerNvml(), False))
    if config.softgpu:
        directory = software_gpu_directory(config)
        paths.require(directory / "libnvidia-ml.so.1", what="the software GPU's management library")
        environment = {"LD_LIBRARY_PATH": str(directory), **software_gpu_environment(config)}
        sources.append(GpuSource(WorkerNvml(environment=environment), True))
    return Doors(
        processes=KeptProcesses(
            config.programs_directory,
            owner=agent_identity(config),
            mark={name: os.environ[name] for name in MARKS if name in os.environ},
            units=wants_units(config),
        ),
        # By its whole identity: another cluster on this machine may have a node of this name.
        cgroups=KernelCgroups(agent=agent_identity(config).replace(":", "-")),
        users=SystemUsers(),
        clock=SystemClock(),
        facts=KernelNodeFacts(),
        sysfs=KernelSysfs(),
        notifier=SystemdNotifier(),
        gpu_sources=tuple(sources),
        shared=KernelSharedMemory(),
        pci=KernelPci() if config.physical_devices else None,
        uevents=KernelUevents() if config.physical_devices else None,
        holders=KernelHolders(clock=SystemClock()) if config.physical_devices else None,
        nvidia=DriverNvidia() if config.physical_devices else None,
        storage=storage_doors(config),
    )


def wants_units(config: AgentConfig) -> bool:
    """Say whether programs get units of their own: as it is set, else where this agent is a service of systemd."""
    if config.program_units != "auto":
        return config.program_units == "service"
    # sd_booted(3); INVOCATION_ID is in the environment of units (systemd.exec(5)).
    return SYSTEMD.is_dir() and "INVOCATION_ID" in os.environ and os.geteuid() == 0


def agent_identity(config: AgentConfig) -> str:
    """Return what marks this agent's processes: its name and state directory, not the life of one process."""
    digest = hashlib.sha256(str(Path(config.state).resolve()).encode()).hexdigest()[:12]
    return f"agent:{config.name}:{digest}"
