"""A node's storage, put together: what it stores, what is asked of it, what its tasks use, and who keeps watch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from farbus.agent.config import AgentConfig
from farbus.agent.events import DeviceClosed, DeviceOpened
from farbus.agent.journal import Journal
from farbus.agent.objects import claims
from farbus.agent.paths import PathTrouble, PathWatch, UsedPaths
from farbus.agent.service import AgentService
from farbus.agent.state_files import read_state, write_state
from farbus.agent.steps import StepRunner, Steps
from farbus.agent.storage_host import StorageHost, StorageParts, stored_as
from farbus.agent.storage_inventory import SMART_S, StorageInventory
from farbus.agent.telemetry.storage import Exported, Overuse, StorageCollector
from farbus.agent.volumes import GrowOrder, Volumes, Wiper, why_not
from farbus.errors import FarbusError, Unavailable
from farbus.linux.block import BlockDevices, KernelBlockDevices
from farbus.linux.clock import Clock
from farbus.linux.device_mapper import DeviceMapper, KernelDeviceMapper
from farbus.linux.drive_speed import DirectReads, DriveSpeed
from farbus.linux.filesystems import FileSystems, KernelFileSystems
from farbus.linux.lvm import KernelLvm, Lvm
from farbus.linux.nvme import KernelNvme, NvmeFabrics
from farbus.linux.nvmet import KernelNvmet, Nvmet
from farbus.linux.processes import DeviceLimit
from farbus.linux.tls_keys import KernelTlsKeys, TlsKeys
from farbus.linux.uevents import Uevents
from farbus.linux.users import Users
from farbus.model.device import Device
from farbus.model.nvmeof import AttachHistory
from farbus.model.pci import Lost, Uevent
from farbus.model.storage import LogicalIdentity
from farbus.model.value import to_json
from farbus.nvmeof.parts import BlockHolders, InitiatorParts
from farbus.nvmeof.paths import PathErrors, Reconnects
from farbus.nvmeof.target import TargetParts, object_of
from farbus.nvmeof.using import UseParts
from farbus.nvmeof.volumes import VolumeParts, device_path

_log = structlog.get_logger()

SETTLE_S = 5.0
"""Between two listings that block devices have caused: one change of a logical volume is a dozen of uevents."""


class StorageDoors(msgspec.Struct, frozen=True, kw_only=True):
    """Everything through which an agent touches its machine's storage.

    ``path_of`` is where a logical volume's block device is while it is active.
    """

    lvm: Lvm
    nvmet: Nvmet
    nvme: NvmeFabrics
    blocks: BlockDevices
    mapper: DeviceMapper
    filesystems: FileSystems
    speed: DriveSpeed
    tls_keys: TlsKeys
    path_of: Callable[[LogicalIdentity], str]


def storage_doors(config: AgentConfig) -> StorageDoors | None:
    """Return the doors to this machine's storage; None where this agent has none of its own, or may not touch it."""
    if not config.physical_devices or os.geteuid() != 0:
        return None
    return StorageDoors(
        lvm=KernelLvm(group=config.volume_group),
        nvmet=KernelNvmet(),
        nvme=KernelNvme(),
        blocks=KernelBlockDevices(),
        mapper=KernelDeviceMapper(),
        filesystems=KernelFileSystems(),
        speed=DirectReads(),
        tls_keys=KernelTlsKeys(),
        path_of=lambda identity: device_path(identity, group=config.volume_group),
    )


