"""Moves of devices, as ``farbus attach`` and ``farbus detach`` ask for them and watch them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from farbus.cli.connection import Target, ask, find_target
from farbus.cli.following import closing, say, told_or_listed
from farbus.cli.listing import print_json, printable
from farbus.cli.options import Output
from farbus.cli.tables import format_age
from farbus.errors import Conflict, FarbusError, InvalidInput, Unavailable
from farbus.model.move import MoveRequest, MoveState, MoveStatus

if TYPE_CHECKING:
    from farbus.api.client import ClusterClient

PROGRESS_S = 5.0
"""Between two lines that say that the same step still lasts."""

EvictOption = Annotated[
    bool, typer.Option("--evict", help="End programs and sessions that hold it; never mounts, arrays and exports.")
]
DrainOption = Annotated[
    float,
    typer.Option(
        "--drain",
        metavar="SECONDS",
        min=0,
        show_default=False,
        help="How long holders have.  [default, also for 0: 30]",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and who is in the way.")]
LocalOption = Annotated[
    bool, typer.Option("--local", help="This machine's agent alone, without the scheduler; no device with a lease.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]


def target_of_moves(*, local: bool, socket: str, server: str, credentials: str) -> Target:
    """Find whom to ask; raise :class:`InvalidInput` where that is the scheduler, and an agent alone is to do it."""
    target = find_target(socket=socket, server=server, credentials=credentials)
    if local and target.server:
        raise InvalidInput(
            "--local asks an agent, and --server names the scheduler",
            hint="leave out one of them, also where FARBUS_SERVER is set",
        )
    return target


def move_all(
    requests: Sequence[MoveRequest],
    output: Output,
    *,
    local: bool,
    quiet: bool,
    socket: str,
    server: str,
    credentials: str,
) -> None:
    """Have devices moved side by side, tell how far they are, and print what has become of each.

    Raises the error of the first that was not moved.
    """
    target = target_of_moves(local=local, socket=socket, server=server, credentials=credentials)
    watches = [Watch(request, local=local, quiet=quiet) for request in requests]

    async def question(client: ClusterClient) -> list[MoveStatus | FarbusError]:
        return list(await asyncio.gather(*(watch.run(client) for watch in watches)))

    try:
        results = ask(target, question)
    except KeyboardInterrupt:
        for watch in watches:
            watch.leave()
        raise
    _show(results, output)


class Watch:
    """One move: who asks for it, and what is known of it."""

    def __init__(self, request: MoveRequest, *, local: bool, quiet: bool) -> None:
        self._request = request
        self._local = local
        self._quiet = quiet
        self._asked = time.monotonic()
        self._status: MoveStatus | None = None
        self._heard = 0.0
        self._told = ""

    async def run(self, client: ClusterClient) -> MoveStatus | FarbusError:
        """Move the device; return its last status, or why there is none."""
        progress = asyncio.create_task(self._repeat(), name="progress")
        try:
            async with closing(self._statuses(client)) as statuses:
                async for status in statuses:
                    self._status, self._heard = status, time.monotonic()
                    self._tell()
        except FarbusError as error:
            return error
        finally:
            progress.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await progress
        if self._status is None or not self._status.state.has_ended:
            return Unavailable(
                f"device {self._request.device}: nobody tells any more what becomes of it", hint="farbus moves shows it"
            )
        return self._status

    def _statuses(self, client: ClusterClient) -> AsyncIterator[MoveStatus]:
        """Yield the move; where whom it was asked of goes away meanwhile, look for it in the listing."""

        async def look(begun: MoveStatus) -> tuple[MoveStatus | None, bool]:
            moves = await client.list_moves(include_ended=True)
            found = next((move for move in moves if move.id == begun.id), None)
            return found, found is None or found.state.has_ended

        asked = client.move_device(self._request, local=self._local)
        # Of these no listing knows.
        return asked if self._local or self._request.dry_run else told_or_listed(lambda: asked, look)

    def leave(self) -> None:
        """Say that what was begun goes on."""
        status = self._status
        if status is None or status.state.has_ended or self._request.dry_run:
            return
        look = "" if self._local else f"; farbus moves {status.id} shows how far it is, with --cancel it is called off"
        say(f"the move of {status.device} goes on{look}")

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            self._tell(again=True)

    def _tell(self, *, again: bool = False) -> None:
        status = self._status
        if self._quiet or (status is not None and status.state.has_ended):
            return
        if status is None or self._request.dry_run:
            # Nothing is being done yet, and a chassis that does not answer takes half a minute.
            if again:
                says = status.says if status is not None and status.says else "asking what there is to do"
                say(f"{self._request.device}: {says}; {format_age(time.monotonic() - self._asked)} so far")
            return
        step = f" (step {status.step + 1} of {status.steps})" if status.steps else ""
        line = f"{status.device}: {status.state}: {status.says or 'begins'}{step}"
        if line == self._told and not again:
            return
        self._told = line
        usual = f", usually {format_age(status.expected_s)}" if status.expected_s else ""
        say(f"{line}; {format_age(status.took_s + time.monotonic() - self._heard)} so far{usual}")


def _show(results: Sequence[MoveStatus | FarbusError], output: Output) -> None:
    """Print what has become of each, and raise what stopped the first that was not moved."""
    statuses = [result for result in results if isinstance(result, MoveStatus)]
    if output is Output.JSON:
        print_json(statuses)
    else:
        for status in statuses:
            if status.plan or status.in_the_way:
                typer.echo("\n".join(describe_plan(status)))
            elif status.state is MoveState.DONE:
                typer.echo(describe_end(status))
        if len(statuses) > 1 and any(status.plan for status in statuses):
            typer.echo(describe_times(statuses))
    errors = [error for result in results if (error := error_of(result)) is not None]
    for error in errors[1:]:
        say(str(error))
    if errors:
        raise errors[0]


def error_of(result: MoveStatus | FarbusError) -> FarbusError | None:
    """Return why a device was not moved; None where it was."""
    if isinstance(result, FarbusError):
        return result
    told = f"device {result.device} was not moved: {result.error or 'no reason was given'}"
    match result.state:
        case MoveState.FAILED:
            return Conflict(told, hint=result.hint)
        case MoveState.UNDONE:
            where = f"on node {result.from_node} again" if result.from_node else "free again"
            return FarbusError(f"{told}; it is {where}", hint=result.hint)
        case MoveState.STUCK:
            return FarbusError(f"device {result.device} is stuck: {result.error}", hint=result.hint)
        case _:
            return None


def describe_end(status: MoveStatus) -> str:
    """Say where a device is that was moved."""
    took = f" after {format_age(status.took_s)}"
    if status.to_node:
        path = f" as {status.path}" if status.path else ""
        return printable(f"device {status.device} is on node {status.to_node}{path}{took}")
    where = f"free in chassis {status.chassis}" if status.chassis else f"gone from node {status.from_node}"
    return printable(f"device {status.device} is {where}{took}")


def describe_plan(status: MoveStatus) -> list[str]:
    """Say in lines what a move would do, and who is in the way."""
    source = f" from node {status.from_node}" if status.from_node else ""
    to = f" to node {status.to_node}" if status.to_node else ""
    through = f" through chassis {status.chassis}" if status.chassis else ""
    lasts = f", about {format_age(status.expected_s)}" if status.expected_s else ""
    lines = [f"device {status.device}{source}{to}{through}{lasts}:"]
    lines += [f"  {line}" for line in status.plan]
    lines += [f"  in the way now: {line}" for line in status.in_the_way]
    return [printable(line) for line in lines]


def describe_times(statuses: Sequence[MoveStatus]) -> str:
    """Say how long several moves would take: chassis that do one thing at a time do them one after the other."""
    if not all(status.expected_s for status in statuses):
        return "all of them: how long it takes nobody has measured yet"
    longest = max(status.expected_s for status in statuses)
    by_chassis: dict[str, float] = {}
    for status in statuses:
        by_chassis[status.chassis] = by_chassis.get(status.chassis, 0.0) + status.expected_s
    in_turn = max(by_chassis.values())
    if in_turn == longest:
        return f"all of them: about {format_age(longest)}"
    return f"all of them: about {format_age(longest)}; {format_age(in_turn)} where a chassis does one thing at a time"
