"""Narrow floats, SIMD video instructions, vector and 128-bit accesses against references in plain Python."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest

from tests.softgpu.engine import EngineError, Module, Status
from tests.softgpu.test_engine_instructions import FLOAT_EDGES, module_of, run

# ---- floats of 8, 6 and 4 bits: PTX ISA 5.2.3 and the OCP specifications that it names ----

# exponent bits, fraction bits, bias, number of finite magnitudes, code of infinity, code of NaN
FORMATS = {
    "e4m3x2": (4, 3, 7, 0x7F, None, 0x7F),
    "e5m2x2": (5, 2, 15, 0x7C, 0x7C, 0x7F),
    "e2m3x2": (2, 3, 1, 0x20, None, None),
    "e3m2x2": (3, 2, 3, 0x20, None, None),
    "e2m1x2": (2, 1, 1, 0x08, None, None),
}


def magnitudes(name: str) -> list[Fraction]:
    """The value of each finite code, in order."""
    _, fraction_bits, bias, count, _, _ = FORMATS[name]
    values = []
    for code in range(count):
        exponent, fraction = code >> fraction_bits, code & (1 << fraction_bits) - 1
        scale = Fraction(2) ** (max(exponent, 1) - bias - fraction_bits)
        values.append((fraction + (1 << fraction_bits if exponent else 0)) * scale)
    return values


def encoded(name: str, value: float, *, relu: bool = False) -> int:
    """The code of the nearest value, of two the even one; what is too large becomes the largest (.satfinite)."""
    exponent_bits, fraction_bits, _, count, _, nan = FORMATS[name]
    if math.isnan(value):
        return count - 1 if nan is None else nan
    negative = math.copysign(1, value) < 0
    if relu and negative:
        return 0
    sign = 1 << exponent_bits + fraction_bits if negative else 0
    table = magnitudes(name)
    if math.isinf(value) or abs(Fraction(value)) >= table[-1]:
        return sign | count - 1
    magnitude = abs(Fraction(value))
    return sign | min(range(count), key=lambda code: (abs(table[code] - magnitude), code % 2))


def pack(name: str, high: int, low: int) -> int:
    return high << 4 | low if name == "e2m1x2" else high << 8 | low


def narrow_values(name: str) -> list[float]:
    """Every representable value, every middle between two, their neighbours, and what is beyond."""
    table = [float(value) for value in magnitudes(name)]
    middles = [(a + b) / 2 for a, b in itertools.pairwise(table)]
    near = [float(np.nextafter(np.float32(value), np.float32(side))) for value in middles for side in (0, 1e9)]
    beyond = [table[-1] * 1.03, table[-1] * 2, 1e30, math.inf, math.nan, 1e-30]
    values = table + middles + near + beyond
    return values + [-value for value in values]


@pytest.mark.parametrize("flags", [".satfinite", ".satfinite.relu"])
@pytest.mark.parametrize("name", FORMATS)
def test_narrow_floats_are_rounded_to_nearest(name: str, flags: str) -> None:
    values = narrow_values(name)
    high = np.array(values, np.float32)
    low = np.roll(high, 7)
    got = run(module_of(f"cvt.rn{flags}.{name}.f32 %d, %s0, %s1", "b16", ["f32", "f32"]), "b16", [high, low])
    relu = "relu" in flags
    expected = [
        pack(name, encoded(name, a, relu=relu), encoded(name, b, relu=relu))
        for a, b in zip(high.tolist(), low.tolist(), strict=True)
    ]
    assert [hex(value) for value in got] == [hex(value) for value in expected]


@pytest.mark.parametrize("name", FORMATS)
def test_narrow_floats_from_and_to_halves(name: str) -> None:
    count = FORMATS[name][3]
    sign = 1 << FORMATS[name][0] + FORMATS[name][1]
    codes = list(range(count)) + [sign | code for code in range(count)]
    pairs = np.array([pack(name, code, codes[-1 - k]) for k, code in enumerate(codes)], np.uint16)
    wide = run(module_of(f"cvt.rn.f16x2.{name} %d, %s0", "b32", ["b16"]), "b32", [pairs])
    halves = wide.view(np.float16).reshape(-1, 2)
    table = [float(value) for value in magnitudes(name)]
    expected = [(-1 if code & sign else 1) * table[code & sign - 1] for code in codes]
    assert halves[:, 1].tolist() == expected
    assert halves[:, 0].tolist() == expected[::-1]
    back = run(module_of(f"cvt.rn.satfinite.{name}.f16x2 %d, %s0", "b16", ["b32"]), "b16", [wide])
    np.testing.assert_array_equal(back, pairs)


@pytest.mark.parametrize("mode", ["rz", "rp"])
def test_powers_of_two(mode: str) -> None:
    values = [1.0, 1.5, 2.0, -3.0, 2.0**-127, 2.0**-126 * 1.5, 1e-45, 0.0, 3e38, math.inf, math.nan]
    column = np.array(values, np.float32)
    got = run(module_of(f"cvt.{mode}.satfinite.ue8m0x2.f32 %d, %s0, %s0", "b16", ["f32"]), "b16", [column])

    def power(value: float) -> int:
        if math.isnan(value):
            return 0xFF
        magnitude = abs(value)
        if math.isinf(magnitude):
            return 0xFE
        if magnitude == 0:
            return 0
        fraction, exponent = math.frexp(magnitude)
        exponent += (mode == "rp" and fraction > 0.5) - 1
        return min(max(exponent, -127), 127) + 127

    assert [value & 0xFF for value in got.tolist()] == [power(value) for value in column.tolist()]


# ---- SIMD video instructions ----

VIDEO = {
    "vadd": lambda a, b: a + b,
    "vsub": lambda a, b: a - b,
    "vabsdiff": lambda a, b: abs(a - b),
    "vmin": min,
    "vmax": max,
}


def parts(value: int, lanes: int, signed: bool) -> list[int]:
    bits = 32 // lanes
    raw = [value >> bits * k & (1 << bits) - 1 for k in range(lanes)]
    return [part - (1 << bits) if signed and part >> bits - 1 else part for part in raw]


@pytest.mark.parametrize("variant", ["", ".sat", ".add"])
@pytest.mark.parametrize("kind", ["u32", "s32"])
@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("op", ["vadd", "vsub", "vabsdiff", "vmin", "vmax"])
def test_video(op: str, lanes: int, kind: str, variant: str) -> None:
    rng = random.Random(f"{op}{lanes}{kind}{variant}")
    rows = [
        [rng.choice([0, 0xFFFFFFFF, 0x80008000, 0x7F7F7F7F, rng.getrandbits(32)]) for _ in "abc"] for _ in range(96)
    ]
    columns = [np.array(column, np.uint32) for column in zip(*rows, strict=True)]
    instruction = f"{op}{lanes}.{kind}.{kind}.{kind}{variant} %d, %s0, %s1, %s2"
    got = run(module_of(instruction, "u32", ["u32"] * 3), "u32", columns)
    bits, signed = 32 // lanes, kind == "s32"
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    expected = []
    for a, b, c in rows:
        results = [VIDEO[op](x, y) for x, y in zip(parts(a, lanes, signed), parts(b, lanes, signed), strict=True)]
        if variant == ".add":
            expected.append((c + sum(results)) % 2**32)
            continue
        if variant == ".sat":
            results = [max(low, min(high, result)) for result in results]
        expected.append(sum((result & (1 << bits) - 1) << bits * k for k, result in enumerate(results)))
    assert got.tolist() == expected


# ---- pairs of floats ----


@pytest.mark.parametrize("op", ["add.rn", "sub.rn", "mul.rn", "fma.rn", "mul.rn.ftz"])
def test_pairs_of_floats(op: str) -> None:
    """Each half is what the scalar instruction gives, which test_engine_instructions.py holds against exact values."""
    rng = random.Random(op)
    bits = [[rng.choice([*FLOAT_EDGES["f32"], rng.getrandbits(32)]) for _ in range(192)] for _ in "abc"]
    singles = [np.array(column, np.uint32).view(np.float32) for column in bits]
    pairs = [single.view(np.uint64) for single in singles]
    count = 3 if op.startswith("fma") else 2
    sources = ", ".join(f"%s{k}" for k in range(count))
    both = run(module_of(f"{op}.f32x2 %d, {sources}", "b64", ["b64"] * count), "b64", pairs[:count])
    each = run(module_of(f"{op}.f32 %d, {sources}", "f32", ["f32"] * count), "f32", singles[:count])
    got = both.view(np.float32)
    same = (got.view(np.uint32) == each.view(np.uint32)) | (np.isnan(got) & np.isnan(each))
    assert same.all()


# ---- atomics on vectors, accesses of 128 bits ----

HEADER = ".version 8.8\n.target sm_100\n.address_size 64\n"


def kernel(body: str, *, registers: str = "") -> str:
    declared = (
        ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .b16 %h<9>; .reg .b128 %q<4>; .reg .pred %p<4>;"
    )
    load = "ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x;"
    return f"{HEADER}.visible .entry k(.param .u64 p) {{ {declared} {registers} {load} {body} ret; }}"


def launched(body: str, memory: np.ndarray, threads: int = 1, **options: object) -> np.ndarray:
    with Module(kernel(body)) as module:
        module.launch("k", 1, threads, memory, **options)
    return memory


@pytest.mark.parametrize("space", ["global", "shared"])
def test_vector_atomics_add_each_element(space: str) -> None:
    body = "mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000; cvt.rn.f32.u32 %f3, %r1; mov.f32 %f4, 0f00000000;"
    if space == "shared":
        body += (
            ".shared .align 16 .f32 s[4]; mov.u32 %r2, s; st.shared.v4.f32 [s], {%f4, %f4, %f4, %f4}; bar.sync 0;"
            "red.relaxed.cta.shared.add.f32 [s], %f1; bar.sync 0; ld.shared.v4.f32 {%f5, %f6, %f7, %f8}, [s];"
            "st.global.v4.f32 [%rd1], {%f5, %f6, %f7, %f8};"
        )
        assert launched(body, np.zeros(4, np.float32), 64).tolist() == [64, 0, 0, 0]
        return
    body += "atom.relaxed.gpu.global.v4.f32.add {%f5, %f6, %f7, _}, [%rd1], {%f1, %f2, %f3, %f1};"
    body += "red.relaxed.gpu.global.v2.f32.add [%rd1+16], {%f5, %f1};"
    memory = launched(body, np.zeros(6, np.float32), 64)
    assert memory.tolist() == [64, 128, 2016, 64, 2016, 64]


def test_vector_atomics_of_halves() -> None:
    memory = np.array([1, 5, -3, 2, 0, 0, 0, 0], np.float16)
    body = (
        "mov.b32 %r2, 0x40003C00; mov.b32 %r3, 0xC000C400;"  # {1, 2}, {-4, -2}
        "red.relaxed.gpu.global.v2.f16x2.min.noftz [%rd1], {%r2, %r3};"
        "red.relaxed.gpu.global.v2.f16x2.add.noftz [%rd1+8], {%r2, %r3};"
    )
    assert launched(body, memory, 2).tolist() == [1, 2, -4, -2, 2, 4, -8, -4]


def test_vector_atomics_of_bfloats() -> None:
    memory = np.array([0x3F80, 0xC000], np.uint16)  # 1, -2
    body = "mov.b32 %r2, 0x40404040; red.relaxed.gpu.global.v2.bf16.max.noftz [%rd1], {%h1, %h2};"
    body = "mov.b16 %h1, 0x4040; mov.b16 %h2, 0xC040;" + body  # 3, -3
    assert launched(body, memory).tolist() == [0x4040, 0xC000]


def test_128_bits_move_as_one() -> None:
    memory = np.arange(8, dtype=np.uint64) + 1
    body = (
        "ld.global.b128 %q1, [%rd1]; mov.b128 {%rd2, %rd3}, %q1; add.u64 %rd2, %rd2, 100;"
        "mov.b128 %q2, {%rd3, %rd2}; mov.b128 %q3, %q2; st.global.b128 [%rd1+16], %q3;"
        ".shared .align 16 .b8 s[16]; st.shared.b128 [s], %q1; ld.shared.b128 %q2, [s]; st.global.b128 [%rd1+32], %q2;"
    )
    assert launched(body, memory).tolist() == [1, 2, 2, 101, 1, 2, 7, 8]


def aligned(values: list[int]) -> np.ndarray:
    """On a 16-byte boundary, as 128-bit atomics want it."""
    store = np.zeros(len(values) + 2, np.uint64)
    start = (-store.ctypes.data // 8) % 2
    store[start : start + len(values)] = values
    return store[start : start + len(values)]


def test_128_bit_exchange_and_compare() -> None:
    memory = aligned([1, 2, 0, 0, 0, 0, 7, 7])
    body = (
        "mov.b64 %rd2, 5; mov.b64 %rd3, 6; mov.b128 %q1, {%rd2, %rd3};"
        "atom.exch.b128 %q2, [%rd1], %q1; st.global.b128 [%rd1+16], %q2;"
        "mov.b128 %q3, {%rd3, %rd3}; atom.cas.b128 %q2, [%rd1], %q3, %q3;"  # differs: nothing happens
        "atom.cas.b128 %q2, [%rd1], %q1, %q3; st.global.b128 [%rd1+32], %q2;"
    )
    assert launched(body, memory).tolist() == [6, 6, 1, 2, 5, 6, 7, 7]


def test_128_bit_counter_loses_nothing() -> None:
    memory = aligned([0, 0])
    body = (
        "AGAIN: ld.relaxed.gpu.global.b128 %q1, [%rd1]; mov.b128 {%rd2, %rd3}, %q1;"
        "add.u64 %rd4, %rd2, 1; add.u64 %rd5, %rd3, 2;"
        "mov.b128 %q2, {%rd4, %rd5}; atom.cas.b128 %q3, [%rd1], %q1, %q2; mov.b128 {%rd6, %rd7}, %q3;"
        "setp.ne.u64 %p1, %rd6, %rd2; @%p1 bra AGAIN;"
    )
    with Module(kernel(body)) as module:
        module.launch("k", 40, 64, memory)
    assert memory.tolist() == [2560, 5120]


def test_misaligned_128_bit_atomic_fails() -> None:
    with pytest.raises(EngineError) as caught:
        launched("atom.exch.b128 %q2, [%rd1+8], %q1;", aligned([0] * 4))
    assert caught.value.status == Status.MISALIGNED


# ---- reductions of a warp ----


@pytest.mark.parametrize("form", ["min", "max", "min.abs", "max.abs", "min.NaN", "max.abs.NaN"])
def test_float_reduction_of_a_warp(form: str) -> None:
    rng = random.Random(form)
    for with_nan in (False, True):
        bits = [rng.choice([*FLOAT_EDGES["f32"], rng.getrandbits(32)]) for _ in range(32)]
        values = np.array(bits, np.uint32).view(np.float32)
        values = np.where(np.isnan(values), np.float32(1.5), values)
        if with_nan:
            values[7] = np.nan
        memory = values.copy()
        body = (
            "mad.wide.u32 %rd2, %r1, 4, %rd1; ld.global.f32 %f1, [%rd2];"
            f"redux.sync.{form}.f32 %f2, %f1, -1; st.global.f32 [%rd2], %f2;"
        )
        launched(body, memory, 32)
        operands = np.abs(values) if "abs" in form else values
        if with_nan and "NaN" in form:
            assert np.isnan(memory).all()
        else:
            expected = (np.nanmin if form.startswith("min") else np.nanmax)(operands)
            assert (memory == expected).all()


# ---- aliases ----


def test_an_alias_calls_its_function() -> None:
    text = HEADER + (
        ".visible .func (.param .b32 r) twin(.param .b32 a);"
        ".visible .func (.param .b32 r) triple(.param .b32 a) { .reg .b32 %r<3>; ld.param.b32 %r1, [a];"
        " mul.lo.u32 %r2, %r1, 3; st.param.b32 [r], %r2; ret; }"
        ".alias twin, triple;"
        ".visible .entry k(.param .u64 p) { .reg .b32 %r<3>; .reg .b64 %rd<2>; ld.param.u64 %rd1, [p];"
        " { .param .b32 a; .param .b32 b; st.param.b32 [a], 14; call.uni (b), twin, (a); ld.param.b32 %r1, [b]; }"
        " st.global.u32 [%rd1], %r1; ret; }"
    )
    out = np.zeros(1, np.uint32)
    with Module(text) as module:
        module.launch("k", 1, 1, out)
    assert out[0] == 42


@pytest.mark.parametrize("tail", [".alias f, f;", ".alias f, g; .alias g, f;", ".alias f, nothing;"])
def test_an_alias_of_nothing_is_refused(tail: str) -> None:
    with pytest.raises(EngineError, match="alias") as caught:
        Module(HEADER + ".visible .func f(); .visible .func g(); " + tail)
    assert caught.value.status == Status.INVALID_PTX


# ---- asynchronous copies with options ----


def test_a_copy_may_ignore_its_source() -> None:
    memory = np.arange(1, 9, dtype=np.uint32)
    body = (
        ".shared .align 16 .b8 s[8]; createpolicy.fractional.L2::evict_first.b64 %rd2, 1.0; setp.eq.u32 %p1, %r1, 1;"
        "mad.wide.u32 %rd3, %r1, 4, %rd1; mov.u32 %r2, s; mad.lo.u32 %r2, %r1, 4, %r2;"
        "cp.async.ca.shared.global [%r2], [%rd3], 4, %p1; cp.async.wait_all; ld.shared.u32 %r3, [%r2];"
        "st.global.u32 [%rd3+16], %r3;"
    )
    assert launched(body, memory, 2).tolist() == [1, 2, 3, 4, 1, 0, 7, 8]


# ---- what CUDA's headers for half, bfloat16 and integers use ----


def find_nth(mask: int, base: int, n: int) -> int:
    """The pseudo code of PTX ISA, "fns", in words: the n-th set bit at or above base, or for n < 0 at or below."""
    if n == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    order = range(base, 32) if n > 0 else range(base, -1, -1)
    found = [k for k in order if mask >> k & 1]
    return found[abs(n) - 1] if len(found) >= abs(n) else 0xFFFFFFFF


def test_find_nth_set() -> None:
    rng = random.Random(21)
    masks = [0, 0xFFFFFFFF, 1, 0x80000000, *(rng.getrandbits(32) for _ in range(12))]
    rows = list(itertools.product(masks, [0, 1, 15, 31], [0, 1, 2, 5, -1, -2, -7, 32]))
    columns = [np.array([row[k] & 0xFFFFFFFF for row in rows], np.uint32) for k in range(3)]
    got = run(module_of("fns.b32 %d, %s0, %s1, %s2", "u32", ["u32"] * 3), "u32", columns)
    assert got.tolist() == [find_nth(*row) for row in rows]


def test_saturation_of_pairs_of_halves() -> None:
    values = np.array([[0.5, 3.0], [-1.0, np.nan], [0.25, 1.0], [60000, -0.0]], np.float16)
    pairs = values.view(np.uint32).ravel()
    got = run(module_of("add.sat.f16x2 %d, %s0, %s0", "b32", ["b32"]), "b32", [pairs])
    doubled = np.nan_to_num(values.astype(np.float32) * 2, nan=0)
    np.testing.assert_array_equal(got.view(np.float16).reshape(-1, 2), np.clip(doubled, 0, 1).astype(np.float16))


@pytest.mark.parametrize(("dst", "one"), [("bf16", 0x3F80), ("u32", 0xFFFFFFFF)])
def test_set_of_bfloats(dst: str, one: int) -> None:
    a = np.array([0x3F80, 0xBF80, 0x7FC0, 0x0000], np.uint16)
    b = np.array([0x4000, 0x4000, 0x4000, 0x8000], np.uint16)
    width = "b16" if dst == "bf16" else "b32"
    for comparison, expected in (("lt", [1, 1, 0, 0]), ("nan", [0, 0, 1, 0]), ("equ", [0, 0, 1, 1])):
        got = run(module_of(f"set.{comparison}.{dst}.bf16 %d, %s0, %s1", width, ["b16", "b16"]), width, [a, b])
        assert got.tolist() == [one * holds for holds in expected]


def test_a_register_may_be_declared_without_a_blank() -> None:
    memory = np.zeros(1, np.uint32)
    assert launched("{ .reg.b32 t; mov.u32 t, 5; st.global.u32 [%rd1], t; }", memory).tolist() == [5]


def test_the_address_of_an_element_is_counted_in_elements() -> None:
    """As ptxas takes it, of variables of the module and of the function."""
    image = kernel(
        ".shared .align 4 .b32 own[8]; mov.u64 %rd2, own; mov.u64 %rd3, own[3]; sub.u64 %rd4, %rd3, %rd2;"
        "st.global.u64 [%rd1], %rd4; mov.u64 %rd2, table; mov.u64 %rd3, table[5]; sub.u64 %rd4, %rd3, %rd2;"
        "st.global.u64 [%rd1+8], %rd4;"
    ).replace(".visible", ".global .align 8 .b64 table[9];\n.visible", 1)
    memory = np.zeros(2, np.uint64)
    with Module(image) as module:
        module.launch("k", 1, 1, memory)
    assert memory.tolist() == [12, 40]


def test_external_shared_memory_with_a_size_has_it_without_a_launch_s() -> None:
    """ptxas ignores .extern where no other object defines it; Taichi's compiler goes by that."""
    body = (
        "mov.u64 %rd2, s; mul.wide.u32 %rd3, %r1, 4; add.u64 %rd3, %rd2, %rd3; st.shared.u32 [%rd3], %r1;"
        "bar.sync 0; ld.shared.u32 %r2, [s+252]; add.u64 %rd1, %rd1, 0; st.global.u32 [%rd1], %r2;"
    )
    image = kernel(body).replace(".visible", ".extern .shared .align 8 .b8 s[256];\n.visible", 1)
    memory = np.zeros(1, np.uint32)
    with Module(image) as module:
        assert module.info("k").static_shared_bytes == 256
        module.launch("k", 1, 64, memory)
    assert memory.tolist() == [63]


