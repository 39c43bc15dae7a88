"""What the scheduler shows of nodes' telemetry: each node's own, to those who may see it."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from farbus.api.conversion import to_message
from farbus.api.identity import Identity, Role
from farbus.api.v1 import cluster_pb2
from farbus.model.device import share_id
from farbus.model.metrics import METRICS, series
from farbus.model.series import MAX_STEP, MAX_STEPS, SeriesEncoder, SeriesStart, TelemetryUpdate
from farbus.model.telemetry import SessionTelemetry, Telemetry
from farbus.scheduler import events
from farbus.scheduler.telemetry import node_telemetry
from tests.scheduler.scripted import Cluster, job, node

ADA = Identity(name="ada", role=Role.USER)


def shown(teller: str, *, rates: bool = True) -> dict[str, tuple[SessionTelemetry, ...]]:
    """Have ``teller`` tell of a session of ada's lease of a's device; return what she sees of each node's sessions."""
    cluster = Cluster(node("a", 1), node("b", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=1, on="c"))
    cluster.settle()
    (lease,) = cluster.machine.leases.values()
    assert lease.lease.device_node == "a"
    whose = (lease.lease.id, "1", "2", "program")
    told = {series("transport_of_session", *whose, "tls"): 1.0}
    if rates:
        told[series("session_calls_per_second", *whose)] = 20.0
        told[series("session_waiting_seconds", *whose)] = 75.0
        told[series("session_stopped", *whose)] = 1.0
    telemetry = Telemetry(update=SeriesEncoder().update(told))
    cluster.tell(events.HeartbeatArrived(node=teller, session=cluster.agents[teller].session, telemetry=telemetry))
    machine = cluster.machine
    return {name: node_telemetry(machine, record, ADA, cluster.now).sessions for name, record in machine.nodes.items()}


def test_a_node_shows_the_sessions_with_its_devices() -> None:
    sessions = shown("a")
    assert [(each.job, each.calls_per_s, each.transport) for each in sessions["a"]] == [("j1", 20.0, "tls")]
    (session,) = sessions["a"]
    assert (session.server_pid, session.client_pid, session.waiting_s, session.stopped) == (1, 2, 75.0, True)
    assert not sessions["b"]
    assert not sessions["c"]


def test_a_session_is_shown_before_it_has_rates() -> None:
    (session,) = shown("a", rates=False)["a"]
    assert (session.program, session.calls_per_s, session.transport) == ("program", 0.0, "tls")
    assert not session.stopped


def test_what_a_node_tells_of_anothers_sessions_is_not_shown() -> None:
    assert not any(shown("b").values())


def test_a_share_is_as_busy_as_its_gpu_and_has_no_memory_of_the_others() -> None:
    whole = node("a", 1)
    (gpu,) = whole.devices
    shares = tuple(replace(gpu, id=share_id(gpu.id, number), share_milli=500) for number in (1, 2))
    cluster = Cluster(replace(whole, devices=shares))
    cluster.join()
    told = {series("gpu_busy_ratio", gpu.id): 0.75, series("gpu_memory_used_bytes", gpu.id): 2.0**20}
    telemetry = Telemetry(update=SeriesEncoder().update(told))
    cluster.tell(events.HeartbeatArrived(node="a", session=cluster.agents["a"].session, telemetry=telemetry))
    shown = node_telemetry(cluster.machine, cluster.machine.nodes["a"], ADA, cluster.now)
    assert [(each.device, each.busy_fraction, each.memory_used_bytes) for each in shown.gpus] == [
        (share_id(gpu.id, 1), 0.75, None),
        (share_id(gpu.id, 2), 0.75, None),
    ]


@pytest.mark.parametrize("client_pid", ["\N{SUPERSCRIPT TWO}", "9" * 200])
def test_figures_that_can_not_be_are_shown_all_the_same(client_pid: str) -> None:
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=1, on="c"))
    cluster.settle()
    (lease,) = cluster.machine.leases
    whose = (lease, "1", client_pid, "program")
    told = {
        series("node_memory_total_bytes"): math.inf,
        series("node_memory_available_bytes"): -math.inf,
        series("gpu_memory_used_bytes", "GPU-a-0"): math.inf,
        series("gpu_last_xid", "GPU-a-0"): -math.inf,
        series("session_calls_per_second", *whose): math.inf,
        series("session_memory_bytes", *whose): math.inf,
    }
    update = TelemetryUpdate(
        started=tuple(
            SeriesStart(
                series=number,
                metric=each.metric,
                labels=dict(zip(METRICS[each.metric].labels, each.labels, strict=True)),
                step=MAX_STEP,
            )
            for number, each in enumerate(told)
        ),
        series=tuple(range(len(told))),
        values=tuple(int(math.copysign(MAX_STEPS, value)) for value in told.values()),
    )
    session = cluster.agents["a"].session
    cluster.tell(events.HeartbeatArrived(node="a", session=session, telemetry=Telemetry(update=update)))
    shown = node_telemetry(cluster.machine, cluster.machine.nodes["a"], ADA, cluster.now)
    message = to_message(shown, cluster_pb2.NodeTelemetry)
    assert len(message.gpus) == len(message.sessions) == 1


def test_the_clients_node_shows_no_session_of_the_devices_node() -> None:
    assert not any(shown("c").values())
