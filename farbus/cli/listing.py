"""Listings: tables for people, JSON for programs.

On a terminal a table fits its width and states have colours; identities, which
are there to be copied, are never broken: where a row has no room for them they
stand on lines of their own beneath it, so that a double click selects one.  A
column of them that has room in most rows stands beside in those.  The last
columns of ``-o wide`` that have no room stand beneath as well, each cell behind
its title.
Into a pipe or a file it is plain text with columns two spaces apart, never cut,
so that ``awk`` and ``grep`` can read it.
"""

from __future__ import annotations

import difflib
import os
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
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
    "moving": "cyan",
    "detaching": "cyan",
    "attaching": "cyan",
    "done": "green",
    "undone": "yellow",
    "stuck": "red",
    "available": "green",
    "attached": "cyan",
    "creating": "cyan",
    "deleting": "cyan",
    "unassigned": "yellow",
    "queued": "yellow",
    "cordoned": "yellow",
    "ok": "green",
    "valid": "green",
    "expires soon": "yellow",
    "expired": "red",
    "revoked": "red",
    "untrusted": "red",
    "refused": "red",
    "failed": "red",
    "lost": "red",
    "wedged": "red",
}


GAP = "  "
"""Between two columns, and before what stands beneath a row."""

NOTHING = "-"
"""An empty cell; what would stand beneath a row is left out."""

NARROWEST = 6
"""Characters to which a column is made narrower where a table does not fit; its cells are broken then."""

PROSE_LEAST = 24
"""Characters that sentences need beside the other columns: with fewer they stand beneath their row."""


MEANT = 3
"""Names that somebody may have meant who wrote a beginning of them: so many are told."""


class Column(Generic[V]):
    """One column: its title, how a cell is made of a value, and whether only ``-o wide`` shows it.

    The cells of an ``identity`` column name something that commands take, or
    several with commas between; those of a ``prose`` column are sentences, and
    those of a ``state`` column single words, which are never broken.
    """

    def __init__(
        self,
        title: str,
        cell: Callable[[V], str],
        *,
        wide: bool = False,
        right: bool = False,
        state: bool = False,
        identity: bool = False,
        prose: bool = False,
    ) -> None:
        self.title = title
        self.cell = cell
        self.wide = wide
        self.right = right
        self.state = state
        self.identity = identity
        self.prose = prose


