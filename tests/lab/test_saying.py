"""What a test of the lab says while it runs is there also when the run is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

KILLED = """
import os


def test_that_is_killed(say, tell):
    tell("told")
    say("7 moves done")
    os._exit(1)
"""


def test_what_is_said_is_there_though_the_run_is_killed(tmp_path: Path) -> None:
    (tmp_path / "test_killed.py").write_text(KILLED)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.lab.conftest", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=Path(__file__).parent.parent.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "lab: 7 moves done" in ended.stderr.splitlines()
    assert "told" not in ended.stdout + ended.stderr
