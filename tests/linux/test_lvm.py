"""The door to lvm2: the fake keeps the rules that lvm2 keeps (tests/lab/test_volumes.py asks that)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from farbus.errors import Conflict, InvalidInput, NotFound, Unavailable
from farbus.linux.fake_lvm import FakeLvm
from farbus.linux.lvm import KernelLvm, Said, local_drives, read_tags, tag, zero_blocks
from farbus.model.storage import EXTENT_BYTES, LogicalIdentity, stored_bytes
from tests.linux.lvm_contract import CONTRACTS, PART, ROOM, Contract, World

SIZE = 64 << 20


class FakeWorld(World):
    """In files."""

    def __init__(self, directory: Path) -> None:
        self.fake = FakeLvm(directory)
        super().__init__(self.fake, [self.fake.plug(f"S{number}", SIZE) for number in range(3)])

    def read(self, identity: LogicalIdentity, at: int, length: int) -> bytes:
        return self.fake.contents(identity.name).read_bytes()[at : at + length]

    def write(self, identity: LogicalIdentity, at: int, data: bytes) -> None:
        with self.fake.contents(identity.name).open("r+b") as file:
            file.seek(at)
            file.write(data)

    def by_hand(self, name: str) -> None:
        self.fake.by_hand(name, EXTENT_BYTES)

    def remove_by_hand(self, name: str) -> None:
        state = self.fake._state()
        del state["volumes"][name]
        self.fake._save(state)

    def hold(self, identity: LogicalIdentity) -> Callable[[], None]:
        self.fake.holding.add(identity.name)
        return lambda: self.fake.holding.remove(identity.name)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
async def test_the_fake_keeps_the_contract(contract: Contract, tmp_path: Path) -> None:
    await contract(FakeWorld(tmp_path))


async def test_a_cleared_world_is_empty(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path)
    for contract in CONTRACTS:
        await contract(world)
        await world.clear()
    assert await world.lvm.drives() == ()
    assert list((tmp_path / "dev").rglob("vol-*")) == []


# What no guest shows.


async def test_a_drive_that_holds_something_is_not_taken(tmp_path: Path) -> None:
    lvm = FakeLvm(tmp_path)
    drive = lvm.plug("S9", SIZE, holds="ext4")
    with pytest.raises(Conflict, match="signature"):
        await lvm.add_drive(drive)
    assert await lvm.drives() == ()


@pytest.mark.parametrize(
    "tags",
    [
        ("farbus.lease",),
        ("farbus.volume=No#2fname", "farbus.part=0", "farbus.parts=1"),
        ("farbus.volume=data", "farbus.part=x", "farbus.parts=1"),
        ("farbus.volume=data",),
        ("farbus.volume=data", "farbus.part=0", "farbus.parts=1", "farbus.unwiped=soon"),
    ],
)
async def test_tags_that_are_none_of_ours_keep_nobody_from_the_others(tags: tuple[str, ...], tmp_path: Path) -> None:
    lvm = FakeLvm(tmp_path)
    await lvm.add_drive(lvm.plug("S1", 1 << 30))
    lvm.by_hand("vol-data.0", EXTENT_BYTES, tags=tags)
    assert await lvm.volumes() == ()


async def test_a_missing_drive_is_named_and_its_volumes_are_partial(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path)
    lvm, (first, second, _) = world.fake, world.drives
    for drive in (first, second):
        await lvm.add_drive(drive)
    await lvm.create(PART, size_bytes=2 * EXTENT_BYTES, drives=[first, second])
    await lvm.create(ROOM, size_bytes=EXTENT_BYTES, drives=[first])
    lvm.pull(second)
    assert [(one.id, one.missing) for one in await lvm.drives()] == [(first, False), (second, True)]
    assert {one.name: one.partial for one in await lvm.volumes()} == {PART.name: True, ROOM.name: False}
    with pytest.raises(NotFound, match=f"{second} of volume group farbus is missing"):
        await lvm.create(LogicalIdentity(volume="x"), size_bytes=EXTENT_BYTES, drives=[second])
    with pytest.raises(Conflict, match="while PVs are missing"):
        await lvm.create(LogicalIdentity(volume="x"), size_bytes=EXTENT_BYTES, drives=[first])
    with pytest.raises(Conflict, match="still partial LVs"):
        await lvm.forget_missing()
    await lvm.remove(PART)
    await lvm.forget_missing()
    assert [one.id for one in await lvm.drives()] == [first]


async def test_drives_that_were_not_given_are_not_looked_at(tmp_path: Path) -> None:
    lvm = FakeLvm(tmp_path)
    mine, theirs = lvm.plug("S1", SIZE), lvm.plug("S2", SIZE)
    lvm = FakeLvm(tmp_path, given=[mine])
    with pytest.raises(Conflict, match="not among those that are given"):
        await lvm.add_drive(theirs)
    await lvm.add_drive(mine)
    assert {call[call.index("--devices") + 1] for call in lvm.calls} == {"/dev/nvme0n1"}


async def test_without_drives_lvm_is_not_even_asked(tmp_path: Path) -> None:
    lvm = KernelLvm(sys=tmp_path, program=str(tmp_path / "nothing"))
    assert await lvm.drives() == ()
    assert await lvm.volumes() == ()


async def test_without_lvm_the_cure_is_told(tmp_path: Path) -> None:
    FakeLvm(tmp_path).plug("S1", SIZE)
    with pytest.raises(Unavailable, match="lvm2: No such file") as caught:
        await KernelLvm(sys=tmp_path / "sys", program=str(tmp_path / "nothing")).drives()
    assert "install lvm2" in caught.value.hint


async def test_a_report_that_leaves_out_what_nothing_has_is_read(tmp_path: Path) -> None:
    # report/compact_output of lvm.conf(5).
    lvm = FakeLvm(tmp_path)
    drive = lvm.plug("S1", SIZE)
    await lvm.add_drive(drive)
    await lvm.create(ROOM, size_bytes=EXTENT_BYTES, drives=[drive])
    whole = await lvm.drives(), await lvm.volumes()
    run = lvm._run

    async def compact(arguments: tuple[str, ...]) -> Said:
        said = await run(arguments)
        report = json.loads(said.out)["report"][0]
        rows = {key: [{name: one for name, one in row.items() if one} for row in rows] for key, rows in report.items()}
        return Said(said.code, json.dumps({"report": [rows]}), said.err)

    lvm._run = compact  # type: ignore[method-assign]
    assert (await lvm.drives(), await lvm.volumes()) == whole


@pytest.mark.parametrize(
    "rows",
    ['"pv": [{"vg_name": "farbus", "pv_name": "/dev/nvme0n1", "pv_size": "1.00g"}]', '"pv": [7]', '"pv": {"a": 1}'],
)
async def test_a_report_that_makes_no_sense_is_told(rows: str, tmp_path: Path) -> None:
    lvm = FakeLvm(tmp_path)
    lvm.plug("S1", SIZE)

    async def said(arguments: tuple[str, ...]) -> Said:
        return Said(0, f'{{"report": [{{{rows}}}]}}', "")

    lvm._run = said  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match=r"^lvm.*(report can't be read|no number of bytes)"):
        await lvm.drives()


async def test_a_change_that_hangs_is_left_and_nobody_else_waits(tmp_path: Path) -> None:
    lvm = FakeLvm(tmp_path)
    drive = lvm.plug("S1", SIZE)
    await lvm.add_drive(drive)
    lvm.hang = True
    making = asyncio.create_task(lvm.create(ROOM, size_bytes=EXTENT_BYTES, drives=[drive]))
    assert [one.id for one in await lvm.drives()] == [drive]
    assert not making.done()
    making.cancel()


@pytest.mark.parametrize("bad", [{"size_bytes": 0}, {"drives": []}, {"drives": ["a", "a"]}, {"chunk_bytes": 3 << 10}])
async def test_what_makes_no_sense_is_refused(bad: dict[str, object], tmp_path: Path) -> None:
    world = FakeWorld(tmp_path)
    for drive in world.drives[:2]:
        await world.lvm.add_drive(drive)
    asked: dict[str, object] = {"size_bytes": EXTENT_BYTES, "drives": world.drives[:2], **bad}
    with pytest.raises(InvalidInput):
        await world.lvm.create(ROOM, **asked)  # type: ignore[arg-type]


def test_a_drive_whose_paths_are_joined_is_found(tmp_path: Path) -> None:
    place = tmp_path / "class/nvme/nvme2"
    (place / "nvme0c2n1").mkdir(parents=True)
    for name, text in (
        ("serial", "S 1"),
        ("model", "A Drive"),
        ("transport", "pcie"),
        ("address", ""),
        ("subsysnqn", ""),
    ):
        (place / name).write_text(f"{text}\n")
    (tmp_path / "class/block/nvme0n1").mkdir(parents=True)
    (tmp_path / "class/block/nvme0n1/size").write_text("16\n")
    (found,) = local_drives(sys=tmp_path).values()
    assert (found.id, found.path, found.controller, found.size_bytes) == (
        "NVME-S 1-A_Drive", "/dev/nvme0n1", "nvme2", 8192,
    )  # fmt: skip


def test_a_drive_with_several_controllers_is_found_by_the_same_one_each_time(tmp_path: Path) -> None:
    # Without native multipath each port of a drive has a block device of its own; the kernel numbers them as it likes.
    for number, address in ((0, "0000:1a:00.0"), (1, "0000:19:00.0")):
        place = tmp_path / f"class/nvme/nvme{number}"
        (place / f"nvme{number}n1").mkdir(parents=True)
        for name, text in (
            ("serial", "S,1"), ("model", "A Drive"), ("transport", "pcie"), ("address", address), ("subsysnqn", "")
        ):  # fmt: skip
            (place / name).write_text(f"{text}\n")
    (found,) = local_drives(sys=tmp_path).values()
    assert (found.id, found.path) == ("NVME-S_1-A_Drive", "/dev/nvme1n1")


@pytest.mark.parametrize("text", ["NVME-S4-PM9A3", "a b,c#d=é", "x/y:z"])
def test_tags_hold_any_text(text: str) -> None:
    written = tag("drive", text)
    assert "," not in written
    assert read_tags(f"other,{written}") == {"drive": [text]}


def test_names_of_logical_volumes_fit() -> None:
    assert LogicalIdentity(volume="data", part=3).name == "vol-data.3"
    assert LogicalIdentity(lease="01H-1-2").name == "lease-01H-1-2"
    names = {LogicalIdentity(lease=lease).name for lease in ("x" * 80, "a_mlog", "y" * 80)}
    assert len(names) == 3
    assert all(len(name) < 60 and "_" not in name for name in names)
    with pytest.raises(InvalidInput):
        _ = LogicalIdentity().name
    assert stored_bytes(1, 3) == 3 * EXTENT_BYTES
    assert stored_bytes(3 * EXTENT_BYTES, 3) == 3 * EXTENT_BYTES


def test_zeros_are_written_where_there_is_no_other_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    for allocates in (True, False):
        file.write_bytes(b"\xff" * (3 << 20))
        if not allocates:
            monkeypatch.setattr("farbus.linux.lvm._allocate", lambda *_: False)
        assert zero_blocks(str(file), 1 << 20, 2 << 20, False) == 2 << 20
        assert file.read_bytes() == b"\xff" * (1 << 20) + bytes(1 << 20) + b"\xff" * (1 << 20)


def test_a_child_wipes_for_some_time_only(tmp_path: Path) -> None:
    file = tmp_path / "file"
    os.truncate(os.open(file, os.O_CREAT | os.O_RDWR), 3)
    assert zero_blocks(str(file), 0, 1 << 40, False, turn_s=0.0) == 0
