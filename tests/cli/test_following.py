"""Following output across restarts: a stream that breaks is begun again where it was."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from typing import cast

import pytest

from farbus.api.client import ClusterClient
from farbus.cli.following import (
    LONGEST_LINE_BYTES,
    Printer,
    copy_logs,
    exit_code_of_job,
    follow_job,
    follow_output,
    news,
    resumed,
    say,
    while_read,
)
from farbus.cli.tables import describe_job
from farbus.errors import FarbusError, NotFound, Unavailable
from farbus.model.cluster import LogChunk
from farbus.model.device import Route
from farbus.model.job import (
    STOPPED,
    Alternative,
    DevicePlacement,
    GroupVariant,
    Job,
    JobStatus,
    Miss,
    Requests,
    TaskGroup,
    TaskPlacement,
    TaskState,
    TaskStatus,
)
from farbus.model.states import JobState

GPU = DevicePlacement(device="GPU-1", node="alpha", route=Route.REMOTE)
STORAGE = DevicePlacement(device="vol", node="beta", route=Route.REMOTE, storage="data")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farbus.cli.following.AGAIN_S", 0.0)


class Known:
    """A client of somebody who may be restarted."""

    def is_over(self) -> bool:
        return False


class Breaking(Known):
    """Gives one chunk a call, and breaks unless it was the last."""

    def __init__(self, *chunks: LogChunk) -> None:
        self.chunks = chunks
        self.asked: list[int] = []

    async def read_logs(self, job_id: str, *, task: str, follow: bool, position: int) -> AsyncIterator[LogChunk]:
        self.asked.append(position)
        number = len(self.asked)
        if self.chunks[number - 1].data:
            yield self.chunks[number - 1]
        if number < len(self.chunks):
            raise Unavailable("the agent is restarted")


async def copy(breaking: Breaking, *, follow: bool = True) -> None:
    printer = Printer(several=False)
    await copy_logs(cast(ClusterClient, breaking), "j1", task="main.0", follow=follow, printer=printer)


async def test_a_followed_log_goes_on_where_it_broke(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    breaking = Breaking(LogChunk(data=b"one ", position=7), LogChunk(data=b"two ", position=9), LogChunk(data=b"three"))
    await copy(breaking)
    assert breaking.asked == [0, 7, 9]
    assert capfdbinary.readouterr().out == b"one two three"


async def test_a_job_that_has_printed_nothing_yet_is_followed_on(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    breaking = Breaking(LogChunk(data=b""), LogChunk(data=b"one"))
    await copy(breaking)
    assert breaking.asked == [0, 0]
    assert capfdbinary.readouterr().out == b"one"


async def test_what_is_not_followed_ends_where_it_breaks() -> None:
    with pytest.raises(Unavailable, match="the agent is restarted"):
        await copy(Breaking(LogChunk(data=b"one", position=7), LogChunk(data=b"two", position=9)), follow=False)


async def test_a_log_without_positions_is_not_told_twice(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with pytest.raises(FarbusError, match="can't go on from there; farbus logs j1 shows it all"):
        await copy(Breaking(LogChunk(data=b"one"), LogChunk(data=b"two")))
    assert capfdbinary.readouterr().out == b"one"


async def test_what_never_began_is_not_begun_again() -> None:
    begun = []

    async def begin() -> AsyncIterator[int]:
        begun.append(1)
        raise Unavailable("nobody is there")
        yield 0

    with pytest.raises(Unavailable, match="nobody is there"):
        await anext(resumed(begin, is_over=lambda: False))
    assert begun == [1]


async def test_what_has_ended_for_good_is_not_waited_for() -> None:
    async def begin() -> AsyncIterator[int]:
        yield 1
        raise Unavailable("nobody is there")

    numbers = resumed(begin, is_over=lambda: True)
    assert await anext(numbers) == 1
    with pytest.raises(Unavailable, match="farbus up was stopped, with all that ran in it; start another"):
        await anext(numbers)


async def test_what_does_not_come_back_is_given_up() -> None:
    begun = []

    async def begin() -> AsyncIterator[int]:
        begun.append(1)
        if len(begun) == 1:
            yield 1
        raise Unavailable("nobody is there")

    numbers = resumed(begin, is_over=lambda: False, patience_s=0.0)
    assert await anext(numbers) == 1
    with pytest.raises(Unavailable, match="nobody is there"):
        await anext(numbers)
    assert len(begun) == 2


@pytest.mark.parametrize(
    ("devices", "told"),
    [
        ((), "j goes to gamma, without a GPU"),
        ((STORAGE,), "j goes to gamma (vol of beta, remote), without a GPU"),
        ((STORAGE, GPU), "j goes to gamma (vol of beta, remote; GPU-1 of alpha, remote)"),
    ],
)
def test_who_forgot_to_ask_for_a_gpu_reads_it(devices: tuple[DevicePlacement, ...], told: str) -> None:
    group = TaskGroup(name="main", command=("x",), requests=Requests())
    job = Job(id="j", name="n", user="u", groups=(group,))
    place = TaskPlacement(task="main.0", node="gamma", devices=devices)
    assert news(JobStatus(job=job, state=JobState.PREPARING, placements=(place,))) == told


@pytest.mark.parametrize(("gpus", "other", "asks"), [(0, 0, False), (1, 0, True), (0, 2, True)])
def test_a_job_asks_for_gpus_in_any_of_its_flavours(gpus: int, other: int, asks: bool) -> None:
    group = TaskGroup(name="main", command=("x",), requests=Requests(gpus=gpus))
    way = Alternative(name="other", groups=(GroupVariant(name="main", requests=Requests(gpus=other)),))
    assert Job(id="j", name="n", user="u", groups=(group,), alternatives=(way,)).asks_for_gpus == asks


class Failing(Known):
    """A job whose node refuses to start its program, and whose output can't be read."""

    def __init__(self, error: FarbusError) -> None:
        self.error = error

    async def watch_job(self, job_id: str) -> AsyncIterator[JobStatus]:
        group = TaskGroup(name="main", command=("x",), requests=Requests())
        job = Job(id=job_id, name="n", user="u", groups=(group,))
        task = TaskStatus(task="main.0", node="beta", state=TaskState.EXITED, exit_code=5)
        yield JobStatus(job=job, state=JobState.RUNNING, tasks=(task,))
        yield JobStatus(job=job, state=JobState.FAILED, tasks=(task,), reason="nothing runs as root here")

    async def read_logs(self, job_id: str, *, task: str, follow: bool, position: int) -> AsyncIterator[LogChunk]:
        raise self.error
        yield LogChunk(data=b"")


