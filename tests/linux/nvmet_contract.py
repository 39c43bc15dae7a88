"""What Linux's NVMe target does, as the door and its fake must both show it.

Runs in pytest on the fake (test_nvmet.py), and as a program on a guest's real
kernel (tests/lab/test_nvmet.py)::

    python -m tests.linux.nvmet_contract DEVICE

which prints one JSON object: for each of :data:`CONTRACTS`, nothing or what was wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import stat
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from farbus.errors import Conflict, FarbusError, NotFound, Unavailable
from farbus.linux.nvmet import Configfs, KernelConfigfs, KernelNvmet, Operation, perform, read_target
from farbus.model.nvmeof import (
    MODEL,
    AnaState,
    ExportedNamespace,
    SubsystemName,
    Transport,
    TransportAddress,
    namespace_identity,
)
from farbus.model.nvmet import PORTS, Target, TargetHost, TargetNamespace, TargetPort, TargetSubsystem
from farbus.nvmeof.keys import keys_of

NAME = SubsystemName(lease="contract", epoch=3)
NQN, HOST = NAME.nqn, NAME.host_nqn
THEIRS = "nqn.2014-08.org.example:theirs"
PORT, OTHER = PORTS.start, PORTS.start + 1
HERE = TransportAddress(transport=Transport.TCP, address="127.0.0.1", service=4471)
ENCRYPTED = TransportAddress(transport=Transport.TCP, address="127.0.0.1", service=4471, tls=True)
ELSEWHERE = TransportAddress(transport=Transport.TCP, address="192.0.2.1", service=4471)


@contextlib.contextmanager
def raises(kind: type[FarbusError], match: str) -> Iterator[list[FarbusError]]:
    """As pytest's, which no guest has."""
    caught: list[FarbusError] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    told = " ".join(map(str, caught))
    assert re.search(match, told), f"{told or 'nothing'}, and not {match}"


def same(found: list[str], wanted: list[str]) -> None:
    """Tell what differs: outside of pytest, an assertion alone does not."""
    assert found == wanted, f"{found}, not {wanted}"


class World:
    """A target with nothing in it, and a device to export."""

    def __init__(self, nvmet: KernelNvmet, configfs: Configfs, root: Path, device: str) -> None:
        self.nvmet, self.configfs, self.root, self.device = nvmet, configfs, root, device

    @property
    def authentication(self) -> bool:
        """Whether this kernel knows keys."""
        self.configfs.mkdir("hosts/probe")
        there = (self.root / "hosts/probe/dhchap_key").exists()
        self.configfs.rmdir("hosts/probe")
        return there

    def namespace(self, nsid: int = 1, *, group: int = 1) -> ExportedNamespace:
        identity = namespace_identity(f"volume-{nsid}")
        return ExportedNamespace(device=self.device, identity=identity, nsid=nsid, ana_group=group)

    def says(self, *call: str) -> str:
        """Return the name of what one system call says: ``ok`` or an errno."""
        name, *arguments = call
        try:
            getattr(self.configfs, name)(*arguments)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return "ok"

    async def clear(self) -> None:
        """Remove everything."""
        for pattern in ("ports/*/subsystems/*", "subsystems/*/allowed_hosts/*"):
            for link in self.root.glob(pattern):
                self.configfs.unlink(str(link.relative_to(self.root)))
        for pattern in (
            "ports/*/ana_groups/*", "ports/*/referrals/*", "ports/*", "subsystems/*/namespaces/*", "subsystems/*",
            "hosts/*",
        ):  # fmt: skip
            for place in self.root.glob(pattern):
                if not str(place).endswith("/ana_groups/1"):
                    self.configfs.rmdir(str(place.relative_to(self.root)))


