"""``farbus moves``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from farbus.cli.completion import complete_move
from farbus.cli.connection import Target, ask, find_target
from farbus.cli.following import say
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
from farbus.errors import FarbusError, InvalidInput
from farbus.model.move import MoveStatus

if TYPE_CHECKING:
    from farbus.api.client import ClusterClient

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
        print_listing(_cancel(target, names), MOVE_COLUMNS, output, nothing="")
        return
    statuses = ask(target, lambda client: client.list_moves(include_ended=all_moves or bool(names)))
    statuses = choose(statuses, names, key=lambda status: status.id, noun="move", command="moves --all")
    print_listing(statuses, MOVE_COLUMNS, output, nothing="no moves" if all_moves else "no device is on its way")


def _cancel(target: Target, names: list[str]) -> list[MoveStatus]:
    """Call moves off, each of which may be refused; raise the first refusal when all were asked for."""
    errors: list[FarbusError] = []

    async def question(client: ClusterClient) -> list[MoveStatus]:
        statuses = []
        for name in dict.fromkeys(names):
            try:
                statuses.append(await client.cancel_move(name))
            except FarbusError as error:
                errors.append(error)
        return statuses

    statuses = ask(target, question)
    for error in errors[1:]:
        say(str(error))
    if errors:
        raise errors[0]
    return statuses
