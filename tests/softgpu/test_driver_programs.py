"""The software GPU's driver, one behaviour per C program in programs/."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.softgpu.driver_programs import (
    PRELOAD,
    PROGRAMS,
    TIMEOUT_S,
    build,
    environment,
    options_of,
    require_library,
)
from tests.softgpu.engine import ROOT

HELPERS = {"driver_hold_memory", "driver_link_files", "driver_list_devices", "driver_unsupported"}
#: Programs of which a sanitizer says what is not so.
NOT_SANITIZED = {"driver_host_exit", "driver_log_exit"}
NAMES = sorted(path.stem for path in PROGRAMS.glob("driver_*.c") if path.stem not in HELPERS)


@pytest.mark.parametrize("name", NAMES)
def test_program(name: str, tmp_path: Path) -> None:
    if PRELOAD and name in NOT_SANITIZED:
        pytest.skip("AddressSanitizer takes a stack that pthread_exit has left for one in use")
    program = build(name, tmp_path)
    done = subprocess.run(
        [str(program)],
        env=environment(str(tmp_path), options_of(name)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"


def test_missing_function_is_named_once(tmp_path: Path) -> None:
    program = build("driver_unsupported", tmp_path)
    done = subprocess.run(
        [str(program)], env=environment(str(tmp_path)), capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert done.stderr.count("cuFlushGPUDirectRDMAWrites") == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("mem=8XB", "mem=8XB"),
        ("cc=9.1", "cc=9.1"),
        ("count=17", "count=17"),
        ("colour=blue", "colour"),
        ("sms", "sms"),
        ("mem=99999999999GiB", "mem=99999999999GiB"),
    ],
)
def test_bad_setting_is_one_clear_line(options: str, told: str, tmp_path: Path) -> None:
    program = build("driver_list_devices", tmp_path)
    done = subprocess.run(
        [str(program)],
        env=environment(str(tmp_path), options),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stdout == "CUDA_ERROR_INVALID_VALUE\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("softgpu: FARBUS_SOFTGPU")
    assert told in line


def test_all_functions_of_the_driver_api_are_there_by_name() -> None:
    """Some programs look for all that they might use, by names of CUDA 2 too, and go without a GPU where one lacks."""
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", require_library() / "libcuda.so.1"], capture_output=True, text=True, check=True
    )
    there = {line.split()[-1] for line in listed.stdout.splitlines()}
    named = re.findall(r"^\t(cu\w+);", (ROOT / "native" / "generated" / "client.map").read_text(), re.MULTILINE)
    assert len(named) > 500
    assert set(named) - there == set()
