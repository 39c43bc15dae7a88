"""Every field of a job file with what it can't be: one line that names the file, the field and the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from farbus.cli.decoding import read_file
from farbus.cli.jobfile import (
    AlternativeTable,
    CompositeTable,
    JobTable,
    ResourceTable,
    ServiceTable,
    StageTable,
    StorageTable,
    TaskTable,
    parse_job,
)
from farbus.errors import InvalidInput
from farbus.model.job import Job

LONG = "x" * 5_000
NUL = '"a\\u0000"'

BAD: dict[str, list[str]] = {
    "name": ["7", '"a b"', '"-a"', f'"{LONG}"'],
    "command": ["[]", '[""]', f"[{NUL}]", "[1]", '"ls -l"', f'["{LONG * 30}"]'],
    "count": ["0", "-1", "4097", "1.5", '"2"', "99999999999999999999"],
    "min_count": ["-1", "2", "1.5", '"2"'],
    "resources.cpus": ["0", "-1", "nan", "inf", '"2 apples"', '"1e9"', "1e300", "true"],
    "resources.memory": ["0", "-1", '"1 apple"', '"-1GiB"', '"99999999TiB"', "1.5", "true"],
    "resources.network": ["-1", '"10 apples"', '"-1Gbit/s"', '"9999Tbit/s"', "1e300", "true"],
    "resources.remote_network": ["-1", '"10GiB"', '"9999Tbit/s"', "nan"],
    "resources.gpus": ["-1", "65", "1.5", '"1"', "true"],
    "resources.gpu_memory": ["-1", '"x"', '"99999999TiB"'],
    "resources.gpu_model": ["7", f'"{LONG}"'],
    "resources.gpu_share": ["1", "-0.1", "nan", '"1/1"', '"1/0"', '"60%"', '"0.1%"', '"much"', "true"],
    "resources.gpu_span": ["1", '"yes"'],
    "node": ["7", f'"{LONG}"'],
    "labels": ["3", "{ a = 1 }"],
    "routes": ["[]", '["teleport"]', '"local"'],
    "cwd": ["7", NUL],
    "env": ["3", "{ A = 1 }", '{ "A=B" = "" }', '{ "" = "" }', f"{{ A = {NUL} }}"],
    "priority": ["1001", "-1001", "1.5", '"high"'],
    "time_limit": ["-1", "nan", '"soon"', '"-1h"', '"99999d"', "1e300", "true"],
    "unreachable_limit": ["-1", "nan", '"soon"', '"99999d"'],
    "application": ["7", f'"{LONG}"', NUL],
    "slo": ["-1", "nan", '"soon"', '"99999d"', "true"],
    "importance": ["0.5", "10", "nan", "-1", '"high"', "true"],
    "deadline": [
        "-1", "nan", '"soon"', '"99999d"', "true", '"2027-13-01"', '"2027-01-31T25:00"', "12:00:00", '"9999-99-99"',
    ],
    "moveable": ['"yes"', "1"],
    "stage_in": ['"x"', "[1]", "[{}]", '[{ from = "" }]', '[{ from = "a", too = "b" }]'],
    "stage_out": ['"x"', "[1]", '["/etc"]', '["../x"]'],
    "storage": [
        "3", "[1]", "[{}]", '[{ size = "1 apple" }]', "[{ size = -1 }]", '[{ size = 1, bandwidth = "fast" }]',
        "[{ size = 1, devices = 99 }]", '[{ size = 1, routes = ["teleport"] }]', '[{ size = 1, speed = 1 }]',
        '[{ size = 1, name = "a b" }]', '[{ size = 1, name = "a" }, { size = 1, name = "a" }]',
        f'[{{ size = 1, profile = "{LONG}" }}]', '[{ volume = "A" }]', f'[{{ volume = "{LONG}" }}]',
        '[{ size = 1, use = "sing" }]', '[{ size = 1, file_system = "fat" }]', '[{ size = 1, path = "x" }]',
        '[{ size = 1, read_only = true }]', '[{ size = 1, volume = "a" }]', '[{ volume = "a", read_only = 1 }]',
    ],
    "alternative": [
        "3", "[1]", "[{ cost = -1, task = [{}] }]", "[{ cost = nan, task = [{}] }]", "[{ cost = 1e300, task = [{}] }]",
        '[{ task = [{ name = "other" }] }]', "[{ task = [{ resources = { gpus = -1 } }] }]", "[{ task = [] }]",
        '[{ name = "a b", task = [{}] }]', '[{ name = "a", task = [{}] }, { name = "a", task = [{}] }]',
        "[{ task = [{ count = 2 }] }]", '[{ task = [{ routes = ["teleport"] }] }]',
    ],
    "flavour": ["3", '"012"', f'"{LONG}"'],
    "service": [
        "3", "{}", '{ name = "" }', '{ name = "a", own = { x = -1 } }', '{ name = "a", shared = { x = 1.5 } }',
        '{ name = "a", own = { x = "6MiB" } }',
        '{ name = "a", own = { "" = 1 } }', '{ name = "a", speed = 1 }', f'{{ name = "{LONG}" }}',
    ],
    "composite": [
        "3", "[1]", "[{}]", '[{ template = "" }]', '[{ template = "cache", size = 0 }]',
        '[{ template = "cache", name = "a b" }]', '[{ template = "cache", servers = ["other"] }]',
        '[{ template = "cache", own = { x = -1 } }]', '[{ template = "cache", implementations = [1] }]',
        '[{ template = "cache", command = "ls" }]', '[{ template = "cache", speed = 1 }]',
        '[{ template = "cache", name = "a" }, { template = "cache", name = "a" }]',
    ],
    "beside": ["3", f'"{LONG}"'],
    "task": ["3", "[1]", "[{}]", '[{ command = ["x"], count = 0 }]', '[{ command = ["x"], cpus = 1 }]'],
}  # fmt: skip


def parse(text: str) -> Job:
    return parse_job(text.encode(), name="job.toml", directory=Path("/work"))


def paths(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        if field.type is ResourceTable or ResourceTable in get_args(field.type):
            yield from paths(ResourceTable, f"{field.encode_name}.")
        else:
            yield f"{prefix}{field.encode_name}"


def test_every_field_of_a_job_file_is_in_the_table() -> None:
    assert sorted(paths(JobTable)) == sorted(BAD)
    assert {field.encode_name for field in msgspec.structs.fields(StageTable)} == {"from", "to"}
    assert set(paths(TaskTable)) <= BAD.keys()
    named = {field.encode_name for kind in (StorageTable, AlternativeTable) for field in msgspec.structs.fields(kind)}
    assert named == {
        "name", "size", "bandwidth", "devices", "profile", "routes", "volume", "use", "file_system", "path",
        "read_only", "cost", "task",
    }  # fmt: skip
    named = {field.encode_name for kind in (ServiceTable, CompositeTable) for field in msgspec.structs.fields(kind)}
    assert named == {"name", "own", "shared", "template", "size", "command", "implementations", "servers"}


def written(path: str, value: str) -> str:
    lines = [] if path in ("command", "task") else ['command = ["x"]']
    if path.startswith("resources."):
        gpus = [] if path.endswith("gpus") else ["resources.gpus = 1"]
        return "\n".join([*lines, *gpus, f"{path} = {value}"])
    return "\n".join([*lines, f"{path} = {value}"])


@pytest.mark.parametrize(("path", "value"), [(path, value) for path, values in BAD.items() for value in values],
                         ids=lambda item: item[:40])  # fmt: skip
def test_a_job_file_is_refused_with_the_field(path: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse(written(path, value))
    told = str(refused.value)
    assert told.startswith("job.toml")
    assert path.rpartition(".")[2] in told
    assert len(told) < 500
    assert told.isprintable()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('command = ["x"]\ntime_limt = "2h"', "time_limt"),
        ('command = ["x"]\n[resources]\ngpu = 1', "gpu"),
        ('[[task]]\ncommand = ["x"]\npriority = 3', "priority"),
        ('command = ["x"]\n[[task]]\ncommand = ["y"]', "command: stands beside"),
    ],
)
def test_unknown_and_misplaced_fields_are_named(text: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        parse(text)


def test_a_file_of_ten_megabytes_is_refused_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    with open(path, "wb") as file:
        file.truncate(10 * 2**20)
    with pytest.raises(InvalidInput, match="larger than 1 MiB, which no job file is"):
        read_file(str(path), what="job file")


@pytest.mark.parametrize("part", ["a", '"a"', "'a b'", "a "])
@pytest.mark.parametrize("start", ["", "[", "labels = { "])
def test_a_key_of_a_hundred_thousand_parts_is_refused_at_once(start: str, part: str) -> None:
    # Its reading would take minutes.
    with pytest.raises(InvalidInput, match=r"job\.toml: nested too deeply"):
        parse(f"{start}{'.'.join([part] * 100_000)} = 1")


@pytest.mark.parametrize("wrong", ['"6MiB"', "-1", "1.5", "99999999999999"])
def test_of_a_table_the_wrong_item_is_named(wrong: str) -> None:
    text = f'command = ["x"]\nservice = {{ name = "a", own = {{ stages = 1, sram_bytes = {wrong} }} }}'
    with pytest.raises(InvalidInput, match=r"service\.own\.sram_bytes: expected an integer"):
        parse(text)
