"""``farbus defragment``."""

from __future__ import annotations

from typing import Annotated

import typer

from farbus.cli.completion import complete_job
from farbus.cli.connection import ask, find_target
from farbus.cli.listing import print_json, printable
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)
from farbus.cli.tables import format_placement

app = command_app()


@app.command(epilog=examples("farbus defragment j12 --dry-run", "farbus defragment j12"))
def defragment(
    job_id: Annotated[
        str, typer.Argument(metavar="JOB", help="The waiting job that needs room.", autocompletion=complete_job)
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which jobs would move.")] = False,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Move moveable jobs so that a waiting one has room: they end, and begin anew elsewhere.  For operators."""
    target = find_target(socket=socket, server=server, credentials=credentials)
    plan = ask(target, lambda client: client.defragment(job_id, dry_run=dry_run))
    if output is Output.JSON:
        print_json(plan)
        return
    if not plan.moved:
        # A quota, or what a volume of it is used for, holds a job back as well.
        typer.echo(
            f"job {plan.job} has room as it is: nothing has to move; "
            f"where it waits all the same, farbus explain {plan.job} says why"
        )
    moves = "moves" if plan.begun else "would move"
    for moved in plan.moved:
        came = ", ".join(dict.fromkeys(format_placement(task) for task in moved.came_from))
        goes = ", ".join(dict.fromkeys(format_placement(task) for task in moved.goes_to))
        typer.echo(printable(f"job {moved.job} of {moved.user} {moves} from {came} to {goes}"))
    for task in plan.placements:
        typer.echo(
            printable(
                f"task {task.task} of job {plan.job} {'goes' if plan.begun else 'would go'} to {format_placement(task)}"
            )
        )
