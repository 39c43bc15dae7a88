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

from farbus.api.identity import valid_name
from farbus.errors import InvalidInput, Unavailable
from farbus.model.decision import JobPlacement
from farbus.model.device import Route
from farbus.model.flavour import MAX_DECISIONS, MAX_FLAVOURS, is_vector
from farbus.model.job import (
    MAX_ALTERNATIVE_COST,
    MAX_ALTERNATIVES,
    MAX_COMPOSITES,
    MAX_DRIVES,
    MAX_GROUPS,
    MAX_IMPORTANCE,
    MAX_RESOURCE,
    MAX_RESOURCES,
    MAX_STORAGE,
    Composite,
    Job,
    Requests,
    StorageRequest,
    TaskGroup,
)
from farbus.model.quantity import MAX_BYTES, MAX_CPU_MILLI, MAX_SECONDS, MAX_SHARE_MILLI, format_bytes
from farbus.model.staging import MAX_OUTPUTS, check_digest, check_path

MAX_QUEUED_JOBS = 200_000
"""Jobs that wait at a time; one takes a few kilobytes of the scheduler's memory."""
MAX_QUEUED_BYTES = 2 * 2**30
"""Commands and environments of jobs that wait: ten kilobytes for each of as many as there may be."""
USER_SHARE = 0.5
"""Part of both that the jobs of one user may take, so that others can go on."""
MAX_TASKS = 4_096
"""Tasks of a job; all of them are placed in one round."""
MAX_GPUS_PER_TASK = 1_024
"""GPUs of a task; far more than one program can address."""
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

_GROUP_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SERVED_ROUTES = (Route.LOCAL, Route.REMOTE)


def _check(good: bool, field: str, reason: str, *, hint: str = "") -> None:
    if not good:
        raise InvalidInput(f"{field}: {reason}", hint=hint)


def _check_number(value: float, field: str, *, least: float, most: float) -> None:
    _check(math.isfinite(value), field, f"{value} is not a number")
    _check(value >= least, field, f"{value:g} is less than {least:g}")
    _check(value <= most, field, f"{value:g} is more than {most:g}")


def _check_text(text: str, field: str, *, most: int, empty: bool = True, is_line: bool = False) -> None:
    _check(empty or bool(text), field, "is empty")
    _check("\0" not in text, field, "has a NUL character")
    _check(text.isprintable() or not is_line, field, "has a character that can't be printed")
    _check(len(text.encode(errors="surrogateescape")) <= most, field, f"is longer than {most} bytes")


def _validate_requests(requests: Requests, field: str) -> None:
    _check_number(requests.cpu_milli, f"{field}.cpu_milli", least=1, most=MAX_CPU_MILLI)
    _check_number(requests.memory_bytes, f"{field}.memory_bytes", least=1, most=MAX_BYTES)
    _check_number(requests.gpus, f"{field}.gpus", least=0, most=MAX_GPUS_PER_TASK)
    _check_number(requests.gpu_memory_bytes, f"{field}.gpu_memory_bytes", least=0, most=MAX_BYTES)
    _check_text(requests.gpu_model, f"{field}.gpu_model", most=MAX_NAME, is_line=True)
    _check_number(requests.gpu_share_milli, f"{field}.gpu_share_milli", least=0, most=MAX_SHARE_MILLI)
    _check(
        not requests.gpu_share_milli or requests.gpus == 1,
        f"{field}.gpus",
        f"{requests.gpus} GPUs are asked for, and a share of one",
        hint="a task has one share, or whole GPUs: set gpus to 1, or leave the share out",
    )
    if requests.gpus == 0:
        asked = "gpu_memory_bytes" if requests.gpu_memory_bytes else "gpu_model" if requests.gpu_model else ""
        _check(not asked, f"{field}.{asked}", "is set, but no GPU is asked for", hint="set gpus to 1 or more")


