"""What is known is answered in the program: no message goes to the server."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remoting.harness import SANITIZED, Remote, remote_session
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_failures import wait_until
from tests.remoting.test_images import ptx

#: Ask everything so many times.  What is asked may cost a message the first time, and none later.
ASKER = """
import ctypes, sys
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
driver = ctypes.CDLL("libcuda.so.1")
def check(name, *arguments):
    result = getattr(driver, name)(*arguments)
    assert result == 0, (name, result)
check("cuInit", 0)
context, word, module, function = c_void_p(), c_uint64(), c_void_p(), c_void_p()
check("cuDevicePrimaryCtxRetain", byref(context), 0)
check("cuCtxSetCurrent", context)
check("cuMemAlloc_v2", byref(word), c_size_t(4096))
check("cuModuleLoadData", byref(module), open(sys.argv[1], "rb").read())
check("cuModuleGetFunction", byref(function), module, b"store")
number, other, size, bytes = c_int(), c_int(), c_size_t(), ctypes.create_string_buffer(256)
for _ in range(int(sys.argv[2])):
    check("cuFuncSetAttribute", function, 8, 60000)
    check("cuKernelSetAttribute", 8, 60000, function, 0)
    for attribute in range(1, 10):
        check("cuFuncGetAttribute", byref(number), attribute, function)
        check("cuKernelGetAttribute", byref(number), attribute, function, 0)
    for attribute in range(1, 100):
        check("cuDeviceGetAttribute", byref(number), attribute, 0)
    check("cuDeviceGetName", bytes, 256, 0)
    check("cuDeviceGetUuid_v2", bytes, 0)
    check("cuDeviceGetPCIBusId", bytes, 256, 0)
    check("cuDeviceTotalMem_v2", byref(size), 0)
    check("cuDeviceGetByPCIBusId", byref(number), bytes)
    check("cuDevicePrimaryCtxGetState", 0, byref(number), byref(other))
    check("cuCtxGetDevice", byref(number))
    check("cuCtxGetApiVersion", context, byref(number))
    check("cuCtxGetFlags", byref(number))
    check("cuCtxGetCacheConfig", byref(number))
    check("cuCtxGetStreamPriorityRange", byref(number), byref(other))
    for limit in (0, 1, 2):
        check("cuCtxGetLimit", byref(size), limit)
    for attribute in (1, 2, 3, 7, 9, 11):
        check("cuPointerGetAttribute", bytes, attribute, word)
    check("cuMemGetAddressRange_v2", byref(c_uint64()), byref(size), word)
    check("cuFuncGetParamInfo", function, c_size_t(0), byref(size), byref(size))
    check("cuFuncGetName", byref(c_void_p()), function)
    for block in (32, 64, 128, 256):
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(number), function, block, c_size_t(0))
    check("cuOccupancyAvailableDynamicSMemPerBlock", byref(size), function, 2, 128)
    check("cuOccupancyMaxPotentialBlockSize", byref(number), byref(other), function, None, c_size_t(0), 0)
