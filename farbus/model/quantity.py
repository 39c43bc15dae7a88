"""Quantities as people write them: ``512MiB``, ``1.5``, ``250m``, ``10Gbit/s``, ``10m``, ``2h``.

Everything inside Farbus is an integer in one unit: bytes, thousandths of a
processor, megabits a second; seconds are floats.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from farbus.errors import InvalidInput

_BYTES = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "PB": 10**15,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "PiB": 2**50,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
_DECIMAL = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
"""What makers of drives mean by a letter alone."""
_STORAGE = {**_BYTES, **_DECIMAL, **{letter.lower(): size for letter, size in _DECIMAL.items()}}
_RATES = {**_STORAGE, **{f"{letter}bit": size / 8 for letter, size in (*_DECIMAL.items(), ("k", 10**3))}}
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_MBIT_S = {"": 1.0, "kbit": 0.001, "Mbit": 1.0, "Gbit": 1e3, "Tbit": 1e6}
BYTE_UNITS = "B, KiB, MiB, GiB, TiB, PiB, kB, MB, GB, TB or PB"
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")

_FRACTION = re.compile(r"\s*([0-9]{1,9})\s*/\s*([0-9]{1,9})\s*")

MAX_BYTES = 2**60
"""Largest amount of memory or storage that a request may name: one exbibyte."""

MAX_CPU_MILLI = 10**9
"""Largest number of thousandths of a processor that a request may name: a million processors."""

MAX_NETWORK_MBIT_S = 10**9
"""Largest speed of a link that a request may name, in Mbit/s: a petabit a second."""

MAX_SECONDS = 10.0 * 366 * 86400
"""Longest duration that a request may name: ten years."""


MIN_SHARE_MILLI = 10
MAX_SHARE_MILLI = 500
"""Least and most of a whole that one of several can have, in thousandths."""

_LARGEST = 1e30
"""More than any quantity in any unit, and so small that its thousandfold is still a number."""


def _split(text: str | int | float, what: str, *, example: str) -> tuple[float, str]:
    hint = f"write for example {example}"
    if isinstance(text, bool):
        raise InvalidInput(f"{what}: {text!r} is not a number", hint=hint)
    if isinstance(text, int | float):
        # An integer may be larger than any float: compare before anything converts it.
        if not text >= 0 or text == math.inf:
            raise InvalidInput(f"{what}: {_shorten(text)} is not a number of zero or more", hint=hint)
        return float(min(text, _LARGEST)), ""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{what}: {_shorten(repr(text))} is not a number with a unit", hint=hint)
    return min(float(match[1]), _LARGEST), match[2]


def _shorten(text: str | int | float) -> str:
    """Return ``text`` for an error, which stays one line also for a number of thousands of digits."""
    try:
        written = str(text)
    except ValueError:  # more digits than Python writes (sys.set_int_max_str_digits)
        return "a number of thousands of digits"
    return written if len(written) <= 40 else f"{written[:40]}..."


def parse_bytes(text: str | int | float, *, what: str = "size") -> int:
    """Parse an amount of memory or storage into bytes; a bare number is bytes."""
    number, unit = _split(text, what, example="512MiB")
    return _bytes(number, unit, _BYTES, text, what, hint=f"use {BYTE_UNITS}")


def parse_storage(text: str | int | float, *, what: str = "size") -> int:
    """Parse an amount of storage into bytes: as :func:`parse_bytes`, but that ``100G`` is 100 GB, as of drives."""
    number, unit = _split(text, what, example="100GB")
    return _bytes(number, unit, _STORAGE, text, what, hint=f"use {BYTE_UNITS}")


def parse_rate(text: str | int | float, *, what: str = "bandwidth") -> int:
    """Parse bytes a second: ``4GB/s``, ``4G``, or ``10Gbit/s``, which are eight times as many bits."""
    example = "4GB/s or 10Gbit/s"
    number, unit = _split(text.strip().removesuffix("/s") if isinstance(text, str) else text, what, example=example)
    return _bytes(number, unit, _RATES, text, what, hint=f"write for example {example}")


def _bytes(
    number: float, unit: str, units: Mapping[str, float], text: str | int | float, what: str, *, hint: str
) -> int:
    if unit not in units:
        raise InvalidInput(f"{what}: unknown unit {_shorten(repr(unit))}", hint=hint)
    count = number * units[unit]
    if count > MAX_BYTES:
        raise InvalidInput(f"{what}: {_shorten(text)} is more than one exbibyte")
    return round(count)


def parse_cpu(text: str | int | float, *, what: str = "cpus") -> int:
    """Parse a number of processors (``2``, ``0.5``, ``250m``) into thousandths."""
    number, unit = _split(text, what, example="2, 0.5 or 250m")
    if unit not in ("", "m"):
        raise InvalidInput(f"{what}: unknown unit {_shorten(repr(unit))}", hint="write 2, 0.5 or 250m")
    result = round(number if unit == "m" else number * 1000)
    if result > MAX_CPU_MILLI:
        raise InvalidInput(f"{what}: {_shorten(text)} is more than a million processors")
    return result


def parse_network(text: str | int | float, *, what: str = "network") -> int:
    """Parse a part of a link's speed into Mbit/s, a begun one counting as one; a bare number is Mbit/s."""
    example = "10Gbit/s or 500Mbit/s"
    number, unit = _split(text.strip().removesuffix("/s") if isinstance(text, str) else text, what, example=example)
    if unit not in _MBIT_S:
        raise InvalidInput(f"{what}: unknown unit {_shorten(repr(unit))}", hint="use Mbit/s, Gbit/s or Tbit/s")
    # To the last digit that a float is good for, so that 0.7 Gbit/s are 700.
    result = math.ceil(round(number * _MBIT_S[unit], 6))
    if result > MAX_NETWORK_MBIT_S:
        raise InvalidInput(f"{what}: {_shorten(text)} is more than a petabit a second")
    return result


