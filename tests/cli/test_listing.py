"""Tables on a terminal: they fit, and identities stay whole."""

from __future__ import annotations

import io
import re
import sys

import msgspec
import pytest

from farbus.cli.listing import choose, plain_table, print_json, printable, terminal_table
from farbus.cli.tables import (
    DEVICE_COLUMNS,
    JOB_COLUMNS,
    LEASE_COLUMNS,
    NODE_COLUMNS,
    VOLUME_COLUMNS,
    describe_job,
    format_exit,
)
from farbus.errors import NotFound
from farbus.model.device import Device, DeviceKind, DeviceStatus, Route
from farbus.model.job import Job, JobStatus, Requests, TaskGroup, TaskState, TaskStatus
from farbus.model.lease import Lease, LeasedDevice, LeaseStatus
from farbus.model.node import Node, NodeStatus, Resources
from farbus.model.states import DeviceState, JobState, LeaseState, NodeState, VolumeState
from farbus.model.volume import VolumePart, VolumeStatus

UUIDS = [f"GPU-8f2d6c1e-0000-4000-8000-00000000000{number}" for number in range(3)]

DEVICES = [
    DeviceStatus(
        device=Device(id=uuid, kind=DeviceKind.GPU, model="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30),
        node="node-7.example.org", state=DeviceState.LEASED, lease="l-1", job="j-1", used_by="ada on gamma",
    )
    for uuid in UUIDS
]  # fmt: skip

LEASES = [
    LeaseStatus(
        lease=Lease(
            id="l-1", job="j-1", task="main.0", user="ada", client_node="gamma", device_node="alpha",
            route=Route.REMOTE, devices=tuple(LeasedDevice(device=uuid, epoch=7) for uuid in UUIDS), term=3, secret="",
        ),
        state=LeaseState.PREPARED, expires_in_s=4.5,
    )
]  # fmt: skip


def text(values: list, columns: tuple, width: int, *, wide: bool = False) -> list[str]:
    shown = [column for column in columns if wide or not column.wide]
    rows = [[printable(column.cell(value)) or "-" for column in shown] for value in values]
    return ["".join(piece for piece, _ in line) for line in terminal_table(rows, shown, width)]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("GPU-8f2d6c1e", f"did you mean {' or '.join(UUIDS)}?"),
        (UUIDS[1].replace("8f2d", "8f3d"), f"did you mean {UUIDS[1]}?"),
        ("beta", "farbus devices lists them"),
        ("", "farbus devices lists them"),
    ],
)
def test_a_name_that_is_not_there_is_told_with_what_may_have_been_meant(name: str, hint: str) -> None:
    with pytest.raises(NotFound) as caught:
        choose(DEVICES, [name], key=lambda status: status.device.id, noun="device")
    assert caught.value.hint == hint


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("values", "columns"), [(DEVICES, DEVICE_COLUMNS), (LEASES, LEASE_COLUMNS)])
def test_a_double_click_selects_a_uuid_at_80_columns(values: list, columns: tuple, wide: bool) -> None:
    lines = text(values, columns, 80, wide=wide)
    for uuid in UUIDS:
        (line,) = [line for line in lines if uuid in line]
        assert re.fullmatch(rf"\s*{uuid}\s*", line), "something stands beside it"


def test_a_table_that_has_to_be_narrow_is() -> None:
    lines = text(DEVICES[:1], DEVICE_COLUMNS, 80)
    assert max(map(len, lines)) <= 80
    assert lines == [
        "NODE                KIND  MODEL                  MEMORY  STATE   USED BY",
        "  ID",
        "node-7.example.org  gpu   NVIDIA H100 80GB HBM3  80 GiB  leased  ada on gamma",
        f"  {UUIDS[0]}",
    ]


def test_columns_of_wide_that_have_no_room_stand_beneath_behind_their_titles() -> None:
    lines = text(DEVICES[:1], DEVICE_COLUMNS, 80, wide=True)
    assert max(map(len, lines)) <= 80
    assert lines[0] == "NODE                KIND  MODEL                  MEMORY  STATE   USED BY"
    assert lines[-3:] == [
        "node-7.example.org  gpu   NVIDIA H100 80GB HBM3  80 GiB  leased  ada on gamma",
        f"  {UUIDS[0]}",
        "  JOB j-1  LEASE l-1  EPOCH 0  SOFTWARE no",
    ]
    lines = text(DEVICES[:1], DEVICE_COLUMNS, 92, wide=True)
    assert lines[0].endswith("USED BY       JOB  LEASE")
    assert lines[-1] == "  EPOCH 0  SOFTWARE no"


def test_a_table_that_fits_is_the_same_as_in_a_pipe() -> None:
    shown = [column for column in DEVICE_COLUMNS if not column.wide]
    rows = [[column.cell(value) for column in shown] for value in DEVICES]
    assert text(DEVICES, DEVICE_COLUMNS, 200) == plain_table(rows, shown).splitlines()


def test_columns_without_identities_are_broken_between_words() -> None:
    columns = [column for column in DEVICE_COLUMNS if column.title in ("MODEL", "NODE")]
    assert text(DEVICES[:1], tuple(columns), 24) == [
        "NODE         MODEL",
        "node-7.exam  NVIDIA H100",
        "ple.org      80GB HBM3",
    ]


