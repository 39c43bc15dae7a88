"""One scheduling round: what is free and who waits in, who goes where and why not out.

:func:`decide` is a pure function of values.  It opens one desk per phase and
lets the phases serve all jobs in turn; a job that a later phase cannot serve
gives back what earlier phases took, and the jobs that are left go through the
phases again for as long as that places any (*refill*).  Jobs are whole: all
tasks of all groups, or none.  Optimality is per solve, and certified.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

from farbus.model.decision import Decision, JobMiss, JobPlacement, PendingJob, RoundReport, Snapshot
from farbus.model.job import DevicePlacement, Miss, TaskPlacement
from farbus.model.quantity import MAX_BYTES, MAX_CPU_MILLI
from farbus.scheduler.costs.policy import Choice, Policy
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.phases.base import Desk, Phase, Source, Work
from farbus.scheduler.phases.cluster import MAX_UNITS, Cluster
from farbus.scheduler.phases.compute import ComputePhase
from farbus.scheduler.phases.gpu import GpuPhase
from farbus.scheduler.phases.greedy import serve_greedily
from farbus.scheduler.phases.market import Tally, give_back, serve

PHASES: tuple[Phase, ...] = (ComputePhase(), GpuPhase())
"""The phases of a round, in order.  The first decides the node."""

MAX_REFILLS = 8
"""Most times that jobs left over go through the phases again in one round."""

MAX_SINGLES = 16
"""Most jobs tried one by one at the end of a round, because each of their parts has room by itself."""

HOLD_ROUNDS = 30
"""A job that fits the idle cluster and waited so many rounds has room kept for it, where lower ranks would take it."""

MAX_HOLDS = 4
"""Most jobs in one round that are tried first, or have room kept for them, because of their wait."""

MAX_EXPLAINED = 256
"""Most different kinds of waiting jobs that are looked at one by one in a round; those of best rank come first."""

ROUND = "round"
"""The phase that misses of the job as a whole are told under."""


def decide(
    snapshot: Snapshot,
    pending: Sequence[PendingJob],
    *,
    policy: Policy,
    phases: Sequence[Phase] = PHASES,
    certify: bool = True,
    clock: Callable[[], float] | None = None,
) -> Decision:
    """Decide what is placed where in this round.

    The order of ``pending`` and of the snapshot has no influence.  A job that
    cannot be read (no tasks, numbers out of range, an id that occurs twice) is
    missed with the reason and stops no other.  ``clock`` gives seconds for
    ``decision_ms`` alone, which is 0 without it.  Raises
    :class:`farbus.errors.InvalidInput` for a snapshot that contradicts itself.
    """
    return decide_on(
        columns.from_snapshot(snapshot), pending, policy=policy, phases=phases, certify=certify, clock=clock
    )


def decide_on(
    cluster: Cluster,
    pending: Sequence[PendingJob],
    *,
    policy: Policy,
    phases: Sequence[Phase] = PHASES,
    certify: bool = True,
    prune: bool = True,
    clock: Callable[[], float] | None = None,
) -> Decision:
    """Decide as :func:`decide` does, on columns that the caller keeps from round to round."""
    started = clock() if clock is not None else 0.0
    readable, malformed = _readable(pending)
    tally = Tally(certify=certify, prune=prune)
    books = _Round(cluster, policy, phases, tally)
    works = [Work(job, rank, tier) for rank, (job, tier) in enumerate(policy.rank(readable))]
    waiting = sorted(books.run(works), key=lambda work: work.rank)
    misses = books.explain(waiting)
    left = set(waiting)
    placements = tuple(books.placement(work) for work in works if work not in left)
    ended = clock() if clock is not None else 0.0
    return Decision(
        placements=placements,
        misses=(*misses, *malformed),
        report=RoundReport(
            pending=len(pending),
            placed=len(placements),
            decision_ms=(ended - started) * 1000,
            solves=tally.solves,
            certified=tally.solves > 0 and tally.certified == tally.solves,
        ),
    )


def _readable(pending: Sequence[PendingJob]) -> tuple[list[PendingJob], list[JobMiss]]:
    """Split off the jobs that can't be scheduled whatever the cluster looks like."""
    seen: set[str] = set()
    readable, malformed = [], []
    for entry in pending:
        fault = "another job of this round has the same id" if entry.job.id in seen else _fault(entry)
        seen.add(entry.job.id)
        if fault:
            miss = Miss(phase=ROUND, resource="job", message=fault, permanent=True)
            malformed.append(JobMiss(job=entry.job.id, misses=(miss,), feasible_alone=False))
        else:
            readable.append(entry)
    return readable, malformed


