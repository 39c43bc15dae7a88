"""Two machines of a cluster: a program on one works with a GPU of the other, whatever happens to agents and disks.

``alpha`` has the scheduler and no GPU; ``beta`` has two software GPUs, and its agent's state on a disk of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lab.cluster import (
    INSTALL_LIMIT_S,
    JOB_LIMIT_S,
    STATE,
    exposure_of,
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
from tests.lab.guest import Cable, Guest, patient

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

ADDRESSES = {"alpha": "10.9.0.1", "beta": "10.9.0.2"}

DISK_BYTES = 128 * 2**20

DISK_FAILS = "nothing new begins here: the disk fails"
DISK_IS_BACK = "the disk works again"


class Pair(NamedTuple):
    """The two machines."""

    alpha: Guest
    beta: Guest


def join_network(guest: Guest) -> None:
    hosts = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
    guest.shell(
        f"ip addr add {ADDRESSES[guest.name]}/24 dev {guest.cables[0]}; ip link set {guest.cables[0]} up;"
        f"grep -q beta /etc/hosts || printf '{hosts}' >> /etc/hosts"
    )


def mount_state(guest: Guest, *, new: bool = False) -> None:
    """Mount the second disk, by way of the device mapper, where the agent's state is."""
    make = "mke2fs -q -t ext4 /dev/mapper/state;" if new else ""
    guest.shell(
        'modprobe dm_mod; dmsetup create state --table "0 $(blockdev --getsz /dev/vdb) linear /dev/vdb 0";'
        f"{make} mkdir -p {STATE}; mount /dev/mapper/state {STATE}"
    )


@pytest.fixture(scope="module")
def pair(
    image: Path,
    wheel: Path,
    next_wheel: Path,
    programs: Path,
    tmp_path_factory: pytest.TempPathFactory,
    tell: Callable[[str], None],
) -> Iterator[Pair]:
    if not (programs / "stay").exists():
        pytest.skip("needs nvcc for a CUDA program")
    disk = tmp_path_factory.mktemp("disk") / "state"
    with disk.open("wb") as file:
        file.truncate(DISK_BYTES)
    cable = Cable()
    share = {"wheel": wheel, "next": next_wheel, "programs": programs}
    second = ["-drive", f"file={disk},if=virtio,format=raw,cache=unsafe"]
    with (
        Guest.power_on(image, name="alpha", share=share, join=[cable], memory_mib=2048) as alpha,
        Guest.power_on(image, name="beta", share=share, join=[cable], memory_mib=2048, devices=second) as beta,
    ):
        for guest in (alpha, beta):
            guest.wait_for_boot()
            join_network(guest)
            tell(f"guest {guest.name} booted within {guest.boot_s:.0f} s, beside another")
        installing = [put_in(guest, "wheel") for guest in (alpha, beta)]
        mount_state(beta, new=True)
        # Its log is to be there when its disks are not.
        beta.write("/run/systemd/journald.conf.d/lab.conf", "[Journal]\nStorage=volatile\n")
        beta.run("systemctl", "restart", "systemd-journald")
        for one in installing:
            one.wait()
        set_up(alpha, beta)
        yield Pair(alpha, beta)


def set_up(alpha: Guest, beta: Guest) -> None:
    """Make the cluster, as docs/install.md says."""
    # A restart of an agent takes longer here than the leases of a real cluster last.
    alpha.shell(
        """
        farbus install scheduler
        farbus install agent --scheduler alpha:7411
        farbus ca init
        farbus ca issue alpha --role scheduler --out /etc/farbus/scheduler
        farbus ca issue alpha --role node --out /etc/farbus/node
        farbus ca issue beta --role node --out /run/beta
        sed -i 's/^# lease_ttl_s.*/lease_ttl_s = 900.0/' /etc/farbus/scheduler.toml
        systemctl start farbus-scheduler farbus-agent
        """,
        limit_s=INSTALL_LIMIT_S,
    )
    certificate = alpha.shell("tar -C /run/beta -c . | base64 -w 0").stdout
    beta.shell("farbus install agent --scheduler alpha:7411", limit_s=INSTALL_LIMIT_S)
    beta.run("sh", "-c", "base64 -d | tar -C /etc/farbus/node -x", input=certificate)
    beta.shell(
        "sed -i 's/^# softgpu.*/softgpu = \"count=2,mem=256MiB\"/' /etc/farbus/agent.toml;systemctl start farbus-agent",
        limit_s=JOB_LIMIT_S,
    )
    nodes_are_ready(alpha, 2)