@pytest.mark.parametrize("columns", [JOB_COLUMNS, NODE_COLUMNS, DEVICE_COLUMNS, LEASE_COLUMNS])
def test_a_terminal_of_no_width_gets_all_the_same(columns: tuple) -> None:
    assert text([], columns, 1)[0].startswith(columns[0].title if not columns[0].identity else columns[1].title)


def test_json_is_utf_8_in_every_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    print_json({"name": "später"})
    sys.stdout.flush()
    assert msgspec.json.decode(written.getvalue()) == {"name": "später"}


def test_states_have_their_colour_and_heads_are_bold() -> None:
    shown = [column for column in DEVICE_COLUMNS if not column.wide]
    rows = [[column.cell(DEVICES[0]) for column in shown]]
    head, title, row, identity = terminal_table(rows, shown, 80)[:4]
    assert {style for _, style in (*head, *title)} == {"bold"}
    assert [piece.strip() for piece, style in row if style == "cyan"] == ["leased"]
    assert [style for _, style in identity] == [""]


@pytest.mark.parametrize(
    ("capacity", "free", "cell"),
    [(25_000, 24_900, "24.9 Gbit/s of 25 Gbit/s"), (100, 0, "0 Mbit/s of 100 Mbit/s"), (0, 0, "not counted")],
)
def test_the_network_of_a_node_is_listed(capacity: int, free: int, cell: str) -> None:
    node = Node(name="a", address="a", boot_id="b", agent_version="1", capacity=Resources(network_mbit_s=capacity))
    status = NodeStatus(node=node, state=NodeState.READY, free=Resources(network_mbit_s=free))
    (column,) = (column for column in NODE_COLUMNS if column.title == "NETWORK FREE")
    assert column.cell(status) == cell


def test_nodes_have_a_line_each_at_80_columns() -> None:
    capacity = Resources(cpu_milli=64_000, memory_bytes=503 * 2**30 + 2**29, network_mbit_s=100_000)
    nodes = [
        NodeStatus(
            node=Node(name=f"gpu-node-{number}", address=f"10.20.30.{number}", boot_id="b", agent_version="1",
                      capacity=capacity),
            state=NodeState.CORDONED, free=msgspec.structs.replace(capacity, cpu_milli=12_500), seen_s=3.0,
        )
        for number in (17, 18)
    ]  # fmt: skip
    lines = text(nodes, NODE_COLUMNS, 80)
    assert len(lines) == 3
    assert lines[1] == "gpu-node-17  cordoned     0  12.5 of 64  503.5 of 503.5 GiB  10.20.30.17  3s ago"


@pytest.mark.parametrize(
    ("free", "whole", "cell"),
    [(2**29, 2**30, "512 MiB of 1 GiB"), (2**31, 2**33, "2 of 8 GiB"), (0, 2**33, "0 of 8 GiB"), (0, 0, "0 of 0 B")],
)
def test_the_memory_of_a_node_is_listed_with_its_unit_once(free: int, whole: int, cell: str) -> None:
    node = Node(name="a", address="a", boot_id="b", agent_version="1", capacity=Resources(memory_bytes=whole))
    status = NodeStatus(node=node, state=NodeState.READY, free=Resources(memory_bytes=free))
    (column,) = (column for column in NODE_COLUMNS if column.title == "MEMORY FREE")
    assert column.cell(status) == cell


def test_of_a_task_that_was_lost_no_exit_code_is_listed() -> None:
    tasks = (
        TaskStatus(task="main.0", state=TaskState.EXITED, exit_unknown=True, reason="lost with node c"),
        TaskStatus(task="main.1", state=TaskState.EXITED, exit_code=-9),
        TaskStatus(task="main.2", state=TaskState.RUNNING),
    )
    assert format_exit(tasks) == "unknown,signal 9"
    group = TaskGroup(name="main", command=("x",), requests=Requests(), count=3)
    job = Job(id="j1", name="n", user="u", groups=(group,))
    lines = describe_job(JobStatus(job=job, state=JobState.FAILED, tasks=tasks))
    assert lines[1] == "  task main.0: exited (code unknown) - lost with node c"


def test_sentences_stand_beneath_their_row_where_they_have_no_room_and_states_are_never_broken() -> None:
    part = VolumePart(volume="scratch", size_bytes=100 * 2**30, drives=("NVME-1", "NVME-2"))
    says = "node beta is asked to make its part, which takes a while on drives so large"
    about = {"user": "ada", "parts": (part,), "nodes": ("beta",), "size_bytes": 100 * 2**30}
    volumes = [
        VolumeStatus(name="scratch", state=VolumeState.AVAILABLE, **about),
        VolumeStatus(name="results", state=VolumeState.CREATING, says=says, **about),
    ]
    assert text(volumes, VOLUME_COLUMNS, 80) == [
        "NAME     USER  STATE         SIZE  DRIVES  STORED ON  ATTACHED TO  HEALTH",
        "  SAYS",
        "scratch  ada   available  100 GiB       2  beta       -            ok",
        "results  ada   creating   100 GiB       2  beta       -            ok",
        "  node beta is asked to make its part, which takes a while on drives so large",
    ]
    # With room for most of a line they are folded beside the others.
    assert text(volumes[1:], VOLUME_COLUMNS, 110)[2:] == [f"{'':74}which takes a while on drives so", f"{'':74}large"]
