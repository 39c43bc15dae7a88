"""``farbus bench nvmeof`` on a real kernel: its form, and that it leaves nothing; its figures are told, not judged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.guest import Guest, patient
from tests.lab.image import KERNELS
from tests.lab.tree import PYTHON, put_tree

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

RUN = "import json; from farbus.nvmeof.bench import run; print(json.dumps(run(quick={quick})))"
LEFT = (
    "ls -d /sys/kernel/config/nvmet/subsystems/* /sys/kernel/config/nvmet/ports/* /sys/kernel/config/nullb/farbus-*"
    " /sys/class/nvme/* /dev/mapper/farbus-* 2>/dev/null || true"
)


@pytest.fixture(scope="module")
def node(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    with Guest.boot(image, name="bench", kernel=KERNELS[0]) as guest:
        put_tree(guest, tmp_path_factory.mktemp("bench"))
        yield guest


def test_namespaces_are_measured_beside_the_same_made_by_hand(node: Guest, tell: Callable[[str], None]) -> None:
    code = RUN.format(quick=os.environ.get("FARBUS_LAB_BENCH") != "full")
    said = node.run(*PYTHON, "-c", code, limit_s=patient(1500)).stdout
    result = json.loads(said.splitlines()[-1])
    rows = result["results"]
    for row in rows:
        tell(f"bench nvmeof: {json.dumps(row)}")
    assert result["bench"] == "nvmeof"
    assert [row["name"] for row in rows if row["name"] != "step_s"] == [
        "data_path_randread", "data_path_randwrite", "data_path_randread", "data_path_read", "data_path_write",
        "composed_read",
    ]  # fmt: skip
    assert {row["verb"] for row in rows if row["name"] == "step_s"} == {
        "export", "attach", "detach", "withdraw", "by hand",
    }  # fmt: skip
    # A step that finds nothing to undo takes no time to speak of.
    assert all(row["value"] > 0 for row in rows if row["name"] != "step_s")
    assert node.shell(LEFT).stdout.strip() == ""
