"""CUDA_VISIBLE_DEVICES, and identities that stay."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.softgpu.driver_programs import TIMEOUT_S, build, environment


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return build("driver_list_devices", tmp_path)


def devices(program: Path, node: str = "visibility", count: int = 3, **more: str) -> list[str]:
    done = subprocess.run(
        [str(program)],
        env=environment(node, f"count={count},mem=64MiB", **more),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return done.stdout.split()


def test_uuids_are_stable_and_differ(program: Path) -> None:
    first = devices(program)
    assert len(set(first)) == 3
    assert devices(program) == first
    assert devices(program, count=2) == first[:2]
    assert not set(devices(program, node="another")) & set(first)


@pytest.mark.parametrize(
    ("visible", "indices"),
    [("0", [0]), ("2,0", [2, 0]), ("1, 2", [1, 2]), ("0,7,1", [0]), ("-1", []), ("", []), ("1,1", []), ("x", [])],
)
def test_visible_by_index(program: Path, visible: str, indices: list[int]) -> None:
    every = devices(program)
    wanted = [every[index] for index in indices] or ["CUDA_ERROR_NO_DEVICE"]
    assert devices(program, CUDA_VISIBLE_DEVICES=visible) == wanted


def test_visible_by_uuid(program: Path) -> None:
    every = devices(program)
    assert devices(program, CUDA_VISIBLE_DEVICES=f"{every[2]},{every[1][:12]}") == [every[2], every[1]]
    assert devices(program, CUDA_VISIBLE_DEVICES="GPU-") == ["CUDA_ERROR_NO_DEVICE"]
