"""Programs that test the software GPU's driver: where they are, how they are compiled and started."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
LIBRARIES = Path(os.environ.get("FARBUS_SOFTGPU_LIBRARIES", HERE.parents[1] / "native" / "build" / "softgpu"))
ABI = HERE.parents[1] / "native" / "generated" / "cuda_abi.h"
# Where the libraries are built with sanitizers (make asan), their runtime must come first in every program.
PRELOAD = os.environ.get("FARBUS_SOFTGPU_PRELOAD", "")
TIMEOUT_S = 300 if PRELOAD else 60
COMPILER = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or ""


def require_library(name: str = "libcuda.so.1") -> Path:
    """The folder of the software GPU's libraries, or skip where they are not built."""
    if not (LIBRARIES / name).exists():
        pytest.skip(f"{LIBRARIES / name} is not built (make -C native)")
    return LIBRARIES


def build(name: str, folder: Path) -> Path:
    """Compile programs/<name>.c against the software GPU's libcuda."""
    libraries = require_library()
    if not COMPILER:
        pytest.skip("no C compiler")
    program = folder / name
    subprocess.run(
        [
            COMPILER, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", str(PROGRAMS / f"{name}.c"),
            "-o", str(program), f"-L{libraries}", "-l:libcuda.so.1", "-lpthread", "-ldl",
        ],
        check=True,
    )  # fmt: skip
    return program


def build_preload(name: str, folder: Path) -> Path:
    """Compile programs/<name>.c for LD_PRELOAD."""
    if not COMPILER:
        pytest.skip("no C compiler")
    library = folder / f"{name}.so"
    subprocess.run(
        [
            COMPILER, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
            str(PROGRAMS / f"{name}.c"), "-o", str(library), "-ldl",
        ],
        check=True,
    )  # fmt: skip
    return library


def options_of(name: str) -> str:
    """What the program asks FARBUS_SOFTGPU for, from its first comment."""
    for line in (PROGRAMS / f"{name}.c").read_text().splitlines()[:2]:
        if "softgpu: " in line:
            return line.split("softgpu: ", 1)[1].removesuffix("*/").strip()
    return ""


def environment(node: str, options: str = "", **more: str) -> dict[str, str]:
    """The environment of a program on a node of its own, so that tests don't share devices by accident."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("FARBUS_", "CUDA_"))}
    return {
        **kept,
        "LD_LIBRARY_PATH": str(require_library()),
        "FARBUS_SOFTGPU_NODE": node,
        "FARBUS_SOFTGPU": options,
        **({"LD_PRELOAD": PRELOAD} if PRELOAD else {}),
        **more,
    }


def board_path(node: str, folder: Path) -> Path:
    """The shared memory of device 0 of a node.  Runs a program there, which leaves it as it was."""
    done = subprocess.run(
        [str(build("driver_list_devices", folder))],
        env=environment(node, "mem=64MiB"),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    uuid = done.stdout.split()[0].removeprefix("GPU-")
    return Path("/dev/shm") / f"farbus-softgpu-{uuid}"
