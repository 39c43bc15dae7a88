"""The door to file systems, swap space and paths to block devices: what is made on storage that a lease gives.

Made is only where there is no signature at all, and the device begins with
zeros: what was wiped.  Mounted is with ``nosuid`` and ``nodev``, since whoever
has the storage may have written anything to it.

Everything that waits for a device is done in a process of its own, also what is
one system call (:mod:`farbus.linux.disposable`).  A directory that a user names
is opened with that user's rights, and mounted on by its descriptor: whatever
he puts in its place meanwhile is not mounted on.

Sources: mount(2), umount(2), swapon(2), proc_pid_fdinfo(5); blkid(8), mke2fs(8), e2fsck(8),
resize2fs(8), mkfs.xfs(8), xfs_growfs(8), mkswap(8), and what they answered (tests/linux/filesystems_contract.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, NotPermitted, Unavailable
from farbus.linux.disposable import run_disposable
from farbus.linux.names import shown
from farbus.linux.spawning import spawn
from farbus.model.holders import Holder, HolderKind
from farbus.model.storage import AMBIGUOUS, CUT_OFF, UNKNOWN_DATA, Account, Format, Mounted, Signature, Space

OWN_DIRECTORY = "/run/farbus/storage"
"""Below it are the directories on which is mounted what no path was asked for."""

NODES_DIRECTORY = "/dev/farbus-storage"
"""Below it are device nodes of users: in /run, which is mounted with ``nodev``, they could not be opened."""

BEGINNING_BYTES = 4096
"""What has to be zero before anything is made.  No more: mke2fs, cut off, leaves this empty and the rest half made."""

UNMOUNT_TRIES = 3
"""How often mounts are read again to see that all are gone: whoever may rename what they are in can be quicker."""

MAX_USERS = 100
"""Programs told of one mount: who has so many is not helped by the rest."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_BANNER = re.compile(r"\S+ [0-9.]+(-\S+)? \([0-9]+-[A-Za-z]+-[0-9]+\)")
"""What the programs of e2fsprogs begin all they say with: ``resize2fs 1.47.0 (5-Feb-2023)``."""


class FileSystems(Protocol):
    """What is on block devices of this machine, and where it is mounted.

    ``device`` is a path that stays; it is followed at each call.
    """

    async def signature(self, device: str) -> Signature | None:
        """Return what a device holds; None where there is no signature and it begins with zeros.

        Raises :class:`NotFound` where it is not there, and :class:`Unavailable` where it can't be read.
        """
        ...

    async def make(self, device: str, format: Format) -> None:
        """Make a file system or swap space on a device that holds nothing.

        Raises :class:`Conflict`, with what is there, where it holds anything, or where somebody has it.
        """
        ...

    async def check(self, device: str, format: Format) -> None:
        """Mend a file system that was not unmounted cleanly, as far as no question arises; it must not be mounted.

        Raises :class:`Unavailable` where somebody has to decide.
        """
        ...

    def mount_point(self, name: str) -> str:
        """Return the directory of our own for something of that name."""
        ...

    async def mount(self, device: str, path: str, format: Format, *, account: Account, read_only: bool = False) -> None:
        """Mount it in a directory, which is made where it is not there, and give its top to ``account``.

        A directory that is not :meth:`mount_point`'s is opened and made with the
        account's rights.  Raises :class:`Conflict` where it is not empty, not the
        account's, already a mount point, or where a link leads to it; :class:`NotPermitted` where the account may not.
        """
        ...

    def mounts(self, device: str, path: str = "") -> tuple[Mounted, ...]:
        """Return where a device is mounted in this machine's name space.

        With ``path`` also what is mounted there of a device that is gone.
        """
        ...

    async def unmount(self, device: str, path: str = "", *, lazy: bool = False) -> None:
        """Unmount all of :meth:`mounts`.  Nothing happens where there is none.

        Raises :class:`Conflict` with who uses it, and where it is still there
        afterwards; ``lazy`` takes it away from them: what they have open they
        keep, and nobody finds the path any more.
        """
        ...

    async def clear_mount_point(self, name: str) -> None:
        """Remove a directory of our own.  Nothing happens where it is gone, or something is mounted on it."""
        ...

    async def users(self, device: str) -> tuple[Holder, ...]:
        """Return the programs that have files of a mount open, mapped, or are in its directories."""
        ...

    async def swap_on(self, device: str) -> None:
        """Use it as swap space.  Nothing happens where it is used so."""
        ...

    async def swap_off(self, device: str) -> None:
        """Use it no more: what is on it goes back to memory first.

        Raises :class:`Conflict` where there is not enough memory for it.
        """
        ...

    def is_swap(self, device: str) -> bool:
        """Say whether it is used as swap space."""
        ...

    async def grow(self, device: str, format: Format) -> None:
        """Let a mounted file system have all of its device, which has become larger."""
        ...

    async def space(self, device: str) -> Space:
        """Return what the file system has room for, mounted.  Raises :class:`NotFound` where it is not mounted."""
        ...

    async def allocate(self, device: str, name: str, *, account: Account, leave_bytes: int = 0) -> str:
        """Make a file of all the room that a mounted file system has, but ``leave_bytes``; return its path.

        One that is there stays as it is.  Raises :class:`Conflict` where the directories above the mount were changed.
        """
        ...

    async def give_node(self, device: str, name: str, *, account: Account, read_only: bool = False) -> str:
        """Make a device node for an account, and return its path, which is the same for the same name."""
        ...

    async def take_node(self, name: str) -> None:
        """Remove a device node.  Nothing happens where there is none."""
        ...

    def node(self, name: str) -> str:
        """Return ``MAJOR:MINOR`` of a device node that was given; an empty string for none."""
        ...

    def given(self) -> tuple[str, ...]:
        """Return the names for which there is a device node, or a directory of our own."""
        ...


