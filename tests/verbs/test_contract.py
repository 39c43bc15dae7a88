"""The tests' own RDMA device behaves as RDMA of CUDA calls needs it: contract.c, which soft-RoCE passes in the lab."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.verbs.fake import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

CASES = (
    *("order", "immediate", "data_and_immediate", "inline", "completion", "signals"),
    *("events", "no_events", "no_receive", "no_receive_in_time", "peer_ends", "flush"),
    *("wrong_key", "out_of_bounds", "before_bounds", "not_for_writing"),
    *("deregistered", "registered_later", "unregistered", "longest", "both_ways"),
)


def both_sides(
    folder: Path, *cases: str, near: str = "127.0.0.1", far: str = "127.0.0.1", **environment: str
) -> tuple[tuple[int, str], tuple[int, str]]:
    """Run the program with the library beside it, the near side with more settings; return codes and output of both."""
    settings = {**os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_VERBS_GIDS": "10.1.1.1;127.0.0.1,::1"}
    program = folder / "contract"
    with subprocess.Popen(
        [program, "listen", far, "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=settings, text=True
    ) as listening:
        assert listening.stdout is not None
        port = listening.stdout.readline().strip()
        called = subprocess.run(
            [program, "call", near, far, port, *cases],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=settings | environment,
            check=False,
        )
        said, code = listening.stdout.read(), listening.wait()
    return (called.returncode, called.stdout), (code, said)


def agree(folder: Path, *cases: str, near: str = "127.0.0.1", far: str = "127.0.0.1") -> None:
    """Both sides find all of these cases so."""
    found = both_sides(folder, *cases, near=near, far=far)
    expected = [[f"{case}: ok" for case in cases if case not in but] for but in ((), ("peer_ends",))]
    assert found == tuple((0, "".join(f"{line}\n" for line in lines)) for lines in expected)


def test_all_cases_are_known(built: Path) -> None:
    listed = subprocess.run(
        [built / "contract", "list"], capture_output=True, text=True, check=True, env={"LD_LIBRARY_PATH": str(built)}
    )
    assert tuple(listed.stdout.split()) == CASES


@pytest.mark.parametrize("case", CASES)
def test_two_processes_agree_on(built: Path, case: str) -> None:
    agree(built, case)


def test_two_processes_agree_over_the_other_family(built: Path) -> None:
    agree(built, "immediate", "both_ways", near="::1", far="::1")
