"""Memory of the host: a remote GPU has none of this machine's, and this program none of the GPU's node's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remoting.harness import Remote, remote_session
from tests.remoting.test_coverage import build_calls


def test_what_a_driver_gives_of_its_host_is_refused(driver_before: Callable[[str], Path], tmp_path: Path) -> None:
    program = build_calls("listing/host_memory", tmp_path)
    with remote_session(libcuda=driver_before("host_memory_driver"), folder=tmp_path, environment={}) as remote:
        done = remote.run(program)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
    assert "it would be the GPU's node's; use cuMemHostAlloc" in done.stderr


def test_memory_that_is_asked_to_be_mapped_is_told_once_not_to_be(remote: Remote, tmp_path: Path) -> None:
    done = remote.run(build_calls("listing/mapped", tmp_path), FARBUS_TRANSPORT="tcp")
    assert done.returncode == 0, done.stderr
    before, after = done.stderr.split("plain\n")
    assert before == ""
    assert [line.startswith("farbus: pinned memory is not mapped: ") for line in after.splitlines()] == [True]


@pytest.mark.parametrize("arguments", [(), ("pinned",)], ids=["without", "with"])
def test_an_illegal_address_of_who_has_pinned_memory_is_explained(
    remote: Remote, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = remote.run(build_calls("listing/pinned_in_kernel", tmp_path), *arguments, FARBUS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    explained = [line for line in done.stderr.splitlines() if "a remote GPU can't read or write it; copy it" in line]
    assert len(explained) == len(arguments), done.stderr
