"""Job files: TOML or JSON that people write, checked and turned into a :class:`Job`.

The structs here are the file's form (``farbus schema job`` is generated from
them); :class:`farbus.model.job.Job` is what the cluster understands.  Every
error is one line that names the file, the field and what is allowed there.
"""

from __future__ import annotations

import datetime
import math
import os
import re
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from farbus.cli.decoding import decode_file, read_file
from farbus.cli.faults import current_directory
from farbus.errors import InvalidInput
from farbus.model.device import Route
from farbus.model.flavour import MAX_DECISIONS
from farbus.model.job import (
    MAX_ALTERNATIVE_COST,
    MAX_ALTERNATIVES,
    MAX_COMPOSITES,
    MAX_DRIVES,
    MAX_IMPORTANCE,
    MAX_RESOURCE,
    MAX_RESOURCES,
    MAX_STORAGE,
    Alternative,
    Composite,
    Goal,
    GroupVariant,
    Job,
    Requests,
    ServiceRequest,
    StorageRequest,
    TaskGroup,
)
from farbus.model.quantity import (
    parse_bytes,
    parse_cpu,
    parse_network,
    parse_rate,
    parse_seconds,
    parse_share,
    parse_storage,
)
from farbus.model.staging import check_path
from farbus.model.volume import FileSystem, StorageUse, check_volume_name, is_mount_path

MAX_TASKS = 4096
"""Most tasks of one job."""

MAX_GPUS = 64
"""Most GPUs of one task: four of the largest servers."""

MAX_ARGUMENTS_BYTES = 128 * 2**10
"""Longest command, like the kernel's limit on one argument (MAX_ARG_STRLEN, linux/binfmts.h)."""

MAX_PRIORITY = 1000

MAX_NAME = 128
"""Characters of a name that is looked up in the scheduler's store, or among what devices have."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_NAME_RULE = "use 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
_PART = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
_PART_RULE = "use 1 to 63 letters, digits, '-' or '_', with a letter or digit at both ends"
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ResourceTable(msgspec.Struct, forbid_unknown_fields=True, rename=None):
    """What each task needs, all of it at once."""

    cpus: Annotated[str | int | float, Meta(description="Processors: 2, 0.5 or '250m'.")] = 1
    memory: Annotated[str | int, Meta(description="Memory: '512MiB', '4GiB', or bytes.")] = "256MiB"
    network: Annotated[
        str | int | float, Meta(description="Network of its node, beside what remote GPUs take: '10Gbit/s', or Mbit/s.")
    ] = 0
    gpus: Annotated[int, Meta(ge=0, le=MAX_GPUS, description="Number of GPUs.")] = 0
    gpu_memory: Annotated[str | int, Meta(description="Least memory of each GPU.")] = 0
    gpu_model: Annotated[str, Meta(max_length=128, description="Part of the GPU model's name, in any case.")] = ""
    remote_network: Annotated[
        str | int | float | None,
        Meta(description="Network that each remote GPU takes at both ends; the cluster's figure if left out."),
    ] = None
    gpu_share: Annotated[
        str | int | float, Meta(description="Least part of a GPU, shared with others: 0.25, '1/4' or '25%'.")
    ] = 0
    gpu_span: Annotated[bool, Meta(description="Whether they may be of several nodes, where no node has so many.")] = (
        False
    )


class StageTable(msgspec.Struct, forbid_unknown_fields=True, rename={"source": "from"}):
    """A file or directory that the job takes along."""

    source: Annotated[str, Meta(min_length=1, description="File or directory here; relative to the job file's own.")]
    to: Annotated[str, Meta(description="Where it goes below the task's directory; its own name if empty.")] = ""


class StorageTable(msgspec.Struct, forbid_unknown_fields=True):
    """Storage of NVMe drives for each task: of its own, or a volume."""

    name: Annotated[str, Meta(description="What it is called; 'storage', 'storage1', ... if empty.")] = ""
    size: Annotated[str | int, Meta(description="How much: '100GB', or bytes.")] = 0
    bandwidth: Annotated[str | int, Meta(description="Set aside for it, a second: '1GB/s', '10Gbit/s', or bytes.")] = 0
    devices: Annotated[
        int, Meta(ge=0, le=MAX_DRIVES, description="Drives that are used as one; 0 leaves it to the scheduler.")
    ] = 0
    profile: Annotated[str, Meta(max_length=63, description="What the program was measured as.")] = ""
    routes: Annotated[list[Route], Meta(description="How drives may be given; those of the task if empty.")] = []
    volume: Annotated[str, Meta(max_length=40, description="The volume that it is (farbus volume); none if empty.")] = (
        ""
    )
    use: Annotated[StorageUse, Meta(description="What the node does with it; swap is for operators.")] = (
        StorageUse.MOUNT
    )
    file_system: Annotated[FileSystem, Meta(description="Made where there is nothing on it yet.")] = FileSystem.EXT4
    path: Annotated[str, Meta(description="Where it is mounted; else a directory that FARBUS_STORAGE_NAME names.")] = ""
    read_only: Annotated[bool, Meta(description="Change nothing on the volume.")] = False


Amounts = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=MAX_NAME)], Annotated[int, Meta(ge=0, le=MAX_RESOURCE)]],
    Meta(max_length=MAX_RESOURCES),
]


class ServiceTable(msgspec.Struct, forbid_unknown_fields=True):
    """An instance of an in-network service for each task."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME, description="The service, as devices call it.")]
    own: Annotated[Amounts, Meta(description="What each instance takes of its device.")] = {}
    shared: Annotated[Amounts, Meta(description="What all instances on a device take of it once.")] = {}


