"""Files that people write, TOML or JSON, decoded into structs with errors that a person can act on."""

from __future__ import annotations

import codecs
import datetime
import difflib
import enum
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

import msgspec

from farbus.errors import InvalidInput, NotFound

MAX_FILE_BYTES = 2**20
"""Largest file: far more than anybody writes, and a bound on what a slip of the hand can cost."""

MAX_DOTS = 256
"""Parts of a dotted key.  tomllib's time for one grows with their square: minutes for what a file can hold."""

_LONG_KEY = re.compile(rf"""(?<![\w"'-])(?:(?:[\w-]++|"[^"\n]*"|'[^'\n]*')[ \t]*+\.[ \t]*+){{{MAX_DOTS}}}""")

T = TypeVar("T", bound=msgspec.Struct)


PROGRAM_STARTS = (b"\x7fELF", b"#!")
"""How programs begin: compiled ones, and scripts."""


def read_file(path: str, *, what: str) -> bytes:
    """Return what the file at ``path`` holds (``-`` for standard input); ``what`` names its kind in errors."""
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            text = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with open(path, "rb") as file:
                text = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"{path}: no such {what}", hint="give the path of a TOML or JSON file") from error
    except IsADirectoryError as error:
        raise InvalidInput(f"{path}: a directory, not a {what}", hint="give the path of a TOML or JSON file") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidInput(f"{path}: can't be read: {reason}", hint="check the path and its permissions") from error
    if text.startswith(PROGRAM_STARTS):
        raise InvalidInput(f"{name}: a program, not a {what}", hint=f"to run it write -- before it: -- {path}")
    if len(text) > MAX_FILE_BYTES:
        raise InvalidInput(f"{name}: larger than 1 MiB, which no {what} is", hint="is it the right file?")
    return text


def decode_file(text: bytes, kind: type[T], *, name: str) -> T:
    """Decode ``text``, TOML or JSON, into a ``kind``; ``name`` is what errors call the file."""
    try:
        return convert_fields(decode_fields(text, name=name), kind, name=name)
    except RecursionError as error:
        raise InvalidInput(f"{name}: nested too deeply", hint="is it the right file?") from error


