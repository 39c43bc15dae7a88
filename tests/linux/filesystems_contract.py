"""What Linux does with file systems, swap space and paths, as the door and its fake must both show it.

Runs in pytest on the fake (test_filesystems.py), and as a program on a guest's
kernel and programs (tests/lab/test_volumes.py)::

    python -m tests.linux.filesystems_contract

which prints one JSON object: for each of :data:`CONTRACTS`, nothing or what was wrong.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from farbus.errors import Conflict, NotFound, NotPermitted
from farbus.linux.filesystems import KernelFileSystems
from farbus.model.storage import CUT_OFF, UNKNOWN_DATA, Account, Format
from tests.linux.nvmet_contract import raises

SIZE = 320 << 20
"""mkfs.xfs makes none below 300 MB."""

USER = Account(uid=1000, gid=1000)
ROOT = Account()


class World:
    """A machine with a device that holds nothing."""

    def __init__(self, filesystems: KernelFileSystems, device: str, home: str) -> None:
        self.filesystems, self.device = filesystems, device
        self.home = home
        """A directory of the user's."""

    def put(self, kind: str) -> None:
        """Let the device hold something that nobody made by the door: ``data``, ``dos``, ``cut off``."""
        raise NotImplementedError

    def use(self, path: str) -> Callable[[], None]:
        """Let a program use a mount until what is returned is called."""
        raise NotImplementedError

    def make_directory(self, path: str, *, uid: int, files: tuple[str, ...] = ()) -> None:
        """Let a directory be there."""
        raise NotImplementedError

    def larger(self) -> None:
        """Let the device be twice as large."""
        raise NotImplementedError

    async def clear(self) -> None:
        """Take everything apart."""


class KernelWorld(World):
    """A guest's: the device is a loop device."""

    HOME = "/home/alice/contract"

    def __init__(self, filesystems: KernelFileSystems) -> None:
        # Each its own: a loop device that somebody still holds goes on with its file.
        descriptor, self._file = tempfile.mkstemp(dir="/var/tmp")
        os.close(descriptor)
        os.truncate(self._file, SIZE)
        device = _run("losetup", "--find", "--show", self._file).strip()
        super().__init__(filesystems, device, self.HOME)
        self.make_directory(self.HOME, uid=USER.uid)

    def put(self, kind: str) -> None:
        # One partition of type 83, from sector 2048 on, 4096 sectors long.
        entry = bytes([0, 0, 2, 0, 0x83, 0, 0, 0]) + (2048).to_bytes(4, "little") + (4096).to_bytes(4, "little")
        table = bytes(446) + entry + bytes(48) + b"\x55\xaa"
        text = {"data": b"somebody's", "dos": table, "cut off": b""}[kind]
        if kind == "cut off":
            _run("mkfs.xfs", "-q", "-f", self.device)
            with open(self.device, "r+b") as file:
                # sb_inprogress; its check sum is wrong then, as when mkfs has not come to write it.
                file.seek(126)
                file.write(b"\1")
        else:
            with open(self.device, "r+b") as file:
                file.write(text)

    def use(self, path: str) -> Callable[[], None]:
        program = subprocess.Popen(["sleep", "infinity"], cwd=path)

        def end() -> None:
            program.kill()
            program.wait()

        return end

    def make_directory(self, path: str, *, uid: int, files: tuple[str, ...] = ()) -> None:
        os.makedirs(path, exist_ok=True)
        os.chown(path, uid, uid)
        for name in files:
            with open(f"{path}/{name}", "w"):
                pass

    def larger(self) -> None:
        os.truncate(self._file, 2 * SIZE)
        _run("losetup", "--set-capacity", self.device)

    async def clear(self) -> None:
        await self.filesystems.unmount(self.device, lazy=True)
        await self.filesystems.clear_mount_point("contract")
        await self.filesystems.swap_off(self.device)
        self._forget()

    def _forget(self) -> None:
        subprocess.run(["losetup", "-d", self.device], check=False)
        os.unlink(self._file)
        subprocess.run(["rm", "-rf", "--one-file-system", self.HOME], check=False)


def _run(*arguments: str) -> str:
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout


async def it_is_made_where_there_is_nothing_and_only_there(world: World) -> None:
    door = world.filesystems
    assert await door.signature(world.device) is None
    await door.make(world.device, Format.EXT4)
    found = await door.signature(world.device)
    assert found is not None
    assert found.kind == "ext4"
    assert found.uuid
    for format in Format:
        with raises(Conflict, "it holds ext4"):
            await door.make(world.device, format)
    again = await door.signature(world.device)
    assert again == found
    with raises(NotFound, "No such file"):
        await door.signature("/dev/nothing")


async def data_of_nobody_knows_whom_is_kept(world: World) -> None:
    world.put("data")
    found = await world.filesystems.signature(world.device)
    assert found is not None
    assert found.kind == UNKNOWN_DATA
    with raises(Conflict, "no known file system has written"):
        await world.filesystems.make(world.device, Format.EXT4)


async def a_partition_table_is_kept(world: World) -> None:
    world.put("dos")
    found = await world.filesystems.signature(world.device)
    assert found is not None
    assert found.kind == "dos"
    with raises(Conflict, "it holds dos"):
        await world.filesystems.make(world.device, Format.XFS)


async def what_was_cut_off_is_made_anew(world: World) -> None:
    world.put("cut off")
    found = await world.filesystems.signature(world.device)
    assert found is not None
    assert found.kind == CUT_OFF
    await world.filesystems.make(world.device, Format.XFS)
    found = await world.filesystems.signature(world.device)
    assert found is not None
    assert found.kind == "xfs"