class CompositeTable(msgspec.Struct, forbid_unknown_fields=True):
    """A function of the job that switches or servers can serve."""

    template: Annotated[str, Meta(min_length=1, max_length=MAX_NAME, description="Of the scheduler's store.")]
    name: Annotated[str, Meta(description="What it is called; 'composite0', ... if empty.")] = ""
    size: Annotated[int, Meta(ge=1, le=MAX_TASKS, description="Tasks that use it.")] = 1
    command: Annotated[list[str], Meta(description="What runs beside each instance; the template's if empty.")] = []
    implementations: Annotated[list[str], Meta(description="Which may be chosen; all of the template if empty.")] = []
    own: Annotated[Amounts, Meta(description="What each instance takes, where the template leaves it open.")] = {}
    servers: Annotated[list[str], Meta(description="Groups of the job that do the same on servers.")] = []


class TaskTable(msgspec.Struct, forbid_unknown_fields=True):
    """A group of equal tasks."""

    name: Annotated[
        str, Meta(description="Name of the job; in [[task]], of the group, whose tasks are NAME.0, NAME.1, ...")
    ] = ""
    command: Annotated[list[str], Meta(description="The program and its arguments; no shell is involved.")] = []
    count: Annotated[int, Meta(ge=1, le=MAX_TASKS, description="How many tasks run the command.")] = 1
    min_count: Annotated[
        int, Meta(ge=0, le=MAX_TASKS, description="Tasks without which the job does not start; all of them if 0.")
    ] = 0
    resources: ResourceTable = msgspec.field(default_factory=ResourceTable)
    node: Annotated[str, Meta(max_length=63, description="The node that must run the tasks.")] = ""
    labels: Annotated[dict[str, str], Meta(description="Labels that the node must have.")] = {}
    routes: Annotated[list[Route], Meta(min_length=1, description="How devices may be given to the tasks.")] = (
        msgspec.field(default_factory=lambda: [Route.LOCAL, Route.REMOTE])
    )
    storage: Annotated[list[StorageTable], Meta(max_length=MAX_STORAGE, description="Storage for each task.")] = []
    flavour: Annotated[
        str, Meta(max_length=MAX_DECISIONS, pattern="^[01x]*$", description="One of 0, 1, x for each decision.")
    ] = ""
    service: Annotated[ServiceTable, Meta(description="What each task has of a switch or network card.")] | None = None


