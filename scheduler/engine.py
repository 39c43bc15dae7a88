"""Drives the cluster machine: time, the ledger, sessions, rounds and watchers.

Everything that happens is told to :meth:`Engine.tell`, in the event loop.  The
machine's effects go through one pump in their order: what must last is
committed first, many events to a commit; only then is anything sent to a node
or shown to a watcher.  A ledger that can't be written ends the scheduler: what
it holds is still the truth.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Protocol

import structlog
from msgspec.structs import replace

from farbus.errors import FarbusError, NotFound, TimedOut
from farbus.model.decision import Decision, PendingJob, RoundReport
from farbus.model.job import JobStatus
from farbus.model.move import MoveStatus
from farbus.model.volume import VolumeStatus
from farbus.scheduler import events
from farbus.scheduler.deciding import MAX_ROUND_JOBS
from farbus.scheduler.decision_maker import DecisionMaker, fault_miss
from farbus.scheduler.events import Effect, Event
from farbus.scheduler.ledger import Contents, Ledger
from farbus.scheduler.lifecycle import ClusterMachine
from farbus.scheduler.room_planner import RoomPlanner

_log = structlog.get_logger()

RECENT_ENDED = 4_096
"""Ended jobs that are kept at hand for those who watched them; others are read from the ledger."""
MIN_TIMER_S = 0.02
"""Shortest wait for the clock, so that a thousand deadlines that were met cost fifty looks a second: what waits for
time waits for tenths of a second and more."""
TERM_CHECK_PART = 0.5
"""Part of a lease time between two looks whether the ledger still is this scheduler's: before a lease that it renewed
without right could expire."""
RULES_LOOK_S = 5.0
"""Pause between two looks whether defragmentation was switched on."""
TRANSIENT_S = 10.0
"""Pause after a round that failed as a whole, before the next event asks for one."""


MANY_TASKS = 64
"""Tasks from which on what becomes of them is told together."""
TASK_REST_S = 0.000_1
"""Part of the pause between two tellings for each task, some times what it takes to tell it: else those who watch a job
of thousands of tasks would take as many times as long as it does itself."""


class SessionPort(Protocol):
    """The engine's side of a session."""

    def send(self, command: events.Command) -> None:
        """Queue a command; a full queue ends the session."""
        ...

    def close(self, reason: str) -> None:
        """End the session."""
        ...


@dataclasses.dataclass(slots=True)
class Counters:
    """What the engine counted since it started."""

    rounds: int = 0
    rounds_failed: int = 0
    rounds_overrun: int = 0
    preemptions: int = 0
    """Plans by which jobs were ended for one of higher priority."""
    defragmentations: int = 0
    """Plans by which jobs were moved that no operator asked for."""
    considered: int = 0
    """Jobs that rounds looked at, each time."""
    placed: int = 0
    events: int = 0
    commits: int = 0
    last_round: RoundReport | None = None
    decision_s_total: float = 0.0
    solves: int = 0
    certified_solves: int = 0
    certify_s_total: float = 0.0
    inexact: int = 0
    """Rounds in which pruning may have made a solve dearer than it had to be."""

    def take(self, report: RoundReport) -> None:
        """Count what a round reports of itself."""
        # The complete one may have come first, in the same read.
        if self.last_round is None or replace(self.last_round, gap=report.gap) != report:
            self.last_round = report
        self.solves += report.solves
        self.certified_solves += report.certified_solves
        self.certify_s_total += report.certify_ms / 1000
        self.inexact += not report.exact

    def complete(self, report: RoundReport) -> None:
        """Note the report of the last round with its gap, which is known after the plan."""
        self.last_round = report


