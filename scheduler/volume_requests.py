"""What people ask of volumes, and of storage for their jobs, held against what there is; or refused.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from farbus.api.identity import Identity
from farbus.errors import Conflict, InvalidInput, NotFound, NotPermitted
from farbus.model.job import GroupVariant, Job, StorageRequest, TaskGroup
from farbus.model.states import VolumeState
from farbus.model.volume import StorageUse
from farbus.scheduler.phases.checks import check, check_names
from farbus.scheduler.stored import routes_of
from farbus.scheduler.volume_plans import LIST
from farbus.scheduler.volume_records import VolumeRecord
from farbus.scheduler.volumes import Volumes

G = TypeVar("G", TaskGroup, GroupVariant)


def volume_of_caller(machine: Volumes, caller: Identity, name: str) -> VolumeRecord:
    """Return a volume that the caller may use; raise :class:`NotFound` for others' as for what is not there."""
    record = machine.volumes.get(name)
    if record is None or not caller.may_manage(record.volume.user):
        raise NotFound(
            f"there is no volume {name[:80]} that you may use",
            hint="farbus volume list lists yours; operators of the cluster see everybody's",
        )
    return record


def with_storage_settled(machine: Volumes, caller: Identity, job: Job) -> Job:
    """Return a job whose storage says by which routes it may be given, and of volumes how many parts they have.

    Raises :class:`NotFound` for a volume that is not there or is somebody
    else's, :class:`Conflict` for one that can't be used yet or any more, and
    what else is wrong with the job's storage with its field.
    """
    if not any(group.storage for group in _groups(job)):
        return job
    check(not job.interactive, "storage", "is for jobs that run without a terminal", hint="use farbus submit")
    for name in job.flavours:
        _check_alone(job.in_flavour(name))

    def settled(group: G, count: int, field: str) -> G:
        return msgspec.structs.replace(
            group,
            storage=tuple(
                _settled(machine, caller, job, request, group, count, f"{field}.storage[{index}]")
                for index, request in enumerate(group.storage)
            ),
        )

    counts = {group.name: group.count for group in job.groups}
    groups = tuple(settled(group, group.count, f"groups[{at}]") for at, group in enumerate(job.groups))
    alternatives = tuple(
        msgspec.structs.replace(
            each,
            groups=tuple(
                settled(variant, counts[variant.name], f"alternatives[{at}].groups[{number}]")
                for number, variant in enumerate(each.groups)
            ),
        )
        for at, each in enumerate(job.alternatives)
    )
    return msgspec.structs.replace(job, groups=groups, alternatives=alternatives)


def _groups(job: Job) -> Iterable[TaskGroup | GroupVariant]:
    yield from job.groups
    for each in job.alternatives:
        yield from each.groups


def _check_alone(job: Job) -> None:
    names = [request.volume for group in job.groups for request in group.storage if request.volume]
    check_names("storage.volume", names)


def _settled(
    machine: Volumes,
    caller: Identity,
    job: Job,
    request: StorageRequest,
    group: TaskGroup | GroupVariant,
    count: int,
    field: str,
) -> StorageRequest:
    routes = routes_of(request, group)
    check(bool(routes), f"{field}.routes", "none of the group's is one for storage", hint="use local or remote")
    if request.use is StorageUse.SWAP and not caller.is_operator:
        raise NotPermitted(f"{field}.use: swap is memory of a whole node, and for operators only", hint="use mmap")
    if not request.volume:
        return msgspec.structs.replace(request, routes=routes)
    check(
        count == 1,
        f"{field}.volume",
        f"volume {request.volume} can be used by one task at a time, and the group has {count}",
        hint="give it a group of its own with count = 1",
    )
    try:
        record = volume_of_caller(machine, caller, request.volume)
    except NotFound as error:
        raise NotFound(f"{field}.volume: {error.message}", hint=error.hint) from error
    volume = record.volume
    if not caller.is_operator and job.user != volume.user:
        raise NotPermitted(f"{field}.volume: volume {volume.name} is not {job.user}'s")
    if volume.state is not VolumeState.AVAILABLE:
        raise Conflict(f"{field}.volume: volume {volume.name} is {volume.state}", hint=LIST)
    if request.devices not in (0, len(volume.parts)):
        raise InvalidInput(
            f"{field}.devices: is set, and volume {volume.name} has its own", hint="leave it out beside volume"
        )
    return msgspec.structs.replace(request, routes=routes, devices=len(volume.parts))
