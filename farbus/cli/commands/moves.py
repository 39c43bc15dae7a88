"""``farbus moves``."""

from __future__ import annotations

from typing import Annotated

import typer

from farbus.cli.completion import complete_move
from farbus.cli.connection import ask, find_target
from farbus.cli.listing import choose, print_listing
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)
from farbus.cli.tables import MOVE_COLUMNS

app = command_app()


@app.command(
    epilog=examples(
        "farbus moves            devices that are on their way, or stuck",
        "farbus moves --all      also moves that have ended",
        "farbus moves m7         one of them",
        "farbus moves -o wide    with chassis, port, path and what to do",
    )
)
def moves(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="MOVE", help="Only these moves.", autocompletion=complete_move, show_default=False),
    ] = None,
    all_moves: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """List devices that are being attached and detached.  For operators."""
    target = find_target(socket=socket, server=server, credentials=credentials)
    statuses = ask(target, lambda client: client.list_moves(include_ended=all_moves or bool(names)))
    statuses = choose(statuses, names, key=lambda status: status.id, noun="move", command="moves --all")
    print_listing(statuses, MOVE_COLUMNS, output, nothing="no device is on its way")
