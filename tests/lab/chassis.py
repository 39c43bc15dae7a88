"""Three nodes at an emulated chassis: who has its devices, by its own word, by each kernel's and by the ledger's.

The chassis runs in the tests' process, where the guests' monitors are; agents reach it over a network device of QEMU's
own, in H3's dialect or in Redfish's, over TLS with a session.  ``a`` has the scheduler and serves the chassis, where
others may not, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from farbus.hotplug.fabric.emulator.config import ChassisConfig, DeviceConfig, EmulatorConfig, PortConfig, QemuDevice
from farbus.hotplug.fabric.emulator.faults import Fault, Rates
from farbus.hotplug.fabric.emulator.qemu import qemu_id
from farbus.hotplug.fabric.emulator.run import STATE_FILE, BackendKind, serving
from farbus.hotplug.fabric.emulator.store import Row
from farbus.model.fabric import Dialect
from tests.lab.cluster import JOB_LIMIT_S, farbus, said_by
from tests.lab.guest import NARROW, NARROW_PORT, Guest, Machine
from tests.lab.nodes import Lab, cluster_start

TO_HOST = (
    *("-netdev", "user,id=host,ipv6=off"),
    *("-device", "virtio-net-pci,netdev=host,addr=0x18,mac=52:54:00:00:00:18,romfile="),
)
"""QEMU's own network: this machine's loopback is 10.0.2.2 there.  Guests have no route beyond it."""

HOST = "10.0.2.2"

MACHINE = Machine(cables=1, devices=(*NARROW, *TO_HOST))

CHASSIS = "lab"
PORTS = {"30h": "a", "31h": "b", "32h": "c"}
SLOTS = {"a": ("port1", NARROW_PORT), "b": ("port1", "port2"), "c": ("port1", "port2")}
"""What each node's port of the chassis leads to, as QEMU calls it, in the order in which it is filled."""

BRIDGES = {"port1": "0000:00:03.0", "port2": "0000:00:04.0", NARROW_PORT: "0000:00:06.0"}
"""Where QEMU puts ports that are told no address: behind the two devices before them (tests/lab/guest.py).

Of the switch with the narrow port, the root port that it is in."""

DRIVE, BUSY_DRIVE, CARD, OTHER_CARD, BIG_CARD = "001300", "002300", "003300", "004300", "005300"
DRIVES = {DRIVE: "DRIVE1", BUSY_DRIVE: "DRIVE2"}
CARDS = {CARD: 2**20, OTHER_CARD: 2**21, BIG_CARD: 2**26}
"""Plain PCI functions, QEMU's pci-testdev, which no driver takes; told from each other by the size of their BAR 2."""
GPU_CARD = "006300"
"""QEMU's edu, which no driver takes; a GPU where an agent is told so (tests/lab/gpu_agent.py)."""
GPU_NAME = "GPU-00000000-0000-4000-8000-0000000000ed"
DRIVE_BYTES = 16 * 2**20

MODEL = "QEMU NVMe Ctrl"

ON_BUS = """
for file in $(grep -lx 0x0005 /sys/bus/pci/devices/*/device || true); do sed -n 3p ${file%device}resource; done
grep -qx 0x11e8 /sys/bus/pci/devices/*/device && echo 006300 || true
cat /sys/class/nvme/*/serial 2> /dev/null || true
"""
"""Prints where BAR 2 of each plain card begins and ends, the id of the GPU, and the serials of drives."""

JOIN_HOST = """
cat > /etc/systemd/system/lab-host.service <<'END'
[Unit]
Description=Address of this guest on the network of its machine
Before=network.target
[Service]
Type=oneshot
ExecStart=/bin/sh -ec 'until [ -e /sys/class/net/enp0s24 ]; do sleep 0.1; done; \\
    ip address replace 10.0.2.15/24 dev enp0s24; ip link set enp0s24 up'
[Install]
WantedBy=multi-user.target
END
systemctl enable --quiet --now lab-host.service
"""
"""A service, so that it holds after a reboot."""

