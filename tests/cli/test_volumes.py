"""``farbus volume``; the cluster's answers are known."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from farbus.cli import volume_bench
from farbus.errors import NotFound
from farbus.linux.fio import FioResult, Pattern
from farbus.model.device import Device, DeviceKind, DeviceStatus
from farbus.model.states import DeviceState, VolumeState
from farbus.model.volume import AdoptRequest, AttachRequest, FileSystem, StorageUse, VolumeRequest
from tests.cli.conftest import ROOT, Cluster, Farbus, clean_environment
from tests.cli.rehearsed_cluster import volume


@pytest.fixture
def ask(here: Farbus, cluster: Cluster):
    """Run a command that speaks to a cluster of this test's own."""

    def run(*arguments: str):
        return here("volume", *arguments, environment={"FARBUS_SOCKET": cluster.socket})

    return run


def test_create_shows_progress_and_where_the_volume_is(ask, cluster: Cluster) -> None:
    done = ask("create", "data", "--size", "100GiB", "--stripe", "3", "--bandwidth", "4GB/s", "--node", "beta")
    assert (done.returncode, done.stdout) == (0, "volume data: 100 GiB on 3 drives of node beta\n")
    assert done.stderr == "farbus: data: creating: node beta is asked to make its part, 1 of 1\n"
    _, text = cluster.line().split(maxsplit=1)
    assert msgspec.json.decode(text, type=VolumeRequest) == VolumeRequest(
        name="data", size_bytes=100 * 2**30, stripe=3, bandwidth_bytes_per_s=4 * 10**9, node="beta"
    )


@pytest.mark.parametrize(
    ("size", "wanted"),
    [("2TB", 2 * 10**12), ("512GiB", 2**39), ("1.5t", 15 * 10**11), ("100k", 0), ("10485760", 2**20 * 10)],
)
def test_sizes_are_written_as_people_do(ask, cluster: Cluster, size: str, wanted: int) -> None:
    done = ask("create", "data", "--size", size, "-q")
    if not wanted:
        assert (done.returncode, "are not from 1 MiB to" in done.stderr) == (2, True)
        return
    assert (done.returncode, done.stderr) == (0, "")
    assert f'"size_bytes":{wanted}' in cluster.line()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["create", "Data", "--size", "1G"], 2, "farbus: name: 'Data' is no name for a volume; at most 40 of a-z"),
        (["create", "data", "--size", "much"], 2, "farbus: --size: 'much' is not a number with a unit"),
        (["create", "data"], 2, "farbus: missing option '--size'"),
        (["create", "large", "--size", "1000TB"], 4, "farbus: volume large of 1 PB: the cluster has no drives"),
        (["create", "refused", "--size", "1G", "-q"], 1, "farbus: volume refused: node beta: its volume group is full"),
        (
            ["attach", "broken", "--node", "gamma", "-q"],
            1,
            "farbus: volume broken: it was not attached: bad superblock",
        ),
        (["attach", "data"], 2, "farbus: missing option '--node'"),
        (["create", "data", "--size", "1G", "--bandwidth", "fast"], 2, "farbus: --bandwidth: 'fast' is not a number"),
        (["attach", "data", "--node", "a", "--path", "x"], 2, "farbus: --path: 'x' is no absolute path below /"),
        (["attach", "data", "--node", "a", "--use", "raw", "--path", "/x"], 2, "farbus: --path: only what is mounted"),
        (["attach", "data", "--node", "a", "--use", "raw", "--file-system", "xfs"], 2, "farbus: --file-system: only"),
        (["attach", "data", "--node", "a", "--use", "swap", "--read-only"], 2, "farbus: --read-only: swap space is"),
        (["delete", "data"], 2, "farbus: volume data: all that is on it would be lost; say so with --yes"),
        (["delete", "used", "--yes"], 7, "farbus: volume used is attached to node gamma; farbus volume detach used"),
        (["list", "none"], 3, "farbus: there is no volume none"),
    ],
)
def test_what_goes_wrong_is_one_line(ask, arguments: list[str], code: int, told: str) -> None:
    done = ask(*arguments)
    assert done.returncode == code
    assert done.stderr.startswith(told)
    assert done.stderr.count("\n") == 1


