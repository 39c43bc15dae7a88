"""The agenda: what is added is looked at each time, what is watched once, by the earliest time that was asked for."""

from __future__ import annotations

from farbus.scheduler.agenda import Agenda, Look


def test_an_earlier_look_replaces_a_later_one_at_what_is_watched() -> None:
    agenda = Agenda()
    agenda.watch(100.0, Look.NODE, "a")
    agenda.watch(10.0, Look.NODE, "a")
    assert list(agenda.take_due(10.0)) == [(Look.NODE, "a")]
    agenda.watch(150.0, Look.NODE, "a")
    assert list(agenda.take_due(100.0)) == []
    assert list(agenda.take_due(150.0)) == [(Look.NODE, "a")]


def test_a_later_look_is_left_to_the_one_that_is_coming() -> None:
    agenda = Agenda()
    agenda.watch(10.0, Look.LEASE, "l1")
    agenda.watch(20.0, Look.LEASE, "l1")
    assert list(agenda.take_due(30.0)) == [(Look.LEASE, "l1")]
    assert agenda.next_due() is None


def test_what_is_added_is_looked_at_each_time() -> None:
    agenda = Agenda()
    agenda.add(10.0, Look.STEP, "s")
    agenda.add(5.0, Look.STEP, "s")
    assert list(agenda.take_due(10.0)) == [(Look.STEP, "s"), (Look.STEP, "s")]