def parse_share(text: str | int | float, *, what: str = "share") -> int:
    """Parse a part of a whole that others have too (``0.25``, ``"1/4"``, ``"25%"``) into thousandths.

    The number 0 is none. Written out, as on a command line, it is refused:
    who asks for a part of a GPU is not to get a whole one.
    """
    example = "0.25, 1/4 or 25%"
    if isinstance(text, str) and (fraction := _FRACTION.fullmatch(text)) is not None and int(fraction[2]):
        part = int(fraction[1]) / int(fraction[2])
    else:
        number, unit = _split(
            text[:-1] if isinstance(text, str) and text.endswith("%") else text, what, example=example
        )
        if unit:
            raise InvalidInput(f"{what}: unknown unit {_shorten(repr(unit))}", hint=f"write {example}")
        part = number / 100 if isinstance(text, str) and text.endswith("%") else number
    if (part or isinstance(text, str)) and not MIN_SHARE_MILLI <= int(part * 1000) <= MAX_SHARE_MILLI:
        raise InvalidInput(f"{what}: {_shorten(text)} is not from 1 to 50 %", hint="leave it out for the whole")
    return int(part * 1000)


def parse_seconds(text: str | int | float, *, what: str = "time") -> float:
    """Parse a duration into seconds; a bare number is seconds."""
    number, unit = _split(text, what, example="90s, 30m or 2h")
    if unit not in _SECONDS:
        raise InvalidInput(f"{what}: unknown unit {_shorten(repr(unit))}", hint="use ms, s, m, h or d")
    result = number * _SECONDS[unit]
    if result > MAX_SECONDS:
        raise InvalidInput(f"{what}: {_shorten(text)} is more than ten years")
    return result


def format_bytes(count: int) -> str:
    """Write a number of bytes for a person: ``1.5 GiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size == int(size) else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.0f} PiB" if size == int(size) else f"{size:.1f} PiB"


def format_cpu(milli: int) -> str:
    """Write thousandths of a processor for a person: ``1.5``."""
    return f"{milli / 1000:g}"


def format_network(mbit_s: int) -> str:
    """Write megabits a second for a person: ``10 Gbit/s``."""
    for unit, size in (("Tbit/s", 10**6), ("Gbit/s", 10**3)):
        if abs(mbit_s) >= size:
            return f"{mbit_s / size:g} {unit}"
    return f"{mbit_s} Mbit/s"
