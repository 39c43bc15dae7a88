"""Attaching and detaching, killed at every record: all of it is here or nothing is, and no controller is left over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.killing import kill_everywhere

HERE = "tests.nvmeof.attaching"
ONE = ("ClearEarlier", "Connect", "VerifyNamespaces", "HandOver")


@pytest.mark.parametrize(
    ("scenario", "kinds", "fail"),
    [
        ("AttachOne", ONE, (1, 3)),
        ("AttachWithKey", ONE, ()),
        ("AttachByTls", ("ClearEarlier", "HoldTlsKey", *ONE[1:]), (1, 2)),
        ("AttachOver", ONE, (2,)),
        ("MendOne", ("MendPath",), (0,)),
        ("AttachStripe", (*ONE, *ONE, "CreateStripe"), (8,)),
    ],
)
def test_namespaces_are_here_or_not_wherever_the_process_is_killed(
    scenario: str, kinds: tuple[str, ...], fail: tuple[int, ...], tmp_path: Path
) -> None:
    told = kill_everywhere(f"{HERE}:{scenario}", tmp_path, fail=fail)
    expected = tuple(record for kind in kinds for record in (f"started forward {kind}", "completed"))
    assert told.records["forward"] == expected
    assert told.to_old
    assert told.to_new
