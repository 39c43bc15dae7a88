"""The scheduler's process: ledger, machine, engine and servers, from start to stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import structlog
import uvloop

from farbus import __version__
from farbus.api.audit import FILE_NAME, AuditLog
from farbus.api.enrollment import Issuer
from farbus.api.identity import Role, Vouching
from farbus.api.joining import serve_joins
from farbus.api.server import serve_scheduler
from farbus.api.staging import add_staging
from farbus.api.trust import Trust
from farbus.errors import FarbusError, InvalidInput, first_error
from farbus.linux.daemon_log import configure_logging, tell_end
from farbus.linux.files import check_state_directory
from farbus.linux.limits import raise_descriptor_limit
from farbus.linux.node_facts import KernelNodeFacts
from farbus.linux.notify import Notifier, SystemdNotifier
from farbus.linux.settings import keep_reloading, reload_requests
from farbus.model.rules import Rules
from farbus.scheduler import events
from farbus.scheduler.collector import collector_paused
from farbus.scheduler.config import STATE_MARKS, SchedulerConfig
from farbus.scheduler.contents import Limits
from farbus.scheduler.decision_maker import Decide, DecisionMaker, DecisionThread, decision_maker
from farbus.scheduler.decision_process import DecisionProcess
from farbus.scheduler.engine import Engine
from farbus.scheduler.ledger import LEDGER_NAME, Ledger
from farbus.scheduler.lifecycle import ClusterMachine
from farbus.scheduler.metrics import serve_metrics
from farbus.scheduler.service import ClusterService
from farbus.scheduler.sessions import Sessions
from farbus.scheduler.staging import StagingService

_log = structlog.get_logger()

STOP_GRACE_S = 0.5
"""How long calls under way may go on when the scheduler stops."""
RELOADABLE: frozenset[str] = frozenset(Rules.__struct_fields__)
"""Settings that a running scheduler can change: its address, its ledger and the lease time are known to others."""
LOAD_POLICIES = frozenset({"drmaestro"})
"""Policies that hold jobs back because of the network's load."""
Reread = Callable[[], Awaitable[SchedulerConfig]]
"""Reads the settings again; raises :class:`FarbusError`."""
CREDENTIALS_INTERVAL_S = 1.0
"""How often the scheduler looks whether revocations, authorities or its own certificate want something done."""
SECRET_BYTES = 32
"""Bytes of a lease's secret."""


