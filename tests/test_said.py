"""What a command said that failed is shown with the test that ran it, however it was run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.said import LONGEST, said_by_commands

ROOT = Path(__file__).parent.parent

FAILING = """
import subprocess

import pytest

COMMAND = ["sh", "-c", "echo found; echo why >&2; exit 3"]


@pytest.fixture
def compiled():
    try:
        subprocess.run(COMMAND, check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        raise RuntimeError("not compiled") from error


def test_by_a_fixture(compiled):
    pass


def test_by_itself():
    subprocess.run(COMMAND, check=True, capture_output=True, text=True)
"""


def test_a_test_that_fails_shows_what_its_command_said(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / "test_failing.py").write_text(FAILING)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "--tb=line", tmp_path],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    title = " of sh -c 'echo found; echo why >&2; exit 3'"
    shown = [line.strip("- ") for line in done.stdout.splitlines()]
    assert done.returncode == 1, done.stderr
    for stream, said in (("stdout", "found"), ("stderr", "why")):
        places = [number for number, line in enumerate(shown) if line == stream + title]
        assert [shown[place + 1] for place in places] == [said] * 2, done.stdout


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (None, []),
        (ValueError("no command"), []),
        (subprocess.CalledProcessError(1, "make"), []),
        (
            subprocess.CalledProcessError(1, ["cc", Path("a b.c")], b"", b"\xff:1"),
            [("stdout of cc 'a b.c'", "nothing"), ("stderr of cc 'a b.c'", "�:1")],
        ),
        (subprocess.TimeoutExpired("make", 1, "x" * LONGEST + "y"), [("stdout of make", "x" * (LONGEST - 1) + "y")]),
        (ExceptionGroup("two", [subprocess.CalledProcessError(1, "make", "a")]), [("stdout of make", "a")]),
    ],
)
def test_what_is_said_of_an_error(error: BaseException | None, said: list[tuple[str, str]]) -> None:
    assert list(said_by_commands(error)) == said
