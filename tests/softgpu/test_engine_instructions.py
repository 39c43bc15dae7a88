"""Every instruction form against an independent reference: Python integers, fractions and numpy.

One kernel is generated per form. It loads its operands from arrays, executes the instruction for every thread, and
stores the result; the values are all pairs (triples) of edge values and as many random ones.
"""

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from tests.softgpu.engine import EngineError, Module

REGISTER = {"16": ".b16", "32": ".b32", "64": ".b64"}
NUMPY = {
    "u16": np.uint16, "s16": np.int16, "b16": np.uint16, "f16": np.float16,
    "u32": np.uint32, "s32": np.int32, "b32": np.uint32, "f32": np.float32,
    "u64": np.uint64, "s64": np.int64, "b64": np.uint64, "f64": np.float64,
}  # fmt: skip
UNSIGNED = {16: np.uint16, 32: np.uint32, 64: np.uint64}


def bits_of(kind: str) -> int:
    return int(kind[1:])


def module_of(instruction: str, dst: str, sources: list[str], *, prologue: str = "", epilogue: str = "") -> str:
    """A kernel `k` that maps arrays of `sources` to an array of `dst`."""
    parameters = ",\n".join(f"  .param .u64 p{n}" for n in range(len(sources) + 1))
    loads = []
    for n, kind in enumerate(sources):
        size = bits_of(kind) // 8
        loads += [
            f"  ld.param.u64 %rd1, [p{n}];",
            f"  mad.wide.u32 %rd1, %r1, {size}, %rd1;",
            f"  ld.global.b{size * 8} %s{n}, [%rd1];",
        ]
    registers = "\n".join(f"  .reg .b{bits_of(kind)} %s{n};" for n, kind in enumerate(sources))
    size = bits_of(dst) // 8
    return f"""
.version 8.5
.target sm_90
.address_size 64
.visible .entry k(
{parameters}
)
{{
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  .reg .pred %p<4>;
  .reg .b{size * 8} %d;
{registers}
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r1, %r2, %r3, %r4;
{chr(10).join(loads)}
{prologue}
  {instruction};
{epilogue}
  ld.param.u64 %rd1, [p{len(sources)}];
  mad.wide.u32 %rd1, %r1, {size}, %rd1;
  st.global.b{size * 8} [%rd1], %d;
  ret;
}}
"""


