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
from tests.lab.cluster import JOB_LIMIT_S, farbus
from tests.lab.guest import Guest, patient
from tests.lab.nodes import Lab, cluster_start

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

ROOT = Path(__file__).resolve().parents[2]
DRIVE_BYTES = 256 * 2**20
DRIVES = {"one": "port1", "two": "port2"}

INPUT = "import struct,sys; sys.stdout.buffer.write(struct.pack('<65536f', *range(65536)))"
CHECK = (
    "import struct,sys; got=struct.unpack('<65536f', open(sys.argv[1],'rb').read());"
    " assert got==tuple(3.0*n for n in range(65536)); print('verified')"
)

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


class Site(NamedTuple):
    """The three machines."""

    a: Guest
    b: Guest
    c: Guest

    def ask(self, *arguments: str) -> Any:
        """Return what a command of a's operator prints as JSON."""
        return json.loads(farbus(self.a, *arguments, "-o", "json", limit_s=2 * JOB_LIMIT_S).stdout)

    def volume(self, name: str) -> dict[str, Any]:
        """Return a volume as it is listed."""
        (found,) = (each for each in self.ask("volume", "list") if each["name"] == name)
        return dict(found)


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Site:
    directory = tmp_path_factory.mktemp("storage")
    try:
        find_toolchain().compile(ROOT / "tests/programs/cluster/scale_file.cu", directory / "scale_file")
    except NotFound:
        pytest.skip("needs nvcc for a CUDA program")
    a, b, c = lab.nodes("a", "b", "c", farbus=True)
    a.copy_in(directory / "scale_file", "/usr/local/bin/scale_file")
    for name, port in DRIVES.items():
        file = directory / name
        with file.open("wb") as sparse:
            sparse.truncate(DRIVE_BYTES)
        c.plug_drive(name, port=port, file=file, serial=f"S{name}")
    drives = [f"/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_S{name}" for name in DRIVES]
    for drive in drives:
        c.until(f"test -b {drive}")
    c.run("farbus", "storage", "init", *drives, limit_s=JOB_LIMIT_S)
    for guest, setting in ((a, "use_storage"), (c, "storage")):
        guest.shell(f"sed -i 's/^# {setting} = true/{setting} = true/' /etc/farbus/agent.toml")
        guest.run("farbus", "install", "agent", limit_s=JOB_LIMIT_S)
    cluster_start({"b": 1}).run([a, b, c])
    return Site(a, b, c)


def test_a_program_has_its_gpu_and_its_volume_from_two_other_machines(site: Site, tell: Callable[[str], None]) -> None:
    site.ask("volume", "create", "data", "--size", "64MiB", "--stripe", "2", "--quiet")
    made = site.volume("data")
    assert (made["state"], made["nodes"], len(made["parts"][0]["drives"])) == ("available", ["c"], 2)

    # An operator puts the input there.
    attached = site.ask("volume", "attach", "data", "--node", "a", "--quiet")
    where = attached["path"]
    site.a.shell(f'/opt/farbus/bin/python -c "{INPUT}" > {where}/in && sync -f {where} && chown -R alice {where}')
    site.ask("volume", "detach", "data", "--quiet")
    assert site.volume("data")["state"] == "available"
    assert site.a.shell("ls /sys/class/nvme 2> /dev/null || true").stdout.strip() == ""

    site.a.write("/home/alice/job.toml", JOB)
    # Whose it is may use it: alice's own volume would do as well.
    job = site.a.run("farbus", "submit", "/home/alice/job.toml", limit_s=JOB_LIMIT_S).stdout.strip()
    farbus(site.a, "jobs", job, "-o", "json", until='"(succeeded|failed)"', limit_s=2 * JOB_LIMIT_S)
    seen = site.ask("jobs", job)
    assert seen["state"] == "succeeded", (seen, farbus(site.a, "logs", job, check=False).stdout)

    again = site.ask("volume", "attach", "data", "--node", "a", "--read-only", "--quiet")
    said = site.a.run("/opt/farbus/bin/python", "-c", CHECK, f"{again['path']}/out").stdout
    assert said.strip() == "verified"
    site.ask("volume", "detach", "data", "--quiet")
    site.ask("volume", "delete", "data", "--yes", "--quiet")
    assert site.ask("volume", "list") == []
    assert site.ask("leases") == []
    left = "ls /sys/kernel/config/nvmet/subsystems /dev/farbus 2> /dev/null || true"
    assert site.c.shell(left).stdout.split() == ["/sys/kernel/config/nvmet/subsystems:"]
    tell(f"job {job}: GPU of b, volume of c, verified")