def _fault(entry: PendingJob) -> str:
    if not entry.job.groups:
        return "the job has no tasks"
    names = [group.name for group in entry.job.groups]
    if len(set(names)) != len(names):
        return "two groups of the job have the same name"
    for group in entry.job.groups:
        wanted = group.requests
        limits = (
            ("count", group.count, 1, MAX_UNITS),
            ("cpu_milli", wanted.cpu_milli, 0, MAX_CPU_MILLI),
            ("memory_bytes", wanted.memory_bytes, 0, MAX_BYTES),
            ("gpus", wanted.gpus, 0, MAX_UNITS),
            ("gpu_memory_bytes", wanted.gpu_memory_bytes, 0, MAX_BYTES),
        )
        for name, value, least, most in limits:
            if not least <= value <= most:
                return f"group {group.name}: {name} is {value}, not between {least} and {most}"
        if group.count * max(wanted.gpus, 1) > MAX_UNITS:
            return f"group {group.name}: {group.count} tasks with {wanted.gpus} GPUs each are more than {MAX_UNITS}"
        if wanted.gpus and not group.routes:
            return f"group {group.name}: wants GPUs but allows no route to them"
    return ""


def _signature(pending: PendingJob, policy: Policy) -> Hashable:
    """Return what decides whether and why a job fits: jobs of one signature share the answer."""
    return tuple(
        (
            group.name,
            group.count,
            group.requests,
            group.node,
            tuple(sorted(group.labels.items())),
            group.routes,
            policy.subject(pending, group),
        )
        for group in pending.job.groups
    )


