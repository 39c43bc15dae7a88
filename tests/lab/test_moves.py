"""Devices move between nodes by ``farbus attach`` and ``detach``: real agents, real kernels, an emulated chassis.

``a`` has the scheduler, serves the chassis, and writes to a drive of its own all the while; drives and a plain PCI
device go to and fro between ``b`` and ``c``.  The chassis runs in this process, where the guests' monitors are; agents
reach it over a network of their own machine's.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from farbus.hotplug.fabric.emulator.config import ChassisConfig, DeviceConfig, EmulatorConfig, PortConfig, QemuDevice
from farbus.hotplug.fabric.emulator.run import BackendKind, serving
from tests.lab.cluster import JOB_LIMIT_S, now, said_by
from tests.lab.guest import NARROW, Guest, Machine, Result, patient
from tests.lab.nodes import Lab, cluster_start

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

TO_HOST = (
    *("-netdev", "user,id=host,ipv6=off"),
    *("-device", "virtio-net-pci,netdev=host,addr=0x18,mac=52:54:00:00:00:18,romfile="),
)
"""QEMU's own network: this machine's loopback is 10.0.2.2 there.  Guests have no route beyond it."""

HOST = "10.0.2.2"

MACHINE = Machine(cables=1, devices=(*NARROW, *TO_HOST))

PORTS = {"30h": "a", "31h": "b", "32h": "c"}
SLOTS = ("port1", "port2")
"""What each port of the chassis leads to, as QEMU calls it."""

DRIVE, BUSY_DRIVE, CARD = "001300", "002300", "003300"
DRIVES = {DRIVE: "DRIVE1", BUSY_DRIVE: "DRIVE2"}
DRIVE_BYTES = 16 * 2**20

MODEL = "QEMU NVMe Ctrl"


def name_of(drive: str) -> str:
    """Return what nodes call a drive."""
    return f"NVME-{DRIVES[drive]}-{MODEL.replace(' ', '_')}"


def path_of(drive: str) -> str:
    """Return where a drive is on the node that has it."""
    return f"/dev/disk/by-id/nvme-{MODEL.replace(' ', '_')}_{DRIVES[drive]}"


BRIDGES = {"port1": "0000:00:03.0", "port2": "0000:00:04.0"}
"""Where QEMU puts ports that are told no address: behind the two devices before them (tests/lab/guest.py)."""

JOIN_HOST = """
device=$(basename /sys/bus/pci/devices/0000:00:18.0/virtio*/net/*)
ip address replace 10.0.2.15/24 dev $device
ip link set $device up
"""

SETTINGS = """
sed -i -e 's|^# fabric_ports = .*|fabric_ports = {ports}|' /etc/farbus/agent.toml
[ {name} != a ] || sed -i 's|^# fabric = .*|fabric = "/etc/farbus/fabric.toml"|' /etc/farbus/agent.toml
"""

WRITER = """
import mmap, os, sys, time, zlib
PAGE = 65536
file = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
page = mmap.mmap(-1, PAGE)
turn = 0
while not os.path.exists(sys.argv[2]):
    turn += 1
    sums = []
    for block in range(16):
        page[:] = (b"%d %d;" % (turn, block)).ljust(64, b".") * (PAGE // 64)
        assert os.pwritev(file, [page], block * PAGE) == PAGE
        sums.append(zlib.crc32(page))
    os.fsync(file)
    for block in range(16):
        assert os.preadv(file, [page], block * PAGE) == PAGE
        assert zlib.crc32(page) == sums[block], (turn, block)
    # The processor is emulated, and others need it too.
    time.sleep(0.2)
print(turn)
"""
"""Writes to a drive and reads it again, past the page cache, until a file is there; prints how often."""


class Chassis:
    """The emulator, on a thread of its own; ``stop`` and ``start`` again keep its state."""

    def __init__(self, config: EmulatorConfig, directory: Path, tell: Callable[[str], None]) -> None:
        self.url = ""
        self._config = config
        self._directory = directory
        self._tell = tell
        self.start()

    def start(self) -> None:
        """Serve, at the same port as before."""
        started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None

        async def serve() -> None:
            try:
                async with serving(self._config, self._directory, backend=BackendKind.QEMU, tell=self._tell) as served:
                    self.url = served[0].url
                    started.set()
                    await self._ended.wait()
            except BaseException as error:
                self._failure = error
                raise
            finally:
                started.set()

        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(serve(),), name="chassis")
        self._thread.start()
        started.wait()
        if self._failure is not None:
            raise self._failure
        (chassis,) = self._config.chassis
        self._config = msgspec.structs.replace(
            self._config, chassis=(msgspec.structs.replace(chassis, h3=self.url.removeprefix("http://")),)
        )

    def stop(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._loop.close()


class Bed(NamedTuple):
    """Three nodes at a chassis."""

    a: Guest
    b: Guest
    c: Guest
    chassis: Chassis


def chassis_config(directory: Path, nodes: dict[str, Guest]) -> EmulatorConfig:
    """Return a chassis with two drives and a plain PCI device, all of them free."""
    devices = [DeviceConfig(id=CARD, type="PCI", qemu=QemuDevice(driver="pci-testdev"))]
    for drive, serial in DRIVES.items():
        image = directory / f"{serial}.img"
        with image.open("wb") as file:
            file.truncate(DRIVE_BYTES)
        qemu = QemuDevice(
            driver="nvme",
            properties={"serial": serial},
            blockdev={"driver": "raw", "file": {"driver": "file", "filename": str(image)}},
        )
        devices.append(DeviceConfig(id=drive, type="NVME", serial=serial, qemu=qemu))
    ports = tuple(
        PortConfig(id=port, node=node, qmp=str(nodes[node].monitor), slots=SLOTS) for port, node in PORTS.items()
    )
    return EmulatorConfig(
        chassis=(ChassisConfig(name="lab", h3="127.0.0.1:0", ports=ports, devices=tuple(devices)),), speed=0.0
    )


def fabric_settings(url: str) -> str:
    """Return the ``fabric.toml`` of who asks the chassis at ``url``."""
    ports = ", ".join(f'{port} = "{node}"' for port, node in PORTS.items())
    known = [f'devices.{drive} = {{ serial = "{serial}", model = "{MODEL}" }}' for drive, serial in DRIVES.items()]
    return "\n".join(
        ["[[chassis]]", 'name = "lab"', 'dialect = "h3"', f'url = "{url}"', f"ports = {{ {ports} }}", *known]
    )


@pytest.fixture(scope="module")
def bed(lab: Lab, tmp_path_factory: pytest.TempPathFactory, tell: Callable[[str], None]) -> Iterator[Bed]:
    directory = tmp_path_factory.mktemp("chassis")
    names = tuple(PORTS.values())
    nodes = dict(zip(names, lab.nodes(*names, machine=MACHINE, farbus=True), strict=True))
    chassis = Chassis(chassis_config(directory, nodes), directory, tell)
    try:
        for port, name in PORTS.items():
            bridges = json.dumps([BRIDGES[slot] for slot in SLOTS])
            nodes[name].shell(JOIN_HOST + SETTINGS.format(name=name, ports=f'{{ "lab/{port}" = {bridges} }}'))
        url = chassis.url.replace("127.0.0.1", HOST)
        nodes["a"].write("/etc/farbus/fabric.toml", fabric_settings(url), mode="600")
        cluster_start({}).run(list(nodes.values()))
        # The scheduler has to have heard of the chassis.
        nodes["a"].until("farbus devices -o json | grep DRIVE1", limit_s=JOB_LIMIT_S)
        yield Bed(*nodes.values(), chassis)
    finally:
        chassis.stop()


def farbus(bed: Bed, *arguments: str, check: bool = True) -> Result:
    """Run the command as the cluster's operator."""
    return bed.a.run("farbus", *arguments, check=check, limit_s=JOB_LIMIT_S)


def attach(bed: Bed, device: str, node: str) -> None:
    farbus(bed, "attach", device, "--to", node, "--quiet")


def sum_of(node: Guest, drive: str) -> str:
    """Return the checksum of what is on a drive, past the page cache."""
    read = f"dd if={path_of(drive)} bs=64k iflag=direct status=none"
    return node.shell(f"{read} | md5sum", limit_s=JOB_LIMIT_S).stdout


def has_card(node: Guest) -> bool:
    """Say whether the plain device is on a node's bus: QEMU's pci-testdev (docs/specs/pci-testdev.txt)."""
    return node.shell("grep -lx 0x0005 /sys/bus/pci/devices/*/device", check=False).code == 0


def test_a_drive_and_a_card_move_while_another_drive_is_written_to(bed: Bed, tell: Callable[[str], None]) -> None:
    attach(bed, DRIVES[BUSY_DRIVE], "a")
    writer = bed.a.start(
        "/opt/farbus/bin/python", "-c", WRITER, path_of(BUSY_DRIVE), "/run/enough", limit_s=10 * JOB_LIMIT_S
    )
    attach(bed, DRIVES[DRIVE], "b")
    bed.b.shell(f"dd if=/dev/urandom of={path_of(DRIVE)} bs=64k oflag=direct conv=fsync status=none count=64")
    written = sum_of(bed.b, DRIVE)
    attach(bed, CARD, "b")
    assert has_card(bed.b)

    attach(bed, name_of(DRIVE), "c")
    assert sum_of(bed.c, DRIVE) == written
    assert bed.b.run("test", "-e", path_of(DRIVE), check=False).code == 1
    attach(bed, CARD, "c")
    assert has_card(bed.c)
    assert not has_card(bed.b)

    assert not writer.ended
    bed.a.run("touch", "/run/enough")
    tell(f"while devices moved, a drive elsewhere was written and read again {writer.wait().stdout.strip()} times")


def test_detach_is_refused_with_the_holders_named(bed: Bed) -> None:
    at = place_of(bed, DRIVE)
    at.shell(f"mke2fs -q {path_of(DRIVE)}; mkdir -p /mnt/held; mount {path_of(DRIVE)} /mnt/held")
    at.shell("systemd-run --unit=holder sh -c 'exec sleep infinity > /mnt/held/file'")
    at.until("test -e /mnt/held/file")
    refused = farbus(bed, "detach", name_of(DRIVE), "--drain", "1", "--quiet", check=False)
    assert refused.code
    assert "is mounted on /mnt/held" in refused.stderr
    # Not even this lets go of a file system.
    refused = farbus(bed, "detach", name_of(DRIVE), "--drain", "1", "--evict", "--quiet", check=False)
    assert refused.code
    assert "is mounted on /mnt/held" in refused.stderr
    assert at.run("findmnt", "/mnt/held").stdout
    at.shell("systemctl stop holder; umount /mnt/held")


def test_detach_is_refused_for_an_open_drive_until_its_program_is_evicted(bed: Bed) -> None:
    at = place_of(bed, DRIVE)
    at.shell(f"systemd-run --unit=reader sh -c 'exec sleep infinity < {path_of(DRIVE)}'")
    at.until("pgrep -x sleep")
    refused = farbus(bed, "detach", name_of(DRIVE), "--drain", "1", "--quiet", check=False)
    assert refused.code
    assert "is open in pid" in refused.stderr
    assert "(sleep)" in refused.stderr
    farbus(bed, "detach", name_of(DRIVE), "--drain", "1", "--evict", "--quiet")
    assert at.run("test", "-e", path_of(DRIVE), check=False).code == 1
    assert at.run("pgrep", "-x", "sleep", check=False).code == 1


def test_a_move_goes_on_over_a_kill_of_the_agent(bed: Bed) -> None:
    attach(bed, DRIVES[DRIVE], "b")
    written = sum_of(bed.b, DRIVE)
    since = now(bed.c)
    moving = bed.a.start("farbus", "attach", name_of(DRIVE), "--to", "c", limit_s=2 * JOB_LIMIT_S)
    # The kernel has the drive, and the move has not ended.
    bed.c.until(f"test -b {path_of(DRIVE)}", limit_s=JOB_LIMIT_S)
    bed.c.kill("farbus-agent")
    moving.wait()
    assert sum_of(bed.c, DRIVE) == written
    assert any(line["event"] == "agent ready" for line in said_by(bed.c, "farbus-agent", since=since))


def place_of(bed: Bed, drive: str) -> Guest:
    """Return a node that has a drive: ``c``, where it is brought now if it is elsewhere."""
    if bed.c.run("test", "-e", path_of(drive), check=False).code:
        attach(bed, DRIVES[drive], "c")
    return bed.c
