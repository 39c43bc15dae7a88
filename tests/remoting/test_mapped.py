"""Pinned memory that kernels use by its address: shared where program and GPU are on one node; else refused, or, where
the program asks for it, managed memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.disks import small_disk
from tests.remoting.harness import ROOT, Remote, remote_session
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_managed import run_on_the_software_gpu

MAPPED = {"FARBUS_MAPPED_MEMORY": "managed"}
#: How pages come, and whether the program may touch any while the GPU works.
MODES = {"paging": ("meanwhile",), "copies": ()}


@pytest.mark.parametrize("name", ["mapped_memory", "mapped_shared", "mapped_nodes"])
@pytest.mark.parametrize("asked", [{}, MAPPED], ids=["by itself", "asked for"])
def test_on_one_node_it_is_the_kernels_memory(remote: Remote, tmp_path: Path, asked: dict[str, str], name: str) -> None:
    done = remote.run(build_calls(f"listing/{name}", tmp_path), "meanwhile", FARBUS_TRANSPORT="shm", **asked)
    assert (done.returncode, done.stdout + done.stderr) == (0, "ok\n")


@pytest.mark.parametrize("name", ["mapped_memory", "mapped_shared", "mapped_nodes"])
def test_where_the_server_has_something_else_another_address_is_found(
    driver_before: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    with remote_session(libcuda=driver_before("crowded_driver"), folder=tmp_path, environment={}) as remote:
        done = remote.run(build_calls(f"listing/{name}", tmp_path), "meanwhile", FARBUS_TRANSPORT="shm")
    assert (done.returncode, done.stdout + done.stderr) == (0, "ok\n")


def test_where_devices_have_it_elsewhere_it_is_not_mapped(
    driver_before: Callable[[str], Path], build: Callable[[str], Path], tmp_path: Path
) -> None:
    environment = {"FARBUS_TEST_APART": "1"}
    with remote_session(libcuda=driver_before("crowded_driver"), folder=tmp_path, environment=environment) as remote:
        shared = remote.run(build("remoting/pinned_shared"), FARBUS_TRANSPORT="shm")
        refused = remote.run(build_calls("listing/pinned_in_kernel", tmp_path), "pinned", FARBUS_TRANSPORT="shm")
    assert (shared.returncode, shared.stdout) == (0, "ok\n"), shared.stderr
    assert (refused.returncode, refused.stdout) == (0, "ok\n"), refused.stderr


@pytest.mark.parametrize("transport", ["unix", "tcp"])
@pytest.mark.parametrize("mode", MODES)
def test_elsewhere_it_can_be_managed_memory(remote: Remote, tmp_path: Path, mode: str, transport: str) -> None:
    program = build_calls("listing/mapped_memory", tmp_path)
    done = remote.run(program, *MODES[mode], FARBUS_MANAGED_MEMORY=mode, FARBUS_TRANSPORT=transport, **MAPPED)
    assert (done.returncode, done.stdout + done.stderr) == (0, "ok\n")


@pytest.mark.parametrize("name", ["mapped_memory", "mapped_shared", "mapped_nodes"])
def test_on_the_software_gpu_itself(tmp_path: Path, name: str) -> None:
    done = run_on_the_software_gpu(build_calls(f"listing/{name}", tmp_path), tmp_path, "meanwhile")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_it_is_refused_where_it_is_not_asked_for(remote: Remote, tmp_path: Path, transport: str) -> None:
    program = build_calls("listing/pinned_in_kernel", tmp_path)
    done = remote.run(program, "pinned", FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert done.stderr.count("FARBUS_MAPPED_MEMORY=managed lets kernels use it") == 1


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_memory_of_the_program_s_own_is_not_mapped(remote: Remote, tmp_path: Path, transport: str) -> None:
    done = remote.run(build_calls("listing/mapped_registered", tmp_path), FARBUS_TRANSPORT=transport, **MAPPED)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert done.stderr.count("memory that a program registers stays its own") == 1


@pytest.mark.parametrize("name", ["", "on disk"])
def test_files_in_memory_are_the_kernels_too(remote: Remote, tmp_path: Path, name: str) -> None:
    program = build_calls("listing/mapped_file", tmp_path)
    arguments = [str(ROOT / "native" / "build" / f"{tmp_path.name}.{os.getpid()}")] if name else []
    try:
        done = remote.run(program, *arguments, FARBUS_TRANSPORT="shm")
    finally:
        for made in arguments:
            Path(made).unlink(missing_ok=True)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert [line.startswith("farbus: pinned memory is not mapped: ") for line in done.stderr.splitlines()] == [True]


def test_a_file_that_there_is_no_room_for_is_the_program_s_own(remote: Remote, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_bytes=4 << 20) as disk:
        done = remote.run(build_calls("listing/mapped_sparse", tmp_path), str(disk.path), FARBUS_TRANSPORT="shm")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_another_way_than_there_is_is_refused(remote: Remote, tmp_path: Path) -> None:
    done = remote.run(build_calls("listing/mapped_memory", tmp_path), FARBUS_MAPPED_MEMORY="1")
    assert done.returncode == 1
    assert done.stderr.startswith('farbus: FARBUS_MAPPED_MEMORY is "1": set it to managed\n')