def _validate_group(group: TaskGroup, field: str, *, interactive: bool) -> None:
    _check(
        _GROUP_NAME.fullmatch(group.name) is not None,
        f"{field}.name",
        f"{group.name[:80]!r} is not a name: 1 to 63 letters, digits, - and _, with a letter or digit at both ends",
    )
    _check_number(group.count, f"{field}.count", least=1, most=MAX_TASKS)
    _check_number(group.min_count, f"{field}.min_count", least=0, most=group.count)
    if interactive:
        _check(not group.command, f"{field}.command", "an interactive job has no command")
        _check(bool(group.node), f"{field}.node", "an interactive job names the node of its program")
    else:
        _check(bool(group.command) and bool(group.command[0]), f"{field}.command", "is empty")
    _check(len(group.command) <= MAX_ARGUMENTS, f"{field}.command", f"has more than {MAX_ARGUMENTS} words")
    for word in group.command:
        _check("\0" not in word, f"{field}.command", "has a NUL character")
    size = sum(len(word.encode(errors="surrogateescape")) + 1 for word in group.command)
    _check(size <= MAX_COMMAND_BYTES, f"{field}.command", f"is longer than {MAX_COMMAND_BYTES} bytes")
    _check_text(group.node, f"{field}.node", most=253, is_line=True)
    _check(len(group.labels) <= MAX_LABELS, f"{field}.labels", f"has more than {MAX_LABELS} labels")
    for key, value in group.labels.items():
        _check_text(key, f"{field}.labels", most=MAX_NAME, empty=False, is_line=True)
        _check_text(value, f"{field}.labels.{key}", most=MAX_NAME, is_line=True)
    _validate_requests(group.requests, f"{field}.requests")
    _check(bool(group.routes), f"{field}.routes", "is empty", hint="use local, remote or both")
    for route in group.routes:
        _check(
            route in _SERVED_ROUTES, f"{field}.routes", f"{route} is not served yet", hint="use local, remote or both"
        )
    _check(len(set(group.routes)) == len(group.routes), f"{field}.routes", "names a route twice")
    _check(len(group.storage) <= MAX_STORAGE, f"{field}.storage", f"has more than {MAX_STORAGE} entries")
    for index, request in enumerate(group.storage):
        _validate_storage(request, f"{field}.storage[{index}]")
    names = [request.name for request in group.storage]
    _check(len(set(names)) == len(names), f"{field}.storage", "two have the same name")
    _check(is_vector(group.flavour), f"{field}.flavour", f"is no vector of at most {MAX_DECISIONS} of 0, 1 and x")
    if group.service is not None:
        _check_text(group.service.name, f"{field}.service.name", most=MAX_NAME, empty=False, is_line=True)
        _validate_amounts(group.service.own, f"{field}.service.own")
        _validate_amounts(group.service.shared, f"{field}.service.shared")


def _validate_amounts(amounts: dict[str, int], field: str) -> None:
    _check(len(amounts) <= MAX_RESOURCES, field, f"has more than {MAX_RESOURCES} entries")
    for name, amount in amounts.items():
        _check_text(name, field, most=MAX_NAME, empty=False, is_line=True)
        _check_number(amount, f"{field}.{name}", least=0, most=MAX_RESOURCE)


def _validate_storage(request: StorageRequest, field: str) -> None:
    good = _GROUP_NAME.fullmatch(request.name) is not None
    _check(good, f"{field}.name", f"{request.name[:80]!r} is not a name")
    _check_number(request.size_bytes, f"{field}.size_bytes", least=1, most=MAX_BYTES)
    _check_number(request.bandwidth_bytes_per_s, f"{field}.bandwidth_bytes_per_s", least=0, most=MAX_BYTES)
    _check_number(request.devices, f"{field}.devices", least=0, most=MAX_DRIVES)
    _check_text(request.profile, f"{field}.profile", most=MAX_NAME, is_line=True)
    for route in request.routes:
        served = route in _SERVED_ROUTES
        _check(served, f"{field}.routes", f"{route[:80]!r} is not served yet", hint="use local or remote")
    _check(len(set(request.routes)) == len(request.routes), f"{field}.routes", "names a route twice")


