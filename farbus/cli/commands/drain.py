"""``farbus drain``."""

from __future__ import annotations

import asyncio
import functools
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from farbus.cli.commands.cordon import ReasonOption
from farbus.cli.completion import complete_node
from farbus.cli.connection import ask, find_target
from farbus.cli.following import closing, resumed, say
from farbus.cli.listing import print_listing
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

if TYPE_CHECKING:
    from farbus.api.client import ClusterClient
    from farbus.model.job import JobStatus

app = command_app()


@app.command(
    epilog=examples(
        "farbus drain beta                 cordon it, and wait until no job uses it",
        "farbus drain beta --evict         cordon it, and end the jobs that use it",
        "farbus drain beta --no-wait       cordon it, and list the jobs that use it",
        "farbus uncordon beta              let it be used again",
    )
)
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node to empty.", autocompletion=complete_node)],
    evict: Annotated[
        bool, typer.Option("--evict", help="End what runs; what does not run yet, or is moveable, is queued again.")
    ] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait: list who uses it now.")] = False,
    reason: ReasonOption = "",
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Cordon a node and wait until no job uses it, or its devices.  For operators.

    Ctrl-C ends the waiting; the node stays cordoned.
    """

    async def question(client: ClusterClient) -> tuple[JobStatus, ...]:
        told, lost = "", False
        jobs: tuple[JobStatus, ...] = ()
        # To drain a node that is cordoned already only looks who uses it.
        begin = functools.partial(client.drain, node, evict=evict, reason=reason)
        try:
            async with closing(resumed(begin, is_over=client.is_over)) as statuses:
                async for status in statuses:
                    if status.lost and status.jobs and not lost:
                        say(
                            f"node {node} is lost: its jobs let go of it once it is back; "
                            f"if it is off for good, farbus forget {node}"
                        )
                    lost = status.lost
                    jobs = status.jobs
                    if no_wait and jobs:
                        break
                    if not jobs:
                        # It ends by itself: who left it now would be in the audit log as one who did not hear how it
                        # came out.
                        continue
                    names = ", ".join(f"{job.job.id} ({job.state})" for job in status.jobs)
                    if names != told:
                        told = names
                        say(f"node {node} is used by {names}")
        except asyncio.CancelledError:
            # Ctrl-C ends the waiting alone.
            if told:
                say(f"node {node} stays cordoned; farbus drain {node} waits again, farbus uncordon {node} opens it")
            raise
        return jobs

    jobs = ask(find_target(socket=socket, server=server, credentials=credentials), question)
    if no_wait or output is Output.JSON:
        print_listing(jobs, JOB_COLUMNS, output, nothing=f"no job uses node {node}")
        return
    sys.stdout.write(f"node {node} is drained\n")
