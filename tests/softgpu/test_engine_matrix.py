"""Tensor core instructions, asynchronous copies and bf16 against numpy."""

from pathlib import Path

import numpy as np
import pytest

from tests.softgpu.elements import KINDS
from tests.softgpu.engine import Module, compile_cuda, nvcc

pytestmark = pytest.mark.skipif(nvcc() is None, reason="kernels are compiled with nvcc, which is not installed")


@pytest.fixture(scope="module", params=["sm_80", "sm_90", "sm_120"])
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    source = Path(__file__).parent / "kernels/matrix.cu"
    out = tmp_path_factory.mktemp("matrix") / "matrix.ptx"
    with Module(compile_cuda(source, out, arch=request.param)) as module:
        yield module


def small_integers(rows: int, columns: int, kind: type) -> np.ndarray:
    """Values whose products and sums are exact in every format."""
    return np.random.default_rng(rows * columns).integers(-4, 5, (rows, columns)).astype(kind)


def to_bfloat(values: np.ndarray) -> np.ndarray:
    """Exact for values with 8 significant bits."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bfloat(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize(
    ("name", "m", "n", "k", "kind", "result"),
    [
        ("wmma_half", 16, 16, 16, np.float16, np.float32),
        ("wmma_half_wide", 8, 32, 16, np.float16, np.float32),
        ("wmma_half_half", 32, 8, 16, np.float16, np.float16),
        ("wmma_bfloat", 16, 16, 16, "bfloat", np.float32),
        ("wmma_tf32", 16, 16, 8, np.float32, np.float32),
        ("wmma_int8", 16, 16, 16, np.int8, np.int32),
        ("wmma_double", 8, 8, 4, np.float64, np.float64),
    ],
)
def test_wmma(kernels: Module, name: str, m: int, n: int, k: int, kind: type | str, result: type) -> None:
    a, b, c = (small_integers(*shape, np.float64) for shape in ((m, k), (k, n), (m, n)))
    convert = to_bfloat if kind == "bfloat" else lambda values: values.astype(kind)
    out = c.astype(result)
    kernels.launch(name, 1, 32, convert(a), np.ascontiguousarray(convert(b).T), out)
    np.testing.assert_array_equal(out.astype(np.float64), a @ b + c)


def test_ldmatrix_and_mma(kernels: Module) -> None:
    a, b = small_integers(16, 16, np.float16), small_integers(16, 8, np.float16)
    out = np.zeros((16, 8), np.float32)
    kernels.launch("mma_half", 1, 32, a, b, out)
    np.testing.assert_array_equal(out, a.astype(np.float32) @ b.astype(np.float32))


def test_integer_mma(kernels: Module) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.integers(-128, 128, (16, 32)).astype(np.int8), rng.integers(-128, 128, (8, 32)).astype(np.int8)
    out = np.zeros((16, 8), np.int32)
    kernels.launch("mma_int8", 1, 32, a, b, out)
    np.testing.assert_array_equal(out, a.astype(np.int32) @ b.T.astype(np.int32))


def test_small_integer_mma(kernels: Module) -> None:
    rng = np.random.default_rng(6)
    a, b = rng.integers(-128, 128, (2, 8, 16)).astype(np.int8)
    out = np.zeros((8, 8), np.int32)
    kernels.launch("mma_int8_small", 1, 32, a, b, out)
    np.testing.assert_array_equal(out, a.astype(np.int32) @ b.T.astype(np.int32))


@pytest.mark.parametrize(("name", "m", "k"), [("mma_double", 8, 4), ("mma_double_large", 16, 16)])
def test_double_mma(kernels: Module, name: str, m: int, k: int) -> None:
    if name == "mma_double_large" and kernels.info("mma_half").ptx_version < 90:
        pytest.skip("a shape of compute_90")
    a, b, c = (small_integers(*shape, np.float64) / 8 for shape in ((m, k), (8, k), (m, 8)))
    out = c.copy()
    kernels.launch(name, 1, 32, a, b, out)
    np.testing.assert_array_equal(out, a @ b.T + c)


def test_fp8_mma(kernels: Module) -> None:
    if kernels.info("mma_half").ptx_version < 90:
        pytest.skip("the kernel is for compute_90")
    values = small_integers(24, 32, np.float64)
    # 0, 1, 2, 3, 4 in e4m3 (bias 7) and e5m2 (bias 15)
    e4m3, e5m2 = np.array([[0x00, 0x38, 0x40, 0x44, 0x48], [0x00, 0x3C, 0x40, 0x42, 0x44]], np.uint8)

    def encode(table: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return table[np.abs(numbers).astype(int)] | np.where(numbers < 0, 128, 0).astype(np.uint8)

    out = np.zeros((16, 8), np.float32)
    kernels.launch("mma_fp8", 1, 32, encode(e4m3, values[:16]), encode(e5m2, values[16:]), out)
    np.testing.assert_array_equal(out, values[:16] @ values[16:].T)


def test_asynchronous_copy(kernels: Module) -> None:
    values = np.arange(128, dtype=np.float32).reshape(32, 4)
    out = np.zeros((32, 4), np.float32)
    kernels.launch("async_copy", 1, 32, values, out)
    np.testing.assert_array_equal(out, values[::-1])


def test_bfloat_pairs(kernels: Module) -> None:
    a, b = small_integers(32, 2, np.float32), small_integers(2, 32, np.float32).reshape(32, 2)
    out = np.zeros((32, 3, 2), np.uint16)
    kernels.launch("bfloat_arithmetic", 1, 32, to_bfloat(a), to_bfloat(b), out)
    got = from_bfloat(out)
    for k, expected in enumerate((a + b, a * b, np.maximum(a, b))):
        np.testing.assert_array_equal(got[:, k], expected)


def operand_registers(lines: np.ndarray) -> np.ndarray:
    """Rows of A or columns of B: four lanes have sixteen bytes of one, every second register is eight rows below."""
    rows = np.ascontiguousarray(lines).view(np.uint8)
    parts = rows.reshape(len(rows) // 8, 8, -1, 4, 4).transpose(2, 0, 1, 3, 4)
    return np.ascontiguousarray(parts).reshape(-1, 32, 4).view(np.uint32)[..., 0].copy()


def sum_registers(values: np.ndarray, kind: str) -> np.ndarray:
    """C or D of eight columns: two neighbours for a lane, in a register or in two."""
    parts = values.reshape(len(values) // 8, 8, 4, 2)
    if kind == "f16":
        return np.ascontiguousarray(parts.astype(np.float16)).view(np.uint32).reshape(-1, 32)
    words = parts.astype(np.float32 if kind == "f32" else np.int32).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(words).view(np.uint32).reshape(-1, 32)


def mma_kernel(name: str, counts: dict[str, int]) -> str:
    """`k` takes an array of registers for each operand, by register and lane."""
    vectors = {part: "{" + ", ".join(f"%{part}{k}" for k in range(count)) + "}" for part, count in counts.items()}
    lines = [f".reg .b32 {', '.join(f'%{part}<{count}>' for part, count in counts.items())}, %lane;"]
    lines += [f".reg .b64 {', '.join(f'%at_{part}' for part in counts)}, %offset;"]
    lines += ["mov.u32 %lane, %tid.x;", "mul.wide.u32 %offset, %lane, 4;"]
    for part, count in counts.items():
        lines += [f"ld.param.u64 %at_{part}, [{part}];", f"add.u64 %at_{part}, %at_{part}, %offset;"]
        lines += [f"ld.global.u32 %{part}{k}, [%at_{part}+{128 * k}];" for k in range(count)]
    lines += [f"{name} {vectors['d']}, {vectors['a']}, {vectors['b']}, {vectors['c']};"]
    lines += [f"st.global.u32 [%at_d+{128 * k}], %d{k};" for k in range(counts["d"])]
    parameters = ", ".join(f".param .u64 {part}" for part in counts)
    body = "\n".join(lines)
    return f".version 8.4\n.target sm_89\n.address_size 64\n.visible .entry k({parameters})\n{{\n{body}\nret;\n}}\n"


@pytest.mark.parametrize(
    ("m", "k", "types"),
    [
        (16, 8, "f32.f16.f16.f32"),
        (16, 8, "f16.f16.f16.f16"),
        (16, 16, "f32.f16.f16.f32"),
        (16, 16, "f16.f16.f16.f16"),
        (16, 8, "f32.bf16.bf16.f32"),
        (16, 16, "f32.bf16.bf16.f32"),
        (16, 4, "f32.tf32.tf32.f32"),
        (16, 8, "f32.tf32.tf32.f32"),
        (16, 32, "f32.e4m3.e5m2.f32"),
        (16, 32, "f16.e5m2.e4m3.f16"),
        (8, 16, "s32.u8.s8.s32"),
        (16, 16, "s32.s8.u8.s32"),
        (16, 32, "s32.u8.u8.s32"),
        (16, 32, "satfinite.s32.s8.s8.s32"),
    ],
)
def test_shapes_of_mma(m: int, k: int, types: str) -> None:
    d_kind, a_name, b_name, _ = types.removeprefix("satfinite.").split(".")
    a_kind, b_kind = KINDS[a_name], KINDS[b_name]
    rng = np.random.default_rng(m * k)
    a, b = a_kind.random(rng, m, k), b_kind.random(rng, 8, k)
    c = rng.integers(-50, 51, (m, 8)).astype(np.float64)
    if types.startswith("satfinite"):
        c[:] = 2**31 - 1
    registers = {
        "d": np.zeros_like(sum_registers(c, d_kind)),
        "a": operand_registers(a_kind.encode(a)),
        "b": operand_registers(b_kind.encode(b)),
        "c": sum_registers(c, d_kind),
    }
    name = f"mma.sync.aligned.m{m}n8k{k}.row.col.{types}"
    with Module(mma_kernel(name, {part: len(rows) for part, rows in registers.items()})) as module:
        module.launch("k", 1, 32, *registers.values())
    expected = a @ b.T + c
    if types.startswith("satfinite"):
        expected = np.minimum(expected, 2**31 - 1)
    np.testing.assert_array_equal(registers["d"], sum_registers(expected, d_kind))


TILES = """
.version 8.4
.target sm_90
.address_size 64
.visible .entry k(.param .u64 values, .param .u64 out)
{{
    .reg .b32 %r<8>, %lane, %at;
    .reg .b64 %q<4>;
    .shared .align 16 .b8 tiles[512];
    ld.param.u64 %q0, [values];
    ld.param.u64 %q1, [out];
    mov.u32 %lane, %tid.x;
    mul.wide.u32 %q2, %lane, 16;
    add.u64 %q0, %q0, %q2;
    add.u64 %q1, %q1, %q2;
    cvt.u32.u64 %at, %q2;
    mov.u32 %r4, tiles;
    add.u32 %at, %at, %r4;
    {body}
    ret;
}}
"""
INTO_SHARED = "ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%q0]; st.shared.v4.u32 [%at], {%r0, %r1, %r2, %r3};"
OUT_OF_SHARED = "ld.shared.v4.u32 {%r0, %r1, %r2, %r3}, [%at]; st.global.v4.u32 [%q1], {%r0, %r1, %r2, %r3};"
MATRIX = "sync.aligned.m8n8"


@pytest.mark.parametrize(
    ("body", "loads", "transposes"),
    [
        (f"{INTO_SHARED} ldmatrix.{MATRIX}.x4.shared.b16 {{%r0, %r1, %r2, %r3}}, [%at];", True, False),
        (f"{INTO_SHARED} ldmatrix.{MATRIX}.x4.trans.shared.b16 {{%r0, %r1, %r2, %r3}}, [%at];", True, True),
        (f"stmatrix.{MATRIX}.x4.shared.b16 [%at], {{%r0, %r1, %r2, %r3}}; {OUT_OF_SHARED}", False, False),
        (f"stmatrix.{MATRIX}.x4.trans.shared.b16 [%at], {{%r0, %r1, %r2, %r3}}; {OUT_OF_SHARED}", False, True),
    ],
)
def test_tiles_of_shared_memory(body: str, loads: bool, transposes: bool) -> None:
    """Row r of tile t lies where lane 8 t + r points; register t has it, two elements a lane."""
    in_registers = "st.global.v4.u32 [%q1], {%r0, %r1, %r2, %r3};"
    from_registers = "ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%q0];"
    values = np.arange(256, dtype=np.uint16)
    out = np.zeros(256, np.uint16)
    with Module(TILES.format(body=f"{body} {in_registers}" if loads else f"{from_registers} {body}"), sm=90) as module:
        module.launch("k", 1, 32, values, out)
    memory, lanes = (values, out) if loads else (out, values)
    # by lane and register, to tile, row and column
    tiles = lanes.reshape(32, 4, 2).transpose(1, 0, 2).reshape(4, 8, 8)
    np.testing.assert_array_equal(memory.reshape(4, 8, 8), tiles.swapaxes(1, 2) if transposes else tiles)


def test_a_tile_is_transposed_in_registers() -> None:
    body = f"""ld.global.v4.u32 {{%r0, %r1, %r2, %r3}}, [%q0]; movmatrix.{MATRIX}.trans.b16 %r0, %r0;
    st.global.v4.u32 [%q1], {{%r0, %r1, %r2, %r3}};"""
    values, out = np.arange(256, dtype=np.uint16), np.zeros(256, np.uint16)
    with Module(TILES.format(body=body), sm=90) as module:
        module.launch("k", 1, 32, values, out)
    before, after = (array.reshape(32, 4, 2)[:, 0].reshape(8, 8) for array in (values, out))
    np.testing.assert_array_equal(after, before.T)


@pytest.mark.parametrize(("byte", "pair", "thread"), [(0, 0, 0), (2, 1, 3)])
def test_scaled_mma(byte: int, pair: int, thread: int) -> None:
    """Each row of A and each column of B has a power of two, in one byte of a register of some lanes."""
    instruction = "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0"
    ptx = f""".version 8.8
