"""Barriers in memory, bulk copies and clusters, as CUDA's headers use them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.softgpu.engine import EngineError, Module, Status, compile_cuda, nvcc

pytestmark = pytest.mark.skipif(nvcc() is None, reason="kernels are compiled with nvcc, which is not installed")


ARCHITECTURES = ["sm_75", "sm_80", "sm_90", "sm_120"]


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory):
    """cluster.cu as a module for each architecture, compiled when it is first asked for."""
    found: dict[str, Module] = {}

    def module(arch: str) -> Module:
        if arch not in found:
            source = Path(__file__).parent / "kernels/cluster.cu"
            found[arch] = Module(compile_cuda(source, tmp_path_factory.mktemp(arch) / "cluster.ptx", arch=arch))
        return found[arch]

    yield module
    for each in found.values():
        each.unload()


@pytest.fixture(params=ARCHITECTURES)
def barriers(request: pytest.FixtureRequest, modules: Callable[[str], Module]) -> Module:
    return modules(request.param)


@pytest.fixture(params=ARCHITECTURES[2:])
def clusters(request: pytest.FixtureRequest, modules: Callable[[str], Module]) -> Module:
    return modules(request.param)


def test_a_barrier_counts_copies_and_arrivals(barriers: Module) -> None:
    values = np.arange(768, dtype=np.int32)
    out = np.zeros(768, np.int32)
    barriers.launch("barrier_copy", 1, 256, values, out)
    np.testing.assert_array_equal(out, values.reshape(3, 256)[:, ::-1].ravel())


def test_producers_wait_for_consumers(barriers: Module) -> None:
    out = np.zeros(128, np.int32)
    barriers.launch("producers_and_consumers", 1, 128, out)
    totals = [sum(k for k in range(n + 1) if k % 2 == n % 2) * 64 for n in range(10)]
    assert out.tolist() == [0] * 64 + [sum(totals)] * 64


def test_threads_that_drop_out_are_expected_no_more(barriers: Module) -> None:
    out = np.zeros(96, np.int32)
    barriers.launch("drop_out", 1, 96, out)
    assert out[::2].tolist() == [7096] * 48


def test_a_pipeline_of_two_stages(barriers: Module) -> None:
    values = np.random.default_rng(3).integers(0, 1000, (7, 128), np.int32)
    out = np.zeros(128, np.int32)
    barriers.launch("pipeline_copy", 1, 128, values, out, 7)
    np.testing.assert_array_equal(out, values.sum(axis=0)[np.arange(128) ^ 1])


def test_blocks_of_a_cluster_see_each_others_shared_memory(clusters: Module) -> None:
    out = np.zeros((6, 64), np.int32)
    clusters.launch("neighbours", 6, 64, out)
    threads = np.arange(64)
    for block in range(6):
        added = 1000 * (2 - block % 2)
        expected = threads + 100 * (block ^ 1) + 10000 * (threads + 100 * block + added)
        np.testing.assert_array_equal(out[block], expected)


@pytest.mark.parametrize("blocks", [1, 2, 8])
def test_a_histogram_spread_over_a_cluster(clusters: Module, blocks: int) -> None:
    values = np.random.default_rng(blocks).integers(0, 1 << 30, 20_000, np.uint32)
    out = np.zeros(256, np.uint32)
    clusters.launch(
        "cluster_histogram", 16, 128, values, out, len(values), 256, shared=256 // blocks * 4, cluster=blocks
    )
    np.testing.assert_array_equal(out, np.bincount(values % 256, minlength=256))


def test_blocks_know_their_place(clusters: Module) -> None:
    out = np.zeros((4, 6, 4, 8), np.uint32)
    clusters.launch("places", (4, 6, 4), 1, out, cluster=(2, 3, 1))
    z, y, x = np.indices((4, 6, 4))
    for column, expected in enumerate([x % 2, y % 3, z * 0, x % 2 + y % 3 * 2, 231, 6, x // 2, 2]):
        np.testing.assert_array_equal(out[..., column], np.broadcast_to(expected, x.shape))


def test_multicast_copies_to_every_block(clusters: Module) -> None:
    values = np.arange(128, dtype=np.int32) * 3
    out = np.zeros((8, 128), np.int32)
    clusters.launch("multicast", 8, 128, values, out)
    np.testing.assert_array_equal(out, np.broadcast_to(values, (8, 128)))


def test_asynchronous_stores_go_round_a_ring(clusters: Module) -> None:
    out = np.zeros((4, 4), np.int32)
    clusters.launch("ring", 4, 1, out)
    assert out.tolist() == [[(rank - 1) % 4 * k for k in (1, 2, 3, 4)] for rank in range(4)]


def test_bulk_reduction(clusters: Module) -> None:
    values = np.random.default_rng(9).integers(0, 1 << 32, (50, 64), np.uint32)
    sums = np.zeros(64, np.uint32)
    clusters.launch("bulk_reduce", 50, 64, values, sums)
    np.testing.assert_array_equal(sums, values.sum(axis=0, dtype=np.uint32))


def test_grid_that_clusters_do_not_divide(clusters: Module) -> None:
    with pytest.raises(EngineError, match="do not divide the grid") as caught:
        clusters.launch("neighbours", 5, 64, np.zeros(320, np.int32))
    assert caught.value.status == Status.LAUNCH_FAILED


def test_deadlock_in_a_cluster_is_found(clusters: Module) -> None:
    with pytest.raises(EngineError, match="deadlock"):
        clusters.launch("one_block_leaves", 2, 64)


def test_address_beyond_the_cluster(clusters: Module) -> None:
    with pytest.raises(EngineError, match="cluster of 2 blocks") as caught:
        clusters.launch("beyond_the_cluster", 2, 1, np.zeros(1, np.int32))
    assert caught.value.status == Status.LAUNCH_FAILED
