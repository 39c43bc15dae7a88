"""``farbus up``: a whole cluster on this machine, in one command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from farbus.cli import embedded, runtime
from farbus.cli.daemons import read_settings
from farbus.cli.decoding import convert_fields
from farbus.cli.embedded import DEFAULT_NODES, EmbeddedCluster, Plan, describe_gpus, parse_nodes, remove_leftovers
from farbus.cli.following import say
from farbus.cli.options import command_app, examples
from farbus.cli.softgpu_settings import refused_settings
from farbus.errors import ExitCode, FarbusError, InvalidInput, NotFound, TimedOut
from farbus.linux.children import detached_exit_code, process_exists, start_detached
from farbus.linux.files import FileLock, check_state_directory
from farbus.linux.rdma import RdmaDevice, rdma_devices
from farbus.model.device import MAX_SHARES, DeviceKind
from farbus.model.node import NodeStatus
from farbus.model.quantity import parse_bytes
from farbus.remoting import paths

app = command_app()

READY = "cluster ready"
"""How what is said begins, in one piece, when commands find the cluster."""


@app.command(
    epilog=examples(
        "farbus up                                  three nodes, until Ctrl-C",
        "farbus up --detach                         in the background, until farbus down",
        "farbus up --nodes head:0,big:4,small:1     other nodes: name and number of GPUs",
        "farbus up --config scheduler.toml          another policy, quotas: docs/cli.md shows a file",
        "farbus up --gpu-shares 4                   then farbus run --gpu-share 1/4 -- ./program",
        "farbus up --rdma                           then farbus run --transport rdma -- ./program",
        "sudo farbus up --cdi /run/cdi              for containers: docs/install.md",
        "",
        "While it runs, other commands of yours find it by themselves.",
    )
)
def up(
    nodes: Annotated[
        str, typer.Option("--nodes", metavar="NAME:GPUS,...", help="The nodes and how many software GPUs each has.")
    ] = DEFAULT_NODES,
    gpu_memory: Annotated[str, typer.Option("--gpu-memory", metavar="SIZE", help="Memory of each GPU.")] = "1GiB",
    gpu_shares: Annotated[
        int, typer.Option("--gpu-shares", metavar="N", min=1, max=MAX_SHARES, help="Offer each GPU in N equal shares.")
    ] = 1,
    rdma: Annotated[
        bool, typer.Option("--rdma", help="Let programs reach GPUs by this machine's RDMA device, unencrypted.")
    ] = False,
    physical: Annotated[
        str,
        typer.Option(
            "--physical", metavar="NODE", help="Let this node offer the machine's own devices.", show_default=False
        ),
    ] = "",
    config: Annotated[
        str,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Settings of the scheduler: policy, quotas, preemption and so on.",
            show_default=False,
        ),
    ] = "",
    state: Annotated[
        str,
        typer.Option(
            "--state",
            metavar="DIR",
            help="Keep ledger, authority and logs here.  [default: nothing is kept]",
            show_default=False,
        ),
    ] = "",
    metrics: Annotated[
        int | None,
        typer.Option(
            "--metrics",
            metavar="PORT",
            min=1024,
            max=65535 - embedded.MAX_NODES,
            help="Serve Prometheus on loopback: the scheduler on PORT, the nodes on the ports after it.",
            show_default=False,
        ),
    ] = None,
    cdi: Annotated[
        str,
        typer.Option(
            "--cdi",
            metavar="DIR",
            help="Tell container engines of remote GPUs there, most look in /run/cdi.",
            show_default=False,
        ),
    ] = "",
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once it is ready; stop it by farbus down.")] = (
        False
    ),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say what there is, not what to do with it.")] = False,
) -> int:
    """Start a whole cluster on this machine.

    One scheduler and one agent for each node, every one a process of its own,
    with an authority made for them.  Where the machine has no GPU, software
    GPUs stand in: they execute CUDA programs on the processor.
    """
    plan = Plan(
        nodes=parse_nodes(nodes),
        gpu_memory_bytes=_read_gpu_memory(gpu_memory),
        options=_further_gpu_settings(os.environ.get("FARBUS_SOFTGPU", "")),
        gpu_shares=gpu_shares,
        cdi_directory=_check_cdi_directory(cdi),
        physical_node=_check_node(physical, nodes),
        rdma_address=rdma_address() if rdma else "",
        metrics_port=metrics or 0,
        scheduler=_read_scheduler_settings(config),
    )
    _check_user()
    if plan.options:
        asyncio.run(_check_gpu_settings(plan.options))
    if state:
        check_state_directory(Path(state).resolve(), marks=embedded.STATE_MARKS, what="a farbus up")
    directory = runtime.open_runtime_directory()
    if detach:
        options = [f"--nodes={nodes}", f"--gpu-memory={gpu_memory}", f"--physical={physical}"]
        options += [f"--gpu-shares={gpu_shares}"]
        options += ["--rdma"] if rdma else []
        options += [f"--cdi={Path(cdi).resolve()}"] if cdi else []
        options += [f"--metrics={metrics}"] if metrics else []
        options += [f"--config={Path(config).resolve()}"] if config else []
        return _detach(plan, directory, [*options, "--quiet"] if quiet else options, state)
    with runtime.lock(directory):
        return asyncio.run(_serve(plan, directory, Path(state).resolve() if state else None, quiet=quiet))


def _read_gpu_memory(text: str) -> int:
    size = parse_bytes(text, what="--gpu-memory")
    if size < 2**24:
        raise InvalidInput(f"--gpu-memory {text}: too little for any program", hint="use at least 16MiB")
    return size


def _further_gpu_settings(settings: str) -> str:
    """Return what ``settings`` (FARBUS_SOFTGPU) says beyond number and memory, which options say."""
    return ",".join(item for item in settings.split(",") if item and item.partition("=")[0] not in {"count", "mem"})


async def _check_gpu_settings(settings: str) -> None:
    """Raise :class:`InvalidInput` where software GPUs refuse ``settings``: nodes would have none, as only logs say."""
    if reason := await refused_settings(settings):
        raise InvalidInput(f"FARBUS_SOFTGPU: {reason}", hint="docs/softgpu.md lists its settings")


def _read_scheduler_settings(path: str) -> dict[str, Any]:
    """Return what the file at ``path`` sets, nothing if that is empty; raise :class:`InvalidInput`.

    It is checked here, since what the scheduler says of it would be in its log.
    """
    if not path:
        return {}
    settings = read_settings(path, {}, credentials="")
    if own := sorted(embedded.OWN_SETTINGS & settings.keys()):
        raise InvalidInput(f"{path}: {own[0]}: farbus up sets it itself", hint="leave it out")
    # Only where they are needed: they take a while to load.
    from farbus.scheduler.config import SchedulerConfig  # noqa: PLC0415
    from farbus.scheduler.costs.named import policy_named  # noqa: PLC0415

    made = {"state": path, "credentials": {"authority": path, "certificate": path, "key": path}}
    config = convert_fields(settings | made, SchedulerConfig, name=path)
    try:
        config.check()
        if config.policy:
            policy_named(config.policy)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.message}", hint=error.hint) from error
    return settings


def _check_cdi_directory(path: str) -> str:
    if not path:
        return ""
    resolved = Path(path).resolve()
    if resolved.exists() and not resolved.is_dir():
        raise InvalidInput(f"--cdi {path}: not a directory", hint="name one that container engines look in")
    return str(resolved)


def _check_user() -> None:
    """Raise :class:`InvalidInput` where the user has no name: jobs and leases are somebody's, by name."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError as error:
        raise InvalidInput(
            f"user id {os.getuid()} has no name on this machine", hint="add a line for it to /etc/passwd"
        ) from error


