"""Job files: TOML or JSON that people write, checked and turned into a :class:`Job`.

The structs here are the file's form (``farbus schema job`` is generated from
them); :class:`farbus.model.job.Job` is what the cluster understands.  Every
error is one line that names the file, the field and what is allowed there.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import Meta

from farbus.errors import InvalidInput, NotFound
from farbus.model.device import Route
from farbus.model.job import Job, Requests, TaskGroup
from farbus.model.quantity import parse_bytes, parse_cpu, parse_seconds

MAX_FILE_BYTES = 2**20
"""Largest job file: far more than anybody writes, and a bound on what a slip of the hand can cost."""

MAX_TASKS = 4096
"""Most tasks of one job."""

MAX_GPUS = 64
"""Most GPUs of one task: four of the largest servers."""

MAX_ARGUMENTS_BYTES = 128 * 2**10
"""Longest command, like the kernel's limit on one argument (MAX_ARG_STRLEN, linux/binfmts.h)."""

MAX_PRIORITY = 1000

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_NAME_RULE = "use 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ResourceTable(msgspec.Struct, forbid_unknown_fields=True, rename=None):
    """What each task needs, all of it at once."""

    cpus: Annotated[str | int | float, Meta(description="Processors: 2, 0.5 or '250m'.")] = 1
    memory: Annotated[str | int, Meta(description="Memory: '512MiB', '4GiB', or bytes.")] = "256MiB"
    gpus: Annotated[int, Meta(ge=0, le=MAX_GPUS, description="Number of GPUs.")] = 0
    gpu_memory: Annotated[str | int, Meta(description="Least memory of each GPU.")] = 0
    gpu_model: Annotated[str, Meta(max_length=128, description="Part of the GPU model's name, in any case.")] = ""


class TaskTable(msgspec.Struct, forbid_unknown_fields=True):
    """A group of equal tasks."""

    name: Annotated[
        str, Meta(description="Name of the job; in [[task]], of the group, whose tasks are NAME.0, NAME.1, ...")
    ] = ""
    command: Annotated[list[str], Meta(description="The program and its arguments; no shell is involved.")] = []
    count: Annotated[int, Meta(ge=1, le=MAX_TASKS, description="How many tasks run the command.")] = 1
    resources: ResourceTable = msgspec.field(default_factory=ResourceTable)
    node: Annotated[str, Meta(max_length=63, description="The node that must run the tasks.")] = ""
    labels: Annotated[dict[str, str], Meta(description="Labels that the node must have.")] = {}
    routes: Annotated[list[Route], Meta(min_length=1, description="How devices may be given to the tasks.")] = (
        msgspec.field(default_factory=lambda: [Route.LOCAL, Route.REMOTE])
    )


class JobTable(TaskTable, forbid_unknown_fields=True, omit_defaults=True):
    """A job: one group of tasks, or several as ``[[task]]``."""

    cwd: Annotated[str, Meta(description="Working directory; relative to the job file's own.")] = ""
    env: Annotated[dict[str, str], Meta(description="Environment variables to add.")] = {}
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="More goes first.")] = 0
    time_limit: Annotated[str | int | float, Meta(description="Longest run: '90s', '30m', '2h'; 0 for no limit.")] = 0
    task: Annotated[list[TaskTable], Meta(description="Groups of tasks, placed together or not at all.")] = []


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
    text = _read(path)
    name = "standard input" if path == "-" else path
    directory = Path.cwd() if path == "-" else Path(path).resolve().parent
    return parse_table(text, name=name), name, directory


def parse_job(text: bytes, *, name: str, directory: Path) -> Job:
    """Turn the ``text`` of a job file into a job; ``name`` is what errors call the file."""
    return convert_table(parse_table(text, name=name), name=name, directory=directory, fallback=name_from(name))


def parse_table(text: bytes, *, name: str) -> JobTable:
    """Decode the ``text`` of a job file, and check names and types."""
    if len(text) > MAX_FILE_BYTES:
        raise InvalidInput(f"{name}: larger than 1 MiB, which no job file is", hint="is it the right file?")
    try:
        return table_from_fields(_decode(text, name), name=name)
    except RecursionError as error:
        raise InvalidInput(f"{name}: nested too deeply for a job file") from error


