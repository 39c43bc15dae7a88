"""``farbus fabric``: PCIe chassis, what is assigned in them, and an emulated one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer

from farbus.cli.connection import Target, ask, find_target
from farbus.cli.decoding import decode_file, read_file
from farbus.cli.listing import Column, choose, print_json, print_listing, printable
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)
from farbus.cli.tables import format_age
from farbus.errors import FarbusError, InvalidInput, NotFound, Unavailable
from farbus.model.fabric import ChassisView, FabricDevice, FabricPort, FabricStep, StepHistory, StepTime
from farbus.model.value import Value

if TYPE_CHECKING:
    from farbus.hotplug.fabric.config import FabricConfig
    from farbus.hotplug.fabric.service import ChassisService

app = command_app()

R = TypeVar("R", bound=Value)

CONFIG = "/etc/farbus/fabric.toml"

PROGRESS_S = 5.0
"""Between two lines that say that something is still being done."""

EMULATOR_FILE = (
    "[[chassis]]",
    'name = "falcon"',
    'h3 = "127.0.0.1:8801"',
    'port = [{ id = "30h", node = "alpha" }, { id = "31h", node = "beta" }]',
    'device = [{ id = "001300", uuid = "GPU-1", port = "30h" }]',
)
"""The smallest that is of use, as the help shows it."""


ConfigOption = Annotated[
    str,
    typer.Option("--config", "-c", metavar="FILE", envvar="FARBUS_FABRIC", help="The chassis, in TOML or JSON."),
]
ReadConfigOption = Annotated[
    str,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        envvar="FARBUS_FABRIC",
        help="Ask the chassis of this file themselves, not the cluster.",
        show_default=False,
    ),
]
ChassisOption = Annotated[
    str, typer.Option("--chassis", metavar="NAME", help="Of this chassis only.", show_default=False)
]
DeviceArgument = Annotated[
    str, typer.Argument(metavar="DEVICE", help="Its whole id, serial number, or what the chassis calls it.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]


class DeviceRow(Value, frozen=True, kw_only=True):
    """A device as listings show it: with its chassis, and the node at its port."""

    chassis: str
    node: str
    missing: bool
    device: FabricDevice


class PortRow(Value, frozen=True, kw_only=True):
    """A port as listings show it."""

    chassis: str
    port: FabricPort
    devices: tuple[str, ...]


def _state(row: DeviceRow) -> str:
    if row.missing:
        return "lost"
    if not row.device.healthy:
        return "failed"
    return "free" if row.device.is_free else "assigned"


DEVICE_COLUMNS = (
    Column[DeviceRow]("DEVICE", lambda row: row.device.id, identity=True),
    Column[DeviceRow]("KIND", lambda row: row.device.kind),
    Column[DeviceRow]("MODEL", lambda row: row.device.model),
    Column[DeviceRow]("CHASSIS", lambda row: row.chassis),
    Column[DeviceRow]("PORT", lambda row: row.device.port),
    Column[DeviceRow]("NODE", lambda row: row.node),
    Column[DeviceRow]("STATE", _state, state=True),
    Column[DeviceRow]("SERIAL", lambda row: row.device.serial, wide=True),
    Column[DeviceRow]("HANDLE", lambda row: row.device.handle, wide=True),
    Column[DeviceRow](
        "PCI",
        lambda row: f"{row.device.vendor_id:04x}:{row.device.device_id:04x}" if row.device.vendor_id else "",
        wide=True,
    ),
    Column[DeviceRow]("SLOT", lambda row: row.device.slot, wide=True),
)

PORT_COLUMNS = (
    Column[PortRow]("PORT", lambda row: row.port.id, identity=True),
    Column[PortRow]("CHASSIS", lambda row: row.chassis),
    Column[PortRow]("NODE", lambda row: row.port.node),
    Column[PortRow]("DEVICES", lambda row: str(len(row.devices)), right=True),
    Column[PortRow]("WHICH", lambda row: ", ".join(row.devices), wide=True),
)


@app.callback(
    epilog=examples(
        "farbus fabric list                       devices of all chassis, and where they are",
        "farbus fabric assign GPU-8f2d6c1e beta   to the port of a node",
        "farbus fabric emulate -c emulator.toml   a chassis without hardware",
        "",
        "list and ports show what the cluster's agents have read, or with --config what the chassis say. The others "
        "speak to the chassis itself and ask nobody else: whether a node uses a device is not looked at; farbus attach "
        "and detach look. docs/fabric.md explains configuration files.",
    )
)
def fabric() -> None:
    """Look at PCIe fabrics, and assign their devices to nodes.  For operators."""


@app.command(
    "list",
    short_help="List devices, and the port of each.",
    epilog=examples(
        "farbus fabric list                            as the cluster's agents have read them",
        "farbus fabric list -c fabric.toml             asks the chassis themselves",
        "farbus fabric list -o wide --chassis falcon-1",
    ),
)
def list_devices(
    config: ReadConfigOption = "",
    chassis: ChassisOption = "",
    output: OutputOption = Output.TABLE,
    quiet: QuietOption = False,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """List the devices of all chassis, and the port that each is assigned to."""
    target = None if config else _target(socket=socket, server=server, credentials=credentials)
    views, failed = _views(config, chassis, target, quiet=quiet)
    rows = []
    for view in views:
        nodes = {port.id: port.node for port in view.ports}
        for device in view.devices:
            node = nodes.get(device.port, "")
            rows.append(DeviceRow(chassis=view.chassis, node=node, missing=False, device=device))
        rows += [DeviceRow(chassis=view.chassis, node="", missing=True, device=device) for device in view.missing]
    _print(rows, DEVICE_COLUMNS, output, nothing="no devices", views=views, failed=failed)


@app.command(
    "ports",
    short_help="List ports, and the node at each.",
    epilog=examples(
        "farbus fabric ports                   as the cluster's agents have read them",
        "farbus fabric ports -c fabric.toml    asks the chassis themselves",
    ),
)
def list_ports(
    config: ReadConfigOption = "",
    chassis: ChassisOption = "",
    output: OutputOption = Output.TABLE,
    quiet: QuietOption = False,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """List the ports of all chassis, and the node at each."""
    target = None if config else _target(socket=socket, server=server, credentials=credentials)
    views, failed = _views(config, chassis, target, quiet=quiet)
    rows = [
        PortRow(chassis=view.chassis, port=port, devices=tuple(device.id for device in view.at(port.id)))
        for view in views
        for port in view.ports
    ]
    _print(rows, PORT_COLUMNS, output, nothing="no ports", views=views, failed=failed)


@app.command(
    short_help="Assign a device to a port.",
    epilog=examples(
        "farbus fabric assign GPU-8f2d6c1e beta         a free device, to the port of a node",
        "farbus fabric assign S5GXNX0 31h               by serial number and port",
        "farbus fabric assign --move GPU-8f2d6c1e beta  take it from its port first",
    ),
)
def assign(
    device: DeviceArgument,
    port: Annotated[str, typer.Argument(metavar="PORT|NODE", help="A port, or the node at one.")],
    move: Annotated[
        bool, typer.Option("--move", help="Take it from the port where it is; no node may use it.")
    ] = False,
    config: ConfigOption = CONFIG,
    chassis: ChassisOption = "",
    output: OutputOption = Output.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Assign a device to a port, and read the chassis to see that it is there."""

    async def work(service: ChassisService) -> FabricDevice:
        return await (service.move(device, port) if move else service.assign(device, port))

    steps = [FabricStep.UNASSIGN, FabricStep.ASSIGN] if move else [FabricStep.ASSIGN]
    done = _do(config, chassis, device, f"assigning {device} to {port}", steps, work, quiet=quiet)
    _show(done, f"device {done.id} is assigned to port {done.port}", output)


