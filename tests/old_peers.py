"""Messages as the first version of the protocol has them: what a peer that was never upgraded sends and sees."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import Message

FIRST = Path(__file__).parent / "golden" / "protocol_first.json"
"""Numbers of the fields that each message had in the first version; recorded once, never made again."""

M = TypeVar("M", bound=Message)


@cache
def _numbers() -> dict[str, list[int]]:
    return dict(json.loads(FIRST.read_text()))


def as_first_version(message: M) -> M:
    """Return ``message`` without the fields that came later, those of its parts too."""
    copy = type(message)()
    copy.CopyFrom(message)
    _strip(copy)
    return copy


def _strip(message: Any) -> None:
    known = _numbers().get(message.DESCRIPTOR.full_name, [])
    for field, value in message.ListFields():
        if field.number not in known:
            message.ClearField(field.name)
        elif field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        elif field.is_repeated:
            for part in value:
                _strip(part)
        else:
            _strip(value)
