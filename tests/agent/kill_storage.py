"""Both sides of leases of storage, to be killed at every record (:mod:`tests.harness.killing`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from farbus.agent.config import AgentConfig
from farbus.agent.events import PreparedLease
from farbus.agent.steps import Steps
from farbus.agent.storage_host import StorageHost, StorageParts, lease_name, stored_as
from farbus.api.authority import Credentials
from farbus.linux.clock import Clock, SystemClock
from farbus.linux.fake_nvme import FakeNamespace, FakeTarget
from farbus.linux.users import SystemUsers
from farbus.model.device import Route
from farbus.model.lease import Lease
from farbus.model.nvmeof import namespace_identity
from farbus.nvmeof.keys import keys_of, tls_key_of
from farbus.nvmeof.parts import InitiatorParts
from farbus.nvmeof.target import TargetParts
from farbus.nvmeof.using import UseParts
from farbus.nvmeof.volumes import device_path
from tests.agent.harness import MYSELF
from tests.agent.storing import MIB, SECRET, Machine, storage_lease

ENDPOINT = "tcp://10.0.0.1:4420"
ENCRYPTED = "tcp+tls://10.0.0.9:4421"


def host_on(
    machine: Machine,
    *,
    tls: bool = False,
    clock: Clock | None = None,
    attached: Callable[[float], None] = lambda _: None,
) -> StorageHost:
    """Return what gives an agent on a machine its steps."""
    config = AgentConfig(
        name="n1", scheduler="127.0.0.1:1", address="10.0.0.1", state=str(machine.directory / "state"),
        socket=str(machine.directory / "socket"), credentials=Credentials(authority="", certificate="", key=""),
        storage=True, run_as_self=True, nvmeof_tls="on" if tls else "off",
    )  # fmt: skip

    async def ended() -> None:
        pass

    initiator = InitiatorParts(
        nvme=machine.nvme, mapper=machine.mapper, holders=machine.holders, uevents=machine.uevents,
        clock=clock or SystemClock(), tls_keys=machine.nvme.tls_keys,
    )  # fmt: skip
    return StorageHost(
        config=config,
        parts=StorageParts(
            lvm=machine.lvm,
            target=TargetParts(nvmet=machine.nvmet, blocks=machine.blocks, tls_keys=machine.nvme.tls_keys),
            use=UseParts(initiator=initiator, blocks=machine.blocks, filesystems=machine.filesystems),
            path_of=device_path,
        ),
        users=SystemUsers(),
        ended=ended,
        attached=attached,
    )


class RoomExported:
    """A lease gets room of its own, exported by a key.  What is marked to be wiped is nobody's."""

    volume = ""
    tls = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "machine"

    def _lease(self) -> Lease:
        drives = tuple(f"NVME-{serial}-Fake_drive" for serial in ("S1", "S2"))
        return storage_lease(drives=drives, volume=self.volume)

    async def _prepare(self, machine: Machine) -> None:
        """Make the old world, once."""
        await machine.give("S1", "S2")

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        new = not self._directory.exists()
        machine = Machine(self._directory)
        if new:
            await self._prepare(machine)
        host = host_on(machine, tls=self.tls)
        await host.start()
        yield Steps(object="lease l1", body="{}", steps=host.device_steps(self._lease()))

    def _machine(self) -> Machine:
        """Return the machine, in the old world where nothing was done yet."""
        new = not self._directory.exists()
        machine = Machine(self._directory)
        if new:
            asyncio.run(self._prepare(machine))
        return machine

    def world(self) -> object:
        found = self._machine().world()
        volumes = found["volumes"]
        assert isinstance(volumes, list)
        return {**found, "volumes": [one for one in volumes if "farbus.going" not in one[3]]}

    def clear(self) -> None:
        """Its directory is removed anyway."""


class RoomExportedByTls(RoomExported):
    """The same, encrypted by another key."""

    tls = True


class StorageUsed(RoomExported):
    """A task mounts storage of another node, which wants a key."""

    use = "mount"
    endpoint = ENDPOINT

    def _leases(self) -> tuple[Lease, ...]:
        return (storage_lease(drives=("d",), use=self.use),)

    async def _prepare(self, machine: Machine) -> None:
        self.offer(machine)

    def offer(self, machine: Machine) -> None:
        """Let other machines export what the leases give."""
        for lease in self._leases():
            name, identity = lease_name(lease), namespace_identity(lease.id)
            namespace = FakeNamespace(uuid=identity.uuid, nguid=identity.nguid, size_bytes=64 * MIB)
            machine.nvme.offer(
                FakeTarget(
                    nqn=name.nqn, host_nqn=name.host_nqn, addresses=(self.endpoint,), serial=identity.serial,
                    key=keys_of(SECRET, name).host, namespaces=(namespace,),
                    psk=tls_key_of(SECRET, name).psk if self.tls else "",
                )
            )  # fmt: skip

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        new = not self._directory.exists()
        machine = Machine(self._directory)
        if new:
            await self._prepare(machine)
        yield self.steps_by(host_on(machine, tls=self.tls))

    def steps_by(self, host: StorageHost) -> Steps:
        """Return the task's side, as a host leads it."""
        leases = tuple(PreparedLease(lease=lease, endpoint=self.endpoint) for lease in self._leases())
        steps = host.client_steps(user=MYSELF, leases=leases, attachment=False, force=False)
        return Steps(object="client j1/main.0", body="{}", steps=steps)


class StorageUsedByTls(StorageUsed):
    """The same, encrypted by another key."""

    tls = True
    endpoint = ENCRYPTED


class StripeMapped(StorageUsed):
    """A task maps a file on two parts."""

    use = "mmap"

    def _leases(self) -> tuple[Lease, ...]:
        return tuple(
            storage_lease(f"l{number + 1}", drives=("d",), use=self.use, part=number, parts=2) for number in range(2)
        )


class LocalRaw(RoomExported):
    """A task has a block device of its own node."""

    def _lease(self) -> Lease:
        return storage_lease(drives=("NVME-S1-Fake_drive",), route=Route.LOCAL, use="raw")

    async def _prepare(self, machine: Machine) -> None:
        await machine.give("S1")
        lease = self._lease()
        await machine.lvm.create(
            stored_as(lease), size_bytes=64 * MIB, drives=tuple(one.device for one in lease.devices)
        )
        await machine.lvm.wipe(stored_as(lease))

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        new = not self._directory.exists()
        machine = Machine(self._directory)
        if new:
            await self._prepare(machine)
        steps = host_on(machine).client_steps(
            user=MYSELF, leases=(PreparedLease(lease=self._lease()),), attachment=False, force=False
        )
        yield Steps(object="client j1/main.0", body="{}", steps=steps)