async def what_is_made_is_read(world: World) -> None:
    nvmet = world.nvmet
    await nvmet.make_subsystem(NQN, serial="SERIAL")
    await nvmet.make_namespace(NQN, world.namespace(1))
    await nvmet.make_namespace(NQN, world.namespace(7, group=3))
    await nvmet.make_host(HOST)
    await nvmet.allow_host(NQN, HOST)
    await nvmet.make_port(PORT, HERE)
    await nvmet.set_access(PORT, 3, AnaState.NON_OPTIMIZED)
    await nvmet.offer(PORT, NQN)
    target = await nvmet.target()
    expected = [
        TargetNamespace(
            nsid=one.nsid, device=world.device, uuid=one.identity.uuid, nguid=one.identity.nguid,
            ana_group=one.ana_group, enabled=True,
        )
        for one in (world.namespace(1), world.namespace(7, group=3))
    ]  # fmt: skip
    assert target.subsystems == (
        TargetSubsystem(
            nqn=NQN, serial="SERIAL", model=MODEL, any_host=False, hosts=(HOST,), namespaces=tuple(expected)
        ),
    )
    assert target.hosts == (TargetHost(nqn=HOST, authenticated=False),)
    assert target.ports == (
        TargetPort(
            id=PORT, transport="tcp", family="ipv4", address="127.0.0.1", service="4471", subsystems=(NQN,),
            states={"1": "optimized", "3": "non-optimized"},
        ),
    )  # fmt: skip


async def what_is_removed_is_gone(world: World) -> None:
    await what_is_made_is_read(world)
    nvmet = world.nvmet
    await nvmet.disable_namespaces(NQN, [1, 7, 9])
    target = await nvmet.target()
    assert [namespace.enabled for namespace in target.subsystems[0].namespaces] == [False, False]
    for _ in range(2):
        await nvmet.withhold(PORT, NQN)
        await nvmet.remove_port(target.ports[0])
        await nvmet.remove_subsystem(target.subsystems[0])
        await nvmet.remove_host(HOST)
    target = await nvmet.target()
    assert target == Target()


async def everything_may_be_repeated(world: World) -> None:
    await what_is_made_is_read(world)
    await world.nvmet.allow_host(NQN, HOST)
    await world.nvmet.offer(PORT, NQN)
    await world.nvmet.make_namespace(NQN, world.namespace(1))
    await world.nvmet.set_access(PORT, 3, AnaState.INACCESSIBLE)
    await world.nvmet.revalidate_size(NQN, 1)
    await world.nvmet.forbid_host(NQN, HOST)
    await world.nvmet.forbid_host(NQN, HOST)
    target = await world.nvmet.target()
    assert target.subsystems[0].hosts == ()
    assert target.ports[0].states["3"] == "inaccessible"


async def a_kernel_makes_identities_up(world: World) -> None:
    for name in ("a", "b"):
        world.configfs.mkdir(f"subsystems/{name}")
        world.configfs.mkdir(f"subsystems/{name}/namespaces/1")
    first, second = (await world.nvmet.target()).subsystems
    assert first.serial != second.serial
    assert first.namespaces[0].uuid != second.namespaces[0].uuid
    assert first.namespaces[0].nguid == "0" * 32
    assert (first.namespaces[0].device, first.namespaces[0].enabled, first.model) == ("", False, "Linux")


async def an_enabled_namespace_keeps_its_device(world: World) -> None:
    world.configfs.mkdir(f"subsystems/{NQN}")
    place = f"subsystems/{NQN}/namespaces/1"
    world.configfs.mkdir(place)
    uuid = "aaaaaaaa-0000-4000-8000-000000000001"
    same([
        world.says("write", f"{place}/{name}", value)
        for name, value in (
            ("enable", "1"), ("device_path", "/nothing/there"), ("enable", "1"), ("revalidate_size", "1"),
            ("device_uuid", "zz"), ("device_nguid", "zz"), ("ana_grpid", "129"), ("device_path", "\n"),
            ("device_path", world.device), ("enable", "1"), ("enable", "1"), ("device_path", world.device),
            ("device_uuid", uuid), ("device_nguid", uuid), ("ana_grpid", "2"), ("revalidate_size", "1"),
            ("revalidate_size", "0"), ("enable", "0"), ("device_uuid", uuid), ("enable", "maybe"),
        )
    ], [
        "EINVAL", "ok", "ENOENT", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "ok", "ok", "ok", "EBUSY", "EBUSY",
        "EBUSY", "ok", "ok", "EINVAL", "ok", "ok", "EINVAL",
    ])  # fmt: skip


async def a_missing_device_is_named(world: World) -> None:
    await world.nvmet.make_subsystem(NQN, serial="S")
    gone = ExportedNamespace(device="/dev/nothing", identity=namespace_identity("v"))
    with raises(NotFound, match=f"namespace 1 of {NQN} on /dev/nothing: No such file or directory"):
        await world.nvmet.make_namespace(NQN, gone)


