"""Make random calls of the driver API, from a seed, and print what each gave.

What is printed has no address and no handle of this process in it, so that two runs with the same seed, on a driver
itself and through the shim, print the same lines where the two behave alike.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from farbus.remoting.spec import ENTRIES, Answer
from farbus.remoting.spec.enums import ENUMS
from farbus.remoting.spec.structures import HANDLES
from tests.remoting.random_calls.types import CALLBACK_NAMES, STRUCTURES, Member, scalar

FILL: Final = 0xA5
ROOM: Final = 8192
HOST: Final = 1 << 20

PTX: Final = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 counter = 7;
.visible .const .align 4 .u32 table[4] = {1, 2, 3, 4};
.visible .global .texref image;
.visible .entry store(.param .u64 pa, .param .u32 pv)
{
	.reg .b32 %r<2>;
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [pa];
	ld.param.u32 %r1, [pv];
	st.global.u32 [%rd1], %r1;
	ret;
}
.visible .entry mix(.param .u64 pa, .param .u64 pb, .param .u32 pv)
{
	.reg .b32 %r<6>;
	.reg .b64 %rd<6>;
	ld.param.u64 %rd1, [pa];
	ld.param.u64 %rd2, [pb];
	ld.param.u32 %r1, [pv];
	ld.global.u32 %r2, [%rd1];
	ld.global.u32 %r3, [%rd2];
	mad.lo.u32 %r2, %r2, 3, %r3;
	add.u32 %r2, %r2, %r1;
	st.global.u32 [%rd1], %r2;
	ret;
}
.visible .entry nothing()
{
	ret;
}
"""
#: A kernel's name -> its parameters: a for an address, w for a word.
KERNELS: Final = {"store": "aw", "mix": "aaw", "nothing": ""}

#: What can't be called at random: it waits for what nobody does, ends the process, or gives functions of the process.
NEVER: Final = {
    "cuInit",
    "cuGetExportTable",
    "cuGetErrorName",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuStreamWaitValue32",
    "cuStreamWaitValue64",
    "cuStreamWaitValue32_v2",
    "cuStreamWaitValue64_v2",
    "cuCheckpointProcessLock",
    "cuMulticastBindAddr",
    "cuMulticastBindMem",
    "cuOccupancyMaxPotentialBlockSize",
    "cuOccupancyMaxPotentialBlockSizeWithFlags",
    "cuGraphConditionalHandleCreate",
    "cuDeviceRegisterAsyncNotification",
    "cuDeviceUnregisterAsyncNotification",
    "cuLogsRegisterCallback",
    "cuLogsUnregisterCallback",
    "cuLogsCurrent",
    "cuLogsDumpToFile",
    "cuLogsDumpToMemory",
    "cuModuleLoadFatBinary",
    "cuMemImportFromShareableHandle",
    "cuMemPoolImportFromShareableHandle",
    "cuMemPoolImportPointer",
    "cuIpcOpenMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuIpcOpenEventHandle",
    "cuThreadExchangeStreamCaptureMode",
    "cuMemMap",
    # Managed memory is a software GPU's own affair.
    "cuStreamAttachMemAsync",
    # A software GPU takes any context.
    "cuMemcpyPeer",
    "cuMemcpyPeerAsync",
}

#: What a software GPU says is not there.
LACKING: Final = {
    "cuMemPrefetchBatchAsync",
    "cuMemDiscardBatchAsync",
    "cuMemDiscardAndPrefetchBatchAsync",
    "cuMemcpyBatchAsync",
    "cuMemcpyBatchAsync_v2",
    "cuMemcpy3DBatchAsync",
    "cuMemcpy3DBatchAsync_v2",
    "cuMemcpyWithAttributesAsync",
    "cuMemcpy3DWithAttributesAsync",
    "cuFuncGetParamCount",
    "cuKernelGetParamCount",
    "cuMemcpy3DPeer",
    "cuMemcpy3DPeerAsync",
    "cuCtxCreate_v4",
    "cuGetErrorString",
}

