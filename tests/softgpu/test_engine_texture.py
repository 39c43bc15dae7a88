"""Texture fetches and surface accesses against numpy."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.softgpu.engine import (
    BORDER,
    CLAMP,
    MIRROR,
    WRAP,
    EngineError,
    Module,
    Status,
    add_texture,
    compile_cuda,
    library,
    nvcc,
)

pytestmark = pytest.mark.skipif(nvcc() is None, reason="kernels are compiled with nvcc, which is not installed")


@pytest.fixture(scope="module", params=["sm_75", "sm_90"])
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    source = Path(__file__).parent / "kernels/texture.cu"
    out = tmp_path_factory.mktemp("texture") / "texture.ptx"
    with Module(compile_cuda(source, out, arch=request.param)) as module:
        yield module


# ---- the reference: CUDA C++ Programming Guide, "Texture Fetching" ----


def placed(index: np.ndarray, size: int, mode: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices by the address mode, and where they are inside."""
    inside = (index >= 0) & (index < size)
    if mode == WRAP:
        return index % size, np.ones_like(inside)
    if mode == MIRROR:
        folded = index % (2 * size)
        return np.where(folded < size, folded, 2 * size - 1 - folded), np.ones_like(inside)
    return np.clip(index, 0, size - 1), inside if mode == BORDER else np.ones_like(inside)


def as_floats(values: np.ndarray, *, srgb: bool) -> np.ndarray:
    if values.dtype.kind == "f":
        return values.astype(np.float64)
    largest = np.iinfo(values.dtype).max
    floats = np.maximum(values / largest, -1.0)
    if srgb:
        curve = np.where(floats <= 0.04045, floats / 12.92, ((floats + 0.055) / 1.055) ** 2.4).astype(np.float32)
        floats = np.where(np.arange(values.shape[-1]) < 3, curve, floats)
    return floats


def reference(
    values: np.ndarray,
    at: np.ndarray,
    *,
    mode: int = CLAMP,
    linear: bool = False,
    normalized: bool = False,
    srgb: bool = False,
    border: tuple[float, ...] = (0, 0, 0, 0),
) -> np.ndarray:
    """Fetch at each row (x, y, z) of `at` from an array [z,] [y,] x, channel."""
    floats = as_floats(values, srgb=srgb)
    sizes = values.shape[:-1][::-1]
    near, weight = [], []
    for axis, size in enumerate(sizes):
        x = at[:, axis].astype(np.float32)
        if normalized:
            if mode == WRAP:
                x = x - np.floor(x)
            elif mode == MIRROR:
                x = x - 2 * np.floor(x / 2)
            x = (x * np.float32(size)).astype(np.float32)
        position = x.astype(np.float64)
        if linear:
            fixed = np.floor((position - 0.5) * 256 + 0.5).astype(np.int64)
            near.append(fixed >> 8)
            weight.append((fixed & 255) / 256)
        else:
            near.append(np.floor(position).astype(np.int64))
            weight.append(np.zeros(len(x)))
    total = np.zeros((len(at), values.shape[-1]))
    for corner in itertools.product((0, 1), repeat=len(sizes)):
        factor = np.ones(len(at))
        inside = np.ones(len(at), bool)
        index = []
        for axis, far in enumerate(corner):
            factor = factor * (weight[axis] if far else 1 - weight[axis])
            place, within = placed(near[axis] + far, sizes[axis], mode)
            index.append(place)
            inside &= within
        texel = floats[tuple(reversed(index))]
        texel = np.where(inside[:, None], texel, np.array(border[: values.shape[-1]]))
        total += np.where(factor[:, None] > 0, factor[:, None] * texel, 0)
    return total.astype(np.float32)


