"""Options that several commands share, and how help texts show examples."""

from __future__ import annotations

import enum
from typing import Annotated

import typer


class Output(enum.StrEnum):
    """Forms of a listing."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"


OutputOption = Annotated[
    Output,
    typer.Option("--output", "-o", help="table, wide (more columns) or json (every field, for programs)."),
]

SocketOption = Annotated[
    str,
    typer.Option(
        "--socket",
        metavar="PATH",
        envvar="FARBUS_SOCKET",
        help="Speak to the agent that serves this Unix socket.",
        show_default=False,
    ),
]

ServerOption = Annotated[
    str,
    typer.Option(
        "--server",
        metavar="HOST:PORT",
        envvar="FARBUS_SERVER",
        help="Speak to the scheduler itself; needs --credentials.",
        show_default=False,
    ),
]

CredentialsOption = Annotated[
    str,
    typer.Option(
        "--credentials",
        metavar="DIR",
        envvar="FARBUS_CREDENTIALS",
        help="Directory with ca.crt and one NAME.crt with its NAME.key (farbus ca issue).",
        show_default=False,
    ),
]


def command_app() -> typer.Typer:
    """Return a typer application for one command's module, without typer's own colours and boxes."""
    return typer.Typer(
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def examples(*lines: str) -> str:
    """Return the end of a help text: ``lines`` as they stand, under a heading."""
    # \b keeps the lines of a paragraph as they are.
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
