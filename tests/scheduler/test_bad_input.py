"""Every field of a job and of a node's report, with what it can't be: refused with the field and the reason."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from farbus.api.conversion import from_message, to_message
from farbus.api.identity import Identity, Role
from farbus.api.server import _read_job
from farbus.api.v1 import session_pb2, types_pb2
from farbus.errors import InvalidInput
from farbus.model.job import MAX_JOB_BYTES, NO_GOAL, Job
from farbus.model.metrics import series
from farbus.model.series import SeriesEncoder
from farbus.model.telemetry import DeviceTelemetry, Telemetry
from farbus.scheduler.figures import NodeFigures
from farbus.scheduler.queue import validate_job
from farbus.scheduler.reports import MAX_DEVICES, MAX_NODE_BYTES, read_node
from farbus.scheduler.sessions import _read_held
from tests.scheduler.scripted import job, node

HUGE = 2**62
LONG = "x" * 5_000
MANY = dict.fromkeys(map(str, range(999)), "")


def fields_of(descriptor: Any, prefix: str = "") -> Iterator[str]:
    """Yield the path of every field of a message that holds a value."""
    for field in descriptor.fields:
        path = f"{prefix}{field.name}"
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.message_type is not None and not is_map:
            yield path
            yield from fields_of(field.message_type, f"{path}.")
        else:
            yield path


def setting(message: Any, path: str, value: Any) -> None:
    """Set the field at ``path``, in the first element of repeated ones."""
    *way, last = path.split(".")
    for name in way:
        message = getattr(message, name)
        message = message[0] if hasattr(message, "add") else message
    target = getattr(message, last)
    if isinstance(value, dict):
        target.clear()
        target.update(value)
    elif isinstance(value, list):
        del target[:]
        target.extend(value)
    else:
        setattr(message, last, value)


# --- jobs ----------------------------------------------------------------------------------

TASK = types_pb2.TaskGroup

STORAGE = types_pb2.StorageRequest(name="s", size_bytes=1, routes=["local"])
BAD_STORAGE: dict[str, list[Any]] = {
    "name": ["", "a.b", LONG, "a\n"],
    "size_bytes": [0, -1, HUGE],
    "bandwidth_bytes_per_s": [-1, HUGE],
    "devices": [-1, 2**31 - 1],
    "profile": [LONG, "a\0", "a\nb"],
    "routes": [["teleport"], ["local", "local"], [""]],
    "volume": ["Data", "a.b", LONG, "a\n", "-a"],
    "use": ["sing"],
    "file_system": ["fat"],
    "path": ["relative", "/", "/a/../b", "/a/", LONG * 20, "/a\0", "/a\nb"],
    "read_only": [True],
}

AMOUNTS: list[Any] = [{"": 1}, {LONG: 1}, {"a\n": 1}, {"a": -1}, {"a": HUGE}, {str(n): 1 for n in range(99)}]
COMPOSITE = types_pb2.Composite(name="c", template="cache", size=1)

BAD_JOBS: dict[str, list[Any]] = {
    "name": ["", LONG, "a\nb", "a\0"],
    "user": ["", LONG, "a\nb", "../root", "-x"],
    "groups": [[], [TASK(name="a", command=["x"], count=1, routes=["local"])] * 65],
    "groups.name": ["", "a.b", LONG, "a\n"],
    "groups.command": [[], [""], ["a\0"], [LONG * 100], ["a"] * 5_000],
    "groups.count": [0, -1, 4_097, 2**31 - 1],
    "groups.min_count": [-1, 2, 4_097, 2**31 - 1],
    "groups.requests.cpu_milli": [0, -1, HUGE],
    "groups.requests.memory_bytes": [0, -1, HUGE],
    "groups.requests.network_mbit_s": [-1, HUGE],
    "groups.requests.remote_network_mbit_s": [-1, HUGE],
    "groups.requests.gpus": [-1, 2**31 - 1],
    "groups.requests.gpu_memory_bytes": [-1, HUGE],
    "groups.requests.gpu_share_milli": [-1, 1_001, 2**31 - 1],
    "groups.requests.gpu_model": [LONG, "a\0", "a\nb"],
    "groups.node": [LONG, "a\0", "a\nb"],
    "groups.labels": [{"": "x"}, {LONG: "x"}, {"x": LONG}, {"a\n": "x"}, {"a": "b\n"}, MANY],
    "groups.routes": [[], ["teleport"], ["local", "local"], [""]],
    "groups.storage": [[STORAGE, STORAGE], [STORAGE] * 99],
    "groups.flavour": ["2", "x" * 65, "0 1"],
    "groups.service.name": ["", LONG, "a\0", "a\nb"],
    **{f"groups.service.{name}": AMOUNTS for name in ("own", "shared")},
    "composites": [[COMPOSITE, COMPOSITE], [COMPOSITE] * 99],
    "composites.name": ["", "a.b", LONG, "a\n"],
    "composites.template": ["", LONG, "a\nb"],
    "composites.size": [0, -1, 4_097, 2**31 - 1],
    "composites.command": [[""], ["a\0"], [LONG * 100], ["a"] * 5_000],
    "composites.implementations": [[""], ["a", "a"], [LONG], ["a\nb"], list("abc") * 30],
    "composites.own": AMOUNTS,
    "composites.servers": [[""], ["a", "a"], [LONG], list("abc") * 30],
    "beside": [LONG, "a\0", "a\nb"],
    "attachment": [True],
    **{f"groups.storage.{name}": values for name, values in BAD_STORAGE.items()},
    "alternatives": [[types_pb2.Alternative(name="a")] * 2, [types_pb2.Alternative(name="a")] * 99],
    "alternatives.name": ["", "a.b", LONG, "a\n"],
    "alternatives.cost": [-1, HUGE],
    "alternatives.groups": [[types_pb2.GroupVariant(name="main")] * 2],
    "alternatives.groups.name": ["", "other", LONG],
    "alternatives.groups.requests.cpu_milli": [0, -1, HUGE],
    "alternatives.groups.requests.memory_bytes": [0, -1, HUGE],
    "alternatives.groups.requests.network_mbit_s": [-1, HUGE],
    "alternatives.groups.requests.remote_network_mbit_s": [-1, HUGE],
    "alternatives.groups.requests.gpus": [-1, 2**31 - 1],
    "alternatives.groups.requests.gpu_memory_bytes": [-1, HUGE],
    "alternatives.groups.requests.gpu_share_milli": [-1, 1_001, 2**31 - 1],
    "alternatives.groups.requests.gpu_model": [LONG, "a\0", "a\nb"],
    "alternatives.groups.labels": [{"": "x"}, {LONG: "x"}, {"x": LONG}, {"a\n": "x"}, {"a": "b\n"}, MANY],
    "alternatives.groups.routes": [[], ["teleport"], ["local", "local"], [""]],
    "alternatives.groups.storage": [[STORAGE, STORAGE], [STORAGE] * 99],
    **{f"alternatives.groups.storage.{name}": values for name, values in BAD_STORAGE.items()},
    "cwd": ["relative", LONG, "/a\0"],
    "environment": [{"A=B": ""}, {"": "x"}, {"A": "\0"}, {"A": "x" * 200_000}],
    "priority": [1_001, -1_001, 2**31 - 1],
    "time_limit_s": [-1.0, math.nan, math.inf, 1e300],
    "goal.slo_s": [-1.0, math.nan, math.inf, 1e300],
    "goal.importance": [-1.0, 0.5, 10.0, math.nan, math.inf],
    "goal.deadline_s": [-1.0, math.nan, math.inf, 1e300],
    "goal.deadline_at": [-1.0, math.nan, math.inf, 1e300, 1_000.0],
    "application": [LONG, "a\0", "a\nb"],
    "stage_in": ["no digest", LONG],
    "stage_out": [["/etc"], ["../x"], ["a\0"], ["a"] * 10_000],
    "unreachable_limit_s": [-1.0, math.nan, math.inf, 1e300],
}  # fmt: skip
GIVEN_BY_THE_SCHEDULER = {"id", "submitted_at"}
ANY_VALUE = {
    "interactive", "moveable", "goal", "groups.requests", "alternatives.groups.requests", "groups.service",
    "groups.requests.gpu_span", "alternatives.groups.requests.gpu_span",
}  # fmt: skip
"""Flags, and what holds the others; what they can't be beside others stands in the tests of the queue."""