async def names_have_rules(world: World) -> None:
    world.configfs.mkdir(f"subsystems/{NQN}")
    world.configfs.mkdir(f"ports/{PORT}")
    same([
        world.says("mkdir", path)
        for path in (
            f"subsystems/{NQN}", f"subsystems/{NQN}/thing", f"subsystems/{NQN}/namespaces/0",
            f"subsystems/{NQN}/namespaces/x", "ports/abc", "ports/70000", f"ports/{PORT}/ana_groups/1",
            f"ports/{PORT}/ana_groups/129", f"ports/{PORT}/ana_groups/2",
            "subsystems/nqn.2014-08.org.nvmexpress.discovery",
        )
    ], ["EEXIST", "EPERM", "EINVAL", "EINVAL", "EINVAL", "EINVAL", "EEXIST", "EINVAL", "ok", "EINVAL"])  # fmt: skip
    assert (await world.nvmet.target()).ports[0].states == {"1": "optimized", "2": "inaccessible"}


async def order_of_removal(world: World) -> None:
    configfs = world.configfs
    await what_is_made_is_read(world)
    same([
        world.says("rmdir", path)
        for path in (
            f"ports/{PORT}", f"subsystems/{NQN}", f"hosts/{HOST}", f"subsystems/{NQN}/namespaces",
            f"ports/{PORT}/ana_groups/1", f"subsystems/{NQN}/namespaces/9",
        )
    ], ["ENOTEMPTY", "EBUSY", "EBUSY", "EPERM", "EPERM", "ENOENT"])  # fmt: skip
    configfs.unlink(f"ports/{PORT}/subsystems/{NQN}")
    # Its group is still there; an enabled namespace may go.
    assert world.says("rmdir", f"ports/{PORT}") == "ENOTEMPTY"
    assert world.says("rmdir", f"subsystems/{NQN}") == "ENOTEMPTY"
    for nsid in (1, 7):
        assert world.says("rmdir", f"subsystems/{NQN}/namespaces/{nsid}") == "ok"
    assert world.says("rmdir", f"subsystems/{NQN}") == "ENOTEMPTY"
    assert world.says("unlink", f"subsystems/{NQN}/allowed_hosts/{HOST}") == "ok"
    assert world.says("rmdir", f"subsystems/{NQN}") == "ok"


async def links_have_rules(world: World) -> None:
    configfs = world.configfs
    configfs.mkdir(f"subsystems/{NQN}")
    configfs.mkdir(f"hosts/{HOST}")
    configfs.mkdir(f"ports/{PORT}")
    links = f"ports/{PORT}/subsystems"
    hosts = f"subsystems/{NQN}/allowed_hosts"
    assert world.says("link", f"{links}/{NQN}", f"subsystems/{NQN}") == "EINVAL", "a port without an address"
    await world.nvmet.make_port(PORT, HERE)
    same([
        world.says("link", *link)
        for link in (
            (f"{links}/{NQN}", f"subsystems/{NQN}"), (f"{links}/{NQN}", f"subsystems/{NQN}"),
            (f"{links}/again", f"subsystems/{NQN}"), (f"{links}/host", f"hosts/{HOST}"),
            (f"{hosts}/{NQN}", f"subsystems/{NQN}"), (f"{hosts}/{HOST}", f"hosts/{HOST}"),
            (f"{hosts}/{HOST}", f"hosts/{HOST}"), (f"{hosts}/nobody", "hosts/nobody"),
        )
    ], ["ok", "EEXIST", "EEXIST", "EINVAL", "EINVAL", "ok", "EEXIST", "ENOENT"])  # fmt: skip
    assert world.says("write", f"subsystems/{NQN}/attr_allow_any_host", "1") == "EINVAL"
    assert world.says("unlink", f"{hosts}/nobody") == "ENOENT"
    configfs.unlink(f"{hosts}/{HOST}")
    configfs.write(f"subsystems/{NQN}/attr_allow_any_host", "1")
    assert world.says("link", f"{hosts}/{HOST}", f"hosts/{HOST}") == "EINVAL"