def run(ptx: str, dst: str, columns: list[np.ndarray]) -> np.ndarray:
    count = len(columns[0])
    threads = 96
    padded = -(-count // threads) * threads
    arrays = [np.resize(column, padded) for column in columns]
    out = np.zeros(padded, NUMPY[dst])
    with Module(ptx) as module:
        module.launch("k", padded // threads, threads, *arrays, out)
    return out[:count]


def integer_values(kind: str, rng: random.Random) -> list[int]:
    bits = bits_of(kind)
    top = 1 << bits
    edges = [0, 1, 2, 3, 7, 8, bits - 1, bits, bits + 1, top - 1, top - 2, top // 2, top // 2 - 1, top // 2 + 1]
    edges += [0x5555555555555555 % top, 0xAAAAAAAAAAAAAAAA % top, 255, 256 % top, 0x8080808080808080 % top]
    return edges + [rng.getrandbits(bits) for _ in range(13)]


FLOAT_EDGES = {
    "f32": [0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x00000001, 0x80000001,
            0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F000000, 0x3F800001, 0x4B000001, 0x4F000000, 0xCF000000,
            0x3FC00000, 0x40200000, 0xC0200000],
    "f64": [0, 1 << 63, 0x3FF0000000000000, 0xBFF0000000000000, 0x7FF0000000000000, 0xFFF0000000000000,
            0x7FF8000000000000, 1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x7FEFFFFFFFFFFFFF, 0x3FE0000000000000,
            0x3FF0000000000001, 0x41E0000000000000, 0xC1E0000000200000, 0x43E0000000000000, 0x4004000000000000],
    "f16": [0, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 1, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C01, 0x3800],
}  # fmt: skip


def float_values(kind: str, rng: random.Random) -> list[int]:
    bits = bits_of(kind)
    return FLOAT_EDGES[kind] + [rng.getrandbits(bits) for _ in range(12)]


def grid_of(kinds: list[str], seed: str) -> list[np.ndarray]:
    """All combinations of values, one column per source, as the sources' own types."""
    rng = random.Random(seed)
    values = [float_values(kind, rng) if kind[0] == "f" else integer_values(kind, rng) for kind in kinds]
    if len(kinds) == 3:
        values = [rng.sample(column, min(len(column), 16)) for column in values]
    rows = list(itertools.product(*values))
    return [
        np.array([row[n] for row in rows], UNSIGNED[bits_of(kind)]).view(NUMPY[kind]) for n, kind in enumerate(kinds)
    ]


# ---- integers ----


@dataclass(frozen=True)
class Case:
    name: str
    dst: str
    sources: tuple[str, ...]
    reference: Callable[..., int]


def clamp(value: int, kind: str) -> int:
    bits = bits_of(kind)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    return max(low, min(high, value))


def truncated_quotient(a: int, b: int, bits: int) -> int:
    if b == 0:
        return (1 << bits) - 1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def truncated_remainder(a: int, b: int) -> int:
    return a if b == 0 else a - b * truncated_quotient(a, b, 64)


def bit_field_extract(a: int, b: int, c: int, bits: int, signed: bool) -> int:
    """The pseudo code of PTX ISA, "bfe"."""
    position, length = b & 255, c & 255
    top = bits - 1
    a %= 1 << bits
    sign = 0 if not signed or length == 0 else a >> min(position + length - 1, top) & 1
    result = 0
    for k in range(bits):
        bit = a >> (position + k) & 1 if k < length and position + k <= top else sign
        result |= bit << k
    return result


def bit_field_insert(a: int, b: int, c: int, d: int, bits: int) -> int:
    position, length = c & 255, d & 255
    result = b
    for k in range(length):
        if position + k >= bits:
            break
        result = result & ~(1 << position + k) | (a >> k & 1) << position + k
    return result


def permute(a: int, b: int, selector: int) -> int:
    data = (b << 32 | a).to_bytes(8, "little")
    out = []
    for k in range(4):
        nibble = selector >> 4 * k & 15
        byte = data[nibble & 7]
        out.append((255 if byte & 128 else 0) if nibble & 8 else byte)
    return int.from_bytes(bytes(out), "little")


def highest(a: int, bits: int) -> int:
    a = ~a if a < 0 else a
    return a.bit_length() - 1 if a else 0xFFFFFFFF


def integer_cases() -> list[Case]:
    cases: list[Case] = []

    def add(name: str, dst: str, sources: str, reference: Callable[..., int]) -> None:
        cases.append(Case(name, dst, tuple(sources.split()), reference))

    for bits in (16, 32, 64):
        u, s, b = f"u{bits}", f"s{bits}", f"b{bits}"
        for t in (u, s):
            add(f"add.{t}", t, f"{t} {t}", lambda a, b: a + b)
            add(f"sub.{t}", t, f"{t} {t}", lambda a, b: a - b)
            add(f"mul.lo.{t}", t, f"{t} {t}", lambda a, b: a * b)
            add(f"mul.hi.{t}", t, f"{t} {t}", lambda a, b, n=bits: a * b >> n)
            add(f"min.{t}", t, f"{t} {t}", min)
            add(f"max.{t}", t, f"{t} {t}", max)
            add(f"div.{t}", t, f"{t} {t}", lambda a, b, n=bits: truncated_quotient(a, b, n))
            add(f"rem.{t}", t, f"{t} {t}", truncated_remainder)
            add(f"mad.lo.{t}", t, f"{t} {t} {t}", lambda a, b, c: a * b + c)
            add(f"mad.hi.{t}", t, f"{t} {t} {t}", lambda a, b, c, n=bits: (a * b >> n) + c)
            add(f"sad.{t}", t, f"{t} {t} {t}", lambda a, b, c: c + abs(a - b))
        add(f"neg.{s}", s, s, lambda a: -a)
        add(f"abs.{s}", s, s, abs)
        add(f"and.{b}", b, f"{b} {b}", lambda a, b: a & b)
        add(f"or.{b}", b, f"{b} {b}", lambda a, b: a | b)
        add(f"xor.{b}", b, f"{b} {b}", lambda a, b: a ^ b)
        add(f"not.{b}", b, b, lambda a: ~a)
        add(f"cnot.{b}", b, b, lambda a: int(a == 0))
        add(f"shl.{b}", b, f"{b} u32", lambda a, b, n=bits: a << b if b < n else 0)
        add(f"shr.{u}", u, f"{u} u32", lambda a, b, n=bits: a >> min(b, n))
        add(f"shr.{s}", s, f"{s} u32", lambda a, b, n=bits: a >> min(b, n))
    for bits in (16, 32):
        for sign in "us":
            t, wide = f"{sign}{bits}", f"{sign}{bits * 2}"
            add(f"mul.wide.{t}", wide, f"{t} {t}", lambda a, b: a * b)
            add(f"mad.wide.{t}", wide, f"{t} {t} {wide}", lambda a, b, c: a * b + c)
    add("add.sat.s32", "s32", "s32 s32", lambda a, b: clamp(a + b, "s32"))
    add("sub.sat.s32", "s32", "s32 s32", lambda a, b: clamp(a - b, "s32"))
    add("mul24.lo.u32", "u32", "u32 u32", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF))
    for bits in (32, 64):
        u, s, b = f"u{bits}", f"s{bits}", f"b{bits}"
        add(f"popc.{b}", "u32", b, lambda a: a.bit_count())
        add(f"clz.{b}", "u32", b, lambda a, n=bits: n - a.bit_length())
        add(f"brev.{b}", b, b, lambda a, n=bits: int(f"{a:0{n}b}"[::-1], 2))
        for t in (u, s):
            add(f"bfind.{t}", "u32", t, lambda a, n=bits: highest(a, n))
            add(
                f"bfind.shiftamt.{t}", "u32", t,
                lambda a, n=bits: n - 1 - highest(a, n) if a not in (0, -1) else 0xFFFFFFFF,
            )  # fmt: skip
        add(f"bfe.{u}", u, f"{u} u32 u32", lambda a, b, c, n=bits: bit_field_extract(a, b, c, n, False))
        add(f"bfe.{s}", s, f"{s} u32 u32", lambda a, b, c, n=bits: bit_field_extract(a, b, c, n, True))
    add("prmt.b32", "b32", "b32 b32 b32", permute)
    add("shf.l.wrap.b32", "b32", "b32 b32 u32", lambda a, b, c: (b << 32 | a) << (c & 31) >> 32)
    add("shf.r.wrap.b32", "b32", "b32 b32 u32", lambda a, b, c: (b << 32 | a) >> (c & 31))
    add("shf.l.clamp.b32", "b32", "b32 b32 u32", lambda a, b, c: (b << 32 | a) << min(c, 32) >> 32)
    add("shf.r.clamp.b32", "b32", "b32 b32 u32", lambda a, b, c: (b << 32 | a) >> min(c, 32))
    add("bmsk.clamp.b32", "b32", "u32 u32", lambda a, b: ((1 << min(b, 32)) - 1) << min(a, 32))
    add(
        "dp4a.u32.u32",
        "u32",
        "u32 u32 u32",
        lambda a, b, c: c + sum((a >> 8 * k & 255) * (b >> 8 * k & 255) for k in range(4)),
    )
    return cases


@pytest.mark.parametrize("case", integer_cases(), ids=lambda case: case.name)
def test_integer_instruction(case: Case) -> None:
    columns = grid_of(list(case.sources), case.name)
    operands = ", ".join(f"%s{n}" for n in range(len(case.sources)))
    got = run(module_of(f"{case.name} %d, {operands}", case.dst, list(case.sources)), case.dst, columns)
    modulus = 1 << bits_of(case.dst)
    expected = [case.reference(*(int(value) for value in row)) % modulus for row in zip(*columns, strict=True)]
    unsigned = UNSIGNED[bits_of(case.dst)]
    np.testing.assert_array_equal(got.view(unsigned), np.array(expected, unsigned))


@pytest.mark.parametrize("table", [0x00, 0x80, 0x96, 0xE8, 0xCA, 0x1E, 0xFF])
def test_lop3(table: int) -> None:
    columns = grid_of(["b32"] * 3, f"lop3 {table}")
    got = run(module_of(f"lop3.b32 %d, %s0, %s1, %s2, {table}", "b32", ["b32"] * 3), "b32", columns)
    for value, *row in zip(got, *columns, strict=True):
        a, b, c = (int(x) for x in row)
        expected = sum((table >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1)) & 1) << k for k in range(32))
        assert int(value) == expected