class _Round:
    """The desks of one round, and the way of jobs through them."""

    def __init__(self, cluster: Cluster, policy: Policy, phases: Sequence[Phase], tally: Tally) -> None:
        self.cluster = cluster
        self.policy = policy
        self.phases = phases
        self.tally = tally
        self.draw = random.Random(policy.seed)  # noqa: S311 - a baseline's dice, no secret
        self.holding: dict[str, str] = {}
        """Nodes on which room is kept, by the id of the job for which it is."""
        self.idle: _Round | None = None
        self.desks: list[Desk] = []
        for phase in reversed(phases):
            self.desks.insert(0, phase.open(cluster, policy, tuple(self.desks)))

    def run(self, works: Sequence[Work]) -> list[Work]:
        """Place what can be placed; return what waits."""
        if self.policy.choice != Choice.FLOW:
            return [work for work in works if not self._pass([work])[0]]
        waiting: list[Work] = []
        rest = list(works)
        for _ in range(MAX_HOLDS):
            long = next((n for n, work in enumerate(rest) if work.pending.rounds_waited >= HOLD_ROUNDS), None)
            if long is None:
                break
            waiting += self._flow(rest[:long])
            work, rest = rest[long], rest[long + 1 :]
            if not self._pass([work])[0] and not self._hold(work):
                waiting.append(work)
        waiting += self._flow(rest)
        for desk in self.desks:
            desk.end_holds(release=True)
        return waiting

    def _flow(self, works: Sequence[Work]) -> list[Work]:
        waiting = list(works)
        for _ in range(1 + MAX_REFILLS):
            if not waiting:
                return []
            served, gave_back = self._pass(waiting)
            waiting = [work for work in waiting if work not in served]
            if not served or not gave_back:
                break
        return self._singles(waiting)

    def _hold(self, work: Work) -> bool:
        """Keep the room free that ``work`` would have on the idle cluster; place it there once all of it is free.

        Where a job would go on the idle cluster does not change from round to
        round.  What runs there ends, nothing of lower rank comes in, and so
        its turn comes: the counter of waiting alone cannot give a large job
        what a stream of small ones always takes first.
        """
        alone = self._alone()
        ghost = Work(work.pending, 0, 0)
        if not alone._pass([ghost])[0]:
            return False
        plan = [(desk, award) for desk in self.desks for award in ghost.awarded(desk.phase)]
        # All of it is held, also after the first that is not complete.
        complete = [desk.hold(award) for desk, award in plan]
        if all(complete) and not self.holding:
            for desk, award in plan:
                desk.end_holds(release=False)
                # The other desk's aggregators mean nothing here.
                source = Source(award.source.shape, award.source.site)
                work.awards.setdefault(desk.phase, []).append(replace(award, source=source))
            return True
        nodes = dict.fromkeys(self.cluster.names[award.place] for _, award in plan)
        self.holding[work.pending.job.id] = ", ".join(nodes)
        return False

    def _pass(self, works: Sequence[Work]) -> tuple[set[Work], bool]:
        """Lead ``works`` through all phases; return those served by all, and whether anything was given back."""
        active = list(works)
        gave_back = False
        for number, desk in enumerate(self.desks):
            for other in self.desks:
                other.clear_pencil()
            served = set(self._serve(desk, active))
            for work in active:
                if work not in served:
                    gave_back |= number > 0
                    for earlier in self.desks[:number]:
                        give_back(earlier, work)
            active = [work for work in active if work in served]
        return set(active), gave_back

    def _alone(self) -> _Round:
        """Return a round on the idle cluster, without what only delays jobs."""
        return _Round(self.cluster.idle(), self.policy.unconditional(), self.phases, Tally(certify=False))

    def _serve(self, desk: Desk, works: Sequence[Work]) -> list[Work]:
        if self.policy.choice == Choice.FLOW:
            return serve(desk, works, self.tally)
        return serve_greedily(desk, works, self.policy.choice, self.draw)

    def _singles(self, waiting: Sequence[Work]) -> list[Work]:
        """Try jobs alone that should fit by what is free, but lost against others in every pass."""
        left: list[Work] = []
        hopeless: set[Hashable] = set()
        tries = 0
        for work in waiting:
            signature = _signature(work.pending, self.policy)
            if tries < MAX_SINGLES and len(hopeless) < MAX_EXPLAINED and signature not in hopeless and self._room(work):
                tries += 1
                served, _ = self._pass([work])
                if served:
                    continue
            # What is free only shrinks from here on.
            hopeless.add(signature)
            left.append(work)
        return left

    def _room(self, work: Work) -> bool:
        return not self._misses(work.pending)

    def _misses(self, pending: PendingJob) -> list[Miss]:
        return [miss for desk in self.desks for miss in desk.misses(pending)]

    def explain(self, waiting: Sequence[Work]) -> list[JobMiss]:
        """Say for each waiting job what it lacks in what is free now."""
        known: dict[Hashable, tuple[tuple[Miss, ...], bool]] = {}
        found = []
        for work in waiting:
            signature = _signature(work.pending, self.policy)
            answer = known.get(signature)
            if answer is None and len(known) < MAX_EXPLAINED:
                answer = known[signature] = self._explain(work.pending)
            elif answer is None:
                message = f"{MAX_EXPLAINED} other kinds of jobs wait ahead; this one was not looked at closely"
                answer = ((Miss(phase=ROUND, resource="queue", message=message),), True)
            nodes = self.holding.get(work.pending.job.id)
            if nodes is not None:
                waited = work.pending.rounds_waited
                message = f"after {waited} rounds of waiting, room on {nodes} is kept for this job"
                answer = ((*answer[0], Miss(phase=ROUND, resource="hold", message=message)), answer[1])
            found.append(JobMiss(job=work.pending.job.id, misses=answer[0], feasible_alone=answer[1]))
        return found

    def _explain(self, pending: PendingJob) -> tuple[tuple[Miss, ...], bool]:
        misses = self._misses(pending)
        if any(miss.permanent for miss in misses):
            return tuple(misses), False
        feasible = self._feasible_alone(pending)
        if not feasible:
            message = "each part of the job fits the cluster by itself, but not all of them together"
            misses.append(Miss(phase=ROUND, resource="job", message=message, permanent=True))
        elif not misses:
            message = "each part of the job has room now, but not where the others have theirs"
            if self.holding:
                message = f"what is free is kept for {', '.join(self.holding)}, which waited longer"
            misses.append(Miss(phase=ROUND, resource="job", message=message))
        return tuple(misses), feasible

    def _feasible_alone(self, pending: PendingJob) -> bool:
        """Say whether the idle cluster could serve the job; its books are kept for the next question."""
        if self.idle is None:
            self.idle = self._alone()
        idle, work = self.idle, Work(pending, 0, 0)
        first = idle.desks[0]
        wants = first.wants(work)
        if len(wants) == 1 and wants[0].count == 1:
            # One task: it fits if and only if there is an arc, and no network is needed to see that.
            source = wants[0].source
            offers = first.offers(source) if source.pool is not None else ()
            return bool(first.arcs(source)) or any(bool(offer.capacity.any()) for offer in offers)
        served, _ = idle._pass([work])
        for desk in idle.desks:
            give_back(desk, work)
        return bool(served)

    def placement(self, work: Work) -> JobPlacement:
        """Say where each task of a placed job goes, with what, and why."""
        first, others = self.desks[0], self.desks[1:]
        awards = work.awarded(first.phase)
        tasks_at: dict[tuple[int, int], int] = {}
        for award in awards:
            key = (award.group, award.place)
            tasks_at[key] = tasks_at.get(key, 0) + award.count
        # What each device phase granted to the tasks of one group on one node, unit by unit.
        granted: list[dict[tuple[int, int], list[_Granted]]] = [{} for _ in others]
        for desk, units in zip(others, granted, strict=True):
            for award in work.awarded(desk.phase):
                why = desk.alternatives(award)
                units.setdefault((award.group, award.source.site), []).extend(
                    _Granted(devices, award.cost, why) for devices in desk.device_placements(award)
                )
        tasks = []
        numbers = [0] * len(work.pending.job.groups)
        for award in awards:
            key = (award.group, award.place)
            why = first.alternatives(award)
            for _ in range(award.count):
                own = [unit for units in granted if key in units for unit in _share(units[key], tasks_at[key])]
                tasks_at[key] -= 1
                tasks.append(
                    TaskPlacement(
                        task=f"{work.pending.job.groups[award.group].name}.{numbers[award.group]}",
                        node=self.cluster.names[award.place],
                        devices=tuple(device for unit in own for device in unit.devices),
                        cost=award.cost + sum(unit.cost for unit in own),
                        why="; ".join(dict.fromkeys((why, *(unit.why for unit in own)))),
                    )
                )
                numbers[award.group] += 1
        return JobPlacement(job=work.pending.job.id, tasks=tuple(tasks))


class _Granted(NamedTuple):
    """One unit of a device phase: a bundle, or one device of a bundle that spans nodes."""

    devices: tuple[DevicePlacement, ...]
    cost: int
    why: str


def _share(units: list[_Granted], tasks: int) -> list[_Granted]:
    """Take the share of one of ``tasks`` equal tasks out of ``units``."""
    share = len(units) // tasks
    taken = units[len(units) - share :]
    del units[len(units) - share :]
    return taken
