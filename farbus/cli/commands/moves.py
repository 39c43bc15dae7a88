"""``farbus moves``."""

from __future__ import annotations

from typing import Annotated

import typer

from farbus.cli.completion import complete_move
from farbus.cli.connection import ask, ask_each, find_target
from farbus.cli.following import raise_first
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
from farbus.errors import InvalidInput

app = command_app()


@app.command(
    epilog=examples(
        "farbus moves              devices that are on their way, or stuck",
        "farbus moves --all        also moves that have ended",
        "farbus moves m7           one of them",
        "farbus moves --cancel m7  call it off: what has begun is taken back",
        "farbus moves -o wide      with chassis, port, path and what to do",
    )
)
def moves(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="MOVE", help="Only these moves.", autocompletion=complete_move, show_default=False),
    ] = None,
    all_moves: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Call these moves off: what has begun is taken back where that goes.")
    ] = False,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """List devices that are being attached and detached, or call such moves off.  For operators."""
    target = find_target(socket=socket, server=server, credentials=credentials)
    if cancel:
        if not names or all_moves:
            raise InvalidInput("--cancel: it needs the moves that are to be called off", hint="farbus moves lists them")
        called_off, refusals = ask_each(target, names, lambda client, name: client.cancel_move(name))
        if called_off or output is Output.JSON:
            print_listing(called_off, MOVE_COLUMNS, output, nothing="")
        raise_first(refusals)
        return
    statuses = ask(target, lambda client: client.list_moves(include_ended=all_moves or bool(names)))
    statuses = choose(statuses, names, key=lambda status: status.id, noun="move", command="moves --all")
    print_listing(statuses, MOVE_COLUMNS, output, nothing="no moves" if all_moves else "no device is on its way")
