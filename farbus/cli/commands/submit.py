"""``farbus submit``."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from farbus.cli import jobfile
from farbus.cli.completion import complete_node
from farbus.cli.connection import Target, connect, find_target
from farbus.cli.decoding import convert_fields
from farbus.cli.faults import current_directory
from farbus.cli.following import exit_code_of_job, follow_job, job_error, say
from farbus.cli.listing import print_json, printable
from farbus.cli.options import (
    ApplicationOption,
    CommandAfterDashes,
    CpusOption,
    CredentialsOption,
    DeadlineOption,
    GpuMemoryOption,
    GpuModelOption,
    GpuShareOption,
    GpusOption,
    GpuSpanOption,
    ImportanceOption,
    MemoryOption,
    NetworkOption,
    Output,
    OutputOption,
    RemoteNetworkOption,
    RouteOption,
    ServerOption,
    SloOption,
    SocketOption,
    command_app,
    examples,
    has_dashes,
    read_goal,
    resource_table,
)
from farbus.cli.staging import LocalFile, find_files, parse_stage_in, send_files
from farbus.cli.tables import format_placement
from farbus.errors import FarbusError, InvalidInput, NotFound, Unsatisfiable
from farbus.model.job import FlavourCheck, Goal, Job, JobStatus
from farbus.model.quantity import format_bytes, format_cpu, format_network, parse_seconds

if TYPE_CHECKING:
    from farbus.api.client import ClusterClient

app = command_app()

_DEFAULTS = {
    "gpus": 0,
    "gpu_memory": "",
    "gpu_model": "",
    "gpu_share": "",
    "gpu_span": False,
    "remote_network": "",
    "cpus": "1",
    "memory": "256MiB",
    "network": "",
    "routes": None,
    "count": 1,
}


@app.command(
    cls=CommandAfterDashes,
    epilog=examples(
        "farbus submit job.toml                          queue what the file describes",
        "farbus submit job.toml --check                  say where it would go now; queue nothing",
        "farbus submit --follow job.toml                 queue it, show its output, end with its exit code",
        "farbus submit --gpus 1 -- ./train --epochs 3    queue a command without a file",
        "farbus submit --gpus 1 --gpu-share 1/4 -- ./infer    with a quarter of a GPU",
        "farbus submit --count 4 --gpus 1 -- ./train    four tasks, which meet at $FARBUS_FIRST_ADDRESS",
        "farbus submit --stage-in train --stage-out model -- ./train    where no directory is shared",
        "",
        "Job files are explained in docs/job-files.md.",
        "A job has no GPU unless it asks for one, by --gpus 1 or gpus = 1 in its file; its program finds none then. "
        "farbus run asks for one by itself.",
    ),
)
def submit(
    ctx: typer.Context,
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="FILE|-- PROGRAM", help="A job file (- for standard input), or a command after --."),
    ],
    check: Annotated[bool, typer.Option("--check", help="Say where the job would go; queue nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for its end; end with its exit code.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Like --wait, and show its output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing about waiting and placement.")] = False,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name the job.", show_default=False)] = "",
    gpus: GpusOption = 0,
    gpu_memory: GpuMemoryOption = "",
    gpu_model: GpuModelOption = "",
    gpu_share: GpuShareOption = "",
    gpu_span: GpuSpanOption = False,
    cpus: CpusOption = "1",
    memory: MemoryOption = "256MiB",
    network: NetworkOption = "",
    remote_network: RemoteNetworkOption = "",
    routes: RouteOption = None,
    count: Annotated[
        int, typer.Option("--count", metavar="N", min=1, max=jobfile.MAX_TASKS, help="How many tasks.")
    ] = 1,
    node: Annotated[
        str,
        typer.Option(
            "--node",
            metavar="NAME",
            help="The node that must run it.",
            autocompletion=complete_node,
            show_default=False,
        ),
    ] = "",
    environment: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="NAME[=VALUE]", help="Add a variable; without a value, take yours."),
    ] = None,
    time_limit: Annotated[
        str, typer.Option("--time-limit", metavar="TIME", help="Longest run: 90s, 30m, 2h.", show_default=False)
    ] = "",
    slo: SloOption = "",
    importance: ImportanceOption = None,
    deadline: DeadlineOption = "",
    application: ApplicationOption = "",
    stage_in: Annotated[
        list[str] | None,
        typer.Option("--stage-in", metavar="FILE[:DEST]", help="Take a file or directory along; repeat for several."),
    ] = None,
    stage_out: Annotated[
        list[str] | None,
        typer.Option("--stage-out", metavar="PATH", help="Keep what the task leaves there, for farbus fetch."),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority",
            metavar="N",
            min=-jobfile.MAX_PRIORITY,
            max=jobfile.MAX_PRIORITY,
            help="More goes first.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> int:
    """Queue a job: what a file describes, or a command.  Prints the job's id."""
    _check_options(name=name, time_limit=time_limit)
    variables = _read_variables(environment or [])
    carried = [parse_stage_in(word) for word in stage_in or []]
    tables, directory = carried, current_directory()
    goal = read_goal(slo=slo, importance=importance, deadline=deadline)
    given: dict[str, Any] = {"gpus": gpus, "gpu_memory": gpu_memory, "gpu_model": gpu_model, "gpu_share": gpu_share}
    given |= {"gpu_span": gpu_span, "remote_network": remote_network}
    given |= {"cpus": cpus, "memory": memory, "network": network}
    if has_dashes(ctx):
        job = _command_job(
            arguments,
            name=name,
            resources=resource_table(**given),
            table={"count": count, "node": node, "env": variables},
            carried=carried,
            kept=stage_out or [],
            routes=[route.value for route in routes] if routes else None,
            time_limit=time_limit,
            priority=priority,
        )
    else:
        if len(arguments) != 1:
            raise InvalidInput(
                f"{len(arguments)} job files given, or a command without --",
                hint=f"write farbus submit [options] -- {' '.join(arguments[:3])}",
            )
        for option, value in (given | {"routes": routes, "count": count}).items():
            if value != _DEFAULTS[option]:
                raise InvalidInput(
                    f"--{option.replace('_', '-')} is for a command after --",
                    hint=f"write it into {arguments[0]}",
                )
        job, tables, directory = _file_job(
            arguments[0],
            name=name,
            node=node,
            variables=variables,
            time_limit=time_limit,
            priority=priority,
            carried=carried,
            kept=stage_out or [],
        )
    job = _with_wishes(job, goal, application)
    target = find_target(socket=socket, server=server, credentials=credentials)
    # Also for a check: files that can't be read are what it is there to tell.
    files = find_files(tables, directory)
    if check:
        return asyncio.run(_check(target, job, output))
    return asyncio.run(_submit(target, job, files, output, wait=wait or follow, follow=follow, quiet=quiet))


