"""What a daemon does with settings that were read again while it runs."""

from __future__ import annotations

from typing import TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def reloaded(old: S, new: S, *, changeable: frozenset[str]) -> tuple[S, list[str], list[str]]:
    """Return the settings to go on with, the names of those that change now, and of those that need a restart."""
    changed = [name for name in old.__struct_fields__ if getattr(old, name) != getattr(new, name)]
    now = [name for name in changed if name in changeable]
    settings = msgspec.structs.replace(old, **{name: getattr(new, name) for name in now})
    return settings, now, [name for name in changed if name not in changeable]
