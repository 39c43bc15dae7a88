"""``farbus softgpu run``: a program directly on the software GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from farbus.cli.commands.softgpu import merge_settings
from farbus.errors import ExitCode
from tests.cli.conftest import Farbus
from tests.softgpu.driver_programs import COMPILER, build, require_library

DEVICES = """
#include <stdio.h>
#include "{abi}"
CUresult cuInit(unsigned), cuDeviceGetCount(int *), cuDeviceTotalMem_v2(size_t *, CUdevice);
CUresult cuDeviceGetAttribute(int *, CUdevice_attribute, CUdevice);
int main(int argc, char **argv)
{{
	int count = 0, major = 0, minor = 0, sms = 0;
	size_t bytes = 0;
	if (cuInit(0) || cuDeviceGetCount(&count) || cuDeviceTotalMem_v2(&bytes, count - 1))
		return 1;
	cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
	cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);
	cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
	printf("%d %d.%d %zu %d %s\\n", count, major, minor, bytes >> 20, sms, argv[argc - 1]);
	return 7;
}}
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    """A program that says what devices it sees and what its last argument is, and ends with 7."""
    libraries = require_library()
    if not COMPILER:
        pytest.skip("no C compiler")
    abi = Path(__file__).resolve().parents[2] / "native" / "generated" / "cuda_abi.h"
    source = tmp_path / "devices.c"
    source.write_text(DEVICES.format(abi=abi))
    subprocess.run(
        [COMPILER, "-D__CUDA_API_VERSION_INTERNAL", str(source), "-o", str(tmp_path / "devices"),
         f"-L{libraries}", "-l:libcuda.so.1"],
        check=True,
    )  # fmt: skip
    return str(tmp_path / "devices")


def test_program_sees_the_devices_asked_for(program: str, farbus: Farbus) -> None:
    options = ("--gpus", "2", "--cc", "8.6", "--memory", "64MiB", "--sms", "5")
    done = farbus("softgpu", "run", *options, program, "--gpus", "3")
    assert (done.returncode, done.stdout, done.stderr) == (7, "2 8.6 64 5 3\n", "")


def test_defaults(program: str, farbus: Farbus) -> None:
    done = farbus("softgpu", "run", "--", program)
    assert (done.returncode, done.stdout) == (7, f"1 9.0 4096 16 {program}\n")


def test_options_go_before_the_variable(program: str, farbus: Farbus) -> None:
    done = farbus("softgpu", "run", "--gpus", "2", program, environment={"FARBUS_SOFTGPU": "count=3,sms=4,mem=64MiB"})
    assert done.stdout == f"2 9.0 64 4 {program}\n"


def test_a_node_of_its_own_unless_named(farbus: Farbus) -> None:
    require_library()
    show = ("sh", "-c", "echo $FARBUS_SOFTGPU_NODE")
    own = farbus("softgpu", "run", *show).stdout
    assert own.startswith("softgpu-run-")
    assert farbus("softgpu", "run", *show).stdout != own
    assert farbus("softgpu", "run", "--node", "mine", *show).stdout == "mine\n"


def test_strict_mode_names_the_mistake(tmp_path: Path, farbus: Farbus) -> None:
    done = farbus("softgpu", "run", "--strict", "--memory", "256MiB", str(build("driver_strict", tmp_path)))
    assert done.returncode == 0, done.stderr
    assert farbus("softgpu", "run", str(tmp_path / "driver_strict")).returncode != 0


def test_a_pipe_that_closes_ends_the_program(farbus: Farbus) -> None:
    require_library()
    done = farbus("softgpu", "run", "sh", "-c", "kill -PIPE $$; echo survived")
    assert (done.returncode, done.stdout) == (-13, "")


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("--cc", "9.1", "true"), ExitCode.USAGE, "--cc 9.1: no compute capability it can have; choose 7.5, 8.0"),
        (("--memory", "1MiB", "true"), ExitCode.USAGE, "--memory 1MiB: a software GPU has 16"),
        (("--memory", "many", "true"), ExitCode.USAGE, "--memory"),
        (("--gpus", "17", "true"), ExitCode.USAGE, "16"),
        (("--sms", "0", "true"), ExitCode.USAGE, "--sms"),
        (("./nothing",), ExitCode.COMMAND_NOT_FOUND, "./nothing: no such program; check the path"),
        ((), ExitCode.USAGE, "PROGRAM"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], code: int, line: str, here: Farbus) -> None:
    done = here("softgpu", "run", *arguments)
    assert done.returncode == code
    (told,) = done.stderr.splitlines()
    assert told.startswith("farbus: ")
    assert line in told


def test_settings_replace_those_of_their_name() -> None:
    assert merge_settings("count=2,,cc=8.0", {"cc": "9.0", "sms": "3"}) == "count=2,cc=9.0,sms=3"
