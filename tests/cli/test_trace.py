"""``farbus trace``: what a trace comes to, by function."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from farbus.cli.commands.trace import COLUMNS
from farbus.cli.listing import NOTHING, terminal_table
from farbus.cli.tracing import MAX_LINE_BYTES, TracedFunction, sum_up
from tests.cli.conftest import Farbus

LINES = """\
1764273395.100000 812 812 cuInit called 5000.000 CUDA_SUCCESS
1764273395.200000 812 815 cuLaunchKernel posted 0.500 CUDA_SUCCESS
1764273395.200001 812 816 cuLaunchKernel called 99.500 CUDA_ERROR_INVALID_VALUE
1764273395.300000 812 812 cuStreamQuery called 10.000 CUDA_ERROR_NOT_READY
1764273395.300020 812 812 cuStreamQuery called 30.000 CUDA_SUCCESS
1764273395.400000 813 813 cuLaunchKernel local 0.250 CUDA_ERROR_NOT_INITIALIZED
"""
HALF = "1764273395.500000 812 812 cuMemFree_v2 called 1.0"

LAUNCHES = TracedFunction(
    function="cuLaunchKernel", calls=3, local=1, posted=1, called=1, total_us=100.25, longest_us=99.5,
    results={"CUDA_ERROR_INVALID_VALUE": 1, "CUDA_ERROR_NOT_INITIALIZED": 1},
)  # fmt: skip

QUIET = TracedFunction(function="cuInit", calls=1, local=1, total_us=1.0, longest_us=1.0)


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    path = tmp_path / "calls"
    path.write_text(LINES)
    return path


def test_functions_are_summed_up_the_longest_first() -> None:
    functions, strange = sum_up(LINES.encode().splitlines(keepends=True))
    assert [each.function for each in functions] == ["cuInit", "cuLaunchKernel", "cuStreamQuery"]
    assert functions[1] == LAUNCHES
    assert strange == 0


def test_work_that_goes_on_is_no_error() -> None:
    functions, _ = sum_up(LINES.encode().splitlines(keepends=True))
    assert [each.errors for each in functions] == [0, 2, 0]
    assert functions[2].results == {"CUDA_ERROR_NOT_READY": 1}


@pytest.mark.parametrize(
    "line", [HALF, f"{HALF} CUDA_SUCCESS", "", "\n", "a b c d local f g\n", HALF.replace("called", "felt") + " X\n"]
)
def test_what_is_no_line_is_counted_apart(line: str) -> None:
    assert sum_up([line.encode()]) == ((), 1)


@pytest.mark.parametrize("took", ["nan", "inf", "-5", "+5", "1_0.5e3", "1e3", ".5", "5.", "٣", "9" * 400, "0x5"])
def test_microseconds_are_plain_decimal_numbers(took: str) -> None:
    assert sum_up([f"1764273395.1 812 812 cuInit called {took} CUDA_SUCCESS\n".encode()]) == ((), 1)


def test_the_table(farbus: Farbus, calls: Path) -> None:
    done = farbus("trace", str(calls))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "FUNCTION        CALLS  LOCAL  POSTED  CALLED  ERRORS  TOTAL/ms  MEAN/µs\n"
        "cuInit              1      0       0       1       0     5.000   5000.0\n"
        "cuLaunchKernel      3      1       1       1       2     0.100     33.4\n"
        "cuStreamQuery       2      0       0       2       0     0.040     20.0\n"
    )


def test_names_are_whole_at_80_columns() -> None:
    function = TracedFunction(
        function="cuDevicePrimaryCtxRelease_v2", calls=20_000, called=20_000, total_us=1e7, longest_us=1e6,
        results={"CUDA_ERROR_DEVICE_UNAVAILABLE": 3, "CUDA_ERROR_INVALID_VALUE": 2},
    )  # fmt: skip
    rows = [[column.cell(each) or NOTHING for column in COLUMNS] for each in (function, LAUNCHES, QUIET)]
    lines = ["".join(piece for piece, _ in line) for line in terminal_table(rows, COLUMNS, 80)]
    assert max(map(len, lines)) <= 80
    assert lines[4:7] == [
        "  cuDevicePrimaryCtxRelease_v2", "  3 CUDA_ERROR_DEVICE_UNAVAILABLE", "  2 CUDA_ERROR_INVALID_VALUE",
    ]  # fmt: skip
    # Where nothing is to be said there is no line.
    assert lines[-2:] == [lines[-2], "  cuInit"]
    assert lines[-2].split() == ["1", "1", "0", "0", "0", "0.001", "1.0", "1.0"]


def test_wide_names_the_errors(farbus: Farbus, calls: Path) -> None:
    row = farbus("trace", str(calls), "-o", "wide").stdout.splitlines()[2]
    assert row.endswith("99.5  1 CUDA_ERROR_INVALID_VALUE, 1 CUDA_ERROR_NOT_INITIALIZED")


def test_json_has_every_figure(farbus: Farbus, calls: Path) -> None:
    done = farbus("trace", str(calls), "-o", "json")
    assert json.loads(done.stdout)[1] == {
        "function": "cuLaunchKernel", "calls": 3, "local": 1, "posted": 1, "called": 1,
        "total_us": 100.25, "longest_us": 99.5,
        "results": {"CUDA_ERROR_INVALID_VALUE": 1, "CUDA_ERROR_NOT_INITIALIZED": 1},
    }  # fmt: skip


def test_a_line_that_is_half_there_is_told(farbus: Farbus, calls: Path) -> None:
    calls.write_text(LINES + HALF)
    done = farbus("trace", str(calls))
    assert done.returncode == 0
    assert done.stderr == f"farbus: {calls}: 1 line is no call, and not counted\n"


@pytest.mark.parametrize(
    ("name", "code", "line"),
    [
        ("none", 3, "there is no file {0}; farbus run --trace FILE makes one"),
        ("other", 2, "{0}: not a trace; farbus run --trace FILE makes one"),
        ("folder", 2, "{0}: a directory; name a file in it; farbus run --trace FILE makes one"),
        (
            "pipe",
            2,
            "{0}: not a regular file; farbus run --trace FILE makes one; farbus trace - reads a pipe",
        ),
    ],
)
def test_what_is_no_trace_is_one_line(farbus: Farbus, tmp_path: Path, name: str, code: int, line: str) -> None:
    (tmp_path / "other").write_text("hello\n")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    done = farbus("trace", str(tmp_path / name))
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"farbus: {line.format(tmp_path / name)}\n")


def test_what_never_ends_is_not_read(farbus: Farbus) -> None:
    done = farbus("trace", "/dev/zero")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("farbus: /dev/zero: not a regular file; ")


def test_a_line_that_is_too_long_is_one_line_that_is_no_call(farbus: Farbus, calls: Path) -> None:
    long = "x" * (2 * MAX_LINE_BYTES) + "1764273395.1 812 812 cuInit called 1.0 CUDA_SUCCESS\n"
    calls.write_text(LINES + long + LINES)
    done = farbus("trace", str(calls), "-o", "json")
    assert json.loads(done.stdout)[1]["calls"] == 6
    assert done.stderr == f"farbus: {calls}: 1 line is no call, and not counted\n"


def test_dash_is_standard_input(farbus: Farbus, calls: Path) -> None:
    done = farbus("trace", "-", stdin=LINES)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == farbus("trace", str(calls)).stdout


def test_an_empty_trace_says_why_it_may_be(farbus: Farbus, calls: Path) -> None:
    calls.write_text("")
    done = farbus("trace", str(calls))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("the trace is empty: ")
