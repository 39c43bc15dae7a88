"""Where nvcc is, and how to call it.

A CUDA toolkit in PATH goes first.  Otherwise the wheels of the extra ``nvcc``
will do: they unpack into ``nvidia/cu13`` among the site packages, laid out
like a toolkit but for one thing: the libraries are in ``lib``, where nvcc
looks in ``lib64`` (its nvcc.profile), so their directory has to be named.
"""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from farbus.errors import FarbusError, NotFound
from farbus.linux.children import run_tool
from farbus.model.value import Value

WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl", "nvidia-nvvm")
INSTALL_HINT = 'put a CUDA toolkit\'s bin directory into PATH, or pip install "farbus[nvcc]"'

COMPILE_WITHIN_S = 300.0


class Toolchain(Value, frozen=True, kw_only=True):
    """An nvcc that works: its path, and the flags that it needs beside the user's own."""

    nvcc: str
    flags: tuple[str, ...] = ()
    version: str

    def command(self, source: str | Path, output: str | Path, flags: Sequence[str] = ()) -> list[str]:
        """Return the command that compiles ``source`` into the program ``output``."""
        return [self.nvcc, *self.flags, *flags, "-o", str(output), str(source)]

    def compile(self, source: str | Path, output: str | Path, flags: Sequence[str] = ()) -> None:
        """Compile ``source`` into the program ``output``; raise :class:`FarbusError` with nvcc's own complaint."""
        done = run_tool(self.command(source, output, flags), timeout_s=COMPILE_WITHIN_S)
        if done.code:
            complaint = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
            raise FarbusError(f"nvcc {source}: {complaint.strip()[:400] or f'exit code {done.code}'}")


def find_toolchain() -> Toolchain:
    """Return the nvcc in PATH, or that of the wheels; raise :class:`NotFound` where there is neither."""
    candidates: list[tuple[str | None, tuple[str, ...]]] = [(shutil.which("nvcc"), ())]
    candidates += [(str(root / "bin" / "nvcc"), (f"-L{root / 'lib'}",)) for root in wheel_roots()]
    reasons = []
    for nvcc, flags in candidates:
        if nvcc is None or not os.access(nvcc, os.X_OK):
            continue
        try:
            version = _version(nvcc)
        except FarbusError as error:
            # A wrapper may be left in PATH of a toolkit that is gone.
            reasons.append(str(error))
            continue
        return Toolchain(nvcc=nvcc, flags=flags, version=version)
    raise NotFound("; ".join(["no nvcc that works", *reasons]), hint=INSTALL_HINT)


def wheel_roots() -> list[Path]:
    """Return the directories into which wheels of CUDA 13 unpack, those that are there."""
    site = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    return sorted(root for path in site if (root := Path(path) / "nvidia" / "cu13").is_dir())


def _version(nvcc: str) -> str:
    done = run_tool([nvcc, "--version"], timeout_s=30.0)
    match = re.search(r"release [\d.]+, V([\d.]+)", done.stdout)
    if done.code or match is None:
        raise FarbusError(f"{nvcc} --version: exit code {done.code}")
    return match[1]
