"""A machine with drives, an NVMe target and an initiator, all in files; and agents on such machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from farbus.agent.config import AgentConfig
from farbus.agent.doors import Doors, real_doors
from farbus.agent.inventory import GpuSource
from farbus.agent.storage import StorageDoors
from farbus.api.conversion import to_message
from farbus.api.v1 import session_pb2, types_pb2
from farbus.linux.device_mapper import FakeDeviceMapper
from farbus.linux.drive_speed import FakeDriveSpeed
from farbus.linux.fake_filesystems import FakeFileSystems
from farbus.linux.fake_lvm import FakeLvm, TreeBlockDevices
from farbus.linux.fake_nvme import FakeNamespace, FakeNvme, FakeTarget
from farbus.linux.fake_nvmet import FakeNvmet
from farbus.linux.holders import FakeHolders
from farbus.linux.node_facts import KernelNodeFacts
from farbus.linux.nvml import FakeNvml, GpuList
from farbus.linux.sysfs import KernelSysfs
from farbus.linux.uevents import FakeUevents
from farbus.model.device import Device, Route
from farbus.model.lease import Lease, LeasedDevice
from farbus.model.nvmeof import AnaState, subsystem_name
from farbus.model.nvmet import Target
from farbus.model.storage import LogicalIdentity
from farbus.model.volume import StorageGrant, VolumePart, part_id
from farbus.nvmeof.volumes import device_path
from tests.agent.harness import MYSELF

MIB = 1 << 20
DRIVE_BYTES = 1024 * MIB
SECRET = "5e" * 32


class Machine:
    """Made anew by each process that opens ``directory``."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.lvm = FakeLvm(directory)
        self.nvmet = FakeNvmet(directory / "config", machine=directory)
        self.nvme = FakeNvme(directory)
        self.blocks = TreeBlockDevices(directory)
        self.mapper = FakeDeviceMapper(directory)
        self.filesystems = FakeFileSystems(directory, size_of=lambda device: self.blocks.look(device).size_bytes)
        self.holders = FakeHolders(directory)
        self.uevents = FakeUevents()
        self.speed = FakeDriveSpeed()

    async def give(self, *serials: str) -> tuple[str, ...]:
        """Put drives in, and give them to the volume group; return their ids."""
        drives = tuple(self.lvm.plug(serial, DRIVE_BYTES) for serial in serials)
        for drive in drives:
            await self.lvm.add_drive(drive)
        return drives

    @property
    def doors(self) -> StorageDoors:
        """What an agent touches storage by."""
        return StorageDoors(
            lvm=self.lvm, nvmet=self.nvmet, nvme=self.nvme, blocks=self.blocks, mapper=self.mapper,
            filesystems=self.filesystems, speed=self.speed, tls_keys=self.nvme.tls_keys, path_of=device_path,
        )  # fmt: skip

    async def target(self) -> Target:
        """What it exports."""
        return await self.nvmet.target()

    def host_key(self, nqn: str) -> str:
        """Return the key that a host must prove."""
        file = self.directory / "config/nvmet/hosts" / nqn / "dhchap_key"
        return file.read_text().strip() if file.exists() else ""

    def psk(self, nqn: str) -> str:
        """Return the key of TLS of a subsystem."""
        name = subsystem_name(nqn)
        return self.nvme.tls_keys.psk(name)[1] if name is not None else ""

    def world(self) -> dict[str, object]:
        """What anybody can see of it, without what differs between two that are equal."""
        return {
            "volumes": sorted(
                [name, one["size"], one["drives"], one["tags"], one["active"]]
                for name, one in self.lvm._state()["volumes"].items()
            ),
            "config": sorted(
                str(path.relative_to(self.directory))
                for path in (self.directory / "config").rglob("*")
                if "farbus" in str(path.relative_to(self.directory))
            ),
            "controllers": sorted([one.nqn, str(one.address), str(one.state)] for one in self.nvme.controllers()),
            "stripes": self.mapper.list(),
            "tls": sorted(str(one.identity) for one in self.nvme.tls_keys.held()),
            "mounts": self._mounts(),
            "swaps": self.filesystems.swaps(),
            "nodes": self.filesystems.nodes(),
        }

    def _mounts(self) -> list[str]:
        return sorted(one["path"] for one in self.filesystems._state()["mounts"])


