"""The using node's sequences: what is found, made, mounted and given, what is refused, and what is let go."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from farbus.errors import Conflict, FarbusError, InvalidInput, Unavailable
from farbus.linux.clock import FakeClock
from farbus.model.holders import Holder, HolderKind, Look
from farbus.model.nvmeof import IoLimit
from farbus.model.volume import FileSystem, StorageUse
from farbus.nvmeof.using import (
    MakeFileSystem,
    UseWork,
    device_of,
    from_body,
    grow,
    object_of,
    part_here,
    resumable,
    size_of,
    steps_of,
    stripe_of,
)
from tests.nvmeof.attaching import SIZE, a_connection, passing
from tests.nvmeof.using_node import LIMIT, LOCAL, Node, a_local_use, a_striped_use, a_use

POINT = "/run/farbus/storage/job.data"
DEVICE = device_of(a_use())
HERE = device_of(a_local_use())


async def a_node(tmp_path: Path, *, clock: FakeClock | None = None) -> Node:
    return await Node(tmp_path / "node", clock=clock).ready()


def contents(node: Node) -> dict[str, object]:
    held: dict[str, dict[str, object]] = node.filesystems.contents()
    return {name: one["kind"] for name, one in held.items()}


async def test_a_file_system_is_made_once_and_its_top_is_the_users(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    told = await node.go(a_use())
    assert (told["path"], told["format"]) == (POINT, "ext4")
    (held,) = node.filesystems.contents().values()
    assert held["owner"] == [1000, 1000]
    await node.back(a_use())
    await node.go(a_use(file_system=FileSystem.XFS))
    assert [program for program, *_ in node.filesystems.ran if program.startswith("mkfs")] == ["mkfs.ext4"]
    # Each time it was looked at before it was mounted.
    assert [program for program, *_ in node.filesystems.ran].count("e2fsck") == 2


@pytest.mark.parametrize("use", [StorageUse.MOUNT, StorageUse.MMAP, StorageUse.SWAP])
async def test_who_finds_it_in_use_does_not_read_the_device(use: StorageUse, tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    await node.go(a_use(use=use))
    (step,) = (one for one in steps_of(node.parts, a_use(use=use)) if isinstance(one, MakeFileSystem))

    async def wait(device: str) -> NoReturn:
        # All its paths are lost: the kernel keeps who reads until one is back.
        raise Unavailable(f"look at {device}: it does not answer")

    node.filesystems.signature = wait  # type: ignore[method-assign]
    assert await step.observe({"format": "as recorded"}) == {"format": "as recorded"}
    with pytest.raises(Unavailable):
        await step.observe(None)


@pytest.mark.parametrize("kind", ["data", "ambiguous", "dos", "LVM2_member", "swap", "crypto_LUKS"])
async def test_what_holds_anything_is_kept(kind: str, tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    node.filesystems.put(HERE, kind)
    with pytest.raises(Conflict, match=r"use job\.data as mount: it holds") as caught:
        await node.go(a_local_use())
    assert "nothing was changed" in caught.value.hint
    assert list(contents(node).values()) == [kind]
    await node.back(a_local_use())


async def test_a_file_system_that_was_being_made_is_made_anew(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    node.filesystems.put(HERE, "cut off")
    await node.go(a_local_use(file_system=FileSystem.XFS))
    assert list(contents(node).values()) == ["xfs"]


async def test_nothing_is_made_for_who_only_reads(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    with pytest.raises(Conflict, match="read-only: it holds nothing"):
        await node.go(a_local_use(read_only=True))
    await node.go(a_local_use())
    await node.back(a_local_use())
    await node.go(a_local_use(read_only=True))
    (mounted,) = node.filesystems.mounts(HERE)
    assert mounted.read_only


async def test_a_path_that_was_asked_for(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    node.filesystems.make_directory("/home/alice/full", uid=1000, files=("thing",))
    node.filesystems.make_directory("/home/bob", uid=1001)
    for path, error in (("/home/alice/full", "not empty"), ("/home/bob", "not its user's")):
        with pytest.raises(FarbusError, match=error):
            await node.go(a_local_use(path=path))
        await node.back(a_local_use(path=path))
    told = await node.go(a_local_use(path="/home/alice/new"))
    assert told["path"] == "/home/alice/new"
    with pytest.raises(Conflict, match="it is mounted on /home/alice/new already"):
        await node.go(a_local_use(path="/home/alice/other"))


@pytest.mark.parametrize(
    "path", ["/run/farbus/storage", "/run/farbus/storage/l2", "/run/farbus/storage/job.other/link/apt.conf.d"]
)
async def test_nobody_asks_for_the_agents_own_directories(path: str, tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    with pytest.raises(InvalidInput, match="the agent's own directories; name another path"):
        await node.go(a_local_use(path=path))
    assert node.filesystems.mounts(HERE) == ()
    assert path not in node.filesystems.directories()


async def test_who_uses_a_mount_is_named_and_keeps_it(tmp_path: Path) -> None:
    clock = FakeClock()
    node = await a_node(tmp_path, clock=clock)
    work = a_local_use()
    await node.go(work)
    node.filesystems.using[POINT] = ["python3"]
    with pytest.raises(Conflict, match=rf"unmount {POINT}: it is in use: {POINT} is open in pid 100 \(python3\)"):
        await node.back(work)
    assert node.filesystems.mounts(HERE)
    forced = msgspec.structs.replace(work, force=True)
    await node.back(forced)
    assert node.filesystems.mounts(HERE) == ()


async def test_a_mount_in_use_is_tried_again_for_as_long_as_its_work_says(tmp_path: Path) -> None:
    clock = FakeClock()
    node = await a_node(tmp_path, clock=clock)
    work = a_local_use(drain_s=10.0)
    await node.go(work)
    node.filesystems.using[POINT] = ["python3"]
    with pytest.raises(Conflict, match="it is in use"):
        await passing(clock, node.back(work))
    going = asyncio.ensure_future(node.back(work))
    await clock.advance(9.0)
    assert node.filesystems.mounts(HERE)
    node.filesystems.using.clear()
    await passing(clock, going, seconds=2)
    assert node.filesystems.mounts(HERE) == ()


async def test_a_node_that_leads_elsewhere_is_not_kept(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    work = a_local_use(use=StorageUse.RAW)
    told = await node.go(work)
    assert await node.adopted(work, told)
    await node.go(a_use(id="other.data", use=StorageUse.RAW))
    await node.filesystems.give_node(DEVICE, work.id, account=work.account, read_only=False)
    assert not await node.adopted(work, told)


async def test_who_holds_the_device_keeps_it(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    work = a_local_use(use=StorageUse.RAW)
    told = await node.go(work)
    assert told["path"] == "/dev/farbus-storage/job.data"
    holder = Holder(kind=HolderKind.PROCESS, name="dd", path=told["path"], pid=7)
    node.holders.state = Look(holders=(holder,))
    with pytest.raises(Conflict, match=r"let go of .*: still held after 0 s: .*dd"):
        await node.back(work)
    await node.back(msgspec.structs.replace(work, force=True))
    assert node.filesystems.nodes() == []


async def test_a_part_of_this_node_that_somebody_has_is_refused(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    node.blocks.held.add(HERE)
    with pytest.raises(Conflict, match="in use by"):
        await node.go(a_local_use())
    assert contents(node) == {}


async def test_no_node_is_given_of_what_is_mounted_for_another(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    await node.go(a_local_use())
    node.blocks.held.add(HERE)
    # The mount's own next try takes hold of it.
    await node.go(a_local_use())
    with pytest.raises(Conflict, match="in use by"):
        await node.go(a_local_use(id="other.data", use=StorageUse.RAW))
    assert node.filesystems.nodes() == []


async def test_swap_and_memory(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    swap = a_striped_use(use=StorageUse.SWAP)
    told = await node.go(swap)
    assert told["path"] == "/dev/mapper/farbus-job.data"
    assert node.filesystems.swaps() == [told["path"]]
    node.filesystems.full_memory = True
    with pytest.raises(Conflict, match="not enough memory"):
        await node.back(msgspec.structs.replace(swap, force=True))
    node.filesystems.full_memory = False
    await node.back(swap)
    told = await node.go(a_local_use(use=StorageUse.MMAP))
    assert told["path"] == f"{POINT}/memory"
    assert await node.adopted(a_local_use(use=StorageUse.MMAP), told)


async def test_each_part_has_its_limit(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    parts = tuple(
        msgspec.structs.replace(part, limit=LIMIT) for part in a_striped_use(use=StorageUse.RAW).parts
    )  # fmt: skip
    work = a_striped_use(use=StorageUse.RAW, parts=parts, group="job")
    await node.go(work)
    assert sorted(node.cgroups.io_limits.values(), key=str) == [LIMIT, LIMIT]
    assert len({device for _, device in node.cgroups.io_limits}) == 2
    await node.back(work)
    assert set(node.cgroups.io_limits.values()) == {IoLimit()}


async def test_parts_are_striped_in_their_order(tmp_path: Path) -> None:
    work = a_striped_use()
    stripe = stripe_of(work)
    assert stripe is not None
    assert stripe.members == tuple(part.path for part in work.parts)
    assert size_of(work) == 2 * SIZE
    assert stripe_of(a_use()) is None
    odd = msgspec.structs.replace(work, parts=(work.parts[0], work.parts[0]))
    with pytest.raises(InvalidInput, match="do not fit"):
        stripe_of(odd)
    node = await a_node(tmp_path)
    with pytest.raises(InvalidInput, match="no parts"):
        steps_of(node.parts, a_use(parts=()))


async def test_here_and_there_are_one_device(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    parts = (*a_use().parts, *a_local_use().parts)
    told = await node.go(a_use(parts=parts))
    assert told["path"] == POINT
    assert await node.adopted(a_use(parts=parts), told)
    await node.back(a_use(parts=parts))
    assert node.mapper.list() == ()


async def test_it_grows_while_it_is_used_and_is_kept_by_a_restarted_agent(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    told = await node.go(a_use())
    before = await node.filesystems.space(DEVICE)
    node.nvme.resize(a_connection().nqn, 2 * SIZE)
    await grow(node.parts, a_use(), size_bytes=2 * SIZE)
    assert (await node.filesystems.space(DEVICE)).size_bytes == 2 * before.size_bytes
    assert await node.adopted(a_use(), told)
    with pytest.raises(Conflict, match="striped over 2 nodes"):
        await grow(node.parts, a_striped_use(), size_bytes=2 * SIZE)


async def test_what_grew_while_nobody_used_it_is_all_there(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    await node.go(a_local_use())
    await node.back(a_local_use())
    await node.lvm.extend(LOCAL, size_bytes=2 * SIZE)
    await node.lvm.wipe(LOCAL)
    await node.go(a_local_use(parts=(part_here(HERE, 2 * SIZE),)))
    assert (await node.filesystems.space(HERE)).size_bytes > SIZE


async def test_what_somebody_has_to_decide_is_not_mounted(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    await node.go(a_local_use())
    await node.back(a_local_use())
    node.filesystems.break_file_system(HERE)
    with pytest.raises(FarbusError, match="UNEXPECTED INCONSISTENCY"):
        await node.go(a_local_use())
    await node.back(a_local_use())


async def test_a_mount_whose_target_is_lost_goes_all_the_same(tmp_path: Path) -> None:
    node = await a_node(tmp_path)
    work = a_use()
    await node.go(work)
    for controller in node.nvme.controllers():
        node.nvme.lose(controller.name)
    assert not await node.adopted(work, {"path": POINT})
    await node.back(work)
    assert json.loads((node.directory / "filesystems.json").read_text())["mounts"] == []


@pytest.mark.parametrize("work", [a_use(), a_local_use(path="/x"), a_striped_use(use=StorageUse.SWAP)])
def test_bodies_are_read_as_they_were_written(work: UseWork) -> None:
    assert from_body(msgspec.json.encode(work).decode()) == work
    assert object_of(work) == "use of job.data"
    assert resumable(work)


def test_who_needs_a_key_can_not_be_gone_on_with() -> None:
    part = a_use().parts[0]
    assert part.connection is not None
    keyed = msgspec.structs.replace(part.connection, authenticated=True)
    assert not resumable(a_use(parts=(msgspec.structs.replace(part, connection=keyed),)))
