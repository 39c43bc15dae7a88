"""The door to who holds a device: open files, maps, mounts, what stands on block devices, exports.

Looking reads the whole of /proc and may hang where one process does, so it is
done in a disposable child.  A look proves nothing about the next moment: who
removes a device looks again when nobody new may come, and for block devices
asks the kernel (:func:`open_exclusively`).

Not seen are descriptors on their way between two processes (SCM_RIGHTS), those
registered with io_uring, and device nodes under other names than udev's that
somebody made by hand outside of /dev.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pwd
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from farbus.errors import Conflict, FarbusError, NotPermitted, Unavailable
from farbus.linux.clock import Clock
from farbus.linux.disposable import run_disposable
from farbus.linux.names import shown
from farbus.model.holders import CURES, Holder, HolderKind, Look
from farbus.model.pci import Address

NVIDIA_MAJOR = 195
"""Documentation/admin-guide/devices.txt of NVIDIA's driver: /dev/nvidiaN is 195, N."""

MAX_HOLDERS = 1000
"""Holders told of one device: who has so many is not helped by the rest."""


_ALL_SEEN = "root sees all, where it is not confined to a container"


class Holders(Protocol):
    """Who holds devices of this machine."""

    async def look(self, addresses: Sequence[str]) -> Look:
        """Return the holders of the device that has these functions."""
        ...

    async def prove(self, addresses: Sequence[str]) -> None:
        """Raise :class:`Conflict` where the kernel itself uses a block device of it."""
        ...

    async def look_at_blocks(self, names: Sequence[str]) -> Look:
        """Return the holders of block devices by their kernel names, with their partitions and what stands on them."""
        ...

    async def prove_blocks(self, names: Sequence[str]) -> None:
        """Raise :class:`Conflict` where the kernel itself uses one of these block devices."""
        ...

    async def evict(self, holder: Holder, *, grace_s: float) -> None:
        """End a process: SIGTERM, and SIGKILL after ``grace_s``; return when it is gone, or could not be ended."""
        ...


