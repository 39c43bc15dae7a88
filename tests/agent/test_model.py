"""The node as a whole, modelled: machine, journal and recovery are the real ones, everything around them is played.

Any order of what schedulers want, of the pieces of which each piece of work
consists, of lost, doubled and late messages, of devices that are pulled out,
of programs and supervisors that end, of overdue work, and of crashes and
reboots between any two records.  A second scheduler of an older term goes on
talking.

What must hold: the world never has a device under two leases; nobody obeys the
older scheduler; and when all is quiet, node, world and ledger agree.  In the end
every plan is undone: nothing is left anywhere.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from farbus.agent.actions import (
    Action,
    Answer,
    ForgetTask,
    PrepareClient,
    PrepareDevices,
    RecordExit,
    RecordFence,
    ReportLeaseEnded,
    ReportTask,
    StartTask,
    StopTask,
    UnprepareClient,
    UnprepareDevices,
    Work,
)
from farbus.agent.events import (
    ActionDone,
    ClientReleased,
    ClientRequested,
    DevicesReleased,
    DevicesRequested,
    DevicesVanished,
    Event,
    LeasesRenewed,
    LeasesVoided,
    NodeRestored,
    PreparedLease,
    SessionOpened,
    StartRequested,
    StopRequested,
    SupervisorDied,
    TaskExited,
    TaskRun,
    TimePassed,
    WedgeEnded,
)
from farbus.agent.journal import Direction, Record
from farbus.agent.machine import NodeMachine
from farbus.agent.reconcile import (
    Remembered,
    Verdict,
    reconcile,
    restored_clients,
    restored_devices,
    restored_tasks,
    results_of,
    verdict_of,
)
from farbus.model.device import Route
from farbus.model.job import TaskState, TaskStatus
from farbus.model.lease import Lease, LeasedDevice
from farbus.model.value import to_json

TTL_S = 10.0
NOW_TERM, OLD_TERM = 2, 1
DEVICES = ("GPU-1", "GPU-2")
TASK = "main.0"
MAX_JOBS = 8
QUIET_ROUNDS = 8
"""Hellos after which a node must have settled: each undoes at least one thing that is left."""

Forward = PrepareDevices | PrepareClient | StartTask
Command = DevicesRequested | DevicesReleased | ClientRequested | ClientReleased | StartRequested | StopRequested


def name_of(work: Work) -> str:
    match work:
        case PrepareDevices() | UnprepareDevices():
            return f"lease {work.lease.id}"
        case PrepareClient() | UnprepareClient():
            return f"client {work.job}"
        case StartTask():
            return f"task {work.run.job}"
        case StopTask():
            return f"task {work.job}"


@dataclass
class World:
    """What outlives an agent."""

    present: set[str] = field(default_factory=lambda: set(DEVICES))
    serving: dict[str, Lease] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    programs: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    """Leases whose supervisors could not be killed when that was last tried: they serve on."""
    exits: dict[str, int] = field(default_factory=dict)
    """Exit codes that keepers hold until an agent has them on record."""

    def serve(self, lease: Lease) -> None:
        for leased in lease.devices:
            for other in self.serving.values():
                clash = other.id != lease.id and leased.device in {one.device for one in other.devices}
                assert not clash, f"{leased.device} is under {other.id} and {lease.id}"
        self.serving[lease.id] = lease


@dataclass
class Disk:
    """The journal's rows, as :class:`farbus.agent.journal.Journal` writes them."""

    rows: list[Record] = field(default_factory=list)
    ended: dict[str, TaskStatus] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)

    def sequence_of(self, name: str) -> int:
        return max((row.sequence for row in self.rows if row.object == name), default=0)

    def started(self, name: str, action: str, body: str, boot: str, *, back: bool) -> int:
        number = len(self.rows) + 1
        self.rows.append(
            Record(
                id=number,
                sequence=(self.sequence_of(name) or number) if back else number,
                position=0,
                length=1,
                direction=Direction.BACK if back else Direction.FORWARD,
                boot_id=boot,
                object=name,
                action=action,
                body=body,
                lasting=False,
                result="{}",
                completed=False,
            )
        )
        return number

    def completed(self, number: int, *, error: str, result: str) -> None:
        row = self.rows[number - 1]
        values = {field: getattr(row, field) for field in row.__struct_fields__}
        self.rows[number - 1] = Record(**{**values, "completed": True, "error": error, "result": result})

    def mark_ended(self, job: str, boot: str) -> None:
        name = f"task {job}"
        number = self.started(name, "StartTask", "{}", boot, back=True)
        row = self.rows[number - 1]
        values = {field: getattr(row, field) for field in row.__struct_fields__}
        self.rows[number - 1] = Record(**{**values, "direction": Direction.ENDED, "completed": True})

    def sequences(self) -> list[tuple[Record, ...]]:
        last = {name: self.sequence_of(name) for name in {row.object for row in self.rows}}
        return [tuple(row for row in self.rows if row.sequence == number) for number in sorted(last.values())]


