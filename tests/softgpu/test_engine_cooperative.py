"""Cooperative launches: all blocks run together, on as many threads as there are."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.softgpu.engine import ROOT, EngineError, Module, Status

HEADER = ".version 7.0\n.target sm_75\n.address_size 64\n"

# Each block says something again and again, until it is told that this is enough.
TALKING = (
    HEADER
    + """
.extern .func (.param .b32 result) vprintf (.param .b64 format, .param .b64 arguments);
.global .align 1 .b8 text[2] = {46, 0};
.visible .entry k(.param .u64 p)
{
    .reg .b64 %rd<4>; .reg .b32 %r<3>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [p];
    mov.u64 %rd2, text;
    mov.u64 %rd3, 0;
AGAIN:
    {
        .param .b64 format; .param .b64 arguments; .param .b32 result;
        st.param.b64 [format], %rd2; st.param.b64 [arguments], %rd3;
        call.uni (result), vprintf, (format, arguments);
    }
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    ret;
}
"""
)

# In each of p[1] rounds every block adds itself to p[0] and waits until all have;
# the last block then writes to p[2] if that is wanted.
ROUNDS = (
    HEADER
    + """
.visible .entry k(.param .u64 p, .param .u32 rounds, .param .u64 fault)
{
    .reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .pred %p<4>;
    ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [rounds]; ld.param.u64 %rd2, [fault];
    mov.u32 %r2, %nctaid.x; mov.u32 %r3, 0; mov.u32 %r7, %ctaid.x; add.u32 %r7, %r7, 1;
ROUND:
    add.u32 %r3, %r3, %r2;
    atom.global.add.u32 %r4, [%rd1], 1;
WAIT:
    ld.volatile.global.u32 %r5, [%rd1];
    setp.lt.u32 %p1, %r5, %r3;
    @%p1 bra WAIT;
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p2, %r1, 0;
    @%p2 bra ROUND;
    setp.ne.u64 %p3, %rd2, 0;
    setp.eq.and.u32 %p3, %r7, %r2, %p3;
    @%p3 st.global.u32 [%rd2], %r1;
    @%p3 bra WAIT;
    ret;
}
"""
)

TWO_THREADS = """
import sys, threading
import numpy as np
from tests.softgpu.engine import Module, configure
configure(workers=2)
enough = np.zeros(1, np.int32)
threads = set()
def heard(text):
    threads.add(threading.get_native_id())
    enough[0] = len(threads) == 2
with Module(sys.argv[1]) as module:
    module.launch("k", 2, 1, enough, cooperative=True, on_print=heard)
print(len(threads))
"""

SHARE_OF_THREADS = """
import sys, threading
import numpy as np
from tests.softgpu.engine import Module, configure
configure(workers=4)
partition, expected = int(sys.argv[2]), int(sys.argv[3])
enough = np.zeros(1, np.int32)
threads, lines = set(), 0
def heard(text):
    global lines
    lines += 1
    threads.add(threading.get_native_id())
    enough[0] = len(threads) >= expected and lines > 4000
with Module(sys.argv[1]) as module:
    module.launch("k", 8, 1, enough, cooperative=True, on_print=heard, multiprocessors=8, partition=partition)
print(len(threads))
"""

EVERY_ROUND = """
import sys
import numpy as np
from tests.softgpu.engine import Module, configure
configure(workers=int(sys.argv[2]))
with Module(sys.argv[1]) as module:
    for blocks in (1, 2, 3, 7, 64):
        count = np.zeros(1, np.uint32)
        module.launch("k", blocks, 1, count, 50, np.uint64(0), cooperative=True)
        print(blocks, count[0])
"""


def in_own_process(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_blocks_run_on_several_threads() -> None:
    """Ends only when two threads have been heard of."""
    assert in_own_process(TWO_THREADS, TALKING) == "2\n"


@pytest.mark.parametrize(("partition", "threads"), [(0b1, 1), (0b110, 1), (0b11110000, 2)])
def test_part_of_the_multiprocessors_has_its_share_of_the_threads(partition: int, threads: int) -> None:
    """Four threads for eight multiprocessors: ends only when the share has been heard of, and a good while later."""
    assert in_own_process(SHARE_OF_THREADS, TALKING, str(partition), str(threads)) == f"{threads}\n"


@pytest.mark.parametrize("workers", ["1", "2", "5"])
def test_every_block_waits_for_all(workers: str) -> None:
    told = in_own_process(EVERY_ROUND, ROUNDS, workers)
    assert told.splitlines() == [f"{blocks} {50 * blocks}" for blocks in (1, 2, 3, 7, 64)]


def test_error_of_one_block_ends_those_that_wait() -> None:
    count = np.zeros(1, np.uint32)
    with Module(ROUNDS) as module:
        for _ in range(3):
            count[0] = 0
            with pytest.raises(EngineError) as caught:
                module.launch("k", 16, 1, count, 40, np.uint64(16), cooperative=True)
            assert caught.value.status == Status.ILLEGAL_ADDRESS
            assert "block (15,0,0)" in caught.value.text
        count[0] = 0
        module.launch("k", 16, 1, count, 40, np.uint64(0), cooperative=True)
    assert count[0] == 16 * 40


def test_watchdog_ends_a_barrier_that_not_all_reach() -> None:
    count = np.full(1, 1 << 31, np.uint32)
    endless = ROUNDS.replace("setp.lt.u32 %p1, %r5, %r3", "setp.ne.u32 %p1, %r5, 7")
    with Module(endless) as module, pytest.raises(EngineError) as caught:
        module.launch("k", 8, 1, count, 1, np.uint64(0), cooperative=True, timeout_ns=30_000_000)
    assert caught.value.status == Status.TIMEOUT
