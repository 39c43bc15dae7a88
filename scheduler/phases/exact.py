"""One job and all phases at once, exactly: whether what is free holds it, and where.

Phases decide one after the other, and phase 1 does not know all that later ones
need: of tasks that must each be beside the lender of another's device it may
put two on one node, and tasks of several sizes it packs as a flow does.  For a
job alone that is too little to say that it will never run.  Here all of it is
one integer program, solved by CP-SAT: ``x[g, n]`` tasks of group g run on node
n; of devices, those of ``own[g, n]`` are the node's and those of
``far[g, n]`` are lent; ``lent[g, a, m]`` bundles are lent by node m to clients
of area a.

* Nobody lends to itself.  Clients far[g, .] and lenders lent[g, a, .] of one
  area can be matched so if and only if no node is more often among them
  together than there are bundles: ``far[g, n] + lent[g, a, n] <= sum of far[g, .]``.
  (Hall's condition for a complete bipartite graph without its diagonal: two
  clients of different nodes have all lenders between them.)
* Devices of a node that several filters accept go round if and only if, of
  any of the filters, what they take together is no more than the devices that
  one of them accepts (Hall again): a row for each set of filters.
* A bundle that is lent takes of the network at both ends, and of both ends its node is known: so the row of a node's
  network has what runs there, what it is lent and what it lends.
* Of nodes that are alike in all that counts no more are looked at than the job
  has tasks and bundles: a plan never uses more, and any of them are as good.

The first two are proved in tests/scheduler/test_never.py beside trying
everything.  Phases that choose as they hand out (drives, services, devices
that are moved) can't be put so: then nothing is said.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farbus.scheduler.phases.base import ANYWHERE, FAR, MIXED, NEAR, NO_ARC, Desk, Flags, Later, Ways
from farbus.scheduler.phases.cluster import NETWORK
from farbus.scheduler.phases.jobs import Jobs
from farbus.scheduler.phases.market import give_back
from farbus.scheduler.phases.tables import AWARD, Integers, Table, ranges, table

MAX_UNITS = 512
"""Tasks and bundles of a job that is looked at."""

MAX_CELLS = 6_000
"""Pairs of group and node that are looked at; of more, those that can do most, and nothing is proved."""

MAX_FILTERS = 4
"""Filters of one phase: each set of them is a row for each node."""

EFFORT = 0.5
"""CP-SAT's deterministic time, about seconds: counted, so that the same question has the same answer."""


class Verdict(enum.Enum):
    """What is known of a job alone."""

    FOUND = "there is a place for it"
    NONE = "there is none, proved"
    UNKNOWN = "nobody knows"


@dataclass(slots=True)
class _Need:
    """What one group needs of one phase."""

    ways: Ways
    area: Integers
    """The area of each node by who lends to it, -1 where nobody does."""
    lends: Flags
    """Who lends to each area, shape (A, M)."""


