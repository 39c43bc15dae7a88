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
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from farbus.model.decision import Decision, JobMiss, PendingJob, RoundGap, RoundReport, Snapshot
from farbus.model.flavour import MAX_FLAVOURS
from farbus.model.job import GroupVariant, Miss, TaskGroup
from farbus.scheduler.costs.policy import Choice, Policy
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.phases.base import Desk, Later, Phase
from farbus.scheduler.phases.bound import Opening, Prices
from farbus.scheduler.phases.budget import Budget
from farbus.scheduler.phases.cluster import Cluster
from farbus.scheduler.phases.compute import ComputePhase
from farbus.scheduler.phases.exact import Search, Verdict
from farbus.scheduler.phases.flavours import Flavour, Flavours
from farbus.scheduler.phases.gpu import GpuPhase
from farbus.scheduler.phases.greedy import serve_greedily
from farbus.scheduler.phases.in_network import InNetworkPhase
from farbus.scheduler.phases.jobs import Forms, Jobs, both, without
from farbus.scheduler.phases.market import Plan, Tally, give_back, serve
from farbus.scheduler.phases.sizes import Sizes
from farbus.scheduler.phases.storage import StoragePhase
from farbus.scheduler.phases.tables import Integers
from farbus.scheduler.phases.volume import VolumePhase
from farbus.scheduler.placed import Placed, lay_out

PHASES: tuple[Phase, ...] = (ComputePhase(), GpuPhase(), StoragePhase(), VolumePhase(), InNetworkPhase())
"""The phases of a round, in order.  The first decides the node."""

MAX_REFILLS = 8
"""Most times that jobs left over go through the phases again in one round."""

MAX_SINGLES = 16
"""Most jobs tried one by one at the end of a round, because each of their parts has room by itself."""

HOLD_ROUNDS = 30
"""A job that fits the idle cluster and waited so many rounds has room kept for it, where lower ranks would take it."""

MAX_HOLDS = 4
"""Most jobs in one round that are tried first, or have room kept for them, because of their wait."""

MAX_VERDICTS = 1_024
"""Kinds of jobs of which is kept what was found of them on the idle cluster."""

MAX_EXPLAINED = 256
"""Most different kinds of waiting jobs that are looked at one by one in a round; those of best rank come first."""

BOUND_STEPS = 6
"""Most steps towards a better bound in a round that has room for all."""

BOUND_WORK = 20_000
"""Steps times arcs of the same: some milliseconds; counted, not timed, so that the same input gives the same answer."""

PRICE_STEPS = 150
"""Most steps for prices, in a round that leaves jobs over."""

PRICE_WORK = 300_000
"""Steps times arcs of the same: some tens of milliseconds."""

PRICED_TASKS, PRICED_ARCS = 2_000, 20_000
"""Most tasks, and shapes times nodes, of a round that is decided with prices too."""

ORDERED_ARCS = 2_000_000
"""Most shapes times nodes of a round that is decided with small jobs first, too."""

MAX_WAYS = 2_000
"""Most flavours of all kinds of jobs together in a round that has a bound: each is looked up before the round."""

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
    forms: Forms | None = None,
) -> Decision:
    """Decide as :func:`decide` does, on columns and forms (of the same phases) that the caller keeps."""
    return plan_on(
        cluster, pending, policy=policy, phases=phases, certify=certify, prune=prune, clock=clock, forms=forms
    ).decision()


def plan_on(
    cluster: Cluster,
    pending: Sequence[PendingJob],
    *,
    policy: Policy,
    phases: Sequence[Phase] = PHASES,
    certify: bool = True,
    prune: bool = True,
    clock: Callable[[], float] | None = None,
    forms: Forms | None = None,
) -> Outcome:
    """Decide as :func:`decide_on` does; what is not needed to carry the plan out is left to be asked for."""
    started = clock() if clock is not None else 0.0
    forms = forms or Forms(phases)
    queue, faults = forms.queue(pending)
    malformed = [
        JobMiss(
            job=name,
            misses=(Miss(phase=ROUND, resource="job", message=fault, permanent=True),),
            feasible_alone=False,
        )
        for name, fault in faults
    ]
    tally = Tally(certify=certify, prune=prune, clock=clock)
    queue.entries = policy.prepare(cluster, queue.entries)
    policy = policy.seeing(queue.entries)
    jobs = forms.in_order(queue, policy)
    phases = _concerned(phases, jobs)

    def books() -> _Round:
        return _Round(cluster, policy, phases, tally, jobs.afresh(), forms)

    try:
        answer = _best(books)
    except BaseException:
        cluster.kept.forget()
        raise
    ended = clock() if clock is not None else 0.0
    report = RoundReport(
        pending=len(pending),
        placed=len(answer.placed),
        decision_ms=(ended - started) * 1000,
        solves=tally.solves,
        certified=tally.solves > 0 and tally.certified == tally.solves,
        certified_solves=tally.certified,
        certify_ms=tally.certify_s * 1000,
        exact=bool(tally.exact),
    )
    return Outcome(answer.placed, (*answer.misses, *malformed), report, answer.gap)