@dataclass
class Flight:
    """A piece of work on its way: not begun, recorded, done, recorded as done."""

    work: Work
    phase: int = 0
    number: int = 0
    ok: bool = True
    given_up: bool = False
    """Its deadline has passed: the machine believes that it is wedged."""


@dataclass
class Job:
    """One plan, as a scheduler sees it."""

    lease: Lease
    term: int
    stage: int = 0
    """Granted, devices prepared, client prepared, task started."""
    undo: bool = False
    client_gone: bool = False
    released: bool = False
    confirmed: bool = False
    """The node has said that it has prepared the devices."""

    @property
    def id(self) -> str:
        return self.lease.job

    def next_command(self, command: str, now: float) -> Command | None:
        """Return what is to be asked next."""
        prepared = PreparedLease(lease=self.lease, endpoint="a:1")
        if self.undo:
            if not self.client_gone:
                return ClientReleased(command=command, job=self.id, task=TASK, term=self.term)
            if not self.released:
                return DevicesReleased(command=command, lease_id=self.lease.id, term=self.term)
            return None
        run = TaskRun(job=self.id, task=TASK, user="ann", command=("true",))
        return (
            DevicesRequested(command=command, lease=self.lease, now=now, term=self.term),
            ClientRequested(
                command=command, job=self.id, task=TASK, user="ann", leases=(prepared,), now=now, term=self.term
            ),
            StartRequested(command=command, run=run, term=self.term),
            None,
        )[self.stage]