def test_attach_says_where_it_is(ask, cluster: Cluster) -> None:
    done = ask("attach", "data", "--node", "gamma", "--path", "/srv/data", "--file-system", "xfs", "--read-only")
    assert done.stdout == "volume data is attached to node gamma as /srv/data\n"
    assert done.stderr == "farbus: data: available: node gamma prepares it\n"
    _, text = cluster.line().split(maxsplit=1)
    assert msgspec.json.decode(text, type=AttachRequest) == AttachRequest(
        volume="data", node="gamma", path="/srv/data", file_system=FileSystem.XFS, read_only=True
    )


def test_attach_as_swap(ask, cluster: Cluster) -> None:
    assert ask("attach", "ram", "--node", "gamma", "--use", "swap", "-q").returncode == 0
    _, text = cluster.line().split(maxsplit=1)
    assert msgspec.json.decode(text, type=AttachRequest).use is StorageUse.SWAP


def test_detach_says_what_is_in_the_way(ask) -> None:
    done = ask("detach", "data")
    assert done.stdout == "volume data is detached\n"
    assert "pid 812 (python3) has a file open" in done.stderr


def test_resize_and_delete(ask, cluster: Cluster) -> None:
    assert ask("resize", "data", "--size", "200GiB", "-q").stdout == "volume data: 200 GiB\n"
    late = ask("resize", "data", "--size", "300GiB", "-q")
    assert late.stdout == "volume data: 300 GiB; node gamma uses it with its old size until it is attached again\n"
    assert ask("delete", "data", "--yes", "-q").stdout == "volume data is deleted\n"
    assert cluster.line() == "delete data"


@pytest.mark.parametrize(
    ("typed", "code", "told"), [(b"\x03", 130, ""), (b"\x04", 1, "farbus: given up"), (b"n\n", 1, "farbus: given up")]
)
def test_who_asks_first_takes_no_for_an_answer(
    cluster: Cluster, tmp_path: Path, typed: bytes, code: int, told: str
) -> None:
    keyboard, terminal = pty.openpty()
    with subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "-P", "-m", "farbus.cli", "volume", "delete", "data"],
        env=clean_environment(tmp_path, FARBUS_SOCKET=cluster.socket),
        cwd=tmp_path,
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(terminal)
        assert process.stdout is not None
        assert process.stderr is not None
        question = b"Delete volume data and all that is on it? [y/N]: "
        assert process.stderr.read(len(question)) == question
        os.write(keyboard, typed)
        # What programs read is what has become of it alone.
        assert process.stdout.read() == b""
        assert process.stderr.read().decode().strip() == told
        assert process.wait(timeout=30) == code
    os.close(keyboard)


def test_a_volume_is_looked_for_where_the_stream_broke(ask) -> None:
    done = ask("create", "torn", "--size", "100G", "-q")
    assert (done.returncode, done.stdout) == (0, "volume torn: 100 GiB on 3 drives of node beta\n")


def test_the_listing_tells_where_and_what_is_wrong(ask) -> None:
    done = ask("list")
    lines = done.stdout.splitlines()
    assert lines[0].split() == [
        "NAME", "USER", "STATE", "SIZE", "DRIVES", "STORED", "ON", "ATTACHED", "TO", "HEALTH", "SAYS",
    ]  # fmt: skip
    assert lines[1].split() == ["data", "ada", "attached", "100", "GiB", "3", "beta", "gamma", "ok", "-"]
    assert lines[2].endswith("1 trouble  node beta, which has part 0, can't be reached")
    wide = ask("list", "data", "-o", "wide").stdout
    assert "/srv/data" in wide
    assert "NVME-1,NVME-2,NVME-3" in wide
    assert [each["name"] for each in json.loads(ask("list", "-o", "json").stdout)] == ["data", "old", "torn"]