SETTINGS = """
sed -i -e 's|^# fabric_ports = .*|fabric_ports = {ports}|' /etc/farbus/agent.toml
systemctl enable --quiet farbus-agent
# A machine that is crowded may let a guest stand still for as long as the watchdog waits.
mkdir -p /etc/systemd/system/farbus-agent.service.d
printf '[Service]\\nWatchdogSec=600\\nTimeoutStartSec=900\\n' > /etc/systemd/system/farbus-agent.service.d/patient.conf
"""

SERVE = """
sed -i 's|^# fabric = .*|fabric = "/etc/farbus/fabric.toml"|' /etc/farbus/agent.toml
"""
"""Lets an agent serve the chassis."""

CREDENTIALS = 'user = "lab"\npassword = "a password of the lab"\n'
CREDENTIALS_FILE, CERTIFICATE_FILE = "lab.credentials", "lab.crt"
"""Beside ``fabric.toml``; also of the emulator."""

LOOK_INTERVAL_S = 0.05
"""Between two looks at what the chassis has written."""
ASK_INTERVAL_S = 0.5
"""Between two looks that take something of the guests' processors."""


def name_of(drive: str) -> str:
    """Return what nodes call a drive."""
    return f"NVME-{DRIVES[drive]}-{MODEL.replace(' ', '_')}"


def path_of(drive: str) -> str:
    """Return where a drive is on the node that has it."""
    return f"/dev/disk/by-id/nvme-{MODEL.replace(' ', '_')}_{DRIVES[drive]}"


def on_bus(guest: Guest) -> set[str]:
    """Return the chassis's devices that a node's kernel has."""
    devices = set()
    for line in guest.shell(ON_BUS).stdout.splitlines():
        words = line.split()
        if words[0].startswith("0x"):
            size = int(words[1], 16) - int(words[0], 16) + 1
            devices.add(next((card for card, bytes_ in CARDS.items() if bytes_ == size), f"a card of {size} bytes"))
        else:
            devices.add(next((drive for drive, serial in DRIVES.items() if serial == words[0]), words[0]))
    return devices


def plugged(guest: Guest) -> set[str]:
    """Return the chassis's devices that a node's QEMU has."""
    names = {each["name"] for each in guest.qmp("qom-list", path="/machine/peripheral")}
    return {device for device in (*DRIVES, *CARDS, GPU_CARD) if qemu_id(device) in names}


