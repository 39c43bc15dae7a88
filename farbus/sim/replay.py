"""Submissions, one policy, the scheduler's own decisions under a virtual clock.

Rounds are decided by :func:`farbus.scheduler.round.decide_on` on columns that
are kept, as the service does; nothing of the decision is simulated.  What is
simulated is the rest of the world: time, jobs that run and end, and the load
that remote devices put on links.

Two things keep rounds short, and change no rank among equals.  Jobs that ask
for the same are of one *kind*, and a round sees the first few of each kind;
where all of them are placed, another round at the same instant sees the next.
A kind that found no place is asked again when something has ended, as nothing
else gives it room.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from farbus.model.cluster import LinkLoad
from farbus.model.decision import JobMiss, JobPlacement, PendingJob, Snapshot
from farbus.model.job import add_room, room_of
from farbus.model.node import Resources
from farbus.scheduler.collector import collector_paused
from farbus.scheduler.costs.policy import Choice, Policy
from farbus.scheduler.phases.cluster import Columns
from farbus.scheduler.phases.jobs import Forms
from farbus.scheduler.round import PHASES, decide_on
from farbus.sim.engine import Engine
from farbus.sim.measures import Measures, Outcome
from farbus.sim.run import Run
from farbus.sim.traces import Submission, Trace

FIRST_OFFER = 64
"""Jobs of a kind that a round sees at first."""

MAX_OFFER = 10_000
"""Most jobs of a kind that a round sees: what the service gives to one round."""

SLACK = 2
"""Jobs of a kind that a round sees beyond what has ended since it last found no place.

Baselines, which place one job after the other, look at each in vain that has
no place: they see no more than this, and more at once where all are placed.
"""

ENDS, ARRIVES, DECIDES = range(3)
"""Phases of an instant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What remote devices do to links, and loaded links to jobs that use them.

    By the kind of a submission: ``traffic`` is the part of a link that one of
    its jobs takes at either end while its devices are remote, ``sensitivity``
    the relative slowdown that a link full of other jobs' traffic causes (sf of
    DRMaestro), ``distance`` that of being remote at all.
    """

    traffic: Mapping[Hashable, float] = field(default_factory=dict)
    sensitivity: Mapping[Hashable, float] = field(default_factory=dict)
    distance: Mapping[Hashable, float] = field(default_factory=dict)


class Kind:
    """The jobs that wait for the same, longest wait first."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Submission, int]] = deque()
        """Each with the value of ``misses`` when it came."""
        self.misses = 0
        """Rounds that left some of them, though the idle cluster could have served one."""
        self.offer = FIRST_OFFER
        self.is_open = True