class Search:
    """The question for one job, its groups being the wants of phase 1."""

    def __init__(self, desks: Sequence[Desk], jobs: Jobs, row: int) -> None:
        for desk in desks:
            desk.clear_pencil()
        self.desks, self.jobs, self.row = desks, jobs, row
        first = desks[0]
        self.wants = first.wants(jobs, np.array([row]))
        self.shapes, self.sites = first.split(self.wants["source"])
        self.needs: list[dict[int, _Need]] = []
        """By phase after the first, what each group needs of it, by the number of its want."""
        self.fit = np.zeros((len(self.wants), first.cluster.size), np.int64)
        self.most = 0
        """Tasks and bundles."""
        self.proves = True
        """Whether all nodes are looked at that a plan could need."""

    def verdict(self) -> Verdict:
        """Find a place for all tasks, take it and award it; or say why not."""
        if not self._is_plain():
            return Verdict.UNKNOWN
        plan = self._solve()
        if not isinstance(plan, _Plan):
            return plan
        if self._carry_out(plan):
            return Verdict.FOUND
        return Verdict.UNKNOWN

    # The question.

    def _is_plain(self) -> bool:
        """Look up what groups need of each phase; say whether all of it can be put as a program."""
        first, nodes = self.desks[0], np.arange(self.desks[0].cluster.size)
        pending = self.jobs.pending[self.row]
        for group, (shape, site) in enumerate(zip(self.shapes.tolist(), self.sites.tolist(), strict=True)):
            first.offers(shape)
            room = first.capacity(shape, nodes)
            if room is None:
                return False
            self.fit[group] = room if site == ANYWHERE else np.where(nodes == site, room, 0)
        self.most = int(self.wants["count"].sum())
        for desk in self.desks[1:]:
            needs: dict[int, _Need] = {}
            for group, (number, count) in enumerate(self.wants[["group", "count"]].tolist()):
                key = desk.outlook_key(pending, pending.job.groups[number])
                if key is None:
                    continue
                ways = desk.ways(key)
                if ways is None:
                    return False
                lends, area = np.unique(ways.lends, axis=0, return_inverse=True)
                area = np.append(area.reshape(-1), -1)[ways.area.clip(min=-1)]
                needs[group] = _Need(ways, area, lends)
                self.most += count * ways.times
            self.needs.append(needs)
            if len({need.ways.wanted for need in needs.values()}) > MAX_FILTERS:
                return False
        return self.most <= MAX_UNITS

    def _nodes(self) -> list[int]:
        """Return the nodes to look at."""
        first = self.desks[0]
        room = first.room(np.arange(first.cluster.size)).T
        columns = [room, np.minimum(self.fit, self.wants["count"][:, None])]
        use = (self.fit > 0).sum(axis=0)
        for needs in self.needs:
            columns += [there[None] for _, there in self._stocks(needs)]
            for need in needs.values():
                columns += [need.ways.own[None], need.area[None], need.lends]
                use += need.ways.own + need.lends.any(axis=0)
        alike = np.unique(np.concatenate(columns).T, axis=0, return_inverse=True)[1].reshape(-1)
        order = np.argsort(alike, kind="stable")
        length = np.bincount(alike)
        rows = order[ranges(np.zeros(len(length), np.int64), length) < self.most]
        rows = rows[use[rows] > 0]
        most = MAX_CELLS // max(len(self.wants), 1)
        if len(rows) > most:
            self.proves = False
            rows = rows[np.lexsort((rows, -use[rows]))][:most]
        found: list[int] = np.sort(rows).tolist()
        return found

    def _stocks(self, needs: dict[int, _Need]) -> list[tuple[frozenset[Hashable], Integers]]:
        """Return for each set of filters how many devices of each node any of them accepts."""
        cluster = self.desks[0].cluster
        accepted = {need.ways.wanted: need.ways.free for need in needs.values()}
        found = []
        for many in range(1, len(accepted) + 1):
            for some in itertools.combinations(accepted, many):
                any_of = np.logical_or.reduce([accepted[wanted] for wanted in some])
                there = np.bincount(cluster.device_node[any_of], minlength=cluster.size)
                found.append((frozenset(some), there))
        return found

    def _solve(self) -> _Plan | Verdict:
        # It takes half a second to load, and is seldom needed.
        from ortools.sat.python import cp_model  # noqa: PLC0415

        model, nodes, first = cp_model.CpModel(), self._nodes(), self.desks[0]
        plan, counts = _Plan({}, [], [], []), self.wants["count"].tolist()
        room = dict(zip(nodes, first.room(np.array(nodes, np.int64)).tolist(), strict=True))
        # Without what devices take, wherever they come from: that is in the rows of their phases.
        demand = [first.need(shape, MIXED).tolist() for shape in self.shapes.tolist()]
        uses: dict[tuple[int, int], list[Any]] = {}
        for node in nodes:
            for group, count in enumerate(counts):
                if self.fit[group, node]:
                    tasks = model.new_int_var(0, min(count, int(self.fit[group, node])), "")
                    plan.runs[group, node] = tasks
                    for column, amount in enumerate(demand[group]):
                        uses.setdefault((node, column), []).append(amount * tasks)
        for group, count in enumerate(counts):
            model.add(sum(tasks for (number, _), tasks in plan.runs.items() if number == group) == count)
        for at, needs in enumerate(self.needs):
            self._add_phase(model, nodes, needs, plan)
            for node, network in self._network(plan, at):
                uses.setdefault((node, NETWORK), []).append(network)
        for (node, column), used in uses.items():
            model.add(sum(used) <= room[node][column])
        model.minimize(sum(tasks for phase in plan.far for tasks in phase.values()))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 1
        solver.parameters.max_deterministic_time = EFFORT
        status = solver.solve(model)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return plan.values(solver.value)
        return Verdict.NONE if status == cp_model.INFEASIBLE and self.proves else Verdict.UNKNOWN

    def _add_phase(self, model: Any, nodes: list[int], needs: dict[int, _Need], plan: _Plan) -> None:
        """Add the variables and rows of what one phase brings."""
        own: dict[tuple[int, int], Any] = {}
        far: dict[tuple[int, int], Any] = {}
        lent: dict[tuple[int, int, int], Any] = {}
        for group, need in needs.items():
            times, count = need.ways.times, int(self.wants["count"][group])
            clients: dict[int, list[int]] = {}
            for node in nodes:
                if (group, node) in plan.runs:
                    area = int(need.area[node])
                    clients.setdefault(area, []).append(node)
                    own[group, node] = model.new_int_var(0, count if need.ways.own[node] else 0, "")
                    far[group, node] = model.new_int_var(0, count if area >= 0 else 0, "")
                    model.add(own[group, node] + far[group, node] == plan.runs[group, node])
            for area in sorted(clients.keys() - {-1}):
                bundles = times * sum(far[group, node] for node in clients[area])
                lenders = [node for node in nodes if need.lends[area, node]]
                lent |= {(group, area, node): model.new_int_var(0, count * times, "") for node in lenders}
                model.add(sum(lent[group, area, node] for node in lenders) == bundles)
                for node in set(lenders).intersection(clients[area]):
                    model.add(times * far[group, node] + lent[group, area, node] <= bundles)
        uses: dict[int, list[tuple[Hashable, Any]]] = {}
        for (group, *_, node), bundles in itertools.chain(own.items(), lent.items()):
            ways = needs[group].ways
            uses.setdefault(node, []).append((ways.wanted, ways.size * bundles))
        for some, there in self._stocks(needs):
            for node, used in uses.items():
                model.add(sum(devices for wanted, devices in used if wanted in some) <= int(there[node]))
        plan.own.append(own)
        plan.far.append(far)
        plan.lent.append(lent)

    def _network(self, plan: _Plan, phase: int) -> Iterator[tuple[int, Any]]:
        """Return what bundles that are lent take of the links of nodes: of those of their tasks, and of the lenders."""
        ways = {group: need.ways for group, need in self.needs[phase].items() if need.ways.network}
        for (group, node), tasks in plan.far[phase].items():
            if group in ways:
                yield node, ways[group].times * ways[group].network * tasks
        for (group, _, node), bundles in plan.lent[phase].items():
            if group in ways:
                yield node, ways[group].network * bundles

    # The answer.

    def _carry_out(self, plan: _Plan) -> bool:
        """Take and award what the plan says; give all of it back where a desk refuses a part."""
        row = np.array([self.row])
        serves: list[list[tuple[int, int]]] = [[] for _ in self.wants]
        for (group, node), count in plan.runs.items():
            serves[group].append((node, count))
        good = self._award_tasks(serves)
        number = {group: want for want, group in enumerate(self.wants["group"].tolist())}
        for at, (desk, needs) in enumerate(zip(self.desks[1:], self.needs, strict=True)):
            if not good:
                break
            given = {group: plan.served(at, group, need) for group, need in needs.items()}
            wants = desk.wants(self.jobs, row)
            # Who accepts fewest devices first, so that others leave it what it needs.
            many = [int(needs[number[group]].ways.free.sum()) for group in wants["group"].tolist()]
            wants = wants[np.argsort(many, kind="stable")]
            sites = desk.split(wants["source"])[1].tolist()
            serves = [given[number[group]][site] for group, site in zip(wants["group"].tolist(), sites, strict=True)]
            good = self._award_devices(desk, wants, serves)
        if not good:
            for desk in self.desks:
                give_back(desk, self.jobs, row)
        return good

    def _award_tasks(self, serves: list[list[tuple[int, int]]]) -> bool:
        """Place so many tasks of each want on each node; say whether all of them fitted."""
        first = self.desks[0]
        for want, cost, nodes in zip(self.wants, self._costs(first, self.wants), serves, strict=True):
            for node, count in nodes:
                # Where each has its devices is known: nothing need be kept in mind for it.
                fits = self._award(first, want, cost, node, MIXED, count)
                for desk in self.desks:
                    desk.clear_pencil()
                if not fits:
                    return False
        return True

    def _award_devices(self, desk: Desk, wants: Table, serves: list[list[tuple[int, int]]]) -> bool:
        """Serve each want with units of places, each named with its number; say whether all of them fitted."""
        sites = desk.split(wants["source"])[1].tolist()
        for want, cost, site, places in zip(wants, self._costs(desk, wants), sites, serves, strict=True):
            lent = want.reshape(1).copy()
            lent["count"] = sum(count for place, count in places if place != site)
            if lent["count"] and not np.array_equal(desk.reserve(self.jobs, lent), lent):
                return False
            for place, count in places:
                if not self._award(desk, want, cost, place, NEAR if place == site else FAR, count):
                    return False
        return True

    def _award(self, desk: Desk, want: Table, costs: tuple[int, Integers], place: int, tier: int, count: int) -> bool:
        """Serve a want with units of a place; say whether all of them fitted."""
        if not count:
            return True
        pool, cost = costs
        shape = int(desk.split(want["source"])[0])
        taken, devices = desk.take(shape, np.array([place]), np.array([tier]), np.array([count]))
        award = table(AWARD, 1, pool=pool, place=place, tier=tier, count=taken, cost=cost[place])
        award["size"] = desk.size(shape)
        for column in ("job", "group", "source"):
            award[column] = want[column]
        self.jobs.awards(desk.phase).add(desk.awarded(award[taken > 0]), devices)
        return bool(taken[0] == count)

    def _costs(self, desk: Desk, wants: Table) -> list[tuple[int, Integers]]:
        """Return for each want its pool, and the least that a unit costs at each node, before any is taken."""
        sources, pools = wants["source"], desk.pools(wants["source"]).tolist()
        return [(pool, _cheapest(desk, sources[row : row + 1], pool)) for row, pool in enumerate(pools)]