class ResourceChanges(msgspec.Struct, forbid_unknown_fields=True):
    """What each task needs in an alternative; what is left out stays as it is."""

    cpus: Annotated[str | int | float | None, Meta(description="Processors.")] = None
    memory: Annotated[str | int | None, Meta(description="Memory.")] = None
    network: Annotated[str | int | float | None, Meta(description="Network of its node.")] = None
    gpus: Annotated[int, Meta(ge=0, le=MAX_GPUS, description="Number of GPUs.")] | None = None
    gpu_memory: Annotated[str | int | None, Meta(description="Least memory of each GPU.")] = None
    gpu_model: Annotated[str, Meta(max_length=128, description="Part of the GPU model's name.")] | None = None
    remote_network: Annotated[
        str | int | float | None, Meta(description="Network that each remote GPU takes at both ends.")
    ] = None
    gpu_share: Annotated[str | int | float | None, Meta(description="Least part of a GPU, shared with others.")] = None
    gpu_span: Annotated[bool, Meta(description="Whether they may be of several nodes.")] | None = None


class TaskChanges(msgspec.Struct, forbid_unknown_fields=True):
    """What a group of tasks asks for in an alternative; what is left out stays as it is."""

    name: Annotated[str, Meta(description="The group; may be left out in a job of one group.")] = ""
    resources: ResourceChanges = msgspec.field(default_factory=ResourceChanges)
    labels: Annotated[dict[str, str] | None, Meta(description="Labels that the node must have.")] = None
    routes: Annotated[list[Route] | None, Meta(description="How devices may be given to the tasks.")] = None
    storage: Annotated[list[StorageTable], Meta(max_length=MAX_STORAGE, description="Storage.")] | None = None


class AlternativeTable(msgspec.Struct, forbid_unknown_fields=True):
    """Another way to run the job."""

    name: Annotated[str, Meta(description="What it is called; 'alternative0', ... if empty.")] = ""
    cost: Annotated[
        float, Meta(ge=0, le=MAX_ALTERNATIVE_COST // 1000, description="What choosing it costs; 0 for nothing.")
    ] = 0
    task: Annotated[list[TaskChanges], Meta(min_length=1, description="The groups that ask for something else.")] = []


class JobTable(TaskTable, forbid_unknown_fields=True, omit_defaults=True):
    """A job: one group of tasks, or several as ``[[task]]``."""

    cwd: Annotated[str, Meta(description="Working directory; relative to the job file's own.")] = ""
    env: Annotated[dict[str, str], Meta(description="Environment variables to add.")] = {}
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="More goes first.")] = 0
    time_limit: Annotated[str | int | float, Meta(description="Longest run: '90s', '30m', '2h'; 0 for no limit.")] = 0
    unreachable_limit: Annotated[
        str | int | float,
        Meta(description="Longest that it is kept while a node of its can't be reached; 0 for the cluster's limit."),
    ] = 0
    application: Annotated[
        str, Meta(max_length=128, description="What its runs are remembered under; the job's name if empty.")
    ] = ""
    slo: Annotated[
        str | int | float, Meta(description="Within how long from its start it is to be done; a wish, not a limit.")
    ] = 0
    importance: (
        Annotated[float, Meta(ge=1, lt=MAX_IMPORTANCE, description="How little missing that counts: 1 is in full.")]
        | None
    ) = None
    deadline: Annotated[
        str | int | float,
        Meta(description="When it should be done: '2h' from now on, or a moment like 2027-01-31T18:00:00Z."),
    ] = 0
    moveable: Annotated[
        bool,
        Meta(description="It may be ended while it runs and be queued again, to make room: it can begin anew."),
    ] = False
    stage_in: Annotated[
        list[StageTable], Meta(description="Files that are put into a directory of each task's own.")
    ] = []
    stage_out: Annotated[
        list[str],
        Meta(description="Files and directories below it that are kept when the task has ended (farbus fetch)."),
    ] = []
    alternative: Annotated[
        list[AlternativeTable], Meta(max_length=MAX_ALTERNATIVES, description="Other ways to run it; one is chosen.")
    ] = []
    composite: Annotated[
        list[CompositeTable], Meta(max_length=MAX_COMPOSITES, description="Functions that switches can serve.")
    ] = []
    beside: Annotated[str, Meta(max_length=63, description="A running job whose tasks this one is to be near.")] = ""
    task: Annotated[list[TaskTable], Meta(description="Groups of tasks, placed together or not at all.")] = []