def enough(pair: Pair, job: str) -> None:
    """Let a program of ``stay`` come to its end."""
    pair.alpha.run("touch", f"/run/enough.{job}")


def use_a_gpu(pair: Pair) -> str:
    """Submit a program that runs on alpha and works with a GPU of beta; return its job once it does."""
    # Often enough to notice a break, seldom enough for an emulated processor to get to other things.
    stay = ["sh", "-c", "exec /media/programs/stay /run/enough.$FARBUS_JOB 200"]
    job = submit(pair.alpha, "--gpus", "1", "--node", "alpha", "--", *stay)
    log_has(pair.alpha, job, "using 1 device(s)")
    return job


def supervisor_of(pair: Pair) -> str:
    """Return the unit on beta that serves the lease."""
    (unit,) = (unit for unit in units_of_programs(pair.beta) if unit.startswith("farbus-lease-"))
    return unit


def test_remoting_runs_in_a_sandbox(pair: Pair, tell: Callable[[str], None]) -> None:
    job = use_a_gpu(pair)
    unit = supervisor_of(pair)
    serving = processes_of(pair.beta, unit)
    # Its keeper, the supervisor and the program's server.
    assert sorted(process[1] for process in serving.values()) == ["farbus-remoting", "farbus-remoting", "root"]
    assert {process[2:] for process in serving.values()} == {("1", "2")}
    tell(f"farbus-lease-*.service: exposure {exposure_of(pair.beta, unit):g}")
    enough(pair, job)
    job_until(pair.alpha, job, "succeeded")


def upgrade(guest: Guest) -> None:
    """Put in the next version, then restart, as docs/install.md says."""
    put_in(guest, "next").wait()
    guest.shell("farbus install agent; systemctl restart farbus-agent", limit_s=JOB_LIMIT_S)
    assert guest.run("farbus", "version").stdout.split()[1].endswith(".post1")


BLOWS: dict[str, Callable[[Guest], object]] = {
    "restart": lambda guest: guest.run("systemctl", "restart", "farbus-agent", limit_s=JOB_LIMIT_S),
    "kill": lambda guest: guest.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "farbus-agent"),
    "upgrade": upgrade,
}


@pytest.mark.parametrize("blow", BLOWS)
def test_remoting_session_outlives_both_agents(pair: Pair, blow: str) -> None:
    job = use_a_gpu(pair)
    serving = processes_of(pair.beta, supervisor_of(pair))
    program = pair.alpha.run("pgrep", "-x", "stay").stdout
    for guest in pair:
        agent = main_pid(guest, "farbus-agent")
        BLOWS[blow](guest)
        guest.until(
            f"systemctl is-active --quiet farbus-agent && [ $(systemctl show -P MainPID farbus-agent) != {agent} ]",
            limit_s=JOB_LIMIT_S,
        )
    nodes_are_ready(pair.alpha, 2)
    assert processes_of(pair.beta, supervisor_of(pair)) == serving
    assert pair.alpha.run("pgrep", "-x", "stay").stdout == program
    enough(pair, job)
    job_until(pair.alpha, job, "succeeded")
    said = pair.alpha.run("farbus", "logs", job, user="alice").stdout
    assert said.splitlines() == ["using 1 device(s)", "right throughout"]
    for guest in pair:
        guest.until(
            "! systemctl list-units --plain --no-legend 'farbus-task-*' 'farbus-lease-*' | grep farbus",
            limit_s=JOB_LIMIT_S,
        )


# A disk that fails while its node's agent runs.  What is used of beta meanwhile: a GPU, and a task of its own.

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
        'dmsetup suspend --noflush state; dmsetup load state --table "0 $(blockdev --getsz /dev/vdb) error";'
        "dmsetup resume state"
    )