def _with_wishes(job: Job, goal: Goal, application: str) -> Job:
    """Return the job with what options wish for it, before what its file says."""
    given = {name: value for name, value in msgspec.structs.asdict(goal).items() if value}
    if goal.deadline_s or goal.deadline_at:
        given |= {"deadline_s": goal.deadline_s, "deadline_at": goal.deadline_at}
    goal = msgspec.structs.replace(job.goal, **given)
    return msgspec.structs.replace(job, goal=goal, application=application or job.application)


def _check_options(*, name: str, time_limit: str) -> None:
    """Raise :class:`InvalidInput` naming the option: later they are taken for the job file's."""
    if name:
        jobfile.check_name(name, "--name")
    if time_limit:
        parse_seconds(time_limit, what="--time-limit")


def _read_variables(words: list[str]) -> dict[str, str]:
    variables = {}
    for word in words:
        variable, equals, value = word.partition("=")
        jobfile.check_variable(variable, f"--env {word[:80]}")
        if not equals:
            if variable not in os.environ:
                raise InvalidInput(f"--env {variable}: you have no such variable", hint=f"write --env {variable}=VALUE")
            value = os.environ[variable]
        variables[variable] = value
    return variables


def _command_job(
    command: list[str],
    *,
    name: str,
    resources: jobfile.ResourceTable,
    table: dict[str, object],
    routes: list[str] | None,
    time_limit: str,
    priority: int | None,
    carried: list[jobfile.StageTable],
    kept: list[str],
) -> Job:
    jobfile.convert_requests(resources, "--")
    fields: dict[str, object] = {"name": name, "command": command, **table}
    fields |= {"time_limit": time_limit or 0, "priority": priority or 0}
    if routes:
        fields["routes"] = routes
    job_table = convert_fields(fields, jobfile.JobTable, name="the command")
    job_table.resources = resources
    job_table.stage_in, job_table.stage_out = carried, kept
    return jobfile.convert_table(
        job_table, name="the command", directory=current_directory(), fallback=jobfile.name_from(command[0])
    )


