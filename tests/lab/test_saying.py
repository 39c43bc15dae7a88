"""What a test of the lab says is there also when the run is killed, and what its guests said when it has failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.guest import patient

ROOT = Path(__file__).parent.parent.parent

KILLED = """
import os


def test_that_is_killed(say, tell):
    tell("told")
    say("7 moves done")
    os._exit(1)
"""


FAILING = """
import pytest

from tests.lab.cable import Cable
from tests.lab.guest import Guest
from tests.lab.nodes import NODE
from tests.lab.snapshot import ensure_snapshot


def speak(guest):
    guest.shell(f"logger said by {guest.name}; echo shown by {guest.name} > /dev/console; journalctl --sync")


def test_that_fails(lab):
    speak(lab.node("a"))
    pytest.fail("on purpose")


def test_whose_guest_an_error_ends(image):
    with Guest(image, NODE, name="b", join=[Cable()], snapshot=ensure_snapshot(image, NODE)) as guest:
        guest.wait_for_boot()
        speak(guest)
        raise RuntimeError("on purpose")


def test_that_passes(lab):
    speak(lab.node("a"))
"""


def pytest_on(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the tests in a directory, which lies elsewhere, as those of the lab."""
    (directory / "pytest.ini").write_text("[pytest]")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.lab.conftest", "-p", "no:cacheprovider", str(directory)],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_what_is_said_is_there_though_the_run_is_killed(tmp_path: Path) -> None:
    (tmp_path / "test_killed.py").write_text(KILLED)
    ended = pytest_on(tmp_path)
    assert ended.returncode == 1
    assert "lab: 7 moves done" in ended.stderr.splitlines()
    assert "told" not in ended.stdout + ended.stderr


@pytest.mark.lab
@pytest.mark.timeout(patient(900))
@pytest.mark.usefixtures("image")
def test_consoles_and_journals_are_kept_of_tests_that_fail(tmp_path: Path) -> None:
    directory, kept = tmp_path / "tests", tmp_path / "logs"
    directory.mkdir()
    (directory / "test_failing.py").write_text(FAILING)
    ended = pytest_on(directory, FARBUS_LAB="1", FARBUS_LAB_LOGS=str(kept))
    assert "2 failed, 1 passed" in ended.stdout, ended.stdout + ended.stderr
    failed = {"test_failing.test_that_fails": "a", "test_failing.test_whose_guest_an_error_ends": "b"}
    assert {one.name for one in kept.iterdir()} == set(failed)
    for test, name in failed.items():
        assert f"consoles and journals: {kept / test}" in ended.stdout
        said = {one.name: one.read_text(errors="replace") for one in (kept / test).iterdir() if f"{name}." in one.name}
        assert set(said) == {f"{name}.qemu.log", f"{name}.console.log", f"{name}.journal.log"}
        assert f"shown by {name}" in said[f"{name}.console.log"]
        assert f"said by {name}" in said[f"{name}.journal.log"]
