"""``farbus logs``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from farbus.cli.completion import complete_job
from farbus.cli.connection import ask, find_target
from farbus.cli.following import Printer, copy_logs, follow_output, raise_first, while_read
from farbus.cli.options import CredentialsOption, ServerOption, SocketOption, command_app, examples
from farbus.cli.tables import is_ended
from farbus.errors import FarbusError, NotFound

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
        async with while_read():
            if len(chosen) == 1:
                await copy_logs(client, job_id, task=chosen[0], follow=follow, printer=Printer(several=False))
            elif follow and not is_ended(status):
                await follow_output(client, job_id)
            else:
                await _copy_one_by_one(client, job_id, chosen)

    ask(find_target(socket=socket, server=server, credentials=credentials), question)


async def _copy_one_by_one(client: ClusterClient, job_id: str, tasks: Sequence[str]) -> None:
    """Copy what there is of each task, also where that of another can't be had; raise the first error then."""
    printer, errors = Printer(several=True), []
    for task in tasks:
        try:
            await copy_logs(client, job_id, task=task, follow=False, printer=printer)
        except FarbusError as error:
            errors.append(error)
    raise_first(errors)
