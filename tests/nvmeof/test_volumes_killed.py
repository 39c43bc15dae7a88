"""Volumes and room of leases, killed at every record and every change: what is there is whole, or says it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.killing import kill_everywhere

HERE = "tests.nvmeof.storing"
EXPORT = ("CheckExport", "EndOlder", "MakeSubsystem", "AllowHost", "OfferSubsystem")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_room_of_a_lease_is_there_or_gone_wherever_the_process_is_killed(tmp_path: Path) -> None:
    told = kill_everywhere(f"{HERE}:Room", tmp_path, fail=(1, 7))
    assert _kinds(told.records["forward"]) == ("CreatePart", "WipePart", "ActivatePart", *EXPORT)
    assert told.to_old
    assert told.to_new


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("scenario", "kinds", "fail"),
    [
        ("Make", ("CreatePart", "WipePart"), (0,)),
        ("Resize", ("ExtendPart", "WipePart"), (0,)),
        ("Remove", ("RetirePart", "WipePart", "DropPart"), ()),
        ("Drop", ("RetirePart", "WipePart", "DropPart"), ()),
    ],
)
def test_a_volume_is_as_it_was_or_as_it_is_to_be(
    scenario: str, kinds: tuple[str, ...], fail: tuple[int, ...], tmp_path: Path
) -> None:
    told = kill_everywhere(f"{HERE}:{scenario}", tmp_path, fail=fail, one_way=True)
    assert _kinds(told.records["forward"]) == kinds
    assert told.to_new


def _kinds(records: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(record.removeprefix("started forward ") for record in records if record.startswith("started"))
