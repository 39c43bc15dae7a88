"""Files of jobs at the scheduler, over real connections: who may have what, what is kept, what goes."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from farbus.api.authority import Authority, Credentials, write_credentials
from farbus.api.client import ClusterClient
from farbus.api.identity import Identity, Role
from farbus.api.server import serve_scheduler
from farbus.api.staging import NodeStaging, StagingClient, add_staging, rest_of
from farbus.api.v1 import staging_pb2
from farbus.cli.jobfile import StageTable
from farbus.cli.staging import fetch_output, find_files, send_files
from farbus.errors import Conflict, InvalidInput, NotFound, NotPermitted, Unavailable
from farbus.model.job import Job, JobStatus, TaskGroup, TaskPlacement
from farbus.model.staging import CHUNK_BYTES, Manifest, ReceivedFile, StagedFile, digest
from farbus.model.states import JobState
from farbus.scheduler.contents import SETTLE_S, UNUSED_KEPT_S, Contents, Limits
from farbus.scheduler.manifests import Manifests
from farbus.scheduler.receiver import Receiver
from farbus.scheduler.staging import OUTPUT_KEPT_S, StagingService
from tests.api.test_servers import Echo, Recorder

BOB = Identity(name="bob", role=Role.USER)
ALPHA = Identity(name="alpha", role=Role.NODE)
BETA = Identity(name="beta", role=Role.NODE)
LIMIT = 10 * 2**20


class Engine:
    """Knows the jobs that a test says."""

    def __init__(self) -> None:
        self.known: dict[str, JobStatus] = {}
        self.machine = SimpleNamespace(jobs={})

    async def find(self, job_id: str) -> JobStatus:
        if job_id not in self.known:
            raise NotFound(f"there is no job {job_id}")
        return self.known[job_id]

    def run(self, job: Job, *nodes: str) -> Job:
        placements = tuple(TaskPlacement(task=f"main.{index}", node=node) for index, node in enumerate(nodes))
        self.known[job.id] = JobStatus(job=job, state=JobState.RUNNING, placements=placements)
        self.machine.jobs[job.id] = SimpleNamespace(job=job, state=JobState.RUNNING)
        return job


class Site:
    """A scheduler's staging service that is served, and who calls it."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.engine = Engine()
        self.wall = 1_000_000.0
        self.limits = Limits(bytes=2 * LIMIT, files=200, user_bytes=LIMIT, user_files=100)
        self.authority = Authority.create(tmp_path / "ca")
        self.service = self.open()
        self.address = ""

    def open(self) -> StagingService:
        return StagingService(
            self.engine, self.path / "staging", limits=self.limits, job_limit_bytes=LIMIT, wall=lambda: self.wall,
        )  # fmt: skip

    def issue(self, name: str, role: Role) -> Credentials:
        return write_credentials(self.path / "c" / name, name, self.authority.issue(name, role))

    def client(self, name: str) -> ClusterClient:
        return ClusterClient.remote(address=self.address, credentials=self.issue(name, Role.USER))

    def node(self, name: str) -> NodeStaging:
        return NodeStaging(address=self.address, credentials=self.issue(name, Role.NODE))

    async def submit(self, contents: dict[str, bytes], *nodes: str, stage_out: tuple[str, ...] = ("out",)) -> Job:
        source = self.path / "source"
        for path, data in contents.items():
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            (source / path).write_bytes(data)
        files = find_files([StageTable(source=str(source / path), to=path) for path in contents], self.path)
        async with self.client("bob") as client:
            stage_in = await send_files(StagingClient(client), files)
        group = TaskGroup(name="main", command=("x",), count=max(1, len(nodes)))
        job = Job(id="j-1", name="x", user="bob", groups=(group,), cwd="", stage_in=stage_in, stage_out=stage_out)
        await self.service.check(BOB, job)
        return self.engine.run(job, *nodes)

    async def fetch(self, name: str = "bob", *, force: bool = False) -> list[str]:
        told: list[str] = []
        async with self.client(name) as client:
            await fetch_output(StagingClient(client), "j-1", self.path / "got", force=force, tell=told.append)
        return [str(Path(path).relative_to(self.path / "got")) for path in told]

    def contents(self) -> set[str]:
        return {path.name for path in (self.path / "staging" / "users").rglob("*") if path.is_file()}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    server = await serve_scheduler(
        cluster=Recorder(),
        sessions=Echo(),
        listen="127.0.0.1:0",
        credentials=made.issue("s", Role.SCHEDULER),
        services=(functools.partial(add_staging, made.service),),
    )
    made.address = f"127.0.0.1:{server.port}"
    yield made
    await server.stop()


