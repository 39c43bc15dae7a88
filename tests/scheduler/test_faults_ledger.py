"""A scheduler whose ledger is damaged, or whose disk is full or read-only: it stops loudly and never starts empty."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farbus.errors import Conflict, FarbusError
from farbus.model.states import JobState
from farbus.scheduler import events
from tests.disks import SmallDisk, small_disk
from tests.scheduler.light_agent import LightAgent
from tests.scheduler.scripted import job, node
from tests.scheduler.site import Site

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


def ledger(site: Site) -> Path:
    return site.directory / "state" / "ledger.db"


async def submit(site: Site, count: int, **changes: object) -> list[str]:
    """Have a scheduler queue jobs, and stop it in good order."""
    async with site.scheduler(**changes), site.client() as client:
        return [(await client.submit(job("")))[0] for _ in range(count)]


def overwrite(path: Path) -> None:
    path.write_bytes(b"not a database, " * 1000)


def damage_a_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(2 * 4096)
        file.write(b"\xff" * 4096)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def put_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def spoil_a_job(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE jobs SET spec = x'00'")
    connection.close()


def drop_a_table(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE leases")
    connection.close()


@pytest.mark.parametrize("spoil", [overwrite, damage_a_page, truncate, put_a_directory, spoil_a_job, drop_a_table])
async def test_a_damaged_ledger_is_refused_in_one_line(site: Site, spoil: Callable[[Path], None]) -> None:
    await submit(site, 20)
    spoil(ledger(site))
    with pytest.raises(FarbusError, match="ledger") as refused:
        async with site.scheduler():
            pass
    assert str(ledger(site)) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("spoil", ["DELETE FROM devices", "UPDATE nodes SET seen_at = 'never'"])
async def test_a_ledger_whose_rows_do_not_fit_together_is_refused_in_one_line(site: Site, spoil: str) -> None:
    async with site.scheduler(), site.client() as client, site.agent(LightAgent(node("a", 1))) as agent:
        job_id, _ = await client.submit(job("", gpus=1))
        await agent.until(events.StartTask, job_id)
    with sqlite3.connect(ledger(site)) as connection:
        connection.execute(spoil)
    connection.close()
    with pytest.raises(FarbusError, match="is damaged") as refused:
        async with site.scheduler():
            pass
    assert str(ledger(site)) in str(refused.value)
    assert str(refused.value).isprintable()


async def test_a_ledger_without_a_table_is_told_to_be_damaged(site: Site) -> None:
    await submit(site, 1)
    drop_a_table(ledger(site))
    with pytest.raises(FarbusError, match="is damaged: no such table: leases; restore it from a backup"):
        async with site.scheduler():
            pass


async def test_a_directory_of_others_is_no_state_directory(site: Site) -> None:
    others = ledger(site).parent
    others.mkdir(mode=0o755)
    (others / "passwd").touch()
    with pytest.raises(
        Conflict, match="can't be the directory of a scheduler's state: it holds other things, 'passwd'"
    ):
        async with site.scheduler():
            pass
    assert os.listdir(others) == ["passwd"]
    assert others.stat().st_mode & 0o777 == 0o755


async def test_a_ledger_is_begun_anew_where_an_operator_has_removed_it_and_its_lock(site: Site) -> None:
    await submit(site, 1)
    for name in ("ledger.db", "ledger.lock"):
        (ledger(site).parent / name).unlink()
    assert os.listdir(ledger(site).parent)
    await submit(site, 1)


async def test_an_empty_ledger_is_refused_where_there_was_one(site: Site) -> None:
    await submit(site, 1)
    os.truncate(ledger(site), 0)
    with pytest.raises(FarbusError, match="is empty") as refused:
        async with site.scheduler():
            pass
    assert "restore it from a backup" in refused.value.hint


async def test_a_ledger_that_was_removed_beside_its_lock_is_refused(site: Site) -> None:
    await submit(site, 1)
    ledger(site).unlink()
    with pytest.raises(FarbusError, match="is gone") as refused:
        async with site.scheduler():
            pass
    assert "remove" in refused.value.hint


async def test_a_ledger_that_was_copied_without_its_wal_is_refused(site: Site, tmp_path: Path) -> None:
    """A young ledger is in its -wal file alone: begun anew, it would grant devices that are in use."""
    async with site.scheduler(), site.client() as client:
        await client.submit(job("", gpus=1))
        copy = tmp_path / "copied.db"
        shutil.copy(ledger(site), copy)
    ledger(site).unlink()
    copy.rename(ledger(site))
    with pytest.raises(FarbusError, match="holds nothing without its -wal file") as refused:
        async with site.scheduler():
            pass
    assert "restore it from a backup" in refused.value.hint


async def test_a_full_disk_ends_the_scheduler_and_loses_no_job_that_it_took(site: Site, disk: SmallDisk) -> None:
    state = str(disk.path / "state")
    taken: list[str] = []

    async def submit_until_refused() -> None:
        async with site.client() as client:
            taken.append((await client.submit(job("")))[0])
            disk.fill()
            while True:
                taken.append((await client.submit(job("")))[0])

    async def live() -> None:
        async with site.scheduler(state=state):
            with contextlib.suppress(FarbusError):
                await submit_until_refused()

    with pytest.raises(FarbusError, match="disk is full"):
        await live()
    with pytest.raises(FarbusError, match="see that its disk has room"):
        async with site.scheduler(state=state):
            pass
    disk.make_room()
    async with site.scheduler(state=state), site.client() as client, site.agent(LightAgent(node("a"))) as agent:
        assert {status.job.id for status in await client.list_jobs(include_ended=True)} == set(taken)
        await agent.until(events.StartTask, taken[0])


async def test_a_read_only_disk_is_told_in_one_line(site: Site, disk: SmallDisk) -> None:
    state = str(disk.path / "state")
    (queued,) = await submit(site, 1, state=state)
    disk.remount("ro")
    with pytest.raises(FarbusError, match=r"[Rr]ead-only"):
        async with site.scheduler(state=state):
            pass
    disk.remount("rw")
    async with site.scheduler(state=state), site.client() as client:
        assert (await client.get_job(queued)).state is JobState.QUEUED
