"""``farbus down``."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from farbus.cli import runtime
from farbus.cli.commands.up import clean_up
from farbus.cli.demo import end_killed_demos, is_of_demo
from farbus.cli.embedded import STOP_WITHIN_S
from farbus.cli.following import say
from farbus.cli.options import command_app, examples
from farbus.errors import Conflict, ExitCode, TimedOut

app = command_app()

WITHIN_S = 3 * STOP_WITHIN_S
"""Agents and scheduler stop one after the other, each within its own limit."""


@app.command(epilog=examples("farbus down"))
def down(
    force: Annotated[bool, typer.Option("--force", help="Kill it: for one that does not stop.")] = False,
) -> int:
    """Stop your `farbus up`, in the background or in another terminal, and all that runs in it.

    Also what a `farbus demo` of yours that was killed has left.
    """
    directory = runtime.runtime_directory()
    code = _stop(directory, force=force)
    if not is_of_demo(directory):
        for place in end_killed_demos():
            typer.echo(f"ended what a killed farbus demo had left, and removed {place}")
    return code


def _stop(directory: Path, *, force: bool) -> int:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        runtime.check_private(directory)
    pid = runtime.lock_holder(directory)
    if pid is None:
        told = "no farbus up of yours runs"
        # One that was killed has left its programs, which go on for a while, and its files; as it began, files alone.
        if runtime.read_published(directory) is not None or (directory / "up").exists():
            with runtime.lock(directory):
                clean_up(directory)
            told += "; ended what a killed one had left"
        typer.echo(told)
        return int(ExitCode.OK)
    if not pid:
        raise Conflict("a farbus up of yours begins at this very moment", hint="try again")
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            # It may have ended, and its number gone to somebody else, before the descriptor was opened.
            if runtime.lock_holder(directory) == pid:
                signal.pidfd_send_signal(process, signal.SIGKILL if force else signal.SIGTERM)
                say("stopping", quiet=not sys.stderr.isatty())
                ended = select.select([process], [], [], WITHIN_S)[0]
                if not ended:
                    raise TimedOut(f"farbus up (pid {pid}) still runs after {WITHIN_S:g} s", hint="farbus down --force")
        finally:
            os.close(process)
    if force:
        with runtime.lock(directory):
            clean_up(directory)
    typer.echo("stopped")
    return int(ExitCode.OK)
