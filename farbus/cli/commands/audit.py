"""``farbus audit``."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farbus.cli.connection import ask, find_target
from farbus.cli.listing import Column, print_listing
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)
from farbus.errors import InvalidInput, NotFound
from farbus.linux.ownership import acting_for_owner

if TYPE_CHECKING:
    from farbus.api.audit import AuditRecord
    from farbus.api.client import ClusterClient

app = command_app()

_AGO = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _columns() -> list[Column[AuditRecord]]:
    return [
        Column("TIME", lambda record: record.at),
        Column("WHO", lambda record: record.who),
        Column("ROLE", lambda record: record.role, wide=True),
        Column("NODE", lambda record: record.node),
        Column("FROM", lambda record: record.peer, wide=True),
        Column("DID", lambda record: record.method),
        Column("TO", lambda record: record.target),
        Column("OUTCOME", lambda record: record.outcome, state=True),
        Column(
            "ERROR",
            lambda record: f"{record.omitted} more of the same" if record.omitted else record.error,
            prose=True,
        ),
    ]


@app.command(
    epilog=examples(
        "farbus audit --since 2h",
        "farbus audit --since 2026-03-01T12:00 -o json",
        "farbus audit --authority /etc/farbus/ca     what farbus ca did, without a scheduler",
    )
)
def audit(
    since: Annotated[
        str,
        typer.Option(
            "--since", metavar="TIME", help="Only from then on: 30m, 2h, 7d, or a time in UTC.", show_default=False
        ),
    ] = "",
    authority: Annotated[
        str,
        typer.Option(
            "--authority", metavar="DIR", help="Read the log in an authority's directory.", show_default=False
        ),
    ] = "",
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Show who did what to what, and how it came out.  For operators.

    Calls that change something stand here, and every call that was refused.
    """
    begin = parse_since(since)
    if authority:
        from farbus.api.audit import FILE_NAME, read_records  # noqa: PLC0415 - loads quickly only without gRPC

        with acting_for_owner(authority):
            if not any((Path(authority) / name).exists() for name in ("ca.crt", FILE_NAME)):
                raise NotFound(f"{authority}: no authority here", hint="give the directory that farbus ca init made")
            records = list(read_records(Path(authority) / FILE_NAME, since=begin))
    else:

        async def collect(client: ClusterClient) -> list[AuditRecord]:
            return [record async for record in client.read_audit(since=begin)]

        records = ask(find_target(socket=socket, server=server, credentials=credentials), collect)
    print_listing(records, _columns(), output, nothing="nothing is on record")


def parse_since(text: str) -> str:
    """Return a moment as records have it, from a time or from how long ago it is; empty for empty."""
    if not text:
        return ""
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            moment = datetime.datetime.now(datetime.UTC) - datetime.timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            moment = datetime.datetime.fromisoformat(text)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"--since {text}: no time", hint="write 30m, 2h, 7d or 2026-03-01T12:00") from error
    return moment.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
