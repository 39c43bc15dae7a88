"""The tasks of the node's machine: pure, as all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from farbus.agent.actions import Answer, ForgetTask, RecordExit, ReportTask, StartTask, StopTask
from farbus.agent.events import ActionDone, RestoredTask, StartRequested, StopRequested, TaskExited, TaskLaunched
from farbus.agent.objects import MAX_OBJECTS, Actions, ClientSide, Desk, Key, RunState, SideState, Task
from farbus.model.job import STOPPED, TaskState, TaskStatus

KILLED = -9
"""The exit code of a program whose end nobody has seen: as if SIGKILL had ended it."""


class Tasks:
    """All tasks.  ``after_exit`` goes on with what waited for a task's end."""

    def __init__(self, *, node: str, desk: Desk) -> None:
        self._node = node
        self._desk = desk
        self._tasks: dict[Key, Task] = {}
        self.after_exit: Callable[[Key], Actions] = lambda _: iter(())

    # Questions.

    def all(self) -> Iterable[Task]:
        """Return every task that the scheduler has not let go."""
        return self._tasks.values()

    def alive(self, key: Key) -> Task | None:
        """Return the task if its program may exist."""
        task = self._tasks.get(key)
        return task if task is not None and task.is_alive else None

    def status_of(self, task: Task) -> TaskStatus:
        """Return where a task is, as others see it."""
        if task.status is not None:
            return task.status
        waits = task.state is RunState.STARTING or task.arriving
        state = TaskState.PENDING if waits else TaskState.RUNNING
        return TaskStatus(task=task.task, state=state, node=self._node)

    def validate(self) -> None:
        """Assert what must hold between events."""
        for task in self._tasks.values():
            assert (task.status is not None) == (not task.is_alive), f"{task.name}: status"
            assert not (task.stoppers and not task.is_alive), f"{task.name}: unanswered"
            assert (task.serial in self._desk) or not task.starters, f"{task.name}: unanswered"

    # Restart.

    def restore(self, restored: RestoredTask) -> Actions:
        """Take over a task of an earlier agent, or tell that it is lost."""
        run = restored.run
        task = Task(name=f"task {run.job}/{run.task}", job=run.job, task=run.task, run=run, state=RunState.RUNNING)
        task.note("restored")
        self._tasks[task.key] = task
        if restored.lost:
            yield from self._exited(task, KILLED, restored.lost, unstarted=restored.unstarted)

    def restore_ended(self, job: str, status: TaskStatus) -> None:
        """Take over the status of a task that ended before."""
        self._tasks[job, status.task] = Task(
            name=f"task {job}/{status.task}", job=job, task=status.task, run=None, state=RunState.EXITED, status=status
        )

    # Start.

    def start_requested(self, event: StartRequested, client: ClientSide | None) -> Actions:
        """Start a task in what ``client``, its side of its leases, prepared."""
        run = event.run
        task = self._tasks.get((run.job, run.task))
        if task is not None:
            if task.state is RunState.STARTING:
                task.starters.append(event.command)
            elif task.state is RunState.WEDGED and task.serial not in self._desk:
                error = task.told("its start did not end in time")
                yield Answer(command=event.command, ok=False, error=error)
            else:
                # Started before, by the same command in an earlier session: tell again.
                yield Answer(command=event.command, ok=True)
                yield ReportTask(job=task.job, status=self.status_of(task))
            return
        if client is not None and (client.state is not SideState.PREPARED or not client.wanted):
            error = client.told(f"{client.name} is {client.state}, not prepared")
            yield Answer(command=event.command, ok=False, error=error)
            return
        if len(self._tasks) >= MAX_OBJECTS:
            yield Answer(command=event.command, ok=False, error=f"node {self._node} has {MAX_OBJECTS} tasks")
            return
        task = Task(name=f"task {run.job}/{run.task}", job=run.job, task=run.task, run=run, arriving=run.is_staged)
        task.note(task.state)
        task.starters.append(event.command)
        self._tasks[task.key] = task
        started = task
        task.serial = self._desk.ask(lambda done: self._started(started, done))
        yield StartTask(serial=task.serial, run=run, environment=dict(client.environment) if client else {})

    def _started(self, task: Task, event: ActionDone) -> Actions:
        if not task.is_alive:
            yield from _answer(task.starters, ok=True)
        elif event.ok:
            task.go(RunState.RUNNING)
            yield from _answer(task.starters, ok=True)
            yield ReportTask(job=task.job, status=self.status_of(task))
            if task.stop_grace_s is not None:
                yield from self._send_stop(task)
        elif event.wedged:
            # It may start yet: it stays until it is stopped.
            task.go(RunState.WEDGED)
            yield from _answer(task.starters, ok=False, error=task.told(event.error))
            if task.stop_grace_s is not None:
                yield from self._send_stop(task)
        elif event.blame_job:
            # Another node would do no better: the task has ended, as a shell would end it.
            yield from _answer(task.starters, ok=True)
            yield from self._exited(task, event.exit_code, event.error)
        else:
            del self._tasks[task.key]
            yield from _answer(task.starters, ok=False, error=task.told(event.error))
            yield from _answer(task.stoppers, ok=True)
            yield from self.after_exit(task.key)

    # Stop.

    def stop_requested(self, event: StopRequested) -> Actions:
        """End a task's program."""
        task = self.alive((event.job, event.task))
        if task is None:
            yield Answer(command=event.command, ok=True)
            return
        task.stoppers.append(event.command)
        yield from self.stop(task, grace_s=event.grace_s, reason="")

    def stop(self, task: Task, *, grace_s: float, reason: str) -> Actions:
        """Ask for a task's end, unless it is to end as soon already."""
        if task.stop_grace_s is not None and task.stop_grace_s <= grace_s:
            return
        task.stop_grace_s = grace_s
        task.stop_reason = task.stop_reason or reason
        if task.state is not RunState.STARTING:
            yield from self._send_stop(task)

    def _send_stop(self, task: Task) -> Actions:
        assert task.stop_grace_s is not None
        if task.state is not RunState.STOPPING:
            task.go(RunState.STOPPING)
        task.serial = self._desk.ask(lambda done: self._stop_done(task, done))
        yield StopTask(
            serial=task.serial, job=task.job, task=task.task, grace_s=task.stop_grace_s, reason=task.stop_reason
        )

    def _stop_done(self, task: Task, event: ActionDone) -> Actions:
        if not task.is_alive:
            return
        if event.ok:
            # A program's exit is an event of its own, and comes first: this one never got as far as running.
            yield from self._exited(task, KILLED, task.stop_reason or "it was stopped before it had started")
        elif event.serial == task.serial:
            # The next stop tries again, and whoever waits is told.
            task.stop_grace_s = None
            task.go(RunState.WEDGED)
            task.note(event.error)
            yield from _answer(task.stoppers, ok=False, error=task.told(event.error))

    def wedge_ended(self, name: str) -> Actions:
        """Try again to stop a task whose overdue work has ended: whoever asked for it has been told that it failed."""
        for task in list(self._tasks.values()):
            if task.name == name and task.state is RunState.WEDGED:
                yield from self.stop(task, grace_s=0.0, reason="it could not be started or stopped in time")

    # Files, and exit.

    def launched(self, event: TaskLaunched) -> Actions:
        """Note that a task's files have arrived."""
        task = self.alive((event.job, event.task))
        if task is not None and task.arriving:
            task.arriving = False
            if task.state is not RunState.STARTING:
                yield ReportTask(job=task.job, status=self.status_of(task))

    def exited(self, event: TaskExited) -> Actions:
        """Note the end of a program."""
        task = self.alive((event.job, event.task))
        if task is not None:
            # Whatever it makes of the signal: a program that ends when it is told to has not ended by itself.
            stopped = STOPPED if task.stop_grace_s is not None else ""
            yield from self._exited(task, event.exit_code, event.reason or stopped, unstarted=event.unstarted)

    def _exited(self, task: Task, exit_code: int, reason: str, *, unstarted: bool = False) -> Actions:
        task.go(RunState.EXITED)
        task.status = TaskStatus(
            task=task.task,
            state=TaskState.EXITED,
            node=self._node,
            exit_code=exit_code,
            reason=reason,
            unstarted=unstarted,
        )
        yield RecordExit(job=task.job, status=task.status)
        yield ReportTask(job=task.job, status=task.status)
        yield from _answer(task.stoppers, ok=True)
        yield from self.after_exit(task.key)

    def released(self, command: str, key: Key) -> Actions:
        """Let go of a task that has no client side: it ends first, if it still runs."""
        task = self._tasks.get(key)
        if task is None:
            yield Answer(command=command, ok=True)
            return
        task.released = True
        if task.is_alive:
            task.stoppers.append(command)
            yield from self.stop(task, grace_s=0.0, reason="the scheduler has released it")
        else:
            yield from self.forget(key)
            yield Answer(command=command, ok=True)

    def release(self, key: Key) -> None:
        """Have a task forgotten once nothing of it is left."""
        if (task := self._tasks.get(key)) is not None:
            task.released = True

    def forget(self, key: Key) -> Actions:
        """Forget a task that has ended and is released; its client side is gone."""
        task = self._tasks.get(key)
        if task is not None and task.released and not task.is_alive:
            del self._tasks[key]
            yield ForgetTask(job=task.job, task=task.task)


def _answer(commands: list[str], *, ok: bool, error: str = "") -> Actions:
    waiting, commands[:] = list(commands), []
    for command in waiting:
        yield Answer(command=command, ok=ok, error=error)
