"""Values of :mod:`farbus.model` to and from messages, by the names of their fields.

A value and its message have the same field names (a test holds them to it),
so one pair of functions serves all types.  A message may have fields that the
value lacks (a newer peer) and the other way round (an older one).  A field that
may be None is an ``optional`` one of the message, or a message.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from google.protobuf.message import Message

from farbus.api.v1 import cluster_pb2
from farbus.errors import InvalidInput
from farbus.model.fabric import ChassisStatus, ChassisView
from farbus.model.value import Value, from_json, to_json

V = TypeVar("V", bound=Value)
M = TypeVar("M", bound=Message)


def to_message(value: Value, kind: type[M]) -> M:
    """Return ``value`` as a message of type ``kind``."""
    message = kind()
    _fill(message, value)
    return message


def _fill(message: Message, value: Value) -> None:
    known = message.DESCRIPTOR.fields_by_name
    for name in value.__struct_fields__:
        if name not in known:
            continue
        item = getattr(value, name)
        if isinstance(item, Value):
            target = getattr(message, name)
            target.SetInParent()
            _fill(target, item)
        elif isinstance(item, Mapping):
            getattr(message, name).update(item)
        elif isinstance(item, tuple | list):
            repeated = getattr(message, name)
            for element in item:
                if isinstance(element, Value):
                    _fill(repeated.add(), element)
                else:
                    repeated.append(_scalar(element))
        elif item is not None:
            setattr(message, name, _scalar(item))


def _scalar(item: Any) -> Any:
    return item.value if isinstance(item, enum.Enum) else item


def check_elements(message: Message, *, most: int, what: str) -> None:
    """Raise :class:`InvalidInput` where all lists and maps of a message together have more than ``most`` elements.

    An element takes a byte or two of a message, and up to fifty microseconds
    of the event loop when it is read: a few megabytes would hold everybody up.
    """
    if message.ByteSize() <= most:
        return
    count, waiting = 0, [message]
    while waiting:
        for field, value in waiting.pop().ListFields():
            if not field.is_repeated:
                waiting += [value] if field.message_type is not None else []
                continue
            count += len(value)
            if count > most:
                raise InvalidInput(f"{what}: {field.name} and what else it lists have more than {most} elements")
            if field.message_type is not None and not isinstance(value, Mapping):
                waiting += value


def from_message(message: Message, kind: type[V]) -> V:
    """Return ``message`` as a value of type ``kind``.

    What comes from who may be hostile goes through :func:`check_elements` first.
    Raises :class:`InvalidInput` with the path of the field whose value is not
    one of the allowed ones.
    """
    return typing.cast("V", _reader(kind)(message, kind.__name__))


Reader = Callable[[Any, str], Any]


@cache
def _reader(kind: type[Value]) -> Reader:
    hints = typing.get_type_hints(kind)
    fields = [
        (
            field.encode_name,
            _item_reader(_required(hints[field.name])),
            _required(hints[field.name]) != hints[field.name],
            isinstance(field.default, enum.Enum),
        )
        for field in msgspec.structs.fields(kind)
    ]

    def read(message: Message, path: str) -> Value:
        known = message.DESCRIPTOR.fields_by_name
        arguments = {
            name: reader(getattr(message, name), f"{path}.{name}")
            for name, reader, optional, chosen in fields
            # A choice that nobody made, or a peer before it, is left to the value's own default.
            if name in known
            and not (optional and not message.HasField(name))
            and not (chosen and not getattr(message, name))
        }
        return kind(**arguments)

    return read


def _required(hint: Any) -> Any:
    """Return the type of a field that may be None without the None; any other type as it is."""
    parts = [part for part in typing.get_args(hint) if part is not types.NoneType]
    is_optional = typing.get_origin(hint) in (typing.Union, types.UnionType) and len(parts) == 1
    return parts[0] if is_optional else hint


def _item_reader(hint: Any) -> Reader:
    origin = typing.get_origin(hint)
    if origin is tuple:
        element = _item_reader(typing.get_args(hint)[0])
        return lambda items, path: tuple(element(item, f"{path}[{index}]") for index, item in enumerate(items))
    if origin is dict:
        return lambda items, path: dict(items)
    if origin in (typing.Union, types.UnionType):
        raise TypeError(f"a union of values has no message: {hint}")
    if issubclass(hint, Value):
        return _reader(hint)
    if issubclass(hint, enum.Enum):
        return lambda item, path: _enum_member(hint, item, path)
    return lambda item, path: hint(item)


def _enum_member(kind: type[enum.Enum], item: Any, path: str) -> enum.Enum:
    try:
        return kind(item)
    except ValueError as error:
        allowed = ", ".join(str(member.value) for member in kind)
        raise InvalidInput(f"{path}: {item!r} is not one of {allowed}") from error


def chassis_to_message(status: ChassisStatus) -> cluster_pb2.ChassisStatus:
    """Return the message of a chassis; what was read of it travels as JSON."""
    view = to_json(status.view) if status.view is not None else b""
    return cluster_pb2.ChassisStatus(
        name=status.name, served_by=status.served_by, term=status.term, view=view, trouble=status.trouble
    )


def chassis_from_message(message: cluster_pb2.ChassisStatus) -> ChassisStatus:
    """Return the chassis of a message; raise :class:`InvalidInput` where what was read of it is not understood."""
    view = from_json(message.view, ChassisView) if message.view else None
    return ChassisStatus(
        name=message.name, served_by=message.served_by, term=message.term, view=view, trouble=message.trouble
    )
