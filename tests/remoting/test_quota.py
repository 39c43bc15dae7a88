"""The memory of a lease: one account for all paths and all programs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remoting.harness import ROOT, SHIM, Remote, remote_session
from tests.softgpu import driver_programs

LIMIT_BYTES = 64 << 20


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not driver_programs.COMPILER:
        pytest.skip("no C compiler")
    target = tmp_path_factory.mktemp("quota") / "paths"
    source = ROOT / "tests" / "remoting" / "quota" / "paths.c"
    subprocess.run(
        [
            driver_programs.COMPILER, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", str(source),
            "-o", str(target), f"-L{SHIM}", "-l:libcuda.so.1",
        ],
        check=True,
    )  # fmt: skip
    return target


@pytest.fixture
def limited(libcuda: Path, tmp_path: Path) -> Iterator[Remote]:
    environment = {"FARBUS_SOFTGPU": "mem=1GiB", "FARBUS_SOFTGPU_NODE": str(tmp_path)}
    with remote_session(libcuda=libcuda, folder=tmp_path, environment=environment, memory_limit=LIMIT_BYTES) as remote:
        yield remote


def test_every_path_is_counted(limited: Remote, program: Path) -> None:
    done = limited.run(program)
    assert done.returncode == 0, done.stdout + done.stderr


def test_programs_of_a_lease_share_one_account(limited: Remote, program: Path) -> None:
    holder = limited.start(program, "40")
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "0\n"
        assert limited.run(program, "25").stdout == "2\n"
        assert limited.run(program, "24").stdout == "0\n"
    finally:
        holder.kill()
        holder.communicate()
