"""What is preloaded in containers: it leads to the shim where the C library is glibc, and is nothing to musl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from farbus.agent.cdi import PRELOADED
from tests.remoting.harness import PROGRAMS, SHIM, Remote, open_twice

SOURCE = PROGRAMS / "finds_driver.c"

LINKED = ("-Wl,--no-as-needed", f"-L{SHIM}", "-l:libcuda.so.1")

WITHOUT_PATH = {"LD_LIBRARY_PATH": "", "LD_PRELOAD": ":".join(str(SHIM / library) for library in PRELOADED)}
"""What a container has: its libraries are where its image says."""


def compiled(target: Path, *options: str, compiler: str = "cc") -> Path:
    """Compile the program that looks for a driver; skip the test where there is no such compiler."""
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    subprocess.run([compiler, "-o", target, SOURCE, *options], check=True, capture_output=True)
    return target


@pytest.mark.parametrize("options", [(), LINKED], ids=["opened", "linked"])
def test_a_program_finds_the_shim(remote: Remote, tmp_path: Path, options: tuple[str, ...]) -> None:
    done = remote.run(compiled(tmp_path / "program", *options), **WITHOUT_PATH)
    assert (done.returncode, done.stdout, done.stderr) == (0, "cuInit: 0\n", "")


@pytest.mark.parametrize(("name", "function"), [("libcuda.so.1", "cuInit"), ("libnvidia-ml.so.1", "nvmlInit_v2")])
def test_what_is_found_by_name_is_what_the_file_is(remote: Remote, name: str, function: str) -> None:
    done = open_twice(remote, name, SHIM / name, function, **WITHOUT_PATH)
    assert (done.returncode, done.stdout) == (0, "True 0\n"), done.stdout + done.stderr


@pytest.mark.parametrize("library", PRELOADED)
def test_it_asks_a_c_library_for_nothing(library: str) -> None:
    if shutil.which("objdump") is None or not (SHIM / library).exists():
        pytest.skip("needs objdump and the shim that make -C native builds")
    told = subprocess.run(["objdump", "-pTR", SHIM / library], capture_output=True, text=True, check=True).stdout
    assert "AUXILIARY" in told
    assert [line for line in told.splitlines() if "NEEDED" in line or "*UND*" in line or " R_" in line] == []


def test_a_program_of_musl_is_what_it_is_without_it(remote: Remote, tmp_path: Path) -> None:
    program = compiled(tmp_path / "program", compiler="musl-gcc")
    done = remote.run(program, **WITHOUT_PATH)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == "Error loading shared library libcuda.so.1: No such file or directory\n"
