"""multimem: what is done to the memory of several devices at once, against numpy."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest

from tests.softgpu.engine import MULTICAST_BASE, EngineError, Module, Status, multicast_of

DEVICES = 3
LANES = 32
#: How PTX spells a type: what numpy makes of it, and the registers that hold it.
TYPES = {
    "u32": ("u4", "r"),
    "s32": ("i4", "r"),
    "b32": ("u4", "r"),
    "u64": ("u8", "rd"),
    "s64": ("i8", "rd"),
    "b64": ("u8", "rd"),
    "f32": ("f4", "f"),
    "f64": ("f8", "fd"),
    "f16x2": ("f2", "r"),
    "bf16x2": ("u2", "r"),
    "v2.f16": ("f2", "h"),
    "v8.f16": ("f2", "h"),
    "v4.f16x2": ("f2", "r"),
    "v4.f32": ("f4", "f"),
    "v2.f32": ("f4", "f"),
}
OPERATIONS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
INTEGERS = [
    *((operation, kind) for operation in ("min", "max") for kind in ("u32", "s32", "u64", "s64")),
    *(("add", kind) for kind in ("u32", "s32", "u64")),
    *((operation, kind) for operation in ("and", "or", "xor") for kind in ("b32", "b64")),
]
SUMS = [("add", kind) for kind in ("f32", "f64", "f16x2", "v2.f16", "v8.f16", "v4.f16x2", "v4.f32", "v2.f32")]
CHOICES = [(operation, kind) for operation in ("min", "max") for kind in ("f16x2", "v8.f16")]


def elements(kind: str) -> int:
    """How many registers one lane has."""
    return int(kind[1]) if kind.startswith("v") else 1


def kernel(instruction: str, kind: str) -> Module:
    """Each lane does it with its own bytes, and the registers' come from or go to `plain`."""
    register, count = TYPES[kind][1], elements(kind)
    width = {"h": 2, "r": 4, "f": 4, "rd": 8, "fd": 8}[register]
    names = [f"%{register}{k}" for k in range(count)]
    value = names[0] if count == 1 else "{" + ", ".join(names) + "}"
    loads = "ld_reduce" in instruction
    move = [
        f"{'st' if loads else 'ld'}.global.b{8 * width} "
        + (f"[%plain+{width * k}], {name};" if loads else f"{name}, [%plain+{width * k}];")
        for k, name in enumerate(names)
    ]
    act = f"{instruction}.{kind} {value}, [%multi];" if loads else f"{instruction}.{kind} [%multi], {value};"
    body = "\n".join([act, *move] if loads else [*move, act])
    return Module(f"""
.version 8.6
.target sm_90
.address_size 64
.visible .entry run(.param .u64 pmulti, .param .u64 pplain)
{{
    .reg .b16 %h<8>; .reg .b32 %r<8>; .reg .f32 %f<8>; .reg .b64 %rd<4>; .reg .f64 %fd<4>;
    .reg .b64 %multi, %plain, %at; .reg .b32 %lane;
    ld.param.u64 %multi, [pmulti];
    ld.param.u64 %plain, [pplain];
    mov.u32 %lane, %tid.x;
    mul.wide.u32 %at, %lane, {width * count};
    add.u64 %multi, %multi, %at;
    add.u64 %plain, %plain, %at;
    {body}
    ret;
}}
""")


def values_of(kind: str, seed: int, rows: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    dtype = np.dtype(TYPES[kind][0])
    width = 4 if TYPES[kind][1] in "rf" else 2 if TYPES[kind][1] == "h" else 8
    shape = (rows, LANES * elements(kind) * width // dtype.itemsize)
    if dtype.kind == "f":
        return random.normal(size=shape).astype(dtype)
    return random.integers(0, 256, (rows, shape[1] * dtype.itemsize), np.uint8).view(dtype)


def run(instruction: str, kind: str, replicas: np.ndarray, plain: np.ndarray) -> None:
    with kernel(instruction, kind) as module:
        module.launch("run", 1, LANES, np.uint64(MULTICAST_BASE), plain, multicast=multicast_of(replicas))


def check(got: np.ndarray, right: Any) -> None:
    np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), np.asarray(right).view(f"u{got.itemsize}"))


@pytest.mark.parametrize(("operation", "kind"), [*INTEGERS, *SUMS, *CHOICES])
def test_loads_are_reduced(operation: str, kind: str) -> None:
    replicas = values_of(kind, 1, DEVICES)
    out = np.zeros_like(replicas[0])
    run(f"multimem.ld_reduce.relaxed.sys.global.{operation}", kind, replicas, out)
    # One device after the other, each sum rounded to the type.
    check(out, reduce(OPERATIONS[operation], replicas))


