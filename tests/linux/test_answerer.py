"""Questions to a child process: what its start takes is no question's time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farbus.errors import TimedOut, Unavailable
from farbus.linux.answerer import Answerer


async def test_the_time_of_a_question_begins_when_the_child_listens(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    answerer = Answerer("tests.linux.marking_child", str(mark))
    with pytest.raises(TimedOut, match="marking_child: no answer after 0 s"):
        await answerer.ask(b"too late at once", limit_s=0)
    assert mark.exists()


async def test_a_child_that_was_killed_is_started_by_the_next_question(tmp_path: Path) -> None:
    answerer = Answerer("tests.linux.marking_child", str(tmp_path / "mark"))
    try:
        assert await answerer.ask(b"", limit_s=60) == b""
        await answerer.kill()
        assert await answerer.ask(b"again", limit_s=60) == b"again"
        assert answerer.starts == 2
    finally:
        answerer.close()


async def test_a_child_that_is_ended_is_gone(tmp_path: Path) -> None:
    """Nothing is left that the event loop would have to hear of."""
    answerer = Answerer("tests.linux.marking_child", str(tmp_path / "mark"))
    await answerer.ask(b"", limit_s=60)
    child = answerer.pid
    await answerer.end()
    assert answerer.pid == 0
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


async def test_a_child_that_can_not_start_is_told_in_a_line(tmp_path: Path) -> None:
    answerer = Answerer("tests.linux.marking_child", str(tmp_path))
    with pytest.raises(Unavailable, match=r"marking_child: its process has ended \(exit status 1\)"):
        await answerer.ask(b"", limit_s=60)