def test_json_is_the_last_status(ask) -> None:
    done = ask("attach", "data", "--node", "gamma", "-q", "-o", "json")
    found = json.loads(done.stdout)
    assert (found["state"], found["attached_to"]) == ("attached", "gamma")


def test_ctrl_c_says_that_it_goes_on(cluster: Cluster, tmp_path) -> None:
    environment = {**clean_environment(tmp_path), "FARBUS_SOCKET": cluster.socket}
    with subprocess.Popen(
        [sys.executable, "-m", "farbus.cli", "volume", "attach", "slow", "--node", "gamma"],
        cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert "node gamma prepares it" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert rest == "farbus: what was asked of volume slow goes on; farbus volume list shows how far it is\n"
    assert process.returncode == 130


def test_parts_that_nobody_knows_are_adopted_or_removed(ask, cluster: Cluster) -> None:
    none = ask("orphans")
    assert (none.stdout, none.stderr) == ("", "the cluster knows all parts of volumes that nodes have\n")
    assert ask("orphans", "data").returncode == 3
    assert ask("orphans", "data", "--adopt", "--user", "bob").stdout == "volume data is bob's\n"
    _, text = cluster.line().split(maxsplit=1)
    assert msgspec.json.decode(text, type=AdoptRequest) == AdoptRequest(volume="data", user="bob")
    refused = ask("orphans", "data", "--remove")
    assert (refused.returncode, "all that is on it would be lost; say so with --yes" in refused.stderr) == (2, True)
    assert ask("orphans", "data", "--remove", "--yes", "-q").stdout == "volume data is removed\n"
    _, text = cluster.line().split(maxsplit=1)
    assert msgspec.json.decode(text, type=AdoptRequest) == AdoptRequest(volume="data", remove=True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--adopt"], "which volume's?"),
        (["data", "--adopt", "--remove"], "--adopt and --remove exclude each other"),
        (["data", "--user", "bob"], "--user has a meaning with --adopt alone"),
    ],
)
def test_what_makes_no_sense_of_orphans_is_refused(ask, arguments: list[str], told: str) -> None:
    done = ask("orphans", *arguments)
    assert (done.returncode, told in done.stderr) == (2, True)


FIO = """#!/bin/sh
echo "$@" >> {kept}
cat <<END
{{"jobs": [{{"error": 0,
  "read": {{"bw_bytes": 3221225472, "iops": 12345.6,
    "clat_ns": {{"mean": 80000, "percentile": {{"99.000000": 200000}}}}}},
  "write": {{"bw_bytes": 1000000000, "iops": 99, "clat_ns": {{"mean": 10}}}}}}]}}
END
"""


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have this machine be node gamma, with a fio that answers at once and a device where volumes are."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "fio").write_text(FIO.format(kept=tmp_path / "jobs"))
    (programs / "fio").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    device = tmp_path / "device"
    device.write_bytes(bytes(2**20))

    def below(path: str) -> str:
        if path not in ("/srv/data", "/run/v"):
            raise NotFound(path)
        return str(device)

    monkeypatch.setattr(volume_bench, "device_below", below)
    return device


def test_bench_reads_what_is_attached_here(ask, drive: Path) -> None:
    done = ask("bench", "data", "--seconds", "2")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[1] == ["sequential_read", "1", "MiB", "16", "3", "GiB/s", "-", "-"]
    assert lines[2] == ["random_read_iops", "4", "KiB", "32", "12,346", "1/s", "-", "-"]
    assert [line[0] for line in lines[3:]] == ["random_read_iops", "random_read_mean", "random_read_p99"]
    assert done.stderr.startswith("farbus: data: sequential reads, 2 s\n")
    jobs = (drive.parent / "jobs").read_text().splitlines()
    assert len(jobs) == 3
    assert all("--readonly" in job and f"--filename={drive}" in job for job in jobs)


