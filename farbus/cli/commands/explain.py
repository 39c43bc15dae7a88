"""``farbus explain``."""

from __future__ import annotations

from typing import Annotated

import typer

from farbus.cli.completion import complete_job
from farbus.cli.connection import ask, find_target
from farbus.cli.listing import plain_table, print_json, printable
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)
from farbus.cli.tables import JOB_COLUMNS

app = command_app()


@app.command(
    epilog=examples(
        "farbus explain j12",
        "farbus explain j12 -o json",
        "",
        "Costs have no unit. They compare places: the least that is possible is taken. 1 is what finishing exactly at "
        "its goal would cost a job. What costs how much is the scheduler's policy (docs/scheduling.md, Policies).",
    )
)
def explain(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="The job.", autocompletion=complete_job)],
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Say why a job waits, or why it was placed where it is."""
    target = find_target(socket=socket, server=server, credentials=credentials)
    explanation = ask(target, lambda client: client.explain(job_id))
    if output is Output.JSON:
        print_json(explanation)
        return
    if output is Output.WIDE:
        row = [printable(column.cell(explanation.status)) or "-" for column in JOB_COLUMNS]
        typer.echo(plain_table([row], JOB_COLUMNS))
    for line in explanation.lines:
        typer.echo(printable(line))
