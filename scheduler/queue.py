"""The queue: which jobs are accepted, and in which order rounds see them.

The order is priority first, then longest wait.  Everything a person can write
into a job has a limit here, and a refusal names the field and the reason.
"""

from __future__ import annotations

import bisect
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from farbus.api.identity import valid_name
from farbus.errors import Unavailable
from farbus.model.decision import JobPlacement
from farbus.model.device import Route
from farbus.model.job import (
    MAX_ALTERNATIVES,
    MAX_COMPOSITES,
    MAX_GROUPS,
    MAX_IMPORTANCE,
    MAX_RESOURCE,
    MAX_RESOURCES,
    MAX_STORAGE,
    Composite,
    GroupVariant,
    Job,
    Requests,
    StorageRequest,
    TaskGroup,
)
from farbus.model.node import DIMENSIONS, amounts_of
from farbus.model.quantity import MAX_SECONDS, format_bytes
from farbus.model.staging import MAX_OUTPUTS, check_digest, check_path
from farbus.model.volume import StorageUse, check_volume_name, is_mount_path, storage_variable
from farbus.scheduler.phases.checks import MAX_TASKS, check, check_demand, check_names, check_numbers

MAX_QUEUED_JOBS = 200_000
"""Jobs that wait at a time; one takes a few kilobytes of the scheduler's memory."""
MAX_QUEUED_BYTES = 2 * 2**30
"""Commands and environments of jobs that wait: ten kilobytes for each of as many as there may be."""
USER_SHARE = 0.5
"""Part of both that the jobs of one user may take, so that others can go on."""
MAX_ARGUMENTS = 4_096
"""Words of a command."""
MAX_COMMAND_BYTES = 128 * 2**10
"""Bytes of a command; Linux's MAX_ARG_STRLEN, the longest single argument."""
MAX_ENVIRONMENT_BYTES = 128 * 2**10
"""Bytes of a job's environment, names and values."""
MAX_PATH_BYTES = 4_096
"""Bytes of a path; Linux's PATH_MAX."""
MAX_NAME = 128
"""Characters of a job's name."""
MAX_LABELS = 64
"""Labels that a group may ask of its node."""
MAX_PRIORITY = 1_000
"""Priorities run from minus to plus this."""

G = TypeVar("G", TaskGroup, GroupVariant)

_GROUP_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STORAGE_ROUTES = (Route.LOCAL, Route.REMOTE)


def _check_text(text: str, field: str, *, most: int, empty: bool = True, is_line: bool = False) -> None:
    check(empty or bool(text), field, "is empty")
    check("\0" not in text, field, "has a NUL character")
    check(text.isprintable() or not is_line, field, "has a character that can't be printed")
    check(len(text.encode(errors="surrogateescape")) <= most, field, f"is longer than {most} bytes")


def _validate_requests(requests: Requests, field: str) -> None:
    # Who takes nothing would go anywhere, as often as he likes.
    for dimension, value in zip(DIMENSIONS, amounts_of(requests), strict=True):
        check(value >= 1 or not dimension.packs, f"{field}.{dimension.name}", f"{value:g} is less than 1")
    _check_text(requests.gpu_model, f"{field}.gpu_model", most=MAX_NAME, is_line=True)
    check(
        not requests.gpu_share_milli or requests.gpus == 1,
        f"{field}.gpus",
        f"{requests.gpus} GPUs are asked for, and a share of one",
        hint="a task has one share, or whole GPUs: set gpus to 1, or leave the share out",
    )
    if requests.gpus == 0:
        parts = ("gpu_memory_bytes", "gpu_model", "remote_network_mbit_s", "gpu_span")
        asked = next((part for part in parts if getattr(requests, part)), "")
        check(not asked, f"{field}.{asked}", "is set, but no GPU is asked for", hint="set gpus to 1 or more")


