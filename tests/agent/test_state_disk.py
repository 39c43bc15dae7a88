"""Whether the disk of an agent's state works: what is said of it, and when it counts as well again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from farbus.agent.journal import Journal
from farbus.agent.state_disk import StateDisk
from farbus.linux.clock import FakeClock
from tests.disks import SmallDisk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@pytest_asyncio.fixture
async def journal(disk: SmallDisk) -> AsyncIterator[Journal]:
    journal, _ = await Journal.open(disk.path / "journal.db", boot_id="boot")
    yield journal
    await journal.close()


@pytest.fixture
def watched(disk: SmallDisk, journal: Journal) -> StateDisk:
    return StateDisk(disk.path, journal=journal, clock=FakeClock())


async def record(journal: Journal) -> None:
    await journal.started(object="lease l1", action="PrepareDevices", body="{}", at=1.0)


async def test_a_look_leaves_nothing_on_a_disk_that_works(watched: StateDisk, disk: SmallDisk) -> None:
    await watched.look()
    assert watched.trouble == ""
    assert not (disk.path / "probe").exists()


async def test_a_look_finds_a_full_disk_and_its_end(watched: StateDisk, disk: SmallDisk) -> None:
    told = []
    watched.changed = lambda: told.append(watched.trouble)
    disk.fill()
    await watched.look()
    await watched.look()
    disk.make_room()
    await watched.look()
    assert told == [f"{disk.path}: No space left on device; is the disk full, read-only or broken? see dmesg", ""]


async def test_a_record_that_is_written_does_not_say_that_all_is_well(watched: StateDisk, journal: Journal) -> None:
    # A read-only disk takes what goes into the journal's own blocks, and no new file.
    journal.refused("journal: disk I/O error")
    await record(journal)
    assert watched.trouble == "journal: disk I/O error"
    await watched.look()
    assert watched.trouble == ""
