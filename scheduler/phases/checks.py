"""What a round can calculate with: checks of what jobs ask for.

They are made when a job is submitted, and once more by the first round that
looks at it: a ledger may hold jobs that another version let in.  What a person
could write wrongly beside that (texts, paths, commands) is looked at when the
job is submitted alone (:mod:`farbus.scheduler.queue`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable

from farbus.errors import InvalidInput
from farbus.model.flavour import MAX_DECISIONS, MAX_FLAVOURS, is_vector
from farbus.model.job import (
    MAX_ALTERNATIVE_COST,
    MAX_DRIVES,
    MAX_RESOURCE,
    Job,
    ServiceRequest,
    StorageRequest,
    TaskGroup,
)
from farbus.model.node import DIMENSIONS, amounts_of
from farbus.model.quantity import MAX_BYTES, MAX_NETWORK_MBIT_S, MAX_SHARE_MILLI
from farbus.scheduler.phases.cluster import MAX_UNITS

MAX_TASKS = 4_096
"""Tasks of a job; all of them are placed in one round."""
MAX_GPUS_PER_TASK = 1_024
"""GPUs of a task; far more than one program can address."""

Limit = tuple[str, float, float, float]
"""A field, its value, and the least and the most that it may be."""


def check(good: bool, field: str, reason: str, *, hint: str = "") -> None:
    """Raise :class:`InvalidInput` that names ``field`` unless ``good``."""
    if not good:
        raise InvalidInput(f"{field}: {reason}", hint=hint)


def check_numbers(whose: str, limits: Iterable[Limit]) -> None:
    """Raise :class:`InvalidInput` for the first value out of its limits; ``whose`` comes before the field's name."""
    for field, value, least, most in limits:
        # What is no number fails both.
        if not least <= value <= most:
            check(math.isfinite(value), whose + field, f"{value} is not a number")
            check(value >= least, whose + field, f"{value:g} is less than {least:g}")
            check(value <= most, whose + field, f"{value:g} is more than {most:g}")


def check_names(field: str, names: Iterable[Hashable]) -> None:
    """Raise :class:`InvalidInput` where two names are the same."""
    names = tuple(names)
    check(len(set(names)) == len(names), field, "two have the same name")


def check_demand(job: Job) -> None:
    """Raise :class:`InvalidInput`, with field and reason, for a job on which no round could decide on any cluster."""
    check(bool(job.groups), "groups", "is empty", hint="a job has at least one group of tasks")
    names = [group.name for group in job.groups]
    check(len(set(names)) == len(names), "groups", "two groups have the same name")
    _check_groups(job.groups, "")
    tasks = sum(group.count for group in job.groups)
    check(tasks <= MAX_TASKS, "groups", f"{tasks} tasks are more than {MAX_TASKS}")
    _check_flavours(job)
    check_names("alternatives", [each.name for each in job.alternatives])
    for index, each in enumerate(job.alternatives):
        field = f"alternatives[{index}]."
        # The job as it stands is called so.
        check(bool(each.name), f"{field}name", "'' is not a name")
        check_numbers(field, [("cost", each.cost, 0, MAX_ALTERNATIVE_COST)])
        _check_groups(job.in_flavour(each.name).groups, field)


def _check_groups(groups: Iterable[TaskGroup], whose: str) -> None:
    for index, group in enumerate(groups):
        field = f"{whose}groups[{index}]."
        wanted = group.requests
        check_numbers(
            field,
            (
                ("count", group.count, 1, MAX_TASKS),
                ("min_count", group.min_count, 0, group.count),
                *(
                    (f"requests.{each.name}", amount, 0, each.most)
                    for each, amount in zip(DIMENSIONS, amounts_of(wanted), strict=True)
                ),
                ("requests.remote_network_mbit_s", wanted.remote_network_mbit_s or 0, 0, MAX_NETWORK_MBIT_S),
                ("requests.gpus", wanted.gpus, 0, MAX_GPUS_PER_TASK),
                ("requests.gpu_memory_bytes", wanted.gpu_memory_bytes, 0, MAX_BYTES),
                ("requests.gpu_share_milli", wanted.gpu_share_milli, 0, MAX_SHARE_MILLI),
            ),
        )
        if wanted.gpus:
            gpus = group.count * wanted.gpus
            check(gpus <= MAX_UNITS, f"{field}requests.gpus", f"{gpus} of all tasks together are more than {MAX_UNITS}")
            check(bool(group.routes), f"{field}routes", "is empty", hint="use local, remote or both")
        if group.storage:
            _check_storage(group.storage, group, field)
        if group.flavour:
            good = is_vector(group.flavour)
            check(good, f"{field}flavour", f"is no vector of at most {MAX_DECISIONS} of 0, 1 and x")
        if group.service is not None:
            _check_service(group.service, field)


def _check_storage(storage: Iterable[StorageRequest], group: TaskGroup, whose: str) -> None:
    check_names(f"{whose}storage", [request.name for request in storage])
    for index, request in enumerate(storage):
        field = f"{whose}storage[{index}]."
        check_numbers(
            field,
            (
                ("size_bytes", request.size_bytes, 0 if request.volume else 1, MAX_BYTES),
                ("bandwidth_bytes_per_s", request.bandwidth_bytes_per_s, 0, MAX_BYTES),
                ("devices", request.devices, 0, MAX_DRIVES),
            ),
        )
        check(bool(request.routes or group.routes), f"{field}routes", "is empty", hint="use local or remote")


def _check_service(service: ServiceRequest, whose: str) -> None:
    for kind, amounts in (("own", service.own), ("shared", service.shared)):
        check_numbers(f"{whose}service.{kind}.", [(name, each, 0, MAX_RESOURCE) for name, each in amounts.items()])


def _check_flavours(job: Job) -> None:
    if not (job.is_polymorphic or job.composites):
        return
    whole = all(group.least == group.count for group in job.groups)
    what = "composites" if job.composites else "groups.flavour"
    check(whole, what, "a job that has them needs all of its tasks (no min_count)")
    check(not job.alternatives, what, "a job has them or alternatives, not both")
    check(len(job.flavours) <= MAX_FLAVOURS, what, f"can be decided in more than {MAX_FLAVOURS} ways")
