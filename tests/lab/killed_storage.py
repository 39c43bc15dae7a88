"""Runs in a guest: sequences of storage on the real kernel, killed at the records of the journal and at each program
that they start (:mod:`tests.harness.killing`).

``python -m tests.lab.killed_storage SCENARIO MOST FAIL...`` prints ``{"kills", "to_old", "to_new", "records"}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec

from farbus.agent.steps import Steps
from farbus.linux.nvmet import CONFIGFS, read_target
from farbus.model.nvmeof import Connection, ExpectedNamespace, SubsystemName, namespace_identity, transport_address
from farbus.model.storage import EXTENT_BYTES, LogicalIdentity, identity_of
from farbus.model.volume import StorageUse, VolumePart
from farbus.nvmeof import using, volumes
from tests.harness.killing import kill_everywhere
from tests.lab.storage import Machine

ADDRESS = transport_address("tcp://127.0.0.1:4420")
SIZE = 8 * EXTENT_BYTES
CHANGING = {"subprocess.Popen", "os.mkdir", "os.rmdir", "os.remove", "os.symlink"}
"""What a process does just before the kernel has something that it had not, or the reverse (sys.audit's names)."""

CLEAR = """
for device in $(awk 'NR > 1 {print $1}' /proc/swaps); do swapoff $device; done
umount -l /run/farbus/storage/*; rmdir /run/farbus/storage/*
for name in $(dmsetup ls | grep -o '^farbus-lab[.][^[:space:]]*'); do dmsetup remove $name; done
nvme disconnect-all
cd /sys/kernel/config/nvmet
for subsystem in $(ls subsystems | grep 'room-lab'); do
    rm ports/*/subsystems/$subsystem subsystems/$subsystem/allowed_hosts/*
    for namespace in subsystems/$subsystem/namespaces/*; do echo 0 > $namespace/enable; rmdir $namespace; done
    rmdir subsystems/$subsystem
done
rmdir hosts/*room-lab ports/*
for volume in $(lvs --noheadings -o lv_name farbus | grep -v kept); do lvremove -qqfy farbus/$volume; done
"""
"""Takes away what a scenario may have left, of its own."""


def drives() -> tuple[str, ...]:
    """Return the drives of this guest by the ids that the volume group has for them."""
    return tuple(os.environ["LAB_DRIVES"].split(","))


def a_part(volume: str, size_bytes: int) -> VolumePart:
    """Return a volume's only part, on both drives."""
    return VolumePart(volume=volume, size_bytes=size_bytes, drives=drives())


def connection(part: VolumePart, lease: str) -> Connection:
    """Return how a part that this guest exports comes back to it."""
    identity = namespace_identity(identity_of(part).exported_as)
    expected = ExpectedNamespace(identity=identity, size_bytes=part.size_bytes)
    name = SubsystemName(lease=lease, epoch=1)
    return Connection(name=name, addresses=(ADDRESS,), namespaces=(expected,), io_queues=1)


class Room:
    """A lease has room of its own on two drives, and offers it."""

    one_way = False
    """Whether what is done can't be taken back."""

    def __init__(self, directory: Path) -> None:
        """Everything is the kernel's: the directory says only whether the old world was made."""
        self._made = directory / "made"
        self.passing: Callable[[], None] = lambda: None

    def before(self) -> tuple[volumes.VolumeWork, ...]:
        """Return what makes the old world."""
        return ()

    def work(self) -> volumes.VolumeWork:
        """Return what is done."""
        whose = LogicalIdentity(lease="room-lab")
        export = volumes.export_of(SubsystemName(lease="room-lab", epoch=1), whose, [ADDRESS])
        return volumes.RoomWork(lease="room-lab", size_bytes=SIZE, drives=drives(), export=export)

    def _steps(self, machine: Machine) -> Steps:
        work = self.work()
        return Steps(
            object=volumes.object_of(work), body=msgspec.json.encode(work).decode(),
            steps=volumes.steps_of(machine.storing, work), resumable=True,
        )  # fmt: skip

    async def _prepare(self, machine: Machine) -> None:
        if self._made.exists():
            return
        for work in self.before():
            for step in volumes.steps_of(machine.storing, work):
                await step.do()
        self._made.touch()

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        """Open the doors, and die at whatever changes something from now on."""
        machine = Machine()
        await self._prepare(machine)
        sys.addaudithook(lambda event, _: self.passing() if event in CHANGING else None)
        yield self._steps(machine)

    def world(self) -> object:
        """What programs of the machine tell of it."""
        asyncio.run(self._prepare(Machine()))
        target = read_target(f"{CONFIGFS}/nvmet")
        for port in target["ports"]:
            del port["id"]
        controllers = [place for place in Path("/sys/class/nvme").iterdir() if _says(place / "transport") == "tcp"]
        return {
            # What is to be wiped is nobody's any more: that is done behind the end of a lease.
            "volumes": [
                line
                for line in _lines("lvs", "--noheadings", "-o", "lv_name,lv_size,lv_tags", "farbus")
                if "farbus.going" not in line
            ],
            "target": target,
            "controllers": sorted([_says(place / "subsysnqn"), _says(place / "state")] for place in controllers),
            "mappings": [line.split()[0] for line in _lines("dmsetup", "ls") if line.startswith("farbus-lab.")],
            "swap": len(_lines("cat", "/proc/swaps")) - 1,
            "mounts": [line.split()[1] for line in _lines("cat", "/proc/mounts") if "/farbus/" in line],
            "points": sorted(place.name for place in Path("/run/farbus/storage").glob("*")),
        }

    def clear(self) -> None:
        """Take away what is left, whatever it is."""
        subprocess.run(["bash", "-c", CLEAR], capture_output=True, check=False)
        subprocess.run(["udevadm", "settle"], check=False)


class Make(Room):
    """A part of a volume is made."""

    one_way = True

    def work(self) -> volumes.VolumeWork:
        return volumes.MakeWork(part=a_part("killed", SIZE))


class Resize(Make):
    """It is made larger."""

    def before(self) -> tuple[volumes.VolumeWork, ...]:
        return (volumes.MakeWork(part=a_part("killed", SIZE)),)

    def work(self) -> volumes.VolumeWork:
        return volumes.ResizeWork(part=a_part("killed", 2 * SIZE), before_bytes=SIZE)


class Remove(Resize):
    """It is wiped and removed."""

    def work(self) -> volumes.VolumeWork:
        return volumes.RemoveWork(part=a_part("killed", SIZE))


class Mount(Room):
    """A volume that another lease is offered comes over TCP and is mounted.  The file system on it is the volume's.

    The test has made it, and offers it: ``kept`` to the lease ``kept-lab``.
    """

    kept: tuple[str, ...] = ("kept",)
    use = StorageUse.MOUNT

    def _steps(self, machine: Machine) -> Steps:
        parts = tuple(using.part_there(connection(a_part(name, 2 * SIZE), f"{name}-lab")) for name in self.kept)
        work = using.UseWork(id="lab.kept", parts=parts, use=self.use, drain_s=0.0)
        return Steps(
            object=using.object_of(work), body=msgspec.json.encode(work).decode(),
            steps=using.steps_of(machine.using, work), resumable=True,
        )  # fmt: skip


class Swap(Mount):
    """Two come by a connection each, and the stripe over both is swapped to."""

    kept = ("kept", "kept2")
    use = StorageUse.SWAP


def _says(file: Path) -> str:
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""


def _lines(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return sorted(line.strip() for line in done.stdout.splitlines())


def main() -> dict[str, Any]:
    """Kill."""
    name, most, *fail = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        told = kill_everywhere(
            f"tests.lab.killed_storage:{name}", Path(place), fail=tuple(map(int, fail)), most=int(most),
            one_way=globals()[name].one_way,
        )  # fmt: skip
    return {
        "kills": told.kills,
        "to_old": told.to_old,
        "to_new": told.to_new,
        "records": {way: len(records) for way, records in told.records.items()},
    }


if __name__ == "__main__":
    print(json.dumps(main()))
