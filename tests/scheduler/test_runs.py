"""The tasks of an attempt: what is counted of them, and what they note."""

from __future__ import annotations

import msgspec

from farbus.model.device import Route
from farbus.model.job import DevicePlacement, Requests, TaskPlacement
from farbus.scheduler.runs import ClientSide, Program, Runs, TaskRun, Trait


def run(task: str, *, node: str = "a", lender: str = "", group: int = 0) -> TaskRun:
    devices = (DevicePlacement(device="GPU-1", node=lender, route=Route.REMOTE),) if lender else ()
    return TaskRun(placement=TaskPlacement(task=task, node=node, devices=devices), group=group, requests=Requests())


def test_what_is_set_of_a_task_is_counted_and_written() -> None:
    told: dict[str, None] = {}
    first, second = run("main.0"), run("main.1")
    runs = Runs([first, second], job="j1", changed=told)
    assert (runs.take_unwritten(), told) == ((), {}), "it is as it was written down"
    assert runs.count(Trait.UNPREPARED) == runs.count(Trait.UNSTARTED) == 2
    second.client = ClientSide.PREPARED
    second.program = Program.STARTING
    assert (runs.count(Trait.UNPREPARED), runs.count(Trait.UNSTARTED), runs.count(Trait.STARTING)) == (1, 1, 1)
    assert (runs.take_unwritten(), list(told)) == ((("main.1", second),), ["j1"])
    assert runs.take_unwritten() == ()
    runs.check()


def test_one_that_is_no_more_is_to_be_removed_and_notes_nothing() -> None:
    gone = run("main.0")
    runs = Runs([gone, run("main.1")])
    runs.remove(gone)
    gone.program = Program.EXITED
    assert runs.take_unwritten() == (("main.0", None),)
    assert (runs.count(Trait.UNSTARTED), runs.count(Trait.BEGUN)) == (1, 0)
    runs.check()


def test_all_that_take_part_at_a_node_are_found() -> None:
    lent, own = run("main.0", node="a", lender="b"), run("main.1", node="b")
    runs = Runs([lent, own])
    assert (runs.at("a"), runs.at("b"), runs.at("c")) == ([lent], [lent, own], [])
    runs.remove(own)
    assert runs.at("b") == [lent]
    runs.check()


def test_the_first_task_is_the_first_of_the_job_whenever_it_came() -> None:
    runs = Runs([run("main.10"), run("other.0", group=1)])
    assert runs.first is not None
    assert runs.first.task == "main.10"
    late = run("main.9")
    runs.add(late)
    assert runs.first is late
    runs.remove(late)
    assert runs.first.task == "main.10"
    runs.clear()
    assert runs.first is None


def test_those_are_due_that_have_changed_or_for_which_something_came() -> None:
    first, second, third = run("main.0"), run("main.1"), run("main.2", node="b")
    runs = Runs([first, second, third])
    assert runs.take_due() == [first, second, third], "after a restart all of them"
    assert runs.take_due() == []
    second.client = ClientSide.PREPARING
    runs.look("main.0")
    runs.look_at("b")
    runs.look("gone.0")
    assert runs.take_due() == [second, first, third]


def test_what_is_written_of_a_task_is_its_fields_alone() -> None:
    one = run("main.0")
    plain = msgspec.json.encode(one)
    Runs([one])
    assert msgspec.json.encode(one) == plain
    assert msgspec.json.decode(plain, type=TaskRun) == one
