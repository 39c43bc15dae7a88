"""Verbs for :mod:`tests.verbs.peer` by door.c, over the tests' own RDMA device."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.verbs.fake import FLAGS, HERE
from tests.verbs.peer import Done, Opcode, Region

MOST_DONE = 64


class _Done(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint64),
        ("status", ctypes.c_uint32),
        ("heard", ctypes.c_uint32),
        ("immediate", ctypes.c_uint32),
    ]


def build_door(folder: Path) -> Path:
    """Compile door.c for the library in ``folder``; return its file."""
    library = folder / "libdoor.so"
    linked = (folder / "libibverbs.so.1", f"-Wl,-rpath,{folder}")
    subprocess.run(
        ["cc", *FLAGS, "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", library, HERE / "door.c", *linked], check=True
    )
    return library


def _load(library: Path) -> ctypes.CDLL:
    functions = ctypes.CDLL(str(library), use_errno=True)
    handle, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    for name, result, *parameters in (
        ("door_open", handle, ctypes.c_char_p),
        ("door_close", None, handle),
        ("door_mtu", ctypes.c_int, handle),
        ("door_register", handle, handle, handle, ctypes.c_size_t, ctypes.POINTER(u32), ctypes.POINTER(u32)),
        ("door_forget", None, handle),
        ("line_make", handle, handle, ctypes.c_uint, ctypes.c_uint),
        ("line_close", None, handle),
        ("line_number", u32, handle),
        ("line_connect", ctypes.c_int, handle, u32, u32, u32, ctypes.c_int, ctypes.c_char_p),
        ("line_receive", ctypes.c_int, handle, ctypes.c_uint),
        ("line_post", ctypes.c_int, handle, ctypes.c_int, u64, u64, u32, u32, u64, u32, u32),
        ("line_poll", ctypes.c_int, handle, ctypes.POINTER(_Done), ctypes.c_int),
        ("line_descriptor", ctypes.c_int, handle),
        ("line_arm", ctypes.c_int, handle),
        ("line_break", ctypes.c_int, handle),
    ):
        function = getattr(functions, name)
        function.restype, function.argtypes = result, parameters
    return functions


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))


class FakeRegion:
    def __init__(self, verbs: ctypes.CDLL, door: int, count: int) -> None:
        self._verbs = verbs
        self._memory = mmap.mmap(-1, count)
        self._view = (ctypes.c_char * count).from_buffer(self._memory)
        self.address = ctypes.addressof(self._view)
        local, remote = ctypes.c_uint32(), ctypes.c_uint32()
        self.handle = verbs.door_register(door, self.address, count, ctypes.byref(local), ctypes.byref(remote))
        assert self.handle, os.strerror(ctypes.get_errno())
        self.local_key, self.remote_key = local.value, remote.value

    def put(self, at: int, data: bytes) -> None:
        self._memory[at : at + len(data)] = data

    def get(self, at: int, count: int) -> bytes:
        return self._memory[at : at + count]

    def close(self) -> None:
        if self.handle:
            self._verbs.door_forget(self.handle)
        self.handle = 0


class FakeLine:
    def __init__(self, verbs: ctypes.CDLL, door: int, sends: int, receives: int) -> None:
        self._verbs = verbs
        self._made = verbs.line_make(door, sends, receives)
        assert self._made, os.strerror(ctypes.get_errno())
        self._done = (_Done * MOST_DONE)()
        self.number = verbs.line_number(self._handle)
        self.descriptor = verbs.line_descriptor(self._handle)

    @property
    def _handle(self) -> int:
        if not self._made:
            raise OSError(errno.EBADF, "this line is closed")
        return int(self._made)

    def connect(self, number: int, *, theirs: int, ours: int, mtu: int, gid: bytes) -> None:
        _checked(self._verbs.line_connect(self._handle, number, theirs, ours, mtu, gid))

    def receive(self, count: int) -> None:
        _checked(self._verbs.line_receive(self._handle, count))

    def post(
        self, opcode: Opcode, region: Region | None, at: int, count: int, *, to: int, key: int, immediate: int
    ) -> None:
        local: Any = region
        where, local_key = (region.address + at, local.local_key) if region else (0, 0)
        _checked(self._verbs.line_post(self._handle, opcode, 0, where, local_key, count, to, key, immediate))

    def poll(self) -> Sequence[Done]:
        count = self._verbs.line_poll(self._handle, self._done, MOST_DONE)
        _checked(count)
        return [Done(each.id, each.status, bool(each.heard), each.immediate) for each in self._done[:count]]

    def arm(self) -> None:
        _checked(self._verbs.line_arm(self._handle))

    def stop(self) -> None:
        _checked(self._verbs.line_break(self._handle))

    def close(self) -> None:
        if self._made:
            self._verbs.line_close(self._made)
        self._made = 0


class FakeDoor:
    """A device of the tests' own; what it gave is closed with it."""

    def __init__(self, library: Path, gid: bytes) -> None:
        self._verbs = _load(library)
        self._handle = self._verbs.door_open(gid)
        assert self._handle, os.strerror(ctypes.get_errno())
        self._lines: list[FakeLine] = []
        self._regions: list[FakeRegion] = []
        self.gid = gid
        self.mtu = self._verbs.door_mtu(self._handle)

    def region(self, count: int) -> FakeRegion:
        self._regions.append(FakeRegion(self._verbs, self._handle, count))
        return self._regions[-1]

    def line(self, *, sends: int, receives: int) -> FakeLine:
        self._lines.append(FakeLine(self._verbs, self._handle, sends, receives))
        return self._lines[-1]

    def close(self) -> None:
        for line in self._lines:
            line.close()
        for region in self._regions:
            region.close()
        self._verbs.door_close(self._handle)