def texels(shape: tuple[int, ...], kind: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if np.dtype(kind).kind == "f":
        return rng.standard_normal(shape).astype(kind)
    info = np.iinfo(kind)
    return rng.integers(info.min, info.max, shape, dtype=kind, endpoint=True)


def coordinates(sizes: tuple[int, ...], *, normalized: bool, seed: int) -> np.ndarray:
    """Inside, on the edges and the middles between texels, and well outside."""
    rng = np.random.default_rng(seed)
    columns = []
    for size in sizes:
        special = [0, 0.5, 1, size / 2, size - 0.5, size, size + 0.25, -0.5, -1e-6, 1 / 512, 3 / 512]
        column = np.concatenate([rng.uniform(-1.7 * size, 2.7 * size, 300), rng.choice(special, 100)])
        columns.append(rng.permutation(column) / (size if normalized else 1))
    return np.stack(columns, 1).astype(np.float32)


def fetched(kernels: Module, name: str, handle: np.uint64, at: np.ndarray, channels: int) -> np.ndarray:
    out = np.full((len(at), 4), np.nan, np.float32)
    kernels.launch(name, (len(at) + 63) // 64, 64, handle, np.ascontiguousarray(at), out, len(at))
    library().engine_texture_remove(int(handle))
    assert (out[:, channels:] == [0, 0, 0, 1][channels:]).all()
    return out[:, :channels]


@pytest.mark.parametrize("linear", [False, True], ids=["point", "linear"])
@pytest.mark.parametrize(("mode", "normalized"), [(WRAP, True), (MIRROR, True), (CLAMP, True), (BORDER, True),
                                                  (CLAMP, False), (BORDER, False)])  # fmt: skip
@pytest.mark.parametrize(("name", "sizes"), [("fetch_1d", (17,)), ("fetch_2d", (13, 6)), ("fetch_3d", (7, 5, 4))])
def test_fetch(kernels: Module, name: str, sizes: tuple[int, ...], mode: int, normalized: bool, linear: bool) -> None:
    values = texels((*sizes[::-1], 2), "f4", mode)
    at = coordinates(sizes, normalized=normalized, seed=mode + 7)
    border = (2.5, -1.25, 0.0, 0.0)
    handle = add_texture(values, mode=mode, linear=linear, normalized_coordinates=normalized, border=border)
    got = fetched(kernels, name, handle, at, 2)
    expected = reference(values, at, mode=mode, linear=linear, normalized=normalized, border=border)
    np.testing.assert_allclose(got, expected, rtol=2e-7, atol=1e-6 if linear else 0)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("u1", {}), ("i1", {}), ("u2", {}), ("i2", {}), ("f2", {}), ("u1", {"srgb": True})],
    ids=["u8", "s8", "u16", "s16", "f16", "srgb"],
)
def test_formats_that_become_floats(kernels: Module, kind: str, options: dict[str, Any]) -> None:
    values = texels((6, 13, 4), kind, 3)
    at = coordinates((13, 6), normalized=False, seed=2)
    for linear in (False, True):
        handle = add_texture(values, linear=linear, normalized_values=np.dtype(kind).kind != "f", **options)
        got = fetched(kernels, "fetch_2d", handle, at, 4)
        expected = reference(values, at, linear=linear, srgb=bool(options))
        np.testing.assert_allclose(got, expected, rtol=2e-7, atol=1e-6 if linear else 1e-9)


