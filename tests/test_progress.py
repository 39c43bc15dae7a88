"""``make build`` says how far it is while it compiles (native/progress)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: Each object waits for a line in the gate, and is none where that line says so.
MAKEFILE = """\
all: $(addprefix build/,$(addsuffix .o,0 1 2 3 4 5 6 7 8 9))
build/%.o:
\t@sh -c 'read answer <gate; [ "$$answer" = yes ] && touch $@'
"""


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[int]:
    """Where objects wait; what is written there stays until one comes."""
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "build").mkdir()
    os.mkfifo(tmp_path / "gate")
    descriptor = os.open(tmp_path / "gate", os.O_RDWR)
    yield descriptor
    os.close(descriptor)


@contextmanager
def building(directory: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")}
    with subprocess.Popen(
        [ROOT / "native" / "progress", "make", "-s", "-j1"], start_new_session=True,
        cwd=directory, env=environment | {"PROGRESS_BUILD": "build"}, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        except BaseException:
            # It would be waited for, and it for the gate.
            os.killpg(process.pid, signal.SIGKILL)
            raise


def test_it_says_how_much_is_compiled_while_it_compiles(tmp_path: Path, gate: int) -> None:
    os.write(gate, b"yes\n" * 5)
    with building(tmp_path) as process:
        assert process.stdout is not None
        told = next(line for line in process.stdout if line.startswith("farbus: compiled 5 "))
        assert told == "farbus: compiled 5 of 10 files\n"
        os.write(gate, b"yes\n" * 5)
        process.stdout.read()
    assert process.returncode == 0
    assert len(list((tmp_path / "build").glob("*.o"))) == 10


def test_what_make_ends_with_is_what_it_ends_with(tmp_path: Path, gate: int) -> None:
    os.write(gate, b"yes\nno\n")
    with building(tmp_path) as process:
        assert process.stdout is not None
        process.stdout.read()
    assert process.returncode == 2


def test_what_is_built_says_nothing(tmp_path: Path, gate: int) -> None:
    for number in range(10):
        (tmp_path / "build" / f"{number}.o").write_text("")
    with building(tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.read() == ""
    assert process.returncode == 0