@dataclass(slots=True)
class _Plan:
    """Variables of the program, or their values: by group and node, of phases after the first one dict each."""

    runs: dict[tuple[int, int], Any]
    own: list[dict[tuple[int, int], Any]]
    far: list[dict[tuple[int, int], Any]]
    lent: list[dict[tuple[int, int, int], Any]]
    """By group, area and node."""

    def values(self, of: Callable[[Any], int]) -> _Plan:
        """Return the values of all variables."""
        return _Plan(
            {at: of(each) for at, each in self.runs.items()},
            [{at: of(each) for at, each in phase.items()} for phase in self.own],
            [{at: of(each) for at, each in phase.items()} for phase in self.far],
            [{at: of(each) for at, each in phase.items()} for phase in self.lent],
        )

    def served(self, phase: int, group: int, need: _Need) -> dict[int, list[tuple[int, int]]]:
        """Return for each node that runs tasks of ``group`` from where they have their bundles, and how many."""
        found = {node: [(node, count)] for (number, node), count in self.own[phase].items() if number == group}
        takes: dict[int, dict[int, int]] = {}
        for (number, node), count in self.far[phase].items():
            if number == group and count:
                takes.setdefault(int(need.area[node]), {})[node] = count * need.ways.times
        for area, clients in takes.items():
            gives = {
                node: count
                for (number, where, node), count in self.lent[phase].items()
                if (number, where) == (group, area) and count
            }
            for client, lender in _pairs(clients, gives):
                found[client].append((lender, 1))
        return found


