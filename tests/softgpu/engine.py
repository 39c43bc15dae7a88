"""The PTX engine of the software GPU through ctypes.

Device addresses are host pointers of this process, so a kernel reads and writes numpy arrays in place.
"""

import ctypes
import enum
import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = Path(os.environ.get("FARBUS_SOFTGPU_LIBRARIES", ROOT / "native/build/softgpu"))
LIBRARY = LIBRARIES / "tests/libsoftgpu_engine.so"
CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))


class Status(enum.IntEnum):
    """enum engine_status of native/softgpu/engine/engine.h."""

    OK = 0
    NO_MEMORY = 1
    INVALID_IMAGE = 2
    NO_BINARY = 3
    INVALID_PTX = 4
    UNSUPPORTED_VERSION = 5
    UNSUPPORTED = 6
    UNRESOLVED = 7
    NOT_FOUND = 8
    ILLEGAL_ADDRESS = 9
    MISALIGNED = 10
    ASSERT = 11
    TRAP = 12
    LAUNCH_FAILED = 13
    TIMEOUT = 14
    CANCELLED = 15


class EngineError(Exception):
    def __init__(self, status: Status, text: str) -> None:
        super().__init__(f"{status.name}: {text}")
        self.status = status
        self.text = text


class Diagnostic(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char * 512)]


ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
VISIT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
PRINT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)


class LoadOptions(ctypes.Structure):
    _fields_ = [
        ("sm", ctypes.c_uint),
        ("alloc", ALLOC),
        ("free", FREE),
        ("opaque", ctypes.c_void_p),
        ("asks_reach", ctypes.c_bool),
        ("max_registers", ctypes.c_uint32),
    ]


class Param(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint32), ("size", ctypes.c_uint32)]


class FunctionInfo(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("status", ctypes.c_int),
        ("unsupported", ctypes.c_char_p),
        ("is_entry", ctypes.c_bool),
        ("param_count", ctypes.c_uint32),
        ("params", ctypes.POINTER(Param)),
        ("param_bytes", ctypes.c_uint32),
        ("registers", ctypes.c_uint32),
        ("static_shared_bytes", ctypes.c_uint32),
        ("const_bytes", ctypes.c_uint32),
        ("local_bytes", ctypes.c_uint32),
        ("max_threads_per_block", ctypes.c_uint32),
        ("required_cluster", ctypes.c_uint32 * 3),
        ("ptx_version", ctypes.c_uint32),
    ]


class VariableInfo(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("is_const", ctypes.c_bool),
        ("is_managed", ctypes.c_bool),
    ]


class Launch(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("dynamic_shared_bytes", ctypes.c_uint32),
        ("params", ctypes.c_void_p),
        ("references", ctypes.c_void_p),
        ("cooperative", ctypes.c_bool),
        ("multiprocessors", ctypes.c_uint32),
        ("partition", ctypes.c_void_p),
        ("cancel", ctypes.c_void_p),
        ("timeout_ns", ctypes.c_uint64),
        ("print", PRINT),
        ("print_opaque", ctypes.c_void_p),
        ("set_condition", ctypes.c_void_p),
        ("condition_opaque", ctypes.c_void_p),
        ("reach", ctypes.c_void_p),
        ("multicast", ctypes.c_void_p),
    ]


class Replicas(ctypes.Structure):
    """struct engine_replicas"""

    _fields_ = [
        ("base", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("count", ctypes.c_uint),
        ("memory", ctypes.c_uint64 * 16),
    ]


FIND = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.POINTER(Replicas))


class Multicast(ctypes.Structure):
    """struct engine_multicast"""

    _fields_ = [("find", FIND), ("opaque", ctypes.c_void_p)]


MULTICAST_BASE = 1 << 45
"""Where arrays begin that are given to a launch as those of several devices; nothing else lies there."""


