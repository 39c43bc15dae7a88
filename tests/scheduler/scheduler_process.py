"""Runs a scheduler as a process of its own: ``python -m tests.scheduler.scheduler_process CONFIG.json [KILL]``.

``KILL`` is ``before:N`` or ``after:N``: it kills itself around its N-th write of a move or a volume, counted from 0.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from farbus.model.value import from_json
from farbus.scheduler.config import SchedulerConfig
from farbus.scheduler.daemon import main
from farbus.scheduler.events import Persist, PersistMove, PersistVolume
from farbus.scheduler.ledger import Ledger


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(written: bool, number: int) -> None:
    """Have this process die around one of its writes of moves or volumes."""
    writes, write = itertools.count(), Ledger.write

    def mortal(ledger: Ledger, effects: Iterable[Persist]) -> concurrent.futures.Future[None]:
        batch = list(effects)
        mine = any(isinstance(effect, PersistMove | PersistVolume) for effect in batch) and next(writes) == number
        if mine and not written:
            die()
        future = write(ledger, batch)
        if mine:
            # In the ledger's thread, as soon as the transaction is over.
            future.add_done_callback(die)
        return future

    Ledger.write = mortal  # type: ignore[method-assign]


if __name__ == "__main__":
    if len(sys.argv) > 2:
        when, _, at = sys.argv[2].partition(":")
        kill_at(when == "after", int(at))
    sys.exit(main(from_json(Path(sys.argv[1]).read_bytes(), SchedulerConfig)))