class Said(NamedTuple):
    """How a program ended, and what it printed."""

    code: int
    out: str
    err: str


class KernelFileSystems:
    """The programs and system calls of Linux."""

    def __init__(
        self,
        *,
        own: str = OWN_DIRECTORY,
        nodes: str = NODES_DIRECTORY,
        proc: str | Path = "/proc",
        sys: str | Path = "/sys",
    ) -> None:
        self._own = own
        self._nodes = nodes
        self._proc = Path(proc)
        self._sys = Path(sys)

    # What is on a device.

    async def signature(self, device: str) -> Signature | None:
        """Read its beginning, and run blkid, which looks at all of it."""
        try:
            zeros, half_made = await self._call(look_at_beginning, device)
        except OSError as error:
            raise _of_errno(f"look at {device}", error) from error
        said = await self._run("blkid", "--probe", "--output", "export", device)
        if said.code == 2:
            return None if zeros else Signature(kind=UNKNOWN_DATA)
        if said.code == 8:
            return Signature(kind=AMBIGUOUS)
        if said.code:
            raise Unavailable(f"look at {device}: {_first(said.err) or 'blkid says nothing'}", hint="see dmesg")
        told = dict(line.split("=", 1) for line in said.out.splitlines() if "=" in line)
        kind = told.get("TYPE") or told.get("PTTYPE") or AMBIGUOUS
        return Signature(
            kind=CUT_OFF if half_made and kind == Format.XFS else kind,
            uuid=told.get("UUID", ""),
            label=told.get("LABEL", ""),
        )

    async def make(self, device: str, format: Format) -> None:
        """Run what makes it."""
        there = await self.signature(device)
        if there is not None and there.kind != CUT_OFF:
            raise Conflict(
                f"make {format} on {device}: it holds {described(there)}",
                hint="nothing was changed; use it as what it is, or have it wiped",
            )
        commands = {
            # What was wiped need not be discarded; room for root alone is of no use on a volume.
            Format.EXT4: ("mkfs.ext4", "-q", "-m", "0", "-E", "nodiscard", device),
            Format.XFS: ("mkfs.xfs", "-q", "-K", *(("-f",) if there is not None else ()), device),
            Format.SWAP: ("mkswap", device),
        }
        said = await self._run(*commands[format])
        if said.code:
            raise _of_program(f"make {format} on {device}", said)

    async def check(self, device: str, format: Format) -> None:
        """Run e2fsck; xfs mends itself when it is mounted."""
        if format is not Format.EXT4:
            return
        said = await self._run("e2fsck", "-p", device)
        # 1: mended; 2: a root file system was, which this is not (e2fsck(8)).
        if said.code & ~3:
            raise Unavailable(
                f"check {device}: {_first(said.out) or _first(said.err) or f'e2fsck ends with {said.code}'}",
                hint=f"what is wrong has to be decided by somebody: e2fsck -f {device}",
            )

    # Mounts.

    def mount_point(self, name: str) -> str:
        """Return a directory below ``own``."""
        return f"{self._own}/{_checked(name)}"

    async def mount(self, device: str, path: str, format: Format, *, account: Account, read_only: bool = False) -> None:
        """Mount it in a child, which may change who it is."""
        # No deeper: what is below one of them its user has written, links too.
        own = os.path.dirname(path) == self._own
        try:
            await self._call(mount_device, device, path, format.value, own, account.uid, account.gid, read_only)
        except OSError as error:
            raise _of_errno(f"mount {device} on {path}", error) from error

    def mounts(self, device: str, path: str = "") -> tuple[Mounted, ...]:
        """Read mountinfo."""
        number = self._number(device)
        return tuple(
            one
            for one in self._mounted()
            if (number and one.number == number) or (one.path == path and self._is_gone(one.number))
        )

    def _is_gone(self, number: str) -> bool:
        # File systems without a device have major number 0.
        return not number.startswith("0:") and not (self._sys / "dev/block" / number).exists()

    def _mounted(self) -> Iterator[Mounted]:
        # Paths are bytes, of which the kernel escapes blanks, tabs, newlines and backslashes alone.
        for line in _bytes(_init_or_self(self._proc) / "mountinfo").decode(errors="surrogateescape").split("\n"):
            words = line.split(" ")
            if "-" not in words[6:]:
                continue
            kind = words[words.index("-", 6) + 1]
            options = tuple(words[5].split(","))
            yield Mounted(
                path=_unescaped(words[4]), number=words[2], kind=kind, read_only="ro" in options, options=options
            )

    async def unmount(self, device: str, path: str = "", *, lazy: bool = False) -> None:
        """Unmount the last mount first; again where directories on its way were renamed meanwhile."""
        for _ in range(UNMOUNT_TRIES):
            mounts = self.mounts(device, path)
            for mounted in reversed(mounts):
                await self._unmount(mounted, lazy=lazy)
            if not mounts:
                return
        if left := self.mounts(device, path):
            raise Conflict(f"unmount {shown(left[-1].path)}: it is still mounted", hint=_THE_PATH)

    async def _unmount(self, mounted: Mounted, *, lazy: bool) -> None:
        what = f"unmount {shown(mounted.path)}"
        try:
            await self._call(unmount_path, mounted.path, mounted.number, lazy)
        except OSError as error:
            if error.errno == errno.EBUSY:
                told = "; ".join(map(str, await self._users([mounted.path]))) or "nobody tells by whom"
                raise Conflict(f"{what}: it is in use: {told}", hint="end what uses it") from error
            raise _of_errno(what, error) from error

    async def clear_mount_point(self, name: str) -> None:
        """Remove it in a child."""
        await self._call(remove_point, self.mount_point(name))

    async def users(self, device: str) -> tuple[Holder, ...]:
        """Look in a child."""
        paths = [mounted.path for mounted in self.mounts(device)]
        return await self._users(paths) if paths else ()

    async def _users(self, paths: list[str]) -> tuple[Holder, ...]:
        return msgspec.convert(await self._call(look_for_users, str(self._proc), paths), tuple[Holder, ...])

    async def space(self, device: str) -> Space:
        """Ask in a child: statvfs(3) waits for a file system that does not answer."""
        path = self._mounted_at(device, "room of")
        try:
            size, free, available = await self._call(room_of, path)
        except OSError as error:
            raise _of_errno(f"room of {shown(path)}", error) from error
        return Space(size_bytes=size, free_bytes=free, available_bytes=available)

    def _mounted_at(self, device: str, what: str) -> str:
        found = self.mounts(device)
        if not found:
            raise NotFound(f"{what} {device}: it is not mounted")
        return found[0].path

    async def grow(self, device: str, format: Format) -> None:
        """Run the program of the file system."""
        path = self._mounted_at(device, "grow")
        if format is Format.SWAP:
            raise InvalidInput(f"grow {device}: swap space does not grow while it is used")
        command = ("resize2fs", device) if format is Format.EXT4 else ("xfs_growfs", path)
        said = await self._run(*command)
        if said.code:
            raise _of_program(f"grow {device}", said)

    async def allocate(self, device: str, name: str, *, account: Account, leave_bytes: int = 0) -> str:
        """Allocate in a child: the file system may have to write all of it down."""
        path, number = self._mounted_at(device, "make a file on"), self._number(device)
        if shown(path) != path:
            # Its user was told another, and no program would be given this one.
            raise Conflict(f"make {shown(path)}/{name}: it has no name that can be told", hint=_THE_PATH)
        try:
            await self._call(allocate_file, path, number, _checked(name), account.uid, account.gid, leave_bytes)
        except OSError as error:
            raise _of_errno(f"make {shown(path)}/{name}", error) from error
        return f"{path}/{name}"

    # Swap.

    async def swap_on(self, device: str) -> None:
        """Call swapon(2) in a child."""
        if self.is_swap(device):
            return
        try:
            await self._call(swap, device, True)
        except OSError as error:
            raise _of_errno(f"use {device} as swap", error) from error

    async def swap_off(self, device: str) -> None:
        """Call swapoff(2) in a child."""
        if not self.is_swap(device):
            return
        try:
            await self._call(swap, device, False)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                told = f"use {device} no more as swap: there is not enough memory for what is on it"
                raise Conflict(told, hint="end programs first") from error
            raise _of_errno(f"use {device} no more as swap", error) from error

    def is_swap(self, device: str) -> bool:
        """Read proc/swaps, which names the device as it was found."""
        number = self._number(device)
        return bool(number) and any(
            self._number(_unescaped(line.split()[0])) == number
            for line in _text(self._proc / "swaps").splitlines()[1:]
            if line.split()
        )

    # Device nodes.

    async def give_node(self, device: str, name: str, *, account: Account, read_only: bool = False) -> str:
        """Make it in a child under another name, and put it where it belongs at once."""
        path = f"{self._nodes}/{_checked(name)}"
        try:
            await self._call(make_node, device, path, account.uid, account.gid, read_only)
        except OSError as error:
            raise _of_errno(f"make {path}", error) from error
        return path

    async def take_node(self, name: str) -> None:
        """Unlink it; who has it open keeps it so."""
        try:
            await self._call(remove_node, f"{self._nodes}/{_checked(name)}")
        except OSError as error:
            raise _of_errno(f"remove {self._nodes}/{name}", error) from error

    def node(self, name: str) -> str:
        """Look at it."""
        return self._number(f"{self._nodes}/{_checked(name)}")

    def given(self) -> tuple[str, ...]:
        """List both directories."""
        found: set[str] = set()
        for directory in (self._nodes, self._own):
            with contextlib.suppress(FileNotFoundError):
                found |= {name for name in os.listdir(directory) if _NAME.fullmatch(name)}
        return tuple(sorted(found))

    # The machine.

    def _number(self, device: str) -> str:
        """Return ``MAJOR:MINOR`` of a block device; an empty string where there is none."""
        try:
            status = os.stat(device)
        except OSError:
            return ""
        return _number_of(status.st_rdev) if stat.S_ISBLK(status.st_mode) else ""

    async def _call(self, function: Any, *arguments: Any) -> Any:
        return await run_disposable(function, *arguments)

    async def _run(self, program: str, *arguments: str) -> Said:
        # Where ordinary users' PATH does not lead.
        path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
        found = shutil.which(program, path=path)
        if found is None:
            raise Unavailable(f"{program} is not here", hint=f"install {_PACKAGES.get(program, program)}")
        try:
            child = await spawn(
                found, *arguments,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                start_new_session=True, env={**os.environ, "PATH": path, "LC_ALL": "C"},
            )  # fmt: skip
        except OSError as error:
            raise Unavailable(f"{program}: {error.strerror}") from error
        # Whoever waits no more leaves it: half a file system is worse than a late one.
        out, err = await child.communicate()
        return Said(child.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))


