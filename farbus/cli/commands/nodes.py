"""``farbus nodes``."""

from __future__ import annotations

from typing import Annotated

import typer

from farbus.cli.completion import complete_node
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
from farbus.cli.tables import NODE_COLUMNS

app = command_app()


@app.command(
    epilog=examples(
        "farbus nodes                 all nodes",
        "farbus nodes gamma -o wide   one node, with its labels",
        "farbus nodes -o json         every field, devices too",
    )
)
def nodes(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NODE", help="Only these nodes.", autocompletion=complete_node, show_default=False),
    ] = None,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """List nodes, or show one."""
    target = find_target(socket=socket, server=server, credentials=credentials)
    statuses = ask(target, lambda client: client.list_nodes())
    statuses = choose(statuses, names, key=lambda status: status.node.name, noun="node")
    print_listing(statuses, NODE_COLUMNS, output, nothing="no node is there; start one with farbus agent")
