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

from farbus.scheduler import kernels
from farbus.scheduler.phases.base import FAR, NEAR, NO_ARC, Desk
from farbus.scheduler.phases.jobs import Jobs
from farbus.scheduler.phases.tables import Integers

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

    How many tasks an arc is for is not looked at, which makes the bound no larger.
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

    def least(self, source: Integers, value: Floats, weight: Integers, sources: int) -> float:
        """Return what all these jobs cost at the least.

        ``source`` and ``value`` are those of the arcs, ``weight`` the price of waiting by job.
        """
        cheapest = np.full(sources, np.inf)
        np.minimum.at(cheapest, source, value)
        cost = self._wants["count"] * np.minimum(cheapest[self._source], weight[self._wants["job"]])
        rows, row = np.unique(self._wants["job"], return_inverse=True)
        total = np.bincount(row.reshape(-1), weights=cost, minlength=len(rows))
        least = np.full(int(self._owner.max()) + 1, np.inf)
        np.minimum.at(least, self._owner[rows], total)
        return float(least[np.isfinite(least)].sum())


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
        self._room, self.common = desk.room(plan.places), desk.common()
        """``common`` is what the whole cluster had: see :meth:`Desk.common`."""
        self.sources, self.tasks = len(plan.sources), int(self._wants["count"].sum())
        shapes = desk.split(plan.sources)[0]
        least = {shape: desk.elsewhere(shape) for shape in np.unique(shapes).tolist()}
        self._elsewhere = np.array([least[shape] for shape in shapes.tolist()], np.int64)
        """For each source what a unit costs at least that has its devices from elsewhere."""

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
        self._arcs, self._place = arcs, _ = plan.opening_arcs()
        self._places = plan.places
        self._beyond = plan.beyond
        self._floor = plan.floor
        self._limit = plan.limits
        self._room, self._stock = self._room.astype(np.float64), self.common.astype(np.float64)
        self._near = arcs["tier"] == NEAR
        # Who goes where devices are at hand may have others all the same, for a third one's sake.
        instead = np.flatnonzero((arcs["tier"] != FAR) & (self._elsewhere[arcs["source"]] < NO_ARC))
        others = arcs[instead]
        others["tier"], others["cost"] = FAR, self._elsewhere[others["source"]]
        self._relaxed = np.concatenate((arcs, others))
        self._relaxed["place"] = np.concatenate((self._place, self._place[instead]))
        shapes, shape = np.unique(desk.split(self._sources)[0], return_inverse=True)
        shape = shape.reshape(-1)
        self._share = np.zeros((len(shapes), len(self._stock)))
        for row, number in enumerate(shapes.tolist()):
            self._share[row] = desk.share(number)
        # By shape and tier: what a unit uses of its place.
        self._need = np.zeros((len(shapes), FAR + 1, self._room.shape[1]))
        pairs = shape[self._relaxed["source"]] * (FAR + 1) + self._relaxed["tier"]
        for pair in np.flatnonzero(np.bincount(pairs)).tolist():
            row, tier = divmod(pair, FAR + 1)
            self._need[row, tier] = desk.need(int(shapes[row]), tier)
        self._share, self._need = self._share[shape], self._need[shape]
        # The price of waiting by source: tasks of equal price are one class, the dearest first.
        self._want_source = plan.want_source[self._own]
        plain = self._flavoured.plain if self._flavoured is not None else self._own
        source, wants = plan.want_source[plain], self._all_wants[plain]
        price = self._weight[wants["job"]]
        most = int(price.max(initial=0)) + 1
        classes, class_of = np.unique(source * most + (most - 1 - price), return_inverse=True)
        self._class_source, self._class_price = classes // most, most - 1 - classes % most
        self._class_count = np.bincount(class_of, weights=wants["count"], minlength=len(classes)).astype(np.int64)
        self._units = np.bincount(source, weights=wants["count"], minlength=len(self._sources)).astype(np.int64)
        # Units in which the resources are comparable.
        self._room_scale = np.maximum(self._need.max(axis=(0, 1), initial=0), 1.0)
        self._whole_scale = np.maximum(self._share.max(axis=0, initial=0), 1.0)

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
        wanted, row = np.unique(source * span + place, return_inverse=True)
        least = self._beyond[source] if near else np.maximum(self._beyond[source], self._floor[source])
        # Without pruning there is an arc wherever a task went, but for devices from elsewhere.
        least = np.where(self._beyond[source] < NO_ARC, least, 0)
        if not near:
            elsewhere = self._elsewhere[source]
            least = np.maximum(least, np.where(elsewhere < NO_ARC, elsewhere, 0))
        key = arcs["source"] * span + arcs["place"]
        at = np.searchsorted(wanted, key).clip(max=len(wanted) - 1)
        known = np.flatnonzero(wanted[at] == key)
        cheapest = np.full(len(wanted), NO_ARC, np.int64)
        np.minimum.at(cheapest, at[known], arcs["cost"][known])
        cost = cheapest[row.reshape(-1)]
        found: Integers = np.where(cost < NO_ARC, cost, least)
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
        room, stock = self._room / self._room_scale, self._stock / self._whole_scale
        arcs = self._relaxed
        need, share = self._need / self._room_scale, self._share / self._whole_scale
        best, here, whole = 0.0, np.zeros_like(room), np.zeros_like(stock)
        if len(self._class_count):
            best, here, whole = kernels.climb(
                arcs,
                room=room,
                stock=stock,
                need=need,
                share=share,
                units=self._units,
                limit=self._limit,
                beyond=self._beyond,
                no_arc=NO_ARC,
                classes=(self._class_source, self._class_count, self._class_price),
                score=score,
                steps=max(steps, 1),
                patience=PATIENCE,
                least=LEAST_STEP,
            )
        if self._flavoured is not None:
            # At the prices that are the best for all others: any are valid.
            value = arcs["cost"] + (need[arcs["source"], arcs["tier"]] * here[arcs["place"]]).sum(axis=1)
            outside = np.flatnonzero(self._beyond < NO_ARC)
            source = np.concatenate((arcs["source"], outside))
            value = np.concatenate((value, self._beyond[outside])) + (share @ whole)[source]
            best += self._flavoured.least(source, value, self._weight, len(self._sources))
        amount = abs(best) + float((here * room).sum() + whole @ stock)
        places = np.zeros((self._desk.cluster.size, self._room.shape[1]))
        places[self._places] = here / self._room_scale
        return int(np.floor(best - SLACK * amount)), Prices(places, whole / self._whole_scale)
