"""``farbus uncordon``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farbus.cli.commands.cordon import NamesArgument, show
from farbus.cli.connection import ask, find_target
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)

if TYPE_CHECKING:
    from farbus.api.client import ClusterClient
    from farbus.model.operation import CordonResult

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

    async def question(client: ClusterClient) -> list[CordonResult]:
        return [await client.uncordon(name) for name in names]

    results = ask(find_target(socket=socket, server=server, credentials=credentials), question)
    show(results, "uncordoned", output)
