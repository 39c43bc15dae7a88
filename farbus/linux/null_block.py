"""Block devices in memory whose bandwidth is set, for measurements: Linux's null_blk.

Documentation/block/null_blk.rst, and ``drivers/block/null_blk/main.c`` for configfs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from farbus.errors import Unavailable
from farbus.linux.children import run_tool

CONFIGFS = "/sys/kernel/config/nullb"

MIB = 2**20


@contextlib.contextmanager
def null_blocks(
    names: tuple[str, ...], *, size_bytes: int, bytes_per_s: int = 0, root: str = CONFIGFS, dev: str = "/dev"
) -> Iterator[tuple[str, ...]]:
    """Make memory-backed drives and yield their paths; ``bytes_per_s`` 0 for as fast as they are.

    Sizes and rates are in whole MiB.  Raises :class:`Unavailable` where the kernel has no null_blk.
    """
    place = Path(root)
    if not place.is_dir():
        with contextlib.suppress(Unavailable):
            run_tool(["modprobe", "null_blk", "nr_devices=0"])
    if not place.is_dir():
        raise Unavailable(
            "null_blk: the kernel does not have it, or this is not root", hint="modprobe null_blk nr_devices=0"
        )
    made: list[Path] = []
    try:
        try:
            for name in names:
                entry = place / name
                # One that a killed process has left.
                _remove(entry)
                entry.mkdir()
                made.append(entry)
                settings = {"memory_backed": 1, "blocksize": 4096, "size": size_bytes // MIB}
                # Last: to switch it on makes the drive.
                for setting, value in {**settings, "mbps": bytes_per_s // MIB, "power": 1}.items():
                    (entry / setting).write_text(str(value))
        except OSError as error:
            raise Unavailable(f"null_blk: {error.strerror}: {error.filename}") from error
        yield tuple(_path(entry, dev) for entry in made)
    finally:
        for entry in reversed(made):
            _remove(entry)


def _remove(entry: Path) -> None:
    with contextlib.suppress(OSError):
        (entry / "power").write_text("0")
    with contextlib.suppress(OSError):
        entry.rmdir()


# The kernel calls a drive nullbINDEX, newer ones (6.6) what its directory is called.
def _path(entry: Path, dev: str) -> str:
    named = Path(dev) / entry.name
    return str(named if named.exists() else Path(dev) / f"nullb{(entry / 'index').read_text().strip()}")
