"""Which driver the servers of a lease open."""

from __future__ import annotations

from pathlib import Path

import pytest

from farbus.agent.remoting_host import driver_library


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    folder = tmp_path / "nvidia"
    folder.mkdir()
    (folder / "libcuda.so.1").touch()
    return folder / "libcuda.so.1"


def test_the_driver_is_where_the_agent_s_libraries_are(driver: Path, tmp_path: Path) -> None:
    assert driver_library({"LD_LIBRARY_PATH": f"{tmp_path}::{driver.parent}"}) == str(driver)


def test_else_the_loader_finds_it(tmp_path: Path) -> None:
    assert not driver_library({})
    assert not driver_library({"LD_LIBRARY_PATH": f"{tmp_path}:"})


def test_the_shim_of_an_agent_with_a_remote_gpu_is_no_driver(driver: Path) -> None:
    assert not driver_library({"LD_LIBRARY_PATH": str(driver.parent), "LD_PRELOAD": f"{driver}:/lib/other.so"})