_PACKAGES = {
    "blkid": "util-linux",
    "mkswap": "util-linux",
    "mkfs.ext4": "e2fsprogs",
    "e2fsck": "e2fsprogs",
    "resize2fs": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "xfs_growfs": "xfsprogs",
}


def described(signature: Signature) -> str:
    """Say what a device holds."""
    if signature.kind == UNKNOWN_DATA:
        return "data that no known file system has written"
    if signature.kind == AMBIGUOUS:
        return "signatures of several kinds"
    if signature.kind == CUT_OFF:
        return "a file system that was being made"
    return signature.kind + (f" called {signature.label}" if signature.label else "")


# What children do.

_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_CLONE_NEWNS = 0x00020000
"""linux/mount.h, linux/fs.h, linux/sched.h."""

_OPTIONS = {Format.EXT4: b"errors=remount-ro"}
"""Where nobody says so, ext4 does with an error what its superblock wishes, and that may be to stop the machine
(``errors=panic``, Documentation/admin-guide/ext4.rst): its user may have written it."""

_THE_USERS = "name a directory of the user's"
_THE_PATH = "leave the directories above a mount where they are"

_XFS_IN_PROGRESS = 126
"""Where an XFS superblock says that mkfs has not ended (``sb_inprogress``, fs/xfs/libxfs/xfs_format.h)."""