class Chassis:
    """The emulator, on a thread of its own; it may be ended and started again, and keeps its state."""

    def __init__(self, config: EmulatorConfig, directory: Path) -> None:
        self.urls: dict[str, str] = {}
        """Where it serves each dialect."""
        self.said: list[str] = []
        """What it has told, with each fault that it has injected."""
        self._config = config
        self._directory = directory
        self._start()

    def _start(self) -> None:
        """Serve, at the same port as before."""
        started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None

        async def serve() -> None:
            try:
                async with serving(
                    self._config, self._directory, backend=BackendKind.QEMU, tell=self.said.append
                ) as served:
                    self.urls = {each.dialect: each.url for each in served}
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
        self._configure(**{dialect: url.partition("://")[2] for dialect, url in self.urls.items()})

    def _configure(self, **settings: object) -> None:
        (chassis,) = self._config.chassis
        self._config = msgspec.structs.replace(
            self._config, chassis=(msgspec.structs.replace(chassis, **settings),)
        )  # fmt: skip

    def stop(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._loop.close()

    def begin_again(self, *, rates: Rates | None = None, script: Sequence[Fault] = (), seed: int = 0) -> None:
        """End it and start it with other faults; of a script, requests count from here."""
        self.stop()
        self._config = msgspec.structs.replace(self._config, seed=seed)
        self._configure(rates=rates or Rates(), script=tuple(script))
        self.said.clear()
        self._start()

    @property
    def certificate(self) -> str:
        """What it shows who asks in Redfish's dialect."""
        return (self._directory / self._config.state / "redfish.crt").read_text()

    def rows(self) -> dict[str, Row]:
        """Return what it has written of each device."""
        file = self._directory / self._config.state / STATE_FILE
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            found = connection.execute("SELECT id, port, holder, slot, pending FROM device").fetchall()
        return {row[0]: Row(port=row[1], holder=row[2], slot=row[3], pending=row[4]) for row in found}

    def nodes(self) -> dict[str, str]:
        """Return the node that each device is assigned to, empty for none."""
        return {device: PORTS.get(row.port, "") for device, row in self.rows().items()}

    def until(self, device: str, node: str, *, limit_s: float = JOB_LIMIT_S) -> None:
        """Wait until it has assigned a device to a node, or to none."""
        give_up_at = time.monotonic() + limit_s
        while self.nodes()[device] != node:
            assert time.monotonic() < give_up_at, f"device {device} is not at {node!r}: {self.rows()[device]}"
            time.sleep(LOOK_INTERVAL_S)


class Bed(NamedTuple):
    """Three nodes at a chassis."""

    a: Guest
    b: Guest
    c: Guest
    chassis: Chassis

    @property
    def nodes(self) -> dict[str, Guest]:
        """The nodes by name."""
        return {"a": self.a, "b": self.b, "c": self.c}

    def ask(self, *arguments: str, check: bool = True) -> Any:
        """Run a command that prints JSON, as the cluster's operator; return what it printed."""
        return json.loads(farbus(self.a, *arguments, "-o", "json", check=check).stdout)

    def served(self) -> tuple[int, str]:
        """Return the term of the last naming of who serves the chassis, and the node that was named; by its log."""
        named = [line for line in said_by(self.a, "farbus-scheduler") if line["event"] == "chassis served"]
        return int(named[-1]["term"]), named[-1]["node"]

    def in_ledger(self) -> dict[str, tuple[str, str]]:
        """Return node and state of each device, as the scheduler has them."""
        found = {}
        for status in self.ask("devices"):
            name = status["device"]["id"]
            device = next((drive for drive, serial in DRIVES.items() if f"-{serial}-" in name or serial == name), name)
            device = GPU_CARD if name == GPU_NAME else device
            if device in (*DRIVES, *CARDS, GPU_CARD):
                assert device not in found, f"{name} is there twice"
                found[device] = (status["node"], status["state"])
        return found

    def agreement(self, *, limit_s: float = JOB_LIMIT_S) -> dict[str, str]:
        """Wait until chassis, kernels and ledger say the same, with nothing on its way; return where each device is."""
        give_up_at = time.monotonic() + limit_s
        while True:
            rows, ledger = self.chassis.rows(), self.in_ledger()
            with ThreadPoolExecutor() as pool:
                kernels = dict(zip(self.nodes, pool.map(on_bus, self.nodes.values()), strict=True))
            told = {device: PORTS.get(row.port, "") for device, row in rows.items()}
            wanted = {device: (node, "free" if node else "unassigned") for device, node in told.items()}
            seen = {name: {device for device, node in told.items() if node == name} for name in self.nodes}
            is_settled = all(row.pending is None and row.holder == row.port for row in rows.values())
            if is_settled and ledger == wanted and kernels == seen:
                return told
            assert time.monotonic() < give_up_at, f"chassis: {rows}\nkernels: {kernels}\nledger: {ledger}"
            time.sleep(ASK_INTERVAL_S)


class Watch:
    """Looks again and again, while devices move, whether one is plugged into two nodes; a context manager.

    A look is not of one moment: a device is in two nodes where it is in the first before and after it is in the second,
    and had no time to go there and back.
    """

    TO_AND_FRO_S = 2.0
    """Less than a device needs for it: the attention button of a port alone waits 5 s (PCIe 6.7.1.5)."""

    def __init__(self, *guests: Guest) -> None:
        self.doubles: list[str] = []
        self.looks = 0
        self._guests = guests
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch")

    def _look(self) -> None:
        first, second = self._guests
        while not self._enough.wait(ASK_INTERVAL_S):
            began = time.monotonic()
            before, between, after = plugged(first), plugged(second), plugged(first)
            if time.monotonic() - began < self.TO_AND_FRO_S:
                self.looks += 1
                self.doubles += sorted(before & between & after)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()


def chassis_config(directory: Path, nodes: dict[str, Guest]) -> EmulatorConfig:
    """Return a chassis with drives and plain cards, all of them free."""
    devices = [
        DeviceConfig(id=card, type="PCI", qemu=QemuDevice(driver="pci-testdev", properties={"membar": size}))
        for card, size in CARDS.items()
    ]
    devices.append(
        DeviceConfig(
            id=GPU_CARD, type="GPU", uuid=GPU_NAME, vendor_id=0x1234, device_id=0x11E8, qemu=QemuDevice(driver="edu")
        )
    )
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
        PortConfig(id=port, node=node, qmp=str(nodes[node].monitor), slots=SLOTS[node]) for port, node in PORTS.items()
    )
    credentials = directory / CREDENTIALS_FILE
    credentials.write_text(CREDENTIALS)
    credentials.chmod(0o600)
    chassis = ChassisConfig(
        name=CHASSIS, h3="127.0.0.1:0", redfish="127.0.0.1:0", ports=ports, devices=tuple(devices)
    )  # fmt: skip
    return EmulatorConfig(chassis=(chassis,), speed=0.0, credentials=CREDENTIALS_FILE)