async def output(contents: dict[str, bytes], *, broken: bool = False) -> AsyncIterator[tuple[StagedFile, bytes]]:
    for path, data in contents.items():
        yield StagedFile(path=path, size=len(data), sha256=digest(data)), data
    if broken:
        raise InvalidInput("planted")


async def received(node: NodeStaging, job: Job) -> dict[str, bytes]:
    manifest = await node.manifest(job.id, job.stage_in)
    found = {file.path: b"" for file in manifest.files}
    async for path, data in node.contents(job.id, manifest.files):
        found[path] += data
    return found


async def test_node_of_the_job_gets_its_files(site: Site) -> None:
    contents = {"a": b"x" * 3_000_000, "b/c": b"", "b/d": b"same", "e": b"same"}
    job = await site.submit(contents, "alpha")
    assert await received(site.node("alpha"), job) == contents


async def test_node_without_a_task_of_the_job_gets_nothing(site: Site) -> None:
    job = await site.submit({"a": b"x"}, "alpha")
    with pytest.raises(NotPermitted, match="job j-1 has no such task on node beta"):
        await received(site.node("beta"), job)


async def test_node_gets_no_file_of_the_user_that_the_job_does_not_take_along(site: Site) -> None:
    await site.submit({"other": b"secret"}, "beta")
    await site.submit({"a": b"x"}, "alpha")
    wanted = StagedFile(path="a", size=6, sha256=digest(b"secret"))
    with pytest.raises(NotFound, match="is not one of its files"):
        _ = [piece async for piece in site.node("alpha").contents("j-1", (wanted,))]


async def test_knowing_a_digest_gives_no_right_to_the_content(site: Site) -> None:
    await site.submit({"a": b"bob's"}, "alpha")
    async with site.client("eve") as client:
        staging = StagingClient(client)
        assert await staging.missing([digest(b"bob's")]) == {digest(b"bob's"): 0}


async def test_what_is_there_is_not_sent_again(site: Site) -> None:
    await site.submit({"a": b"x", "b": b"y"}, "alpha")
    async with site.client("bob") as client:
        missing = await StagingClient(client).missing([digest(b"x"), digest(b"y"), digest(b"z")])
    assert missing == {digest(b"z"): 0}


async def test_upload_that_breaks_off_keeps_what_arrived_whole_and_nothing_else(site: Site) -> None:
    async def chunks() -> AsyncIterator[staging_pb2.ContentChunk]:
        yield staging_pb2.ContentChunk(sha256=digest(b"whole"), size=5, data=b"whole")
        yield staging_pb2.ContentChunk(sha256=digest(b"half"), size=4, data=b"ha")

    async with site.client("bob") as client:
        with pytest.raises(InvalidInput, match="end in the middle"):
            await StagingClient(client).put(chunks())
    assert site.contents() == {digest(b"whole")}
    assert list((site.path / "staging" / "parts").iterdir()) == []
    assert site.service._contents.used_bytes == 5


@pytest.mark.parametrize(
    ("chunk", "told"),
    [
        ({"data": b"x"}, "before its digest"),
        ({"sha256": "../../etc", "size": 1, "data": b"x"}, "is not a SHA-256"),
        ({"sha256": digest(b"y"), "size": 1, "data": b"x"}, "did not arrive as it was sent"),
        ({"sha256": digest(b"y"), "size": 1, "data": b"xx"}, "longer than was said"),
        ({"sha256": digest(b"y"), "size": -1}, "is larger than"),
        ({"sha256": digest(b"y"), "size": LIMIT + 1}, "over the limit of 10 MiB"),
    ],
)
async def test_hostile_upload_leaves_nothing(site: Site, chunk: dict, told: str) -> None:
    async def chunks() -> AsyncIterator[staging_pb2.ContentChunk]:
        yield staging_pb2.ContentChunk(**chunk)

    async with site.client("bob") as client:
        with pytest.raises(InvalidInput, match=told):
            await StagingClient(client).put(chunks())
    assert site.contents() == set()
    assert site.service._contents.used_bytes == 0