def _concerned(phases: Sequence[Phase], jobs: Jobs) -> tuple[Phase, ...]:
    """Leave out the phases that have nothing to do with any job."""
    groups: list[TaskGroup | GroupVariant] = [group for form in jobs.forms for group in form.groups]
    groups += [group for form in jobs.forms for each in form.example.job.alternatives for group in each.groups]
    return tuple(
        phase
        for phase in phases
        if type(phase).concerns is Phase.concerns or any(phase.concerns(group) for group in groups)
    )


@dataclass(slots=True)
class Outcome:
    """What a round decided: where each task goes, and why the others wait.

    ``report`` is complete but for the gap: to find the bound of a round takes
    a part of the time that the round took, and nobody has to wait for it.
    """

    placed: Placed
    misses: tuple[JobMiss, ...]
    report: RoundReport
    _find_gap: Callable[[], RoundGap | None]

    def full_report(self) -> RoundReport:
        """Return the report with the gap, which is found now; it may be asked for after further rounds."""
        return replace(self.report, gap=self._find_gap())

    def decision(self) -> Decision:
        """Return all of it, in objects and words."""
        return Decision(placements=tuple(self.placed.placements()), misses=self.misses, report=self.full_report())


@dataclass(frozen=True, slots=True)
class _Answer:
    placed: Placed
    misses: list[JobMiss]
    gap: Callable[[], RoundGap | None]


def _no_gap() -> None:
    return None


def _best(books: Callable[[], _Round]) -> _Answer:
    """Decide with plain costs and, where jobs are left over and it is affordable, in other ways; return the best.

    A flow takes many small tasks and many large ones for equally dear: under
    overload it does not know which of them to leave.  Prices of what is scarce
    tell it (:mod:`farbus.scheduler.phases.bound`), and make it worse where nothing is.
    To take small ones first (:mod:`farbus.scheduler.phases.sizes`) is blind to
    prices, and cheap: the larger the round, the better it is of the three.
    """
    plain = books()
    jobs = plain.jobs
    if not len(jobs.pending):
        return plain.answer(np.zeros(0, np.int64), _no_gap)
    if plain.flavours.ways > MAX_WAYS:
        return plain.answer(np.sort(plain.run()), _no_gap)
    opening = plain.open(prune=plain.tally.prune)
    waiting = np.sort(plain.run())
    desks = plain.desks

    def gap() -> RoundGap:
        score = opening.score(jobs, desks)
        # Where jobs can leave parts of themselves out, no other way is tried that would look for prices.
        steps = plain.affordable(opening) if plain.flavours.any_vectors and len(waiting) else 0
        return RoundGap(score=score, bound=_bound(opening, score, steps))

    best = plain.answer(waiting, gap)
    if not len(waiting) or plain.policy.choice != Choice.FLOW or plain.flavours.any_vectors:
        return best
    sizes = Sizes(jobs, desks[0], np.concatenate((plain.cluster.free.sum(axis=0), opening.common)))
    ways = plain.others(opening, sizes, waiting)
    if not ways or not opening.wanted(waiting):
        return best
    first_score = score = opening.score(jobs, desks)
    full: Opening | None = None
    tighter, priced = 0, False
    for steps in ways:
        other = books()
        if other.desks[0] is not desks[0]:
            break
        if full is None:
            # What was pruned from one plan's arcs another one may use: all of them count from here on.
            full = other.open(prune=False)
            least, score = full.waiting_by_tier(jobs, desks[0]), full.score(jobs, desks)
        if steps:
            more, other.prices = full.bound(score, steps)
            tighter = max(tighter, more)
        waiting = np.sort(other.run(None if steps else sizes))
        cost, left = full.score(other.jobs, other.desks), full.waiting_by_tier(other.jobs, desks[0])
        # No saving puts a job of lower tier into the place of one of higher tier.
        if cost < score and left <= least:
            score, least, priced = cost, left, bool(steps)
            best = other.answer(waiting, gap)
    if full is None:
        return best

    def gap_of_the_best() -> RoundGap:
        return RoundGap(score=score, bound=max(_bound(opening, first_score), tighter), priced=priced)

    return _Answer(best.placed, best.misses, gap_of_the_best)


