"""The software GPU's driver, one behaviour per C program in programs/."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.softgpu.driver_programs import PROGRAMS, TIMEOUT_S, build, environment, options_of

HELPERS = {"driver_hold_memory", "driver_link_files", "driver_list_devices", "driver_unsupported"}
NAMES = sorted(path.stem for path in PROGRAMS.glob("driver_*.c") if path.stem not in HELPERS)


@pytest.mark.parametrize("name", NAMES)
def test_program(name: str, tmp_path: Path) -> None:
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
