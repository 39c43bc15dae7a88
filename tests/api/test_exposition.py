"""Prometheus's text format, as its own parser reads it, and the endpoint."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from farbus.api import exposition
from farbus.api.exposition import Family, MetricsEndpoint, render
from farbus.errors import Conflict

FAMILIES = [
    Family("figure", 'A "figure"\nof two \\ lines.', "gauge", [({"name": 'a"b\\c\nd'}, 0.5), ({}, math.inf)]),
    Family("bytes_total", "Bytes.", "counter", [({"device": "eth0"}, float(2**50))]),
    Family("nothing", "Has no sample.", "gauge", []),
]


def test_what_is_written_is_what_prometheus_reads() -> None:
    read = list(text_string_to_metric_families(render(FAMILIES)))
    assert [(family.name, family.type) for family in read] == [("figure", "gauge"), ("bytes", "counter")]
    assert read[0].documentation == 'A "figure"\nof two \\ lines.'
    assert [(sample.labels, sample.value) for sample in read[0].samples] == [
        ({"name": 'a"b\\c\nd'}, 0.5),
        ({}, math.inf),
    ]
    assert read[1].samples[0].value == 2**50


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (0.25, "0.25"), (math.nan, "NaN"), (-math.inf, "-Inf"), (1e300, "1e+300")]
)
def test_numbers_are_written_as_the_format_asks(value: float, text: str) -> None:
    assert render([Family("a", "A.", "gauge", [({}, value)])]).endswith(f"a {text}\n")


@pytest.fixture
async def endpoint() -> AsyncIterator[MetricsEndpoint]:
    served = MetricsEndpoint(lambda: FAMILIES)
    await served.start("127.0.0.1:0", field="--metrics")
    yield served
    await served.stop()
    await served.stop()


async def ask(endpoint: MetricsEndpoint, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def test_the_figures_are_served(endpoint: MetricsEndpoint) -> None:
    answer = await ask(endpoint, b"GET /metrics?name[]=x HTTP/1.1\r\nHost: a\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: text/plain; version=0.0.4; charset=utf-8" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert body.decode() == render(FAMILIES)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200"),
        (b"\x16\x03\x01\r\n\r\n", b"405"),
    ],
)
async def test_other_requests_are_answered_and_nothing_shown(
    endpoint: MetricsEndpoint, request_: bytes, status: bytes
) -> None:
    answer = await ask(endpoint, request_)
    assert answer.split()[1] == status
    assert b"bytes_total" not in answer


async def test_a_request_without_end_is_cut_off(endpoint: MetricsEndpoint) -> None:
    assert await ask(endpoint, b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 4000) == b""


async def test_one_that_asks_nothing_is_cut_off(endpoint: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "REQUEST_TIMEOUT_S", 0.01)
    assert await ask(endpoint, b"GET /metrics") == b""


async def test_too_many_are_cut_off(endpoint: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MAX_CONNECTIONS", 0)
    assert await ask(endpoint, b"") == b""


async def test_a_port_that_is_taken_is_told(endpoint: MetricsEndpoint) -> None:
    other = MetricsEndpoint(list)
    with pytest.raises(
        Conflict, match=rf"can't serve metrics on 127.0.0.1:{endpoint.port}: .*choose another --metrics"
    ):
        await other.start(f"127.0.0.1:{endpoint.port}", field="--metrics")
    await other.stop()
