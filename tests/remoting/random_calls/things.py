"""What a process that makes random calls has: objects, memory, and one call at a time."""

from __future__ import annotations

import ctypes
import mmap
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.remoting.random_calls.tables import HOST, KINDS, PTX
from tests.remoting.random_calls.types import Member


@dataclass
class Thing:
    """An object that was made, or memory."""

    kind: str
    value: int
    name: str
    size: int = 0
    live: bool = True
    about: Any = None


@dataclass
class Call:
    """What one call has: its arguments in C and in words, and where its results will be."""

    values: list[Any] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    #: (member, buffer, bytes): results.
    results: list[tuple[Member, Any, int]] = field(default_factory=list)
    used: dict[str, Any] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    alias: bool = False
    text: str = ""
    symbol_parameters: str = ""
    #: How many arguments may still be wrong: two that are would say more of the order of checks than of the checks.
    wrong: int = 0
    skip: bool = False

    def may_be_wrong(self) -> bool:
        self.wrong -= 1
        return self.wrong >= 0


class Things:
    """Objects and memory, by the names under which they are printed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.things: list[Thing] = []
        self.counts: dict[str, int] = {}
        self.line = 0
        self.last_stream: object = None
        self.kept: list[Any] = []
        self.called: list[str] = []
        self.capturing = False
        self.ptx = ctypes.create_string_buffer(PTX)
        self.bad = ctypes.create_string_buffer(b"no code at all")
        self.file = folder / "code.ptx"
        self.file.write_bytes(PTX)
        self.folder = folder
        area = mmap.mmap(-1, 4 * HOST)
        self.area = area
        self.host = ctypes.addressof((ctypes.c_char * (4 * HOST)).from_buffer(area))
        for index in range(2):
            self.things.append(Thing("host", self.host + index * HOST, f"buffer{index}", HOST))
        hostfn = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self.host_function = hostfn(lambda data: self.called.append(f"host {data or 0}"))
        # When is the driver's affair.
        self.destroyed: list[int] = []
        self.destructor = hostfn(lambda data: self.destroyed.append(data or 0))
        streamfn = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
        self.stream_function = streamfn(lambda stream, status, data: self.called.append(f"called {status} {data or 0}"))
        sizefn = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)
        self.size_function = sizefn(lambda size: 0)
        self.token = 0

    def add(self, kind: str, value: int, size: int = 0, about: Any = None) -> str:
        """The name of an object that a call has shown, which may be known."""
        kind = KINDS.get(kind, kind)
        for thing in reversed(self.things):
            if thing.kind == kind and thing.value == value and thing.live:
                return thing.name
        number = self.counts.get(kind, 0)
        self.counts[kind] = number + 1
        self.things.append(Thing(kind, value, f"{kind.removeprefix('CU')}{number}", size, True, about))
        return self.things[-1].name

    def of(self, kind: str, live: bool = True) -> list[Thing]:
        return [thing for thing in self.things if thing.kind == kind and thing.live == live]

    def word(self, value: int) -> str:
        """A number that may be an address or a handle."""
        if value > 0xFFFF:
            for thing in reversed(self.things):
                if thing.live and thing.value <= value < thing.value + max(thing.size, 1):
                    offset = value - thing.value
                    return thing.name + (f"+{offset:#x}" if offset else "")
            for thing in reversed(self.things):
                if thing.value <= value < thing.value + max(thing.size, 1):
                    return "gone " + thing.name
            if value > 0x10_0000_0000 and value < 0x8000_0000_0000:
                return "somewhere"
        return f"{value:#x}"
