"""Job files: what is understood, and what each mistake is answered with."""

from __future__ import annotations

import codecs
import contextlib
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farbus.cli.decoding import MAX_FILE_BYTES
from farbus.cli.jobfile import parse_job, read_job, read_table, schema
from farbus.errors import ExitCode, FarbusError, InvalidInput, NotFound
from farbus.model.device import Route
from farbus.model.job import Requests, StorageRequest
from farbus.model.volume import FileSystem, StorageUse

HERE = Path("/home/ada/jobs")

FULL = b"""
name = "train"
command = ["./train", "--epochs", "3"]
cwd = "runs"
count = 2
node = "gamma"
routes = ["remote"]
priority = 5
time_limit = "2h"
unreachable_limit = "10m"
moveable = true

[labels]
rack = "r1"

[env]
SEED = "7"

[resources]
cpus = 1.5
memory = "2GiB"
gpus = 2
gpu_memory = "8GiB"
gpu_model = "H200"
network = "10Gbit/s"
remote_network = "1.5Gbit/s"
"""


def test_every_field_arrives() -> None:
    job = parse_job(FULL, name="job.toml", directory=HERE)
    assert (job.name, job.cwd, job.priority, job.time_limit_s) == ("train", "/home/ada/jobs/runs", 5, 7200.0)
    assert job.unreachable_limit_s == 600.0
    assert job.moveable
    assert job.environment == {"SEED": "7"}
    (group,) = job.groups
    assert group.command == ("./train", "--epochs", "3")
    assert (group.name, group.count, group.node, group.labels) == ("main", 2, "gamma", {"rack": "r1"})
    assert group.routes == (Route.REMOTE,)
    assert group.requests == Requests(
        cpu_milli=1500,
        memory_bytes=2 * 2**30,
        network_mbit_s=10_000,
        gpus=2,
        gpu_memory_bytes=8 * 2**30,
        gpu_model="H200",
        remote_network_mbit_s=1500,
    )


def test_json_says_the_same_as_toml() -> None:
    text = json.dumps({"name": "train", "command": ["./train"], "resources": {"gpus": 1}}).encode()
    toml = b'name = "train"\ncommand = ["./train"]\nresources = {gpus = 1}'
    assert parse_job(text, name="job.json", directory=HERE) == parse_job(toml, name="job.toml", directory=HERE)


def test_a_brace_tells_json_where_the_name_does_not() -> None:
    assert parse_job(b' {"command": ["a"]}', name="standard input", directory=HERE).groups[0].command == ("a",)


@pytest.mark.parametrize("text", [b'command = ["true"]', b'{"command": ["true"]}'])
def test_a_file_may_begin_as_editors_of_other_systems_have_it(text: bytes) -> None:
    assert parse_job(codecs.BOM_UTF8 + text, name="job", directory=Path("/")).groups[0].command == ("true",)


def test_a_job_without_a_name_has_its_files() -> None:
    assert parse_job(b'command = ["a"]', name="/x/my job!.toml", directory=HERE).name == "my-job"


def test_groups_are_tasks_placed_together() -> None:
    text = b'[[task]]\nname = "ps"\ncommand = ["p"]\n[[task]]\ncommand = ["w"]\ncount = 3\nresources.gpus = 1\n'
    groups = parse_job(text, name="job.toml", directory=HERE).groups
    assert [(group.name, group.count, group.requests.gpus) for group in groups] == [("ps", 1, 0), ("task1", 3, 1)]