class KernelHolders:
    """Reads a machine's /sys, /proc and /dev.  ``own`` are processes of ours that let go when they are told to."""

    def __init__(
        self,
        *,
        clock: Clock,
        own: Mapping[str, str] | None = None,
        sys: str | Path = "/sys",
        proc: str | Path = "/proc",
        dev: str | Path = "/dev",
    ) -> None:
        self._clock = clock
        self._own = dict(own or {"farbus.linux.nvml_worker": "NVML worker"})
        self._roots = {"sys": str(sys), "proc": str(proc), "dev": str(dev)}

    async def look(self, addresses: Sequence[str]) -> Look:
        """Look in a child process."""
        found = await run_disposable(look_for_holders, self._roots, list(addresses), self._own)
        return msgspec.convert(found, Look)

    async def prove(self, addresses: Sequence[str]) -> None:
        """Try in a child process."""
        await self._prove(list(addresses), [])

    async def look_at_blocks(self, names: Sequence[str]) -> Look:
        """Look in a child process."""
        found = await run_disposable(look_for_holders, self._roots, [], self._own, list(names))
        return msgspec.convert(found, Look)

    async def prove_blocks(self, names: Sequence[str]) -> None:
        """Try in a child process."""
        await self._prove([], list(names))

    async def _prove(self, addresses: list[str], names: list[str]) -> None:
        try:
            busy = await run_disposable(open_exclusively, self._roots, addresses, names)
        except OSError as error:
            # A drive that has failed is opened by nobody, and nobody knows what the kernel does with it.
            raise Unavailable(f"open {error.filename}: {error.strerror}", hint="see dmesg") from error
        if busy:
            raise Conflict(f"{busy} is in use by the kernel", hint="lsblk shows what stands on it")

    async def evict(self, holder: Holder, *, grace_s: float) -> None:
        """Signal by a descriptor of the process, so that no other that got its number is ended."""
        try:
            descriptor = os.pidfd_open(holder.pid)
        except ProcessLookupError:
            return
        try:
            if _started_at(Path(self._roots["proc"]) / str(holder.pid)) != holder.started:
                return
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    signal.pidfd_send_signal(descriptor, number)
                except ProcessLookupError:
                    return
                except PermissionError as error:
                    raise NotPermitted(f"end pid {holder.pid} ({holder.name}): {error.strerror}") from error
                if await self._ended(descriptor, grace_s):
                    return
        finally:
            os.close(descriptor)

    async def _ended(self, descriptor: int, limit_s: float) -> bool:
        """Wait for a process's end; its descriptor is readable then (pidfd_open(2))."""
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(descriptor, gone.set)
        timer = asyncio.ensure_future(self._clock.sleep(limit_s))
        waiting = asyncio.ensure_future(gone.wait())
        try:
            await asyncio.wait({timer, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(descriptor)
            timer.cancel()
            waiting.cancel()
        return gone.is_set()


# In the child.


@dataclass
class _Nodes:
    """The device nodes of a device, and of what stands on it."""

    numbers: dict[tuple[bool, str], str] = field(default_factory=dict)
    """(is a block device, ``MAJOR:MINOR``) -> path."""
    blocks: dict[str, str] = field(default_factory=dict)
    """Name of a block device -> path."""
    attributes: list[str] = field(default_factory=list)
    """Directories in sysfs whose ``resourceN`` and ``config`` programs may map."""

    def add(self, name: str, number: str, *, dev: str, block: bool) -> None:
        path = f"{dev}/{name}"
        self.numbers[block, number] = path
        if block:
            self.blocks[name.rpartition("/")[2]] = path


class Machine:
    """What processes of a machine have open, mapped and mounted, and what it exports: read once, for many devices.

    To look at a device reads all of it, and a machine may have hundreds.
    """

    def __init__(self, roots: Mapping[str, str]) -> None:
        self.sys, self.proc = Path(roots["sys"]), Path(roots["proc"])
        self._files: dict[Path, list[tuple[str, str]] | OSError] = {}
        self._mapped: dict[Path, list[str]] = {}
        self._mounts: dict[str, list[str]] = {}
        self._exports: list[tuple[str, Path, str]] | None = None

    def files(self, process: Path) -> list[tuple[str, str]]:
        """Return what links of descriptors lead to, and the links.  Raises OSError, each time."""
        if process not in self._files:
            try:
                self._files[process] = list(_open_files(process))
            except OSError as error:
                self._files[process] = error
        found = self._files[process]
        if isinstance(found, OSError):
            raise found
        return found

    def mapped(self, process: Path) -> list[str]:
        """Return the files that a process has mapped.  Raises OSError."""
        if process not in self._mapped:
            lines = _read(process / "maps").splitlines()
            paths = (line.split(maxsplit=5)[5] for line in lines if line.count(" ") >= 5 and "/" in line)
            self._mapped[process] = list(dict.fromkeys(paths))
        return self._mapped[process]

    def mounts(self, space: str, process: Path) -> list[str]:
        """Return the lines of mountinfo of a mount namespace, which a process is in."""
        if space not in self._mounts:
            self._mounts[space] = _text(process / "mountinfo").splitlines()
        return self._mounts[space]

    def exports(self) -> list[tuple[str, Path, str]]:
        """Return subsystem, directory and device of each namespace of the NVMe target that is enabled."""
        if self._exports is None:
            self._exports = [
                (subsystem.name, namespace, _text(namespace / "device_path"))
                for subsystem in _children(self.sys / "kernel/config/nvmet/subsystems")
                for namespace in _children(subsystem / "namespaces")
                if _text(namespace / "enable") == "1"
            ]
        return self._exports


def look_for_holders(
    roots: dict[str, str],
    addresses: list[str],
    own: dict[str, str],
    blocks: Sequence[str] = (),
    machine: Machine | None = None,
) -> Any:
    """Return the :class:`Look` at a device as JSON can hold it.  In a child: reading /proc may hang.

    The device has these functions, or is these block devices.  Who looks at many keeps ``machine``.
    """
    if not addresses and not blocks:
        # It is not here, so nobody holds it: neither those that can be seen nor others.
        return msgspec.to_builtins(Look())
    machine = machine or Machine(roots)
    sys, proc = machine.sys, machine.proc
    nodes = _nodes_of(roots, addresses, blocks)
    holders = [*_stands_on(sys, nodes), *_interfaces(sys, addresses), *_exports(machine, nodes, roots["dev"])]
    unseen: list[str] = []
    holders += _mounts(machine, nodes, unseen)
    holders += _swaps(proc, nodes)
    holders += _processes(machine, nodes, own, unseen, dev=roots["dev"])
    return msgspec.to_builtins(Look(holders=tuple(holders[:MAX_HOLDERS]), unseen=tuple(unseen)))


def open_exclusively(roots: dict[str, str], addresses: list[str], blocks: Sequence[str] = ()) -> str:
    """Return the first block device of a device that the kernel does not give us for ourselves; empty for none.

    O_EXCL of a block device without O_CREAT fails where it, or a partition of
    it, is mounted, swapped to, or claimed by md or device-mapper, in whatever
    namespace (open(2), blkdev_get of block/bdev.c).
    """
    for path in _nodes_of(roots, addresses, blocks, above=False).blocks.values():
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
        except OSError as error:
            if error.errno == errno.EBUSY:
                return path
            if error.errno in (errno.ENXIO, errno.ENOENT, errno.ENOMEDIUM, errno.ENODEV):
                # It has gone meanwhile, or holds nothing.
                continue
            raise
    return ""


def _nodes_of(
    roots: dict[str, str], addresses: Iterable[str], blocks: Iterable[str] = (), *, above: bool = True
) -> _Nodes:
    sys, proc, dev = Path(roots["sys"]), Path(roots["proc"]), roots["dev"]
    nodes = _Nodes()
    for name in blocks:
        with contextlib.suppress(OSError):
            # With its partitions, which lie below it.
            _walk((sys / "class/block" / name).resolve(strict=True), nodes, dev, top=False)
    for address in addresses:
        try:
            place = (sys / "bus/pci/devices" / address).resolve(strict=True)
        except OSError:
            continue
        nodes.attributes.append(f"{address}/")
        _walk(place, nodes, dev, top=True)
        for controller in _children(place / "nvme"):
            _shared_namespaces(sys, controller.name, nodes, dev)
        minor = _nvidia_minor(proc, address)
        if minor is not None:
            nodes.add(f"nvidia{minor}", f"{NVIDIA_MAJOR}:{minor}", dev=dev, block=False)
        group = _link_name(place / "iommu_group")
        if group and _link_name(place / "driver") == "vfio-pci":
            number = _text(sys / "devices/virtual/vfio" / group / "dev")
            nodes.add(f"vfio/{group}", number, dev=dev, block=False)
    if above:
        for name in _all_above(sys, list(nodes.blocks)):
            nodes.add(name, _text(sys / "class/block" / name / "dev"), dev=dev, block=True)
    return nodes


def _walk(place: Path, nodes: _Nodes, dev: str, *, top: bool = False) -> None:
    """Find what has a ``dev`` file in the tree of a function, not of functions below it."""
    number = "" if top else _text(place / "dev")
    if number:
        name = next(
            (line.partition("=")[2] for line in _text(place / "uevent").splitlines() if line.startswith("DEVNAME=")),
            place.name,
        )
        block = (
            _link_name(place / "subsystem") == "block" or place.parent.name == "block" or ((place / "size").exists())
        )
        nodes.add(name, number, dev=dev, block=block)
    for child in _children(place):
        if child.is_symlink() or not child.is_dir() or _is_address(child.name):
            continue
        _walk(child, nodes, dev)


def _shared_namespaces(sys: Path, controller: str, nodes: _Nodes, dev: str) -> None:
    """Find the namespaces of a controller whose subsystem has them, for several controllers (native multipath)."""
    for subsystem in _children(sys / "class/nvme-subsystem"):
        if not (subsystem / controller).exists():
            continue
        others = [
            entry.name
            for entry in _children(subsystem)
            if re.fullmatch(r"nvme[0-9]+", entry.name) and entry.name != controller
        ]
        if others:
            # They have other paths: this one may go.
            continue
        for namespace in _children(subsystem):
            if re.fullmatch(r"nvme[0-9]+n[0-9]+", namespace.name):
                _walk(namespace, nodes, dev)


def _nvidia_minor(proc: Path, address: str) -> int | None:
    match = re.search(r"Device Minor:\s*(\d+)", _text(proc / "driver/nvidia/gpus" / address / "information"))
    return int(match.group(1)) if match else None


def _all_above(sys: Path, names: list[str]) -> list[str]:
    """Return the block devices that stand on others, and on those again (device-mapper, md, bcache)."""
    found: list[str] = []
    for name in names:
        for holder in _children(sys / "class/block" / name / "holders"):
            if holder.name not in found and holder.name not in names:
                found += [holder.name, *_all_above(sys, [holder.name])]
    return list(dict.fromkeys(found))


def _stands_on(sys: Path, nodes: _Nodes) -> Iterator[Holder]:
    """Yield device-mapper, md, loop devices and file systems of several devices."""
    for name, path in nodes.blocks.items():
        for holder in _children(sys / "class/block" / name / "holders"):
            mapped = _text(sys / "class/block" / holder.name / "dm/name")
            told = f"{holder.name} ({mapped})" if mapped else holder.name
            cure = f"dmsetup remove {mapped}" if mapped else f"mdadm --stop /dev/{holder.name}"
            yield Holder(kind=HolderKind.BLOCK, name=told, path=path, cure=cure)
    for loop in _children(sys / "class/block"):
        file = _text(loop / "loop/backing_file")
        if file in nodes.blocks.values():
            yield Holder(kind=HolderKind.BLOCK, name=loop.name, path=file, cure=f"losetup -d /dev/{loop.name}")
    for system in _children(sys / "fs/btrfs"):
        for member in _children(system / "devices"):
            if member.name in nodes.blocks:
                yield Holder(
                    kind=HolderKind.BLOCK,
                    name=f"btrfs {system.name}",
                    path=nodes.blocks[member.name],
                    cure="unmount it, or btrfs device remove",
                )


def _interfaces(sys: Path, addresses: Iterable[str]) -> Iterator[Holder]:
    """Yield network interfaces that are up (IFF_UP, linux/if.h)."""
    for address in addresses:
        for interface in _children(sys / "bus/pci/devices" / address / "net"):
            flags = _text(interface / "flags")
            if flags and int(flags, 16) & 1:
                yield Holder(
                    kind=HolderKind.NETWORK,
                    name=interface.name,
                    path=address,
                    cure=f"ip link set {interface.name} down",
                )


def _exports(machine: Machine, nodes: _Nodes, dev: str) -> Iterator[Holder]:
    """Yield namespaces of the NVMe target that are enabled (nvmet's configfs)."""
    for subsystem, namespace, path in machine.exports():
        if _same(path, nodes, dev):
            yield Holder(
                kind=HolderKind.EXPORT,
                name=f"{shown(subsystem)}, namespace {namespace.name}",
                path=path,
                cure=shown(f"echo 0 > {namespace}/enable"),
            )


def _same(path: str, nodes: _Nodes, dev: str) -> bool:
    """Say whether a path names one of the block devices, also by a link of udev's."""
    if path in nodes.blocks.values():
        return True
    real = os.path.realpath(path) if path.startswith(f"{dev}/") else ""
    return real in nodes.blocks.values()


def _mounts(machine: Machine, nodes: _Nodes, unseen: list[str]) -> Iterator[Holder]:
    """Yield the mounts of all mount namespaces: a container's are not in ours."""
    if not nodes.blocks:
        return
    seen: set[str] = set()
    # Services in a sandbox have copies of our mounts, which go with ours: each is told once, ours before others.
    told: dict[tuple[str, str], str] = {}
    ours = _link_target(machine.proc / "self/ns/mnt")
    hidden = 0
    for process in _pids(machine.proc):
        try:
            space = os.readlink(process / "ns/mnt")
        except PermissionError:
            hidden += 1
            continue
        except OSError:
            # It has ended, and nobody has asked how.
            continue
        if space in seen:
            continue
        seen.add(space)
        for line in machine.mounts(space, process):
            words = line.split(" ")
            if len(words) < 10 or "-" not in words:
                continue
            # A user may mount again what is mounted, in a namespace of his own, and call that whatever he likes.
            point, source = shown(_unescaped(words[4])), words[words.index("-") + 2]
            path = nodes.numbers.get((True, words[2])) or (source if source in nodes.blocks.values() else "")
            if path and space == ours:
                told[path, point] = point
            elif path:
                told.setdefault((path, point), f"{point} in the mount namespace of pid {process.name}")
    for (path, point), where in told.items():
        yield Holder(kind=HolderKind.MOUNT, name=where, path=path, cure=f"umount {point}")
    if hidden:
        unseen.append(f"the mounts of {_count(hidden)} can't be seen; {_ALL_SEEN}")


def _count(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def _swaps(proc: Path, nodes: _Nodes) -> Iterator[Holder]:
    for line in _text(proc / "swaps").splitlines()[1:]:
        path = _unescaped(line.split()[0]) if line.split() else ""
        if path in nodes.blocks.values():
            yield Holder(kind=HolderKind.SWAP, name="space", path=path, cure=f"swapoff {path}")


def _processes(
    machine: Machine, nodes: _Nodes, own: Mapping[str, str], unseen: list[str], *, dev: str
) -> Iterator[Holder]:
    """Yield programs that have a node open or mapped, each once."""
    hidden = 0
    names = {path.rpartition("/")[2]: path for path in nodes.numbers.values()}
    for process in _pids(machine.proc):
        if process.name == str(os.getpid()):
            continue
        try:
            path = _held_by(machine, process, nodes, names, dev)
        except PermissionError:
            # Of another user, or a kernel thread, which has no files.
            hidden += bool(_command(process))
            continue
        except OSError:
            continue
        if path:
            yield _program(process, path, own)
    if hidden:
        unseen.append(f"the open files of {_count(hidden)} can't be seen; {_ALL_SEEN}")


def _held_by(machine: Machine, process: Path, nodes: _Nodes, names: Mapping[str, str], dev: str) -> str:
    """Return a node that a process holds; an empty string for none."""
    for target, link in machine.files(process):
        if any(part in target for part in nodes.attributes):
            return shown(target)
        # Only what may be one is looked at: a stat of a file on a server that is gone does not come back.
        if not target.startswith(f"{dev}/") and target.rpartition("/")[2].partition(" ")[0] not in names:
            continue
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(link)
            number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            for block in (True, False):
                if (block, number) in nodes.numbers and _is_kind(status.st_mode, block=block):
                    return nodes.numbers[block, number]
    for path in machine.mapped(process):
        if path.startswith(f"{dev}/") and path in nodes.numbers.values():
            return path
        if any(part in path for part in nodes.attributes):
            return shown(path)
    return ""


def _open_files(process: Path) -> Iterator[tuple[str, str]]:
    for entry in os.scandir(process / "fd"):
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(entry.path), entry.path


def _is_kind(mode: int, *, block: bool) -> bool:
    return (mode & 0o170000) == (0o060000 if block else 0o020000)


def _program(process: Path, path: str, own: Mapping[str, str]) -> Holder:
    name = shown(_text(process / "comm"))
    uid = _owner(process)
    command = _command(process) if uid == os.geteuid() else ()
    # Of another user, it would only be called so.
    ours = next((what for word, what in own.items() if word in command), "")
    if ours:
        return Holder(kind=HolderKind.OWN, name=ours, path=path, pid=int(process.name))
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = ""
    return Holder(
        kind=HolderKind.PROCESS,
        name=name,
        path=path,
        pid=int(process.name),
        started=_started_at(process),
        user=user,
        cure=CURES.get(name, ""),
    )


def _owner(process: Path) -> int:
    """Return the user id of a process; -1 for one that has ended."""
    try:
        return process.stat().st_uid
    except OSError:
        return -1


def _command(process: Path) -> tuple[str, ...]:
    return tuple(word for word in _text(process / "cmdline").split("\0") if word)


def _started_at(process: Path) -> int:
    """Return when a process started, in ticks since the boot: field 22 of proc_pid_stat(5), behind the name."""
    try:
        return int(_text(process / "stat").rpartition(")")[2].split()[19])
    except (IndexError, ValueError):
        return 0


def _pids(proc: Path) -> list[Path]:
    return [entry for entry in _children(proc) if entry.name.isdigit()]


def _unescaped(text: str) -> str:
    """Undo the octal escapes of proc_pid_mountinfo(5)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _text(path: Path) -> str:
    try:
        return _read(path).strip()
    except OSError:
        return ""


def _link_target(path: Path) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _link_name(path: Path) -> str:
    return (_link_target(path) or "").rpartition("/")[2]


def _is_address(text: str) -> bool:
    try:
        Address.parse(text)
    except FarbusError:
        return False
    return True


class FakeHolders:
    """Holders that a test sets, kept in a file where processes are killed."""

    def __init__(self, directory: Path | None = None) -> None:
        self._file = directory / "holders.json" if directory is not None else None
        self._look = Look()
        self.busy = ""
        """The block device that can't be opened exclusively."""
        self.looks = 0
        self.evicted: list[str] = []
        self.stubborn = False
        """Whether processes stay when they are killed."""
        self.arrive_at: dict[int, Holder] = {}
        """Who comes just before which look, counted from 1."""

    @property
    def state(self) -> Look:
        """Who holds devices now."""
        if self._file is not None and self._file.exists():
            return msgspec.json.decode(self._file.read_bytes(), type=Look)
        return self._look

    @state.setter
    def state(self, look: Look) -> None:
        self._look = look
        if self._file is not None:
            self._file.write_bytes(msgspec.json.encode(look))

    async def look(self, addresses: Sequence[str]) -> Look:
        """Return the set holders."""
        self.looks += 1
        if (comer := self.arrive_at.pop(self.looks, None)) is not None:
            self.state = self.state.with_more((comer,))
        return self.state

    async def prove(self, addresses: Sequence[str]) -> None:
        """Raise where it is set."""
        if self.busy:
            raise Conflict(f"{self.busy} is in use by the kernel", hint="lsblk shows what stands on it")

    async def look_at_blocks(self, names: Sequence[str]) -> Look:
        """Return the set holders."""
        return await self.look(names)

    async def prove_blocks(self, names: Sequence[str]) -> None:
        """Raise where it is set."""
        await self.prove(names)

    async def evict(self, holder: Holder, *, grace_s: float) -> None:
        """Let a holder go."""
        self.evicted.append(holder.name)
        if not self.stubborn:
            left = tuple(other for other in self.state.holders if other != holder)
            self.state = msgspec.structs.replace(self.state, holders=left)
