"""FARBUS_TRACE: every call that a program makes is one whole line, whatever the program does and however it ends."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from farbus.cli.tracing import read_trace
from farbus.remoting.session import Server, write_session
from tests.remoting.harness import Remote, listening
from tests.remoting.test_coverage import build_calls

Build = Callable[[str], Path]

LINE = re.compile(
    r"(?P<at>\d+\.\d{6}) (?P<process>\d+) (?P<thread>\d+) (?P<name>(cu|cudart\.)\w+) (?P<way>local|posted|called)"
    r" (?P<took>\d+\.\d{3}) (?P<result>CUDA_(SUCCESS|ERROR_\w+))"
    r"(?P<about>( bytes=\d+)?( from=[a-z]+ to=[a-z]+)?( kernel=[!-~]+)?( grid=\d+x\d+x\d+ block=\d+x\d+x\d+)?)"
)


class Call(NamedTuple):
    """A line of a trace."""

    process: int
    thread: int
    name: str
    way: str
    result: str
    about: str
    """What follows the result."""


def calls(trace: Path) -> list[Call]:
    """The lines of a trace, each of which is whole."""
    found = []
    text = trace.read_text()
    assert text.endswith("\n")
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        assert match, line
        about = match["about"].removeprefix(" ")
        found.append(
            Call(int(match["process"]), int(match["thread"]), match["name"], match["way"], match["result"], about)
        )
    return found


def traced(remote: Remote, program: Path, trace: Path, **changes: str) -> list[Call]:
    """Run a program that is to end well and say nothing of Farbus, and return its calls."""
    done = remote.run(program, FARBUS_TRACE=str(trace), **changes)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    return calls(trace)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_call_of_every_thread_is_a_line(remote: Remote, build: Build, tmp_path: Path, transport: str) -> None:
    """16 threads, each five times: an allocation, a copy there, ten launches, a copy back, a wait, the end."""
    found = traced(remote, build("remoting/threads"), tmp_path / "trace", FARBUS_TRANSPORT=transport)
    names = Counter(call.name for call in found)
    assert names["cuLaunchKernel_ptsz"] == 16 * 5 * 10
    assert names["cuMemAlloc_v2"] == names["cuMemFree_v2"] == names["cuStreamSynchronize_ptsz"] == 16 * 5
    ways = {name: {call.way for call in found if call.name == name} for name in names}
    assert "posted" in ways["cuLaunchKernel_ptsz"]
    assert ways["cuMemAlloc_v2"] == ways["cuStreamSynchronize_ptsz"] == {"called"}
    assert ways["cuGetProcAddress_v2"] == {"local"}
    assert len({call.thread for call in found if call.name == "cuLaunchKernel_ptsz"}) == 16
    assert len({call.process for call in found}) == 1
    told = read_trace(tmp_path / "trace")
    assert [(each.kernel, each.launches) for each in told.kernels] == [("_Z3addPiii", 16 * 5 * 10)]
    to_device = [each for each in told.copies if (each.source, each.target) == ("pageable", "device")]
    to_host = [each for each in told.copies if (each.source, each.target) == ("device", "pageable")]
    assert sum(each.bytes for each in to_device) == sum(each.bytes for each in to_host) == 16 * 5 * 5000 * 4


@pytest.mark.parametrize(
    "name",
    [
        "suite/matmul_tiled", "suite/streams_events", "suite/graphs", "suite/textures", "suite/host_functions",
        "remoting/small_stack",
    ],
)  # fmt: skip
def test_programs_work_as_without(remote: Remote, build: Build, tmp_path: Path, name: str) -> None:
    plain = remote.run(build(name))
    with_trace = remote.run(build(name), FARBUS_TRACE=str(tmp_path / "trace"))
    assert (with_trace.returncode, with_trace.stdout, with_trace.stderr) == (
        plain.returncode, plain.stdout, plain.stderr
    )  # fmt: skip
    assert any(call.way == "posted" for call in calls(tmp_path / "trace"))


def test_the_child_of_a_fork_writes_lines_of_its_own(remote: Remote, build: Build, tmp_path: Path) -> None:
    found = traced(remote, build("remoting/fork_child"), tmp_path / "trace")
    parent = found[0].process
    children = {call.process for call in found} - {parent}
    assert len(children) == 3
    refused = [call for call in found if call.process in children]
    assert {call.result for call in refused} == {"CUDA_ERROR_NOT_INITIALIZED"}
    assert all(call.thread == call.process for call in refused)


def test_what_a_killed_program_called_is_there(remote: Remote, build: Build, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    program = remote.start(build("remoting/wait_forever"), FARBUS_TRACE=str(trace))
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    program.kill()
    program.communicate()
    assert [call.name for call in calls(trace)].count("cuLaunchHostFunc") == 1


def test_several_programs_have_one_trace(remote: Remote, build: Build, tmp_path: Path) -> None:
    for _ in range(2):
        found = traced(remote, build("remoting/no_cleanup"), tmp_path / "trace")
    by_process = Counter(call.process for call in found)
    assert len(by_process) == 2
    assert len(set(by_process.values())) == 1


def test_errors_are_named(remote: Remote, build: Build, tmp_path: Path) -> None:
    done = remote.run(build("remoting/unsupported"), FARBUS_TRACE=str(tmp_path / "trace"))
    assert done.returncode == 0
    refused = [call for call in calls(tmp_path / "trace") if call.name == "cuImportExternalMemory"]
    assert [(call.way, call.result) for call in refused] == [("local", "CUDA_ERROR_NOT_SUPPORTED")] * 2
    told = read_trace(tmp_path / "trace")
    (function,) = [each for each in told.functions if each.function == "cuImportExternalMemory"]
    assert (told.strange, function.calls, function.local, function.errors) == (0, 2, 2, 2)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_copies_fills_and_allocations_tell_their_bytes(
    remote: Remote, build: Build, tmp_path: Path, transport: str
) -> None:
    found = traced(remote, build("remoting/traced/copies"), tmp_path / "trace", FARBUS_TRANSPORT=transport)
    assert [(call.name, call.about) for call in found if call.name.startswith("cuMemcpy")] == [
        ("cuMemcpyHtoD_v2", "bytes=1001 from=pageable to=device"),
        ("cuMemcpyHtoDAsync_v2", "bytes=1002 from=pinned to=device"),
        ("cuMemcpyHtoDAsync_v2", "bytes=1003 from=pageable to=device"),
        ("cuMemcpyDtoH_v2", "bytes=1004 from=device to=pageable"),
        ("cuMemcpyDtoHAsync_v2", "bytes=1005 from=device to=pinned"),
        ("cuMemcpyDtoD_v2", "bytes=1006 from=device to=device"),
        ("cuMemcpyAsync", "bytes=1007 from=pinned to=device"),
        ("cuMemcpy", "bytes=1008 from=pinned to=pageable"),
        ("cuMemcpy", "bytes=1009 from=device to=managed"),
        ("cuMemcpy2DUnaligned_v2", "bytes=110 from=pageable to=device"),
        ("cuMemcpy3DAsync_v2", "bytes=105 from=device to=pinned"),
        ("cuMemcpy3D_v2", "bytes=130 from=pageable to=array"),
        ("cuMemcpy3D_v2", "bytes=140 from=array to=device"),
        ("cuMemcpyBatchAsync", "bytes=1111 from=pinned to=device"),
        ("cuMemcpyBatchAsync", "bytes=1112 from=mixed to=device"),
        ("cuMemcpy3DBatchAsync", "bytes=210 from=pinned to=device"),
        ("cuMemcpy3DBatchAsync", "bytes=297 from=pinned to=mixed"),
        ("cuMemcpy3DBatchAsync", "bytes=192 from=pinned to=array"),
        ("cuMemcpy3DBatchAsync", ""),
    ]
    arrays = [(call.name, call.about) for call in found if "ArrayCreate" in call.name or "Array3DCreate" in call.name]
    assert arrays == [
        ("cuArray3DCreate_v2", "bytes=4096"),
        ("cuArray3DCreate_v2", f"bytes={5 * 6 * 7 * 8}"),
        ("cuArray3DCreate_v2", f"bytes={5 * 7}"),
        ("cuMipmappedArrayCreate", f"bytes={(8 * 4 + 4 * 2 + 2 * 1) * 8}"),
    ]
    assert [(call.name, call.about) for call in found if call.name.startswith("cuMemset")] == [
        ("cuMemsetD8_v2", "bytes=2001"),
        ("cuMemsetD8Async", "bytes=2002"),
        ("cuMemsetD2D8_v2", "bytes=150"),
        ("cuMemsetD16_v2", "bytes=2002"),
        ("cuMemsetD32Async", "bytes=2004"),
    ]
    allocations = {call.name: call.about for call in found if "Alloc" in call.name}
    assert allocations == {
        "cuMemAlloc_v2": "bytes=100001",
        "cuMemAllocAsync": "bytes=100002",
        "cuMemHostAlloc": "bytes=100003",
        "cuMemAllocManaged": "bytes=100004",
        "cuMemAllocPitch_v2": "bytes=100100",
    }
    told = read_trace(tmp_path / "trace")
    assert told.strange == 0
    sums: Counter[tuple[str, str]] = Counter()
    for each in told.copies:
        sums[each.source, each.target] += each.bytes
    assert sums["pageable", "device"] == 1001 + 1003 + 110
    assert sums["device", "pinned"] == 1005 + 105


def test_one_copy_with_attributes_tells_its_bytes(remote: Remote, tmp_path: Path) -> None:
    done = remote.run(build_calls("call_diagnostics", tmp_path), FARBUS_TRACE=str(tmp_path / "trace"))
    assert done.returncode == 0, done.stderr
    copies = [call.about for call in calls(tmp_path / "trace") if "WithAttributes" in call.name]
    assert copies == ["bytes=4 from=device to=device"] * 2


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_launches_tell_their_kernels(remote: Remote, build: Build, tmp_path: Path, transport: str) -> None:
    found = traced(remote, build("remoting/traced/kernels"), tmp_path / "trace", FARBUS_TRANSPORT=transport)
    told = read_trace(tmp_path / "trace")
    launches = {each.kernel: each.launches for each in told.kernels}
    long = {name: count for name, count in launches.items() if len(name) > 500}
    assert {name: count for name, count in launches.items() if name not in long} == {
        "plain": 5 + 1,  # and what is captured once, whatever its graph runs
        "_Z3addPii": 3 + 1 + 1,
        "_Z8togetherPi": 1,
        "$of_ptx": 1,
    }
    # Their middle is left out, and with it what they differ in.
    assert sorted(long.values()) == [1, 2]
    assert len({re.sub(r"\.\.\.[0-9a-f]{8}\.\.\.", "", name) for name in long}) == 1
    assert all(len(name) <= 640 and name.startswith("_Z9long_name") for name in long)
    shapes = {(call.name, call.about.split(" ", 1)[1]) for call in found if "kernel=_Z" in call.about}
    assert {(name, shape) for name, shape in shapes if shape != "grid=1x1x1 block=1x1x1"} == {
        ("cuLaunchCooperativeKernel", "grid=2x1x1 block=32x1x1"),
        ("cuLaunchKernelEx", "grid=3x2x1 block=1x4x2"),
    }
    names = Counter(call.name for call in found)
    assert names["cuGraphLaunch"] == 4
    loads = [call.about for call in found if call.name == "cuLibraryLoadData"]
    assert re.fullmatch(r"bytes=[1-9]\d*", loads[-1])


def rename(client: socket.socket, server: socket.socket, name: bytes, other: bytes) -> None:
    """Pass bytes both ways until one side ends; what the server calls so has another name, as long."""
    assert len(name) == len(other)
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ, server)
        selector.register(server, selectors.EVENT_READ, client)
        while True:
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(1 << 20)
                if not data:
                    return
                if key.fileobj is server:
                    data = data.replace(name, other)
                key.data.sendall(data)


def test_a_kernel_s_name_is_one_word_whatever_the_server_says(
    lease: Callable[..., Remote], build: Build, tmp_path: Path
) -> None:
    remote = lease(tls=False)

    def serve(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with (
            client,
            contextlib.suppress(ConnectionError),
            socket.create_connection(remote.supervisor.address) as server,
        ):
            rename(client, server, b"name_of_one_word", b"name of\none\twr\xff\x1b")

    with listening(serve) as (address, port):
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret, tls=False)])
        environment = {"FARBUS_TRANSPORT": "tcp", "FARBUS_GRACE_S": "0", "FARBUS_CONNECTIONS": "1"}
        found = traced(remote, build("remoting/traced/renamed"), tmp_path / "trace", **environment)
    launches = [call.about for call in found if call.name == "cuLaunchKernel"]
    assert launches == ["kernel=name?of?one?wr?? grid=1x1x1 block=1x1x1"]


def test_calls_that_fail_tell_what_is_theirs_alone(remote: Remote, build: Build, tmp_path: Path) -> None:
    found = traced(remote, build("remoting/traced/wrong"), tmp_path / "trace")
    failed = [call for call in found if call.result != "CUDA_SUCCESS"]
    assert {call.about for call in failed if call.name == "cuLaunchKernel"} == {"grid=1x1x1 block=1x1x1"}
    by_name = {name: {call.about for call in failed if call.name == name} for name in {call.name for call in failed}}
    assert by_name["cuLaunchKernelEx"] == by_name["cuMemcpyBatchAsync_v2"] == {""}
    assert by_name["cuModuleLoadData"] == by_name["cuLibraryLoadData"] == by_name["cuMemAllocPitch_v2"] == {""}
    assert by_name["cuMemcpy3D_v2"] == by_name["cuMemcpy2D_v2"] == {""}
    assert by_name["cuMemcpyHtoD_v2"] == {"bytes=10", "bytes=11", "bytes=13"}
    assert by_name["cuMemAlloc_v2"] == {f"bytes={1 << 60}", "bytes=12"}
    told = read_trace(tmp_path / "trace")
    assert (told.copies, told.kernels) == ((), ())
    # What failed has moved nothing.
    assert {each.bytes for each in told.functions if each.function in ("cuMemAlloc_v2", "cuMemcpyHtoD_v2")} == {0}


def test_descriptors_that_the_program_reuses_are_not_the_trace_s(remote: Remote, build: Build, tmp_path: Path) -> None:
    found = traced(remote, build("remoting/low_descriptors"), tmp_path / "trace")
    assert any(call.name.startswith("cuMemsetD") for call in found)


def test_a_program_that_closes_all_its_descriptors_is_told_that_the_trace_ends(
    remote: Remote, build: Build, tmp_path: Path
) -> None:
    done = remote.run(build("remoting/traced/closed"), FARBUS_TRACE=str(tmp_path / "trace"), FARBUS_TRANSPORT="shm")
    assert done.stderr.count("the trace in ") == 1
    assert "ends here: the program has closed its descriptor" in done.stderr
    assert (tmp_path / "trace.other").read_bytes() == b""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing/trace", "No such file or directory"),
        (".", "Is a directory"),
        ("fifo", "it is neither a file nor a terminal"),
    ],
)
def test_a_file_that_cannot_be_is_a_clear_error(
    remote: Remote, build: Build, tmp_path: Path, name: str, why: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    trace = tmp_path / name
    done = remote.run(build("remoting/rows"), FARBUS_TRACE=str(trace))
    assert done.returncode == 1
    assert done.stderr == (f'farbus: FARBUS_TRACE is "{trace}": {why}; set it to a file that this program may write\n')


@pytest.mark.parametrize(
    "text",
    [
        "notes of mine\n",
        "1764273395.123456 812 815 cuMem",
        "1764273395.123456 812 815 ls local 1\n",
        "\0" * 5000,
        "1\n",
    ],
)
def test_a_file_with_something_else_in_it_is_kept_as_it_is(
    remote: Remote, build: Build, tmp_path: Path, text: str
) -> None:
    notes = tmp_path / "notes"
    notes.write_text(text)
    done = remote.run(build("remoting/rows"), FARBUS_TRACE=str(notes))
    assert (done.returncode, notes.read_text()) == (1, text)
    assert done.stderr == (
        f'farbus: FARBUS_TRACE is "{notes}": there is something else than a trace in it; '
        "set it to a file that this program may write\n"
    )


def test_a_disk_that_is_full_ends_the_trace_and_not_the_program(remote: Remote, build: Build) -> None:
    done = remote.run(build("remoting/rows"), FARBUS_TRACE="/dev/full")
    assert (done.returncode, done.stdout) == (0, "ok\n")
    assert done.stderr == "farbus: the trace in /dev/full ends here: No space left on device\n"


def test_a_limit_of_files_sizes_ends_the_trace_and_not_the_program(
    remote: Remote, build: Build, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    program = build("remoting/rows")
    # Shared memory is a file, too, and larger.
    limited = f"ulimit -f 8; exec {program}"
    done = remote.run("sh", "-c", limited, FARBUS_TRACE=str(trace), FARBUS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout) == (0, "ok\n")
    assert done.stderr == f"farbus: the trace in {trace} ends here: no file of this program may be larger (ulimit -f)\n"
    assert len(calls(trace)) > 10


def test_a_limit_that_comes_later_is_told_as_one(remote: Remote, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    done = remote.run(build_calls("spied/limited", tmp_path), FARBUS_TRACE=str(trace))
    assert done.returncode == 0
    assert done.stderr == f"farbus: the trace in {trace} ends here: no file of this program may be larger (ulimit -f)\n"


@pytest.mark.parametrize("blocks", [16, 64, 200])
def test_threads_that_reach_the_limit_together_go_on(remote: Remote, build: Build, tmp_path: Path, blocks: int) -> None:
    trace = tmp_path / "trace"
    limited = f"ulimit -f {blocks}; exec {build('remoting/threads')}"
    done = remote.run("sh", "-c", limited, FARBUS_TRACE=str(trace), FARBUS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert done.stderr.count("\n") <= 1


def test_without_it_there_is_none(remote: Remote, build: Build, tmp_path: Path) -> None:
    done = remote.run("sh", "-c", f"cd {tmp_path} && exec {build('remoting/rows')}", FARBUS_TRACE="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    assert {path.name for path in tmp_path.iterdir()} == {remote.session.name}