class Node(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.disk = Disk()
        self.boots = 1
        self.now = 100.0
        self.jobs: list[Job] = []
        self.epochs = {device: {NOW_TERM: 0, OLD_TERM: 0} for device in DEVICES}
        self.mail: list[Command] = []
        """Commands on their way, in no order."""
        self.asked: dict[str, tuple[Job | None, Command]] = {}
        self.over: set[str] = set()
        """Leases that the node has said to have ended."""
        self.session_open = False
        self.machine = NodeMachine(node="n1")
        self.events: deque[Event] = deque()
        self.actions: deque[Action] = deque()
        self.flights: list[Flight] = []

    @property
    def boot(self) -> str:
        return f"boot-{self.boots}"

    @initialize()
    def first_start(self) -> None:
        self.start_agent()
        self.hello()

    # --- the agent: service, executor, recovery ------------------------------------------

    def start_agent(self) -> None:
        """Do what the daemon does first."""
        self.machine = NodeMachine(node="n1")
        self.events, self.actions, self.flights = deque(), deque(), []
        self.session_open = False
        remembered, told = reconcile(self.disk.sequences(), boot_id=self.boot, node="n1")
        assert not told
        found = [self.adopt(one) for one in remembered]
        adopted = {(type(one.work), name_of(one.work)) for one in found if not one.lost}
        # Strangers end, but for those that can't be killed.
        recorded = {name_of(one.work) for one in found}
        for key in self.world.serving.keys() & self.world.stuck:
            assert f"lease {key}" in recorded, f"{key} can't be given up, and is forgotten"
        self.world.serving = {
            key: lease
            for key, lease in self.world.serving.items()
            if key in self.world.stuck or (PrepareDevices, f"lease {key}") in adopted
        }
        self.world.files = {job for job in self.world.files if (PrepareClient, f"client {job}") in adopted}
        self.world.programs = {job for job in self.world.programs if (StartTask, f"task {job}") in adopted}
        self.world.exits = {
            job: code for job, code in self.world.exits.items() if (StartTask, f"task {job}") in adopted
        }
        self.handle(
            NodeRestored(
                now=self.now,
                lease_ttl_s=TTL_S,
                term=NOW_TERM,
                fences=self.disk.fences,
                devices=restored_devices(found),
                clients=restored_clients(found),
                tasks=restored_tasks(found),
                ended_tasks=tuple(self.disk.ended.items()),
            )
        )
        for one in found:
            if isinstance(one.work, StartTask) and not one.lost and one.work.run.job in self.world.exits:
                code = self.world.exits[one.work.run.job]
                self.events.append(TaskExited(job=one.work.run.job, task=TASK, exit_code=code))

    def adopt(self, one: Remembered) -> Remembered:
        if one.lost:
            return one
        match one.work:
            case PrepareDevices():
                there = one.work.lease.id in self.world.serving and bool(results_of(one.records))
            case PrepareClient():
                there = one.work.job in self.world.files
            case StartTask():
                there = one.work.run.job in self.world.programs or one.work.run.job in self.world.exits
        return one if there else Remembered(work=one.work, records=one.records, lost="not observed")

    def handle(self, event: Event) -> None:
        self.actions.extend(self.machine.handle(event))
        self.machine.validate()

    def step(self) -> bool:
        """Do the next thing that the service has to do; say whether there was one."""
        if self.actions:
            self.act(self.actions.popleft())
        elif self.events:
            self.handle(self.events.popleft())
        else:
            return False
        return True

    def act(self, action: Action) -> None:
        match action:
            case Answer():
                self.answered(action)
            case RecordExit():
                self.disk.ended[action.job] = action.status
                self.disk.mark_ended(action.job, self.boot)
                self.world.exits.pop(action.job, None)
            case ForgetTask():
                self.disk.ended.pop(action.job, None)
                self.disk.mark_ended(action.job, self.boot)
                self.world.exits.pop(action.job, None)
            case RecordFence():
                for device, epoch in action.epochs.items():
                    self.disk.fences[device] = max(epoch, self.disk.fences.get(device, 0))
            case ReportTask():
                if action.status.state is TaskState.EXITED:
                    self.undo(action.job)
            case ReportLeaseEnded():
                if action.device_side and action.reason.startswith(f"lease {action.lease.id} has ended"):
                    self.over.add(action.lease.id)
                self.undo(action.lease.job)
            case PrepareDevices():
                assert action.lease.id not in self.over, f"{action.lease.id} has ended, and is served again"
                for leased in action.lease.devices:
                    least = self.disk.fences.get(leased.device, 0)
                    assert leased.epoch >= least, f"{action.lease.id} is over, and served again"
                self.begin(action)
            case PrepareClient() | StartTask() | UnprepareDevices() | UnprepareClient() | StopTask():
                self.begin(action)

    def begin(self, work: Work) -> None:
        if not isinstance(work, StopTask):
            under_way = [name_of(flight.work) for flight in self.flights if not flight.given_up]
            assert name_of(work) not in under_way, f"{name_of(work)}: two pieces of work at a time"
        self.flights.append(Flight(work))

    def blocked(self, flight: Flight) -> bool:
        """Say whether earlier, overdue work on the object is still under way: that is waited for."""
        earlier = self.flights[: self.flights.index(flight)]
        return any(other.given_up and name_of(other.work) == name_of(flight.work) for other in earlier)

    def advance(self, flight: Flight, *, ok: bool = True) -> None:
        """Do the next part of a piece of work."""
        work = flight.work
        back = isinstance(work, UnprepareDevices | UnprepareClient | StopTask)
        if flight.phase == 0:
            body, action = self.body_of(work)
            flight.number = self.disk.started(name_of(work), action, body, self.boot, back=back)
        elif flight.phase == 1:
            flight.ok = self.do(work, ok=ok)
        elif flight.phase == 2:
            result = '{"endpoint":"a:1"}' if isinstance(work, PrepareDevices) else "{}"
            self.disk.completed(flight.number, error="" if flight.ok else "trouble", result=result)
        else:
            self.flights.remove(flight)
            if flight.given_up:
                self.events.append(WedgeEnded(object=self.machine_name(work)))
            else:
                endpoint = "a:1" if isinstance(work, PrepareDevices) and flight.ok else ""
                error = "" if flight.ok else "trouble"
                self.events.append(ActionDone(serial=work.serial, ok=flight.ok, error=error, endpoint=endpoint))
        flight.phase += 1

    @staticmethod
    def machine_name(work: Work) -> str:
        name = name_of(work)
        return name if name.startswith("lease") else f"{name}/{TASK}"

    @staticmethod
    def body_of(work: Work) -> tuple[str, str]:
        value: Forward
        match work:
            case PrepareDevices() | UnprepareDevices():
                value = PrepareDevices(serial=0, lease=work.lease.without_secret())
            case PrepareClient() | UnprepareClient():
                value = PrepareClient(serial=0, job=work.job, task=TASK, user=work.user, leases=work.leases)
            case StartTask():
                value = work
            case StopTask():
                value = StartTask(serial=0, run=TaskRun(job=work.job, task=TASK, user="", command=()))
        return to_json(value).decode(), type(value).__name__

    def do(self, work: Work, *, ok: bool) -> bool:
        """Change the world; a step that fails may have done its work all the same."""
        world = self.world
        match work:
            case PrepareDevices():
                if not {leased.device for leased in work.lease.devices} <= world.present:
                    return False
                world.serve(work.lease)
            case PrepareClient():
                world.files.add(work.job)
            case StartTask():
                if not ok:
                    return False
                world.programs.add(work.run.job)
            case UnprepareDevices():
                served = world.serving.get(work.lease.id)
                if not ok and served is not None and served.route is Route.REMOTE:
                    world.stuck.add(work.lease.id)
                    return False
                # Nothing can hold up the end of what is not there.
                ok = True
                world.serving.pop(work.lease.id, None)
                world.stuck.discard(work.lease.id)
            case UnprepareClient():
                if ok:
                    assert work.job not in world.programs, "a program runs without what it was given"
                    world.files.discard(work.job)
            case StopTask():
                if ok and work.job in world.programs:
                    self.exit(work.job, -9)
        return ok

    def exit(self, job: str, code: int) -> None:
        """A program ends: its keeper knows, and tells an agent that is there."""
        self.world.programs.discard(job)
        self.world.exits[job] = code
        self.events.append(TaskExited(job=job, task=TASK, exit_code=code))

    # --- the schedulers ------------------------------------------------------------------

    def job_of(self, job_id: str) -> Job | None:
        return next((job for job in self.jobs if job.id == job_id), None)

    def undo(self, job_id: str) -> None:
        if (job := self.job_of(job_id)) is not None:
            job.undo = True

    def free(self, device: str) -> bool:
        """Say whether the ledger of the present term has no lease of a device."""
        return not any(
            not job.released and job.term == NOW_TERM and job.lease.devices[0].device == device for job in self.jobs
        )

    def ask(self, job: Job | None, command: Command) -> None:
        self.asked[command.command] = (job, command)
        self.mail.append(command)

    def next_name(self) -> str:
        return f"c{len(self.asked)}"

    def answered(self, answer: Answer) -> None:
        job, command = self.asked[answer.command]
        if command.term == OLD_TERM:
            assert not answer.ok, f"an old scheduler was obeyed: {command}"
            assert "was replaced by" in answer.error
            return
        if not answer.ok:
            assert "story: " in answer.error or "stale" in answer.error, answer.error
        if not self.session_open or job is None:
            return
        match command:
            case DevicesRequested() | ClientRequested() | StartRequested():
                stage = (DevicesRequested, ClientRequested, StartRequested).index(type(command))
                if not answer.ok:
                    job.undo = True
                elif not job.undo and job.stage == stage:
                    job.stage += 1
                job.confirmed |= answer.ok and stage == 0
            case ClientReleased():
                job.client_gone |= answer.ok
            case DevicesReleased():
                job.released |= answer.ok

    def hello(self) -> None:
        """Open a session: the node tells all it holds, the scheduler draws the conclusions."""
        self.session_open = True
        self.events.append(SessionOpened(lease_ttl_s=TTL_S, now=self.now, term=NOW_TERM))
        held = {one.lease.id for one in self.machine.held() if one.device_side}
        running = {job for job, status in self.machine.task_statuses() if status.state is not TaskState.EXITED}
        told = {job for job, _ in self.machine.task_statuses()}
        clients = {job for job, _ in self.machine.clients()}
        live = [job for job in self.jobs if job.term == NOW_TERM]
        for job in live:
            if job.confirmed and not job.released and job.lease.id not in held:
                job.undo = job.released = True
            if job.stage > 2 and job.id not in running:
                job.undo = True
            if job.stage > 1 and job.id not in clients:
                job.undo = True
        known = {job.lease.id for job in live if not job.released}
        for lease_id in sorted(held - known):
            self.ask(None, DevicesReleased(command=self.next_name(), lease_id=lease_id, term=NOW_TERM))
        wanted = {job.id for job in live if not job.client_gone}
        for job_id in sorted((told | clients) - wanted):
            self.ask(None, ClientReleased(command=self.next_name(), job=job_id, task=TASK, term=NOW_TERM))

    def heartbeat(self) -> None:
        held = {one.lease.id for one in self.machine.held()}
        known = {job.lease.id for job in self.jobs if job.term == NOW_TERM and not job.released}
        self.events.append(LeasesRenewed(lease_ids=tuple(sorted(held & known)), now=self.now, term=NOW_TERM))
        self.events.append(LeasesVoided(lease_ids=tuple(sorted(held - known)), term=NOW_TERM))

    # --- rules ---------------------------------------------------------------------------

    @precondition(lambda self: len(self.jobs) < MAX_JOBS)
    @rule(device=st.sampled_from(DEVICES), local=st.booleans(), old=st.booleans())
    def make_plan(self, device: str, local: bool, old: bool) -> None:
        self.plan(device, local=local, old=old)

    @precondition(lambda self: len(self.jobs) < MAX_JOBS)
    @rule(device=st.sampled_from(DEVICES), local=st.booleans(), times=st.integers(0, 3))
    def plan_and_go(self, device: str, local: bool, times: int) -> None:
        if self.free(device):
            self.plan(device, local=local, old=False)
            self.events.append(self.mail.pop())
            self.run_dry()
            self.smoothly(self.jobs[-1], times)

    def plan(self, device: str, *, local: bool, old: bool) -> None:
        term = OLD_TERM if old else NOW_TERM
        if not old and not self.free(device):
            return
        self.epochs[device][term] += 1
        number = len(self.jobs)
        lease = Lease(
            id=f"l{number}",
            job=f"j{number}",
            task=TASK,
            user="ann",
            client_node="n1",
            device_node="n1",
            route=Route.LOCAL if local else Route.REMOTE,
            devices=(LeasedDevice(device=device, epoch=self.epochs[device][term]),),
            term=term,
            secret=f"{number:064x}",
        )
        job = Job(lease=lease, term=term)
        self.jobs.append(job)
        self.command(job)

    def command(self, job: Job) -> None:
        command = job.next_command(self.next_name(), self.now)
        if command is not None:
            self.ask(job, command)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        self.command(data.draw(st.sampled_from(self.jobs)))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.jobs))
        job.undo = True
        self.command(job)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), grace_s=st.sampled_from([0.0, 5.0]))
    def stop(self, data: st.DataObject, grace_s: float) -> None:
        job = data.draw(st.sampled_from(self.jobs))
        self.ask(job, StopRequested(command=self.next_name(), job=job.id, task=TASK, grace_s=grace_s, term=job.term))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), times=st.integers(1, 5))
    def go_on_smoothly(self, data: st.DataObject, times: int) -> None:
        """Let one plan come some way without trouble, so that the rest is not always about its first step."""
        self.smoothly(data.draw(st.sampled_from(self.jobs)), times)

    @precondition(lambda self: len(self.jobs) < MAX_JOBS)
    @rule(device=st.sampled_from(DEVICES), arrives=st.booleans())
    def change_of_mind(self, device: str, arrives: bool) -> None:
        """A plan is made and taken back while its first message is still on its way."""
        if self.free(device):
            self.plan(device, local=False, old=False)
            self.jobs[-1].undo = True
            self.smoothly(self.jobs[-1], 2)
            if arrives:
                self.events.append(self.mail.pop())
                self.run_dry()

    @precondition(lambda self: len(self.jobs) < MAX_JOBS)
    @rule(device=st.sampled_from(DEVICES), stop=st.sampled_from(["before", "after", "never"]), starts=st.booleans())
    def start_hangs(self, device: str, stop: str, starts: bool) -> None:
        """A start is overdue, and is to be stopped before or after it has come to something or nothing."""
        if not self.free(device):
            return
        job = self.planned(device, times=1)
        if job.stage != 2 or job.undo:
            return
        self.command(job)
        self.events.append(self.mail.pop())
        (flight,) = self.begun(StartTask)
        self.advance(flight)
        self.give_up(flight)
        command = StopRequested(command=self.next_name(), job=job.id, task=TASK, grace_s=0.0, term=job.term)
        if stop == "before":
            self.asked[command.command] = (job, command)
            self.events.append(command)
            self.begun(StopTask)
        while flight in self.flights:
            self.advance(flight, ok=starts)
        if stop == "after":
            self.asked[command.command] = (job, command)
            self.events.append(command)
        self.run_dry()
        assert job.id not in self.world.programs, "it was said not to have started, and runs"

    @precondition(lambda self: len(self.jobs) < MAX_JOBS)
    @rule(device=st.sampled_from(DEVICES), crash=st.booleans())
    def release_fails(self, device: str, crash: bool) -> None:
        """A supervisor that can't be killed, and its agent dies."""
        if not self.free(device):
            return
        job = self.planned(device, times=0)
        job.undo = job.client_gone = True
        self.command(job)
        self.events.append(self.mail.pop())
        for flight in self.begun(UnprepareDevices):
            while flight in self.flights:
                self.advance(flight, ok=False)
        if crash:
            self.start_agent()

    def planned(self, device: str, *, times: int) -> Job:
        """Make a plan, have its devices prepared, and go on with it for some steps."""
        self.plan(device, local=False, old=False)
        job = self.jobs[-1]
        self.events.append(self.mail.pop())
        self.run_dry()
        self.smoothly(job, times)
        return job

    def begun(self, kind: type[Work]) -> list[Flight]:
        """Let the node do what there is to do; return the work of a kind that is under way then."""
        while self.step():
            pass
        return [flight for flight in self.flights if isinstance(flight.work, kind)]

    def smoothly(self, job: Job, times: int) -> None:
        for _ in range(times):
            before = len(self.mail)
            self.command(job)
            if len(self.mail) > before:
                self.events.append(self.mail.pop())
            self.run_dry()

    @precondition(lambda self: self.mail)
    @rule(data=st.data(), keep=st.booleans())
    def deliver(self, data: st.DataObject, keep: bool) -> None:
        """Any message at any time; one that is kept comes again."""
        message = data.draw(st.sampled_from(self.mail))
        if not keep:
            self.mail.remove(message)
        self.events.append(message)

    @precondition(lambda self: self.mail)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.mail.remove(data.draw(st.sampled_from(self.mail)))

    @rule(steps=st.integers(1, 6))
    def serve(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), ok=st.booleans(), parts=st.integers(1, 4))
    def work(self, data: st.DataObject, ok: bool, parts: int) -> None:
        flight = data.draw(st.sampled_from(self.flights))
        for _ in range(parts):
            if flight in self.flights and not self.blocked(flight):
                self.advance(flight, ok=ok)

    @precondition(lambda self: any(one.phase in (1, 2) and not one.given_up for one in self.flights))
    @rule(data=st.data())
    def overdue(self, data: st.DataObject) -> None:
        flight = data.draw(st.sampled_from([one for one in self.flights if one.phase in (1, 2) and not one.given_up]))
        self.give_up(flight)

    def give_up(self, flight: Flight) -> None:
        flight.given_up = True
        self.events.append(ActionDone(serial=flight.work.serial, ok=False, error="overdue", exit_code=8, wedged=True))

    @precondition(lambda self: self.world.programs)
    @rule(data=st.data(), code=st.sampled_from([0, 3]))
    def program_ends(self, data: st.DataObject, code: int) -> None:
        self.exit(data.draw(st.sampled_from(sorted(self.world.programs))), code)

    @precondition(lambda self: self.world.serving)
    @rule(data=st.data())
    def supervisor_dies(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.world.serving)))
        if self.world.serving[lease_id].route is Route.REMOTE:
            del self.world.serving[lease_id]
            self.world.stuck.discard(lease_id)
            self.events.append(SupervisorDied(lease_id=lease_id, reason="it died"))

    @rule(device=st.sampled_from(DEVICES))
    def pull_out(self, device: str) -> None:
        if device in self.world.present:
            self.world.present.remove(device)
            self.events.append(DevicesVanished(devices=(device,)))
        else:
            self.world.present.add(device)

    @rule(seconds=st.sampled_from([1.0, TTL_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.events.append(TimePassed(now=self.now))

    @rule()
    def beat(self) -> None:
        if self.session_open:
            self.heartbeat()

    @rule()
    def reconnect(self) -> None:
        self.hello()

    @rule(seconds=st.sampled_from([0.0, TTL_S]))
    def crash(self, seconds: float) -> None:
        self.now += seconds
        self.start_agent()

    @rule()
    def reboot(self) -> None:
        self.boots += 1
        # What was running is known to have ended, by what its keeper has left.
        self.world.exits |= dict.fromkeys(self.world.programs, -9)
        self.world.serving, self.world.programs, self.world.stuck = {}, set(), set()
        self.start_agent()

    @rule()
    def quiet(self) -> None:
        """Let everything that is under way end well; then node, world and journal agree."""
        self.settle()
        if self.session_open:
            self.heartbeat()
            self.settle()
            known = {job.lease.id for job in self.jobs if job.term == NOW_TERM and not job.released}
            for side in self.machine.lease_sides():
                assert side.lease.id in known or not side.wanted, f"{side} goes on, and its lease is over"
        for side in self.machine.lease_sides():
            assert side.expires_at > self.now or not side.wanted, f"{side} goes on, and has expired"
        # What could not be given up stays as it is until the scheduler asks again.
        wedged = {one.lease.id for one in self.machine.held() if one.device_side and one.trouble}
        held = {one.lease.id for one in self.machine.held() if one.device_side}
        assert held - wedged == set(self.world.serving) - wedged, "leases and what is served differ"
        stuck = {one.lease.job for one in self.machine.held() if not one.device_side and one.trouble}
        assert {job for job, _ in self.machine.clients()} - stuck == self.world.files - stuck
        assert {job for job, _ in self.machine.running()} == self.world.programs
        for lease in self.world.serving.values():
            assert lease.devices[0].device in self.world.present or lease.id in wedged, f"{lease.id} has no device"
        assert {job for job, status in self.machine.task_statuses() if status.state is TaskState.EXITED} == set(
            self.disk.ended
        )
        assert not self.world.exits, "an exit status was not taken"
        for records in self.disk.sequences():
            if records[0].object.startswith("lease"):
                verdict = verdict_of(records, boot_id=self.boot, resumable=False)
                lease_id = records[0].object.removeprefix("lease ")
                if lease_id in self.world.stuck or lease_id in wedged:
                    assert verdict is Verdict.BACK, f"{records[0].object} can't be given up: {verdict}"
                else:
                    assert (verdict is Verdict.HELD) == (lease_id in held), f"{records[0].object}: {verdict}"

    def settle(self) -> None:
        # A device that comes back unnoticed is as if it had never gone: its lease is over all the same.
        gone = tuple(device for device in DEVICES if device not in self.world.present)
        self.events.append(DevicesVanished(devices=gone))
        self.events.append(TimePassed(now=self.now))
        self.run_dry()

    def run_dry(self) -> None:
        """Let everything that is under way end well."""
        while True:
            while self.step():
                pass
            if not self.flights:
                return
            flight = next(one for one in self.flights if not self.blocked(one))
            self.advance(flight)

    @invariant()
    def sound(self) -> None:
        self.machine.validate()

    def teardown(self) -> None:
        """Take every plan back, as the present scheduler would: nothing is left."""
        self.quiet()
        self.mail.clear()
        for job in self.jobs:
            job.undo = True
        for _ in range(QUIET_ROUNDS):
            self.settle()
            self.hello()
            self.heartbeat()
            for job in self.jobs:
                if job.term == NOW_TERM:
                    self.command(job)
            while self.mail:
                self.events.append(self.mail.pop(0))
        self.settle()
        assert all(job.released for job in self.jobs if job.term == NOW_TERM), "a plan is neither done nor undone"
        assert not self.machine.held()
        assert not self.machine.clients()
        assert not self.machine.task_statuses()
        assert (self.world.serving, self.world.files, self.world.programs, self.world.exits) == ({}, set(), set(), {})
        assert not self.world.stuck
        assert not self.disk.ended


Node.TestCase.settings = settings(max_examples=200, stateful_step_count=50)
TestNode = Node.TestCase