def validate_job(job: Job) -> Job:
    """Return ``job`` if it is well-formed; raise :class:`InvalidInput` naming the field and the reason."""
    _check_text(job.name, "name", most=MAX_NAME, empty=False)
    _check(job.name.isprintable(), "name", "has a character that can't be printed")
    _check_text(job.user, "user", most=MAX_NAME, empty=False)
    _check(valid_name(job.user), "user", f"{job.user!r} is not the name of a user")
    _check_text(job.cwd, "cwd", most=MAX_PATH_BYTES)
    # A job with files of its own begins in its task's directory, unless it says otherwise.
    _check(job.cwd.startswith("/") or (not job.cwd and job.is_staged), "cwd", f"{job.cwd!r} is not an absolute path")
    _check(not (job.is_staged and job.interactive), "stage_in", "is for jobs that run without a terminal")
    _check(not (job.moveable and job.interactive), "moveable", "is for jobs that run without a terminal")
    _check(len(job.stage_out) <= MAX_OUTPUTS, "stage_out", f"has more than {MAX_OUTPUTS} paths")
    for path in job.stage_out:
        check_path(path, what="stage_out")
    if job.stage_in:
        check_digest(job.stage_in, what="stage_in")
    for name, value in job.environment.items():
        _check(_VARIABLE.fullmatch(name) is not None, "environment", f"{name!r} is not the name of a variable")
        _check("\0" not in value, f"environment.{name}", "has a NUL character")
    size = sum(len(name) + len(value.encode(errors="surrogateescape")) + 2 for name, value in job.environment.items())
    _check(size <= MAX_ENVIRONMENT_BYTES, "environment", f"is larger than {MAX_ENVIRONMENT_BYTES} bytes")
    _check_number(job.priority, "priority", least=-MAX_PRIORITY, most=MAX_PRIORITY)
    _check_number(job.time_limit_s, "time_limit_s", least=0, most=MAX_SECONDS)
    _check_number(job.unreachable_limit_s, "unreachable_limit_s", least=0, most=MAX_SECONDS)
    _validate_goal(job)
    _check_text(job.application, "application", most=MAX_NAME, is_line=True)
    _check(bool(job.groups), "groups", "is empty", hint="a job has at least one group of tasks")
    _check(len(job.groups) <= MAX_GROUPS, "groups", f"has more than {MAX_GROUPS} groups")
    for index, group in enumerate(job.groups):
        _validate_group(group, f"groups[{index}]", interactive=job.interactive)
    names = [group.name for group in job.groups]
    _check(len(set(names)) == len(names), "groups", "two groups have the same name")
    _validate_alternatives(job)
    _validate_flavours(job)
    _check(len(job.composites) <= MAX_COMPOSITES, "composites", f"has more than {MAX_COMPOSITES} entries")
    for index, composite in enumerate(job.composites):
        _validate_composite(composite, f"composites[{index}]")
    composites = [composite.name for composite in job.composites]
    _check(len(set(composites)) == len(composites), "composites", "two have the same name")
    _check_text(job.beside, "beside", most=MAX_NAME, is_line=True)
    tasks = sum(group.count for group in job.groups)
    _check(tasks <= MAX_TASKS, "groups", f"{tasks} tasks are more than {MAX_TASKS}")
    if job.interactive:
        _check(tasks == 1, "groups", "an interactive job has one task")
    return job


def _validate_flavours(job: Job) -> None:
    if not (job.is_polymorphic or job.composites):
        return
    whole = all(group.least == group.count for group in job.groups)
    what = "composites" if job.composites else "groups.flavour"
    _check(whole, what, "a job that has them needs all of its tasks (no min_count)")
    _check(not job.alternatives, what, "a job has them or alternatives, not both")
    _check(not job.interactive, what, "are for jobs that run without a terminal")
    _check(len(job.flavours) <= MAX_FLAVOURS, what, f"can be decided in more than {MAX_FLAVOURS} ways")


