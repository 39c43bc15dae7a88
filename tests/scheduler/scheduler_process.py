"""Runs a scheduler as a process of its own: ``python -m tests.scheduler.scheduler_process CONFIG.json``."""

from __future__ import annotations

import sys
from pathlib import Path

from farbus.model.value import from_json
from farbus.scheduler.config import SchedulerConfig
from farbus.scheduler.daemon import main

if __name__ == "__main__":
    sys.exit(main(from_json(Path(sys.argv[1]).read_bytes(), SchedulerConfig)))
