"""``farbus cordon``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from farbus.cli.completion import complete_node_or_device
from farbus.cli.connection import ask_each, find_target
from farbus.cli.following import raise_first
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
from farbus.errors import FarbusError

if TYPE_CHECKING:
    from farbus.model.operation import CordonResult

app = command_app()

NamesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="NODE|DEVICE", help="Names of nodes, ids of devices.", autocompletion=complete_node_or_device
    ),
]
ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why, for those who see it.", show_default=False)
]


@app.command(
    epilog=examples(
        'farbus cordon beta --reason "new driver"   no new task on a node, no new lease of its devices',
        "farbus cordon GPU-8f2d6c1e-0001            no new lease of one device",
        "farbus nodes -o wide                       shows who cordoned what, when and why",
    )
)
def cordon(
    names: NamesArgument,
    reason: ReasonOption = "",
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Give nodes or devices nothing new; what runs there goes on.  For operators."""

    target = find_target(socket=socket, server=server, credentials=credentials)
    show(ask_each(target, names, lambda client, name: client.cordon(name, reason=reason)), "cordoned", output)


def show(answers: tuple[list[CordonResult], list[FarbusError]], done: str, output: Output) -> None:
    """Print what has become of each; raise why something was refused."""
    results, refusals = answers
    if output is Output.JSON:
        print_json(results)
    else:
        for result in results:
            typer.echo(f"{result.kind} {result.name} {done if result.changed else f'was {done} already'}")
    raise_first(refusals)