@pytest.mark.parametrize("bits", [32, 64])
def test_bfi(bits: int) -> None:
    kinds = [f"b{bits}", f"b{bits}", "u32"]
    columns = grid_of(kinds, f"bfi {bits}")
    for length in (0, 1, 5, bits - 1, bits, 255):
        got = run(module_of(f"bfi.b{bits} %d, %s0, %s1, %s2, {length}", kinds[0], kinds), kinds[0], columns)
        for value, *row in zip(got, *columns, strict=True):
            a, b, c = (int(x) for x in row)
            assert int(value) == bit_field_insert(a, b, c, length, bits)


@pytest.mark.parametrize("bits", [32, 64])
def test_carry_chain_adds_and_subtracts_wide_numbers(bits: int) -> None:
    u = f"u{bits}"
    columns = grid_of([u, u, u], f"carry {bits}")
    for op, sign in (("add", 1), ("sub", -1)):
        prologue = f"  {op}.cc.{u} %d, %s0, %s1;"
        got = run(module_of(f"{op}c.{u} %d, %s2, %s0", u, [u, u, u], prologue=prologue), u, columns)
        for value, *row in zip(got, *columns, strict=True):
            a, b, c = (int(x) for x in row)
            carry = (a + sign * b) >> bits
            assert int(value) == (c + sign * a + carry) % (1 << bits)


# ---- comparisons ----

ORDERED = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


def comparison_reference(name: str, a: float, b: float) -> bool:
    unordered = math.isnan(a) or math.isnan(b)
    if name in {"num", "nan"}:
        return unordered == (name == "nan")
    if name.endswith("u"):
        return unordered or ORDERED[name[:-1]](a, b)
    return not unordered and ORDERED[name](a, b)