def _validate_group(group: TaskGroup, field: str, *, interactive: bool) -> None:
    check(
        _GROUP_NAME.fullmatch(group.name) is not None,
        f"{field}.name",
        f"{group.name[:80]!r} is not a name: 1 to 63 letters, digits, - and _, with a letter or digit at both ends",
    )
    if interactive:
        check(not group.command, f"{field}.command", "an interactive job has no command")
        check(bool(group.node), f"{field}.node", "an interactive job names the node of its program")
    else:
        check(bool(group.command) and bool(group.command[0]), f"{field}.command", "is empty")
    check(len(group.command) <= MAX_ARGUMENTS, f"{field}.command", f"has more than {MAX_ARGUMENTS} words")
    for word in group.command:
        check("\0" not in word, f"{field}.command", "has a NUL character")
    size = sum(len(word.encode(errors="surrogateescape")) + 1 for word in group.command)
    check(size <= MAX_COMMAND_BYTES, f"{field}.command", f"is longer than {MAX_COMMAND_BYTES} bytes")
    _check_text(group.node, f"{field}.node", most=253, is_line=True)
    check(len(group.labels) <= MAX_LABELS, f"{field}.labels", f"has more than {MAX_LABELS} labels")
    for key, value in group.labels.items():
        _check_text(key, f"{field}.labels", most=MAX_NAME, empty=False, is_line=True)
        _check_text(value, f"{field}.labels.{key}", most=MAX_NAME, is_line=True)
    _validate_requests(group.requests, f"{field}.requests")
    check(bool(group.routes), f"{field}.routes", "is empty", hint="use local, remote or both")
    check(len(set(group.routes)) == len(group.routes), f"{field}.routes", "names a route twice")
    check(len(group.storage) <= MAX_STORAGE, f"{field}.storage", f"has more than {MAX_STORAGE} entries")
    variables: dict[str, str] = {}
    for index, request in enumerate(group.storage):
        _validate_storage(request, f"{field}.storage[{index}]")
        # A program would find the one under the other's variable.
        variable = storage_variable(request.name)
        other = variables.setdefault(variable, request.name)
        check(
            other == request.name,
            f"{field}.storage[{index}].name",
            f"{request.name!r} and {other!r} would both be {variable}",
            hint="names differ by more than case, - and _",
        )
    if group.service is not None:
        _check_text(group.service.name, f"{field}.service.name", most=MAX_NAME, empty=False, is_line=True)
        _validate_amounts(group.service.own, f"{field}.service.own")
        _validate_amounts(group.service.shared, f"{field}.service.shared")


def _validate_amounts(amounts: dict[str, int], field: str) -> None:
    check(len(amounts) <= MAX_RESOURCES, field, f"has more than {MAX_RESOURCES} entries")
    for name in amounts:
        _check_text(name, field, most=MAX_NAME, empty=False, is_line=True)


def _validate_storage(request: StorageRequest, field: str) -> None:
    good = _GROUP_NAME.fullmatch(request.name) is not None
    check(good, f"{field}.name", f"{request.name[:80]!r} is not a name")
    _check_text(request.profile, f"{field}.profile", most=MAX_NAME, is_line=True)
    for route in request.routes:
        served = route in _STORAGE_ROUTES
        check(served, f"{field}.routes", f"{route[:80]!r} is not served yet", hint="use local or remote")
    check(len(set(request.routes)) == len(request.routes), f"{field}.routes", "names a route twice")
    if request.volume:
        check_volume_name(request.volume, field=f"{field}.volume")
        for what in ("size_bytes", "bandwidth_bytes_per_s", "profile"):
            told = "is set, and the volume has its own"
            check(not getattr(request, what), f"{field}.{what}", told, hint="leave it out beside volume")
    else:
        unused = f"{field}.read_only"
        check(not request.read_only, unused, "is set, and nothing is on it yet", hint="name a volume, or leave it out")
    validate_mount(request.use, request.path, read_only=request.read_only, field=field)