def node_seen(pair: Pair, name: str) -> dict[str, str]:
    """Return what ``farbus nodes`` shows of a node."""
    nodes = json.loads(pair.alpha.run("farbus", "nodes", "-o", "json").stdout)
    (node,) = (node for node in nodes if node["node"]["name"] == name)
    return {"state": node["state"], "cordon": node["cordon"]}


def is_told_and_shut(pair: Pair, since: str, reason: str) -> str:
    """Wait until the scheduler gives beta nothing new; return a job that waits for it, after explaining why."""
    pair.alpha.until(
        "[ $(farbus nodes -o json | grep -c '\"cordoned\"') = 1 ]", limit_s=JOB_LIMIT_S
    )  # fmt: skip
    seen = node_seen(pair, "beta")
    assert seen["cordon"].startswith(f"node beta: {reason}")
    waiting = submit(pair.alpha, "--node", "beta", "--", "true")
    pair.alpha.until(
        f"farbus explain {waiting} | grep 'node beta takes nothing new: {reason}'", user="alice", limit_s=JOB_LIMIT_S
    )
    loud = [line for line in said_by(pair.beta, "farbus-agent", since=since) if line["event"] == DISK_FAILS]
    assert [line["level"] for line in loud] == ["error"]
    return waiting


@pytest.fixture
def writable_again(pair: Pair) -> Iterator[None]:
    yield
    pair.beta.run("mount", "-o", "remount,rw", STATE)


@pytest.mark.usefixtures("writable_again")
def test_read_only_disk_keeps_what_runs_and_takes_the_rest_when_it_is_back(pair: Pair) -> None:
    job = use_a_gpu(pair)
    own = submit(pair.alpha, "--node", "beta", "--", "sh", "-c", LINES)
    log_has(pair.alpha, own, "line 3")
    agent, serving = main_pid(pair.beta, "farbus-agent"), processes_of(pair.beta, supervisor_of(pair))
    since = now(pair.beta)
    turn_read_only(pair.beta)
    waiting = is_told_and_shut(pair, since, f"{STATE}: Read-only file system")
    assert processes_of(pair.beta, supervisor_of(pair)) == serving
    assert main_pid(pair.beta, "farbus-agent") == agent
    # Its end is told all the same.
    pair.beta.run("touch", f"/run/go.{own}")
    job_until(pair.alpha, own, "failed")
    assert '"exit_code": 5' in pair.alpha.run("farbus", "jobs", own, "-o", "json", user="alice").stdout
    pair.beta.run("mount", "-o", "remount,rw", STATE)
    job_until(pair.alpha, waiting, "succeeded")
    assert node_seen(pair, "beta") == {"state": "ready", "cordon": ""}
    assert DISK_IS_BACK in [line["event"] for line in said_by(pair.beta, "farbus-agent", since=since)]
    enough(pair, job)
    job_until(pair.alpha, job, "succeeded")


def test_disk_that_returns_errors_keeps_what_runs_and_takes_the_rest_after_its_repair(pair: Pair) -> None:
    job = use_a_gpu(pair)
    own = submit(pair.alpha, "--node", "beta", "--", "sh", "-c", LINES)
    log_has(pair.alpha, own, "line 3")
    agent, serving = main_pid(pair.beta, "farbus-agent"), processes_of(pair.beta, supervisor_of(pair))
    since = now(pair.beta)
    return_errors(pair.beta)
    waiting = is_told_and_shut(pair, since, f"{STATE}: ")
    assert processes_of(pair.beta, supervisor_of(pair)) == serving
    assert main_pid(pair.beta, "farbus-agent") == agent
    pair.beta.run("touch", f"/run/go.{own}")
    job_until(pair.alpha, own, "failed")
    enough(pair, job)
    job_until(pair.alpha, job, "succeeded")
    # A file system with a journal of its own stays shut after an error until it is mounted anew: by a reboot.
    pair.beta.reboot()
    join_network(pair.beta)
    pair.beta.shell("modprobe dm_mod; e2fsck -fy /dev/vdb || [ $? = 1 ]")
    mount_state(pair.beta)
    pair.beta.shell("systemctl start farbus-agent", limit_s=JOB_LIMIT_S)
    job_until(pair.alpha, waiting, "succeeded")
    assert node_seen(pair, "beta") == {"state": "ready", "cordon": ""}
