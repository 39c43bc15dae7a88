"""Tasks with files: when they start, what ends them, what is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from farbus.agent.events import TaskExited, TaskLaunched, TaskRun
from farbus.agent.jobs import TaskRunner
from farbus.agent.logs import LogStore
from farbus.agent.staging import PATIENCE_S, Staging
from farbus.errors import Unavailable
from farbus.linux.cgroups import FakeCgroups
from farbus.linux.clock import FakeClock
from farbus.linux.processes import FakeChild, FakeProcesses
from farbus.linux.staging import TaskDirectories
from farbus.linux.users import Account, FakeUsers, SystemUsers
from farbus.model.staging import Manifest, StagedFile, digest

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
        self.content = INPUT
        self.output: dict[str, bytes] = {}

    def _ask(self) -> None:
        if self.away:
            self.away -= 1
            raise Unavailable("the scheduler is away")

    async def manifest(self, job_id: str, digest_: str) -> Manifest:
        self._ask()
        return Manifest(files=(StagedFile(path="in/a", size=len(INPUT), sha256=digest(INPUT)),))

    async def contents(self, job_id: str, files: Sequence[StagedFile]) -> AsyncIterator[tuple[str, bytes]]:
        self.asked.set()
        if self.hangs:
            await asyncio.Event().wait()
        yield "in/a", self.content

    async def put_output(self, job_id: str, task: str, pieces: AsyncIterator[tuple[StagedFile, bytes]]) -> None:
        found: dict[str, bytes] = {}
        self.asked.set()
        async for file, data in pieces:
            found[file.path] = found.get(file.path, b"") + data
        if self.hangs:
            await asyncio.Event().wait()
        self._ask()
        self.output = found


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
            staging=Staging(directories=self.directories, transfers=self.scheduler, clock=self.clock),
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


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with asyncio.TaskGroup() as group:
        directories = [str(tmp_path / "tasks" / "j1.main.0")]
        processes = FakeProcesses({"work": work, "idle": idle}, directories=["/", *directories])
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


async def test_files_that_do_not_arrive_whole_end_the_task_before_it_begins(node: Node) -> None:
    node.scheduler.content = b"HELLO"
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

    async def hang(job_id: str, task: str, pieces: AsyncIterator[tuple[StagedFile, bytes]]) -> None:
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
    async def record(run: TaskRun) -> None:
        spawned.append(len(node.processes.spawned))
        raise Unavailable("journal: the disk is full")

    spawned: list[int] = []
    node.runner.before_launch = record
    ended = await node.run()
    assert (ended.reason, ended.unstarted) == ("journal: the disk is full", True)
    assert spawned == [0]
    assert not node.processes.spawned
    assert node.directories.list() == ()


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
    path = await node.directories.make("j9.main.0", None)
    (path / "half").touch()
    await node.runner.end_strangers()
    assert node.directories.list() == ()
