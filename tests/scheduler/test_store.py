"""The SQLite file: one process, one thread, commits in groups."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from farbus.errors import Conflict, FarbusError
from farbus.scheduler.store import Store, Work

SCHEMA = "CREATE TABLE things (name TEXT PRIMARY KEY)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path, SCHEMA)
    yield store
    store.close()


def put(name: str) -> Work[int]:
    return lambda connection: connection.execute("INSERT INTO things VALUES (?)", (name,)).rowcount


def names(store: Store) -> list[str]:
    return store.read(
        lambda connection: [name for (name,) in connection.execute("SELECT name FROM things ORDER BY name")]
    ).result()


def test_files_are_for_their_owner_alone(store: Store, path: Path) -> None:
    store.submit(put("a")).result()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}
    assert "store.db-wal" in modes


def test_a_second_opening_is_refused_until_the_first_is_closed(path: Path) -> None:
    first = Store(path, SCHEMA)
    with pytest.raises(Conflict, match="in use by process"):
        Store(path, SCHEMA)
    first.close()
    Store(path, SCHEMA).close()


def test_works_that_wait_share_a_transaction(store: Store) -> None:
    begun, go_on = threading.Event(), threading.Event()
    commits = []
    store.guard(lambda _: commits.append(1))

    def slow(_: sqlite3.Connection) -> None:
        begun.set()
        go_on.wait()

    first = store.submit(slow)
    begun.wait()
    later = [store.submit(put(str(number))) for number in range(100)]
    go_on.set()
    first.result()
    for future in later:
        future.result()
    assert len(commits) == 2


def test_a_failed_write_takes_its_whole_transaction_back_and_breaks_the_store(path: Path) -> None:
    store = Store(path, SCHEMA)
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: sqlite3.Connection) -> None:
        begun.set()
        go_on.wait()

    store.submit(slow)
    begun.wait()
    good = store.submit(put("a"))
    bad = store.submit(lambda connection: connection.execute("INSERT INTO things VALUES (1, 2, 3)"))
    go_on.set()
    for future in (good, bad):
        with pytest.raises(FarbusError, match="can't use the ledger"):
            future.result()
    with pytest.raises(FarbusError):
        names(store)
    store.close()
    again = Store(path, SCHEMA)
    assert names(again) == []
    again.close()


def test_a_failed_read_is_its_callers_alone(store: Store) -> None:
    with pytest.raises(FarbusError):
        store.read(lambda connection: connection.execute("SELECT * FROM nowhere")).result()
    store.submit(put("a")).result()
    assert names(store) == ["a"]


def test_a_full_disk_is_told_in_one_line(path: Path) -> None:
    store = Store(path, SCHEMA)

    def limit(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA max_page_count = 4")

    store.read(limit).result()
    big = store.submit(lambda connection: connection.execute("INSERT INTO things VALUES (?)", ("x" * 100_000,)))
    with pytest.raises(FarbusError, match="database or disk is full; see that its disk has room") as told:
        big.result()
    assert "\n" not in str(told.value)
    store.close()


def test_a_damaged_file_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database at all " * 500)
    with pytest.raises(FarbusError, match="is damaged"):
        Store(path, SCHEMA)


def test_a_file_with_a_damaged_page_is_refused(path: Path) -> None:
    store = Store(path, SCHEMA)
    for number in range(200):
        store.submit(put(f"{number:0200d}"))
    names(store)
    store.close()
    with path.open("r+b") as file:
        file.seek(2 * 4096 + 100)
        file.write(b"\xff" * 3000)
    with pytest.raises(FarbusError, match="is damaged"):
        Store(path, SCHEMA)


def test_an_older_format_is_made_the_present_one(path: Path) -> None:
    first = Store(path, SCHEMA)
    first.submit(put("a")).result()
    first.close()
    upgrades = ("ALTER TABLE things ADD COLUMN size INTEGER NOT NULL DEFAULT 7", "CREATE TABLE more (name TEXT)")
    for _ in range(2):
        later = Store(path, "not used", upgrades=upgrades)
        assert later.read(lambda c: c.execute("SELECT name, size FROM things").fetchall()).result() == [("a", 7)]
        assert later.read(lambda c: c.execute("SELECT * FROM more").fetchall()).result() == []
        later.close()
    with pytest.raises(FarbusError, match="newer version of Farbus"):
        Store(path, SCHEMA)


def test_a_newer_format_is_refused(path: Path) -> None:
    Store(path, SCHEMA).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(FarbusError, match="a newer version of Farbus"):
        Store(path, SCHEMA)


def test_a_database_of_something_else_is_left_as_it_is(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE others (name TEXT)")
    connection.close()
    path.chmod(0o644)
    before = path.read_bytes()
    with pytest.raises(FarbusError, match="is a database of something else than a scheduler; choose another --state"):
        Store(path, SCHEMA)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (before, 0o644)


def test_no_lock_is_taken_through_a_link(path: Path) -> None:
    path.parent.mkdir()
    (path.parent / "others").write_text("something of theirs")
    path.with_suffix(".lock").symlink_to("others")
    with pytest.raises(FarbusError, match="it is a link, and no lock; remove it"):
        Store(path, SCHEMA)
    assert (path.parent / "others").read_text() == "something of theirs"


def test_a_directory_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FarbusError, match="choose another --state"):
        Store(tmp_path / "file" / "state" / "store.db", SCHEMA)