async def test_job_whose_files_are_not_here_is_refused(site: Site) -> None:
    job = await site.submit({"a": b"x"}, "alpha")
    for path in (site.path / "staging" / "users").rglob(digest(b"x")):
        path.unlink()
    with pytest.raises(InvalidInput, match="stage_in: a is not here; submit again"):
        await site.service.check(BOB, job)


async def test_output_of_all_tasks_is_fetched_by_its_owner(site: Site) -> None:
    await site.submit({}, "alpha", "beta")
    await site.node("alpha").put_output("j-1", "main.0", output({"out/a": b"0" * 2_000_000}))
    await site.node("beta").put_output("j-1", "main.1", output({"out/a": b""}))
    assert await site.fetch() == ["main.0/out/a", "main.1/out/a"]
    assert (site.path / "got" / "main.0" / "out" / "a").read_bytes() == b"0" * 2_000_000


async def test_others_output_is_not_told_from_none(site: Site) -> None:
    await site.submit({}, "alpha")
    await site.node("alpha").put_output("j-1", "main.0", output({"out": b"x"}))
    with pytest.raises(NotFound, match="there is no job j-1"):
        await site.fetch("eve")


async def test_output_that_breaks_off_is_never_seen(site: Site) -> None:
    await site.submit({}, "alpha")
    with pytest.raises(InvalidInput, match="planted"):
        await site.node("alpha").put_output("j-1", "main.0", output({"out/a": b"x"}, broken=True))
    assert await site.fetch() == []


@pytest.mark.parametrize("path", ["other", "outside/a", "out/../../x", "/out", "out\n", "out/\0"])
async def test_node_can_put_out_only_what_the_job_names(site: Site, path: str) -> None:
    await site.submit({}, "alpha")
    with pytest.raises(InvalidInput, match="path"):
        await site.node("alpha").put_output("j-1", "main.0", output({path: b"x"}))


async def test_node_can_put_out_nothing_for_others_tasks(site: Site) -> None:
    await site.submit({}, "alpha", "beta")
    with pytest.raises(NotPermitted):
        await site.node("alpha").put_output("j-1", "main.1", output({"out": b"x"}))


async def test_fetch_that_broke_off_goes_on_and_overwrites_nothing_else(site: Site) -> None:
    await site.submit({}, "alpha")
    await site.node("alpha").put_output("j-1", "main.0", output({"out/a": b"a", "out/b": b"b"}))
    await site.fetch()
    (site.path / "got" / "out" / "b").unlink()
    assert await site.fetch() == ["out/b"]
    (site.path / "got" / "out" / "b").write_bytes(b"mine")
    with pytest.raises(Conflict, match="out/b: is there already, with another content; --force replaces it"):
        await site.fetch()
    assert await site.fetch(force=True) == ["out/b"]


async def test_fetch_goes_through_no_link(site: Site) -> None:
    await site.submit({}, "alpha")
    await site.node("alpha").put_output("j-1", "main.0", output({"out/a": b"a"}))
    (site.path / "got").mkdir()
    (site.path / "got" / "out").symlink_to(site.path)
    with pytest.raises(Conflict, match="out: is a symbolic link"):
        await site.fetch()
    assert not (site.path / "a").exists()


async def test_contents_of_a_live_job_stay_and_others_go(site: Site) -> None:
    job = await site.submit({"a": b"x"}, "alpha")
    site.wall += UNUSED_KEPT_S + 1
    await site.service.sweep()
    assert site.contents() == {digest(b"x"), job.stage_in}
    site.engine.machine.jobs.clear()
    await site.service.sweep()
    assert site.contents() == set()
    assert site.service._contents.used_bytes == 0


async def test_content_between_upload_and_submit_stays(site: Site) -> None:
    await site.submit({"a": b"x"}, "alpha")
    site.engine.machine.jobs.clear()
    site.wall += UNUSED_KEPT_S - 1
    await site.service.sweep()
    assert digest(b"x") in site.contents()


