"""The form of a measurement."""

from __future__ import annotations

from typing import Any

MIB = 2**20


def row(name: str, value: float, unit: str, *, reference: float | None = None, **labels: Any) -> dict[str, Any]:
    """Return one result; ``reference`` is what it should not be above."""
    return {
        "name": name,
        "value": round(value, 4),
        "unit": unit,
        "reference": reference,
        "ratio": round(value / reference, 4) if reference else None,
        **labels,
    }


def mib(size_bytes: float) -> float:
    """Return bytes as MiB, for people."""
    return round(size_bytes / MIB, 2)
