"""Guests as machines of a cluster: Farbus installed in them by pip, its services, and what tests ask of them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.lab.guest import Guest, Running, patient

INSTALL_LIMIT_S = patient(600.0)
"""pip unpacks and compiles a wheel, with every instruction emulated."""

JOB_LIMIT_S = patient(300.0)
"""For what a job, or a service that starts, takes at most."""

STATE = "/var/lib/farbus/agent"
"""State directory of a node's agent."""


def put_in(guest: Guest, wheel: str) -> Running:
    """Begin to install the wheel of the shared directory ``wheel``, in place of what there is."""
    return guest.start(
        "bash", "-euo", "pipefail", "-c",
        f"/opt/farbus/bin/pip install --quiet --no-deps --no-index --force-reinstall /media/{wheel}/*.whl;"
        "ln -sf /opt/farbus/bin/farbus /usr/local/bin/farbus",
        limit_s=INSTALL_LIMIT_S,
    )  # fmt: skip


def nodes_are_ready(guest: Guest, count: int = 1) -> None:
    """Wait until so many nodes can be used."""
    guest.until(f"[ $(farbus nodes -o json | grep -c '\"ready\"') = {count} ]", limit_s=JOB_LIMIT_S)


def job_until(guest: Guest, job: str, word: str) -> None:
    """Wait until what its owner sees of a job has a word."""
    guest.until(f"farbus jobs {job} -o json | grep -q '\"{word}\"'", user="alice", limit_s=JOB_LIMIT_S)


def job_seen(guest: Guest, job: str) -> str:
    """Return what its owner sees of a job."""
    return json.dumps(json.loads(guest.run("farbus", "jobs", job, "-o", "json", user="alice").stdout))


def submit(guest: Guest, *arguments: str | Path) -> str:
    """Submit a job as a user; return its id."""
    return guest.run("farbus", "submit", *map(str, arguments), user="alice").stdout.strip()


def log_has(guest: Guest, job: str, line: str) -> None:
    """Wait until a job has printed a line."""
    guest.until(f"farbus logs {job} | grep -x {line!r}", limit_s=JOB_LIMIT_S, user="alice")


def main_pid(guest: Guest, unit: str) -> str:
    """Return the process id of a service."""
    return guest.run("systemctl", "show", "--property=MainPID", "--value", unit).stdout.strip()


def units_of_programs(guest: Guest) -> list[str]:
    """Return the units of the programs that run for Farbus."""
    listing = guest.run("systemctl", "list-units", "--plain", "--no-legend", "farbus-task-*", "farbus-lease-*").stdout
    return [line.split()[0] for line in listing.splitlines()]


def processes_of(guest: Guest, unit: str) -> dict[str, tuple[str, ...]]:
    """Return the processes of a unit by id: name, user, whether they may gain privileges, and their filter."""
    group = guest.run("systemctl", "show", "--property=ControlGroup", "--value", unit).stdout.strip()
    script = (
        f"for pid in $(cat $(find /sys/fs/cgroup{group} -name cgroup.procs)); do echo $pid $(ps -o comm=,user:20= $pid)"
        " $(sed -n -e 's/NoNewPrivs:\\t//p' -e 's/Seccomp:\\t//p' /proc/$pid/status); done"
    )
    return {line.split()[0]: tuple(line.split()[1:]) for line in guest.shell(script).stdout.splitlines()}


def exposure_of(guest: Guest, unit: str) -> float:
    """Return how exposed a unit is, from 0 to 10, as systemd-analyze(1) counts it."""
    said = guest.run("systemd-analyze", "security", "--no-pager", unit).stdout
    # The last line: "→ Overall exposure level for UNIT: 4.1 OK :-)".
    return float(said.rsplit(f"{unit}: ", 1)[1].split()[0])


def said_by(guest: Guest, unit: str, *, since: str = "") -> list[dict[str, str]]:
    """Return what a service has written to its log, line by line; ``since`` is a moment from :func:`now`."""
    script = f"journalctl -u {unit} -o cat" + (f" --since={since}" if since else "")
    lines = guest.shell(script).stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def now(guest: Guest) -> str:
    """Return the moment as journalctl(1) takes it.

    Not a cursor: one that an older file of the journal gave finds nothing in the newer ones.
    """
    return guest.run("date", "+@%s.%6N").stdout.strip()
