"""HIRE's figure 8 in shape: how many jobs are served in the network, as more of them ask for it.

Bloecher et al., Switches for HIRE, ASPLOS 2021, section 6.  The decisions are
the scheduler's own rounds; the paper replays 36 hours of Alibaba's trace on
4,394 servers with 845 switches, which takes weeks.  Taken from there: a fat
tree of ``k`` ports, switches of 48 stages, 22 MB of SRAM and 100 % of
recirculation, the services and demands of table 3, in-network variants for a
part mu of the jobs, for up to a third of their groups, which save up to a
tenth of servers and time, and two kinds of clusters: switches that can run
everything, or two services each.  The paper leaves open, and is assumed here:

* The jobs: :data:`GROUPS` groups of :data:`TASKS` tasks, a Poisson process
  that asks for :data:`LOAD` of the processors, exponential run times.
* Its baselines are other schedulers; here two policies of Farbus stand in, with what the paper's
  are given (section 6.1): no sharing, no topology, two variants of each job.
  ``best-fit`` is like K8++ in concurrent mode: the variant on servers is
  taken as soon as the one in the network has no room.  ``flow`` is like CoCo++ in timeout mode: a
  flow over servers, which turns to servers after a tenth of the job's time.
* ``hire, one decision`` is HIRE with the simplified logic of section 6.3: all of a job in the network or nothing.
"""

from __future__ import annotations

import functools
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from farbus.errors import InvalidInput
from farbus.model.decision import DeviceView, JobPlacement, NodeView, PendingJob, Snapshot
from farbus.model.device import Device, DeviceKind
from farbus.model.job import Composite, Job, Requests, ServiceRequest, TaskGroup
from farbus.model.node import Resources
from farbus.scheduler.costs.baselines import BestFitPolicy
from farbus.scheduler.costs.firmament import FirmamentPolicy
from farbus.scheduler.costs.hire import NETWORK, PLANE, UPPER_S, HirePolicy
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.phases.cluster import Columns
from farbus.scheduler.phases.jobs import Forms
from farbus.scheduler.round import PHASES, decide_on
from farbus.scheduler.situations import FLAVOUR
from farbus.scheduler.templates import MIB, RECIRCULATION, SRAM, STAGES, TABLE_3, TemplateStore
from farbus.sim.engine import Engine

GIB = 2**30
SWITCH = {STAGES: 48, SRAM: 22 * MIB, RECIRCULATION: 100}
CORES, MEMORY = 96, 512 * GIB
"""Of each server."""
GROUPS, TASKS = (1, 9), (1, 12)
"""Groups of a job, and tasks of a group: least and most, all equally likely."""
TASK_CORES, TASK_MEMORY = (1, 3), (1 * GIB, 6 * GIB)
LOAD = 0.9
"""Of the servers' processors, by what is asked for: kappa of the authors' script."""
RUN_S = 300.0
"""Mean time that a job runs."""
ROUND_S = 0.5
"""Least time between two rounds."""
PATIENCE = 0.1
"""Part of its time after which a job of the timeout mode turns to servers (section 6.1)."""
SAVING = 0.1
"""Most that a variant in the network saves of servers and of time (section 6.2)."""
MOST_CONSIDERED = 40
"""Jobs that a round looks at, first come first: the paper has a limit of 800 groups."""
TOP = 3
"""Levels of a fat tree: racks, pods, and all."""
SERVER = {PLANE: "server"}
ENDS, ARRIVES, DECIDES = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Part:
    """A group of a job that could be served in the network: its tasks on servers, or fewer of them and switches."""

    servers: TaskGroup
    fewer: TaskGroup
    instances: tuple[TaskGroup, ...]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job: what it is without and with switches."""

    name: str
    at_s: float
    runs_s: float
    saves: float
    plain: tuple[TaskGroup, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A scheduler of the figure."""

    name: str
    policy: Callable[[], Policy]
    polymorphic: bool = False
    together: bool = False
    """One decision for all parts of a job."""
    patient: bool = False
    """Whether the variant on servers comes only after some time."""


