"""The tasks of a job's attempt, and how many of them are where.  Pure.

What happens to one task costs the same however many its job has: the counts
on which the job's next step depends are kept (:class:`Trait`), not counted
anew, and a task of which a field is set notes itself, for the ledger, which
writes what has changed, and for who looks what it needs next.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from farbus.model.device import Route
from farbus.model.job import Requests, TaskPlacement, TaskState, TaskStatus, room_of
from farbus.model.node import Resources


class ClientSide(enum.StrEnum):
    """How far the task's node has prepared to use the leases."""

    NONE = "none"
    PREPARING = "preparing"
    PREPARED = "prepared"


class Program(enum.StrEnum):
    """How far the task's program is."""

    NONE = "none"
    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


class TaskRun(msgspec.Struct, kw_only=True, dict=True):
    """One task of one attempt, as the ledger has it; in :class:`Runs` it notes there that a field of it was set."""

    placement: TaskPlacement
    group: int
    requests: Requests
    leases: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()
    """Moves that bring devices to its node and have not ended; their lease is granted when all have."""
    late: bool = False
    """It was placed while its job ran already: until its program has begun the job can do without it."""
    dropped: str = ""
    """Why it is taken back, while its job goes on; empty where it is not."""
    cleared: bool = False
    """It had ended well when it was taken back, and nothing of it is left at its nodes."""
    occupies: bool = True
    """Whether what it takes counts against its nodes."""
    client: ClientSide = ClientSide.NONE
    program: Program = Program.NONE
    arriving: bool = False
    """Its node runs it, but its program waits for its files, or never began."""
    exit_code: int = 0
    exit_unknown: bool = False
    """Nobody knows how its program ended: ``exit_code`` says nothing."""
    reason: str = ""
    path: str = ""
    """Of an attachment, where its node has put the volume."""

    @property
    def task(self) -> str:
        """``GROUP.INDEX``."""
        return self.placement.task

    @property
    def node(self) -> str:
        """The node that runs the task."""
        return self.placement.node

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that take part in it: its own, and those that lend it devices."""
        if self.cleared:
            return ()
        lenders = (place.node for place in self.placement.devices if place.route is not Route.RECOMPOSED)
        return (self.node, *lenders)

    @property
    def moved_devices(self) -> tuple[str, ...]:
        """The devices that are moved to its node for it."""
        return tuple(place.device for place in self.placement.devices if place.route is Route.RECOMPOSED)

    @property
    def room(self) -> dict[str, Resources]:
        """What it takes of each of its nodes."""
        return room_of(self.requests, self.placement)

    @property
    def is_alive(self) -> bool:
        """Whether a process of the task may exist."""
        return self.program in (Program.STARTING, Program.RUNNING)

    @property
    def is_spare(self) -> bool:
        """Whether its job runs without it: no program of it has begun."""
        begins = self.arriving or self.program in (Program.NONE, Program.STARTING)
        return self.late and not self.succeeded and (begins or bool(self.dropped))

    @property
    def succeeded(self) -> bool:
        """Whether its program ended well by itself: one that was ended for a reason did not, whatever its exit code."""
        return self.program is Program.EXITED and self.exit_code == 0 and not self.reason and not self.exit_unknown

    @property
    def is_unfinished(self) -> bool:
        """Whether its job can't do without it, and it has not ended well."""
        return not (self.is_spare or self.succeeded)

    def lose(self, reason: str) -> None:
        """Note that its program is gone, and nobody knows how it ended."""
        self.program, self.exit_unknown, self.reason = Program.EXITED, True, reason

    def status(self) -> TaskStatus:
        """Return the task as people see it."""
        state = {
            Program.NONE: TaskState.PENDING,
            Program.STARTING: TaskState.PENDING,
            Program.RUNNING: TaskState.RUNNING,
            Program.EXITED: TaskState.EXITED,
        }[self.program]
        return TaskStatus(
            task=self.task,
            state=state,
            node=self.node,
            exit_code=self.exit_code,
            reason=self.reason,
            exit_unknown=self.exit_unknown,
        )

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        # Beside the fields: it is not written down.
        attempt: Runs | None = self.__dict__.get(_ATTEMPT)
        if attempt is not None:
            attempt.note(self.task)


_ATTEMPT = "attempt"


class Trait(enum.IntEnum):
    """What can be true of a task that its job's next step depends on."""

    UNPREPARED = 0
    """Its node has not prepared to use its leases."""
    UNSTARTED = 1
    """Nobody has asked for its program."""
    STARTING = 2
    """Its start was asked for and not answered, and it is not taken back: its program may have begun."""
    BEGUN = 3
    """Its program has begun."""
    AWAITED = 4
    """Its program waits for files, and its job can't do without it."""
    UNFINISHED = 5
    """It has not ended well, and its job can't do without it."""


def _traits_of(run: TaskRun) -> tuple[bool, ...]:
    """Return which are true of a task, in their order."""
    spare = run.is_spare
    return (
        run.client is not ClientSide.PREPARED,
        run.program is Program.NONE,
        run.program is Program.STARTING and not run.dropped,
        run.program in (Program.RUNNING, Program.EXITED) and not run.arriving,
        run.arriving and not spare,
        run.is_unfinished,
    )


_NOTHING = (False,) * len(Trait)