@pytest.mark.parametrize("why", ["time", "job is forgotten"])
async def test_output_goes_after_a_week_or_with_its_job(site: Site, why: str) -> None:
    await site.submit({}, "alpha")
    await site.node("alpha").put_output("j-1", "main.0", output({"out": b"result"}))
    site.engine.machine.jobs.clear()
    site.wall += OUTPUT_KEPT_S - 1
    await site.service.sweep()
    assert site.contents() == {digest(b"result")}
    if why == "time":
        site.wall += 2
    else:
        site.engine.known.clear()
    await site.service.sweep()
    assert site.contents() == set()
    assert list((site.path / "staging" / "output").iterdir()) == []


async def test_restarted_scheduler_knows_what_it_has(site: Site) -> None:
    job = await site.submit({"a": b"x" * 1000}, "alpha")
    (site.path / "staging" / "parts" / "0").write_bytes(b"half")
    used = site.service._contents.used_bytes
    again = site.open()
    await again.check(BOB, job)
    assert again._contents.used_bytes == used
    assert list((site.path / "staging" / "parts").iterdir()) == []


async def test_full_store_refuses_and_recovers(tmp_path: Path) -> None:
    contents = Contents(tmp_path, Limits(bytes=100, files=10, user_bytes=80, user_files=10))
    async with contents.receive("bob", 60, digest(b"x")):
        with pytest.raises(Unavailable, match="is full"):
            async with contents.receive("eve", 41):
                pass
        with pytest.raises(InvalidInput, match="over the limit of 80 B"):
            async with contents.receive("bob", 21):
                pass
    async with contents.receive("eve", 80):
        pass


async def keep(contents: Contents, user: str, data: bytes) -> str:
    async with contents.receive(user, len(data)) as receiver:
        await receiver.write(data)
        return await receiver.finish(digest(data))


async def test_files_are_limited_in_number_too(tmp_path: Path) -> None:
    contents = Contents(tmp_path, Limits(bytes=100, files=3, user_bytes=100, user_files=2))
    await keep(contents, "bob", b"1")
    await keep(contents, "bob", b"")
    with pytest.raises(InvalidInput, match="user bob has 2 files here: one more is over the limit of 2"):
        await keep(contents, "bob", b"3")
    await keep(contents, "eve", b"1")
    with pytest.raises(Unavailable, match="3 in number, and is full"):
        await keep(contents, "joe", b"1")


async def test_same_content_twice_counts_once(tmp_path: Path) -> None:
    contents = Contents(tmp_path, Limits(bytes=100, files=10, user_bytes=100, user_files=10))
    await keep(contents, "bob", b"same")
    await keep(contents, "bob", b"same")
    assert (contents.counted("bob"), contents.used_bytes) == ((4, 1), 4)


async def test_released_content_makes_room_for_others(tmp_path: Path) -> None:
    now = 1_000.0
    contents = Contents(tmp_path, Limits(bytes=10, files=10, user_bytes=10, user_files=10), wall=lambda: now)
    sha256 = await keep(contents, "bob", b"12345678")
    contents.name("bob", [sha256])
    now += SETTLE_S + 1
    await contents.sweep((), started=now)
    assert (contents.counted("bob"), contents.used_bytes) == ((0, 0), 8)
    await keep(contents, "eve", b"1234")
    assert await contents.sizes("bob", [sha256]) == [None]
    assert contents.used_bytes == 4


async def test_released_content_that_is_asked_for_counts_again(tmp_path: Path) -> None:
    now = 1_000.0
    contents = Contents(tmp_path, Limits(bytes=20, files=10, user_bytes=10, user_files=10), wall=lambda: now)
    sha256 = await keep(contents, "bob", b"12345678")
    contents.name("bob", [sha256])
    now += SETTLE_S + 1
    await contents.sweep((), started=now)
    assert await contents.sizes("bob", [sha256]) == [8]
    assert contents.counted("bob") == (8, 1)


async def test_released_contents_lead_nobody_over_his_limit(tmp_path: Path) -> None:
    now = 1_000.0
    contents = Contents(tmp_path, Limits(bytes=20, files=10, user_bytes=10, user_files=10), wall=lambda: now)
    sha256 = await keep(contents, "bob", b"12345678")
    contents.name("bob", [sha256])
    now += SETTLE_S + 1
    await contents.sweep((), started=now)
    await keep(contents, "bob", b"abcdefgh")
    assert await contents.sizes("bob", [sha256]) == [None]
    assert contents.counted("bob") == (8, 1)


