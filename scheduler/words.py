"""How the scheduler says what happened, for stories, reasons and explanations."""

from __future__ import annotations

import datetime
import math
import signal
from collections.abc import Sequence

from farbus.model.explanation import Holder, Opening
from farbus.model.job import Job, JobStatus, Miss, TaskPlacement
from farbus.model.operation import Cordon
from farbus.model.states import JobState
from farbus.scheduler.records import NodeRecord
from farbus.scheduler.runs import TaskRun

MAX_CORDONS = 8
"""Cordons that an explanation names."""
MAX_HOLDERS = 8
"""Jobs that would have to end, which an explanation names."""
MAX_NAMED = 4
"""Nodes or devices named in one breath."""

COSTS = "costs compare places: the least is taken, and 1 is what finishing exactly at its goal would cost a job"
"""What a cost is, for who reads one (docs/scheduling.md)."""


def describe_time(wall: float) -> str:
    """Write seconds since the epoch as a moment in UTC, to the second."""
    return f"{datetime.datetime.fromtimestamp(wall, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


UNREACHABLE = "can't be reached"
"""How it is said of a node: who reads a reason looks for it."""


def describe_unreachable(wall: float) -> str:
    """Say of a node that it can't be reached, and when it was last heard; 0 where it never was."""
    return UNREACHABLE + (f", last heard at {describe_time(wall)}" if wall else "")


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


def describe_kept(job: Job | None) -> str:
    """Say for which job something is kept, and whose that is; nothing where for none."""
    return f"job {job.id} of {job.user}" if job is not None else ""


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
    devices = [
        f"{place.device} of {f'node {place.node}' if place.node else 'a pool'} ({place.route})"
        for place in task.devices
    ]
    told = f"task {task.task} placed on node {task.node}"
    if devices:
        told += f" with {', '.join(devices)}"
    return f"{told}: {task.why}" if task.why else told


def describe_wishes(status: JobStatus, *, now: float, expected_s: float | None) -> tuple[str, ...]:
    """Say what the job's owner wishes for it, and how that stands at ``now``, in seconds since the epoch.

    ``expected_s`` is how long its like took, None where nobody knows.
    """
    job, goal = status.job, status.job.goal
    usual = f"; its like took {describe_span(expected_s)}" if expected_s is not None else ""
    lines = []
    if goal.slo_s:
        counts = f", importance {goal.importance:g}" if goal.importance else ""
        lines.append(f"its goal: within {describe_span(goal.slo_s)} from its start{counts}{usual}")
    if not math.isinf(job.due_at):
        left = job.due_at - (status.ended_at or now)
        stands = f"missed by {describe_span(-left)}" if left < 0 else f"{describe_span(left)} from now"
        if status.ended_at and left >= 0:
            stands = "kept"
        lines.append(f"its deadline: {describe_time(job.due_at)}, {stands}{'' if goal.slo_s else usual}")
    return tuple(lines)


def explain_job(
    status: JobStatus,
    *,
    ahead: int,
    nodes: int,
    now: float,
    expected_s: float | None = None,
    cordons: Sequence[Cordon] = (),
    troubled: Sequence[NodeRecord] = (),
    lost: Sequence[str] = (),
) -> tuple[str, ...]:
    """Say why a job is where it is: what it waits for, where it went and why there; see :func:`describe_wishes`."""
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
        lines += [f"node {name} is lost: until it is back nothing of it is free" for name in lost[:MAX_CORDONS]]
        if len(lost) > MAX_CORDONS:
            lines.append(f"{len(lost) - MAX_CORDONS} more nodes are lost")
        if status.rounds_waited:
            away = [what for what, there in (("cordoned", cordons), ("in trouble", troubled), ("lost", lost)) if there]
            and_back = f" and what is {' or '.join(away)} took work again" if away else ""
            lines.append(f"the cluster could serve it if nothing else ran{and_back}")
            lines.append(f"rounds that left it waiting: {status.rounds_waited}")
    else:
        lines.append(
            f"job {status.job.id} {_describe_state(status.state)}{f': {status.reason}' if status.reason else ''}"
        )
        if status.tasks_waiting:
            lines.append(f"tasks of it that wait for room: {status.tasks_waiting}")
            lines += [describe_miss(miss) for miss in status.misses]
    lines += describe_wishes(status, now=now, expected_s=expected_s)
    if status.alternative:
        lines.append(f"it was placed as its alternative {status.alternative}")
    for task in status.placements:
        lines.append(describe_placement(task))
        if task.cost:
            lines.append(f"  cost {task.cost / 1000:g} in all")
    if any(task.cost or " at cost " in task.why for task in status.placements):
        lines.append(COSTS)
    return tuple(lines)


def _describe_state(state: JobState) -> str:
    if state in (JobState.SUCCEEDED, JobState.FAILED):
        return f"has {state}"
    return f"was {state}" if state is JobState.CANCELLED else f"is {state}"


def describe_opening(opening: Opening | None, *, ahead: int) -> tuple[str, ...]:
    """Say what would have to end so that a waiting job has room, and when that may be."""
    if opening is None:
        return ("the end of all that runs would not make room for it",)
    where = ", ".join(list(dict.fromkeys(task.node for task in opening.placements))[:MAX_NAMED])
    known = [_describe_holder(holder) for holder in opening.holders[:MAX_HOLDERS]]
    if len(opening.holders) > MAX_HOLDERS:
        known.append(f"{len(opening.holders) - MAX_HOLDERS} more")
    if opening.others:
        more = "more jobs" if known else "jobs"
        known.append(f"{opening.others} {more if opening.others > 1 else more[:-1]} of other users")
    if not known:
        return (f"there is room for it now, on {where}: the next round decides",)
    lines = [f"it would have room on {where} once these end: {'; '.join(known)}"]
    if opening.expected_s is None:
        lines.append("when that is nobody knows: not all of them have a time limit, or ran before")
    else:
        rivals = "the job" if ahead == 1 else f"one of the {ahead} jobs"
        first = f", unless {rivals} ahead takes it" if ahead else ""
        lines.append(f"that is expected within {describe_span(opening.expected_s)}{first}")
    return tuple(lines)


def describe_quota(user: str, jobs: Sequence[str]) -> tuple[str, ...]:
    """Say which jobs count for the quota that a waiting one of the same user does not fit into."""
    if not jobs:
        return ()
    more = f" and {len(jobs) - MAX_HOLDERS} more" if len(jobs) > MAX_HOLDERS else ""
    return (f"it waits for the end of other jobs of {user}: {', '.join(jobs[:MAX_HOLDERS])}{more}",)


def _describe_holder(holder: Holder) -> str:
    told = f"job {holder.job}" + (f" of {holder.user}" if holder.user else "")
    if holder.devices:
        told += f" ({', '.join(holder.devices[:MAX_NAMED])}{', ...' if len(holder.devices) > MAX_NAMED else ''})"
    if holder.ends_in_s is not None:
        told += f", within {describe_span(holder.ends_in_s)} by {holder.basis}" if holder.ends_in_s else ", now"
    return told


def describe_span(seconds: float) -> str:
    """Write a duration for a person, in its two largest units: ``2 h 5 min``."""
    left = max(0, round(seconds))
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def describe_miss(miss: Miss) -> str:
    """Say what was missing in a phase."""
    told = f"{miss.phase}: {miss.message}"
    if miss.nodes_short:
        told += f"; {miss.nodes_short} of {miss.nodes} nodes that suit have too little for a task"
    if miss.permanent:
        told += " (nothing that ends will change that)"
    return told
