"""``farbus schema``."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
import typer

from farbus.cli import jobfile
from farbus.cli.options import command_app, examples

app = command_app()


class Kind(enum.StrEnum):
    """Files that have a schema."""

    JOB = "job"


@app.command(epilog=examples("farbus schema job > job.schema.json    for an editor that checks while you write"))
def schema(kind: Annotated[Kind, typer.Argument(help="What the file describes.")] = Kind.JOB) -> None:
    """Print the JSON schema of job files."""
    assert kind is Kind.JOB
    typer.echo(msgspec.json.format(msgspec.json.encode(jobfile.schema()), indent=2))
