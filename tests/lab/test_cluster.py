"""Two machines of a cluster: a program on one works with a GPU of the other, whatever happens to agents and disks.

``a`` has the scheduler and no GPU; ``b`` has two software GPUs, and its agent's state on a drive of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lab.cluster import (
    JOB_LIMIT_S,
    STATE,
    exposure_of,
    farbus,
    job_until,
    log_has,
    main_pid,
    nodes_are_ready,
    now,
    processes_of,
    put_in,
    said_by,
    submit,
    units_of_programs,
)
from tests.lab.guest import Guest, patient
from tests.lab.nodes import Lab, cluster_start

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

DISK_BYTES = 128 * 2**20
DRIVE = "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_state"

DISK_FAILS = "nothing new begins here: the disk fails"
DISK_IS_BACK = "the disk works again"


class Pair(NamedTuple):
    """The two machines."""

    a: Guest
    b: Guest


def mount_state(guest: Guest, *, new: bool = False) -> None:
    """Mount the drive, by way of the device mapper, where the agent's state is."""
    make = "mke2fs -q -t ext4 /dev/mapper/state;" if new else ""
    guest.until(f"test -b {DRIVE}")
    guest.shell(
        f'modprobe dm_mod; dmsetup create state --table "0 $(blockdev --getsz {DRIVE}) linear {DRIVE} 0";'
        f"{make} mkdir -p {STATE}; mount /dev/mapper/state {STATE}"
    )


