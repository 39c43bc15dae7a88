"""Strict mode: mistakes that are planted are found, and what is right is left alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.softgpu.driver_programs import PROGRAMS, TIMEOUT_S, environment
from tests.softgpu.engine import nvcc

FINDINGS = {
    "reduction": "race with a read by warp 0 of the block: write of 4 bytes at shared",
    "rounds": "race with a write by warp 3 of the block: read of 4 bytes at shared",
    "counter": "race with a write by block 0: read of 4 bytes at global",
    "unwritten_shared": "not initialised: read of 4 bytes at shared 0x200 by thread (127,0,0)",
    "unwritten_global": "not initialised: read of 4 bytes at global",
    "beyond_the_end": "outside of every allocation: read of 4 bytes at global",
    "padding": "not initialised: read of 8 bytes at global",
    "flag": "not initialised: read of 4 bytes at shared",
}

# What may be read and never used is told, and the kernel goes on.
ERRORS = {
    "unwritten_shared": "cudaSuccess\n",
    "flag": "cudaErrorLaunchFailure\n",
    "beyond_the_end": "cudaErrorIllegalAddress\n",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = nvcc()
    if not compiler:
        pytest.skip("no nvcc")
    out = tmp_path_factory.mktemp("strict") / "strict_findings"
    source = PROGRAMS / "strict_findings.cu"
    subprocess.run([compiler, "-arch=compute_75", "-o", str(out), str(source)], check=True, capture_output=True)
    return out


def run(program: Path, node: Path, *words: str, strict: bool = True) -> subprocess.CompletedProcess[str]:
    settings = environment(str(node), f"mem=64MiB,strict={int(strict)}")
    return subprocess.run(
        [str(program), *words], env=settings, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )


@pytest.mark.parametrize("mistake", FINDINGS)
def test_a_planted_mistake_is_found(program: Path, tmp_path: Path, mistake: str) -> None:
    done = run(program, tmp_path, mistake, "wrong")
    assert f"strict: {FINDINGS[mistake]}" in done.stderr
    assert done.stdout == ERRORS.get(mistake, "cudaErrorLaunchFailure\n")


@pytest.mark.parametrize("mistake", FINDINGS)
def test_what_is_right_is_left_alone(program: Path, tmp_path: Path, mistake: str) -> None:
    done = run(program, tmp_path, mistake, "right")
    assert (done.stdout, done.stderr) == ("cudaSuccess\n", "")


def test_mistakes_go_unseen_without_strict_mode(program: Path, tmp_path: Path) -> None:
    assert run(program, tmp_path, "rounds", "wrong", strict=False).stdout == "cudaSuccess\n"