def test_bench_attaches_what_nobody_has_and_detaches_it(ask, cluster: Cluster, drive: Path) -> None:
    done = ask("bench", "torn", "--seconds", "1", "-o", "json", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert (told["bench"], told["volume"], told["node"], told["device"]) == ("volume", "torn", "gamma", str(drive))
    assert [row["name"] for row in told["results"]].count("random_read_iops") == 2
    _, text = cluster.line().split(maxsplit=1)
    assert msgspec.json.decode(text, type=AttachRequest) == AttachRequest(
        volume="torn", node="gamma", use=StorageUse.RAW, read_only=True
    )
    assert cluster.line() == "detach torn"


def test_bench_detaches_where_nothing_could_be_measured(
    ask, cluster: Cluster, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_bench, "device_below", missing)
    done = ask("bench", "torn", "-q")
    assert (done.returncode, done.stderr) == (3, "farbus: /run/v: it is not there\n")
    assert cluster.line().startswith("attach ")
    assert cluster.line() == "detach torn"


def missing(path: str) -> str:
    raise NotFound(f"{path}: it is not there")


def test_bench_writes_to_what_holds_nothing_and_leaves_its_beginning(ask, drive: Path) -> None:
    assert ask("bench", "torn", "--write").returncode == 2
    assert not (drive.parent / "jobs").exists()
    assert ask("bench", "torn", "--write", "--yes", "-q").returncode == 0
    jobs = (drive.parent / "jobs").read_text().splitlines()
    writes = [job for job in jobs if "--readonly" not in job]
    assert len(writes) == 2
    assert all("--offset=1048576" in job for job in writes)


def test_bench_writes_to_nothing_that_holds_anything(ask, cluster: Cluster, drive: Path) -> None:
    drive.write_bytes(b"somebody's" + bytes(2**20))
    done = ask("bench", "torn", "--write", "--yes", "-q")
    assert (done.returncode, "it is not written to; leave --write out" in done.stderr) == (7, True)
    mounted = ask("bench", "data", "--write", "--yes", "-q")
    assert mounted.stderr == ("farbus: volume data is attached as mount: it is not written to; leave --write out\n")
    assert not (drive.parent / "jobs").exists()


def test_bench_is_for_the_node_that_has_it(ask, drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask("bench", "old").stderr.startswith("farbus: volume old is lost")
    assert ask("bench", "none").returncode == 3
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = ask("bench", "data")
    assert (done.returncode, done.stderr) == (
        5, "farbus: block devices are read by root; sudo farbus volume bench data\n"
    )  # fmt: skip


def test_what_drives_bring_is_beside_it() -> None:
    status = volume("data", VolumeState.ATTACHED)
    devices = [
        DeviceStatus(
            device=Device(id=f"NVME-{number}", kind=DeviceKind.NVME, model="m", bandwidth_bytes_per_s=number * 10**9),
            node="beta",
            state=DeviceState.FREE,
        )
        for number in (1, 2, 3)
    ]
    assert volume_bench.drives_rate(status, devices) == 3 * 10**9
    assert volume_bench.drives_rate(status, devices[:2]) == 0
    result = FioResult(bytes_per_s=1.5e9, iops=1500, mean_us=1, p99_us=2)
    reads, writes = volume_bench.READS[0], volume_bench.WRITES[0]
    (read,) = volume_bench.figures_of(reads, result, promised=10**9, drives_bytes_per_s=3 * 10**9)
    assert (read.row["reference"], read.row["ratio"], read.row["promised"]) == (3 * 10**9, 0.5, 10**9)
    assert writes.pattern is Pattern.WRITE
    (wrote,) = volume_bench.figures_of(writes, result, promised=10**9, drives_bytes_per_s=3 * 10**9)
    assert (wrote.reference, wrote.promised) == (None, 10**9)
