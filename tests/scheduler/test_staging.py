"""Files of jobs at the scheduler, over real connections: who may have what, what is kept, what goes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farbus.api import staging as staging_api
from farbus.api.staging import OutputFile, StagingClient
from farbus.api.v1 import staging_pb2
from farbus.cli.jobfile import StageTable
from farbus.cli.staging import fetch_output, find_files
from farbus.errors import Conflict, InvalidInput, NotFound, NotPermitted
from farbus.model.staging import StagedFile, digest
from farbus.scheduler.contents import SETTLE_S, UNUSED_KEPT_S, Limits
from farbus.scheduler.staging import OUTPUT_KEPT_S
from tests.scheduler.staging_site import ALPHA, BETA, BOB, LIMIT, Site, output, received, serve_site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with serve_site(tmp_path) as served:
        yield served


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


async def put_out(task: str, *paths: str) -> AsyncIterator[staging_pb2.OutputChunk]:
    """Send files of one byte: to the service itself, since gRPC tells of a refusal amid writes only now and then."""
    yield staging_pb2.OutputChunk(job_id="j-1", task=task)
    for path in paths:
        yield staging_pb2.OutputChunk(path=path, size=1, data=b"x", sha256=digest(b"x"))
    yield staging_pb2.OutputChunk(end=True)


async def test_node_can_put_out_nothing_for_others_tasks(site: Site) -> None:
    await site.submit({}, "alpha", "beta")
    with pytest.raises(NotPermitted):
        await site.service.put_output(ALPHA, put_out("main.1", "out"))


async def test_node_can_put_out_nothing_for_no_task(site: Site) -> None:
    await site.submit({}, "alpha")
    with pytest.raises(NotPermitted):
        await site.service.put_output(ALPHA, put_out("", "out"))
    with pytest.raises(NotPermitted):
        await site.service.received_output(ALPHA, "j-1", "")
    assert not (site.path / "staging" / "output").exists()


@pytest.mark.parametrize("second", ["out", "out/b"])
async def test_node_can_not_put_out_what_has_no_place_beside_each_other(site: Site, second: str) -> None:
    await site.submit({}, "alpha")
    with pytest.raises(InvalidInput, match="path out: "):
        await site.service.put_output(ALPHA, put_out("main.0", "out", second))
    assert await site.fetch() == []


async def test_call_that_asks_for_more_files_than_there_can_be_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_api, "FILES_PER_CALL", 8)
    async with site.client("bob") as client:
        asked = {index: OutputFile(task="main.0", path="out", size=1, sha256="") for index in range(9)}
        with pytest.raises(InvalidInput, match="output: files and what else it lists have more than 8 elements"):
            await anext(StagingClient(client).get_output("j-1", asked))


class Meanwhile:
    """A client between whose list and question another task's output comes."""

    def __init__(self, client: StagingClient, happens: Callable[[], Awaitable[None]]) -> None:
        self.get_output = client.get_output
        self._client = client
        self._happens = happens

    async def list_output(self, job_id: str) -> tuple[OutputFile, ...]:
        files = await self._client.list_output(job_id)
        await self._happens()
        return files


async def test_what_is_there_is_fetched_while_another_task_puts_out_its_own(site: Site) -> None:
    await site.submit({}, "alpha", "beta")
    await site.node("beta").put_output("j-1", "main.1", output({"out/a": b"of beta", "out/b": b"more of it"}))

    async def comes() -> None:
        await site.node("alpha").put_output("j-1", "main.0", output({"out/a": b"of alpha"}))

    told: list[str] = []
    async with site.client("bob") as client:
        between = Meanwhile(StagingClient(client), comes)
        await fetch_output(between, "j-1", site.path / "got", by_task=True, force=False, tell=told.append)
    assert [str(Path(path).relative_to(site.path / "got")) for path in told] == ["main.1/out/a", "main.1/out/b"]
    assert (site.path / "got" / "main.1" / "out" / "a").read_bytes() == b"of beta"
    assert await site.fetch() == ["main.0/out/a"]


async def test_output_that_is_another_meanwhile_is_told_as_that(site: Site) -> None:
    await site.submit({}, "alpha")
    await site.node("alpha").put_output("j-1", "main.0", output({"out": b"first"}))

    async def comes() -> None:
        await site.node("alpha").put_output("j-1", "main.0", output({"out": b"again"}))

    async with site.client("bob") as client:
        between = Meanwhile(StagingClient(client), comes)
        with pytest.raises(Conflict, match="job j-1: its files have changed since they were listed; fetch again"):
            await fetch_output(between, "j-1", site.path / "got", by_task=False, force=False, tell=print)
    assert await site.fetch() == ["out"]


async def test_files_go_to_the_same_places_however_many_tasks_have_ended(site: Site) -> None:
    await site.submit({}, "alpha", "beta")
    await site.node("alpha").put_output("j-1", "main.0", output({"out": b"of alpha"}))
    assert await site.fetch() == ["main.0/out"]
    await site.node("beta").put_output("j-1", "main.1", output({"out": b"of beta"}))
    assert await site.fetch() == ["main.1/out"]


async def test_an_older_client_asks_for_files_by_where_they_stand(site: Site) -> None:
    await site.submit({}, "alpha")
    await site.node("alpha").put_output("j-1", "main.0", output({"out/a": b"a", "out/b": b"b"}))
    request = staging_pb2.OutputRequest(job_id="j-1", files=[1])
    async with site.client("bob") as client:
        chunks = [chunk async for chunk in StagingClient(client).stream_output(request)]
    assert [(chunk.path, chunk.data) for chunk in chunks] == [("out/b", b"b")]


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


def test_local_names_that_can_not_travel_are_told(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a\nb").touch()
    with pytest.raises(InvalidInput, match="has a character that can't be printed; rename the file"):
        find_files([StageTable(source="d")], tmp_path)
    with pytest.raises(NotFound, match=r"stage_in .*none: No such file"):
        find_files([StageTable(source="none")], tmp_path)
    with pytest.raises(InvalidInput, match="must be relative"):
        find_files([StageTable(source="d", to="/etc")], tmp_path)


def test_directories_that_nest_without_end_are_not_walked(tmp_path: Path) -> None:
    """Python's stack has an end: a thousand of them were a fault of Farbus's."""
    (tmp_path / "d").joinpath(*["d"] * 40).mkdir(parents=True)
    with pytest.raises(InvalidInput, match=r"stage_in d/d/.*: deeper than 32 directories"):
        find_files([StageTable(source="d")], tmp_path)
