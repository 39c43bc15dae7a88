"""Every function that is implemented has a program that calls it and checks what it did."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from farbus.remoting.spec import ENTRIES, Answer
from farbus.remoting.spec.checked import CHECKED
from tests.remoting.harness import BUILD, PROGRAM_TIMEOUT_S, SHIM, Remote
from tests.remoting.record import build_recorder, called_entries
from tests.softgpu import driver_programs

CALLS = Path(__file__).parent / "calls"
#: Programs of the software GPU's own tests, which run here through the shim.
BORROWED = sorted(
    {name for name in CHECKED.values() if name.startswith("driver_")}
    # Copy nodes that name memory of the program; modules of contexts that are made and destroyed again and again.
    | {"driver_graph_nodes", "driver_peer_instructions"}
)
OWN = sorted(path.stem for path in CALLS.glob("*.c"))
#: Programs that call functions which the software GPU itself lacks.
SHIM_ONLY = {
    "call_arrays",
    "call_diagnostics",
    "call_linker",
    "call_local",
    "call_memops",
    "call_narrow",
    "call_old",
    "call_shared",
}
IMPLEMENTED = {entry.symbol: entry for entry in ENTRIES if entry.answer is not Answer.UNSUPPORTED}


def build_calls(name: str, folder: Path) -> Path:
    """Compile calls/<name>.c; any libcuda.so.1 may be loaded with it."""
    if not driver_programs.COMPILER:
        pytest.skip("no C compiler")
    program = folder / name
    subprocess.run(
        [
            driver_programs.COMPILER, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", str(CALLS / f"{name}.c"),
            "-o", str(program), f"-L{SHIM}", "-l:libcuda.so.1",
        ],
        check=True,
    )  # fmt: skip
    return program


def build_any(name: str, folder: Path) -> tuple[Path, str]:
    """The program of that name and what it asks of the software GPU."""
    if name in OWN:
        return build_calls(name, folder), "count=2"
    return driver_programs.build(name, folder), driver_programs.options_of(name)


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (SHIM / "libcuda.so.1").exists():
        pytest.skip("native/build/shim is not built: run make -C native")
    return build_recorder(tmp_path_factory.mktemp("record"))


@pytest.mark.parametrize("name", sorted({*BORROWED, *OWN}))
def test_program(lease: Callable[..., Remote], recorder: Path, tmp_path: Path, name: str) -> None:
    program, options = build_any(name, tmp_path)
    record = tmp_path / "record"
    done = lease(FARBUS_SOFTGPU=options, FARBUS_SOFTGPU_NODE=str(tmp_path)).run(
        program, LD_PRELOAD=str(recorder), LD_LIBRARY_PATH=str(recorder.parent), FARBUS_RECORD=str(record)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {symbol for symbol, named in CHECKED.items() if named == name} <= called_entries(record)


@pytest.mark.parametrize("name", [name for name in OWN if name not in SHIM_ONLY])
def test_program_on_the_software_gpu_itself(tmp_path: Path, name: str) -> None:
    program = build_calls(name, tmp_path)
    done = subprocess.run(
        [program],
        env=driver_programs.environment(
            str(tmp_path), "count=2", LD_LIBRARY_PATH=str(BUILD / "softgpu"), LD_BIND_NOW=""
        ),
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_checked_is_implemented() -> None:
    assert set(CHECKED) <= set(IMPLEMENTED)