CONTENDERS = (
    Contender(name="hire", policy=HirePolicy, polymorphic=True),
    Contender(name="hire, one decision", policy=HirePolicy, polymorphic=True, together=True),
    Contender(name="best-fit, concurrent", policy=BestFitPolicy),
    Contender(name="flow, timeout", policy=FirmamentPolicy, patient=True),
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One scheduler at one mu, average over the seeds; shares from 0 to 1, times in seconds."""

    switches: str
    mu: float
    policy: str
    satisfied: float
    """Jobs that asked for switches and have some: figures 8a and 8f."""
    parts: float
    """Of the groups of those that asked: figures 8b and 8g."""
    detours: float
    """Levels of the topology more than the job's servers need by themselves: figures 8c and 8h."""
    levels: float
    """Levels that cover the job's servers and switches: 1 for a rack, 3 for all."""
    sram: float
    stages: float
    """Of all switches, on average over time: figures 8d and 8i."""
    wait_p50_s: float
    wait_p99_s: float
    """Figures 8e and 8j."""
    never: float
    decision_cpu_p50_ms: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the experiment found."""

    experiment: str
    servers: int
    switches: int
    jobs: int
    seeds: int
    rows: list[Row]


def fat_tree(ports: int, *, heterogeneous: bool, dice: random.Random) -> tuple[list[NodeView], list[DeviceView]]:
    """Return the servers and switches of a fat tree; a heterogeneous switch runs two services, drawn."""
    half = ports // 2
    nodes, devices = [], []
    services = TemplateStore().services
    server = Resources(cpu_milli=CORES * 1000, memory_bytes=MEMORY)
    control = Resources(cpu_milli=4000, memory_bytes=8 * GIB)

    def switch(name: str, place: str) -> None:
        offers = tuple(sorted(dice.sample(services, 2))) if heterogeneous else ()
        device = Device(id=name, kind=DeviceKind.NETWORK, model="switch", resources=SWITCH, services=offers)
        nodes.append(NodeView(name=name, capacity=control, free=control, labels={PLANE: NETWORK}, rack=place))
        devices.append(DeviceView(device=device, node=name, free=True))

    for pod in range(ports):
        for tor in range(half):
            place = f"pod{pod}/tor{tor}"
            switch(f"tor-{pod}-{tor}", place)
            nodes += [
                NodeView(name=f"s-{pod}-{tor}-{number}", capacity=server, free=server, labels=SERVER, rack=place)
                for number in range(half)
            ]
        for number in range(half):
            switch(f"agg-{pod}-{number}", f"pod{pod}")
    for number in range(half * half):
        switch(f"core-{number}", "")
    return nodes, devices


def draw(count: int, servers: int, *, mu: float, seed: int) -> list[Arrival]:
    """Draw the jobs; those of one seed are the same for all mu, but for who asks for switches."""
    dice, choice = random.Random(seed), random.Random(seed + 1)  # noqa: S311 - an experiment's dice
    store = TemplateStore()
    mean_cores = sum(GROUPS) / 2 * sum(TASKS) / 2 * sum(TASK_CORES) / 2
    rate = LOAD * servers * CORES / (mean_cores * RUN_S)
    arrivals, now = [], 0.0
    for number in range(count):
        now += dice.expovariate(rate)
        groups = [
            TaskGroup(
                name=f"g{each}",
                command=("true",),
                count=dice.randint(*TASKS),
                requests=Requests(cpu_milli=1000 * dice.randint(*TASK_CORES), memory_bytes=dice.randint(*TASK_MEMORY)),
                labels=SERVER,
            )
            for each in range(dice.randint(*GROUPS))
        ]
        runs_s = dice.expovariate(1 / RUN_S)
        asks = choice.random() < mu
        chosen = [_part(group, store, choice) for group in groups[: max(1, len(groups) // 3)]]
        saves = choice.uniform(0, SAVING)
        parts = tuple(chosen) if asks else ()
        arrivals.append(Arrival(f"j{number:05}", now, runs_s, saves, tuple(groups[len(parts) :]), parts))
    return arrivals


def _part(group: TaskGroup, store: TemplateStore, dice: random.Random) -> Part:
    """Return ``group`` with a variant in the network, by any implementation of the store."""
    template = dice.choice(TABLE_3)
    way = dice.choice(template.implementations)
    own = {
        # Table 3: R2P2 takes as many stages as the group has tasks at most.
        name: dice.randint(least, min(most, group.count) if (way.name, name) == ("r2p2", STAGES) else most)
        for name, (least, most) in way.parts[0].own.items()
    }
    composite = Composite(
        name=f"{group.name}n", template=template.name, size=group.count, implementations=(way.name,), own=own
    )
    job = store.expand(Job(id="", name="", user="", groups=(group,), composites=(composite,)))
    instances = tuple(replace(each, flavour="") for each in job.groups[1:])
    fewer = max(1, round(group.count * (1 - dice.uniform(0, SAVING))))
    return Part(group, replace(group, name=f"{group.name}f", count=fewer), instances)


def polymorphic(arrival: Arrival, *, together: bool) -> Job:
    """Return the job with flavour vectors: one decision between servers and network for each part, or for all."""
    groups = list(arrival.plain)
    for number, part in enumerate(arrival.parts):
        first = "" if together else "xx" * number
        groups.append(replace(part.servers, flavour=f"{first}10"))
        groups += [replace(group, flavour=f"{first}01") for group in (part.fewer, *part.instances)]
    return _job(arrival, groups)


def variant(arrival: Arrival, *, in_network: bool) -> Job:
    """Return the job as schedulers without flavours see it: every part on servers, or every part in the network.

    They know nothing of sharing: what instances share each has for itself.
    """
    groups = list(arrival.plain)
    for part in arrival.parts:
        if in_network:
            groups += [part.fewer, *(replace(group, service=_unshared(group.service)) for group in part.instances)]
        else:
            groups.append(part.servers)
    return _job(arrival, groups)


def _unshared(request: ServiceRequest | None) -> ServiceRequest | None:
    if request is None:
        return None
    own = Counter(request.own) + Counter(request.shared)
    return ServiceRequest(name=request.name, own=dict(own))


def _job(arrival: Arrival, groups: list[TaskGroup]) -> Job:
    return Job(id=arrival.name, name=arrival.name, user="u", groups=tuple(groups), submitted_at=arrival.at_s)


@dataclass(slots=True)
class _Waiting:
    arrival: Arrival
    jobs: tuple[Job, ...]
    """What is tried in one round, the first that finds room being taken."""
    misses: int = 0
    since: float = -1.0
    """When the choice of its flavour was first put off."""
    later: Job | None = None
    """What the job turns to at ``turns_at_s``."""
    turns_at_s: float = 0.0


class Simulation:
    """One scheduler, one draw."""

    def __init__(
        self, contender: Contender, arrivals: list[Arrival], nodes: list[NodeView], devices: list[DeviceView]
    ) -> None:
        self.engine = Engine()
        self.contender = contender
        self.policy = contender.policy()
        self.waits: list[float] = []
        self.detours: list[int] = []
        self.levels: list[int] = []
        self.asked = self.satisfied = self.parts = self.served_parts = 0
        self.cpu_ms: list[float] = []
        self.used = dict.fromkeys(SWITCH, 0.0)
        self.waiting: dict[str, _Waiting] = {}
        self._nodes = {view.name: view for view in nodes}
        self._devices = {view.device.id: view for view in devices}
        self._columns, self._forms = Columns(), Forms(PHASES)
        self._decides_at = -1.0
        self._until = 0.0
        self._last_s = arrivals[-1].at_s
        for arrival in arrivals:
            self.engine.at(arrival.at_s, functools.partial(self._arrive, arrival), phase=ARRIVES)

    def run(self) -> Simulation:
        """Run until all jobs have ended, or wait for what never comes."""
        self.engine.run(lambda: None)
        return self

    def _arrive(self, arrival: Arrival) -> None:
        contender = self.contender
        self.asked += bool(arrival.parts)
        self.parts += len(arrival.parts)
        servers = variant(arrival, in_network=False)
        if not arrival.parts:
            entry = _Waiting(arrival, (servers,))
        elif contender.polymorphic:
            entry = _Waiting(arrival, (polymorphic(arrival, together=contender.together),))
        elif contender.patient:
            turns_at_s = self.engine.now + PATIENCE * arrival.runs_s
            entry = _Waiting(arrival, (variant(arrival, in_network=True),), later=servers, turns_at_s=turns_at_s)
            self.engine.at(turns_at_s, self._ask, phase=ARRIVES)
        else:
            entry = _Waiting(arrival, (variant(arrival, in_network=True), servers))
        self.waiting[arrival.name] = entry
        self._ask()

    def _ask(self) -> None:
        """See to it that there is a round, a second after the last at the earliest."""
        at = max(self.engine.now, self._decides_at + ROUND_S if self._decides_at >= 0 else 0.0)
        if self._decides_at < self.engine.now:
            self._decides_at = at
            self.engine.at(at, self._decide, phase=DECIDES)

    def _decide(self) -> None:
        for entry in self.waiting.values():
            if entry.later is not None and self.engine.now >= entry.turns_at_s:
                entry.jobs, entry.later = (entry.later,), None
        left = list(self.waiting.values())[:MOST_CONSIDERED]
        turn = 0
        while left:
            placed = self._round([(entry, entry.jobs[turn]) for entry in left if turn < len(entry.jobs)])
            left = [entry for entry in left if entry.arrival.name not in placed and turn + 1 < len(entry.jobs)]
            turn += 1
        if any(entry.since >= self.engine.now - UPPER_S for entry in self.waiting.values() if entry.since >= 0):
            # Who would rather wait for switches changes its mind with time alone.
            self.engine.at(self.engine.now + ROUND_S, self._ask, phase=ARRIVES)

    def _round(self, offered: list[tuple[_Waiting, Job]]) -> set[str]:
        pending = [
            PendingJob(
                job=job,
                rounds_waited=entry.misses,
                waited_s=self.engine.now - entry.since if entry.since >= 0 else 0.0,
            )
            for entry, job in offered
        ]
        snapshot = Snapshot(nodes=tuple(self._nodes.values()), devices=tuple(self._devices.values()))
        began = time.process_time()
        decision = decide_on(self._columns.of(snapshot), pending, policy=self.policy, certify=False, forms=self._forms)
        self.cpu_ms.append((time.process_time() - began) * 1000)
        jobs = {job.id: job for _, job in offered}
        for placement in decision.placements:
            self._start(self.waiting.pop(placement.job).arrival, jobs[placement.job], placement)
        for miss in decision.misses:
            entry = self.waiting[miss.job]
            entry.misses += miss.feasible_alone
            if entry.since < 0 and any(each.resource == FLAVOUR for each in miss.misses):
                entry.since = self.engine.now
        return {placement.job for placement in decision.placements}

    def _start(self, arrival: Arrival, job: Job, placement: JobPlacement) -> None:
        now = self.engine.now
        chosen = job.in_flavour(placement.alternative)
        groups = {group.name: group for group in chosen.groups}
        served = sum(part.fewer.name in groups for part in arrival.parts)
        self.served_parts += served
        self.satisfied += served > 0
        self.waits.append(now - arrival.at_s)
        self._apply(groups, placement, 1)
        if served:
            self._cover(groups, placement)
        runs_s = arrival.runs_s * (1 - arrival.saves * served / max(len(arrival.parts), 1))
        self.engine.at(now + runs_s, functools.partial(self._end, groups, placement), phase=ENDS)

    def _end(self, groups: dict[str, TaskGroup], placement: JobPlacement) -> None:
        self._apply(groups, placement, -1)
        self._ask()

    def _apply(self, groups: dict[str, TaskGroup], placement: JobPlacement, sign: int) -> None:
        self._account()
        for task in placement.tasks:
            group = groups[task.task.rpartition(".")[0]]
            view = self._nodes[task.node]
            free = view.free - group.requests.resources * sign
            assert not free.lacks(Resources(), view.capacity), "a node is overcommitted"
            self._nodes[task.node] = replace(view, free=free)
            for given in task.devices:
                assert group.service is not None
                device = self._devices[given.device]
                instances = list(device.instances)
                if sign > 0:
                    instances.append(group.service)
                else:
                    instances.remove(group.service)
                self._devices[given.device] = replace(device, instances=tuple(instances))

    def _account(self) -> None:
        """Add up what was in use since the last change, for as long as jobs arrive."""
        now = min(self.engine.now, self._last_s)
        for view in self._devices.values() if now > self._until else ():
            for name, amount in in_use(view.instances).items():
                self.used[name] += amount * (now - self._until)
        self._until = max(self._until, now)

    def shares(self) -> dict[str, float]:
        """Return which part of each resource of all switches was in use on average."""
        whole = max(self._last_s, 1e-9) * len(self._devices)
        return {name: used / (whole * SWITCH[name]) for name, used in self.used.items()}

    def _cover(self, groups: dict[str, TaskGroup], placement: JobPlacement) -> None:
        """Note how high the topology must be gone up to cover a job, and how much less its servers alone would need."""
        servers: set[str] = set()
        switches: set[str] = set()
        for task in placement.tasks:
            rack = self._nodes[task.node].rack
            (switches if groups[task.task.rpartition(".")[0]].service else servers).add(rack)
        covered = len(common(servers | switches))
        self.levels.append(TOP - covered)
        self.detours.append(len(common(servers)) - covered)


def in_use(instances: tuple[ServiceRequest, ...]) -> Counter[str]:
    """Return what instances on one switch have together: shared parts once for each service."""
    total: Counter[str] = Counter()
    shared: dict[str, Counter[str]] = {}
    for request in instances:
        total.update(request.own)
        shared[request.name] = shared.get(request.name, Counter()) | Counter(request.shared)
    for part in shared.values():
        total.update(part)
    return total


def common(racks: set[str]) -> list[str]:
    """Return the path of the lowest place that covers all ``racks``."""
    paths = [rack.split("/") if rack else [] for rack in racks]
    found = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        found.append(parts[0])
    return found


Tell = Callable[[int, int], None]

PORTS, JOBS = 6, 200
"""54 servers with 45 switches."""

MUS = (0.05, 0.25, 0.5, 1.0)


def run(
    *,
    ports: int = PORTS,
    jobs: int = JOBS,
    mus: tuple[float, ...] = MUS,
    seeds: int = 1,
    seed: int = 0,
    tell: Tell | None = None,
) -> Report:
    """Run all schedulers at each of ``mus``, on both kinds of switches."""
    if ports % 2:
        raise InvalidInput(f"--ports: {ports} is odd; a fat tree's switches have half of their ports on each side")
    settings = [
        (heterogeneous, mu, contender) for heterogeneous in (False, True) for mu in mus for contender in CONTENDERS
    ]
    rows = []
    for number, (heterogeneous, mu, contender) in enumerate(settings):
        if tell is not None:
            tell(number, len(settings))
        done = [simulate(contender, ports, jobs, mu, heterogeneous=heterogeneous, seed=seed + n) for n in range(seeds)]
        rows.append(_row(done, "two services" if heterogeneous else "all services", mu, contender.name))
    servers, switches = ports**3 // 4, 5 * ports**2 // 4
    return Report(experiment="hire", servers=servers, switches=switches, jobs=jobs, seeds=seeds, rows=rows)


def simulate(contender: Contender, ports: int, jobs: int, mu: float, *, heterogeneous: bool, seed: int) -> Simulation:
    """Run one scheduler on one draw."""
    dice = random.Random(seed + 2)  # noqa: S311 - an experiment's dice
    nodes, devices = fat_tree(ports, heterogeneous=heterogeneous, dice=dice)
    return Simulation(contender, draw(jobs, ports**3 // 4, mu=mu, seed=seed), nodes, devices).run()


def _row(done: list[Simulation], switches: str, mu: float, name: str) -> Row:
    asked, parts = sum(each.asked for each in done), sum(each.parts for each in done)
    waits = sorted(wait for each in done for wait in each.waits)
    detours = [levels for each in done for levels in each.detours]
    cpu_ms = sorted(ms for each in done for ms in each.cpu_ms)
    shares = [each.shares() for each in done]
    return Row(
        switches=switches,
        mu=mu,
        policy=name,
        satisfied=sum(each.satisfied for each in done) / max(asked, 1),
        parts=sum(each.served_parts for each in done) / max(parts, 1),
        detours=sum(detours) / max(len(detours), 1),
        levels=sum(level for each in done for level in each.levels) / max(len(detours), 1),
        sram=sum(share[SRAM] for share in shares) / len(done),
        stages=sum(share[STAGES] for share in shares) / len(done),
        wait_p50_s=_at(waits, 0.5),
        wait_p99_s=_at(waits, 0.99),
        never=sum(len(each.waiting) for each in done) / len(done),
        decision_cpu_p50_ms=_at(cpu_ms, 0.5),
    )


def _at(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0.0
