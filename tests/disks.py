"""Small disks of a test's own: tmpfs that can be filled and made read-only; tests that need one skip without root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

BLOCK_BYTES = 4096


class SmallDisk:
    """A mounted file system; use :func:`small_disk`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Leave not one block."""
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(BLOCK_BYTES))

    def make_room(self) -> None:
        """Take back what :meth:`fill` took."""
        self._filler.unlink()

    def remount(self, option: str) -> None:
        """Mount again with ``ro`` or ``rw``; nothing on it may be open for writing."""
        subprocess.run(["mount", "-o", f"remount,{option}", str(self.path)], check=True, capture_output=True)


@contextlib.contextmanager
def small_disk(path: Path, *, size_bytes: int = 4 * 2**20) -> Iterator[SmallDisk]:
    """Mount one at ``path``; skip the test where that is not permitted."""
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    options = f"size={size_bytes},mode=0755"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "farbus-test", str(path)], check=False, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"can't mount a small disk: {done.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True)
