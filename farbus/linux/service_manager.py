"""The door to systemd: is it there, and what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from farbus.errors import Unavailable
from farbus.linux.children import run_tool

ANSWER_WITHIN_S = 120.0
"""Longest that systemd may take to answer a question."""


class Systemd:
    """systemd, by its tools."""

    @property
    def running(self) -> bool:
        """Look where sd_booted(3) looks."""
        return Path("/run/systemd/system").is_dir()

    def ask(self, *command: str) -> str:
        """Return what one of its tools prints, that changes nothing; raise :class:`Unavailable` with what it says."""
        return self._run(command, ANSWER_WITHIN_S)

    def run(self, *command: str) -> None:
        """Have one of its tools do something; raise :class:`Unavailable` with the end of what it says.

        However long it takes: units have limits of their own (TimeoutStopSec=), by which systemd ends the waiting, and
        a tool that is given up here would leave its order behind.
        """
        self._run(command, None)

    def _run(self, command: Sequence[str], timeout_s: float | None) -> str:
        done = run_tool(command, timeout_s=timeout_s)
        if done.code:
            words = done.stderr.strip().splitlines()
            raise Unavailable(f"{' '.join(command)}: {words[-1] if words else f'ends with {done.code}'}")
        return done.stdout