def _file_job(
    path: str,
    *,
    name: str,
    node: str,
    variables: dict[str, str],
    time_limit: str,
    priority: int | None,
    carried: list[jobfile.StageTable],
    kept: list[str],
) -> tuple[Job, list[jobfile.StageTable], Path]:
    """Read a job file; options that say how to treat the job as a whole go before what the file says."""
    try:
        table, shown, directory = jobfile.read_table(path)
    except NotFound as error:
        # As of a command without the dashes.
        raise NotFound(error.message, hint=f"{error.hint}; a command goes after --") from error
    if name:
        table.name = name
    if node:
        for task in table.task or [table]:
            task.node = node
    table.env = {**table.env, **variables}
    if time_limit:
        table.time_limit = time_limit
    if priority is not None:
        table.priority = priority
    for given in carried:
        # Those of the command line begin where the command does.
        given.source = str(current_directory() / given.source)
    table.stage_in, table.stage_out = [*table.stage_in, *carried], [*table.stage_out, *kept]
    job = jobfile.convert_table(table, name=shown, directory=directory, fallback=jobfile.name_from(shown))
    return job, table.stage_in, directory


async def _check(target: Target, job: Job, output: Output) -> int:
    async with connect(target) as client:
        _, status = await client.submit(job, check_only=True)
    if status is None:
        typer.echo(f"{job.name}: the job is well-formed")
        return 0
    permanent = [miss for miss in status.misses if miss.permanent]
    if permanent:
        raise Unsatisfiable(
            f"{job.name} can never run here: {'; '.join(miss.message for miss in permanent)}",
            hint="ask for less, or add what is missing",
        )
    if output is Output.JSON:
        print_json(status)
        return 0
    if status.alternative:
        typer.echo(printable(f"{job.name} would be placed as its alternative {status.alternative}"))
    if status.placements:
        for placement in status.placements:
            why = f": {placement.why}" if placement.why else ""
            typer.echo(printable(f"{placement.task} would go to {format_placement(placement)}{why}"))
    else:
        why = "; ".join(miss.message for miss in status.misses) or status.reason or "no reason is known"
        typer.echo(printable(f"{job.name} would wait: {why}"))
    for flavour in status.flavours:
        typer.echo(printable(_describe_flavour(flavour)))
    return 0


def _describe_flavour(flavour: FlavourCheck) -> str:
    """Say what one way to run a job needs, and what would become of it."""
    name = f"alternative {flavour.alternative}" if flavour.alternative else "as it stands"
    needs = f"{format_cpu(flavour.cpu_milli)} CPUs, {format_bytes(flavour.memory_bytes)}"
    needs += f", {format_network(flavour.network_mbit_s)}" if flavour.network_mbit_s else ""
    needs += f", {flavour.gpus} GPU{'s' if flavour.gpus > 1 else ''}" if flavour.gpus else ""
    if flavour.placements:
        nodes = ", ".join(dict.fromkeys(task.node for task in flavour.placements))
        return f"{name}: {needs} in all; would go to {nodes}"
    why = "; ".join(miss.message for miss in flavour.misses) or "no reason is known"
    return f"{name}: {needs} in all; would {'never run' if any(m.permanent for m in flavour.misses) else 'wait'}: {why}"


async def _submit(
    target: Target,
    job: Job,
    files: Sequence[LocalFile],
    output: Output,
    *,
    wait: bool,
    follow: bool,
    quiet: bool,
) -> int:
    async with connect(target) as client:
        if files:
            from farbus.api.staging import StagingClient  # noqa: PLC0415 - gRPC takes a third of a second to load

            job = msgspec.structs.replace(job, stage_in=await send_files(StagingClient(client), files))
        job_id, _ = await client.submit(job)
        if not wait:
            if output is Output.JSON:
                print_json(await client.get_job(job_id))
            else:
                typer.echo(job_id)
                if sys.stdout.isatty():
                    bare = "" if job.asks_for_gpus else ", without a GPU"
                    say(f"queued{bare}; farbus logs -f {job_id} follows it", quiet=quiet)
            return 0
        say(f"{job_id} queued", quiet=quiet)
        # What programs read is the JSON alone.
        aside = output is Output.JSON
        status = await _follow(client, job_id, follow=follow, quiet=quiet, aside=aside)
        if aside:
            print_json(status)
        return exit_code_of_job(status)


async def _follow(client: ClusterClient, job_id: str, *, follow: bool, quiet: bool, aside: bool) -> JobStatus:
    try:
        return await follow_job(client, job_id, output=follow, quiet=quiet, aside=aside)
    except FarbusError as error:
        if client.is_over():
            raise
        raise job_error(error, job_id) from error
    except asyncio.CancelledError:
        # Ctrl-C ends the watching, not the job.
        say(f"{job_id} goes on; farbus logs -f {job_id} follows it, farbus cancel {job_id} ends it")
        raise