async def test_content_is_received_while_it_is_removed(tmp_path: Path) -> None:
    now = 1_000.0
    contents = Contents(tmp_path, Limits(bytes=100, files=10, user_bytes=100, user_files=10), wall=lambda: now)
    sha256 = await keep(contents, "bob", b"x")
    now += UNUSED_KEPT_S + 1
    await asyncio.gather(keep(contents, "bob", b"x"), contents.sweep((), started=now))
    assert await contents.sizes("bob", [sha256]) == [1]
    assert contents.used_bytes == 1
    assert len(list((tmp_path / "users").rglob(sha256))) == 1


async def test_call_that_is_cancelled_while_it_writes_leaves_nothing(tmp_path: Path) -> None:
    contents = Contents(tmp_path, Limits(bytes=100, files=10, user_bytes=100, user_files=10))
    for _ in range(20):
        keeping = asyncio.ensure_future(keep(contents, "bob", b"x"))
        for _ in range(3):
            await asyncio.sleep(0)
        keeping.cancel()
        await asyncio.wait((keeping,))
    assert contents.used_bytes == len(list((tmp_path / "users").rglob(digest(b"x"))))
    assert list((tmp_path / "parts").iterdir()) == []


async def test_user_whose_name_is_a_path_stays_in_his_directory(tmp_path: Path) -> None:
    contents = Contents(tmp_path / "store", Limits(bytes=100, files=10, user_bytes=100, user_files=10))
    await keep(contents, "..", b"x")
    assert os.listdir(tmp_path) == ["store"]
    assert sorted(os.listdir(tmp_path / "store")) == ["parts", "users"]


