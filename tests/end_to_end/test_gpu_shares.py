"""Two jobs have a share of one GPU each: at one time, and no more memory than is theirs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Cluster

PROGRAM = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
context, total, address = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_uint64()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
ask = lambda mib: cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib << 20))
said = [total.value >> 20, ask(600), ask(500), ask(1)]
# Each waits for the other, which holds its memory too: a FIFO opens when both ends do.
open(sys.argv[1], sys.argv[2]).close()
print(json.dumps(said))
"""


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Cluster]:
    """One GPU of 1 GiB in two shares on alpha; beta has none."""
    cluster = Cluster(tmp_path)
    cluster.runtime.chmod(0o700)
    up = cluster.run("up", "--detach", "--nodes", "alpha:1,beta:0", "--gpu-shares", "2", "--gpu-memory", "1GiB")
    assert up.returncode == 0, up.stderr
    assert "in 2 shares" in up.stdout + up.stderr
    try:
        yield cluster
    finally:
        down = cluster.run("down")
        assert down.returncode == 0, down.stderr


def test_two_jobs_share_a_gpu_and_each_has_its_part_of_the_memory(shared: Cluster) -> None:
    meeting = shared.runtime / "meeting"
    os.mkfifo(meeting)
    jobs = [
        shared.start(
            "submit", "--follow", "--quiet", "--gpus", "1", "--gpu-share", "1/2", "--node", node, "--",
            sys.executable, "-c", PROGRAM, meeting, mode,
        )
        for node, mode in (("alpha", "w"), ("beta", "r"))
    ]  # fmt: skip
    said = [job.communicate(timeout=120)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], said
    # 512 MiB are theirs; CUDA_ERROR_OUT_OF_MEMORY is 2.
    assert [json.loads(text) for text in said] == [[512, 2, 0, 0]] * 2


def test_a_whole_gpu_is_not_to_be_had_there(shared: Cluster) -> None:
    done = shared.run("submit", "--check", "--gpus", "1", "--", "true")
    assert done.returncode != 0
    assert "all GPUs of the cluster are offered in shares" in done.stderr
    assert "ask for less" not in done.stderr
