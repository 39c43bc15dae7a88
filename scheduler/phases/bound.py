"""How good a round is: its score, a lower bound that no plan can beat, and prices of what is scarce.

Both are measured on the first phase as it was before anything was taken (the
*opening*): each task costs what its arc cost then, node and the least that
devices of later phases were expected to cost there; a task that waits costs
:data:`WAITING` times its tier of urgency.  The bound is the Lagrangian
relaxation of the capacities (Fisher, "The Lagrangian
relaxation method", 1981): what a place has may be exceeded at a price, jobs
need not be whole, and each shape takes the cheapest arcs it can get.  For any
prices that are not negative this costs no more than the best plan does.
Subgradient steps raise the prices of what is wanted beyond what there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from farbus.scheduler.phases.base import NEAR, NO_ARC, Desk
from farbus.scheduler.phases.jobs import Jobs
from farbus.scheduler.phases.tables import Integers, limited, matched

if TYPE_CHECKING:
    from farbus.scheduler.phases.market import Plan

Floats = npt.NDArray[np.float64]

WAITING = 10_000
"""Price of a task of the least urgent tier that waits, in thousandths: ten times the cost of finishing exactly at the
goal, and several times what any placement by the default policy costs."""

PATIENCE = 8
"""Steps without a better bound after which they become half as long."""

LEAST_STEP = 0.01
"""Length of a step, as a part of Polyak's, below which the bound hardly moves."""

SLACK = 1e-9
"""Part of the sums by which rounding of floats may be wrong, with a margin of a million; taken off the bound."""

_WAITS = 1e18
"""In place of an arc's cost: the task waits."""


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """What one unit of each scarce resource is worth, in thousandths.

    ``places`` has shape (M, R), for the columns of :meth:`Desk.room`, ``whole``
    shape (T,), for those of :meth:`Desk.common`.
    """

    places: Floats
    whole: Floats

    def surcharge(self, desk: Desk, shape: int, places: Integers, tiers: Integers) -> Integers:
        """Return what a unit of ``shape`` uses up at each of ``places``."""
        charge = np.full(len(places), float(desk.share(shape) @ self.whole))
        for tier in np.unique(tiers).tolist():
            rows = np.flatnonzero(tiers == tier)
            charge[rows] += self.places[places[rows]] @ desk.need(shape, tier)
        rounded: Integers = np.rint(charge).astype(np.int64)
        return rounded

    @staticmethod
    def waiting(tier: Integers) -> Integers:
        """Return the price of a task that waits."""
        return weights(tier)


def weights(tier: Integers) -> Integers:
    """Return what a task of each tier costs while it waits: one step more for each tier that occurs below it."""
    _, step = np.unique(tier, return_inverse=True)
    price: Integers = WAITING * (1 + step.reshape(-1).astype(np.int64))
    return price


class _Flavoured:
    """The jobs of an opening that have alternatives: for the bound each takes what is cheapest of all its flavours.

    What places have is exceeded at its price, as by all others; how many tasks
    an arc is for is not looked at, which makes the bound no larger.
    """

    def __init__(self, plan: Plan, owner: Integers) -> None:
        row = plan.wants["job"]
        first = owner < 0
        first[np.unique(owner, return_index=True)[1]] = True
        self.own = first[row]
        """Wants of the jobs themselves, without those of their other flavours."""
        self.plain = owner[row] < 0
        """Wants of jobs without alternatives."""
        self._wants = plan.wants[~self.plain]
        self._source = plan.want_source[~self.plain]
        self._owner = owner

    def relaxed(self, source: Integers, value: Floats, weight: Integers) -> tuple[float, Integers, Integers]:
        """Return the least cost of all these jobs at the arcs' values, the arcs that they take and how many tasks each.

        ``source`` and ``value`` are those of the arcs, ``weight`` the price of waiting by job.
        """
        order = np.lexsort((value, source))
        cheapest = order[np.searchsorted(source[order], self._source)]
        count = self._wants["count"]
        waits = weight[self._wants["job"]].astype(np.float64)
        cost = count * np.minimum(value[cheapest], waits)
        rows, row = np.unique(self._wants["job"], return_inverse=True)
        row = row.reshape(-1)
        total = np.bincount(row, weights=cost, minlength=len(rows))
        best = np.lexsort((total, self._owner[rows]))
        owners = self._owner[rows][best]
        best = best[np.concatenate(([True], owners[1:] != owners[:-1]))]
        taken = np.isin(row, best) & (value[cheapest] < waits)
        return float(total[best].sum()), cheapest[taken], count[taken].astype(np.int64)


