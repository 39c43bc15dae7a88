"""Names that come over the wire and become file names."""

from __future__ import annotations

import re

from farbus.errors import InvalidInput

# No separator, no leading dot, and room for suffixes within NAME_MAX (255).
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def file_name(name: str, *, what: str) -> str:
    """Return ``name``; raise :class:`InvalidInput` if it can't name a file of its own."""
    if not _FILE_NAME.fullmatch(name):
        raise InvalidInput(f"{what}: {name!r} can't name a file", hint="use up to 100 letters, digits and _.-")
    return name


ROOM = "room of lease "
"""How the names of what leases have of drives begin, among those of devices."""

ROOM_FENCES = 10_000
"""Rooms that have ended of which a node remembers that they have: unlike devices, they never come again."""