def fabric_settings(chassis: Chassis, dialect: Dialect) -> str:
    """Return the ``fabric.toml`` of a guest that asks the chassis."""
    ports = ", ".join(f'{port} = "{node}"' for port, node in PORTS.items())
    url = chassis.urls[dialect].replace("127.0.0.1", HOST)
    lines = ["[[chassis]]", f'name = "{CHASSIS}"', f'dialect = "{dialect}"', f'url = "{url}"', f"ports = {{ {ports} }}"]
    if dialect is Dialect.REDFISH:
        lines += [f'credentials = "{CREDENTIALS_FILE}"', f'certificate = "{CERTIFICATE_FILE}"']
    else:
        # What this dialect can't tell.
        lines += [f"devices.{GPU_CARD} = {{ vendor_id = 0x1234, device_id = 0x11e8 }}"]
        for drive, serial in DRIVES.items():
            lines += [f'devices.{drive} = {{ serial = "{serial}", model = "{MODEL}" }}']
    return "\n".join(lines)


@contextlib.contextmanager
def chassis_bed(
    lab: Lab, directory: Path, *, dialect: Dialect = Dialect.H3, servers: Collection[str] = ("a",)
) -> Iterator[Bed]:
    """Join nodes a, b and c by a chassis; yield once the scheduler has heard of its devices.

    The agents of ``servers`` may serve it, in ``dialect``.
    """
    names = tuple(PORTS.values())
    nodes = dict(zip(names, lab.nodes(*names, machine=MACHINE, farbus=True), strict=True))
    chassis = Chassis(chassis_config(directory, nodes), directory)
    try:
        for port, name in PORTS.items():
            bridges = json.dumps([BRIDGES[slot] for slot in SLOTS[name]])
            nodes[name].shell(JOIN_HOST + SETTINGS.format(name=name, ports=f'{{ "lab/{port}" = {bridges} }}'))
        for name in servers:
            nodes[name].shell(SERVE)
            nodes[name].write("/etc/farbus/fabric.toml", fabric_settings(chassis, dialect), mode="600")
            nodes[name].write(f"/etc/farbus/{CREDENTIALS_FILE}", CREDENTIALS, mode="600")
            nodes[name].write(f"/etc/farbus/{CERTIFICATE_FILE}", chassis.certificate)
        cluster_start({}).run(list(nodes.values()))
        farbus(nodes["a"], "devices", "-o", "json", until=DRIVES[DRIVE])
        yield Bed(*nodes.values(), chassis)
    finally:
        chassis.stop()