@pytest.fixture(scope="module")
def pair(lab: Lab, programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    if not (programs / "stay").exists():
        pytest.skip("needs nvcc for a CUDA program")
    a, b = lab.nodes("a", "b", farbus=True)
    a.copy_in(programs / "stay", "/usr/local/bin/stay")
    disk = tmp_path_factory.mktemp("disk") / "state"
    with disk.open("wb") as file:
        file.truncate(DISK_BYTES)
    b.plug_drive("state", port="port1", file=disk, serial="state")
    mount_state(b, new=True)
    # Its log is to be there when its disks are not.
    b.write("/run/systemd/journald.conf.d/lab.conf", "[Journal]\nStorage=volatile\n")
    b.run("systemctl", "restart", "systemd-journald")
    cluster_start({"b": 2}).run([a, b])
    return Pair(a, b)


def enough(pair: Pair, job: str) -> None:
    """Let a program of ``stay`` come to its end."""
    pair.a.run("touch", f"/run/enough.{job}")


def use_a_gpu(pair: Pair) -> str:
    """Submit a program that runs on a and works with a GPU of b; return its job once it does."""
    # Often enough to notice a break, seldom enough for an emulated processor to get to other things.
    stay = ["sh", "-c", "exec stay /run/enough.$FARBUS_JOB 200"]
    job = submit(pair.a, "--gpus", "1", "--node", "a", "--", *stay)
    log_has(pair.a, job, "using 1 device(s)")
    return job


def supervisor_of(pair: Pair) -> str:
    """Return the unit on b that serves the lease."""
    (unit,) = (unit for unit in units_of_programs(pair.b) if unit.startswith("farbus-lease-"))
    return unit


SERVING = ("farbus-remoting", "farbus-remoting", "farbus-remoting", "root")
"""Whose a lease's processes are: supervisor, the program's server, one in reserve for the next; their keeper."""


def serving_of(pair: Pair) -> dict[str, tuple[str, ...]]:
    """Return the processes on b that serve the lease, once the one in reserve is there."""
    unit = supervisor_of(pair)
    group = f"/sys/fs/cgroup$(systemctl show --property=ControlGroup --value {unit})"
    pair.b.until(f"[ $(cat $(find {group} -name cgroup.procs) | wc -l) = {len(SERVING)} ]", limit_s=JOB_LIMIT_S)
    return processes_of(pair.b, unit)


def test_remoting_runs_in_a_sandbox(pair: Pair, tell: Callable[[str], None]) -> None:
    job = use_a_gpu(pair)
    unit = supervisor_of(pair)
    serving = serving_of(pair)
    assert sorted(process[1] for process in serving.values()) == list(SERVING)
    assert {process[2:] for process in serving.values()} == {("1", "2")}
    tell(f"farbus-lease-*.service: exposure {exposure_of(pair.b, unit):g}")
    enough(pair, job)
    job_until(pair.a, job, "succeeded")


def change_version(guest: Guest, wheel: Path) -> None:
    """Put in another version, then restart, as docs/install.md says of upgrades; the scheduler first where it is."""
    put_in(guest, wheel)
    services = ["scheduler", "agent"] if guest.name == "a" else ["agent"]
    for service in services:
        guest.shell(f"farbus install {service}; systemctl restart farbus-{service}", limit_s=JOB_LIMIT_S)
    assert guest.run("farbus", "version").stdout.split()[1] == version_of(wheel)


def version_of(wheel: Path) -> str:
    """Return the version that the name of a wheel tells."""
    return wheel.name.split("-")[1]


@pytest.fixture(scope="module")
def versions(wheel: Path, next_wheel: Path) -> dict[str, Path]:
    (old,), (new,) = wheel.glob("*.whl"), next_wheel.glob("*.whl")
    return {"rollback": old, "upgrade": new}


BLOWS: dict[str, Callable[[Guest, dict[str, Path]], object]] = {
    "restart": lambda guest, _: guest.run("systemctl", "restart", "farbus-agent", limit_s=JOB_LIMIT_S),
    "kill": lambda guest, _: guest.kill("farbus-agent"),
    "upgrade": lambda guest, versions: change_version(guest, versions["upgrade"]),
    "rollback": lambda guest, versions: change_version(guest, versions["rollback"]),
}


@pytest.mark.parametrize("blow", BLOWS)
def test_remoting_session_outlives_both_agents(pair: Pair, versions: dict[str, Path], blow: str) -> None:
    job = use_a_gpu(pair)
    serving = serving_of(pair)
    program = pair.a.run("pgrep", "-x", "stay").stdout
    for guest in pair:
        agent = main_pid(guest, "farbus-agent")
        BLOWS[blow](guest, versions)
        guest.until(
            f"systemctl is-active --quiet farbus-agent && [ $(systemctl show -P MainPID farbus-agent) != {agent} ]",
            limit_s=JOB_LIMIT_S,
        )
    nodes_are_ready(pair.a, 2)
    if blow in versions:
        line = f'"agent_version": "{version_of(versions[blow])}"'
        farbus(pair.a, "nodes", "-o", "json", until=re.escape(line), count=2)
    assert processes_of(pair.b, supervisor_of(pair)) == serving
    assert pair.a.run("pgrep", "-x", "stay").stdout == program
    enough(pair, job)
    job_until(pair.a, job, "succeeded")
    said = pair.a.run("farbus", "logs", job, user="alice").stdout
    assert said.splitlines() == ["using 1 device(s)", "right throughout"]
    for guest in pair:
        guest.until(
            "! systemctl list-units --plain --no-legend 'farbus-task-*' 'farbus-lease-*' | grep farbus",
            limit_s=JOB_LIMIT_S,
        )


# A disk that fails while its node's agent runs.  What is used of b meanwhile: a GPU, and a task of its own.

LINES = "for i in $(seq 1 100000); do echo line $i; [ -e /run/go.$FARBUS_JOB ] && break; sleep 0.5; done; exit 5"


def turn_read_only(guest: Guest) -> None:
    """Turn all disks read-only, as the kernel does with one that fails, and all but the agent's back."""
    guest.shell(
        "dmesg --clear; echo 1 > /proc/sys/kernel/sysrq; echo u > /proc/sysrq-trigger;"
        "until dmesg | grep -q 'Emergency Remount complete'; do sleep 0.1; done; mount -o remount,rw /"
    )


def return_errors(guest: Guest) -> None:
    """Let every access to the agent's disk fail with EIO (Documentation/admin-guide/device-mapper)."""
    guest.shell(
        f'dmsetup suspend --noflush state; dmsetup load state --table "0 $(blockdev --getsz {DRIVE}) error";'
        "dmsetup resume state"
    )


def node_seen(pair: Pair, name: str) -> dict[str, str]:
    """Return what ``farbus nodes`` shows of a node."""
    nodes = json.loads(farbus(pair.a, "nodes", "-o", "json").stdout)
    (node,) = (node for node in nodes if node["node"]["name"] == name)
    return {"state": node["state"], "cordon": node["cordon"]}


def is_told_and_shut(pair: Pair, since: str, reason: str) -> str:
    """Wait until the scheduler gives b nothing new; return a job that waits for it, after explaining why."""
    farbus(pair.a, "nodes", "-o", "json", until='"cordoned"', count=1)
    seen = node_seen(pair, "b")
    assert seen["cordon"].startswith(f"node b: {reason}")
    waiting = submit(pair.a, "--node", "b", "--", "true")
    farbus(pair.a, "explain", waiting, until=re.escape(f"node b takes nothing new: {reason}"), user="alice")
    loud = [line for line in said_by(pair.b, "farbus-agent", since=since) if line["event"] == DISK_FAILS]
    assert [line["level"] for line in loud] == ["error"]
    return waiting


@pytest.fixture
def writable_again(pair: Pair) -> Iterator[None]:
    yield
    pair.b.run("mount", "-o", "remount,rw", STATE)


@pytest.mark.usefixtures("writable_again")
def test_read_only_disk_keeps_what_runs_and_takes_the_rest_when_it_is_back(pair: Pair) -> None:
    job = use_a_gpu(pair)
    own = submit(pair.a, "--node", "b", "--", "sh", "-c", LINES)
    log_has(pair.a, own, "line 3")
    agent, serving = main_pid(pair.b, "farbus-agent"), serving_of(pair)
    since = now(pair.b)
    turn_read_only(pair.b)
    waiting = is_told_and_shut(pair, since, f"{STATE}: Read-only file system")
    assert processes_of(pair.b, supervisor_of(pair)) == serving
    assert main_pid(pair.b, "farbus-agent") == agent
    # Its end is told all the same.
    pair.b.run("touch", f"/run/go.{own}")
    job_until(pair.a, own, "failed")
    assert '"exit_code": 5' in pair.a.run("farbus", "jobs", own, "-o", "json", user="alice").stdout
    pair.b.run("mount", "-o", "remount,rw", STATE)
    job_until(pair.a, waiting, "succeeded")
    assert node_seen(pair, "b") == {"state": "ready", "cordon": ""}
    assert DISK_IS_BACK in [line["event"] for line in said_by(pair.b, "farbus-agent", since=since)]
    enough(pair, job)
    job_until(pair.a, job, "succeeded")


def test_disk_that_returns_errors_keeps_what_runs_and_takes_the_rest_after_its_repair(pair: Pair) -> None:
    job = use_a_gpu(pair)
    own = submit(pair.a, "--node", "b", "--", "sh", "-c", LINES)
    log_has(pair.a, own, "line 3")
    agent, serving = main_pid(pair.b, "farbus-agent"), serving_of(pair)
    since = now(pair.b)
    return_errors(pair.b)
    waiting = is_told_and_shut(pair, since, f"{STATE}: ")
    assert processes_of(pair.b, supervisor_of(pair)) == serving
    assert main_pid(pair.b, "farbus-agent") == agent
    pair.b.run("touch", f"/run/go.{own}")
    job_until(pair.a, own, "failed")
    enough(pair, job)
    job_until(pair.a, job, "succeeded")
    # A file system with a journal of its own stays shut after an error until it is mounted anew: by a reboot.
    pair.b.reboot()
    pair.b.until(f"test -b {DRIVE}")
    pair.b.shell(f"e2fsck -fy {DRIVE} || [ $? = 1 ]")
    mount_state(pair.b)
    pair.b.shell("systemctl start farbus-agent", limit_s=JOB_LIMIT_S)
    job_until(pair.a, waiting, "succeeded")
    assert node_seen(pair, "b") == {"state": "ready", "cordon": ""}
