"""The garbage collector, kept away from work that it would only slow down."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector from running.

    A round, and what reads or writes it, makes many thousand objects that live
    on, and none in cycles; looking for those among all that the scheduler
    holds, over and over, takes a quarter of a large round.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
