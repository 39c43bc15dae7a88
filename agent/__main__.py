"""``python -m farbus.agent DESCRIPTOR``: the daemon by itself, its settings as JSON in an inherited descriptor."""

from __future__ import annotations

import os
import sys

from farbus.agent.config import AgentConfig
from farbus.agent.daemon import main
from farbus.linux.settings import settings_reader
from farbus.model.value import from_json

if __name__ == "__main__":
    with os.fdopen(int(sys.argv[1]), "rb") as settings:
        config = from_json(settings.read(), AgentConfig)
    sys.exit(main(config, reread=settings_reader(sys.argv[2:], AgentConfig)))
