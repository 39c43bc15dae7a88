"""What a software GPU says of an error stands on the program's own stderr, before the program has the error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remoting.harness import Remote, remote_session

pytestmark = pytest.mark.skipif("FARBUS_TEST_LIBCUDA" in os.environ, reason="NVIDIA's driver has other words")

#: Runs what it is given with ``driver``, a context and the functions below.
BEGIN = """
import ctypes, os, sys
driver = ctypes.CDLL("libcuda.so.1")
context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
assert not driver.cuInit(0)
assert not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not driver.cuCtxSetCurrent(context)
def say(line):
    os.write(2, line.encode() + b"\\n")
def kernel(body):
    head = ".version 8.0\\n.target sm_80\\n.address_size 64\\n"
    return (head + ".visible .entry k() { .reg .b64 %rd1; " + body + " }").encode()
def load(text):
    return driver.cuModuleLoadData(ctypes.byref(module), text)
def launch():
    assert not driver.cuModuleGetFunction(ctypes.byref(function), module, b"k")
    return driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
"""

NAME = "Farbus Software GPU"

WAYS = pytest.mark.parametrize("transport", ["shm", "tcp"])


def said(remote: Remote, script: str, **changes: str) -> list[str]:
    """The lines of its stderr."""
    done = remote.run(sys.executable, "-c", BEGIN + script, **changes)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@WAYS
def test_which_kernel_failed_and_where_is_told_before_its_error(lease: Callable[..., Remote], transport: str) -> None:
    script = """
assert load(kernel("mov.u64 %rd1, 8; st.global.u64 [%rd1], %rd1; ret;")) == 0 and launch() == 0
say(f"error {driver.cuCtxSynchronize()}")
"""
    line, error = said(lease(), script, FARBUS_TRANSPORT=transport)
    assert line == "softgpu: kernel k ended early: illegal address 0x8 in k block (0,0,0), PTX line 4"
    assert error == "error 700"


@WAYS
def test_a_kernel_that_can_not_run_says_why_before_its_launch_returns(
    lease: Callable[..., Remote], transport: str
) -> None:
    script = """
assert load(kernel("tcgen05.fence::after_thread_sync; ret;")) == 0
launch()
say(f"error {driver.cuCtxSynchronize()}")
"""
    lines = said(lease(), script, FARBUS_TRANSPORT=transport)
    missing = "tcgen05.fence::after_thread_sync is not implemented by the software GPU"
    named = f"softgpu: kernel k can't run: PTX line 4: {missing}"
    assert named in lines[: lines.index("error 801")]


def test_a_program_finds_it_in_the_log_of_the_driver(lease: Callable[..., Remote]) -> None:
    script = """
assert load(kernel("mov.u64 %rd1, 8; st.global.u64 [%rd1], %rd1; ret;")) == 0 and launch() == 0
assert driver.cuCtxSynchronize() == 700
text, size = ctypes.create_string_buffer(4096), ctypes.c_size_t(4096)
assert not driver.cuLogsDumpToMemory(None, text, ctypes.byref(size), 0)
sys.stderr.write(text.value.decode())
"""
    line, logged = said(lease(), script)
    assert line == logged
    assert "illegal address 0x8" in line


def test_a_line_that_is_too_long_for_the_log_is_one_line_there(
    driver_before: Callable[[str], Path], tmp_path: Path
) -> None:
    script = """
assert driver.cuCtxSynchronize() == 0
text, size = ctypes.create_string_buffer(4096), ctypes.c_size_t(4096)
assert not driver.cuLogsDumpToMemory(None, text, ctypes.byref(size), 0)
sys.stderr.write(text.value.decode())
"""
    with remote_session(libcuda=driver_before("talking_driver"), folder=tmp_path, environment={}) as remote:
        whole, short, *logged = said(remote, script)
    assert (whole, short) == (f"softgpu: {'a' * 590}", f"softgpu: {'b' * 10}")
    assert logged == [whole[:510], short]


@WAYS
def test_a_callback_of_the_log_may_call_cuda_and_has_been_told_when_the_call_returns(
    lease: Callable[..., Remote], transport: str
) -> None:
    """Who reads the line reads for all, also what the callback would wait for."""
    script = """
@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
def told(opaque, level, line, length):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    say(f"told {ctypes.string_at(line, 16)}, {driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))}")
handle = ctypes.c_void_p()
assert not driver.cuLogsRegisterCallback(told, None, ctypes.byref(handle))
assert load(kernel("mov.u64 %rd1, 8; st.global.u64 [%rd1], %rd1; ret;")) == 0 and launch() == 0
say(f"error {driver.cuCtxSynchronize()}")
"""
    line, told, error = said(lease(), script, FARBUS_TRANSPORT=transport)
    assert line.startswith("softgpu: kernel k ended early")
    assert (told, error) == ("told b'softgpu: kernel ', 700", "error 700")


@WAYS
def test_a_standard_error_that_nobody_reads_keeps_no_call_from_its_error(
    lease: Callable[..., Remote], transport: str
) -> None:
    """The line is in the log alone; the next one is not waited for."""
    script = """
import fcntl
read, write = os.pipe2(os.O_NONBLOCK)
try:
    while True:
        os.write(write, bytes(4096))
except BlockingIOError:
    fcntl.fcntl(write, fcntl.F_SETFL, 0)
kept = os.dup(2)
os.dup2(write, 2)
assert load(kernel("mov.u64 %rd1, 8; st.global.u64 [%rd1], %rd1; ret;")) == 0 and launch() == 0
result = driver.cuCtxSynchronize()
os.dup2(kept, 2)
text, size = ctypes.create_string_buffer(4096), ctypes.c_size_t(4096)
assert not driver.cuLogsDumpToMemory(None, text, ctypes.byref(size), 0)
say(f"{result} {text.value.decode()}")
"""
    line, *_ = said(lease(), script, FARBUS_TRANSPORT=transport)
    assert line.startswith("700 softgpu: kernel k ended early")


@pytest.mark.parametrize(
    ("text", "result", "why"),
    [
        ('kernel("bogus.u32 %rd1;")', 218, "PTX line 4: unknown instruction 'bogus.u32', in function k"),
        ('b"rubbish"', 200, "PTX line 1: does not start with .version"),
        ('kernel("ret;").replace(b"8.0", b"99.0")', 222, "PTX line 1: .version 99.0 is newer than 9.x"),
    ],
)
def test_an_image_that_is_refused_is_named_with_the_reason(
    lease: Callable[..., Remote], text: str, result: int, why: str
) -> None:
    lines = said(lease(), f"say(str(load({text})))")
    assert lines[1:] == [str(result)]
    assert lines[0].startswith("farbus: the kernel image of ")
    assert f" bytes in memory can't be loaded by the driver of {NAME} (compute capability 9.0): {why}" in lines[0]


def test_a_program_that_asks_why_is_told_by_its_own_log_alone(lease: Callable[..., Remote]) -> None:
    script = """
text = ctypes.create_string_buffer(200)
options = (ctypes.c_int * 2)(5, 6)
values = (ctypes.c_void_p * 2)(ctypes.addressof(text), 200)
say(str(driver.cuModuleLoadDataEx(ctypes.byref(module), kernel("bogus.u32 %rd1;"), 2, options, values)))
say(text.value.decode())
"""
    assert said(lease(), script) == ["218", "PTX line 4: unknown instruction 'bogus.u32', in function k"]
