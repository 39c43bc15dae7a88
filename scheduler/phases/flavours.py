"""Alternatives of jobs: one flavour each is chosen by a flow, and then served like any other job.

    jobs of one form --estimated cost--> flavour --> what its scarcest group runs on --> sink
    jobs of one form --dearer than any flavour--> sink

After HIRE (Bloecher et al., ASPLOS 2021), section 5: a flavour node for each
job gives one unit, so that at most one flavour is chosen in a round; what it
costs is an estimate, for each group its number of tasks times its cheapest
arc; the groups chosen become ordinary supply.  Jobs that are alike share a
flavour node of as many units.  Beyond the paper, a job whose flavour finds no
room after all is tried in its next one within the same round, never in two.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import msgspec
import numpy as np

from farbus.model.decision import PendingJob
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


class Flavours:
    """The alternatives of a round's jobs, and which of them is the one of each job now."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        # Alternatives are a part of what tells forms apart.
        kinds = [number for number, form in enumerate(jobs.forms) if form.example.job.alternatives]
        rows = np.flatnonzero(np.isin(jobs.form, kinds)).tolist() if kinds else []
        self._original = {row: jobs.pending[row] for row in rows}
        self._of: dict[int, tuple[Flavour, ...]] = {}
        """Flavours by the form that the jobs were submitted with."""
        self._form = {row: int(jobs.form[row]) for row in self._original}
        self._chosen: dict[int, Flavour] = {}
        self._tried: dict[int, set[str]] = {}
        for row, entry in self._original.items():
            if self._form[row] not in self._of:
                self._of[self._form[row]] = self._flavours(entry)

    def _flavours(self, entry: PendingJob) -> tuple[Flavour, ...]:
        names = [("", 0), *((each.name, each.cost) for each in entry.job.alternatives)]
        entries = [_in_flavour(entry, name) for name, _ in names]
        found = []
        for (name, cost), each in zip(names, entries, strict=True):
            number = len(self._jobs.forms)
            self._jobs.forms.append(Form(each))
            found.append(Flavour(name, cost, number, each))
        return tuple(found)

    @property
    def any(self) -> bool:
        """Say whether any job has alternatives."""
        return bool(self._original)

    def names(self) -> dict[int, str]:
        """Return the flavours of jobs, by their rows; empty for a job as it stands."""
        return {row: flavour.name for row, flavour in self._chosen.items()}

    def choose(self, desk: Desk, rows: Integers, tally: Tally) -> None:
        """Choose the flavour of each of the jobs ``rows`` that have alternatives, all at once, for what is free now."""
        by_form: dict[int, list[int]] = {}
        for row in rows.tolist():
            if row in self._original:
                by_form.setdefault(self._form[row], []).append(row)
        if not by_form:
            return
        estimates = {form: [self._estimate(desk, flavour) for flavour in self._of[form]] for form in by_form}
        chosen = _solve(by_form, estimates, tally)
        for form, members in by_form.items():
            order = sorted(range(len(self._of[form])), key=lambda number: (estimates[form][number].cost, number))
            given = [number for number in order for _ in range(chosen[form][number])]
            # Rows are in the order of rank: the best have the cheapest.  Who is left over waits as it stands.
            for row, number in zip(members, given + [0] * (len(members) - len(given)), strict=True):
                self._materialise(row, self._of[form][number])

    def retry(self, desk: Desk, waiting: Integers) -> Integers:
        """Turn those of ``waiting`` that have another flavour to try to it, the cheapest first; return them."""
        turned = []
        memo: dict[int, list[_Estimate]] = {}
        for row in waiting.tolist():
            if row not in self._original:
                continue
            flavours = self._of[self._form[row]]
            if self._form[row] not in memo:
                memo[self._form[row]] = [self._estimate(desk, flavour) for flavour in flavours]
            left = [
                (estimate.cost, number)
                for number, estimate in enumerate(memo[self._form[row]])
                if estimate.room and flavours[number].name not in self._tried.get(row, ())
            ]
            if left:
                self._materialise(row, flavours[min(left)[1]])
                turned.append(row)
        return np.array(turned, np.int64)

    def settle(self, row: int, number: int) -> None:
        """Let the job wait as its flavour ``number``."""
        self._materialise(row, self._of[self._form[row]][number])

    def of(self, row: int) -> tuple[Flavour, ...]:
        """Return the flavours of a job, which those of jobs that are alike share; empty without alternatives."""
        return self._of[self._form[row]] if row in self._original else ()

    def _materialise(self, row: int, flavour: Flavour) -> None:
        self._chosen[row] = flavour
        self._tried.setdefault(row, set()).add(flavour.name)
        self._jobs.replace(row, _in_flavour(self._original[row], flavour.name), flavour.form)

    def _estimate(self, desk: Desk, flavour: Flavour) -> _Estimate:
        """Return the preference, and for each group its tasks times its cheapest arc in phase 1."""
        alone = Jobs([flavour.example], np.zeros(1, np.int64), np.zeros(1, np.int64), [self._jobs.forms[flavour.form]])
        wants = desk.wants(alone, np.zeros(1, np.int64))
        cost, room, resource = flavour.cost, MAX_UNITS, None
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


def _solve(by_form: dict[int, list[int]], estimates: dict[int, list[_Estimate]], tally: Tally) -> dict[int, list[int]]:
    """Return for each form how many of its jobs are to be of each flavour."""
    forms = list(by_form)
    flavours = [(form, number) for form in forms for number in range(len(estimates[form]))]
    resources: dict[Hashable, int] = {}
    for form, number in flavours:
        estimate = estimates[form][number]
        if estimate.room and estimate.resource is not None:
            resources[estimate.resource] = max(resources.get(estimate.resource, 0), estimate.room)
    names = list(resources)
    first_flavour, first_resource = len(forms), len(forms) + len(flavours)
    sink = first_resource + len(names)
    arcs: list[tuple[int, int, int, int]] = []
    placing = []
    for at, (form, number) in enumerate(flavours):
        estimate = estimates[form][number]
        jobs = len(by_form[form])
        placing.append(len(arcs))
        arcs.append((forms.index(form), first_flavour + at, min(jobs, estimate.room), estimate.cost))
        onward = first_resource + names.index(estimate.resource) if estimate.resource in resources else sink
        arcs.append((first_flavour + at, onward, min(jobs, estimate.room), 0))
    arcs += [(first_resource + at, sink, resources[name], 0) for at, name in enumerate(names)]
    # Whoever finds no flavour is dearer than any chain of moves that would find one, within the solver's range.
    most = COST_BUDGET // (4 * (sink + 1))
    dearest = min((max(arc[3] for arc in arcs) + 1) * (len(forms) + 1), most)
    arcs = [(tail, head, capacity, min(cost, dearest - 1)) for tail, head, capacity, cost in arcs]
    arcs += [(at, sink, len(by_form[form]), dearest) for at, form in enumerate(forms)]
    supply = np.zeros(sink + 1, np.int64)
    supply[: len(forms)] = [len(by_form[form]) for form in forms]
    supply[sink] = -int(supply.sum())
    tail, head, capacity, cost = (np.array(column, np.int64) for column in zip(*arcs, strict=True))
    network = Network(tail=tail, head=head, capacity=capacity, cost=cost, supply=supply)
    flow = solve(network)
    tally.solves += 1
    if tally.certify:
        certify(network, flow)
        tally.certified += 1
    chosen: dict[int, list[int]] = {form: [0] * len(estimates[form]) for form in forms}
    for (form, number), arc in zip(flavours, placing, strict=True):
        chosen[form][number] = int(flow.units[arc])
    return chosen
