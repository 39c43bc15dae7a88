"""The scheduler's process: ledger, machine, engine and servers, from start to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import structlog
import uvloop

from farbus import __version__
from farbus.api.identity import Role
from farbus.api.server import serve_scheduler
from farbus.errors import FarbusError, InvalidInput, first_error
from farbus.linux.notify import Notifier, SystemdNotifier
from farbus.scheduler.config import SchedulerConfig
from farbus.scheduler.engine import Engine
from farbus.scheduler.ledger import Ledger
from farbus.scheduler.lifecycle import ClusterMachine
from farbus.scheduler.metrics import serve_metrics
from farbus.scheduler.rounds import Decide, DecisionMaker, decision_maker
from farbus.scheduler.service import ClusterService
from farbus.scheduler.sessions import Sessions

_log = structlog.get_logger()

STOP_GRACE_S = 0.5
"""How long calls under way may go on when the scheduler stops."""
SECRET_BYTES = 32
"""Bytes of a lease's secret."""


def main(config: SchedulerConfig) -> int:
    """Run a scheduler until SIGTERM or SIGINT; return the process's exit code.

    What prevents it is told in one line on standard error.
    """
    configure_logging()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run_until_stopped(config))
    except FarbusError as error:
        sys.stderr.write(f"farbus scheduler: {error}\n")
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def configure_logging() -> None:
    """Log to standard error: for people on a terminal, as JSON otherwise."""
    console = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            *shared,
            *([] if console else [structlog.processors.dict_tracebacks]),
            structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


async def _run_until_stopped(config: SchedulerConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    notifier = SystemdNotifier()

    def ready(port: int) -> None:
        _log.info("scheduler ready", listen=config.listen, port=port, version=__version__)
        notifier.tell("READY=1")

    await serve(config, stop=stop, ready=ready, notifier=notifier)


async def serve(
    config: SchedulerConfig,
    *,
    stop: asyncio.Event,
    ready: Callable[[int], None] = lambda port: None,
    decide: Decide | None = None,
    notifier: Notifier | None = None,
) -> None:
    """Serve until ``stop`` is set; ``ready`` is told the port once calls are accepted.

    ``decide`` replaces the decision maker that the configuration names.
    Raises :class:`FarbusError` for what an operator can put right: bad
    credentials, an address in use, a ledger that is locked, damaged or can't
    be written.
    """
    config.check()
    holder = config.credentials.identity()
    if holder.role is not Role.SCHEDULER:
        raise InvalidInput(
            f"{config.credentials.certificate}: it is the certificate of {holder.role} {holder.name}",
            hint="issue one with farbus ca issue --role scheduler",
        )
    decide = decide or decision_maker(config.policy)
    ledger = Ledger(config.state)
    try:
        maker = DecisionMaker(decide)
        async with _running(config, ledger, maker) as (engine, next_job):
            await _serve_engine(
                config, engine, next_job, stop=stop, ready=ready, notifier=notifier or SystemdNotifier()
            )
    finally:
        ledger.close()


@contextlib.asynccontextmanager
async def _running(config: SchedulerConfig, ledger: Ledger, maker: DecisionMaker) -> AsyncIterator[tuple[Engine, int]]:
    """Take over what the ledger has and keep an engine without its own task."""
    machine = ClusterMachine(
        term=ledger.term, lease_ttl_s=config.lease_ttl_s, new_secret=lambda: secrets.token_hex(SECRET_BYTES)
    )
    engine = Engine(machine=machine, ledger=ledger, maker=maker, round_delay_s=config.round_delay_s)
    with _collector_off():
        contents = ledger.load()
        engine.restore(contents)
    _log.info(
        "ledger loaded",
        term=ledger.term,
        jobs=len(contents.jobs),
        leases=len(contents.leases),
        nodes=len(contents.nodes),
    )
    try:
        yield engine, contents.next_job
    finally:
        maker.close()


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """Load without the garbage collector: millions of new objects, none of them garbage.

    It took more than half of the time of a restart with 100,000 jobs.  What
    was loaded is not looked at again in later collections.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


async def _serve_engine(
    config: SchedulerConfig,
    engine: Engine,
    next_job: int,
    *,
    stop: asyncio.Event,
    ready: Callable[[int], None],
    notifier: Notifier,
) -> None:
    loop = asyncio.get_running_loop()
    sessions = Sessions(engine, lease_ttl_s=config.lease_ttl_s, heartbeat_s=config.heartbeat_s)
    cluster = ClusterService(engine, sessions.relay, next_job=next_job, lease_ttl_s=config.lease_ttl_s, now=loop.time)
    async with contextlib.AsyncExitStack() as stack:
        if config.metrics:
            metrics = await serve_metrics(engine, config.metrics)
            stack.push_async_callback(metrics.stop)
        running = asyncio.create_task(engine.run(), name="engine")
        stack.push_async_callback(_end, running)
        server = await serve_scheduler(
            cluster=cluster, sessions=sessions, listen=config.listen, credentials=config.credentials
        )
        stack.push_async_callback(server.stop, STOP_GRACE_S)
        stack.callback(sessions.close)
        watchdog = asyncio.create_task(_watchdog(notifier), name="watchdog")
        stack.push_async_callback(_end, watchdog)
        stopping = asyncio.create_task(stop.wait(), name="stop")
        stack.push_async_callback(_end, stopping)
        ready(server.port)
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        notifier.tell("STOPPING=1")
        if running.done():
            raise first_error(running.exception() or FarbusError("the scheduler's engine ended by itself"))
        _log.info("scheduler stopping")


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(BaseException):
        await task


async def _watchdog(notifier: Notifier) -> None:
    """Show the service manager that the event loop turns."""
    while notifier.watchdog_s:
        notifier.tell("WATCHDOG=1")
        await asyncio.sleep(notifier.watchdog_s)
