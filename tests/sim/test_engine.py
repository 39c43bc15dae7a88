"""Virtual time."""

from __future__ import annotations

import pytest

from farbus.sim.engine import Engine


def test_events_come_in_order_of_time_phase_and_request() -> None:
    engine, seen = Engine(), []
    for name, time, phase in (("late", 2.0, 0), ("second", 1.0, 1), ("first", 1.0, 0), ("third", 1.0, 1)):
        engine.at(time, lambda name=name: seen.append(name), phase=phase)
    engine.run(lambda: None)
    assert seen == ["first", "second", "third", "late"]


def test_the_world_settles_once_an_instant_after_all_of_it() -> None:
    engine, seen = Engine(), []
    engine.at(1.0, lambda: engine.at(1.0, lambda: seen.append("caused")))
    engine.at(3.0, lambda: seen.append("later"))
    engine.run(lambda: seen.append(engine.now))
    assert seen == ["caused", 1.0, "later", 3.0]


def test_the_past_can_not_be_changed() -> None:
    engine = Engine()
    engine.at(5.0, lambda: None)
    engine.run(lambda: None)
    with pytest.raises(ValueError, match="before the present"):
        engine.at(4.0, lambda: None)