def validate_mount(use: StorageUse, path: str, *, read_only: bool, field: str) -> None:
    """Raise :class:`~farbus.errors.InvalidInput` where storage can't be used so, or not at a ``path`` that is named."""
    written = f"{field}.read_only"
    check(not (read_only and use is StorageUse.SWAP), written, "is set, and swap space is written", hint="leave it out")
    if not path:
        return
    _check_text(path, f"{field}.path", most=MAX_PATH_BYTES, is_line=True)
    check(use.is_mounted, f"{field}.path", f"is set, and use is {use}", hint="only what is mounted has a path")
    good = is_mount_path(path)
    check(good, f"{field}.path", f"{path[:80]!r} is not an absolute path below /", hint="write for example /srv/data")


def validate_job(job: Job) -> Job:
    """Return ``job`` if it is well-formed; raise :class:`~farbus.errors.InvalidInput` with the field and the reason."""
    _check_text(job.name, "name", most=MAX_NAME, empty=False)
    check(job.name.isprintable(), "name", "has a character that can't be printed")
    _check_text(job.user, "user", most=MAX_NAME, empty=False)
    check(valid_name(job.user), "user", f"{job.user!r} is not the name of a user")
    _check_text(job.cwd, "cwd", most=MAX_PATH_BYTES)
    # A job with files of its own begins in its task's directory, unless it says otherwise.
    check(job.cwd.startswith("/") or (not job.cwd and job.is_staged), "cwd", f"{job.cwd!r} is not an absolute path")
    check(not job.attachment, "attachment", "is no job that is submitted", hint="use farbus volume attach")
    check(not (job.is_staged and job.interactive), "stage_in", "is for jobs that run without a terminal")
    check(not (job.moveable and job.interactive), "moveable", "is for jobs that run without a terminal")
    check(len(job.stage_out) <= MAX_OUTPUTS, "stage_out", f"has more than {MAX_OUTPUTS} paths")
    for path in job.stage_out:
        check_path(path, what="stage_out")
    if job.stage_in:
        check_digest(job.stage_in, what="stage_in")
    for name, value in job.environment.items():
        check(_VARIABLE.fullmatch(name) is not None, "environment", f"{name!r} is not the name of a variable")
        check("\0" not in value, f"environment.{name}", "has a NUL character")
    size = sum(len(name) + len(value.encode(errors="surrogateescape")) + 2 for name, value in job.environment.items())
    check(size <= MAX_ENVIRONMENT_BYTES, "environment", f"is larger than {MAX_ENVIRONMENT_BYTES} bytes")
    check_numbers(
        "",
        (
            ("priority", job.priority, -MAX_PRIORITY, MAX_PRIORITY),
            ("time_limit_s", job.time_limit_s, 0, MAX_SECONDS),
            ("unreachable_limit_s", job.unreachable_limit_s, 0, MAX_SECONDS),
        ),
    )
    _validate_goal(job)
    _check_text(job.application, "application", most=MAX_NAME, is_line=True)
    check(len(job.groups) <= MAX_GROUPS, "groups", f"has more than {MAX_GROUPS} groups")
    for index, group in enumerate(job.groups):
        _validate_group(group, f"groups[{index}]", interactive=job.interactive)
    check_demand(job)
    _validate_alternatives(job)
    check(len(job.composites) <= MAX_COMPOSITES, "composites", f"has more than {MAX_COMPOSITES} entries")
    for index, composite in enumerate(job.composites):
        _validate_composite(composite, f"composites[{index}]")
    check_names("composites", [composite.name for composite in job.composites])
    _check_text(job.beside, "beside", most=MAX_NAME, is_line=True)
    if job.interactive:
        check(sum(group.count for group in job.groups) == 1, "groups", "an interactive job has one task")
        polymorphic = "composites" if job.composites else "groups.flavour" if job.is_polymorphic else ""
        check(not polymorphic, polymorphic, "are for jobs that run without a terminal")
    return job