FLOAT_COMPARISONS = [*ORDERED, *(f"{name}u" for name in ORDERED), "num", "nan"]


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64", "f16", "f32", "f64"])
def test_setp(kind: str) -> None:
    columns = grid_of([kind, kind], f"setp {kind}")
    for name in FLOAT_COMPARISONS if kind[0] == "f" else ORDERED:
        ptx = module_of(f"setp.{name}.{kind} %p1, %s0, %s1", "u32", [kind, kind], epilogue="  selp.u32 %d, 1, 0, %p1;")
        got = run(ptx, "u32", columns)
        expected = [comparison_reference(name, *(x.item() for x in row)) for row in zip(*columns, strict=True)]
        np.testing.assert_array_equal(got.astype(bool), expected, err_msg=name)


# ---- floats: correctly rounded results by exact arithmetic ----


def exact(value: float) -> Fraction:
    return Fraction(float(value))


def rounded(value: Fraction, kind: str, mode: str) -> np.floating:
    """An exact value in binary floating point, by the definition of rounding."""
    fraction_bits, least, largest = {"f16": (10, -24, 65504), "f32": (23, -149, (2**24 - 1) * 2**104),
                                     "f64": (52, -1074, (2**53 - 1) * 2**971)}[kind]  # fmt: skip
    if value == 0:
        return NUMPY[kind](0)
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - fraction_bits, least)
    count, rest = divmod(magnitude, unit)
    negative = value < 0
    if mode == "rn":
        count += rest * 2 > unit or (rest * 2 == unit and count % 2 == 1)
    elif rest and ((mode == "rp" and not negative) or (mode == "rm" and negative)):
        count += 1
    magnitude = count * unit
    if magnitude > largest:
        to_infinity = mode == "rn" or (mode == "rp" and not negative) or (mode == "rm" and negative)
        result = math.inf if to_infinity else float(largest)
    else:
        result = float(magnitude)
    return NUMPY[kind](-result if negative else result)


def assert_same_floats(got: np.ndarray, expected: np.ndarray) -> None:
    """Bit for bit, but all NaNs are one."""
    unsigned = UNSIGNED[got.dtype.itemsize * 8]
    same = (got.view(unsigned) == expected.view(unsigned)) | (np.isnan(got) & np.isnan(expected))
    assert same.all(), [(got[k], expected[k]) for k in np.nonzero(~same)[0][:5]]


BINARY = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b}


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("op", BINARY)
def test_float_arithmetic(op: str, kind: str, mode: str) -> None:
    columns = grid_of([kind, kind], f"{op} {kind}")
    got = run(module_of(f"{op}.{mode}.{kind} %d, %s0, %s1", kind, [kind, kind]), kind, columns)
    with np.errstate(all="ignore"):
        expected = BINARY[op](*columns)
    for k, (a, b) in enumerate(zip(*columns, strict=True)):
        if np.isfinite(a) and np.isfinite(b) and not (op == "div" and b == 0):
            value = BINARY[op](exact(a), exact(b))
            if value:  # the sign of an exact zero depends on the mode
                expected[k] = rounded(value, kind, mode)
            elif mode == "rm" and op in {"add", "sub"} and a != 0:
                expected[k] = -0.0
            elif mode == "rm" and op in {"add", "sub"}:
                expected[k] = got[k]
    assert_same_floats(got, expected)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("kind", ["f32", "f64", "f16"])
def test_fma_rounds_once(kind: str, mode: str) -> None:
    if kind == "f16" and mode != "rn":
        mode = "rn"
    columns = grid_of([kind] * 3, f"fma {kind}")
    got = run(module_of(f"fma.{mode}.{kind} %d, %s0, %s1, %s2", kind, [kind] * 3), kind, columns)
    for value, *row in zip(got, *columns, strict=True):
        if all(np.isfinite(x) for x in row):
            a, b, c = (exact(x) for x in row)
            if a * b + c:
                assert value == rounded(a * b + c, kind, mode), row


@pytest.mark.parametrize("kind", ["f16"])
@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_half_arithmetic(op: str, kind: str) -> None:
    columns = grid_of([kind, kind], f"{op} {kind}")
    got = run(module_of(f"{op}.{kind} %d, %s0, %s1", kind, [kind, kind]), kind, columns)
    with np.errstate(all="ignore"):
        assert_same_floats(got, BINARY[op](*columns))


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("op", ["sqrt", "rcp", "neg", "abs"])
def test_float_unary(op: str, kind: str) -> None:
    columns = grid_of([kind], f"{op} {kind}")
    rounding = ".rn" if op in {"sqrt", "rcp"} else ""
    got = run(module_of(f"{op}{rounding}.{kind} %d, %s0", kind, [kind]), kind, columns)
    with np.errstate(all="ignore"):
        reference = {"sqrt": np.sqrt, "rcp": lambda a: NUMPY[kind](1) / a, "neg": np.negative, "abs": np.abs}[op]
        assert_same_floats(got, reference(columns[0]))


