"""What a new agent does about what an earlier one left: observed against recorded.

Pure.  In this version nothing that an agent starts outlives it (guards kill
what they guard when the agent's end of their pipe closes), so what is desired
after a start is an empty node with the statuses of its ended tasks; whatever
else is observed is cleaned up, found by identity and not by guessing.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from farbus.agent.journal import Step
from farbus.model.job import TaskState, TaskStatus
from farbus.model.value import Value

# What a shell reports for a program that SIGKILL ended, as this project writes it: negative.
KILLED = -9


class Observed(Value, frozen=True, kw_only=True):
    """What is there: names of guards' programs, of session files and of cgroups that are this agent's."""

    guards: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()


class Reconciled(Value, frozen=True, kw_only=True):
    """What to do: end ``guards`` first, then remove the rest; tell the scheduler of ``ended_tasks``.

    ``released`` are the objects that had been prepared or started, and are
    no more: their last step gets its compensation recorded.
    """

    guards: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()
    ended_tasks: tuple[tuple[str, TaskStatus], ...] = ()
    released: tuple[Step, ...] = ()


class _Run(msgspec.Struct):
    job: str
    task: str


class _StartBody(msgspec.Struct):
    run: _Run


# A start whose end was not recorded, or a stop: the program ran, and nobody has written how it ended.
_RAN = ("StartTask", "StopTask")


_FORWARD = {"PrepareDevices": "UnprepareDevices", "PrepareClient": "UnprepareClient", "StartTask": "StopTask"}


def compensation_of(action: str) -> str:
    """Name the action that undoes ``action``."""
    return _FORWARD[action]


def reconcile(
    *,
    node: str,
    boot_id: str,
    steps: Iterable[Step],
    ended_tasks: Iterable[tuple[str, TaskStatus]],
    observed: Observed,
) -> Reconciled:
    """Compare what was recorded with what is observed; return what makes this node clean."""
    ended = {(job, status.task): status for job, status in ended_tasks}
    released = []
    for step in steps:
        undone = step.action not in (*_FORWARD, "StopTask") and step.completed and not step.error
        never_was = step.action in _FORWARD and step.completed and bool(step.error)
        if undone or never_was:
            continue
        released.append(step)
        if step.action in _RAN:
            run = _task_of(step)
            why = "the agent ended while it ran" if step.boot_id == boot_id else "the node was rebooted while it ran"
            status = TaskStatus(
                task=run.task, state=TaskState.EXITED, node=node, exit_code=KILLED, reason=f"{why} (node {node})"
            )
            ended.setdefault((run.job, run.task), status)
    return Reconciled(
        guards=observed.guards,
        sessions=observed.sessions,
        cgroups=observed.cgroups,
        ended_tasks=tuple((job, status) for (job, _), status in sorted(ended.items(), key=lambda item: item[0])),
        released=tuple(released),
    )


def _task_of(step: Step) -> _Run:
    if step.action == "StartTask":
        return msgspec.json.decode(step.body, type=_StartBody).run
    return msgspec.json.decode(step.body, type=_Run)