def _validate_composite(composite: Composite, field: str) -> None:
    good = _GROUP_NAME.fullmatch(composite.name) is not None
    check(good, f"{field}.name", f"{composite.name[:80]!r} is not a name")
    _check_text(composite.template, f"{field}.template", most=MAX_NAME, empty=False, is_line=True)
    check_numbers(f"{field}.", [("size", composite.size, 1, MAX_TASKS)])
    check(len(composite.command) <= MAX_ARGUMENTS, f"{field}.command", f"has more than {MAX_ARGUMENTS} words")
    check(not composite.command or bool(composite.command[0]), f"{field}.command", "is empty")
    for word in composite.command:
        check("\0" not in word, f"{field}.command", "has a NUL character")
    size = sum(len(word.encode(errors="surrogateescape")) + 1 for word in composite.command)
    check(size <= MAX_COMMAND_BYTES, f"{field}.command", f"is longer than {MAX_COMMAND_BYTES} bytes")
    for what, names in (("implementations", composite.implementations), ("servers", composite.servers)):
        check(len(names) <= MAX_GROUPS, f"{field}.{what}", f"has more than {MAX_GROUPS} entries")
        check(len(set(names)) == len(names), f"{field}.{what}", "names one twice")
        for name in names:
            _check_text(name, f"{field}.{what}", most=MAX_NAME, empty=False, is_line=True)
    _validate_amounts(composite.own, f"{field}.own")
    check_numbers(f"{field}.own.", [(name, amount, 0, MAX_RESOURCE) for name, amount in composite.own.items()])


def _validate_goal(job: Job) -> None:
    goal = job.goal
    check_numbers("", [("goal.slo_s", goal.slo_s, 0, MAX_SECONDS)])
    check_numbers("", [("goal.importance", goal.importance, 0, MAX_IMPORTANCE)])
    good = not goal.importance or 1 <= goal.importance < MAX_IMPORTANCE
    check(good, "goal.importance", f"{goal.importance:g} is not from 1 to below {MAX_IMPORTANCE:g}")
    check_numbers("", [("goal.deadline_s", goal.deadline_s, 0, MAX_SECONDS)])
    check(not (goal.deadline_s and goal.deadline_at), "goal.deadline_s", "is set beside deadline_at: one is enough")
    if goal.deadline_at != 0:
        latest = job.submitted_at + MAX_SECONDS
        check(math.isfinite(goal.deadline_at), "goal.deadline_at", f"{goal.deadline_at} is not a number")
        check(
            goal.deadline_at > job.submitted_at,
            "goal.deadline_at",
            "is over when the job is submitted: give a later one",
        )
        check(goal.deadline_at <= latest, "goal.deadline_at", "is more than ten years away")


def _validate_alternatives(job: Job) -> None:
    many = len(job.alternatives)
    check(many <= MAX_ALTERNATIVES, "alternatives", f"{many} are more than {MAX_ALTERNATIVES}")
    check(not (job.alternatives and job.interactive), "alternatives", "are for jobs that run without a terminal")
    known = {group.name for group in job.groups}
    for index, each in enumerate(job.alternatives):
        field = f"alternatives[{index}]"
        check(_GROUP_NAME.fullmatch(each.name) is not None, f"{field}.name", f"{each.name[:80]!r} is not a name")
        variants = [variant.name for variant in each.groups]
        check_names(f"{field}.groups", variants)
        for number, name in enumerate(variants):
            check(name in known, f"{field}.groups[{number}].name", f"the job has no group {name[:80]!r}")
        for number, group in enumerate(job.in_flavour(each.name).groups):
            _validate_group(group, f"{field}.groups[{number}]", interactive=job.interactive)


def task_names(job: Job) -> Iterator[tuple[str, int]]:
    """Yield the name of each task with the index of its group, in order."""
    for index, group in enumerate(job.groups):
        for number in range(group.count):
            yield f"{group.name}.{number}", index


def requests_of(job: Job, placement: JobPlacement) -> dict[str, Requests]:
    """Return what each placed task asks for, by its name."""
    job = job.in_flavour(placement.alternative)
    groups = dict(task_names(job))
    return {task.task: job.groups[groups[task.task]].requests for task in placement.tasks}


