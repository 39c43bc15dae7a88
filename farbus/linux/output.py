"""Reading what programs have written, as their keepers keep it (:class:`farbus.linux.keeper.OutputLog`)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from farbus.linux.keeper import NOTICE_STREAM, RECORD

CHUNK_BYTES = 64 * 1024
"""Most data in one piece, unless the program wrote more at once."""

DROPPED = b"[farbus: older output was dropped]\n"


class Position(NamedTuple):
    """A place in a program's output: the number of a segment, and bytes into it."""

    segment: int
    offset: int


START = Position(0, 0)


class Piece(NamedTuple):
    """Some output: its stream (1 output, 2 error), and where what follows it begins."""

    stream: int
    data: bytes
    position: Position


def read_pieces(directory: Path, position: Position = START) -> list[Piece]:
    """Return some of the output from ``position`` on; nothing at its end."""
    segment, offset = position
    pieces: list[Piece] = []
    numbers = segments(directory)
    if numbers and segment < numbers[0]:
        if numbers[0] > 1:
            pieces.append(Piece(NOTICE_STREAM, DROPPED, Position(numbers[0], 0)))
        segment, offset = numbers[0], 0
    while numbers and segment <= numbers[-1]:
        try:
            records, offset = _read_records(directory / f"{segment:08d}.log", segment, offset)
        except FileNotFoundError:
            # Dropped between the listing and now.
            records = [Piece(NOTICE_STREAM, DROPPED, Position(segment + 1, 0))]
        pieces += records
        if pieces:
            break
        if segment == numbers[-1]:
            break
        segment, offset = segment + 1, 0
    return pieces


def end_of(directory: Path) -> Position:
    """Return where what is written from now on begins."""
    numbers = segments(directory)
    if not numbers:
        return START
    with contextlib.suppress(FileNotFoundError):
        return Position(numbers[-1], (directory / f"{numbers[-1]:08d}.log").stat().st_size)
    return Position(numbers[-1], 0)


def segments(directory: Path) -> list[int]:
    """Return the numbers of the segments that are kept, the oldest first."""
    return sorted(int(entry.stem) for entry in directory.glob("*.log"))


def _read_records(path: Path, segment: int, offset: int) -> tuple[list[Piece], int]:
    """Read some whole records, joined by stream; return them and where the next starts."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(CHUNK_BYTES)
        if len(data) >= RECORD.size:
            _, length = RECORD.unpack_from(data)
            if len(data) < RECORD.size + length:
                data += file.read(RECORD.size + length - len(data))
    pieces: list[Piece] = []
    at = 0
    while len(data) - at >= RECORD.size:
        stream, length = RECORD.unpack_from(data, at)
        end = at + RECORD.size + length
        if end > len(data):
            # Half a record: its writer is at it, or was killed.
            break
        content = data[at + RECORD.size : end]
        if pieces and pieces[-1].stream == stream:
            content = pieces.pop().data + content
        pieces.append(Piece(stream, content, Position(segment, offset + end)))
        at = end
    return pieces, offset + at
