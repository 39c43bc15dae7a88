"""The audit log's file: durable lines, rotation, torn lines, floods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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


def called(who: str, *, node: str = "", outcome: str = "ok") -> AuditRecord:
    return AuditRecord(at="2026-01-01T00:00:00.000Z", who=who, node=node, method="Submit", outcome=outcome)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let a caller have two lines in an hour, and three where names prove nothing; return what sets the clock."""
    monkeypatch.setattr(audit, "LINES_PER_HOUR", 2)
    monkeypatch.setattr(audit, "NODE_LINES_PER_HOUR", 3)
    monkeypatch.setattr(audit, "REFUSALS_PER_HOUR", 3)

    def at(hour: float) -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: hour * 3600.0)

    return at


async def lines_of(log: AuditLog) -> list[tuple[str, str, str, int]]:
    await log.close()
    return [(record.who, record.node, record.outcome, record.omitted) for record in read_records(log.path)]


async def test_caller_who_calls_too_often_is_summed_up_and_others_are_not(
    tmp_path: Path, few: Callable[[float], None]
) -> None:
    few(1.0)
    log = AuditLog(tmp_path / "audit.jsonl")
    for who in ("bob", "bob", "bob", "alice", "bob"):
        await log.record(called(who))
    await log.record(called("bob", outcome="failed"))
    assert await lines_of(log) == [
        ("bob", "", "ok", 0),
        ("bob", "", "ok", 0),
        ("alice", "", "ok", 0),
        ("bob", "", "ok", 2),
        ("bob", "", "failed", 1),
    ]


async def test_caller_has_lines_again_in_the_next_hour(tmp_path: Path, few: Callable[[float], None]) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    for hour in (1.0, 1.1, 1.2, 2.0):
        few(hour)
        await log.record(called("bob"))
    assert await lines_of(log) == [("bob", "", "ok", 0)] * 3 + [("bob", "", "ok", 1)]


async def test_node_that_invents_users_is_summed_up(tmp_path: Path, few: Callable[[float], None]) -> None:
    few(1.0)
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(5):
        await log.record(called(f"user{number}", node="alpha"))
    await log.record(called("bob", node="beta"))
    assert await lines_of(log) == [
        *((f"user{number}", "alpha", "ok", 0) for number in range(3)),
        ("bob", "beta", "ok", 0),
        ("several", "alpha", "ok", 2),
    ]


async def test_flood_of_refusals_leaves_room_for_the_rest(tmp_path: Path, few: Callable[[float], None]) -> None:
    few(1.0)
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(5):
        await log.record(called(f"user{number}", outcome="refused"))
    await log.record(called("bob"))
    assert await lines_of(log) == [
        *((f"user{number}", "", "refused", 0) for number in range(3)),
        ("bob", "", "ok", 0),
        ("several", "", "refused", 2),
    ]


async def test_callers_beyond_those_counted_share_one_count(
    tmp_path: Path, few: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    few(1.0)
    monkeypatch.setattr(audit, "MAX_COUNTED", 1)
    log = AuditLog(tmp_path / "audit.jsonl")
    for who in ("bob", "a", "b", "c"):
        await log.record(called(who))
    assert await lines_of(log) == [
        ("bob", "", "ok", 0),
        ("a", "", "ok", 0),
        ("b", "", "ok", 0),
        ("several", "", "ok", 1),
    ]


async def test_sum_is_written_in_its_time_and_does_not_come_twice(
    tmp_path: Path, few: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "SUM_INTERVAL_S", 0.0)
    few(1.0)
    log = AuditLog(tmp_path / "audit.jsonl")
    for _ in range(4):
        log.post(called("bob"))
    assert log._timer is not None
    log._timer._run()
    assert await lines_of(log) == [("bob", "", "ok", 0), ("bob", "", "ok", 0), ("bob", "", "ok", 2)]


async def test_record_that_nobody_waits_for_any_more_is_written(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    waiting = asyncio.create_task(log.record(made(1)))
    await asyncio.sleep(0)
    waiting.cancel()
    await log.close()
    assert list(read_records(log.path)) == [made(1)]


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
