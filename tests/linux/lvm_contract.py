"""What lvm2 does with our volume group, as the door and its fake must both show it.

Runs in pytest on the fake (test_lvm.py), and as a program on a guest's real
lvm2 with three NVMe drives (tests/lab/test_volumes.py)::

    python -m tests.linux.lvm_contract SERIAL SERIAL SERIAL

which prints one JSON object: for each of :data:`CONTRACTS`, nothing or what was wrong.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from farbus.errors import Conflict, NotFound
from farbus.linux.lvm import KernelLvm, local_drives, zero_blocks
from farbus.model.storage import EXTENT_BYTES, LogicalIdentity
from tests.linux.nvmet_contract import raises

PART = LogicalIdentity(volume="data", part=1, parts=2)
ROOM = LogicalIdentity(lease="job.1-2-3")
UNIT = EXTENT_BYTES
NOBODYS = "NVME-nobody-nothing"
"""A drive that this machine may look at, and does not have."""


class World:
    """A machine with three drives that nobody has used."""

    def __init__(self, lvm: KernelLvm, drives: Sequence[str]) -> None:
        self.lvm, self.drives = lvm, list(drives)

    def read(self, identity: LogicalIdentity, at: int, length: int) -> bytes:
        """Return what is in a logical volume."""
        raise NotImplementedError

    def write(self, identity: LogicalIdentity, at: int, data: bytes) -> None:
        """Put something into it."""
        raise NotImplementedError

    def by_hand(self, name: str) -> None:
        """Make a logical volume without any tag of ours."""
        raise NotImplementedError

    def hold(self, identity: LogicalIdentity) -> Callable[[], None]:
        """Have its device open until what is returned is called."""
        raise NotImplementedError

    def remove_by_hand(self, name: str) -> None:
        """Remove it again."""
        raise NotImplementedError

    async def clear(self) -> None:
        """Take everything apart."""
        for volume in await self.lvm.volumes():
            await self.lvm.remove(volume.identity)
        for drive in await self.lvm.drives():
            await self.lvm.remove_drive(drive.id)


class KernelWorld(World):
    """A guest's."""

    def _path(self, identity: LogicalIdentity) -> str:
        return f"/dev/{self.lvm.group}/{identity.name}"

    def read(self, identity: LogicalIdentity, at: int, length: int) -> bytes:
        """Read past the cache: what is on the drives."""
        done = subprocess.run(
            ["dd", f"if={self._path(identity)}", "iflag=direct,skip_bytes,count_bytes", "bs=64k", f"skip={at}",
             f"count={length}", "status=none"], capture_output=True, check=True,
        )  # fmt: skip
        return done.stdout

    def write(self, identity: LogicalIdentity, at: int, data: bytes) -> None:
        descriptor = os.open(self._path(identity), os.O_WRONLY)
        os.pwrite(descriptor, data, at)
        os.fsync(descriptor)
        os.close(descriptor)

    def by_hand(self, name: str) -> None:
        subprocess.run(["lvm", "lvcreate", "-qy", "-L4m", "-n", name, self.lvm.group], check=True, capture_output=True)

    def remove_by_hand(self, name: str) -> None:
        subprocess.run(["lvm", "lvremove", "-qy", f"{self.lvm.group}/{name}"], check=True, capture_output=True)

    def hold(self, identity: LogicalIdentity) -> Callable[[], None]:
        descriptor = os.open(self._path(identity), os.O_RDONLY)
        return lambda: os.close(descriptor)


async def a_group_is_made_of_drives(world: World) -> None:
    lvm = world.lvm
    assert await lvm.drives() == ()
    assert await lvm.volumes() == ()
    first, second, _ = world.drives
    for drive in (first, first, second):
        await lvm.add_drive(drive)
    found = await lvm.drives()
    assert sorted([first, second]) == [one.id for one in found]
    for one in found:
        assert one.size_bytes == one.free_bytes
        assert one.size_bytes % UNIT == 0
        assert one.size_bytes >= 8 * UNIT
        assert one.path.startswith("/dev/nvme")
        assert one.controller
        assert not one.missing
    with raises(NotFound, "none of that name"):
        await lvm.add_drive(NOBODYS)
    await lvm.remove_drive(first)
    await lvm.remove_drive(first)
    assert [one.id for one in await lvm.drives()] == [second]
    await lvm.remove_drive(second)
    assert await lvm.drives() == ()