def parse_deadline(text: str | int | float, *, what: str) -> tuple[float, float]:
    """Return a deadline in seconds from the submission, and in seconds since the epoch; one of them is 0.

    A moment without a zone is one of this machine's.
    """
    if not isinstance(text, str) or not _MOMENT.match(text):
        try:
            return parse_seconds(text, what=what), 0.0
        except InvalidInput as error:
            raise InvalidInput(error.message, hint="write 2h, or a moment: 2027-01-31T18:00:00Z") from error
    try:
        moment = datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidInput(f"{what}: {text[:40]!r} is no moment", hint="write 2027-01-31T18:00:00Z") from error
    if moment < time.time():
        raise InvalidInput(f"{what}: {text[:40]} is over", hint="give a later moment, or a time from now on: 2h")
    return 0.0, moment


def schema() -> dict[str, Any]:
    """Return the JSON schema of a job file."""
    return msgspec.json.schema(JobTable)


def read_job(path: str) -> Job:
    """Read the job file at ``path`` (``-`` for standard input); ``id`` and ``user`` are left to the scheduler.

    Raises :class:`NotFound` or :class:`InvalidInput`.
    """
    table, name, directory = read_table(path)
    return convert_table(table, name=name, directory=directory, fallback=name_from(name))


def read_table(path: str) -> tuple[JobTable, str, Path]:
    """Read a job file; return it with what errors call it and the directory that its paths start from."""
    directory = current_directory() if path == "-" else _directory_of(path)
    text = read_file(path, what="job file")
    name = "standard input" if path == "-" else path
    return parse_table(text, name=name), name, directory


def _directory_of(path: str) -> Path:
    return (Path(path) if os.path.isabs(path) else current_directory() / path).resolve().parent


def parse_job(text: bytes, *, name: str, directory: Path) -> Job:
    """Turn the ``text`` of a job file into a job; ``name`` is what errors call the file."""
    return convert_table(parse_table(text, name=name), name=name, directory=directory, fallback=name_from(name))


def parse_table(text: bytes, *, name: str) -> JobTable:
    """Decode the ``text`` of a job file, and check names and types."""
    return decode_file(text, JobTable, name=name)


def convert_table(table: JobTable, *, name: str, directory: Path, fallback: str) -> Job:
    """Check what types alone can't, and convert; ``fallback`` names a job that has no name."""
    job_name = table.name or fallback
    check_name(job_name, f"{name}: name")
    if table.task:
        _refuse_mixture(table, name)
        groups = tuple(_group(task, f"{name}: task[{index}]", index) for index, task in enumerate(table.task))
        _refuse_duplicates(groups, name)
    else:
        groups = (_group(table, name, None),)
    if sum(group.count for group in groups) > MAX_TASKS:
        raise InvalidInput(f"{name}: more than {MAX_TASKS} tasks", hint="submit several jobs")
    for variable, value in table.env.items():
        check_variable(variable, f"{name}: env")
        if "\0" in value:
            raise InvalidInput(f"{name}: env.{variable}: holds a NUL character")
    if "\0" in table.cwd:
        raise InvalidInput(f"{name}: cwd: holds a NUL character")
    return Job(
        id="",
        name=job_name,
        user="",
        groups=groups,
        # A job with files of its own begins where they are, unless it says otherwise.
        cwd=os.path.normpath(directory / table.cwd) if table.cwd or not (table.stage_in or table.stage_out) else "",
        stage_out=tuple(check_path(os.path.normpath(path), what=f"{name}: stage_out") for path in table.stage_out),
        environment=dict(table.env),
        alternatives=_alternatives(table, groups, name),
        composites=_composites(table, groups, name),
        beside=table.beside,
        priority=table.priority,
        time_limit_s=parse_seconds(table.time_limit, what=f"{name}: time_limit"),
        unreachable_limit_s=parse_seconds(table.unreachable_limit, what=f"{name}: unreachable_limit"),
        moveable=table.moveable,
        application=_application(table.application, f"{name}: application"),
        goal=_goal(table, name),
    )


