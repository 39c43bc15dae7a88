"""``farbus version``."""

from __future__ import annotations

import typer

import farbus
from farbus.cli.options import command_app, examples

app = command_app()


@app.command(epilog=examples("farbus version"))
def version() -> None:
    """Print the version."""
    typer.echo(f"farbus {farbus.__version__}")
