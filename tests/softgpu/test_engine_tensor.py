"""Copies by tensor maps against a reference that takes one element after the other."""

import ctypes
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.softgpu.engine import (
    TENSOR_MAP_MAGIC,
    EngineError,
    Module,
    Status,
    TensorMap,
    compile_cuda,
    nvcc,
)

pytestmark = pytest.mark.skipif(nvcc() is None, reason="kernels are compiled with nvcc, which is not installed")

ROOM = 40960
UNTOUCHED = 0xEE
TILED, IM2COL = 0, 1
# As tensormap.replace numbers them.
TYPES = ("u1", "u2", "u4", "i4", "u8", "i8", "f2", "f4", "f4 ftz", "f8", "bf16", "tf32", "tf32 ftz")
U32, S32, U64, S64, F16, F32, F32_FTZ, BF16, TF32, TF32_FTZ = 2, 3, 4, 5, 6, 7, 8, 10, 11, 12
WIDTHS = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4)
# Mode and atom; then which chunk of 16 bytes is where in a line of 128, line by line (PTX ISA, "Swizzling Modes").
SWIZZLES: dict[str, tuple[int, int, list[str]]] = {
    "none": (0, 0, ["01234567"]),
    "32B": (1, 0, ["01234567", "10325476"]),
    "64B": (2, 0, ["01234567", "10325476", "23016745", "32107654"]),
    "128B": (
        3,
        0,
        ["01234567", "10325476", "23016745", "32107654", "45670123", "54761032", "67452301", "76543210"],
    ),
    "128B by 32B": (3, 1, ["01234567", "23016745", "45670123", "67452301"]),
    "128B by 32B, 8B exchanged": (3, 2, ["01234567", "23016745", "45670123", "67452301"]),
    "128B by 64B": (3, 3, ["01234567", "45670123"]),
}
SPANS = (0, 32, 64, 128)


def compiled(factory: pytest.TempPathFactory, compute: int) -> Module:
    source = Path(__file__).parent / "kernels/tensor.cu"
    out = factory.mktemp(f"sm_{compute}") / "tensor.ptx"
    return Module(compile_cuda(source, out, arch=f"sm_{compute}a"), sm=compute)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Module]:
    with compiled(tmp_path_factory, 90) as module:
        yield module


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Module]:
    """With what came with compute capability 10.0."""
    with compiled(tmp_path_factory, 100) as module:
        yield module


class Place(ctypes.Structure):
    _fields_ = [("at", ctypes.c_int * 5)]


def place(values: Sequence[int]) -> Place:
    return Place((ctypes.c_int * 5)(*values))


def aligned(size: int, fill: int = 0) -> np.ndarray:
    """Bytes at a multiple of 128."""
    whole = np.full(size + 128, fill, np.uint8)
    start = -whole.ctypes.data % 128
    return whole[start : start + size]


