"""Messages that nobody in his right mind sends, made from their descriptors by a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_SINT64: (-(2**63), 2**63 - 1),
}
_DOUBLES = (0.0, -0.0, 1.0, -1.0, 1e-320, 1e300, -1e300, math.nan, math.inf, -math.inf, 2.0**63)
_WORDS = (
    "", " ", "\n", "\0", "a\nb", "\x1b[2J", "../..", "/", "-", "j1", "j-1", "j99999999999999999999", "J1", "main.0",
    "main", "local", "remote", "recomposed", "gpu", "nvme", "running", "exited", "x" * 5_000, "ü" * 300, "\u202egpj",
    "\U0001f4a9", "%s%n", "'; DROP TABLE jobs; --", "0" * 64, "1e999", "nan",
)  # fmt: skip
"""Edges of what fields hold: controls, directions, bytes that are special to paths, formats and tables."""


class Nonsense:
    """Fills messages at random; ``words`` are names that mean something where they arrive."""

    def __init__(self, seed: int, words: Sequence[str] = (), *, most: int = 6, largest: int = 0) -> None:
        self._random = random.Random(seed)
        self._words = (*_WORDS, *(words * 8))
        self._most = most
        self._largest = largest
        """How long a list or a string may be, now and then."""

    def fill(self, message: Message, *, likely: float = 0.5, depth: int = 0) -> None:
        """Set fields of ``message``, each with the probability ``likely``."""
        for field in message.DESCRIPTOR.fields:
            if self._random.random() < likely and depth < 8:
                self._set(message, field, likely, depth)

    def spoil(self, message: Message, *, times: int = 1) -> None:
        """Change some fields of a good message, at any depth, and leave the rest as it is."""
        for _ in range(times):
            target = message
            while True:
                inner = self._messages_in(target)
                if not inner or self._random.random() < 0.3:
                    break
                target = self._random.choice(inner)
            fields = target.DESCRIPTOR.fields
            if fields:
                field = self._random.choice(fields)
                if self._random.random() < 0.1:
                    target.ClearField(field.name)
                else:
                    self._set(target, field, 0.5, 6)

    @staticmethod
    def _messages_in(message: Message) -> list[Message]:
        found: list[Message] = []
        for field, value in message.ListFields():
            if field.message_type is None or field.message_type.GetOptions().map_entry:
                continue
            found += list(value) if field.is_repeated else [value]
        return found

    def _set(self, message: Message, field: Any, likely: float, depth: int) -> None:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name
            for _ in range(self._length()):
                value[self._scalar(entry["key"])] = self._scalar(entry["value"])
        elif field.message_type is not None and field.is_repeated:
            many = self._length() if depth < 3 else self._random.randrange(3)
            for _ in range(many):
                self.fill(value.add(), likely=likely / (2 if many > 100 else 1), depth=depth + (8 if many > 100 else 1))
            if value and self._random.random() < 0.2:
                value.add().CopyFrom(value[0])
        elif field.message_type is not None:
            value.SetInParent()
            self.fill(value, likely=likely, depth=depth + 1)
        elif field.is_repeated:
            items = [self._scalar(field) for _ in range(min(self._length(), 50))]
            length = self._length()
            value.extend((items * (1 + length // max(1, len(items))))[:length])
        else:
            setattr(message, field.name, self._scalar(field))

    def _length(self) -> int:
        if self._largest and self._random.random() < 0.02:
            return self._random.choice((self._largest // 10, self._largest))
        return self._random.randrange(self._most)

    def _scalar(self, field: Any) -> Any:
        kind, chance = field.type, self._random
        if kind in _INTEGERS:
            least, most = _INTEGERS[kind]
            edges = (0, 1, 2, 3, -1, 7, 1000, 4096, 4097, 2**30, 2**32, 2**62, least, most)
            return max(least, min(most, chance.choice(edges)))
        if kind == FieldDescriptor.TYPE_DOUBLE:
            return chance.choice((*_DOUBLES, chance.uniform(0, 100)))
        if kind == FieldDescriptor.TYPE_BOOL:
            return chance.random() < 0.5
        text = chance.choice(self._words)
        if self._largest and chance.random() < 0.005:
            text = "y" * self._largest
        return text.encode() if kind == FieldDescriptor.TYPE_BYTES else text
