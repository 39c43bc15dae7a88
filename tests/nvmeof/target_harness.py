"""A node that exports, all in files: somebody else's subsystem at port 1, and another lease's at an address of ours."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from farbus.agent.steps import Steps
from farbus.linux.block import FakeBlockDevices
from farbus.linux.fake_nvmet import FakeNvmet
from farbus.linux.fake_tls_keys import FakeTlsKeys
from farbus.linux.nvmet import read_target
from farbus.model.nvmeof import (
    AnaState,
    Export,
    ExportedNamespace,
    SubsystemName,
    namespace_identity,
    transport_address,
)
from farbus.model.nvmet import NODE_ANA_GROUP, Target
from farbus.nvmeof.keys import Keys, TlsKey, keys_of, tls_key_of
from farbus.nvmeof.target import (
    AddressWork,
    AnyTargetStep,
    ExportWork,
    TargetParts,
    TargetWork,
    is_resumable,
    object_of,
    steps_of,
    withdraw,
)

SECRET = "5a" * 32
HERE = transport_address("tcp://10.0.0.7:4420")
THERE = transport_address("tcp://[fd00::7]:4420")
HERE_TLS = transport_address("tcp+tls://10.0.0.7:4430")
THERE_TLS = transport_address("tcp+tls://[fd00::7]:4430")
THEIRS = "nqn.2014-08.org.example:theirs"
THEIR_ADDRESS = transport_address("tcp://10.0.0.7:4421")


class Node:
    """A target and its devices; made anew by each process that opens ``directory``."""

    def __init__(self, directory: Path, *, authentication: bool = True) -> None:
        self.directory = directory
        self.nvmet = FakeNvmet(directory / "config", authentication=authentication)
        self.blocks = FakeBlockDevices()
        self.secrets = {"one": SECRET, "two": "a5" * 32}
        self.tls_keys = FakeTlsKeys(directory)
        self.parts = TargetParts(
            nvmet=self.nvmet, blocks=self.blocks, keys=self._keys, tls_keys=self.tls_keys, tls_key=self._tls_key
        )
        for name in ("a", "b", "c"):
            (directory / name).write_bytes(bytes(4096))

    def _keys(self, name: SubsystemName) -> Keys | None:
        secret = self.secrets.get(name.lease)
        return keys_of(secret, name) if secret else None

    def _tls_key(self, name: SubsystemName) -> TlsKey | None:
        secret = self.secrets.get(name.lease)
        return tls_key_of(secret, name) if secret else None

    def device(self, name: str) -> str:
        return str(self.directory / name)

    def export(self, lease: str = "one", epoch: int = 1, devices: Sequence[str] = ("a",), **changes: object) -> Export:
        export = Export(
            name=SubsystemName(lease=lease, epoch=epoch),
            namespaces=tuple(
                ExportedNamespace(device=self.device(device), identity=namespace_identity(device), nsid=nsid)
                for nsid, device in enumerate(devices, start=1)
            ),
            addresses=(HERE,),
        )
        return msgspec.structs.replace(export, **changes)

    def add_foreign(self) -> None:
        """As somebody does who has never heard of Farbus."""
        kernel = self.nvmet.kernel
        kernel.mkdir(f"subsystems/{THEIRS}")
        kernel.write(f"subsystems/{THEIRS}/attr_allow_any_host", "1")
        kernel.write(f"subsystems/{THEIRS}/attr_serial", "THEIRS")
        kernel.mkdir(f"subsystems/{THEIRS}/namespaces/1")
        kernel.write(f"subsystems/{THEIRS}/namespaces/1/device_uuid", "aaaaaaaa-0000-4000-8000-000000000001")
        kernel.write(f"subsystems/{THEIRS}/namespaces/1/device_path", self.device("c"))
        kernel.write(f"subsystems/{THEIRS}/namespaces/1/enable", "1")
        kernel.mkdir("hosts/nqn.2014-08.org.example:host")
        kernel.mkdir("ports/1")
        for name, value in (("trtype", "tcp"), ("adrfam", "ipv4"), ("traddr", "10.0.0.7"), ("trsvcid", "4421")):
            kernel.write(f"ports/1/addr_{name}", value)
        kernel.mkdir("ports/1/ana_groups/2")
        kernel.link(f"ports/1/subsystems/{THEIRS}", f"subsystems/{THEIRS}")

    def target(self) -> Target:
        return msgspec.convert(read_target(str(self.directory / "config/nvmet")), Target)

    def foreign(self) -> Target:
        """What is not ours."""
        target = self.target()
        return Target(
            subsystems=tuple(one for one in target.subsystems if not one.is_ours),
            ports=tuple(one for one in target.ports if not one.is_ours),
            hosts=tuple(one for one in target.hosts if "farbus" not in one.nqn),
        )

    async def offer(self, export: Export) -> dict[str, str]:
        """Go forward, as the runner does."""
        return await forward(steps_of(self.parts, ExportWork(export=export)))

    async def withdraw(self, export: Export) -> None:
        """Go back."""
        await back(steps_of(self.parts, ExportWork(export=export)))

    async def end(self, name: SubsystemName) -> None:
        """End it without any record."""
        await withdraw(self.parts, name)


async def forward(steps: Sequence[AnyTargetStep]) -> dict[str, str]:
    whole: dict[str, str] = {}
    for step in steps:
        found = await step.observe(None)
        whole |= await step.do() if found is None else found
    return whole


async def back(steps: Sequence[AnyTargetStep]) -> None:
    for step in reversed(steps):
        await step.compensate()


class Offered:
    """A subsystem is offered at two addresses, at one of which another lease's is (:mod:`tests.harness.killing`)."""

    authenticated = False
    addresses = (HERE, THERE)

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "node"
        self.passing: Callable[[], None] = lambda: None

    def _node(self) -> Node:
        new = not self._directory.exists()
        self._directory.mkdir(exist_ok=True)
        return self._prepared(Node(self._directory)) if new else Node(self._directory)

    def _prepared(self, node: Node) -> Node:
        node.add_foreign()
        kernel, other = node.nvmet.kernel, SubsystemName(lease="two", epoch=1)
        kernel.mkdir(f"subsystems/{other.nqn}")
        kernel.write(f"subsystems/{other.nqn}/attr_serial", "OTHER")
        kernel.mkdir("ports/64000")
        for name, value in (("trtype", "tcp"), ("adrfam", "ipv4"), ("traddr", "10.0.0.7"), ("trsvcid", "4420")):
            kernel.write(f"ports/64000/addr_{name}", value)
        kernel.link(f"ports/64000/subsystems/{other.nqn}", f"subsystems/{other.nqn}")
        return node

    def work(self, node: Node) -> TargetWork:
        namespaces = tuple(
            msgspec.structs.replace(namespace, ana_group=2) for namespace in node.export(devices=("a", "b")).namespaces
        )
        export = node.export(
            namespaces=namespaces, addresses=self.addresses, authenticated=self.authenticated,
            states={str(self.addresses[0]): {"2": AnaState.NON_OPTIMIZED}},
        )  # fmt: skip
        return ExportWork(export=export)

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        node = self._node()
        node.nvmet.passing = node.tls_keys.passing = self.passing
        work = self.work(node)
        yield Steps(
            object=object_of(work), body=msgspec.json.encode(work).decode(),
            steps=steps_of(node.parts, work), resumable=is_resumable(work),
        )  # fmt: skip

    def world(self) -> object:
        node = self._node()
        told = msgspec.json.encode([node.target(), [str(one.identity) for one in node.tls_keys.held()]]).decode()
        return json.loads(told.replace(str(self._directory), ""))

    def clear(self) -> None:
        """Its directory is removed anyway."""