async def a_port_that_listens_keeps_its_address(world: World) -> None:
    await world.nvmet.make_subsystem(NQN, serial="S")
    await world.nvmet.make_port(PORT, HERE)
    await world.nvmet.offer(PORT, NQN)
    place = f"ports/{PORT}"
    changes = [("addr_traddr", "127.0.0.2"), ("addr_trtype", "rdma"), ("param_inline_data_size", "8192")]
    assert [world.says("write", f"{place}/{name}", value) for name, value in changes] == ["EACCES"] * 3
    await world.nvmet.withhold(PORT, NQN)
    changes = [*changes, ("addr_trtype", "pigeon"), ("addr_adrfam", "ipv5")]
    assert [world.says("write", f"{place}/{name}", value) for name, value in changes] == ["ok"] * 3 + ["EINVAL"] * 2


async def two_ports_can_not_listen_at_one_address(world: World) -> None:
    await world.nvmet.make_subsystem(NQN, serial="S")
    for port in (PORT, OTHER):
        await world.nvmet.make_port(port, HERE)
    await world.nvmet.offer(PORT, NQN)
    with raises(Conflict, match=f"offer {NQN} at port {OTHER}: Address already in use"):
        await world.nvmet.offer(OTHER, NQN)
    await world.nvmet.make_port(OTHER, ELSEWHERE)
    with raises(Unavailable, match="Cannot assign requested address"):
        await world.nvmet.offer(OTHER, NQN)


async def a_port_of_tls_speaks_nothing_else(world: World) -> None:
    if not world.authentication:
        # Debian's 6.1 has neither.
        with raises(Unavailable, match="this kernel's target knows no TLS"):
            await world.nvmet.make_port(PORT, ENCRYPTED)
        return
    for _ in range(2):
        await world.nvmet.make_port(PORT, ENCRYPTED)
        (port,) = (await world.nvmet.target()).ports
        assert (port.at, port.is_at(ENCRYPTED), port.is_at(HERE)) == (ENCRYPTED, True, False)
        assert port.is_in_the_way(HERE)
    place = f"ports/{PORT}"
    same([
        world.says("write", f"{place}/{name}", value)
        for name, value in (
            ("addr_treq", "not specified"), ("addr_treq", "perhaps"), ("addr_tsas", "tls1.2"),
            ("addr_treq", "not required"),
        )
    ], ["EINVAL", "EINVAL", "EINVAL", "ok"])  # fmt: skip
    # Where what is in the clear is served besides it is none of ours.
    (port,) = (await world.nvmet.target()).ports
    assert not port.is_at(ENCRYPTED)
    await world.nvmet.make_port(PORT, ENCRYPTED)
    await world.nvmet.make_subsystem(NQN, serial="S")
    await world.nvmet.offer(PORT, NQN)
    assert [world.says("write", f"{place}/addr_{name}", "none") for name in ("tsas", "treq")] == ["EACCES"] * 2
    await world.nvmet.withhold(PORT, NQN)
    # Another transport, and the same again, is in the clear until it is told otherwise.
    for transport in ("rdma", "tcp"):
        assert world.says("write", f"{place}/addr_trtype", transport) == "ok"
    assert (await world.nvmet.target()).ports[0].at == HERE


async def attributes_have_rules(world: World) -> None:
    place = f"subsystems/{NQN}"
    world.configfs.mkdir(place)
    same([
        world.says("write", f"{place}/{name}", value)
        for name, value in (
            ("attr_serial", "x" * 21), ("attr_serial", "\n"), ("attr_serial", "abc"), ("attr_model", "x" * 41),
            ("attr_model", "Thing"), ("attr_allow_any_host", "perhaps"), ("attr_nothing", "1"),
        )
    ], ["EINVAL", "EINVAL", "ok", "EINVAL", "ok", "EINVAL", "ENOENT"])  # fmt: skip
    (found,) = (await world.nvmet.target()).subsystems
    assert (found.serial, found.model) == ("abc", "Thing")


async def what_is_somebody_elses_is_left_alone(world: World) -> None:
    nvmet = world.nvmet
    world.configfs.mkdir(f"subsystems/{THEIRS}")
    world.configfs.mkdir(f"hosts/{THEIRS}")
    world.configfs.mkdir("ports/1")
    target = await nvmet.target()
    calls: list[Awaitable[None]] = [
        nvmet.make_subsystem(THEIRS, serial="S"),
        nvmet.make_namespace(THEIRS, world.namespace()),
        nvmet.disable_namespaces(THEIRS, [1]),
        nvmet.remove_subsystem(target.subsystems[0]),
        nvmet.remove_host(THEIRS),
        nvmet.make_port(1, HERE),
        nvmet.set_access(1, 2, AnaState.CHANGE),
        nvmet.offer(1, NQN),
        nvmet.offer(PORT, THEIRS),
        nvmet.withhold(1, NQN),
        nvmet.remove_port(target.ports[0]),
        nvmet.make_subsystem(f"{NQN}/../../ports/1", serial="S"),
    ]
    for call in calls:
        with raises(Conflict, match="left alone"):
            await call
    assert await nvmet.target() == target


