"""Flavours of jobs: one each is chosen by a flow, and the job then served like any other.

    jobs of one form --estimated cost--> flavour --> what its scarcest group runs on --> sink
    jobs of one form --dearer than any flavour, or what the policy says--> sink

After HIRE (Bloecher et al., ASPLOS 2021), section 5: a flavour node for each
job gives one unit, so that at most one flavour is chosen in a round; what it
costs is an estimate, for each group its number of tasks times its cheapest
arc; the groups chosen become ordinary supply.  Jobs that are alike share a
flavour node of as many units.

A job's flavours are its alternatives, or the ways in which its groups' flavour
vectors may be decided (:mod:`farbus.model.flavour`).  Of vectors one decision
of each job is made in a solve (section 5.3: F has capacity 1), by the estimate
of what each would make part of the job.  Two things go beyond the paper, as
jobs are whole here: all solves of a job's decisions are in one round, and a
job whose flavour finds no room after all is tried in its next one within the
same round, never in two.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import msgspec
import numpy as np

from farbus.model import flavour
from farbus.model.decision import PendingJob
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.phases.base import Desk, Later
from farbus.scheduler.phases.cluster import MAX_UNITS
from farbus.scheduler.phases.jobs import Form, Jobs
from farbus.scheduler.phases.market import Tally
from farbus.scheduler.phases.tables import Integers
from farbus.scheduler.solver import COST_BUDGET, Network, certify, solve


@dataclass(frozen=True, slots=True)
class Flavour:
    """One way to run the jobs of a form; ``form`` is its row in the round's forms."""

    name: str
    cost: int
    form: int
    example: PendingJob


@dataclass(frozen=True, slots=True)
class _Estimate:
    """What one job costs in a flavour, how many of them the scarcest ``resource`` holds; ``room`` 0: not possible."""

    cost: int
    room: int
    resource: Hashable


@dataclass(frozen=True, slots=True, order=True)
class _Undecided:
    """Jobs of one form of which the same is decided; empty before anything is."""

    form: int
    decided: str = ""


@dataclass(frozen=True, slots=True)
class _Question:
    """What may be decided next of ``rows``, at which price each; ``postpone`` is the price of deciding nothing."""

    rows: list[int]
    options: tuple[Flavour, ...]
    estimates: list[_Estimate]
    costs: list[int]
    postpone: int | None