MISTAKES = {
    'comand = ["a"]': "job.toml: comand: unknown field; did you mean command?",
    'command = ["a"]\n[resources]\ngpu = 1': "job.toml: resources.gpu: unknown field; did you mean gpus?",
    '[[task]]\ncommand = ["a"]\nresources.gpu = 1': (
        "job.toml: task[0].resources.gpu: unknown field; did you mean gpus?"
    ),
    'command = "a b"': (
        'job.toml: command: not a list of strings; write command = ["./program", "argument"], '
        'or ["sh", "-c", "..."] for a shell'
    ),
    "": 'job.toml: command: missing; write for example command = ["./program", "argument"]',
    'command = [""]': "job.toml: command: the program's name is empty; the first word names the program",
    'command = ["a"]\nroutes = ["warp"]': (
        "job.toml: routes[0]: unknown value 'warp'; allowed: local, remote, recomposed"
    ),
    'command = ["a"]\nroutes = []': "job.toml: routes: expected a list of length >= 1",
    'command = ["a"]\n[resources]\ngpus = "two"': "job.toml: resources.gpus: expected an integer, got a string",
    'command = ["a"]\n[resources]\ngpus = -1': "job.toml: resources.gpus: expected an integer >= 0",
    'command = ["a"]\n[resources]\ngpus = 65': "job.toml: resources.gpus: expected an integer <= 64",
    'command = ["a"]\n[resources]\ncpus = 0': (
        "job.toml: resources.cpus: no program runs with none; leave it out for the default"
    ),
    'command = ["a"]\n[resources]\nmemory = "5XB"': (
        "job.toml: resources.memory: unknown unit 'XB'; use B, KiB, MiB, GiB, TiB, PiB, kB, MB, GB, TB or PB"
    ),
    'command = ["a"]\n[resources]\nnetwork = "10GB"': (
        "job.toml: resources.network: unknown unit 'GB'; use Mbit/s, Gbit/s or Tbit/s"
    ),
    'command = ["a"]\n[resources]\nremote_network = "1Gbit/s"': (
        "job.toml: resources.remote_network: set, but gpus is 0; ask for gpus too, or leave it out"
    ),
    'command = ["a"]\n[resources]\ngpu_memory = "1GiB"': (
        "job.toml: resources.gpu_memory: set, but gpus is 0; ask for gpus too, or leave it out"
    ),
    'command = ["a"]\n[env]\nA = 1': "job.toml: env.A: expected a string, got an integer",
    'command = ["a"]\n[env]\n"A=B" = "1"': (
        "job.toml: env: 'A=B' can't name a variable; use letters, digits and '_', not first a digit"
    ),
    'command = ["a\\u0000"]': "job.toml: command: holds a NUL character",
    'command = ["a"]\nname = "a b"': (
        "job.toml: name: 'a b' is not a name; "
        "use 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
    ),
    # The scheduler's own rule: told here, with the field as the file has it.
    '[[task]]\nname = "a.b"\ncommand = ["a"]': (
        "job.toml: task[0].name: 'a.b' is not a name; "
        "use 1 to 63 letters, digits, '-' or '_', with a letter or digit at both ends"
    ),
    'command = ["a"]\ntime_limit = "1y"': "job.toml: time_limit: unknown unit 'y'; use ms, s, m, h or d",
    'command = ["a"]\npriority = 2000': "job.toml: priority: expected an integer <= 1000",
    'command = ["a"]\n[[task]]\ncommand = ["b"]': (
        "job.toml: command: stands beside [[task]], which has its own; move command into [[task]]"
    ),
    '[[task]]\nname = "x"\ncommand = ["b"]\n[[task]]\nname = "x"\ncommand = ["b"]': (
        "job.toml: task[1].name: 'x' is taken; give each group a name of its own"
    ),
    "x ==": "job.toml: not TOML: invalid value (at line 1, column 4); correct it there",
    "a = " + "[" * 5000: "job.toml: nested too deeply; is it the right file?",
}


DIGITS = "9" * 400
HUGE = {
    "cpus = 1e308": "job.toml: resources.cpus: 1e+308 is more than a million processors",
    f"cpus = {DIGITS}": f"job.toml: resources.cpus: {DIGITS[:40]}... is more than a million processors",
    f'cpus = "{DIGITS}m"': f"job.toml: resources.cpus: {DIGITS[:40]}... is more than a million processors",
    f"memory = {DIGITS}": f"job.toml: resources.memory: {DIGITS[:40]}... is more than one exbibyte",
    f'memory = "{DIGITS}TiB"': f"job.toml: resources.memory: {DIGITS[:40]}... is more than one exbibyte",
    f"memory = -{DIGITS}": (
        f"job.toml: resources.memory: -{DIGITS[:39]}... is not a number of zero or more; write for example 512MiB"
    ),
    f"gpus = {DIGITS * 20}": "job.toml: not TOML: a number of more than 4300 digits; correct it there",
}


