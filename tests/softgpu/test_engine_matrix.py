"""Tensor core instructions, asynchronous copies and bf16 against numpy."""

from pathlib import Path

import numpy as np
import pytest

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