def with_remote_network(job: Job, mbit_s: int) -> Job:
    """Return ``job`` with what each remote GPU takes of the network, where it does not say so itself."""

    def told(group: G) -> G:
        requests = group.requests
        if not requests.gpus or requests.remote_network_mbit_s is not None:
            return group
        return msgspec.structs.replace(group, requests=msgspec.structs.replace(requests, remote_network_mbit_s=mbit_s))

    return msgspec.structs.replace(
        job,
        groups=tuple(map(told, job.groups)),
        alternatives=tuple(
            msgspec.structs.replace(each, groups=tuple(map(told, each.groups))) for each in job.alternatives
        ),
    )


def _size(job: Job) -> int:
    """Return how many characters the parts of a job have that have no small limit."""
    words = sum(len(word) + 1 for group in job.groups for word in group.command)
    return words + sum(len(name) + len(value) + 2 for name, value in job.environment.items())


_Key = tuple[int, float, int, str]


def _key(job: Job) -> _Key:
    number = int(job.id[1:]) if job.id[1:].isdigit() else 0
    return (-job.priority, job.submitted_at, number, job.id)


class JobQueue:
    """Waiting jobs in the order in which rounds see them."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        jobs = tuple(jobs)
        self._keys = sorted(_key(job) for job in jobs)
        self._by_id = {key[3]: key for key in self._keys}
        self._sizes: dict[str, int] = {}
        """Of each job."""
        self._users: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        """How many jobs of each user wait, and their sizes together."""
        self._bytes = 0
        for job in jobs:
            self._count(job)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._by_id

    def __iter__(self) -> Iterator[str]:
        return (key[3] for key in self._keys)

    def check_room(self, job: Job) -> None:
        """Raise :class:`Unavailable` when ``job`` may not wait: there are too many, of all users or of its own."""
        number, size = self._users.get(job.user, (0, 0))
        new = _size(job)
        if len(self._keys) >= MAX_QUEUED_JOBS or self._bytes + new > MAX_QUEUED_BYTES:
            raise Unavailable(f"the queue is full: {len(self._keys)} jobs wait", hint="try again later")
        if number >= USER_SHARE * MAX_QUEUED_JOBS or size + new > USER_SHARE * MAX_QUEUED_BYTES:
            raise Unavailable(
                f"{number} jobs of {job.user} wait, with {format_bytes(size)} of commands and environments: "
                "that is all that one user may have",
                hint="try again when some have started, or put more into each of them",
            )

    def _count(self, job: Job) -> None:
        size = self._sizes[job.id] = _size(job)
        self._bytes += size
        user = self._users[job.user]
        user[0] += 1
        user[1] += size

    def add(self, job: Job) -> None:
        """Put ``job`` where it belongs."""
        key = self._by_id[job.id] = _key(job)
        bisect.insort(self._keys, key)
        self._count(job)

    def remove(self, job: Job) -> None:
        """Take ``job`` out; it must be there."""
        position = bisect.bisect_left(self._keys, self._by_id.pop(job.id))
        assert self._keys[position][3] == job.id, f"job {job.id} is not in the queue"
        del self._keys[position]
        size = self._sizes.pop(job.id)
        self._bytes -= size
        user = self._users[job.user]
        user[0] -= 1
        user[1] -= size
        if not user[0]:
            del self._users[job.user]

    def ordered(self, job_ids: Iterable[str]) -> list[str]:
        """Return jobs that wait in the order in which rounds see them."""
        return [key[3] for key in sorted(self._by_id[job_id] for job_id in job_ids)]

    def of_users(self) -> Counter[str]:
        """Return how many jobs of each user wait."""
        return Counter({user: number for user, (number, _) in self._users.items()})

    def position(self, job: Job) -> int:
        """Return how many jobs are ahead of ``job``."""
        return bisect.bisect_left(self._keys, _key(job))
