"""The process that decides: ``python -m farbus.scheduler.decision_worker PARENT POLICY``."""

from __future__ import annotations

import contextlib
import sys

from farbus.errors import Unavailable
from farbus.linux.answerer import serve
from farbus.scheduler.decision_maker import plan_maker
from farbus.scheduler.decision_process import Reader

if __name__ == "__main__":
    # Nobody is there any more who could be told that its parent has ended.
    with contextlib.suppress(Unavailable):
        serve(Reader(plan_maker(sys.argv[2])).answer, int(sys.argv[1]))
