"""What a daemon logs, and what becomes of it where nobody takes it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

DAEMON = """
import os, sys, structlog
from farbus.linux.daemon_log import configure_logging
configure_logging()
log = structlog.get_logger()
log.info("one")
log.info("two")
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 2)
log.info("three")
log.info("four")
"""


def test_a_daemon_does_not_end_with_the_room_for_its_log_and_says_what_was_lost(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with open("/dev/full", "wb") as full:
        subprocess.run([sys.executable, "-c", DAEMON, str(log)], stderr=full, check=True)
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["event"] for line in told] == ["lines of this log were lost", "three", "four"]
    assert told[0]["lines"] == 2