def look_at_beginning(device: str) -> list[bool]:
    """Say whether a device begins with zeros, and whether it begins with an XFS that is being made."""
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        beginning = os.pread(descriptor, BEGINNING_BYTES, 0)
    finally:
        os.close(descriptor)
    half_made = beginning[:4] == b"XFSB" and len(beginning) > _XFS_IN_PROGRESS and beginning[_XFS_IN_PROGRESS] != 0
    return [not any(beginning), half_made]


def mount_device(device: str, path: str, kind: str, own: bool, uid: int, gid: int, read_only: bool) -> None:
    """Mount a device on a directory, and give the top of it to an account.  Raises OSError or :class:`Conflict`."""
    libc = ctypes.CDLL(None, use_errno=True)
    _enter_init_mounts(libc)
    # Opened before: the directory may hide it.
    source = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        number = os.fstat(source).st_rdev
        point = _own_point(path) if own else open_point(path, uid, gid)
        try:
            flags = _MS_NOSUID | _MS_NODEV | (_MS_RDONLY if read_only else 0)
            target = f"/proc/self/fd/{point}".encode()
            options = _OPTIONS.get(Format(kind))
            if libc.mount(os.path.realpath(device).encode(), target, kind.encode(), ctypes.c_ulong(flags), options):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            os.close(point)
    finally:
        os.close(source)
    if read_only:
        return
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(top)
        if status.st_dev == number and (status.st_uid, status.st_gid) != (uid, gid):
            os.fchown(top, uid, gid)
    finally:
        os.close(top)


