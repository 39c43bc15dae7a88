"""Whether a program can run here at all, asked before devices are; and with which environment.

The kernel's own answers (ENOEXEC, ENOENT for a missing interpreter) come late
and say little; these say what to do.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

from farbus.cli.tracing import may_be_traced_to
from farbus.errors import ExitCode, InvalidInput

# elf.h: e_ident, then e_type and e_machine as 16-bit values in the file's byte order.
_ELF_MAGIC = b"\x7fELF"
_CLASS, _DATA = 4, 5
_MACHINE_OFFSET = 18

# elf.h, EM_*: numbers of the architectures that somebody may have built for.
_MACHINES = {3: "32-bit x86", 8: "MIPS", 20: "PowerPC", 21: "POWER", 40: "32-bit ARM", 62: "x86_64", 183: "aarch64"}
_MACHINES |= {22: "s390x", 243: "RISC-V", 258: "LoongArch"}
_OWN_MACHINES = {"x86_64": 62, "aarch64": 183, "ppc64le": 21, "riscv64": 243, "s390x": 22, "loongarch64": 258}

SEARCH_PATHS = frozenset({"LD_LIBRARY_PATH", "LD_PRELOAD", "PATH"})
"""Variables that are lists: what the devices need goes before what the caller has."""


def find_program(name: str, *, path: str | None = None, machine: str = "") -> str:
    """Return the path of the program ``name``, searched as a shell does; ``machine`` is this one's if empty.

    Raises :class:`InvalidInput` with exit code 127 where there is none and 126
    where there is one that can't run: not executable, built for another
    architecture, a script without its interpreter.
    """
    if "/" not in name:
        found = shutil.which(name, path=path)
        if found is None:
            hint = f"did you mean ./{name}?" if Path(name).is_file() else "give its path, or add its directory to PATH"
            raise InvalidInput(f"{name or repr(name)}: no such program in PATH", hint=hint).with_exit_code(
                ExitCode.COMMAND_NOT_FOUND
            )
        name = found
    try:
        facts = os.stat(name)
    except OSError as error:
        reason = "no such program" if isinstance(error, FileNotFoundError) else error.strerror
        raise InvalidInput(f"{name}: {reason}", hint="check the path").with_exit_code(
            ExitCode.COMMAND_NOT_FOUND
        ) from error
    if stat.S_ISDIR(facts.st_mode):
        raise InvalidInput(f"{name}: a directory, not a program", hint="name a program in it").with_exit_code(
            ExitCode.NOT_EXECUTABLE
        )
    if not os.access(name, os.X_OK):
        raise InvalidInput(f"{name}: not executable", hint=f"chmod +x {name}").with_exit_code(ExitCode.NOT_EXECUTABLE)
    _check_format(name, machine or os.uname().machine)
    return name


def _check_format(name: str, machine: str) -> None:
    try:
        with open(name, "rb") as file:
            head = file.read(256)
    except PermissionError:
        # A program may be executable without being readable; then the kernel decides.
        return
    if head.startswith(b"#!"):
        interpreter = head[2:].split(b"\n")[0].split()
        where = os.fsdecode(interpreter[0]) if interpreter else ""
        if not where or not os.access(where, os.X_OK):
            raise InvalidInput(
                f"{name}: its interpreter {where or '(none)'} is not there", hint="correct the first line of the script"
            ).with_exit_code(ExitCode.NOT_EXECUTABLE)
        return
    if len(head) < _MACHINE_OFFSET + 2 or not head.startswith(_ELF_MAGIC):
        raise InvalidInput(
            f"{name}: neither a program for this machine nor a script with #!", hint=f"try sh {name}"
        ).with_exit_code(ExitCode.NOT_EXECUTABLE)
    order = ">" if head[_DATA] == 2 else "<"
    number = struct.unpack_from(f"{order}H", head, _MACHINE_OFFSET)[0]
    if number != _OWN_MACHINES.get(machine, number) or head[_CLASS] != 2:
        built = _MACHINES.get(number, f"machine {number} of elf.h")
        built = built if head[_CLASS] == 2 or "32-bit" in built else f"32-bit {built}"
        raise InvalidInput(
            f"{name}: built for {built}, this node is {machine}", hint="build it for this architecture"
        ).with_exit_code(ExitCode.NOT_EXECUTABLE)


GRACE_MOST_S = 86400
"""Longest time that a session may be cut, as the shim has it (native/client/sessions/resume.c)."""


def _is_grace_time(value: str) -> bool:
    # Numbers of more digits are too large, and would take their time to read.
    return (
        value.isascii()
        and value.isdigit()
        and len(value.lstrip("0")) <= len(str(GRACE_MOST_S))
        and (int(value) <= GRACE_MOST_S)
    )


_SETTINGS: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "FARBUS_TRANSPORT": (lambda value: value in ("auto", "shm", "unix", "tcp", "rdma"), "auto, shm, unix, tcp or rdma"),
    "FARBUS_CONNECTIONS": (lambda value: value in tuple("12345678"), "a number from 1 to 8"),
    "FARBUS_GRACE_S": (_is_grace_time, f"seconds, at most {GRACE_MOST_S}"),
    "FARBUS_MANAGED_MEMORY": (lambda value: value in ("paging", "copies"), "paging or copies"),
    "FARBUS_MAPPED_MEMORY": (lambda value: value == "managed", "managed"),
    "FARBUS_TRACE": (may_be_traced_to, "a file that you may write, new or with a trace in it"),
}
"""Variables that the shim refuses a program for (native/client): what is right, and how it is told."""


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise :class:`InvalidInput` for what the shim in the program would refuse, when devices had been waited for."""
    for name, (is_right, choices) in _SETTINGS.items():
        value = environment.get(name)
        if value and not is_right(value):
            raise InvalidInput(f'{name} is "{value}"', hint=f"set it to {choices}")


def merge_environment(mine: Mapping[str, str], needed: Mapping[str, str]) -> dict[str, str]:
    """Return the program's environment: the caller's, with what the devices need."""
    merged = {**mine, **needed}
    for variable in SEARCH_PATHS & needed.keys() & mine.keys():
        if mine[variable]:
            merged[variable] = f"{needed[variable]}:{mine[variable]}"
    return merged
