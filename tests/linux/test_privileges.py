"""What a program of another user has of root's rights: nothing.  For root alone."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from farbus.linux.kept import KeptProcesses
from farbus.linux.processes import Program
from farbus.linux.users import Account

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

# Numbers that no name belongs to: the kernel needs none.
SOMEBODY = Account(name="somebody", uid=61_001, gid=61_002, groups=(61_002, 61_003))


@pytest.fixture
async def status(tmp_path: Path) -> dict[str, str]:
    """What the kernel says of a program of that user (proc(5))."""
    door = KeptProcesses(tmp_path / "programs", owner="test")
    child = await door.spawn(
        Program(
            name="task.status",
            what="status",
            argv=("cat", "/proc/self/status"),
            environment={"PATH": os.environ["PATH"]},
            account=SOMEBODY,
        )
    )
    async with asyncio.timeout(20.0):
        text = b"".join([piece.data async for piece in child.output()]).decode()
        await child.wait()
    child.forget()
    await door.close()
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


async def test_program_has_no_other_users_identity_nor_any_capability(status: dict[str, str]) -> None:
    assert status["Uid"].split() == ["61001"] * 4
    assert status["Gid"].split() == ["61002"] * 4
    assert status["Groups"].split() == ["61002", "61003"]
    for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[kind], 16) == 0
    # Programs that gain rights by their file's mode, as sudo does, stay usable: as at a login.
    assert status["NoNewPrivs"].strip() == "0"
