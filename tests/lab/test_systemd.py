"""Agent and scheduler as services of a real systemd: installed, started, watched, restarted, rebooted, removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.lab.cluster import (
    JOB_LIMIT_S,
    exposure_of,
    farbus,
    job_seen,
    job_until,
    log_has,
    main_pid,
    nodes_are_ready,
    now,
    submit,
    units_of_programs,
)
from tests.lab.guest import Guest, GuestError, patient
from tests.lab.nodes import Lab, cluster_start

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

SERVICES = ("farbus-scheduler", "farbus-agent")

#: Everything that an installation may change; what others write there meanwhile is left out.
LISTING = (
    "find /etc /usr/local /var/lib /run/farbus /sys/fs/cgroup /opt -xdev"
    r" \( -path '*/systemd/*' -prune -o -path /sys/fs/cgroup/system.slice -prune -o -path '/opt/farbus/*' -prune \)"
    " -o -print 2>/dev/null | grep -v -e '/etc/.*-$' -e '/sys/fs/cgroup/.*/.*' | sort; ls /usr/local/lib/systemd 2>&1"
)


@pytest.fixture(scope="module")
def before(lab: Lab) -> str:
    """What there is where nothing is installed."""
    plain = lab.node("h")
    # pip's, and not the installation's: it stays.
    plain.run("ln", "-s", "/opt/farbus/bin/farbus", "/usr/local/bin/farbus")
    listed = plain.shell(LISTING, check=False).stdout
    lab.discard("h")
    return listed


@pytest.fixture(scope="module")
def node(lab: Lab) -> Guest:
    """A machine with both services, as docs/install.md says; it has two software GPUs."""
    node = lab.node("a", farbus=True)
    cluster_start({"a": 2}).run([node])
    node.run("systemctl", "enable", "--quiet", *SERVICES)
    return node


def test_units_are_right(node: Guest) -> None:
    units = ["farbus-agent.service", "farbus-scheduler.service", "farbus-programs.slice", "farbus.slice"]
    assert node.run("systemd-analyze", "verify", "--man=no", *units).stderr == ""


@pytest.mark.parametrize("unit", SERVICES)
def test_service_is_green(node: Guest, unit: str) -> None:
    node.run("systemctl", "is-enabled", unit)
    assert "active (running)" in node.run("systemctl", "status", unit).stdout


def test_scheduler_runs_as_its_own_user(node: Guest) -> None:
    assert node.run("ps", "-o", "user=", main_pid(node, "farbus-scheduler")).stdout.strip() == "farbus"


def test_repeated_installation_changes_nothing(node: Guest) -> None:
    said = node.shell("farbus install agent; farbus install scheduler", limit_s=JOB_LIMIT_S).stdout
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


def test_reload_takes_new_settings_in(node: Guest) -> None:
    node.shell("printf '\\n[labels]\\nrack = \"r12\"\\n' >> /etc/farbus/agent.toml; systemctl reload farbus-agent")
    farbus(node, "nodes", "-o", "json", until="r12")
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
    node.shell("sed -i 's/^lease_ttl_s.*/lease_ttl_s = 301.0/' /etc/farbus/scheduler.toml")
    node.run("systemctl", "reload", "farbus-scheduler")
    node.until("journalctl -u farbus-scheduler -o cat | grep 'settings need a restart' | grep -q lease_ttl_s")
    node.run("systemctl", "is-active", "farbus-scheduler")


COUNT = (
    "for i in $(seq 1 4000); do echo line $i; [ -e /run/go.$FARBUS_JOB ] && break; sleep 0.5; done; echo last; exit 5"
)
"""Each line is a process of an emulated processor: with five times as many they took half of one from the services."""


class Counting(NamedTuple):
    """A job that prints lines until it is told to end."""

    node: Guest
    job: str
    program: str

    @classmethod
    def begin(cls, node: Guest) -> Counting:
        """Submit one; return it once it prints."""
        job = submit(node, "--", "sh", "-c", COUNT)
        log_has(node, job, "line 3")
        return cls(node, job, cls._program(node))

    @staticmethod
    def _program(node: Guest) -> str:
        return node.run("pgrep", "-o", "-u", "alice", "-f", "echo line").stdout

    def goes_on(self) -> None:
        """Check that its program is the same process as in the beginning."""
        assert self._program(self.node) == self.program

    def end(self) -> None:
        """Let it end; check that its end and all that it has printed is known."""
        self.node.run("touch", f"/run/go.{self.job}")
        job_until(self.node, self.job, "failed")
        assert '"exit_code": 5' in job_seen(self.node, self.job)
        lines = self.node.run("farbus", "logs", self.job, user="alice").stdout.splitlines()
        assert lines == [*(f"line {number}" for number in range(1, len(lines))), "last"]


def services_are_active(node: Guest) -> None:
    """Wait until both services have started and know each other."""
    node.until(" && ".join(f"systemctl is-active --quiet {unit}" for unit in SERVICES), limit_s=JOB_LIMIT_S)
    nodes_are_ready(node)


@pytest.mark.parametrize(
    "blow",
    [
        "systemctl restart farbus-agent",
        "systemctl kill --kill-whom=main --signal=KILL farbus-agent",
        "systemctl restart farbus-scheduler",
    ],
)
def test_job_outlives(node: Guest, blow: str) -> None:
    counting = Counting.begin(node)
    node.shell(blow, limit_s=JOB_LIMIT_S)
    services_are_active(node)
    counting.goes_on()
    counting.end()


def test_services_that_are_stopped_end_well_and_find_what_runs_when_they_start(node: Guest) -> None:
    counting = Counting.begin(node)
    node.run("systemctl", "stop", *SERVICES, limit_s=JOB_LIMIT_S)
    for unit in SERVICES:
        state = node.run("systemctl", "show", "--property=ActiveState,Result,ExecMainStatus", unit).stdout
        assert set(state.split()) == {"ActiveState=inactive", "Result=success", "ExecMainStatus=0"}
    counting.goes_on()
    node.run("systemctl", "start", *SERVICES, limit_s=JOB_LIMIT_S)
    services_are_active(node)
    counting.goes_on()
    counting.end()


def test_services_that_hang_are_killed_by_the_watchdog_and_started_again(node: Guest) -> None:
    counting = Counting.begin(node)
    since = now(node)
    hung = {unit: main_pid(node, unit) for unit in SERVICES}
    node.run("kill", "-STOP", *hung.values())
    for unit, pid in hung.items():
        node.until(
            f"pid=$(systemctl show --property=MainPID --value {unit}); [ $pid != {pid} ] && [ $pid != 0 ]"
            f" && systemctl is-active --quiet {unit}",
            limit_s=JOB_LIMIT_S,
        )
        said = node.shell(f"journalctl -u {unit} --since={since} -o cat").stdout
        assert f"{unit}.service: Watchdog timeout" in said
        assert f"{unit}.service: Failed with result 'watchdog'" in said
    services_are_active(node)
    counting.goes_on()
    counting.end()


LOAD_JOBS = 6
"""Three times as many as the node runs at a time."""

LOAD = (
    "mktemp /var/tmp/ran/$FARBUS_JOB.XXXXXX; i=0;"
    " until [ -e /run/load-ends ]; do i=$((i + 1)); echo line $i; [ $((i % 1000)) -gt 0 ] || sleep 0.1; done; echo last"
)
"""It takes most of a processor and fills a log; without any pause two of them leave the agents of an emulated guest
too little to read what they print."""


def test_restarts_under_load_lose_nothing_and_repeat_nothing(node: Guest) -> None:
    node.run("install", "-d", "-m", "1777", "/var/tmp/ran")
    jobs = [submit(node, "--cpus", "1", "--", "sh", "-c", LOAD) for _ in range(LOAD_JOBS)]
    node.until("[ $(ls /var/tmp/ran | wc -l) = 2 ]", limit_s=JOB_LIMIT_S)
    for unit in SERVICES:
        node.run("systemctl", "restart", unit, limit_s=JOB_LIMIT_S)
    services_are_active(node)
    node.run("touch", "/run/load-ends")
    for job in jobs:
        job_until(node, job, "succeeded")
    ran = node.shell("ls /var/tmp/ran").stdout.split()
    assert sorted(name.split(".")[0] for name in ran) == sorted(jobs)


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
        "rm -r /etc/farbus/ca /etc/farbus/nodes; rmdir /etc/farbus",
        limit_s=JOB_LIMIT_S,
    )
    assert node.shell(LISTING, check=False).stdout == before
    assert node.shell("getent passwd farbus farbus-remoting", check=False).stdout == ""
    assert node.run("systemctl", "list-units", "--all", "--no-legend", "farbus*").stdout == ""