@dataclass(frozen=True)
class Tensor:
    """Extents and all else from dimension 0 on, whose elements lie side by side."""

    memory: np.ndarray
    extents: tuple[int, ...]
    strides: tuple[int, ...]  # bytes, of the dimensions behind the first
    box: tuple[int, ...]
    steps: tuple[int, ...]
    type: int = F32
    swizzle: str = "none"
    fills_nan: bool = False
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    pixels: int = 0  # 0: a map of tiles

    @property
    def width(self) -> int:
        return WIDTHS[self.type]

    @property
    def pitch(self) -> int:
        return SPANS[SWIZZLES[self.swizzle][0]] or self.box[0] * self.width

    def map(self) -> TensorMap:
        mode, atom, _ = SWIZZLES[self.swizzle]
        made = TensorMap(
            magic=TENSOR_MAP_MAGIC,
            kind=IM2COL if self.pixels else TILED,
            type=self.type,
            swizzle=mode,
            atom=atom,
            fills_nan=self.fills_nan,
            last_dimension=len(self.extents) - 1,
            address=self.memory.ctypes.data,
            channels=self.box[0],
            pixels=self.pixels,
        )
        for k, extent in enumerate(self.extents):
            made.last[k] = extent - 1
            made.skipped[k] = self.steps[k] - 1
        for k, stride in enumerate(self.strides):
            made.strides[k] = stride
        for k, extent in enumerate(() if self.pixels else self.box):
            made.last_in_box[k] = extent - 1
        for k, (lower, upper) in enumerate(zip(self.lower, self.upper, strict=True)):
            made.lower[k] = lower
            made.upper[k] = upper
        return made

    def address(self, at: Sequence[int]) -> int | None:
        """Where an element is in the memory, or None where it is outside of the tensor."""
        if any(not 0 <= index < extent for index, extent in zip(at, self.extents, strict=True)):
            return None
        return at[0] * self.width + sum(k * stride for k, stride in zip(at[1:], self.strides, strict=True))

    def filling(self) -> bytes:
        return (b"\xf7\x7f" * 4)[: self.width] if self.fills_nan else bytes(self.width)

    def rows(self, start: Sequence[int]) -> list[tuple[int, ...]]:
        """Coordinates of the first element of each row of a tile."""
        ranges = [
            range(first, first + extent, step) for first, extent, step in zip(start, self.box, self.steps, strict=True)
        ]
        return [(start[0], *reversed(outer)) for outer in itertools.product(*reversed(ranges[1:]))]

    def pixel_rows(self, start: Sequence[int], offsets: Sequence[int]) -> list[tuple[int, ...]]:
        """A filter goes over one image after the other, from where it starts."""
        spatial = list(zip(start[1:-1], self.lower, self.extents[1:-1], self.upper, self.steps[1:-1], strict=True))
        first = [range(low, extent + high, step) for _, low, extent, high, step in spatial]
        bases: list[tuple[int, ...]] = []
        for image in range(start[-1], start[-1] + self.pixels + 1):
            bases += [(*reversed(outer), image) for outer in itertools.product(*reversed(first))]
        begin = bases.index(tuple(start[1:]))
        return [
            (start[0], *(base + offset for base, offset in zip(each[:-1], offsets, strict=True)), each[-1])
            for each in bases[begin : begin + self.pixels]
        ]

    def places(self, rows: list[tuple[int, ...]], offset: int) -> Iterator[tuple[int, int | None]]:
        """Of each element, where it is in shared memory and in the tensor's."""
        for number, row in enumerate(rows):
            for k in range(self.box[0]):
                shared = swizzled(self.swizzle, offset + number * self.pitch + k * self.width)
                yield shared, self.address((row[0] + k, *row[1:]))

    def loaded(self, rows: list[tuple[int, ...]], offset: int = 0) -> np.ndarray:
        tile = np.full(ROOM, UNTOUCHED, np.uint8)
        for shared, at in self.places(rows, offset):
            value = self.filling() if at is None else self.memory[at : at + self.width].tobytes()
            tile[shared : shared + self.width] = np.frombuffer(value, np.uint8)
        return tile

    def stored(self, tile: np.ndarray, rows: list[tuple[int, ...]], offset: int = 0) -> np.ndarray:
        memory = self.memory.copy()
        for shared, at in self.places(rows, offset):
            if at is not None:
                memory[at : at + self.width] = tile[shared : shared + self.width]
        return memory


def swizzled(name: str, address: int) -> int:
    mode, atom, lines = SWIZZLES[name]
    if not mode:
        return address
    line, chunk, within = address // 128, address % 128 // 16, address % 16
    if atom == 2 and line % 2:
        within ^= 8
    return line * 128 + int(lines[line % len(lines)][chunk]) * 16 + within