def _application(text: str, where: str) -> str:
    if not text.isprintable():
        raise InvalidInput(f"{where}: has a character that can't be printed")
    return text


def _goal(table: JobTable, name: str) -> Goal:
    deadline_s, deadline_at = parse_deadline(table.deadline, what=f"{name}: deadline")
    return Goal(
        slo_s=parse_seconds(table.slo, what=f"{name}: slo"),
        importance=table.importance or 0.0,
        deadline_s=deadline_s,
        deadline_at=deadline_at,
    )


def convert_requests(resources: ResourceTable, where: str) -> Requests:
    """Convert what a task needs; ``where`` begins the errors: the table's path, or ``--`` for options."""
    dash = "-" if where == "--" else "_"
    gpu_memory, gpu_model, gpu_share = f"gpu{dash}memory", f"gpu{dash}model", f"gpu{dash}share"
    remote_network = f"remote{dash}network"
    requests = Requests(
        cpu_milli=parse_cpu(resources.cpus, what=f"{where}cpus"),
        memory_bytes=parse_bytes(resources.memory, what=f"{where}memory"),
        network_mbit_s=parse_network(resources.network, what=f"{where}network"),
        gpus=resources.gpus,
        gpu_memory_bytes=parse_bytes(resources.gpu_memory, what=f"{where}{gpu_memory}"),
        gpu_model=resources.gpu_model,
        remote_network_mbit_s=None
        if resources.remote_network is None
        else parse_network(resources.remote_network, what=f"{where}{remote_network}"),
        gpu_share_milli=parse_share(resources.gpu_share, what=f"{where}{gpu_share}"),
        gpu_span=resources.gpu_span,
    )
    if not requests.cpu_milli or not requests.memory_bytes:
        what = "memory" if requests.cpu_milli else "cpus"
        raise InvalidInput(f"{where}{what}: no program runs with none", hint="leave it out for the default")
    of_gpus = {
        gpu_memory: requests.gpu_memory_bytes,
        gpu_model: requests.gpu_model,
        gpu_share: requests.gpu_share_milli,
        remote_network: requests.remote_network_mbit_s,
        f"gpu{dash}span": requests.gpu_span,
    }
    if not requests.gpus and any(of_gpus.values()):
        what = next(name for name, value in of_gpus.items() if value)
        raise InvalidInput(f"{where}{what}: set, but gpus is 0", hint="ask for gpus too, or leave it out")
    if requests.gpu_share_milli and requests.gpus > 1:
        raise InvalidInput(
            f"{where}{gpu_share}: a task has one share, or whole GPUs, and gpus is {requests.gpus}",
            hint="set gpus to 1, or leave the share out",
        )
    return requests


def _group(task: TaskTable, where: str, index: int | None) -> TaskGroup:
    prefix = f"{where}: " if index is None else f"{where}."
    group_name = "main" if index is None else task.name or f"task{index}"
    if index is not None:
        _check_part(group_name, f"{prefix}name")
    if not task.command:
        raise InvalidInput(f"{prefix}command: missing", hint='write for example command = ["./program", "argument"]')
    if not task.command[0]:
        raise InvalidInput(f"{prefix}command: the program's name is empty", hint="the first word names the program")
    if any("\0" in word for word in task.command):
        raise InvalidInput(f"{prefix}command: holds a NUL character")
    if sum(len(word.encode(errors="surrogateescape")) + 1 for word in task.command) > MAX_ARGUMENTS_BYTES:
        raise InvalidInput(f"{prefix}command: longer than 128 KiB", hint="put the arguments into a file")
    if task.min_count > task.count:
        raise InvalidInput(
            f"{prefix}min_count: {task.min_count} of {task.count} tasks can't be needed",
            hint="raise count, or lower it",
        )
    return TaskGroup(
        name=group_name,
        command=tuple(task.command),
        count=task.count,
        min_count=task.min_count,
        requests=convert_requests(task.resources, f"{prefix}resources."),
        node=task.node,
        labels=dict(task.labels),
        routes=tuple(dict.fromkeys(task.routes)),
        storage=_storage(task.storage, prefix),
        flavour=task.flavour,
        service=_service(task.service),
    )


