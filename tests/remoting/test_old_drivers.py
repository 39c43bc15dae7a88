"""Servers on drivers older than the software GPU's: what they lack is refused, and nothing is taken for it."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.remoting import old_driver
from tests.remoting.harness import remote_session
from tests.remoting.test_coverage import build_any
from tests.softgpu import driver_programs

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="old_driver.py jumps as x86-64 does"),
    pytest.mark.skipif(not driver_programs.COMPILER, reason="no C compiler"),
]

#: The oldest that tells the parameters of kernels (cuKernelGetParamInfo): programs run on it and later ones.
FIRST_WITH_PARAMETERS = 12040

PROGRAMS = (
    "call_callbacks",
    "call_captures",
    "call_graphs",
    "call_linker",
    "call_references",
    "call_sticky",
    "driver_array_planes",
    "driver_graph_nodes",
    "driver_graph_unified",
    "driver_launch_cooperative",
    "driver_launch_errors",
    "driver_module",
)


@pytest.fixture(scope="session")
def old(libcuda: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return {
        version: old_driver.build(libcuda, version, tmp_path_factory.mktemp(f"driver-{version}"))
        for version in (11080, 12020, FIRST_WITH_PARAMETERS)
    }


def run(name: str, driver: Path, folder: Path) -> tuple[int, str, list[str]]:
    """Run a program through the shim: its exit code, what it said, and what its server's supervisor did."""
    program, options = build_any(name, folder)
    environment = {"FARBUS_SOFTGPU": options, "FARBUS_SOFTGPU_NODE": str(folder)}
    with remote_session(libcuda=driver, folder=folder, environment=environment) as remote:
        done = remote.run(program)
        return done.returncode, done.stdout + done.stderr, [line for line in remote.lines if "killed" in line]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run_on_a_driver_of_cuda_12_4(old: dict[int, Path], tmp_path: Path, name: str) -> None:
    code, said, killed = run(name, old[FIRST_WITH_PARAMETERS], tmp_path)
    assert (code, killed) == (0, []), said


@pytest.mark.parametrize("version", [11080, 12020])
def test_a_kernel_whose_parameters_the_driver_does_not_tell_is_refused(
    old: dict[int, Path], tmp_path: Path, version: int
) -> None:
    code, said, killed = run("call_callbacks", old[version], tmp_path)
    assert (code, killed) == (1, [])
    assert (
        "farbus: the driver on the GPU's node is older than CUDA 12.4 and does not tell the parameters of store" in said
    )
    assert "gave 801, not 0" in said


@pytest.mark.parametrize("version", [11080, 12020])
def test_a_function_that_is_later_is_not_the_one_before_by_its_name(
    old: dict[int, Path], tmp_path: Path, version: int
) -> None:
    # cuGraphAddNode came with CUDA 12.2, and with other arguments with 12.3.
    code, said, killed = run("driver_graph_unified", old[version], tmp_path)
    assert (code, killed) == (1, []), said
    assert "cuGraphAddNode_v2" in said
    assert "gave CUDA_ERROR_NOT_SUPPORTED" in said


@pytest.mark.parametrize("name", ["call_streams", "driver_copy_batch"])
@pytest.mark.parametrize("version", [11080, 12020])
def test_what_wants_no_kernel_works_on_any(old: dict[int, Path], tmp_path: Path, version: int, name: str) -> None:
    code, said, killed = run(name, old[version], tmp_path)
    assert (code, killed) == (0, []), said