#: Which output says nothing of the two drivers' being alike.
UNCOMPARED: Final = {
    "cuEventElapsedTime",
    "cuEventElapsedTime_v2",
    "cuMemGetInfo",
    "cuMemGetInfo_v2",
    "cuCtxGetId",
    "cuStreamGetId",
    "cuDeviceGetName",
    "cuTensorMapEncodeTiled",
    "cuTensorMapEncodeIm2col",
    "cuTensorMapEncodeIm2colWide",
    "cuTensorMapReplaceAddress",
    "cuIpcGetMemHandle",
    "cuIpcGetEventHandle",
    "cuMemPoolExportPointer",
    "cuMemExportToShareableHandle",
    "cuMemPoolExportToShareableHandle",
    "cuLinkComplete",
    "cuGraphGetId",
    "cuGraphExecGetId",
    "cuGraphNodeGetLocalId",
    "cuGraphNodeGetToolsId",
    "cuMemHostGetFlags",
}

#: What a capture forbids, and the shim lets pass (docs/open-points.md).
LENIENT: Final = {
    "cuMemHostAlloc",
    "cuMemAllocHost",
    "cuMemAllocHost_v2",
    "cuMemAllocManaged",
    "cuMemFreeHost",
    "cuMemHostRegister",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemFreeAsync",
    "cuLaunchHostFunc",
    "cuStreamAddCallback",
    "cuMemcpyDtoD_v2",
    "cuMemcpy2D_v2",
    "cuMemcpy2DUnaligned_v2",
    "cuMemcpy3D_v2",
    "cuMemcpy",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyAtoA_v2",
    "cuMemcpyAtoD_v2",
    "cuMemcpyAtoH_v2",
    "cuMemcpyDtoA_v2",
    "cuMemcpyHtoA_v2",
}

#: What a handle's type is called where several types are one kind.
KINDS: Final = {"CUgraphDeviceNode": "CUgraphNode"}


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


