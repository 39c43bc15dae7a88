"""A whole agent's telemetry: in its heartbeats, and for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import urllib.request

import msgspec
import pytest
import structlog.testing
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from farbus.agent.config import AgentConfig
from farbus.agent.inventory import GpuSource
from farbus.agent.telemetry import export
from farbus.agent.telemetry.export import Exporter
from farbus.agent.telemetry.pipeline import Pipeline
from farbus.api.exposition import render
from farbus.errors import InvalidInput
from farbus.linux.clock import FakeClock
from farbus.linux.node_facts import FakeNodeFacts, ProcessUse
from farbus.linux.nvml import FakeNvml, Gpu, GpuList, GpuSample
from farbus.linux.tcp_ports import HeldPort
from farbus.model.device import Device, DeviceKind
from farbus.model.metrics import METRICS, Values, series
from farbus.model.node import Node, Resources
from farbus.model.series import SeriesDecoder
from tests.agent.harness import GPU, AgentInProcess, ScriptedScheduler, ScriptedSessions, doors_with_gpu


async def scrape(address: str) -> dict[str, Metric]:
    """Return the families that ``address`` serves, once it does."""

    def fetch() -> str:
        return urllib.request.urlopen(f"http://{address}/metrics").read().decode()

    while True:
        with contextlib.suppress(OSError):
            text = await asyncio.to_thread(fetch)
            return {family.name: family for family in text_string_to_metric_families(text)}


def told(sessions: ScriptedSessions) -> set[str]:
    """Return the metrics that agents have told of."""
    return {start.metric for update in sessions.updates() for start in update.started}


async def test_heartbeats_tell_everything_once_and_again_when_asked(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    sessions = scheduler.sessions
    sample = GpuSample(uuid=GPU, busy_fraction=0.5, memory_used_bytes=2**20)
    nvml = FakeNvml(GpuList(gpus=(Gpu(uuid=GPU, name="Test GPU", memory_bytes=2**30),)), (sample,))
    doors = msgspec.structs.replace(doors_with_gpu(config), gpu_sources=(GpuSource(nvml, False),))
    agent.start(config, doors)
    # Each collector's figures are told as soon as they are there.
    await sessions.until(lambda: told(sessions) >= {"gpu_busy_ratio", "node_memory_total_bytes"})
    decoder = SeriesDecoder()
    for update in sessions.updates():
        assert decoder.take(update)
    assert decoder.values[series("gpu_busy_ratio", GPU)] == 0.5
    assert decoder.values[series("node_memory_total_bytes")] > 0
    before = len(sessions.updates())
    sessions.lose_telemetry = True
    await sessions.until(lambda: any(update.number == 0 for update in sessions.updates()[before:]))
    again = next(update for update in sessions.updates()[before:] if update.number == 0)
    assert {start.metric for start in again.started} >= {"gpu_busy_ratio", "node_memory_total_bytes"}


async def test_a_new_session_begins_with_everything(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    sessions = scheduler.sessions
    agent.start(config, doors_with_gpu(config))
    await sessions.until(lambda: "node_memory_total_bytes" in told(sessions))
    before = len(sessions.updates())
    sessions.cut()
    await sessions.until(lambda: len(sessions.updates()) > before and len(sessions.hellos) == 2)
    first = next(update for update in sessions.updates()[before:] if update.number == 0)
    assert "node_memory_total_bytes" in {start.metric for start in first.started}


async def test_metrics_are_served_where_the_configuration_says(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, held_port: HeldPort
) -> None:
    address = f"127.0.0.1:{held_port.number}"
    config = msgspec.structs.replace(config, metrics_listen=address)
    agent.start(config, doors_with_gpu(config))
    await scheduler.sessions.connected()
    families = await scrape(address)
    assert families["farbus_agent_info"].samples[0].labels["node"] == "n1"
    assert families["process_resident_memory_bytes"].samples[0].value > 0
    assert {sample.labels["collector"] for sample in families["farbus_collector_success"].samples} == {
        "host", "network", "gpu", "remoting",
    }  # fmt: skip


async def test_a_port_that_is_taken_is_told_and_the_agent_lives_on(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "RETRY_S", 0.01)
    with structlog.testing.capture_logs() as lines, socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        config = msgspec.structs.replace(config, metrics_listen=address)
        agent.start(config, doors_with_gpu(config))
        await scheduler.sessions.connected()
        beats = len(scheduler.sessions.updates())
        await scheduler.sessions.until(lambda: len(scheduler.sessions.updates()) > beats + 1)
    told = [line["reason"] for line in lines if line["event"] == "metrics are not served"]
    assert told == [f"can't serve metrics on {address}: Address already in use; choose another metrics_listen"]
    # Once the other program has gone, they are.
    assert (await scrape(address))["farbus_agent_connected"].samples[0].value == 1.0


def test_an_address_without_port_is_refused(config: AgentConfig) -> None:
    with pytest.raises(InvalidInput, match=r"^metrics_listen: '9465' is not ADDRESS:PORT"):
        msgspec.structs.replace(config, metrics_listen="9465").check()


# What is exported.

NODE = Node(
    name="alpha",
    address="a",
    boot_id="b",
    agent_version="1",
    capacity=Resources(),
    devices=(
        Device(id="NVME-1", kind=DeviceKind.NVME, model="A drive"),
        Device(id="GPU-1", kind=DeviceKind.GPU, model="NVIDIA H100", pci_address="0000:17:00.0"),
        Device(id="GPU-2", kind=DeviceKind.GPU, model="Software GPU", software=True),
    ),
)


class Everything:
    """A collector that knows a value of every metric there is."""

    name = "everything"
    period_s = 3.0
    deadline_s = 5.0

    async def sample(self) -> Values:
        return {
            series(metric.name, *["GPU-2" if label == "UUID" else f"the {label}" for label in metric.labels]): 2.0**20
            for metric in METRICS.values()
        }


async def exported() -> dict[str, Metric]:
    clock, facts = FakeClock(), FakeNodeFacts()
    facts.own = ProcessUse(cpu_s=3.5, resident_bytes=2**26, open_files=20)
    pipeline = Pipeline([Everything()], clock=clock)
    running = asyncio.create_task(pipeline.run())
    for _ in range(20):
        await asyncio.sleep(0)
    exporter = Exporter(pipeline=pipeline, facts=facts, node=lambda: NODE, connected=lambda: False, clock=clock)
    text = render(exporter.families())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return {family.name: family for family in text_string_to_metric_families(text)}


async def test_every_metric_is_a_valid_family_with_a_help_text() -> None:
    families = await exported()
    for metric in METRICS.values():
        name = metric.exported.removesuffix("_total") if metric.kind == "counter" else metric.exported
        assert families[name].documentation == metric.help
        assert families[name].type == metric.kind
    assert families["process_resident_memory_bytes"].samples[0].value == 2**26
    assert families["farbus_agent_connected"].samples[0].value == 0.0


async def test_gpus_have_the_names_units_and_labels_of_dcgm_exporter() -> None:
    families = await exported()
    (memory,) = families["DCGM_FI_DEV_FB_USED"].samples
    assert memory.value == 1.0  # MiB
    assert memory.labels == {
        "gpu": "1",
        "UUID": "GPU-2",
        "modelName": "Software GPU",
        "Hostname": "alpha",
        "pci_bus_id": "",
        "software": "true",
    }


async def test_links_have_the_labels_of_node_exporter() -> None:
    (received,) = (await exported())["farbus_node_network_receive_bytes"].samples
    assert (received.name, received.labels) == ("farbus_node_network_receive_bytes_total", {"device": "the device"})
