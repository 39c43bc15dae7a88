"""How long scans and removals take, learned by the class of the device."""

from __future__ import annotations

import pytest

from farbus.hotplug.times import COLD_DEADLINE_S, COLD_EXPECTED_S, FLOOR_S, BusHistory, BusStep, BusTimes
from farbus.model.fabric import DEADLINE_MARGIN, GIVEN_UP_FACTOR
from farbus.model.value import from_json

DRIVE, GPU = 0x010802, 0x030200


def times(*seconds: float, pci_class: int = DRIVE) -> BusHistory:
    history = BusHistory()
    for each in seconds:
        history = history.with_time(BusStep.SCAN, pci_class, each)
    return history


def test_before_anything_was_measured_the_cold_times_hold() -> None:
    assert BusHistory().deadline_s(BusStep.SCAN, DRIVE) == COLD_DEADLINE_S
    assert BusHistory().expected_s(BusStep.REMOVE) == COLD_EXPECTED_S


def test_drives_say_nothing_of_gpus() -> None:
    history = times(*[1.0] * 10)
    assert history.deadline_s(BusStep.SCAN, DRIVE) == FLOOR_S
    assert history.expected_s(BusStep.SCAN, DRIVE) == 1.0
    assert history.deadline_s(BusStep.SCAN, GPU) == COLD_DEADLINE_S
    assert history.deadline_s(BusStep.REMOVE, DRIVE) == COLD_DEADLINE_S


def test_for_a_device_that_nobody_has_seen_the_slowest_class_counts() -> None:
    history = times(*[1.0] * 10)
    for _ in range(10):
        history = history.with_time(BusStep.SCAN, GPU, 50.0)
    assert history.deadline_s(BusStep.SCAN) == DEADLINE_MARGIN * 50.0
    assert history.expected_s(BusStep.SCAN) == 50.0


def test_a_deadline_that_is_too_short_grows() -> None:
    told: list[BusHistory] = []
    kept = BusTimes(keep=told.append)
    for _ in range(5):
        limit_s = kept.history.deadline_s(BusStep.SCAN, GPU)
        kept.measure(BusStep.SCAN, GPU, limit_s, finished=False)
    assert kept.history.deadline_s(BusStep.SCAN, GPU) > GIVEN_UP_FACTOR * COLD_DEADLINE_S
    assert told[-1] == kept.history


def test_what_has_come_takes_back_what_was_given_up() -> None:
    kept = BusTimes()
    for _ in range(3):
        kept.measure(BusStep.SCAN, DRIVE, COLD_DEADLINE_S, finished=False)
        assert kept.history.deadline_s(BusStep.SCAN, DRIVE) == GIVEN_UP_FACTOR * COLD_DEADLINE_S
        # What a node has not seen yet may be such a device.
        assert kept.history.deadline_s(BusStep.SCAN) == GIVEN_UP_FACTOR * COLD_DEADLINE_S
        assert kept.history.deadline_s(BusStep.SCAN, GPU) == COLD_DEADLINE_S
        kept.measure(BusStep.SCAN, DRIVE, 1.0)
        assert kept.history.deadline_s(BusStep.SCAN, DRIVE) == COLD_DEADLINE_S
    assert kept.history == times(1.0, 1.0, 1.0)
    assert kept.history.expected_s(BusStep.SCAN, DRIVE) == 1.0


def test_a_history_from_before_is_read() -> None:
    assert from_json(b'{"times":{"scan 0108":[1.0]}}', BusHistory) == times(1.0)


@pytest.mark.parametrize("seconds", [-1.0, 0.0])
def test_a_clock_that_stands_still_is_no_harm(seconds: float) -> None:
    assert times(seconds).deadline_s(BusStep.SCAN, DRIVE) == COLD_DEADLINE_S