def main(config: SchedulerConfig, *, reread: Reread | None = None) -> int:
    """Run a scheduler until SIGTERM or SIGINT; return the process's exit code.

    With SIGHUP it looks at what ``reread`` returns.  What prevents it is told in one line on standard error.
    """
    configure_logging()
    raise_descriptor_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run_until_stopped(config, reread))
    except (FarbusError, OSError, ExceptionGroup) as error:
        return tell_end("scheduler", error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


async def _run_until_stopped(config: SchedulerConfig, reread: Reread | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    notifier = SystemdNotifier()

    def ready(port: int) -> None:
        _log.info("scheduler ready", listen=config.listen, port=port, version=__version__)
        notifier.tell("READY=1")

    if reread is None:
        await serve(config, stop=stop, ready=ready, notifier=notifier)
        return
    changes: asyncio.Queue[SchedulerConfig] = asyncio.Queue()
    reloader = asyncio.create_task(
        keep_reloading(
            reload_requests(),
            config,
            reread=reread,
            check=_check,
            changeable=RELOADABLE,
            take=changes.put,
            notifier=notifier,
        ),
        name="reload",
    )
    try:
        await serve(config, stop=stop, ready=ready, notifier=notifier, changes=changes)
    finally:
        await _end(reloader)


def _check(config: SchedulerConfig) -> None:
    config.check()
    check_credentials(config)


async def _take_changes(engine: Engine, changes: asyncio.Queue[SchedulerConfig]) -> None:
    while True:
        config = await changes.get()
        await engine.tell(events.RulesChanged(rules=config.rules))


def check_credentials(config: SchedulerConfig) -> None:
    """Raise what is wrong with the certificate."""
    holder = config.credentials.identity()
    if holder.role is not Role.SCHEDULER:
        raise InvalidInput(
            f"{config.credentials.certificate}: it is the certificate of {holder.role} {holder.name}",
            hint="issue one with farbus ca issue --role scheduler",
        )


async def serve(
    config: SchedulerConfig,
    *,
    stop: asyncio.Event,
    ready: Callable[[int], None] = lambda port: None,
    decide: Decide | None = None,
    notifier: Notifier | None = None,
    changes: asyncio.Queue[SchedulerConfig] | None = None,
) -> None:
    """Serve until ``stop`` is set; ``ready`` is told the port once calls are accepted.

    ``decide`` replaces the decision maker that the configuration names, and
    decides in a thread of this process.  What comes by ``changes`` holds from
    then on, as far as it is :data:`RELOADABLE`.
    Raises :class:`FarbusError` for what an operator can put right: bad
    credentials, an address in use, a ledger that is locked, damaged or can't
    be written.
    """
    config.check()
    issuer = Issuer(config.ca_directory) if config.ca_directory else None
    if issuer is not None:
        issuer.renew_own(config.credentials)
    check_credentials(config)
    # For its error: the process that decides would tell it too late.
    decision_maker(config.policy)
    check_state_directory(Path(config.state), marks=STATE_MARKS, what="a scheduler's state")
    ledger = Ledger(config.state)
    maker = DecisionMaker(
        DecisionThread(decide) if decide is not None else DecisionProcess(config.policy), limit_s=config.round_limit_s
    )
    try:
        await maker.start()
        async with _running(config, ledger, maker) as (engine, next_job):
            await _serve_engine(
                config,
                engine,
                next_job,
                stop=stop,
                ready=ready,
                notifier=notifier or SystemdNotifier(),
                changes=changes or asyncio.Queue(),
            )
    finally:
        await maker.end()
        ledger.close()


@contextlib.asynccontextmanager
async def _running(config: SchedulerConfig, ledger: Ledger, maker: DecisionMaker) -> AsyncIterator[tuple[Engine, int]]:
    """Take over what the ledger has and keep an engine without its own task."""
    machine = ClusterMachine(
        term=ledger.term,
        lease_ttl_s=config.lease_ttl_s,
        return_s=config.return_s,
        restart_grace_s=config.restart_grace_s,
        unreachable_limit_s=config.unreachable_limit_s,
        boot_id=KernelNodeFacts().boot_id(),
        new_secret=lambda: secrets.token_hex(SECRET_BYTES),
        rules=config.rules,
        watches_load=config.policy in LOAD_POLICIES,
        chassis_servers=config.chassis_servers,
    )
    engine = Engine(machine=machine, ledger=ledger, maker=maker, round_delay_s=config.round_delay_s)
    with _collector_off():
        contents = ledger.load()
        try:
            engine.restore(contents)
        except Exception as error:
            # Each row could be read, and one names what there is none of.
            raise FarbusError(
                f"the ledger {Path(config.state) / LEDGER_NAME} is damaged: its rows do not fit together"
                f" ({type(error).__name__}: {error})",
                hint="restore it from a backup; a new one would count the devices' epochs from zero",
            ) from error
    _log.info(
        "ledger loaded",
        term=ledger.term,
        jobs=len(contents.jobs),
        leases=len(contents.leases),
        nodes=len(contents.nodes),
    )
    yield engine, contents.next_job


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """Load without the garbage collector: millions of new objects, none of them garbage.

    It took more than half of the time of a restart with 100,000 jobs.  What
    was loaded is not looked at again in later collections.
    """
    with collector_paused():
        try:
            yield
        finally:
            gc.freeze()


async def _serve_engine(
    config: SchedulerConfig,
    engine: Engine,
    next_job: int,
    *,
    stop: asyncio.Event,
    ready: Callable[[int], None],
    notifier: Notifier,
    changes: asyncio.Queue[SchedulerConfig],
) -> None:
    loop = asyncio.get_running_loop()
    trust = Trust(config.credentials)
    audit = AuditLog(Path(config.state) / FILE_NAME)
    issuer = Issuer(config.ca_directory, audit=audit) if config.ca_directory else None
    sessions = Sessions(
        engine,
        lease_ttl_s=config.lease_ttl_s,
        heartbeat_s=config.heartbeat_s,
        trust=lambda: (trust.revocations(), trust.files.authority),
    )
    staging = StagingService(
        engine,
        Path(config.state) / "staging",
        limits=Limits(
            bytes=config.staging_bytes,
            files=config.staging_files,
            user_bytes=config.staging_bytes_per_user,
            user_files=config.staging_files_per_user,
        ),
        job_limit_bytes=config.staging_bytes_per_job,
    )
    cluster = ClusterService(
        engine,
        sessions.relay,
        next_job=next_job,
        lease_ttl_s=config.lease_ttl_s,
        now=loop.time,
        check_files=staging.check,
        audit_logs=tuple(Path(where) / FILE_NAME for where in (config.state, config.ca_directory) if where),
        policy=config.policy,
    )
    async with contextlib.AsyncExitStack() as stack:
        # Last of all: calls that are ended by the stop leave their lines, too.
        stack.push_async_callback(audit.close)
        if config.metrics:
            metrics = await serve_metrics(engine, config.metrics)
            stack.push_async_callback(metrics.stop)
        running = asyncio.create_task(engine.run(), name="engine")
        stack.push_async_callback(_end, running)
        server = await serve_scheduler(
            cluster=cluster,
            sessions=sessions,
            listen=config.listen,
            credentials=trust,
            enrollment=issuer,
            audit=audit,
            operator_only=frozenset(config.operator_only),
            vouching=Vouching(users=config.user_nodes, operators=config.operator_nodes),
            services=(functools.partial(add_staging, staging),),
        )
        stack.push_async_callback(server.stop, STOP_GRACE_S)
        if issuer is not None and config.join:
            stack.push_async_callback(issuer.close)
            joins = await serve_joins(join=issuer.join, listen=config.join, trust=trust, scheduler_port=server.port)
            stack.push_async_callback(joins.stop)
        taking = asyncio.create_task(_take_changes(engine, changes), name="changes")
        stack.push_async_callback(_end, taking)
        sweeping = asyncio.create_task(staging.keep_sweeping(), name="staging")
        stack.push_async_callback(_end, sweeping)
        keeping = asyncio.create_task(keep_credentials(config, issuer, trust, sessions), name="credentials")
        stack.push_async_callback(_end, keeping)
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


async def keep_credentials(config: SchedulerConfig, issuer: Issuer | None, trust: Trust, sessions: Sessions) -> None:
    """Renew the own certificate, take over authorities and revocations from the authority, pass the latter on."""
    told = ""
    while True:
        await asyncio.sleep(CREDENTIALS_INTERVAL_S)
        trouble = ""
        try:
            if issuer is not None and await asyncio.to_thread(issuer.renew_own, config.credentials):
                _log.info("certificate or authorities renewed", certificate=config.credentials.certificate)
        except (FarbusError, OSError) as error:
            trouble = str(error)
        except Exception as error:
            # A defect, or a key of a kind that nobody has thought of: revocations are passed on all the same.
            trouble = f"{type(error).__name__}: {error}"
        # Once for each reason, not each second.
        if trouble and trouble != told:
            _log.error("own certificate not kept", reason=trouble)
        told = trouble
        trust.refresh()
        sessions.pass_on_trust()


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(BaseException):
        await task


async def _watchdog(notifier: Notifier) -> None:
    """Show the service manager that the event loop turns."""
    while notifier.watchdog_s:
        notifier.tell("WATCHDOG=1")
        await asyncio.sleep(notifier.watchdog_s)
