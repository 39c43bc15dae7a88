"""``farbus run``: a program in the caller's terminal, with devices of the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from farbus.cli.completion import complete_up_node
from farbus.cli.connection import Target, connect, find_target
from farbus.cli.faults import as_farbus_error
from farbus.cli.following import AGAIN_S, closing, resumed, say
from farbus.cli.jobfile import convert_requests, name_from
from farbus.cli.options import (
    ApplicationOption,
    CpusOption,
    DeadlineOption,
    GpuMemoryOption,
    GpuModelOption,
    GpuShareOption,
    GpusOption,
    GpuSpanOption,
    ImportanceOption,
    MemoryOption,
    NetworkOption,
    ProgramCommand,
    RemoteNetworkOption,
    RouteOption,
    SloOption,
    SocketOption,
    command_app,
    examples,
    read_goal,
    resource_table,
)
from farbus.cli.program import check_environment, find_program, merge_environment
from farbus.cli.tables import format_devices
from farbus.cli.tracing import VARIABLE, begin_trace, check_trace, is_empty
from farbus.errors import ExitCode, FarbusError, Unavailable
from farbus.linux.foreground import ForegroundProgram, SignalListener
from farbus.model.cluster import HoldEvent, HoldLost, HoldReady, HoldWaiting
from farbus.model.device import Route
from farbus.model.job import Goal, Requests
from farbus.model.quantity import parse_seconds
from farbus.model.value import Value
from farbus.remoting.launcher import settings_unheard

app = command_app()

TRANSPORT = "FARBUS_TRANSPORT"


class Transport(StrEnum):
    """What may carry a program's calls to its devices (docs/wire.md)."""

    AUTO = "auto"
    SHM = "shm"
    UNIX = "unix"
    TCP = "tcp"
    RDMA = "rdma"


class Wish(Value, frozen=True, kw_only=True):
    """What is asked for the program."""

    name: str
    requests: Requests
    routes: tuple[Route, ...]
    wait_limit_s: float
    quiet: bool
    transport: Transport
    goal: Goal
    application: str
    path: str
    """Where the program is."""
    trace: str
    """Where its CUDA calls are written down; empty: as its environment says."""


class RunCommand(ProgramCommand):
    """A wrong command line, too, ends with the code that tells this command's failures from its program's."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the command line."""
        try:
            return super().make_context(*arguments, **options)
        except Exception as error:
            # Typer brings its own copy of click or uses the installed one, by version: a usage error has these.
            if hasattr(error, "format_message") and hasattr(error, "exit_code"):
                error.exit_code = int(ExitCode.RUN_FAILED)
            raise


QUIET_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)
"""Ends that somebody wished for.  Of other signals a line tells: a shell sees this command exit, and says nothing."""

TELL_ONCE_S = 3.0
"""How long a program's end waits for the agent's answer to its exit code."""

TELL_EXIT_S = 15.0
"""How long a program's end waits for an agent that is being restarted: as long as that keeps the devices for it."""