class Caller:
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

    # ---- what there is

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

    # ---- arguments

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
            others = [thing for thing in self.things if thing.kind.startswith("CU") and thing.kind != kind and thing.live
                      and thing.kind in HANDLES and thing.kind not in ("CUkernel", "CUfunction", "CUmodule", "CUlibrary")]  # fmt: skip
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
        if "CUdevice" == kind:
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
                if low.startswith(("num", "count", "nb")) or low in ("size",) and base == "size_t":
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
        if member.constant or low == "value" and rnd.random() < 0.5:
            number = rnd.choice([0, 1, 64, 4096, 1 << 21])
            ctypes.c_uint64.from_address(ctypes.addressof(room)).value = number
            said = f"room with {number}"
        else:
            ctypes.memset(room, FILL, ROOM)
            said = "room"
        if not member.constant:
            call.results.append((member, room, 64))
        return ctypes.addressof(room), said

    # ---- calls

    def call(self, entry: Any) -> Any:
        call = Call(wrong=int(self.random.random() < 0.3), symbol_parameters=entry.parameters)
        parameters = (
            [Member(text) for text in entry.parameters.split(",")] if entry.parameters not in ("", "void") else []
        )
        if any(member.counts for member in parameters):
            return
        # What a later argument depends on comes first.
        ordered = sorted(
            range(len(parameters)), key=lambda index: parameters[index].base not in ("CUfunction", "CUkernel")
        )
        values: list[Any] = [None] * len(parameters)
        words = [""] * len(parameters)
        for index in ordered:
            member = parameters[index]
            value, said = self.pointer(member, call) if member.stars else self.value(member, call)
            ctype = member.ctype
            values[index] = value if isinstance(value, ctypes.Structure | ctypes.Union) else ctype(value)
            words[index] = f"{member.name}={said}"
        if call.skip or self.capturing and entry.symbol in LENIENT:
            return None
        if call.alias:
            return self.say(f"{entry.symbol} would take one object for another", end=True)
        self.settle(call, parameters, words)
        call.text = ", ".join(words)
        function = getattr(self.driver, entry.symbol)
        function.restype = ctypes.c_int
        self.line += 1
        print(f"{self.line} {entry.symbol}({', '.join(words)})", end="", flush=True)
        result = function(*values)
        if entry.symbol in ("cuStreamQuery", "cuEventQuery") and result == 600:
            result = 0
        said = self.outputs(entry, call, result) if result == 0 else ""
        print(f" -> {result}{said}", flush=True)
        self.kept += call.kept
        if result == 0:
            self.follow(entry, call, values, parameters)

    def settle(self, call: Call, parameters: list[Member], words: list[str]) -> None:
        """Wait where another stream than the last would run beside it, so that no two race."""
        streams = [
            word
            for member, word in zip(parameters, words, strict=True)
            if member.base == "CUstream" or "hStream=" in word
        ]
        stream = streams[0] if streams else "legacy"
        if stream != self.last_stream and not self.capturing:
            self.wait()
            self.heard()
        self.last_stream = stream

    def wait(self) -> None:
        """Wait for all that any context has to do."""
        popped = ctypes.c_void_p()
        for context in self.of("CUcontext"):
            if self.driver.cuCtxPushCurrent_v2(ctypes.c_void_p(context.value)) == 0:
                result = self.driver.cuCtxSynchronize()
                if result:
                    print(f"settled: {result}")
                self.driver.cuCtxPopCurrent_v2(ctypes.byref(popped))

    def heard(self) -> None:
        if self.called:
            print("heard:", ", ".join(self.called))
            self.called.clear()

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

    def follow(self, entry: Any, call: Call, values: list[Any], parameters: list[Member]) -> None:
        """What a call that succeeded has changed."""
        symbol = entry.symbol
        if symbol in ("cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuStreamBeginCaptureToGraph"):
            self.capturing = True
        if symbol == "cuStreamEndCapture":
            self.capturing = False
        arguments = {
            member.name: value.value if hasattr(value, "value") else value
            for member, value in zip(parameters, values, strict=True)
        }
        allocates = symbol.startswith(("cuMemAlloc", "cuMemAddressReserve")) and "Host" not in symbol
        if allocates and call.results:
            value = ctypes.c_uint64.from_buffer(call.results[0][1]).value
            size = next((arguments[name] for name in ("bytesize", "size") if name in arguments), 0)
            if "Pitch" in symbol:
                size = (
                    ctypes.c_size_t.from_buffer(call.results[1][1]).value * arguments["Height"]
                    if len(call.results) > 1
                    else 4
                )
            if "CUdeviceptr_v1" in entry.parameters:
                value &= 0xFFFFFFFF
            plain = symbol in ("cuMemAlloc_v2", "cuMemAlloc", "cuMemAllocManaged", "cuMemAllocPitch_v2")
            self.add("memory", value, size, "plain" if plain else symbol)
            if plain:
                self.driver.cuMemsetD8_v2(ctypes.c_uint64(value), self.line & 0xFF, ctypes.c_size_t(size))
                self.driver.cuCtxSynchronize()
        if symbol in ("cuMemHostAlloc", "cuMemAllocHost", "cuMemAllocHost_v2") and call.results:
            value = ctypes.c_uint64.from_buffer(call.results[0][1]).value
            self.add("host", value, arguments["bytesize"], "pinned")
            ctypes.memset(value, 0, min(arguments["bytesize"], HOST))
        if symbol in ("cuMemFree", "cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeHost", "cuMemAddressFree"):
            value = arguments.get("dptr", arguments.get("ptr", arguments.get("p")))
            for thing in self.things:
                if thing.kind in ("memory", "host") and thing.value == value and thing.live:
                    thing.live = False
        if "Destroy" in symbol or symbol in ("cuModuleUnload", "cuLibraryUnload", "cuMemRelease"):
            first = values[0].value
            for thing in self.things:
                if (
                    thing.kind == KINDS.get(parameters[0].base, parameters[0].base)
                    and thing.value == first
                    and thing.live
                ):
                    thing.live = False
        if symbol in ("cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease",
                      "cuDevicePrimaryCtxRelease_v2", "cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxDetach",
                      "cuGreenCtxDestroy"):  # fmt: skip
            # What went with the context is not known here: memory that may be gone is not touched.
            self.say("contexts have changed", end=self.random.random() < 0.5)
            for thing in self.things:
                if thing.kind in ("host",) and thing.about:
                    thing.live = False

    def say(self, text: str, end: bool = False) -> None:
        print(text, flush=True)
        if end:
            self.finish()
            sys.exit(0)

    def finish(self) -> None:
        """Wait for all, and print what memory holds."""
        self.wait()
        self.heard()
        for thing in self.things:
            if not thing.live or thing.kind not in ("memory", "host"):
                continue
            size = min(thing.size, HOST)
            if thing.kind == "memory":
                if thing.about != "plain":
                    continue
                room = ctypes.create_string_buffer(size)
                result = self.driver.cuMemcpyDtoH_v2(room, ctypes.c_uint64(thing.value), ctypes.c_size_t(size))
                print(thing.name, result, zlib.crc32(room.raw) if not result else "", flush=True)
            else:
                print(thing.name, zlib.crc32(ctypes.string_at(thing.value, size)), flush=True)

    def begin(self) -> None:
        by_name = {entry.symbol: entry for entry in ENTRIES}
        assert self.driver.cuInit(0) == 0
        context = ctypes.c_void_p()
        self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        self.driver.cuCtxSetCurrent(context)
        self.add("CUcontext", context.value or 0)
        state = self.random
        for symbol, times in (("cuStreamCreate", 2), ("cuEventCreate", 2), ("cuMemAlloc_v2", 3), ("cuModuleLoadData", 1),
                              ("cuModuleGetFunction", 2), ("cuGraphCreate", 2), ("cuArrayCreate_v2", 1)):  # fmt: skip
            for _ in range(times):
                self.call(by_name[symbol])
        del state