def multicast_of(replicas: np.ndarray) -> Multicast:
    """Rows of an array, behind each other's back, as the memory of one device each."""

    @FIND
    def find(_opaque: int, address: int, found: Any) -> bytes | None:
        if not 0 <= address - MULTICAST_BASE < replicas.strides[0]:
            return b"nothing is there"
        rows = (ctypes.c_uint64 * 16)(*(row.ctypes.data for row in replicas))
        found[0] = Replicas(MULTICAST_BASE, replicas.strides[0], len(replicas), rows)
        return None

    return Multicast(find, None)


class Image(ctypes.Structure):
    """struct engine_image"""

    _fields_ = [
        ("memory", ctypes.c_void_p),
        ("texel", ctypes.c_int),
        ("channels", ctypes.c_uint32),
        ("dimensions", ctypes.c_uint32),
        ("width", ctypes.c_uint32),
        ("height", ctypes.c_uint32),
        ("depth", ctypes.c_uint32),
        ("layers", ctypes.c_uint32),
        ("pitch", ctypes.c_uint64),
        ("slice", ctypes.c_uint64),
    ]


class Sampler(ctypes.Structure):
    """struct engine_sampler"""

    _fields_ = [
        ("address_mode", ctypes.c_int * 3),
        ("linear", ctypes.c_bool),
        ("normalized_coordinates", ctypes.c_bool),
        ("normalized_values", ctypes.c_bool),
        ("srgb", ctypes.c_bool),
        ("border", ctypes.c_float * 4),
    ]


class TensorMap(ctypes.Structure):
    """struct tensor_map of native/softgpu/engine/machine/tensor_map.h, in the 128 bytes of a CUtensorMap"""

    _fields_ = [
        ("magic", ctypes.c_uint32),
        ("kind", ctypes.c_uint8),
        ("type", ctypes.c_uint8),
        ("interleave", ctypes.c_uint8),
        ("swizzle", ctypes.c_uint8),
        ("atom", ctypes.c_uint8),
        ("fills_nan", ctypes.c_uint8),
        ("last_dimension", ctypes.c_uint8),
        ("wide_mode", ctypes.c_uint8),
        ("address", ctypes.c_uint64),
        ("strides", ctypes.c_uint64 * 4),
        ("last", ctypes.c_uint32 * 5),
        ("last_in_box", ctypes.c_uint8 * 5),
        ("skipped", ctypes.c_uint8 * 5),
        ("lower", ctypes.c_int16 * 3),
        ("upper", ctypes.c_int16 * 3),
        ("channels", ctypes.c_uint16),
        ("pixels", ctypes.c_uint16),
        ("rest", ctypes.c_uint8 * 26),
    ]


assert ctypes.sizeof(TensorMap) == 128
TENSOR_MAP_MAGIC = 0x70616D74


TEXELS = ("u1", "u2", "u4", "i1", "i2", "i4", "f2", "f4")
WRAP, CLAMP, MIRROR, BORDER = range(4)


@functools.cache
def library() -> ctypes.CDLL:
    """The engine, built when it is not there or older than its sources, unless the environment names another build."""
    if "FARBUS_SOFTGPU_LIBRARIES" not in os.environ:
        subprocess.run(
            ["make", "-s", "-j2", "-C", str(ROOT / "native"), "-f", "softgpu/engine.mk", "engine-test-library"],
            check=True,
            capture_output=True,
            text=True,
        )
    lib = ctypes.CDLL(str(LIBRARY))
    lib.engine_module_load.argtypes = [
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_char_p,
        ctypes.POINTER(LoadOptions),
        ctypes.POINTER(Diagnostic),
    ]
    lib.engine_module_unload.argtypes = [ctypes.c_void_p]
    lib.engine_module_unload.restype = None
    lib.engine_module_function.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    lib.engine_module_function.restype = ctypes.c_void_p
    lib.engine_module_function_count.argtypes = [ctypes.c_void_p]
    lib.engine_module_function_count.restype = ctypes.c_size_t
    lib.engine_module_function_at.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    lib.engine_module_function_at.restype = ctypes.c_void_p
    lib.engine_function_info.argtypes = [ctypes.c_void_p, ctypes.POINTER(FunctionInfo)]
    lib.engine_function_info.restype = None
    lib.engine_module_variable.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(VariableInfo)]
    lib.engine_texture_add.argtypes = [
        ctypes.POINTER(Image),
        ctypes.POINTER(Sampler),
        ctypes.POINTER(ctypes.c_uint64),
    ]
    lib.engine_texture_remove.argtypes = [ctypes.c_uint64]
    lib.engine_texture_remove.restype = None
    lib.engine_launch.argtypes = [ctypes.POINTER(Launch), ctypes.POINTER(Diagnostic)]
    return lib