@pytest.mark.parametrize("of_the_module", [True, False])
def test_dynamic_shared_memory_has_the_alignment_that_it_asks_for(of_the_module: bool) -> None:
    """Copies by tensor maps need it."""
    dynamic = ".shared .align 1024 .b8 s[];\n"
    body = "mov.u64 %rd2, s; mov.u64 %rd3, own; add.u64 %rd2, %rd2, %rd3; st.global.u64 [%rd1], %rd2;"
    own = ".shared .align 8 .b64 first; .shared .align 8 .b64 own;"
    image = kernel(own + ("" if of_the_module else dynamic) + body)
    memory = np.zeros(1, np.uint64)
    with Module(image.replace(".visible", f".extern {dynamic}.visible", 1) if of_the_module else image) as module:
        module.launch("k", 1, 1, memory, shared=64)
    assert memory.tolist() == [1024 + 8]


def test_a_kernel_has_the_shared_variables_of_its_module_that_it_names() -> None:
    """All of them together may be more than a block can have."""
    variables = "".join(f".shared .align 4 .b8 {name}[40000];\n" for name in "abcdwxyh")
    callee = ".func callee() { .reg .u32 %r<2>; ld.shared.u32 %r1, [c]; ret; }\n"
    entries = "".join(
        f".visible .entry {name}() {{ .reg .u64 %rd<3>; {body} ret; }}\n"
        for name, body in {
            "none": "",
            "one": "mov.u64 %rd1, b; mov.u64 %rd2, b;",
            "two": ".shared .align 4 .b8 own[100]; mov.u64 %rd1, h; mov.u64 %rd2, a;",
            "calls": "call callee, ();",
        }.items()
    )
    with Module(HEADER + variables + callee + entries) as module:
        taken = {name: module.info(name).static_shared_bytes for name in ("none", "one", "two", "calls")}
    # Of callees, what they name.
    assert taken == {"none": 0, "one": 40000, "two": 80100, "calls": 40000}