@pytest.mark.parametrize("line", HUGE, ids=lambda line: line[:16])
def test_a_number_beyond_any_machine_is_refused_in_one_line(line: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_job(f'command = ["a"]\n[resources]\n{line}'.encode(), name="job.toml", directory=HERE)
    assert str(caught.value) == HUGE[line]


def test_a_working_directory_that_was_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(NotFound, match="the working directory: No such file or directory; cd to one that exists"):
        read_table("-")


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: text[:30])
def test_a_mistake_is_named_with_its_field_and_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_job(text.encode(), name="job.toml", directory=HERE)
    assert str(caught.value) == MISTAKES[text]
    assert caught.value.exit_code == ExitCode.USAGE


def test_malformed_json_is_located_by_line_and_column() -> None:
    with pytest.raises(InvalidInput, match=r"job.json: not JSON: .* \(at line 2, column 1\)"):
        parse_job(b'{"command": ["a"],\n}', name="job.json", directory=HERE)


def test_a_file_of_ten_megabytes_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "big.toml"
    with open(path, "wb") as file:
        file.truncate(10 * MAX_FILE_BYTES)
    with pytest.raises(InvalidInput, match="larger than 1 MiB"):
        read_job(str(path))


def test_an_endless_file_is_refused() -> None:
    with pytest.raises(InvalidInput, match="/dev/zero: larger than 1 MiB"):
        read_job("/dev/zero")


def test_a_missing_file_and_a_directory_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such job file"):
        read_job(str(tmp_path / "none.toml"))
    with pytest.raises(InvalidInput, match="a directory"):
        read_job(str(tmp_path))


def test_relative_directories_start_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('command = ["a"]\ncwd = "data"')
    assert read_job(str(tmp_path / "job.toml")).cwd == str(tmp_path / "data")


def test_the_schema_names_every_field_and_forbids_others() -> None:
    table = schema()["$defs"]["JobTable"]
    assert table["additionalProperties"] is False
    assert {"command", "resources", "task", "time_limit"} <= table["properties"].keys()
    assert msgspec.json.decode(msgspec.json.encode(schema()))["$ref"] == "#/$defs/JobTable"


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_an_error_for_a_person(text: bytes) -> None:
    for name in ("job.toml", "job.json"):
        with contextlib.suppress(FarbusError):
            assert parse_job(text, name=name, directory=HERE).groups


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["name", "command", "count", "resources", "labels", "routes", "env", "task", "priority"])


@given(st.dictionaries(FIELDS, VALUES, max_size=5))
def test_no_value_of_a_field_raises_anything_but_an_error_for_a_person(fields: dict[str, object]) -> None:
    text = json.dumps(fields, allow_nan=False) if _finite(fields) else "{}"
    with contextlib.suppress(FarbusError):
        assert parse_job(text.encode(errors="surrogatepass"), name="job.json", directory=HERE).groups


