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

# With copies by tensor maps.
TENSOR_FINDINGS = {
    "no_wait": "race with a read by warp 1 of the block: write of 1024 bytes at shared 0 by thread (0,0,0)",
    "next_tile": "race with a read by warp 0 of the block: write of 1024 bytes at shared 0 by thread (63,0,0)",
    "early_store": "race with a read by warp 0 of the block: write of 4 bytes at shared 0x80 by thread (32,0,0)",
    "overlap": "race with a write by block 0: write of 128 bytes at global",
    "beyond_the_end": "outside of every allocation: read of 128 bytes at global",
    "unwritten": "not initialised: read of 128 bytes at global",
}

# What may be read and never used is told, and the kernel goes on.
ERRORS = {
    "unwritten_shared": "cudaSuccess\n",
    "flag": "cudaErrorLaunchFailure\n",
    "beyond_the_end": "cudaErrorIllegalAddress\n",
}


def compiled(factory: pytest.TempPathFactory, name: str, *flags: str) -> Path:
    compiler = nvcc()
    if not compiler:
        pytest.skip("no nvcc")
    out = factory.mktemp("strict") / name
    subprocess.run([compiler, *flags, "-o", str(out), str(PROGRAMS / f"{name}.cu")], check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory, "strict_findings", "-arch=compute_75")


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory, "strict_tensor", "-arch=compute_90", "-std=c++17")


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


@pytest.mark.parametrize("mistake", TENSOR_FINDINGS)
def test_a_planted_mistake_with_tensor_maps_is_found(tensors: Path, tmp_path: Path, mistake: str) -> None:
    done = run(tensors, tmp_path, mistake, "wrong")
    assert f"strict: {TENSOR_FINDINGS[mistake]}" in done.stderr
    assert done.stdout == ERRORS.get(mistake, "cudaErrorLaunchFailure\n")
    done = run(tensors, tmp_path, mistake, "right")
    assert (done.stdout, done.stderr) == ("cudaSuccess\n", "")


def test_mistakes_go_unseen_without_strict_mode(program: Path, tmp_path: Path) -> None:
    assert run(program, tmp_path, "rounds", "wrong", strict=False).stdout == "cudaSuccess\n"
