"""``python -m farbus.scheduler DESCRIPTOR``: the daemon by itself, its settings as JSON in an inherited descriptor."""

from __future__ import annotations

import os
import sys

from farbus.linux.settings import settings_reader
from farbus.model.value import from_json
from farbus.scheduler.config import SchedulerConfig
from farbus.scheduler.daemon import main

if __name__ == "__main__":
    with os.fdopen(int(sys.argv[1]), "rb") as settings:
        config = from_json(settings.read(), SchedulerConfig)
    sys.exit(main(config, reread=settings_reader(sys.argv[2:], SchedulerConfig)))
