"""A volume of another node by TLS, by real agents in their units: encrypted, found again by the next ones, and gone.

``a`` has the scheduler and uses the volume; ``b`` has the drive.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.cluster import JOB_LIMIT_S, farbus
from tests.lab.guest import Guest, Machine, patient
from tests.lab.image import KERNELS
from tests.lab.nodes import Lab, cluster_start

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

DRIVE = "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_Sone"
DRIVE_BYTES = 256 * 2**20
LIMIT_S = 2 * JOB_LIMIT_S
PATTERN = b"a word that nobody else may read"
KEYS = "grep -c 'psk *NVMe1R01 nqn.2026-11.io.farbus:host:' /proc/keys || true"


def set_up(lab: Lab, directory: Path) -> tuple[Guest, Guest]:
    """Start the scheduler and both agents, which encrypt, on the kernel and with the tools of the next Debian."""
    a, b = lab.nodes("a", "b", machine=Machine(kernel=KERNELS[-1], cables=1), farbus=True)
    file = directory / "one"
    with file.open("wb") as sparse:
        sparse.truncate(DRIVE_BYTES)
    b.plug_drive("one", port="port1", file=file, serial="Sone")
    b.until(f"test -b {DRIVE}")
    b.run("farbus", "storage", "init", DRIVE, limit_s=JOB_LIMIT_S)
    for guest, setting in ((a, "use_storage"), (b, "storage")):
        guest.shell(
            "ln -sf /opt/trixie/bin/nvme /usr/sbin/nvme;"
            " printf '[Service]\\nExecStart=/opt/trixie/bin/tlshd\\n' > /etc/systemd/system/tlshd.service;"
            f" sed -i -e 's/^# {setting} = true/{setting} = true/'"
            " -e 's/^# nvmeof_tls = .*/nvmeof_tls = \"on\"/' /etc/farbus/agent.toml"
        )
        guest.run("farbus", "install", "agent", limit_s=JOB_LIMIT_S)
        # Before anything else of NVMe's, as at a boot.
        guest.shell("systemctl daemon-reload; systemctl start tlshd")
    cluster_start({}).run([a, b])
    return a, b


def test_a_volume_of_another_node_is_encrypted_for_as_long_as_it_is_attached(
    lab: Lab, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    a, b = set_up(lab, tmp_path)

    def ask(*arguments: str) -> Any:
        return json.loads(farbus(a, *arguments, "-o", "json", limit_s=LIMIT_S).stdout)

    told = a.run("farbus", "doctor", check=False, limit_s=JOB_LIMIT_S).stdout
    assert "there is what is needed to encrypt storage" in told
    ask("volume", "create", "data", "--size", "64MiB", "--quiet")
    where = ask("volume", "attach", "data", "--node", "a", "--quiet")["path"]
    serial = a.shell("cat /sys/class/nvme/nvme*/tls_key").stdout.strip()
    a.shell(f"grep '^{serial}' /proc/keys | grep -q 'psk *NVMe1R01 nqn.2026-11.io.farbus:host:'")
    assert [guest.shell(KEYS).stdout.strip() for guest in (a, b)] == ["1", "1"]
    with lab.network.watch(PATTERN) as seen:
        a.shell(
            f"(yes '{PATTERN.decode()}' || true) | head -c 2M > /run/data || true; test -s /run/data;"
            f" cp /run/data {where}/data; sync -f {where};"
            f" echo 3 > /proc/sys/vm/drop_caches; cmp /run/data {where}/data"
        )
    tell(f"frames with what was written: {seen.frames} of {seen.of}")
    assert (seen.frames, seen.of > 32) == (0, True)

    # Agents that are restarted find it, without any key.
    for guest in (a, b):
        guest.run("systemctl", "restart", "farbus-agent", limit_s=JOB_LIMIT_S)
    farbus(a, "volume", "list", "-o", "json", until=r'"troubles": ?\[\]', limit_s=LIMIT_S)
    a.shell(f"echo 3 > /proc/sys/vm/drop_caches; cmp /run/data {where}/data")
    assert a.shell("cat /sys/class/nvme/nvme*/tls_key").stdout.strip() == serial
    for guest in (a, b):
        guest.shell("! journalctl --no-pager -u farbus-agent | grep -q 'NVMe1R01\\|DHHC-1'")

    ask("volume", "detach", "data", "--quiet")
    assert [guest.shell(KEYS).stdout.strip() for guest in (a, b)] == ["0", "0"]
