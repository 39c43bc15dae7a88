"""``farbus uncordon``."""

from __future__ import annotations

from farbus.cli.commands.cordon import NamesArgument, show
from farbus.cli.connection import ask_each, find_target
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


@app.command(epilog=examples("farbus uncordon beta", "farbus uncordon beta GPU-8f2d6c1e-0001"))
def uncordon(
    names: NamesArgument,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Let nodes or devices be used again.  For operators."""

    target = find_target(socket=socket, server=server, credentials=credentials)
    show(ask_each(target, names, lambda client, name: client.uncordon(name)), "uncordoned", output)
