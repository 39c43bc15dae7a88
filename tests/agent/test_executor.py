"""Recording around work: what is written when, and what goes on when it can't be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
import structlog

from farbus.agent.actions import PrepareClient, PrepareDevices, StartTask, UnprepareClient, UnprepareDevices, Work
from farbus.agent.events import ActionDone, NodeRestored, PreparedLease, TaskRun, WedgeEnded
from farbus.agent.executor import ADOPTED_AT_ONCE, START_DEADLINE_S, Executor
from farbus.agent.journal import Journal
from farbus.agent.steps import Result, Step, StepRunner, Steps
from farbus.agent.turns import Turns
from farbus.errors import ExitCode, InvalidInput, Unavailable
from farbus.linux.clock import FakeClock
from farbus.linux.kept import START_TIMEOUT_S
from farbus.model.lease import Lease
from farbus.model.volume import StorageGrant
from farbus.scheduler import steps
from tests.agent.harness import GPU, lease


class Host:
    """Devices and tasks that do what the test says, and look at the journal meanwhile."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.error: Exception | None = None
        self.seen: list[tuple[str, str, bool]] = []
        self.adopted: list[str] = []
        self.observed: set[str] = set()
        self.gate: asyncio.Event | None = None
        self.forgotten: list[str] = []

    async def _work(self) -> None:
        self.seen = [
            (record.action, record.direction.value, record.completed)
            for records in await self.journal.sequences()
            for record in records[-1:]
        ]
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error

    def _adopt(self, name: str) -> bool:
        self.adopted.append(name)
        return name in self.observed

    async def prepare_devices(self, lease: Lease) -> str:
        await self._work()
        return "a:1"

    async def unprepare_devices(self, lease_id: str) -> None:
        await self._work()

    async def adopt_devices(self, lease: Lease, endpoint: str) -> bool:
        return self._adopt(f"{lease.id} at {endpoint}")

    async def prepare_client(
        self, *, job: str, task: str, user: str, leases: tuple[PreparedLease, ...]
    ) -> dict[str, str]:
        await self._work()
        return {"FARBUS_SESSION": "/s"}

    async def unprepare_client(self, *, job: str, task: str) -> None:
        await self._work()

    async def adopt_client(
        self, *, job: str, task: str, user: str, leases: tuple[PreparedLease, ...], environment: dict[str, str]
    ) -> bool:
        return self._adopt(f"{job} with {environment['FARBUS_SESSION']}")

    async def start(self, run: TaskRun, environment: dict[str, str]) -> None:
        await self._work()

    async def stop(self, *, job: str, task: str, grace_s: float, reason: str) -> None:
        await self._work()

    async def adopt(self, run: TaskRun) -> bool:
        return self._adopt(f"{run.job} as {' '.join(run.command)}")

    def forget(self, *, job: str, task: str) -> None:
        self.forgotten.append(job)

    async def end_strangers(self, recorded: Collection[str] = ()) -> tuple[str, ...]:
        self.adopted.append("strangers")
        return ()


@pytest_asyncio.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    one, _ = await Journal.open(tmp_path / "journal.db", boot_id="b")
    yield one
    await one.close()


async def run(journal: Journal, host: Host, work: Work) -> ActionDone:
    """Do one piece of work to its end."""
    done: list[ActionDone | WedgeEnded] = []
    async with asyncio.TaskGroup() as group:
        executor = Executor(journal=journal, devices=host, tasks=host, clock=FakeClock(), group=group, done=done.append)
        executor.start(work)
    (outcome,) = done
    assert isinstance(outcome, ActionDone)
    return outcome


PREPARE = PrepareDevices(serial=1, lease=lease())
UNPREPARE = UnprepareDevices(serial=2, lease=lease())


async def test_the_start_is_on_record_while_the_work_is_done_and_the_end_after_it(tmp_path: Path) -> None:
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id="b")
    host = Host(journal)
    assert await run(journal, host, PREPARE) == ActionDone(serial=1, ok=True, endpoint="a:1")
    assert host.seen == [("PrepareDevices", "forward", False)]
    ((record,),) = await journal.sequences()
    assert (record.completed, record.result) == (True, '{"endpoint":"a:1"}')
    await journal.close()