def _check_node(name: str, nodes: str) -> str:
    names = [node.name for node in parse_nodes(nodes)]
    if name and name not in names:
        raise InvalidInput(f"--physical {name}: no such node", hint=f"one of {', '.join(names)}")
    return name


def rdma_address(devices: Callable[[], list[RdmaDevice]] = rdma_devices) -> str:
    """Return an address of the first RDMA device that has one; raise :class:`NotFound` where none has."""
    found = devices()
    for device in found:
        if device.addresses:
            return device.addresses[0]
    names = ", ".join(device.name for device in found)
    raise NotFound(
        f"--rdma: {names}: no active port with an address of RoCE v2"
        if found
        else "--rdma: this machine has no RDMA device",
        hint="give its network interface an address"
        if found
        else "rdma link show lists them; for a trial, soft-RoCE: rdma link add rxe0 type rxe netdev INTERFACE",
    )


async def _serve(plan: Plan, directory: Path, chosen_state: Path | None, *, quiet: bool) -> int:
    stop: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(number: int) -> None:
        if not stop.done():
            stop.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    clean_up(directory)
    state = chosen_state or directory / "up" / "state"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"--state {state}: {error.strerror}", hint="choose another directory") from error
    # Another one of this user's, who has told it of another runtime directory, or of somebody else's.
    lock = FileLock(state / embedded.STATE_LOCK, what=f"--state {state}")
    cluster = EmbeddedCluster(plan, state=state, sockets=directory / "up" / "sockets", tell=say)
    started = time.monotonic()
    tell_beginning(plan)
    try:
        starting = asyncio.create_task(cluster.start(), name="start")
        either: set[asyncio.Future[Any]] = {starting, stop}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
            return 128 + stop.result()
        nodes = starting.result()
        runtime.publish(directory, cluster.describe(_software_gpus(nodes)))
        _welcome(plan, cluster, time.monotonic() - started, quiet=quiet)
        serving = asyncio.create_task(cluster.serve(), name="serve")
        either = {serving, stop}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            # It ends by an error alone: a daemon that can't even be started.
            serving.result()
        serving.cancel()
        say("stopping")
        return int(ExitCode.OK)
    finally:
        await cluster.stop()
        lock.release()
        clean_up(directory)