def weights(rng: random.Random, there: set[str]) -> tuple[list[Any], list[float]]:
    """Which functions a run has, and how often: a few chapters more than the others."""
    from farbus.remoting.spec import functions

    chapters = [name for name in dir(functions) if hasattr(getattr(functions, name), "ENTRIES") and name != "forms"]
    chosen = set(rng.sample(chapters, 3))
    if rng.random() < 0.4:
        chosen |= {"graphs", "graph_nodes", "streams"}
    entries, much = [], []
    for name in chapters:
        for entry in getattr(functions, name).ENTRIES:
            if (
                entry.answer is Answer.UNSUPPORTED
                or entry.symbol in NEVER | LACKING
                or entry.symbol not in there
                or entry.symbol.startswith(("cuCoredump", "cuProfiler"))
            ):
                continue
            weight = 8.0 if name in chosen else 1.0
            if entry.symbol.startswith(
                (
                    "cuCtxDestroy",
                    "cuDevicePrimaryCtxReset",
                    "cuDevicePrimaryCtxRelease",
                    "cuCtxDetach",
                    "cuDevicePrimaryCtxSetFlags",
                )
            ):
                weight = 0.15
            if "CUdeviceptr_v1" in entry.parameters:
                weight *= 0.3
            entries.append(entry)
            much.append(weight)
    return entries, much


def main(seed: int, steps: int, folder: Path) -> None:
    caller = Caller(seed, folder)
    caller.begin()
    entries, much = weights(caller.random, set((folder / "functions").read_text().split()))
    for _ in range(steps):
        caller.call(caller.random.choices(entries, much)[0])
    caller.finish()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    sys.stdout.flush()
    import os

    os._exit(0)