@pytest.mark.parametrize(
    ("error", "blame_job", "code"),
    [
        (InvalidInput("bad").with_exit_code(ExitCode.COMMAND_NOT_FOUND), True, 127),
        (Unavailable("busy"), False, 6),
        (OSError(28, "No space left on device"), False, 1),
        (ValueError("a planted defect"), False, 1),
    ],
)
async def test_every_error_becomes_an_outcome_and_is_recorded(
    error: Exception, blame_job: bool, code: int, tmp_path: Path
) -> None:
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id="b")
    host = Host(journal)
    host.error = error
    outcome = await run(journal, host, PREPARE)
    assert (outcome.ok, outcome.blame_job, outcome.exit_code) == (False, blame_job, code)
    ((record,),) = await journal.sequences()
    assert record.error in outcome.error
    assert record.error
    await journal.close()


async def test_what_fails_the_same_way_again_and_again_is_logged_once(journal: Journal) -> None:
    host = Host(journal)
    outcomes: asyncio.Queue[ActionDone | WedgeEnded] = asyncio.Queue()
    with structlog.testing.capture_logs() as lines:
        async with asyncio.TaskGroup() as group:
            executor = Executor(
                journal=journal, devices=host, tasks=host, clock=FakeClock(), group=group, done=outcomes.put_nowait
            )
            for error in ("hangs", "hangs", "broken", "", "broken"):
                host.error = Unavailable(error) if error else None
                executor.start(UNPREPARE)
                await outcomes.get()
    assert [line["error"] for line in lines if line["event"] == "action failed"] == ["hangs", "broken", "broken"]


async def test_without_a_journal_nothing_is_begun_but_everything_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id="b")
    host = Host(journal)

    async def full(**_: object) -> int:
        raise Unavailable("journal: database or disk is full")

    monkeypatch.setattr(journal, "started", full)
    outcome = await run(journal, host, PREPARE)
    assert (outcome.ok, outcome.error) == (False, "journal: database or disk is full")
    assert (await run(journal, host, UNPREPARE)).ok
    await journal.close()