async def what_is_made_says_whose_it_is(world: World) -> None:
    lvm, (first, second, _) = world.lvm, world.drives
    for drive in (first, second):
        await lvm.add_drive(drive)
    await lvm.create(PART, size_bytes=3 * UNIT + 1, drives=[second, first], chunk_bytes=128 << 10)
    await lvm.create(ROOM, size_bytes=UNIT, drives=[first])
    part, room = await lvm.find(PART), await lvm.find(ROOM)
    assert part is not None
    assert room is not None
    assert (part.identity, part.size_bytes, part.drives) == (PART, 4 * UNIT, (second, first))
    assert (room.identity, room.size_bytes, room.drives) == (ROOM, UNIT, (first,))
    assert (part.active, part.open, part.partial, part.unwiped_from, part.going) == (True, False, False, 0, False)
    assert part.path == f"/dev/{lvm.group}/vol-data.1"
    assert not part.ready
    assert [one.name for one in await lvm.volumes()] == [room.name, part.name]
    free = {one.id: one.size_bytes - one.free_bytes for one in await lvm.drives()}
    assert free == {first: 3 * UNIT, second: 2 * UNIT}
    with raises(Conflict, "already exists"):
        await lvm.create(PART, size_bytes=UNIT, drives=[first])
    with raises(Conflict, "have parts of it"):
        await lvm.remove_drive(first)
    with raises(NotFound, "is not in volume group"):
        await lvm.create(LogicalIdentity(volume="x"), size_bytes=UNIT, drives=[world.drives[2]])