"""

#: What is remembered is not what was so before it was set.
SETTER = """
import ctypes, sys
from ctypes import byref, c_size_t
exec(open(sys.argv[3]).read().partition("number, other")[0])
size, other = c_size_t(), c_size_t()
check("cuCtxGetLimit", byref(size), 1)
check("cuCtxSetLimit", 1, c_size_t(size.value * 2))
check("cuCtxGetLimit", byref(other), 1)
assert other.value == size.value * 2, other
blocks, fewer = ctypes.c_int(), ctypes.c_int()
check("cuFuncSetAttribute", function, 8, 60000)
check("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(blocks), function, 32, c_size_t(60000))
check("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(fewer), function, 32, c_size_t(0))
assert 0 < blocks.value < fewer.value
"""


#: Launches in clusters of two blocks, so many times; then what the driver refuses, and a cluster again.
CLUSTERS = """
import ctypes, sys
exec(open(sys.argv[3]).read().partition("number, other")[0])
class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", c_uint * 16)]
class Config(ctypes.Structure):
    _fields_ = [("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint), ("stream", c_void_p),
                ("attributes", ctypes.POINTER(Attribute)), ("count", c_uint)]
def launch(blocks, cluster):
    attribute = Attribute(4, 0, (c_uint * 16)(cluster, 1, 1, *range(7, 20)))
    config = Config((c_uint * 3)(blocks, 1, 1), (c_uint * 3)(32, 1, 1), 0, None, ctypes.pointer(attribute), 1)
    parameters = (c_void_p * 1)(ctypes.addressof(word))
    return driver.cuLaunchKernelEx(byref(config), function, parameters, None)
assert launch(4, 2) == 0
for times in range(int(sys.argv[2])):
    assert launch(2 * times + 2, 2) == 0
assert launch(3, 2) == 912, launch(3, 2)
assert launch(4, 0) == 912
assert launch(4, 64) == 912
check("cuFuncSetAttribute", function, 14, 1)
assert launch(4, 2) == 0
check("cuCtxSynchronize")
"""


#: Cooperative grids of so many blocks and of fewer, so many times; too many of them, and as many as ever.
COOPERATIVE = """
import ctypes, sys
exec(open(sys.argv[3]).read().partition("number, other")[0])
def launch(blocks, threads=32, shared=0):
    parameters = (c_void_p * 1)(ctypes.addressof(word))
    return driver.cuLaunchCooperativeKernel(function, blocks, 1, 1, threads, 1, 1, shared, None, parameters)
most, processors = c_int(), c_int()
check("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(most), function, 32, c_size_t(0))
check("cuDeviceGetAttribute", byref(processors), 16, 0)
most = most.value * processors.value
assert launch(most) == 0
for times in range(int(sys.argv[2])):
    assert launch(most) == 0
    assert launch(1 + times % most) == 0
assert launch(most + 1) == 720, launch(most + 1)
assert launch(most, 1024) == 720
assert launch(most, 32, 40000) == 720
check("cuFuncSetAttribute", function, 8, 60000)
assert launch(most) == 0
check("cuCtxSynchronize")
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "store.ptx"
    path.write_bytes(ptx(1, 0) + b"\0")
    return path


def calls(remote: Remote, *arguments: str | Path) -> int:
    before = remote.supervisor.sessions.ended
    done = remote.run(sys.executable, "-c", *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    wait_until(lambda: remote.supervisor.sessions.ended.sessions > before.sessions, "the session has ended")
    return remote.supervisor.sessions.ended.calls - before.calls


def test_what_is_asked_again_goes_to_nobody(remote: Remote, image: Path) -> None:
    never, once, often = (calls(remote, ASKER, image, times) for times in ("0", "1", "20"))
    assert once == often
    # Limits, priorities, an attribute and occupancy: once each.  All else came with the hello and the load.
    assert once - never <= 3 + 1 + 1 + 4 + 1 + 64


@pytest.mark.parametrize("launches", [CLUSTERS, COOPERATIVE], ids=["clusters", "cooperative"])
def test_what_fitted_at_once_fits_again(remote: Remote, image: Path, tmp_path: Path, launches: str) -> None:
    """Such a launch is posted: it brings no answer."""
    (tmp_path / "asker.py").write_text(ASKER)

    def answered(times: int) -> int:
        before = remote.supervisor.sessions.ended.sent_bytes
        calls(remote, launches, image, str(times), tmp_path / "asker.py")
        return remote.supervisor.sessions.ended.sent_bytes - before

    assert answered(1) == answered(20)


def messages(remote: Remote, program: Path, times: int, *more: str) -> int:
    before = remote.supervisor.sessions.ended
    done = remote.run(program, str(times), *more)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: remote.supervisor.sessions.ended.sessions > before.sessions, "the session has ended")
    return remote.supervisor.sessions.ended.calls - before.calls


def test_whether_a_stream_is_captured_is_known_while_none_is(remote: Remote, tmp_path: Path) -> None:
    program = build_calls("posting/captured_before", tmp_path)
    # A message for each copy.
    assert messages(remote, program, 21) - messages(remote, program, 1) == 2 * 20


def test_captures_end_with_their_streams_contexts_and_threads(remote: Remote, tmp_path: Path) -> None:
    program = build_calls("posting/captures_ended", tmp_path)
    # A message for each question.
    assert messages(remote, program, 21, "goes on") - messages(remote, program, 1, "goes on") == 20
    assert messages(remote, program, 21) == messages(remote, program, 1)


def test_a_capture_begins_behind_what_was_refused(remote: Remote, tmp_path: Path) -> None:
    done = remote.run(build_calls("posting/captured_late", tmp_path))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_a_capture_forbids_elsewhere_is_told_at_the_call(remote: Remote, tmp_path: Path, transport: str) -> None:
    done = remote.run(build_calls("posting/captured_elsewhere", tmp_path), FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_host_function_may_end_its_thread(remote: Remote, tmp_path: Path, transport: str) -> None:
    done = remote.run(build_calls("exits/in_host_functions", tmp_path), FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


@pytest.mark.skipif(bool(SANITIZED), reason="it counts malloc's memory, which a sanitizer's runtime has in its place")
def test_nothing_is_left_of_what_threads_were_told_of_a_capture(remote: Remote, tmp_path: Path) -> None:
    done = remote.run(build_calls("exits/after_captures", tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_a_thread_that_waits_for_a_callback_behind_an_error_is_not_cancelled(remote: Remote, tmp_path: Path) -> None:
    done = remote.run(build_calls("exits/cancelled_behind_error", tmp_path))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_an_event_whose_stream_was_waited_for_is_over(remote: Remote, tmp_path: Path) -> None:
    program = build_calls("posting/events_over", tmp_path)
    assert messages(remote, program, 21) == messages(remote, program, 1)


def test_an_attribute_that_two_threads_set_is_what_it_is_said_to_be(
    driver_before: Callable[[str], Path], tmp_path: Path
) -> None:
    driver, gate = driver_before("gated_driver"), tmp_path / "gate"
    os.mkfifo(gate)
    with remote_session(libcuda=driver, folder=tmp_path, environment={"SET_GATE": str(gate)}) as remote:
        done = remote.run(build_calls("posting/set_together", tmp_path), SET_GATE=str(gate))
    assert done.returncode == 0, done.stderr


def test_what_is_set_is_asked_for_again(remote: Remote, image: Path, tmp_path: Path) -> None:
    (tmp_path / "asker.py").write_text(ASKER)
    calls(remote, SETTER, image, "0", tmp_path / "asker.py")