def _finite(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


STORED = b"""
command = ["./sort"]

[[storage]]
name = "in"
size = "400GB"
bandwidth = "2GB/s"
devices = 2
routes = ["local"]

[[storage]]
size = 1024
profile = "smufin"
"""


def test_storage_arrives() -> None:
    (group,) = parse_job(STORED, name="job.toml", directory=HERE).groups
    assert group.storage == (
        StorageRequest(
            name="in",
            size_bytes=400 * 10**9,
            bandwidth_bytes_per_s=2 * 10**9,
            devices=2,
            routes=(Route.LOCAL,),
        ),
        StorageRequest(name="storage1", size_bytes=1024, profile="smufin"),
    )


def test_storage_is_counted_as_by_the_command() -> None:
    text = b'command = ["a"]\n[[storage]]\nsize = "100G"\nbandwidth = "10Gbit/s"\n'
    (group,) = parse_job(text, name="job.toml", directory=HERE).groups
    (storage,) = group.storage
    assert (storage.size_bytes, storage.bandwidth_bytes_per_s) == (100 * 10**9, 125 * 10**7)


def test_a_volume_arrives() -> None:
    text = b'command = ["a"]\n[[storage]]\nvolume = "data"\nuse = "mmap"\nfile_system = "xfs"\npath = "/d"\n'
    text += b"read_only = true"
    (group,) = parse_job(text, name="job.toml", directory=HERE).groups
    assert group.storage == (
        StorageRequest(
            name="storage",
            volume="data",
            use=StorageUse.MMAP,
            file_system=FileSystem.XFS,
            path="/d",
            read_only=True,
        ),
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"size = 0", "job.toml: storage[0].size: missing"),
        (b'size = "1XB"', "job.toml: storage[0].size: unknown unit"),
        (b'size = 1\nbandwidth = "1GB/h"', "job.toml: storage[0].bandwidth: "),
        (b"size = 1\ndevices = 65", "job.toml: storage[0].devices: "),
        (b"size = 1\nstripe = 2", "job.toml: storage[0].stripe: unknown field"),
        (b'size = 1\nname = "a b"', "job.toml: storage[0].name: 'a b' is not a name"),
        (b'volume = "Data"', "job.toml: storage[0].volume: 'Data' is no name for a volume"),
        (b'volume = "a"\nsize = 1', "job.toml: storage[0].size: the volume has its own"),
        (b'volume = "a"\nbandwidth = 1', "job.toml: storage[0].bandwidth: the volume has its own"),
        (b'size = 1\nuse = "sing"', "job.toml: storage[0].use: "),
        (b'size = 1\npath = "data"', "job.toml: storage[0].path: 'data' is no absolute path below /"),
        (b'size = 1\nuse = "raw"\npath = "/srv"', "job.toml: storage[0].path: only what is mounted has one"),
        (b'volume = "a"\nuse = "swap"\nread_only = true', "job.toml: storage[0].read_only: swap space is written"),
        (b'size = 1\nbandwidth = "fast"', "job.toml: storage[0].bandwidth: 'fast' is not a number with a unit; write"),
        (b"size = 1\nread_only = true", "job.toml: storage[0].read_only: nothing is on it yet"),
    ],
)
def test_a_mistake_in_storage_names_the_field(line: bytes, told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_job(b'command = ["a"]\n[[storage]]\n' + line, name="job.toml", directory=HERE)
    assert str(caught.value).startswith(told)


FLAVOURED = b"""
command = ["./solve"]
routes = ["local"]

[resources]
cpus = 2
gpus = 2
gpu_model = "H200"
gpu_memory = "80GiB"
gpu_span = true
remote_network = "10Gbit/s"

[[alternative]]
name = "on-processors"
cost = 1.5

[[alternative.task]]
resources = { gpus = 0, cpus = 16 }

[[alternative]]

[[alternative.task]]
name = "main"
routes = ["remote"]
"""


def test_alternatives_change_what_they_name_and_nothing_else() -> None:
    job = parse_job(FLAVOURED, name="job.toml", directory=HERE)
    assert [(each.name, each.cost) for each in job.alternatives] == [("on-processors", 1500), ("alternative1", 0)]
    (first,) = job.in_flavour("on-processors").groups
    assert first.requests == Requests(cpu_milli=16_000)
    assert (first.routes, first.command) == ((Route.LOCAL,), ("./solve",))
    (second,) = job.in_flavour("alternative1").groups
    assert second.requests == job.groups[0].requests
    assert second.routes == (Route.REMOTE,)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"[[alternative]]", "job.toml: alternative[0].task: missing"),
        (b"[[alternative]]\ncost = nan", "job.toml: alternative[0].cost: "),
        (b"[[alternative]]\ncost = -1", "job.toml: alternative[0].cost: "),
        (b'[[alternative]]\n[[alternative.task]]\nname = "x"', "job.toml: alternative[0].task[0].name: 'x' is no"),
        (b"[[alternative]]\n[[alternative.task]]\ncount = 2", "job.toml: alternative[0].task[0].count: unknown field"),
        (
            b"[[alternative]]\n[[alternative.task]]\nresources = { cpus = 0 }",
            "job.toml: alternative[0].task[0].resources.cpus: no program runs with none",
        ),
    ],
)
def test_a_mistake_in_an_alternative_names_the_field(text: bytes, told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_job(b'command = ["a"]\n' + text, name="job.toml", directory=HERE)
    assert str(caught.value).startswith(told)