def _software_gpus(nodes: tuple[NodeStatus, ...]) -> tuple[str, ...]:
    return tuple(
        device.id
        for status in nodes
        for device in status.node.devices
        if device.software and device.kind is DeviceKind.GPU
    )


def clean_up(directory: Path) -> None:
    """Remove what this ``farbus up``, or an earlier one that was killed, has made; not a state that was chosen."""
    previous = runtime.read_published(directory)
    with contextlib.suppress(OSError):
        if previous is not None and runtime.lock_holder(Path(previous.state)) is not None:
            # Another one has that state since, and all that is of it.
            previous = None
    remove_leftovers(
        directory=directory / "up",
        state=Path(previous.state) if previous else None,
        devices=previous.devices if previous else (),
        cdi_directory=previous.cdi_directory if previous else "",
    )
    with contextlib.suppress(FileNotFoundError):
        (directory / "up.json").unlink()


def _welcome(plan: Plan, cluster: EmbeddedCluster, seconds: float, *, quiet: bool) -> None:
    default = plan.default_node
    lines = [f"{READY} after {seconds:.1f} s: scheduler at {cluster.server}"]
    width = max(len(node.name) for node in plan.nodes)
    for node in plan.nodes:
        here = "   <- commands run here" if node.name == default else ""
        lines.append(f"  {node.name:<{width}}  {describe_gpus(plan, node)}{here}")
    lines += (
        []
        if quiet
        else [
            "",
            *what_to_try(plan.gpu_shares, rdma=bool(plan.rdma_address)),
            "",
            f"Logs: {cluster.state / 'logs'}",
            "Stop it with Ctrl-C, or farbus down.",
        ]
    )
    typer.echo("\n".join(lines))
    sys.stdout.flush()


def what_to_try(gpu_shares: int, *, rdma: bool = False) -> list[str]:
    """Return lines of commands that work here; ``gpu_shares`` is how many shares each GPU is offered in."""
    gpu, article = (
        (f"--gpus 1 --gpu-share 1/{gpu_shares}", "a share of a GPU") if gpu_shares > 1 else ("--gpus 1", "a GPU")
    )
    commands = {
        "farbus nodes": "what is there",
        f"farbus run {gpu} -- ./program": f"a CUDA program, with {article} of another node",
        f"farbus submit {gpu} -- ./program": "the same, as a job",
        **({f"farbus run {gpu} --transport rdma -- ./program": "the same, by RDMA"} if rdma else {}),
        "farbus demo": "a guided tour, of a cluster of its own",
    }
    width = max(map(len, commands))
    return ["Try, in another terminal:", *(f"  {command:<{width}}   {what}" for command, what in commands.items())]


def tell_beginning(plan: Plan) -> None:
    """Say at a terminal what begins: for seconds, on a slow machine many, there is nothing else to see."""
    nodes = f"{len(plan.nodes)} nodes" if len(plan.nodes) > 1 else "a node"
    say(f"starting a scheduler and {nodes}", quiet=not sys.stderr.isatty())


def _detach(plan: Plan, directory: Path, options: list[str], state: str) -> int:
    """Start another ``farbus up`` in the background, and wait until it is ready."""
    with runtime.lock(directory):
        # Nobody else runs; let go, so that the other one can take it.
        clean_up(directory)
    tell_beginning(plan)
    environment = dict(os.environ)
    root = str(paths.package_root())
    environment["PYTHONPATH"] = ":".join(filter(None, [root, environment.get("PYTHONPATH", "")]))
    if state:
        options = [*options, f"--state={Path(state).resolve()}"]
    for number in (signal.SIGTERM, signal.SIGHUP):
        # As Ctrl-C: what was started is ended with this.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        arguments = [sys.executable, "-P", "-m", "farbus.cli", "up", *options]
        pid = start_detached(arguments, environment=environment, output=said.fileno())
        try:
            words = _wait_for(pid, said)
        except (KeyboardInterrupt, SystemExit):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            raise
        typer.echo(words.replace("Ctrl-C, or farbus down", "farbus down"), nl=False)
    return int(ExitCode.OK)


def _wait_for(pid: int, said: TextIO) -> str:
    """Return what the other one has said when it is ready: commands find it by then."""
    # The other one knows what is late and gives up by itself: only one that hangs is given up here.
    deadline = time.monotonic() + embedded.LOAD_WITHIN_S + embedded.READY_WITHIN_S + embedded.STOP_WITHIN_S
    while True:
        is_there = process_exists(pid)
        said.seek(0)
        words = said.read()
        if READY in words:
            return words
        if not is_there:
            lines = words.strip().splitlines()
            told = lines[-1] if lines else "farbus up ended without a word"
            raise FarbusError(told.removeprefix("farbus: ")).with_exit_code(detached_exit_code(pid))
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            raise TimedOut("the cluster is not ready, and does not say why", hint="try farbus up without --detach")
        time.sleep(embedded.LOOK_EVERY_S)
