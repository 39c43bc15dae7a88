"""Telemetry on its way: everything once, then what has changed."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farbus.model.metrics import METRICS, MetricKind, Series, series
from farbus.model.series import (
    RELATIVE_STEP,
    CollectorState,
    SeriesDecoder,
    SeriesEncoder,
    SeriesStart,
    TelemetryUpdate,
)

BUSY = series("gpu_busy_ratio", "GPU-1")
MEMORY = series("gpu_memory_used_bytes", "GPU-1")
RECEIVED = series("node_network_receive_bytes_per_second", "eth0")


def test_the_table_is_consistent() -> None:
    exported = [metric.exported for metric in METRICS.values()]
    assert len(set(exported)) == len(exported)
    for metric in METRICS.values():
        if metric.rate:
            assert metric.kind is MetricKind.COUNTER
            assert METRICS[metric.rate].labels == metric.labels
        assert metric.help.endswith((".", "absent where unknown."))


def test_everything_is_told_first_and_then_nothing() -> None:
    encoder, decoder = SeriesEncoder(), SeriesDecoder()
    values = {BUSY: 0.5, MEMORY: 2.0**30}
    assert decoder.take(encoder.update(values))
    assert decoder.values == values
    silent = encoder.update(values)
    assert silent == TelemetryUpdate(number=1)
    assert decoder.take(silent)
    assert decoder.values == values


def test_a_change_below_the_step_is_not_told_and_one_above_is() -> None:
    encoder = SeriesEncoder()
    encoder.update({BUSY: 0.05, RECEIVED: 1e9})
    assert encoder.update({BUSY: 0.055, RECEIVED: 1.03e9}).series == ()
    told = encoder.update({BUSY: 0.0625, RECEIVED: 1.06e9})
    assert told.values == (6, 106_000)


def test_what_comes_to_rest_is_told_as_zero() -> None:
    encoder, decoder = SeriesEncoder(), SeriesDecoder()
    for value in (9_000.0, 2_000.0):
        decoder.take(encoder.update({RECEIVED: value}))
    assert decoder.values == {RECEIVED: 0.0}


def test_metrics_without_a_step_stay_on_their_node() -> None:
    update = SeriesEncoder().update({series("node_network_receive_bytes_total", "eth0"): 5.0, BUSY: math.nan})
    assert update == TelemetryUpdate()


def test_a_series_that_ends_is_forgotten() -> None:
    encoder, decoder = SeriesEncoder(), SeriesDecoder()
    decoder.take(encoder.update({BUSY: 0.5, MEMORY: 0.0}))
    decoder.take(encoder.update({MEMORY: 0.0}))
    assert decoder.values == {MEMORY: 0.0}
    decoder.take(encoder.update({BUSY: 0.25, MEMORY: 0.0}))
    assert decoder.values == {BUSY: 0.25, MEMORY: 0.0}


def test_after_a_missing_update_all_is_asked_for_and_told() -> None:
    encoder, decoder = SeriesEncoder(), SeriesDecoder()
    decoder.take(encoder.update({BUSY: 0.5}))
    encoder.update({BUSY: 0.75})
    assert not decoder.take(encoder.update({BUSY: 1.0}))
    assert not decoder.take(encoder.update({BUSY: 0.0}))
    assert decoder.values == {BUSY: 0.5}
    encoder.restart()
    assert decoder.take(encoder.update({BUSY: 0.25}))
    assert decoder.values == {BUSY: 0.25}


def test_stale_collectors_are_told_when_they_change() -> None:
    encoder, decoder = SeriesEncoder(), SeriesDecoder()
    assert encoder.update({}).collectors is None
    hangs = CollectorState(name="gpu", reason="no answer after 25 s")
    told = encoder.update({}, (hangs,))
    assert encoder.update({}, (hangs,)).collectors is None
    well = encoder.update({})
    decoder.take(TelemetryUpdate())
    decoder.take(told)
    assert decoder.stale == {"gpu": "no answer after 25 s"}
    decoder.take(msgspec.structs.replace(well, number=2))
    assert decoder.stale == {}


def test_a_metric_of_a_newer_agent_is_passed_over() -> None:
    decoder = SeriesDecoder()
    start = SeriesStart(series=1, metric="drive_wear_ratio", labels={"drive": "a"}, step=0.01)
    assert decoder.take(TelemetryUpdate(started=(start,), series=(1,), values=(5,)))
    assert decoder.values == {}
    assert decoder.take(TelemetryUpdate(number=1, series=(1,), values=(6,)))


@pytest.mark.parametrize(
    "update",
    [
        TelemetryUpdate(series=(1,), values=(5,)),
        TelemetryUpdate(series=(1,), values=()),
        TelemetryUpdate(started=(SeriesStart(series=1, metric="gpu_busy_ratio", step=0.0),)),
        TelemetryUpdate(started=(SeriesStart(series=1, metric="gpu_busy_ratio", step=math.nan),)),
        TelemetryUpdate(
            started=tuple(SeriesStart(series=number, metric="gpu_busy_ratio") for number in range(20_000))
        ),
        TelemetryUpdate(number=7),
    ],
)  # fmt: skip
def test_an_update_that_makes_no_sense_changes_nothing(update: TelemetryUpdate) -> None:
    decoder = SeriesDecoder()
    assert not decoder.take(update)
    assert decoder.values == {}


FIGURES = st.dictionaries(
    st.sampled_from([BUSY, MEMORY, RECEIVED, series("gpu_busy_ratio", "GPU-2")]),
    st.floats(min_value=0, max_value=1e15),
)


@given(st.lists(FIGURES, max_size=12))
def test_the_reader_is_never_further_off_than_the_resolution(history: list[dict[Series, float]]) -> None:
    encoder, decoder = SeriesEncoder(), SeriesDecoder()
    for values in history:
        assert decoder.take(encoder.update(values))
        assert decoder.values.keys() == values.keys()
        for each, value in values.items():
            step = METRICS[each.metric].step
            # Half a step of rounding; and what changed by less than the resolution since it was told.
            room = step / 2 + max(step, RELATIVE_STEP * (decoder.values[each] + step))
            assert abs(decoder.values[each] - value) <= room
