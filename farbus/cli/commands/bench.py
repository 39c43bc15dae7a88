"""``farbus bench``: measurements, each beside the limit that the machine sets."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperCommand

from farbus.cli.listing import Column, print_json, print_listing
from farbus.cli.options import Output, command_app, examples
from farbus.errors import InvalidInput

app = command_app()

BENCHES = {
    "agent": "farbus.agent.bench",
    "nvmeof": "farbus.nvmeof.bench",
    "remoting": "farbus.remoting.bench",
    "scheduler": "farbus.scheduler.bench",
    "softgpu": "farbus.remoting.softgpu_bench",
}
"""Each module has ``run(*, quick) -> {"bench": ..., "results": [...]}``.

One that must do without the rest of Farbus, on a bare GPU machine, has
``main(arguments) -> exit code`` instead, and options of its own.
"""

MEASURES = {
    "agent": "what an agent costs idle, and what a thousand of them bear",
    "nvmeof": "namespaces over TCP, beside the same made by hand; needs root, nvmet, fio",
    "remoting": "calls, copies and a program's start, beside a bare transport",
    "scheduler": "how long a decision takes, beside simpler ways",
    "softgpu": "how fast the software GPU executes kernels",
}
"""What each is about, for who asks which there are."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement; ``labels`` are what else was said of it."""

    name: str
    value: float
    unit: str
    reference: float | None = None
    ratio: float | None = None
    labels: dict[str, Any] = {}


COLUMNS: tuple[Column[Row], ...] = (
    Column("NAME", lambda row: row.name),
    Column("VALUE", lambda row: f"{row.value:g}", right=True),
    Column("UNIT", lambda row: row.unit),
    Column("REFERENCE", lambda row: "" if row.reference is None else f"{row.reference:g}", right=True),
    Column("RATIO", lambda row: "" if row.ratio is None else f"{row.ratio:.3g}", right=True),
    Column("OF", lambda row: ", ".join(f"{key} {value}" for key, value in row.labels.items())),
)


def available() -> list[str]:
    """Return the names of the measurements that this installation has."""
    return [name for name, module in BENCHES.items() if importlib.util.find_spec(module) is not None]


class BenchCommand(TyperCommand):
    """``farbus bench``: a measurement with options of its own explains them itself."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Pass ``farbus bench NAME --help`` on where NAME knows more than this command."""
        asked = args and args[0] in available() and {"-h", "--help"} & set(args[1:]) and "--" not in args
        if asked and hasattr(importlib.import_module(BENCHES[args[0]]), "main"):
            args = [args[0], "--", "--help"]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


@app.command(
    cls=BenchCommand,
    epilog=examples(
        "farbus bench                     which there are",
        "farbus bench remoting            calls and copies, beside a bare socket",
        "farbus bench remoting --json     for programs",
        "farbus bench remoting --help     the options that it has of its own: transport, emulated network",
        "farbus bench remoting --libcuda /usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "farbus bench softgpu --against /opt/other/lib   beside another build of a software GPU",
        "farbus bench scheduler --full    also the sizes that take minutes",
        "farbus bench nvmeof --json       namespaces over TCP beside the same made by hand; needs root, nvmet, fio",
        "farbus bench agent --json        what an agent costs idle, and what a thousand of them bear",
    ),
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def bench(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What to measure.", autocompletion=available, show_default=False)
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Measure all sizes, however long it takes.")] = False,
) -> int:
    """Measure, beside the limit that the machine sets.

    JSON is {"bench", "results": [{"name", "value", "unit", "reference", "ratio", labels...}]}.
    """
    names = available()
    if not name:
        for known in names:
            typer.echo(f"{known:{max(map(len, names))}}  {MEASURES[known]}")
        return 0
    if name not in names:
        hint = f"there is {', '.join(names)}" if names else "this installation has none"
        raise InvalidInput(f"there is no measurement {name!r}", hint=hint)
    module = importlib.import_module(BENCHES[name])
    if hasattr(module, "main"):
        if full:
            raise InvalidInput(f"bench {name}: it has no --full", hint=f"farbus bench {name} --help lists its options")
        try:
            return int(module.main([*(["--json"] if json else []), *ctx.args]))
        except SystemExit as ended:
            # So its parser ends for help and for a wrong option, when it has said so.
            return int(ended.code or 0)
    if ctx.args:
        raise InvalidInput(f"bench {name}: unknown option {ctx.args[0]}", hint="it knows --json and --full")
    how_long = "up to half an hour" if full else "up to three minutes"
    typer.echo(f"farbus: measuring {name}; it takes {how_long}", err=True)
    result = module.run(quick=not full)
    if json:
        print_json(result)
        return 0
    print_listing([_row(fields) for fields in result["results"]], COLUMNS, Output.TABLE, nothing="nothing was measured")
    return 0


def _row(fields: dict[str, Any]) -> Row:
    known = {key: fields[key] for key in ("name", "value", "unit", "reference", "ratio") if key in fields}
    return Row(**known, labels={key: value for key, value in fields.items() if key not in known})
