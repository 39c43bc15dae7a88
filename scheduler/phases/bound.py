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
from farbus.scheduler.phases.tables import Integers, Table, distinct

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
    """The jobs of an opening that have several flavours.

    A job of these that waits costs as much as the tasks of that of its flavours which has the fewest; one that is
    placed costs what its tasks cost in the flavour that it was placed in.  For the bound each takes the flavour
    that is cheapest at the prices, in which each task takes its cheapest arc or waits.

    That costs no more than any plan does.  Let x be a plan, and p prices, none of them negative.  What x uses of a
    resource is no more than there is, so x costs at least L = cost(x) + p (use(x) - room).  L is a sum over
    jobs, less p room, which is the same for all plans.  The summand of a job that is placed in flavour f is the
    sum over its tasks of c + p u, for the arc that each of them has; no arc of a task has less than its cheapest one,
    whether others leave room on it or not, and the least over all flavours is no more than that of f.
    The summand of a job that waits is w n, with n the tasks of some flavour, of which the sum of the lesser of w and
    the cheapest arc is no more.  So the sum of these least summands bounds L, and L bounds the plan.
    """

    def __init__(self, plan: Plan, kind: Integers, jobs: int) -> None:
        """Take what ``plan`` wants: of so many jobs first, then of one of each kind in each of its flavours."""
        rows, row = len(kind), plan.wants["job"]
        self.jobs = jobs
        self.own = row < self.jobs
        """Wants of jobs as they are now."""
        self.plain = self.own & (kind[row] < 0)
        """Wants of jobs that have one flavour."""
        self.kind = kind[: self.jobs]
        self._kinds = int(kind.max(initial=-1)) + 1
        self._of = kind[self.jobs :]
        self._row = row[~self.own] - self.jobs
        self._count, self._source = plan.wants["count"][~self.own], plan.want_source[~self.own]
        tasks = np.bincount(self._row, weights=self._count, minlength=rows - self.jobs)
        self.fewest = self._least(tasks.astype(np.float64)).astype(np.int64)
        """Tasks by kind, in the flavour that has the fewest."""

    def _least(self, cost: Floats) -> Floats:
        """Return the least of each kind, of what each of its flavours costs."""
        least = np.full(self._kinds, np.inf)
        np.minimum.at(least, self._of, cost)
        return least

    def waiting(self, weight: Integers, placed: Integers) -> int:
        """Return what the waiting of these jobs costs but for that of ``placed``; ``weight`` is the price by job."""
        waits = self.kind >= 0
        waits[placed] = False
        rows = np.flatnonzero(waits)
        return int(weight[rows] @ self.fewest[self.kind[rows]])

    def least(self, cheapest: Floats, weight: Integers) -> tuple[float, list[Integers]]:
        """Return what all these jobs cost at the least, and what they want then: sources, units and prices of waiting.

        ``cheapest`` is what the cheapest arc of each source costs, prices included, ``weight`` the price of waiting by
        job.
        """
        mine = np.flatnonzero(self.kind >= 0)
        total, chosen = 0.0, [np.zeros((3, 0), np.int64)]
        for price in np.unique(weight[mine]).tolist():
            each = self._count * np.minimum(cheapest[self._source], price)
            cost = np.bincount(self._row, weights=each, minlength=len(self._of)).astype(np.float64)
            jobs = np.bincount(self.kind[mine[weight[mine] == price]], minlength=self._kinds)
            total += float(self._least(cost)[jobs > 0] @ jobs[jobs > 0])
            # Rows of one kind follow one another: the first of its cheapest flavours.
            order = np.lexsort((cost, self._of))
            first = order[np.unique(self._of[order], return_index=True)[1]]
            taken = np.zeros(len(self._of), np.int64)
            taken[first] = jobs
            rows = np.flatnonzero(taken[self._row])
            count = self._count[rows] * taken[self._row[rows]]
            chosen.append(np.stack((self._source[rows], count, np.full(len(rows), price))))
        return total, list(np.concatenate(chosen, axis=1))


