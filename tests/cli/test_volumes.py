"""``farbus volume``; the cluster's answers are known."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import msgspec
import pytest

from farbus.model.volume import AttachRequest, FileSystem, StorageUse, VolumeRequest
from tests.cli.conftest import ROOT, Cluster, Farbus, clean_environment


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
    assert ask("delete", "data", "--yes", "-q").stdout == "volume data is deleted\n"
    assert cluster.line() == "delete data"


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
