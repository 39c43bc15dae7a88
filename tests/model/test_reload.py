"""Settings that were read again."""

from __future__ import annotations

from farbus.model.reload import reloaded
from farbus.model.value import Value


class Settings(Value, frozen=True, kw_only=True):
    labels: dict[str, str] = {}
    state: str = ""


def test_what_can_change_changes_and_what_cannot_is_named() -> None:
    old = Settings(labels={"rack": "r1"}, state="/a")
    settings, now, later = reloaded(
        old, Settings(labels={"rack": "r2"}, state="/b"), changeable=frozenset({"labels"})
    )  # fmt: skip
    assert settings == Settings(labels={"rack": "r2"}, state="/a")
    assert (now, later) == (["labels"], ["state"])


def test_the_same_settings_change_nothing() -> None:
    old = Settings(state="/a")
    assert reloaded(old, Settings(state="/a"), changeable=frozenset({"state"})) == (old, [], [])