class Replay:
    """One run of a trace under one policy; ``every_s`` is the least time between two rounds."""

    def __init__(
        self,
        trace: Trace,
        policy: Policy,
        *,
        network: Network | None = None,
        every_s: float = 0.0,
        patient: bool = False,
        by_deadline: bool = False,
        certify: bool = False,
        busy: Mapping[str, tuple[Resources, float]] | None = None,
        tell: Callable[[int, int], None] | None = None,
    ) -> None:
        """Set the world up.

        ``patient`` policies may place later what they could place now: jobs
        are offered again at every round, which needs ``every_s``.  For one that
        ranks ``by_deadline``, jobs of a kind are not alike: a round sees all.  ``busy``
        says what is taken of nodes from the start, and until when.  ``tell``
        is told how many of how many jobs have ended.
        """
        if patient and not every_s:
            raise ValueError("a patient policy needs a distance of rounds, or they never end")
        self.engine = Engine()
        self.measures = Measures(trace)
        self.runs: set[Run] = set()
        self.ended: list[tuple[Run, float]] = []
        self.hopeless: list[Submission] = []
        self._policy = policy
        self._network = network or Network()
        self._every_s = every_s
        self._patient = patient
        self._by_deadline = by_deadline
        self._certify = certify
        self._tell = tell
        self._total = len(trace.submissions)
        self._nodes = list(trace.nodes)
        self._devices = list(trace.devices)
        self._node_row = {view.name: row for row, view in enumerate(self._nodes)}
        self._device_row = {view.device.id: row for row, view in enumerate(self._devices)}
        self.kinds: dict[Hashable, Kind] = {}
        self._requests = {each.job.id: each for each in trace.submissions}
        self._columns, self._forms = Columns(), Forms(PHASES)
        self._traffic: defaultdict[str, float] = defaultdict(float)
        self._freed = 0
        self._asked = False
        for name, (taken, until) in (busy or {}).items():
            self._take(name, taken, -1)
            self.engine.at(until, functools.partial(self._end_busy, name, taken), phase=ENDS)
        for submission in trace.submissions:
            self.engine.at(submission.at_s, functools.partial(self._arrive, submission), phase=ARRIVES)

    def run(self) -> Outcome:
        """Run until nothing happens any more."""
        self.engine.run(_nothing)
        waiting = [submission for kind in self.kinds.values() for submission, _ in kind.waiting]
        return self.measures.outcome(self.ended, never=len(waiting) + len(self.hopeless))

    # What happens.

    def _arrive(self, submission: Submission) -> None:
        kind = self.kinds.get(submission.kind)
        if kind is None:
            kind = self.kinds[submission.kind] = Kind()
        kind.waiting.append((submission, kind.misses))
        if kind.is_open:
            self._ask()

    def _end_busy(self, name: str, taken: Resources) -> None:
        self.measures.advance(self.engine.now)
        self._take(name, taken, 1)
        self._free_again(1)

    def _end(self, run: Run) -> None:
        if run not in self.runs or run.ends_at != self.engine.now:
            # It was slowed down or sped up since: another end was announced then.
            return
        now = self.engine.now
        self.measures.advance(now)
        self.runs.remove(run)
        self.ended.append((run, now))
        self._apply(run, 1)
        self._free_again(1 + run.submission.gpus)
        if self._tell is not None:
            self._tell(len(self.ended), self._total)

    def _free_again(self, units: int) -> None:
        self._freed += units
        for kind in self.kinds.values():
            kind.is_open = True
        self._ask()

    def _ask(self) -> None:
        """See to it that there is a round at this instant, or as soon as there may be one."""
        if self._asked:
            return
        self._asked = True
        now = self.engine.now
        at = now if not self._every_s else max(now, math.ceil(now / self._every_s) * self._every_s)
        self.engine.at(at, self._decide, phase=DECIDES)

    # Rounds.

    def _decide(self) -> None:
        self._asked = False
        self.measures.advance(self.engine.now)
        if self._policy.choice is Choice.FLOW:
            for kind in self.kinds.values():
                # What has ended could serve so many.
                kind.offer = max(kind.offer, SLACK + self._freed)
        self._freed = 0
        again = [kind for kind in self.kinds.values() if kind.is_open and kind.waiting]
        while again:
            again = self._round(again)
        if self._patient and any(kind.waiting for kind in self.kinds.values()):
            self._reconsider()

    def _reconsider(self) -> None:
        """Ask again after ``every_s``, though nothing has ended: waiting itself changes what the policy allows."""
        for kind in self.kinds.values():
            kind.is_open = True
        self._asked = True
        self.engine.at(self.engine.now + self._every_s, self._decide, phase=DECIDES)

    def _round(self, kinds: Sequence[Kind]) -> list[Kind]:
        """Offer the first of each kind; return the kinds of which all that were offered were placed."""
        if self._by_deadline:
            for kind in kinds:
                kind.offer = MAX_OFFER
        offered = [
            PendingJob(job=submission.job, rounds_waited=kind.misses - before, left_s=self._left_s(submission))
            for kind in kinds
            for submission, before in itertools.islice(kind.waiting, kind.offer)
        ]
        links: dict[str, tuple[LinkLoad, ...]] = {
            name: (self._link(load),) for name, load in self._traffic.items() if load > 0
        }
        links = {name: (self._link(load),) for name, load in self._traffic.items() if load > 0}
        snapshot = Snapshot(nodes=tuple(self._nodes), devices=tuple(self._devices), links=links, at=self.engine.now)
        began = time.process_time()
        with collector_paused():
            cluster = self._columns.of(snapshot)
            decision = decide_on(cluster, offered, policy=self._policy, certify=self._certify, forms=self._forms)
        self.measures.decided((time.process_time() - began) * 1000, len(offered), certified=decision.report.certified)
        placed = {placement.job for placement in decision.placements}
        for placement in decision.placements:
            self._start(placement)
        missed = {miss.job: miss for miss in decision.misses}
        return [kind for kind in kinds if self._book(kind, placed, missed)]

    def _left_s(self, submission: Submission) -> float:
        """Return how long a job has until its deadline: it was submitted when it came here."""
        deadline_s = submission.job.goal.deadline_s
        return submission.at_s + deadline_s - self.engine.now if deadline_s else math.inf

    def _book(self, kind: Kind, placed: set[str], missed: Mapping[str, JobMiss]) -> bool:
        """Take what was placed out of the queue; say whether to offer more of the kind at once."""
        seen, kind_offer = min(kind.offer, len(kind.waiting)), kind.offer
        first = [kind.waiting.popleft() for _ in range(seen)]
        left = [entry for entry in first if entry[0].job.id not in placed]
        kind.waiting.extendleft(reversed(left))
        if not left:
            kind.offer = min(2 * kind_offer, MAX_OFFER) if kind.waiting else kind_offer
            return bool(kind.waiting)
        kind.offer, kind.is_open = SLACK, False
        if missed[left[0][0].job.id].feasible_alone:
            kind.misses += 1
        else:
            # The idle cluster could not serve it: nor its like.
            self.hopeless += [submission for submission, _ in kind.waiting]
            kind.waiting.clear()
            kind.is_open = True
        return False

    def _link(self, load: float) -> LinkLoad:
        """Return a link as a node would report it."""
        return LinkLoad(name="net", speed_bytes_per_s=1.0, send_bytes_per_s=load, measured_at=self.engine.now)

    # The world.

    def _start(self, placement: JobPlacement) -> None:
        submission = self._requests[placement.job]
        now = self.engine.now
        run = Run(submission, placement, now, submission.runs_s, now)
        run.links = frozenset(
            end
            for task in placement.tasks
            for device in task.devices
            if device.node != task.node
            for end in (task.node, device.node)
        )
        self.runs.add(run)
        self.measures.started(run)
        self._apply(run, -1)
        self._retime(run)

    def _apply(self, run: Run, sign: int) -> None:
        """Take (-1) or give back (1) all that a run uses."""
        wanted = {group.name: group.requests for group in run.submission.job.groups}
        used: dict[str, Resources] = {}
        changed: dict[str, int] = {}
        for task in run.placement.tasks:
            requests = wanted[task.task.rpartition(".")[0]]
            add_room(used, room_of(requests, task))
            for device in task.devices:
                row = self._device_row[device.device]
                self._devices[row] = msgspec.structs.replace(self._devices[row], free=sign > 0)
                changed[device.node] = changed.get(device.node, 0) + sign
        for name, amount in used.items():
            self._take(name, amount, sign)
        for name, count in changed.items():
            self.measures.gpus(self._node_row[name], count)
        self.measures.used(sign, run.submission)
        if run.links:
            traffic = self._network.traffic.get(run.submission.kind, 0.0)
            for end in run.links:
                self._traffic[end] -= sign * traffic
            self._retime_others(run)

    def _take(self, name: str, amount: Resources, sign: int) -> None:
        row = self._node_row[name]
        view = self._nodes[row]
        free = view.free + amount * sign
        assert not free.lacks(Resources(), view.capacity), f"{name} is overcommitted"
        self._nodes[row] = msgspec.structs.replace(view, free=free)
        self.measures.room(row, free)

    def _retime_others(self, run: Run) -> None:
        for other in self.runs:
            if other is not run and not other.links.isdisjoint(run.links):
                self._retime(other)

    def _retime(self, run: Run) -> None:
        """Find a run's speed anew, and announce when it ends."""
        now = self.engine.now
        slowness = 1.0
        if run.links:
            own = self._network.traffic.get(run.submission.kind, 0.0)
            load = max(min(1.0, max(0.0, self._traffic[end] - own)) for end in run.links)
            sensitivity = self._network.sensitivity.get(run.submission.kind, 0.0)
            distance = self._network.distance.get(run.submission.kind, 0.0)
            slowness = (1 + distance) * (1 + sensitivity * load)
        if slowness == run.slowness:
            return
        if run.slowness:
            run.left_s = max(0.0, run.left_s - (now - run.since) / run.slowness)
        run.since, run.slowness = now, slowness
        run.ends_at = now + run.left_s * slowness
        self.engine.at(run.ends_at, functools.partial(self._end, run), phase=ENDS)


def _nothing() -> None:
    """Let an instant be over: rounds are events of their own."""