def _pairs(takes: dict[int, int], gives: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Match units of clients and lenders, both by node and used up, so that nobody lends to itself.

    The node goes first that has most units left on both sides together, with the one of the other side that is next.
    So no node ever has more than there are pairs left, which is all that it takes.
    """

    def most(nodes: Iterable[int]) -> int:
        return max(nodes, key=lambda node: (takes.get(node, 0) + gives.get(node, 0), -node))

    while takes:
        first = most((*takes, *gives))
        if first in takes:
            client, lender = first, most(node for node in gives if node != first)
        else:
            client, lender = most(takes), first
        for side, node in ((takes, client), (gives, lender)):
            side[node] -= 1
            if not side[node]:
                del side[node]
        yield client, lender


def _cheapest(desk: Desk, source: Integers, pool: int) -> Integers:
    """Return the least that any arc of ``source`` to each node costs, 0 where there is none."""
    cost = np.full(desk.cluster.size, NO_ARC, np.int64)
    arcs = desk.arcs(source)
    np.minimum.at(cost, arcs["place"], arcs["cost"])
    for each in desk.offers(pool) if pool >= 0 else ():
        offer = each.make() if isinstance(each, Later) else each
        np.minimum.at(cost, offer.place, offer.cost)
    return np.where(cost < NO_ARC, cost, 0)
