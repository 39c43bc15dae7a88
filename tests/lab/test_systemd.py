"""Agent and scheduler as services of a real systemd: installed, started, watched, restarted, rebooted, removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.cluster import (
    JOB_LIMIT_S,
    exposure_of,
    job_seen,
    job_until,
    log_has,
    main_pid,
    nodes_are_ready,
    put_in,
    submit,
    units_of_programs,
)
from tests.lab.guest import Guest, GuestError, patient

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

#: Everything that an installation may change; what others write there meanwhile is left out.
LISTING = (
    "find /etc /usr/local /var/lib /run/farbus /sys/fs/cgroup /opt -xdev"
    r" \( -path '*/systemd/*' -prune -o -path /sys/fs/cgroup/system.slice -prune -o -path '/opt/farbus/*' -prune \)"
    " -o -print 2>/dev/null | grep -v -e '/etc/.*-$' -e '/sys/fs/cgroup/.*/.*' | sort; ls /usr/local/lib/systemd 2>&1"
)


@pytest.fixture(scope="module")
def machine(image: Path, wheel: Path, tell: Callable[[str], None]) -> Iterator[Guest]:
    """A machine on which pip has installed Farbus."""
    with Guest.boot(image, name="alpha", share={"wheel": wheel}, memory_mib=3072) as guest:
        tell(f"guest {guest.name} booted in {guest.boot_s:.0f} s")
        put_in(guest, "wheel").wait()
        yield guest


@pytest.fixture(scope="module")
def before(machine: Guest) -> str:
    """What there was before the installation."""
    return machine.shell(LISTING, check=False).stdout


@pytest.fixture(scope="module")
def node(machine: Guest, before: str) -> Guest:
    """The machine with both services, as docs/install.md says; it has two software GPUs."""
    del before
    machine.shell(
        """
        farbus install scheduler
        farbus install agent
        farbus ca init
        farbus ca issue control --role scheduler --out /etc/farbus/scheduler
        farbus ca issue alpha --role node --out /etc/farbus/node
        # A restart of the agent takes longer here than the leases of a real cluster last.
        sed -i 's/^# lease_ttl_s.*/lease_ttl_s = 900.0/' /etc/farbus/scheduler.toml
        sed -i 's/^# operator_nodes.*/operator_nodes = ["alpha"]/' /etc/farbus/scheduler.toml
        sed -i 's/^# softgpu.*/softgpu = "count=2,mem=256MiB"/' /etc/farbus/agent.toml
        sed -i 's/^# address.*/address = "127.0.0.1"/' /etc/farbus/agent.toml
        systemctl enable --now farbus-scheduler farbus-agent
        """,
        limit_s=JOB_LIMIT_S,
    )
    nodes_are_ready(machine)
    return machine


def test_units_are_right(node: Guest) -> None:
    units = ["farbus-agent.service", "farbus-scheduler.service", "farbus-programs.slice", "farbus.slice"]
    assert node.run("systemd-analyze", "verify", "--man=no", *units).stderr == ""


@pytest.mark.parametrize("unit", ["farbus-agent", "farbus-scheduler"])
def test_service_is_green(node: Guest, unit: str) -> None:
    node.run("systemctl", "is-enabled", unit)
    assert "active (running)" in node.run("systemctl", "status", unit).stdout


def test_scheduler_runs_as_its_own_user(node: Guest) -> None:
    assert node.run("ps", "-o", "user=", main_pid(node, "farbus-scheduler")).stdout.strip() == "farbus"


def test_repeated_installation_changes_nothing(node: Guest) -> None:
    said = node.shell("farbus install agent; farbus install scheduler").stdout
    assert ": made" not in said
    assert ": replaced" not in said
    assert "systemctl restart farbus-agent.service" in said


#: Exposure as systemd-analyze(1) counts it: what the agent has to do as root costs it most.
EXPOSURE = {"farbus-agent.service": 4.5, "farbus-scheduler.service": 1.5}


@pytest.mark.parametrize("unit", EXPOSURE)
def test_service_is_no_more_exposed_than_it_was(node: Guest, unit: str, tell: Callable[[str], None]) -> None:
    exposure = exposure_of(node, unit)
    tell(f"{unit}: exposure {exposure:g}")
    assert exposure <= EXPOSURE[unit], node.run("systemd-analyze", "security", "--no-pager", unit).stdout


def test_job_runs_as_its_user_in_a_unit_of_its_own(node: Guest) -> None:
    script = "id -un; cat /proc/self/cgroup; grep -e NoNewPrivs -e CapBnd -e Seccomp: /proc/self/status"
    said = node.run(
        "farbus", "submit", "--follow", "--", "sh", "-c", script, user="alice", limit_s=JOB_LIMIT_S
    ).stdout.splitlines()  # fmt: skip
    assert said[1] == "alice" or said[0] == "alice"
    (group,) = (line for line in said if line.startswith("0::"))
    assert group.startswith("0::/farbus.slice/farbus-programs.slice/farbus-task-")
    # It is a login's process: nothing of the agent's sandbox.
    assert {"NoNewPrivs:\t0", "Seccomp:\t0", "CapBnd:\t000001ffffffffff"} <= set(said)


def test_memory_limit_ends_a_job_with_the_reason(node: Guest) -> None:
    hungry = ["python3", "-c", "print(len(bytearray(300 * 2**20)))"]
    job = submit(node, "--memory", "64MiB", "--", *hungry)
    job_until(node, job, "failed")
    assert "it used more memory than the 64 MiB that it asked for" in job_seen(node, job)


def test_agent_may_open_devices_whose_driver_comes_later(node: Guest) -> None:
    # What ProtectClock= or DevicePolicy= would forbid to NVML.
    assert node.run("systemctl", "show", "--property=DevicePolicy,DeviceAllow", "farbus-agent").stdout.split() == [
        "DevicePolicy=auto"
    ]  # fmt: skip


@pytest.fixture
def drop_in(node: Guest) -> Iterator[str]:
    path = "/etc/systemd/system/farbus-agent.service.d/test.conf"
    yield path
    node.shell(f"rm -r {Path(path).parent}; systemctl daemon-reload; systemctl restart farbus-agent")


def test_agent_that_hangs_is_started_again(node: Guest, drop_in: str) -> None:
    node.write(drop_in, "[Service]\nWatchdogSec=8\n")
    node.shell("systemctl daemon-reload; systemctl restart farbus-agent")
    hung = main_pid(node, "farbus-agent")
    node.run("kill", "-STOP", hung)
    node.until(
        f"pid=$(systemctl show --property=MainPID --value farbus-agent); [ $pid != {hung} ] && [ $pid != 0 ]"
        " && systemctl is-active --quiet farbus-agent",
        limit_s=JOB_LIMIT_S,
    )
    assert "watchdog" in node.run("journalctl", "-u", "farbus-agent", "-n", "50").stdout.lower()


def test_reload_takes_new_settings_in(node: Guest) -> None:
    node.shell("printf '\\n[labels]\\nrack = \"r12\"\\n' >> /etc/farbus/agent.toml; systemctl reload farbus-agent")
    node.until("farbus nodes -o json | grep -q r12", limit_s=JOB_LIMIT_S)
    node.run("systemctl", "is-active", "farbus-agent")


def test_reload_of_wrong_settings_changes_nothing_and_says_what_is_wrong(node: Guest) -> None:
    pid = main_pid(node, "farbus-agent")
    node.shell("cp /etc/farbus/agent.toml /var/tmp/agent.toml; echo 'nonsense' >> /etc/farbus/agent.toml")
    node.run("systemctl", "reload", "farbus-agent")
    node.until("journalctl -u farbus-agent -o cat | grep 'settings not reloaded' | grep -q 'not TOML'")
    node.shell("cp /var/tmp/agent.toml /etc/farbus/agent.toml; systemctl reload farbus-agent")
    node.until("[ $(systemctl show --property=ActiveState --value farbus-agent) = active ]")
    assert main_pid(node, "farbus-agent") == pid


def test_reload_of_the_scheduler_says_what_needs_a_restart(node: Guest) -> None:
    node.shell("sed -i 's/^lease_ttl_s.*/lease_ttl_s = 901.0/' /etc/farbus/scheduler.toml")
    node.run("systemctl", "reload", "farbus-scheduler")
    node.until("journalctl -u farbus-scheduler -o cat | grep 'settings need a restart' | grep -q lease_ttl_s")
    node.run("systemctl", "is-active", "farbus-scheduler")


COUNT = (
    "for i in $(seq 1 20000); do echo line $i; [ -e /run/go.$FARBUS_JOB ] && break; sleep 0.1; done; echo last; exit 5"
)


@pytest.mark.parametrize(
    "blow",
    [
        "systemctl restart farbus-agent",
        "systemctl kill --kill-whom=main --signal=KILL farbus-agent",
        "systemctl restart farbus-scheduler",
    ],
)
def test_job_outlives(node: Guest, blow: str) -> None:
    job = submit(node, "--", "sh", "-c", COUNT)
    node.until(f"farbus logs {job} | grep 'line 3'", limit_s=JOB_LIMIT_S, user="alice")
    program = node.run("pgrep", "-o", "-u", "alice", "-f", "echo line").stdout
    node.shell(blow)
    node.until(
        "systemctl is-active --quiet farbus-agent && systemctl is-active --quiet farbus-scheduler", limit_s=JOB_LIMIT_S
    )
    nodes_are_ready(node)
    assert node.run("pgrep", "-o", "-u", "alice", "-f", "echo line").stdout == program
    node.run("touch", f"/run/go.{job}")
    job_until(node, job, "failed")
    assert '"exit_code": 5' in json.dumps(json.loads(job_seen(node, job)))
    lines = node.run("farbus", "logs", job, user="alice").stdout.splitlines()
    assert lines == [*(f"line {number}" for number in range(1, len(lines))), "last"]


def test_task_whose_unit_is_stopped_has_not_succeeded(node: Guest) -> None:
    # systemd tells the keeper and, after it, what is left (KillMode=mixed): this program would end well.
    job = submit(node, "--", "sh", "-c", "trap 'exit 0' TERM; echo ready; sleep 100000 & wait")
    log_has(node, job, "ready")
    (unit,) = units_of_programs(node)
    node.run("systemctl", "stop", unit)
    job_until(node, job, "failed")
    assert "its unit was stopped" in job_seen(node, job)
    assert units_of_programs(node) == []


def test_root_of_a_node_that_operates_the_cluster_sees_and_ends_jobs_of_others(node: Guest) -> None:
    job = submit(node, "--", "sleep", "100000")
    assert '"alice"' in node.run("farbus", "jobs", job, "-o", "json").stdout
    assert "operators" in node.run("farbus", "jobs", job, user="bob", check=False).stderr
    node.run("farbus", "cancel", job)
    job_until(node, job, "cancelled")


def test_uninstallation_is_refused_while_programs_run(node: Guest) -> None:
    job = submit(node, "--", "sleep", "100000")
    node.until("systemctl list-units --plain --no-legend 'farbus-task-*' | grep running", limit_s=JOB_LIMIT_S)
    with pytest.raises(GuestError, match="1 programs run here for others"):
        node.run("farbus", "install", "agent", "--uninstall")
    node.run("farbus", "cancel", job, user="alice")
    job_until(node, job, "cancelled")


def test_reboot_keeps_history_and_ends_what_ran(node: Guest) -> None:
    ended = submit(node, "--", "true")
    job_until(node, ended, "succeeded")
    running = submit(node, "--", "sleep", "100000")
    job_until(node, running, "running")
    node.reboot()
    nodes_are_ready(node)
    job_until(node, running, "failed")
    assert '"succeeded"' in job_seen(node, ended)
    assert units_of_programs(node) == []


def test_uninstallation_leaves_nothing(node: Guest, before: str) -> None:
    node.shell(
        "farbus install agent --uninstall --purge --force; farbus install scheduler --uninstall --purge;"
        "rm -r /etc/farbus/ca; rmdir /etc/farbus",
        limit_s=JOB_LIMIT_S,
    )
    assert node.shell(LISTING, check=False).stdout == before
    assert node.shell("getent passwd farbus farbus-remoting", check=False).stdout == ""
    assert node.run("systemctl", "list-units", "--all", "--no-legend", "farbus*").stdout == ""
