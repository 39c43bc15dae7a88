"""The driver API's types as ctypes has them, made from the specification."""

from __future__ import annotations

import ctypes
import re
from typing import Any, Final

from farbus.remoting.codegen.abi import structures
from farbus.remoting.spec.enums import ENUMS
from farbus.remoting.spec.structures import ALIASES, CALLBACKS, HANDLES, SCALARS

PLAIN: Final[dict[str, Any]] = {
    "char": ctypes.c_char,
    "unsigned char": ctypes.c_ubyte,
    "short": ctypes.c_short,
    "unsigned short": ctypes.c_ushort,
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "unsigned": ctypes.c_uint,
    "float": ctypes.c_float,
    "size_t": ctypes.c_size_t,
    "long long": ctypes.c_longlong,
    "unsigned long long": ctypes.c_ulonglong,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
}

#: Each type's name -> what it is an alias of, in the end.
NAMES: Final[dict[str, str]] = {}
for _text in (*SCALARS, *ALIASES):
    _of, _, _name = _text.rpartition(" ")
    NAMES[_name] = NAMES.get(_of, _of)

CALLBACK_NAMES: Final = frozenset(re.findall(r"\(\*(\w+)\)", " ".join(CALLBACKS)))

#: Of an address, a handle that is a number, or an enumeration nothing but its name says which it is.
MEANT: Final = {"CUdeviceptr", "CUdeviceptr_v1", "CUdeviceptr_v2", "CUdevice", "CUdevice_v1", "CUtexObject",
                "CUtexObject_v1", "CUsurfObject", "CUsurfObject_v1", "CUgraphConditionalHandle",
                "CUmemGenericAllocationHandle", "CUmemGenericAllocationHandle_v1"}  # fmt: skip

STRUCTURES: Final[dict[str, Any]] = {}


class Member:
    """A member of a structure, or a parameter: what its C type says."""

    def __init__(self, text: str) -> None:
        found = re.fullmatch(r"(.*?)(\w+)((?:\[\w+\])*)", text.strip())
        assert found, text
        kind, self.name = found[1].strip(), found[2]
        self.counts = [int(count) for count in re.findall(r"\[(\w+)\]", found[3])]
        self.constant = kind.startswith("const ")
        kind = kind.removeprefix("const ").replace("const", "").strip()
        self.stars = kind.count("*")
        self.kind = kind.replace("*", "").strip()

    @property
    def base(self) -> str:
        """The type without aliases; one that says what is meant keeps its name."""
        if self.kind in MEANT:
            return re.sub(r"_v\d$", "", self.kind) if self.kind != "CUdeviceptr_v1" else self.kind
        return NAMES.get(self.kind, self.kind)

    @property
    def ctype(self) -> Any:
        one = scalar(self.base) if not self.stars else ctypes.c_void_p
        for count in reversed(self.counts):
            one = one * count
        return one


def scalar(name: str) -> Any:
    if name in PLAIN:
        return PLAIN[name]
    if name in HANDLES or name in CALLBACK_NAMES:
        return ctypes.c_void_p
    if name in ENUMS:
        return ctypes.c_int
    if name in STRUCTURES:
        return STRUCTURES[name]
    if name == "CUdeviceptr_v1":
        return ctypes.c_uint
    return PLAIN.get(NAMES.get(name, name)) or STRUCTURES[NAMES[name]]


def _build(name: str, keyword: str, lines: list[str]) -> Any:
    """One structure or union from its lines, which are taken from the front."""
    fields: list[tuple[str, Any]] = []
    members: list[tuple[str, Member | None]] = []
    anonymous: list[str] = []
    while lines:
        line = lines.pop(0)
        if line.startswith("}"):
            lines.insert(0, line)
            break
        if line.endswith("{"):
            inner = _build(f"in {name}", line.split()[0], lines)
            named = lines.pop(0)[1:].strip()
            if not named:
                named = f"_{len(fields)}"
                anonymous.append(named)
            fields.append((named, inner))
            members.append((named, None))
        else:
            member = Member(line)
            fields.append((member.name, member.ctype))
            members.append((member.name, member))
    base = ctypes.Union if keyword == "union" else ctypes.Structure
    return type(name, (base,), {"_anonymous_": anonymous, "_fields_": fields, "members": members})


for _structure in structures():
    STRUCTURES[_structure.name] = _build(_structure.name, _structure.keyword, list(_structure.body))
