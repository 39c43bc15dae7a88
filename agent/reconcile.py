"""What a new agent makes of what an earlier one has recorded: go on, go back, or take hold of what is there.

Pure.  What is desired stands in the journal; what is observed is asked for by
the executor, step by step, of everything that is said to be held here.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

import msgspec

from farbus.agent.actions import PrepareClient, PrepareDevices, StartTask
from farbus.agent.events import RestoredClient, RestoredDevices, RestoredTask
from farbus.agent.journal import LAUNCH, Direction, Record, Sequence
from farbus.errors import InvalidInput
from farbus.model.value import Value, from_json


class Verdict(enum.Enum):
    """What is to become of a sequence."""

    HELD = enum.auto()
    """It was done: what it made is to be observed and taken hold of."""
    FORWARD = enum.auto()
    """It was under way, and can be gone on with."""
    BACK = enum.auto()
    """It was being taken back, or can't be gone on with."""
    OVER = enum.auto()
    """Nothing is left of it."""


def verdict_of(records: Sequence, *, boot_id: str, resumable: bool) -> Verdict:
    """Judge a sequence by its records.

    A volatile step of another boot counts as not done; a lasting one stays.
    ``resumable`` says that going forward needs nothing beyond the journal.
    """
    if any(record.direction is Direction.ENDED for record in records):
        return Verdict.OVER
    back = {record.position: record for record in records if record.direction is Direction.BACK}
    if back:
        return Verdict.OVER if 0 in back and back[0].succeeded else Verdict.BACK
    forward = {record.position: record for record in records}
    length = records[0].length
    if all(position in forward and _stands(forward[position], boot_id) for position in range(length)):
        return Verdict.HELD
    return Verdict.FORWARD if resumable else Verdict.BACK


def _stands(record: Record, boot_id: str) -> bool:
    return record.succeeded and (record.lasting or record.boot_id == boot_id)


def results_of(records: Sequence) -> dict[int, dict[str, str]]:
    """Return the recorded results of the steps that were done, by position."""
    return {
        record.position: msgspec.json.decode(record.result, type=dict[str, str])
        for record in records
        if record.direction is Direction.FORWARD and record.succeeded
    }


def for_others(results: Mapping[str, str]) -> dict[str, str]:
    """Return of the results of steps what the whole sequence is for: names with a ``/`` are between the steps."""
    return {name: value for name, value in results.items() if "/" not in name}


Forward = PrepareDevices | PrepareClient | StartTask


class Remembered(Value, frozen=True, kw_only=True):
    """An object of an earlier agent that is not over.

    ``lost`` says why there is nothing to take hold of; it is empty where it is
    to be observed, and ``absent`` is the reason when it is not there then.
    ``unbegun`` says that its program can't have begun if it is not there: its
    files were on their way, or its start was cut off before there was a keeper.
    """

    work: Forward
    records: Sequence
    lost: str = ""
    absent: str = ""
    unbegun: bool = False


def reconcile(
    sequences: Iterable[Sequence], *, boot_id: str, node: str
) -> tuple[tuple[Remembered, ...], tuple[str, ...]]:
    """Return what is left of an earlier agent by its records, and why some can't be understood."""
    found, not_understood = [], []
    for records in sequences:
        kind = _KINDS.get(records[0].action)
        if kind is None:
            continue
        try:
            work = from_json(records[0].body, kind)
        except InvalidInput as error:
            # Of another version.  What it may have left is observed by nobody, and so ended as a stranger.
            not_understood.append(f"{records[0].object}: {error}")
            continue
        rebooted = f"node {node} was rebooted" if records[0].boot_id != boot_id else ""
        if isinstance(work, StartTask):
            if _has_run(records):
                # Also after a reboot: it may have ended before, and its keeper have kept its exit status.
                absent = f"{rebooted} while it ran" if rebooted else f"it ended while node {node} had no agent"
                unbegun = not rebooted and not _is_started(records)
                if unbegun:
                    # What a program leaves stays until its end is on record (KeptChild.forget).
                    absent = f"the agent of node {node} ended before it had started it"
                if work.run.is_staged:
                    launch = next((record for record in records if record.action == LAUNCH), None)
                    if launch is None:
                        unbegun = True
                        absent = f"its files were still arriving when the agent of node {node} ended"
                    elif not launch.completed and not rebooted:
                        unbegun = True
                        absent = f"the agent of node {node} ended before it had started it"
                found.append(Remembered(work=work, records=records, absent=absent, unbegun=unbegun))
            continue
        # Neither can be prepared from the journal alone: it has no secrets.
        verdict = verdict_of(records, boot_id=boot_id, resumable=False)
        if verdict is Verdict.HELD:
            absent = f"it ended while node {node} had no agent"
            found.append(Remembered(work=work, records=records, absent=absent))
        elif verdict is Verdict.BACK:
            why = f"it was not ready, or being given up, when the agent of node {node} ended"
            found.append(Remembered(work=work, records=records, lost=rebooted or why))
    return tuple(found), tuple(not_understood)


def _has_run(records: Sequence) -> bool:
    """Say whether a task's program may have run, and nobody has recorded its end.

    Where a start was begun and its end not recorded, the program may be there;
    where it was to be stopped, its exit was not seen yet.
    """
    if any(record.direction is Direction.ENDED for record in records):
        return False
    starts = [record for record in records if record.direction is Direction.FORWARD]
    return not (starts and starts[-1].completed and starts[-1].error)


def _is_started(records: Sequence) -> bool:
    """Say whether it is on record that a program was started."""
    return any(record.direction is Direction.FORWARD and record.completed for record in records)


def restored_devices(found: Iterable[Remembered]) -> tuple[RestoredDevices, ...]:
    """Return the device sides among what is left, as the machine takes them over."""
    return tuple(
        RestoredDevices(lease=one.work.lease, endpoint=_result(one).get("endpoint", ""), lost=one.lost)
        for one in found
        if isinstance(one.work, PrepareDevices)
    )


def restored_clients(found: Iterable[Remembered]) -> tuple[RestoredClient, ...]:
    """Return the client sides among what is left."""
    return tuple(
        RestoredClient(
            job=one.work.job,
            task=one.work.task,
            user=one.work.user,
            leases=one.work.leases,
            environment=_result(one),
            interactive=one.work.interactive,
            attachment=one.work.attachment,
            lost=one.lost,
        )
        for one in found
        if isinstance(one.work, PrepareClient)
    )


def restored_tasks(found: Iterable[Remembered]) -> tuple[RestoredTask, ...]:
    """Return the tasks among what is left."""
    return tuple(
        RestoredTask(run=one.work.run, lost=one.lost, unstarted=one.unbegun and bool(one.lost))
        for one in found
        if isinstance(one.work, StartTask)
    )


def _result(one: Remembered) -> dict[str, str]:
    whole: dict[str, str] = {}
    for _, result in sorted(results_of(one.records).items()):
        whole |= result
    return for_others(whole)


# By the kind of the first step; both kinds of device side have one.
_KINDS: dict[str, type[Forward]] = {
    "PrepareDevices": PrepareDevices,
    "ProvideStorage": PrepareDevices,
    "PrepareClient": PrepareClient,
    "StartTask": StartTask,
}