async def bridge(storing: Machine, using: Machine, *, cut: Sequence[str] = ()) -> None:
    """Let one machine reach what the other exports now, and nothing else; at ``cut`` addresses nobody answers."""
    target = await storing.target()
    offered = {}
    for subsystem in target.subsystems:
        ports = target.ports_of(subsystem.nqn)
        if not subsystem.hosts or not ports:
            continue
        offered[subsystem.nqn] = FakeTarget(
            nqn=subsystem.nqn,
            host_nqn=subsystem.hosts[0],
            addresses=tuple(str(port.at) for port in ports),
            psk=storing.psk(subsystem.nqn),
            serial=subsystem.serial,
            cut=tuple(cut),
            ana={
                str(port.at): AnaState(port.states[str(one.ana_group)])
                for port in ports
                for one in subsystem.namespaces
            },
            key=storing.host_key(subsystem.hosts[0]),
            namespaces=tuple(
                FakeNamespace(
                    uuid=one.uuid, nguid=one.nguid, nsid=one.nsid, size_bytes=storing.blocks.look(one.device).size_bytes
                )
                for one in subsystem.namespaces
                if one.enabled
            ),
        )
    for gone in set(using.nvme.targets()) - set(offered):
        using.nvme.withdraw(gone)
    using.nvme.offer(*offered.values())


def storing_config(config: AgentConfig, **changes: object) -> AgentConfig:
    """Return an agent's settings for a node with storage."""
    settings = {"physical_devices": True, "storage": True, "end_on_stop": False, **changes}
    return msgspec.structs.replace(config, **settings)


class BootedFacts(KernelNodeFacts):
    """This machine's, in a boot that a test names."""

    def __init__(self, boot_id: str) -> None:
        super().__init__()
        self._boot_id = boot_id

    def boot_id(self) -> str:
        return self._boot_id


def storing_doors(config: AgentConfig, machine: Machine, *, boot_id: str = "a-boot") -> Doors:
    """Return this machine's doors, but for the storage of another."""
    return msgspec.structs.replace(
        real_doors(config),
        gpu_sources=(GpuSource(FakeNvml(GpuList(gpus=())), False),),
        sysfs=KernelSysfs(str(machine.directory / "sys")),
        facts=BootedFacts(boot_id),
        pci=None,
        nvidia=None,
        holders=machine.holders,
        uevents=machine.uevents,
        storage=machine.doors,
    )


def storage_lease(
    number: str = "l1",
    *,
    drives: tuple[str, ...] = (),
    volume: str = "",
    epoch: int = 1,
    route: Route = Route.REMOTE,
    name: str = "data",
    size_bytes: int = 64 * MIB,
    job: str = "j1",
    **grant: object,
) -> Lease:
    """Return a lease of room on drives, or of a part of a volume, for a task of this test's user."""
    part = grant.get("part", 0)
    assert isinstance(part, int)
    devices = drives if not volume else (part_id(volume, part),)
    settings: Mapping[str, object] = {"name": name, "volume": volume, "size_bytes": size_bytes, **grant}
    return Lease(
        id=number,
        job=job,
        task="main.0",
        user=MYSELF,
        client_node="n1" if route is Route.LOCAL else "n2",
        device_node="n1",
        route=route,
        devices=tuple(LeasedDevice(device=device, epoch=epoch) for device in devices),
        term=1,
        secret=SECRET,
        storage=msgspec.convert(settings, StorageGrant),
    )


def as_message(lease: Lease) -> types_pb2.Lease:
    """Return a lease as the scheduler sends it."""
    return to_message(lease, types_pb2.Lease)


def part_message(part: VolumePart) -> types_pb2.VolumePart:
    """Return a part of a volume as the scheduler sends it."""
    return to_message(part, types_pb2.VolumePart)


def prepared_message(lease: Lease, endpoint: str) -> session_pb2.PreparedLease:
    """Return a lease whose device side is ready, as the scheduler sends it."""
    return session_pb2.PreparedLease(lease=as_message(lease), endpoint=endpoint)


def devices_of(node: types_pb2.Node) -> dict[str, Device]:
    """Return the devices that a node has told of, by id."""
    from farbus.api.conversion import from_message
    from farbus.model.node import Node

    return {device.id: device for device in from_message(node, Node).devices}


def room_of(lease: Lease) -> LogicalIdentity:
    """Return whose the logical volume of a lease's own room is."""
    return LogicalIdentity(lease=lease.id)
