"""The book of steps: what nodes have to do, and the commands that are outstanding for it.  Pure.

A step is asked for by one command at a time.  An answer, a lost session or a
passed deadline ends the command; the step stays until somebody drops it.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict

from farbus.scheduler.events import Verb

PREPARE_DEADLINE_S = 120.0
"""Longest time a node may take to prepare: a supervisor start or a fabric assignment with its rescan."""
START_DEADLINE_S = 120.0
"""Longest time from StartTask to its outcome, more than an agent gives a keeper; the program itself may run on."""
STOP_GRACE_S = 10.0
"""From SIGTERM to SIGKILL when a task is stopped."""
UNDO_DEADLINE_S = 20.0
"""Longest time for a step of undo before it is asked again: more than STOP_GRACE_S, and more than an agent waits
for a supervisor to end."""
MOVE_DEADLINE_S = 1_800.0
"""Longest time that a node's part of a move may take before it is asked again: a chassis's slowest steps, with their
tries, and the time that holders are given.  That nothing was said is no failure: only the node knows where it is."""

VOLUME_DEADLINE_S = 1_800.0
"""Longest time that a node may take for a part of a volume before it is asked again: to remove one is to wipe it, and a
drive that can't discard is written all over.  That nothing was said is no failure, as of a move."""

GROW_DEADLINE_S = 300.0
"""Longest time that a node may take to let a file system grow before it is not waited for any more: the volume has its
new size by then, and what is mounted of it at the next mount at the latest."""

DEADLINES = {
    Verb.PREPARE_DEVICES: PREPARE_DEADLINE_S,
    Verb.PREPARE_CLIENT: PREPARE_DEADLINE_S,
    Verb.START_TASK: START_DEADLINE_S,
    Verb.STOP_TASK: UNDO_DEADLINE_S,
    Verb.UNPREPARE_CLIENT: UNDO_DEADLINE_S,
    Verb.UNPREPARE_DEVICES: UNDO_DEADLINE_S,
    Verb.DETACH_DEVICE: MOVE_DEADLINE_S,
    Verb.ATTACH_DEVICE: MOVE_DEADLINE_S,
    Verb.MAKE_VOLUME: VOLUME_DEADLINE_S,
    Verb.RESIZE_VOLUME: VOLUME_DEADLINE_S,
    Verb.REMOVE_VOLUME: VOLUME_DEADLINE_S,
    Verb.GROW_CLIENT: GROW_DEADLINE_S,
}


@dataclasses.dataclass(slots=True)
class Step:
    """A step that some node has to do."""

    verb: Verb
    node: str
    job: str = ""
    task: str = ""
    lease: str = ""
    move: str = ""
    volume: str = ""
    part: int = 0
    stray: bool = False
    command_id: str = ""
    """The outstanding command; empty between tries."""
    tries: int = 0
    deadline: float = 0.0
    not_before: float = 0.0


class StepBook:
    """All steps by their key, in one scheduler's term."""

    def __init__(self, term: int) -> None:
        self._term = term
        self._steps: dict[str, Step] = {}
        self._keys: dict[str, str] = {}
        """Key of the step of each outstanding command."""
        self._asked: defaultdict[str, set[str]] = defaultdict(set)
        """Keys of the steps for which each node has an outstanding command."""

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, key: str) -> Step:
        return self._steps[key]

    def get(self, key: str) -> Step | None:
        """Return a step, None where there is none."""
        return self._steps.get(key)

    def add(self, key: str, step: Step) -> Step:
        """Note a step, unless it is there already; return the one that is."""
        return self._steps.setdefault(key, step)

    def outstanding(self) -> dict[str, str]:
        """Return the key of the step of each outstanding command."""
        return dict(self._keys)

    def is_asked(self, key: str) -> bool:
        """Say whether a command for the step is outstanding."""
        step = self._steps.get(key)
        return step is not None and bool(step.command_id)

    def key_of(self, command_id: str) -> str | None:
        """Return the key of the step that a command asked for, None when it is not outstanding."""
        return self._keys.get(command_id)

    def ask(self, key: str, now: float) -> Step:
        """Begin a command for the step, instead of an outstanding one; return the step, whose deadline is set."""
        step = self._steps[key]
        self._end(key, step)
        # The first try has the same id in every term, so that a node that did
        # it already says so; a further try is a new question.
        step.command_id = f"{key}.{step.verb}" if step.stray else key
        if step.tries:
            step.command_id += f".{self._term}.{step.tries}"
        step.tries += 1
        step.deadline = now + DEADLINES[step.verb]
        self._keys[step.command_id] = key
        self._asked[step.node].add(key)
        return step

    def end_command(self, key: str) -> Step:
        """The step's command was answered, or its deadline passed."""
        step = self._steps[key]
        self._end(key, step)
        return step

    def _end(self, key: str, step: Step) -> None:
        """End the step's command, if there is one."""
        if step.command_id:
            del self._keys[step.command_id]
            self._asked[step.node].discard(key)
            step.command_id = ""

    def drop(self, key: str) -> None:
        """Forget a step, and its command if there is one."""
        step = self._steps.pop(key, None)
        if step is not None:
            self._end(key, step)

    def drop_idle(self, key: str) -> bool:
        """Forget a step, unless it is under way; say whether it is not."""
        step = self._steps.get(key)
        if step is not None and step.command_id:
            return False
        self._steps.pop(key, None)
        return True

    def lose_session(self, node: str) -> None:
        """A session ended: what it was asked is asked again in the next one; strays are looked for anew."""
        for key in self._asked.pop(node, ()):
            step = self._steps[key]
            del self._keys[step.command_id]
            step.command_id = ""
            step.tries = max(0, step.tries - 1)
            if step.stray:
                del self._steps[key]
