"""The tests' own RDMA device: a library in the place of libibverbs.so.1, and the program that both it and rxe pass.

What it does and what it takes from the environment: library/fake_verbs.h.  By hand::

    python -m tests.verbs.fake build/verbs
    LD_LIBRARY_PATH=build/verbs FAKE_VERBS_GIDS=127.0.0.1 PROGRAM
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

HEADER = Path("/usr/include/infiniband/verbs.h")

FLAGS = ("-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread")


def missing() -> str:
    """Return what this machine lacks to build either, or nothing."""
    if shutil.which("cc") is None:
        return "needs a C compiler"
    return "" if HEADER.exists() else "needs libibverbs-dev"


def build_library(folder: Path, *flags: str) -> Path:
    """Compile the library into ``folder``, which is to be in ``LD_LIBRARY_PATH``; return its file.

    Raises :class:`subprocess.CalledProcessError` where it can't be compiled.
    """
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libibverbs.so.1"
    sources = sorted((HERE / "library").glob("*.c"))
    versions = f"-Wl,--version-script={HERE / 'library' / 'fake_verbs.map'}"
    shared = (
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        "-Wl,-soname,libibverbs.so.1",
        "-Wl,-z,nodelete",
        "-Wl,--no-undefined",
    )
    subprocess.run(["cc", *FLAGS, *flags, *shared, versions, "-o", library, *sources], check=True)
    return library


def build_contract(program: Path, *flags: str) -> Path:
    """Compile the program of the contract, for whichever libibverbs.so.1 it is started with; return its file."""
    program.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", *FLAGS, *flags, "-o", program, HERE / "contract.c", "-libverbs"], check=True)
    return program


if __name__ == "__main__":
    print(build_library(Path(sys.argv[1])))
