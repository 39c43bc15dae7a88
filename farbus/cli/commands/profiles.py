"""``farbus profiles``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import Meta

from farbus.cli.connection import ask, find_target
from farbus.cli.decoding import convert_fields, decode_fields, read_file
from farbus.cli.listing import Column, plain_table, print_json, print_listing, printable
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)
from farbus.cli.tables import format_age, format_moment
from farbus.errors import InvalidInput, NotFound
from farbus.model.device import Route
from farbus.model.profile import (
    MAX_APPLICATION,
    MAX_SHARING,
    MAX_TIMES,
    MAX_USER,
    ApplicationProfile,
    FlavourTime,
    ObservedRun,
)

if TYPE_CHECKING:
    from farbus.api.client import ClusterClient

app = command_app()

MAX_PROFILES = 1_000
"""Profiles of one file: each is a call."""

EVERYBODY = "(everybody)"
"""Stands for the users of a profile that holds for all; no user is called so."""


class TimeTable(msgspec.Struct, forbid_unknown_fields=True):
    """How long the application runs when it is given its devices in one way."""

    median_s: Annotated[float, Meta(gt=0, description="Seconds.")]
    flavour: Annotated[Route | None, Meta(description="How it has its devices; left out for a run without any.")] = None
    sharing: Annotated[int, Meta(ge=1, le=MAX_SHARING, description="How many use one device at a time.")] = 1
    count: Annotated[int, Meta(ge=1, description="Runs that this is known from.")] = 1
    spread_s: Annotated[float, Meta(ge=0, description="Median absolute deviation, seconds.")] = 0.0


class ProfileTable(msgspec.Struct, forbid_unknown_fields=True):
    """What is known of one application."""

    application: Annotated[str, Meta(min_length=1, max_length=MAX_APPLICATION, description="Its name.")]
    times: Annotated[list[TimeTable], Meta(min_length=1, max_length=MAX_TIMES, description="Its times by flavour.")]
    user: Annotated[str, Meta(max_length=MAX_USER, description="Whose jobs it is of; everybody's if empty.")] = ""
    sensitivity: Annotated[float, Meta(ge=0, description="Relative slowdown by a fully loaded network.")] = 0.0
    sensitivity_count: Annotated[int, Meta(ge=0, description="Runs that this is known from.")] = 0
    # What a listing tells beside, so that it can be given back as it is.
    set_by: Any = None
    set_at: Any = None
    runs: Any = None


class FileTable(msgspec.Struct, forbid_unknown_fields=True):
    """A file of profiles."""

    profile: Annotated[list[ProfileTable], Meta(min_length=1, max_length=MAX_PROFILES)]


def _time(profile: ApplicationProfile, flavour: Route | None) -> str:
    known = profile.time(flavour)
    return format_seconds(known.median_s) if known is not None else ""


def format_seconds(seconds: float) -> str:
    """Write a run time: ``0.25s``, ``42s``, ``7m10s``."""
    return f"{seconds:.2g}s" if seconds < 10 else format_age(seconds)


COLUMNS: tuple[Column[ApplicationProfile], ...] = (
    Column("APPLICATION", lambda profile: profile.application),
    Column("USER", lambda profile: profile.user or EVERYBODY),
    Column("NO DEVICE", lambda profile: _time(profile, None), right=True),
    Column("LOCAL", lambda profile: _time(profile, Route.LOCAL), right=True),
    Column("REMOTE", lambda profile: _time(profile, Route.REMOTE), right=True),
    Column("RECOMPOSED", lambda profile: _time(profile, Route.RECOMPOSED), right=True),
    Column("SENSITIVITY", lambda p: f"{p.sensitivity:.2g}" if p.sensitivity_count or p.set_by else "", right=True),
    Column("RUNS", lambda profile: str(sum(each.count for each in profile.times)), right=True),
    Column("SET BY", lambda profile: profile.set_by),
    Column("SET AT", lambda profile: format_moment(profile.set_at), wide=True),
)

TIME_COLUMNS: tuple[Column[FlavourTime], ...] = (
    Column("FLAVOUR", lambda time: time.flavour.value if time.flavour else "no device"),
    Column("SHARING", lambda time: str(time.sharing), right=True),
    Column("MEDIAN", lambda time: format_seconds(time.median_s), right=True),
    Column("SPREAD", lambda time: format_seconds(time.spread_s), right=True),
    Column("RUNS", lambda time: str(time.count), right=True),
)

RUN_COLUMNS: tuple[Column[ObservedRun], ...] = (
    Column("RUN", lambda run: run.flavour.value if run.flavour else "no device"),
    Column("SHARING", lambda run: str(run.sharing), right=True),
    Column("TOOK", lambda run: format_seconds(run.seconds), right=True),
    Column("NETWORK %", lambda run: f"{100 * run.network_load:.0f}", right=True),
    Column("SHAPE", lambda run: run.shape, right=True),
)


@app.callback(
    no_args_is_help=True,
    epilog=examples(
        "farbus profiles list",
        "farbus profiles show nw -o wide            also the runs that it was learned from",
        "farbus profiles list -o json > known.json",
        "farbus profiles set known.json             for operators",
        "farbus profiles forget nw --user ada       for operators",
    ),
)
def profiles() -> None:
    """What is known of applications: how long they run with which devices, and how the network's load slows them down.

    Policies place jobs by it. It is learned from jobs that succeeded; what an
    operator has set counts before it. An application is one user's, and called
    as its jobs say (application), else as they are named.
    """


@app.command(name="list", epilog=examples("farbus profiles list", "farbus profiles list -o json"))
def list_profiles(
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """List what is known: your own applications and everybody's; of all users for operators."""
    target = find_target(socket=socket, server=server, credentials=credentials)
    found = ask(target, lambda client: client.list_profiles())
    print_listing(found, COLUMNS, output, nothing="nothing is known of any application yet")