@app.command(
    cls=RunCommand,
    epilog=examples(
        "farbus run --gpus 1 -- ./program                    one GPU, wherever there is one",
        "farbus run --gpus 2 --gpu-memory 8GiB -- ./train    two, each with 8 GiB or more",
        "farbus run --gpu-share 1/4 -- ./infer               a quarter of one, where GPUs are offered in shares",
        "farbus run --gpus 1 -- python train.py              scripts too",
        "farbus run --gpus 1 --trace calls -- ./program      then farbus trace calls",
        "farbus run --transport tcp -- ./program             as if the GPU were in another machine",
        "",
        "It ends with the program's exit code (128 + n for signal n), or with 125 when it fails itself, as where the "
        "command line is wrong or devices could not be had, 126 when the program can't be executed, 127 when there is "
        "none of that name.",
        "--transport auto takes shared memory (shm) where the GPU is in this machine, else TCP, which is encrypted "
        "between nodes unless their agents have remoting_tls off: farbus top shows it as tls. Where the agents of both "
        "have remoting_rdma on, it takes RDMA before TCP, and rdma insists on that.",
        "Variables that it hands on to the program, in jobs set in [env]: FARBUS_TRANSPORT and FARBUS_TRACE, what "
        "--transport and --trace stand for (but a trace that FARBUS_TRACE names is added to); FARBUS_CONNECTIONS, TCP "
        "connections of a session, 1 to 8; FARBUS_GRACE_S, seconds for which a session outlives a cut; "
        "FARBUS_MANAGED_MEMORY, paging or copies; FARBUS_MAPPED_MEMORY=managed, for kernels that use pinned memory "
        "by its address on GPUs of other machines (docs/cli.md).",
    ),
)
def run(
    program: Annotated[list[str], typer.Argument(metavar="-- PROGRAM", help="The program and its arguments.")],
    gpus: GpusOption = 1,
    gpu_memory: GpuMemoryOption = "",
    gpu_model: GpuModelOption = "",
    gpu_share: GpuShareOption = "",
    gpu_span: GpuSpanOption = False,
    # Nothing confines a program in its user's own terminal, so by default next to nothing is set aside for it.
    cpus: CpusOption = "100m",
    memory: MemoryOption = "64MiB",
    network: NetworkOption = "",
    remote_network: RemoteNetworkOption = "",
    routes: RouteOption = None,
    wait_limit: Annotated[
        str,
        typer.Option("--wait-limit", metavar="TIME", help="Give up when devices take longer.", show_default=False),
    ] = "",
    slo: SloOption = "",
    importance: ImportanceOption = None,
    deadline: DeadlineOption = "",
    application: ApplicationOption = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
    transport: Annotated[
        Transport,
        typer.Option("--transport", help="What carries calls to GPUs by remoting; shm and unix within one machine."),
    ] = Transport.AUTO,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write down its CUDA calls to GPUs by remoting, and begin FILE anew; farbus trace sums them up.",
            show_default=False,
        ),
    ] = None,
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
        if gpus:
            check_environment(os.environ if transport is Transport.AUTO else {**os.environ, TRANSPORT: transport.value})
        resources = resource_table(
            gpus=gpus,
            gpu_memory=gpu_memory,
            gpu_model=gpu_model,
            gpu_share=gpu_share,
            gpu_span=gpu_span,
            remote_network=remote_network,
            cpus=cpus,
            memory=memory,
            network=network,
        )
        wish = Wish(
            name=name_from(program[0]),
            requests=convert_requests(resources, "--"),
            routes=tuple(routes) if routes else (Route.LOCAL, Route.REMOTE),
            wait_limit_s=parse_seconds(wait_limit, what="--wait-limit") if wait_limit else 0.0,
            quiet=quiet,
            transport=transport,
            goal=read_goal(slo=slo, importance=importance, deadline=deadline),
            application=application,
            trace="" if trace is None else check_trace(trace, program=path),
            path=path,
        )
        target = find_target(socket=socket, node=node, agent_only=True)
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
    """Let errors end with 125, which no program uses for itself, unless they have a code of this kind."""
    try:
        yield
    except BrokenPipeError:
        raise
    except Exception as error:
        known = as_farbus_error(error)
        if known.exit_code not in (ExitCode.NOT_EXECUTABLE, ExitCode.COMMAND_NOT_FOUND):
            known.with_exit_code(ExitCode.RUN_FAILED)
        if known is error:
            raise
        raise known from error


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
    held = Holds()
    async with closing(_hold(target, wish, held)) as events:
        ready = await _wait_for_devices(events, quiet=wish.quiet)
        devices = [device for placement in ready.status.placements for device in placement.devices]
        if devices:
            say(format_devices(devices), quiet=wish.quiet)
        chosen = {} if wish.transport is Transport.AUTO else {TRANSPORT: wish.transport.value}
        if wish.trace:
            # Only now that the program starts: what is in it may be the trace of a run before.
            begin_trace(wish.trace, program=wish.path)
            chosen[VARIABLE] = wish.trace
        # Whether a trace that --trace began has anything in it is told at the end.
        unheard = set(settings_unheard({**os.environ, **chosen}, ready.environment)) - ({VARIABLE} & chosen.keys())
        if unheard and wish.requests.gpus:
            names = ["--transport" if name in chosen else name for name in sorted(unheard)]
            say(
                f"{' and '.join(names)} {'do' if len(names) > 1 else 'does'} nothing: the GPU is of this node, not by "
                "remoting; --route remote asks for one that is",
                quiet=wish.quiet,
            )
        child.start(merge_environment({**os.environ, **chosen}, ready.environment))
        job_id = ready.status.job.id
        watch = asyncio.create_task(_tell_of_loss(events, child), name="devices")
        try:
            code = await child.wait()
            # Before the stream is closed, which alone would tell no exit code.
            await _tell_exit_code(target, job_id, code, held)
        finally:
            watch.cancel()
            await asyncio.wait({watch})
        if wish.trace and is_empty(wish.trace):
            # Where the GPU is another node's, asking for one would change nothing.
            why = (
                "made no call of CUDA, or FARBUS_TRACE ended at a container: --env FARBUS_TRACE=FILE, a path in it"
                if "FARBUS_SESSION" in ready.environment
                else "made no call to a GPU by remoting; --route remote asks for one"
            )
            say(f"{wish.trace} is empty: {wish.name} {why}")
        if code < 0 and -code not in QUIET_SIGNALS:
            say(f"{wish.name} was ended by signal {-code} ({signal.strsignal(-code)})")
        return 128 - code if code < 0 else code


