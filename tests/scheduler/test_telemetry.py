"""What the scheduler shows of nodes' telemetry: each node's own, to those who may see it."""

from __future__ import annotations

from farbus.api.identity import Identity, Role
from farbus.model.metrics import series
from farbus.model.series import SeriesEncoder
from farbus.model.telemetry import SessionTelemetry, Telemetry
from farbus.scheduler import events
from farbus.scheduler.telemetry import node_telemetry
from tests.scheduler.scripted import Cluster, job, node

ADA = Identity(name="ada", role=Role.USER)


def shown(teller: str) -> dict[str, tuple[SessionTelemetry, ...]]:
    """Have ``teller`` tell of a session of ada's lease of a's device; return what she sees of each node's sessions."""
    cluster = Cluster(node("a", 1), node("b", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=1, on="c"))
    cluster.settle()
    (lease,) = cluster.machine.leases.values()
    assert lease.lease.device_node == "a"
    told = {series("session_calls_per_second", lease.lease.id, "1", "2", "program"): 20.0}
    telemetry = Telemetry(update=SeriesEncoder().update(told))
    cluster.tell(events.HeartbeatArrived(node=teller, session=cluster.agents[teller].session, telemetry=telemetry))
    machine = cluster.machine
    return {name: node_telemetry(machine, record, ADA, cluster.now).sessions for name, record in machine.nodes.items()}


def test_a_node_shows_the_sessions_with_its_devices() -> None:
    sessions = shown("a")
    assert [(session.job, session.calls_per_s) for session in sessions["a"]] == [("j1", 20.0)]
    assert not sessions["b"]
    assert not sessions["c"]


def test_what_a_node_tells_of_anothers_sessions_is_not_shown() -> None:
    assert not any(shown("b").values())


def test_the_clients_node_shows_no_session_of_the_devices_node() -> None:
    assert not any(shown("c").values())
