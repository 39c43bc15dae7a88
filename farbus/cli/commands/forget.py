"""``farbus forget``."""

from __future__ import annotations

from typing import Annotated

import typer

from farbus.cli.completion import complete_node
from farbus.cli.connection import ask, find_target
from farbus.cli.listing import print_json
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)

app = command_app()


@app.command(
    epilog=examples(
        "farbus forget beta           a node that was switched off, or taken away",
        "farbus forget beta -o json   what was released with it, for programs",
        "",
        "While a node is only away, its devices wait for it: it may still use them.  Forgetting it is your word "
        "that it is off.  Should it come back, it is a new node, and first gives up what it still holds.",
    )
)
def forget(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node that is off.", autocompletion=complete_node)],
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Give up a node that is off for good: its leases are released, its jobs end.  For operators."""
    target = find_target(socket=socket, server=server, credentials=credentials)
    forgotten = ask(target, lambda client: client.forget(node))
    if output is Output.JSON:
        print_json(forgotten)
        return
    typer.echo(f"node {node} forgotten")
    for noun, names in (("lease", forgotten.leases), ("device", forgotten.devices), ("job", forgotten.jobs)):
        for name in names:
            typer.echo(f"  {noun} {name}")