@pytest.mark.parametrize("kind", ["f32", "f64", "f16"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_minimum_and_maximum_prefer_numbers_and_order_zeros(op: str, kind: str) -> None:
    columns = grid_of([kind, kind], f"{op} {kind}")
    got = run(module_of(f"{op}.{kind} %d, %s0, %s1", kind, [kind, kind]), kind, columns)
    for value, a, b in zip(got, *columns, strict=True):
        if np.isnan(a) or np.isnan(b):
            expected = b if np.isnan(a) else a
        else:
            key = [(float(x), -1 if np.signbit(x) else 1) for x in (a, b)]
            expected = (a, b)[key.index((min if op == "min" else max)(key))]
        assert_same_floats(np.array([value]), np.array([expected]))


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("modifiers", ["", ".NaN", ".ftz", ".NaN.abs", ".abs"])
def test_minimum_and_maximum_of_three(op: str, modifiers: str) -> None:
    """As two of two inputs, of whose meaning the test above is sure; .abs goes for each input."""
    columns = grid_of(["f32"] * 3, f"three {op}")
    got = run(module_of(f"{op}{modifiers}.f32 %d, %s0, %s1, %s2", "f32", ["f32"] * 3), "f32", columns)
    if ".abs" in modifiers:
        columns = [np.abs(column) for column in columns]
    of_two = modifiers.removesuffix(".abs")
    two = module_of(f"{op}{of_two}.f32 %d, %s0, %s1", "f32", ["f32", "f32"])
    assert_same_floats(got, run(two, "f32", [run(two, "f32", columns[:2]), columns[2]]))


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("modifiers", ["", ".NaN", ".ftz", ".ftz.NaN"])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f16x2", "bf16x2"])
def test_magnitudes_with_the_product_of_both_signs(op: str, modifiers: str, kind: str) -> None:
    """As two magnitudes, of which the tests above are sure, with the signs' exclusive or (Triton's clamp)."""
    register = kind if kind in NUMPY else f"b{16 if kind == 'bf16' else 32}"
    columns = grid_of([register] * 2, f"signs {kind}")
    got = run(
        module_of(f"{op}{modifiers}.xorsign.abs.{kind} %d, %s0, %s1", register, [register] * 2), register, columns
    )
    bits = [column.view(UNSIGNED[bits_of(register)]) for column in columns]
    signs = UNSIGNED[bits_of(register)](0x80008000 if kind.endswith("x2") else 1 << bits_of(register) - 1)
    plain = module_of(f"{op}{modifiers}.{kind} %d, %s0, %s1", register, [register] * 2)
    magnitudes = run(plain, register, [(word & ~signs).view(NUMPY[register]) for word in bits])
    expected = magnitudes.view(bits[0].dtype) | (bits[0] ^ bits[1]) & signs
    np.testing.assert_array_equal(got.view(bits[0].dtype), expected)


@pytest.mark.parametrize("operation", ["add", "sub.rz", "add.sat", "fma.rn"])
@pytest.mark.parametrize("narrow", ["f16", "bf16"])
def test_mixed_precision_is_that_of_f32(operation: str, narrow: str) -> None:
    """The narrow inputs are exact as f32: as converting them first."""
    narrow_count = 2 if operation.startswith("fma") else 1
    sources = ["f16"] * narrow_count + ["f32"]
    columns = grid_of(sources, f"mixed {operation}")
    inputs = [f"%s{n}" for n in range(len(sources))]
    got = run(module_of(f"{operation}.f32.{narrow} %d, {', '.join(inputs)}", "f32", sources), "f32", columns)
    wide = [f"%w{n}" for n in range(narrow_count)]
    prologue = f".reg .b32 {', '.join(wide)};" + "".join(
        f"cvt.f32.{narrow} {to}, {source};" for to, source in zip(wide, inputs, strict=False)
    )
    same = f"{operation}.f32 %d, {', '.join([*wide, inputs[-1]])}"
    assert_same_floats(got, run(module_of(same, "f32", sources, prologue=prologue), "f32", columns))


def flushed(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) < np.float32(2.0**-126), np.copysign(np.float32(0), values), values)


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_ftz_flushes_inputs_and_results(op: str) -> None:
    columns = grid_of(["f32", "f32"], f"ftz {op}")
    got = run(module_of(f"{op}.ftz.f32 %d, %s0, %s1", "f32", ["f32", "f32"]), "f32", columns)
    with np.errstate(all="ignore"):
        assert_same_floats(got, flushed(BINARY[op](flushed(columns[0]), flushed(columns[1]))))


def test_ftz_may_stand_behind_the_type() -> None:
    columns = grid_of(["f32"], "ftz behind")
    usual, other = (
        run(module_of(f"ex2.approx.{tail} %d, %s0", "f32", ["f32"]), "f32", columns) for tail in ("ftz.f32", "f32.ftz")
    )
    assert_same_floats(other, usual)


@pytest.mark.parametrize(
    ("op", "reference"),
    [("sin", np.sin), ("cos", np.cos), ("ex2", np.exp2), ("lg2", np.log2), ("tanh", np.tanh),
     ("rsqrt", lambda a: 1 / np.sqrt(a)), ("rcp", lambda a: 1 / a), ("sqrt", np.sqrt)],
)  # fmt: skip
def test_approximations_are_close(op: str, reference: Callable[[np.ndarray], np.ndarray]) -> None:
    values = np.random.default_rng(7).uniform(0.01, 9.0, 4000).astype(np.float32)
    got = run(module_of(f"{op}.approx.f32 %d, %s0", "f32", ["f32"]), "f32", [values])
    np.testing.assert_allclose(got, reference(values.astype(np.float64)), rtol=3e-7, atol=1e-7)


# ---- conversions ----

INTEGERS = ["u16", "s16", "u32", "s32", "u64", "s64"]


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", INTEGERS)
def test_integer_conversion(target: str, source: str) -> None:
    columns = grid_of([source], f"cvt {source}")
    for sat in ("", ".sat"):
        got = run(module_of(f"cvt{sat}.{target}.{source} %d, %s0", target, [source]), target, columns)
        values = [int(value) for value in columns[0]]
        expected = [clamp(v, target) if sat else v for v in values]
        modulus = 1 << bits_of(target)
        assert [int(v) % modulus for v in got] == [v % modulus for v in expected]


INTEGRAL = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
@pytest.mark.parametrize("target", INTEGERS)
def test_float_to_integer_saturates_and_has_its_own_nan(target: str, source: str) -> None:
    columns = grid_of([source], f"cvt {source}")
    bits = bits_of(target)
    low, high = clamp(-(10**30), target), clamp(10**30, target)
    for mode, function in INTEGRAL.items():
        got = run(module_of(f"cvt.{mode}.{target}.{source} %d, %s0", target, [source]), target, columns)
        for value, raw in zip(got, columns[0], strict=True):
            number = float(raw)
            if math.isnan(number):
                expected = 1 << bits - 1 if source == "f64" or bits == 64 else 0
            elif math.isinf(number):
                expected = high if number > 0 else low
            else:
                expected = clamp(function(number), target)
            assert int(value) % (1 << bits) == expected % (1 << bits), (mode, number)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", ["f16", "f32", "f64"])
def test_integer_to_float(target: str, source: str, mode: str) -> None:
    columns = grid_of([source], f"cvt {source}")
    got = run(module_of(f"cvt.{mode}.{target}.{source} %d, %s0", target, [source]), target, columns)
    expected = np.array([rounded(Fraction(int(v)), target, mode) for v in columns[0]], NUMPY[target])
    assert_same_floats(got, expected)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(("target", "source"), [("f32", "f64"), ("f16", "f32"), ("f16", "f64")])
def test_narrowing_conversion(target: str, source: str, mode: str) -> None:
    columns = grid_of([source], f"narrow {source}")
    extra = np.random.default_rng(3).normal(0, 100, 500).astype(NUMPY[source])
    columns = [np.concatenate([columns[0], extra])]
    got = run(module_of(f"cvt.{mode}.{target}.{source} %d, %s0", target, [source]), target, columns)
    with np.errstate(all="ignore"):
        expected = columns[0].astype(NUMPY[target])
    for k, value in enumerate(columns[0]):
        if np.isfinite(value) and value != 0:
            expected[k] = rounded(exact(value), target, mode)
            if expected[k] == 0:
                expected[k] = np.copysign(expected[k], value)
    assert_same_floats(got, expected)


@pytest.mark.parametrize("mode", INTEGRAL)
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_rounding_to_integral_floats(kind: str, mode: str) -> None:
    columns = grid_of([kind], f"integral {kind}")
    got = run(module_of(f"cvt.{mode}.{kind}.{kind} %d, %s0", kind, [kind]), kind, columns)
    reference = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode]
    with np.errstate(all="ignore"):
        assert_same_floats(got, reference(columns[0]))


