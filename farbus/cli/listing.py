"""Listings: tables for people, JSON for programs.

On a terminal a table fits its width and states have colours; into a pipe or a
file it is plain text with columns two spaces apart, never cut, so that ``awk``
and ``grep`` can read it.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from farbus.cli.options import Output
from farbus.errors import NotFound

V = TypeVar("V", bound=msgspec.Struct)

COLOURS = {
    "ready": "green",
    "free": "green",
    "running": "green",
    "prepared": "green",
    "succeeded": "green",
    "leased": "cyan",
    "preparing": "cyan",
    "granted": "cyan",
    "finishing": "cyan",
    "releasing": "cyan",
    "queued": "yellow",
    "cordoned": "yellow",
    "ok": "green",
    "valid": "green",
    "expires soon": "yellow",
    "expired": "red",
    "revoked": "red",
    "refused": "red",
    "failed": "red",
    "lost": "red",
    "wedged": "red",
}


class Column(Generic[V]):
    """One column: its title, how a cell is made of a value, and whether only ``-o wide`` shows it."""

    def __init__(
        self, title: str, cell: Callable[[V], str], *, wide: bool = False, right: bool = False, state: bool = False
    ) -> None:
        self.title = title
        self.cell = cell
        self.wide = wide
        self.right = right
        self.state = state


def has_colours() -> bool:
    """Say whether standard output is a terminal whose user wants colours (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_json(values: msgspec.Struct | Sequence[msgspec.Struct] | Mapping[str, Any]) -> None:
    """Print the JSON of a value, or a list of values, for programs."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(values), indent=2).decode() + "\n")


def print_listing(values: Sequence[V], columns: Sequence[Column[V]], output: Output, *, nothing: str) -> None:
    """Print ``values`` in the form that was asked for; ``nothing`` is said on stderr where there are none."""
    if output is Output.JSON:
        print_json(values)
        return
    shown = [column for column in columns if output is Output.WIDE or not column.wide]
    if not values:
        print(nothing, file=sys.stderr)  # noqa: T201
        return
    rows = [[printable(column.cell(value)) or "-" for column in shown] for value in values]
    if sys.stdout.isatty():
        _print_rich(rows, shown)
    else:
        sys.stdout.write(plain_table(rows, shown))


def choose(values: Sequence[V], names: Sequence[str] | None, *, key: Callable[[V], str], noun: str) -> tuple[V, ...]:
    """Return those of ``values`` that ``names`` name, or all; raise :class:`NotFound` for a name without a value."""
    if not names:
        return tuple(values)
    by_name = {key(value): value for value in values}
    for name in names:
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, n=1)
            raise NotFound(
                f"there is no {noun} {name}", hint=f"did you mean {near[0]}?" if near else f"farbus {noun}s lists them"
            )
    return tuple(by_name[name] for name in names)


def printable(text: str) -> str:
    """Return ``text`` on one line and without control characters: names come from other people's jobs."""
    return "".join(character if character.isprintable() else " " for character in text)


def plain_table(rows: Sequence[Sequence[str]], columns: Sequence[Column[V]]) -> str:
    """Return a table as plain text, one line for each row, nothing cut."""
    table = [[column.title for column in columns], *rows]
    widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
    lines = []
    for row in table:
        cells = [
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(row, widths, columns, strict=True)
        ]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)


def _print_rich(rows: Sequence[Sequence[str]], columns: Sequence[Column[V]]) -> None:
    # Rich is for terminals alone, and takes its time to load.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        table.add_row(
            *(
                Text(text, style=COLOURS.get(text, "") if column.state else "")
                for text, column in zip(row, columns, strict=True)
            )
        )
    Console(highlight=False).print(table)
