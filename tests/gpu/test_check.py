"""check.py on the software GPU: each part ends with a line, whatever happens in it, and leaves no process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farbus.cli.embedded import SHARED_MEMORY
from farbus.linux.children import processes_naming
from tests.gpu import check
from tests.remoting.harness import ROOT


@pytest.fixture(scope="module")
def programs(compiled: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, level in (("kernels", "-O2"), ("errors", "-O1")):
        (folder / name).symlink_to(compiled(name, level))
    return folder


class Checked:
    """What one run of check.py said."""

    def __init__(self, folder: Path, libcuda: Path, programs: Path, *parts: str, budget: int = 200) -> None:
        mark = f"FARBUS_SOFTGPU_NODE={folder}"
        named = [word for part in parts for word in ("--part", part)]
        options = ["--libcuda", libcuda, "--programs", programs, "--budget", str(budget), "--small"]
        self.done = subprocess.run(
            [sys.executable, ROOT / "tests" / "gpu" / "check.py", "-o", folder / "out", *options, *named],
            env=os.environ | dict([mark.split("=", 1)]),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        self.left = processes_naming(mark)
        self.folder = folder / "out"
        self.outcomes: list[dict[str, Any]] = json.loads((self.folder / "summary.json").read_text())

    def results(self) -> dict[str, str]:
        return {each["part"]: each["result"] for each in self.outcomes}

    def logs(self) -> list[str]:
        with tarfile.open(self.folder / "logs.tar.gz") as tar:
            return tar.getnames()

    def devices(self) -> list[str]:
        with tarfile.open(self.folder / "logs.tar.gz") as tar:
            file = tar.extractfile("logs/devices.json")
            assert file is not None
            return [device["id"] for device in json.load(file)]


def test_small_parts_end_well_and_leave_three_files(libcuda: Path, programs: Path, tmp_path: Path) -> None:
    checked = Checked(tmp_path, libcuda, programs, "facts", "speed", "threads", "errors")
    assert checked.done.returncode == 0, checked.done.stdout + checked.done.stderr
    assert checked.results() == {"facts": "ok", "speed": "ok", "threads": "ok", "errors": "ok"}
    assert sorted(path.name for path in checked.folder.iterdir()) == ["logs.tar.gz", "summary.json", "summary.txt"]
    assert (checked.folder / "summary.txt").read_text() == checked.done.stdout
    assert {"logs/facts.txt", "logs/speed.json", "logs/threads.json", "logs/errors_shm.txt"} <= set(checked.logs())
    assert not checked.left


def test_a_cluster_lends_the_gpu_that_the_driver_s_nvml_has(libcuda: Path, programs: Path, tmp_path: Path) -> None:
    checked = Checked(tmp_path, libcuda, programs, "agent")
    assert checked.done.returncode == 0, checked.done.stdout + checked.done.stderr
    (outcome,) = checked.outcomes
    steps = outcome["reason"].split(", ")
    assert {"devices", "run", "job", "local job", "NVML", "leases", "down"} <= set(steps)
    assert not checked.left
    for device in checked.devices():
        # A software GPU's state is kept when its last process was killed.
        (SHARED_MEMORY / f"farbus-softgpu-{device.removeprefix('GPU-')}").unlink(missing_ok=True)


def test_a_part_that_fails_keeps_no_other_from_running(libcuda: Path, tmp_path: Path) -> None:
    for name, words in (("errors", "echo no GPU here >&2; exit 3"), ("kernels", "echo '{}'; exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{words}\n")
        (tmp_path / name).chmod(0o755)
    checked = Checked(tmp_path, libcuda, tmp_path, "facts", "speed", "errors")
    assert checked.done.returncode == 1
    assert checked.results() == {"facts": "ok", "speed": "failed", "errors": "failed"}
    assert checked.outcomes[2]["reason"] == "errors_native: status 3: no GPU here"


def test_a_part_that_hangs_is_out_of_time(libcuda: Path, tmp_path: Path) -> None:
    program = tmp_path / "errors"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    checked = Checked(tmp_path, libcuda, tmp_path, "errors", "facts", budget=1)
    assert checked.results()["errors"] == "out of time"
    assert "not done after" in checked.outcomes[1]["reason"]
    assert not checked.left


ORPHAN = """
import subprocess
from tests.gpu import check
check.adopt()
started = "setsid sh -c 'echo $$; exec sleep 1000' &"
with subprocess.Popen(["sh", "-c", started], stdout=subprocess.PIPE, text=True) as shell:
    orphan = int(shell.stdout.readline())
    shell.wait()
    found = orphan in check.descendants()
    check.end_descendants()
print(found, check.descendants())
"""


def test_what_has_lost_its_parent_is_ended() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "True []\n", done.stderr


def test_no_driver_is_told_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "tests" / "gpu" / "check.py", "-o", tmp_path, "--libcuda", tmp_path / "none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == f"check: {tmp_path}/none: no such driver: name it by --libcuda\n"


def test_verdicts_of_operations_are_told() -> None:
    said = "PyTorch 2\neager    right    add  \neager    no code  matmul broadcast  RuntimeError: no  kernel\n"
    verdicts = {found[3]: found[2] for found in check.VERDICT.finditer(said)}
    assert verdicts == {"add": "right", "matmul broadcast": "no code"}
    assert check.tally(verdicts) == "1 of 2 right: not matmul broadcast (no code)"


def test_what_is_interrupted_is_told_and_nothing_earlier_stands(libcuda: Path, programs: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    for name in check.RESULTS:
        (output / name).write_text("of an earlier run")
    mark = f"FARBUS_SOFTGPU_NODE={tmp_path}"
    command = [sys.executable, ROOT / "tests" / "gpu" / "check.py", "-o", output, "--libcuda", libcuda]
    with subprocess.Popen(
        [*command, "--programs", programs, "--part", "speed"],
        env=os.environ | dict([mark.split("=", 1)]), cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stderr is not None
        assert running.stderr.readline().startswith("check: speed")
        running.terminate()
        running.stderr.read()
    assert running.returncode == 128 + signal.SIGTERM
    assert [one["reason"] for one in json.loads((output / "summary.json").read_text())] == ["interrupted"]
    left = [Path(f"/proc/{pid}/cmdline").read_text() for pid in processes_naming(mark)]
    assert not left


def test_a_file_that_is_no_archive_is_told_before_anything_is_changed(libcuda: Path, tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("no archive")
    command = [sys.executable, ROOT / "tests" / "gpu" / "check.py", "archive", "-o", "out", "--libcuda", libcuda]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("check: archive: no archive of tests.gpu.pack's: ")
    assert done.stderr.count("\n") == 1
