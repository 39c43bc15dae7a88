"""Why a job waits, in words: for each phase the nearest miss.

A miss is *permanent* when no state of the present cluster could serve the
job.  The functions here look at columns and know no phase; they return None
where there is room, so that a job without any miss is one whose parts fit
each by itself.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import msgspec
import numpy as np

from farbus.model.job import Miss, TaskGroup
from farbus.model.node import DIMENSIONS, amounts_of
from farbus.scheduler.phases.cluster import Cluster, Flags, Integers, fitting

COMPUTE = "compute"


def compute_miss(cluster: Cluster, free: Integers, group: TaskGroup) -> Miss | None:
    """Say why ``group`` finds no room on any node, in all dimensions together; None if it does."""
    misfit = _node_miss(cluster, group)
    if misfit is not None:
        return misfit
    allowed = _allowed(cluster, group)
    demand = amounts_of(group.requests)
    whole = np.where(allowed, fitting(cluster.capacity, demand), 0)
    if not whole.any():
        return _nearest(cluster, cluster.capacity, allowed, group, permanent=True)
    if int(whole.sum()) < group.count:
        return Miss(
            phase=COMPUTE,
            resource="nodes",
            message=(
                f"group {group.name} has {_tasks(group.count)}; "
                f"the cluster holds {int(whole.sum())} of them when nothing else runs"
            ),
            short_by=group.count - int(whole.sum()),
            permanent=True,
            nodes=int(allowed.sum()),
            nodes_short=int((allowed & (whole == 0)).sum()),
        )
    now = np.where(allowed, fitting(free, demand), 0)
    if int(now.sum()) >= group.count:
        return None
    if not now.any():
        return _nearest(cluster, free, allowed, group, permanent=False)
    full = allowed & (now == 0)
    closest = _nearest(cluster, free, full, group, permanent=False) if full.any() else None
    return Miss(
        phase=COMPUTE,
        resource="nodes",
        message=f"there is room for {int(now.sum())} of the {_tasks(group.count)} of group {group.name} now",
        short_by=group.count - int(now.sum()),
        nodes=int(allowed.sum()),
        nodes_short=int(full.sum()),
        closest=closest.closest if closest is not None else "",
        closest_short_by=closest.short_by if closest is not None else 0,
    )


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _allowed(cluster: Cluster, group: TaskGroup) -> Flags:
    allowed = cluster.labelled(tuple(sorted(group.labels.items())))
    if group.node:
        named = np.zeros(cluster.size, bool)
        named[cluster.index[group.node]] = True
        allowed = allowed & named
    return allowed


def _node_miss(cluster: Cluster, group: TaskGroup) -> Miss | None:
    """Say why no node may run the group at all, whatever it has."""
    if not cluster.schedulable.any():
        return Miss(phase=COMPUTE, resource="nodes", message="the cluster has no node that takes tasks", permanent=True)
    if group.node and group.node not in cluster.index:
        close = difflib.get_close_matches(group.node, cluster.names, n=1)
        hint = f" (is it {close[0]}?)" if close else ""
        return Miss(
            phase=COMPUTE, resource="node", message=f"there is no node called {group.node}{hint}", permanent=True
        )
    if _allowed(cluster, group).any():
        return None
    if group.node and not cluster.schedulable[cluster.index[group.node]]:
        return Miss(phase=COMPUTE, resource="node", message=f"node {group.node} takes no tasks now")
    labels = ", ".join(f"{key}={value}" for key, value in sorted(group.labels.items()))
    message = (
        f"node {group.node} does not have the labels {labels}" if group.node else f"no node has the labels {labels}"
    )
    return Miss(phase=COMPUTE, resource="labels", message=message, permanent=True)


def _nearest(cluster: Cluster, free: Integers, allowed: Flags, group: TaskGroup, *, permanent: bool) -> Miss:
    """Name the node that comes closest to room for one task, and what it lacks most of."""
    demand = np.array(amounts_of(group.requests), np.int64)
    short = (demand - free).clip(min=0)
    # Measured against the demand, so that processors and bytes compare.
    lack = short / np.maximum(demand, 1)
    lack[~allowed] = np.inf
    node = int(np.argmin(lack.max(axis=1)))
    column = int(np.argmax(lack[node]))
    missing = int(short[node, column])
    name = cluster.names[node]
    dimension = DIMENSIONS[column]
    form = dimension.write
    has = form(int(free[node, column]))
    only = f"node {name}" if group.node else f"the closest node, {name},"
    message = f"a task of group {group.name} needs {dimension.describe(int(demand[column]))}; {only} has {has}"
    message += " in all" if permanent else f" free: {form(missing)} short"
    return Miss(
        phase=COMPUTE,
        resource=dimension.name,
        message=message,
        short_by=missing,
        permanent=permanent,
        nodes=int(allowed.sum()),
        # Who calls has seen that none of them has room.
        nodes_short=int(allowed.sum()),
        closest=name,
        closest_short_by=missing,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNeed:
    """What a group wants of devices: ``count`` for each of ``tasks`` tasks; ``site`` the node it is bound to, or -1."""

    phase: str
    noun: str
    count: int
    tasks: int
    site: int
    local: bool
    remote: bool
    may_span: bool
    apart: bool = False
    """Whether some nodes that have such devices can't lend to the site: these are not counted."""
    why_apart: str = ""