@pytest.mark.parametrize(
    ("error", "told"),
    [(NotFound("no output is kept"), ""), (FarbusError("the log broke"), "farbus: the log broke\n")],
)
async def test_how_a_followed_job_ended_is_told_also_where_its_output_is_not(
    error: FarbusError, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = await follow_job(cast(ClusterClient, Failing(error)), "j1", output=True)
    assert exit_code_of_job(status) == 5
    assert capsys.readouterr().err == f"{told}farbus: j1 failed: nothing runs as root here\n"


def ended(state: JobState, *, began: int, misses: tuple[Miss, ...] = ()) -> JobStatus:
    groups = (
        TaskGroup(name="main", command=("x",), requests=Requests(), count=4, min_count=1, flavour="1"),
        TaskGroup(name="other", command=("x",), requests=Requests(), count=9, flavour="0"),
    )
    tasks = tuple(TaskStatus(task=f"main.{number}", node="beta", state=TaskState.EXITED) for number in range(began))
    job = Job(id="j1", name="n", user="u", groups=groups)
    return JobStatus(job=job, state=state, tasks=tasks, misses=misses)


def test_tasks_that_never_began_are_told_at_the_end() -> None:
    short = Miss(phase="gpu", resource="gpu", message="1 GPU wanted; the cluster has 0 that suit and are free: 1 short")
    status = ended(JobState.SUCCEEDED, began=3, misses=(short,))
    assert news(status) == "j1 succeeded without 1 of its tasks: there was no room before the others had ended"
    told = describe_job(status)
    assert "  tasks that never began, as there was no room before the others had ended: 1" in told
    assert [line for line in told if "waits" in line] == []


def test_of_a_job_whose_tasks_all_began_nothing_is_told_at_the_end() -> None:
    assert news(ended(JobState.SUCCEEDED, began=4)) == ""
    assert len(describe_job(ended(JobState.SUCCEEDED, began=4))) == 5


def test_what_a_job_missed_that_has_failed_is_told() -> None:
    short = Miss(phase="gpu", resource="gpu", message="1 GPU wanted")
    assert "  waits: gpu: 1 GPU wanted" in describe_job(ended(JobState.FAILED, began=0, misses=(short,)))


def test_what_others_wrote_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    say("j1 waits: \x1b[2Jbig\x07\nnews")
    assert capsys.readouterr().err == "farbus: j1 waits: [2Jbig news\n"


def test_lines_of_several_tasks_are_whole_and_say_whose_they_are(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = Printer(several=True)
    printer.write("a.0", LogChunk(data=b"one\ntw"))
    printer.write("b.0", LogChunk(data=b"other\n"))
    printer.write("a.0", LogChunk(data=b"wrong", stream=2))
    printer.write("a.0", LogChunk(data=b"o"))
    printer.end(["a.0", "b.0"])
    printed = capfdbinary.readouterr()
    assert printed.out == b"[a.0] one\n[b.0] other\n[a.0] two\n"
    assert printed.err == b"[a.0] wrong\n"


def test_of_a_line_without_an_end_not_all_is_kept(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """As of a progress bar, or a file of zeros: it is shown, and takes no memory without end."""
    printer = Printer(several=True)
    for _ in range(5):
        printer.write("a.0", LogChunk(data=b"x" * (LONGEST_LINE_BYTES // 2)))
    assert capfdbinary.readouterr().out == (b"[a.0] " + b"x" * LONGEST_LINE_BYTES + b"\n") * 2
    printer.end(["a.0"])
    assert capfdbinary.readouterr().out == b"[a.0] " + b"x" * (LONGEST_LINE_BYTES // 2) + b"\n"


def test_a_job_ends_with_the_code_of_the_task_that_failed_not_of_those_that_were_stopped_then() -> None:
    group = TaskGroup(name="main", command=("x",), requests=Requests(), count=3)
    job = Job(id="j1", name="n", user="u", groups=(group,))
    stopped = TaskStatus(task="main.0", state=TaskState.EXITED, exit_code=-15, reason=STOPPED)
    failed = TaskStatus(task="main.1", state=TaskState.EXITED, exit_code=7)
    assert exit_code_of_job(JobStatus(job=job, state=JobState.FAILED, tasks=(stopped, failed))) == 7
    assert exit_code_of_job(JobStatus(job=job, state=JobState.CANCELLED, tasks=(stopped,))) == 143
    assert exit_code_of_job(JobStatus(job=job, state=JobState.FAILED)) == 125


class Growing(Known):
    """A job with tasks on two nodes, of which some begin late; its output breaks off once."""

    def __init__(self, *, ends: bool = True) -> None:
        self.ends = ends
        self.asked: list[tuple[str, dict[str, int]]] = []

    def status(self, state: JobState, *nodes: str, pending: str = "") -> JobStatus:
        group = TaskGroup(name="main", command=("x",), requests=Requests(), count=5, min_count=1)
        job = Job(id="j1", name="n", user="u", groups=(group,))
        task_state = TaskState.RUNNING if state is JobState.RUNNING else TaskState.EXITED
        names = {f"main.{number}": node for number, node in enumerate(nodes)}
        self.begun = [name for name in names if name != pending]
        tasks = tuple(
            TaskStatus(task=name, node=node, state=task_state if name in self.begun else TaskState.PENDING)
            for name, node in names.items()
        )
        return JobStatus(job=job, state=state, tasks=tasks)

    async def watch_job(self, job_id: str) -> AsyncIterator[JobStatus]:
        yield self.status(JobState.QUEUED)
        yield self.status(JobState.RUNNING, "alpha", "beta", "alpha")
        yield self.status(JobState.RUNNING, "alpha", "beta", "alpha", "beta", pending="main.3")
        await asyncio.sleep(0)
        yield self.status(JobState.RUNNING, "alpha", "beta", "alpha", "beta")
        if not self.ends:
            await asyncio.Event().wait()
        yield self.status(JobState.SUCCEEDED, "alpha", "beta", "alpha", "beta")

    async def read_logs(self, job_id: str, *, task: str, follow: bool, position: int) -> AsyncIterator[LogChunk]:
        if task not in self.begun:
            raise NotFound("no output is kept")
        self.asked.append((task, {task: position}))
        yield LogChunk(data=f"of {task}\n".encode(), position=9)

    async def read_several_logs(
        self, job_id: str, positions: Mapping[str, int], *, follow: bool
    ) -> AsyncIterator[LogChunk]:
        self.asked.append(("", dict(positions)))
        first, second = positions
        if not positions[first]:
            yield LogChunk(data=f"of {first}\n".encode(), position=7, task=first)
            raise Unavailable("the agent is restarted")
        yield LogChunk(data=f"of {second}\n".encode(), position=8, task=second)


@pytest.mark.parametrize("whole", [True, False])
async def test_tasks_of_a_node_are_followed_over_one_stream_and_late_ones_too(
    capfdbinary: pytest.CaptureFixture[bytes], whole: bool
) -> None:
    growing = Growing()
    client = cast(ClusterClient, growing)
    await (follow_job(client, "j1", output=True) if whole else follow_output(client, "j1"))
    printed = capfdbinary.readouterr().out.splitlines()
    assert sorted(printed) == [f"[main.{number}] of main.{number}".encode() for number in range(4)]
    assert sorted(growing.asked, key=str) == [
        ("", {"main.0": 0, "main.2": 0}),
        ("", {"main.0": 7, "main.2": 0}),
        ("main.1", {"main.1": 0}),
        ("main.3", {"main.3": 0}),
    ]


async def test_who_reads_no_more_ends_the_watch_while_the_job_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(Printer, "_put", gone)
    with pytest.raises(BrokenPipeError):
        await follow_job(cast(ClusterClient, Growing(ends=False)), "j1", output=True)


@pytest.mark.parametrize("whole", [True, False])
async def test_a_follower_ends_with_its_reader_though_the_job_says_nothing_more(
    monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """As of ``farbus logs -f j7 | grep -m1 ready``."""
    reader, writer = os.pipe()
    watched = asyncio.Event()

    class Silent(Growing):
        async def watch_job(self, job_id: str) -> AsyncIterator[JobStatus]:
            watched.set()
            await asyncio.Event().wait()
            yield self.status(JobState.QUEUED)

    async def logs() -> None:
        async with while_read():
            await follow_output(client, "j1")

    client = cast(ClusterClient, Silent())
    with os.fdopen(writer, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        following = asyncio.create_task(follow_job(client, "j1", output=True) if whole else logs())  # type: ignore[arg-type]
        await watched.wait()
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            await following


async def test_who_is_interrupted_is_so_also_where_there_is_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out, os.fdopen(reader):
        monkeypatch.setattr("sys.stdout", out)
        waiting = asyncio.Event()

        async def watch() -> None:
            async with while_read():
                waiting.set()
                await asyncio.Event().wait()

        watching = asyncio.create_task(watch())
        await waiting.wait()
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (TaskStatus(task="main.0", state=TaskState.EXITED, exit_code=3), ""),
        (
            TaskStatus(task="main.0", state=TaskState.EXITED, exit_code=125, reason="out: is not there"),
            "farbus: j1 failed: task main.0 ended with exit code 125\n",
        ),
    ],
)
async def test_also_who_is_quiet_says_what_the_exit_code_does_not(
    capsys: pytest.CaptureFixture[str], task: TaskStatus, told: str
) -> None:
    class Ending(Known):
        async def watch_job(self, job_id: str) -> AsyncIterator[JobStatus]:
            group = TaskGroup(name="main", command=("x",), requests=Requests())
            job = Job(id=job_id, name="n", user="u", groups=(group,))
            yield JobStatus(job=job, state=JobState.FAILED, tasks=(task,))

    await follow_job(cast(ClusterClient, Ending()), "j1", output=False, quiet=True)
    assert capsys.readouterr().err == told
