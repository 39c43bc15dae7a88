"""What a round placed, as columns: made into placements and words where somebody wants those.

A decision is done when it is known which node and which devices each task has;
the rest of it (objects, why it went there, what would have been next best) is
for those who commit it, keep it and read it.  Columns are also what travels
from the process that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from farbus.model.decision import JobPlacement
from farbus.model.device import Route
from farbus.model.job import DevicePlacement, TaskPlacement
from farbus.model.value import Value
from farbus.scheduler.phases.base import Desk
from farbus.scheduler.phases.cluster import Cluster
from farbus.scheduler.phases.flavours import Flavours
from farbus.scheduler.phases.jobs import Jobs
from farbus.scheduler.phases.reasons import REASON, Reasons
from farbus.scheduler.phases.tables import Integers, Table, ahead, ranges

TASK = np.dtype([(name, np.int64) for name in ("job", "group", "number", "node", "cost", "reason")])
"""Task ``number`` of a group (a row of names) of a job (a row of jobs); ``reason`` is a row of reasons."""

UNIT = np.dtype([(name, np.int64) for name in ("task", "part", "reason", "size")])
"""Something of a later phase that a task has, of ``size`` devices; rows are in the order of tasks."""

DEVICE = np.dtype([(name, np.int64) for name in ("device", "node", "route")])
"""A device of a unit, its node (-1: of a fabric pool) and the row of its route; in the order of units."""

ROUTES = (Route.LOCAL, Route.REMOTE, Route.RECOMPOSED)

Part = tuple[str, int, int]
"""What a task has of each device of a unit: the name of its storage, bytes, bytes a second; empty for all of it."""


class PackedPlaced(Value, frozen=True, kw_only=True):
    """What travels of :class:`Placed`: its tables as bytes, and only the names that occur in them."""

    jobs: tuple[str, ...]
    alternatives: dict[int, str]
    groups: tuple[str, ...]
    names: tuple[str, ...]
    devices: tuple[str, ...]
    parts: tuple[Part, ...]
    texts: tuple[str, ...]
    tables: tuple[bytes, bytes, bytes, bytes]


@dataclass(slots=True, kw_only=True)
class Placed:
    """See the module.  ``alternatives`` names those that were chosen, by the row of the job."""

    jobs: Sequence[str]
    groups: Sequence[str]
    names: Sequence[str]
    device_id: Callable[[int], str]
    tasks: Table
    units: Table
    devices: Table
    parts: Sequence[Part]
    alternatives: Mapping[int, str]
    find_reasons: Callable[[], Reasons]
    _reasons: Reasons | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def reasons(self) -> Reasons:
        """Why tasks and units went where they did; found when it is asked for."""
        if self._reasons is None:
            self._reasons = self.find_reasons()
        return self._reasons

    def placements(self, *, words: bool = True) -> Iterator[JobPlacement]:
        """Yield the placement of each job, in the order of rank; without ``words`` nobody is told why."""
        told = self.reasons.words(self.names) if words else None
        units = self._units(told)
        ends = np.cumsum(np.bincount(self.units["task"], minlength=len(self.tasks))).tolist()
        names, groups = self.names, self.groups
        tasks: list[TaskPlacement] = []
        at, start = 0, 0
        columns = zip(*(self.tasks[name].tolist() for name in TASK.names or ()), ends, strict=True)
        for job, group, number, node, cost, reason, end in columns:
            if job != at:
                yield self._placement(at, tasks)
                tasks, at = [], job
            why = told[reason] if told is not None else ""
            devices: tuple[DevicePlacement, ...] = ()
            if end == start + 1:
                devices, more = units[start]
                if more != why:
                    why = f"{why}; {more}"
            elif end > start:
                own = units[start:end]
                devices = tuple([device for each in own for device in each[0]])
                why = "; ".join(dict.fromkeys([why, *[each[1] for each in own]]))
            start = end
            tasks.append(
                TaskPlacement(task=f"{groups[group]}.{number}", node=names[node], devices=devices, cost=cost, why=why)
            )
        if tasks:
            yield self._placement(at, tasks)

    def _placement(self, job: int, tasks: list[TaskPlacement]) -> JobPlacement:
        return JobPlacement(job=self.jobs[job], tasks=tuple(tasks), alternative=self.alternatives.get(job, ""))

    def _units(self, told: list[str] | None) -> list[tuple[tuple[DevicePlacement, ...], str]]:
        """Return the devices of each unit, and why they were given."""
        names, device_id = self.names, self.device_id
        devices = zip(*(self.devices[name].tolist() for name in DEVICE.names or ()), strict=True)
        found = []
        columns = (self.units["part"].tolist(), self.units["reason"].tolist(), self.units["size"].tolist())
        for part, reason, size in zip(*columns, strict=True):
            storage, size_bytes, bytes_per_s = self.parts[part]
            own = []
            for _ in range(size):
                device, node, route = next(devices)
                own.append(
                    DevicePlacement(
                        device=device_id(device),
                        node=names[node] if node >= 0 else "",
                        route=ROUTES[route],
                        storage=storage,
                        size_bytes=size_bytes,
                        bandwidth_bytes_per_s=bytes_per_s,
                    )
                )
            found.append((tuple(own), told[reason] if told is not None else ""))
        return found

    def packed(self) -> PackedPlaced:
        """Return what travels."""
        tasks, devices, reasons = self.tasks.copy(), self.devices.copy(), self.reasons.table.copy()
        used, row = np.unique(
            np.concatenate((tasks["node"], devices["node"], reasons["place"], reasons["other"])), return_inverse=True
        )
        # No node stays none.
        row -= int(np.searchsorted(used, 0))
        columns = np.split(row, np.cumsum((len(tasks), len(devices), len(reasons))))
        tasks["node"], devices["node"], reasons["place"], reasons["other"] = columns
        ids = [self.device_id(device) for device in devices["device"].tolist()]
        devices["device"] = np.arange(len(devices))
        return PackedPlaced(
            jobs=tuple(self.jobs),
            alternatives=dict(self.alternatives),
            groups=tuple(self.groups),
            names=tuple([self.names[each] for each in used[used >= 0].tolist()]),
            devices=tuple(ids),
            parts=tuple(self.parts),
            texts=self.reasons.texts,
            tables=(tasks.tobytes(), self.units.tobytes(), devices.tobytes(), reasons.tobytes()),
        )

    @staticmethod
    def unpacked(packed: PackedPlaced) -> Placed:
        """Return what :meth:`packed` was made of."""
        tasks, units, devices, reasons = (
            np.frombuffer(data, kind) for data, kind in zip(packed.tables, (TASK, UNIT, DEVICE, REASON), strict=True)
        )
        found = Reasons(packed.texts, reasons)
        return Placed(
            jobs=packed.jobs,
            groups=packed.groups,
            names=packed.names,
            device_id=packed.devices.__getitem__,
            tasks=tasks,
            units=units,
            devices=devices,
            parts=packed.parts,
            alternatives=packed.alternatives,
            find_reasons=lambda: found,
        )


def lay_out(
    cluster: Cluster, desks: Sequence[Desk], jobs: Jobs, flavours: Flavours, rows: Integers, more: Integers
) -> Placed:
    """Lay out what jobs ``rows`` (ascending) were awarded, and their tasks ``more`` beyond what they need."""
    every = np.concatenate((rows, more)) if len(more) else rows
    first, later = desks[0], desks[1:]
    groups = max((len(form.groups) for form in jobs.forms), default=1)

    def spots(awards: Table, nodes: Integers) -> Integers:
        """Return one number for a group of a job on a node: its tasks there share what they were granted."""
        numbers: Integers = (awards["job"] * groups + awards["group"]) * cluster.size + nodes
        return numbers

    awards = jobs.awards(first.phase).of(every)
    told: list[tuple[Desk, Table]] = [(first, awards)]
    count = awards["count"]
    own = np.repeat(np.arange(len(awards)), count)
    ends = np.cumsum(count)
    tasks = np.zeros(len(own), TASK)
    nth = ahead(awards["job"] * groups + awards["group"], count) - (ends - count)
    tasks["number"] = np.arange(len(own)) + nth[own]
    tasks["job"], tasks["node"] = awards["job"][own], awards["place"][own]
    tasks["cost"], tasks["reason"] = awards["cost"][own], own
    spot = spots(awards, awards["place"])[own]
    by_spot = np.argsort(spot, kind="stable")
    parts: dict[Part, int] = {("", 0, 0): 0}
    units, devices, reasons = [np.zeros(0, UNIT)], [np.zeros(0, DEVICE)], len(awards)
    for desk in later:
        held = jobs.awards(desk.phase).of(every)
        if not len(held):
            continue
        told.append((desk, held))
        shapes, sites = desk.split(held["source"])
        shared = _Shared(spots(held, sites), shapes, held["count"], spot, by_spot)
        unit = shared.award[shared.order]
        given = np.zeros(len(unit), UNIT)
        given["task"], given["reason"] = shared.task[shared.order], reasons + unit
        size = held["size"][shared.award]
        starts = np.cumsum(size) - size
        their = jobs.awards(desk.phase).devices_of(held)[ranges(starts[shared.order], size[shared.order])]
        holder = np.repeat(np.arange(len(unit)), size[shared.order])
        real = np.flatnonzero(their >= 0)
        given["size"] = np.bincount(holder[real], minlength=len(unit))
        given["part"] = _parts(desk, shapes[unit], given["size"], parts)
        whose = unit[holder[real]]
        units.append(given)
        devices.append(_devices(cluster, their[real], sites[whose], held["place"][whose]))
        tasks["cost"] += np.bincount(given["task"], weights=held["cost"][unit], minlength=len(tasks)).astype(np.int64)
        reasons += len(held)
    names = _name_groups(tasks, awards["group"][own], jobs, more)
    order = np.argsort(tasks["job"], kind="stable") if len(more) else np.arange(len(tasks))
    unit_table, device_table = _by_task(units, devices, order)
    first_arcs = [desk.first for desk, _ in told]
    chosen = flavours.names()
    number = np.zeros(jobs.count, np.int64)
    number[rows] = np.arange(len(rows))
    tasks = tasks[order]
    tasks["job"] = number[tasks["job"]]
    pending = jobs.pending
    return Placed(
        jobs=[pending[row].job.id for row in rows.tolist()],
        groups=names,
        names=cluster.names,
        device_id=lambda row: cluster.devices[row].id,
        tasks=tasks,
        units=unit_table,
        devices=device_table,
        parts=tuple(parts),
        alternatives={at: chosen[row] for at, row in enumerate(rows.tolist()) if row in chosen} if chosen else {},
        find_reasons=lambda: Reasons.joined(
            [desk.reasons(table, arcs) for (desk, table), arcs in zip(told, first_arcs, strict=True)]
        ),
    )


class _Shared:
    """How tasks of a group on a node share what a phase granted there: each has its part of each shape.

    ``award`` and ``task`` are the rows of each unit, ``order`` puts units in the order of tasks.
    """

    def __init__(self, at: Integers, shapes: Integers, count: Integers, spot: Integers, by_spot: Integers) -> None:
        self.award = np.repeat(np.arange(len(at)), count)
        kind = at * (int(shapes.max()) + 1) + shapes
        _, first, row = np.unique(kind, return_index=True, return_inverse=True)
        units = np.bincount(row, weights=count).astype(np.int64)
        sorted_spot = spot[by_spot]
        start = np.searchsorted(sorted_spot, at[first])
        tasks = np.searchsorted(sorted_spot, at[first], side="right") - start
        share = units // tasks
        mine = row[self.award]
        nth = ahead(row, count)[self.award] + np.arange(len(mine)) - (np.cumsum(count) - count)[self.award]
        # The first task has the last ones.
        self.task = by_spot[(start + tasks - 1)[mine] - nth // share[mine]]
        self.order = np.lexsort((nth, first[mine], self.task))


def _parts(desk: Desk, shapes: Integers, sizes: Integers, parts: dict[Part, int]) -> Integers | int:
    """Return the row among ``parts``, which grows, of what units have of each of their devices."""
    if type(desk).part is Desk.part:
        return 0
    span = int(sizes.max(initial=0)) + 1
    kinds, row = np.unique(shapes * span + sizes, return_inverse=True)
    found = [parts.setdefault(desk.part(*divmod(kind, span)), len(parts)) for kind in kinds.tolist()]
    rows: Integers = np.array(found, np.int64)[row.reshape(-1)]
    return rows


def _devices(cluster: Cluster, devices: Integers, sites: Integers, places: Integers) -> Table:
    """Return the table of ``DEVICE`` of devices (rows) that tasks on ``sites`` were given at ``places``."""
    is_pool = cluster.fabric.is_pool
    at = cluster.device_node[devices]
    found = np.zeros(len(devices), DEVICE)
    found["device"] = devices
    found["node"] = np.where(is_pool[at], -1, at)
    found["route"] = np.where(is_pool[places], ROUTES.index(Route.RECOMPOSED), ROUTES.index(Route.REMOTE))
    found["route"][at == sites] = ROUTES.index(Route.LOCAL)
    return found


def _name_groups(tasks: Table, group: Integers, jobs: Jobs, more: Integers) -> list[str]:
    """Write the names of the tasks' groups, as rows of what is returned; tasks beyond the needed go to their jobs."""
    names: dict[str, int] = {}
    for row in more.tolist():
        parent, number = jobs.parents[row - jobs.count]
        its = np.flatnonzero(tasks["job"] == row)
        tasks["job"][its], group[its] = parent, number
    span = int(group.max(initial=0)) + 1
    kinds, row = np.unique(jobs.form[tasks["job"]] * span + group, return_inverse=True)
    found = []
    for kind in kinds.tolist():
        form, number = divmod(kind, span)
        found.append(names.setdefault(jobs.forms[form].groups[number].name, len(names)))
    tasks["group"] = np.array(found, np.int64)[row.reshape(-1)]
    if len(more):
        # They come last: the next numbers of their groups.
        beyond = tasks[len(tasks) - len(more) :]
        least = [
            jobs.form_of(job).groups[number].count
            for job, number in zip(beyond["job"].tolist(), group[len(tasks) - len(more) :].tolist(), strict=True)
        ]
        whole = beyond["job"] * span + group[len(tasks) - len(more) :]
        beyond["number"] = np.array(least, np.int64) + ahead(whole, np.ones(len(more), np.int64))
    return list(names)


def _by_task(units: list[Table], devices: list[Table], order: Integers) -> tuple[Table, Table]:
    """Return units and devices of all phases in the order of tasks, which are put in ``order``."""
    unit, device = np.concatenate(units), np.concatenate(devices)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    unit["task"] = place[unit["task"]]
    if len(units) > 2 or (unit["task"][1:] < unit["task"][:-1]).any():
        turn = np.argsort(unit["task"], kind="stable")
        starts = np.cumsum(unit["size"]) - unit["size"]
        device = device[ranges(starts[turn], unit["size"][turn])]
        unit = unit[turn]
    return unit, device