def _own_point(path: str) -> int:
    """Open a directory of our own, which only root can have made."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o755)
    point = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _refuse_point(point, path)
    except BaseException:
        os.close(point)
        raise
    return point


def open_point(path: str, uid: int, gid: int) -> int:
    """Open a directory that an account has asked for, as that account; make it where it is not there.

    Raises :class:`Conflict` for what can't be mounted on, :class:`NotPermitted` for what is not the account's to give.
    """
    if not os.path.isabs(path) or os.path.normpath(path) != path or path == "/":
        raise InvalidInput(f"{path}: no path to mount on", hint="a path from /, without . and ..")
    as_root = os.geteuid() == 0 and uid != 0
    if as_root:
        # Of its groups the first is enough: what is asked for has to be its own.
        os.setgroups([])
        os.setegid(gid)
        os.seteuid(uid)
    try:
        point = _walk(path)
    except PermissionError as error:
        raise NotPermitted(f"{path}: its user may not make or open it", hint=_THE_USERS) from error
    finally:
        if as_root:
            os.seteuid(0)
            os.setegid(0)
    try:
        real = os.readlink(f"/proc/self/fd/{point}")
        if real != path:
            raise Conflict(f"{path}: a link leads to it", hint=f"name {real}")
        if uid and os.fstat(point).st_uid != uid:
            raise NotPermitted(f"{path}: it is not its user's", hint=_THE_USERS)
        _refuse_point(point, path)
    except BaseException:
        os.close(point)
        raise
    return point


def _walk(path: str) -> int:
    """Open a directory, with those that are missing on the way made."""
    at = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in path.strip("/").split("/"):
        try:
            try:
                # O_PATH: a directory may be passed through that may not be read.
                below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=at)
                below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        finally:
            os.close(at)
        at = below
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)


def _refuse_point(point: int, path: str) -> None:
    """Raise :class:`Conflict` where something is mounted on a directory, or in it."""
    above = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=point)
    try:
        if _mount_of(above) != _mount_of(point):
            raise Conflict(f"{path}: something is mounted there", hint="findmnt shows what")
    finally:
        os.close(above)
    if os.listdir(point):
        raise Conflict(f"{path}: it is not empty", hint="name an empty directory, or one that is not there")


def _mount_of(descriptor: int) -> str:
    """Return the number of the mount that a descriptor is in (proc_pid_fdinfo(5)); bind mounts have their own."""
    for line in _text(Path(f"/proc/self/fdinfo/{descriptor}")).splitlines():
        name, _, value = line.partition(":")
        if name == "mnt_id":
            return value.strip()
    return ""


def unmount_path(path: str, number: str, lazy: bool) -> None:
    """Unmount what is on a path, if it is still that device.  Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    _enter_init_mounts(libc)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if _number_of(status.st_dev) != number:
        return
    if libc.umount2(os.fsencode(path), _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)):
        found = ctypes.get_errno()
        if found not in (errno.EINVAL, errno.ENOENT):
            raise OSError(found, os.strerror(found))


