"""``farbus cancel``."""

from __future__ import annotations

from typing import Annotated

import typer

from farbus.cli.completion import complete_job
from farbus.cli.connection import ask_each, find_target
from farbus.cli.following import raise_first
from farbus.cli.listing import print_json
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)

app = command_app()


@app.command(epilog=examples("farbus cancel j12", "farbus cancel j12 j13"))
def cancel(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB", help="The jobs to end.", autocompletion=complete_job)],
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """End jobs: one that waits leaves the queue, one that runs is told to stop and its devices become free."""
    target = find_target(socket=socket, server=server, credentials=credentials)
    statuses, refusals = ask_each(target, job_ids, lambda client, job_id: client.cancel_job(job_id))
    if output is Output.JSON:
        print_json(statuses)
    else:
        for status in statuses:
            typer.echo(f"{status.job.id} {status.state}")
    raise_first(refusals)