def _validate_composite(composite: Composite, field: str) -> None:
    good = _GROUP_NAME.fullmatch(composite.name) is not None
    _check(good, f"{field}.name", f"{composite.name[:80]!r} is not a name")
    _check_text(composite.template, f"{field}.template", most=MAX_NAME, empty=False, is_line=True)
    _check_number(composite.size, f"{field}.size", least=1, most=MAX_TASKS)
    _check(len(composite.command) <= MAX_ARGUMENTS, f"{field}.command", f"has more than {MAX_ARGUMENTS} words")
    _check(not composite.command or bool(composite.command[0]), f"{field}.command", "is empty")
    for word in composite.command:
        _check("\0" not in word, f"{field}.command", "has a NUL character")
    size = sum(len(word.encode(errors="surrogateescape")) + 1 for word in composite.command)
    _check(size <= MAX_COMMAND_BYTES, f"{field}.command", f"is longer than {MAX_COMMAND_BYTES} bytes")
    for what, names in (("implementations", composite.implementations), ("servers", composite.servers)):
        _check(len(names) <= MAX_GROUPS, f"{field}.{what}", f"has more than {MAX_GROUPS} entries")
        _check(len(set(names)) == len(names), f"{field}.{what}", "names one twice")
        for name in names:
            _check_text(name, f"{field}.{what}", most=MAX_NAME, empty=False, is_line=True)
    _validate_amounts(composite.own, f"{field}.own")


def _validate_goal(job: Job) -> None:
    goal = job.goal
    _check_number(goal.slo_s, "goal.slo_s", least=0, most=MAX_SECONDS)
    _check_number(goal.importance, "goal.importance", least=0, most=MAX_IMPORTANCE)
    good = not goal.importance or 1 <= goal.importance < MAX_IMPORTANCE
    _check(good, "goal.importance", f"{goal.importance:g} is not from 1 to below {MAX_IMPORTANCE:g}")
    _check_number(goal.deadline_s, "goal.deadline_s", least=0, most=MAX_SECONDS)
    _check(not (goal.deadline_s and goal.deadline_at), "goal.deadline_s", "is set beside deadline_at: one is enough")
    if goal.deadline_at != 0:
        latest = job.submitted_at + MAX_SECONDS
        _check(math.isfinite(goal.deadline_at), "goal.deadline_at", f"{goal.deadline_at} is not a number")
        _check(
            goal.deadline_at > job.submitted_at,
            "goal.deadline_at",
            "is over when the job is submitted: give a later one",
        )
        _check(goal.deadline_at <= latest, "goal.deadline_at", "is more than ten years away")


def _validate_alternatives(job: Job) -> None:
    many = len(job.alternatives)
    _check(many <= MAX_ALTERNATIVES, "alternatives", f"{many} are more than {MAX_ALTERNATIVES}")
    _check(not (job.alternatives and job.interactive), "alternatives", "are for jobs that run without a terminal")
    names = [each.name for each in job.alternatives]
    _check(len(set(names)) == len(names), "alternatives", "two have the same name")
    known = {group.name for group in job.groups}
    for index, each in enumerate(job.alternatives):
        field = f"alternatives[{index}]"
        _check(_GROUP_NAME.fullmatch(each.name) is not None, f"{field}.name", f"{each.name[:80]!r} is not a name")
        _check_number(each.cost, f"{field}.cost", least=0, most=MAX_ALTERNATIVE_COST)
        variants = [variant.name for variant in each.groups]
        _check(len(set(variants)) == len(variants), f"{field}.groups", "two have the same name")
        for number, name in enumerate(variants):
            _check(name in known, f"{field}.groups[{number}].name", f"the job has no group {name[:80]!r}")
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