def all_files(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in directory.iterdir())


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until something holds."""
    while not condition():  # noqa: ASYNC110 - a fake clock and a host that is looked at have no event
        await asyncio.sleep(0)


async def recovered(journal: Journal, host: Host, *, boot_id: str = "b") -> NodeRestored:
    """Let another agent look at what the journal says."""
    async with asyncio.TaskGroup() as group:
        executor = Executor(
            journal=journal, devices=host, tasks=host, clock=FakeClock(), group=group, done=lambda _: None
        )
        return await executor.recover(node="n1", boot_id=boot_id, now=7.0, lease_ttl_s=10.0, term=3)


CLIENT = PrepareClient(
    serial=3, job="j1", task="main.0", user="ann", leases=(PreparedLease(lease=lease(), endpoint="a:1"),)
)
RUN = TaskRun(job="j1", task="main.0", user="ann", command=("sleep", "9"), cwd="/tmp", environment={"TOKEN": "hidden"})
START = StartTask(serial=4, run=RUN)


async def test_what_is_observed_is_taken_over_and_the_rest_ended_before_anything_is_lost(journal: Journal) -> None:
    host = Host(journal)
    for work in (PREPARE, CLIENT, START):
        assert (await run(journal, host, work)).ok
    host.observed = {"l1 at a:1", "j1 as sleep 9"}
    restored = await recovered(journal, host)
    assert host.adopted == ["l1 at a:1", "j1 with /s", "j1 as sleep 9", "strangers", "strangers"]
    assert [(one.lease, one.endpoint, one.lost) for one in restored.devices] == [(lease().without_secret(), "a:1", "")]
    assert [one.lost for one in restored.clients] == ["it ended while node n1 had no agent"]
    assert [(one.run.command, one.run.cwd, one.run.environment) for one in restored.tasks] == [
        (("sleep", "9"), "/tmp", {})
    ]
    assert (restored.now, restored.lease_ttl_s, restored.term) == (7.0, 10.0, 3)


async def test_after_a_reboot_volatile_steps_are_void_and_not_looked_for(journal: Journal) -> None:
    host = Host(journal)
    for work in (PREPARE, CLIENT, START):
        await run(journal, host, work)
    host.observed = {"l1 at a:1", "j1 with /s"}
    restored = await recovered(journal, host, boot_id="another")
    # But for an exit status that a keeper may have written before.
    assert host.adopted == ["j1 as sleep 9", "strangers", "strangers"]
    assert [one.lost for one in (*restored.devices, *restored.clients)] == ["node n1 was rebooted"] * 2
    assert restored.tasks[0].lost == "node n1 was rebooted while it ran"


async def test_a_preparation_that_was_cut_off_is_given_up_and_a_program_is_looked_for(journal: Journal) -> None:
    host = Host(journal)
    for work in (PREPARE, START):
        host.gate = asyncio.Event()
        cut_off = asyncio.create_task(run(journal, host, work))
        host.seen = []
        await until(lambda: bool(host.seen))
        cut_off.cancel()
        await asyncio.gather(cut_off, return_exceptions=True)
    host.observed = {"j1 as sleep 9"}
    restored = await recovered(journal, host)
    assert "it was not ready" in restored.devices[0].lost
    assert restored.tasks[0].lost == ""


async def test_an_overdue_step_makes_its_object_wedged_and_tells_when_it_has_ended(journal: Journal) -> None:
    host, clock = Host(journal), FakeClock()
    done: asyncio.Queue[ActionDone | WedgeEnded] = asyncio.Queue()
    host.gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        executor = Executor(journal=journal, devices=host, tasks=host, clock=clock, group=group, done=done.put_nowait)
        executor.start(PREPARE)
        await until(lambda: bool(host.seen))
        await clock.advance(60.0)
        outcome = await done.get()
        assert isinstance(outcome, ActionDone)
        assert (outcome.ok, outcome.wedged) == (False, True)
        assert "forward PrepareDevices of lease l1 is still not done after 60 s, and goes on" in outcome.error
        # Asked again, it waits for what is under way, and no second one is begun on the device.
        executor.start(UNPREPARE)
        await until(lambda: clock.sleepers > 0)
        host.gate.set()
        assert await done.get() == WedgeEnded(object="lease l1")
        assert await done.get() == ActionDone(serial=2, ok=True)
    ((prepare, unprepare),) = await journal.sequences()
    assert (prepare.succeeded, unprepare.direction, unprepare.succeeded) == (True, "back", True)


async def test_one_device_has_one_operation_at_a_time(journal: Journal) -> None:
    host, clock = Host(journal), FakeClock()
    done: asyncio.Queue[ActionDone | WedgeEnded] = asyncio.Queue()
    host.gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        executor = Executor(journal=journal, devices=host, tasks=host, clock=clock, group=group, done=done.put_nowait)
        executor.start(PREPARE)
        await until(lambda: bool(host.seen))
        executor.start(PrepareDevices(serial=9, lease=lease("l2")))
        await until(lambda: clock.sleepers == 2)
        await clock.advance(60.0)
        outcomes = [await done.get(), await done.get()]
        refused = next(one for one in outcomes if isinstance(one, ActionDone) and one.serial == 9)
        assert f"device {GPU} is held by forward PrepareDevices of lease l1" in refused.error
        assert not refused.wedged
        host.gate.set()
        assert await done.get() == WedgeEnded(object="lease l1")
    # What never had its turn has left no record.
    assert [records[0].object for records in await journal.sequences()] == ["lease l1"]


async def test_what_has_waited_long_for_its_turn_has_its_own_time_from_then_on(journal: Journal) -> None:
    """Of many that are done on a node at a time the last had its turn a moment before its deadline, and was wedged."""
    host, clock = Host(journal), FakeClock()
    done: asyncio.Queue[ActionDone | WedgeEnded] = asyncio.Queue()
    first = host.gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        executor = Executor(journal=journal, devices=host, tasks=host, clock=clock, group=group, done=done.put_nowait)
        executor.start(PREPARE)
        await until(lambda: bool(host.seen))
        second = host.gate = asyncio.Event()
        executor.start(PrepareDevices(serial=9, lease=lease("l2")))
        await until(lambda: clock.sleepers == 2)
        host.seen.clear()
        await clock.advance(50.0)
        first.set()
        assert await done.get() == ActionDone(serial=1, ok=True, endpoint="a:1")
        await until(lambda: bool(host.seen))
        await clock.advance(59.0)
        second.set()
        assert await done.get() == ActionDone(serial=9, ok=True, endpoint="a:1")


class _KilledError(Exception):
    """Stands for the end of an agent in the middle of what it does."""


@pytest.mark.parametrize("launched", [False, True])
async def test_a_task_whose_files_have_arrived_has_begun_by_the_record_of_its_start(
    journal: Journal, launched: bool
) -> None:
    host = Host(journal)
    staged = msgspec.structs.replace(START.run, stage_out=("result",))
    async with asyncio.TaskGroup() as group:
        executor = Executor(
            journal=journal, devices=host, tasks=host, clock=FakeClock(), group=group, done=lambda _: None
        )
        executor.start(msgspec.structs.replace(START, run=staged))
        await until(lambda: bool(host.seen))
        (before,) = (await recovered(journal, host)).tasks
        assert (bool(before.lost), before.unstarted) == (True, True)
        with contextlib.suppress(_KilledError):
            async with executor.launching(staged):
                if not launched:
                    raise _KilledError
    (lost,) = (await recovered(journal, host)).tasks
    assert lost.lost
    assert lost.unstarted is not launched
    # What is found was launched, whatever is on record.
    host.observed.add(f"{lost.run.job} as {' '.join(lost.run.command)}")
    (found,) = (await recovered(journal, host)).tasks
    assert (found.lost, found.unstarted) == ("", False)


async def test_a_start_whose_end_the_journal_refuses_goes_on(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(number: int, **_: object) -> None:
        raise Unavailable("journal: the disk is full")

    host = Host(journal)
    async with asyncio.TaskGroup() as group:
        executor = Executor(
            journal=journal, devices=host, tasks=host, clock=FakeClock(), group=group, done=lambda _: None
        )
        executor.start(START)
        await until(lambda: bool(host.seen))
        monkeypatch.setattr(journal, "completed", refuse)
        async with executor.launching(START.run):
            pass


async def test_neither_secrets_nor_environments_are_written(journal: Journal, tmp_path: Path) -> None:
    host = Host(journal)
    for work in (PREPARE, CLIENT, START, UNPREPARE):
        assert (await run(journal, host, work)).ok
    written = all_files(tmp_path)
    assert b"PrepareDevices" in written
    assert b"5e5e" not in written
    assert b"hidden" not in written


def test_who_waits_for_a_start_waits_longer_than_whom_it_asks() -> None:
    # A keeper takes 9 s of an emulated processor, of which a crowded node gives it a fifth.
    assert 45.0 < START_TIMEOUT_S < START_DEADLINE_S < steps.START_DEADLINE_S


class OneStep:
    """Storage of one step for each side."""

    kind = "UseStorage"
    identity = "storage"
    devices: tuple[str, ...] = ()
    deadline_s = 10.0
    lasting = False

    def __init__(self) -> None:
        self.told: list[object] = []

    def device_steps(self, lease: Lease) -> tuple[Step, ...]:
        return (self,)

    def client_steps(
        self, *, user: str, leases: tuple[PreparedLease, ...], attachment: bool, force: bool
    ) -> tuple[Step, ...]:
        self.told.append([one.lease.id for one in leases])
        return (self,)

    def remember(self, lease: Lease, told: Result) -> None:
        self.told.append(f"remembers {lease.id}")

    def forget(self, lease: Lease) -> None:
        """There are no device sides here."""

    async def end_strangers(self, device_sides: Collection[str], client_sides: Collection[str]) -> tuple[str, ...]:
        self.told.append((list(device_sides), list(client_sides)))
        return ()

    async def observe(self, known: Result | None) -> Result | None:
        return known

    async def do(self) -> Result:
        return {"data/device": "dm-0", "FARBUS_STORAGE_DATA": "/s"}

    async def compensate(self) -> None:
        self.told.append("taken back")


async def test_a_task_may_have_devices_and_storage(journal: Journal) -> None:
    host, storage = Host(journal), OneStep()
    stored = msgspec.structs.replace(lease("l2"), storage=StorageGrant(name="data", size_bytes=1))
    both = msgspec.structs.replace(CLIENT, leases=(*CLIENT.leases, PreparedLease(lease=stored, endpoint="tcp://a:1")))
    whole = {"FARBUS_SESSION": "/s", "FARBUS_STORAGE_DATA": "/s"}

    def executor(group: asyncio.TaskGroup, done: Callable[[ActionDone | WedgeEnded], None]) -> Executor:
        return Executor(
            journal=journal, devices=host, tasks=host, clock=FakeClock(), group=group, done=done, storage=storage
        )  # fmt: skip

    done: list[ActionDone | WedgeEnded] = []
    async with asyncio.TaskGroup() as group:
        executor(group, done.append).start(both)
    assert done == [ActionDone(serial=3, ok=True, environment=whole)]
    assert storage.told == [["l2"]]
    host.observed = {"j1 with /s"}
    async with asyncio.TaskGroup() as group:
        next_one = executor(group, done.append)
        restored = await next_one.recover(node="n1", boot_id="b", now=7.0)
        (client,) = restored.clients
        assert (client.lost, client.environment) == ("", whole)
        assert storage.told[-1] == ([], ["l1", "l2"])
        next_one.start(UnprepareClient(serial=5, job="j1", task="main.0", user="ann", leases=both.leases))
    assert done[-1] == ActionDone(serial=5, ok=True)
    assert storage.told[-1] == "taken back"


async def test_storage_is_reminded_of_no_lease_that_gives_none(journal: Journal) -> None:
    """An agent that serves storage starts again with a lease of a GPU, too."""
    host, storage = Host(journal), OneStep()
    done: list[ActionDone | WedgeEnded] = []

    def executor(group: asyncio.TaskGroup) -> Executor:
        return Executor(
            journal=journal, devices=host, tasks=host, clock=FakeClock(), group=group, done=done.append, storage=storage
        )  # fmt: skip

    async with asyncio.TaskGroup() as group:
        executor(group).start(PrepareDevices(serial=1, lease=lease("l1")))
    assert [each.ok for each in done if isinstance(each, ActionDone)] == [True]
    async with asyncio.TaskGroup() as group:
        await executor(group).recover(node="n1", boot_id="b", now=7.0)
    assert "remembers l1" not in storage.told


async def test_leases_of_storage_are_looked_for_side_by_side(journal: Journal) -> None:
    """Each may take a minute where a drive does not answer, and none has a part in another."""
    looking = at_once = 0

    class Looked(OneStep):
        kind = "ProvideStorage"

        async def observe(self, known: Result | None) -> Result | None:
            nonlocal looking, at_once
            if known is None:
                return None
            looking += 1
            at_once = max(at_once, looking)
            for _ in range(10 * len(names)):
                # Others come meanwhile, where they may.
                await asyncio.sleep(0)
            looking -= 1
            return known

    names = [f"l{number}" for number in range(ADOPTED_AT_ONCE + 4)]
    host, storage = Host(journal), Looked()
    done: list[ActionDone | WedgeEnded] = []
    grant = StorageGrant(name="data", size_bytes=1)

    def executor(group: asyncio.TaskGroup) -> Executor:
        return Executor(
            journal=journal, devices=host, tasks=host, clock=FakeClock(), group=group, done=done.append, storage=storage
        )  # fmt: skip

    async with asyncio.TaskGroup() as group:
        first = executor(group)
        for serial, name in enumerate(names):
            first.start(PrepareDevices(serial=serial, lease=msgspec.structs.replace(lease(name), storage=grant)))
    assert all(each.ok for each in done if isinstance(each, ActionDone))
    async with asyncio.TaskGroup() as group:
        restored = await executor(group).recover(node="n1", boot_id="b", now=7.0)
    assert sorted((each.lease.id, each.lost) for each in restored.devices) == sorted((name, "") for name in names)
    assert at_once == ADOPTED_AT_ONCE


async def test_a_step_that_is_asked_for_while_the_agent_stops_is_cancelled(journal: Journal) -> None:
    """Its group takes no more tasks then, and who asks has only not heard of it yet."""
    left: list[BaseException] = []

    async def asks_too_late(runner: StepRunner) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            asking = Steps(object="thing", body="{}", steps=(OneStep(),))
            with pytest.raises(asyncio.CancelledError) as caught:
                await runner.perform(asking)
            left.append(caught.value)

    with contextlib.suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(asks_too_late(StepRunner(journal=journal, clock=FakeClock(), group=group)))
            await asyncio.sleep(0)
            raise Unavailable("the agent stops")
    assert len(left) == 1


class Held(OneStep):
    """One that works on a device of a lease's own."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.devices = (device,)


async def test_of_what_is_done_and_over_nothing_is_kept(journal: Journal) -> None:
    """An agent that runs for months does it for millions of leases."""
    async with asyncio.TaskGroup() as group:
        runner = StepRunner(journal=journal, clock=FakeClock(), group=group)
        for number in range(3):
            name = f"room of lease {number}"
            await runner.perform(Steps(object=name, body="{}", steps=(Held(f"logical volume {number}"),)))
            assert not runner.knows(name)
    assert len(runner._turns) == 0


async def test_a_turn_is_one_for_all_who_wait_for_it() -> None:
    turns, order = Turns(), list[str]()

    async def have(name: str, free: asyncio.Event) -> None:
        async with turns.of("device"):
            order.append(f"{name} has it")
            await free.wait()
            order.append(f"{name} had it")

    free = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for name in ("first", "second"):
            group.create_task(have(name, free))
        await asyncio.sleep(0)
        assert (order, len(turns)) == (["first has it"], 1)
        free.set()
    assert order == ["first has it", "first had it", "second has it", "second had it"]
    assert len(turns) == 0