class Opening:
    """The arcs of the first phase before anything was taken, with who wants what.

    Arcs that pruning left out are known by what they cost at least.
    """

    def __init__(self, plan: Plan, owner: Integers | None = None) -> None:
        """Note what is there; ``owner`` says of which job each row of the plan's jobs is a flavour, -1 for none.

        The rows of jobs come before those of their other flavours.
        """
        self._plan: Plan | None = plan
        self._desk = desk = plan.desk
        # All else of the plan stays what it is, and is looked at when somebody asks.
        self._flavoured = _Flavoured(plan, owner) if owner is not None and (owner >= 0).any() else None
        self._own = np.ones(len(plan.wants), bool) if self._flavoured is None else self._flavoured.own
        self._all_wants = plan.wants.copy()
        self._wants = self._all_wants[self._own]
        self._room, self._stock = desk.room(plan.places), desk.common()
        self.sources, self.tasks = len(plan.sources), int(self._wants["count"].sum())

    @property
    def size(self) -> int:
        """The number of arcs."""
        self._lay_out()
        return len(self._arcs)

    def _lay_out(self) -> None:
        """Lay the arcs out, source by source; once."""
        plan, self._plan = self._plan, None
        if plan is None:
            return
        desk = self._desk
        self._sources = plan.sources
        self._weight = weights(plan.jobs.tier)
        self._arcs = arcs = plan.opening_arcs()
        self._beyond = plan.beyond
        self._floor = plan.floor
        self._limit = plan.limits
        self._places = plan.places
        self._place = np.searchsorted(self._places, arcs["place"])
        self._room, self._stock = self._room.astype(np.float64), self._stock.astype(np.float64)
        shapes = desk.split(self._sources)[0]
        self._near = arcs["tier"] == NEAR
        self._need = np.zeros((len(arcs), self._room.shape[1]))
        self._share = np.zeros((len(self._sources), len(self._stock)))
        for row, shape in enumerate(shapes.tolist()):
            self._share[row] = desk.share(shape)
            mine = np.flatnonzero(arcs["source"] == row)
            for tier in np.unique(arcs["tier"][mine]).tolist():
                self._need[mine[arcs["tier"][mine] == tier]] = desk.need(shape, tier)
        # The price of waiting by source: tasks of equal price are one class, the dearest first.
        self._want_source = plan.want_source[self._own]
        plain = self._flavoured.plain if self._flavoured is not None else self._own
        source, wants = plan.want_source[plain], self._all_wants[plain]
        price = self._weight[wants["job"]]
        most = int(price.max(initial=0)) + 1
        classes, class_of = np.unique(source * most + (most - 1 - price), return_inverse=True)
        self._class_price = most - 1 - classes % most
        self._class_count = np.bincount(class_of, weights=wants["count"], minlength=len(classes)).astype(np.int64)
        self._units = np.bincount(source, weights=wants["count"], minlength=len(self._sources)).astype(np.int64)
        self._prepare()

    def _prepare(self) -> None:
        """Lay out what every step of the bound works on, in units in which the resources are comparable."""
        sources = np.arange(len(self._sources))
        outside = np.flatnonzero(self._beyond < NO_ARC)
        arcs = self._arcs
        # Real arcs, then what lies beyond the pruned ones, then waiting.
        self._source = np.concatenate((arcs["source"], outside, sources))
        self._base = np.concatenate((arcs["cost"], self._beyond[outside], np.full(len(sources), _WAITS)))
        # A place takes no more of a shape than of all its tiers together; a task may be served from afar where the
        # opening had only near arcs.
        span = len(self._places) + 1
        pair, row = np.unique(arcs["source"] * span + self._place, return_inverse=True)
        total = np.bincount(row.reshape(-1), weights=arcs["capacity"], minlength=len(pair)).astype(np.int64)
        capacity = np.where(self._near, arcs["capacity"], total[row.reshape(-1)])
        self._capacity = np.concatenate((capacity, self._units[outside], self._units))
        self._room_scale = np.maximum(self._need.max(axis=0, initial=0), 1.0)
        self._whole_scale = np.maximum(self._share.max(axis=0, initial=0), 1.0)
        self._need_scaled = self._need / self._room_scale
        self._share_scaled = self._share / self._whole_scale
        self._room_scaled = self._room / self._room_scale
        self._stock_scaled = self._stock / self._whole_scale

    def wanted(self, jobs: Integers) -> bool:
        """Say whether anything of ``jobs`` had an arc."""
        self._lay_out()
        has = np.bincount(self._arcs["source"], minlength=len(self._sources)) > 0
        return bool((has[self._want_source] & np.isin(self._wants["job"], jobs)).any())

    # What a plan costs.

    def score(self, jobs: Jobs, desks: Sequence[Desk]) -> int:
        """Return what is placed by ``desks`` for ``jobs`` costs, and what the others' waiting does.

        A task that went where the opening's pruned arcs did not lead counts as
        the dearest of those that were kept.
        """
        self._lay_out()
        first, later = desks[0], desks[1:]
        awards = jobs.awards(first.phase).table
        waiting = int(self._wants["count"] @ self._weight[self._wants["job"]])
        waiting -= int(awards["count"] @ self._weight[awards["job"]])
        if not len(awards):
            return waiting
        size = first.cluster.size
        groups = int(awards["group"].max()) + 1
        spots = (awards["job"] * groups + awards["group"]) * size + awards["place"]
        spot, first_row, row = np.unique(spots, return_index=True, return_inverse=True)
        row = row.reshape(-1)
        count = np.bincount(row, weights=awards["count"], minlength=len(spot)).astype(np.int64)
        near = count.copy()
        for desk in later:
            held = jobs.awards(desk.phase).table
            if not len(held):
                continue
            site = desk.split(held["source"])[1]
            at = np.searchsorted(spot, (held["job"] * groups + held["group"]) * size + site)
            local = np.bincount(at, weights=held["count"] * (held["place"] == site), minlength=len(spot))
            served = np.bincount(at, minlength=len(spot)) > 0
            near[served] = np.minimum(near[served], local[served].astype(np.int64))
        order = np.argsort(self._sources)
        source = order[np.searchsorted(self._sources[order], awards["source"][first_row])]
        place = awards["place"][first_row]
        return (
            waiting
            + int(near @ self._cost_of(source, place, near=True))
            + int((count - near) @ self._cost_of(source, place, near=False))
        )

    def _cost_of(self, source: Integers, place: Integers, *, near: bool) -> Integers:
        """Return what an arc of each source to a place cost, at the least where it is not among the kept ones."""
        arcs = self._arcs[self._near == near]
        span = self._desk.cluster.size
        key = arcs["source"] * span + arcs["place"]
        order = np.lexsort((arcs["cost"], key))
        key, cost = key[order], arcs["cost"][order]
        wanted = source * span + place
        least = self._beyond[source] if near else np.maximum(self._beyond[source], self._floor[source])
        # Without pruning there is an arc wherever a task went.
        least = np.where(self._beyond[source] < NO_ARC, least, 0)
        if not len(key):
            return least
        row = np.searchsorted(key, wanted).clip(max=len(key) - 1)
        found: Integers = np.where(key[row] == wanted, cost[row], least)
        return found

    def waiting_by_tier(self, jobs: Jobs, desk: Desk) -> list[int]:
        """Return how many tasks wait in each tier but the least urgent, the most urgent first."""
        tiers = np.unique(jobs.tier)[:0:-1]
        awards = jobs.awards(desk.phase).table
        return [
            int(self._wants["count"][jobs.tier[self._wants["job"]] == tier].sum())
            - int(awards["count"][jobs.tier[awards["job"]] == tier].sum())
            for tier in tiers.tolist()
        ]

    # What no plan can beat.

    def bound(self, score: int, steps: int) -> tuple[int, Prices]:
        """Return the best bound of ``steps`` steps at most and its prices; ``score`` is that of a plan.

        Steps are Polyak's towards the score, half as long after
        :data:`PATIENCE` without progress.  It ends early at prices that are
        the best, and where the bound meets the score.
        """
        self._lay_out()
        here = np.zeros_like(self._room_scaled)
        whole = np.zeros_like(self._stock_scaled)
        best, best_here, best_whole = -np.inf, here, whole
        length, idle = 1.0, 0
        for step in range(max(steps, 1)):
            value, over, over_whole = self._relaxed(here, whole)
            if value > best + 0.5:
                best, best_here, best_whole, idle = value, here, whole, 0
            else:
                idle += 1
                if idle >= PATIENCE:
                    length, idle = length / 2, 0
                    here, whole = best_here, best_whole
            missing = score - value
            # A place that is not exceeded and costs nothing has nowhere to go.
            over = np.where((here > 0) | (over > 0), over, 0)
            over_whole = np.where((whole > 0) | (over_whole > 0), over_whole, 0)
            norm = float((over * over).sum() + over_whole @ over_whole)
            if missing < 1 or norm == 0 or length < LEAST_STEP or step + 1 >= steps:
                break
            move = length * missing / norm
            here = np.maximum(here + move * over, 0)
            whole = np.maximum(whole + move * over_whole, 0)
        amount = abs(best) + float((best_here * self._room_scaled).sum() + best_whole @ self._stock_scaled)
        places = np.zeros((self._desk.cluster.size, self._room.shape[1]))
        places[self._places] = best_here / self._room_scale
        return int(np.floor(best - SLACK * amount)), Prices(places, best_whole / self._whole_scale)

    def _relaxed(self, here: Floats, whole: Floats) -> tuple[float, Floats, Floats]:
        """Return the least cost at these prices, and by how much it exceeds what each place and the cluster have."""
        value = self._base.astype(np.float64)
        real = len(self._arcs)
        value[:real] += (here[self._place] * self._need_scaled).sum(axis=1)
        value[: len(value) - len(self._sources)] += (self._share_scaled @ whole)[
            self._source[: len(value) - len(self._sources)]
        ]
        # One key for source and value: floats are exact enough for an order in which near ties are as good.
        most = float(value[: len(value) - len(self._sources)].max(initial=0)) + 1.0
        order = np.argsort(self._source * (2 * most) + np.minimum(value, most), kind="stable")
        source = self._source[order]
        taken = limited(source, self._capacity[order], np.minimum(self._units, self._limit))
        # Waiting comes last of each source and takes all that is left.
        ends = np.flatnonzero(np.concatenate((source[1:] != source[:-1], [True]))) if len(source) else order
        taken[ends] = 0
        served = np.bincount(source, weights=taken, minlength=len(self._sources)).astype(np.int64)
        taken[ends] = self._units - served
        claim, stock, units, _ = matched(self._class_count, taken)
        arc, price = order[stock], self._class_price[claim]
        cost = value[arc]
        placed = cost < price
        least = float((units * np.minimum(cost, price)).sum())
        if self._flavoured is not None:
            cheapest, more, theirs = self._flavoured.relaxed(self._source, value, self._weight)
            least += cheapest
            arc, units = np.concatenate((arc, more)), np.concatenate((units, theirs))
            placed = np.concatenate((placed, theirs > 0))
        over, over_whole = -self._room_scaled, -self._stock_scaled
        arc, units = arc[placed], units[placed]
        if len(arc):
            over_whole = over_whole + units @ self._share_scaled[self._source[arc]]
            inside = arc < real
            arc, units = arc[inside], units[inside]
            used = units[:, None] * self._need_scaled[arc]
            over = (
                over
                + np.stack(
                    [
                        np.bincount(self._place[arc], weights=used[:, column], minlength=len(self._places))
                        for column in range(used.shape[1])
                    ],
                    axis=1,
                )
                if used.shape[1]
                else over
            )
        least -= float((here * self._room_scaled).sum() + whole @ self._stock_scaled)
        return least, over, over_whole