@pytest.mark.parametrize(("operation", "kind"), [*INTEGERS, *SUMS])
def test_all_memory_is_reduced_to(operation: str, kind: str) -> None:
    replicas, given = values_of(kind, 2, DEVICES), values_of(kind, 3, 1)
    right = OPERATIONS[operation](replicas, given)
    run(f"multimem.red.release.gpu.global.{operation}", kind, replicas, given)
    check(replicas, right)


@pytest.mark.parametrize("kind", TYPES)
def test_all_memory_is_stored_to(kind: str) -> None:
    replicas, given = values_of(kind, 4, DEVICES), values_of(kind, 5, 1)
    run("multimem.st.weak.global", kind, replicas, given)
    check(replicas, np.repeat(given, DEVICES, 0))


def bfloats(values: np.ndarray) -> np.ndarray:
    """As bf16, rounded to nearest even; of small integers exact."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return np.asarray((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def test_bfloats_are_added_up_as_f32_where_that_is_said() -> None:
    # 256 + 1 is 256 as bf16, again and again; 256 + 1 + 1 is 258.
    numbers = np.repeat(np.array([[256.0], [1.0], [1.0]]), 2 * LANES, 1)
    replicas, out = bfloats(numbers), np.zeros((1, 2 * LANES), np.uint16)
    run("multimem.ld_reduce.global.add", "bf16x2", replicas, out)
    check(out[0], bfloats(np.full(2 * LANES, 256.0)))
    run("multimem.ld_reduce.global.add.acc::f32", "bf16x2", replicas, out)
    check(out[0], bfloats(np.full(2 * LANES, 258.0)))
    run("multimem.ld_reduce.global.max", "bf16x2", replicas, out)
    check(out[0], replicas[0])
    run("multimem.red.global.add", "bf16x2", replicas, replicas[0].copy())
    check(replicas, bfloats(np.repeat(np.array([[512.0], [256.0], [256.0]]), 2 * LANES, 1)))


def test_halves_are_added_up_as_f32_where_that_is_said() -> None:
    # 2048 + 1 is 2048 as f16; 2048 + 1 + 1 is 2050.
    replicas = np.repeat(np.array([[2048], [1], [1]], np.float16), 2 * LANES, 1)
    out = np.zeros_like(replicas[0])
    run("multimem.ld_reduce.weak.global.add.acc::f32", "f16x2", replicas, out)
    check(out, np.full(2 * LANES, 2050, np.float16))


def test_an_address_of_no_object_is_illegal() -> None:
    replicas = values_of("u32", 6, DEVICES)
    with kernel("multimem.ld_reduce.global.add", "u32") as module:
        for address in (MULTICAST_BASE - 4 * LANES, MULTICAST_BASE + replicas.strides[0]):
            with pytest.raises(EngineError) as raised:
                module.launch(
                    "run", 1, LANES, np.uint64(address), np.zeros(LANES, "u4"), multicast=multicast_of(replicas)
                )
            assert raised.value.status == Status.ILLEGAL_ADDRESS
            assert "nothing is there" in raised.value.text


def test_no_bytes_behind_the_edge_are_touched() -> None:
    replicas = values_of("u32", 7, DEVICES)
    before = replicas.copy()
    multicast, last = multicast_of(replicas), np.uint64(MULTICAST_BASE + replicas.strides[0] - 4)
    with kernel("multimem.st.global", "u64") as module, pytest.raises(EngineError) as raised:
        module.launch("run", 1, 1, last, np.zeros(1, "u8"), multicast=multicast)
    assert raised.value.status == Status.ILLEGAL_ADDRESS
    assert "edge" in raised.value.text
    check(replicas, before)


@pytest.mark.parametrize(
    "instruction",
    [
        "multimem.ld_reduce.global.add.b32 %r0, [%multi];",  # adding bits
        "multimem.red.global.min.f16x2 [%multi], %r0;",  # no reduction of memory
        "multimem.ld_reduce.global.add.v4.f64 {%fd0, %fd1, %fd2, %fd3}, [%multi];",  # 32 bytes
        "multimem.ld_reduce.global.add.acc::f16.e5m2x4 %r0, [%multi];",  # not there
        "multimem.st.global.b16 [%multi], %h0;",  # too few bytes
        "multimem.cp.async.bulk.global.shared::cta.bulk_group [%multi], [%r0], 16;",
    ],
)
def test_what_is_not_there_is_refused_at_the_launch(instruction: str) -> None:
    with Module(
        f"""
.version 9.0
.target sm_90
.address_size 64
.visible .entry run(.param .u64 pmulti)
{{
    .reg .b16 %h<8>; .reg .b32 %r<8>; .reg .f64 %fd<4>; .reg .b64 %multi;
    ld.param.u64 %multi, [pmulti];
    {instruction}
    ret;
}}
"""
    ) as module:
        assert module.info("run").status == Status.UNSUPPORTED