@app.command(
    short_help="Take a device from its port.",
    epilog=examples(
        "farbus fabric unassign GPU-8f2d6c1e               from wherever it is",
        "farbus fabric unassign GPU-8f2d6c1e --from alpha  only if it is there",
    ),
)
def unassign(
    device: DeviceArgument,
    source: Annotated[
        str, typer.Option("--from", metavar="PORT|NODE", help="Only from this port.", show_default=False)
    ] = "",
    config: ConfigOption = CONFIG,
    chassis: ChassisOption = "",
    output: OutputOption = Output.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Take a device from its port, and read the chassis to see that it is free."""

    async def work(service: ChassisService) -> FabricDevice:
        return await service.unassign(device, source=source)

    done = _do(config, chassis, device, f"unassigning {device}", [FabricStep.UNASSIGN], work, quiet=quiet)
    _show(done, f"device {done.id} is free", output)


@app.command(
    short_help="Serve chassis without hardware.",
    epilog=examples(
        "farbus fabric emulate -c emulator.toml                   latencies as measured",
        "farbus fabric emulate -c emulator.toml --speed 0         no latencies",
        "farbus fabric emulate -c emulator.toml --backend qemu    hot-plug into guests",
        "",
        "A file for two nodes and one GPU; docs/fabric.md has faults, latencies and guests:",
        "",
        *(f"  {line}" for line in EMULATOR_FILE),
    ),
)
def emulate(
    config: Annotated[str, typer.Option("--config", "-c", metavar="FILE", help="What is emulated, in TOML or JSON.")],
    speed: Annotated[
        float | None,
        typer.Option(
            "--speed", min=0, metavar="FACTOR", help="Scale latencies: 0 none, 1 as measured.  [default: the file's]"
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Of latencies and faults.  [default: the file's]")
    ] = None,
    backend: Annotated[str, typer.Option("--backend", metavar="none|qemu", help="What assigning does.")] = "none",
) -> None:
    """Serve chassis without hardware, in H3's dialect and in Redfish, until it is stopped."""
    from farbus.hotplug.fabric.emulator import run  # noqa: PLC0415 - its HTTP server takes time to load
    from farbus.hotplug.fabric.emulator.config import EmulatorConfig, check  # noqa: PLC0415

    if backend not in list(run.BackendKind):
        raise InvalidInput(f"--backend {backend}: not one of none, qemu")
    wanted = decode_file(read_file(config, what="configuration file"), EmulatorConfig, name=config)
    if speed is not None:
        wanted = msgspec.structs.replace(wanted, speed=speed)
    if seed is not None:
        wanted = msgspec.structs.replace(wanted, seed=seed)
    check(wanted, name=config)
    if backend == run.BackendKind.QEMU and not any(port.qmp for each in wanted.chassis for port in each.ports):
        raise InvalidInput(
            f"{config}: --backend qemu: no port has a guest",
            hint='give one qmp = "/run/lab/alpha.qmp" and slots = ["rp1"]; docs/fabric.md shows a file',
        )

    def tell(line: str) -> None:
        typer.echo(line)
        sys.stdout.flush()

    asyncio.run(run.serve(wanted, Path(config).resolve().parent, backend=run.BackendKind(backend), tell=tell))


@app.command(
    short_help="Replay KubeComp's testbed in virtual time.",
    epilog=examples("farbus fabric replay", "farbus fabric replay --seed 7 -o json"),
)
def replay(
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of what is drawn.")] = 0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replay the reconfigurations of KubeComp's testbed in virtual time, with learned deadlines."""
    from farbus.hotplug.fabric.emulator import replay as replays  # noqa: PLC0415

    result = replays.replay(seed=seed)
    if output is Output.JSON:
        print_json(result)
    else:
        typer.echo(replays.to_text(result))


def _print(
    rows: Sequence[R],
    columns: Sequence[Column[R]],
    output: Output,
    *,
    nothing: str,
    views: Sequence[ChassisView],
    failed: Sequence[FarbusError],
) -> None:
    """Print what was read; raise the last error where a chassis could not be read, having told the others."""
    if views or not failed:
        print_listing(rows, columns, output, nothing=nothing)
    for error in failed[:-1]:
        _tell(f"farbus: {error}")
    if failed:
        raise failed[-1]


def _show(device: FabricDevice, line: str, output: Output) -> None:
    if output is Output.JSON:
        print_json(device)
    else:
        typer.echo(line)


# Services.


def _read_config(path: str) -> FabricConfig:
    # Their HTTP client takes time to load.
    from farbus.hotplug.fabric.config import FabricConfig, check_config  # noqa: PLC0415

    try:
        text = read_file(path, what="configuration file")
    except NotFound as error:
        hint = "name the one of your chassis with --config; docs/fabric.md shows one"
        raise NotFound(error.message, hint=hint) from error
    config = decode_file(text, FabricConfig, name=path)
    if not config.chassis:
        raise InvalidInput(f"{path}: has no chassis", hint="docs/fabric.md shows one")
    check_config(config, name=path)
    return config.below(Path(path).resolve().parent)


@contextlib.asynccontextmanager
async def _services(
    path: str, chassis: str, *, quiet: bool, failed: list[FarbusError] | None = None
) -> AsyncIterator[Sequence[ChassisService]]:
    """Serve the chassis of a configuration file, or the one of that name, inside the block.

    What keeps one from being asked, as credentials that others may read, is raised; or it is left out, and that is
    ``failed``.
    """
    from farbus.hotplug.fabric.config import make_driver  # noqa: PLC0415
    from farbus.hotplug.fabric.service import ChassisService  # noqa: PLC0415
    from farbus.linux.clock import SystemClock  # noqa: PLC0415

    config = _read_config(path)
    chosen = [access for access in config.chassis if chassis in ("", access.name)]
    if not chosen:
        names = ", ".join(access.name for access in config.chassis)
        raise NotFound(f"{path}: no chassis {chassis}", hint=f"it has {names}")
    clock = SystemClock()
    async with contextlib.AsyncExitStack() as stack:
        services = []
        for access in chosen:
            try:
                driver = make_driver(access, clock=clock)
            except FarbusError as error:
                if failed is None:
                    raise
                failed.append(error)
                continue
            kept = Path(config.history) / f"{access.name}.json" if config.history else None
            times: list[StepTime] = []
            service = ChassisService(
                driver,
                clock=clock,
                history=_read_history(kept),
                on_time=times.append,
                tell=(lambda _: None) if quiet else _tell,
            )
            stack.callback(_keep_history, kept, times)
            services.append(await stack.enter_async_context(service.running()))
        yield services


def _read_history(path: Path | None) -> StepHistory:
    from farbus.model.value import from_json  # noqa: PLC0415

    try:
        return from_json(path.read_bytes(), StepHistory) if path else StepHistory()
    except (OSError, InvalidInput):
        # What was learned is worth a warm start, not a failure.
        return StepHistory()


def _keep_history(path: Path | None, times: Sequence[StepTime]) -> None:
    from farbus.linux.files import write_owned  # noqa: PLC0415
    from farbus.model.value import to_json  # noqa: PLC0415

    if path is None or not times:
        return
    # Read again: another command may have learned meanwhile.
    history = _read_history(path)
    for each in times:
        history = history.with_time(each)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_owned(path, to_json(history), account=None, mode=0o644)


def _target(*, socket: str, server: str, credentials: str) -> Target:
    """Find the cluster; raise :class:`Unavailable` that names the other way, too."""
    try:
        return find_target(socket=socket, server=server, credentials=credentials)
    except Unavailable as error:
        hint = f"{error.hint}; or ask the chassis themselves with --config FILE"
        raise Unavailable(error.message, hint=hint) from error


def _views(
    config: str, chassis: str, target: Target | None, *, quiet: bool
) -> tuple[list[ChassisView], list[FarbusError]]:
    """Return what there is in chassis: as the cluster's agents have read it, or with a file as they say themselves.

    Of those that could not be read their errors: they hide none of the others.
    """
    if target is not None:
        return _known_views(target, chassis), []

    async def work() -> tuple[list[ChassisView], list[FarbusError]]:
        failed: list[FarbusError] = []
        async with _services(config, chassis, quiet=quiet, failed=failed) as services:
            usual_s = max((service.expected_s(FabricStep.LIST) for service in services), default=0.0)
            with _progress("reading the chassis", usual_s, quiet=quiet):
                read = await asyncio.gather(*(service.list() for service in services), return_exceptions=True)
        for error in read:
            if isinstance(error, BaseException) and not isinstance(error, FarbusError):
                raise error
        failed += [error for error in read if isinstance(error, FarbusError)]
        return [view for view in read if not isinstance(view, BaseException)], failed

    return asyncio.run(work())


def _known_views(target: Target, chassis: str) -> list[ChassisView]:
    known = choose(
        ask(target, lambda client: client.list_chassis()),
        [chassis] if chassis else None,
        key=lambda status: status.name,
        noun="chassis",
        command="fabric ports",
    )
    if not known:
        _tell(
            "no agent has the credentials of a chassis: set fabric in its agent.toml, or ask one yourself by --config"
        )
    for status in known:
        if not status.served_by:
            _tell(f"chassis {status.name}: no agent serves it now" + (", as it was read last" if status.view else ""))
        elif status.view is None:
            _tell(f"chassis {status.name}: the agent of node {status.served_by} has not read it yet")
        elif status.trouble:
            _tell(f"{status.trouble}; node {status.served_by} serves it; what follows is what was read last")
    return [status.view for status in known if status.view is not None]


def _do(
    config: str,
    chassis: str,
    device: str,
    what: str,
    steps: Sequence[FabricStep],
    work: Callable[[ChassisService], Awaitable[FabricDevice]],
    *,
    quiet: bool,
) -> FabricDevice:
    """Do something to a device in the chassis that has it."""

    async def find(services: Sequence[ChassisService]) -> ChassisService:
        if len(services) == 1:
            return services[0]
        try:
            views = await asyncio.gather(*(service.list() for service in services))
        except FarbusError as error:
            # It may be in the one that can't be read, too: which is meant is for whoever asks to say.
            error.hint = "; ".join(filter(None, (error.hint, f"--chassis NAME asks only the one that has {device}")))
            raise
        for service, view in zip(services, views, strict=True):
            with contextlib.suppress(NotFound):
                view.device(device)
                return service
        names = ", ".join(service.chassis for service in services)
        raise NotFound(f"no device {device} in {names}", hint="farbus fabric list shows what there is")

    async def all_of_it() -> FabricDevice:
        async with _services(config, chassis, quiet=quiet) as services:
            reading = FabricStep.LIST
            usual_s = sum(services[0].expected_s(step) for step in (reading, *steps, reading))
            with _progress(what, usual_s, quiet=quiet):
                return await work(await find(services))

    try:
        return asyncio.run(all_of_it())
    except FarbusError as error:
        error.hint = _with_config(error.hint, config)
        raise
    except KeyboardInterrupt:
        looking = _with_config("farbus fabric list", config)
        _tell(f"{what}: no longer watched, and half of it may be done; {looking} shows where {device} is")
        raise


def _with_config(hint: str, config: str) -> str:
    """Name the configuration in the commands of a hint, where they would not find it by themselves."""
    if config == os.environ.get("FARBUS_FABRIC"):
        return hint
    found = shlex.quote(config)
    hint = re.sub(r"farbus fabric (list|ports)\b", rf"farbus fabric \1 -c {found}", hint)
    # Those read /etc/farbus/fabric.toml without being told.
    return (
        hint
        if config == CONFIG
        else re.sub(r"farbus fabric (assign|unassign)\b", rf"farbus fabric \1 -c {found}", hint)
    )


def _tell(line: str) -> None:
    typer.echo(printable(line), err=True)


@contextlib.contextmanager
def _progress(what: str, usual_s: float, *, quiet: bool) -> Iterator[None]:
    """Say every few seconds what is being done, for how long, and how long it usually takes."""
    started = time.monotonic()

    async def repeat() -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            took = format_age(time.monotonic() - started)
            _tell(f"{what}: {took}, usually {format_age(usual_s)}")

    task = None if quiet else asyncio.get_running_loop().create_task(repeat(), name="progress")
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
