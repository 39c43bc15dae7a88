"""``farbus trace``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farbus.cli.following import say
from farbus.cli.listing import Column, print_json, print_listing
from farbus.cli.options import Output, OutputOption, command_app, examples
from farbus.cli.tracing import TracedCopies, TracedFunction, TracedKernel, read_trace

app = command_app()


def _results(each: TracedFunction | TracedKernel) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(each.results.items()))


def _rate(copies: TracedCopies) -> str:
    # What is posted goes on behind the call, but for pageable memory, which has been read by then.
    told = copies.total_us and (copies.way != "posted" or copies.source == "pageable")
    # Bytes for each microsecond are megabytes for each second.
    return f"{copies.bytes / copies.total_us:.1f}" if told else ""


# At 80 columns most names have room beside what is not for -o wide alone.
FUNCTIONS: tuple[Column[TracedFunction], ...] = (
    Column("FUNCTION", lambda each: each.function, identity=True),
    Column("CALLS", lambda each: str(each.calls), right=True),
    Column("LOCAL", lambda each: str(each.local), right=True, wide=True),
    Column("POSTED", lambda each: str(each.posted), right=True),
    Column("CALLED", lambda each: str(each.called), right=True),
    Column("ERRORS", lambda each: str(each.errors), right=True),
    Column("TOTAL/ms", lambda each: f"{each.total_us / 1000:.3f}", right=True),
    Column("MEAN/µs", lambda each: f"{each.total_us / each.calls:.1f}", right=True),
    Column("MB", lambda each: f"{each.bytes / 1e6:.3f}" if each.bytes else "", right=True, wide=True),
    Column("LONGEST/µs", lambda each: f"{each.longest_us:.1f}", right=True, wide=True),
    Column("RESULTS", _results, wide=True, identity=True),
)

COPIES: tuple[Column[TracedCopies], ...] = (
    Column("FROM", lambda each: each.source),
    Column("TO", lambda each: each.target),
    Column("WAY", lambda each: each.way),
    Column("CALLS", lambda each: str(each.calls), right=True),
    Column("BYTES", lambda each: str(each.bytes), right=True),
    Column("TOTAL/ms", lambda each: f"{each.total_us / 1000:.3f}", right=True),
    Column("MEAN/µs", lambda each: f"{each.total_us / each.calls:.1f}", right=True),
    Column("MB/s", _rate, right=True),
)

KERNELS: tuple[Column[TracedKernel], ...] = (
    Column("LAUNCHES", lambda each: str(each.launches), right=True),
    Column("POSTED", lambda each: str(each.posted), right=True),
    Column("CALLED", lambda each: str(each.called), right=True),
    Column("ERRORS", lambda each: str(each.errors), right=True),
    Column("TOTAL/ms", lambda each: f"{each.total_us / 1000:.3f}", right=True),
    Column("MEAN/µs", lambda each: f"{each.total_us / each.launches:.1f}", right=True),
    Column("LONGEST/µs", lambda each: f"{each.longest_us:.1f}", right=True, wide=True),
    Column("RESULTS", _results, wide=True, identity=True),
    # The last, for it may have hundreds of characters.
    Column("KERNEL", lambda each: each.kernel, identity=True),
)

NOTHING = (
    "the trace is empty: the program made no call of CUDA, or none through the shim, as on a GPU of its own node; "
    "farbus run --route remote gives it another's"
)


@app.command(
    epilog=examples(
        "farbus run --gpus 1 --trace calls -- ./program",
        "farbus trace calls                  by function, kind of copy and kernel, what took longest first",
        "farbus trace calls -o wide          with local calls, bytes, the longest call and the errors",
        "farbus trace calls -o json          for programs",
        "farbus trace calls | c++filt        kernels by the names they have in the source",
        "",
        "The lines of FILE themselves are for grep and awk: seconds since 1970, process, thread, function, whether it "
        "was answered local, posted or called, microseconds, result; then, of some, bytes=, from= and to= (pageable, "
        "pinned, device, managed, array, mixed), kernel=, grid= and block= (docs/debugging.md).",
    )
)
def trace(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What FARBUS_TRACE or --trace named; - is standard input.")
    ],
    output: OutputOption = Output.TABLE,
) -> None:
    """Sum up the CUDA calls that a program has made: functions, bytes that were copied, kernels that were launched.

    POSTED calls were sent without waiting for an answer, CALLED ones waited; the others (LOCAL) needed no server.
    The first call that needs devices (cuDriverGetVersion, often) connects, and has its time.

    Times are those of the calling threads: kernels and copies that were posted go on behind them. MB (-o wide), of a
    million bytes, are what copies, fills and allocations have, and images that were loaded, as they travel.
    """
    told = read_trace(file)
    if output is Output.JSON:
        print_json(told)
    else:
        print_listing(told.functions, FUNCTIONS, output, nothing=NOTHING)
        if told.copies:
            typer.echo()
            print_listing(told.copies, COPIES, output, nothing="")
        if told.kernels:
            typer.echo()
            print_listing(told.kernels, KERNELS, output, nothing="")
    if told.strange:
        lines = "1 line is" if told.strange == 1 else f"{told.strange} lines are"
        say(f"{file}: {lines} no call, and not counted")
