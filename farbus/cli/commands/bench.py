"""``farbus bench``: measurements, each beside the limit that the machine sets."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Annotated

import typer

from farbus.cli.options import ProgramCommand, command_app, examples
from farbus.errors import InvalidInput

app = command_app()

BENCHES = {
    "remoting": "farbus.remoting.bench",
    "scheduler": "farbus.scheduler.bench",
    "softgpu": "farbus.remoting.softgpu_bench",
}
"""Each module has ``main(arguments) -> exit code`` and understands ``--json`` and ``--help``."""


def available() -> list[str]:
    """Return the names of the measurements that this installation has."""
    return [name for name, module in BENCHES.items() if importlib.util.find_spec(module) is not None]


@app.command(
    cls=ProgramCommand,
    epilog=examples(
        "farbus bench                     which there are",
        "farbus bench remoting            calls and copies, beside a bare socket",
        "farbus bench remoting --json     for programs",
        "farbus bench remoting --help     its own options",
    ),
)
def bench(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]", help="What to measure, with options of its own.")
    ] = None,
) -> int:
    """Measure, beside the limit that the machine sets.

    With --json it prints {"bench", "results": [{"name", "value", "unit", "reference", "ratio", ...}]}.
    """
    names = available()
    if not arguments:
        for name in names:
            typer.echo(name)
        return 0
    if arguments[0] not in names:
        raise InvalidInput(
            f"there is no measurement {arguments[0]!r}",
            hint=f"one of {', '.join(names) or 'none: nothing is installed'}",
        )
    return int(importlib.import_module(BENCHES[arguments[0]]).main(arguments[1:]))
