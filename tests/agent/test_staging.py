"""Tasks with files: when they start, what ends them, what is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farbus.agent.events import TaskExited, TaskLaunched, TaskRun
from farbus.agent.jobs import TaskRunner
from farbus.agent.logs import LogStore
from farbus.agent.staging import PATIENCE_S, REMOVE_AGAIN_S, Staging
from farbus.api.staging import rest_of
from farbus.errors import Conflict, Unavailable
from farbus.linux.cgroups import FakeCgroups
from farbus.linux.clock import FakeClock
from farbus.linux.processes import Child, FakeChild, FakeProcesses, Program
from farbus.linux.staging import TaskDirectories
from farbus.linux.users import Account, FakeUsers, SystemUsers
from farbus.model.staging import CHUNK_BYTES, Manifest, ReceivedFile, StagedFile, digest

ME = SystemUsers().myself()
INPUT = b"hello"
RUN = TaskRun(
    job="j1", task="main.0", user=ME.name, command=("work",), cwd="", stage_in=digest(b"m"), stage_out=("result",)
)


class Scheduler:
    """The other end of the transfers, with what a test wants of it."""

    def __init__(self) -> None:
        self.away = 0
        self.hangs = False
        self.asked = asyncio.Event()
        self.contents_of = {"in/a": INPUT}
        self.breaks: list[bool] = []
        """For each piece, whether the connection breaks with it."""
        self.sent: list[bytes] = []
        self.output: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}

    def _ask(self) -> None:
        if self.away:
            self.away -= 1
            raise Unavailable("the scheduler is away")

    async def manifest(self, job_id: str, digest_: str) -> Manifest:
        self._ask()
        files = {"in/a": INPUT} | {path: data for path, data in self.contents_of.items() if path != "in/a"}
        return Manifest(
            files=tuple(StagedFile(path=path, size=len(data), sha256=digest(data)) for path, data in files.items())
        )

    async def contents(
        self, job_id: str, files: Sequence[StagedFile], *, offset: int
    ) -> AsyncGenerator[tuple[str, bytes], None]:
        self.asked.set()
        if self.hangs:
            await asyncio.Event().wait()
        for file in files:
            data, offset = self.contents_of[file.path][offset:], 0
            for start in range(0, len(data), 2):
                if self.breaks and self.breaks.pop(0):
                    raise Unavailable("the connection broke")
                self.sent.append(data[start : start + 2])
                yield file.path, data[start : start + 2]
            if not data:
                yield file.path, b""

    async def received(self, job_id: str, task: str) -> tuple[ReceivedFile, ...]:
        return tuple(
            ReceivedFile(path=path, size=self.sizes[path], received=len(data), sha256=digest(data))
            for path, data in self.output.items()
        )

    async def put_output(
        self,
        job_id: str,
        task: str,
        pieces: AsyncIterator[tuple[StagedFile, bytes]],
        received: Sequence[ReceivedFile],
    ) -> None:
        self.asked.set()
        async for chunk in rest_of(pieces, received):
            if chunk.path:
                path = chunk.path
                self.sizes[path] = chunk.size
                self.output[path] = self.output.get(path, b"")[: chunk.offset]
            self.sent.append(chunk.data)
            self.output[path] += chunk.data
            if self.breaks and self.breaks.pop(0):
                raise Unavailable("the connection broke")
        if self.hangs:
            await asyncio.Event().wait()
        self._ask()


class HastyClock(FakeClock):
    """A clock on which a sleep is over at once."""

    async def sleep(self, seconds: float) -> None:
        self._now += seconds
        await asyncio.sleep(0)


class Node:
    """A runner of tasks with real directories and everything else faked."""

    def __init__(self, tmp_path: Path, group: asyncio.TaskGroup, processes: FakeProcesses) -> None:
        self.directories = TaskDirectories(tmp_path / "tasks")
        self.scheduler = Scheduler()
        self.clock = HastyClock()
        self.launched = asyncio.Event()
        self.ended: asyncio.Queue[TaskExited] = asyncio.Queue()
        self.processes = processes
        self.logs = LogStore(tmp_path / "logs", limit_bytes_per_task=1000, limit_bytes=1000)
        self.runner = TaskRunner(
            processes=processes,
            cgroups=FakeCgroups(),
            users=FakeUsers([Account(name=ME.name, uid=ME.uid, gid=ME.gid)]),
            logs=self.logs,
            clock=self.clock,
            group=group,
            told=self._take,
            run_as_self=True,
            allow_root=True,
            staging=Staging(directories=self.directories, transfers=self.scheduler, clock=self.clock, group=group),
        )

    def _take(self, event: TaskLaunched | TaskExited) -> None:
        if isinstance(event, TaskExited):
            self.ended.put_nowait(event)
        else:
            self.launched.set()

    async def run(self, run: TaskRun = RUN) -> TaskExited:
        await self.runner.start(run, {})
        return await self.end()

    async def end(self) -> TaskExited:
        async with asyncio.timeout(20.0):
            return await self.ended.get()


async def work(child: FakeChild) -> int:
    """Put out what came in."""
    directory = Path(child.program.cwd)
    (directory / "result").write_bytes((directory / "in" / "a").read_bytes() + b"!")
    return 0


async def idle(child: FakeChild) -> int:
    await child.next_signal()
    return 0


async def fail(child: FakeChild) -> int:
    """End without its output."""
    return 3


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with asyncio.TaskGroup() as group:
        directories = [str(tmp_path / "tasks" / "j1.main.0")]
        processes = FakeProcesses({"work": work, "idle": idle, "fail": fail}, directories=["/", *directories])
        made = Node(tmp_path, group, processes)
        yield made


async def test_task_works_on_its_files_and_leaves_its_output_only(node: Node) -> None:
    ended = await node.run()
    assert (ended.exit_code, ended.reason) == (0, "")
    assert node.scheduler.output == {"result": b"hello!"}
    assert node.directories.list() == ()


async def test_output_that_is_not_there_fails_a_task_that_did_well(node: Node) -> None:
    ended = await node.run(TaskRun(job="j1", task="main.0", user=ME.name, command=("work",), cwd="",
                                   stage_in=RUN.stage_in, stage_out=("other",)))  # fmt: skip
    assert ended.exit_code == 125
    assert "other: no such file or directory" in ended.reason


async def test_missing_output_is_not_told_as_why_a_program_failed(node: Node) -> None:
    ended = await node.run(TaskRun(job="j1", task="main.0", user=ME.name, command=("fail",), cwd="",
                                   stage_in=RUN.stage_in, stage_out=("result",)))  # fmt: skip
    assert ended.exit_code == 3
    assert ended.reason.startswith("its output was not kept: ")


async def test_files_that_do_not_arrive_whole_end_the_task_before_it_begins(node: Node) -> None:
    node.scheduler.contents_of = {"in/a": b"HELLO"}
    ended = await node.run()
    assert "in/a: arrived with another content" in ended.reason
    assert not ended.unstarted
    assert node.directories.list() == ()


async def test_scheduler_that_comes_back_is_waited_for(node: Node) -> None:
    node.scheduler.away = 3
    assert (await node.run()).exit_code == 0


async def test_scheduler_that_stays_away_ends_the_task(node: Node) -> None:
    node.scheduler.away = 1_000_000
    started = node.clock.monotonic()
    ended = await node.run()
    assert (ended.reason, ended.unstarted) == ("the scheduler is away", True)
    assert node.clock.monotonic() - started >= PATIENCE_S
    assert node.directories.list() == ()


async def test_task_is_stopped_while_its_files_arrive(node: Node) -> None:
    node.scheduler.hangs = True
    await node.runner.start(RUN, {})
    await node.scheduler.asked.wait()
    await node.runner.stop(job="j1", task="main.0", grace_s=0.0, reason="cancelled")
    assert (await node.end()).reason == "it was stopped"
    assert node.directories.list() == ()


async def test_stop_waits_for_a_start_that_is_under_way(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    spawning, go_on = asyncio.Event(), asyncio.Event()
    spawn = node.processes.spawn

    async def slow(program: Program) -> Child:
        spawning.set()
        await go_on.wait()
        return await spawn(program)

    monkeypatch.setattr(node.processes, "spawn", slow)
    await node.runner.start(msgspec.structs.replace(RUN, command=("idle",)), {})
    await spawning.wait()
    stopping = asyncio.create_task(node.runner.stop(job="j1", task="main.0", grace_s=1.0, reason="cancelled"))
    # Its program may be there already: its devices must not be given to anybody.
    done, _ = await asyncio.wait({stopping}, timeout=0)
    go_on.set()
    await stopping
    assert done == set()
    assert [child.running for child in node.processes.spawned] == [False]
    assert node.directories.list() == ()


async def test_end_of_the_agent_leaves_a_start_that_is_under_way_to_the_next(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawning = asyncio.Event()

    async def cut_off(_: Program) -> Child:
        spawning.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(node.processes, "spawn", cut_off)
    await node.runner.start(RUN, {})
    await spawning.wait()
    arriving = node.runner._arriving["j1", "main.0"].task
    arriving.cancel()
    await asyncio.wait((arriving,))
    assert node.ended.empty()
    # The program may be at work in it.
    assert node.directories.list() == ("j1.main.0",)


async def test_output_can_be_followed_before_the_files_have_arrived(node: Node) -> None:
    node.scheduler.hangs = True
    await node.runner.start(RUN, {})
    await node.scheduler.asked.wait()
    output = node.logs.read("j1", "main.0", follow=True)
    following = asyncio.ensure_future(anext(output, None))
    await asyncio.sleep(0)
    ended_early = following.done()
    await node.runner.stop(job="j1", task="main.0", grace_s=0.0, reason="cancelled")
    assert await following is None
    assert not ended_early


async def test_stop_does_not_wait_for_output_that_is_being_sent(node: Node) -> None:
    run = TaskRun(job="j1", task="main.0", user=ME.name, command=("work",), cwd="", stage_in=RUN.stage_in,
                  stage_out=("result",))  # fmt: skip

    async def hang(*_: object) -> None:
        sending.set()
        await asyncio.Event().wait()

    sending = asyncio.Event()
    node.scheduler.put_output = hang  # type: ignore[method-assign]
    await node.runner.start(run, {})
    await sending.wait()
    await node.runner.stop(job="j1", task="main.0", grace_s=0.0, reason="cancelled")
    assert (await node.end()).reason == "it was stopped while its output was sent"
    assert node.directories.list() == ()


async def test_program_begins_only_when_it_is_on_record_that_its_files_have_arrived(node: Node) -> None:
    @contextlib.asynccontextmanager
    async def record(run: TaskRun) -> AsyncIterator[None]:
        spawned.append(len(node.processes.spawned))
        if spawned:
            raise Unavailable("journal: the disk is full")
        yield

    spawned: list[int] = []
    node.runner.launching = record
    ended = await node.run()
    assert (ended.reason, ended.unstarted) == ("journal: the disk is full", True)
    assert spawned == [0]
    assert not node.processes.spawned
    assert node.directories.list() == ()


async def test_program_runs_when_it_is_on_record_that_it_was_started(node: Node) -> None:
    @contextlib.asynccontextmanager
    async def record(run: TaskRun) -> AsyncIterator[None]:
        spawned.append(len(node.processes.spawned))
        yield
        spawned.append(len(node.processes.spawned))

    spawned: list[int] = []
    node.runner.launching = record
    await node.run()
    assert spawned == [0, 1]


async def test_task_is_told_to_run_when_its_files_have_arrived(node: Node) -> None:
    assert not node.launched.is_set()
    await node.run()
    assert node.launched.is_set()


async def test_end_of_the_agent_is_no_end_of_a_task_whose_files_arrive(node: Node) -> None:
    node.scheduler.hangs = True
    await node.runner.start(RUN, {})
    await node.scheduler.asked.wait()
    arriving = node.runner._arriving["j1", "main.0"].task
    arriving.cancel()
    await asyncio.wait((arriving,))
    assert node.ended.empty()
    assert node.directories.list() == ()


async def test_repeated_start_is_one_start(node: Node) -> None:
    node.scheduler.hangs = True
    await node.runner.start(RUN, {})
    await node.runner.start(RUN, {})
    await node.scheduler.asked.wait()
    assert len(node.runner._arriving) == 1
    await node.runner.stop(job="j1", task="main.0", grace_s=0.0, reason="cancelled")


async def test_directories_that_an_agent_left_when_it_was_killed_are_removed(node: Node) -> None:
    path = node.directories.make("j9.main.0", None)
    (path / "half").touch()
    await node.runner.end_strangers()
    assert node.directories.list() == ()


async def test_files_go_on_arriving_inside_one_after_a_break(node: Node) -> None:
    node.scheduler.contents_of = {"in/a": INPUT, "in/empty": b"", "in/z": b"012345"}
    node.scheduler.breaks = [False, True, False, False, True, True, False, True]
    assert (await node.run()).exit_code == 0
    assert node.scheduler.output == {"result": b"hello!"}
    assert node.scheduler.sent[:-1] == [b"he", b"ll", b"o", b"01", b"23", b"45"]


async def test_file_that_breaks_at_its_end_is_not_begun_again(node: Node) -> None:
    node.scheduler.contents_of = {"in/a": INPUT, "in/z": b"01"}
    node.scheduler.breaks = [False, False, False, True]
    assert (await node.run()).exit_code == 0
    assert node.scheduler.sent[:-1] == [b"he", b"ll", b"o", b"01"]


COME = (False, False, False)
"""The input, which comes in three pieces."""


async def large(child: FakeChild) -> int:
    (Path(child.program.cwd) / "result").write_bytes(b"x" * (2 * CHUNK_BYTES + 1))
    return 0


async def test_output_goes_on_inside_a_file_after_a_break(node: Node) -> None:
    node.processes.scripts["work"] = large
    node.scheduler.breaks = [*COME, False, True]
    assert (await node.run()).exit_code == 0
    assert node.scheduler.output == {"result": b"x" * (2 * CHUNK_BYTES + 1)}
    assert sum(map(len, node.scheduler.sent)) == len(INPUT) + 2 * CHUNK_BYTES + 1


async def test_output_that_gets_on_is_not_given_up_however_long_it_takes(node: Node) -> None:
    node.processes.scripts["work"] = large
    put = node.scheduler.put_output

    async def slow(*given: Any) -> None:
        await node.clock.sleep(2 * PATIENCE_S)
        await put(*given)

    node.scheduler.put_output = slow  # type: ignore[method-assign]
    node.scheduler.breaks = [*COME, True, True, False]
    assert (await node.run()).exit_code == 0


async def test_output_that_is_not_what_was_sent_of_it_is_sent_afresh_once(node: Node) -> None:
    node.scheduler.output, node.scheduler.sizes = {"result": b"other"}, {"result": 6}
    assert (await node.run()).exit_code == 0
    assert node.scheduler.output == {"result": b"hello!"}


async def test_output_that_is_refused_afresh_fails_the_task(node: Node) -> None:
    async def refuse(*_: object) -> None:
        raise Conflict("there is less of a file here than was said")

    node.scheduler.put_output = refuse  # type: ignore[method-assign]
    assert (await node.run()).exit_code == 125


async def test_defect_met_by_a_tasks_output_ends_that_task_alone(node: Node) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("nobody thought of it")

    node.scheduler.put_output = fail  # type: ignore[method-assign]
    ended = await node.run()
    assert (ended.exit_code, ended.reason) == (125, "a defect: RuntimeError('nobody thought of it')")
    assert node.directories.list() == ()


async def test_defect_met_by_a_tasks_files_ends_that_task_alone(node: Node) -> None:
    async def fail(*_: object) -> Manifest:
        raise RuntimeError("nobody thought of it")

    node.scheduler.manifest = fail  # type: ignore[method-assign]
    ended = await node.run()
    assert (ended.exit_code, ended.reason) == (1, "a defect: RuntimeError('nobody thought of it')")
    assert node.directories.list() == ()


async def test_start_waits_for_no_removal(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    cleared = asyncio.Event()

    async def slow(name: str) -> None:
        await cleared.wait()

    monkeypatch.setattr(node.directories, "clear", slow)
    node.directories.make("j9.main.0", None)
    async with asyncio.timeout(20.0):
        await node.runner.end_strangers()
    assert node.directories.list() == ()
    cleared.set()


async def test_one_users_removals_do_not_hold_up_anothers(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[str] = []
    cleared, other_began = asyncio.Event(), asyncio.Event()

    async def slow(name: str) -> None:
        began.append(name)
        if owners[name] == 2:
            other_began.set()
        await cleared.wait()

    monkeypatch.setattr(node.directories, "clear", slow)
    monkeypatch.setattr(node.directories, "owner", lambda name: owners[name])
    for number in range(10):
        node.directories.set_aside(node.directories.make(f"j{number}.main.0", None).name)
    owners = {name: 2 if number == 9 else 1 for number, name in enumerate(node.directories.aside())}
    async with asyncio.timeout(20.0):
        await node.runner.end_strangers()
        await other_began.wait()
    assert [owners[name] for name in began] == [1, 2]
    cleared.set()


async def test_directory_that_can_not_be_removed_is_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    clear, tried = node.directories.clear, []

    async def failing(name: str) -> None:
        tried.append(node.clock.monotonic())
        if len(tried) == 1:
            raise Unavailable("the disk does not answer")
        await clear(name)
        done.set()

    done = asyncio.Event()
    monkeypatch.setattr(node.directories, "clear", failing)
    (node.directories.make("j9.main.0", None) / "x").touch()
    await node.runner.end_strangers()
    async with asyncio.timeout(20.0):
        await done.wait()
    assert tried[1] - tried[0] >= REMOVE_AGAIN_S
    assert node.directories.aside() == ()