class Flavours:
    """The flavours of a round's jobs, and which of them is the one of each job now."""

    def __init__(self, jobs: Jobs, policy: Policy) -> None:
        self._jobs = jobs
        self._policy = policy
        # Flavours are a part of what tells forms apart.
        kinds = [
            number
            for number, form in enumerate(jobs.forms)
            if form.example.job.alternatives or form.example.job.is_polymorphic
        ]
        rows = np.flatnonzero(np.isin(jobs.form[: jobs.count], kinds)).tolist() if kinds else []
        self._original = {row: jobs.pending[row] for row in rows}
        self._known: dict[tuple[int, str], Flavour] = {}
        self._of: dict[int, tuple[Flavour, ...]] = {}
        """Flavours by the form that the jobs were submitted with."""
        self._entries: dict[int, PendingJob] = {}
        """One job of each such form."""
        self._form = {row: int(jobs.form[row]) for row in self._original}
        self._followers: dict[tuple[int, str], int] = {}
        """Forms of the tasks that jobs would have beyond what they need, by their own form and the flavour."""
        self._chosen: dict[int, Flavour] = {}
        self._tried: dict[int, set[str]] = {}
        self._first: dict[int, str] = {}
        """What was decided first of jobs with flavour vectors."""
        self.without: set[int] = set()
        """Jobs for whose flavour vectors nothing could be decided: as they stand nobody could run them."""
        self.postponed: set[int] = set()
        """Those of them for which there would have been room, at a price that the policy will not have yet."""
        for row, entry in self._original.items():
            form = self._form[row]
            if form not in self._of:
                self._entries[form] = entry
                costs = {each.name: each.cost for each in entry.job.alternatives}
                names = entry.job.flavours
                self._of[form] = tuple(self._flavour(form, entry, name, costs.get(name, 0)) for name in names)

    def _flavour(self, form: int, entry: PendingJob, name: str, cost: int = 0) -> Flavour:
        found = self._known.get((form, name))
        if found is None:
            number = len(self._jobs.forms)
            example = _in_flavour(entry, name)
            self._jobs.forms.append(Form(example))
            found = self._known[form, name] = Flavour(name, cost, number, example)
        return found

    @property
    def any(self) -> bool:
        """Say whether any job has flavours."""
        return bool(self._original)

    @property
    def any_vectors(self) -> bool:
        """Say whether any job has flavour vectors."""
        return any(entry.job.is_polymorphic for entry in self._entries.values())

    def names(self) -> dict[int, str]:
        """Return the flavours of jobs, by their rows; empty for a job as it stands."""
        return {row: chosen.name for row, chosen in self._chosen.items()}

    def choose(self, desk: Desk, rows: Integers, tally: Tally) -> None:
        """Choose the flavour of each of the jobs ``rows`` that have any, all at once, for what is free now.

        One decision of each job is made in a solve; those that have more to
        decide are in the next one, with what was decided of all others.
        """
        waiting: dict[_Undecided, list[int]] = {}
        for row in rows.tolist():
            if row in self._original:
                waiting.setdefault(_Undecided(self._form[row]), []).append(row)
        while waiting:
            questions = {at: self._question(desk, at, waiting[at]) for at in sorted(waiting)}
            chosen = _solve(questions, tally)
            waiting = {}
            for at, question in questions.items():
                order = sorted(range(len(question.options)), key=lambda number: (question.costs[number], number))
                given = [number for number in order for _ in range(chosen[at][number])]
                # Rows are in the order of rank: the best have the cheapest.
                for row, number in zip(question.rows, given, strict=False):
                    option = question.options[number]
                    if self._original[row].job.is_polymorphic and self._options(at.form, option.name):
                        waiting.setdefault(_Undecided(at.form, option.name), []).append(row)
                    else:
                        self._materialise(row, option)
                for row in question.rows[len(given) :]:
                    self._leave_open(row, question)

    def _options(self, form: int, decided: str) -> tuple[Flavour, ...]:
        """Return what may be decided next of jobs of ``form``."""
        entry = self._entries[form]
        if not entry.job.is_polymorphic:
            return self._of[form]
        vectors = entry.job.vectors
        steps = flavour.options(vectors, decided or flavour.undecided(vectors))
        return tuple(self._flavour(form, entry, step) for step in steps)

    def _question(self, desk: Desk, at: _Undecided, rows: list[int]) -> _Question:
        options = self._options(at.form, at.decided)
        estimates = [self._estimate(desk, option) for option in options]
        # Jobs that are alike differ in how long they wait: that of the first of rank goes for all.
        waited_s = self._original[rows[0]].waited_s
        costs, postpone = self._policy.flavour_costs(
            np.array([estimate.cost for estimate in estimates], np.int64),
            np.array([estimate.room > 0 for estimate in estimates], bool),
            np.array([self._is_in_network(at, option) for option in options], bool),
            waited_s,
        )
        return _Question(rows, options, estimates, costs.tolist(), postpone)

    def _is_in_network(self, at: _Undecided, option: Flavour) -> bool:
        """Say whether ``option`` brings tasks with in-network services that were not decided before."""
        before = set()
        if at.decided:
            before = {group.name for group in self._known[at.form, at.decided].example.job.groups}
        return any(group.service is not None and group.name not in before for group in option.example.job.groups)

    def _leave_open(self, row: int, question: _Question) -> None:
        """Let a job wait as it stands, or, where that is no job, be left out until there is a flavour for it."""
        if not self._original[row].job.is_polymorphic:
            self._materialise(row, question.options[0])
            return
        self.without.add(row)
        possible = [cost for cost, at in zip(question.costs, question.estimates, strict=True) if at.room]
        if question.postpone is not None and possible and question.postpone <= min(possible):
            self.postponed.add(row)

    def retry(self, desk: Desk, waiting: Integers) -> Integers:
        """Turn those of ``waiting`` that have another flavour to try to it; return them.

        Of flavour vectors the one is next that keeps most of what was decided first; then the cheapest.
        """
        turned = []
        memo: dict[int, list[_Estimate]] = {}
        for row in waiting.tolist():
            if row not in self._original or row in self.postponed:
                continue
            flavours = self._of[self._form[row]]
            if self._form[row] not in memo:
                memo[self._form[row]] = [self._estimate(desk, each) for each in flavours]
            first = self._first.get(row, "")
            left = [
                (sum(a != b for a, b in zip(flavours[number].name, first, strict=False)), estimate.cost, number)
                for number, estimate in enumerate(memo[self._form[row]])
                if estimate.room and flavours[number].name not in self._tried.get(row, ())
            ]
            if left:
                self._materialise(row, flavours[min(left)[2]])
                turned.append(row)
        return np.array(turned, np.int64)

    def settle(self, row: int, number: int) -> None:
        """Let the job wait as its flavour ``number``."""
        self._materialise(row, self._of[self._form[row]][number])

    def follow(self, row: int, parent: int) -> None:
        """Let a task that a placed job would have beyond what it needs be of that job's flavour."""
        if parent not in self._chosen:
            return
        name = self._chosen[parent].name
        entry, key = self._jobs.pending[row], (int(self._jobs.form[row]), name)
        turned = _in_flavour(entry, name)
        if key not in self._followers:
            self._followers[key] = len(self._jobs.forms)
            self._jobs.forms.append(Form(turned))
        self._jobs.replace(row, turned, self._followers[key])

    def laid_out(self) -> tuple[Jobs, Integers]:
        """Return all jobs and, after them, one of each kind in each of its flavours; also the kind of each row.

        Jobs of a kind have the same flavours; the kind is -1 for jobs that have none.
        """
        jobs = self._jobs
        forms, kind, kinds = list(jobs.forms), [-1] * len(jobs.pending), dict[int, int]()
        entries, tiers, form = list(jobs.pending), jobs.tier.tolist(), jobs.form.tolist()
        for row, entry in enumerate(jobs.pending):
            original = self._original.get(row, entry)
            if not (original.job.alternatives or original.job.is_polymorphic):
                continue
            asked = self._form.get(row, int(jobs.form[row]))
            if asked not in kinds:
                kinds[asked] = len(kinds)
                for name in original.job.flavours:
                    turned = _in_flavour(original, name)
                    entries.append(turned)
                    form.append(len(forms))
                    forms.append(Form(turned))
                    tiers.append(tiers[row])
                    kind.append(kinds[asked])
            kind[row] = kinds[asked]
        return Jobs(entries, np.array(tiers, np.int64), np.array(form, np.int64), forms), np.array(kind, np.int64)

    @property
    def ways(self) -> int:
        """Return how many flavours all kinds of jobs have together."""
        return sum(len(flavours) for flavours in self._of.values())

    def of(self, row: int) -> tuple[Flavour, ...]:
        """Return the flavours of a job, which those of jobs that are alike share; empty without alternatives."""
        return self._of[self._form[row]] if row in self._original else ()

    def _materialise(self, row: int, chosen: Flavour) -> None:
        self._chosen[row] = chosen
        if self._original[row].job.is_polymorphic:
            self._first.setdefault(row, chosen.name)
        self._tried.setdefault(row, set()).add(chosen.name)
        self.without.discard(row)
        self._jobs.replace(row, _in_flavour(self._original[row], chosen.name), chosen.form)

    def _estimate(self, desk: Desk, option: Flavour) -> _Estimate:
        """Return the preference, and for each group its tasks times its cheapest arc in phase 1."""
        alone = Jobs([option.example], np.zeros(1, np.int64), np.zeros(1, np.int64), [self._jobs.forms[option.form]])
        wants = desk.wants(alone, np.zeros(1, np.int64))
        cost, room, resource = option.cost, MAX_UNITS, None
        for want in wants:
            source = want["source"].reshape(1)
            cheapest, units = _arcs(desk, source)
            pool = int(desk.pools(source)[0])
            units = min(units, desk.limit(pool)) if pool >= 0 else units
            count = int(want["count"])
            if units < count:
                return _Estimate(0, 0, None)
            cost += count * cheapest
            if units // count < room:
                room, resource = units // count, int(source[0])
        return _Estimate(cost, room, resource)


