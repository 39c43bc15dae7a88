"""The door to file systems: the fake keeps the rules that Linux keeps (tests/lab/test_volumes.py asks that)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from farbus.errors import Conflict, FarbusError, InvalidInput, NotPermitted, Unavailable
from farbus.linux import filesystems
from farbus.linux.disposable import run_disposable
from farbus.linux.fake_filesystems import FakeFileSystems
from farbus.linux.filesystems import (
    KernelFileSystems,
    Said,
    allocate_file,
    look_at_beginning,
    look_for_users,
    mount_device,
    open_point,
)
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


class _Refusing(KernelFileSystems):
    """A file system that its program does not let grow."""

    def _mounted_at(self, device: str, what: str) -> str:
        return "/mnt"

    async def _run(self, program: str, *arguments: str) -> Said:
        banner, error = f"{program} 1.47.0 (5-Feb-2023)", f"{program}: Permission denied to resize filesystem"
        return Said(1, f"Filesystem at {arguments[0]} is mounted on /mnt\n", f"{banner}\n{error}\n")


async def test_what_a_program_says_of_its_version_is_not_what_went_wrong() -> None:
    with pytest.raises(Unavailable) as caught:
        await _Refusing().grow("/dev/x", Format.EXT4)
    assert caught.value.message == "grow /dev/x: resize2fs: Permission denied to resize filesystem"


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
    number = _number(tmp_path)
    allocate_file(str(tmp_path), number, "memory", os.geteuid(), os.getegid(), 1 << 20)
    status = (tmp_path / "memory").stat()
    assert (status.st_size, stat.S_IMODE(status.st_mode)) == (2 << 20, 0o600)
    assert not (tmp_path / ".memory.new").exists()
    (tmp_path / "memory").write_bytes(b"mine")
    allocate_file(str(tmp_path), number, "memory", os.geteuid(), os.getegid(), 0)
    assert (tmp_path / "memory").read_bytes() == b"mine"
    with pytest.raises(OSError, match="No space left"):
        allocate_file(str(tmp_path), number, "other", os.geteuid(), os.getegid(), 4 << 20)


def _number(path: Path) -> str:
    device = path.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def test_no_file_is_made_where_the_path_leads_elsewhere_by_now(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    # What was mounted on a/etc is elsewhere; its user has put a link in the place of a.
    (tmp_path / "a").symlink_to(".")
    with pytest.raises(Conflict, match="something else is there by now"):
        allocate_file(f"{tmp_path}/a/etc", "7:0", "memory", 1000, 1000, 0)
    assert list((tmp_path / "etc").iterdir()) == []


class _Mounts(KernelFileSystems):
    """A kernel's list of mounts, of a device that is one; what is unmounted of it goes from the list."""

    def __init__(self, directory: Path, *paths: bytes) -> None:
        super().__init__(proc=directory, sys=directory)
        self._file = directory / "1/mountinfo"
        self._file.parent.mkdir()
        self.paths = list(paths)
        self.calls: list[tuple[str, ...]] = []
        self.write()

    def write(self) -> None:
        self._file.write_bytes(b"".join(b"36 35 7:0 / %s rw,nosuid - ext4 /dev/vdx rw\n" % path for path in self.paths))

    def _number(self, device: str) -> str:
        return "7:0"

    async def _call(self, function: Callable[..., object], *arguments: object) -> object:
        assert function is filesystems.unmount_path
        path = os.fsencode(str(arguments[0]))
        if path in self.paths:
            self.paths.remove(path)
        self.write()
        return None


@pytest.mark.parametrize("path", [b"/home/a\xff/x", b"/home/a\r/x", "/home/a\u2028b".encode(), b"/home/a\x0cb/x"])
async def test_a_mount_is_found_whatever_its_user_has_called_the_directories_above_it(
    path: bytes, tmp_path: Path
) -> None:
    door = _Mounts(tmp_path, b"/first", path, b"/last")
    assert [os.fsencode(one.path) for one in door.mounts("/dev/vdx")] == [b"/first", path, b"/last"]
    await door.unmount("/dev/vdx")
    assert door.paths == []


async def test_a_mount_that_was_renamed_while_it_was_unmounted_is_not_said_to_be_gone(tmp_path: Path) -> None:
    door = _Mounts(tmp_path, b"/home/a/x")
    names = iter([b"/home/b\xff/x", b"/home/c/x"])

    async def call(_function: object, *_arguments: object) -> None:
        if (name := next(names, None)) is not None:
            door.paths = [name]
            door.write()

    door._call = call  # type: ignore[method-assign, assignment]
    with pytest.raises(Conflict, match="unmount /home/c/x: it is still mounted"):
        await door.unmount("/dev/vdx")


async def test_no_file_is_made_below_a_name_that_cant_be_told(tmp_path: Path) -> None:
    door = _Mounts(tmp_path, b"/home/b\xff\r/x")
    with pytest.raises(Conflict, match=r"make /home/b\\xff\\r/x/memory: it has no name") as caught:
        await door.allocate("/dev/vdx", "memory", account=USER)
    assert caught.value.message.isprintable()


async def test_a_name_that_is_no_text_reaches_the_child_and_is_told_by_its_bytes(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff")
    (tmp_path / name).mkdir()
    await run_disposable(filesystems.remove_point, str(tmp_path / name))
    assert os.listdir(tmp_path) == []
    (tmp_path / "7/fd").mkdir(parents=True)
    (tmp_path / "7/fd/3").symlink_to(os.fsdecode(b"/mnt/x/\xff"))
    (one,) = look_for_users(str(tmp_path), ["/mnt/x"])
    assert one["path"] == "/mnt/x/\\xff"


@pytest.mark.parametrize(("kind", "options"), [("ext4", b"errors=remount-ro"), ("xfs", None)])
def test_what_a_superblock_says_stops_no_machine(
    kind: str, options: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[object, ...]] = []

    class Libc:
        def mount(self, *arguments: object) -> int:
            calls.append(arguments)
            return 0

    monkeypatch.setattr(filesystems.ctypes, "CDLL", lambda *_, **__: Libc())
    monkeypatch.setattr(filesystems, "_enter_init_mounts", lambda _: None)
    (tmp_path / "device").touch()
    mount_device(str(tmp_path / "device"), str(tmp_path / "own/x"), kind, True, 0, 0, False)
    ((_, _, told, _, given),) = calls
    assert (told, given) == (kind.encode(), options)


async def test_roots_directories_are_no_way_to_others(tmp_path: Path) -> None:
    (tmp_path / "own/l1").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "own/l1/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "device").touch()
    door = KernelFileSystems(own=str(tmp_path / "own"))
    with pytest.raises(FarbusError):
        await door.mount(
            str(tmp_path / "device"), f"{tmp_path}/own/l1/link/x", Format.EXT4, account=Account(uid=12345, gid=12345)
        )
    assert list((tmp_path / "elsewhere").iterdir()) == []


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
