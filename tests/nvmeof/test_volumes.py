"""The storing node's sequences: what is made, what is refused, what is wiped, and what is never taken back."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from farbus.errors import Conflict, InvalidInput, NotFound, Unavailable
from farbus.linux.fake_nvme import FakeNvme
from farbus.model.nvmeof import namespace_identity
from farbus.model.storage import LogicalIdentity, identity_of, stored_bytes
from farbus.model.volume import VolumePart
from farbus.nvmeof.volumes import (
    DropWork,
    MakeWork,
    ReadyWork,
    RemoveWork,
    ResizeWork,
    VolumeParts,
    VolumeWork,
    device_path,
    from_body,
    object_of,
    resumable,
    rooms,
    steps_of,
    stored,
)
from tests.nvmeof.storing import DRIVES, HERE, LEASE, PART, UNIT, Node, a_room, an_export

WHOSE = identity_of(PART)
ROOM = LogicalIdentity(lease=LEASE)
LARGER = msgspec.structs.replace(PART, size_bytes=6 * UNIT)
RESIZE = ResizeWork(part=LARGER, before_bytes=PART.size_bytes)


async def a_node(tmp_path: Path) -> Node:
    return await Node(tmp_path / "node").ready()


async def test_a_volume_is_made_once_and_wiped(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    await node.go(MakeWork(part=PART))
    assert node.told[0] == ("VOL-data:1", 0, 4 * UNIT)
    assert node.told[-1] == ("VOL-data:1", 4 * UNIT, 4 * UNIT)
    assert not any(node.read(WHOSE))
    node.write(WHOSE, b"mine")
    await node.go(MakeWork(part=PART))
    assert node.read(WHOSE)[:4] == b"mine"


async def test_a_whole_volume_is_never_taken_back(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    await node.go(MakeWork(part=PART))
    node.write(WHOSE, b"mine")
    await node.back(MakeWork(part=PART))
    found = await node.find(WHOSE)
    assert found is not None
    assert found.ready
    assert node.read(WHOSE)[:4] == b"mine"


async def test_another_volume_of_the_name_is_kept(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    await node.go(MakeWork(part=PART))
    for other in (LARGER, msgspec.structs.replace(PART, drives=DRIVES[:1])):
        with pytest.raises(Conflict, match="it is there already, with 16777216 bytes on NVME-S0"):
            await node.go(MakeWork(part=other))


async def test_what_was_cut_off_with_other_sizes_is_made_anew(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    await node.lvm.create(WHOSE, size_bytes=UNIT, drives=DRIVES[:1])
    await node.go(MakeWork(part=PART))
    found = await node.find(WHOSE)
    assert found is not None
    assert (found.size_bytes, found.ready) == (4 * UNIT, True)


async def test_a_part_is_offered_and_stays_when_its_lease_is_over(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    await node.go(MakeWork(part=PART))
    work = ReadyWork(lease=LEASE, part=PART, export=an_export(WHOSE))
    told = await node.go(work)
    assert told["path"] == device_path(WHOSE) == "/dev/farbus/vol-data.1"
    assert told["size_bytes"] == told["size_bytes.1"] == str(4 * UNIT)
    (subsystem,) = node.target().subsystems
    assert subsystem.namespaces[0].uuid == namespace_identity("data:1").uuid
    (here,) = await stored(node.parts, exported=[device_path(WHOSE)])
    assert (here.part, here.exported, here.troubles) == (PART, True, ())
    for other in (RemoveWork(part=PART),):
        with pytest.raises(Conflict, match="its device is in use"):
            await node.go(other)
    node.write(WHOSE, b"mine")
    await node.back(work)
    assert node.target().subsystems == ()
    found = await node.find(WHOSE)
    assert found is not None
    assert (found.ready, found.active) == (True, False)
    assert node.read(WHOSE)[:4] == b"mine"


async def test_what_is_not_whole_is_not_offered(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    work = ReadyWork(lease=LEASE, part=PART, export=an_export(WHOSE))
    with pytest.raises(NotFound, match="this node does not store it"):
        await node.go(work)
    await node.lvm.create(WHOSE, size_bytes=PART.size_bytes, drives=DRIVES)
    with pytest.raises(Conflict, match="it is being made"):
        await node.go(work)
    await node.go(MakeWork(part=PART))
    await node.lvm.mark_going(WHOSE)
    with pytest.raises(Conflict, match="it is being removed"):
        await node.go(work)
    with pytest.raises(Conflict, match="one of that name is being removed"):
        await node.go(MakeWork(part=PART))
    assert node.target().subsystems == ()


async def test_what_is_new_is_wiped_and_a_failure_cuts_it_off(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    await node.go(MakeWork(part=PART))
    node.write(WHOSE, b"mine")
    (extend, wipe) = steps_of(node.parts, RESIZE)
    await extend.do()
    assert any(node.read(WHOSE)[4 * UNIT :])
    await wipe.compensate()
    await extend.compensate()
    found = await node.find(WHOSE)
    assert found is not None
    assert (found.size_bytes, found.ready) == (4 * UNIT, True)
    assert (await node.go(RESIZE))["size_bytes"] == str(6 * UNIT)
    assert not any(node.read(WHOSE)[4 * UNIT :])
    # Told to initiators by now, for all that is known: not cut off any more.
    await node.back(RESIZE)
    found = await node.find(WHOSE)
    assert found is not None
    assert found.size_bytes == 6 * UNIT
    assert node.read(WHOSE)[:4] == b"mine"


async def test_a_full_drive_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    huge = msgspec.structs.replace(PART, size_bytes=1 << 30)
    with pytest.raises(Conflict, match="insufficient free space"):
        await node.go(MakeWork(part=huge))
    await node.back(MakeWork(part=huge))
    assert await node.lvm.volumes() == ()
    await node.go(MakeWork(part=PART))
    more = ResizeWork(part=huge, before_bytes=PART.size_bytes)
    with pytest.raises(Conflict, match="Insufficient free space"):
        await node.go(more)
    await node.back(more)
    found = await node.find(WHOSE)
    assert found is not None
    assert (found.size_bytes, found.ready) == (4 * UNIT, True)


async def test_a_removed_volume_is_wiped_first(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    await node.go(MakeWork(part=PART))
    node.write(WHOSE, b"mine")
    retire, wipe, drop = steps_of(node.parts, RemoveWork(part=PART))
    await retire.do()
    assert (await stored(node.parts))[0].troubles == ("it is being removed",)
    await wipe.do()
    assert not any(node.read(WHOSE))
    await drop.do()
    await node.go(RemoveWork(part=PART))
    assert await node.lvm.volumes() == ()


async def test_room_of_a_lease_is_free_at_its_end_and_wiped_and_removed_behind_it(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    told = await node.go(a_room())
    assert told["size_bytes"] == str(stored_bytes(3 * UNIT + 1, 2)) == str(4 * UNIT)
    assert [one.identity for one in await rooms(node.parts)] == [ROOM]
    assert await stored(node.parts) == ()
    node.write(ROOM, b"secret")
    contents = node.lvm.contents(ROOM.name)
    seen: list[bytes] = []
    node.lvm.passing = lambda: seen.append(contents.read_bytes()[:6]) if contents.exists() else None
    await node.back(a_room())
    # Nobody waits for the wiping, and nobody can have it any more.
    assert node.ends == 1
    assert node.target().subsystems == ()
    (room,) = await rooms(node.parts)
    assert (room.going, room.ready, room.active) == (True, False, False)
    assert seen[-1] == b"secret"
    with pytest.raises(Conflict, match="one of that name is being removed"):
        await node.go(a_room())
    await node.go(DropWork(lease=LEASE, size_bytes=room.size_bytes))
    assert seen[-1] == bytes(6)
    assert await rooms(node.parts) == ()


async def test_room_that_nobody_has_had_yet_is_removed_at_once(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    work = a_room(exported=False)
    (create, *_) = steps_of(node.parts, work)
    await create.do()
    await node.back(work)
    assert (await rooms(node.parts), node.ends) == ((), 1)


async def test_room_that_no_record_knows_is_dropped(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    await node.go(a_room(exported=False))
    await node.go(DropWork(lease=LEASE, size_bytes=4 * UNIT))
    await node.go(DropWork(lease=LEASE))
    assert await rooms(node.parts) == ()


async def test_a_lost_drive_is_a_trouble_and_does_not_stop_removal(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    await node.go(MakeWork(part=PART))
    await node.go(a_room(exported=False))
    node.lvm.pull(DRIVES[1])
    (here,) = await stored(node.parts)
    assert here.troubles == (f"drive {DRIVES[1]} is missing",)
    with pytest.raises(Unavailable, match="a drive of it is missing"):
        await node.go(ReadyWork(lease="other", part=PART))
    await node.back(a_room(exported=False))
    await node.go(RemoveWork(part=PART))
    assert await node.lvm.volumes() == ()
    await node.lvm.forget_missing()


async def test_health_of_drives_is_told(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    await node.go(MakeWork(part=PART))
    nvme = FakeNvme(tmp_path / "nvme")
    assert (await stored(node.parts, health=nvme))[0].troubles == ()
    nvme.smart["critical_warning"] = 1
    troubles = (await stored(node.parts, health=nvme))[0].troubles
    assert troubles == tuple(f"drive {drive}: spare capacity below its threshold" for drive in DRIVES)


async def test_without_a_target_nothing_is_offered(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    with pytest.raises(Unavailable, match="no NVMe target"):
        steps_of(VolumeParts(lvm=node.lvm), a_room())


@pytest.mark.parametrize(
    "work",
    [
        MakeWork(part=PART),
        RESIZE,
        RemoveWork(part=PART),
        a_room(),
        DropWork(lease="l"),
        ReadyWork(lease="l", part=PART),
    ],
)
def test_bodies_are_read_as_they_were_written(work: VolumeWork) -> None:
    assert from_body(msgspec.json.encode(work).decode()) == work
    assert resumable(work)
    with pytest.raises(InvalidInput):
        from_body("{}")


def test_names_in_the_journal_say_what_it_is_about() -> None:
    assert {object_of(work) for work in (MakeWork(part=PART), RESIZE, RemoveWork(part=PART))} == {"stored VOL-data:1"}
    assert {object_of(work) for work in (a_room(), ReadyWork(lease=LEASE, part=PART), DropWork(lease=LEASE))} == {
        "storage of lease l1"
    }
    assert VolumePart(volume="data", size_bytes=1, drives=()).device == "VOL-data:0"


def test_what_takes_keys_can_not_be_gone_on_with_by_the_journal_alone() -> None:
    export = an_export(ROOM)
    authenticated = msgspec.structs.replace(export, authenticated=True)
    encrypted = msgspec.structs.replace(export, addresses=(msgspec.structs.replace(HERE, tls=True),))
    told = [
        resumable(msgspec.structs.replace(a_room(), export=one)) for one in (None, export, authenticated, encrypted)
    ]
    assert told == [True, True, False, False]
