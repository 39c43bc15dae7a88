"""The half of operations.py that tells workers what to do: no PyTorch is needed for it."""

from __future__ import annotations

import pytest

from tests.pytorch import operations


class Told:
    """A worker that tells all verdicts, and then stands."""

    def __init__(self, mode: str, names: list[str]) -> None:
        self.reports = [{"begin": name} for name in names for _ in range(2)]
        self.reports[1::2] = [{"end": name, "verdict": "right", "why": ""} for name in names]

    def line(self, timeout_s: float) -> dict[str, str] | None:
        if not self.reports:
            raise AssertionError("it is waited for, though it has told all")
        return self.reports.pop(0)

    def said(self) -> list[str]:
        return []

    def close(self) -> int:
        return -9


def test_a_worker_that_has_told_all_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "Worker", Told)
    results: dict[str, dict[str, object]] = {}
    operations.run_share("compiled", ["one", "two"], results, loud=False)
    assert {name: result["verdict"] for name, result in results.items()} == {"one": "right", "two": "right"}