def form_names() -> list[str]:
    """The spellings of all instruction forms, in the order of the engine's tables."""
    names: list[str] = []

    @VISIT
    def visit(_opaque: int, spellings: bytes, _operands: bytes | None) -> None:
        names.extend(spellings.decode().split())

    library().engine_forms_visit(visit, None)
    return names


class Options(ctypes.Structure):
    _fields_ = [("workers", ctypes.c_uint), ("deterministic", ctypes.c_bool), ("strict", ctypes.c_bool)]


def configure(*, workers: int = 0, deterministic: bool = False, strict: bool = False) -> None:
    """For the whole process, once: use it in a process of its own."""
    library().engine_configure(ctypes.byref(Options(workers, deterministic, strict)))


_libc = ctypes.CDLL(None)
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]


@ALLOC
def _alloc(_opaque: int, size: int, align: int) -> int:
    return int(_libc.aligned_alloc(align, (size + align - 1) // align * align))


@FREE
def _free(_opaque: int, pointer: int) -> None:
    _libc.free(pointer)


def _three(value: int | Sequence[int]) -> Any:
    values = [value] if isinstance(value, int) else list(value)
    return (ctypes.c_uint32 * 3)(*[*values, 1, 1, 1][:3])


def add_texture(values: np.ndarray, *, layered: bool = False, surface: bool = False, **sampler: Any) -> np.uint64:
    """A texture or surface of an array [depth or layer,] [row,] column, channel; it must live as long."""
    shape = values.shape[:-1]
    extents = list(reversed(shape[1:] if layered else shape))
    image = Image(
        memory=values.ctypes.data,
        texel=TEXELS.index(values.dtype.str[1:]),
        channels=values.shape[-1],
        dimensions=len(extents),
        layers=shape[0] if layered else 1,
        pitch=values.strides[-3] if len(extents) > 1 else values.strides[-2] * extents[0],
        slice=values.strides[0],
    )
    image.width, image.height, image.depth = (*extents, 1, 1)[:3]
    border = (ctypes.c_float * 4)(*sampler.pop("border", (0, 0, 0, 0)))
    modes = (ctypes.c_int * 3)(*[sampler.pop("mode", CLAMP)] * 3)
    handle = ctypes.c_uint64()
    description = None if surface else Sampler(address_mode=modes, border=border, **sampler)
    assert library().engine_texture_add(image, description, handle) == 0
    return np.uint64(handle.value)


class Module:
    """A loaded module. `image` is PTX text, or the bytes of a fatbin."""

    def __init__(self, image: str | bytes, *, sm: int = 120) -> None:
        self._lib = library()
        self._handle = ctypes.c_void_p()
        self._image = image.encode() if isinstance(image, str) else image
        diagnostic = Diagnostic()
        options = LoadOptions(sm, _alloc, _free, None)
        status = self._lib.engine_module_load(self._handle, self._image, options, diagnostic)
        if status:
            raise EngineError(Status(status), diagnostic.text.decode(errors="replace"))

    def unload(self) -> None:
        if self._handle:
            self._lib.engine_module_unload(self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self) -> "Module":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.unload()

    def function_names(self) -> list[str]:
        count = self._lib.engine_module_function_count(self._handle)
        return [self._info(self._lib.engine_module_function_at(self._handle, k)).name.decode() for k in range(count)]

    def _info(self, function: int) -> FunctionInfo:
        info = FunctionInfo()
        self._lib.engine_function_info(function, info)
        return info

    def _find(self, name: str) -> int:
        """By mangled name, or by the part of it that the source spells."""
        function = self._lib.engine_module_function(self._handle, name.encode())
        if function:
            return int(function)
        matches = [full for full in self.function_names() if f"{len(name)}{name}" in full]
        assert len(matches) == 1, f"{name}: {matches or self.function_names()}"
        return int(self._lib.engine_module_function(self._handle, matches[0].encode()))

    def info(self, name: str) -> FunctionInfo:
        return self._info(self._find(name))

    def variable(self, name: str) -> VariableInfo:
        info = VariableInfo()
        status = self._lib.engine_module_variable(self._handle, name.encode(), info)
        if status:
            raise EngineError(Status(status), name)
        return info

    def launch(
        self,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *args: Any,
        shared: int = 0,
        cluster: int | Sequence[int] = 0,
        cooperative: bool = False,
        timeout_ns: int = 20_000_000_000,
        cancel: ctypes.c_int | None = None,
        on_print: Callable[[str], None] | None = None,
        multiprocessors: int = 0,
        partition: int = 0,
        multicast: Multicast | None = None,
    ) -> None:
        """Run a kernel. Arrays are passed by address; numpy and ctypes scalars by value.

        `partition`: a bit for each of the device's `multiprocessors` that it may use; 0: all.
        """
        part = (ctypes.c_uint64 * 4)(*(partition >> shift & 2**64 - 1 for shift in (0, 64, 128, 192)))
        function = self._find(name)
        info = self._info(function)
        assert info.param_count == len(args), f"{name} takes {info.param_count} parameters"
        buffer = ctypes.create_string_buffer(max(info.param_bytes, 1))
        for index, arg in enumerate(args):
            raw = _bytes_of(arg)
            param = info.params[index]
            assert len(raw) == param.size, f"{name}: parameter {index} has {param.size} bytes, not {len(raw)}"
            ctypes.memmove(ctypes.addressof(buffer) + param.offset, raw, len(raw))

        @PRINT
        def emit(_opaque: int, text: Any, length: int) -> None:
            if on_print:
                on_print(ctypes.string_at(text, length).decode(errors="replace"))

        launch = Launch(
            function=function,
            grid=_three(grid),
            block=_three(block),
            cluster=_three(cluster) if cluster else (ctypes.c_uint32 * 3)(),
            dynamic_shared_bytes=shared,
            params=ctypes.addressof(buffer),
            cooperative=cooperative,
            multiprocessors=multiprocessors,
            partition=ctypes.addressof(part) if partition else None,
            cancel=ctypes.addressof(cancel) if cancel is not None else None,
            timeout_ns=timeout_ns,
            print=emit,
            multicast=ctypes.addressof(multicast) if multicast else None,
        )
        diagnostic = Diagnostic()
        status = self._lib.engine_launch(launch, diagnostic)
        if status:
            raise EngineError(Status(status), diagnostic.text.decode(errors="replace"))


def _bytes_of(arg: Any) -> bytes:
    if isinstance(arg, np.ndarray):
        return arg.ctypes.data.to_bytes(8, "little")
    if isinstance(arg, np.generic):
        return arg.tobytes()
    if isinstance(arg, int):
        return arg.to_bytes(4, "little", signed=arg < 0)
    if isinstance(arg, float):
        return np.float32(arg).tobytes()
    return bytes(arg)


def nvcc() -> str | None:
    found = shutil.which("nvcc")
    if found:
        return found
    local = CUDA / "bin/nvcc"
    return str(local) if local.exists() else None


def run_nvcc(arguments: Sequence[str]) -> None:
    """What is preloaded into this process (make asan) is not for the compiler."""
    compiler = nvcc()
    assert compiler
    plain = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    subprocess.run([compiler, *arguments], env=plain, check=True, capture_output=True, text=True)


def compile_cuda(
    source: Path, out: Path, *, arch: str = "sm_75", kind: str = "ptx", flags: Sequence[str] = ()
) -> bytes:
    """PTX text or a fatbin of a CUDA source file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    run_nvcc([f"-{kind}", f"-arch={arch}", "-std=c++17", *flags, "-o", str(out), str(source)])
    return out.read_bytes()