async def it_is_mounted_and_let_go(world: World) -> None:
    door, device = world.filesystems, world.device
    point = door.mount_point("contract")
    await door.make(device, Format.EXT4)
    await door.check(device, Format.EXT4)
    await door.mount(device, point, Format.EXT4, account=USER)
    (mounted,) = door.mounts(device)
    assert (mounted.path, mounted.kind, mounted.read_only) == (point, "ext4", False)
    assert {"nosuid", "nodev"} <= set(mounted.options)
    with raises(Conflict, "something is mounted there"):
        await door.mount(device, point, Format.EXT4, account=USER)
    with raises(Conflict, "it holds ext4"):
        await door.make(device, Format.EXT4)
    release = world.use(point)
    assert await door.users(device)
    with raises(Conflict, f"unmount {point}: it is in use: .* is open in pid"):
        await door.unmount(device)
    release()
    for _ in range(2):
        await door.unmount(device)
        await door.clear_mount_point("contract")
    assert door.mounts(device) == ()
    await door.mount(device, point, Format.EXT4, account=USER, read_only=True)
    (mounted,) = door.mounts(device)
    assert mounted.read_only
    release = world.use(point)
    await door.unmount(device, lazy=True)
    assert door.mounts(device) == ()
    release()


async def a_path_that_was_asked_for_is_the_users_own_and_empty(world: World) -> None:
    door, device = world.filesystems, world.device
    await door.make(device, Format.EXT4)
    new = f"{world.home}/a/b"
    await door.mount(device, new, Format.EXT4, account=USER)
    assert [one.path for one in door.mounts(device)] == [new]
    await door.unmount(device)
    full, roots = f"{world.home}/full", f"{world.home}/roots"
    world.make_directory(full, uid=USER.uid, files=("thing",))
    world.make_directory(roots, uid=0)
    with raises(Conflict, "not empty"):
        await door.mount(device, full, Format.EXT4, account=USER)
    with raises(NotPermitted, "not its user's"):
        await door.mount(device, roots, Format.EXT4, account=USER)
    assert door.mounts(device) == ()


async def it_grows_while_it_is_used(world: World) -> None:
    door, device = world.filesystems, world.device
    point = door.mount_point("contract")
    await door.make(device, Format.EXT4)
    await door.mount(device, point, Format.EXT4, account=USER)
    before = await door.space(device)
    await door.grow(device, Format.EXT4)
    assert (await door.space(device)).size_bytes == before.size_bytes
    world.larger()
    await door.grow(device, Format.EXT4)
    after = await door.space(device)
    assert after.size_bytes > before.size_bytes * 3 // 2
    assert after.available_bytes > before.available_bytes
    await door.unmount(device)
    with raises(NotFound, "not mounted"):
        await door.space(device)


async def xfs_is_made_mounted_and_grows(world: World) -> None:
    door, device = world.filesystems, world.device
    point = door.mount_point("contract")
    await door.make(device, Format.XFS)
    await door.check(device, Format.XFS)
    await door.mount(device, point, Format.XFS, account=USER)
    before = await door.space(device)
    world.larger()
    await door.grow(device, Format.XFS)
    assert (await door.space(device)).size_bytes > before.size_bytes * 3 // 2
    await door.unmount(device)


async def a_file_has_all_the_room(world: World) -> None:
    door, device = world.filesystems, world.device
    await door.make(device, Format.EXT4)
    await door.mount(device, door.mount_point("contract"), Format.EXT4, account=USER)
    room = await door.space(device)
    for _ in range(2):
        path = await door.allocate(device, "memory", account=USER)
        assert path == f"{door.mount_point('contract')}/memory"
    left = await door.space(device)
    assert left.available_bytes < room.available_bytes // 20
    await door.unmount(device)


async def it_is_swapped_to(world: World) -> None:
    door, device = world.filesystems, world.device
    await door.make(device, Format.SWAP)
    for _ in range(2):
        await door.swap_on(device)
    assert door.is_swap(device)
    for _ in range(2):
        await door.swap_off(device)
    assert not door.is_swap(device)


async def a_node_is_given_and_taken(world: World) -> None:
    door = world.filesystems
    assert door.node("contract") == ""
    for _ in range(2):
        path = await door.give_node(world.device, "contract", account=USER)
        assert path == "/dev/farbus-storage/contract"
        assert door.node("contract")
    for _ in range(2):
        await door.take_node("contract")
    assert door.node("contract") == ""


Contract = Callable[[World], Awaitable[None]]

CONTRACTS: tuple[Contract, ...] = (
    it_is_made_where_there_is_nothing_and_only_there,
    data_of_nobody_knows_whom_is_kept,
    a_partition_table_is_kept,
    what_was_cut_off_is_made_anew,
    it_is_mounted_and_let_go,
    a_path_that_was_asked_for_is_the_users_own_and_empty,
    it_grows_while_it_is_used,
    xfs_is_made_mounted_and_grows,
    a_file_has_all_the_room,
    it_is_swapped_to,
    a_node_is_given_and_taken,
)


class QuickFileSystems(KernelFileSystems):
    """The real door; Python children only for what changes who its process is."""

    async def _call(self, function: Any, *arguments: Any) -> Any:
        if function.__name__ == "mount_device":
            return await super()._call(function, *arguments)
        return function(*arguments)


async def on_this_kernel() -> dict[str, str]:
    """Try everything here; return what was wrong with each."""
    told: dict[str, str] = {}
    for contract in CONTRACTS:
        world = KernelWorld(QuickFileSystems())
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
    print(json.dumps(asyncio.run(on_this_kernel())))