def _bound(opening: Opening, score: int, steps: int = 0) -> int:
    return opening.bound(score, max(steps, min(BOUND_STEPS, BOUND_WORK // max(opening.size, 1))))[0]


class _Round:
    """The desks of one round, and the way of jobs through them."""

    def __init__(
        self, cluster: Cluster, policy: Policy, phases: Sequence[Phase], tally: Tally, jobs: Jobs, forms: Forms
    ) -> None:
        self.cluster = cluster
        self.policy = policy
        self.phases = phases
        self.tally = tally
        self.jobs = jobs
        self.forms = forms
        self.draw = random.Random(policy.seed)  # noqa: S311 - a baseline's dice, no secret
        self.prices: Prices | None = None
        self._first: Plan | None = None
        self.holding: dict[int, str] = {}
        """Nodes on which room is kept, by the job for which it is."""
        self.more = np.zeros(0, np.int64)
        """Rows of tasks that were placed beyond what their jobs need."""
        self.idle: _Round | None = None
        self._verdicts: dict[Hashable, Verdict | None] = {}
        self.desks: list[Desk] = []
        for phase in reversed(phases):
            self.desks.insert(0, phase.open(cluster, policy, tuple(self.desks)))
        self.flavours = Flavours(jobs, policy)
        self.flavours.choose(self.desks[0], np.arange(len(jobs.pending)), tally)

    def run(self, sizes: Sizes | None = None) -> Integers:
        """Place what can be placed, all at once or by ``sizes`` the small first; return what waits."""
        rest = np.arange(self.jobs.count)
        waiting = [np.zeros(0, np.int64)]
        for long in self._waited_long() if self.policy.choice == Choice.FLOW else ():
            waiting.append(self._flow(rest[rest < long]))
            rest = rest[rest > long]
            job = np.array([long])
            if not len(self._pass(job)[0]) and not self._hold(job):
                waiting.append(job)
        batches = [rest] if sizes is None else sizes.batches(rest)
        waiting += [self._flow(batch) for batch in batches]
        left = np.concatenate(waiting)
        more = self._more(left)
        self.more = without(more, self._flow(more))
        for desk in self.desks:
            desk.end_holds(release=True)
        return left

    def _one_by_one(self, rows: Integers) -> Integers:
        """Place one job after the other; return what waits."""
        return np.array([row for row in rows.tolist() if not self._placed(row)], np.int64)

    def _more(self, waiting: Integers) -> Integers:
        """Return the tasks that placed jobs would have beyond what they need; they come after all jobs."""
        if not self.jobs.parents:
            return np.zeros(0, np.int64)
        parent = np.array(self.jobs.parents, np.int64)[:, 0]
        rows = self.jobs.count + np.flatnonzero(~np.isin(parent, waiting))
        if self.flavours.any:
            for row in rows.tolist():
                self.flavours.follow(row, int(parent[row - self.jobs.count]))
        return rows

    def open(self, *, prune: bool) -> Opening:
        """Note what there is before anything is taken."""
        desk, jobs, kind = self.desks[0], self.jobs, None
        if self.flavours.any:
            jobs, kind = self.flavours.laid_out()
        plan = Plan(desk, jobs, desk.wants(jobs, np.arange(len(jobs.pending))), prune=prune)
        self._first = plan if prune == self.tally.prune and kind is None else None
        return Opening(plan, kind, len(self.jobs.pending))

    def others(self, opening: Opening, sizes: Sizes, waiting: Integers) -> list[int]:
        """Return the other ways to decide that are affordable: by how many steps to prices, 0 for small jobs first."""
        steps = self.affordable(opening)
        ways = [steps] if steps else []
        many = self.cluster.size * opening.sources
        if many <= ORDERED_ARCS and sizes.may_gain(waiting):
            ways.append(0)
        return ways

    def affordable(self, opening: Opening) -> int:
        """Return how many steps may be spent on prices: none where the round is too large for that."""
        arcs = self.cluster.size * opening.sources
        if opening.tasks > PRICED_TASKS or arcs > PRICED_ARCS:
            return 0
        return min(PRICE_STEPS, PRICE_WORK // max(arcs, 1))

    def answer(self, waiting: Integers, gap: Callable[[], RoundGap | None]) -> _Answer:
        """Return what was placed, and why the rest was not."""
        misses = self.explain(waiting)
        placed = without(np.arange(self.jobs.count), waiting)
        return _Answer(lay_out(self.cluster, self.desks, self.jobs, self.flavours, placed, self.more), misses, gap)

    def _waited_long(self) -> list[int]:
        """Return the jobs of best rank that waited so long that their turn comes now."""
        open_still = self.flavours.without
        long = np.flatnonzero(self.jobs.rounds_waited >= HOLD_ROUNDS).tolist()
        return [row for row in long if row not in open_still][:MAX_HOLDS]

    def _flow(self, rows: Integers) -> Integers:
        """Place what can be placed, each job in one of its flavours; return what waits."""
        if not len(rows):
            return rows
        open_still = np.array(sorted(self.flavours.without), np.int64)
        place = self._refill if self.policy.choice == Choice.FLOW else self._one_by_one
        waiting = both(place(without(rows, open_still)), without(rows, without(rows, open_still)))
        for _ in range(MAX_FLAVOURS):
            for desk in self.desks:
                desk.clear_pencil()
            turned = self.flavours.retry(self.desks[0], waiting)
            if not len(turned):
                break
            waiting = without(waiting, without(turned, place(turned)))
        return waiting

    def _refill(self, rows: Integers) -> Integers:
        """Lead jobs through the phases, as many at a time as there are devices for, while that may place any."""
        waiting, tried, left = rows, rows[:0], rows[:0]
        for turn in range(1 + MAX_REFILLS):
            if not len(waiting):
                break
            budget = Budget(self.jobs, waiting, self.desks[1:])
            # With prices the flow itself leaves those who are not worth it; the last pass is open to all.
            admitted = budget.admitted(waiting if self.prices is not None or turn == MAX_REFILLS else tried)
            if not len(admitted):
                break
            served, gave_back = self._pass(admitted)
            lost, waiting = without(admitted, served), without(waiting, served)
            if not gave_back:
                # What is free only shrinks from here on: nobody who is like them will find room.
                like = np.isin(self.jobs.form[waiting], self.jobs.form[lost])
                left, waiting = both(left, waiting[like]), waiting[~like]
            elif not len(served) and len(admitted) == len(budget.possible):
                break
            else:
                tried = both(tried, lost)
        return self._singles(both(left, waiting))

    def _hold(self, job: Integers) -> bool:
        """Keep the room free that a job would have on the idle cluster; place it there once all of it is free.

        Where a job would go on the idle cluster does not change from round to
        round.  What runs there ends, nothing of lower rank comes in, and so
        its turn comes: the counter of waiting alone cannot give a large job
        what a stream of small ones always takes first.
        """
        pending = self.jobs.pending[int(job[0])]
        alone = self._alone(pending)
        # Its desks are those of the idle cluster that questions are asked of, and keep what it takes.
        self.idle = None
        if not alone._placed(0):
            return False
        plan = []
        for desk, other in zip(self.desks, alone.desks, strict=True):
            for award in alone.jobs.awards(desk.phase).table:
                devices = alone.jobs.awards(desk.phase).devices_of(award.reshape(1))
                plan.append((desk, other.shapes[int(other.split(award["source"])[0])], award, devices))
        # All of it is held, also after the first that is not complete.
        complete = [desk.hold(shape, award, devices) for desk, shape, award, devices in plan]
        if all(complete) and not self.holding:
            for desk, shape, award, devices in plan:
                desk.end_holds(release=False)
                kept = award.reshape(1).copy()
                kept["job"], kept["first"] = job, 0
                # The other desk's numbers mean nothing here.
                kept["pool"] = -1
                site = int(desk.split(award["source"])[1])
                kept["source"] = desk.source(desk.number(shape), site)
                self.jobs.awards(desk.phase).add(kept, devices)
            return True
        nodes = dict.fromkeys(self.cluster.names[int(award["place"])] for _, _, award, _ in plan)
        self.holding[int(job[0])] = ", ".join(nodes)
        return False

    def _pass(self, rows: Integers) -> tuple[Integers, bool]:
        """Lead jobs through all phases; return those served by all, and whether anything was given back."""
        active = rows
        gave_back = False
        for number, desk in enumerate(self.desks):
            for other in self.desks:
                other.clear_pencil()
            served = self._serve(desk, active)
            lost = without(active, served)
            if number and len(lost):
                gave_back = True
                for earlier in self.desks[:number]:
                    give_back(earlier, self.jobs, lost)
            active = served
        return active, gave_back

    def _alone(self, pending: PendingJob) -> _Round:
        """Return a round with one job on the idle cluster, without what only delays jobs."""
        policy = self.policy.unconditional()
        jobs = self.forms.jobs([(pending, 0)], policy)
        return _Round(self.cluster.idle(), policy, self.phases, Tally(certify=False), jobs, self.forms)

    def _serve(self, desk: Desk, rows: Integers) -> Integers:
        if self.policy.choice == Choice.FLOW:
            first = desk is self.desks[0]
            prices, self.prices = (self.prices, None) if first else (None, self.prices)
            plan, self._first = (self._first, None) if first else (None, self._first)
            if plan is not None and (prices is not None or not plan.serves_only(rows)):
                plan = None
            return serve(desk, self.jobs, rows, self.tally, prices=prices, plan=plan)
        return serve_greedily(desk, self.jobs, rows, self.policy.choice, self.draw)

    def _singles(self, waiting: Integers) -> Integers:
        """Try jobs alone that should fit by what is free, but lost against others in every pass."""
        left: list[int] = []
        hopeless: set[int] = set()
        tries = 0
        form = self.jobs.form.tolist()
        for row in waiting.tolist():
            if tries < MAX_SINGLES and len(hopeless) < MAX_EXPLAINED and form[row] not in hopeless and self._room(row):
                tries += 1
                if self._placed(row):
                    continue
            # What is free only shrinks from here on.
            hopeless.add(form[row])
            left.append(row)
        return np.array(left, np.int64)

    def _placed(self, row: int) -> bool:
        """Place a job alone: by the phases or, where these could not on the idle cluster either, as a whole."""
        if len(self._pass(np.array([row]))[0]):
            return True
        if self._room(row) and self._verdict(self.jobs.pending[row]) is Verdict.FOUND:
            return Search(self.desks, self.jobs, row).verdict() is Verdict.FOUND
        return False

    def _room(self, row: int) -> bool:
        return not self._misses(self.jobs.pending[row])

    def _misses(self, pending: PendingJob) -> list[Miss]:
        return [miss for desk in self.desks for miss in desk.misses(pending)]

    def explain(self, waiting: Integers) -> list[JobMiss]:
        """Say for each waiting job what it lacks in what is free now."""
        known: dict[int, tuple[tuple[Miss, ...], bool]] = {}
        found = []
        form = self.jobs.form.tolist()
        settled: dict[int, int] = {}
        for row in waiting.tolist():
            flavours = self.flavours.of(row) if self.flavours.any else ()
            if flavours and len(settled) < MAX_EXPLAINED:
                first = flavours[0].form
                if first not in settled:
                    settled[first] = self._best_to_wait_for(flavours)
                self.flavours.settle(row, settled[first])
                form[row] = int(self.jobs.form[row])
            entry = self.jobs.pending[row]
            answer = known.get(form[row])
            if answer is not None and not self.holding:
                found.append(JobMiss(job=entry.job.id, misses=answer[0], feasible_alone=answer[1]))
                continue
            if answer is None and len(known) < MAX_EXPLAINED:
                answer = known[form[row]] = self._explain(entry)
            elif answer is None:
                message = f"{MAX_EXPLAINED} other kinds of jobs wait ahead; this one was not looked at closely"
                answer = ((Miss(phase=ROUND, resource="queue", message=message),), True)
            if row in self.flavours.postponed:
                message = "how it is to run is not decided yet: all that there is room for is dear"
                answer = ((*answer[0], Miss(phase=ROUND, resource="flavour", message=message)), answer[1])
            nodes = self.holding.get(row)
            if nodes is not None:
                message = f"after {entry.rounds_waited} rounds of waiting, room on {nodes} is kept for this job"
                answer = ((*answer[0], Miss(phase=ROUND, resource="hold", message=message)), answer[1])
            found.append(JobMiss(job=entry.job.id, misses=answer[0], feasible_alone=answer[1]))
        return found

    def _best_to_wait_for(self, flavours: Sequence[Flavour]) -> int:
        """Return the first flavour that the idle cluster could serve; else the job as it stands."""
        answers = [self._explain(flavour.example) for flavour in flavours]
        for number, (_, feasible) in enumerate(answers):
            if feasible:
                return number
        # Of one about which nobody knows, what is said is less than never.
        return next((number for number, (misses, _) in enumerate(answers) if not _never(misses)), 0)

    def _explain(self, pending: PendingJob) -> tuple[tuple[Miss, ...], bool]:
        misses = self._misses(pending)
        if _never(misses):
            return tuple(misses), False
        verdict = self._verdict(pending)
        feasible = verdict in (None, Verdict.FOUND)
        if verdict is Verdict.NONE:
            message = "each part of the job fits the cluster by itself, but not all of them together"
            # What a policy never does, such as lending devices, no state of the cluster brings.
            message += f" under policy {self.policy.name}{self._apart(pending)}"
            misses.append(Miss(phase=ROUND, resource="job", message=message, permanent=True))
        elif verdict is Verdict.UNKNOWN:
            message = "each part of the job fits the cluster by itself; no place was found for all of them together, "
            message += "and it is not known whether there is one"
            misses.append(Miss(phase=ROUND, resource="job", message=message))
        elif not misses:
            message = "each part of the job has room now, but not where the others have theirs"
            if self.holding:
                names = ", ".join(self.jobs.pending[row].job.id for row in self.holding)
                message = f"what is free is kept for {names}, which waited longer"
            else:
                message += self._apart(pending)
            misses.append(Miss(phase=ROUND, resource="job", message=message))
        return tuple(misses), feasible

    def _apart(self, pending: PendingJob) -> str:
        """Say what keeps nodes apart, for the end of a message."""
        return "".join(f"; {apart}" for desk in self.desks if (apart := desk.apart(pending)))

    def _verdict(self, pending: PendingJob) -> Verdict | None:
        """Return None where the phases find a place on the idle cluster, else what is found by looking at all at once.

        The books of the idle cluster are kept for the next question.
        """
        subjects = [self.policy.subject(pending, group) for group in pending.job.groups]
        question = (self.policy.name, self.forms.asked(pending), *subjects)
        if question not in self._verdicts:
            self._verdicts[question] = self._judged(pending, question)
        return self._verdicts[question]

    def _judged(self, pending: PendingJob, question: Hashable) -> Verdict | None:
        if self.idle is None:
            self.idle = self._alone(pending)
        idle, row = self.idle, np.zeros(1, np.int64)
        idle.jobs = self.forms.jobs([(pending, 0)], idle.policy)
        first = idle.desks[0]
        wants = first.wants(idle.jobs, row)
        if len(wants) == 1 and wants["count"][0] == 1:
            # One task: it fits if and only if there is an arc, and no network is needed to see that.
            pool = int(first.pools(wants["source"])[0])
            offers = first.offers(pool) if pool >= 0 else ()
            fits = len(first.arcs(wants["source"])) or any(
                len((offer.make() if isinstance(offer, Later) else offer).arcs()) for offer in offers
            )
            return None if fits else Verdict.NONE
        known = idle.cluster.kept.verdicts
        verdict: Verdict | None = known.get(question)
        if verdict is None and not len(idle._pass(row)[0]):
            verdict = Search(idle.desks, idle.jobs, 0).verdict()
            if verdict is not Verdict.UNKNOWN:
                # It depends on nothing but nodes and devices.
                while len(known) >= MAX_VERDICTS:
                    del known[next(iter(known))]
                known[question] = verdict
        for desk in idle.desks:
            give_back(desk, idle.jobs, row)
        return verdict


def _never(misses: Sequence[Miss]) -> bool:
    """Say whether no state of the cluster would do."""
    return any(miss.permanent for miss in misses)
