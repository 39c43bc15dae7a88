"""What a new agent makes of records: every pair of record and boot that matters."""

from __future__ import annotations

import msgspec
import pytest

from farbus.agent.actions import PrepareDevices, StartTask
from farbus.agent.events import TaskRun
from farbus.agent.journal import Direction, Record
from farbus.agent.reconcile import Verdict, reconcile, restored_tasks, results_of, verdict_of
from farbus.model.value import to_json
from tests.agent.harness import lease

FORWARD, BACK, ENDED = Direction
BODY = to_json(PrepareDevices(serial=0, lease=lease().without_secret())).decode()
RUN = to_json(StartTask(serial=0, run=TaskRun(job="j1", task="main.0", user="ann", command=("true",)))).decode()

STAGED_RUN = to_json(
    StartTask(serial=0, run=TaskRun(job="j1", task="main.0", user="ann", command=("true",), stage_out=("result",)))
).decode()


def record(
    position: int = 0,
    direction: Direction = FORWARD,
    *,
    done: bool = True,
    error: str = "",
    boot: str = "b",
    lasting: bool = False,
    length: int = 2,
    action: str = "PrepareDevices",
    body: str = BODY,
) -> Record:
    """Return one record of the sequence."""
    return Record(
        id=1,
        sequence=1,
        position=position,
        length=length,
        direction=direction,
        boot_id=boot,
        object="lease l1",
        action=action,
        body=body,
        lasting=lasting,
        result=f'{{"of":"{position}"}}',
        completed=done,
        error=error,
    )


@pytest.mark.parametrize(
    ("records", "resumable", "verdict"),
    [
        ([record(0, done=False)], False, Verdict.BACK),
        ([record(0, done=False)], True, Verdict.FORWARD),
        ([record(0)], False, Verdict.BACK),
        ([record(0)], True, Verdict.FORWARD),
        ([record(0), record(1, done=False)], True, Verdict.FORWARD),
        ([record(0), record(1, error="no")], False, Verdict.BACK),
        ([record(0), record(1)], False, Verdict.HELD),
        # Tried again after a crash: the last record of a step counts.
        ([record(0), record(1, done=False), record(1)], True, Verdict.HELD),
        ([record(0), record(1), record(1, BACK, done=False)], True, Verdict.BACK),
        ([record(0), record(1), record(1, BACK)], True, Verdict.BACK),
        ([record(0), record(1), record(1, BACK), record(0, BACK, error="no")], True, Verdict.BACK),
        ([record(0), record(1), record(1, BACK), record(0, BACK)], True, Verdict.OVER),
        ([record(0), record(1), record(1, ENDED)], True, Verdict.OVER),
        # Another boot: volatile steps are void, lasting ones stay.
        ([record(0, boot="a"), record(1, boot="a")], False, Verdict.BACK),
        ([record(0, boot="a"), record(1, boot="a")], True, Verdict.FORWARD),
        ([record(0, boot="a", lasting=True), record(1, boot="a", lasting=True)], False, Verdict.HELD),
        ([record(0, boot="a", lasting=True), record(1, boot="a")], True, Verdict.FORWARD),
        ([record(0, boot="a", lasting=True), record(1, boot="a"), record(1)], False, Verdict.HELD),
    ],
)
def test_a_sequence_is_judged_by_its_records(records: list[Record], resumable: bool, verdict: Verdict) -> None:
    assert verdict_of(tuple(records), boot_id="b", resumable=resumable) is verdict


def test_results_are_those_of_the_steps_that_were_done() -> None:
    records = (record(0), record(1, error="no"), record(1, BACK))
    assert results_of(records) == {0: {"of": "0"}}


def test_a_start_that_failed_left_nothing() -> None:
    failed = record(0, error="no disk", length=1, action="StartTask", body=RUN)
    assert reconcile([(failed,)], boot_id="b", node="n1") == ((), ())


def test_a_task_is_looked_for_also_after_another_boot() -> None:
    started = record(0, length=1, action="StartTask", body=RUN)
    ((here,), _) = reconcile([(started,)], boot_id="b", node="n1")
    ((later,), _) = reconcile([(started,)], boot_id="c", node="n1")
    assert (here.lost, here.absent) == ("", "it ended while node n1 had no agent")
    assert (later.lost, later.absent) == ("", "node n1 was rebooted while it ran")
    assert not here.unbegun


def test_a_task_whose_start_was_cut_off_has_not_begun_where_nothing_of_it_is_found() -> None:
    cut_off = record(0, done=False, length=1, action="StartTask", body=RUN)
    ((here,), _) = reconcile([(cut_off,)], boot_id="b", node="n1")
    ((later,), _) = reconcile([(cut_off,)], boot_id="c", node="n1")
    assert here.absent == "the agent of node n1 ended before it had started it"
    # A power cut may have taken with it what there was of the program.
    assert (here.unbegun, later.unbegun) == (True, False)
    (lost,) = restored_tasks([msgspec.structs.replace(here, lost=here.absent)])
    assert lost.unstarted


def test_a_task_whose_launch_was_cut_off_has_not_begun_where_nothing_of_it_is_found() -> None:
    started = record(0, length=1, action="StartTask", body=STAGED_RUN)
    cut_off = record(1, done=False, action="LaunchTask", body="{}")
    ((here,), _) = reconcile([(started, cut_off)], boot_id="b", node="n1")
    ((later,), _) = reconcile([(started, cut_off)], boot_id="c", node="n1")
    assert here.absent == "the agent of node n1 ended before it had started it"
    assert later.absent == "node n1 was rebooted while it ran"
    # A power cut may have taken with it what there was of the program.
    assert (here.unbegun, later.unbegun) == (True, False)


@pytest.mark.parametrize("boot", ["b", "c"])
def test_a_task_can_not_have_begun_without_a_record_that_its_files_have_arrived(boot: str) -> None:
    started = record(0, length=1, action="StartTask", body=STAGED_RUN)
    launched = record(1, action="LaunchTask", body="{}")
    ((waited,), _) = reconcile([(started,)], boot_id=boot, node="n1")
    ((has_run,), _) = reconcile([(started, launched)], boot_id=boot, node="n1")
    assert (waited.unbegun, has_run.unbegun) == (True, False)
    assert waited.absent == "its files were still arriving when the agent of node n1 ended"
    # It is looked for all the same; what is not found has not begun.
    (lost,) = restored_tasks([msgspec.structs.replace(waited, lost=waited.absent)])
    (found,) = restored_tasks([waited])
    assert (lost.unstarted, found.unstarted) == (True, False)


def test_a_record_that_is_not_understood_is_told() -> None:
    old = record(0, length=1, body='{"serial": 1, "of": "a later version"}')
    found, (told,) = reconcile([(old,)], boot_id="b", node="n1")
    assert found == ()
    assert told.startswith("lease l1: not a PrepareDevices")


def test_records_of_other_kinds_are_left_to_those_who_know_them() -> None:
    assert reconcile([(record(0, action="BindDriver", body="{}"),)], boot_id="b", node="n1") == ((), ())
