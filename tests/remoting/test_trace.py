"""FARBUS_TRACE: every call that a program makes is one whole line, whatever the program does and however it ends."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from farbus.cli.tracing import read_trace
from tests.remoting.harness import Remote

Build = Callable[[str], Path]

LINE = re.compile(
    r"(?P<at>\d+\.\d{6}) (?P<process>\d+) (?P<thread>\d+) (?P<name>(cu|cudart\.)\w+) (?P<way>local|posted|called)"
    r" (?P<took>\d+\.\d{3}) (?P<result>CUDA_(SUCCESS|ERROR_\w+))"
)


class Call(NamedTuple):
    """A line of a trace."""

    process: int
    thread: int
    name: str
    way: str
    result: str


def calls(trace: Path) -> list[Call]:
    """The lines of a trace, each of which is whole."""
    found = []
    text = trace.read_text()
    assert text.endswith("\n")
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        assert match, line
        found.append(Call(int(match["process"]), int(match["thread"]), match["name"], match["way"], match["result"]))
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


@pytest.mark.parametrize("name", ["matmul_tiled", "streams_events", "graphs", "textures", "host_functions"])
def test_programs_work_as_without(remote: Remote, build: Build, tmp_path: Path, name: str) -> None:
    plain = remote.run(build(f"suite/{name}"))
    with_trace = remote.run(build(f"suite/{name}"), FARBUS_TRACE=str(tmp_path / "trace"))
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
    functions, strange = read_trace(tmp_path / "trace")
    (function,) = [each for each in functions if each.function == "cuImportExternalMemory"]
    assert (strange, function.calls, function.local, function.errors) == (0, 2, 2, 2)


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
