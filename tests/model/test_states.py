"""Tables of states."""

from __future__ import annotations

import enum

import pytest

from farbus.errors import IllegalTransition
from farbus.model.states import (
    DEVICE_STATES,
    JOB_STATES,
    LEASE_STATES,
    SESSION_STATES,
    VOLUME_STATES,
    DeviceState,
    JobState,
    LeaseState,
    SessionState,
    StateTable,
    VolumeState,
)

TABLES = [
    (JOB_STATES, JobState),
    (LEASE_STATES, LeaseState),
    (DEVICE_STATES, DeviceState),
    (SESSION_STATES, SessionState),
    (VOLUME_STATES, VolumeState),
]
ENDING = TABLES[:2] + TABLES[-1:]
NAMES = [table.noun for table, _ in TABLES]


@pytest.mark.parametrize(("table", "states"), TABLES, ids=NAMES)
def test_every_state_has_its_row(table: StateTable[enum.StrEnum], states: type[enum.StrEnum]) -> None:
    assert set(table.arrows) == set(states)


@pytest.mark.parametrize(("table", "states"), ENDING, ids=[table.noun for table, _ in ENDING])
def test_every_state_leads_to_an_end(table: StateTable[enum.StrEnum], states: type[enum.StrEnum]) -> None:
    ends = {state for state in states if table.is_final(state)}
    while True:
        before = len(ends)
        ends |= {state for state in states if table.arrows[state] & ends}
        if len(ends) == before:
            break
    assert ends == set(states)


def test_a_missing_arrow_raises_with_the_story() -> None:
    with pytest.raises(
        IllegalTransition, match=r"job j1: succeeded to running is not legal \(story: queued -> ended\)"
    ):
        JOB_STATES.check("j1", JobState.SUCCEEDED, JobState.RUNNING, ["queued", "ended"])


def test_a_device_is_free_only_by_way_of_releasing() -> None:
    leading = {state for state in LeaseState if LeaseState.RELEASED in LEASE_STATES.arrows[state]}
    assert leading == {LeaseState.RELEASING}


def test_the_diagram_has_every_arrow() -> None:
    drawn = LEASE_STATES.mermaid()
    for source, targets in LEASE_STATES.arrows.items():
        for target in targets:
            assert f"{source} --> {target}" in drawn
