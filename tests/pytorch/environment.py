"""A virtual environment with PyTorch as PyPI has it: python environment.py DIRECTORY

It takes 5.5 GB and is made once.  PyTorch's versions are pinned, because each carries other kernels, and what a
software GPU can execute of them (right.json) goes by that.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGES = ("torch==2.15.0", "numpy==2.4.6")
_STAMP = "packages.txt"


def python_of(directory: Path) -> Path | None:
    """The environment's interpreter; None where it has not been made, or with other packages."""
    stamp = directory / _STAMP
    made = stamp.exists() and stamp.read_text().split() == list(PACKAGES)
    return directory / "bin" / "python" if made else None


def make(directory: Path) -> Path:
    """Make the environment unless it is there.  Raises CalledProcessError where pip can't."""
    if (found := python_of(directory)) is not None:
        return found
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    python = directory / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--disable-pip-version-check", *PACKAGES], check=True)
    (directory / _STAMP).write_text("\n".join(PACKAGES) + "\n")
    return python


if __name__ == "__main__":
    print(make(Path(sys.argv[1]).absolute()))
