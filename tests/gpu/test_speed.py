"""speed.py works: every program runs each way and computes the same; how fast is not asked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.model import build
from tests.remoting.harness import BUILD, ROOT

#: Copies of 4 KiB and a few kernels.
DIVISOR = "4096"
SOFTGPU = BUILD / "softgpu" / "libcuda.so.1"


@pytest.fixture(scope="module")
def kernels(compiled: Callable[..., Path]) -> Path:
    return compiled("kernels", "-O2")


def speed(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.gpu.speed", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, timeout=120, check=False
    )


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


def test_another_remoting_is_one_more_way(libcuda: Path, kernels: Path, tmp_path: Path) -> None:
    output, seen, launcher = tmp_path / "speed.json", tmp_path / "seen", tmp_path / "launcher"
    launcher.write_text('#!/bin/sh\necho "$SERVER: $*" >"$SEEN"\nexec "$@"\n')
    launcher.chmod(0o755)
    peer = f"other=LD_LIBRARY_PATH={libcuda.parent} SEEN={seen} SERVER='a b' {launcher}"
    options = ("--way", "native", "--peer", peer, "--part", "calls", "--divisor", DIVISOR, "--rounds", "2")
    done = speed("--libcuda", libcuda, "--kernels", kernels, *options, "-o", output)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.rpartition(" ")[2] for line in done.stderr.splitlines()] == ["native", "other", "other", "native"]
    assert seen.read_text() == f"a b: {kernels} {DIVISOR} calls\n"
    told = json.loads(output.read_text())
    assert {"exec to first kernel", "cudaStreamQuery"} <= set(told)
    assert not any("vectorAdd" in name or "h2d" in name for name in told)
    for one in told.values():
        assert one["agrees"]
        assert one["ratios"] == {way: middle / one["medians"]["native"] for way, middle in one["medians"].items()}
        assert set(one["ratios"]) == {"native", "other"}


@pytest.mark.skipif(shutil.which("cc") is None, reason="cc is not in PATH")
@pytest.mark.skipif(not SOFTGPU.exists(), reason="the software GPU is not built: run make build")
def test_a_way_by_which_nothing_runs_and_arrives_is_told(compiled: Callable[..., Path], tmp_path: Path) -> None:
    """The model of a driver computes nothing, and copies nothing."""
    code = ("-gencode", "arch=compute_75,code=compute_75", "-gencode", "arch=compute_90,code=sm_90")
    peer = f"other=LD_LIBRARY_PATH={build(tmp_path / 'model').parent}"
    options = ("--way", "native", "--peer", peer, "--part", "calls", "--part", "copies", "--divisor", DIVISOR)
    kernels = compiled("kernels", "-O2", *code)
    done = speed("--libcuda", SOFTGPU, "--kernels", kernels, *options, "--rounds", "1", FARBUS_SOFTGPU="cc=9.0")
    assert done.returncode == 1
    rows = done.stdout.splitlines()[1:]
    checked = ("kernels that count", "the same by each", "4 bytes", "h2d", "d2h")
    assert [row for row in rows if "DIFFERS" in row] == [row for row in rows if row.startswith(checked)]


def test_a_way_that_can_t_be_gone_leaves_the_others(libcuda: Path, kernels: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    options = (
        "--way",
        "native",
        "--peer",
        f"other={missing}",
        "--part",
        "calls",
        "--divisor",
        DIVISOR,
        "--rounds",
        "1",
    )
    done = speed("--libcuda", libcuda, "--kernels", kernels, *options)
    assert done.returncode == 1
    assert f"No such file or directory: '{missing}'" in done.stdout
    assert "cudaStreamQuery" in done.stdout


@pytest.mark.parametrize("words", ["other", "other=", "=program", "tcp=program", "a b=program", "other='program"])
def test_a_peer_without_name_or_words_is_refused(libcuda: Path, words: str) -> None:
    done = speed("--libcuda", libcuda, "--peer", words)
    assert done.returncode == 2
    assert f"argument --peer: {words!r}" in done.stderr.splitlines()[-1]