class NodeStorage:
    """All of it.  ``look`` lists the node's devices anew, and has them told to the scheduler."""

    def __init__(
        self,
        *,
        config: AgentConfig,
        doors: StorageDoors,
        holders: BlockHolders,
        uevents: Uevents,
        clock: Clock,
        users: Users,
        journal: Journal,
        runner: StepRunner,
        boot_id: str,
        service: AgentService,
        look: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = config
        self._service = service
        self._look = look
        self._runner = runner
        self._uevents = uevents
        self._clock = clock
        self.doors = doors
        self.inventory: StorageInventory | None = None
        """What it stores; None where it stores nothing."""
        self.volumes: Volumes | None = None
        self.reconnects = Reconnects()
        self.path_errors = PathErrors()
        self._heard = asyncio.Event()
        """Set when what this node stores may have changed."""
        self._times_file = Path(config.state) / "attach_times.json"
        self._times = read_state(self._times_file, AttachHistory, default=AttachHistory())
        self.overused: Callable[[Overuse], None] = lambda _: None
        """Called with each lease that has more than it was granted; set by who can tell others."""
        self.paths_told: Callable[[PathTrouble], None] = lambda _: None
        """Called with each lease of which not all paths work; set by who can tell others."""
        self.target = TargetParts(nvmet=doors.nvmet, blocks=doors.blocks, tls_keys=doors.tls_keys)
        self._wiper: Wiper | None = None
        parts = VolumeParts(lvm=doors.lvm)
        if config.storage:
            self.inventory = StorageInventory(
                config=config, lvm=doors.lvm, nvme=doors.nvme, speed=doors.speed,
                journal=journal, runner=runner, clock=clock,
            )  # fmt: skip
            self.volumes = Volumes(
                boot_id=boot_id, journal=journal, runner=runner, parts=parts, target=self.target,
                close=self._close, open=self._open, lease_of=self._lease_of, changed=self._changed,
            )  # fmt: skip
            self._wiper = Wiper(
                runner=runner, parts=parts, clock=clock, turn=self.volumes.turn, changed=self._changed
            )  # fmt: skip
        initiator = InitiatorParts(
            nvme=doors.nvme, mapper=doors.mapper, holders=holders, uevents=uevents, clock=clock, tls_keys=doors.tls_keys
        )  # fmt: skip
        self._paths = PathWatch(
            parts=initiator, runner=runner, clock=clock, used=self._used_paths,
            told=self._tell_paths,
        )  # fmt: skip
        self.host = StorageHost(
            config=config,
            parts=StorageParts(
                lvm=doors.lvm,
                target=self.target,
                use=UseParts(initiator=initiator, blocks=doors.blocks, filesystems=doors.filesystems),
                path_of=doors.path_of,
            ),
            users=users,
            ended=self._room_ended,
            attached=self._attached,
        )

    async def offer(self, devices: Sequence[Device]) -> Sequence[Device]:
        """Return the node's devices with its storage as it is offered."""
        return devices if self.inventory is None else await self.inventory.offer(devices)

    @property
    def attach_s(self) -> float:
        """What attaching storage of other nodes takes, as this node tells it; 0 where it has measured nothing."""
        return self._times.told_s

    def _attached(self, seconds: float) -> None:
        self._times = self._times.with_time(seconds)
        write_state(self._times_file, self._times)

    def io_limits(self, job: str, task: str) -> tuple[DeviceLimit, ...]:
        """Return what a task may do with its storage, before its program starts."""
        held = self._service.machine.client_leases(job, task)
        return self.host.io_limits(held)

    async def grow(self, order: GrowOrder) -> str:
        """Let what a task has made of a volume grow; return why it did not, in one line, or an empty string."""
        held = self._service.machine.client_leases(order.job, order.task)
        told = await why_not(order, self.host.grow(held, order))
        if told:
            _log.warning("storage not grown", order=str(order), error=told)
        else:
            _log.info("storage grown", order=str(order), bytes=order.size_bytes)
        return told

    @property
    def collector(self) -> StorageCollector:
        """What measures it."""
        return StorageCollector(
            nvme=self.doors.nvme,
            blocks=self.doors.blocks,
            reconnects=self.reconnects,
            errors=self.path_errors,
            exported=self._exported,
            smart=lambda: self.inventory.smart if self.inventory is not None else {},
            clock=self._clock,
            told=self._tell_overuse,
        )

    def _used_paths(self) -> tuple[UsedPaths, ...]:
        machine = self._service.machine
        return tuple(one for side in machine.clients() for one in self.host.used_paths(machine.client_leases(*side)))

    def _tell_paths(self, trouble: PathTrouble) -> None:
        self.paths_told(trouble)

    def _tell_overuse(self, overuse: Overuse) -> None:
        self.overused(overuse)

    def _exported(self) -> tuple[Exported, ...]:
        return tuple(
            Exported(
                lease=held.lease.id,
                path=self.doors.path_of(stored_as(held.lease)),
                granted_bytes_per_s=held.lease.storage.bandwidth_bytes_per_s,
            )
            for held in self._service.machine.held()
            if held.device_side and held.lease.storage is not None
        )

    async def _set_addresses(self) -> None:
        """Let addresses at which an earlier agent offers leases be preferred or not, as the settings are now."""
        try:
            works = await self.host.address_works()
        except (FarbusError, OSError) as error:
            _log.warning("addresses of the NVMe target not looked at", reason=str(error))
            return
        for work in works:
            steps = Steps(object=object_of(work), body=to_json(work).decode(), steps=self.host.address_steps(work))
            try:
                await self._runner.perform(steps)
            except (FarbusError, OSError) as error:
                _log.warning(
                    "address keeps its state", address=str(work.address), wanted=work.state.value, reason=str(error)
                )
            else:
                _log.info("state of address set", address=str(work.address), state=work.state.value)

    async def run(self) -> None:
        """Finish or undo what an earlier agent began, wipe what is to be wiped, watch what changes, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._set_addresses(), name="storage addresses")
            group.create_task(self._paths.run(), name="storage paths")
            group.create_task(self._read_errors(), name="errors of storage paths")
            group.create_task(self._listen(), name="storage uevents")
            group.create_task(self._follow(), name="storage changes")
            if self.volumes is not None and self._wiper is not None:
                await self.volumes.recover(group)
                group.create_task(self._wiper.run(), name="wiper")

    async def _read_errors(self) -> None:
        while True:
            await self._clock.sleep(SMART_S)
            await self.path_errors.look(self.doors.nvme)

    async def _listen(self) -> None:
        """Hear when drives or logical volumes have changed, and count what came back of paths."""
        try:
            async with self._uevents.listen() as messages:
                async for message in messages:
                    self.reconnects.hear(message)
                    if concerns_storage(message):
                        self._heard.set()
        except Unavailable as error:
            _log.warning("uevents of storage not heard", reason=str(error))

    async def _follow(self) -> None:
        """Have devices listed when drives or logical volumes have changed."""
        while self.inventory is not None:
            await self._heard.wait()
            self._heard.clear()
            await self._changed()
            await self._clock.sleep(SETTLE_S)

    async def _changed(self) -> None:
        if self.inventory is not None:
            self.inventory.changed()
        await self._look()

    async def _room_ended(self) -> None:
        if self._wiper is not None:
            await self._wiper.ended()

    # What volumes ask of the machine.

    async def _close(self, device: str, reason: str) -> None:
        self._service.post(DeviceClosed(device=device, reason=reason))
        # Requests that came before it are answered by then: who looks for leases afterwards sees theirs.
        await self._service.until(lambda machine: machine.is_closed(device))

    async def _open(self, device: str) -> None:
        self._service.post(DeviceOpened(device=device))
        await self._service.until(lambda machine: not machine.is_closed(device))

    def _lease_of(self, device: str) -> str:
        for held in self._service.machine.held():
            if held.device_side and device in claims(held.lease):
                return held.lease.id
        return ""


def concerns_storage(message: Uevent | Lost) -> bool:
    """Say whether a uevent may change what a node stores: a drive or a logical volume has come or gone."""
    if isinstance(message, Lost):
        return True
    name = message.devpath.rpartition("/")[2]
    # What is written to is told of as well, each time that it was closed ("change" of a namespace).
    return (message.subsystem == "nvme" and message.action in ("add", "remove")) or (
        message.subsystem == "block" and name.startswith(("dm-", "nvme")) and message.action in ("add", "remove")
    )
