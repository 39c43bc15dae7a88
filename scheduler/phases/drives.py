"""NVMe drives as vectors: bytes and bytes a second that are free, who shares them, and the flavours they make.

Several leases share a drive up to its capacity and its bandwidth.  A program
with a performance model shares with its own kind alone, because nobody
measured it beside others, and only while all who are there keep their
deadlines (the workload-aware placement paper, section III).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from farbus.model.decision import StorageShare
from farbus.model.device import DeviceKind, Route
from farbus.scheduler.composition.profiles import StorageProfile
from farbus.scheduler.composition.rules import MAX_SHARERS, MOST_DRIVES, CompositionRule, Flavours, Load, Wanted
from farbus.scheduler.costs.policy import to_cost
from farbus.scheduler.phases.base import FAR, NO_ARC, Flags
from farbus.scheduler.phases.cluster import MAX_UNITS, Cluster
from farbus.scheduler.phases.stock import ANY_SITE
from farbus.scheduler.phases.tables import Integers

TIERS = FAR + 1
"""Flavours that are offered of each place: as many as an offer has tiers."""


class StorageShape(msgspec.Struct, frozen=True):
    """What one unit is: storage for one task.  ``devices`` is 0 where the policy chooses their number."""

    name: str
    size_bytes: int
    bytes_per_s: int
    devices: int
    profile: str
    left_s: float
    routes: frozenset[Route]
    subject: Hashable
    site: int = ANY_SITE

    @property
    def numbers(self) -> range:
        """Return how many drives may be used as one."""
        return range(self.devices, self.devices + 1) if self.devices else range(1, MOST_DRIVES + 1)

    def part(self, drives: int) -> tuple[int, int]:
        """Return the bytes and bytes a second that each of ``drives`` drives bears."""
        return -(-self.size_bytes // drives), -(-self.bytes_per_s // drives)


@dataclass(frozen=True, slots=True)
class Options:
    """Flavours of one shape at N places, at most :data:`TIERS` each, by tier and place; capacity 0 where there is none.

    ``drives`` are used as one; ``is_new`` where unused ones are looked at first.
    """

    place: Integers
    drives: Integers
    is_new: Flags
    capacity: Integers
    cost: Integers

    def units(self) -> Integers:
        """Return how many units each place could serve, by its row among the places."""
        summed: Integers = self.capacity.sum(axis=0)
        return summed

    def least(self) -> Integers:
        """Return the least cost at each place."""
        least: Integers = self.cost.min(axis=0, initial=NO_ARC)
        return least


class Drives:
    """The drives that their nodes offer as storage, N of them; all arrays have shape (N,).

    ``row`` is that of the device in the cluster, ``node`` that of its place.
    """

    def __init__(self, cluster: Cluster, profiles: Mapping[str, StorageProfile]) -> None:
        self.cluster = cluster
        self.profiles = profiles
        self.numbers = {"": 0, **{name: number for number, name in enumerate(sorted(profiles), start=1)}}
        offered = [
            row
            for row, device in enumerate(cluster.devices)
            if device.kind is DeviceKind.NVME and device.bandwidth_bytes_per_s > 0 and device.memory_bytes > 0
        ]
        self.row = np.array(offered, np.int64)
        self.index = {row: number for number, row in enumerate(offered)}
        self.node = cluster.device_node[self.row]
        self.pool = cluster.fabric.device_pool[self.row]
        self.capacity = np.array([cluster.devices[row].memory_bytes for row in offered], np.int64)
        self.bandwidth = np.array([cluster.devices[row].bandwidth_bytes_per_s for row in offered], np.int64)
        self.places = np.unique(self.node)
        self.load(cluster)

    def __len__(self) -> int:
        return len(self.row)

    def load(self, cluster: Cluster) -> None:
        """Take up what is free in ``cluster``: the same drives."""
        self.cluster = cluster
        self.ok = cluster.device_free[self.row]
        self.free_bytes, self.free_bytes_per_s = self.capacity.copy(), self.bandwidth.copy()
        self.sharers = np.zeros(len(self), np.int64)
        self.kind = np.zeros(len(self), np.int64)
        self.stores = np.zeros(len(self), bool)
        """Whether parts of volumes are on a drive, which then stays where it is."""
        self.load_factor = Load(0.0, 0.0)
        """The load of equation 4 when the round began."""
        self.patient = np.ones(len(self), bool)
        """Whether those who share a drive keep their deadlines beside one more."""
        for row, every in cluster.device_shares.items():
            number = self.index.get(row)
            if number is None:
                continue
            self.free_bytes[number] -= sum(share.size_bytes for share in every)
            self.free_bytes_per_s[number] -= sum(share.bandwidth_bytes_per_s for share in every)
            shares = tuple(share for share in every if not share.is_volume)
            self.stores[number] = len(shares) < len(every)
            if not shares:
                continue
            self.sharers[number] = len(shares)
            kinds = {self.numbers.get(share.profile, 0) for share in shares}
            self.kind[number] = kinds.pop() if len(kinds) == 1 else -1
            self.patient[number] = self._keep_deadlines(shares, int(self.bandwidth[number]))
        parts = []
        for free, whole in ((self.free_bytes_per_s, self.bandwidth), (self.free_bytes, self.capacity)):
            total = int(whole.sum())
            parts.append(1 - int(free.clip(min=0).sum()) / total if total else 0.0)
        self.load_factor = Load(*parts)

    def _keep_deadlines(self, shares: tuple[StorageShare, ...], bandwidth: int) -> bool:
        """Say whether all keep their deadlines beside one more (the paper's ``CanShare``).

        Who has missed his already has nothing to lose; of one of whom nobody
        knows when he began, nothing can be said.
        """
        at = self.cluster.at
        for share in shares:
            profile = self.profiles.get(share.profile)
            if profile is None or share.started_at is None or share.due_at is None or share.due_at < at:
                continue
            together = share.drives * bandwidth
            now = profile.execution_s(together, len(shares))
            remaining_s = max(0.0, now - (at - share.started_at))
            if remaining_s * profile.execution_s(together, len(shares) + 1) / now > share.due_at - at:
                return False
        return True

    def eligible(self, shape: StorageShape, drives: int) -> Flags:
        """Return the drives that could be one of ``drives`` for one more unit."""
        part_bytes, part_bytes_per_s = shape.part(drives)
        number = self.numbers.get(shape.profile, 0)
        fits = self.ok & (self.free_bytes >= part_bytes) & (self.free_bytes_per_s >= part_bytes_per_s)
        alone = self.sharers == 0
        kin = (self.kind == number) & self.patient
        if number:
            kin &= self.sharers < MAX_SHARERS
        eligible: Flags = fits & (alone | kin)
        return eligible

    def options(self, shape: StorageShape, rule: CompositionRule) -> Options:
        """Return the flavours of ``shape``, cheapest first at each place, and last the one that serves most units.

        Their capacities sum to what the place could serve, whichever the flavours.
        """
        wanted = self._wanted(shape)
        found = [
            (drives, is_new, *self._flavour(shape, drives, is_new, wanted, rule))
            for drives in shape.numbers
            for is_new in (False, True)
        ]
        size = len(self.places)
        drives = np.array([entry[0] for entry in found], np.int64)
        is_new = np.array([entry[1] for entry in found], bool)
        capacity = np.stack([entry[2] for entry in found])
        cost = np.stack([entry[3] for entry in found])
        cost = np.where(capacity > 0, cost, NO_ARC)
        order = np.argsort(cost, axis=0, kind="stable")
        cost, capacity = np.take_along_axis(cost, order, 0), np.take_along_axis(capacity, order, 0)
        columns = np.arange(size)
        if len(found) > TIERS and size:
            # The last tier is for what holds most.
            last = TIERS - 1 + np.argmax(capacity[TIERS - 1 :], axis=0)
            for array in (cost, capacity, order):
                array[TIERS - 1] = array[last, columns]
            cost, capacity, order = cost[:TIERS], capacity[:TIERS], order[:TIERS]
        reached = np.maximum.accumulate(capacity, axis=0)
        more = np.diff(reached, axis=0, prepend=np.zeros((1, size), np.int64))
        return Options(self.places, drives[order], is_new[order], more, np.where(more > 0, cost, NO_ARC))

    def _flavour(
        self, shape: StorageShape, drives: int, is_new: bool, wanted: Wanted, rule: CompositionRule
    ) -> tuple[Integers, Integers]:
        """Return the units and the cost of one flavour at each place."""
        part_bytes, part_bytes_per_s = shape.part(drives)
        eligible = self.eligible(shape, drives)
        used = self.sharers > 0
        looked_at = eligible & (used != is_new)
        # New units are shared by those that come after them.
        holding = eligible if is_new else looked_at
        row = np.searchsorted(self.places, self.node)
        size = len(self.places)
        there = np.where(np.bincount(row[looked_at], minlength=size) > 0, np.bincount(row[holding], minlength=size), 0)
        times = np.full(len(self), MAX_UNITS, np.int64)
        for free, part in ((self.free_bytes, part_bytes), (self.free_bytes_per_s, part_bytes_per_s)):
            if part:
                times = np.minimum(times, free // part)
        if wanted.profile is not None:
            times = np.minimum(times, MAX_SHARERS - self.sharers)
        units = np.bincount(row[holding], weights=times[holding], minlength=size).astype(np.int64) // drives
        units = np.where(there >= drives, np.minimum(units, MAX_UNITS), 0)

        def least(values: Integers) -> Integers:
            found = np.full(size, NO_ARC, np.int64)
            np.minimum.at(found, row[looked_at], values[looked_at])
            return np.where(found == NO_ARC, 0, found)

        sharers = np.zeros(size, np.int64)
        np.maximum.at(sharers, row[looked_at], self.sharers[looked_at])
        flavours = Flavours(
            drives=drives,
            is_new=is_new,
            bytes_per_s=drives * least(self.bandwidth),
            free_bytes=drives * least(self.free_bytes),
            free_bytes_per_s=drives * least(self.free_bytes_per_s),
            sharers=sharers,
            in_use=np.bincount(row[used], minlength=size) > 0,
        )
        cost = rule.costs(wanted, flavours, self.load_factor)
        possible = np.isfinite(cost) & (units > 0)
        return np.where(possible, units, 0), to_cost(np.where(possible, cost, 0.0))

    def _wanted(self, shape: StorageShape) -> Wanted:
        return Wanted(
            size_bytes=shape.size_bytes,
            bytes_per_s=shape.bytes_per_s,
            profile=self.profiles.get(shape.profile),
            left_s=shape.left_s,
        )

    def price(self, shape: StorageShape, chosen: Integers, rule: CompositionRule) -> int | None:
        """Return the cost of a new composition of the unused drives ``chosen``; None where it is no option."""
        drives = len(chosen)
        flavour = Flavours(
            drives=drives,
            is_new=True,
            bytes_per_s=drives * self.bandwidth[chosen].min(keepdims=True),
            free_bytes=drives * self.free_bytes[chosen].min(keepdims=True),
            free_bytes_per_s=drives * self.free_bytes_per_s[chosen].min(keepdims=True),
            sharers=np.zeros(1, np.int64),
            in_use=np.zeros(1, bool),
        )
        cost = rule.costs(self._wanted(shape), flavour, self.load_factor)
        return int(to_cost(cost)[0]) if np.isfinite(cost[0]) else None

    def choose(self, shape: StorageShape, place: int, drives: int, is_new: bool) -> Integers:
        """Return the drives of ``place`` for one unit, the tightest first; none where they do not suffice."""
        own = np.flatnonzero(self.eligible(shape, drives) & (self.node == place))
        if len(own) < drives:
            return np.zeros(0, np.int64)
        later = (self.sharers[own] > 0) == is_new
        return own[np.lexsort((own, self.free_bytes[own], self.free_bytes_per_s[own], later))[:drives]]

    def add(self, chosen: Integers, shape: StorageShape, by: int) -> None:
        """Count one unit more (1) or less (-1) on drives ``chosen``."""
        part_bytes, part_bytes_per_s = shape.part(len(chosen))
        if by > 0:
            self.kind[chosen] = self.numbers.get(shape.profile, 0)
        self.free_bytes[chosen] -= by * part_bytes
        self.free_bytes_per_s[chosen] -= by * part_bytes_per_s
        self.sharers[chosen] += by
        assert (self.free_bytes[chosen] >= 0).all(), "a drive is over its capacity"
        assert (self.free_bytes_per_s[chosen] >= 0).all(), "a drive is over its bandwidth"
        assert (self.sharers[chosen] >= 0).all(), "a drive is given back twice"
