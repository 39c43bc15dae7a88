"""The diagrams of states in the docs are those of the tables in the code."""

from __future__ import annotations

import enum
import re
from pathlib import Path

import pytest

from farbus.agent.objects import RUN_STATES, SIDE_STATES
from farbus.model.states import DEVICE_STATES, JOB_STATES, LEASE_STATES, SESSION_STATES, VOLUME_STATES, StateTable

PAGE = Path(__file__).parent.parent / "docs/architecture.md"
TABLES: list[StateTable[enum.StrEnum]] = [
    JOB_STATES,
    LEASE_STATES,
    DEVICE_STATES,
    VOLUME_STATES,
    SIDE_STATES,
    RUN_STATES,
    SESSION_STATES,
]  # type: ignore[list-item]


@pytest.mark.parametrize("table", TABLES, ids=[table.noun for table in TABLES])
def test_the_page_shows_the_table(table: StateTable[enum.StrEnum]) -> None:
    wanted = f"<!-- states: {table.noun} -->\n```mermaid\n{table.mermaid()}\n```\n"
    assert wanted in PAGE.read_text(), f"put this into {PAGE.name}:\n\n{wanted}"


def test_the_page_shows_no_other() -> None:
    shown = re.findall(r"<!-- states: (.+) -->", PAGE.read_text())
    assert sorted(shown) == sorted(table.noun for table in TABLES)