def random_tensor(seed: int, kind: int, rank: int, swizzle: str) -> tuple[Tensor, list[int]]:
    """A tensor with a box and a place for it, near the tensor's edges as often as not."""
    random = np.random.default_rng(seed)
    width = WIDTHS[kind]
    span = SPANS[SWIZZLES[swizzle][0]] or 64
    extents = tuple(int(n) for n in random.integers(1, 40 if rank < 3 else 9, rank))
    steps = (1, *(int(n) for n in random.integers(1, 4, rank - 1)))
    box = (span // width, *(int(n) for n in random.integers(1, 7 if rank < 4 else 5, rank - 1)))
    strides, size = [], extents[0] * width
    for extent in extents[1:]:
        size = (size + 15) // 16 * 16 + 16 * int(random.integers(0, 3))
        strides.append(size)
        size *= extent
    memory = aligned(size)
    memory[:] = random.integers(0, 256, size, np.uint8)
    if kind in (F32_FTZ, TF32, TF32_FTZ):
        memory[:] = 0  # what becomes of their numbers has its own test
    at = [int(random.integers(-span_of, extent + 2)) for span_of, extent in zip(box, extents, strict=True)]
    tensor = Tensor(memory, extents, tuple(strides), box, steps, kind, swizzle, kind >= F16 and seed % 2 == 1)
    return tensor, at


CASES = [
    (kind, rank, swizzle)
    for number, (kind, rank) in enumerate(itertools.product(range(len(TYPES)), range(1, 6)))
    for swizzle in (list(SWIZZLES)[number % 7], list(SWIZZLES)[(number + 3) % 7])
]


@pytest.mark.parametrize(("kind", "rank", "swizzle"), CASES)
def test_tiles_are_loaded(kernels: Module, kind: int, rank: int, swizzle: str) -> None:
    for seed in range(4):
        tensor, at = random_tensor(seed, kind, rank, swizzle)
        rows, offset = tensor.rows(at), 128 * seed
        out = np.zeros(ROOM, np.uint8)
        size = len(rows) * tensor.box[0] * tensor.width
        kernels.launch(f"load_{rank}d", 1, 64, tensor.map(), place(at), offset, out, ROOM, size, shared=ROOM)
        np.testing.assert_array_equal(out, tensor.loaded(rows, offset), str(tensor))


@pytest.mark.parametrize(("kind", "rank", "swizzle"), CASES[::3])
def test_tiles_are_stored(kernels: Module, kind: int, rank: int, swizzle: str) -> None:
    tile = np.random.default_rng(1).integers(0, 256, ROOM, np.uint8)
    for seed in range(4):
        tensor, at = random_tensor(seed, kind, rank, swizzle)
        expected = tensor.stored(tile, tensor.rows(at), 128 * seed)
        kernels.launch(f"store_{rank}d", 1, 64, tensor.map(), place(at), 128 * seed, tile, ROOM, shared=ROOM)
        np.testing.assert_array_equal(tensor.memory, expected, str(tensor))


def matrix(kind: int = F32, *, rows: int = 16, columns: int = 32, box: tuple[int, int] = (8, 4)) -> Tensor:
    width = WIDTHS[kind]
    memory = aligned(rows * columns * width)
    memory[:] = np.random.default_rng(kind).integers(0, 256, memory.size, np.uint8)
    return Tensor(memory, (columns, rows), (columns * width,), box, (1, 1), kind)


def load(kernels: Module, tensor: Tensor, at: Sequence[int], size: int, *, offset: int = 0) -> np.ndarray:
    out = np.zeros(ROOM, np.uint8)
    kernels.launch(f"load_{len(at)}d", 1, 64, tensor.map(), place(at), offset, out, ROOM, size, shared=ROOM)
    return out


def test_rows_shorter_than_what_is_exchanged_have_its_room(kernels: Module) -> None:
    tensor = replace(matrix(), swizzle="128B")
    np.testing.assert_array_equal(load(kernels, tensor, (4, 2), 128), tensor.loaded(tensor.rows((4, 2))))


def test_strides_may_shrink_and_repeat(kernels: Module) -> None:
    memory = aligned(4096)
    memory[:] = np.random.default_rng(5).integers(0, 256, 4096, np.uint8)
    tensor = Tensor(memory, (4, 8, 8, 3), (256, 16, 0), (4, 3, 2, 2), (1, 1, 1, 1))
    at = (0, 1, 2, 1)
    np.testing.assert_array_equal(load(kernels, tensor, at, 192), tensor.loaded(tensor.rows(at)))


def bits(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)


NUMBERS = bits(0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x3F801000, 0x3F801001, 0x3F803000, 0x7F7FFFFF, 0xFF800000,
               0x7FC12345, 0x00802FFF)  # fmt: skip
ROUNDED = bits(0, 0x80000000, 0, 0x80000000, 0x00800000, 0x3F800000, 0x3F802000, 0x3F804000, 0x7F800000, 0xFF800000,
               0x7FFFE000, 0x00802000)  # fmt: skip
FLUSHED = bits(0, 0x80000000, 0, 0x80000000, 0, 0x3F801000, 0x3F801001, 0x3F803000, 0x7F7FFFFF, 0xFF800000,
               0x7FC12345, 0x00802FFF)  # fmt: skip
BOTH = np.where(NUMBERS == 0x007FFFFF, 0, ROUNDED)


@pytest.mark.parametrize(("kind", "expected"), [(F32, NUMBERS), (F32_FTZ, FLUSHED), (TF32, ROUNDED), (TF32_FTZ, BOTH)])
def test_numbers_are_rounded_and_flushed_on_the_way_to_shared_memory(
    kernels: Module, kind: int, expected: np.ndarray
) -> None:
    tensor = Tensor(aligned(48), (12,), (), (12,), (1,), kind)
    tensor.memory[:] = NUMBERS.view(np.uint8)
    np.testing.assert_array_equal(load(kernels, tensor, (0,), 48)[:48].view(np.uint32), expected)


def bf16(values: np.ndarray) -> np.ndarray:
    """Whole numbers that bfloat16 holds."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


INTEGERS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
DTYPES = {U32: np.uint32, S32: np.int32, U64: np.uint64, S64: np.int64, F16: np.float16, F32: np.float32}
REDUCTIONS = [
    *((kind, operation) for kind in (U32, S32, U64) for operation in ("add", "min", "max", "and", "or", "xor")),
    *((S64, operation) for operation in ("min", "max", "and", "or", "xor")),
    (U32, "inc"),
    (U32, "dec"),
    *((kind, operation) for kind in (F16, BF16) for operation in ("add", "min", "max")),
    (F32, "add"),
]


def reduced(operation: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    if operation == "inc":
        return np.where(old >= new, 0, old + 1).astype(old.dtype)
    if operation == "dec":
        return np.where((old == 0) | (old > new), new, old - 1).astype(old.dtype)
    named = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}
    return named.get(operation, np.bitwise_xor)(old, new)


@pytest.mark.parametrize(("kind", "operation"), REDUCTIONS)
def test_tiles_are_reduced(kernels: Module, kind: int, operation: str) -> None:
    random = np.random.default_rng(kind)
    dtype = np.dtype(DTYPES.get(kind, np.float32))
    tensor = matrix(kind, box=(16, 4))
    old = random.integers(0, 100, (16, 32)).astype(dtype)
    new = random.integers(0, 100, (4, 16)).astype(dtype)
    coded = bf16 if kind == BF16 else np.asarray
    tensor.memory[:] = np.ascontiguousarray(coded(old)).view(np.uint8).ravel()
    tile = np.zeros(ROOM, np.uint8)
    raw = np.ascontiguousarray(coded(new)).view(np.uint8).ravel()
    tile[: raw.size] = raw
    kernels.launch(
        "reduce_2d", 1, 64, tensor.map(), place((24, 14)), tile, ROOM, INTEGERS.index(operation), shared=ROOM
    )
    old[14:, 24:] = reduced(operation, old[14:, 24:], new[:2, :8])
    np.testing.assert_array_equal(tensor.memory, np.ascontiguousarray(coded(old)).view(np.uint8).ravel())


@pytest.mark.parametrize(
    ("kind", "operation"), [(S64, "add"), (F32, "min"), (S32, "inc"), (F16, "xor"), (TF32, "add"), (0, "add")]
)
def test_reduction_that_ptx_does_not_have(kernels: Module, kind: int, operation: str) -> None:
    tile = np.zeros(ROOM, np.uint8)
    tensor = matrix(kind, columns=64, box=(16, 4))
    with pytest.raises(EngineError, match="have no such reduction"):
        kernels.launch(
            "reduce_2d", 1, 64, tensor.map(), place((0, 0)), tile, ROOM, INTEGERS.index(operation), shared=ROOM
        )


def test_four_rows_are_gathered_and_scattered(newer: Module) -> None:
    tensor = replace(matrix(box=(16, 1)), swizzle="64B")
    numbers = (28, 3, -1, 9, 15)
    rows = [(numbers[0], row) for row in numbers[1:]]
    out = np.zeros(ROOM, np.uint8)
    newer.launch("gather", 1, 64, tensor.map(), place(numbers), out, ROOM, 256, shared=ROOM)
    np.testing.assert_array_equal(out, tensor.loaded(rows))
    tile = np.random.default_rng(2).integers(0, 256, ROOM, np.uint8)
    expected = tensor.stored(tile, rows)
    newer.launch("scatter", 1, 64, tensor.map(), place(numbers), tile, ROOM, shared=ROOM)
    np.testing.assert_array_equal(tensor.memory, expected)


def images(
    extents: tuple[int, ...], lower: tuple[int, ...], upper: tuple[int, ...], pixels: int, steps: tuple[int, ...]
) -> Tensor:
    memory = aligned(int(np.prod(extents)) * 4)
    memory[:] = np.random.default_rng(pixels).integers(0, 256, memory.size, np.uint8)
    strides = tuple(int(np.prod(extents[:k])) * 4 for k in range(1, len(extents)))
    return Tensor(memory, extents, strides, (8,), steps, lower=lower, upper=upper, pixels=pixels)


@pytest.mark.parametrize(
    ("tensor", "at", "offsets"),
    [
        # 3 x 3 with padding, from the middle of an image into the next one
        (images((16, 9, 7, 3), (-1, -1), (-1, -1), 64, (1, 1, 1, 1)), (8, 7, 4, 0), (0, 0)),
        (images((16, 9, 7, 3), (-1, -1), (-1, -1), 64, (1, 1, 1, 1)), (8, -1, -1, 1), (2, 1)),
        # without padding
        (images((16, 9, 7, 3), (0, 0), (-2, -2), 40, (1, 1, 1, 1)), (0, 6, 4, 0), (2, 2)),
        # every second pixel, beyond the last image
        (images((16, 8, 7, 2), (-1, -1), (-1, -1), 50, (1, 2, 2, 1)), (0, 1, 3, 0), (1, 1)),
        (images((16, 11, 4), (-2,), (-1,), 30, (1, 3, 1)), (8, 1, 0), (3,)),
        (images((8, 5, 4, 3, 2), (-1, 0, -1), (0, -1, 1), 70, (1, 1, 2, 1, 1)), (0, 3, 2, 1, 0), (0, 1, 2)),
    ],
)  # fmt: skip
def test_pixels_are_loaded_as_columns(
    kernels: Module, tensor: Tensor, at: tuple[int, ...], offsets: tuple[int, ...]
) -> None:
    out = np.zeros(ROOM, np.uint8)
    arguments = (tensor.map(), place(at), place(offsets), out, ROOM, tensor.pixels * 32)
    kernels.launch(f"pixels_{len(at)}d", 1, 64, *arguments, shared=ROOM)
    np.testing.assert_array_equal(out, tensor.loaded(tensor.pixel_rows(at, offsets)))


def test_columns_are_stored_as_pixels(kernels: Module) -> None:
    tensor = images((16, 9, 7, 3), (0, 0), (0, 0), 64, (1, 1, 1, 1))
    at = (8, 7, 4, 0)
    tile = np.random.default_rng(2).integers(0, 256, ROOM, np.uint8)
    expected = tensor.stored(tile, tensor.pixel_rows(at, (0, 0)))
    kernels.launch("store_pixels_4d", 1, 64, tensor.map(), place(at), tile, ROOM, shared=ROOM)
    np.testing.assert_array_equal(tensor.memory, expected)


@pytest.mark.parametrize("pairs", [0, 1])
def test_tiles_for_all_blocks_of_a_cluster(newer: Module, pairs: int) -> None:
    tensor = matrix(rows=32, columns=4, box=(4, 8))
    out = np.zeros((4, 512), np.uint8)
    newer.launch("multicast", 4, 64, tensor.map(), out, pairs, shared=512)
    np.testing.assert_array_equal(out, np.broadcast_to(tensor.memory, (4, 512)))


def test_a_map_in_constant_or_global_memory(kernels: Module) -> None:
    tensor, at = matrix(), (4, 2)
    expected = tensor.loaded(tensor.rows(at))
    out = np.zeros(ROOM, np.uint8)
    ctypes.memmove(kernels.variable("constant_map").address, bytes(tensor.map()), 128)
    kernels.launch("load_by_constant", 1, 64, place(at), out, ROOM, 128, shared=ROOM)
    np.testing.assert_array_equal(out, expected)
    in_memory = aligned(128)
    in_memory[:] = np.frombuffer(bytes(tensor.map()), np.uint8)
    out[:] = 0
    kernels.launch("load_by_global", 1, 64, in_memory, place(at), out, ROOM, 128, shared=ROOM)
    np.testing.assert_array_equal(out, expected)


def test_a_map_that_a_kernel_makes(kernels: Module) -> None:
    tensor = replace(matrix(box=(32, 7)), steps=(1, 2), swizzle="128B", fills_nan=True)
    at, made, out = (-3, 11), aligned(128), np.zeros(ROOM, np.uint8)
    arguments = (
        tensor.memory,
        made,
        place(tensor.extents),
        place(tensor.box),
        np.uint64(128),
        place(at),
        out,
        ROOM,
        512,
    )
    kernels.launch("make_map", 1, 64, *arguments, shared=ROOM)
    np.testing.assert_array_equal(out, tensor.loaded(tensor.rows(at)))
    expected = tensor.map()
    expected.channels = 0
    assert made.tobytes() == bytes(expected)


@pytest.mark.parametrize(
    ("kernel", "why"), [("load_by_copy", "__grid_constant__"), ("load_by_shared", "in shared memory")]
)
def test_a_map_where_none_may_be(kernels: Module, kernel: str, why: str) -> None:
    with pytest.raises(EngineError, match=why) as caught:
        kernels.launch(kernel, 1, 64, matrix().map(), place((0, 0)), np.zeros(ROOM, np.uint8), ROOM, 128, shared=ROOM)
    assert caught.value.status == Status.ILLEGAL_ADDRESS


def test_what_is_no_map(kernels: Module) -> None:
    out = np.zeros(ROOM, np.uint8)
    with pytest.raises(EngineError, match="no tensor map at") as caught:
        kernels.launch("load_2d", 1, 64, TensorMap(), place((0, 0)), 0, out, ROOM, 128, shared=ROOM)
    assert caught.value.status == Status.LAUNCH_FAILED


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"last_dimension": 2}, "it has other dimensions"),
        ({"kind": IM2COL}, "it is none of tiles"),
        ({"type": 13}, "elements of 4 or 6 bits are not there"),
        ({"interleave": 1}, "interleaved layouts are not there"),
        ({"swizzle": 4}, "this swizzle is not there"),
        ({"swizzle": 2, "atom": 1}, "this swizzle is not there"),
        ({"swizzle": 1, "type": 4}, "its rows are longer than its swizzle"),
        ({"type": 1, "last_in_box": (3, 3)}, "its rows are no multiple of 16 bytes"),
        ({"type": 2, "fills_nan": 1}, "have no NaN to fill with"),
    ],
)
def test_a_map_that_can_not_be_copied_by(kernels: Module, changes: dict[str, object], why: str) -> None:
    made = matrix().map()
    for name, value in changes.items():
        if isinstance(value, tuple):
            getattr(made, name)[: len(value)] = value
        else:
            setattr(made, name, value)
    with pytest.raises(EngineError, match=why) as caught:
        kernels.launch("load_2d", 1, 64, made, place((0, 0)), 0, np.zeros(ROOM, np.uint8), ROOM, 128, shared=ROOM)
    assert caught.value.status == Status.LAUNCH_FAILED


def test_a_tile_at_the_wrong_place(kernels: Module) -> None:
    with pytest.raises(EngineError, match="no multiple of 128") as caught:
        load(kernels, matrix(), (0, 0), 128, offset=64)
    assert caught.value.status == Status.MISALIGNED
    with pytest.raises(EngineError, match=r"a tile of 8 rows of 32 bytes at .* leaves the shared memory") as caught:
        load(kernels, matrix(box=(8, 8)), (0, 0), 256, offset=ROOM - 128)
    assert caught.value.status == Status.LAUNCH_FAILED


def test_wide_im2col_is_refused_alone(newer: Module) -> None:
    with pytest.raises(EngineError, match="im2col::w") as caught:
        newer.launch("pixels_wide", 1, 1, matrix().map(), shared=ROOM)
    assert caught.value.status == Status.UNSUPPORTED


SMALL = """.version 8.3
.target sm_90a
.address_size 64
.visible .entry replaces(.param .u64 out, .param .u32 at, .param .u32 value)
{
    .shared .align 4 .b32 small;
    .reg .b32 %r<9>;
    .reg .b64 %rd<3>;
    mov.u32 %r1, small;
    ld.param.u32 %r2, [at];
    ld.param.u32 %r3, [value];
    add.u32 %r2, %r1, %r2;
    st.shared.u32 [%r2], %r3;
    tensormap.replace.tile.rank.shared::cta.b1024.b32 [%r1], 2;
    ld.param.u64 %rd1, [out];
    mov.u32 %r4, %total_smem_size;
    mov.u32 %r5, %dynamic_smem_size;
    st.global.v2.u32 [%rd1], {%r4, %r5};
    ret;
}
"""


def test_a_map_in_less_memory_than_it_takes() -> None:
    """Blocks have shared memory by units of 128 bytes, as on a GPU: what is in the last can be used, and no more."""
    out = np.zeros(2, np.uint32)
    with Module(SMALL, sm=90) as module:
        for at, value in ((0, 0), (124, 0), (0, 77)):
            module.launch("replaces", 1, 1, out, np.uint32(at), np.uint32(value))
            np.testing.assert_array_equal(out, [128, 0])
        module.launch("replaces", 1, 1, out, np.uint32(252), np.uint32(0), shared=130)
        np.testing.assert_array_equal(out, [256, 130])
        with pytest.raises(EngineError, match="shared memory access at 0x80 of 0x80 bytes") as caught:
            module.launch("replaces", 1, 1, out, np.uint32(128), np.uint32(0))
    assert caught.value.status == Status.LAUNCH_FAILED
