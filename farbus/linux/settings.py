"""The door to a daemon's own settings: what its command line and configuration file say now."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from farbus.errors import InvalidInput
from farbus.linux.children import run_tool
from farbus.model.value import Value, from_json

V = TypeVar("V", bound=Value)

SETTINGS_VARIABLE = "FARBUS_SETTINGS"
"""Set to ``print``: the command that would become a daemon prints the daemon's settings as JSON instead."""

READ_LIMIT_S = 180.0
"""Longest that the command may take: two seconds on an idle machine, much more on a starved one."""


def settings_reader(arguments: Sequence[str], kind: type[V]) -> Callable[[], Awaitable[V]] | None:
    """Return what reads the settings again that ``farbus ARGUMENTS`` has started a daemon with.

    It runs that command, so that the daemon itself holds nothing of the
    command line in memory; it raises :class:`InvalidInput` with what the
    command says.  None at a terminal, where SIGHUP says that it was closed.
    """
    if os.isatty(0):
        return None
    command = [sys.executable, "-P", "-m", "farbus.cli", *arguments]

    async def read() -> V:
        done = await asyncio.to_thread(
            run_tool, command, environment={**os.environ, SETTINGS_VARIABLE: "print"}, timeout_s=READ_LIMIT_S
        )
        if done.code:
            raise InvalidInput(done.stderr.strip().rpartition("\n")[2].removeprefix("farbus: "))
        return from_json(done.stdout.encode(), kind)

    return read
