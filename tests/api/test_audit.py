"""The audit log's file: durable lines, rotation, torn lines, floods."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from farbus.api import audit
from farbus.api.audit import AuditLog, AuditRecord, append_records, bounded, read_records


def made(number: int, *, outcome: str = "ok") -> AuditRecord:
    return AuditRecord(at=f"2026-01-01T00:00:{number:06.3f}Z", who="bob", method="Submit", outcome=outcome)


async def test_records_of_many_calls_keep_their_order(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    await asyncio.gather(*(log.record(made(number)) for number in range(50)))
    assert list(read_records(log.path)) == [made(number) for number in range(50)]


async def test_full_file_is_put_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", max_file_bytes=1)
    for number in range(audit.KEPT_FILES + 3):
        await log.record(made(number))
    assert [record.at for record in read_records(log.path)] == [
        made(number).at for number in range(2, audit.KEPT_FILES + 3)
    ]


def test_half_a_line_of_a_process_that_died_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    append_records(path, [made(1)])
    with open(path, "ab") as file:
        file.write(b'{"at":"2026')
    append_records(path, [made(2)])
    assert list(read_records(path)) == [made(1), made(2)]


def test_reading_begins_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    append_records(path, [made(1), made(2), made(3)])
    assert list(read_records(path, since=made(2).at)) == [made(2), made(3)]


async def test_flood_of_refusals_leaves_room_for_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "REFUSALS_PER_MINUTE", 2)
    log = AuditLog(tmp_path / "audit.jsonl")
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 60.0)
    for number in range(5):
        await log.record(made(number, outcome="refused"))
    await log.record(made(6))
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 120.0)
    await log.record(made(7, outcome="refused"))
    assert [(record.outcome, record.omitted) for record in read_records(log.path)] == [
        ("refused", 0),
        ("refused", 0),
        ("ok", 0),
        ("refused", 3),
    ]


async def test_disk_that_refuses_ends_no_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    log = AuditLog(tmp_path / "file" / "audit.jsonl")
    await log.record(made(1))
    await log.record(made(2))
    assert len([record for record in caplog.records if record.message.startswith("audit records lost")]) == 1


def test_names_that_callers_choose_stay_on_their_line() -> None:
    assert bounded("a\nb\x1b[31m" + "c" * 1000) == "a b [31m" + "c" * (audit.MAX_TEXT - 8)


def test_log_is_its_owners_alone(tmp_path: Path) -> None:
    append_records(tmp_path / "audit.jsonl", [made(1)])
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o077 == 0
