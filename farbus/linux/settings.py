"""The door to a daemon's own settings: what its command line and configuration file say now."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from farbus.errors import FarbusError, InvalidInput
from farbus.linux.children import run_tool
from farbus.linux.notify import Notifier, reloading
from farbus.model.reload import reloaded
from farbus.model.value import Value, from_json

_log = structlog.get_logger()

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


def reload_requests() -> asyncio.Event:
    """Return what each SIGHUP to this process sets from now on."""
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, asked.set)
    return asked


async def keep_reloading(
    asked: asyncio.Event,
    settings: V,
    *,
    reread: Callable[[], Awaitable[V]],
    check: Callable[[V], None],
    changeable: frozenset[str],
    take: Callable[[V], Awaitable[None]],
    notifier: Notifier,
) -> None:
    """Each time it is asked, read the settings again and ``take`` those that may change while the daemon runs.

    ``check`` raises :class:`FarbusError` for settings that can't be: they
    change nothing.  The log says what has changed and what needs a restart.
    """
    while True:
        await asked.wait()
        asked.clear()
        notifier.tell(reloading())
        try:
            new = await reread()
            check(new)
        except FarbusError as error:
            _log.error("settings not reloaded", reason=str(error))
        else:
            settings, now, later = reloaded(settings, new, changeable=changeable)
            await take(settings)
            _log.info("settings reloaded", changed=now)
            if later:
                _log.warning("settings need a restart, which ends no job", changed=later)
        notifier.tell("READY=1")