class OfferedToWhoeverProvesAKey(Offered):
    """The same with keys, which no record has: what is cut off is taken back."""

    authenticated = True


class OfferedByTls(OfferedToWhoeverProvesAKey):
    """The same, and both addresses speak nothing but TLS."""

    addresses = (HERE_TLS, THERE_TLS)


class AddressToBeWithdrawn(Offered):
    """Two leases are offered at two addresses, one of which is to be inaccessible to both."""

    def _prepared(self, node: Node) -> Node:
        kernel = node.nvmet.kernel
        names = [SubsystemName(lease=lease, epoch=1).nqn for lease in ("one", "two")]
        for nqn in names:
            kernel.mkdir(f"subsystems/{nqn}")
            # The kernel would make up another each time.
            kernel.write(f"subsystems/{nqn}/attr_serial", nqn[-5:])
            kernel.mkdir(f"subsystems/{nqn}/namespaces/1")
            kernel.write(f"subsystems/{nqn}/namespaces/1/device_uuid", "aaaaaaaa-0000-4000-8000-000000000002")
            kernel.write(f"subsystems/{nqn}/namespaces/1/ana_grpid", str(NODE_ANA_GROUP))
        for number, address in (("64000", HERE), ("64001", THERE)):
            kernel.mkdir(f"ports/{number}")
            family = "ipv6" if address.is_ipv6 else "ipv4"
            for name, value in (
                ("trtype", "tcp"), ("adrfam", family), ("traddr", address.address), ("trsvcid", "4420"),
            ):  # fmt: skip
                kernel.write(f"ports/{number}/addr_{name}", value)
            kernel.mkdir(f"ports/{number}/ana_groups/{NODE_ANA_GROUP}")
            kernel.write(f"ports/{number}/ana_groups/{NODE_ANA_GROUP}/ana_state", AnaState.OPTIMIZED.value)
            for nqn in names:
                kernel.link(f"ports/{number}/subsystems/{nqn}", f"subsystems/{nqn}")
        return node

    def work(self, node: Node) -> TargetWork:
        return AddressWork(address=HERE, state=AnaState.INACCESSIBLE, before=AnaState.OPTIMIZED)