def table_from_fields(fields: Any, *, name: str) -> JobTable:
    """Check names and types of what a file held."""
    try:
        return msgspec.convert(fields, JobTable)
    except msgspec.ValidationError as error:
        raise _explain(name, str(error), fields) from error


def convert_table(table: JobTable, *, name: str, directory: Path, fallback: str) -> Job:
    """Check what types alone can't, and convert; ``fallback`` names a job that has no name."""
    job_name = table.name or fallback
    _check_name(job_name, f"{name}: name")
    if table.task:
        _refuse_mixture(table, name)
        groups = tuple(_group(task, f"{name}: task[{index}]", index) for index, task in enumerate(table.task))
        _refuse_duplicates(groups, name)
    else:
        groups = (_group(table, name, None),)
    if sum(group.count for group in groups) > MAX_TASKS:
        raise InvalidInput(f"{name}: more than {MAX_TASKS} tasks", hint="submit several jobs")
    for variable, value in table.env.items():
        if not _VARIABLE.fullmatch(variable):
            raise InvalidInput(
                f"{name}: env: {variable!r} can't name a variable",
                hint="use letters, digits and '_', not first a digit",
            )
        if "\0" in value:
            raise InvalidInput(f"{name}: env.{variable}: holds a NUL character")
    if "\0" in table.cwd:
        raise InvalidInput(f"{name}: cwd: holds a NUL character")
    return Job(
        id="",
        name=job_name,
        user="",
        groups=groups,
        cwd=os.path.normpath(directory / table.cwd),
        environment=dict(table.env),
        priority=table.priority,
        time_limit_s=parse_seconds(table.time_limit, what=f"{name}: time_limit"),
    )


def convert_requests(resources: ResourceTable, where: str) -> Requests:
    """Convert what a task needs; ``where`` begins the errors: the table's path, or ``--`` for options."""
    gpu_memory, gpu_model = ("gpu-memory", "gpu-model") if where == "--" else ("gpu_memory", "gpu_model")
    requests = Requests(
        cpu_milli=parse_cpu(resources.cpus, what=f"{where}cpus"),
        memory_bytes=parse_bytes(resources.memory, what=f"{where}memory"),
        gpus=resources.gpus,
        gpu_memory_bytes=parse_bytes(resources.gpu_memory, what=f"{where}{gpu_memory}"),
        gpu_model=resources.gpu_model,
    )
    if not requests.cpu_milli or not requests.memory_bytes:
        what = "memory" if requests.cpu_milli else "cpus"
        raise InvalidInput(f"{where}{what}: no program runs with none", hint="leave it out for the default")
    if not requests.gpus and (requests.gpu_memory_bytes or requests.gpu_model):
        what = gpu_memory if requests.gpu_memory_bytes else gpu_model
        raise InvalidInput(f"{where}{what}: set, but gpus is 0", hint="ask for gpus too, or leave it out")
    return requests


def _group(task: TaskTable, where: str, index: int | None) -> TaskGroup:
    prefix = f"{where}: " if index is None else f"{where}."
    group_name = "main" if index is None else task.name or f"task{index}"
    if index is not None:
        _check_name(group_name, f"{prefix}name")
    if not task.command:
        raise InvalidInput(f"{prefix}command: missing", hint='write for example command = ["./program", "argument"]')
    if not task.command[0]:
        raise InvalidInput(f"{prefix}command: the program's name is empty", hint="the first word names the program")
    if any("\0" in word for word in task.command):
        raise InvalidInput(f"{prefix}command: holds a NUL character")
    if sum(len(word.encode(errors="surrogateescape")) + 1 for word in task.command) > MAX_ARGUMENTS_BYTES:
        raise InvalidInput(f"{prefix}command: longer than 128 KiB", hint="put the arguments into a file")
    return TaskGroup(
        name=group_name,
        command=tuple(task.command),
        count=task.count,
        requests=convert_requests(task.resources, f"{prefix}resources."),
        node=task.node,
        labels=dict(task.labels),
        routes=tuple(dict.fromkeys(task.routes)),
    )


def _refuse_mixture(table: JobTable, name: str) -> None:
    for field in ("command", "count", "resources", "node", "labels", "routes"):
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


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{where}: {name[:80]!r} is not a name", hint=_NAME_RULE)


