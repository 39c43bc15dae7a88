"""Drives in memory, over a directory in place of configfs: what is written, and that nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from farbus.errors import Unavailable
from farbus.linux.null_block import null_blocks

MIB = 2**20


def test_without_the_kernel_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="null_blk"), null_blocks(("a",), size_bytes=MIB, root=str(tmp_path / "none")):
        pass


def test_drives_have_size_and_rate_and_go_with_an_error_of_the_caller(tmp_path: Path) -> None:
    root, dev = tmp_path / "nullb", tmp_path / "dev"
    root.mkdir()
    dev.mkdir()
    (dev / "farbus-0").touch()
    with pytest.raises(KeyError):
        fail_with_a_drive(root, dev)
    assert (root / "farbus-0" / "power").read_text() == "0"


def fail_with_a_drive(root: Path, dev: Path) -> None:
    with null_blocks(("farbus-0",), size_bytes=64 * MIB, bytes_per_s=8 * MIB, root=str(root), dev=str(dev)) as paths:
        assert paths == (str(dev / "farbus-0"),)
        written = {file.name: file.read_text() for file in (root / "farbus-0").iterdir()}
        assert written == {"memory_backed": "1", "blocksize": "4096", "size": "64", "mbps": "8", "power": "1"}
        raise KeyError
