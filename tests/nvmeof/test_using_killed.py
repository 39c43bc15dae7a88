"""Using storage and letting it go, killed at every record and every change: it is all here, or nothing of it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.killing import kill_everywhere

HERE = "tests.nvmeof.using_node"
ATTACH = ("ClearEarlier", "Connect", "VerifyNamespaces", "HandOver")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("scenario", "kinds", "fail"),
    [
        ("Mount", (*ATTACH, "MakeFileSystem", "MountStorage"), (4, 5)),
        ("Local", ("FindPart", "MakeFileSystem", "MountStorage", "FillFile"), (3,)),
        ("Striped", (*ATTACH, *ATTACH, "CreateStripe", "GiveNode"), (9,)),
        ("Swap", (*ATTACH, *ATTACH, "CreateStripe", "MakeFileSystem", "SwapOn"), (10,)),
    ],
)
def test_storage_is_here_or_not_wherever_the_process_is_killed(
    scenario: str, kinds: tuple[str, ...], fail: tuple[int, ...], tmp_path: Path
) -> None:
    told = kill_everywhere(f"{HERE}:{scenario}", tmp_path, fail=fail)
    found = [record for record in told.records["forward"] if record.startswith("started")]
    assert found == [f"started forward {kind}" for kind in kinds]
    assert told.to_old
    assert told.to_new
