"""``farbus sim``: the scheduler's code under a virtual clock."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from farbus.cli.listing import Column, print_json, print_listing
from farbus.cli.options import Output, OutputOption, command_app, examples
from farbus.sim import experiments
from farbus.sim.experiments import Mode, Row

app = command_app()


class Experiment(msgspec.Struct, frozen=True):
    """One line of the listing."""

    name: str
    what: str


@app.callback(epilog=examples("farbus sim list", "farbus sim run workload-aware-placement"))
def sim() -> None:
    """Run experiments in the simulator: the scheduler's code, a virtual clock, seeds."""


@app.command(name="list", epilog=examples("farbus sim list", "farbus sim list -o json"))
def list_experiments(output: OutputOption = Output.TABLE) -> int:
    """List the experiments."""
    known = [Experiment(name, what) for name, what in experiments.EXPERIMENTS.items()]
    columns = (Column[Experiment]("NAME", lambda one: one.name), Column[Experiment]("WHAT", lambda one: one.what))
    print_listing(known, columns, output, nothing="there are no experiments")
    return 0


def _cell(column: str, *, short: str) -> Column[Row]:
    def text(row: Row) -> str:
        ours, theirs = row.cells[column], row.published[column]
        return ours if ours == theirs else f"{ours} ({theirs})"

    return Column(short, text, right=True)


COLUMNS: tuple[Column[Row], ...] = (
    Column("SCENARIO", lambda row: row.scenario),
    Column("LOAD", lambda row: f"{row.target_load:g}"),
    Column("POLICY", lambda row: row.policy),
    Column("DRIVES", lambda row: row.drives),
    _cell("processor load", short="CPU"),
    _cell("bandwidth load", short="BW"),
    _cell("capacity load", short="CAP"),
    _cell("missed %", short="MISSED %"),
    _cell("missed urgent %", short="URGENT %"),
    _cell("drives used %", short="USED %"),
    _cell("waiting s", short="WAITING S"),
    _cell("composition size", short="SIZE"),
    _cell("sharing", short="SHARING"),
)


@app.command(
    epilog=examples(
        "farbus sim run workload-aware-placement",
        "farbus sim run workload-aware-placement --mode corrected --seed 7",
        "farbus sim run workload-aware-placement -o json | jq .cells_matching",
    )
)
def run(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The experiment (farbus sim list).",
            autocompletion=lambda: list(experiments.EXPERIMENTS),
            show_default=False,
        ),
    ],
    mode: Annotated[
        Mode,
        typer.Option("--mode", help="paper-exact: as the published numbers were made; corrected: as the text says."),
    ] = Mode.PAPER_EXACT,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Of what is drawn, in the corrected mode."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> int:
    """Run an experiment, and show what it found beside what the paper prints.

    A cell that differs from the paper's has the paper's in parentheses.
    It takes about half a minute; docs/experiments.md says what the modes are.
    """
    report = experiments.run(name, mode=mode, seed=seed, tell=_progress if sys.stderr.isatty() else None)
    if output is Output.JSON:
        print_json(report)
        return 0
    print_listing(report.rows, COLUMNS, output, nothing="no rows")
    sys.stdout.write(f"\n{report.cells_matching} of {report.cells_total} cells as published\n")
    return 0


def _progress(done: int, total: int) -> None:
    end = "\r" if done < total - 1 else "\r\x1b[K"
    sys.stderr.write(f"row {done + 1} of {total}{end}")
    sys.stderr.flush()
