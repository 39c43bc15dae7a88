"""The door to systemd: how long it is waited for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from farbus.errors import TimedOut, Unavailable
from farbus.linux import service_manager
from farbus.linux.children import Finished
from farbus.linux.service_manager import Systemd


def test_an_order_is_waited_for_as_long_as_systemd_takes_and_a_question_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(arguments: Sequence[str], *, timeout_s: float | None) -> Finished:
        """A tool that takes an hour."""
        if timeout_s is not None:
            raise TimedOut(f"{arguments[0]}: not done after {timeout_s:g} s")
        return Finished(0, "done", "")

    monkeypatch.setattr(service_manager, "run_tool", slow)
    Systemd().run("systemctl", "stop", "farbus-programs.slice")
    with pytest.raises(TimedOut, match="systemctl: not done after 120 s"):
        Systemd().ask("systemctl", "list-units")


def test_what_a_tool_says_last_is_the_error() -> None:
    assert Systemd().ask("echo", "active") == "active\n"
    with pytest.raises(Unavailable, match=r"^sh -c .*: no such unit$"):
        Systemd().run("sh", "-c", "echo first >&2; echo no such unit >&2; exit 4")
