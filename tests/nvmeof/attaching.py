"""A node that attaches namespaces of other nodes, all in files, so that it outlives the processes that work on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec

from farbus.agent.steps import Steps
from farbus.linux.clock import Clock, FakeClock, SystemClock
from farbus.linux.device_mapper import FakeDeviceMapper
from farbus.linux.fake_nvme import FakeNamespace, FakeNvme, FakeTarget
from farbus.linux.holders import FakeHolders
from farbus.linux.uevents import FakeUevents
from farbus.model.nvmeof import (
    Connection,
    ExpectedNamespace,
    SubsystemName,
    namespace_identity,
    transport_address,
)
from farbus.nvmeof.composition import plan_stripe
from farbus.nvmeof.initiator import MendPath
from farbus.nvmeof.keys import LeaseKeys, tls_key_of
from farbus.nvmeof.parts import Attach, InitiatorParts
from farbus.nvmeof.sequences import object_of, resumable, steps_of

FIRST, SECOND = "tcp://10.0.0.2:4420", "tcp://10.0.1.2:4420"
FIRST_TLS, SECOND_TLS = "tcp+tls://10.0.0.2:4421", "tcp+tls://10.0.1.2:4421"
SIZE = 64 << 20
SECRET = "5a" * 32
KEY = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"


def a_connection(lease: str = "l1", epoch: int = 3, **changes: object) -> Connection:
    """A connection to a volume that is called as its lease, over two paths."""
    connection = Connection(
        name=SubsystemName(lease=lease, epoch=epoch),
        addresses=(transport_address(FIRST), transport_address(SECOND)),
        namespaces=(ExpectedNamespace(identity=namespace_identity(lease), size_bytes=SIZE),),
    )
    return msgspec.structs.replace(connection, **changes)


def a_target(connection: Connection, **changes: object) -> FakeTarget:
    """The target that a connection is to find."""
    target = FakeTarget(
        nqn=connection.nqn,
        host_nqn=connection.name.host_nqn,
        addresses=tuple(map(str, connection.addresses)),
        serial=connection.namespaces[0].identity.serial,
        namespaces=tuple(
            FakeNamespace(
                uuid=one.identity.uuid, nguid=one.identity.nguid, size_bytes=one.size_bytes, nsid=one.nsid
            )
            for one in connection.namespaces
        ),
    )  # fmt: skip
    return msgspec.structs.replace(target, **changes)


async def passing(clock: FakeClock, doing: Awaitable[object], *, seconds: float = 100) -> object:
    """Let time pass until something is done, by half seconds."""
    task = asyncio.ensure_future(doing)
    for _ in range(int(2 * seconds)):
        for _ in range(5):
            await asyncio.sleep(0)
        if task.done():
            break
        await clock.advance(0.5)
    return await task


class Node:
    """Made anew by each process that opens ``directory``."""

    def __init__(self, directory: Path, *, version: str = "2.13", clock: Clock | None = None) -> None:
        directory.mkdir(exist_ok=True)
        self.nvme = FakeNvme(directory, version=version)
        self.mapper = FakeDeviceMapper(directory)
        self.holders = FakeHolders(directory)
        self.uevents = FakeUevents()
        self.parts = InitiatorParts(
            nvme=self.nvme,
            mapper=self.mapper,
            holders=self.holders,
            uevents=self.uevents,
            clock=clock or SystemClock(),
            tls_keys=self.nvme.tls_keys,
        )

    def steps(self, work: Attach, *, key: str = "") -> Steps:
        keys = {
            connection.name.lease: LeaseKeys(
                host=key, tls=tls_key_of(SECRET, connection.name) if connection.tls else None
            )
            for connection in work.connections
        }
        return Steps(
            object=object_of(work),
            body=msgspec.json.encode(work).decode(),
            steps=steps_of(self.parts, work, keys=keys),
            resumable=resumable(work),
        )

    def world(self) -> dict[str, object]:
        """What anybody can see."""
        return {
            "controllers": sorted(
                [one.nqn, str(one.address), str(one.state), one.loss_s, len(one.namespaces)]
                for one in self.nvme.controllers()
            ),
            "links": sorted(entry.name for entry in (self.nvme.directory / "dev/disk/by-id").iterdir()),
            "stripes": self.mapper.list(),
            "tls": sorted(str(one.identity) for one in self.nvme.tls_keys.held()),
        }


class AttachOne:
    """A namespace comes over two paths (:mod:`tests.harness.killing`)."""

    key = ""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "node"
        self.passing: Callable[[], None] = lambda: None

    def work(self) -> Attach:
        return Attach(id="l1", connections=(a_connection(),))

    def prepare(self, node: Node) -> None:
        """Make the old world, once."""
        node.nvme.offer(
            *(
                a_target(
                    connection,
                    key=self.key,
                    psk=tls_key_of(SECRET, connection.name).psk if connection.tls else "",
                )
                for connection in self.work().connections
            )
        )

    def _node(self) -> Node:
        new = not self._directory.exists()
        node = Node(self._directory)
        if new:
            self.prepare(node)
        return node

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        yield self._node().steps(self.work(), key=self.key)

    def world(self) -> object:
        return self._node().world()

    def clear(self) -> None:
        """Its directory is removed anyway."""


class AttachWithKey(AttachOne):
    """The target wants a key."""

    key = KEY

    def work(self) -> Attach:
        return Attach(id="l1", connections=(a_connection(authenticated=True),))


class AttachByTls(AttachWithKey):
    """The target speaks nothing but TLS, and wants a key besides."""

    def work(self) -> Attach:
        addresses = (transport_address(FIRST_TLS), transport_address(SECOND_TLS))
        return Attach(id="l1", connections=(a_connection(authenticated=True, addresses=addresses),))

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        node = self._node()
        node.nvme.tls_keys.passing = self.passing
        yield node.steps(self.work(), key=self.key)


class AttachOver(AttachOne):
    """One path is dead: the other one is enough."""

    def prepare(self, node: Node) -> None:
        node.nvme.offer(a_target(a_connection(), cut=(SECOND,)))


class AttachStripe(AttachOne):
    """Two namespaces of two targets become one device."""

    def work(self) -> Attach:
        addresses = {"l1": FIRST, "l2": SECOND}
        connections = tuple(
            a_connection(lease, addresses=(transport_address(address),)) for lease, address in addresses.items()
        )
        stripe = plan_stripe("vol", [connection.namespaces[0] for connection in connections])
        return Attach(id="vol", connections=connections, stripe=stripe)


class MendOne(AttachOne):
    """One of two paths is there, and the other is connected again."""

    def prepare(self, node: Node) -> None:
        """Connect one, as an earlier agent has."""
        super().prepare(node)
        (connection,) = self.work().connections
        first = connection.addresses[0]
        wanted = {
            "transport": "tcp", "traddr": first.address, "trsvcid": first.service, "nqn": connection.nqn,
            "hostnqn": connection.name.host_nqn, "hostid": connection.name.host_id,
            "ctrl_loss_tmo": connection.loss_s, "reconnect_delay": connection.reconnect_delay_s,
            "keep_alive_tmo": connection.keep_alive_s,
        }  # fmt: skip
        assert node.nvme._add(wanted) == ""

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        node, work = self._node(), self.work()
        (connection,) = work.connections
        step = MendPath(parts=node.parts, work=work, connection=connection, address=connection.addresses[1])
        yield Steps(object="path", body=msgspec.json.encode(work).decode(), steps=(step,))
