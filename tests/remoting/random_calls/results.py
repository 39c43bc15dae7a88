"""Results of random calls, as they are printed."""

from __future__ import annotations

import ctypes
from typing import Any

from farbus.remoting.spec.structures import HANDLES
from tests.remoting.random_calls.arguments import Arguments
from tests.remoting.random_calls.tables import FILL, UNCOMPARED
from tests.remoting.random_calls.things import Call
from tests.remoting.random_calls.types import STRUCTURES, Member, scalar


class Results(Arguments):
    """New objects get a name, known ones keep theirs."""

    def outputs(self, entry: Any, call: Call, result: int) -> str:
        if entry.symbol in UNCOMPARED or "attribute=0x7" in call.text or "PointerGetAttributes" in entry.symbol:
            for member, room, _ in call.results:
                if member.base in HANDLES:
                    self.named(entry, member, room, call)
            return ""
        parts = []
        for member, room, limit in call.results:
            parts.append(f"{member.name}={self.shown(entry, member, room, limit, call)}")
        return " " + " ".join(parts) if parts else ""

    def named(self, entry: Any, member: Member, room: Any, call: Call) -> str:
        values = (ctypes.c_uint64 * 8).from_buffer(room)
        names = []
        for value in values:
            if value == 0xA5A5A5A5A5A5A5A5:
                break
            names.append("null" if not value else self.add(member.base, value, 0, self.about(entry, member, call)))
        return "[" + ", ".join(names) + "]"

    def about(self, entry: Any, member: Member, call: Call) -> Any:
        if member.base in ("CUfunction", "CUkernel"):
            for thing in ("CUfunction", "CUkernel"):
                if thing in call.used:
                    return call.used[thing].about
            return next(
                (
                    kept.value.decode()
                    for kept in call.kept
                    if isinstance(kept, ctypes.Array) and isinstance(getattr(kept, "value", None), bytes)
                ),
                None,
            )
        return None

    def shown(self, entry: Any, member: Member, room: Any, limit: int, call: Call) -> str:
        base = member.base
        if member.stars == 1 and (
            base in HANDLES
            or base in ("CUmemGenericAllocationHandle", "CUtexObject", "CUsurfObject", "CUgraphConditionalHandle")
        ):
            return self.named(entry, member, room, call)
        if member.stars >= 2:
            value = ctypes.c_uint64.from_buffer(room).value
            if base == "char":
                return repr(ctypes.string_at(value)) if value and value != 0xA5A5A5A5A5A5A5A5 else self.word(value)
            return (
                self.word(value)
                if entry.symbol not in ("cuMemHostAlloc", "cuMemAllocHost", "cuMemAllocHost_v2")
                else "host"
            )
        if base == "CUdeviceptr" and entry.symbol.startswith(
            ("cuMemAlloc", "cuMemAddressReserve", "cuMemHostGetDevicePointer")
        ):
            return (
                "address"
                if entry.symbol != "cuMemHostGetDevicePointer_v2"
                else self.word(ctypes.c_uint64.from_buffer(room).value)
            )
        if base == "char":
            return repr(bytes(room[:limit]).split(b"\0")[0])
        data = bytes(room)
        end = len(data.rstrip(bytes([FILL])))
        width = 8 if base in ("void", "CUdeviceptr", "size_t", "unsigned long long", "uint64_t", "cuuint64_t") else 0
        if base in STRUCTURES:
            return self.structure(scalar(base).from_buffer(room))
        if not width:
            width = ctypes.sizeof(scalar(base))
        end = min(end, 256)
        parts = [data[at : at + width] for at in range(0, end, width)]
        return "[" + ", ".join(self.word(int.from_bytes(part, "little")) for part in parts) + "]"

    def structure(self, structure: Any) -> str:
        if isinstance(structure, ctypes.Union):
            return "union"
        parts = []
        for name, member in structure.members:
            value = getattr(structure, name)
            if member is None or isinstance(value, ctypes.Structure | ctypes.Union):
                parts.append(f"{name}={self.structure(value)}")
            elif member.counts or name == "kernelParams":
                continue
            elif isinstance(value, int):
                parts.append(f"{name}={self.word(value)}")
            elif value is None:
                parts.append(f"{name}=0x0")
        return "(" + ", ".join(parts) + ")"