class Opening:
    """The arcs of the first phase before anything was taken, with who wants what.

    Arcs that pruning left out are known by what they cost at least.
    """

    def __init__(self, plan: Plan, kind: Integers | None = None, jobs: int = 0) -> None:
        """Note what is there, for the plan's jobs; where some have several flavours these are the first ``jobs`` rows.

        Then come one of each kind in each of its flavours; ``kind`` is that of each row, -1 for none.
        """
        self._plan: Plan | None = plan
        self._desk = desk = plan.desk
        # All else of the plan stays what it is, and is looked at when somebody asks.
        self._flavoured = _Flavoured(plan, kind, jobs) if kind is not None and (kind >= 0).any() else None
        self._own = np.ones(len(plan.wants), bool) if self._flavoured is None else self._flavoured.own
        self._all_wants = plan.wants.copy()
        self._wants = self._all_wants[self._own]
        self._room, self.common = desk.room(plan.places), desk.common()
        """``common`` is what the whole cluster had: see :meth:`Desk.common`."""
        self.sources, self.tasks = len(plan.sources), int(self._wants["count"].sum())
        shapes = desk.split(plan.sources)[0]
        least = {shape: desk.elsewhere(shape) for shape in distinct(shapes).tolist()}
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
        self._want_source = plan.want_source[self._own]
        plain = self._flavoured.plain if self._flavoured is not None else self._own
        wants = self._all_wants[plain]
        self._plain = [plan.want_source[plain], wants["count"], self._weight[wants["job"]]]
        """Sources, units and prices of waiting of jobs that have one flavour."""
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
        waiting = self._waiting(awards)
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

    def _waiting(self, awards: Table) -> int:
        """Return what the waiting of those costs who are not among ``awards``."""
        wants = self._wants
        if self._flavoured is None:
            return int(wants["count"] @ self._weight[wants["job"]]) - int(awards["count"] @ self._weight[awards["job"]])
        # A job that has flavours is placed whole, in whichever of them.
        kind, tasks = self._flavoured.kind, wants["count"] * self._weight[wants["job"]]
        given = awards["count"] * self._weight[awards["job"]]
        plain = int(tasks[kind[wants["job"]] < 0].sum()) - int(given[kind[awards["job"]] < 0].sum())
        return plain + self._flavoured.waiting(self._weight, awards["job"])

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
        best, here, whole = self._climb(self._plain, score, steps)
        if self._flavoured is not None:
            # Beside them the prices as if each job had the flavour alone that it has now: any are valid.
            own = [self._want_source, self._wants["count"], self._weight[self._wants["job"]]]
            best, here, whole = self._with_flavours(score, steps, [(here, whole), self._climb(own, score, steps)[1:]])
        amount = abs(best) + float((here * room).sum() + whole @ stock)
        places = np.zeros((self._desk.cluster.size, self._room.shape[1]))
        places[self._places] = here / self._room_scale
        return int(np.floor(best - SLACK * amount)), Prices(places, whole / self._whole_scale)

    def _with_flavours(
        self, score: int, steps: int, starts: Sequence[tuple[Floats, Floats]]
    ) -> tuple[float, Floats, Floats]:
        """Return the best bound and its prices, where jobs have flavours: those to start with, and steps from the best.

        Steps go where all would go if arcs had room for everybody, which is what jobs with flavours are taken for; of
        the others that is not true, and any direction is valid.
        """

        def value(here: Floats, whole: Floats) -> tuple[float, Floats, Floats]:
            total, over, over_whole = self._flavoured_least(here, whole)
            return total + self._climb(self._plain, score, 1, (here, whole))[0], over, over_whole

        found = [(value(*start), start) for start in starts]
        (best, over, over_whole), (here, whole) = max(found, key=lambda each: each[0][0])
        kept, length, idle, at = (here, whole, over, over_whole), 1.0, 0, best
        for _ in range(steps):
            over, over_whole = over * ((here > 0) | (over > 0)), over_whole * ((whole > 0) | (over_whole > 0))
            norm = float((over * over).sum() + over_whole @ over_whole)
            if score - best < 1 or not norm or length < LEAST_STEP:
                break
            by = length * max(score - at, 0) / norm
            here, whole = np.maximum(here + by * over, 0), np.maximum(whole + by * over_whole, 0)
            at, over, over_whole = value(here, whole)
            if at > best + 0.5:
                best, kept, idle = at, (here, whole, over, over_whole), 0
            elif (idle := idle + 1) >= PATIENCE:
                (here, whole, over, over_whole), length, idle, at = kept, length / 2, 0, best
        return best, kept[0], kept[1]

    def _climb(
        self, asked: Sequence[Integers], score: int, steps: int, start: tuple[Floats, Floats] | None = None
    ) -> tuple[float, Floats, Floats]:
        """Return bound and prices for what is asked: sources, units and prices of waiting."""
        room, stock = self._room / self._room_scale, self._stock / self._whole_scale
        source, count, price = asked
        if not len(source):
            here, whole = start or (np.zeros_like(room), np.zeros_like(stock))
            return -float((here * room).sum() + whole @ stock), here, whole
        # Tasks of equal price are one class, the dearest first.
        most = int(price.max()) + 1
        classes, class_of = np.unique(source * most + (most - 1 - price), return_inverse=True)
        counts = np.bincount(class_of, weights=count, minlength=len(classes)).astype(np.int64)
        return kernels.climb(
            self._relaxed,
            room=room,
            stock=stock,
            need=self._need / self._room_scale,
            share=self._share / self._whole_scale,
            units=np.bincount(source, weights=count, minlength=len(self._sources)).astype(np.int64),
            limit=self._limit,
            beyond=self._beyond,
            no_arc=NO_ARC,
            classes=(classes // most, counts, most - 1 - classes % most),
            score=score,
            steps=max(steps, 1),
            patience=PATIENCE,
            least=LEAST_STEP,
            start=start,
        )

    def _flavoured_least(self, here: Floats, whole: Floats) -> tuple[float, Floats, Floats]:
        """Return what the jobs with flavours cost at the least at these prices, without those of the room itself.

        Beside it by how much all jobs exceed what places and the cluster have where each task goes by its cheapest arc.
        """
        assert self._flavoured is not None
        arcs, need, share = self._relaxed, self._need / self._room_scale, self._share / self._whole_scale
        use = need[arcs["source"], arcs["tier"]]
        value = arcs["cost"] + (use * here[arcs["place"]]).sum(axis=1)
        outside = np.flatnonzero(self._beyond < NO_ARC)
        source = np.concatenate((arcs["source"], outside))
        value = np.concatenate((value, self._beyond[outside])) + (share @ whole)[source]
        cheapest = np.full(len(self._sources), np.inf)
        np.minimum.at(cheapest, source, value)
        total, chosen = self._flavoured.least(cheapest, self._weight)
        wanting, count, price = (np.concatenate(pair) for pair in zip(self._plain, chosen, strict=True))
        units = np.bincount(wanting, weights=count * (cheapest[wanting] < price), minlength=len(cheapest))
        arc = np.full(len(cheapest), len(value))
        at = np.flatnonzero(value == cheapest[source])
        arc[source[at[::-1]]] = at[::-1]
        over = -self._room / self._room_scale
        inside = np.flatnonzero(arc < len(arcs))
        np.add.at(over, arcs["place"][arc[inside]], use[arc[inside]] * units[inside, None])
        return total, over, units @ share - self._stock / self._whole_scale
