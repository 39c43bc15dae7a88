"""Exporting and withdrawing, killed at every record and every write: all of it is offered, or nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.killing import kill_everywhere

KINDS = ("CheckExport", "EndOlder", "MakeSubsystem", "AllowHost", "OfferSubsystem")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("scenario", "kinds", "fail"),
    [
        ("Offered", KINDS, (4,)),
        ("OfferedToWhoeverProvesAKey", KINDS, (3,)),
        ("OfferedByTls", (*KINDS[:-1], "HoldTlsKey", KINDS[-1]), (4, 5)),
    ],
)
def test_a_subsystem_is_offered_or_gone_wherever_the_process_is_killed(
    scenario: str, kinds: tuple[str, ...], fail: tuple[int, ...], tmp_path: Path
) -> None:
    told = kill_everywhere(f"tests.nvmeof.target_harness:{scenario}", tmp_path, fail=fail)
    expected = tuple(record for kind in kinds for record in (f"started forward {kind}", "completed"))
    assert told.records["forward"] == expected
    assert told.to_old
    assert told.to_new


def test_an_address_has_its_old_state_or_its_new_one_wherever_the_process_is_killed(tmp_path: Path) -> None:
    told = kill_everywhere("tests.nvmeof.target_harness:AddressToBeWithdrawn", tmp_path, fail=(0,))
    assert told.records["forward"] == ("started forward SetAddressAccess", "completed")
    assert told.to_old
    assert told.to_new
