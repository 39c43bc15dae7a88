"""Whether the disk of the agent's state takes what is written: nothing new may begin on a node where it does not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from farbus.agent.journal import Journal
from farbus.errors import FarbusError, Unavailable
from farbus.linux.clock import Clock

_log = structlog.get_logger()

LOOK_INTERVAL_S = 30.0
"""Between two looks: a node that is idle would else learn of a broken disk by its next job, and never of its return."""

PROBE = b"Written and removed again, to see whether the disk takes it.\n".ljust(4096)
"""A block: a full disk may take a file without content."""


class StateDisk:
    """The disk below ``directory``, on which the journal is too.

    Its failure is told once, in one line, and so is its return: by a record
    that the journal could not write, or by a look.  Only a look finds that all
    is well again, since a disk that is read-only still takes what goes into
    the journal's own blocks.
    """

    def __init__(self, directory: Path, *, journal: Journal, clock: Clock) -> None:
        self._directory = directory
        self._journal = journal
        self._clock = clock
        self.trouble = ""
        """Why nothing new may begin; empty when nothing is wrong."""
        self.changed: Callable[[], None] = _nobody_asks
        """Called when ``trouble`` has come or gone."""
        journal.refused = self._note

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Write a file and a record that change nothing."""
        try:
            await asyncio.to_thread(self._probe)
            await self._journal.check()
        except FarbusError as error:
            self._note(str(error))
        else:
            self._note("")

    def _probe(self) -> None:
        path = self._directory / "probe"
        try:
            # Under one name, so that an agent that is killed meanwhile leaves at most this one file.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.write(descriptor, PROBE)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            path.unlink()
        except OSError as error:
            raise Unavailable(
                f"{self._directory}: {error.strerror}", hint="is the disk full, read-only or broken? see dmesg"
            ) from error

    def _note(self, trouble: str) -> None:
        # What is wrong may change its name from one write to the next: it is one line all the same.
        if bool(trouble) == bool(self.trouble):
            return
        self.trouble = trouble
        if trouble:
            _log.error("nothing new begins here: the disk fails", directory=str(self._directory), reason=trouble)
        else:
            _log.warning("the disk works again", directory=str(self._directory))
        self.changed()


def _nobody_asks() -> None:
    """Do nothing: :attr:`StateDisk.changed` before there is somebody who wants to know."""
