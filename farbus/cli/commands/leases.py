"""``farbus leases``."""

from __future__ import annotations

from typing import Annotated

import typer

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
from farbus.cli.tables import LEASE_COLUMNS

app = command_app()


@app.command(
    epilog=examples(
        "farbus leases            who may use which devices now",
        "farbus leases --all      also leases that were released",
        "farbus leases -o wide    with task, epoch, term and endpoint",
    )
)
def leases(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="LEASE", help="Only these leases.", show_default=False)
    ] = None,
    all_leases: Annotated[bool, typer.Option("--all", "-a", help="Also those that were released.")] = False,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """List who may use which devices now."""
    target = find_target(socket=socket, server=server, credentials=credentials)
    statuses = ask(target, lambda client: client.list_leases(include_released=all_leases or bool(names)))
    statuses = choose(statuses, names, key=lambda status: status.lease.id, noun="lease")
    print_listing(statuses, LEASE_COLUMNS, output, nothing="no lease that you may see is held")
