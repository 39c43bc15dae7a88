"""``farbus run``: a program in the caller's terminal, with devices of the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import Annotated

import typer

from farbus.cli.completion import complete_up_node
from farbus.cli.connection import Target, connect, find_target
from farbus.cli.following import closing, resumed, say
from farbus.cli.jobfile import name_from
from farbus.cli.options import (
    CpusOption,
    GpuMemoryOption,
    GpuModelOption,
    GpusOption,
    MemoryOption,
    ProgramCommand,
    RouteOption,
    SocketOption,
    command_app,
    examples,
    read_requests,
)
from farbus.cli.program import find_program
from farbus.cli.tables import format_devices
from farbus.errors import ExitCode, FarbusError
from farbus.linux.foreground import ForegroundProgram, SignalListener
from farbus.model.cluster import HoldEvent, HoldLost, HoldReady, HoldWaiting
from farbus.model.device import Route
from farbus.model.job import Requests
from farbus.model.quantity import parse_seconds
from farbus.model.value import Value

app = command_app()


class Wish(Value, frozen=True, kw_only=True):
    """What is asked for the program."""

    name: str
    requests: Requests
    routes: tuple[Route, ...]
    wait_limit_s: float
    quiet: bool


TELL_EXIT_S = 3.0
"""How long a program's end waits for the agent to hear of its exit code."""

SEARCH_PATHS = frozenset({"LD_LIBRARY_PATH", "LD_PRELOAD", "PATH"})
"""Variables that are lists: what the devices need goes before what the caller has."""


@app.command(
    cls=ProgramCommand,
    epilog=examples(
        "farbus run --gpus 1 -- ./program                    one GPU, wherever there is one",
        "farbus run --gpus 2 --gpu-memory 8GiB -- ./train    two, each with 8 GiB or more",
        "farbus run --gpus 1 -- python train.py              scripts too",
        "",
        "It ends with the program's exit code (128 + n for signal n), or with 125 when devices could not be had, "
        "126 when the program can't be executed, 127 when there is none of that name.",
    ),
)
def run(
    program: Annotated[list[str], typer.Argument(metavar="-- PROGRAM", help="The program and its arguments.")],
    gpus: GpusOption = 1,
    gpu_memory: GpuMemoryOption = "",
    gpu_model: GpuModelOption = "",
    # Nothing confines a program in its user's own terminal, so by default next to nothing is set aside for it.
    cpus: CpusOption = "100m",
    memory: MemoryOption = "64MiB",
    routes: RouteOption = None,
    wait_limit: Annotated[
        str,
        typer.Option("--wait-limit", metavar="TIME", help="Give up when devices take longer.", show_default=False),
    ] = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
    node: Annotated[
        str,
        typer.Option(
            "--node",
            metavar="NAME",
            help="As on this node of your `farbus up`.",
            autocompletion=complete_up_node,
            show_default=False,
        ),
    ] = "",
    socket: SocketOption = "",
) -> int:
    """Run a program here with devices of the cluster.

    The program runs in this terminal as you, unmodified, and finds the devices
    as if they were in this machine.  They are yours until it ends.
    """
    with _errors_of_run():
        path = find_program(program[0])
        wish = Wish(
            name=name_from(program[0]),
            requests=read_requests(gpus=gpus, gpu_memory=gpu_memory, gpu_model=gpu_model, cpus=cpus, memory=memory),
            routes=tuple(routes) if routes else (Route.LOCAL, Route.REMOTE),
            wait_limit_s=parse_seconds(wait_limit, what="--wait-limit") if wait_limit else 0.0,
            quiet=quiet,
        )
        target = find_target(socket=socket, node=node)
        # One thread so far: the place to fork (farbus.linux.foreground says why).
        child = ForegroundProgram.fork(path, program)
        listener = SignalListener()
        try:
            return asyncio.run(_run(target, child, listener, wish))
        finally:
            child.abandon()
            listener.close()


@contextlib.contextmanager
def _errors_of_run() -> Iterator[None]:
    """Let errors of Farbus end with 125, which no program uses for itself, unless they have a code of this kind."""
    try:
        yield
    except FarbusError as error:
        if error.exit_code not in (ExitCode.NOT_EXECUTABLE, ExitCode.COMMAND_NOT_FOUND):
            error.with_exit_code(ExitCode.RUN_FAILED)
        raise