def _service(table: ServiceTable | None) -> ServiceRequest | None:
    if table is None:
        return None
    return ServiceRequest(name=table.name, own=dict(table.own), shared=dict(table.shared))


def _composites(table: JobTable, groups: tuple[TaskGroup, ...], name: str) -> tuple[Composite, ...]:
    known = [group.name for group in groups]
    found: dict[str, Composite] = {}
    for index, each in enumerate(table.composite):
        where = f"{name}: composite[{index}]"
        label = each.name or f"composite{index}"
        _check_part(label, f"{where}.name")
        if label in found:
            raise InvalidInput(f"{where}.name: {label!r} is taken", hint="give each composite a name of its own")
        for server in each.servers:
            if server not in known:
                raise InvalidInput(
                    f"{where}.servers: {server!r} is no group of the job", hint=f"use {', '.join(known)}"
                )
        found[label] = Composite(
            name=label,
            template=each.template,
            size=each.size,
            command=tuple(each.command),
            implementations=tuple(each.implementations),
            own=dict(each.own),
            servers=tuple(each.servers),
        )
    return tuple(found.values())


def _alternatives(table: JobTable, groups: tuple[TaskGroup, ...], name: str) -> tuple[Alternative, ...]:
    tables = {group.name: task for group, task in zip(groups, table.task or [table], strict=True)}
    found: dict[str, Alternative] = {}
    for index, each in enumerate(table.alternative):
        where = f"{name}: alternative[{index}]"
        label = each.name or f"alternative{index}"
        _check_part(label, f"{where}.name")
        if label in found:
            raise InvalidInput(f"{where}.name: {label!r} is taken", hint="give each alternative a name of its own")
        if not math.isfinite(each.cost):
            raise InvalidInput(f"{where}.cost: {each.cost} is not a number")
        if not each.task:
            raise InvalidInput(f"{where}.task: missing", hint="say what is asked for instead in [[alternative.task]]")
        variants: dict[str, GroupVariant] = {}
        for number, changes in enumerate(each.task):
            field = f"{where}.task[{number}]"
            group = changes.name or (groups[0].name if len(groups) == 1 else "")
            if group not in tables:
                known = ", ".join(tables)
                raise InvalidInput(f"{field}.name: {group!r} is no group of the job", hint=f"use one of {known}")
            if group in variants:
                raise InvalidInput(f"{field}.name: {group!r} is taken", hint="name each group once")
            variants[group] = _variant(changes, tables[group], group, field)
        found[label] = Alternative(name=label, cost=round(each.cost * 1000), groups=tuple(variants.values()))
    return tuple(found.values())


def _variant(changes: TaskChanges, task: TaskTable, group: str, field: str) -> GroupVariant:
    given = {key: value for key, value in msgspec.structs.asdict(changes.resources).items() if value is not None}
    if given.get("gpus") == 0:
        # What is said of GPUs goes with them.
        of_gpus = {"gpu_memory": 0, "gpu_model": "", "gpu_share": 0, "gpu_span": False, "remote_network": None}
        given = {**of_gpus, **given}
    return GroupVariant(
        name=group,
        requests=convert_requests(msgspec.structs.replace(task.resources, **given), f"{field}.resources."),
        labels=dict(task.labels if changes.labels is None else changes.labels),
        routes=tuple(dict.fromkeys(task.routes if changes.routes is None else changes.routes)),
        storage=_storage(task.storage if changes.storage is None else changes.storage, f"{field}."),
    )


