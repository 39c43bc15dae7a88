"""What the scheduler makes of telemetry: series, smoothed loads of links, what policies see of them."""

from __future__ import annotations

import numpy as np
import pytest

from farbus.model.cluster import LOAD_MEMORY_S, LinkLoad, network_load
from farbus.model.decision import NodeView, PendingJob, Snapshot
from farbus.model.job import Job, Requests, TaskGroup
from farbus.model.metrics import Values, series
from farbus.model.node import Resources
from farbus.model.series import CollectorState, SeriesEncoder
from farbus.model.telemetry import DeviceTelemetry, Telemetry
from farbus.scheduler import events
from farbus.scheduler.costs.drmaestro import DRMaestroPolicy, Profile
from farbus.scheduler.costs.policy import FORBIDDEN
from farbus.scheduler.figures import LOAD_HALF_LIFE_S, NodeFigures
from farbus.scheduler.lifecycle import ClusterMachine
from farbus.scheduler.phases.cluster import Columns, from_snapshot
from tests.scheduler.scripted import node

GIGABIT = 1.25e8


def link(received: float, sent: float = 0.0, *, speed: float = GIGABIT) -> Values:
    """The series of one link, in bytes a second."""
    return {
        series("node_network_up", "eth0"): 1.0,
        series("node_network_speed_bytes", "eth0"): speed,
        series("node_network_receive_bytes_per_second", "eth0"): received,
        series("node_network_transmit_bytes_per_second", "eth0"): sent,
    }


class Told:
    """A node's figures, fed by a real encoder."""

    def __init__(self) -> None:
        self.figures = NodeFigures()
        self.encoder = SeriesEncoder()

    def tell(self, values: Values, now: float, *stale: CollectorState) -> bool:
        return self.figures.take(Telemetry(update=self.encoder.update(values, stale)), now)


def test_a_links_load_follows_what_is_measured_by_half_lives() -> None:
    told = Told()
    told.tell(link(0.0), 100.0)
    told.tell(link(1e8, 4e7), 100.0 + LOAD_HALF_LIFE_S)
    (load,) = told.figures.links
    assert load.receive_bytes_per_s == pytest.approx(5e7)
    assert load.send_bytes_per_s == pytest.approx(2e7)
    assert load.speed_bytes_per_s == GIGABIT
    assert load.load == pytest.approx(0.4)
    # Nothing has changed, so nothing is told again; the load goes on towards it.
    told.tell(link(1e8, 4e7), 100.0 + 2 * LOAD_HALF_LIFE_S)
    assert told.figures.links[0].receive_bytes_per_s == pytest.approx(7.5e7)


def test_a_link_that_is_gone_has_no_load() -> None:
    told = Told()
    told.tell(link(1e8), 100.0)
    told.tell({}, 103.0)
    assert told.figures.links == ()


def test_while_the_collector_is_stale_the_load_ages() -> None:
    told = Told()
    told.tell(link(1e8), 100.0)
    told.tell(link(1e8), 103.0, CollectorState(name="network", reason="no answer after 5 s"))
    assert told.figures.links[0].measured_at == 100.0
    assert told.figures.stale == {"network": "no answer after 5 s"}


def test_a_missing_update_is_noticed_and_the_load_kept() -> None:
    told = Told()
    told.tell(link(1e8), 100.0)
    told.encoder.update(link(0.0))
    assert not told.tell(link(5e7), 103.0)
    assert told.figures.heard_at == 100.0
    assert told.figures.links[0].receive_bytes_per_s == 1e8


def test_an_agent_that_knows_no_updates_is_understood() -> None:
    figures = NodeFigures()
    device = DeviceTelemetry(device="GPU-1", busy_fraction=0.5, memory_used_bytes=9)
    assert figures.take(Telemetry(cpu_busy_fraction=0.25, devices=(device,)), 1.0)
    assert figures.values == {
        series("node_cpu_busy_ratio"): 0.25,
        series("gpu_busy_ratio", "GPU-1"): 0.5,
        series("gpu_memory_used_bytes", "GPU-1"): 9.0,
    }