def device_miss(cluster: Cluster, need: DeviceNeed, total: Integers, free: Integers) -> Miss | None:
    """Say why fitting devices (``total`` and ``free`` ones per node) do not serve ``need``; None if they do."""
    # A bundle that no node holds may come from several.
    spans = need.may_span and need.remote and int(total.max()) < need.count
    miss = _device_miss(cluster, need, total, spans=spans, permanent=True) or _device_miss(
        cluster, need, free, spans=spans, permanent=False
    )
    if miss is None:
        return None
    there = _usable(need, total if miss.permanent else free)
    meant = _usable(need, total) > 0
    short = meant & (there < need.count)
    if not short.any():
        return msgspec.structs.replace(miss, nodes=int(meant.sum()))
    closest = int(np.argmax(np.where(short, there, -1)))
    return msgspec.structs.replace(
        miss,
        nodes=int(meant.sum()),
        nodes_short=int(short.sum()),
        closest=cluster.names[closest],
        closest_short_by=need.count - int(there[closest]),
    )


def _usable(need: DeviceNeed, there: Integers) -> Integers:
    """Return the devices per node that the site of ``need`` can be given at all."""
    usable = there.copy()
    if need.site >= 0 and not need.remote:
        usable[:] = 0
        usable[need.site] = there[need.site]
    elif need.site >= 0 and not need.local:
        usable[need.site] = 0
    return usable


def _device_miss(cluster: Cluster, need: DeviceNeed, there: Integers, *, spans: bool, permanent: bool) -> Miss | None:
    usable = _usable(need, there)
    where = "the cluster"
    if need.site >= 0 and not need.remote:
        where = f"node {cluster.names[need.site]}"
    elif need.site >= 0 and not need.local:
        where = f"the cluster beside node {cluster.names[need.site]}"
    if need.apart and need.remote:
        where = f"what may lend to node {cluster.names[need.site]}{' with that node' if need.local else ''}"
    wanted = need.count * need.tasks
    amount = int(usable.sum())
    suited = "" if permanent else " that suits and is free" if amount == 1 else " that suit and are free"

    def miss(message: str, short_by: int) -> Miss:
        told = f"{message}; {need.why_apart}" if need.apart and need.remote and need.why_apart else message
        return Miss(phase=need.phase, resource=need.noun.lower(), message=told, short_by=short_by, permanent=permanent)

    # What the cluster has but no node: only GPUs by remoting may be of several.
    span = "; gpu_span (--gpu-span) takes them of several" if permanent and need.noun == "GPU" and need.remote else ""

    if amount < wanted:
        return miss(
            f"{_devices(wanted, need.noun)} wanted; {where} has {amount}{suited}: {wanted - amount} short",
            wanted - amount,
        )
    bundles = int((usable // need.count).sum())
    if spans or bundles >= need.tasks:
        return None
    most = int(np.argmax(usable))
    if not bundles:
        return miss(
            f"{_devices(need.count, need.noun)} on one node wanted; "
            f"{cluster.names[most]} comes closest with {int(usable[most])}{'' if permanent else ' free'}{span}",
            need.count - int(usable[most]),
        )
    return miss(
        f"{_devices(need.count, need.noun)} on one node wanted for each of {_tasks(need.tasks)}; "
        f"{where} has them for {bundles}{'' if permanent else ' now'}{span}",
        need.tasks - bundles,
    )


def _devices(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"
