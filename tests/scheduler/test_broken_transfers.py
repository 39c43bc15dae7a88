"""Transfers that break off: each goes on inside the file where it was."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from farbus.agent.events import TaskRun
from farbus.agent.staging import Staging
from farbus.api.client import ClusterClient
from farbus.api.identity import Role
from farbus.api.staging import NodeStaging, OutputFile, StagingClient, rest_of
from farbus.api.v1 import staging_pb2
from farbus.cli.staging import fetch_output
from farbus.errors import Conflict, InvalidInput, NotPermitted, Unavailable
from farbus.linux.clock import FakeClock
from farbus.linux.staging import TaskDirectories
from farbus.model.staging import CHUNK_BYTES, ReceivedFile, StagedFile, digest
from farbus.scheduler.contents import UNUSED_KEPT_S
from farbus.scheduler.receiver import Receiver
from farbus.scheduler.staging import StagingService
from tests.proxy import Proxy, proxy_to
from tests.scheduler.staging_site import ALPHA, BIG, BOB, PART, Site, output, received, serve_site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with serve_site(tmp_path) as served:
        yield served


async def test_upload_goes_on_inside_a_file(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> AsyncIterator[staging_pb2.ContentChunk]:
        yield staging_pb2.ContentChunk(sha256=digest(BIG), size=len(BIG), data=BIG[:PART])

    async with site.client("bob") as client:
        with pytest.raises(InvalidInput, match="end in the middle"):
            await StagingClient(client).put(broken())
    written: list[int] = []
    write = Receiver.write

    async def counted(receiver: Receiver, data: bytes) -> None:
        written.append(len(data))
        await write(receiver, data)

    monkeypatch.setattr(Receiver, "write", counted)
    job = await site.submit({"a": BIG}, "alpha")
    assert written[0] == len(BIG) - PART
    assert await received(site.node("alpha"), job) == {"a": BIG}


async def test_node_gets_the_rest_of_a_file_and_all_of_the_next(site: Site) -> None:
    job = await site.submit({"a": BIG, "b": b"next"}, "alpha")
    node = site.node("alpha")
    files = (await node.manifest(job.id, job.stage_in)).files
    found = {"a": b"", "b": b""}
    async for path, data in node.contents(job.id, files, offset=PART + 1):
        found[path] += data
    assert found == {"a": BIG[PART + 1 :], "b": b"next"}


async def test_scheduler_of_an_earlier_version_sends_all_of_a_file(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await site.submit({"a": BIG}, "alpha")
    node = site.node("alpha")
    files = (await node.manifest(job.id, job.stage_in)).files
    get = site.service.get
    monkeypatch.setattr(site.service, "get", lambda *given, offset: get(*given, offset=0))
    assert b"".join([data async for _, data in node.contents(job.id, files, offset=PART + 1)]) == BIG[PART + 1 :]


async def in_pieces(path: str, data: bytes) -> AsyncIterator[tuple[StagedFile, bytes]]:
    for start in range(0, len(data), CHUNK_BYTES):
        last = start + CHUNK_BYTES >= len(data)
        yield (
            StagedFile(path=path, size=len(data), sha256=digest(data) if last else ""),
            data[start : start + CHUNK_BYTES],
        )


async def break_off(service: StagingService) -> None:
    """Send a file and the first two thirds of another."""

    async def chunks() -> AsyncIterator[staging_pb2.OutputChunk]:
        yield staging_pb2.OutputChunk(job_id="j-1", task="main.0")
        async for chunk in rest_of(chained(output({"out/a": b"a"}), in_pieces("out/b", BIG)), ()):
            if chunk.sha256 == digest(BIG):
                raise Unavailable("the connection broke")
            yield chunk

    with pytest.raises(Unavailable, match="broke"):
        await service.put_output(ALPHA, chunks())


async def chained(*streams: AsyncIterator[Any]) -> AsyncIterator[Any]:
    for stream in streams:
        async for each in stream:
            yield each


@pytest.mark.parametrize("restarted", [False, True])
async def test_output_goes_on_after_what_has_come_of_it(site: Site, restarted: bool) -> None:
    await site.submit({}, "alpha")
    await break_off(site.service)
    service = site.open() if restarted else site.service
    there = await service.received_output(ALPHA, "j-1", "main.0")
    assert {file.path: file.received for file in there} == {"out/a": 1, "out/b": PART}
    chunks = [chunk async for chunk in rest_of(chained(output({"out/a": b"a"}), in_pieces("out/b", BIG)), there)]
    assert [(chunk.offset, len(chunk.data)) for chunk in chunks] == [(1, 0), (PART, CHUNK_BYTES)]

    async def rest() -> AsyncIterator[staging_pb2.OutputChunk]:
        yield staging_pb2.OutputChunk(job_id="j-1", task="main.0")
        for chunk in chunks:
            yield chunk
        yield staging_pb2.OutputChunk(end=True)

    await service.put_output(ALPHA, rest())
    (bob,) = (site.path / "staging" / "users").iterdir()
    assert {file.path: (bob / file.sha256).read_bytes() for file in await service.list_output(BOB, "j-1")} == {
        "out/a": b"a", "out/b": BIG
    }  # fmt: skip
    assert await service.received_output(ALPHA, "j-1", "main.0") == ()


async def test_node_asks_over_the_wire_what_has_come(site: Site) -> None:
    await site.submit({}, "alpha", "beta")
    node = site.node("alpha")
    await break_off(site.service)
    there = await node.received("j-1", "main.0")
    assert there[1:] == (ReceivedFile(path="out/b", size=len(BIG), received=PART, sha256=digest(BIG[:PART])),)
    await node.put_output("j-1", "main.0", in_pieces("out/b", BIG), there)
    assert await site.fetch() == ["main.0/out/b"]
    with pytest.raises(NotPermitted):
        await node.received("j-1", "main.1")


async def test_output_that_changed_since_is_not_gone_on_with(site: Site) -> None:
    there = ReceivedFile(path="out", size=len(BIG), received=PART, sha256=digest(b"x" * PART))
    with pytest.raises(Conflict, match="out: it changed since a part of it was sent"):
        _ = [chunk async for chunk in rest_of(in_pieces("out", BIG), [there])]


async def test_later_call_for_the_same_output_ends_the_earlier(site: Site) -> None:
    await site.submit({}, "alpha")
    first = asyncio.Event()

    async def half_open() -> AsyncIterator[staging_pb2.OutputChunk]:
        yield staging_pb2.OutputChunk(job_id="j-1", task="main.0")
        yield staging_pb2.OutputChunk(path="out/b", size=len(BIG), data=BIG[:PART])
        first.set()
        await asyncio.Event().wait()

    earlier = asyncio.ensure_future(site.service.put_output(ALPHA, half_open()))
    await first.wait()
    (there,) = await site.service.received_output(ALPHA, "j-1", "main.0")
    assert there.received == PART
    assert earlier.cancelled()


async def test_broken_output_is_kept_for_the_next_call_and_no_longer(site: Site) -> None:
    await site.submit({}, "alpha")
    await break_off(site.service)
    await site.service.received_output(ALPHA, "j-1", "main.0")
    site.wall += UNUSED_KEPT_S - 1
    await site.service.sweep()
    assert len(await site.service.received_output(ALPHA, "j-1", "main.0")) == 2
    site.wall += UNUSED_KEPT_S + 1
    site.engine.machine.jobs.clear()
    await site.service.sweep()
    assert await site.service.received_output(ALPHA, "j-1", "main.0") == ()
    assert site.service._contents.used_bytes == 0


class BreakingClient:
    """Breaks the connection after some chunks."""

    def __init__(self, client: StagingClient, chunks: int) -> None:
        self.list_output = client.list_output
        self.offsets: list[int] = []
        self._client = client
        self._chunks = chunks

    async def get_output(
        self, job_id: str, files: Mapping[int, OutputFile], *, offset: int = 0
    ) -> AsyncIterator[staging_pb2.OutputChunk]:
        self.offsets.append(offset)
        async for chunk in self._client.get_output(job_id, files, offset=offset):
            yield chunk
            self._chunks -= 1
            if not self._chunks:
                raise Unavailable("the connection broke")


async def fetch_with_a_break(site: Site, client: ClusterClient) -> BreakingClient:
    await site.submit({}, "alpha")
    await site.node("alpha").put_output("j-1", "main.0", in_pieces("out/b", BIG))
    breaking = BreakingClient(StagingClient(client), 2)
    with pytest.raises(Unavailable):
        await fetch_output(breaking, "j-1", site.path / "got", by_task=False, force=False, tell=print)
    return breaking


async def test_fetch_goes_on_inside_a_file(site: Site) -> None:
    async with site.client("bob") as client:
        breaking = await fetch_with_a_break(site, client)
        await fetch_output(breaking, "j-1", site.path / "got", by_task=False, force=False, tell=print)
    assert breaking.offsets == [0, PART]
    assert [path.name for path in (site.path / "got" / "out").iterdir()] == ["b"]
    assert (site.path / "got" / "out" / "b").read_bytes() == BIG


async def test_fetch_with_a_spoilt_part_says_so_and_the_next_begins_again(site: Site) -> None:
    async with site.client("bob") as client:
        await fetch_with_a_break(site, client)
    (part,) = (site.path / "got" / "out").iterdir()
    part.write_bytes(b"x" * PART)
    with pytest.raises(InvalidInput, match="did not arrive as it was sent; fetch again"):
        await site.fetch()
    assert await site.fetch() == ["out/b"]
    assert (site.path / "got" / "out" / "b").read_bytes() == BIG


async def test_two_fetches_into_one_directory_do_not_meet(site: Site) -> None:
    async with site.client("bob") as client:
        await fetch_with_a_break(site, client)
    (part,) = (site.path / "got" / "out").iterdir()
    other = os.open(part, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert await site.fetch() == ["out/b"]
    assert part.read_bytes() == BIG[:PART]
    os.close(other)


class HastyClock(FakeClock):
    """A clock on which a sleep is over at once."""

    async def sleep(self, seconds: float) -> None:
        self._now += seconds
        await asyncio.sleep(0)


@pytest.fixture
async def cut(site: Site, tmp_path: Path) -> AsyncIterator[tuple[Proxy, Staging]]:
    """The staging of a node whose way to the scheduler can be cut."""
    async with proxy_to(site.address) as proxy, asyncio.TaskGroup() as group:
        transfers = NodeStaging(address=proxy.address, credentials=site.issue("alpha", Role.NODE))
        directories = TaskDirectories(tmp_path / "tasks")
        yield proxy, Staging(directories=directories, transfers=transfers, clock=HastyClock(), group=group)


async def test_files_arrive_whole_when_connections_are_cut(site: Site, cut: tuple[Proxy, Staging]) -> None:
    proxy, staging = cut
    job = await site.submit({"a": BIG, "b": BIG[1:]}, "alpha")
    run = TaskRun(job="j-1", task="main.0", user="bob", command=("x",), cwd="", stage_in=job.stage_in)
    proxy.cut_after(PART)
    path = await staging.stage_in("t", run, None)
    assert ((path / "a").read_bytes(), (path / "b").read_bytes()) == (BIG, BIG[1:])
    assert proxy.connections > 2


async def test_output_arrives_whole_when_connections_are_cut(site: Site, cut: tuple[Proxy, Staging]) -> None:
    proxy, staging = cut
    await site.submit({}, "alpha")
    run = TaskRun(job="j-1", task="main.0", user="bob", command=("x",), cwd="", stage_out=("out",))
    path = await staging.stage_in("t", run, None)
    (path / "out").write_bytes(BIG)
    proxy.cut_after(PART)
    await staging.stage_out("t", run, None)
    assert await site.fetch() == ["out"]
    assert (site.path / "got" / "out").read_bytes() == BIG
    assert proxy.connections > 2