def test_the_load_of_a_node_is_that_of_its_busiest_link_that_is_known() -> None:
    slow = LinkLoad(name="a", speed_bytes_per_s=GIGABIT, send_bytes_per_s=GIGABIT / 2, measured_at=100.0)
    fast = LinkLoad(name="b", speed_bytes_per_s=8 * GIGABIT, receive_bytes_per_s=GIGABIT, measured_at=100.0)
    unknown = LinkLoad(name="c", receive_bytes_per_s=1e9, measured_at=100.0)
    assert network_load((slow, fast, unknown), 100.0) == 0.5
    assert network_load((slow, fast, unknown), 100.0 + LOAD_MEMORY_S) == 0.5
    assert network_load((slow, fast, unknown), 101.0 + LOAD_MEMORY_S) == 0.0
    assert network_load((), 100.0) == 0.0


def test_a_heartbeats_telemetry_is_in_the_snapshot_and_a_missing_one_asked_for() -> None:
    machine = ClusterMachine(term=1, lease_ttl_s=15.0, new_secret=lambda: "00")
    machine.handle(events.NodeJoined(node=node("a", gpus=1), session=1), now=10.0, wall=10.0)
    encoder = SeriesEncoder()

    def beat(values: Values) -> bool:
        telemetry = Telemetry(update=encoder.update(values))
        beat = events.HeartbeatArrived(node="a", session=1, telemetry=telemetry)
        (effect,) = machine.handle(beat, now=11.0, wall=11.0)
        assert isinstance(effect, events.SendToNode)
        assert isinstance(effect.command, events.HeartbeatReply)
        return effect.command.telemetry_lost

    assert not beat(link(GIGABIT))
    snapshot = machine.snapshot(12.0)
    assert network_load(snapshot.links["a"], snapshot.at) == 1.0
    encoder.update(link(0.0))
    assert beat(link(GIGABIT / 4))
    encoder.restart()
    assert not beat(link(GIGABIT / 4))


def loaded(**loads: float) -> Snapshot:
    """A cluster of nodes whose only links have these loads now."""
    resources = Resources(cpu_milli=4000, memory_bytes=2**34)
    return Snapshot(
        nodes=tuple(NodeView(name=name, capacity=resources, free=resources) for name in loads),
        devices=(),
        links={
            name: (LinkLoad(name="eth0", speed_bytes_per_s=1.0, receive_bytes_per_s=load, measured_at=50.0),)
            for name, load in loads.items()
        },
        at=50.0,
    )


def test_drmaestro_reads_the_measured_loads() -> None:
    cluster = from_snapshot(loaded(busy=0.9, idle=0.0))
    assert cluster.network_load().tolist() == [0.9, 0.0]
    profile = Profile(goal_s=100.0, expected_s=90.0, sensitivity=1.0)
    policy = DRMaestroPolicy(profiles={"train": profile})
    group = TaskGroup(name="main", command=("x",), requests=Requests(gpus=1))
    subject = policy.subject(PendingJob(job=Job(id="1", name="train", user="u", groups=(group,))), group)
    site = int(policy.sites(cluster)[1])
    cost = policy.far_cost(cluster, np.array([0, 1]), 1, np.array([1, 1]), site, subject)
    # Over the busy link the goal would be missed by far: no option while the job can wait.
    assert cost[0] == FORBIDDEN
    assert cost[1] > 0


def test_a_load_that_is_set_goes_before_what_was_measured() -> None:
    cluster = from_snapshot(loaded(busy=0.9))
    assert (DRMaestroPolicy(loads={"busy": 0.0}).sites(cluster) == DRMaestroPolicy().sites(cluster) - 900).all()


def test_columns_that_are_kept_have_the_loads_of_their_round() -> None:
    columns = Columns()
    policy = DRMaestroPolicy()
    before = policy.sites(columns.of(loaded(a=0.9)))
    assert columns.of(loaded(a=0.0)).network_load().tolist() == [0.0]
    assert (policy.sites(columns.of(loaded(a=0.0))) == before - 900).all()
