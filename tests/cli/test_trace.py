"""``farbus trace``: what a trace comes to, by function."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from farbus.cli.commands.trace import COPIES, FUNCTIONS, KERNELS
from farbus.cli.listing import NOTHING, terminal_table
from farbus.cli.tracing import MAX_LINE_BYTES, Trace, TracedCopies, TracedFunction, TracedKernel, sum_up
from tests.cli.conftest import Farbus

LINES = """\
1764273395.100000 812 812 cuInit called 5000.000 CUDA_SUCCESS
1764273395.200000 812 815 cuLaunchKernel posted 0.500 CUDA_SUCCESS
1764273395.200001 812 816 cuLaunchKernel called 99.500 CUDA_ERROR_INVALID_VALUE
1764273395.300000 812 812 cuStreamQuery called 10.000 CUDA_ERROR_NOT_READY
1764273395.300020 812 812 cuStreamQuery called 30.000 CUDA_SUCCESS
1764273395.400000 813 813 cuLaunchKernel local 0.250 CUDA_ERROR_NOT_INITIALIZED
"""
NEWER = """\
1764273395.600000 812 812 cuMemAlloc_v2 called 50.000 CUDA_SUCCESS bytes=4096
1764273395.600100 812 812 cuMemAlloc_v2 called 10.000 CUDA_ERROR_OUT_OF_MEMORY bytes=1152921504606846976
1764273395.600200 812 812 cuMemcpyHtoD_v2 called 100.000 CUDA_SUCCESS bytes=4000 from=pageable to=device
1764273395.600300 812 813 cuMemcpy3D_v2 called 300.000 CUDA_SUCCESS bytes=4000 from=pageable to=device
1764273395.600400 812 812 cuMemcpyHtoDAsync_v2 posted 0.000 CUDA_SUCCESS bytes=16 from=pageable to=device
1764273395.600500 812 812 cuLaunchKernel posted 1.000 CUDA_SUCCESS kernel=_Z3addPii grid=40x1x1 block=128x1x1
1764273395.600600 812 812 cuLaunchKernelEx called 9.000 CUDA_SUCCESS kernel=_Z3addPii grid=40x1x1 block=128x1x1
1764273395.600700 812 812 cuLaunchKernel local 2.000 CUDA_ERROR_INVALID_VALUE kernel=_Z3mulPii grid=0x1x1 block=1x1x1
1764273395.600800 812 812 cuLaunchKernel local 0.500 CUDA_ERROR_INVALID_HANDLE grid=1x1x1 block=1x1x1
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
    told = sum_up(LINES.encode().splitlines(keepends=True))
    assert [each.function for each in told.functions] == ["cuInit", "cuLaunchKernel", "cuStreamQuery"]
    assert told.functions[1] == LAUNCHES
    assert told.strange == 0


