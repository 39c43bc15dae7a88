"""``farbus fetch``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farbus.cli.connection import ask, find_target
from farbus.cli.following import say
from farbus.cli.listing import Column, print_listing, printable
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)
from farbus.cli.staging import fetch_output
from farbus.errors import NotFound
from farbus.model.quantity import format_bytes
from farbus.model.states import JOB_STATES

if TYPE_CHECKING:
    from farbus.api.client import ClusterClient
    from farbus.api.staging import OutputFile
    from farbus.model.job import JobStatus

app = command_app()


@app.command(
    epilog=examples(
        "farbus fetch j7                into the current directory",
        "farbus fetch j7 -C results     into another, which is made",
        "farbus fetch j7 --list         say what there is",
    )
)
def fetch(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job that names its output (stage_out).")],
    directory: Annotated[str, typer.Option("--directory", "-C", metavar="DIR", help="Where the files go.")] = ".",
    list_only: Annotated[bool, typer.Option("--list", help="Only say what there is, as -o json does.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not name the files.")] = False,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Fetch the files that a job has put out.

    With several tasks, each task's files go into a directory of its name; of a
    job that runs, those come whose tasks have ended.  A fetch that broke off goes
    on where it was, with what it has left of a large file (.farbus-DIGEST.part);
    the files are kept for a week.  A job that has put out nothing is an error,
    with exit code 3.
    """
    target = find_target(socket=socket, server=server, credentials=credentials)

    async def listed(client: ClusterClient) -> tuple[OutputFile, ...]:
        from farbus.api.staging import StagingClient  # noqa: PLC0415 - gRPC takes a third of a second to load

        return await StagingClient(client).list_output(job)

    async def fetched(client: ClusterClient) -> int:
        from farbus.api.staging import StagingClient  # noqa: PLC0415 - as above

        staging = StagingClient(client)
        status = await client.get_job(job)
        # By what the job is, not by what has come so far: once more, files go to the same places.
        by_task = sum(group.count for group in status.job.in_flavour(status.alternative).groups) > 1
        came = await fetch_output(
            staging,
            job,
            await asyncio.to_thread(Path(directory).absolute),
            by_task=by_task,
            force=force,
            tell=lambda path: None if quiet else typer.echo(printable(path)),
        )
        if not came and not await staging.list_output(job):
            raise _no_files(status)
        if by_task and not JOB_STATES.is_final(status.state):
            say(f"job {job} is {status.state}: what its other tasks put out comes when they have ended")
        return came

    if list_only or output is Output.JSON:
        print_listing(ask(target, listed), _columns(), output, nothing=f"job {job} has put out no files")
        return
    if not ask(target, fetched):
        typer.echo(f"job {job}: all that it has put out is here already; --list says what that is", err=True)


def _no_files(status: JobStatus) -> NotFound:
    """Say why a job has put out nothing."""
    job = status.job
    if not job.stage_out:
        return NotFound(
            f"job {job.id} puts out no files: it has no stage_out", hint=f"farbus logs {job.id} shows what it printed"
        )
    if not JOB_STATES.is_final(status.state):
        return NotFound(
            f"job {job.id} has put out no files yet: it is {status.state}",
            hint="those of a task come when it has ended",
        )
    return NotFound(
        f"job {job.id} has put out no files, or they are not kept any more",
        hint=f"farbus jobs {job.id} says how it has ended",
    )


def _columns() -> list[Column[OutputFile]]:
    return [
        Column("TASK", lambda file: file.task),
        Column("SIZE", lambda file: format_bytes(file.size), right=True),
        Column("PATH", lambda file: file.path),
        Column("SHA256", lambda file: file.sha256, wide=True),
    ]