def good_job() -> types_pb2.Job:
    message = to_message(job(gpus=1, submitted_at=1_000.0), types_pb2.Job)
    (group,) = message.groups
    group.storage.append(STORAGE)
    alternative = message.alternatives.add(name="other")
    other = alternative.groups.add(name=group.name, requests=group.requests, routes=["local"])
    other.storage.append(STORAGE)
    return message


def composed_job() -> types_pb2.Job:
    """Return a good job with what none has together with alternatives."""
    message = good_job()
    del message.alternatives[:]
    message.groups[0].service.name = "s"
    message.composites.append(COMPOSITE)
    return message


def test_every_field_of_a_job_is_in_the_table() -> None:
    known = BAD_JOBS.keys() | GIVEN_BY_THE_SCHEDULER | ANY_VALUE
    assert sorted(fields_of(types_pb2.Job.DESCRIPTOR)) == sorted(known)
    validate_job(from_message(good_job(), Job))
    validate_job(from_message(composed_job(), Job))


@pytest.mark.parametrize(
    ("path", "value"),
    [(path, value) for path, values in BAD_JOBS.items() for value in values],
    ids=lambda item: repr(item)[:40],
)
def test_a_job_is_refused_with_the_field(path: str, value: Any) -> None:
    message = composed_job() if path.startswith(("composites", "groups.service", "groups.flavour")) else good_job()
    setting(message, path, value)
    with pytest.raises(InvalidInput) as refused:
        validate_job(_read_job(message))
    told = str(refused.value)
    assert path.rpartition(".")[2] in told
    assert len(told) < 1_000
    assert told.isprintable()