def has_colours() -> bool:
    """Say whether standard output is a terminal whose user wants colours (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_json(values: msgspec.Struct | Sequence[msgspec.Struct] | Mapping[str, Any]) -> None:
    """Print the JSON of a value, or a list of values, for programs: in UTF-8 whatever the locale is (RFC 8259, 8.1)."""
    sys.stdout.flush()
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(values), indent=2) + b"\n")


def print_listing(values: Sequence[V], columns: Sequence[Column[V]], output: Output, *, nothing: str) -> None:
    """Print ``values`` in the form that was asked for; ``nothing`` is said on stderr where there are none."""
    if output is Output.JSON:
        print_json(values)
        return
    shown = [column for column in columns if output is Output.WIDE or not column.wide]
    if not values:
        print(nothing, file=sys.stderr)  # noqa: T201
        return
    rows = [[printable(column.cell(value)) or NOTHING for column in shown] for value in values]
    if sys.stdout.isatty():
        _print_rich(rows, shown)
    else:
        sys.stdout.write(plain_table(rows, shown))


def choose(
    values: Sequence[V], names: Sequence[str] | None, *, key: Callable[[V], str], noun: str, command: str = ""
) -> tuple[V, ...]:
    """Return those of ``values`` that ``names`` name, or all; raise :class:`NotFound` for a name without a value.

    ``command`` is the farbus command that lists them, else ``noun`` in the plural.
    """
    if not names:
        return tuple(values)
    by_name = {key(value): value for value in values}
    for name in names:
        if name not in by_name:
            # farbus top shows the beginnings of ids.
            near = [each for each in by_name if name and each.startswith(name)]
            near = near or difflib.get_close_matches(name, by_name, n=1)
            lists = f"farbus {command or f'{noun}s'} lists them"
            raise NotFound(
                f"there is no {noun} {name}", hint=f"did you mean {' or '.join(near[:MEANT])}?" if near else lists
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
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False)
    for line in terminal_table(rows, columns, console.width):
        # A line that is too long all the same is left to the terminal, which keeps it whole for a double click.
        console.print(Text.assemble(*line), soft_wrap=True)


Line = list[tuple[str, str]]
"""A line of pieces: each its text and its style."""


def terminal_table(rows: Sequence[Sequence[str]], columns: Sequence[Column[V]], width: int) -> list[Line]:
    """Return a table's lines for a terminal ``width`` characters wide."""
    table = [[column.title for column in columns], *rows]
    widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
    identities = [index for index, column in enumerate(columns) if column.identity]
    prose = [index for index, column in enumerate(columns) if column.prose]
    beneath, named = _without_room(widths, columns, width)
    for index in sorted(beneath, key=lambda each: (each in prose, each)):
        # Beside the others, as far as there is room.
        taken = sum(widths[other] + len(GAP) for other in _beside(columns, beneath, named))
        if index in prose:
            if width - taken >= min(widths[index], PROSE_LEAST):
                widths[index] = min(widths[index], width - taken)
                beneath.remove(index)
            continue
        fitting = [len(row[index]) for row in table if len(row[index]) <= width - taken]
        if len(table[0][index]) in fitting and 2 * len(fitting) > len(table):
            widths[index] = max(fitting)
            beneath.remove(index)
    beside = _beside(columns, beneath, named)
    _narrow(widths, beside, width, whole={index for index in beside if columns[index].state})
    lines: list[Line] = []
    for number, row in enumerate(table):
        apart = [index for index in identities if index in beneath or len(row[index]) > widths[index]]
        apart += [index for index in prose if index in beneath]
        pieces = {index: [""] if index in apart else _fold(row[index], widths[index]) for index in beside}
        for part in range(max((len(cell) for cell in pieces.values()), default=0)):
            line: Line = []
            for index in beside:
                text = pieces[index][part] if part < len(pieces[index]) else ""
                column = columns[index]
                text = text.rjust(widths[index]) if column.right else text.ljust(widths[index])
                style = "bold" if not number else COLOURS.get(row[index], "") if column.state else ""
                line += [(text if index == beside[-1] and not column.right else text + GAP, style)]
            line[-1] = (line[-1][0].rstrip(), line[-1][1])
            lines.append(line)
        for index in apart:
            told = [] if row[index] == NOTHING else row[index].split(",")
            if columns[index].prose and told:
                told = _fold(row[index], max(width - len(GAP), NARROWEST))
            lines += [[(GAP + identity.strip(), "" if number else "bold")] for identity in told]
        told = [f"{columns[index].title} {row[index]}" for index in named if number and row[index] != NOTHING]
        lines += [[(GAP + each, "")] for each in _join(told, width - len(GAP))]
    return lines


def _beside(columns: Sequence[Column[V]], beneath: Collection[int], named: Collection[int]) -> list[int]:
    return [index for index in range(len(columns)) if index not in beneath and index not in named]


def _fits(widths: Sequence[int], shown: Sequence[int], width: int) -> bool:
    return sum(widths[index] for index in shown) + len(GAP) * (len(shown) - 1) <= width


def _without_room(widths: Sequence[int], columns: Sequence[Column[V]], width: int) -> tuple[set[int], list[int]]:
    """Return columns that go beneath so that the others fit, or all that can.

    The first are of identities and sentences, those of ``-o wide`` alone where that will do; the second are the last
    others of ``-o wide``, each cell of which stands behind its title.
    """
    beneath, named = set[int](), list[int]()
    if _fits(widths, range(len(columns)), width):
        return beneath, named
    apart = {index for index, column in enumerate(columns) if column.identity or column.prose}
    for beneath in ({index for index in apart if columns[index].wide}, apart):
        beside, named = _beside(columns, beneath, ()), []
        for index in reversed([each for each in beside if columns[each].wide and each not in apart]):
            if not _fits(widths, beside, width):
                beside.remove(index)
                named.insert(0, index)
        if _fits(widths, beside, width):
            break
    return beneath, named


def _join(pieces: Sequence[str], width: int) -> list[str]:
    """Return lines of whole pieces, as many in each as there is room for."""
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + len(GAP) + len(piece) <= width:
            lines[-1] += GAP + piece
        else:
            lines.append(piece)
    return lines


def _narrow(widths: list[int], shown: Sequence[int], width: int, *, whole: Collection[int]) -> None:
    """Make the widest of the ``shown`` columns, but the ``whole`` ones, narrower until all fit or none can be so."""
    room = width - len(GAP) * (len(shown) - 1)
    while sum(widths[index] for index in shown) > room:
        widest = max((index for index in shown if index not in whole), key=lambda index: widths[index], default=-1)
        if widest < 0:
            return
        if widths[widest] <= NARROWEST:
            return
        widths[widest] -= 1


def _fold(text: str, width: int) -> list[str]:
    """Break ``text`` between words, or where a word is too long within it."""
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]
