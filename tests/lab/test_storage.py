"""The parts together: a program on one machine, its GPU in another, its striped volume on drives of a third.

``a`` has the scheduler and neither GPU nor drive; ``b`` has a software GPU; ``c`` two drives that are given to Farbus.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from farbus.cli.toolchain import find_toolchain
from farbus.errors import NotFound
from tests.lab.cluster import JOB_LIMIT_S, SCALED, TO_SCALE, farbus, submit
from tests.lab.guest import Guest, patient
from tests.lab.nodes import Lab, cluster_start

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

ROOT = Path(__file__).resolve().parents[2]
DRIVE_BYTES = 256 * 2**20
DRIVES = {"one": "port1", "two": "port2"}

JOB = """
name = "scale"
command = ["sh", "-c", "cd \\"$FARBUS_STORAGE_DATA\\" && exec scale_file in out 3"]
node = "a"

[resources]
gpus = 1

[[storage]]
name = "data"
volume = "data"
"""


ENDLESS = """
name = "writes"
command = ["write_on"]
node = "a"

[resources]
gpus = 1

[[storage]]
name = "data"
volume = "again"
"""

WRITE_ON = """#!/bin/sh
cd "$FARBUS_STORAGE_DATA"
while dd if=/dev/zero of=block bs=1M count=1 conv=fsync; do echo written; done
exit 1
"""
"""Writes until it can't."""


class Site(NamedTuple):
    """The three machines."""

    a: Guest
    b: Guest
    c: Guest
    files: dict[str, Path]
    """Of the drives of c."""

    def ask(self, *arguments: str, user: str = "") -> Any:
        """Return what a command of a's operator, or of a user there, prints as JSON."""
        return json.loads(farbus(self.a, *arguments, "-o", "json", user=user, limit_s=2 * JOB_LIMIT_S).stdout)

    def volume(self, name: str) -> dict[str, Any]:
        """Return a volume as it is listed."""
        (found,) = (each for each in self.ask("volume", "list") if each["name"] == name)
        return dict(found)


def path_of(name: str) -> str:
    """Return what udev calls a drive."""
    return f"/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_S{name}"


def plug(guest: Guest, files: dict[str, Path]) -> None:
    """Put the drives in."""
    for name, file in files.items():
        guest.plug_drive(name, port=DRIVES[name], file=file, serial=f"S{name}")
        guest.until(f"test -b {path_of(name)}")


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Site:
    directory = tmp_path_factory.mktemp("storage")
    try:
        find_toolchain().compile(ROOT / "tests/programs/cluster/scale_file.cu", directory / "scale_file")
    except NotFound:
        pytest.skip("needs nvcc for a CUDA program")
    a, b, c = lab.nodes("a", "b", "c", farbus=True)
    a.copy_in(directory / "scale_file", "/usr/local/bin/scale_file")
    files = {name: directory / name for name in DRIVES}
    for file in files.values():
        with file.open("wb") as sparse:
            sparse.truncate(DRIVE_BYTES)
    plug(c, files)
    c.run("farbus", "storage", "init", *map(path_of, DRIVES), limit_s=JOB_LIMIT_S)
    for guest, setting in ((a, "use_storage"), (c, "storage")):
        guest.shell(f"sed -i 's/^# {setting} = true/{setting} = true/' /etc/farbus/agent.toml")
        guest.run("farbus", "install", "agent", limit_s=JOB_LIMIT_S)
    cluster_start({"b": 1}).run([a, b, c])
    return Site(a, b, c, files)


def test_a_program_has_its_gpu_and_its_volume_from_two_other_machines(site: Site, tell: Callable[[str], None]) -> None:
    site.ask("volume", "create", "data", "--size", "64MiB", "--stripe", "2", "--quiet", user="alice")
    made = site.volume("data")
    assert (made["state"], made["nodes"], len(made["parts"][0]["drives"])) == ("available", ["c"], 2)

    # An operator puts the input there, for whose it is.
    attached = site.ask("volume", "attach", "data", "--node", "a", "--quiet")
    where = attached["path"]
    site.a.shell(f'/opt/farbus/bin/python -c "{TO_SCALE}" > {where}/in && sync -f {where} && chown -R alice {where}')
    site.ask("volume", "detach", "data", "--quiet")
    assert site.volume("data")["state"] == "available"
    assert site.a.shell("ls /sys/class/nvme 2> /dev/null || true").stdout.strip() == ""

    site.a.write("/home/alice/job.toml", JOB)
    job = submit(site.a, "/home/alice/job.toml")
    farbus(site.a, "jobs", job, "-o", "json", until='"(succeeded|failed)"', limit_s=2 * JOB_LIMIT_S)
    (seen,) = site.ask("jobs", job)
    assert seen["state"] == "succeeded", (seen, farbus(site.a, "logs", job, check=False).stdout)

    again = site.ask("volume", "attach", "data", "--node", "a", "--read-only", "--quiet")
    said = site.a.run("/opt/farbus/bin/python", "-c", SCALED, f"{again['path']}/out").stdout
    assert said.strip() == "verified"
    # With its next listing the node tells what that took it, and the others have measured nothing.
    farbus(site.a, "nodes", "-o", "json", until=r'"storage_attach_s": ?(0\.0*[1-9]|[1-9])', limit_s=2 * JOB_LIMIT_S)
    took = {each["node"]["name"]: each["node"]["storage_attach_s"] for each in site.ask("nodes")}
    assert [name for name, seconds in took.items() if seconds] == ["a"], took
    site.ask("volume", "detach", "data", "--quiet")
    site.ask("volume", "delete", "data", "--yes", "--quiet")
    assert site.ask("volume", "list") == []
    assert site.ask("leases") == []
    left = "ls /sys/kernel/config/nvmet/subsystems /dev/farbus 2> /dev/null || true"
    assert site.c.shell(left).stdout.split() == ["/sys/kernel/config/nvmet/subsystems:"]
    tell(f"job {job}: GPU of b, volume of c, verified; attaching that took {took['a']} s")