class Runs:
    """The tasks of a job's present attempt, in the order in which they were placed; none while the job waits."""

    # There is one for each job that waits, too.
    __slots__ = (
        "_changed",
        "_counts",
        "_due",
        "_first",
        "_job",
        "_of_group",
        "_of_node",
        "_recount",
        "_runs",
        "_traits",
        "_unwritten",
    )

    def __init__(self, runs: Iterable[TaskRun] = (), *, job: str = "", changed: dict[str, None] | None = None) -> None:
        """Take over ``runs`` as they are written down; into ``changed`` the job is put whenever one has changed."""
        self._job = job
        self._changed = changed if changed is not None else {}
        self._runs: dict[str, TaskRun] = {}
        self._of_node: dict[str, dict[str, None]] = {}
        self._of_group: dict[int, int] = {}
        self._first: TaskRun | None = None
        self._traits: dict[str, tuple[bool, ...]] = {}
        """Those that are counted."""
        self._counts: tuple[int, ...] = _NOTHING
        self._recount: dict[str, None] = {}
        """Tasks that have changed since they were counted."""
        self._unwritten: dict[str, None] = {}
        self._due: dict[str, None] = {}
        for run in runs:
            self._take(run)
        self.look_at_all()

    def __iter__(self) -> Iterator[TaskRun]:
        return iter(self._runs.values())

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, task: str) -> TaskRun | None:
        """Return the run of ``task``."""
        return self._runs.get(task)

    def at(self, node: str) -> list[TaskRun]:
        """Return those in which a node takes part: that run there, and that it lends devices to."""
        return [self._runs[task] for task in self._of_node.get(node, ())]

    @property
    def nodes(self) -> Iterable[str]:
        """The nodes that take part in any of them."""
        return self._of_node

    def of_group(self, number: int) -> int:
        """Return how many there are of a group of the job."""
        return self._of_group.get(number, 0)

    @property
    def first(self) -> TaskRun | None:
        """The first task of the first group that has any, whenever it was placed; None where there is none."""
        if self._first is None:
            self._first = min(self, key=order_of, default=None)
        return self._first

    def count(self, trait: Trait) -> int:
        """Return for how many of them something is true."""
        while self._recount:
            task, _ = self._recount.popitem()
            run = self._runs.get(task)
            before = self._traits.pop(task, _NOTHING)
            now = _NOTHING
            if run is not None:
                now = self._traits[task] = _traits_of(run)
            if now != before:
                self._counts = tuple(
                    count + holds - held for count, holds, held in zip(self._counts, now, before, strict=True)
                )
        return self._counts[trait]

    # --- changes -------------------------------------------------------------------------

    def add(self, run: TaskRun) -> None:
        """Add a task that was placed."""
        assert run.task not in self._runs, f"task {run.task} has a run"
        self._take(run)
        if self._first is not None and order_of(run) < order_of(self._first):
            self._first = run
        self.note(run.task)

    def _take(self, run: TaskRun) -> None:
        task = run.task
        self._runs[task] = run
        for node in run.nodes:
            self._of_node.setdefault(node, {})[task] = None
        self._of_group[run.group] = self._of_group.get(run.group, 0) + 1
        self._recount[task] = None
        run.__dict__[_ATTEMPT] = self

    def remove(self, run: TaskRun) -> None:
        """Forget a task."""
        del self._runs[run.task]
        self._leave_nodes(run)
        self._of_group[run.group] -= 1
        if run is self._first:
            self._first = None
        del run.__dict__[_ATTEMPT]
        self.note(run.task)

    def _leave_nodes(self, run: TaskRun) -> None:
        for node in set(run.nodes):
            del self._of_node[node][run.task]
            if not self._of_node[node]:
                del self._of_node[node]

    def leave_nodes(self, run: TaskRun) -> None:
        """Have no node take part in a task any more that has ended well."""
        assert run.succeeded, f"task {run.task} has not ended well"
        self._leave_nodes(run)
        run.cleared = True

    def clear(self) -> None:
        """Forget all of them."""
        for run in list(self):
            self.remove(run)

    def note(self, task: str) -> None:
        """Note that something of a task has changed."""
        self._recount[task] = self._due[task] = None
        self._unwritten[task] = self._changed[self._job] = None

    def take_unwritten(self) -> tuple[tuple[str, TaskRun | None], ...]:
        """Return what has changed since it was written down, None for a task that is no more."""
        found = tuple((task, self._runs.get(task)) for task in self._unwritten)
        self._unwritten.clear()
        return found

    # --- what they need next -------------------------------------------------------------

    def look(self, task: str) -> None:
        """Have a task looked at when its job is next, as something that it waits for may have come."""
        self._due[task] = None

    def look_at(self, node: str) -> None:
        """Have those looked at in which a node takes part."""
        self._due.update(self._of_node.get(node, {}))

    def look_at_all(self) -> None:
        """Have all of them looked at, as their job is at another step."""
        self._due.update(dict.fromkeys(self._runs))

    def take_due(self) -> list[TaskRun]:
        """Return those that are to be looked at."""
        due, self._due = self._due, {}
        return [self._runs[task] for task in due if task in self._runs]

    def check(self) -> None:
        """Raise AssertionError where the counts are wrong; for tests."""
        counted = [sum(held) for held in zip(*map(_traits_of, self), strict=True)] or [0] * len(Trait)
        assert [self.count(trait) for trait in Trait] == counted, f"counts of {list(Trait)}"
        groups = Counter(run.group for run in self)
        assert all(count == groups[number] for number, count in self._of_group.items()), "tasks of each group"
        nodes = {node for run in self for node in run.nodes}
        assert self._of_node.keys() == nodes, "nodes that take part"
        for node in nodes:
            assert self.at(node) == [run for run in self if node in run.nodes], f"tasks of node {node}"
        assert self.first is min(self, key=order_of, default=None), "the first task"


def order_of(run: TaskRun) -> tuple[int, int]:
    """Return where a task stands in its job: group and index."""
    return run.group, int(run.task.rpartition(".")[2])