async def what_was_there_is_wiped(world: World) -> None:
    lvm, (first, second, _) = world.lvm, world.drives
    for drive in (first, second):
        await lvm.add_drive(drive)
    await lvm.create(PART, size_bytes=4 * UNIT, drives=[first, second])
    mark = os.urandom(64 << 10)
    for at in (0, 2 * UNIT, 4 * UNIT - len(mark)):
        world.write(PART, at, mark)
    told: list[tuple[int, int]] = []
    await lvm.wipe(PART, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (4 * UNIT, 4 * UNIT)
    assert not any(world.read(PART, 0, 4 * UNIT))
    part = await lvm.find(PART)
    assert part is not None
    assert part.ready
    # Nothing to do, and nothing done.
    world.write(PART, 0, mark)
    await lvm.wipe(PART)
    assert world.read(PART, 0, len(mark)) == mark


async def what_is_added_is_wiped_and_nothing_else(world: World) -> None:
    lvm, (first, second, _) = world.lvm, world.drives
    for drive in (first, second):
        await lvm.add_drive(drive)
    await lvm.create(PART, size_bytes=2 * UNIT, drives=[first, second])
    await lvm.wipe(PART)
    mark = os.urandom(64 << 10)
    world.write(PART, 2 * UNIT - len(mark), mark)
    release = world.hold(PART)
    await lvm.extend(PART, size_bytes=5 * UNIT)
    part = await lvm.find(PART)
    assert part is not None
    assert (part.size_bytes, part.unwiped_from, part.open) == (6 * UNIT, 2 * UNIT, True)
    world.write(PART, 2 * UNIT, mark)
    await lvm.wipe(PART)
    release()
    assert world.read(PART, 2 * UNIT - len(mark), len(mark)) == mark
    assert not any(world.read(PART, 2 * UNIT, 4 * UNIT))
    await lvm.extend(PART, size_bytes=6 * UNIT)
    with raises(Conflict, "would be less"):
        await lvm.extend(PART, size_bytes=UNIT)
    with raises(Conflict, "nsufficient"):
        await lvm.extend(PART, size_bytes=1 << 40)
    await lvm.reduce(PART, size_bytes=6 * UNIT)
    part = await lvm.find(PART)
    assert part is not None
    assert (part.size_bytes, part.ready) == (6 * UNIT, True)
    await lvm.extend(PART, size_bytes=8 * UNIT)
    await lvm.reduce(PART, size_bytes=6 * UNIT)
    part = await lvm.find(PART)
    assert part is not None
    assert (part.size_bytes, part.ready) == (6 * UNIT, True)
    assert world.read(PART, 2 * UNIT - len(mark), len(mark)) == mark


async def a_device_comes_and_goes(world: World) -> None:
    lvm = world.lvm
    await lvm.add_drive(world.drives[0])
    await lvm.create(ROOM, size_bytes=UNIT, drives=[world.drives[0]])
    for _ in range(2):
        await lvm.deactivate(ROOM)
        found = await lvm.find(ROOM)
        assert found is not None
        assert not found.active
    for _ in range(2):
        await lvm.activate(ROOM)
        found = await lvm.find(ROOM)
        assert found is not None
        assert found.active
    release = world.hold(ROOM)
    for call in (lvm.deactivate, lvm.mark_going, lvm.remove):
        with raises(Conflict, "in use"):
            await call(ROOM)
    release()
    await lvm.mark_going(ROOM)
    await lvm.mark_going(ROOM)
    found = await lvm.find(ROOM)
    assert found is not None
    assert (found.going, found.unwiped_from) == (True, 0)
    with raises(Conflict, "about to be removed"):
        await lvm.extend(ROOM, size_bytes=2 * UNIT)
    await lvm.deactivate(ROOM)
    await lvm.wipe(ROOM)
    found = await lvm.find(ROOM)
    assert found is not None
    assert (found.going, found.unwiped_from) == (True, -1)
    for _ in range(2):
        await lvm.remove(ROOM)
    assert await lvm.volumes() == ()
    with raises(NotFound, "no logical volume of it"):
        await lvm.activate(ROOM)


async def what_is_full_says_so(world: World) -> None:
    lvm = world.lvm
    await lvm.add_drive(world.drives[0])
    with raises(Conflict, "nsufficient"):
        await lvm.create(PART, size_bytes=1 << 40, drives=[world.drives[0]])
    assert await lvm.volumes() == ()


async def what_is_somebody_elses_is_left_alone(world: World) -> None:
    lvm = world.lvm
    await lvm.add_drive(world.drives[0])
    for name in ("theirs", "vol-data.7"):
        world.by_hand(name)
    assert await lvm.volumes() == ()
    assert await lvm.find(LogicalIdentity(volume="data", part=7)) is None
    await lvm.remove(LogicalIdentity(volume="data", part=7))
    with raises(NotFound, "no logical volume of it"):
        await lvm.mark_going(LogicalIdentity(volume="data", part=7))
    with raises(Conflict, "have parts of it"):
        await lvm.remove_drive(world.drives[0])
    for name in ("theirs", "vol-data.7"):
        world.remove_by_hand(name)


Contract = Callable[[World], Awaitable[None]]

CONTRACTS: tuple[Contract, ...] = (
    a_group_is_made_of_drives,
    what_is_made_says_whose_it_is,
    what_was_there_is_wiped,
    what_is_added_is_wiped_and_nothing_else,
    a_device_comes_and_goes,
    what_is_full_says_so,
    what_is_somebody_elses_is_left_alone,
)


class QuickLvm(KernelLvm):
    """The real door without Python children, which take seconds each in a guest without hardware acceleration."""

    async def _zero(self, path: str, at: int, end: int, *, exclusive: bool) -> int:
        return zero_blocks(path, at, end, exclusive)


async def on_this_kernel(serials: Sequence[str]) -> dict[str, str]:
    """Try everything here; return what was wrong with each."""
    found = local_drives()
    drives = [next(name for name in found if name.startswith(f"NVME-{serial}-")) for serial in serials]
    world = KernelWorld(QuickLvm(given=[*drives, NOBODYS]), drives)
    told: dict[str, str] = {}
    for contract in CONTRACTS:
        try:
            await contract(world)
            told[contract.__name__] = ""
        except Exception:
            told[contract.__name__] = traceback.format_exc(limit=-3)
        try:
            await world.clear()
        except Exception:
            told[contract.__name__] += traceback.format_exc(limit=-3)
    return told


if __name__ == "__main__":
    assert Path("/sys/class/nvme").is_dir()
    print(json.dumps(asyncio.run(on_this_kernel(sys.argv[1:]))))
