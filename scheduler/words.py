"""How the scheduler says what happened, for stories, reasons and explanations."""

from __future__ import annotations

import datetime
import signal
from collections.abc import Sequence

from farbus.model.job import JobStatus, Miss, TaskPlacement
from farbus.model.operation import Cordon
from farbus.model.states import JobState
from farbus.scheduler.records import NodeRecord, TaskRun

MAX_CORDONS = 8
"""Cordons that an explanation names."""


def describe_time(wall: float) -> str:
    """Write seconds since the epoch as a moment in UTC, to the second."""
    return f"{datetime.datetime.fromtimestamp(wall, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


def describe_cordon(cordon: Cordon | None) -> str:
    """Say who has cordoned something, when and why; nothing where nobody has."""
    if cordon is None:
        return ""
    return f"{cordon.by}, {describe_time(cordon.at)}" + (f": {cordon.reason}" if cordon.reason else "")


def describe_closed(node: NodeRecord) -> str:
    """Say why a node takes nothing new: who has cordoned it, or what is wrong with it; nothing where it does."""
    if node.cordon is None and node.trouble:
        return f"node {node.name}: {node.trouble}"
    return describe_cordon(node.cordon)


def describe_exit(run: TaskRun) -> str:
    """Say how a task ended."""
    if run.exit_code < 0:
        try:
            name = signal.Signals(-run.exit_code).name
        except ValueError:
            name = "unknown"
        told = f"was ended by signal {-run.exit_code} ({name})"
    else:
        told = f"ended with exit status {run.exit_code}"
    return f"{told}: {run.reason}" if run.reason else told


def describe_placement(task: TaskPlacement) -> str:
    """Say where a task was placed and why."""
    devices = [f"{place.device} of node {place.node} ({place.route})" for place in task.devices]
    told = f"task {task.task} placed on node {task.node}"
    if devices:
        told += f" with {', '.join(devices)}"
    return f"{told}: {task.why}" if task.why else told


def explain_job(
    status: JobStatus, *, ahead: int, nodes: int, cordons: Sequence[Cordon] = (), troubled: Sequence[NodeRecord] = ()
) -> tuple[str, ...]:
    """Say why a job is where it is: what it waits for, where it went and why there."""
    lines = []
    if status.state is JobState.QUEUED:
        lines.append(f"job {status.job.id} waits; jobs ahead of it in the queue: {ahead}")
        if status.reason:
            lines.append(f"its last attempt was undone: {status.reason}")
        if not nodes:
            lines.append("no node is connected")
        elif not status.misses:
            lines.append("no round has considered it yet")
        lines += [describe_miss(miss) for miss in status.misses]
        # What a miss counts as taken may only be cordoned.
        lines += [f"{each.kind} {each.name} is cordoned: {describe_cordon(each)}" for each in cordons[:MAX_CORDONS]]
        if len(cordons) > MAX_CORDONS:
            lines.append(f"{len(cordons) - MAX_CORDONS} more nodes and devices are cordoned")
        lines += [f"node {node.name} takes nothing new: {node.trouble}" for node in troubled[:MAX_CORDONS]]
        if len(troubled) > MAX_CORDONS:
            lines.append(f"{len(troubled) - MAX_CORDONS} more nodes take nothing new")
        if status.rounds_waited:
            lines.append(f"rounds in which it would have fitted alone: {status.rounds_waited}")
    else:
        lines.append(f"job {status.job.id} is {status.state}" + (f": {status.reason}" if status.reason else ""))
    for task in status.placements:
        lines.append(describe_placement(task))
        if task.cost:
            lines.append(f"  cost {task.cost / 1000:g}")
    return tuple(lines)


def describe_miss(miss: Miss) -> str:
    """Say what was missing in a phase."""
    told = f"{miss.phase}: {miss.message}"
    if miss.permanent:
        told += " (nothing that ends will change that)"
    return told
