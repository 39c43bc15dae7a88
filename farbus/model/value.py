"""The base of all model values, and their JSON form."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from farbus.errors import InvalidInput


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An immutable record; equality and hash go by its fields."""


V = TypeVar("V", bound=Value)


def to_json(value: Value) -> bytes:
    """Encode ``value`` as JSON with its fields in the order of declaration."""
    return msgspec.json.encode(value)


def from_json(data: bytes | str, kind: type[V]) -> V:
    """Decode ``data`` as a ``kind``; raise :class:`InvalidInput` naming the field that is wrong."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"not a {kind.__name__}: {error}") from error
