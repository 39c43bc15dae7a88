"""What an emulated chassis remembers over restarts and kill -9: SQLite, one transaction for each change."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec

from farbus.errors import Unavailable

SCHEMA = """
CREATE TABLE IF NOT EXISTS device (
    chassis TEXT NOT NULL, id TEXT NOT NULL,
    port TEXT NOT NULL, holder TEXT NOT NULL, slot TEXT NOT NULL, pending TEXT,
    PRIMARY KEY (chassis, id)
) STRICT;
CREATE TABLE IF NOT EXISTS system (
    chassis TEXT NOT NULL, port TEXT NOT NULL,
    is_composed INTEGER NOT NULL, name TEXT NOT NULL,
    PRIMARY KEY (chassis, port)
) STRICT
"""


class SystemRow(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the node at a port is part of a composed system, and how that is called (empty: as the node is).

    A port without a row has one, of its node and whatever is assigned to it.
    """

    is_composed: bool = True
    name: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A device's state.

    ``port`` is what it is assigned to.  ``holder`` is the port whose guest may
    have it: written before it is plugged, cleared when it is known to be gone.
    ``pending`` is the port that a step that was begun leads to; None for no step.
    """

    port: str = ""
    holder: str = ""
    slot: str = ""
    pending: str | None = None


def _nothing(_: str) -> None:
    """Where nobody is told of writes."""


class Store:
    """The tables of devices and systems. ``on_write`` is called before and after each write, for tests."""

    def __init__(self, path: Path | str, *, durable: bool = True, on_write: Callable[[str], None] = _nothing) -> None:
        self.on_write = on_write
        try:
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
            self._database.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise Unavailable(f"{path}: {error}", hint="is its directory there and writable?") from error

    def read(self, chassis: str) -> dict[str, Row]:
        """Return the rows of one chassis by id of the device."""
        rows = self._database.execute(
            "SELECT id, port, holder, slot, pending FROM device WHERE chassis = ?", (chassis,)
        ).fetchall()
        return {
            id: Row(port=port, holder=holder, slot=slot, pending=pending) for id, port, holder, slot, pending in rows
        }

    def write(self, chassis: str, device: str, row: Row) -> None:
        """Replace one row, durably."""
        self.on_write("before")
        self._database.execute(
            "INSERT OR REPLACE INTO device VALUES (?, ?, ?, ?, ?, ?)",
            (chassis, device, row.port, row.holder, row.slot, row.pending),
        )
        self.on_write("after")

    def read_systems(self, chassis: str) -> dict[str, SystemRow]:
        """Return the systems of one chassis by their port."""
        rows = self._database.execute(
            "SELECT port, is_composed, name FROM system WHERE chassis = ?", (chassis,)
        ).fetchall()
        return {port: SystemRow(is_composed=bool(is_composed), name=name) for port, is_composed, name in rows}

    def write_system(self, chassis: str, port: str, row: SystemRow) -> None:
        """Replace one system, durably."""
        self.on_write("before")
        self._database.execute(
            "INSERT OR REPLACE INTO system VALUES (?, ?, ?, ?)", (chassis, port, row.is_composed, row.name)
        )
        self.on_write("after")

    def close(self) -> None:
        """Close the file."""
        self._database.close()
