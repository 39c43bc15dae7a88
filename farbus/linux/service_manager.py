"""The door to systemd: is it there, and what is asked of it."""

from __future__ import annotations

from pathlib import Path

from farbus.errors import Unavailable
from farbus.linux.children import run_tool

TOOL_LIMIT_S = 120.0
"""Longest that a tool of systemd may take: stopping a unit waits for its processes, here at most for a minute."""


class Systemd:
    """systemd, by its tools."""

    @property
    def running(self) -> bool:
        """Look where sd_booted(3) looks."""
        return Path("/run/systemd/system").is_dir()

    def run(self, *command: str) -> str:
        """Run one of its tools and return what it printed; raise :class:`Unavailable` with the end of what it says."""
        done = run_tool(command, timeout_s=TOOL_LIMIT_S)
        if done.code:
            words = done.stderr.strip().splitlines()
            raise Unavailable(f"{' '.join(command)}: {words[-1] if words else f'ends with {done.code}'}")
        return done.stdout
