"""A volume of a node with several addresses, by real agents: used over all, told of one that is lost, left by another.

``a`` has the scheduler and uses the volume; ``b`` has the drive, two addresses and a spare one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.cluster import JOB_LIMIT_S, farbus
from tests.lab.guest import Guest, patient
from tests.lab.nodes import Lab, cluster_start

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

DRIVE = "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_Sone"
DRIVE_BYTES = 256 * 2**20
LINK = "enp0s16"
LIMIT_S = 2 * JOB_LIMIT_S
"""For a lost path to be given up by the kernel (60 s), or to be connected again by the agent."""

STATES = (
    "for c in /sys/class/nvme/nvme*; do [ ! -e $c/address ] || "
    "echo $(sed 's/^traddr=\\([^,]*\\).*/\\1/' $c/address) $(cat $c/state) $(cat $c/nvme*c*n1/ana_state); done"
)


def set_up(lab: Lab, directory: Path) -> tuple[Guest, Guest]:
    """Start the scheduler and both agents."""
    a, b = lab.nodes("a", "b", farbus=True)
    file = directory / "one"
    with file.open("wb") as sparse:
        sparse.truncate(DRIVE_BYTES)
    b.plug_drive("one", port="port1", file=file, serial="Sone")
    b.until(f"test -b {DRIVE}")
    b.run("farbus", "storage", "init", DRIVE, limit_s=JOB_LIMIT_S)
    b.shell(f"ip address add 10.9.0.102/24 dev {LINK}; ip address add fd09::2/64 dev {LINK} nodad")
    a.shell(f"ip address add fd09::1/64 dev {LINK} nodad")
    b.shell(
        "cd /etc/farbus; sed -i -e 's/^# storage = true/storage = true/'"
        ' -e \'s/^# nvmeof_addresses.*/nvmeof_addresses = ["10.9.0.2", "fd09::2"]/\''
        " -e 's/^# nvmeof_spare_addresses.*/nvmeof_spare_addresses = [\"10.9.0.102\"]/' agent.toml"
    )
    a.shell("sed -i 's/^# use_storage = true/use_storage = true/' /etc/farbus/agent.toml")
    for guest in (a, b):
        guest.run("farbus", "install", "agent", limit_s=JOB_LIMIT_S)
    cluster_start({}).run([a, b])
    return a, b


def test_a_volume_is_used_over_all_addresses_of_its_node(lab: Lab, tmp_path: Path, tell: Callable[[str], None]) -> None:
    a, b = set_up(lab, tmp_path)

    def ask(*arguments: str) -> Any:
        return json.loads(farbus(a, *arguments, "-o", "json", limit_s=LIMIT_S).stdout)

    ask("volume", "create", "data", "--size", "64MiB", "--quiet")
    where = ask("volume", "attach", "data", "--node", "a", "--quiet")["path"]
    states = dict(line.split(maxsplit=1) for line in a.shell(STATES).stdout.splitlines())
    assert states == {
        "10.9.0.2": "live optimized", "fd09::2": "live optimized", "10.9.0.102": "live non-optimized",
    }  # fmt: skip
    a.shell(f"head -c 8M /dev/urandom > /run/data; cp /run/data {where}/data; sync -f {where}")

    # One is lost, told, given up by the kernel, and connected again once it is back.
    b.shell(f"ip address del 10.9.0.102/24 dev {LINK}")
    farbus(a, "volume", "list", "-o", "json", until="10.9.0.102:4420 is not connected", limit_s=LIMIT_S)
    (told,) = ask("volume", "list", "data")[0]["troubles"]
    tell(f"a lost path: {told}")
    b.shell(f"ip address add 10.9.0.102/24 dev {LINK}")
    farbus(a, "volume", "list", "-o", "json", until=r'"troubles": ?\[\]', limit_s=LIMIT_S)

    # Another one is to go: nothing uses it any more, and then it is taken away.
    b.shell("sed -i 's/\"10.9.0.2\", //' /etc/farbus/agent.toml; systemctl restart farbus-agent", limit_s=JOB_LIMIT_S)
    a.until(f"{STATES} | grep -qx '10.9.0.2 live inaccessible'", limit_s=LIMIT_S)
    a.shell(
        f"echo 3 > /proc/sys/vm/drop_caches; cmp /run/data {where}/data; cp /run/data {where}/more; sync -f {where}"
    )
    assert ask("volume", "list", "data")[0]["troubles"] == []

    ask("volume", "detach", "data", "--quiet")
    ask("volume", "delete", "data", "--yes", "--quiet")
    assert ask("leases") == []
    assert a.shell(STATES).stdout == ""
    left = "ls /sys/kernel/config/nvmet/subsystems /sys/kernel/config/nvmet/ports"
    assert b.shell(left).stdout.split() == [
        "/sys/kernel/config/nvmet/ports:", "/sys/kernel/config/nvmet/subsystems:",
    ]  # fmt: skip
