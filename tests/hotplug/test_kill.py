"""Attaching and detaching, killed at every record: the device is here or it is not, and nothing lies in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.killing import kill_everywhere

HERE = "tests.hotplug.harness"


@pytest.mark.parametrize(
    ("scenario", "kinds", "fail"),
    [
        ("Attach", ("CheckRoom", "AssignDevice", "ScanBelow", "VerifyDevice", "OpenDevice"), (1, 3)),
        ("AttachPlain", ("CheckRoom", "AssignDevice", "ScanBelow", "VerifyDevice", "OpenDevice"), (2,)),
        ("Detach", ("CloseDevice", "DrainDevice", "QuietGpu", "RemoveFunctions", "UnassignDevice"), (3, 4)),
    ],
)
def test_a_device_is_here_or_not_wherever_the_process_is_killed(
    scenario: str, kinds: tuple[str, ...], fail: tuple[int, ...], tmp_path: Path
) -> None:
    told = kill_everywhere(f"{HERE}:{scenario}", tmp_path, fail=fail)
    expected = tuple(record for kind in kinds for record in (f"started forward {kind}", "completed"))
    assert told.records["forward"] == expected
    assert told.to_old
    assert told.to_new