def remove_point(path: str) -> None:
    """Remove a directory of our own: rmdir(2) takes none on which something is mounted, and none with something in."""
    _enter_init_mounts(ctypes.CDLL(None, use_errno=True))
    with contextlib.suppress(OSError):
        os.rmdir(path)


def _enter_init_mounts(libc: ctypes.CDLL) -> None:
    """Go where the first process sees mounts: what a service mounts in a name space of its own, no program finds.

    Raises :class:`NotPermitted` where this process is in another one and may not leave it.
    """
    try:
        here, there = os.readlink("/proc/self/ns/mnt"), os.readlink("/proc/1/ns/mnt")
    except OSError:
        return
    if here == there:
        return
    space = os.open("/proc/1/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(space, _CLONE_NEWNS):
            raise NotPermitted(
                f"mounts of this node: {os.strerror(ctypes.get_errno())}",
                hint="set use_storage = true in its agent.toml, run farbus install agent there, and restart it",
            )
    finally:
        os.close(space)


def look_for_users(proc: str, paths: list[str]) -> Any:
    """Return who has something open, mapped or is below one of the paths, as JSON can hold it.

    By the names that the kernel tells, and no look at the files: one on a server that is gone does not come back.
    """
    found: list[Holder] = []
    for process in Path(proc).iterdir():
        if not process.name.isdigit() or process.name == str(os.getpid()) or len(found) >= MAX_USERS:
            continue
        with contextlib.suppress(OSError):
            place = next((place for place in _places_of(process) if _below(place, paths)), "")
            if place:
                name = shown(_text(process / "comm"))
                found.append(Holder(kind=HolderKind.PROCESS, name=name, path=shown(place), pid=int(process.name)))
    return msgspec.to_builtins(found)


def _places_of(process: Path) -> Iterator[str]:
    for name in ("cwd", "root", "exe"):
        with contextlib.suppress(OSError):
            yield os.readlink(process / name)
    for entry in os.scandir(process / "fd"):
        with contextlib.suppress(OSError):
            yield os.readlink(entry.path)
    for line in _text(process / "maps").splitlines():
        if line.count(" ") >= 5 and "/" in line:
            yield line.split(maxsplit=5)[5]


def _below(place: str, paths: list[str]) -> bool:
    return any(place == path or place.startswith(f"{path}/") for path in paths)


def room_of(path: str) -> list[int]:
    """Return size, free and available bytes of the file system at a path."""
    found = os.statvfs(path)
    return [found.f_blocks * found.f_frsize, found.f_bfree * found.f_frsize, found.f_bavail * found.f_frsize]


def allocate_file(path: str, number: str, name: str, uid: int, gid: int, leave_bytes: int) -> None:
    """Make a file of all the room that there is, whole or not at all.

    Under another name until it is: what was cut off is made anew.  As much as
    fits is found by trying: what a file system needs for itself it does not tell.
    Raises :class:`Conflict` where the path does not lead to the device ``number``
    any more: whose directories are on its way can put others, or links, in their places.
    """
    _enter_init_mounts(ctypes.CDLL(None, use_errno=True))
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if _number_of(os.fstat(directory).st_dev) != number:
            raise Conflict(f"make {shown(path)}/{name}: something else is there by now", hint=_THE_PATH)
        with contextlib.suppress(FileNotFoundError):
            os.stat(name, dir_fd=directory, follow_symlinks=False)
            return
        new = f".{name}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=directory)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(new, flags, 0o600, dir_fd=directory)
        try:
            size = _whole(os.fstatvfs(descriptor)) - leave_bytes
            while size > 0:
                try:
                    os.posix_fallocate(descriptor, 0, size)
                    break
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    os.ftruncate(descriptor, 0)
                    size = (size - max(1 << 20, size // 256)) & ~((1 << 20) - 1)
            else:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fchown(descriptor, uid, gid)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)
    finally:
        os.close(directory)


def _whole(found: os.statvfs_result) -> int:
    """Return the free room in whole MiB: what is mapped is mapped by pages, of whatever size."""
    return (found.f_bavail * found.f_frsize) & ~((1 << 20) - 1)


def swap(device: str, on: bool) -> None:
    """Call swapon(2) or swapoff(2).  Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.swapon(device.encode(), 0) if on else libc.swapoff(device.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def make_node(device: str, path: str, uid: int, gid: int, read_only: bool) -> None:
    """Make a node of a block device that an account may open.  Raises OSError."""
    number = os.stat(device).st_rdev
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    new = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    os.mknod(new, stat.S_IFBLK | (0o400 if read_only else 0o600), number)
    os.chown(new, uid, gid)
    os.rename(new, path)


def remove_node(path: str) -> None:
    """Remove a node, and the directory with the last one."""
    for name in (path, f"{path}.new"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(path))


# Errors, names.


def _of_errno(what: str, error: OSError) -> FarbusError:
    message = f"{what}: {error.strerror}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NotPermitted(message, hint="only root may, outside of containers")
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        return NotFound(message)
    if error.errno in (errno.EBUSY, errno.ENOTDIR, errno.ELOOP, errno.EEXIST, errno.ENOTEMPTY):
        return Conflict(message)
    if error.errno == errno.ENOSPC:
        return Conflict(message, hint="there is no room for it")
    return Unavailable(message, hint="see dmesg")


def _of_program(what: str, said: Said) -> FarbusError:
    told = _first(said.err) or _first(said.out) or f"it ends with {said.code}"
    if "in use" in said.err or "is mounted" in said.err or "apparently in use" in said.out:
        return Conflict(f"{what}: {told}", hint="lsblk shows what stands on it")
    return Unavailable(f"{what}: {told}", hint="see dmesg")


def _first(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return next((line[:200] for line in lines if line and _BANNER.fullmatch(line) is None), "")


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise InvalidInput(f"{name!r}: no name for a directory or file", hint="letters, digits, . _ -")
    return name


def _init_or_self(proc: Path) -> Path:
    """Return whose mounts are this machine's: the first process's, where they can be read."""
    return proc / "1" if os.access(proc / "1/mountinfo", os.R_OK) else proc / "self"


def _unescaped(text: str) -> str:
    """Undo the octal escapes of proc_pid_mountinfo(5)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def _number_of(device: int) -> str:
    return f"{os.major(device)}:{os.minor(device)}"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _text(path: Path) -> str:
    return _bytes(path).decode(errors="replace").strip()