def _in_flavour(entry: PendingJob, name: str) -> PendingJob:
    return msgspec.structs.replace(entry, job=entry.job.in_flavour(name))


def _arcs(desk: Desk, source: Integers) -> tuple[int, int]:
    """Return the cost of a source's cheapest arc, and the units of all of them."""
    arcs = desk.arcs(source)
    costs, units = arcs["cost"].tolist(), int(arcs["capacity"].sum())
    pool = int(desk.pools(source)[0])
    for each in desk.offers(pool) if pool >= 0 else ():
        offer = each.make() if isinstance(each, Later) else each
        rows = offer.arcs()
        if len(rows):
            costs.append(int(offer.cost[rows].min()))
            units += int(offer.capacity[rows].sum())
    return min(costs, default=0), min(units, MAX_UNITS)


def _solve(questions: dict[_Undecided, _Question], tally: Tally) -> dict[_Undecided, list[int]]:
    """Return for each question how many of its jobs are to be of each option."""
    asked = list(questions)
    number_of = {at: number for number, at in enumerate(asked)}
    options = [(at, number) for at in asked for number in range(len(questions[at].options))]
    resources: dict[Hashable, int] = {}
    for at, number in options:
        estimate = questions[at].estimates[number]
        if estimate.room and estimate.resource is not None:
            resources[estimate.resource] = max(resources.get(estimate.resource, 0), estimate.room)
    names = {resource: number for number, resource in enumerate(resources)}
    first_option, first_resource = len(asked), len(asked) + len(options)
    sink = first_resource + len(names)
    arcs: list[tuple[int, int, int, int]] = []
    placing = []
    for node, (at, number) in enumerate(options):
        question, estimate = questions[at], questions[at].estimates[number]
        jobs = min(len(question.rows), estimate.room)
        placing.append(len(arcs))
        arcs.append((number_of[at], first_option + node, jobs, question.costs[number]))
        onward = first_resource + names[estimate.resource] if estimate.resource in names else sink
        arcs.append((first_option + node, onward, jobs, 0))
    arcs += [(first_resource + number, sink, resources[resource], 0) for resource, number in names.items()]
    # Whoever finds no flavour is dearer than any chain of moves that would find one, within the solver's range.
    most = COST_BUDGET // (4 * (sink + 1))
    dearest = min((max(arc[3] for arc in arcs) + 1) * (len(asked) + 1), most)
    arcs = [(tail, head, capacity, min(cost, dearest - 1)) for tail, head, capacity, cost in arcs]
    for number, question in enumerate(questions.values()):
        price = dearest if question.postpone is None else min(question.postpone, dearest)
        arcs.append((number, sink, len(question.rows), price))
    supply = np.zeros(sink + 1, np.int64)
    supply[: len(asked)] = [len(question.rows) for question in questions.values()]
    supply[sink] = -int(supply.sum())
    tail, head, capacity, cost = (np.array(column, np.int64) for column in zip(*arcs, strict=True))
    network = Network(tail=tail, head=head, capacity=capacity, cost=cost, supply=supply)
    flow = solve(network)
    tally.solves += 1
    if tally.certify:
        certify(network, flow)
        tally.certified += 1
    chosen: dict[_Undecided, list[int]] = {at: [0] * len(questions[at].options) for at in asked}
    for (at, number), arc in zip(options, placing, strict=True):
        chosen[at][number] = int(flow.units[arc])
    return chosen