@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "u4", "i4"])
def test_integers_are_not_filtered(kernels: Module, kind: str) -> None:
    values = texels((6, 13, 4), kind, 4)
    at = coordinates((13, 6), normalized=False, seed=5)
    out = np.zeros((len(at), 4), np.int32)
    handle = add_texture(values, linear=True)
    kernels.launch("fetch_integers", len(at) // 50, 50, handle, at, out, len(at))
    x, y = (np.clip(np.floor(at[:, k]), 0, size - 1).astype(int) for k, size in enumerate((13, 6)))
    np.testing.assert_array_equal(out, values[y, x].astype(np.uint32 if kind == "u4" else np.int32).view(np.int32))


@pytest.mark.parametrize(("name", "shape"), [("fetch_1d_layer", (5, 17, 1)), ("fetch_2d_layer", (5, 6, 13, 1))])
def test_layers(kernels: Module, name: str, shape: tuple[int, ...]) -> None:
    values = texels(shape, "f4", 8)
    sizes = shape[1:-1][::-1]
    at = coordinates(sizes, normalized=False, seed=6)
    layer = np.arange(len(at)) % 7  # the last two are clamped
    handle = add_texture(values, layered=True, linear=True)
    rows = np.concatenate([at, layer[:, None].astype(np.float32)], 1)
    got = fetched(kernels, name, handle, rows, 1)
    for k in range(7):
        expected = reference(values[min(k, 4)], at[layer == k], linear=True)
        np.testing.assert_allclose(got[layer == k], expected, rtol=2e-7, atol=1e-6)


def test_cube_faces(kernels: Module) -> None:
    values = np.repeat(np.arange(6, dtype=np.float32), 16).reshape(6, 4, 4, 1)
    directions = np.array([[2, 1, -1], [-2, 1, 1], [1, 3, 1], [0, -3, 1], [1, 1, 2], [1, 0, -2]], np.float32)
    handle = add_texture(values, layered=True, normalized_coordinates=True)
    assert fetched(kernels, "fetch_cube", handle, directions, 1).ravel().tolist() == [0, 1, 2, 3, 4, 5]


def test_level_zero_is_the_texture(kernels: Module) -> None:
    values = texels((6, 13, 1), "f4", 1)
    at = coordinates((13, 6), normalized=False, seed=1)
    got = fetched(kernels, "fetch_level", add_texture(values, linear=True), at, 1)
    np.testing.assert_allclose(got, reference(values, at, linear=True), rtol=2e-7, atol=1e-6)


def test_gather_takes_the_four_texels_of_the_filter(kernels: Module) -> None:
    values = texels((6, 13, 4), "f4", 11)
    out = np.zeros((1, 4), np.float32)
    kernels.launch("gather", 1, 1, add_texture(values), np.array([[5.2, 2.1]], np.float32), out, 1)
    assert out[0].tolist() == values[[2, 2, 1, 1], [4, 5, 5, 4], 2].tolist()


def test_indices_outside_give_zero(kernels: Module) -> None:
    values = texels((20, 4), "f4", 12)
    at = np.array([0, 19, 20, -1, 7], np.int32)
    out = np.zeros((5, 4), np.float32)
    kernels.launch("fetch_index", 1, 5, add_texture(values), at, out, 5)
    np.testing.assert_array_equal(out, [values[0], values[19], np.zeros(4), np.zeros(4), values[7]])


def test_sizes_can_be_asked_for(kernels: Module) -> None:
    values = texels((3, 5, 7, 1), "f4", 1)
    out = np.zeros(4, np.int32)
    kernels.launch("sizes", 1, 1, add_texture(values), add_texture(values, surface=True), out)
    assert out.tolist() == [7, 5, 3, 7]


# ---- surfaces ----


def test_surface_copy(kernels: Module) -> None:
    values = texels((9, 40, 4), "u1", 13)
    out = np.zeros_like(values)
    handles = add_texture(values, surface=True), add_texture(out, surface=True)
    kernels.launch("copy_surface", (2, 9), 32, *handles, 40, 9)
    np.testing.assert_array_equal(out, values[:, ::-1])


def test_surface_boundaries(kernels: Module) -> None:
    values = np.arange(40, dtype=np.int32).reshape(4, 10, 1)
    out = np.zeros(3, np.int32)
    kernels.launch("surface_edges", 1, 1, add_texture(values, surface=True), out)
    assert out.tolist() == [0, 10, 39]
    assert values[0, :, 0].tolist() == [*range(9), 77]


@pytest.mark.parametrize("layered", [False, True])
def test_surface_volume(kernels: Module, layered: bool) -> None:
    values = np.zeros((3, 4, 5, 2), np.int16)
    kernels.launch("surface_volume", 1, (5, 4, 3), add_texture(values, surface=True, layered=layered), int(layered))
    z, y, x = np.indices((3, 4, 5))
    np.testing.assert_array_equal(values, np.stack([x * 10 + y, z], -1))


def test_surface_access_outside_fails(kernels: Module) -> None:
    values = np.zeros((4, 10, 1), np.int32)
    with pytest.raises(EngineError, match="outside") as caught:
        kernels.launch("surface_trap", 1, 1, add_texture(values, surface=True))
    assert caught.value.status == Status.LAUNCH_FAILED


@pytest.mark.parametrize("handle", [0, 1, 1 << 63 | 5, 0xFFFFFFFF])
def test_a_handle_of_nothing_fails(kernels: Module, handle: int) -> None:
    with pytest.raises(EngineError, match="no texture object") as caught:
        kernels.launch("fetch_index", 1, 1, np.uint64(handle), np.zeros(1, np.int32), np.zeros(4, np.float32), 1)
    assert caught.value.status == Status.ILLEGAL_ADDRESS