.target sm_120a
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{{
  .reg .b64 %rd<4>;
  .reg .b32 %r<12>;
  .reg .f32 %f<9>;
  ld.param.u64 %rd1, [in];
  ld.param.u64 %rd2, [out];
  mov.u32 %r1, %tid.x;
  mad.wide.u32 %rd1, %r1, 32, %rd1;
  ld.global.v4.b32 {{%r2, %r3, %r4, %r5}}, [%rd1];
  ld.global.v4.b32 {{%r6, %r7, %r8, %r9}}, [%rd1+16];
  mov.f32 %f5, 0f3F800000;
  {instruction} {{%f1, %f2, %f3, %f4}}, {{%r2, %r3, %r4, %r5}}, {{%r6, %r7}}, {{%f5, %f5, %f5, %f5}},
    %r8, {{{byte}, {pair}}}, %r9, {{{byte}, {thread}}};
  mad.wide.u32 %rd2, %r1, 16, %rd2;
  st.global.v4.f32 [%rd2], {{%f1, %f2, %f3, %f4}};
  ret;
}}
"""
    a, b = small_integers(16, 32, np.float64), small_integers(32, 8, np.float64)
    codes = np.array([0x00, 0x38, 0x40, 0x44, 0x48], np.uint8)
    encoded_a, encoded_b = (codes[np.abs(v).astype(int)] | np.where(v < 0, 128, 0).astype(np.uint8) for v in (a, b))
    rng = np.random.default_rng(byte)
    powers_a, powers_b = rng.integers(-9, 9, 16), rng.integers(-9, 9, 8)
    words = np.full((32, 32), 99, np.uint8)  # scales that nobody asks for are there, too
    for lane in range(32):
        group, within = divmod(lane, 4)
        for register in range(4):
            row, column = group + 8 * (register % 2), 4 * within + 16 * (register // 2)
            words[lane, 4 * register :][:4] = encoded_a[row, column : column + 4]
        for register in range(2):
            row = 4 * within + 16 * register
            words[lane, 16 + 4 * register :][:4] = encoded_b[row : row + 4, group]
        if within // 2 == pair:
            words[lane, 24 + byte] = 127 + powers_a[group + 8 * (within % 2)]
        if within == thread:
            words[lane, 28 + byte] = 127 + powers_b[group]
    out = np.zeros((32, 4), np.float32)
    with Module(ptx, sm=120) as module:
        module.launch("k", 1, 32, words, out)
    expected = a * 2.0 ** powers_a[:, None] @ (b * 2.0**powers_b) + 1
    for lane in range(32):
        for k in range(4):
            assert out[lane, k] == np.float32(expected[lane // 4 + 8 * (k // 2), lane % 4 * 2 + k % 2])