@pytest.mark.parametrize("target", ["f16x2", "bf16x2"])
def test_packed_conversion_puts_the_first_source_above(target: str) -> None:
    columns = grid_of(["f32", "f32"], target)
    finite = np.isfinite(columns[0]) & np.isfinite(columns[1])
    columns = [column[finite] for column in columns]
    got = run(module_of(f"cvt.rn.{target}.f32 %d, %s0, %s1", "b32", ["f32", "f32"]), "b32", columns)
    halves = [half_bits(column, target) for column in columns]
    np.testing.assert_array_equal(got, halves[0].astype(np.uint32) << 16 | halves[1])


def half_bits(values: np.ndarray, target: str) -> np.ndarray:
    if target.startswith("f16"):
        with np.errstate(all="ignore"):
            return values.astype(np.float16).view(np.uint16)
    out = []
    for word in values.view(np.uint32):
        kept, rest = divmod(int(word), 1 << 16)
        out.append(kept + (rest > 0x8000 or (rest == 0x8000 and kept % 2 == 1)))
    return np.array(out, np.uint16)


@pytest.mark.parametrize("order", ["volatile", "relaxed.gpu"])
@pytest.mark.parametrize(("kind", "count"), [("u64", 2), ("u32", 4), ("u32", 2), ("u16", 4), ("u16", 2)])
def test_another_block_sees_a_vector_as_a_whole(order: str, kind: str, count: int) -> None:
    """Block 0 stores vectors of equal elements, block 1 loads them and counts those whose ends differ."""
    bits = bits_of(kind)
    register = "h" if bits == 16 else "v"
    elements = ", ".join(f"%{register}{k}" for k in range(count))
    ptx = f""".version 7.8
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p, .param .u64 torn)
{{
  .reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .b{bits} %{register}<{count}>; .reg .pred %p<3>;
  ld.param.u64 %rd1, [p];
  ld.param.u64 %rd2, [torn];
  mov.u32 %r1, %tid.x;
  mad.wide.u32 %rd1, %r1, {count * bits // 8}, %rd1;
  mad.wide.u32 %rd2, %r1, 4, %rd2;
  mov.u32 %r2, %ctaid.x;
  setp.ne.u32 %p1, %r2, 0;
  mov.u32 %r3, 0;
  mov.u32 %r4, 0;
again:
  @%p1 bra load;
  cvt.u{bits}.u32 %{register}0, %r3;
  {" ".join(f"mov.b{bits} %{register}{k}, %{register}0;" for k in range(1, count))}
  st.{order}.global.v{count}.{kind} [%rd1], {{{elements}}};
  bra next;
load:
  ld.{order}.global.v{count}.{kind} {{{elements}}}, [%rd1];
  setp.ne.u{bits} %p2, %{register}0, %{register}{count - 1};
  @%p2 add.u32 %r4, %r4, 1;
next:
  add.u32 %r3, %r3, 1;
  setp.lt.u32 %p2, %r3, 30000;
  @%p2 bra again;
  @%p1 st.global.u32 [%rd2], %r4;
  ret;
}}
"""
    shared = np.zeros(32 * count + 16, NUMPY[kind])
    vectors = shared[-shared.ctypes.data % 16 // shared.itemsize :]
    torn = np.full(32, 1, np.uint32)
    with Module(ptx) as module:
        module.launch("k", 2, 32, vectors, torn)
    assert torn.tolist() == [0] * 32


def test_short_local_pointers() -> None:
    """Compilers with short pointers (Triton's) keep local addresses in 32 bits."""
    ptx = """.version 8.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 out)
{
  .local .align 8 .b8 depot[64];
  .reg .b64 %SP, %SPL, %rd<6>;
  .reg .b32 %r<8>;
  mov.b64 %SPL, depot;
  cvta.local.u64 %SP, %SPL;
  cvt.u32.u64 %r1, %SPL;
  mov.u32 %r2, %tid.x;
  st.local.v2.b32 [%r1], {%r2, 7};
  add.s32 %r3, %r1, 16;
  mul.lo.u32 %r4, %r2, 3;
  st.local.b32 [%r3+4], %r4;
  ld.local.b32 %r5, [%r1];
  cvt.u64.u32 %rd1, %r3;
  cvta.local.u64 %rd2, %rd1;
  ld.b32 %r6, [%rd2+4];
  ld.b32 %r7, [%SP+4];
  add.u32 %r5, %r5, %r6;
  add.u32 %r5, %r5, %r7;
  ld.param.u64 %rd3, [out];
  mad.wide.u32 %rd3, %r2, 4, %rd3;
  st.global.u32 [%rd3], %r5;
  ret;
}
"""
    out = np.zeros(64, np.uint32)
    with Module(ptx) as module:
        module.launch("k", 1, 64, out)
    np.testing.assert_array_equal(out, np.arange(64) * 4 + 7)


@pytest.mark.parametrize("align", [8, 16, 64, 128, 256, 4096])
def test_local_memory_is_aligned_in_all_lanes_and_in_called_functions(align: int) -> None:
    """Programs look at their own addresses, and split what they read by them."""
    ptx = f""".version 8.0
.target sm_75
.address_size 64
.func (.param .b64 result) called()
{{
  .local .align {align} .b8 depot[40];
  .reg .b64 %rd<3>;
  mov.b64 %rd1, depot;
  cvta.local.u64 %rd2, %rd1;
  st.param.b64 [result], %rd2;
  ret;
}}
.visible .entry k(.param .u64 out)
{{
  .local .align 8 .b8 first[8];
  .local .align {align} .b8 depot[24];
  .param .b64 result;
  .reg .b64 %rd<8>;
  .reg .b32 %r<3>;
  mov.b64 %rd1, depot;
  cvta.local.u64 %rd2, %rd1;
  call (result), called, ();
  ld.param.b64 %rd3, [result];
  or.b64 %rd4, %rd2, %rd3;
  and.b64 %rd4, %rd4, {align - 1};
  mov.u32 %r1, %tid.x;
  ld.param.u64 %rd5, [out];
  mad.wide.u32 %rd5, %r1, 8, %rd5;
  st.global.u64 [%rd5], %rd4;
  ret;
}}
"""
    out = np.full(96, 1, np.uint64)
    with Module(ptx) as module:
        module.launch("k", 1, 96, out)
    assert not out.any()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("~0x2", ~2),
        ("-~0", 1),
        ("1 << 4 | 3", 19),
        ("7 - 2 - 1", 4),
        ("2 + 3 * 4", 14),
        ("-8 / 3", -2),
        ("-8 % 3", -2),
        ("-8 >> 1", -4),
        ("0xFFFFFFFFFFFFFFFFU >> 60", 15),
        ("3 * (2 + 4)", 18),
        ("5 > 3 && 2 <= 2", 1),
        ("0 + !7 == 0", 1),
        ("6 & 3 ^ 1", 3),
        ("-(4)", -4),
        ("0 - 1 < 0U", 0),
        ("0 + (.u64) -1 / 0x4000000000000000", 3),
    ],
)
def test_constant_expressions(text: str, value: int) -> None:
    """Dr.Jit writes and.b64 %rd3, %rd3, ~0x2."""
    ptx = f""".version 8.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 out)
{{
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [out];
  mov.b64 %rd2, -1;
  and.b64 %rd2, %rd2, {text};
  st.global.b64 [%rd1], %rd2;
  ret;
}}
"""
    out = np.zeros(1, np.int64)
    with Module(ptx) as module:
        module.launch("k", 1, 1, out)
    assert out[0] == value


