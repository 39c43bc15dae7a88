"""Arguments of random calls: mostly what a call can do something with, else one that is wrong."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Final

from farbus.remoting.spec.enums import ENUMS
from farbus.remoting.spec.structures import HANDLES
from tests.remoting.random_calls.tables import FILL, HOST, KERNELS, KINDS, PTX, ROOM
from tests.remoting.random_calls.things import Call, Things
from tests.remoting.random_calls.types import CALLBACK_NAMES, STRUCTURES, Member, scalar

#: Handles that the shim does not tell apart.
ALIKE: Final = {"CUkernel", "CUfunction", "CUmodule", "CUlibrary"}


class Arguments(Things):
    """Each maker gives a value and how it is printed."""

    def handle(self, kind: str, call: Call) -> tuple[int, str]:
        kind = KINDS.get(kind, kind)
        rnd = self.random
        live, dead = self.of(kind), self.of(kind, live=False)
        chance = rnd.random()
        if kind == "CUstream" and chance < 0.3:
            special = rnd.choice([0, 0, 1, 2])
            return special, f"stream {special}"
        if live and (chance < 0.8 or not call.may_be_wrong()):
            # The newest are the more interesting ones.
            thing = live[-1 - min(int(rnd.expovariate(0.4)), len(live) - 1)]
            call.used.setdefault(kind, thing)
            return thing.value, thing.name
        if dead and chance < 0.9:
            thing = rnd.choice(dead)
            if any(other.live and other.value == thing.value for other in self.things):
                call.alias = True
            return thing.value, "dead " + thing.name
        if chance < 0.95:
            others = [
                thing
                for thing in self.things
                if thing.live and thing.kind != kind and thing.kind in HANDLES and thing.kind not in ALIKE
            ]
            if others:
                thing = rnd.choice(others)
                return thing.value, "not a " + thing.name
        return 0, "null"

    def address(self, call: Call) -> tuple[int, str]:
        rnd = self.random
        live = self.of("memory")
        chance = rnd.random()
        if live and (chance < 0.8 or not call.may_be_wrong()):
            thing = live[-1 - min(int(rnd.expovariate(0.3)), len(live) - 1)]
            call.used.setdefault("memory", thing)
            beyond = "CUdeviceptr dst, CUdeviceptr src" not in call.symbol_parameters and rnd.random() < 0.1
            ends = beyond and call.may_be_wrong()
            offset = rnd.choice(
                [1, thing.size - 1, thing.size]
                if ends
                else [0, 0, 0, 0, 4, 8, 64, 256, 512]
                if thing.size >= 4096
                else [0]
            )
            return thing.value + offset, f"{thing.name}+{offset}"
        if chance < 0.92:
            return self.host_address(call)
        if live and "CUdeviceptr dst, CUdeviceptr src" in call.symbol_parameters:
            # What is no memory of the GPU's would be taken for the program's.
            return live[0].value, f"{live[0].name}+0"
        dead = self.of("memory", live=False)
        if dead and chance < 0.97:
            thing = rnd.choice(dead)
            if any(other.live and other.value < thing.value + thing.size and thing.value < other.value + other.size
                   for other in self.things if other.kind in ("memory", "host")):  # fmt: skip
                call.alias = True
            return thing.value, f"dead {thing.name}"
        wild = rnd.choice([0, 0x10, 0xDEAD0000])
        return wild, f"wild {wild:#x}"

    def host_address(self, call: Call) -> tuple[int, str]:
        thing = self.random.choice(self.of("host"))
        call.used.setdefault("host", thing)
        offset = self.random.choice([0, 0, 0, 64, 256, 1024, 3])
        if thing.size < HOST:
            offset = 0
        return thing.value + offset, f"{thing.name}+{offset}"

    def number(self, name: str, kind: str, call: Call) -> int:
        rnd = self.random
        low = name.lower()
        if kind in ENUMS:
            values = sorted(set(ENUMS[kind].values()))
            if rnd.random() < 0.9 or not call.may_be_wrong():
                return rnd.choice([value for value in values if value < 0x7FFFFFFF])
            return rnd.choice([max(v for v in values if v < 0x7FFFFFFF) + 1, -1, 99])
        if kind == "CUdevice":
            return (
                rnd.choice([0, 0, 0, 0, 1, 1]) if rnd.random() < 0.9 or not call.may_be_wrong() else rnd.choice([2, -1])
            )
        if "flags" in low:
            return (
                rnd.choice([0, 0, 0, 0, 0, 1, 2, 4, 8])
                if rnd.random() < 0.9 or not call.may_be_wrong()
                else rnd.choice([3, 16, 0x100])
            )
        if low.startswith(("grid", "block")):
            return (
                rnd.choice([1, 1, 1, 1, 2, 3, 32])
                if rnd.random() < 0.97 or not call.may_be_wrong()
                else rnd.choice([0, 1025, 70000])
            )
        if "sharedmem" in low:
            return (
                rnd.choice([0, 0, 0, 0, 16, 1024, 49152])
                if rnd.random() < 0.9 or not call.may_be_wrong()
                else rnd.choice([49153, 300000])
            )
        if "pitch" in low or "rowlength" in low:
            return rnd.choice([0, 64, 128, 256, 512, 60])
        if low in ("width", "widthinbytes", "n", "bytecount", "numbytes"):
            return rnd.choice([1, 4, 4, 8, 16, 32, 60, 64])
        if low in ("height", "depth", "srcheight", "dstheight", "layerheight"):
            return rnd.choice([1, 1, 1, 2, 3, 4])
        if low in ("srcxinbytes", "dstxinbytes", "srcy", "dsty", "srcz", "dstz", "srclod", "dstlod", "x", "y", "z"):
            return rnd.choice([0, 0, 0, 0, 0, 1, 4])
        if low == "elementsize":
            return rnd.choice([1, 2, 4, 4, 4, 3, 8])
        if low == "size" and "CUlinkState" in call.symbol_parameters:
            return len(PTX) + 1
        if low in ("nbgroups", "numattributes", "buffersize", "nbresources"):
            return rnd.choice([0, 1, 1, 2, 4])
        if low in ("bytesize", "size", "sizeinbytes"):
            if rnd.random() < 0.1 and call.may_be_wrong():
                return (
                    rnd.choice([0, 1 << 40, (1 << 64) - 1, 1 << 33]) & 0xFFFFFFFF
                    if kind == "unsigned int"
                    else rnd.choice([0, 1 << 40, (1 << 64) - 1])
                )
            return rnd.choice([1 << 16, 1 << 16, 1 << 21])
        if low == "accessdesccount":
            return 1
        if low.startswith("num") or low in ("count", "numdependencies"):
            return rnd.choice([0, 0, 1, 1, 2, 3])
        if "reserved" in low or "pad" in low:
            return 0 if rnd.random() < 0.98 or not call.may_be_wrong() else 1
        if "alignment" in low:
            return rnd.choice([0, 0, 4096, 1 << 21, 3])
        if low == "priority":
            return rnd.choice([0, 0, -1, 5, -5])
        if kind == "unsigned char":
            return rnd.randrange(256)
        if kind == "unsigned short":
            return rnd.randrange(65536)
        return rnd.choice([0, 0, 1, 1, 2, 3, 4, 16, 64, 1000, 0x7FFFFFFF if kind == "int" else 0xFFFFFFFF])

    def value(self, member: Member, call: Call) -> tuple[Any, str]:
        """A value of a type that is no pointer, or a pointer that is an object."""
        base = member.base
        if base in HANDLES:
            return self.handle(base, call)
        if base == "CUmemGenericAllocationHandle":
            return self.handle(base, call)
        if base in ("CUtexObject", "CUsurfObject", "CUgraphConditionalHandle"):
            return self.handle(base, call)
        if base in ("CUdeviceptr", "CUdeviceptr_v1"):
            value, said = self.address(call)
            return value & 0xFFFFFFFF if base == "CUdeviceptr_v1" else value, said
        if base in CALLBACK_NAMES:
            return self.callback(member, call)
        if base in STRUCTURES:
            filled = STRUCTURES[base]()
            said = self.fill(filled, call)
            return filled, said
        if base == "float":
            value = self.random.choice([0.0, 1.0, 0.5, -1.0])
            return value, str(value)
        number = self.number(member.name, base, call)
        return number, f"{number:#x}" if number >= 0 else str(number)

    def callback(self, member: Member, call: Call) -> tuple[int, str]:
        if self.random.random() < 0.05 and call.may_be_wrong():
            return 0, "null"
        which = {
            "CUhostFn": self.destructor if member.name == "destroy" else self.host_function,
            "CUstreamCallback": self.stream_function,
            "CUoccupancyB2DSize": self.size_function,
        }[member.base]
        return ctypes.cast(which, ctypes.c_void_p).value or 0, "function"

    def fill(self, structure: Any, call: Call) -> str:
        """Fill a structure; its members in words."""
        rnd = self.random
        said = []
        members = structure.members
        if isinstance(structure, ctypes.Union):
            members = [
                rnd.choice(
                    [member for member in members if member[0] not in ("pad", "reserved", "reserved1", "_oversize")]
                    or members
                )
            ]
        for name, member in members:
            if member is None:
                said.append(f"{name}={self.fill(getattr(structure, name), call)}")
                continue
            if member.counts:
                if "reserved" in name or "pad" in name or "opaque" in name:
                    continue
                inner = Member(f"{member.kind} {member.name}")
                numbers = [self.value(inner, call)[0] for _ in range(member.counts[0])]
                if inner.base != "char":
                    getattr(structure, name)[:] = numbers
                    said.append(f"{name}={numbers}")
                continue
            if member.stars:
                value, text = self.pointer(member, call, inside=True)
            else:
                value, text = self.value(member, call)
            setattr(structure, name, value)
            said.append(f"{name}={text}")
        self.mend(structure, call, said)
        return f"{type(structure).__name__}({', '.join(said)})"

    def mend(self, structure: Any, call: Call, said: list[str]) -> None:
        """What has to fit together for a call to come further than its first check."""
        name = type(structure).__name__
        rnd = self.random
        if name.startswith(("CUDA_MEMCPY2D", "CUDA_MEMCPY3D")) and hasattr(structure, "srcMemoryType"):
            for side in ("src", "dst"):
                # What is no array has no second meaning.
                if rnd.random() < 0.9:
                    kind = rnd.choice([1, 2, 2, 3, 4])
                    if kind == 3 and not self.of("CUarray"):
                        kind = 2
                    setattr(structure, f"{side}MemoryType", kind)
                    said.append(f"{side}MemoryType={kind}")
            for reserved in ("reserved0", "reserved1"):
                if hasattr(structure, reserved):
                    setattr(structure, reserved, 0)
            for side in ("src", "dst"):
                host, text = self.host_address(call)
                setattr(structure, f"{side}Host", host)
                said.append(f"{side}Host={text}")
        if name.startswith("CUDA_KERNEL_NODE_PARAMS"):
            structure.extra = None
            if hasattr(structure, "kern") and structure.func:
                structure.kern = None
                said.append("kern=null")
            structure.kernelParams, text = self.kernel_parameters(call)
            said.append(f"kernelParams={text}")
        if name.startswith("CUDA_HOST_NODE"):
            self.token += 1
            structure.userData = self.token
            said.append(f"userData={self.token}")
        if name.startswith("CUDA_MEMSET_NODE") and rnd.random() < 0.8:
            structure.elementSize, structure.height = 4, 1
            said.append("elementSize=4, height=1")
        if name == "CUstreamBatchMemOpParams_v1" or name.startswith("CUstreamBatchMemOp"):
            ctypes.memset(ctypes.addressof(structure), 0, ctypes.sizeof(structure))
            address, text = self.address(call)
            structure.writeValue.operation = rnd.choice([2, 2, 5, 6])
            structure.writeValue.address = address
            structure.writeValue.value = 77
            said[:] = [f"operation={structure.writeValue.operation}, address={text}"]
        if (
            "ARRAY" in name
            and name.startswith("CUDA_ARRAY")
            and hasattr(structure, "NumChannels")
            and rnd.random() < 0.85
        ):
            structure.Format = rnd.choice([1, 2, 3, 8, 9, 10, 16, 32])
            structure.NumChannels = rnd.choice([1, 2, 4])
            structure.Width = rnd.choice([4, 8, 16])
            said.append(f"Format={structure.Format}, NumChannels={structure.NumChannels}, Width={structure.Width}")
            if hasattr(structure, "Flags"):
                structure.Flags = rnd.choice([0, 0, 0, 1, 2, 4, 8])
                said.append(f"Flags={structure.Flags}")
        if name.startswith("CUmemAllocationProp") and rnd.random() < 0.8:
            ctypes.memset(ctypes.addressof(structure), 0, ctypes.sizeof(structure))
            structure.type, structure.location.type, structure.location.id = 1, 1, rnd.choice([0, 0, 0, 1])
            said[:] = [f"pinned at {structure.location.id}"]
        if name.startswith("CUmemPoolProps") and rnd.random() < 0.8:
            ctypes.memset(ctypes.addressof(structure), 0, ctypes.sizeof(structure))
            structure.allocType, structure.location.type, structure.location.id = 1, 1, rnd.choice([0, 0, 0, 1])
            said[:] = [f"pinned at {structure.location.id}"]
        if name.startswith("CUmemAccessDesc") and rnd.random() < 0.8:
            structure.location.type, structure.location.id, structure.flags = 1, rnd.choice([0, 0, 1]), 3
            said[:] = [f"all at {structure.location.id}"]
        if name == "CUDA_CHILD_GRAPH_NODE_PARAMS":
            structure.ownership = 0
        if name == "CUgraphNodeParams":
            members = {0: "kernel", 1: "memcpy", 2: "memset", 3: "host", 4: "graph", 6: "eventWait", 7: "eventRecord",
                       10: "alloc", 11: "free", 12: "memOp"}  # fmt: skip
            kind = rnd.choice(list(members))
            ctypes.memset(ctypes.addressof(structure), 0, ctypes.sizeof(structure))
            structure.type = kind
            text = self.fill(getattr(structure, members[kind]), call)
            said[:] = [f"type={kind}, {text}"]
        if name.startswith("CUDA_RESOURCE_DESC") and rnd.random() < 0.9:
            ctypes.memset(ctypes.addressof(structure), 0, ctypes.sizeof(structure))
            kind = structure.resType = rnd.choice([0, 0, 1, 2, 3])
            if kind == 0:
                structure.res.array.hArray, text = self.handle("CUarray", call)
            elif kind == 1:
                structure.res.mipmap.hMipmappedArray, text = self.handle("CUmipmappedArray", call)
            elif kind == 2:
                structure.res.linear.devPtr, text = self.address(call)
                structure.res.linear.format, structure.res.linear.numChannels = 32, 1
                structure.res.linear.sizeInBytes = 64
            else:
                structure.res.pitch2D.devPtr, text = self.address(call)
                structure.res.pitch2D.format, structure.res.pitch2D.numChannels = 32, 1
                structure.res.pitch2D.width, structure.res.pitch2D.height = 4, 2
                structure.res.pitch2D.pitchInBytes = 512
            said[:] = [f"{kind}: {text}"]
        if name == "CUDA_GRAPH_INSTANTIATE_PARAMS":
            structure.hUploadStream = None
        if name == "CUlaunchConfig":
            if not structure.numAttrs:
                structure.attrs = None
            if "numClusters" in call.symbol_parameters or "clusterSize" in call.symbol_parameters:
                structure.hStream = None

    def kernel_parameters(self, call: Call) -> tuple[int, str]:
        thing = call.used.get("CUfunction") or call.used.get("CUkernel")
        kinds = KERNELS[thing.about] if thing is not None and thing.about in KERNELS else "aaw"
        words = (ctypes.c_uint64 * 4)()
        said = []
        for index, kind in enumerate(kinds):
            if kind == "a":
                memory = [one for one in self.of("memory") if one.about == "plain"]
                chosen = self.random.choice(memory) if memory else None
                call.skip = call.skip or chosen is None
                words[index] = chosen.value if chosen else 0
                said.append(chosen.name if chosen else "null")
            else:
                words[index] = self.random.randrange(1000)
                said.append(str(words[index]))
        pointers = (ctypes.c_void_p * 4)(*(ctypes.addressof(words) + 8 * index for index in range(4)))
        call.kept += [words, pointers]
        return ctypes.addressof(pointers), f"[{', '.join(said)}]"

    def text(self, member: Member) -> tuple[Any, str]:
        rnd = self.random
        low = member.name.lower()
        if "path" in low or low in ("fname", "filename"):
            chosen = rnd.choice([str(self.file), str(self.folder / "missing")])
            said = Path(chosen).name
        elif "pci" in low:
            chosen = said = rnd.choice(["0000:01:00.0", "0000:00:00.0", "zzz", ""])
        else:
            chosen = said = rnd.choice(["store", "mix", "nothing", "counter", "table", "image", "missing", ""])
        if rnd.random() < 0.04:
            return None, "null"
        return ctypes.create_string_buffer(chosen.encode()), repr(said)

    def pointer(self, member: Member, call: Call, inside: bool = False) -> tuple[int, str]:
        """A pointer: to values, to room for results, or to memory."""
        rnd = self.random
        base, name = member.base, member.name
        low = name.lower()
        if name in ("kernelParams",):
            return self.kernel_parameters(call)
        if name == "extra" or "option" in low or name == "hStream":
            return 0, "null"
        if base == "char" and member.stars == 1 and member.constant:
            buffer, said = self.text(member)
            call.kept.append(buffer)
            return (ctypes.addressof(buffer) if buffer else 0), said
        if base == "void" and member.stars == 1:
            return self.memory_pointer(member, call, inside)
        if rnd.random() < 0.08 and call.may_be_wrong():
            return 0, "null"
        room = (ctypes.c_ubyte * ROOM)()
        call.kept.append(room)
        at = ctypes.addressof(room)
        if base == "void" and member.stars == 2 and name in ("data", "dptrs", "dsts", "srcs"):
            # Room for each of several results.
            inner = (ctypes.c_ubyte * 512)()
            ctypes.memset(inner, FILL, 512)
            call.kept.append(inner)
            for index in range(4):
                ctypes.c_void_p.from_address(at + 8 * index).value = ctypes.addressof(inner) + 64 * index
            call.results.append((Member(f"unsigned char *{name}"), inner, 256))
            return at, "rooms"
        if member.stars >= 2 or (not member.constant and not inside and base != "CUgraphNodeParams"):
            ctypes.memset(at, FILL, ROOM)
            said = "room"
            if member.stars == 1:
                size = ctypes.sizeof(scalar(base)) if base != "void" else 8
                if low.startswith(("num", "count", "nb")) or (low in ("size",) and base == "size_t"):
                    count = rnd.choice([0, 1, 2, 8])
                    ctypes.c_size_t.from_address(at).value = count
                    said = f"room, {count}"
                elif base in STRUCTURES and base.startswith(
                    ("CUDA_", "CUmemLocation", "CUstreamBatch", "CUctxCreate", "CUmemcpyAttr", "CUexecAff")
                ):
                    # Given as often as taken.
                    ctypes.memset(at, 0, ROOM)
                    texts = [self.fill(scalar(base).from_address(at + index * size), call) for index in range(1)]
                    said = texts[0]
                elif (
                    base in ("CUmem_range_attribute", "CUpointer_attribute")
                    or "dependencies" in low
                    or low in ("datasizes",)
                ):
                    for index in range(4):
                        value, text = self.value(Member(f"{member.kind} {name}"), call)
                        scalar(base).from_address(at + index * size).value = value
                        said += f" {text}"
                elif base == "CUgraphNode" and low in ("dependencies", "from", "to"):
                    pass
            call.results.append((member, room, 64))
            return at, said
        size = ctypes.sizeof(scalar(base)) if base != "void" else 8
        texts = []
        for index in range(1 if base in STRUCTURES and "EdgeData" not in base else 3):
            if base in STRUCTURES:
                texts.append(self.fill(scalar(base).from_address(at + index * size), call))
            else:
                value, text = self.value(Member(f"{member.kind} {name}"), call)
                scalar(base).from_address(at + index * size).value = value
                texts.append(text)
        return at, f"[{'; '.join(texts)}]"

    def memory_pointer(self, member: Member, call: Call, inside: bool) -> tuple[int, str]:
        rnd = self.random
        low = member.name.lower()
        if low in ("dsthost", "srchost"):
            return self.host_address(call)
        if low == "userdata":
            self.token += 1
            return self.token, str(self.token)
        if low == "ptr" and not inside and "CUhostFn" in call.symbol_parameters:
            self.token += 1
            return self.token, str(self.token)
        if low == "data" and "CUlinkState" in call.symbol_parameters:
            return ctypes.addressof(self.ptx), "code"
        if low in ("code", "image"):
            return (
                (ctypes.addressof(self.ptx), "code")
                if rnd.random() < 0.9 or not call.may_be_wrong()
                else (ctypes.addressof(self.bad), "no code")
            )
        if low in ("globaladdress", "addr", "base_ptr"):
            return self.address(call)
        if low == "p":
            pinned = [thing for thing in self.things if thing.kind == "host" and thing.about]
            if pinned and rnd.random() < 0.8:
                thing = rnd.choice(pinned)
                call.used["host"] = thing
                return thing.value, thing.name
            offset = rnd.choice([0, 4096, 8192, 100])
            return self.host + 2 * HOST + offset, f"pages+{offset}"
        if rnd.random() < 0.08 and call.may_be_wrong():
            return 0, "null"
        room = (ctypes.c_ubyte * ROOM)()
        call.kept.append(room)
        if member.constant or (low == "value" and rnd.random() < 0.5):
            number = rnd.choice([0, 1, 64, 4096, 1 << 21])
            ctypes.c_uint64.from_address(ctypes.addressof(room)).value = number
            said = f"room with {number}"
        else:
            ctypes.memset(room, FILL, ROOM)
            said = "room"
        if not member.constant:
            call.results.append((member, room, 64))
        return ctypes.addressof(room), said
