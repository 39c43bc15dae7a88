"""Guests as machines of a cluster: Farbus installed in them by pip, its services, and what tests ask of them."""

from __future__ import annotations

import compileall
import json
import py_compile
import re
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.lab.guest import Guest, GuestError, Result, patient
from tests.lab.image import PYTHON

INSTALL_LIMIT_S = patient(600.0)
"""pip unpacks and compiles a wheel, with every instruction emulated."""

JOB_LIMIT_S = patient(300.0)
"""For what a job, or a service that starts, takes at most."""

STATE = "/var/lib/farbus/agent"
"""State directory of a node's agent."""

TO_SCALE = "import struct,sys; sys.stdout.buffer.write(struct.pack('<65536f', *range(65536)))"
"""Writes what ``scale_file`` reads, in Python."""
SCALED = (
    "import struct,sys; got=struct.unpack('<65536f', open(sys.argv[1],'rb').read());"
    " assert got==tuple(3.0*n for n in range(65536)); print('verified')"
)
"""Says ``verified`` of a file with that times 3."""


PACKAGES = f"/opt/farbus/lib/python{PYTHON}/site-packages"

PUT_IN = """
/opt/farbus/bin/pip install --quiet --no-deps --no-index --no-compile --force-reinstall {wheel}
rm {wheel}
ln -sf /opt/farbus/bin/farbus /usr/local/bin/farbus
"""
"""Puts in a wheel, whatever version there was."""

COMPILE = f"/opt/farbus/bin/python -m compileall -q -j 2 {PACKAGES}/farbus"


def put_in(guest: Guest, wheel: Path) -> None:
    """Install the file of a wheel, in place of the version that there is."""
    there = f"/var/tmp/{wheel.name}"
    guest.copy_in(wheel, there)
    # It has the modules of the version that was there.
    guest.shell(END_RESIDENT)
    guest.shell(PUT_IN.format(wheel=there), limit_s=INSTALL_LIMIT_S)
    # The guest takes minutes to compile it.
    if sys.version_info[:2] == tuple(map(int, PYTHON.split("."))):
        with tempfile.TemporaryDirectory() as place:
            guest.copy_in(compiled(wheel, Path(place)), f"{PACKAGES}/farbus")
    else:
        guest.shell(COMPILE, limit_s=INSTALL_LIMIT_S)


def compiled(wheel: Path, place: Path) -> Path:
    """Return a directory with the compiled modules of a wheel, in ``place``, and nothing else of it."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    # Sources in the guest are as old as its pip makes them: their times say nothing.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(place / "farbus", ddir=f"{PACKAGES}/farbus", quiet=1, invalidation_mode=mode)
    for file in (place / "farbus").rglob("*"):
        if file.is_file() and file.suffix != ".pyc":
            file.unlink()
    return place / "farbus"


RESIDENT = Path(__file__).with_name("resident.py")
RESIDENT_UNIT = "lab-farbus"

ASK_RESIDENT = 'exec 3<>/dev/tcp/127.0.0.1/7400 && printf "%s\\n" "$0" >&3 && cat <&3'

START_RESIDENT = f"""
systemctl stop {RESIDENT_UNIT}.service 2> /dev/null || true
systemctl reset-failed {RESIDENT_UNIT}.service 2> /dev/null || true
systemd-run --quiet --unit={RESIDENT_UNIT} /opt/farbus/bin/python /run/lab-resident.py
"""

END_RESIDENT = f"if systemctl is-active --quiet {RESIDENT_UNIT}; then systemctl stop {RESIDENT_UNIT}; fi"


def farbus(
    guest: Guest,
    *arguments: str,
    until: str = "",
    count: int | None = None,
    user: str = "",
    check: bool = True,
    limit_s: float = JOB_LIMIT_S,
) -> Result:
    """Run a ``farbus`` command in a process that is there already (:mod:`tests.lab.resident`).

    With ``until``, a regular expression, it is run again until its output has that, ``count`` times where one is given.
    """
    asked = {"argv": arguments, "user": user, "pattern": until, "count": count}
    request = ("bash", "-c", ASK_RESIDENT, json.dumps(asked))
    said = guest.run(*request, check=False, limit_s=limit_s)
    if said.code:
        # Nobody listens: it is the first one, or the first one after a reboot.
        guest.write("/run/lab-resident.py", RESIDENT.read_text())
        guest.shell(START_RESIDENT)
        guest.until("exec 3<>/dev/tcp/127.0.0.1/7400")
        said = guest.run(*request, limit_s=limit_s)
    if not said.stdout:
        raise GuestError(f"farbus {' '.join(arguments)}: it ended without an answer")
    answer = json.loads(said.stdout)
    result = Result(("farbus", *arguments), answer["code"], answer["stdout"], answer["stderr"])
    if check and result.code:
        raise GuestError(str(result))
    return result


def nodes_are_ready(guest: Guest, count: int = 1) -> None:
    """Wait until so many nodes can be used."""
    farbus(guest, "nodes", "-o", "json", until='"ready"', count=count)


def agent_is_back(guest: Guest) -> None:
    """Wait until the agent of a node that has booted speaks with its scheduler.

    What the scheduler says of the node proves nothing: it may not have noticed that the node was away.
    """
    guest.until("journalctl -b -u farbus-agent -o cat | grep -q '\"session open\"'", limit_s=JOB_LIMIT_S)


def job_until(guest: Guest, job: str, word: str) -> None:
    """Wait until what its owner sees of a job has a word."""
    farbus(guest, "jobs", job, "-o", "json", until=f'"{word}"', user="alice")


def job_seen(guest: Guest, job: str) -> str:
    """Return what its owner sees of a job."""
    return json.dumps(json.loads(farbus(guest, "jobs", job, "-o", "json", user="alice").stdout))


def submit(guest: Guest, *arguments: str | Path) -> str:
    """Submit a job as a user; return its id."""
    return guest.run("farbus", "submit", *map(str, arguments), user="alice").stdout.strip()


def log_has(guest: Guest, job: str, line: str) -> None:
    """Wait until a job has printed a line."""
    farbus(guest, "logs", job, until=f"^{re.escape(line)}$", user="alice")


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