@app.command(epilog=examples("farbus profiles show nw", "farbus profiles show nw -o wide"))
def show(
    application: Annotated[str, typer.Argument(metavar="APPLICATION", help="The application.")],
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Show one application: its times by flavour and sharing, and with -o wide or json its latest runs."""
    target = find_target(socket=socket, server=server, credentials=credentials)
    found = ask(target, lambda client: client.list_profiles(application=application))
    if not found:
        raise NotFound(f"nothing is known of application {application}", hint="farbus profiles list lists what is")
    if output is Output.JSON:
        print_json(found)
        return
    for number, profile in enumerate(found):
        how = f"set by {profile.set_by}, {format_moment(profile.set_at)}" if profile.set_by else "learned"
        typer.echo(("\n" if number else "") + printable(f"{application} of {profile.user or EVERYBODY}, {how}"))
        if profile.sensitivity_count or profile.set_by:
            typer.echo(f"sensitivity {profile.sensitivity:.2g}, from {profile.sensitivity_count} runs under load")
        print_listing(profile.times, TIME_COLUMNS, Output.TABLE, nothing="")
        if output is Output.WIDE and profile.runs:
            rows = [[printable(column.cell(run)) or "-" for column in RUN_COLUMNS] for run in profile.runs]
            typer.echo("\n" + plain_table(rows, RUN_COLUMNS), nl=False)


@app.command(name="set", epilog=examples("farbus profiles set known.toml", "farbus profiles set - < known.json"))
def set_profiles(
    file: Annotated[str, typer.Argument(metavar="FILE", help="TOML or JSON; - for standard input.")],
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Have the profiles of a file count before what is learned.  For operators; docs/scheduling.md shows a file."""
    name = "standard input" if file == "-" else file
    given = read_profiles(read_file(file, what="file of profiles"), name=name)
    target = find_target(socket=socket, server=server, credentials=credentials)

    async def send(client: ClusterClient) -> None:
        for profile in given:
            await client.set_profile(profile)
            typer.echo(printable(f"{profile.application} of {profile.user or EVERYBODY} set"))

    ask(target, send)


@app.command(epilog=examples("farbus profiles forget nw", "farbus profiles forget nw --user ada"))
def forget(
    application: Annotated[str, typer.Argument(metavar="APPLICATION", help="The application.")],
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="NAME", help="Of this user alone; '' for what holds for everybody."),
    ] = None,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Forget what was learned and set of an application.  For operators."""
    target = find_target(socket=socket, server=server, credentials=credentials)
    forgotten = ask(target, lambda client: client.forget_profile(application, user=user))
    for profile in forgotten:
        how = "was set" if profile.set_by else "was learned"
        typer.echo(printable(f"{application} of {profile.user or EVERYBODY} forgotten: it {how}"))


def read_profiles(text: bytes, *, name: str) -> tuple[ApplicationProfile, ...]:
    """Turn a file's text into profiles; raise :class:`InvalidInput` naming file and field."""
    begins = b"".join(text[:256].split())
    # A listing as it was printed: JSON has no [[table]].
    if begins.startswith(b"[") and not begins.startswith(b"[["):
        text = b'{"profile": ' + text + b"}"
    table = convert_fields(decode_fields(text, name=name), FileTable, name=name)
    found = []
    for index, each in enumerate(table.profile):
        times = tuple(FlavourTime(**msgspec.structs.asdict(time)) for time in each.times)
        profile = ApplicationProfile(
            application=each.application,
            user=each.user,
            times=times,
            sensitivity=each.sensitivity,
            sensitivity_count=each.sensitivity_count,
        )
        try:
            profile.check()
        except InvalidInput as error:
            raise InvalidInput(f"{name}: profile[{index}].{error.message}") from error
        found.append(profile)
    return tuple(found)
