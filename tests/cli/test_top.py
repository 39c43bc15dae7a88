"""``farbus top``: the picture, and the terminal it leaves behind."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from farbus.cli.commands.top import WIDE_WIDTH
from farbus.cli.top import Sort, percent, picture, short_bytes, short_count, short_names
from farbus.linux.terminal import keys
from farbus.model.series import CollectorState
from farbus.model.states import NodeState
from farbus.model.telemetry import ClusterTelemetry, GpuTelemetry, LinkTelemetry, NodeTelemetry, SessionTelemetry
from tests.cli.conftest import Cluster, Farbus, clean_environment
from tests.cli.rehearsed_cluster import TELEMETRY

PATIENCE_S = 30


def drawn(telemetry: ClusterTelemetry, *, sort: Sort = Sort.NAME, height: int | None = None, **more: object) -> str:
    console = Console(width=80, file=io.StringIO(), record=True, highlight=False)
    console.print(picture(telemetry, sort=sort, height=height, **more))  # type: ignore[arg-type]
    return console.export_text()


REHEARSED = """\
NODE                     CPU        MEMORY WAIT cpu/mem/io  IN/s OUT/s   SEEN
alpha               50% of 4  2.0G of 8.0G          12 0 3  191M   95M     1s
gamma                 - of 4     - of 8.0G           - - -     -     -  1m15s

GPU          NODE       BUSY        MEMORY    W  °C JOB     USED BY
GPU-0001     alpha       97%  512M of 1.0G    -   - j-1     ada on gamma

PROGRAM      JOB     USER     FROM      ON        VIA  CALLS/s  IN/s OUT/s  BUSY
train        j-1     ada      gamma     alpha     tls     1.2k  2.9M  3.9K   90%

