"""Sequences of steps, killed at every record: the world afterwards is the old one or the new one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from farbus.agent.steps import Result, Steps
from tests.agent.scenarios import running
from tests.harness.killing import kill_everywhere

HERE = "tests.agent.test_kill"


@dataclass(frozen=True)
class WriteFile:
    """Writes a file in two pieces, so that half of it may be there."""

    file: Path
    kind: str = "WriteFile"
    devices: tuple[str, ...] = ()
    deadline_s: float = 10.0
    lasting: bool = True

    @property
    def identity(self) -> str:
        return self.file.name

    async def observe(self, known: Result | None) -> Result | None:
        whole = self.file.exists() and self.file.read_text() == "whole"
        return {self.file.name: "written"} if whole else None

    async def do(self) -> Result:
        self.file.write_text("who")
        self.file.write_text("whole")
        return {self.file.name: "written"}

    async def compensate(self) -> None:
        self.file.unlink(missing_ok=True)


class Files:
    """Three files, to be gone on with after a crash."""

    resumable = True

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        files = tuple(WriteFile(self._directory / name) for name in ("one", "two", "three"))
        yield Steps(object="files", body="{}", steps=files, resumable=self.resumable)

    def world(self) -> object:
        return {name: (self._directory / name).read_text() for name in sorted(os.listdir(self._directory))}

    def clear(self) -> None:
        """Its directory is removed anyway."""


class OnlyBack(Files):
    """The same, to be taken back after a crash: it needs what is not in the journal."""

    resumable = False


class OneFile(Files):
    """One file, to be taken back after a crash."""

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        yield Steps(object="files", body="{}", steps=(WriteFile(self._directory / "one"),))


class Forgetful(Files):
    """With a step that does not take back what it did."""

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        class Kept(WriteFile):
            async def compensate(self) -> None:
                pass

        one, two = WriteFile(self._directory / "one"), Kept(self._directory / "two")
        yield Steps(object="files", body="{}", steps=(one, two))


@pytest.mark.parametrize("scenario", ["Files", "OnlyBack"])
def test_files_are_all_there_or_none_wherever_the_process_is_killed(scenario: str, tmp_path: Path) -> None:
    told = kill_everywhere(f"{HERE}:{scenario}", tmp_path, fail=(1,))
    assert told.records["forward"] == ("started forward WriteFile", "completed") * 3
    assert told.records["back"] == ("started back WriteFile", "completed") * 3
    # Both ends are met: the harness would notice a sequence that always goes one way.
    assert told.to_old
    assert told.to_new
    # Before and after each of six records forward, six back, and four and four of a way that fails at the second.
    assert told.kills == 12 + 12 + 8 + 8


def test_a_process_that_recovers_may_be_killed_too(tmp_path: Path) -> None:
    told = kill_everywhere(f"{HERE}:OneFile", tmp_path, twice=True)
    assert told.kills > 20


def test_the_harness_sees_what_is_left_behind(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"does not lead to the old world: {'two': 'whole'}"):
        kill_everywhere(f"{HERE}:Forgetful", tmp_path)


def test_programs_under_keepers_run_all_or_none_wherever_the_process_is_killed(tmp_path: Path) -> None:
    told = kill_everywhere("tests.agent.scenarios:Programs", tmp_path)
    assert told.to_old
    assert told.to_new
    assert running(tmp_path) == []


def test_a_plan_is_prepared_or_gone_wherever_its_agent_is_killed(tmp_path: Path) -> None:
    told = kill_everywhere("tests.agent.scenarios:Plan", tmp_path)
    assert told.records["forward"] == (
        "started forward PrepareDevices",
        "completed",
        "started forward PrepareClient",
        "completed",
        "started forward StartTask",
        "completed",
    )
    assert told.to_old
    assert told.to_new
    assert running(tmp_path) == []


@pytest.mark.parametrize(("scenario", "fail"), [("AttachAtChassis", (3,)), ("DetachAtChassis", (4,))])
def test_a_device_is_here_or_not_wherever_its_agent_and_its_chassis_are_killed(
    scenario: str, fail: tuple[int, ...], tmp_path: Path
) -> None:
    told = kill_everywhere(f"tests.agent.kill_moves:{scenario}", tmp_path, fail=fail)
    assert told.to_old
    assert told.to_new
    # The chassis writes twice for each step of its own: it is killed around those too.
    assert told.kills > sum(2 * len(records) for records in told.records.values())
