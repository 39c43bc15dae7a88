"""A node that stores, all in files: two drives in a volume group, one of them with somebody else's logical volume."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from farbus.agent.steps import Steps
from farbus.linux.fake_lvm import FakeLvm, TreeBlockDevices
from farbus.linux.fake_nvmet import FakeNvmet
from farbus.linux.nvmet import read_target
from farbus.model.nvmeof import Export, SubsystemName, transport_address
from farbus.model.nvmet import Target
from farbus.model.storage import EXTENT_BYTES, LogicalIdentity, LogicalVolume
from farbus.model.volume import VolumePart
from farbus.nvmeof.target import TargetParts
from farbus.nvmeof.volumes import (
    AnyVolumeStep,
    DropWork,
    MakeWork,
    RemoveWork,
    ResizeWork,
    RoomWork,
    VolumeParts,
    VolumeWork,
    export_of,
    object_of,
    resumable,
    steps_of,
)

DRIVES = ("NVME-S0-Fake_drive", "NVME-S1-Fake_drive")
SIZE = 64 << 20
UNIT = EXTENT_BYTES
HERE = transport_address("tcp://10.0.0.7:4420")
PART = VolumePart(volume="data", part=1, parts=2, size_bytes=4 * UNIT, drives=DRIVES)
LEASE = "l1"


def an_export(whose: LogicalIdentity, *, epoch: int = 1) -> Export:
    return export_of(SubsystemName(lease=LEASE, epoch=epoch), whose, [HERE])


def a_room(*, exported: bool = True) -> RoomWork:
    whose = LogicalIdentity(lease=LEASE)
    return RoomWork(lease=LEASE, size_bytes=3 * UNIT + 1, drives=DRIVES, export=an_export(whose) if exported else None)


class Node:
    """Made anew by each process that opens ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        new = not directory.exists()
        self.lvm = FakeLvm(directory)
        self.nvmet = FakeNvmet(directory / "config", machine=directory)
        self.blocks = TreeBlockDevices(directory)
        self.lvm.opened = self._is_exported
        self.told: list[tuple[str, int, int]] = []
        self.parts = VolumeParts(
            lvm=self.lvm,
            target=TargetParts(nvmet=self.nvmet, blocks=self.blocks),
            told=lambda *words: self.told.append(words),
            ended=self._ended,
        )
        self.ends = 0
        """How often room was told to be over."""
        if new:
            for number in range(2):
                self.lvm.plug(f"S{number}", SIZE)

    async def ready(self) -> Node:
        """Give the drives to the group, once."""
        if not await self.lvm.drives():
            for drive in DRIVES:
                await self.lvm.add_drive(drive)
            self.lvm.by_hand("theirs", UNIT)
        return self

    async def _ended(self) -> None:
        self.ends += 1

    def target(self) -> Target:
        return msgspec.convert(read_target(str(self.directory / "config/nvmet")), Target)

    def _is_exported(self, path: str) -> bool:
        return any(
            namespace.enabled and namespace.device == path
            for subsystem in self.target().subsystems
            for namespace in subsystem.namespaces
        )

    def write(self, whose: LogicalIdentity, data: bytes) -> None:
        with self.lvm.contents(whose.name).open("r+b") as file:
            file.write(data)

    def read(self, whose: LogicalIdentity) -> bytes:
        return self.lvm.contents(whose.name).read_bytes()

    async def find(self, whose: LogicalIdentity) -> LogicalVolume | None:
        return await self.lvm.find(whose)

    async def go(self, work: VolumeWork) -> dict[str, str]:
        """Go forward, as the runner does."""
        whole: dict[str, str] = {}
        for step in steps_of(self.parts, work):
            found = await step.observe(None)
            whole |= await step.do() if found is None else found
        return whole

    async def back(self, work: VolumeWork) -> None:
        """Go back."""
        for step in reversed(steps_of(self.parts, work)):
            await step.compensate()

    def steps(self, work: VolumeWork) -> Steps:
        steps: tuple[AnyVolumeStep, ...] = steps_of(self.parts, work)
        return Steps(
            object=object_of(work), body=msgspec.json.encode(work).decode(), steps=steps, resumable=resumable(work)
        )

    def world(self) -> dict[str, object]:
        """What anybody can see."""
        state = json.loads((self.directory / "lvm.json").read_text())
        return {
            "volumes": state["volumes"],
            "zeros": {name: not any(self.lvm.contents(name).read_bytes()) for name in state["volumes"]},
            "nodes": sorted(path.name for path in (self.directory / "dev/farbus").glob("*")),
            "target": json.loads(msgspec.json.encode(self.target())),
        }


class Room:
    """A lease has room of its own, and offers it (:mod:`tests.harness.killing`)."""

    leaves_marked = True

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "node"
        self.passing: Callable[[], None] = lambda: None

    def work(self) -> VolumeWork:
        return a_room()

    async def prepare(self, node: Node) -> None:
        """Make the old world, once."""

    async def _node(self) -> Node:
        new = not self._directory.exists()
        node = await Node(self._directory).ready()
        if new:
            await self.prepare(node)
        return node

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        node = await self._node()
        node.lvm.passing = node.nvmet.passing = self.passing
        yield node.steps(self.work())

    def world(self) -> object:
        if not self._directory.exists():
            asyncio.run(self._node())
        found = Node(self._directory).world()
        volumes, zeros, nodes = found["volumes"], found["zeros"], found["nodes"]
        assert isinstance(volumes, dict)
        assert isinstance(zeros, dict)
        assert isinstance(nodes, list)
        # A lease's room that is marked to be wiped is nobody's.
        going = {name for name, one in volumes.items() if self.leaves_marked and "farbus.going" in one["tags"]}
        return {
            **found,
            "volumes": {name: one for name, one in volumes.items() if name not in going},
            "zeros": {name: zero for name, zero in zeros.items() if name not in going},
            "nodes": [name for name in nodes if name not in going],
        }

    def clear(self) -> None:
        """Its directory is removed anyway."""


class Make(Room):
    """A part of a volume is made."""

    leaves_marked = False

    def work(self) -> VolumeWork:
        return MakeWork(part=PART)


class Resize(Room):
    """It is made larger."""

    leaves_marked = False

    async def prepare(self, node: Node) -> None:
        await node.go(MakeWork(part=PART))

    def work(self) -> VolumeWork:
        larger = msgspec.structs.replace(PART, size_bytes=6 * UNIT)
        return ResizeWork(part=larger, before_bytes=PART.size_bytes)


class Drop(Room):
    """Room of a lease that is over is wiped and removed."""

    leaves_marked = False

    async def prepare(self, node: Node) -> None:
        await node.go(a_room(exported=False))
        await node.back(a_room(exported=False))

    def work(self) -> VolumeWork:
        return DropWork(lease=LEASE, size_bytes=4 * UNIT)


class Remove(Resize):
    """It is wiped and removed."""

    def work(self) -> VolumeWork:
        return RemoveWork(part=PART)
