"""``farbus cancel``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from farbus.cli.completion import complete_job
from farbus.cli.connection import ask, find_target
from farbus.cli.options import CredentialsOption, ServerOption, SocketOption, command_app, examples

if TYPE_CHECKING:
    from farbus.api.client import ClusterClient

app = command_app()


@app.command(epilog=examples("farbus cancel j12", "farbus cancel j12 j13"))
def cancel(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB", help="The jobs to end.", autocompletion=complete_job)],
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """End jobs: one that waits leaves the queue, one that runs is told to stop and its devices become free."""

    async def question(client: ClusterClient) -> None:
        for job_id in job_ids:
            status = await client.cancel_job(job_id)
            typer.echo(f"{status.job.id} {status.state}")

    ask(find_target(socket=socket, server=server, credentials=credentials), question)