def test_of_two_deadlines_one_is_refused() -> None:
    message = good_job()
    message.goal.deadline_s, message.goal.deadline_at = 60.0, 2_000.0
    with pytest.raises(InvalidInput, match=r"goal\.deadline_s: is set beside deadline_at"):
        validate_job(_read_job(message))


def test_a_goal_of_an_older_client_is_none() -> None:
    message = good_job()
    message.ClearField("goal")
    found = validate_job(from_message(message, Job))
    assert found.goal == NO_GOAL
    assert found.due_at == math.inf


def test_a_job_of_ten_megabytes_is_refused_before_it_is_read() -> None:
    message = good_job()
    message.environment["A"] = "x" * 10 * 2**20
    with pytest.raises(InvalidInput, match=f"job: [0-9]+ bytes are more than {MAX_JOB_BYTES}"):
        _read_job(message)


def test_fields_of_a_newer_version_are_no_fault() -> None:
    # Of a message, unlike a file that a person writes.
    text = good_job().SerializeToString() + types_pb2.Job.FromString(b"\xfa\x3f\x01x").SerializeToString()
    assert from_message(types_pb2.Job.FromString(text), Job) == from_message(good_job(), Job)


# --- nodes ---------------------------------------------------------------------------------

CALLER = Identity(name="a", role=Role.NODE)

BAD_NODES: dict[str, list[Any]] = {
    "name": ["", "b"],
    "address": [LONG, "a\nb"],
    "boot_id": [LONG, "a\nb"],
    "agent_version": [LONG, "a\nb"],
    "capacity.cpu_milli": [-1, HUGE],
    "capacity.memory_bytes": [-1, HUGE],
    "capacity.network_mbit_s": [-1, HUGE],
    "labels": [{LONG: "x"}, {"x": LONG}, {"": "x"}, {"a\nb": "x"}, {"a": "\x1b[2J"}, MANY],
    "devices": [[types_pb2.Device(id="GPU-1", kind="gpu", model="m")] * 2],
    "devices.id": ["", LONG, "a\nb", "a,b"],
    "devices.kind": ["", "toaster"],
    "devices.model": [LONG, "a\nb"],
    "devices.memory_bytes": [-1, HUGE],
    "devices.resources": [{LONG: 1}, {"": 1}, {"a": -1}, {"a": HUGE}, {str(n): 1 for n in range(999)}],
    "devices.services": [[""], [LONG], ["a\nb"], ["a"] * 999],
    "devices.bandwidth_bytes_per_s": [-1, HUGE],
    "devices.pci_address": [LONG, "a\nb"],
    "devices.share_milli": [-1, 1_001, 2**31 - 1],
    "devices.numa_node": [-2, 2**31 - 1],
    "devices.compute_capability": [LONG, "a\nb"],
    "devices.attributes": [{LONG: "x"}, {"x": LONG}, MANY],
    "devices.pool": [LONG, "a\nb"],
    "pools": [[types_pb2.PoolReach(pool=f"p{number}", attach_s=1.0) for number in range(999)]],
    "pools.pool": ["", LONG, "a\nb"],
    "pools.attach_s": [-1.0, math.nan, math.inf, 1e300],
    "storage_attach_s": [-1.0, math.nan, math.inf, -math.inf, 3_601.0],
    "links": [[types_pb2.Link(name=f"e{number}") for number in range(5_000)]],
    "links.name": [LONG, "a\nb", ""],
    "links.speed_mbit_s": [-1, HUGE],
    "peer_endpoint": [LONG, "a\nb"],
    "remoting_tls": [LONG, "a\nb"],
}  # fmt: skip
SHORTENED = {"trouble"}
"""Words for people: cut, since a node in trouble must be able to say so."""