def name_from(name: str) -> str:
    """Make a job's name from a file's."""
    words = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(name).stem).strip("-_.")[:63].strip("-_.")
    return words or "job"


def _read(path: str) -> bytes:
    try:
        if path == "-":
            return sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        with open(path, "rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"{path}: no such job file", hint="give the path of a TOML or JSON file") from error
    except IsADirectoryError as error:
        raise InvalidInput(
            f"{path}: a directory, not a job file", hint="give the path of a TOML or JSON file"
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidInput(f"{path}: can't be read: {reason}", hint="check the path and its permissions") from error


def _decode(text: bytes, name: str) -> Any:
    is_json = name.endswith(".json") or (not name.endswith(".toml") and text.lstrip()[:1] == b"{")
    try:
        if is_json:
            return msgspec.json.decode(text)
        return tomllib.loads(text.decode())
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{name}: not UTF-8 text (byte {error.start})", hint="a job file is TOML or JSON, see docs/job-files.md"
        ) from error
    except tomllib.TOMLDecodeError as error:
        reason = str(error)[:1].lower() + str(error)[1:]
        raise InvalidInput(f"{name}: not TOML: {reason}", hint="docs/job-files.md shows how one looks") from error
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"{name}: not JSON: {_json_reason(str(error), text)}", hint="check it with a JSON tool"
        ) from error


def _json_reason(message: str, text: bytes) -> str:
    reason = message.removeprefix("JSON is malformed: ")
    match = re.search(r"\(byte (\d+)\)", reason)
    if match is None:
        return reason[:1].lower() + reason[1:]
    before = text[: int(match[1])]
    line, column = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
    return reason.replace(match[0], f"(at line {line}, column {column})")


def _explain(name: str, message: str, fields: Any) -> InvalidInput:
    """Turn a message of msgspec into one that says what is allowed."""
    text, _, path = message.partition(" - at `$")
    path = re.sub(r"^\.|`$", "", path)
    if path.endswith("[...]"):
        path = path.removesuffix("[...]")
        path = f"{path}.{_key_of_wrong_value(path, fields)}"
    unknown = re.match(r"Object contains unknown field `(.*)`", text, re.DOTALL)
    if unknown is not None:
        known = _fields_at(path)
        near = difflib.get_close_matches(unknown[1], known, n=1)
        where = f"{path}.{unknown[1]}" if path else unknown[1]
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return InvalidInput(f"{name}: {where[:120]}: unknown field", hint=hint)
    if path.endswith("command") and text.startswith("Expected `array`"):
        return InvalidInput(
            f"{name}: {path}: not a list of strings",
            hint='write command = ["./program", "argument"], or ["sh", "-c", "..."] for a shell',
        )
    reason = text.replace("`", "").replace("Expected", "expected").replace("Invalid enum value", "unknown value")
    for word, plain in _PLAIN_WORDS.items():
        reason = re.sub(rf"\b{word}\b", plain, reason)
    hint = f"one of {', '.join(Route)}" if "unknown value" in reason and path.startswith(("routes", "task")) else ""
    return InvalidInput(f"{name}: {path}: {reason}" if path else f"{name}: {reason}", hint=hint)


def _key_of_wrong_value(path: str, fields: Any) -> str:
    """Return the key, in a table of strings, whose value is none: msgspec leaves it out."""
    for step in re.findall(r"[^.\[\]]+", path):
        fields = fields[int(step)] if isinstance(fields, list) else fields[step]
    return str(next(key for key, value in fields.items() if not isinstance(value, str)))


_PLAIN_WORDS: Mapping[str, str] = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "object": "a table",
    "array": "a list",
    "bool": "true or false",
    "null": "nothing",
}


def _fields_at(path: str) -> list[str]:
    struct: type[msgspec.Struct] = JobTable
    for step in re.findall(r"[a-z_]+", path):
        hint = get_type_hints(struct).get(step)
        arguments = get_args(hint)
        struct = next(
            (kind for kind in (hint, *arguments) if isinstance(kind, type) and issubclass(kind, msgspec.Struct)), struct
        )
    return list(struct.__struct_fields__)
