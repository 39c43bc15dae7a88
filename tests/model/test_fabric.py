"""Fabric values: names of devices and ports, and deadlines that are learned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farbus.errors import NotFound
from farbus.model.device import DeviceKind
from farbus.model.fabric import (
    CEILING_S,
    COLD_DEADLINE_S,
    DEADLINE_MARGIN,
    FLOOR_S,
    GIVEN_UP_FACTOR,
    HISTORY_LENGTH,
    ChassisView,
    FabricDevice,
    FabricPort,
    FabricStep,
    StepHistory,
    StepTime,
    device_uuid,
    quantile,
)
from farbus.model.value import from_json, to_json

ASSIGN = FabricStep.ASSIGN

VIEW = ChassisView(
    chassis="falcon",
    ports=(
        FabricPort(id="30h", node="alpha"),
        FabricPort(id="31h", node="beta"),
        FabricPort(id="32h", node="beta"),
    ),
    devices=(FabricDevice(id="GPU-1", handle="001300", kind=DeviceKind.GPU, serial="S1", uuid="GPU-1", port="30h"),),
    missing=(FabricDevice(id="GPU-2", handle="002300", kind=DeviceKind.GPU),),
)

seconds = st.floats(0, 500)


def learned(*times: float) -> StepHistory:
    history = StepHistory()
    for each in times:
        history = history.with_time(StepTime(step=ASSIGN, seconds=each))
    return history


@pytest.mark.parametrize("name", ["GPU-1", "001300", "S1"])
def test_a_device_is_found_by_each_of_its_names(name: str) -> None:
    assert VIEW.device(name).id == "GPU-1"


@pytest.mark.parametrize("order", [1, -1])
def test_a_drive_is_not_taken_for_one_whose_serial_begins_like_its_own(order: int) -> None:
    drives = tuple(
        FabricDevice(id=serial, handle=f"h-{serial}", kind=DeviceKind.NVME, serial=serial) for serial in ("S1", "S1-2")
    )
    view = ChassisView(chassis="falcon", ports=(), devices=drives[::order])
    for name, serial in (("NVME-S1-PM9A3", "S1"), ("NVME-S1-2-PM9A3", "S1-2"), ("S1", "S1"), ("h-S1-2", "S1-2")):
        assert view.device(name).serial == serial


def test_a_missing_device_is_told_as_such() -> None:
    with pytest.raises(NotFound, match="was there and is not listed any more"):
        VIEW.device("GPU-2")
    with pytest.raises(NotFound, match="no device GPU-3"):
        VIEW.device("GPU-3")


def test_a_port_is_found_by_id_and_by_the_only_node_at_it() -> None:
    assert VIEW.port("31h").id == "31h"
    assert VIEW.port("alpha").id == "30h"
    with pytest.raises(NotFound, match="node beta is at several ports; name one of 31h, 32h"):
        VIEW.port("beta")


def test_a_free_device_has_no_name_that_is_empty() -> None:
    with pytest.raises(NotFound):
        VIEW.device("")
    with pytest.raises(NotFound):
        VIEW.port("")


def test_uuids_of_gpus_are_written_as_their_driver_does() -> None:
    assert device_uuid(DeviceKind.GPU, "1") == device_uuid(DeviceKind.GPU, "GPU-1") == "GPU-1"
    assert device_uuid(DeviceKind.NVME, "1") == "1"
    assert device_uuid(DeviceKind.GPU, "") == ""


def test_without_history_the_cold_deadline_holds() -> None:
    assert StepHistory().deadline_s(ASSIGN) == COLD_DEADLINE_S[ASSIGN]


def test_a_deadline_is_a_high_quantile_with_a_margin() -> None:
    assert learned(*range(10, 20)).deadline_s(ASSIGN) == DEADLINE_MARGIN * 19


def test_a_slow_chassis_shows_in_its_first_times() -> None:
    assert learned(100).deadline_s(ASSIGN) == 150


@given(st.lists(seconds, max_size=30))
def test_deadlines_keep_their_bounds_and_exceed_what_was_measured(times: list[float]) -> None:
    deadline_s = learned(*times).deadline_s(ASSIGN)
    assert FLOOR_S[ASSIGN] <= deadline_s <= CEILING_S
    assert deadline_s >= min(CEILING_S, max(times, default=0))


def given_up(history: StepHistory, *, times: int = 1) -> StepHistory:
    """Return the history after steps that were given up one after the other, each at its deadline."""
    for _ in range(times):
        history = history.with_time(StepTime(step=ASSIGN, seconds=history.deadline_s(ASSIGN), finished=False))
    return history


@given(st.lists(seconds, max_size=20))
def test_a_step_that_was_given_up_makes_the_deadline_longer_by_a_bounded_step(times: list[float]) -> None:
    history = learned(*times)
    before = history.deadline_s(ASSIGN)
    assert given_up(history).deadline_s(ASSIGN) == min(CEILING_S, GIVEN_UP_FACTOR * before)
    assert given_up(history, times=10).deadline_s(ASSIGN) == CEILING_S


@given(st.lists(st.one_of(st.none(), seconds), max_size=30), st.floats(0, COLD_DEADLINE_S[ASSIGN]))
def test_an_answer_takes_back_what_was_given_up_before_it(steps: list[float | None], last: float) -> None:
    history = StepHistory()
    for taken_s in steps:
        answer = StepTime(step=ASSIGN, seconds=taken_s or 0.0)
        history = given_up(history) if taken_s is None else history.with_time(answer)
    answered = [each for each in steps if each is not None]
    assert history.times.get(ASSIGN, ()) == tuple(answered)
    assert history.with_time(StepTime(step=ASSIGN, seconds=last)) == learned(*answered, last)


def test_unanswered_requests_at_a_young_chassis_cost_one_longer_deadline_each() -> None:
    history, deadlines = StepHistory(), []
    for _ in range(3):
        history = given_up(history)
        deadlines.append(history.deadline_s(ASSIGN))
        history = history.with_time(StepTime(step=ASSIGN, seconds=1.0))
        deadlines.append(history.deadline_s(ASSIGN))
    assert deadlines == [180.0, 90.0] * 3


def test_several_that_were_given_up_at_once_are_one_step() -> None:
    history = given_up(StepHistory())
    for had in (90.0, 30.0):
        history = history.with_time(StepTime(step=ASSIGN, seconds=had, finished=False))
    assert history.deadline_s(ASSIGN) == 180.0
    assert history.deadline_s(FabricStep.LIST) == COLD_DEADLINE_S[FabricStep.LIST]


def test_a_chassis_that_has_become_slow_keeps_the_longer_deadline_until_its_times_say_so() -> None:
    history = given_up(learned(*([12.0] * HISTORY_LENGTH)), times=2)
    assert history.deadline_s(ASSIGN) == 72.0
    for _ in range(2):
        history = history.with_time(StepTime(step=ASSIGN, seconds=50.0))
        assert history.deadline_s(ASSIGN) == 72.0
    history = history.with_time(StepTime(step=ASSIGN, seconds=50.0))
    assert (history.deadline_s(ASSIGN), history.given_up) == (DEADLINE_MARGIN * 50.0, {})


def test_what_was_given_up_says_nothing_of_how_long_a_step_takes() -> None:
    assert given_up(learned(10, 12), times=5).expected_s(ASSIGN) == 10.0
    assert given_up(StepHistory()).expected_s(ASSIGN) == StepHistory().expected_s(ASSIGN)


def test_old_times_are_forgotten() -> None:
    history = learned(400, *([12.0] * HISTORY_LENGTH))
    assert len(history.times[ASSIGN]) == HISTORY_LENGTH
    assert history.deadline_s(ASSIGN) == DEADLINE_MARGIN * 12


def test_history_is_kept_as_json() -> None:
    history = given_up(learned(1, 2, 3))
    assert from_json(to_json(history), StepHistory) == history
    assert from_json(b'{"times":{"assign":[1.0]}}', StepHistory) == learned(1)
    # Who knows no other field reads it.
    assert to_json(learned(1.0)) == b'{"times":{"assign":[1.0]}}'


@given(st.lists(seconds, min_size=1), st.floats(0, 1))
def test_a_quantile_is_one_of_the_times(times: list[float], part: float) -> None:
    found = quantile(times, part)
    assert found in times
    assert sum(each <= found for each in times) >= part * len(times)


def test_a_gpu_is_named_as_its_driver_names_it_whatever_case_its_chassis_writes() -> None:
    uuid = "8F2D6C1E-0000-1111-2222-ABCDEFABCDEF"
    for told in (uuid, f"GPU-{uuid}", f"gpu-{uuid}"):
        assert device_uuid(DeviceKind.GPU, told) == f"GPU-{uuid.lower()}"


def reading(*devices: tuple[str, str], ports: tuple[str, ...] = ("1", "2")) -> ChassisView:
    return ChassisView(
        chassis="falcon",
        ports=tuple(FabricPort(id=port) for port in ports),
        devices=tuple(FabricDevice(id=name, handle=handle, kind=DeviceKind.PCI) for name, handle in devices),
    )


@pytest.mark.parametrize(
    ("view", "told"),
    [
        (reading(("S1", "1"), ("S2", "2")), ""),
        (reading(("S1", ""), ("S2", "")), ""),
        (reading(("S1", "1"), ("S1", "2")), "device S1 is listed twice"),
        (reading(("S1", "1"), ("s1", "2")), "devices S1 and s1 differ in case alone"),
        (reading(("S1", "0A"), ("S2", "0A")), "handle 0A is listed twice"),
        (reading(("S1", "0A"), ("S2", "0a")), "handles 0A and 0a differ in case alone"),
        (reading(ports=("1", "1")), "port 1 is listed twice"),
        (reading(ports=("a", "A")), "ports a and A differ in case alone"),
    ],
)
def test_what_a_reading_gives_twice_is_told(view: ChassisView, told: str) -> None:
    assert view.contradiction() == told


def test_a_name_that_several_devices_have_means_none_of_them_but_an_id_one() -> None:
    view = reading(("S1", "0A"), ("0A", "0B"))
    assert view.device("0A").handle == "0B"
    several = ChassisView(
        chassis="falcon",
        ports=(),
        devices=tuple(
            FabricDevice(id=f"GPU-{number}", handle=str(number), kind=DeviceKind.GPU, serial="0") for number in (1, 2)
        ),
    )
    with pytest.raises(NotFound, match="several devices answer to 0; name one of GPU-1, GPU-2"):
        several.device("0")
