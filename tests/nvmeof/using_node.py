"""A node that uses storage, all in files: parts of its own, and what other nodes export."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from farbus.agent.steps import Steps
from farbus.linux.cgroups import FakeCgroups
from farbus.linux.clock import Clock, SystemClock
from farbus.linux.fake_filesystems import FakeFileSystems
from farbus.linux.fake_lvm import FakeLvm, TreeBlockDevices
from farbus.model.nvmeof import IoLimit, transport_address
from farbus.model.storage import Account, LogicalIdentity
from farbus.model.volume import StorageUse
from farbus.nvmeof.using import (
    UseParts,
    UseWork,
    object_of,
    part_here,
    part_there,
    resumable,
    steps_of,
)
from tests.nvmeof.attaching import FIRST, SECOND, SIZE, a_connection, a_target
from tests.nvmeof.attaching import Node as Attaching

USER = Account(uid=1000, gid=1000)
LIMIT = IoLimit(read_bytes_s=1 << 20, write_bytes_s=1 << 20)
LOCAL = LogicalIdentity(lease="l9")


def a_use(**changes: object) -> UseWork:
    """A volume of another node, mounted in a directory of ours."""
    work = UseWork(id="job.data", parts=(part_there(a_connection()),), account=USER, drain_s=0.0)
    return msgspec.structs.replace(work, **changes)


def a_local_use(**changes: object) -> UseWork:
    """Room of this node's own."""
    return a_use(**{"parts": (part_here(f"/dev/farbus/{LOCAL.name}", SIZE),), **changes})


def a_striped_use(**changes: object) -> UseWork:
    """Two volumes' parts of two nodes, as one."""
    connections = [
        a_connection(lease, addresses=(transport_address(address),))
        for lease, address in (("l1", FIRST), ("l2", SECOND))
    ]
    return a_use(**{"parts": tuple(part_there(connection) for connection in connections), **changes})


class Node:
    """Made anew by each process that opens ``directory``."""

    def __init__(self, directory: Path, *, clock: Clock | None = None) -> None:
        new = not directory.exists()
        attaching = Attaching(directory, clock=clock or SystemClock())
        self.directory = directory
        self.nvme, self.mapper, self.holders = attaching.nvme, attaching.mapper, attaching.holders
        self.lvm = FakeLvm(directory)
        self.blocks = TreeBlockDevices(directory)
        self.filesystems = FakeFileSystems(directory, size_of=lambda device: self.blocks.look(device).size_bytes)
        self.cgroups = FakeCgroups()
        self.cgroups.groups["job"] = (0, 0)
        self.parts = UseParts(
            initiator=dataclasses.replace(attaching.parts, cgroups=self.cgroups),
            blocks=self.blocks,
            filesystems=self.filesystems,
        )
        if new:
            self.lvm.plug("S0", 4 * SIZE)

    async def ready(self) -> Node:
        """Offer what other nodes offer, and make room here, once."""
        if not await self.lvm.drives():
            drive = "NVME-S0-Fake_drive"
            await self.lvm.add_drive(drive)
            await self.lvm.create(LOCAL, size_bytes=SIZE, drives=[drive])
            await self.lvm.wipe(LOCAL)
            self.nvme.offer(*(a_target(connection) for connection in (a_connection(), a_connection("l2"))))
            self.filesystems.make_directory("/home/alice", uid=USER.uid)
        return self

    async def go(self, work: UseWork) -> dict[str, str]:
        """Go forward, as the runner does."""
        whole: dict[str, str] = {}
        for step in steps_of(self.parts, work):
            found = await step.observe(None)
            whole |= await step.do() if found is None else found
        return whole

    async def adopted(self, work: UseWork, result: dict[str, str]) -> bool:
        """Say whether all of it is found, as a restarted agent looks for it."""
        return all([await step.observe(result) is not None for step in steps_of(self.parts, work)])

    async def back(self, work: UseWork) -> None:
        """Go back."""
        for step in reversed(steps_of(self.parts, work)):
            await step.compensate()

    def steps(self, work: UseWork) -> Steps:
        return Steps(
            object=object_of(work), body=msgspec.json.encode(work).decode(), steps=steps_of(self.parts, work),
            resumable=resumable(work),
        )  # fmt: skip

    def world(self) -> dict[str, object]:
        """What anybody can see."""
        file = self.directory / "filesystems.json"
        state = json.loads(file.read_text()) if file.exists() else {}
        return {
            "controllers": sorted([one.nqn, str(one.address), str(one.state)] for one in self.nvme.controllers()),
            "links": sorted(entry.name for entry in (self.directory / "dev/disk/by-id").iterdir()),
            "stripes": self.mapper.list(),
            "mounts": state.get("mounts", []),
            "swaps": state.get("swaps", []),
            "nodes": state.get("nodes", {}),
            "points": sorted(state.get("directories", {})),
        }


class Mount:
    """A volume of another node is mounted (:mod:`tests.harness.killing`).

    What it holds when it is let go is the volume's: it counts in neither world.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "node"
        self.passing: Callable[[], None] = lambda: None

    def work(self) -> UseWork:
        return a_use()

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        node = await Node(self._directory).ready()
        node.filesystems.passing = self.passing
        yield node.steps(self.work())

    def world(self) -> object:
        if not self._directory.exists():
            asyncio.run(Node(self._directory).ready())
        return Node(self._directory).world()

    def clear(self) -> None:
        """Its directory is removed anyway."""


class Local(Mount):
    """Room of this node is mapped."""

    def work(self) -> UseWork:
        return a_local_use(use=StorageUse.MMAP)


class Striped(Mount):
    """Two parts of two nodes are one device of the user's."""

    def work(self) -> UseWork:
        return a_striped_use(use=StorageUse.RAW)


class Swap(Mount):
    """Two parts of two nodes are swapped to."""

    def work(self) -> UseWork:
        return a_striped_use(use=StorageUse.SWAP)
