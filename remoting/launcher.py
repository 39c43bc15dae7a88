"""What a program needs to use a remote GPU: its environment, and a look at its executable."""

from __future__ import annotations

import os
import platform
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: Machine numbers of ELF headers (elf.h) that the shim is built for.
_MACHINES = {"x86_64": 62, "aarch64": 183}
_NAMES = {3: "i386", 8: "MIPS", 20: "PowerPC", 21: "ppc64", 22: "s390", 40: "arm", 243: "riscv"} | {
    number: name for name, number in _MACHINES.items()
}

#: Most interpreters that a script may go through (Linux's own limit is 4).
_SCRIPT_DEPTH = 4


class UnusableProgram(Exception):
    """A program that cannot run under the shim; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to start a program under the shim.

    ``session`` is the session file, ``shim`` the directory that holds the shim's
    ``libcuda.so.1`` (programs that look for the file, such as Triton and numba, find
    it there; all others get it by LD_PRELOAD) and its ``libnvidia-ml.so.1``, which is
    found by LD_LIBRARY_PATH alone: programs open it by name.
    """

    session: Path
    shim: Path

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with the shim put in front of what it preloads and searches."""
        library = self.shim / "libcuda.so.1"
        if not library.exists():
            raise UnusableProgram(f"{library}: the shim is not there; run make build")
        settings = shim_environment(session=self.session, library=library)
        for name in SEARCH_PATHS:
            settings[name] = _prepend(settings[name], base.get(name, ""))
        return {**base, **settings}


_AUTO = ("FARBUS_TRANSPORT", "auto")

SEARCH_PATHS = ("LD_PRELOAD", "LD_LIBRARY_PATH")
"""Variables that the program may have too: the shim goes in front of what is there."""


def settings_unheard(program: Mapping[str, str], devices: Mapping[str, str]) -> tuple[str, ...]:
    """Return which of a program's variables ask for something of the shim, where there is none to hear it.

    ``program`` is the program's own environment, ``devices`` what those that it has add to that: a session file where
    they come by remoting.
    """
    if "FARBUS_SESSION" in devices:
        return ()
    return tuple(
        name for name in ("FARBUS_TRACE", "FARBUS_TRANSPORT") if program.get(name) and (name, program[name]) != _AUTO
    )


def shim_environment(*, session: Path, library: Path) -> dict[str, str]:
    """Return the variables that put the shim ``library`` into a program and tell it of its session file."""
    return {
        "FARBUS_SESSION": str(session),
        # The static cudart opens libcuda.so.1 by name, and an rpath of the program comes before LD_LIBRARY_PATH.
        "LD_PRELOAD": str(library),
        "LD_LIBRARY_PATH": str(library.parent),
        # Where Triton and numba look for the file itself.
        "TRITON_LIBCUDA_PATH": str(library.parent),
        "NUMBA_CUDA_DRIVER": str(library),
    }


def _prepend(entry: str, existing: str) -> str:
    rest = [part for part in existing.split(":") if part and part != entry]
    return ":".join([entry, *rest])


def check_program(program: str, *, path: str | None = None, machine: str | None = None) -> Path:
    """Find a program as a shell would and check that the shim can be loaded into it.

    Raises UnusableProgram for one that is not there, not executable, or of another
    architecture than this machine's: preloading would fail, and the program would
    run without a GPU.
    """
    machine = machine or platform.machine()
    found = shutil.which(program, path=path)
    if found is None:
        if os.path.sep in program and Path(program).is_dir():
            raise UnusableProgram(f"{program}: a directory, not a program; name a program in it")
        if os.path.sep in program and Path(program).exists():
            raise UnusableProgram(f"{program}: not executable; chmod +x it, or name its interpreter")
        raise UnusableProgram(f"{program}: no such program")
    file = Path(found)
    for _ in range(_SCRIPT_DEPTH):
        try:
            with file.open("rb") as stream:
                head = stream.read(256)
        except OSError as error:
            raise UnusableProgram(f"{file}: {error.strerror}") from error
        if head.startswith(b"#!"):
            interpreter = head[2:].split(b"\n", 1)[0].split()
            if not interpreter:
                break
            file = Path(os.fsdecode(interpreter[0]))
            continue
        _check_header(file, head, machine)
        break
    return Path(found)


def _check_header(file: Path, head: bytes, machine: str) -> None:
    if not head.startswith(b"\x7fELF") or len(head) < 20:
        return  # the kernel decides what else it can execute
    bits = {1: 32, 2: 64}.get(head[4], 0)
    number = struct.unpack_from("<H" if head[5] == 1 else ">H", head, 18)[0]
    if bits != 64 or number != _MACHINES.get(machine, number):
        name = _NAMES.get(number, f"machine {number}")
        raise UnusableProgram(f"{file}: a {bits}-bit {name} program; remote GPUs need one for {machine}")
