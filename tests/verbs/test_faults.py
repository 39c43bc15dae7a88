"""What the environment can have the tests' own RDMA device do: each shows as the failure of a case that else passes."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path

import pytest

from tests.verbs.fake import missing
from tests.verbs.test_contract import both_sides

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"FAKE_VERBS_GIDS": ""}, "no device has the GID of 127.0.0.1"),
        ({"FAKE_VERBS_GIDS": "127.0.0.2;::1"}, "no device has the GID of 127.0.0.1"),
        ({"FAKE_VERBS_GIDS": "none"}, r"not so: devices \(errno 38\)"),
        ({"FAKE_VERBS_REG_MR_FAILS": "1"}, r"not so: end->mr \(errno 12\)"),
        ({"FAKE_VERBS_MAX_LOCKED": "4096"}, r"not so: end->mr \(errno 12\)"),
        ({"FAKE_VERBS_MAX_MR_SIZE": "4096"}, r"not so: end->mr \(errno 22\)"),
        ({"FAKE_VERBS_MAX_INLINE": "16"}, r"not so: \(end->qp = .*\(errno 22\)"),
        ({"FAKE_VERBS_MAX_MESSAGE": "4096"}, r"what line [0-9]+ waits for says 1 \(local length error\)"),
        ({"FAKE_VERBS_POST_FAILS": "7"}, r"what line [0-9]+ waits for says 12 \(transport retries exceeded\)"),
        ({"FAKE_VERBS_POST_FAILS": "2+"}, r"what line [0-9]+ waits for says 12 \(transport retries exceeded\)"),
    ],
)
def test_device_is_as_the_environment_says(built: Path, settings: dict[str, str], says: str) -> None:
    (code, said), _ = both_sides(built, "completion", **settings)
    assert code == 1
    assert re.fullmatch(f"completion: line [0-9]+: {says}.*\n", said), said


def test_a_fault_that_is_not_reached_changes_nothing(built: Path) -> None:
    # One region and 200 writes.
    (code, said), _ = both_sides(
        built, "completion", FAKE_VERBS_REG_MR_FAILS="2+", FAKE_VERBS_POST_FAILS="201", FAKE_VERBS_MAX_LOCKED="262144"
    )
    assert (code, said) == (0, "completion: ok\n")


def test_what_is_held_completes_once_it_is_released_or_the_device_goes(built: Path, tmp_path: Path) -> None:
    for order, (code, said) in {
        b"r": (0, "completion: ok\n"),
        # Held, the first write does not complete, so that it is there to be flushed.
        b"s": (1, "completion: line [0-9]+: the device has gone\n"),
        b"g": (1, "completion: line [0-9]+: what line [0-9]+ waits for says 5 \\(work request flushed\\) and not 0\n"),
    }.items():
        folder = tmp_path / order.decode()
        folder.mkdir()
        control, log = folder / "control", folder / "log"
        for fifo in (control, log):
            os.mkfifo(fifo)

        with control.open("r+b", buffering=0) as orders, log.open("r+b", buffering=0) as lines:

            def obey(order: bytes = order, orders: FileIO = orders, lines: FileIO = lines) -> None:
                assert re.match(rb"[0-9]+ ready [0-9a-f]{6} for [0-9a-f]{6}\n", lines.readline())
                assert re.match(rb"[0-9]+ holds [0-9a-f]{6}\n", lines.readline())
                orders.write(order)

            with ThreadPoolExecutor(1) as pool:
                obeyed = pool.submit(obey)
                near, _ = both_sides(
                    built, "completion",
                    FAKE_VERBS_HOLD="1", FAKE_VERBS_CONTROL=str(control), FAKE_VERBS_LOG=str(log),
                )  # fmt: skip
                obeyed.result()
        assert near[0] == code
        assert re.fullmatch(said, near[1]), near[1]
