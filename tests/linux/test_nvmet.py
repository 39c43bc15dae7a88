"""The NVMe target's door: the fake keeps the rules that the kernel keeps (tests/lab/test_nvmet.py asks that)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from farbus.errors import Conflict, NotFound, TimedOut, Unavailable
from farbus.linux import nvmet
from farbus.linux.block import FakeBlockDevices, KernelBlockDevices, device_below
from farbus.linux.fake_nvmet import FakeNvmet
from farbus.linux.nvmet import KernelNvmet, load_target
from farbus.model.nvmeof import Transport
from farbus.model.nvmet import Target
from tests.linux.nvmet_contract import CONTRACTS, NQN, Contract, World


def world_in(directory: Path, *, authentication: bool = True) -> World:
    nvmet = FakeNvmet(directory / "config", authentication=authentication)
    device = directory / "device"
    device.write_bytes(bytes(4096))
    return World(nvmet, nvmet.kernel, directory / "config/nvmet", str(device))


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
@pytest.mark.parametrize("authentication", [True, False], ids=["6.12", "6.1"])
async def test_the_fake_keeps_the_contract(contract: Contract, authentication: bool, tmp_path: Path) -> None:
    await contract(world_in(tmp_path, authentication=authentication))


async def test_a_cleared_world_is_empty(tmp_path: Path) -> None:
    world = world_in(tmp_path)
    for contract in CONTRACTS:
        await contract(world)
        await world.clear()
    assert await world.nvmet.target() == Target()


async def test_without_a_target_the_cure_is_told(tmp_path: Path) -> None:
    nvmet = KernelNvmet(root=tmp_path)
    with pytest.raises(Unavailable, match="nvmet") as caught:
        await nvmet.target()
    assert caught.value.hint == "modprobe nvmet nvmet-tcp"
    with pytest.raises(Unavailable, match="nvmet"):
        await nvmet.offer(64000, NQN)
    with pytest.raises(Unavailable) as caught:
        await KernelNvmet(root=tmp_path / "none").target()
    assert caught.value.hint == f"mount -t configfs none {tmp_path / 'none'}"


def test_modules_that_can_not_be_loaded_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "config/nvmet").mkdir(parents=True)
    with pytest.raises(Unavailable, match="modprobe: No such file") as caught:
        load_target(str(tmp_path / "config"), ["nvmet-pigeon"])
    assert caught.value.hint == "modprobe nvmet-pigeon"


async def test_the_real_door_writes_what_the_fake_is_asked(tmp_path: Path) -> None:
    # The children's way, on plain directories: configfs itself is the lab's matter.
    place = tmp_path / "nvmet/subsystems" / NQN
    place.mkdir(parents=True)
    for name in ("attr_allow_any_host", "attr_serial", "attr_model"):
        (place / name).write_text("")
    nvmet = KernelNvmet(root=tmp_path)
    await nvmet.make_subsystem(NQN, serial="S1")
    assert [(place / name).read_text() for name in ("attr_allow_any_host", "attr_serial")] == ["0", "S1"]
    (found,) = (await nvmet.target()).subsystems
    assert (found.nqn, found.serial) == (NQN, "S1")


async def test_what_others_have_written_keeps_nobody_from_reading_ours(tmp_path: Path) -> None:
    subsystems, port = tmp_path / "nvmet/subsystems", tmp_path / "nvmet/ports/64000"
    for nqn in (NQN, "nqn.2014-08.org.example:theirs", os.fsdecode(b"nqn.2014-08.org.example:\xe9")):
        for name, text in (("attr_allow_any_host", b"1\n"), ("attr_serial", b"S\n"), ("attr_model", b"caf\xe9\n")):
            (subsystems / nqn).mkdir(parents=True, exist_ok=True)
            (subsystems / nqn / name).write_bytes(text)
        for name, text in (
            ("device_path", b"/dev/caf\xe9\n"), ("device_uuid", b"U\n"), ("device_nguid", b"0\n"),
            ("ana_grpid", b"1\n"), ("enable", b"1\n"),
        ):  # fmt: skip
            (subsystems / nqn / "namespaces/1").mkdir(parents=True, exist_ok=True)
            (subsystems / nqn / "namespaces/1" / name).write_bytes(text)
    (tmp_path / "nvmet" / os.fsdecode(b"hosts/nqn.h\xe9")).mkdir(parents=True)
    (port / "subsystems").mkdir(parents=True)
    (port / "ana_groups/2").mkdir(parents=True)
    # As one that goes between the listing and the look at it: others stay.
    (port / "subsystems/a").touch()
    (port / "subsystems/b").symlink_to(subsystems / NQN)
    target = await KernelNvmet(root=tmp_path).target()
    ours = target.subsystem(NQN)
    assert ours is not None
    assert (ours.model, ours.namespaces[0].device) == (
        "caf\N{REPLACEMENT CHARACTER}",
        "/dev/caf\N{REPLACEMENT CHARACTER}",
    )
    assert [one.nqn for one in target.subsystems if not one.is_ours] == [
        "nqn.2014-08.org.example:theirs", "nqn.2014-08.org.example:\\xe9",
    ]  # fmt: skip
    assert [one.nqn for one in target.hosts] == ["nqn.h\\xe9"]
    assert [one.id for one in target.ports_of(NQN)] == [64000]
    # A group that goes while it is read has no state.
    assert target.ports[0].states == {}


async def test_a_target_that_can_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvmet/subsystems" / NQN).mkdir(parents=True)
    # Who reads it waits for a writer, as for a lock that nobody lets go of.
    os.mkfifo(tmp_path / "nvmet/subsystems" / NQN / "attr_serial")
    monkeypatch.setattr(nvmet, "READ_S", 0.1)
    with pytest.raises(TimedOut, match=r"NVMe target: not read after 0\.1 s; a drive that it exports may hang"):
        await KernelNvmet(root=tmp_path).target()


async def test_disabling_that_hangs_holds_nobody_up_but_who_waits(tmp_path: Path) -> None:
    world = world_in(tmp_path)
    assert isinstance(world.nvmet, FakeNvmet)
    await world.nvmet.make_subsystem(NQN, serial="S")
    await world.nvmet.make_namespace(NQN, world.namespace())
    world.nvmet.hang = True
    disabling = asyncio.create_task(world.nvmet.disable_namespaces(NQN, [1]))
    await world.nvmet.hanging.wait()
    assert not disabling.done()
    assert (await world.nvmet.target()).subsystems[0].namespaces[0].enabled
    disabling.cancel()


async def test_transports_are_loaded_once_asked(tmp_path: Path) -> None:
    nvmet = FakeNvmet(tmp_path)
    await nvmet.load([Transport.TCP])
    assert nvmet.loaded == [Transport.TCP]


# Block devices.


@pytest.mark.parametrize("kind", ["kernel", "fake"])
def test_what_is_no_block_device_is_refused(kind: str, tmp_path: Path) -> None:
    blocks = KernelBlockDevices() if kind == "kernel" else FakeBlockDevices()
    with pytest.raises(NotFound, match="No such file"):
        blocks.look(str(tmp_path / "none"))
    with pytest.raises(Exception, match="not a block device"):
        blocks.look(str(tmp_path))


def test_counters_are_read_with_their_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "devices/sda"
    (place / "holders/dm-0").mkdir(parents=True)
    (place / "size").write_text("2048\n")
    (place / "ro").write_text("0\n")
    # Documentation/block/stat.rst: the fields of a kernel with discards and flushes.
    (place / "stat").write_text("  11  1  88  5  22  2  176  7  3  9  12  0 0 0 0 4 1\n")
    blocks = KernelBlockDevices(sys=tmp_path)
    monkeypatch.setattr(blocks, "_place", lambda path: ("8:0", place))
    device = blocks.look("/dev/x")
    assert (device.name, device.number, device.size_bytes, device.holders) == ("sda", "8:0", 1 << 20, ("dm-0",))
    use = blocks.use("/dev/x")
    assert (use.reads, use.read_bytes, use.read_ms) == (11, 88 * 512, 5)
    assert (use.writes, use.written_bytes, use.write_ms) == (22, 176 * 512, 7)
    assert (use.in_flight, use.busy_ms) == (3, 9)


def test_what_a_file_is_on_is_found_by_its_number(tmp_path: Path) -> None:
    number = os.stat(tmp_path).st_dev
    node = tmp_path / f"dev/block/{os.major(number)}:{os.minor(number)}"
    with pytest.raises(Conflict, match="is on no block device"):
        device_below(str(tmp_path), dev=tmp_path / "dev")
    node.parent.mkdir(parents=True)
    node.touch()
    assert device_below(str(tmp_path), dev=tmp_path / "dev") == str(node)
    with pytest.raises(NotFound, match="No such file"):
        device_below(str(tmp_path / "none"))
