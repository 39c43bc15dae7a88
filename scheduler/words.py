"""How the scheduler says what happened, for stories, reasons and explanations."""

from __future__ import annotations

import signal

from farbus.model.job import TaskPlacement
from farbus.scheduler.records import TaskRun


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
