"""Which driver the servers of a lease open."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from farbus.agent.remoting_host import driver_library

HEADER = Path(sys.executable).read_bytes()[:20]
THIRTY_TWO_BITS = b"\x7fELF\x01" + HEADER[5:]


def library(folder: Path, header: bytes = HEADER) -> Path:
    folder.mkdir()
    (folder / "libcuda.so.1").write_bytes(header)
    return folder / "libcuda.so.1"


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    return library(tmp_path / "nvidia")


def test_the_driver_is_where_the_agent_s_libraries_are(driver: Path, tmp_path: Path) -> None:
    assert driver_library({"LD_LIBRARY_PATH": f"{tmp_path}::{driver.parent}"}) == str(driver)


def test_else_the_loader_finds_it(tmp_path: Path) -> None:
    assert not driver_library({})
    assert not driver_library({"LD_LIBRARY_PATH": f"{tmp_path}:"})


def test_the_shim_of_an_agent_with_a_remote_gpu_is_no_driver(driver: Path) -> None:
    assert not driver_library({"LD_LIBRARY_PATH": str(driver.parent), "LD_PRELOAD": f"{driver}:/lib/other.so"})


@pytest.mark.parametrize("preloaded", ["/lib/other.so {}", "{}/../nvidia/libcuda.so.1", "{}/../link/libcuda.so.1"])
def test_the_shim_is_known_however_it_is_named(driver: Path, preloaded: str) -> None:
    (driver.parent.parent / "link").symlink_to(driver.parent)
    name = preloaded.format(driver if " " in preloaded else driver.parent)
    assert not driver_library({"LD_LIBRARY_PATH": str(driver.parent), "LD_PRELOAD": name})


def test_what_the_loader_passes_over_is_passed_over(driver: Path, tmp_path: Path) -> None:
    """As in images for GPUs, whose LD_LIBRARY_PATH often has a folder of 32 bits first."""
    narrow = library(tmp_path / "lib", THIRTY_TWO_BITS).parent
    (tmp_path / "folder" / "libcuda.so.1").mkdir(parents=True)
    loop = tmp_path / "loop"
    loop.mkdir()
    (loop / "libcuda.so.1").symlink_to("libcuda.so.1")
    folders = (narrow, tmp_path / "folder", loop, tmp_path / ("x" * 300), driver.parent)
    assert driver_library({"LD_LIBRARY_PATH": ":".join(map(str, folders))}) == str(driver)
    assert driver_library({"LD_LIBRARY_PATH": f"{narrow};{driver.parent}"}) == str(driver)
    assert not driver_library({"LD_LIBRARY_PATH": str(narrow)})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_folder_that_may_not_be_entered_is_passed_over() -> None:
    # Not in tmp_path, whose parents nobody else may enter.
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        locked, open_to_all = (library(Path(name) / folder) for folder in ("locked", "open"))
        locked.parent.chmod(0)
        os.seteuid(65534)
        try:
            found = driver_library({"LD_LIBRARY_PATH": f"{locked.parent}:{open_to_all.parent}"})
        finally:
            os.seteuid(0)
    assert found == str(open_to_all)


def test_servers_run_in_another_folder(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(driver.parent.parent)
    assert driver_library({"LD_LIBRARY_PATH": "nvidia"}) == str(driver)
    monkeypatch.chdir(driver.parent)
    assert driver_library({"LD_LIBRARY_PATH": "."}) == str(driver)
