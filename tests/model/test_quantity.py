"""Quantities as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farbus.errors import InvalidInput
from farbus.model.quantity import (
    MAX_BYTES,
    MAX_NETWORK_MBIT_S,
    format_bytes,
    format_cpu,
    format_network,
    parse_bytes,
    parse_cpu,
    parse_network,
    parse_rate,
    parse_seconds,
    parse_share,
    parse_storage,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("512", 512),
        (512, 512),
        ("512B", 512),
        ("1kB", 1000),
        ("1KiB", 1024),
        (" 2 GiB ", 2 * 2**30),
        ("1.5MiB", 1572864),
        ("3G", 3 * 2**30),
        ("1TB", 10**12),
    ],
)
def test_bytes(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [("100G", 10**11), ("1.5t", 15 * 10**11), ("2P", 2 * 10**15), ("100GiB", 100 * 2**30), ("2PB", 2 * 10**15), (7, 7)],
)
def test_storage_is_counted_as_drives_are(text: str | int, count: int) -> None:
    assert parse_storage(text) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [("4GB/s", 4 * 10**9), ("4G", 4 * 10**9), ("1GiB/s", 2**30), ("10Gbit/s", 125 * 10**7), ("8kbit", 1000), (5, 5)],
)
def test_rates(text: str | int, count: int) -> None:
    assert parse_rate(text) == count


@pytest.mark.parametrize("text", ["fast", "4GB/h", "4 gigs", "9999999999TiB/s", "-1GB/s"])
def test_rates_that_are_none(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"bandwidth: .*(write for example 4GB/s or 10Gbit/s|one exbibyte)"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a number with a unit"),
        ("-1", "not a number with a unit"),
        ("1 GiB free", "not a number with a unit"),
        ("12 gigs", "unknown unit 'gigs'; use B, KiB"),
        ("9999999999TiB", "more than one exbibyte"),
        (-5, "not a number of zero or more"),
        (math.nan, "not a number of zero or more"),
        (math.inf, "not a number of zero or more"),
        (True, "not a number"),
    ],
)
def test_bytes_that_are_none(text: str | float, says: str) -> None:
    with pytest.raises(InvalidInput, match=f"memory: .*{says}"):
        parse_bytes(text, what="memory")


@pytest.mark.parametrize(("text", "milli"), [("2", 2000), ("0.5", 500), ("250m", 250), (1.5, 1500)])
def test_processors(text: str | float, milli: int) -> None:
    assert parse_cpu(text) == milli


@pytest.mark.parametrize("text", ["2x", "one", "1000001", "-1"])
def test_processors_that_are_none(text: str) -> None:
    with pytest.raises(InvalidInput, match="cpus"):
        parse_cpu(text)


@pytest.mark.parametrize(
    ("text", "mbit_s"),
    [("10Gbit/s", 10_000), ("0.7 Gbit/s", 700), ("25Gbit", 25_000), (250, 250), ("1Tbit/s", 10**6), ("10kbit/s", 1)],
)
def test_network(text: str | float, mbit_s: int) -> None:
    assert parse_network(text) == mbit_s


@pytest.mark.parametrize("text", ["10GB/s", "fast", "-1Mbit/s", "9999Tbit/s", "Gbit/s"])
def test_network_that_is_none(text: str) -> None:
    with pytest.raises(InvalidInput, match="network"):
        parse_network(text)


@given(st.integers(0, MAX_NETWORK_MBIT_S))
def test_written_network_is_read_back(mbit_s: int) -> None:
    assert parse_network(format_network(mbit_s)) == pytest.approx(mbit_s, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10", 10.0), ("250ms", 0.25), ("10m", 600.0), ("10min", 600.0), ("2h", 7200.0), ("1d", 86400.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["3 weeks", "99999d", "soon"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(InvalidInput, match="time limit"):
        parse_seconds(text, what="time limit")


@given(st.integers(0, MAX_BYTES))
def test_written_bytes_are_read_back_within_what_is_shown(count: int) -> None:
    assert parse_bytes(format_bytes(count).replace(" ", "")) == pytest.approx(count, rel=0.06)


@given(st.integers(0, 10**6))
def test_written_processors_are_read_back(milli: int) -> None:
    assert parse_cpu(float(format_cpu(milli))) == pytest.approx(milli, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "milli"),
    [(0.25, 250), ("0.25", 250), ("1/4", 250), ("25%", 250), ("1/3", 333), (0.5, 500), ("1%", 10), (0, 0)],
)
def test_shares(text: str | float, milli: int) -> None:
    assert parse_share(text) == milli


@pytest.mark.parametrize(
    "text",
    [1, "1", "0.6", "1/1", "1/0", "0.1%", "25 GiB", "%", "-1/2", 1e-9, float("nan"), True, "0", "0%", "0/4"],
)
def test_shares_that_are_none(text: str | float) -> None:
    with pytest.raises(InvalidInput, match="gpu_share"):
        parse_share(text, what="gpu_share")
