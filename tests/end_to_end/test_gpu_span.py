"""A program with GPUs of two nodes: its own node's and another's, numbered as one list."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Cluster

PROGRAM = """
import ctypes, json, os
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
count = ctypes.c_int()
assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
memory, contexts = [], []
for device in range(count.value):
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096)) == 0
    memory.append(address)
    contexts.append(context)
assert cuda.cuCtxSetCurrent(contexts[0]) == 0
assert cuda.cuMemsetD32_v2(memory[0], 17, ctypes.c_size_t(1024)) == 0
assert cuda.cuMemcpyPeer(memory[1], contexts[1], memory[0], contexts[0], ctypes.c_size_t(4096)) == 0
value = ctypes.c_uint32()
assert cuda.cuMemcpyDtoH_v2(ctypes.byref(value), memory[1], ctypes.c_size_t(4)) == 0
servers = [line for line in open(os.environ["FARBUS_SESSION"]) if line.startswith("server ")]
print(json.dumps([count.value, value.value, len(servers)]))
"""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    """A GPU at each of alpha and beta; gamma has none."""
    cluster = Cluster(tmp_path)
    cluster.runtime.chmod(0o700)
    up = cluster.run("up", "--detach", "--nodes", "alpha:1,beta:1,gamma:0")
    assert up.returncode == 0, up.stderr
    try:
        yield cluster
    finally:
        down = cluster.run("down")
        assert down.returncode == 0, down.stderr


def test_a_program_has_gpus_of_two_nodes_where_it_says_so(pair: Cluster) -> None:
    refused = pair.run("submit", "--check", "--gpus", "2", "--", sys.executable, "-c", PROGRAM)
    assert "2 GPUs on one node wanted" in refused.stdout + refused.stderr
    for node in ("alpha", "gamma"):
        # Of alpha's two, one is its own; both are other nodes' for gamma.
        done = pair.run(
            "submit", "--follow", "--quiet", "--gpus", "2", "--gpu-span", "--node", node, "--",
            sys.executable, "-c", PROGRAM,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout) == [2, 17, 2]
    done = pair.run("run", "--quiet", "--gpus", "2", "--gpu-span", "--", sys.executable, "-c", PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == [2, 17, 2]
    # The leases of all nodes have ended with their programs.
    assert pair.ask("leases") == []
