"""What is preloaded in containers: it leads to the shim where the C library is glibc, and is nothing to musl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from farbus.agent.cdi import PRELOADED
from tests.remoting.harness import PROGRAMS, SANITIZED, SHIM, Remote, open_twice

SOURCE = PROGRAMS / "finds_driver.c"

LINKED = ("-Wl,--no-as-needed", f"-L{SHIM}", "-l:libcuda.so.1")

WITHOUT_PATH = {"LD_LIBRARY_PATH": "", "LD_PRELOAD": ":".join(str(SHIM / library) for library in PRELOADED)}
"""What a container has: its libraries are where its image says."""

plain = pytest.mark.skipif(bool(SANITIZED), reason="a sanitizer's runtime must come first, and has much of it itself")


def compiled(target: Path, *options: str, compiler: str = "cc", source: Path = SOURCE) -> Path:
    """Compile the program that looks for a driver, or another; skip the test where there is no such compiler."""
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    subprocess.run([compiler, "-o", target, source, *options], check=True, capture_output=True)
    return target


@pytest.mark.parametrize("options", [(), LINKED], ids=["opened", "linked"])
def test_a_program_finds_the_shim(remote: Remote, tmp_path: Path, options: tuple[str, ...]) -> None:
    done = remote.run(compiled(tmp_path / "program", *options), **WITHOUT_PATH)
    assert (done.returncode, done.stdout, done.stderr) == (0, "cuInit: 0\n", "")


def test_an_rpath_leads_to_no_other_driver(remote: Remote, tmp_path: Path) -> None:
    """An rpath of the old kind comes before LD_LIBRARY_PATH."""
    other = tmp_path / "other.c"
    other.write_text("int cuInit(unsigned flags) { (void)flags; return 999; }\n")
    compiled(tmp_path / "libcuda.so.1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", source=other)
    linked = (f"-L{tmp_path}", "-l:libcuda.so.1", f"-Wl,--no-as-needed,--disable-new-dtags,-rpath,{tmp_path}")
    program = compiled(tmp_path / "program", *linked)
    assert subprocess.run([program], capture_output=True, text=True, check=False).stdout == "cuInit: 999\n"
    assert remote.run(program).stdout == remote.run(program, **WITHOUT_PATH).stdout == "cuInit: 0\n"


@plain
def test_other_libraries_have_the_room_for_thread_local_memory_that_they_have_without_it(
    remote: Remote, tmp_path: Path
) -> None:
    """As jemalloc wants it: what glibc keeps for libraries that come late is less (decision 34)."""
    source = tmp_path / "allocator.c"
    source.write_text(
        '__attribute__((tls_model("initial-exec"))) _Thread_local char cache[8192];\n'
        "char *get_cache(void) { return cache; }\n"
    )
    allocator = compiled(tmp_path / "allocator.so", "-shared", "-fPIC", source=source)
    program = compiled(tmp_path / "program")
    for changes in (remote.environment(), WITHOUT_PATH):
        done = remote.run(program, **changes | {"LD_PRELOAD": f"{changes['LD_PRELOAD']}:{allocator}"})
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