class Engine:
    """See the module.  Use :meth:`run` in a task; it returns only by cancellation or failure."""

    def __init__(self, *, machine: ClusterMachine, ledger: Ledger, maker: DecisionMaker, round_delay_s: float) -> None:
        self.machine = machine
        self.ledger = ledger
        self.maker = maker
        self.counters = Counters()
        self.planner = RoomPlanner(machine, maker, lambda: asyncio.get_running_loop().time())
        self._round_delay_s = round_delay_s
        self._round_jobs = MAX_ROUND_JOBS
        """Most jobs that the next round considers."""
        self._ports: dict[tuple[str, int], SessionPort] = {}
        self._waiting: list[tuple[list[Effect], asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._round_asked = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._watchers: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._recent: OrderedDict[str, JobStatus] = OrderedDict()
        self._recent_moves: OrderedDict[str, MoveStatus] = OrderedDict()
        self._recent_volumes: OrderedDict[str, VolumeStatus] = OrderedDict()
        self._failure: BaseException | None = None
        self._sessions = 0

    def restore(self, contents: Contents) -> None:
        """Take over what the ledger has, before :meth:`run`."""
        self.machine.restore(
            jobs=contents.jobs,
            leases=contents.leases,
            devices=contents.devices,
            nodes=contents.nodes,
            cordons=contents.cordons,
            runs=contents.runs,
            profiles=contents.profiles,
            moves=contents.moves,
            chassis=contents.chassis,
            next_move=contents.next_move,
            volumes=contents.volumes,
            next_volume=contents.next_volume,
            now=asyncio.get_running_loop().time(),
            wall=time.time(),
        )

    # --- telling -------------------------------------------------------------------------

    def tell(self, event: Event) -> asyncio.Future[None]:
        """Take in an event; the future is done once its consequences are on the disk and on their way."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        # Nobody has to wait for it; a failure is reported by run().
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._failure is not None:
            future.set_exception(FarbusError("the scheduler is stopping after a failure"))
            return future
        self.counters.events += 1
        try:
            effects = self.machine.handle(event, now=loop.time(), wall=time.time())
        except Exception as error:
            # The machine may be half-way: the ledger is whole, so start again from it.
            self._fail(error)
            future.set_exception(error)
            return future
        for effect in effects:
            if isinstance(effect, events.JobChanged) and effect.ended is not None:
                status = effect.ended
                _log.info("job ended", job=effect.job_id, state=status.state.value, reason=status.reason)
                # At once, not after the commit: the machine has let go of it.
                self._recent[effect.job_id] = effect.ended
                while len(self._recent) > RECENT_ENDED:
                    self._recent.popitem(last=False)
            elif isinstance(effect, events.FaultFound):
                _log.error("fault", job=effect.job_id, reason=effect.told)
            elif isinstance(effect, events.PersistChassis):
                self._note_server(effect)
            elif isinstance(effect, events.MoveChanged) and effect.ended is not None:
                self._note_move(effect.ended)
            elif isinstance(effect, events.VolumeChanged) and effect.ended is not None:
                self._note_volume(effect.volume_id, effect.ended)
        self._waiting.append((effects, future))
        self._wake.set()
        self._set_timer(loop)
        return future

    def _note_server(self, named: events.PersistChassis) -> None:
        """Tell who is believed about what is in a chassis, and whether an operator has said that it may be."""
        node = self.machine.chassis[named.name].served_by
        told = "chassis_servers" if self.machine.chassis_servers else "it has offered to, and any node may"
        _log.info("chassis served", chassis=named.name, node=node, term=named.term, reason=told)

    def _note_move(self, status: MoveStatus) -> None:
        _log.info("move ended", move=status.id, device=status.device, state=status.state.value, error=status.error)
        self._recent_moves[status.id] = status
        while len(self._recent_moves) > RECENT_ENDED:
            self._recent_moves.popitem(last=False)

    def _note_volume(self, volume_id: str, status: VolumeStatus) -> None:
        _log.info("volume removed", volume=status.name, user=status.user, error=status.error)
        self._recent_volumes[volume_id] = status
        while len(self._recent_volumes) > RECENT_ENDED:
            self._recent_volumes.popitem(last=False)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._wake.set()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        due = self.machine.next_wakeup()
        if due is None:
            return
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(max(due, loop.time() + MIN_TIMER_S), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.tell(events.ClockTicked())

    # --- sessions ------------------------------------------------------------------------

    def next_session(self) -> int:
        """Return a number for a session that opens now."""
        self._sessions += 1
        return self._sessions

    def attach(self, node: str, session: int, port: SessionPort) -> None:
        """Have commands for ``session`` go to ``port``."""
        self._ports[node, session] = port

    def detach(self, node: str, session: int) -> None:
        """Forget a session that has ended."""
        self._ports.pop((node, session), None)

    # --- running -------------------------------------------------------------------------

    async def run(self) -> None:
        """Commit, send and decide until cancelled; raise what makes going on impossible."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pump(), name="pump")
            group.create_task(self._decide(), name="rounds")
            group.create_task(self._watch_term(), name="term")
            group.create_task(self._defragment(), name="defragmentation")
            # Time may have made something due since the restart, and rounds may be wanted.
            self.tell(events.ClockTicked())

    async def _pump(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._failure is not None:
                self._abandon(self._failure)
                raise self._failure
            waiting, self._waiting = self._waiting, []
            effects = [effect for group, _ in waiting for effect in group]
            lasting = [effect for effect in effects if isinstance(effect, events.Persist)]
            if lasting:
                try:
                    await asyncio.wrap_future(self.ledger.write(lasting))
                except FarbusError as error:
                    self._failure = error
                    self._waiting = waiting + self._waiting
                    self._abandon(error)
                    raise
                self.counters.commits += 1
            for effect in effects:
                self._dispatch(effect)
            for _, future in waiting:
                if not future.done():
                    future.set_result(None)

    async def _watch_term(self) -> None:
        """Stop when another scheduler has taken the ledger over, also while there is nothing to write.

        Each write is checked in its transaction; this is for a scheduler that
        only renews leases, which it has no right to any more.
        """
        while True:
            await asyncio.wrap_future(self.ledger.check_term())
            await asyncio.sleep(self.machine.lease_ttl_s * TERM_CHECK_PART)

    def _abandon(self, error: BaseException) -> None:
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting = []

    def _dispatch(self, effect: Effect) -> None:
        match effect:
            case events.SendToNode(node=node, session=session, command=command):
                port = self._ports.get((node, session))
                if port is not None:
                    port.send(command)
            case events.CloseSession(node=node, session=session, reason=reason):
                port = self._ports.pop((node, session), None)
                if port is not None:
                    port.close(reason)
            case events.RunRound():
                self._round_asked.set()
            case (
                events.JobChanged(job_id=changed)
                | events.MoveChanged(move_id=changed)
                | events.VolumeChanged(volume_id=changed)
            ):
                for watcher in self._watchers.get(changed, ()):
                    watcher.set()

    async def _decide(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._round_asked.wait()
            # A burst of events shares a round.
            await asyncio.sleep(self._round_delay_s)
            self._round_asked.clear()
            snapshot, pending, generation = self.machine.round_input(loop.time(), most=self._round_jobs)
            decision, told = None, ""
            if pending:
                self.counters.considered += len(pending)
                began = time.perf_counter()
                try:
                    decision = await self.maker.decide(snapshot, pending, report=self.counters.complete)
                except TimedOut as error:
                    # Fewer jobs next time; one that takes so long all by itself waits, and stops nobody.
                    self.counters.rounds_overrun += 1
                    told = str(error)
                    _log.error("round took too long", pending=len(pending), limit_s=self.maker.limit_s)
                    self._round_jobs = max(1, len(pending) // 2)
                    if len(pending) == 1:
                        decision = _no_decision(pending[0], told)
                except Exception as error:
                    self.counters.rounds_failed += 1
                    told = str(error) if isinstance(error, FarbusError) else f"{type(error).__name__}: {error}"
                    _log.exception("round failed", pending=len(pending))
                    await asyncio.sleep(TRANSIENT_S)
                else:
                    self.counters.rounds += 1
                    self.counters.placed += len(decision.placements)
                    self.counters.take(decision.report)
                    self._round_jobs = min(MAX_ROUND_JOBS, 2 * self._round_jobs)
                self.counters.decision_s_total += time.perf_counter() - began
            self.tell(events.RoundDecided(decision=decision, generation=generation, error=told))
            if decision is not None and decision.misses:
                await self._preempt([missed.job for missed in decision.misses])

    async def _defragment(self) -> None:
        """Look for moves now and then, while the rules say so."""
        while True:
            interval_s = self.machine.rules.defragment_interval_s
            await asyncio.sleep(interval_s or RULES_LOOK_S)
            if not interval_s:
                continue
            try:
                plan = await self.planner.defragment_next(time.time())
            except Exception:
                # Nothing was begun: who waits goes on waiting.
                _log.exception("no plan for defragmentation")
                continue
            if plan is not None:
                self.counters.defragmentations += 1
                self.tell(plan)

    async def _preempt(self, missed: list[str]) -> None:
        try:
            plan = await self.planner.preempt(missed)
        except Exception:
            # Nothing was begun: who waits goes on waiting.
            _log.exception("no plan for preemption")
            return
        if plan is not None:
            self.counters.preemptions += 1
            self.tell(plan)

    # --- looking -------------------------------------------------------------------------

    async def find(self, job_id: str) -> JobStatus:
        """Return a job; raise :class:`NotFound`."""
        record = self.machine.jobs.get(job_id)
        if record is not None:
            return record.status()
        if job_id in self._recent:
            return self._recent[job_id]
        status = await asyncio.wrap_future(self.ledger.job(job_id))
        if status is None:
            raise no_such_job(job_id)
        return status

    async def watch(self, job_id: str) -> AsyncGenerator[JobStatus, None]:
        """Yield the job now and at every change until it has ended.

        A slow reader misses states in between, never the last one, and costs
        no memory.  One that reads of a job with many tasks is told together
        what becomes of them.
        """
        with self.watching((job_id,)) as changed:
            last: JobStatus | None = None
            while True:
                changed.clear()
                live = job_id in self.machine.jobs
                status = await self.find(job_id)
                if status != last:
                    last = status
                    yield status
                if not live:
                    return
                await changed.wait()
                record = self.machine.jobs.get(job_id)
                if record is not None and record.state is status.state:
                    await rest(len(record.runs))

    def recent_moves(self) -> dict[str, MoveStatus]:
        """Return moves that have ended lately, by id."""
        return {move_id: status for move_id, status in self._recent_moves.items() if move_id.startswith("m")}

    async def watch_move(self, move_id: str) -> AsyncGenerator[MoveStatus, None]:
        """Yield a move now and at every change until it has ended or is stuck; slow readers as in :meth:`watch`."""
        with self.watching((move_id,)) as changed:
            while True:
                changed.clear()
                record = self.machine.moves.get(move_id)
                if record is None:
                    if move_id in self._recent_moves:
                        yield self._recent_moves[move_id]
                    return
                status = self.machine.move_status(record, now=asyncio.get_running_loop().time())
                yield status
                if status.state.has_ended:
                    return
                await changed.wait()

    async def watch_volume(self, volume_id: str) -> AsyncGenerator[VolumeStatus, None]:
        """Yield a volume now and at every change until it is gone; slow readers as in :meth:`watch`."""
        with self.watching((volume_id,)) as changed:
            last: VolumeStatus | None = None
            while True:
                changed.clear()
                volumes = self.machine.volumes.values()
                record = next((each for each in volumes if each.volume.id == volume_id), None)
                if record is None:
                    if volume_id in self._recent_volumes:
                        yield self._recent_volumes[volume_id]
                    return
                status = self.machine.volume_status(record)
                if status != last:
                    last = status
                    yield status
                await changed.wait()

    @contextlib.contextmanager
    def watching(self, job_ids: Iterable[str]) -> Iterator[asyncio.Event]:
        """Return an event that is set at every change of these jobs, moves or volumes."""
        changed = asyncio.Event()
        watched = tuple(job_ids)
        for job_id in watched:
            self._watchers[job_id].add(changed)
        try:
            yield changed
        finally:
            for job_id in watched:
                self._watchers[job_id].discard(changed)
                if not self._watchers[job_id]:
                    del self._watchers[job_id]


async def rest(tasks: int) -> None:
    """Wait a while, after something was told of so many tasks, until it is told again what has become of them."""
    if tasks >= MANY_TASKS:
        await asyncio.sleep(tasks * TASK_REST_S)


def _no_decision(pending: PendingJob, told: str) -> Decision:
    report = RoundReport(pending=1, placed=0, decision_ms=0.0, solves=0, certified=False)
    return Decision(placements=(), misses=(fault_miss(pending.job.id, told),), report=report)


def no_such_job(job_id: str) -> NotFound:
    """Return the error for a job that is not there, or is somebody else's: the two are not told apart."""
    return NotFound(
        f"there is no job {job_id} that you may see",
        hint="farbus jobs --all lists yours; operators of the cluster see everybody's",
    )