def test_a_locale_without_a_character_has_a_question_mark(calls: Path, farbus: Farbus) -> None:
    done = farbus("trace", str(calls), environment={"PYTHONIOENCODING": "ascii:strict"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].endswith("TOTAL/ms  MEAN/?s")


def test_copies_are_summed_up_by_their_two_ends_and_the_way() -> None:
    told = sum_up(NEWER.encode().splitlines(keepends=True))
    assert told.strange == 0
    assert told.copies == (
        TracedCopies(
            source="pageable", target="device", way="called", calls=2, bytes=8000, total_us=400.0, longest_us=300.0
        ),
        TracedCopies(source="pageable", target="device", way="posted", calls=1, bytes=16),
    )


def test_launches_are_summed_up_by_kernel() -> None:
    told = sum_up(NEWER.encode().splitlines(keepends=True))
    assert told.kernels == (
        TracedKernel(kernel="_Z3addPii", launches=2, posted=1, called=1, total_us=10.0, longest_us=9.0),
        TracedKernel(
            kernel="_Z3mulPii", launches=1, total_us=2.0, longest_us=2.0, results={"CUDA_ERROR_INVALID_VALUE": 1}
        ),
    )
    assert [each.errors for each in told.kernels] == [0, 1]


def test_bytes_are_those_of_calls_that_succeeded() -> None:
    told = sum_up(NEWER.encode().splitlines(keepends=True))
    assert [each.bytes for each in told.functions if each.function == "cuMemAlloc_v2"] == [4096]


def test_what_a_later_trace_says_more_is_passed_over() -> None:
    line = NEWER.splitlines()[0].encode()
    told = sum_up([line + b" colour=red size=4x4\n"])
    assert told.strange == 0
    assert told == sum_up([line + b"\n"])


def test_work_that_goes_on_is_no_error() -> None:
    functions = sum_up(LINES.encode().splitlines(keepends=True)).functions
    assert [each.errors for each in functions] == [0, 2, 0]
    assert functions[2].results == {"CUDA_ERROR_NOT_READY": 1}


@pytest.mark.parametrize(
    "line",
    [
        HALF, f"{HALF} CUDA_SUCCESS", "", "\n", "a b c d local f g\n", HALF.replace("called", "felt") + " X\n",
        f"{HALF} CUDA_SUCCESS bytes=-1\n", f"{HALF} CUDA_SUCCESS bytes=\n", f"{HALF} CUDA_SUCCESS from=device\n",
        f"{HALF} CUDA_SUCCESS kernel=_Z3ad{HALF} CUDA_SUCCESS\n", f"{HALF} CUDA_SUCCESS kernel=a b\n",
        f"{HALF} CUDA_SUCCESS kernel={'a' * 2000}\n",
    ],
)  # fmt: skip
def test_what_is_no_line_is_counted_apart(line: str) -> None:
    assert sum_up([line.encode()]) == Trace(strange=1)


@pytest.mark.parametrize("took", ["nan", "inf", "-5", "+5", "1_0.5e3", "1e3", ".5", "5.", "٣", "9" * 400, "0x5"])
def test_microseconds_are_plain_decimal_numbers(took: str) -> None:
    assert sum_up([f"1764273395.1 812 812 cuInit called {took} CUDA_SUCCESS\n".encode()]) == Trace(strange=1)


def test_the_table(farbus: Farbus, calls: Path) -> None:
    done = farbus("trace", str(calls))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "FUNCTION        CALLS  POSTED  CALLED  ERRORS  TOTAL/ms  MEAN/µs\n"
        "cuInit              1       0       1       0     5.000   5000.0\n"
        "cuLaunchKernel      3       1       1       2     0.100     33.4\n"
        "cuStreamQuery       2       0       2       0     0.040     20.0\n"
    )


def test_copies_and_kernels_have_tables_of_their_own(farbus: Farbus, calls: Path) -> None:
    calls.write_text(NEWER)
    done = farbus("trace", str(calls))
    assert (done.returncode, done.stderr) == (0, "")
    _, copies, kernels = done.stdout.split("\n\n")
    assert copies == (
        "FROM      TO      WAY     CALLS  BYTES  TOTAL/ms  MEAN/µs  MB/s\n"
        "pageable  device  called      2   8000     0.400    200.0  20.0\n"
        "pageable  device  posted      1     16     0.000      0.0     -"
    )
    assert kernels == (
        "LAUNCHES  POSTED  CALLED  ERRORS  TOTAL/ms  MEAN/µs  KERNEL\n"
        "       2       1       1       0     0.010      5.0  _Z3addPii\n"
        "       1       0       0       1     0.002      2.0  _Z3mulPii\n"
    )


def test_most_functions_take_one_line_at_80_columns() -> None:
    """What a name needs more than there is room for it stands beneath its own row alone."""
    names = ["cuDevicePrimaryCtxRelease_v2", "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "cuInit"]
    functions = [
        TracedFunction(function=name, calls=20_000, posted=20_000, total_us=10_000_000.0 - number, longest_us=1e6)
        for number, name in enumerate(names)
    ]
    shown = [column for column in FUNCTIONS if not column.wide]
    rows = [[column.cell(each) or NOTHING for column in shown] for each in functions]
    lines = ["".join(piece for piece, _ in line) for line in terminal_table(rows, shown, 80)]
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines] == ["FUNCTION", names[0], "20000", names[1], "cuInit"]