def good_node() -> types_pb2.Node:
    message = to_message(node("a", 1), types_pb2.Node)
    message.links.add(name="eth0", speed_mbit_s=1_000)
    message.pools.add(pool="p0", attach_s=1.0)
    return message


def test_every_field_of_a_node_is_in_the_table() -> None:
    known = BAD_NODES.keys() | SHORTENED | {"capacity", "devices.software"}
    assert sorted(fields_of(types_pb2.Node.DESCRIPTOR)) == sorted(known)
    read_node(CALLER, good_node())


@pytest.mark.parametrize(
    ("path", "value"),
    [(path, value) for path, values in BAD_NODES.items() for value in values],
    ids=lambda item: repr(item)[:40],
)
def test_a_node_that_reports_nonsense_is_refused_with_the_field(path: str, value: Any) -> None:
    message = good_node()
    setting(message, path, value)
    with pytest.raises(InvalidInput) as refused:
        read_node(CALLER, message)
    told = str(refused.value)
    assert path == "name" or path.rsplit(".", maxsplit=1)[-1] in told
    assert len(told) < 1_000
    assert told.isprintable()


def test_a_nodes_trouble_is_cut_and_put_on_one_line() -> None:
    message = good_node()
    message.trouble = "disk:\n" + LONG
    assert len(read_node(CALLER, message).trouble) <= 4_096
    assert read_node(CALLER, message).trouble.isprintable()


def test_why_a_lease_is_kept_is_cut_and_put_on_one_line() -> None:
    said = session_pb2.HeldLease(lease_id="j1-1-0", trouble="wedged:\n" + LONG, endpoint="a\x1b[2J")
    held = _read_held(said)
    assert len(held.trouble) <= 4_096
    assert held.trouble.isprintable()
    assert held.endpoint.isprintable()


def test_a_node_that_says_too_much_is_refused() -> None:
    message = good_node()
    message.labels["a"] = "x" * MAX_NODE_BYTES
    with pytest.raises(InvalidInput, match="says more than 4 MiB of itself"):
        read_node(CALLER, message)
    message = good_node()
    for number in range(MAX_DEVICES):
        message.devices.add(id=f"GPU-{number}", kind="gpu")
    with pytest.raises(InvalidInput, match=f"more than {MAX_DEVICES} devices"):
        read_node(CALLER, message)


# --- figures -------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [math.nan, math.inf, -1.0, 0.0, 1e300])
def test_figures_that_can_not_be_are_not_believed(step: float) -> None:
    update = SeriesEncoder().update({series("node_network_speed_bytes", "e"): 1e9})
    message = to_message(Telemetry(update=update), session_pb2.Telemetry)
    message.update.started[0].step = step
    figures = NodeFigures()
    assert not figures.take(from_message(message, Telemetry), 1.0)
    assert not figures.values


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_figures_of_an_old_agent_that_are_no_numbers_are_left_out(number: float) -> None:
    old = Telemetry(cpu_busy_fraction=number, devices=(DeviceTelemetry(device="GPU-1", busy_fraction=number),))
    figures = NodeFigures()
    figures.take(old, 1.0)
    assert all(math.isfinite(value) for value in figures.values.values())
