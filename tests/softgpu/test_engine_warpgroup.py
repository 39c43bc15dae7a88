"""wgmma against numpy: elements lie in shared memory as PTX ISA's canonical layouts have them, written anew here."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from tests.softgpu.elements import KINDS, Kind
from tests.softgpu.engine import ROOT, EngineError, Module, Status

THREADS = 128
SHARED_BYTES = 48 << 10
LINE_BYTES = 32
"""Of a row of A, or a column of B, that an instruction takes."""
WIDTHS = {0: 16, 1: 128, 2: 64, 3: 32}
"""Bytes of a row that is swizzled, by the descriptor's mode; without swizzling rows are as wide as a core matrix."""


@dataclass(frozen=True)
class Place:
    """Where a matrix lies in shared memory: what its descriptor says, in bytes."""

    start: int = 0
    leading: int = 0
    stride: int = 0
    mode: int = 0
    base: int = 0

    def descriptor(self, advance: int = 0) -> np.uint64:
        fields = ((self.start + advance) >> 4, 0), (self.leading >> 4, 16), (self.stride >> 4, 32)
        return np.uint64(sum(value << at for value, at in (*fields, (self.base, 49), (self.mode, 62))))

    def swizzled(self, address: int) -> int:
        return address ^ (address // 128 - self.base) % (WIDTHS[self.mode] // 16) * 16

    def write(self, memory: np.ndarray, lines: np.ndarray) -> None:
        """Rows of A, or columns of B: K runs fastest, so many of it as a swizzled row has."""
        rows = np.ascontiguousarray(lines).view(np.uint8).reshape(len(lines), -1)
        width = WIDTHS[self.mode]
        for row, chunk in np.ndindex(len(rows), rows.shape[1] // 16):
            step = chunk * (16 if self.mode else self.leading)
            address = self.swizzled(self.start + row // 8 * self.stride + row % 8 * width + step)
            memory[address : address + 16] = rows[row, 16 * chunk : 16 * chunk + 16]

    def write_transposed(self, memory: np.ndarray, lines: np.ndarray) -> None:
        """M or N runs fastest; elements have 16 bits."""
        width = WIDTHS[self.mode]
        across, along = (self.leading, self.stride) if self.mode else (self.stride, self.leading)
        for line, k in np.ndindex(lines.shape):
            step = line // (width // 2) * across + line % (width // 2) * 2
            address = self.swizzled(self.start + k // 8 * along + k % 8 * width + step)
            memory[address : address + 2] = lines[line, k : k + 1].view(np.uint8)


def packed(mode: int, rows: int, start: int, depth_bytes: int = 0) -> Place:
    """K fastest, without holes."""
    if mode:
        return Place(start=start, stride=8 * WIDTHS[mode], mode=mode)
    return Place(start=start, stride=8 * (depth_bytes or LINE_BYTES), leading=128)


def transposed(mode: int, lines: int, start: int) -> Place:
    """M or N fastest, without holes: two times eight of K."""
    width = WIDTHS[mode]
    if mode:
        return Place(start=start, stride=8 * width, leading=16 * width, mode=mode)
    return Place(start=start, stride=128, leading=lines // 8 * 128)


def registers(count: int) -> str:
    return "{" + ", ".join(f"%d{k}" for k in range(count)) + "}"


def result_registers(n: int, result: str) -> int:
    return n // 4 if result == "f16" else n // 2


COPY_IN = f"""
    mul.lo.u32 %t1, %t0, 16;
    mov.u32 %t2, tile;
copy:
    cvt.u64.u32 %q4, %t1;
    add.u64 %q5, %q0, %q4;
    add.u32 %t3, %t2, %t1;
    ld.global.v4.u32 {{%t4, %t5, %t6, %t7}}, [%q5];
    st.shared.v4.u32 [%t3], {{%t4, %t5, %t6, %t7}};
    add.u32 %t1, %t1, {16 * THREADS};
    setp.lt.u32 %p0, %t1, {SHARED_BYTES};
    @%p0 bra copy;
    fence.proxy.async;
    bar.sync 0;
"""


def kernel(
    instructions: str, results: int, *, a_in_registers: bool = False, threads: int = THREADS, before: str = ""
) -> str:
    """A kernel `product`: shared memory from an array, D and the registers of A from others, by register and thread."""
    loads = [
        f"    ld.global.u32 %{name}{k}, [%q{base} + {4 * threads * k}];"
        for name, base, count in (("d", 6, results), ("a", 7, 4 if a_in_registers else 0))
        for k in range(count)
    ]
    stores = [f"    st.global.u32 [%q6 + {4 * threads * k}], %d{k};" for k in range(results)]
    return f"""
.version 8.0
.target sm_90a
.address_size 64
.visible .entry product(.param .u64 memory, .param .u64 a, .param .u64 d, .param .u64 a_at, .param .u64 b_at,
                        .param .u32 adds)
{{
    .reg .b32 %t<16>, %d<{results + 1}>, %a<4>;
    .reg .b64 %q<16>;
    .reg .pred %p<4>;
    .shared .align 1024 .b8 tile[{SHARED_BYTES}];
    ld.param.u64 %q0, [memory];
    ld.param.u64 %q1, [a];
    ld.param.u64 %q2, [d];
    ld.param.u64 %q8, [a_at];
    ld.param.u64 %q9, [b_at];
    ld.param.u32 %t8, [adds];
    setp.ne.u32 %p1, %t8, 0;
    mov.u32 %t0, %tid.x;
    mul.wide.u32 %q3, %t0, 4;
    add.u64 %q6, %q2, %q3;
    add.u64 %q7, %q1, %q3;
{COPY_IN}
{chr(10).join(loads)}
{before}
    wgmma.fence.sync.aligned;
    {instructions}
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
{chr(10).join(stores)}
    ret;
}}
"""


def multiplication(types: str, n: int, k: int, tail: str, *, a: str = "%q8", results: int, b: str = "%q9") -> str:
    head = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}{types}"
    return f"{head} {registers(results)}, {a}, {b}, %p1{tail};"


A_REGISTERS = "{%a0, %a1, %a2, %a3}"


def to_fragments(values: np.ndarray, kind: str) -> np.ndarray:
    """The registers of D for a matrix of 64 rows, by register and thread."""
    n = values.shape[1]
    if kind == "f16":
        bits = values.astype(np.float16).view(np.uint16).astype(np.uint32)
        words = (bits[:, 0::2] | bits[:, 1::2] << 16).reshape(4, 2, 8, n // 8, 4)
        return np.ascontiguousarray(words.transpose(3, 1, 0, 2, 4)).reshape(n // 4, THREADS)
    bits = (values.astype(np.float32) if kind == "f32" else values.astype(np.int32)).view(np.uint32)
    # warp, half of its rows, row, eight columns, lane of a row, one of two
    words = bits.reshape(4, 2, 8, n // 8, 4, 2)
    return np.ascontiguousarray(words.transpose(3, 1, 5, 0, 2, 4)).reshape(n // 2, THREADS)


def from_fragments(fragments: np.ndarray, n: int, kind: str) -> np.ndarray:
    if kind == "f16":
        words = fragments.reshape(n // 8, 2, 4, 8, 4).transpose(2, 1, 3, 0, 4)
        return np.ascontiguousarray(words).view(np.float16).reshape(64, n).astype(np.float64)
    words = np.ascontiguousarray(fragments.reshape(n // 8, 2, 2, 4, 8, 4).transpose(3, 1, 4, 0, 5, 2))
    return words.view(np.float32 if kind == "f32" else np.int32).reshape(64, n).astype(np.float64)


def a_fragments(lines: np.ndarray) -> np.ndarray:
    """Registers of A: four bytes of a row each."""
    rows = np.ascontiguousarray(lines).view(np.uint8).reshape(4, 2, 8, 2, 4, 4)
    return np.ascontiguousarray(rows.transpose(3, 1, 0, 2, 4, 5)).reshape(4, THREADS, 4).view(np.uint32)[..., 0].copy()


def memory_of_noise(rng: np.random.Generator) -> np.ndarray:
    """What is read beside the matrices changes results."""
    return rng.integers(0, 256, SHARED_BYTES).astype(np.uint8)


NO_REGISTERS = np.zeros(1, np.uint32)


def check(
    types: str,
    n: int,
    *,
    a_mode: int = 1,
    b_mode: int = 1,
    a_transposed: bool = False,
    b_transposed: bool = False,
    a_in_registers: bool = False,
    adds: bool = True,
    scales: tuple[int, int] = (1, 1),
    step: int = 0,
) -> None:
    """One instruction with everything that it can be told; `step`: the part of a swizzled row that is taken."""
    result, a_name, b_name = types.removeprefix(".").split(".")
    a_kind, b_kind = KINDS[a_name], KINDS[b_name]
    rng = np.random.default_rng(n)
    memory = memory_of_noise(rng)
    wide_a, wide_b = (max(WIDTHS[mode], LINE_BYTES) // LINE_BYTES for mode in (a_mode, b_mode))
    a, b = a_kind.random(rng, 64, a_kind.depth * wide_a), b_kind.random(rng, n, b_kind.depth * wide_b)
    c = rng.integers(-50, 51, (64, n)).astype(np.float64)
    a_taken = a[:, a_kind.depth * step :][:, : a_kind.depth]
    b_taken = b[:, b_kind.depth * step :][:, : b_kind.depth]
    a_place, b_place = packed(a_mode, 64, 0), packed(b_mode, n, 8192)
    if b_transposed:
        b_place = transposed(b_mode, n, 8192)
        b_place.write_transposed(memory, b_kind.encode(b_taken))
    else:
        b_place.write(memory, b_kind.encode(b))
    if a_transposed:
        a_place = transposed(a_mode, 64, 0)
        a_place.write_transposed(memory, a_kind.encode(a_taken))
    elif not a_in_registers:
        a_place.write(memory, a_kind.encode(a))
    tail = "" if result == "s32" else f", {scales[0]}, {scales[1]}"
    if a_kind.bytes == 2:
        tail += "" if a_in_registers else f", {int(a_transposed)}"
        tail += f", {int(b_transposed)}"
    count = result_registers(n, result)
    text = kernel(
        multiplication(types, n, a_kind.depth, tail, a=A_REGISTERS if a_in_registers else "%q8", results=count),
        count,
        a_in_registers=a_in_registers,
    )
    out = to_fragments(c, result)
    held = a_fragments(a_kind.encode(a_taken)) if a_in_registers else NO_REGISTERS
    with Module(text, sm=90) as module:
        module.launch(
            "product",
            1,
            THREADS,
            memory,
            held,
            out,
            a_place.descriptor(0 if a_transposed else LINE_BYTES * step),
            b_place.descriptor(0 if b_transposed else LINE_BYTES * step),
            int(adds),
        )
    expected = scales[0] * scales[1] * (a_taken @ b_taken.T) + (c if adds else 0)
    np.testing.assert_array_equal(from_fragments(out, n, result), expected)


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_every_width(n: int) -> None:
    check(".f32.f16.f16", n)


@pytest.mark.parametrize("mode", WIDTHS)
@pytest.mark.parametrize(
    "types",
    [
        ".f16.f16.f16",
        ".f32.bf16.bf16",
        ".f32.tf32.tf32",
        ".f32.e4m3.e4m3",
        ".f32.e5m2.e4m3",
        ".f16.e4m3.e5m2",
        ".s32.s8.s8",
        ".s32.u8.s8",
        ".s32.u8.u8",
    ],
)
def test_types_and_swizzles(types: str, mode: int) -> None:
    check(types, 32, a_mode=mode, b_mode=mode)


@pytest.mark.parametrize("types", [".f32.f16.f16", ".f32.tf32.tf32", ".f32.e4m3.e5m2", ".s32.s8.u8"])
def test_a_from_registers(types: str) -> None:
    check(types, 64, a_in_registers=True, b_mode=2)


@pytest.mark.parametrize("mode", WIDTHS)
@pytest.mark.parametrize("types", [".f32.f16.f16", ".f32.bf16.bf16"])
def test_transposed(types: str, mode: int) -> None:
    check(types, 128, a_mode=mode, b_mode=mode, b_transposed=True)
    check(types, 64, a_mode=mode, b_mode=mode, a_transposed=True)
    check(types, 256, a_mode=mode, b_mode=mode, a_transposed=True, b_transposed=True)
    check(types, 64, a_in_registers=True, b_mode=mode, b_transposed=True)


@pytest.mark.parametrize(("mode", "step"), [(1, 1), (1, 2), (1, 3), (2, 1)])
def test_a_part_of_a_swizzled_row(mode: int, step: int) -> None:
    """Kernels add to the start address, in the middle of the pattern."""
    check(".f32.f16.f16", 24, a_mode=mode, b_mode=mode, step=step)


def test_scales() -> None:
    check(".f32.f16.f16", 16, adds=False)
    check(".f32.bf16.bf16", 16, scales=(-1, 1))
    check(".f16.f16.f16", 16, scales=(1, -1), adds=False)
    check(".f32.tf32.tf32", 16, scales=(-1, -1))
    check(".s32.s8.s8", 16, adds=False)


def every_value(kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    """All codes of a format, and what they are, by PTX ISA's tables of its fields."""
    codes = np.arange(256 if kind.bytes == 1 else 65536).astype(np.uint8 if kind.bytes == 1 else np.uint16)
    if kind.name == "f16":
        return codes, codes.view(np.float16).astype(np.float64)
    fraction_bits, bias = (3, 7) if kind.name == "e4m3" else (2, 15)
    exponent, fraction = (codes & 127) >> fraction_bits, codes & (1 << fraction_bits) - 1
    part = fraction / (1 << fraction_bits)
    values = np.where(exponent, (1 + part) * 2.0 ** (exponent - float(bias)), part * 2.0 ** (1 - bias))
    if kind.name == "e4m3":
        values = np.where(codes & 127 == 127, np.nan, values)
    else:
        values = np.where(exponent == 31, np.where(fraction, np.nan, np.inf), values)
    return codes, np.where(codes & 128, -values, values)


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "f16"])
def test_every_value_of_a_format(name: str) -> None:
    """A times the identity; where K has what is no number, the whole row is none."""
    kind = KINDS[name]
    n, depth = 32, kind.depth
    codes, values = every_value(kind)
    tail = TAIL if kind.bytes == 2 else ", 1, 1"
    text = kernel(multiplication(f".f32.{name}.{name}", n, depth, tail, results=n // 2), n // 2)
    memory, identity = np.zeros(SHARED_BYTES, np.uint8), np.eye(n, depth)
    a_place, b_place = packed(3, 64, 0), packed(3, n, 8192)
    b_place.write(memory, kind.encode(identity))
    with Module(text, sm=90) as module:
        for start in range(0, len(codes), 64 * depth):
            part = np.arange(start, start + 64 * depth).reshape(64, depth) % len(codes)
            a_place.write(memory, codes[part])
            out = np.zeros((n // 2, THREADS), np.uint32)
            places = a_place.descriptor(), b_place.descriptor()
            module.launch("product", 1, THREADS, memory, NO_REGISTERS, out, *places, 0)
            with np.errstate(invalid="ignore"):
                expected = values[part] @ identity.T
            np.testing.assert_array_equal(from_fragments(out, n, "f32"), expected)


TAIL = ", 1, 1, 0, 0"


def launch(
    text: str,
    memory: np.ndarray,
    out: np.ndarray,
    a: np.uint64 | int = 0,
    b: np.uint64 | int = 0,
    adds: int = 1,
    threads: int = THREADS,
) -> None:
    with Module(text, sm=90) as module:
        module.launch("product", 1, threads, memory, NO_REGISTERS, out, np.uint64(a), np.uint64(b), adds)


def test_a_pattern_that_starts_between_its_boundaries() -> None:
    rng = np.random.default_rng(1)
    memory, a, b = memory_of_noise(rng), rng.integers(-4, 5, (64, 16)), rng.integers(-4, 5, (8, 16))
    # The fourth and the sixth row of 128 bytes behind a boundary of 1024.
    a_place = Place(start=3 * 128, stride=1024, mode=1, base=3)
    b_place = Place(start=16384 + 5 * 128, stride=1024, mode=1, base=5)
    a_place.write(memory, a.astype(np.float16))
    b_place.write(memory, b.astype(np.float16))
    out = to_fragments(np.zeros((64, 8)), "f32")
    text = kernel(multiplication(".f32.f16.f16", 8, 16, ", 1, 1, 0, 0", results=4), 4)
    launch(text, memory, out, a_place.descriptor(), b_place.descriptor())
    np.testing.assert_array_equal(from_fragments(out, 8, "f32"), a @ b.T)


def test_bits() -> None:
    rng = np.random.default_rng(2)
    memory, a, b = memory_of_noise(rng), *(rng.integers(0, 256, (rows, 32)).astype(np.uint8) for rows in (64, 16))
    a_place, b_place = packed(3, 64, 0), packed(0, 16, 8192)
    a_place.write(memory, a)
    b_place.write(memory, b)
    out = to_fragments(np.full((64, 16), 7), "s32")
    launch(
        kernel(multiplication(".s32.b1.b1.and.popc", 16, 256, "", results=8), 8),
        memory, out, a_place.descriptor(), b_place.descriptor(),
    )  # fmt: skip
    expected = np.unpackbits(a, axis=1).astype(int) @ np.unpackbits(b, axis=1).astype(int).T + 7
    np.testing.assert_array_equal(from_fragments(out, 16, "s32"), expected)


@pytest.mark.parametrize("saturates", [False, True])
def test_integers_that_overflow(saturates: bool) -> None:
    memory = memory_of_noise(np.random.default_rng(3))
    a_place, b_place = packed(3, 64, 0), packed(3, 8, 8192)
    a_place.write(memory, np.full((64, 32), 127, np.int8))
    b_place.write(memory, np.full((8, 32), 127, np.int8))
    start = 2**31 - 5
    out = to_fragments(np.full((64, 8), start), "s32")
    types = ".satfinite.s32.s8.s8" if saturates else ".s32.s8.s8"
    launch(
        kernel(multiplication(types, 8, 32, "", results=4), 4),
        memory, out, a_place.descriptor(), b_place.descriptor(),
    )  # fmt: skip
    total = start + 32 * 127 * 127
    np.testing.assert_array_equal(from_fragments(out, 8, "s32"), 2**31 - 1 if saturates else total - 2**32)


def two_steps(memory: np.ndarray) -> tuple[np.ndarray, Place, Place]:
    """Matrices of which two instructions take K / 2 each; their product."""
    rng = np.random.default_rng(4)
    a, b = rng.integers(-4, 5, (64, 32)), rng.integers(-4, 5, (8, 32))
    a_place, b_place = packed(2, 64, 0), packed(2, 8, 8192)
    a_place.write(memory, a.astype(np.float16))
    b_place.write(memory, b.astype(np.float16))
    return (a @ b.T).astype(np.float64), a_place, b_place


NEXT_STEP = "add.u64 %q10, %q8, 2; add.u64 %q11, %q9, 2; mov.pred %p1, 1;"


def test_products_of_a_group_add_up() -> None:
    memory = memory_of_noise(np.random.default_rng(5))
    expected, a_place, b_place = two_steps(memory)
    out = np.full((4, THREADS), 0x7FC00000, np.uint32)
    launch(kernel(BOTH, 4), memory, out, a_place.descriptor(), b_place.descriptor(), 0)
    np.testing.assert_array_equal(from_fragments(out, 8, "f32"), expected)


LATE = """
    // Warps 1 to 3 come late; the first one overwrites shared memory as soon as it may.
    mov.u32 %t9, 0;
    setp.lt.u32 %p2, %t0, 32;
    @%p2 bra come;
late:
    add.u32 %t9, %t9, 1;
    setp.lt.u32 %p3, %t9, 20000;
    @%p3 bra late;
come:
"""
OVERWRITE = """
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    mov.u32 %t10, 0;
    @!%p2 bra done;
wipe:
    add.u32 %t3, %t2, %t10;
    st.shared.u32 [%t3], 0;
    add.u32 %t10, %t10, 4;
    setp.lt.u32 %p3, %t10, 16384;
    @%p3 bra wipe;
done:
"""


def test_who_has_waited_knows_that_all_four_warps_have_read() -> None:
    memory = memory_of_noise(np.random.default_rng(6))
    expected, a_place, b_place = two_steps(memory)
    out = np.zeros((4, THREADS), np.uint32)
    text = kernel(f"{BOTH} {OVERWRITE}", 4, before=LATE)
    launch(text, memory, out, a_place.descriptor(), b_place.descriptor())
    np.testing.assert_array_equal(from_fragments(out, 8, "f32"), expected)


def test_warpgroups_of_a_block_go_their_own_ways() -> None:
    """The second one has its A 8192 bytes further, and takes it twice."""
    rng = np.random.default_rng(7)
    memory, a, b = memory_of_noise(rng), rng.integers(-4, 5, (128, 16)), rng.integers(-4, 5, (8, 16))
    places = packed(3, 64, 0), packed(3, 64, 8192)
    for place, rows in zip(places, (a[:64], a[64:]), strict=True):
        place.write(memory, rows.astype(np.float16))
    b_place = packed(3, 8, 16384)
    b_place.write(memory, b.astype(np.float16))
    body = f"""
    setp.lt.u32 %p2, %t0, {THREADS};
    @%p2 bra once;
    add.u64 %q8, %q8, {8192 >> 4};
    {PRODUCT}
once:
    {PRODUCT}
"""
    out = np.zeros((4, 2 * THREADS), np.uint32)
    launch(kernel(body, 4, threads=256), memory, out, places[0].descriptor(), b_place.descriptor(), threads=256)
    np.testing.assert_array_equal(from_fragments(out[:, :THREADS].copy(), 8, "f32"), a[:64] @ b.T)
    np.testing.assert_array_equal(from_fragments(out[:, THREADS:].copy(), 8, "f32"), 2 * (a[64:] @ b.T))


PRODUCT = multiplication(".f32.f16.f16", 8, 16, TAIL, results=4)
SECOND = multiplication(".f32.f16.f16", 8, 16, TAIL, a="%q10", b="%q11", results=4)
BOTH = f"{PRODUCT} {NEXT_STEP} {SECOND}"

FUNCTION = f"""
.func multiply(.param .b64 a_at, .param .b64 b_at, .param .b64 d_at)
{{
    .reg .b32 %d<4>;
    .reg .b64 %q<16>;
    .reg .pred %p<2>;
    ld.param.b64 %q8, [a_at];
    ld.param.b64 %q9, [b_at];
    ld.param.b64 %q6, [d_at];
    ld.global.u32 %d0, [%q6];
    ld.global.u32 %d1, [%q6+512];
    ld.global.u32 %d2, [%q6+1024];
    ld.global.u32 %d3, [%q6+1536];
    mov.pred %p1, 1;
    {PRODUCT}
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    st.global.u32 [%q6], %d0;
    st.global.u32 [%q6+512], %d1;
    st.global.u32 [%q6+1024], %d2;
    st.global.u32 [%q6+1536], %d3;
    ret;
}}
"""


def calls(*descriptors: tuple[str, str]) -> str:
    """A kernel that has a function multiply, once for each pair of descriptors, and takes D from it at last."""
    lines = []
    for a, b in descriptors:
        lines += [
            "{ .param .b64 a_at; .param .b64 b_at; .param .b64 d_at;",
            f"st.param.b64 [a_at], {a}; st.param.b64 [b_at], {b}; st.param.b64 [d_at], %q6;",
            "call multiply, (a_at, b_at, d_at); }",
        ]
    loads = [f"ld.global.u32 %d{k}, [%q6+{512 * k}];" for k in range(4)]
    text = kernel("\n    ".join([NEXT_STEP, *lines, *loads]), 4)
    return text.replace(".visible .entry", f"{FUNCTION}.visible .entry", 1)


def test_a_function_that_multiplies() -> None:
    memory = memory_of_noise(np.random.default_rng(9))
    expected, a_place, b_place = two_steps(memory)
    out = np.zeros((4, THREADS), np.uint32)
    text = calls(("%q8", "%q9"), ("%q10", "%q11"))
    launch(text, memory, out, a_place.descriptor(), b_place.descriptor())
    np.testing.assert_array_equal(from_fragments(out, 8, "f32"), expected)


@pytest.mark.parametrize("guard", ["@%p2", "@!%p3"])
def test_a_guard_that_holds_for_all(guard: str) -> None:
    memory = memory_of_noise(np.random.default_rng(10))
    expected, a_place, b_place = two_steps(memory)
    out = np.zeros((4, THREADS), np.uint32)
    text = kernel(f"mov.pred %p2, 1; mov.pred %p3, 0; {guard} {PRODUCT} {NEXT_STEP} {guard} {SECOND}", 4)
    launch(text, memory, out, a_place.descriptor(), b_place.descriptor())
    np.testing.assert_array_equal(from_fragments(out, 8, "f32"), expected)


def test_blocks_of_a_cluster_multiply_beside_each_other() -> None:
    """The first block waits for the second one before it multiplies, which does so before it goes there."""
    memory = memory_of_noise(np.random.default_rng(11))
    expected, a_place, b_place = two_steps(memory)
    meeting = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    body = f"""
    mov.u32 %t9, %cluster_ctarank;
    mul.wide.u32 %q12, %t9, {16 * THREADS};
    add.u64 %q6, %q6, %q12;
    setp.eq.u32 %p2, %t9, 0;
    @!%p2 bra second;
    {meeting}
second:
    {BOTH}
    @%p2 bra done;
    {meeting}
done:
"""
    out = np.zeros((2, 4, THREADS), np.uint32)
    with Module(kernel(body, 4), sm=90) as module:
        places = a_place.descriptor(), b_place.descriptor()
        module.launch("product", 2, THREADS, memory, NO_REGISTERS, out, *places, 1, cluster=2)
    for block in out:
        np.testing.assert_array_equal(from_fragments(block, 8, "f32"), expected)


@pytest.mark.parametrize(
    ("body", "threads", "why"),
    [
        (PRODUCT, 96, "wgmma needs all threads of four warps"),
        (PRODUCT, 112, "wgmma needs all threads of four warps"),
        (f"setp.eq.u32 %p2, %t0, 5; @%p2 bra out; {PRODUCT} out:", 128, "wgmma needs all threads of four warps"),
        (f"setp.lt.u32 %p2, %t0, 32; @%p2 bra out; {PRODUCT} out:", 128, "barrier deadlock"),
        (
            f"setp.lt.u32 %p2, %t0, 32; @%p2 bra one; {PRODUCT} bra out; one: {PRODUCT} out:",
            128,
            "warps of a warpgroup stand at different wgmma",
        ),
    ],
)
def test_incomplete_warpgroups(body: str, threads: int, why: str) -> None:
    memory, out = np.zeros(SHARED_BYTES, np.uint8), np.zeros((4, THREADS), np.uint32)
    with pytest.raises(EngineError, match=why) as failure:
        launch(kernel(body, 4), memory, out, 0, 0, threads=threads)
    assert failure.value.status == Status.LAUNCH_FAILED


def test_a_matrix_outside_of_shared_memory() -> None:
    memory, out = np.zeros(SHARED_BYTES, np.uint8), np.zeros((4, THREADS), np.uint32)
    beyond = Place(start=SHARED_BYTES - 1024, stride=1024, mode=1).descriptor()
    with pytest.raises(EngineError, match=r"shared memory access at 0xc000 of 0xc000 bytes by a matrix descriptor"):
        launch(kernel(PRODUCT, 4), memory, out, beyond, packed(1, 8, 0).descriptor())


@pytest.mark.parametrize(
    "instruction",
    [
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {d}, %q8, %q9, %t0, 0, %p1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {d}, %q8, %q9, %p1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.bf16 {d}, %q8, %q9, %p1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.f16.f16 {d}, %q8, %q9, %p1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {d}, %q8, %q9, %p1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {d}, %q8, %q9, %p1, 1, 1;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {d}, %q8, %q9, %p1, 2, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {d}, %q8, %q9, %p1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.xor.popc {d}, %q8, %q9, %p1;",
        "wgmma.wait_group.sync.aligned %t0;",
        "wgmma.nothing.sync.aligned;",
    ],
)
def test_what_there_is_not_is_refused_by_its_name(instruction: str) -> None:
    text = kernel(instruction.replace("{d}", registers(4)), 4)
    with Module(text, sm=90) as module:
        info = module.info("product")
        assert info.status == Status.UNSUPPORTED
        assert instruction.split(maxsplit=1)[0].rstrip(";") in info.unsupported.decode()


def test_code_for_compute_90a_runs_there_alone() -> None:
    text = kernel(PRODUCT, 4)
    with pytest.raises(EngineError, match=r"sm_90a is not for compute capability 10\.0"):
        Module(text, sm=100)


STRICT = """
import sys
import numpy as np
from tests.softgpu.engine import EngineError, configure
from tests.softgpu.test_engine_warpgroup import *

configure(strict=True)
memory = memory_of_noise(np.random.default_rng(8))
expected, a_place, b_place = two_steps(memory)
out = np.zeros((4, THREADS), np.uint32)
text = STRICT_KERNELS[sys.argv[1]]
try:
    launch(text, memory, out, a_place.descriptor(), b_place.descriptor())
except EngineError as error:
    print(error.text)
else:
    got = from_fragments(out, 8, "f32")
    print("right" if np.array_equal(got, expected) else "NaN" if np.isnan(got).all() else "wrong")
"""

IN_TWO_GROUPS = f"{PRODUCT} wgmma.commit_group.sync.aligned; {NEXT_STEP} {SECOND}"
WIPE = "bar.sync 0; setp.eq.u32 %p3, %t0, 0; @%p3 st.shared.u32 [tile + 8224], 0;"  # what the second product reads
UNTIL_NOW = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned"

STRICT_KERNELS = {
    "right": kernel(BOTH, 4),
    "function": calls(("%q8", "%q9"), ("%q10", "%q11")),
    "function that does not wait": calls(("%q8", "%q9")).replace("    wgmma.wait_group.sync.aligned 0;\n", "", 1),
    "two groups": kernel(f"{IN_TWO_GROUPS} {UNTIL_NOW} 0; {WIPE}", 4),
    "results too early": kernel(BOTH, 4).replace("    wgmma.wait_group.sync.aligned 0;\n", ""),
    "one group too early": kernel(BOTH, 4).replace("wait_group.sync.aligned 0;", "wait_group.sync.aligned 1;"),
    "shared memory too early": kernel(f"{BOTH} {WIPE}", 4),
    "shared memory one group too early": kernel(f"{IN_TWO_GROUPS} {UNTIL_NOW} 1; {WIPE}", 4),
    "without a barrier": kernel(BOTH, 4).replace("    bar.sync 0;\n", ""),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("right", "right\n"),
        ("function", "right\n"),
        ("function that does not wait", "NaN\n"),
        ("two groups", "right\n"),
        ("results too early", "NaN\n"),
        ("one group too early", "NaN\n"),
        (
            "shared memory too early",
            "race with a read by wgmma of warps 0 to 3 that nothing has waited for: write of 4",
        ),
        ("shared memory one group too early", "race with a read by wgmma of warps 0 to 3 that nothing has waited for"),
        ("without a barrier", "race with a write by warp 1 of the block: read of 16 bytes at shared"),
    ],
)
def test_strict_mode_finds_what_does_not_wait(name: str, told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STRICT, name], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert told in done.stdout