def test_names_are_whole_at_80_columns() -> None:
    function = TracedFunction(
        function="cuDevicePrimaryCtxRelease_v2", calls=20_000, called=20_000, total_us=1e7, longest_us=1e6,
        bytes=10**10, results={"CUDA_ERROR_DEVICE_UNAVAILABLE": 3, "CUDA_ERROR_INVALID_VALUE": 2},
    )  # fmt: skip
    rows = [[column.cell(each) or NOTHING for column in FUNCTIONS] for each in (function, LAUNCHES, QUIET)]
    lines = ["".join(piece for piece, _ in line) for line in terminal_table(rows, FUNCTIONS, 80)]
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[:1] + lines[2:3]] == ["FUNCTION", "cuDevicePrimaryCtxRelease_v2"]
    assert lines[3:5] == ["  3 CUDA_ERROR_DEVICE_UNAVAILABLE", "  2 CUDA_ERROR_INVALID_VALUE"]
    # Where nothing is to be said there is no line.
    assert lines[-2].split() == ["cuInit", "1", "0", "0", "0", "0.001", "1.0"]
    assert lines[-1] == "  LOCAL 1  LONGEST/µs 1.0"


@pytest.mark.parametrize("columns", [COPIES, KERNELS])
def test_tables_beside_it_fit_80_columns(columns: Any) -> None:
    copies = TracedCopies(
        source="pageable", target="pageable", way="posted", calls=20_000, bytes=10**12, total_us=1e7, longest_us=1e6
    )
    kernel = TracedKernel(kernel="_Z" + "a" * 638, launches=20_000, posted=20_000, total_us=1e7, longest_us=1e6)
    value = copies if columns is COPIES else kernel
    lines = [
        "".join(piece for piece, _ in line)
        for line in terminal_table([[column.cell(value) or NOTHING for column in columns]], columns, 80)
    ]
    # A name that has no room stands beneath, whole.
    assert [line for line in lines if len(line) > 80] == ([f"  {kernel.kernel}"] if value is kernel else [])


def test_wide_names_the_errors(farbus: Farbus, calls: Path) -> None:
    row = farbus("trace", str(calls), "-o", "wide").stdout.splitlines()[2]
    assert row.endswith("99.5  1 CUDA_ERROR_INVALID_VALUE, 1 CUDA_ERROR_NOT_INITIALIZED")


def test_wide_has_the_bytes_of_functions_and_what_was_answered_without_the_server(farbus: Farbus, calls: Path) -> None:
    calls.write_text(NEWER)
    head, *rows = farbus("trace", str(calls), "-o", "wide").stdout.partition("\n\n")[0].splitlines()
    told = {row.split()[0]: dict(zip(head.split(), row.split(), strict=False)) for row in rows}
    assert (told["cuMemAlloc_v2"]["CALLS"], told["cuMemAlloc_v2"]["MB"]) == ("2", "0.004")
    assert (told["cuLaunchKernel"]["LOCAL"], told["cuLaunchKernel"]["MB"]) == ("2", "-")


def test_json_has_every_figure(farbus: Farbus, calls: Path) -> None:
    done = farbus("trace", str(calls), "-o", "json")
    told = json.loads(done.stdout)
    assert told.keys() == {"functions", "copies", "kernels", "strange"}
    assert told["functions"][1] == {
        "function": "cuLaunchKernel", "calls": 3, "local": 1, "posted": 1, "called": 1,
        "total_us": 100.25, "longest_us": 99.5, "bytes": 0,
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
    told = json.loads(done.stdout)
    assert (told["functions"][1]["calls"], told["strange"]) == (6, 1)
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