def test_a_volume_grows_while_it_is_mounted_and_is_measured(site: Site, tell: Callable[[str], None]) -> None:
    site.ask("volume", "create", "more", "--size", "64MiB", "--stripe", "2", "--quiet", user="alice")
    where = site.ask("volume", "attach", "more", "--node", "a", "--quiet")["path"]
    size = "stat -f -c '%b %S' " + where
    blocks, unit = map(int, site.a.shell(size).stdout.split())
    site.a.shell(f'/opt/farbus/bin/python -c "{TO_SCALE}" > {where}/in && sync -f {where}')
    site.ask("volume", "resize", "more", "--size", "128MiB", "--quiet", user="alice")
    grown = int(site.a.shell(size).stdout.split()[0])
    assert grown * unit > 100 << 20 > blocks * unit
    site.a.shell(f'/opt/farbus/bin/python -c "{TO_SCALE}" | cmp - {where}/in')
    # Beside who uses it, and where nobody does.
    used = site.ask("volume", "bench", "more", "--seconds", "0.5", "--quiet")
    site.ask("volume", "detach", "more", "--quiet")
    alone = site.ask("volume", "bench", "more", "--seconds", "0.5", "--quiet")
    for figures in (used, alone):
        assert figures["results"], figures
        assert all(each["value"] > 0 for each in figures["results"]), figures
    assert site.volume("more")["state"] == "available"
    site.ask("volume", "delete", "more", "--yes", "--quiet")
    assert site.ask("leases") == []
    tell(f"grown from {blocks * unit >> 20} to {grown * unit >> 20} MiB, measured: {alone['results']}")


def test_a_job_whose_storing_node_loses_its_power_fails_and_leaves_nothing(
    site: Site, tell: Callable[[str], None]
) -> None:
    a, _, c, _ = site
    site.ask("volume", "create", "again", "--size", "64MiB", "--stripe", "2", "--quiet", user="alice")
    a.write("/usr/local/bin/write_on", WRITE_ON)
    a.write("/home/alice/endless.toml", ENDLESS)
    a.run("chmod", "755", "/usr/local/bin/write_on")
    job = submit(a, "/home/alice/endless.toml")
    farbus(a, "logs", job, until="written", limit_s=2 * JOB_LIMIT_S)
    c.power_off()
    # Nobody knows that it is off and not cut off: its leases have to end first.
    farbus(a, "jobs", job, "-o", "json", until='"(succeeded|failed)"', limit_s=4 * JOB_LIMIT_S)
    (seen,) = site.ask("jobs", job)
    assert seen["state"] == "failed"
    assert "node c" in seen["reason"], seen["reason"]
    assert site.volume("again")["state"] == "lost"
    gone = "! grep -q /run/farbus/storage /proc/mounts && ! grep -q tcp /sys/class/nvme/*/transport"
    a.until(gone, limit_s=JOB_LIMIT_S)
    tell(f"the storing node without power: {seen['reason']}")

    c.power_on_again()
    c.wait_for_boot()
    plug(c, site.files)
    c.shell("systemctl start farbus-agent", limit_s=JOB_LIMIT_S)
    farbus(a, "volume", "list", "-o", "json", until='"available"', limit_s=2 * JOB_LIMIT_S)
    assert site.ask("leases") == []
    site.ask("volume", "delete", "again", "--yes", "--quiet")
    left = "ls /sys/kernel/config/nvmet/subsystems /dev/farbus 2> /dev/null || true"
    assert c.shell(left).stdout.split() == ["/sys/kernel/config/nvmet/subsystems:"]
