"""``farbus logs``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from farbus.cli.completion import complete_job
from farbus.cli.connection import ask, find_target
from farbus.cli.following import copy_logs
from farbus.cli.options import CredentialsOption, ServerOption, SocketOption, command_app, examples
from farbus.errors import NotFound

if TYPE_CHECKING:
    from farbus.api.client import ClusterClient

app = command_app()


@app.command(
    epilog=examples(
        "farbus logs j12                   what it printed so far",
        "farbus logs -f j12                and what it prints until it ends",
        "farbus logs j12 --task worker.3   one task of several",
    )
)
def logs(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="The job.", autocompletion=complete_job)],
    task: Annotated[
        str, typer.Option("--task", metavar="GROUP.INDEX", help="Only this task.", show_default=False)
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Show what a job printed: its standard output on this one's, its standard error likewise."""

    async def question(client: ClusterClient) -> None:
        status = await client.get_job(job_id)
        names = [f"{group.name}.{index}" for group in status.job.groups for index in range(group.count)]
        if task and task not in names:
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise NotFound(f"job {job_id} has no task {task}", hint=f"it has {shown}")
        chosen = [task] if task else names
        several = len(chosen) > 1
        if several and not follow:
            for name in chosen:
                await copy_logs(client, job_id, task=name, follow=False, prefix=name)
            return
        async with asyncio.TaskGroup() as group:
            for name in chosen:
                group.create_task(
                    copy_logs(client, job_id, task=name, follow=follow, prefix=name if several else ""), name=name
                )

    ask(find_target(socket=socket, server=server, credentials=credentials), question)
