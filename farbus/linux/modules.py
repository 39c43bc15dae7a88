"""The door to the kernel's modules: modprobe, in a child, for a module's start may hang."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path


def load_modules(names: Sequence[str]) -> str:
    """Call modprobe, which does nothing where a module is loaded or built in; return what stands against it.

    That is modprobe's last line, or an empty string: also where it failed, and all of them are loaded.  One that was
    loaded before this process lost the right to needs nothing.  May block: for :mod:`farbus.linux.disposable`.
    """
    try:
        done = subprocess.run(
            ["modprobe", "--all", *names], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        told = f"modprobe: {error.strerror}"
    else:
        if done.returncode == 0:
            return ""
        told = (done.stderr.strip().splitlines() or [f"modprobe ended with {done.returncode}"])[-1]
    missing = [name for name in names if not Path("/sys/module", name.replace("-", "_")).exists()]
    return told if missing else ""
