"""``farbus jobs``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from farbus.cli.completion import complete_job
from farbus.cli.connection import ask, find_target
from farbus.cli.listing import print_json, print_listing
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)
from farbus.cli.tables import JOB_COLUMNS, describe_job
from farbus.model.job import JobStatus

if TYPE_CHECKING:
    from farbus.api.client import ClusterClient

app = command_app()


@app.command(
    epilog=examples(
        "farbus jobs                  jobs that wait or run",
        "farbus jobs --all            also those that have ended",
        "farbus jobs j12              one job: where it is, its tasks, its story",
        "farbus jobs --all -o json    every field, for programs",
    )
)
def jobs(
    job_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="JOB", help="Show these jobs.", autocompletion=complete_job, show_default=False),
    ] = None,
    all_jobs: Annotated[bool, typer.Option("--all", "-a", help="Also jobs that have ended.")] = False,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """List jobs, or show one."""
    target = find_target(socket=socket, server=server, credentials=credentials)
    if not job_ids:
        statuses = ask(target, lambda client: client.list_jobs(include_ended=all_jobs))
        nothing = (
            "no job yet"
            if all_jobs
            else "no job that you may see waits or runs; farbus jobs --all shows those that have ended"
        )
        print_listing(statuses, JOB_COLUMNS, output, nothing=nothing)
        return

    async def question(client: ClusterClient) -> list[JobStatus]:
        return list(await asyncio.gather(*(client.get_job(job_id) for job_id in job_ids)))

    statuses = tuple(ask(target, question))
    if output is Output.JSON:
        print_json(statuses)
        return
    print_listing(statuses, JOB_COLUMNS, output, nothing="")
    for status in statuses:
        typer.echo("\n" + "\n".join(describe_job(status)))
