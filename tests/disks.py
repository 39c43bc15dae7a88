"""Small disks of a test's own, for tests as root: tmpfs that can be filled and made read-only, ext4 that fails.

Tests that need one skip where it can't be had.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

BLOCK_BYTES = 4096

FAILING_DISK_BYTES = 32 * 2**20
"""Sparse; enough for a journal of the file system's own, which shuts it."""


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
def small_disk(path: Path, *, size_bytes: int = 16 * 2**20) -> Iterator[SmallDisk]:
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


class FailingDisk:
    """A mounted ext4 on a loop device; use :func:`failing_disk`."""

    def __init__(self, path: Path, device: str) -> None:
        self.path = path
        self._device = device

    def fail(self) -> None:
        """Meet an error: the file system shuts itself, whatever is open on it, until it is mounted anew (ext4(5))."""
        Path(f"/sys/fs/ext4/{self._device}/trigger_fs_error").write_text("a test\n")


@contextlib.contextmanager
def failing_disk(path: Path) -> Iterator[FailingDisk]:
    """Mount one at ``path``; skip the test where that is not possible."""
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a disk that fails")
    content = path.with_name(f"{path.name}.ext4")
    with content.open("wb") as file:
        file.truncate(FAILING_DISK_BYTES)
    for command in (
        ["mke2fs", "-q", "-F", "-t", "ext4", str(content)],
        ["mount", "-o", "loop,errors=remount-ro", str(content), str(path)],
    ):
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        except FileNotFoundError as error:
            pytest.skip(f"can't mount a disk that fails: {error}")
        if done.returncode:
            pytest.skip(f"can't mount a disk that fails: {done.stderr.strip()}")
    try:
        number = os.stat(path).st_dev
        yield FailingDisk(path, os.path.basename(os.readlink(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")))
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True)