async def keys_are_for_root_and_are_not_told(world: World) -> None:
    keys = keys_of("5a" * 32, NAME)
    if not world.authentication:
        with raises(Unavailable, match="knows no authentication"):
            await world.nvmet.make_host(HOST, key=keys.host, controller_key=keys.controller)
        assert (await world.nvmet.target()).hosts == ()
        return
    await world.nvmet.make_host(HOST, key=keys.host, controller_key=keys.controller)
    target = await world.nvmet.target()
    assert target.hosts == (TargetHost(nqn=HOST, authenticated=True, proves_target=True),)
    assert "DHHC" not in repr(target)
    place = world.root / "hosts" / HOST
    for name, key in (("dhchap_key", keys.host), ("dhchap_ctrl_key", keys.controller)):
        assert (place / name).read_text().strip() == key
        assert stat.S_IMODE((place / name).stat().st_mode) == 0o600
    bad = "DHHC-9:not:a:key"
    with raises(FarbusError, match=r"Invalid argument \(dhchap_key\)") as caught:
        await world.nvmet.make_host(HOST, key=bad)
    assert bad not in str(caught[0]) + repr(caught[0].__cause__)
    assert caught[0].__suppress_context__
    same(
        [
            world.says("write", f"hosts/{HOST}/{name}", value)
            for name, value in (("dhchap_hash", "md5"), ("dhchap_dhgroup", "none"), ("dhchap_key", "\n"))
        ],
        ["EINVAL"] * 3,
    )


async def referrals_come_with_a_port(world: World) -> None:
    world.configfs.mkdir(f"ports/{PORT}")
    place = f"ports/{PORT}/referrals/there"
    world.configfs.mkdir(place)
    for name, value in (("addr_trtype", "tcp"), ("addr_adrfam", "ipv4"), ("addr_traddr", "10.0.0.9"), ("enable", "1")):
        assert world.says("write", f"{place}/{name}", value) == "ok"
    assert world.says("rmdir", f"ports/{PORT}") == "ENOTEMPTY"
    assert world.says("rmdir", place) == "ok"


Contract = Callable[[World], Awaitable[None]]

CONTRACTS: tuple[Contract, ...] = (
    what_is_made_is_read,
    what_is_removed_is_gone,
    everything_may_be_repeated,
    a_kernel_makes_identities_up,
    an_enabled_namespace_keeps_its_device,
    a_missing_device_is_named,
    names_have_rules,
    order_of_removal,
    links_have_rules,
    a_port_that_listens_keeps_its_address,
    two_ports_can_not_listen_at_one_address,
    a_port_of_tls_speaks_nothing_else,
    attributes_have_rules,
    what_is_somebody_elses_is_left_alone,
    keys_are_for_root_and_are_not_told,
    referrals_come_with_a_port,
)


class QuickNvmet(KernelNvmet):
    """The real door without children, which take seconds each in a guest without hardware acceleration."""

    async def _read(self) -> Any:
        return read_target(str(self._root))

    async def _perform(self, operations: Sequence[Operation]) -> None:
        perform(str(self._root), operations)


async def on_this_kernel(device: str) -> dict[str, str]:
    """Run them all on this machine's target, which is emptied; one of them as the agent does, with children."""
    root = Path("/sys/kernel/config/nvmet")
    await KernelNvmet().load([Transport.TCP])
    told = {}
    for contract in CONTRACTS:
        nvmet = KernelNvmet() if contract is keys_are_for_root_and_are_not_told else QuickNvmet()
        world = World(nvmet, KernelConfigfs(root), root, device)
        try:
            await contract(world)
            told[contract.__name__] = ""
        except Exception:
            told[contract.__name__] = traceback.format_exc()
        await world.clear()
    return told


if __name__ == "__main__":
    os.umask(0o022)
    print(json.dumps(asyncio.run(on_this_kernel(sys.argv[1])), indent=1))
