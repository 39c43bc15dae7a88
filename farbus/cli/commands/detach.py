"""``farbus detach``."""

from __future__ import annotations

from typing import Annotated

import typer

from farbus.cli.completion import complete_device
from farbus.cli.moving import DrainOption, DryRunOption, EvictOption, LocalOption, QuietOption, move_all
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)
from farbus.model.move import MoveRequest

app = command_app()


@app.command(
    epilog=examples(
        "farbus detach GPU-8f2d6c1e              wait for its holders, and take it from its node",
        "farbus detach GPU-8f2d6c1e --dry-run    every step, who is in the way, how long",
        "farbus detach GPU-8f2d6c1e --evict      end programs and sessions that hold it",
        "farbus attach GPU-8f2d6c1e --to beta    brings it to another node",
    )
)
def detach(
    devices: Annotated[
        list[str],
        typer.Argument(
            metavar="DEVICE", help="Whole ids of devices, as farbus devices lists them.", autocompletion=complete_device
        ),
    ],
    evict: EvictOption = False,
    drain: DrainOption = 0.0,
    dry_run: DryRunOption = False,
    local: LocalOption = False,
    quiet: QuietOption = False,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Take devices from their nodes, and from the ports of their chassis.  For operators.

    A device that a job has is refused.  Where a step fails, those before it
    are undone.  Ctrl-C ends the watching; the move goes on.
    """
    requests = [
        MoveRequest(device=name, evict=evict, drain_s=drain, dry_run=dry_run) for name in dict.fromkeys(devices)
    ]
    move_all(requests, output, local=local, quiet=quiet, socket=socket, server=server, credentials=credentials)
