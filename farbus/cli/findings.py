"""What a check of ``farbus doctor`` comes to."""

from __future__ import annotations

import enum

from farbus.model.value import Value


class Verdict(enum.StrEnum):
    """How a check came out; only ``broken`` makes ``farbus doctor`` fail."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    BROKEN = "broken"


class Finding(Value, frozen=True, kw_only=True):
    """One check."""

    check: str
    verdict: Verdict
    found: str
    cure: str = ""