def convert_fields(fields: Any, kind: type[T], *, name: str) -> T:
    """Check names and types of what a file held."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _explain(name, str(error), fields, kind) from error


PATHS = frozenset(
    {
        "ca_directory",
        "cdi_directory",
        "credentials",
        "fabric",
        "remoting_sockets",
        "socket",
        "softgpu_library",
        "state",
    }
)
"""Settings of daemons that are paths."""


def with_whole_paths(settings: Mapping[str, Any], *, base: str) -> dict[str, Any]:
    """Return settings of a daemon in which relative paths, or tables of such, begin at ``base``.

    Daemons start programs that have other working directories.
    """

    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: whole(each) for key, each in value.items()}
        return os.path.join(os.path.abspath(base), value) if value and isinstance(value, str) else value

    return {name: whole(value) if name in PATHS else value for name, value in settings.items()}


def decode_fields(text: bytes, *, name: str) -> Any:
    """Decode ``text`` as JSON (a name in ``.json``, or a brace first) or as TOML."""
    # As editors of other systems begin a file.
    text = text.removeprefix(codecs.BOM_UTF8)
    is_json = name.endswith(".json") or (not name.endswith(".toml") and text.lstrip()[:1] == b"{")
    try:
        if is_json:
            return msgspec.json.decode(text)
        written = text.decode()
        if _LONG_KEY.search(written):
            raise InvalidInput(f"{name}: nested too deeply", hint="is it the right file?")
        return _without_moments(tomllib.loads(written))
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{name}: not UTF-8 text (byte {error.start})", hint="it must be TOML or JSON") from error
    except tomllib.TOMLDecodeError as error:
        reason = str(error)[:1].lower() + str(error)[1:]
        raise InvalidInput(f"{name}: not TOML: {reason}", hint="correct it there") from error
    except ValueError as error:
        # tomllib lets int()'s own limit on digits through; what msgspec raises is a ValueError too.
        if not isinstance(error, msgspec.DecodeError):
            raise InvalidInput(
                f"{name}: not TOML: a number of more than {sys.get_int_max_str_digits()} digits",
                hint="correct it there",
            ) from error
        raise InvalidInput(
            f"{name}: not JSON: {_json_reason(str(error), text)}", hint="check it with a JSON tool"
        ) from error


def _without_moments(value: Any) -> Any:
    """Return what TOML held with its moments as text: JSON has none of their own."""
    if isinstance(value, dict):
        return {key: _without_moments(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_moments(each) for each in value]
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else value


def _json_reason(message: str, text: bytes) -> str:
    reason = message.removeprefix("JSON is malformed: ")
    match = re.search(r"\(byte (\d+)\)", reason)
    if match is None:
        return reason[:1].lower() + reason[1:]
    before = text[: int(match[1])]
    line, column = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
    return reason.replace(match[0], f"(at line {line}, column {column})")


def _explain(name: str, message: str, fields: Any, kind: type[msgspec.Struct]) -> InvalidInput:
    """Turn a message of msgspec into one that says what is allowed."""
    text, _, path = message.partition(" - at `$")
    path = re.sub(r"^\.|`$", "", path)
    if path.endswith("[...]"):
        path = path.removesuffix("[...]")
        path = f"{path}.{_key_of_wrong_item(path, message, fields, kind)}"
    unknown = re.match(r"Object contains unknown field `(.*)`", text, re.DOTALL)
    if unknown is not None:
        known = _fields_at(path, kind)
        near = difflib.get_close_matches(unknown[1], known, n=1)
        where = f"{path}.{unknown[1]}" if path else unknown[1]
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return InvalidInput(f"{name}: {where[:120]}: unknown field", hint=hint)
    if path.endswith("command") and text.startswith("Expected `array`"):
        return InvalidInput(
            f"{name}: {path}: not a list of strings",
            hint='write command = ["./program", "argument"], or ["sh", "-c", "..."] for a shell',
        )
    missing = re.match(r"Object missing required field `(.*)`", text)
    if missing is not None:
        where = f"{path}.{missing[1]}" if path else missing[1]
        return InvalidInput(f"{name}: {where}: missing", hint="add it")
    reason = text.replace("`", "").replace("Expected", "expected").replace("Invalid enum value", "unknown value")
    for word, plain in _PLAIN_WORDS.items():
        reason = re.sub(rf"\b{word}\b", plain, reason)
    hint = f"allowed: {', '.join(_choices_at(path, kind))}" if "unknown value" in reason else ""
    return InvalidInput(f"{name}: {path}: {reason}" if path else f"{name}: {reason}", hint=hint)


def _key_of_wrong_item(path: str, message: str, fields: Any, kind: type[msgspec.Struct]) -> str:
    """Return the key of the item, in the table at ``path``, that ``message`` is about: msgspec leaves it out.

    The table is left with that item alone.
    """
    table = fields
    for step in re.findall(r"[^.\[\]]+", path):
        table = table[int(step)] if isinstance(table, list) else table[step]
    for key, value in list(table.items()):
        table.clear()
        table[key] = value
        try:
            msgspec.convert(fields, kind)
        except msgspec.ValidationError as error:
            if str(error) == message:
                return str(key)
    return "..."


_PLAIN_WORDS: Mapping[str, str] = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "object": "a table",
    "array": "a list",
    "bool": "true or false",
    "null": "nothing",
}


def _struct_at(path: str, kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return the struct that holds the last field of ``path``, or the one that ``path`` leads to."""
    struct = kind
    for step in _names_in(path):
        arguments = [_types_of(struct).get(step)]
        while arguments:
            found = arguments.pop()
            if isinstance(found, type) and issubclass(found, msgspec.Struct):
                struct = found
            arguments += get_args(found)
    return struct


def _names_in(path: str) -> list[str]:
    return re.findall(r"[a-z_][a-z_-]*", path)


def _types_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the types of a struct's fields by what files call them, which is not what Python does for all."""
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}


def _fields_at(path: str, kind: type[msgspec.Struct]) -> list[str]:
    return list(_types_of(_struct_at(path, kind)))


def _choices_at(path: str, kind: type[msgspec.Struct]) -> list[str]:
    """Return the values of the enumeration that the field at ``path`` holds."""
    field = _names_in(path)[-1]
    arguments = [_types_of(_struct_at(path, kind)).get(field)]
    while arguments:
        found = arguments.pop()
        if isinstance(found, type) and issubclass(found, enum.Enum):
            return [str(member.value) for member in found]
        arguments += get_args(found)
    return []