lost: gamma
alpha: network telemetry is old: no answer after 5 s
"""


def test_the_picture_has_nodes_gpus_sessions_and_troubles() -> None:
    title, _, rest = drawn(ClusterTelemetry(nodes=TELEMETRY)).partition("\n\n")
    assert title.split("  ", 1)[1] == "2 nodes (1 lost), 1 GPU (1 in use), 1 session, by name"
    assert rest == REHEARSED


def test_what_takes_nothing_new_is_told() -> None:
    gpu = GpuTelemetry(device="GPU-0001", state="wedged", user="ada", client_node="gamma")
    nodes = (
        NodeTelemetry(node="alpha", state=NodeState.CORDONED),
        NodeTelemetry(node="beta", state=NodeState.READY, gpus=(gpu,)),
        *(NodeTelemetry(node=f"n{number:02}", state=NodeState.LOST) for number in range(10)),
    )
    assert drawn(ClusterTelemetry(nodes=nodes)).splitlines()[-3:] == [
        "lost: n00, n01, n02, n03, n04, n05, n06, n07 and 2 more",
        "cordoned: alpha",
        "beta: GPU-0001 is wedged; farbus devices -o wide says why",
    ]


def test_a_lost_node_is_grey() -> None:
    lost = next(line for line in picture(ClusterTelemetry(nodes=TELEMETRY), sort=Sort.NAME).renderables if "gamma" in
                str(line))  # fmt: skip
    assert str(lost.style) == "dim"  # type: ignore[union-attr]


def hanging(waiting_s: float) -> ClusterTelemetry:
    session = SessionTelemetry(
        lease="l-7", client_pid=7, program="train", server_pid=4_194_304, waiting_s=waiting_s, memory_bytes=2**30
    )
    return ClusterTelemetry(nodes=(NodeTelemetry(node="alpha", state=NodeState.READY, sessions=(session,)),))


def test_a_server_that_hangs_is_told_with_its_node_and_pid() -> None:
    line = "alpha: server 4194304 of train has not come back from a call for 1m15s"
    assert drawn(hanging(75.0)).splitlines()[-1] == line
    assert "server" not in drawn(hanging(59.0))


def test_a_server_that_somebody_has_stopped_is_told_with_what_lets_it_go_on() -> None:
    session = SessionTelemetry(lease="l-7", client_pid=7, program="train", server_pid=4_194_304, stopped=True)
    stopped = ClusterTelemetry(nodes=(NodeTelemetry(node="alpha", state=NodeState.READY, sessions=(session,)),))
    line = "alpha: server 4194304 of train is stopped; kill -CONT lets it go on"
    assert drawn(stopped).splitlines()[-1] == line


def test_a_wide_picture_has_the_processes_of_a_session() -> None:
    console = Console(width=WIDE_WIDTH, file=io.StringIO(), record=True, highlight=False)
    console.print(picture(hanging(7.0), sort=Sort.NAME, wide=True))
    head, row = console.export_text().splitlines()[-2:]
    assert head.split()[-5:] == ["MEMORY", "WAITS", "SERVER", "PID", "LEASE"]
    assert row.split()[-5:] == ["1.0G", "7s", "4194304", "7", "l-7"]
    assert "SERVER" not in drawn(hanging(7.0))


def busy_cluster(nodes: int = 6, gpus: int = 8) -> ClusterTelemetry:
    """Nodes with long names and many GPUs, each busier than the one before."""
    return ClusterTelemetry(
        nodes=tuple(
            NodeTelemetry(
                node=f"node-{number:02}.a-very-long-domain.example.org",
                state=NodeState.READY,
                cpu_milli=256_000,
                cpu_busy_fraction=number / nodes,
                memory_bytes=2**41,
                memory_used_bytes=2**40 - number,
                links=(LinkTelemetry(name="eth0", receive_bytes_per_s=1e10 * (number % 3), send_bytes_per_s=1e9),),
                gpus=tuple(
                    GpuTelemetry(
                        device=f"GPU-8f2d6c{number:02}-0000-4000-8000-00000000000{gpu}",
                        memory_bytes=80 * 2**30,
                        busy_fraction=gpu / 10,
                        memory_used_bytes=2**30 * gpu,
                        power_watts=699.5,
                        temperature_celsius=101.0,
                        user="somebody-with-a-long-name",
                        client_node="a-long-node-name",
                        job="j-1234567890",
                    )
                    for gpu in range(gpus)
                ),
                sessions=(
                    SessionTelemetry(
                        lease="l", job="j-1234567890", user="somebody-with-a-long-name", client_node="x" * 30,
                        client_pid=4_194_304, program="a program\x1b[31m with a long name", calls_per_s=1.2e6,
                        receive_bytes_per_s=1e10, send_bytes_per_s=1e10 * number, busy_fraction=1.0, transport="x" * 30,
                    ),
                ),
                stale=(CollectorState(name="gpu", reason="a reason that goes on " * 10),),
            )
            for number in range(nodes)
        )
    )  # fmt: skip


@pytest.mark.parametrize("height", [None, 24, 40])
def test_nothing_is_wrapped_at_80_columns(height: int | None) -> None:
    lines = drawn(busy_cluster(), height=height, keys=True, error="scheduler at control:7411: " + "gone " * 40)
    told = lines.splitlines()
    assert max(map(len, told)) <= 80
    assert "\x1b" not in lines
    if height is None:
        # Title, error, keys; for each of three sections an empty line and heads; an empty line before the troubles.
        assert len(told) == 3 + 2 * 3 + 6 + 48 + 6 + 1 + 6
    else:
        assert len(told) <= height
        assert re.search(r"^and \d+ more$", lines, re.MULTILINE)


@pytest.mark.parametrize(
    ("sort", "first"),
    [(Sort.NAME, "node-00"), (Sort.BUSY, "node-05"), (Sort.MEMORY, "node-00"), (Sort.TRAFFIC, "node-02")],
)  # fmt: skip
def test_the_order_is_as_asked(sort: Sort, first: str) -> None:
    lines = drawn(busy_cluster(gpus=0), sort=sort).splitlines()
    assert lines[3].startswith(first)
    assert lines[0].endswith(f"by {sort}")


def test_identities_are_as_short_as_tells_them_apart() -> None:
    assert short_names(["GPU-8f2d6c1e-0000", "GPU-8f2d6c1e-0001", "GPU-9"]) == {
        "GPU-8f2d6c1e-0000": "GPU-8f2d6c1e-0000",
        "GPU-8f2d6c1e-0001": "GPU-8f2d6c1e-0001",
        "GPU-9": "GPU-9",
    }
    assert short_names(["GPU-8f2d6c1e-0000"]) == {"GPU-8f2d6c1e-0000": "GPU-8f2d6c1e"}
    assert short_names(["GPU-1", "GPU-1"]) == {"GPU-1": "GPU-1"}
    assert short_names(["GPU-8f2d6c1e-0000/1", "GPU-8f2d6c1e-0000/12"]) == {
        "GPU-8f2d6c1e-0000/1": "GPU-8f2d6c1e/1",
        "GPU-8f2d6c1e-0000/12": "GPU-8f2d6c1e/12",
    }
    assert short_names(["GPU-8f2d6c1e-0000/1", "GPU-8f2d6c1e-0001/1"]) == {
        "GPU-8f2d6c1e-0000/1": "GPU-8f2d6c1e-0000/1",
        "GPU-8f2d6c1e-0001/1": "GPU-8f2d6c1e-0001/1",
    }


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0"), (999, "999"), (1000, "1.0K"), (10_239, "10K"), (2**30, "1.0G"), (999.6 * 2**20, "1.0G"),
     (80 * 2**30, "80G"), (2**60, "1024P")],
)  # fmt: skip
def test_bytes_are_short(count: float | None, text: str) -> None:
    assert short_bytes(count) == text


def test_numbers_and_shares_are_short() -> None:
    assert [short_count(count) for count in (0, 850, 1234, 56_789, 9.99e8, 5e12)] == [
        "0", "850", "1.2k", "57k", "999M", "5T",
    ]  # fmt: skip
    assert [percent(None), percent(0.004), percent(1.0)] == ["-", "0%", "100%"]


@pytest.mark.parametrize(("fraction", "shown"), [(2.5, "250%"), (13.38, "1.3k%"), (133.8, "13k%"), (9_000.0, "900k%")])
def test_what_an_older_server_sums_is_shown_whole(fraction: float, shown: str) -> None:
    session = SessionTelemetry(lease="l", client_pid=7, program="train", busy_fraction=fraction)
    node = NodeTelemetry(node="alpha", state=NodeState.READY, sessions=(session,))
    last = drawn(ClusterTelemetry(nodes=(node,))).splitlines()[-1]
    assert last.endswith(f" {shown}")
    assert len(last) == 80


# The command.


def test_the_help_says_what_busy_is(farbus: Farbus) -> None:
    told = " ".join(farbus("top", "--help").stdout.split())
    assert "BUSY of a program is the share in which the GPU's node had a call of it in work" in told


def test_one_picture_goes_into_a_pipe(farbus: Farbus, shared_cluster: Cluster) -> None:
    ended = farbus("top", environment={"FARBUS_SOCKET": shared_cluster.socket})
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.partition("\n\n")[2] == REHEARSED


def test_a_wide_picture_goes_into_a_pipe(farbus: Farbus, shared_cluster: Cluster) -> None:
    ended = farbus("top", "-o", "wide", environment={"FARBUS_SOCKET": shared_cluster.socket})
    assert ended.returncode == 0, ended.stderr
    assert "WAITS  SERVER     PID LEASE" in ended.stdout


def test_json_has_every_figure(farbus: Farbus, shared_cluster: Cluster) -> None:
    ended = farbus("top", "alpha", "-o", "json", environment={"FARBUS_SOCKET": shared_cluster.socket})
    (node,) = json.loads(ended.stdout)["nodes"]
    assert node["gpus"][0]["device"] == "GPU-0001"
    assert node["gpus"][0]["power_watts"] is None
    assert node["sessions"][0]["receive_bytes_per_s"] == 3e6


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("nowhere",), "there is no node nowhere; farbus nodes lists them"),
        (("--interval", "0.1"), "--interval 0.1: not from 0.5 to 3600 seconds; agents measure every three seconds"),
    ],
)
def test_what_can_not_be_is_one_line(
    farbus: Farbus, shared_cluster: Cluster, arguments: tuple[str, ...], line: str
) -> None:
    ended = farbus("top", *arguments, environment={"FARBUS_SOCKET": shared_cluster.socket})
    assert ended.stderr == f"farbus: {line}\n"
    assert ended.returncode in (2, 3)


class Terminal:
    """``farbus top`` on a terminal of 80 columns and 24 lines."""

    def __init__(self, directory: Path, socket: str, *arguments: str) -> None:
        self.master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self._slave)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "farbus.cli", "top", *arguments],
            env=clean_environment(directory, FARBUS_SOCKET=socket, TERM="xterm-256color"),
            stdin=self._slave, stdout=self._slave, stderr=self._slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - a test has one thread
        )  # fmt: skip
        self.shown = ""

    def until(self, text: str) -> None:
        """Read until ``text`` has been shown since the last time."""
        while text not in self.shown:
            self.shown += os.read(self.master, 65536).decode(errors="replace")
        self.shown = self.shown.partition(text)[2]

    def press(self, key: str) -> None:
        os.write(self.master, key.encode())

    def is_clean(self) -> bool:
        """Say whether the terminal is as it was: first screen, cursor, echo."""
        # Rich shows the cursor again before it goes back to the first screen.
        self.until("\x1b[?25h")
        self.until("\x1b[?1049l")
        self.process.wait(PATIENCE_S)
        return termios.tcgetattr(self._slave) == self.before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self._slave)


def test_a_wide_picture_that_stands_is_not_cut_on_a_narrow_terminal(tmp_path: Path, shared_cluster: Cluster) -> None:
    shown = Terminal(tmp_path, shared_cluster.socket, "--once", "-o", "wide")
    try:
        assert shown.process.wait(PATIENCE_S) == 0
        assert "WAITS  SERVER     PID LEASE" in os.read(shown.master, 65536).decode()
    finally:
        shown.close()


@pytest.fixture
def terminal(tmp_path: Path, shared_cluster: Cluster) -> Iterator[Terminal]:
    shown = Terminal(tmp_path, shared_cluster.socket, "--interval", "3600")
    yield shown
    shown.close()


def test_q_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    terminal.until("q quit")
    terminal.press("t")
    terminal.until("by traffic")
    terminal.press("q")
    assert terminal.is_clean()
    assert terminal.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_terminal_as_it_was(terminal: Terminal, number: int, code: int) -> None:
    terminal.until("q quit")
    if number == signal.SIGINT:
        terminal.press("\x03")
    else:
        terminal.process.send_signal(number)
    assert terminal.is_clean()
    assert terminal.process.wait(PATIENCE_S) == code


async def test_the_end_of_the_terminal_counts_as_q() -> None:
    master, slave = pty.openpty()
    async with keys(slave) as pressed:
        os.write(master, b"\x1b[Ab")
        os.write(master, b"b")
        os.close(master)
        found = []
        while (key := await pressed.next(PATIENCE_S)) != "q":
            found.append(key)
        assert found in ([], ["b"])
    os.close(slave)


async def test_no_key_is_none() -> None:
    master, slave = pty.openpty()
    async with keys(slave) as pressed:
        assert await pressed.next(0.0) is None
        signal.raise_signal(signal.SIGWINCH)
        assert await pressed.next(PATIENCE_S) == ""
    os.close(master)
    os.close(slave)
