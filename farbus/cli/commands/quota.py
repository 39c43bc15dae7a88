"""``farbus quota``."""

from __future__ import annotations

from typing import Annotated

import typer

from farbus.cli.connection import ask, find_target
from farbus.cli.listing import Column, choose, print_listing
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)
from farbus.model.quantity import format_bytes
from farbus.model.rules import QuotaStatus

app = command_app()


def _limit(value: int | None) -> str:
    return "no limit" if value is None else str(value)


COLUMNS: tuple[Column[QuotaStatus], ...] = (
    Column("USER", lambda status: status.user),
    Column("DEVICES", lambda status: str(status.devices), right=True),
    Column("OF", lambda status: _limit(status.devices_limit), right=True),
    Column("JOBS", lambda status: str(status.jobs), right=True),
    Column("OF", lambda status: _limit(status.jobs_limit), right=True),
    Column("VOLUMES", lambda status: format_bytes(status.volume_bytes), right=True),
    Column(
        "OF",
        lambda status: "no limit" if status.volume_bytes_limit is None else format_bytes(status.volume_bytes_limit),
        right=True,
    ),
    Column("WAITING", lambda status: str(status.waiting), right=True),
)


NOTHING = "nobody has or wants anything; what each user may have is set in the scheduler's settings ([quota])"


@app.command(epilog=examples("farbus quota", "farbus quota ada bob -o json    for operators of the cluster"))
def quota(
    users: Annotated[
        list[str] | None, typer.Argument(metavar="USER", help="Show these users.", show_default=False)
    ] = None,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """List what users have of the cluster, and what they may have."""
    target = find_target(socket=socket, server=server, credentials=credentials)
    statuses = ask(target, lambda client: client.list_quotas())
    chosen = choose(statuses, users, key=lambda status: status.user, noun="user", command="quota")
    print_listing(chosen, COLUMNS, output, nothing=NOTHING)
