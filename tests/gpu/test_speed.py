"""speed.py works: every program runs each way and computes the same; how fast is not asked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remoting.harness import ROOT

#: Copies of 4 KiB and a few kernels.
DIVISOR = "4096"


@pytest.fixture(scope="module")
def kernels(compiled: Callable[..., Path]) -> Path:
    return compiled("kernels", "-O2")


def speed(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.gpu.speed", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_each_way_gives_the_same(libcuda: Path, kernels: Path, tmp_path: Path) -> None:
    output = tmp_path / "speed.json"
    ways = ("native", "shm", "tcp")
    options = [option for way in ways for option in ("--way", way)]
    sizes = ("--divisor", DIVISOR, "--rounds", "1")
    done = speed("--libcuda", libcuda, "--kernels", kernels, *sizes, *options, "-o", output)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(output.read_text())
    assert "vectorAdd, kernel" in told
    assert all(one["agrees"] and set(one["seconds"]) == set(ways) for one in told.values())


def test_a_program_that_fails_is_told(libcuda: Path, tmp_path: Path) -> None:
    broken = tmp_path / "kernels"
    broken.write_text("#!/bin/sh\necho no GPU here >&2\nexit 3\n")
    broken.chmod(0o755)
    done = speed("--libcuda", libcuda, "--kernels", broken, "--rounds", "1", "--way", "native")
    assert done.returncode == 1
    assert "status 3: no GPU here" in done.stdout
