"""``farbus trace``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farbus.cli.following import say
from farbus.cli.listing import Column, print_listing
from farbus.cli.options import Output, OutputOption, command_app, examples
from farbus.cli.tracing import TracedFunction, read_trace

app = command_app()


def _results(function: TracedFunction) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(function.results.items()))


COLUMNS: tuple[Column[TracedFunction], ...] = (
    Column("FUNCTION", lambda each: each.function, identity=True),
    Column("CALLS", lambda each: str(each.calls), right=True),
    Column("LOCAL", lambda each: str(each.local), right=True),
    Column("POSTED", lambda each: str(each.posted), right=True),
    Column("CALLED", lambda each: str(each.called), right=True),
    Column("ERRORS", lambda each: str(each.errors), right=True),
    Column("TOTAL/ms", lambda each: f"{each.total_us / 1000:.3f}", right=True),
    Column("MEAN/µs", lambda each: f"{each.total_us / each.calls:.1f}", right=True),
    Column("LONGEST/µs", lambda each: f"{each.longest_us:.1f}", right=True, wide=True),
    Column("RESULTS", _results, wide=True, identity=True),
)

NOTHING = (
    "the trace is empty: the program made no call of CUDA, or none through the shim, as on a GPU of its own node; "
    "farbus run --route remote gives it another's"
)


@app.command(
    epilog=examples(
        "farbus run --gpus 1 --trace calls -- ./program",
        "farbus trace calls                  by function, what took longest first",
        "farbus trace calls -o wide          with the longest call and the errors",
        "farbus trace calls -o json          for programs",
        "",
        "The lines of FILE themselves are for grep and awk: seconds since 1970, process, thread, function, whether it "
        "was answered local, posted or called, microseconds, result (docs/debugging.md).",
    )
)
def trace(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What FARBUS_TRACE or --trace named; - is standard input.")
    ],
    output: OutputOption = Output.TABLE,
) -> None:
    """Sum up the CUDA calls that a program has made."""
    functions, strange = read_trace(file)
    print_listing(functions, COLUMNS, output, nothing=NOTHING)
    if strange:
        lines = "1 line is" if strange == 1 else f"{strange} lines are"
        say(f"{file}: {lines} no call, and not counted")
