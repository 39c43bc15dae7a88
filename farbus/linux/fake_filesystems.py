"""The fake of the door to file systems: devices whose nodes are files with their numbers in, and a kernel that mounts.

Programs are answered as those of Debian 12 answered (tests/linux/filesystems_contract.py
runs on both).  All lies in files below ``directory``, so that a process that is
killed finds the machine as it was; what a device holds is known by where its node is
(:meth:`FakeFileSystems.key`), and so is found by each link that leads to it.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farbus.errors import Conflict, NotFound, NotPermitted
from farbus.linux.filesystems import NODES_DIRECTORY, KernelFileSystems, Said
from farbus.model.holders import HolderKind
from farbus.model.storage import Format

_OVERHEAD = 16
"""A file system keeps one of so many bytes for itself."""


class FakeFileSystems(KernelFileSystems):
    """A machine in ``directory``.

    Tests set what is not as it should be: ``using`` gives programs that use a
    mount, ``denied`` paths that no user may make, ``full_memory`` lets swap
    stay on.  ``passing`` is called before and after each change, to be killed at.
    """

    def __init__(self, directory: Path, *, size_of: Callable[[str], int] = lambda _: 64 << 20) -> None:
        super().__init__(own="/run/farbus/storage", proc=directory / "proc", sys=directory / "sys")
        self.directory = directory
        self._size_of = size_of
        self.using: dict[str, list[str]] = {}
        """Names of programs, by mount point."""
        self.denied: set[str] = set()
        self.full_memory = False
        self.passing: Callable[[], None] = lambda: None
        self.ran: list[tuple[str, ...]] = []
        for name in ("proc/self", "sys/dev/block", "dev"):
            (directory / name).mkdir(parents=True, exist_ok=True)

    # The machine.

    def key(self, device: str) -> str:
        """Return by what the contents of a device are known: what stays the same about it, here its path."""
        return os.path.realpath(self._node(device))

    def _node(self, device: str) -> Path:
        return self.directory / "dev" / device.removeprefix("/dev/")

    def put(self, device: str, kind: str, *, clean: bool = True) -> None:
        """Let a device hold something: a kind of blkid's, or ``data``, or ``cut off``."""
        state = self._state()
        state["contents"][self._name(device)] = {"kind": kind, "clean": clean, "files": {}, "size": 0}
        self._save(state)

    def contents(self) -> dict[str, Any]:
        """Return what devices hold, by the end of their paths."""
        found: dict[str, Any] = self._state()["contents"]
        return found

    def make_directory(self, path: str, *, uid: int = 0, files: tuple[str, ...] = ()) -> None:
        """Let a directory be there."""
        state = self._state()
        state["directories"][path] = {"uid": uid, "files": list(files)}
        self._save(state)

    def directories(self) -> list[str]:
        """Return the directories that are there."""
        return sorted(self._state()["directories"])

    def swaps(self) -> list[str]:
        """Return what is swapped to."""
        return sorted(self._state()["swaps"])

    def nodes(self) -> list[str]:
        """Return the device nodes that were given."""
        return sorted(self._state()["nodes"])

    def _name(self, device: str) -> str:
        return os.path.relpath(self.key(device), os.path.realpath(self.directory / "dev"))

    def _state(self) -> dict[str, Any]:
        file = self.directory / "filesystems.json"
        empty: dict[str, Any] = {"contents": {}, "mounts": [], "swaps": [], "nodes": {}, "directories": {}}
        return {**empty, **json.loads(file.read_text())} if file.exists() else empty

    def _save(self, state: dict[str, Any]) -> None:
        self.passing()
        new = self.directory / f"filesystems.{os.getpid()}"
        new.write_text(json.dumps(state))
        new.replace(self.directory / "filesystems.json")
        lines = [
            f"{number + 30} 1 {one['number']} / {one['path']} {'ro' if one['read_only'] else 'rw'},nosuid,nodev"
            f" shared:1 - {one['kind']} {one['device']} rw"
            for number, one in enumerate(state["mounts"])
        ]
        (self.directory / "proc/self/mountinfo").write_text("\n".join(["1 0 0:2 / / rw - rootfs rootfs rw", *lines]))
        self.passing()

    def _number(self, device: str) -> str:
        if device.startswith(f"{NODES_DIRECTORY}/"):
            return str(self._state()["nodes"].get(device.rpartition("/")[2], {}).get("number", ""))
        try:
            return self._node(device).read_text().strip()
        except OSError:
            return ""

    def given(self) -> tuple[str, ...]:
        """Look in the file."""
        state = self._state()
        own = (path.removeprefix(f"{self._own}/") for path in state["directories"] if path.startswith(f"{self._own}/"))
        return tuple(sorted({*state["nodes"], *own}))

    # What children do.

    async def _call(self, function: Any, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        answer: Callable[..., Any] = getattr(self, f"_{function.__name__}")
        return answer(*arguments)

    def _look_at_beginning(self, device: str) -> list[bool]:
        self._there(device)
        kind = self._state()["contents"].get(self._name(device), {}).get("kind", "")
        return [kind in ("", "ext4"), kind == "cut off"]

    def _there(self, device: str) -> str:
        number = self._number(device)
        if not number:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), device)
        return number

    def _mount_device(self, device: str, path: str, kind: str, own: bool, uid: int, gid: int, read_only: bool) -> None:
        number = self._there(device)
        state = self._state()
        if not own:
            self._refuse(state, path, uid)
        if any(one["path"] == path for one in state["mounts"]):
            raise Conflict(f"{path}: something is mounted there", hint="findmnt shows what")
        there = state["directories"].setdefault(path, {"uid": 0 if own else uid, "files": []})
        if there["files"]:
            raise Conflict(f"{path}: it is not empty", hint="name an empty directory, or one that is not there")
        held = state["contents"].get(self._name(device), {})
        if held.get("kind") != kind:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        held["size"] = held["size"] or self._size_of(device)
        if not read_only:
            held.update(clean=False, owner=[uid, gid])
        state["mounts"].append({"path": path, "number": number, "kind": kind, "device": device, "read_only": read_only})
        self._save(state)

    def _refuse(self, state: dict[str, Any], path: str, uid: int) -> None:
        if path in self.denied:
            raise NotPermitted(f"{path}: its user may not make or open it", hint="name a directory of the user's")
        there = state["directories"].get(path)
        if there is not None and uid and there["uid"] != uid:
            raise NotPermitted(f"{path}: it is not its user's", hint="name a directory of the user's")

    def _unmount_path(self, path: str, number: str, lazy: bool) -> None:
        if self.using.get(path) and not lazy:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        state = self._state()
        for one in [one for one in state["mounts"] if one["path"] == path and one["number"] == number]:
            state["mounts"].remove(one)
            held = state["contents"].get(self._name(one["device"]))
            if held is not None:
                held["clean"] = True
        self._save(state)

    def _remove_point(self, path: str) -> None:
        state = self._state()
        if not any(one["path"] == path for one in state["mounts"]) and state["directories"].pop(path, None):
            self._save(state)

    def _look_for_users(self, _proc: str, paths: list[str]) -> Any:
        return [
            {"kind": HolderKind.PROCESS.value, "name": name, "path": path, "pid": 100 + number}
            for path in paths
            for number, name in enumerate(self.using.get(path, []))
        ]

    def _room_of(self, path: str) -> list[int]:
        state = self._state()
        mounted = next(one for one in state["mounts"] if one["path"] == path)
        held = state["contents"][self._name(mounted["device"])]
        size = held["size"] - held["size"] // _OVERHEAD
        free = size - sum(held["files"].values())
        return [size, free, free]

    def _allocate_file(self, path: str, _number: str, name: str, uid: int, gid: int, leave_bytes: int) -> None:
        state = self._state()
        mounted = next(one for one in state["mounts"] if one["path"] == path)
        files = state["contents"][self._name(mounted["device"])]["files"]
        if name not in files:
            files[name] = self._room_of(path)[1] - leave_bytes
            self._save(state)

    def _swap(self, device: str, on: bool) -> None:
        self._there(device)
        if not on and self.full_memory:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        state = self._state()
        if on and state["contents"].get(self._name(device), {}).get("kind") != "swap":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        state["swaps"] = sorted({*state["swaps"], device} if on else {*state["swaps"]} - {device})
        self._save(state)

    def is_swap(self, device: str) -> bool:
        """Look in the file."""
        return device in self._state()["swaps"]

    def _make_node(self, device: str, path: str, uid: int, gid: int, read_only: bool) -> None:
        state = self._state()
        state["nodes"][path.rpartition("/")[2]] = {
            "number": self._there(device), "uid": uid, "gid": gid, "read_only": read_only,
        }  # fmt: skip
        self._save(state)

    def _remove_node(self, path: str) -> None:
        state = self._state()
        if state["nodes"].pop(path.rpartition("/")[2], None) is not None:
            self._save(state)

    # Programs.

    async def _run(self, program: str, *arguments: str) -> Said:
        await asyncio.sleep(0)
        self.ran.append((program, *arguments))
        state = self._state()
        if program == "xfs_growfs":
            device = next(one["device"] for one in state["mounts"] if one["path"] == arguments[-1])
        else:
            device = arguments[-1]
        held = state["contents"].get(self._name(device), {})
        if program == "blkid":
            return _blkid(held.get("kind", ""))
        mounted = any(one["device"] == device for one in state["mounts"])
        if program == "e2fsck":
            if held.get("kind") != Format.EXT4 or held.get("broken"):
                return Said(4, f"{device}: UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY.\n", "")
            held["clean"] = True
        elif program in ("resize2fs", "xfs_growfs"):
            if held["size"] == self._size_of(device):
                return Said(0, "", "")
            held["size"] = self._size_of(device)
        else:
            if mounted:
                return Said(1, "", f"{device} is mounted; will not make a filesystem here!\n")
            kind = {"mkfs.ext4": "ext4", "mkfs.xfs": "xfs", "mkswap": "swap"}[program]
            state["contents"][self._name(device)] = {"kind": kind, "clean": True, "files": {}, "size": 0}
        self._save(state)
        return Said(0, "", "")

    def break_file_system(self, device: str) -> None:
        """Let a file system need somebody to decide."""
        state = self._state()
        if self._name(device) not in state["contents"]:
            raise NotFound(f"{device}: it holds nothing")
        state["contents"][self._name(device)]["broken"] = True
        self._save(state)


def _blkid(kind: str) -> Said:
    if kind == "ambiguous":
        return Said(8, "", "")
    if kind in ("", "data"):
        return Said(2, "", "")
    name = "PTTYPE" if kind in ("dos", "gpt") else "TYPE"
    return Said(0, f"UUID=aaaaaaaa-0000-4000-8000-000000000001\n{name}={'xfs' if kind == 'cut off' else kind}\n", "")