@pytest.mark.parametrize("text", ["1 / 0", "~", "1 <<", "~" * 100 + "1", "1 + (1 + 2"])
def test_constants_that_are_none(text: str) -> None:
    ptx = f""".version 8.0
.target sm_75
.address_size 64
.visible .entry k() {{ .reg .b32 %r<2>; mov.b32 %r1, 0; and.b32 %r1, %r1, {text}; ret; }}
"""
    with pytest.raises(EngineError):
        Module(ptx)


def test_a_list_of_registers_has_names_of_its_own() -> None:
    """Beside `a<2>` there may be an `a`, before and behind it (Triton's conversions of 8-bit floats)."""
    ptx = module_of(
        "{ .reg .b32 a, b<2>; .reg .b16 a<2>; .reg .b32 b; mov.b32 a, %s0; mov.b32 {a0, a1}, a; mov.b32 b, {a1, a0};"
        " add.u32 b1, a, b; mov.b32 %d, b1; }",
        "u32",
        ["u32"],
    )
    values = np.array([0x00010002, 0x12345678, 0xFFFF0000], np.uint32)
    np.testing.assert_array_equal(
        run(ptx, "u32", [values]), values + (values << np.uint32(16) | values >> np.uint32(16))
    )


def test_elements_of_arrays_by_their_index() -> None:
    """Dr.Jit reads its table of functions by ld.global.u64 %rd2, callables[%r3]."""
    ptx = """.version 8.0
.target sm_75
.address_size 64
.visible .global .align 8 .u64 table[6] = {10, 11, 12, 13, 14, 15};
.visible .entry k(.param .u64 out)
{
  .shared .align 4 .u32 shared[40];
  .reg .b64 %rd<8>;
  .reg .b32 %r<8>;
  mov.u32 %r1, %tid.x;
  and.b32 %r2, %r1, 3;
  ld.global.u64 %rd1, table[%r2];
  ld.global.u64 %rd2, table[%r2 + 2];
  ld.global.u64 %rd3, table[1];
  mov.u64 %rd4, table[%r2];
  ld.u64 %rd4, [%rd4+8];
  st.shared.u32 shared[%r1], %r1;
  bar.sync 0;
  ld.shared.u32 %r3, shared[%r1+1];
  cvt.u64.u32 %rd5, %r3;
  mad.lo.u64 %rd1, %rd1, 100, %rd2;
  mad.lo.u64 %rd1, %rd1, 100, %rd3;
  mad.lo.u64 %rd1, %rd1, 100, %rd4;
  mad.lo.u64 %rd1, %rd1, 100, %rd5;
  ld.param.u64 %rd6, [out];
  mad.wide.u32 %rd6, %r1, 8, %rd6;
  st.global.u64 [%rd6], %rd1;
  ret;
}
"""
    out = np.zeros(32, np.uint64)
    with Module(ptx) as module:
        module.launch("k", 1, 32, out)
    for k, got in enumerate(out.tolist()[:31]):
        assert got == ((((10 + k % 4) * 100 + 12 + k % 4) * 100 + 11) * 100 + 11 + k % 4) * 100 + k + 1