async def test_uploads_of_an_ended_job_stop_counting(site: Site) -> None:
    await site.submit({"a": b"x" * (LIMIT // 2)}, "alpha")
    site.wall += SETTLE_S + 1
    await site.service.sweep()
    assert site.service._contents.counted("bob")[1] == 2
    site.engine.machine.jobs.clear()
    await site.service.sweep()
    assert site.service._contents.counted("bob") == (0, 0)


async def test_upload_without_room_has_ended_jobs_looked_for(site: Site) -> None:
    await site.submit({"a": b"x" * (LIMIT // 2)}, "alpha")
    site.engine.machine.jobs.clear()
    site.wall += SETTLE_S + 1
    await site.submit({"a": b"y" * (LIMIT // 2 + 1)}, "alpha")
    assert site.service._contents.counted("bob")[0] < LIMIT


async def test_what_another_job_refers_to_goes_on_counting(site: Site) -> None:
    job = await site.submit({"a": b"x"}, "alpha")
    site.engine.run(msgspec.structs.replace(job, id="j-2"), "beta")
    del site.engine.machine.jobs["j-1"]
    site.wall += SETTLE_S + 1
    await site.service.sweep()
    assert site.service._contents.counted("bob")[1] == 2


async def test_upload_that_takes_hours_keeps_what_came_first(site: Site) -> None:
    first, swept = asyncio.Event(), asyncio.Event()

    async def chunks() -> AsyncIterator[staging_pb2.ContentChunk]:
        yield staging_pb2.ContentChunk(sha256=digest(b"first"), size=5, data=b"first")
        first.set()
        await swept.wait()
        yield staging_pb2.ContentChunk(sha256=digest(b"last"), size=4, data=b"last")

    putting = asyncio.ensure_future(site.service.put(BOB, chunks()))
    await first.wait()
    site.wall += 2 * UNUSED_KEPT_S
    await site.service.sweep()
    swept.set()
    await putting
    assert site.contents() == {digest(b"first"), digest(b"last")}


async def test_output_that_takes_hours_keeps_what_came_first(site: Site) -> None:
    await site.submit({}, "alpha")
    first, swept = asyncio.Event(), asyncio.Event()

    async def chunks() -> AsyncIterator[staging_pb2.OutputChunk]:
        yield staging_pb2.OutputChunk(job_id="j-1", task="main.0")
        yield staging_pb2.OutputChunk(path="out/a", size=1, sha256=digest(b"a"), data=b"a")
        first.set()
        await swept.wait()
        yield staging_pb2.OutputChunk(path="out/b", size=1, sha256=digest(b"b"), data=b"b")
        yield staging_pb2.OutputChunk(end=True)

    putting = asyncio.ensure_future(site.service.put_output(ALPHA, chunks()))
    await first.wait()
    site.wall += 2 * UNUSED_KEPT_S
    await site.service.sweep()
    swept.set()
    await putting
    assert await site.fetch() == ["out/a", "out/b"]


async def test_lists_of_output_are_limited(site: Site) -> None:
    await site.submit({}, "alpha", "beta")
    site.limits = Limits(bytes=LIMIT, files=100, user_bytes=LIMIT, user_files=3)
    site.service = site.open()
    same = {"out/a": b"x", "out/b": b"x"}
    await site.service.put_output(ALPHA, sent("main.0", same))
    with pytest.raises(InvalidInput, match="path out/b: more than 20000 files of output, or 3 of one user"):
        await site.service.put_output(BETA, sent("main.1", same))


async def sent(task: str, contents: dict[str, bytes]) -> AsyncIterator[staging_pb2.OutputChunk]:
    yield staging_pb2.OutputChunk(job_id="j-1", task=task)
    for path, data in contents.items():
        yield staging_pb2.OutputChunk(path=path, size=len(data), sha256=digest(data), data=data)
    yield staging_pb2.OutputChunk(end=True)


async def test_manifests_are_remembered_up_to_so_many_bytes(tmp_path: Path) -> None:
    contents = Contents(tmp_path, Limits(bytes=10_000, files=10, user_bytes=10_000, user_files=10))
    encoded = [Manifest(files=(StagedFile(path=f"f{each}", size=0, sha256=digest(b"")),)).encode() for each in range(3)]
    digests = [await keep(contents, "bob", data) for data in encoded]
    manifests = Manifests(contents, most_bytes=2 * len(encoded[0]))
    kept = await manifests.get("bob", digests[0])
    await manifests.get("bob", digests[1])
    assert await manifests.get("bob", digests[0]) is kept
    await manifests.get("bob", digests[2])
    assert manifests.used_bytes == 2 * len(encoded[0])
    assert await manifests.get("bob", digests[0]) is kept


async def test_sweep_touches_the_disk_in_threads_only(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.submit({"a": b"x"}, "alpha")
    await site.node("alpha").put_output("j-1", "main.0", output({"out": b"result"}))
    site.engine.machine.jobs.clear()
    site.wall += UNUSED_KEPT_S + 1
    loop = threading.get_ident()
    here: list[str] = []

    def watched(name: str, real: Any) -> Any:
        def call(*given: object, **more: object) -> object:
            if threading.get_ident() == loop:
                here.append(name)
            return real(*given, **more)

        return call

    for name in ("open", "unlink", "stat", "iterdir", "read_bytes", "exists"):
        monkeypatch.setattr(Path, name, watched(name, getattr(Path, name)))
    await site.service.sweep()
    assert here == []
    monkeypatch.undo()
    assert site.contents() == {digest(b"result")}


async def test_job_whose_list_of_files_is_gone_is_refused(site: Site) -> None:
    job = await site.submit({"a": b"x"}, "alpha")
    for path in (site.path / "staging" / "users").rglob(job.stage_in):
        path.unlink()
    with pytest.raises(InvalidInput, match="stage_in: the list of files is not here; submit again"):
        await site.service.check(BOB, job)


# --- transfers that break -----------------------------------------------------------

BIG = bytes(range(256)) * 12_288
"""Three pieces."""
PART = 2 * CHUNK_BYTES


async def begin(contents: Contents, data: bytes = BIG, *, offset: int = 0, upto: int = PART) -> None:
    """Receive the beginning of a content, which then breaks off."""
    with contextlib.suppress(ConnectionError):
        async with contents.receive("bob", len(data), digest(data), part=digest(data), offset=offset) as receiver:
            await receiver.write(data[offset:upto])
            raise ConnectionError


async def go_on(contents: Contents, data: bytes, offset: int) -> None:
    async with contents.receive("bob", len(BIG), digest(BIG), part=digest(BIG), offset=offset) as receiver:
        await receiver.write(data)
        await receiver.finish()


def store(path: Path, wall: Callable[[], float] = lambda: 0.0) -> Contents:
    return Contents(path, Limits(bytes=LIMIT, files=10, user_bytes=LIMIT, user_files=10), wall=wall)


@pytest.mark.parametrize("restarted", [False, True])
async def test_content_goes_on_where_it_broke_off(tmp_path: Path, restarted: bool) -> None:
    contents = store(tmp_path)
    await begin(contents)
    contents = store(tmp_path) if restarted else contents
    assert contents.received("bob", digest(BIG)) == PART
    assert (contents.counted("bob"), contents.used_bytes) == ((PART, 1), PART)
    await go_on(contents, BIG[PART:], PART)
    assert (contents.counted("bob"), contents.used_bytes) == ((len(BIG), 1), len(BIG))
    assert [path.read_bytes() for path in (tmp_path / "users").rglob(digest(BIG))] == [BIG]
    assert list((tmp_path / "parts").iterdir()) == []


async def test_content_breaks_off_again_and_again(tmp_path: Path) -> None:
    contents = store(tmp_path)
    await begin(contents, upto=CHUNK_BYTES)
    await begin(contents, offset=CHUNK_BYTES, upto=PART)
    await go_on(contents, BIG[PART:], PART)
    assert await contents.sizes("bob", [digest(BIG)]) == [len(BIG)]


async def test_rest_of_another_content_is_refused_and_nothing_kept(tmp_path: Path) -> None:
    contents = store(tmp_path)
    await begin(contents)
    with pytest.raises(InvalidInput, match="did not arrive as it was sent"):
        await go_on(contents, b"x" * (len(BIG) - PART), PART)
    assert contents.received("bob", digest(BIG)) == contents.used_bytes == 0


async def test_more_than_there_is_can_not_be_gone_on_with(tmp_path: Path) -> None:
    contents = store(tmp_path)
    await begin(contents)
    with pytest.raises(Conflict, match="less of a file here than was said"):
        await go_on(contents, b"", PART + 1)
    assert contents.received("bob", digest(BIG)) == contents.used_bytes == PART


async def test_two_calls_that_send_one_content_do_not_meet(tmp_path: Path) -> None:
    contents = store(tmp_path)
    async with contents.receive("bob", len(BIG), digest(BIG), part=digest(BIG)) as receiver:
        await receiver.write(BIG[:PART])
        assert contents.received("bob", digest(BIG)) == 0
        await go_on(contents, BIG, 0)
        await receiver.write(BIG[PART:])
        await receiver.finish()
    assert [path.read_bytes() for path in (tmp_path / "users").rglob(digest(BIG))] == [BIG]
    assert contents.used_bytes == len(BIG)


async def test_part_that_nobody_goes_on_with_is_removed(tmp_path: Path) -> None:
    now = 0.0
    contents = store(tmp_path, lambda: now)
    await begin(contents)
    now += UNUSED_KEPT_S + 1
    await contents.sweep((), started=now)
    assert contents.used_bytes == 0
    assert list((tmp_path / "parts").iterdir()) == []


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
    assert await site.fetch() == ["out/b"]
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
        self, job_id: str, files: Sequence[int], *, offset: int = 0
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
        await fetch_output(breaking, "j-1", site.path / "got", force=False, tell=print)
    return breaking


async def test_fetch_goes_on_inside_a_file(site: Site) -> None:
    async with site.client("bob") as client:
        breaking = await fetch_with_a_break(site, client)
        await fetch_output(breaking, "j-1", site.path / "got", force=False, tell=print)
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


def test_local_names_that_can_not_travel_are_told(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a\nb").touch()
    with pytest.raises(InvalidInput, match="has a character that can't be printed; rename the file"):
        find_files([StageTable(source="d")], tmp_path)
    with pytest.raises(NotFound, match=r"stage_in .*none: No such file"):
        find_files([StageTable(source="none")], tmp_path)
    with pytest.raises(InvalidInput, match="must be relative"):
        find_files([StageTable(source="d", to="/etc")], tmp_path)