def _storage(tables: list[StorageTable], prefix: str) -> tuple[StorageRequest, ...]:
    found: dict[str, StorageRequest] = {}
    for index, table in enumerate(tables):
        where = f"{prefix}storage[{index}]."
        name = table.name or (f"storage{index}" if index else "storage")
        _check_part(name, f"{where}name")
        if name in found:
            raise InvalidInput(f"{where}name: {name!r} is taken", hint="give each storage a name of its own")
        found[name] = StorageRequest(
            name=name,
            size_bytes=parse_storage(table.size, what=f"{where}size"),
            bandwidth_bytes_per_s=parse_rate(table.bandwidth, what=f"{where}bandwidth"),
            devices=table.devices,
            profile=table.profile,
            routes=tuple(dict.fromkeys(table.routes)),
            volume=check_volume_name(table.volume, field=f"{where}volume") if table.volume else "",
            use=table.use,
            file_system=table.file_system,
            path=table.path,
            read_only=table.read_only,
        )
        _check_storage(found[name], where)
    return tuple(found.values())


def _check_storage(request: StorageRequest, where: str) -> None:
    if not request.volume and not request.size_bytes:
        raise InvalidInput(f"{where}size: missing, or 0", hint='write for example size = "100GB", or volume = "NAME"')
    for field in ("size_bytes", "bandwidth_bytes_per_s", "devices", "profile") if request.volume else ():
        if getattr(request, field):
            told = field.removesuffix("_bytes").removesuffix("_bytes_per_s")
            raise InvalidInput(f"{where}{told}: the volume has its own", hint="leave it out beside volume")
    if request.read_only and not request.volume:
        raise InvalidInput(f"{where}read_only: nothing is on it yet", hint="leave it out, or name a volume")
    if request.read_only and request.use is StorageUse.SWAP:
        raise InvalidInput(f"{where}read_only: swap space is written", hint="leave it out beside use = swap")
    if request.path and not is_mount_path(request.path):
        raise InvalidInput(
            f"{where}path: {request.path[:80]!r} is no absolute path below /", hint="write for example /srv/data"
        )
    if request.path and not request.use.is_mounted:
        raise InvalidInput(
            f"{where}path: only what is mounted has one", hint=f"leave it out beside use = {request.use}"
        )


def _refuse_mixture(table: JobTable, name: str) -> None:
    for field in (
        "command",
        "count",
        "min_count",
        "resources",
        "node",
        "labels",
        "routes",
        "storage",
        "flavour",
        "service",
    ):
        if getattr(table, field) != getattr(JobTable(), field):
            raise InvalidInput(
                f"{name}: {field}: stands beside [[task]], which has its own", hint=f"move {field} into [[task]]"
            )


def _refuse_duplicates(groups: tuple[TaskGroup, ...], name: str) -> None:
    names = [group.name for group in groups]
    for index, group_name in enumerate(names):
        if group_name in names[:index]:
            raise InvalidInput(
                f"{name}: task[{index}].name: {group_name!r} is taken", hint="give each group a name of its own"
            )


def check_variable(name: str, where: str) -> None:
    """Raise :class:`InvalidInput` for what can't name a variable; ``where`` is who says so."""
    if not _VARIABLE.fullmatch(name):
        raise InvalidInput(
            f"{where}: {name[:80]!r} can't name a variable", hint="use letters, digits and '_', not first a digit"
        )


def check_name(name: str, where: str) -> None:
    """Raise :class:`InvalidInput` for what can't name a job; ``where`` is who says so."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{where}: {name[:80]!r} is not a name", hint=_NAME_RULE)


def _check_part(name: str, where: str) -> None:
    """Check the name of something in a job: a task's begins with its group's, and a dot."""
    if not _PART.fullmatch(name):
        raise InvalidInput(f"{where}: {name[:80]!r} is not a name", hint=_PART_RULE)


def name_from(name: str) -> str:
    """Make a job's name from a file's."""
    words = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(name).stem).strip("-_.")[:63].strip("-_.")
    return words or "job"
