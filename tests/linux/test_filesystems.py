"""The door to file systems: the fake keeps the rules that Linux keeps (tests/lab/test_volumes.py asks that)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from farbus.errors import Conflict, InvalidInput, NotPermitted, Unavailable
from farbus.linux import filesystems
from farbus.linux.fake_filesystems import FakeFileSystems
from farbus.linux.filesystems import KernelFileSystems, allocate_file, look_at_beginning, look_for_users, open_point
from farbus.model.storage import Account, Format
from tests.linux.filesystems_contract import CONTRACTS, SIZE, USER, Contract, World


class FakeWorld(World):
    """In files."""

    def __init__(self, directory: Path) -> None:
        self._size = SIZE
        self.fake = FakeFileSystems(directory, size_of=lambda _: self._size)
        (directory / "dev/vdx").write_text("7:0")
        (directory / "sys/dev/block/7:0").mkdir()
        super().__init__(self.fake, "/dev/vdx", "/home/alice/contract")

    def put(self, kind: str) -> None:
        self.fake.put(self.device, kind)

    def use(self, path: str) -> Callable[[], None]:
        self.fake.using[path] = ["bash"]
        return self.fake.using.clear

    def make_directory(self, path: str, *, uid: int, files: tuple[str, ...] = ()) -> None:
        self.fake.make_directory(path, uid=uid, files=files)

    def larger(self) -> None:
        self._size *= 2


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
async def test_the_fake_keeps_the_contract(contract: Contract, tmp_path: Path) -> None:
    await contract(FakeWorld(tmp_path))


async def test_what_somebody_has_to_decide_is_not_mounted(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path)
    await world.fake.make(world.device, Format.EXT4)
    world.fake.break_file_system(world.device)
    with pytest.raises(Unavailable, match="UNEXPECTED INCONSISTENCY") as caught:
        await world.fake.check(world.device, Format.EXT4)
    assert caught.value.hint.endswith("e2fsck -f /dev/vdx")


async def test_swap_that_does_not_fit_into_memory_stays(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path)
    await world.fake.make(world.device, Format.SWAP)
    await world.fake.swap_on(world.device)
    world.fake.full_memory = True
    with pytest.raises(Conflict, match="not enough memory"):
        await world.fake.swap_off(world.device)
    assert world.fake.is_swap(world.device)


async def test_a_mount_whose_device_is_gone_is_found_by_its_path(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path)
    point = world.fake.mount_point("x")
    await world.fake.make(world.device, Format.EXT4)
    await world.fake.mount(world.device, point, Format.EXT4, account=USER)
    (tmp_path / "dev/vdx").unlink()
    (tmp_path / "sys/dev/block/7:0").rmdir()
    assert world.fake.mounts(world.device) == ()
    assert [one.path for one in world.fake.mounts(world.device, point)] == [point]
    await world.fake.unmount(world.device, point)
    assert world.fake.mounts(world.device, point) == ()


async def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystems.shutil, "which", lambda *_, **__: None)
    device = tmp_path / "device"
    device.write_bytes(bytes(8192))
    with pytest.raises(Unavailable, match="blkid is not here") as caught:
        await KernelFileSystems().signature(str(device))
    assert caught.value.hint == "install util-linux"


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 129])
def test_names_lead_nowhere_else(name: str) -> None:
    with pytest.raises(InvalidInput):
        KernelFileSystems().mount_point(name)


# What children do, on plain files and directories.


@pytest.mark.parametrize(
    ("text", "told"),
    [(b"", [True, False]), (b"x", [False, False]), (b"XFSB" + bytes(122) + b"\1", [False, True]),
     (b"XFSB" + bytes(123), [False, False]), (bytes(4096) + b"x", [True, False])],
)  # fmt: skip
def test_the_beginning_tells(text: bytes, told: list[bool], tmp_path: Path) -> None:
    file = tmp_path / "device"
    file.write_bytes(text.ljust(8192, b"\0"))
    assert look_at_beginning(str(file)) == told


def _point(path: Path) -> str:
    descriptor = open_point(str(path), os.geteuid(), os.getegid())
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def test_a_point_is_made_with_what_is_missing_on_its_way(tmp_path: Path) -> None:
    assert _point(tmp_path / "a/b/c") == str(tmp_path / "a/b/c")
    assert _point(tmp_path / "a/b/c") == str(tmp_path / "a/b/c")


def test_a_point_behind_a_link_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for path in (tmp_path / "link", tmp_path / "link/below"):
        with pytest.raises(Conflict, match="a link leads to it") as caught:
            _point(path)
        assert str(tmp_path / "real") in caught.value.hint


def test_a_point_that_is_a_file_or_full_or_mounted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thing").touch()
    with pytest.raises(Conflict, match="not empty"):
        _point(tmp_path / "full")
    with pytest.raises(NotADirectoryError):
        _point(tmp_path / "full/thing")
    with pytest.raises(Conflict, match="something is mounted"):
        _point(Path("/proc"))


@pytest.mark.parametrize("path", ["relative", "/", "/a/../b", "/a//b", "/a/"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput):
        open_point(path, os.geteuid(), os.getegid())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_root_mounts_for_a_user_only_on_what_is_his(tmp_path: Path) -> None:
    for place in (tmp_path, *tmp_path.parents[:-2]):
        place.chmod(0o755)
    (tmp_path / "roots").mkdir()
    with pytest.raises(NotPermitted, match="not its user's"):
        open_point(str(tmp_path / "roots"), 12345, 12345)
    with pytest.raises(NotPermitted, match="may not make"):
        open_point(str(tmp_path / "roots/below"), 12345, 12345)
    assert os.geteuid() == 0
    os.chown(tmp_path / "roots", 12345, 12345)
    os.close(open_point(str(tmp_path / "roots/below"), 12345, 12345))
    assert (tmp_path / "roots/below").stat().st_uid == 12345


def test_who_is_below_a_path_is_found(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    for pid, target in ((7, "/mnt/x/file"), (8, "/mnt/xy"), (9, "/mnt/x")):
        (proc / f"{pid}/fd").mkdir(parents=True)
        (proc / f"{pid}/fd/3").symlink_to(target)
        (proc / f"{pid}/comm").write_text("bash\n")
    found = look_for_users(str(proc), ["/mnt/x"])
    assert sorted((one["pid"], one["path"]) for one in found) == [(7, "/mnt/x/file"), (9, "/mnt/x")]


def test_a_file_of_all_the_room_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystems, "_whole", lambda _: 3 << 20)
    (tmp_path / ".memory.new").write_bytes(b"cut off")
    allocate_file(str(tmp_path), "memory", os.geteuid(), os.getegid(), 1 << 20)
    status = (tmp_path / "memory").stat()
    assert (status.st_size, stat.S_IMODE(status.st_mode)) == (2 << 20, 0o600)
    assert not (tmp_path / ".memory.new").exists()
    (tmp_path / "memory").write_bytes(b"mine")
    allocate_file(str(tmp_path), "memory", os.geteuid(), os.getegid(), 0)
    assert (tmp_path / "memory").read_bytes() == b"mine"
    with pytest.raises(OSError, match="No space left"):
        allocate_file(str(tmp_path), "other", os.geteuid(), os.getegid(), 4 << 20)


async def test_nodes_and_mount_points_go_when_nothing_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "own/x").mkdir(parents=True)
    door = KernelFileSystems(own=str(tmp_path / "own"), nodes=str(tmp_path / "nodes"))
    await door.clear_mount_point("x")
    await door.clear_mount_point("x")
    assert not (tmp_path / "own/x").exists()
    assert door.node("x") == ""
    await door.take_node("x")


def test_accounts_are_root_where_nobody_is_named() -> None:
    assert Account() == Account(uid=0, gid=0)