def merge_environment(mine: Mapping[str, str], needed: Mapping[str, str]) -> dict[str, str]:
    """Return the program's environment: the caller's, with what the devices need."""
    merged = {**mine, **needed}
    for variable in SEARCH_PATHS & needed.keys() & mine.keys():
        if mine[variable]:
            merged[variable] = f"{needed[variable]}:{mine[variable]}"
    return merged


async def _run(target: Target, child: ForegroundProgram, listener: SignalListener, wish: Wish) -> int:
    signals = asyncio.create_task(_pass_signals(child, listener), name="signals")
    session = asyncio.create_task(_hold_and_run(target, child, wish), name="program")
    try:
        await asyncio.wait({signals, session}, return_when=asyncio.FIRST_COMPLETED)
        if session.done():
            return session.result()
        # A signal came while the devices were awaited: closing the stream gives back what was asked for.
        session.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await session
        return 128 + signals.result()
    finally:
        signals.cancel()


async def _pass_signals(child: ForegroundProgram, listener: SignalListener) -> int:
    """Pass signals on to the program; return the number of the first that comes before the program runs."""
    while True:
        number, whole_group = await listener.next()
        if not child.started:
            return number
        if not whole_group:
            child.signal(number)


async def _hold_and_run(target: Target, child: ForegroundProgram, wish: Wish) -> int:
    """Hold the devices for as long as the program runs; return its exit code as a shell would."""
    async with closing(_hold(target, wish)) as events:
        ready = await _wait_for_devices(events, quiet=wish.quiet)
        devices = [device for placement in ready.status.placements for device in placement.devices]
        if devices:
            say(format_devices(devices), quiet=wish.quiet)
        child.start(merge_environment(os.environ, ready.environment))
        job_id = ready.status.job.id
        ended = asyncio.Event()
        watch = asyncio.create_task(_tell_of_loss(events, ended), name="devices")
        try:
            code = await child.wait()
            ended.set()
            # Before the stream is closed, which alone would tell no exit code.
            await _tell_exit_code(target, job_id, code)
        finally:
            watch.cancel()
            await asyncio.wait({watch})
        return 128 - code if code < 0 else code


async def _hold(target: Target, wish: Wish) -> AsyncGenerator[HoldEvent, None]:
    """Hold devices; again after the agent was restarted.

    The program goes on all the while: it is served by processes that outlive
    an agent.
    """
    job_id = ""
    async with closing(resumed(lambda: _hold_once(target, wish, job_id))) as events:
        async for event in events:
            if not isinstance(event, HoldLost):
                job_id = event.status.job.id
            yield event


async def _hold_once(target: Target, wish: Wish, job_id: str) -> AsyncGenerator[HoldEvent, None]:
    """Hold devices over a connection of their own; those of ``job_id`` again, if it is given."""
    async with (
        connect(target) as client,
        closing(
            client.hold(
                name=wish.name, requests=wish.requests, routes=wish.routes,
                wait_limit_s=wish.wait_limit_s, job_id=job_id,
            )
        ) as events,
    ):  # fmt: skip
        async for event in events:
            yield event


async def _tell_exit_code(target: Target, job_id: str, code: int) -> None:
    """Tell what the program ended with; one whose agent can't be told now has ended all the same."""
    with contextlib.suppress(FarbusError, TimeoutError):
        async with asyncio.timeout(TELL_EXIT_S), connect(target) as client:
            await client.cancel_job(job_id, released=True, exit_code=code)


async def _wait_for_devices(events: AsyncIterator[HoldEvent], *, quiet: bool) -> HoldReady:
    told = ""
    async for event in events:
        match event:
            case HoldWaiting(status=status):
                line = "; ".join(miss.message for miss in status.misses) or status.reason
                if line and line != told:
                    say(f"waiting: {line}", quiet=quiet)
                    told = line
            case HoldReady():
                return event
            case HoldLost(reason=reason):
                raise FarbusError(f"the devices were lost before the program started: {reason}", hint="try again")
    raise FarbusError("the agent ended the request without devices and without a reason", hint="see its log")


async def _tell_of_loss(events: AsyncIterator[HoldEvent], ended: asyncio.Event) -> None:
    """Tell when devices go before the program has ``ended``; it meets CUDA's errors for it by itself."""
    try:
        async for event in events:
            if ended.is_set():
                return
            if isinstance(event, HoldLost):
                say(f"the devices were lost: {event.reason}; the program's next use of them fails")
                return
        say("the agent ended the lease; the program's next use of the devices fails")
    except FarbusError as error:
        say(f"the devices were lost: {error}")