class Holds:
    """The connections over which devices were held, counted.

    An agent that was restarted knows nothing of what the one before it has heard.
    """

    def __init__(self) -> None:
        self._begun = 0
        self.now = 0
        """The one that holds them, from 1; 0 while none does."""

    def begin(self) -> None:
        """Over this connection they are held, or still are."""
        if not self.now:
            self._begun += 1
            self.now = self._begun

    def end(self) -> None:
        """It has ended."""
        self.now = 0


async def _hold(target: Target, wish: Wish, held: Holds) -> AsyncGenerator[HoldEvent, None]:
    """Hold devices; again after the agent was restarted.

    The program goes on all the while: it is served by processes that outlive
    an agent.  ``held`` counts the connections that hold them.
    """
    job_id = ""
    async with closing(
        resumed(lambda: _hold_once(target, wish, job_id, held), is_over=lambda: target.is_over)
    ) as events:
        async for event in events:
            if not isinstance(event, HoldLost):
                job_id = event.status.job.id
            yield event


async def _hold_once(
    target: Target, wish: Wish, job_id: str, held: Holds
) -> AsyncGenerator[HoldEvent, None]:  # fmt: skip
    """Hold devices over a connection of their own; those of ``job_id`` again, if it is given."""
    async with (
        connect(target) as client,
        closing(
            client.hold(
                name=wish.name, requests=wish.requests, routes=wish.routes,
                wait_limit_s=wish.wait_limit_s, job_id=job_id,
                goal=wish.goal, application=wish.application,
            )
        ) as events,
    ):  # fmt: skip
        try:
            async for event in events:
                held.begin()
                yield event
        finally:
            held.end()


async def _tell_exit_code(target: Target, job_id: str, code: int, held: Holds) -> None:
    """Tell what the program ended with, again while the agent is restarted.

    One that holds the devices keeps what it has heard until the scheduler has
    heard it too, so it is told once.
    """
    give_up_at = time.monotonic() + TELL_EXIT_S
    while True:
        was = held.now
        try:
            async with asyncio.timeout(TELL_ONCE_S), connect(target) as client:
                await client.cancel_job(job_id, released=True, exit_code=code)
        except (Unavailable, TimeoutError) as error:
            if target.is_over:
                return
            if time.monotonic() >= give_up_at:
                ended = f"signal {-code}" if code < 0 else f"exit code {code}"
                say(f"{ended} of job {job_id} is not recorded: {error or 'its agent does not answer'}")
                return
            # Also for the stream to break: the agent may have ended this moment.
            await asyncio.sleep(AGAIN_S)
            if was and was == held.now:
                return
        except FarbusError:
            # It is over already.
            return
        else:
            return


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
                raise FarbusError(
                    f"the devices were lost before the program started: {reason}",
                    hint="if that says what to do, do it; else try again",
                )
    raise FarbusError("the agent ended the request without devices and without a reason", hint="see its log")


async def _tell_of_loss(events: AsyncIterator[HoldEvent], child: ForegroundProgram) -> None:
    """Tell when devices go while the program uses them; it meets CUDA's errors for it by itself."""
    try:
        async for event in events:
            if isinstance(event, HoldLost):
                loss = f"the devices were lost: {event.reason}; the program's next use of them fails"
                break
        else:
            loss = "the agent ended the lease; the program's next use of the devices fails"
    except FarbusError as error:
        loss = f"the devices were lost: {error}"
    # With the program's end they are given back: that is no loss, whoever is heard first.
    if not child.has_ended():
        say(loss)
