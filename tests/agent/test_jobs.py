"""Tasks on fake doors: whose they are, what they get, what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from farbus.agent.accounts import choose_account
from farbus.agent.events import TaskExited, TaskLaunched, TaskRun
from farbus.agent.jobs import TaskRunner, task_environment
from farbus.agent.logs import LogStore
from farbus.errors import NotFound, NotPermitted
from farbus.linux.cgroups import FakeCgroups
from farbus.linux.clock import FakeClock
from farbus.linux.processes import FakeChild, FakeProcesses
from farbus.linux.users import Account, FakeUsers
from farbus.model.job import Requests

ROOT = Account(name="root", uid=0, gid=0)
ANN = Account(name="ann", uid=1001, gid=1001, home="/home/ann", shell="/bin/zsh")
BOB = Account(name="bob", uid=1002, gid=1002)


def account(user: str, *, me: Account = ROOT, run_as_self: bool = False, allow_root: bool = False) -> Account | None:
    users = FakeUsers([me, *(other for other in (ROOT, ANN, BOB) if other != me)])
    return choose_account(user, users=users, run_as_self=run_as_self, allow_root=allow_root)


def test_a_service_becomes_the_user() -> None:
    assert account("ann") == ANN


def test_nothing_runs_as_root_unless_it_is_allowed() -> None:
    with pytest.raises(NotPermitted, match="this node runs nothing as root"):
        account("root")
    assert account("root", allow_root=True) is None


def test_a_user_that_the_node_does_not_know_is_refused() -> None:
    with pytest.raises(NotFound, match="user eve: not known on this node"):
        account("eve")


def test_an_agent_that_runs_as_itself_serves_only_its_own_user() -> None:
    assert account("ann", me=ANN, run_as_self=True) is None
    with pytest.raises(NotPermitted, match="runs tasks of its own user ann only"):
        account("bob", me=ANN, run_as_self=True)


def test_an_agent_without_privilege_cannot_become_another_user() -> None:
    with pytest.raises(NotPermitted, match="can't become another user"):
        account("bob", me=ANN)


def test_the_environment_is_a_logins_then_the_jobs_then_the_devices() -> None:
    run = TaskRun(
        job="j1", task="main.0", user="ann", command=("x",), environment={"PATH": "/opt", "LD_PRELOAD": "/own.so"}
    )
    environment = task_environment(run, ANN, {"LD_PRELOAD": "/shim.so", "FARBUS_SESSION": "/s"})
    assert environment["HOME"] == "/home/ann"
    assert environment["PATH"] == "/opt"
    assert environment["LD_PRELOAD"] == "/shim.so:/own.so"
    assert environment["FARBUS_SESSION"] == "/s"
    assert (environment["FARBUS_JOB"], environment["FARBUS_TASK"]) == ("j1", "main.0")


async def forever(child: FakeChild) -> int:
    await asyncio.Event().wait()
    return 0


async def until_term(child: FakeChild) -> int:
    await child.next_signal()
    return 0


class Bench:
    """A task runner on fake doors."""

    def __init__(
        self, directory: Path, group: asyncio.TaskGroup, cgroups: FakeCgroups, processes: FakeProcesses | None = None
    ) -> None:
        self.clock = FakeClock()
        scripts = {"forever": forever, "until_term": until_term}
        self.processes = processes or FakeProcesses(scripts, clock=self.clock)
        self.cgroups = cgroups
        self.exits: asyncio.Queue[TaskExited] = asyncio.Queue()
        self.logs = LogStore(directory, limit_bytes_per_task=2**20, limit_bytes=2**20)
        self.runner = TaskRunner(
            processes=self.processes,
            cgroups=cgroups,
            users=FakeUsers([ROOT, ANN]),
            logs=self.logs,
            clock=self.clock,
            group=group,
            told=self._take,
            run_as_self=False,
            allow_root=False,
        )

    def _take(self, event: TaskLaunched | TaskExited) -> None:
        assert isinstance(event, TaskExited)
        self.exits.put_nowait(event)

    async def start(self, program: str, *, devices: dict[str, str] | None = None, **more: object) -> FakeChild:
        arguments: dict[str, object] = {"job": "j1", "task": "main.0", "user": "ann", "command": (program,), **more}
        await self.runner.start(TaskRun(**arguments), devices or {})  # type: ignore[arg-type]
        return self.processes.spawned[-1]

    async def pass_time(self, seconds: float) -> None:
        """Let what was started get to its waits, then move the clock."""
        for _ in range(10):
            await asyncio.sleep(0)
        await self.clock.advance(seconds)

    async def exited(self) -> TaskExited:
        async with asyncio.timeout(10):
            return await self.exits.get()


@pytest_asyncio.fixture
async def group() -> AsyncIterator[asyncio.TaskGroup]:
    async with asyncio.TaskGroup() as group:
        yield group


async def test_a_task_over_its_memory_is_killed_where_no_cgroup_limits_it(
    tmp_path: Path, group: asyncio.TaskGroup
) -> None:
    bench = Bench(tmp_path, group, FakeCgroups(trouble="none here"))
    child = await bench.start("forever", requests=Requests(memory_bytes=2**20))
    child.memory = 2**21
    await bench.pass_time(1.0)
    exited = await bench.exited()
    assert exited.exit_code == -9
    assert exited.reason == "it used more memory than the 1 MiB that it asked for (it used 2 MiB)"


LOCAL = {"CUDA_VISIBLE_DEVICES": "GPU-1"}
REMOTE = {"FARBUS_SESSION": "/run/session"}


@pytest.mark.parametrize(
    ("asked", "devices", "told"),
    [
        (
            {"FARBUS_TRACE": "calls", "FARBUS_TRANSPORT": "tcp"},
            LOCAL,
            "farbus: FARBUS_TRACE and FARBUS_TRANSPORT do nothing here: the GPU is of this node, not by remoting; "
            'routes = ["remote"] asks for one that is\n',
        ),
        (
            {"FARBUS_TRACE": "calls"},
            {},
            "farbus: FARBUS_TRACE does nothing here: the task has asked for no GPU; gpus = 1 asks for one\n",
        ),
        ({"FARBUS_TRACE": "calls", "FARBUS_TRANSPORT": "tcp"}, REMOTE, ""),
        ({"FARBUS_TRACE": "", "FARBUS_TRANSPORT": "auto"}, LOCAL, ""),
    ],
)
async def test_what_only_the_shim_would_heed_is_said_where_there_is_none(
    tmp_path: Path, group: asyncio.TaskGroup, asked: dict[str, str], devices: dict[str, str], told: str
) -> None:
    bench = Bench(tmp_path, group, FakeCgroups())
    (await bench.start("forever", environment=asked, devices=devices)).kill()
    await bench.exited()
    chunks = [chunk async for chunk in bench.logs.read("j1", "main.0", follow=False)]
    assert b"".join(chunk.data for chunk in chunks).decode() == told


async def test_what_the_processes_of_a_task_share_counts_once(tmp_path: Path, group: asyncio.TaskGroup) -> None:
    bench = Bench(tmp_path, group, FakeCgroups(trouble="none here"))
    child = await bench.start("forever", requests=Requests(memory_bytes=2**20))
    child.memory, child.shared_memory = 3 * 2**20, 2**21
    await bench.pass_time(1.0)
    assert child.running
    child.shared_memory = 0
    await bench.pass_time(5.0)
    await bench.pass_time(1.0)
    assert (await bench.exited()).reason.endswith("(it used 3 MiB)")


async def test_a_task_that_the_kernel_killed_for_memory_says_so(tmp_path: Path, group: asyncio.TaskGroup) -> None:
    bench = Bench(tmp_path, group, FakeCgroups())
    child = await bench.start("forever")
    assert bench.cgroups.groups == {"j1.main.0": (256 * 2**20, 1000)}
    bench.cgroups.killed.add("j1.main.0")
    child.kill()
    assert (await bench.exited()).reason == "it used more memory than the 256 MiB that it asked for"
    assert not bench.cgroups.groups


async def test_grace_ends_with_a_kill(tmp_path: Path, group: asyncio.TaskGroup) -> None:
    bench = Bench(tmp_path, group, FakeCgroups())
    await bench.start("forever")
    stopping = asyncio.create_task(bench.runner.stop(job="j1", task="main.0", grace_s=5, reason="enough"))
    await bench.pass_time(5)
    await stopping
    assert await bench.exited() == TaskExited(job="j1", task="main.0", exit_code=-9, reason="enough")


async def test_a_task_that_heeds_its_signal_is_not_killed(tmp_path: Path, group: asyncio.TaskGroup) -> None:
    bench = Bench(tmp_path, group, FakeCgroups())
    await bench.start("until_term")
    await bench.runner.stop(job="j1", task="main.0", grace_s=5, reason="")
    assert (await bench.exited()).exit_code == 0


async def test_starting_again_what_runs_does_nothing(tmp_path: Path, group: asyncio.TaskGroup) -> None:
    bench = Bench(tmp_path, group, FakeCgroups())
    child = await bench.start("forever")
    assert await bench.start("forever") is child
    await bench.runner.stop(job="j1", task="main.0", grace_s=0, reason="")
    assert len(bench.processes.spawned) == 1


async def test_a_start_that_fails_leaves_no_group_and_says_why_in_the_log(
    tmp_path: Path, group: asyncio.TaskGroup
) -> None:
    bench = Bench(tmp_path, group, FakeCgroups())
    with pytest.raises(Exception, match="no such program"):
        await bench.start("missing")
    assert not bench.cgroups.groups
    chunks = [chunk.data async for chunk in bench.logs.read("j1", "main.0", follow=False)]
    assert b"missing: no such program" in b"".join(chunks)


async def test_a_task_starts_again_though_its_last_status_was_not_recorded(
    tmp_path: Path, group: asyncio.TaskGroup
) -> None:
    bench = Bench(tmp_path, group, FakeCgroups())
    first = await bench.start("until_term")
    await bench.runner.stop(job="j1", task="main.0", grace_s=5, reason="")
    await bench.exited()
    second = await bench.start("until_term")
    assert second is not first
    await bench.runner.stop(job="j1", task="main.0", grace_s=5, reason="")
    await bench.exited()


async def test_a_task_of_an_earlier_agent_is_adopted_or_ended(tmp_path: Path, group: asyncio.TaskGroup) -> None:
    bench = Bench(tmp_path, group, FakeCgroups())
    run = {job: TaskRun(job=job, task="main.0", user="ann", command=("until_term",)) for job in ("j1", "j2", "j3")}
    for job in ("j1", "j2"):
        await bench.start("until_term", job=job)
    bench.processes.restart()
    after = Bench(tmp_path, group, FakeCgroups(), bench.processes)
    assert await after.runner.adopt(run["j1"])
    assert await after.runner.adopt(run["j1"])
    assert not await after.runner.adopt(run["j3"])
    assert await after.runner.end_strangers() == ("task.j2.main.0",)
    assert set(bench.processes.children) == {"task.j1.main.0"}
    await after.runner.stop(job="j1", task="main.0", grace_s=5, reason="enough")
    assert await after.exited() == TaskExited(job="j1", task="main.0", exit_code=0, reason="enough")
    after.runner.forget(job="j1", task="main.0")
    assert not bench.processes.children
