"""``farbus attach``."""

from __future__ import annotations

from typing import Annotated

import typer

from farbus.cli.completion import complete_device, complete_node
from farbus.cli.connection import ask
from farbus.cli.moving import (
    DrainOption,
    DryRunOption,
    EvictOption,
    LocalOption,
    QuietOption,
    move_all,
    target_of_moves,
)
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)
from farbus.errors import InvalidInput
from farbus.model.move import MoveRequest

app = command_app()


@app.command(
    epilog=examples(
        "farbus attach GPU-8f2d6c1e --to beta            from wherever it is, to a node",
        "farbus attach GPU-8f2d6c1e --to beta --dry-run  every step, who is in the way, how long",
        "farbus attach GPU-1 GPU-2 --to beta             side by side where the chassis allows it",
        "farbus attach NVME-S5GXNX0-PM9A3 --local        to this machine, without the scheduler",
    )
)
def attach(
    devices: Annotated[
        list[str],
        typer.Argument(
            metavar="DEVICE", help="Whole ids of devices, as farbus devices lists them.", autocompletion=complete_device
        ),
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="NODE", help="Where they are to be.", autocompletion=complete_node)
    ] = "",
    port: Annotated[
        str, typer.Option("--port", metavar="PORT", help="The chassis's port of that node, where it has several.")
    ] = "",
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
    """Bring devices to a node over a PCIe fabric.  For operators.

    A device on another node is taken from there first, unless a job has it.
    Where it can't be attached it goes back.  Ctrl-C ends the watching; the
    move goes on.
    """
    if not to and local:
        target = target_of_moves(local=True, socket=socket, server=server, credentials=credentials)
        to = ask(target, lambda client: client.cluster_info()).node
    if not to:
        raise InvalidInput("no node is named", hint="--to NODE; farbus nodes lists them")
    requests = [
        MoveRequest(device=name, node=to, port=port, evict=evict, drain_s=drain, dry_run=dry_run)
        for name in dict.fromkeys(devices)
    ]
    move_all(requests, output, local=local, quiet=quiet, socket=socket, server=server, credentials=credentials)
