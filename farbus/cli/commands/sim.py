"""``farbus sim``: the scheduler's code under a virtual clock."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from farbus.cli.listing import Column, print_json, print_listing
from farbus.cli.options import Output, OutputOption, WholeTable, command_app, examples
from farbus.sim import drmaestro, experiments, hire, kubecomp, replays, traces
from farbus.sim.experiments import Mode, Row
from farbus.sim.replays import Options

app = command_app()
run_app = command_app()


class Experiment(msgspec.Struct, frozen=True):
    """One line of the listing."""

    name: str
    what: str


class ExperimentTable(WholeTable):
    """The experiments as commands; a wrong name gets the right ones."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the experiment that ``args`` name."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and not ctx.resilient_parsing:
            experiments.check_name(name)
        return super().resolve_command(ctx, args)


@app.callback(epilog=examples("farbus sim list", "farbus sim run workload-aware-placement"))
def sim() -> None:
    """Run experiments in the simulator: the scheduler's code, a virtual clock, seeds."""


@app.command(name="list", epilog=examples("farbus sim list", "farbus sim list -o json"))
def list_experiments(output: OutputOption = Output.TABLE) -> int:
    """List the experiments."""
    known = [Experiment(name, what) for name, what in experiments.EXPERIMENTS.items()]
    columns = (Column[Experiment]("NAME", lambda one: one.name), Column[Experiment]("WHAT", lambda one: one.what))
    print_listing(known, columns, output, nothing="there are no experiments")
    return 0


app.add_typer(run_app, name="run", cls=ExperimentTable, help="Run an experiment, or replay a trace.")

SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Of all that is drawn.")]


def _cell(column: str, *, short: str) -> Column[Row]:
    def text(row: Row) -> str:
        ours, theirs = row.cells[column], row.published[column]
        return ours if ours == theirs else f"{ours} ({theirs})"

    return Column(short, text, right=True)


COLUMNS: tuple[Column[Row], ...] = (
    Column("SCENARIO", lambda row: row.scenario),
    Column("LOAD", lambda row: f"{row.target_load:g}"),
    Column("POLICY", lambda row: row.policy),
    Column("DRIVES", lambda row: row.drives),
    _cell("processor load", short="CPU"),
    _cell("bandwidth load", short="BW"),
    _cell("capacity load", short="CAP"),
    _cell("missed %", short="MISSED %"),
    _cell("missed urgent %", short="URGENT %"),
    _cell("drives used %", short="USED %"),
    _cell("waiting s", short="WAITING S"),
    _cell("composition size", short="SIZE"),
    _cell("sharing", short="SHARING"),
)


@run_app.command(
    name="workload-aware-placement",
    epilog=examples(
        "farbus sim run workload-aware-placement",
        "farbus sim run workload-aware-placement --mode corrected --seed 7",
        "farbus sim run workload-aware-placement -o json | jq .cells_matching",
    ),
)
def workload_aware_placement(
    mode: Annotated[
        Mode,
        typer.Option("--mode", help="paper-exact: as the published numbers were made; corrected: as the text says."),
    ] = Mode.PAPER_EXACT,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Of what is drawn, in the corrected mode."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> int:
    """Place NVMe drives by workload: tables III to V of the paper, beside what it prints.

    A cell that differs from the paper's has the paper's in parentheses.
    It takes about half a minute; docs/experiments.md says what the modes are.
    """
    report = experiments.run(mode=mode, seed=seed, tell=_progress if sys.stderr.isatty() else None)
    if output is Output.JSON:
        print_json(report)
        return 0
    print_listing(report.rows, COLUMNS, output, nothing="no rows")
    sys.stdout.write(f"\n{report.cells_matching} of {report.cells_total} cells as published\n")
    return 0


PolicyOption = Annotated[
    str, typer.Option("--policy", metavar="NAME|all", help="The policy, or all of them side by side.")
]
CompressOption = Annotated[
    float, typer.Option("--compress", metavar="F", help="Let F times as many jobs come in a second.")
]
ShrinkOption = Annotated[int, typer.Option("--shrink", metavar="K", min=1, help="Keep one of K nodes of each shape.")]
LimitOption = Annotated[int, typer.Option("--limit", metavar="N", min=0, help="Take the first N jobs; 0 takes all.")]
SlowdownOption = Annotated[
    float,
    typer.Option(
        "--slowdown",
        metavar="PART",
        min=0.0,
        max=100.0,
        help="How much longer a job runs whose devices are remote, as a part of its time: no trace knows it.",
    ),
]
EveryOption = Annotated[
    float, typer.Option("--every", metavar="SECONDS", min=0.0, max=86400.0, help="Least virtual time between rounds.")
]
CertifyOption = Annotated[
    bool, typer.Option("--certify", help="Prove of every solve that no flow costs less; it takes longer.")
]

REPLAY_COLUMNS: tuple[Column[replays.Row], ...] = (
    Column("POLICY", lambda row: row.policy),
    Column("PLACED", lambda row: str(row.outcome.placed), right=True),
    Column("WAIT MEAN S", lambda row: f"{row.outcome.wait_mean_s:.0f}", right=True),
    Column("P50", lambda row: f"{row.outcome.wait_p50_s:.0f}", right=True),
    Column("P95", lambda row: f"{row.outcome.wait_p95_s:.0f}", right=True),
    Column("P99", lambda row: f"{row.outcome.wait_p99_s:.0f}", right=True),
    Column("MAKESPAN S", lambda row: f"{row.outcome.makespan_s:.0f}", right=True),
    Column("ALLOCATED %", lambda row: f"{100 * row.outcome.gpu_allocation:.1f}", right=True),
    Column("USED %", lambda row: f"{100 * row.outcome.gpu_use:.1f}", right=True),
    Column("FRAGMENTS %", lambda row: f"{100 * row.outcome.fragmentation:.2f}", right=True),
    Column("REMOTE %", lambda row: f"{100 * row.outcome.remote:.1f}", right=True),
    Column("GOALS MISSED", lambda row: str(row.outcome.goals_missed), right=True, wide=True),
    Column("ROUNDS", lambda row: str(row.outcome.rounds), right=True, wide=True),
    Column("CPU MS P50", lambda row: f"{row.outcome.decision_cpu_p50_ms:.2f}", right=True),
    Column("P99", lambda row: f"{row.outcome.decision_cpu_p99_ms:.2f}", right=True),
)


@run_app.command(
    name="openb",
    epilog=examples(
        "farbus sim run openb --nodes openb_node_list_gpu_node.csv --pods openb_pod_list_default.csv",
        "farbus sim run openb --nodes NODES --pods PODS --policy all --compress 200 --shrink 8 -o json",
        "",
        "Jobs that share a GPU in the trace (gpu_milli) get a whole one: operators cut shares, not jobs.",
    ),
)
def openb(
    nodes: Annotated[Path, typer.Option("--nodes", metavar="FILE", help="openb_node_list_*.csv", show_default=False)],
    pods: Annotated[Path, typer.Option("--pods", metavar="FILE", help="openb_pod_list_*.csv", show_default=False)],
    policy: PolicyOption = "default",
    shares: Annotated[
        traces.Shares,
        typer.Option("--shares", help="Jobs that want a part of a GPU: whole gives each one to itself, skip none."),
    ] = traces.Shares.WHOLE,
    compress: CompressOption = 1.0,
    shrink: ShrinkOption = 1,
    limit: LimitOption = 0,
    slowdown: SlowdownOption = 0.0,
    every: EveryOption = 0.0,
    certify: CertifyOption = False,
    seed: SeedOption = 0,
    output: OutputOption = Output.TABLE,
) -> int:
    """Replay Alibaba's cluster-trace-gpu-v2023: 1,213 nodes with 6,212 GPUs, 8,152 pods.

    The trace alone asks for less than a hundredth of its cluster: --compress and --shrink raise the load.
    """
    trace = traces.read_openb(nodes, pods, shares=shares)
    options = Options(
        compress=compress, shrink=shrink, limit=limit, slowdown=slowdown, every_s=every, seed=seed, certify=certify
    )
    return _replay("openb", trace, policy, options, output)


@run_app.command(
    name="philly",
    epilog=examples("farbus sim run philly --jobs trace_job_Philly_SLO.csv --machines 60 --policy drmaestro"),
)
def philly(
    jobs: Annotated[Path, typer.Option("--jobs", metavar="FILE", help="trace_job_*_SLO.csv", show_default=False)],
    machines: Annotated[int, typer.Option("--machines", metavar="N", help="Machines with 8 GPUs each.")] = 60,
    policy: PolicyOption = "default",
    compress: CompressOption = 1.0,
    limit: LimitOption = 0,
    slowdown: SlowdownOption = 0.0,
    every: EveryOption = 0.0,
    certify: CertifyOption = False,
    seed: SeedOption = 0,
    output: OutputOption = Output.TABLE,
) -> int:
    """Replay the jobs that Chronus's authors derived from Microsoft's Philly trace, with a goal for each."""
    trace = traces.read_philly(jobs, machines=machines)
    options = Options(compress=compress, limit=limit, slowdown=slowdown, every_s=every, seed=seed, certify=certify)
    return _replay("philly", trace, policy, options, output)


SeedsOption = Annotated[
    int, typer.Option("--seeds", metavar="N", min=1, max=1000, help="Run each setting with so many seeds.")
]

DRMAESTRO_COLUMNS: tuple[Column[drmaestro.Row], ...] = (
    Column("JOBS", lambda row: str(row.jobs), right=True),
    Column("MACHINES", lambda row: str(row.machines), right=True),
    Column("POLICY", lambda row: row.policy),
    Column("MAKESPAN S", lambda row: f"{row.makespan_s:.0f} ({row.published_makespan_s:.0f})", right=True),
    Column("VIOLATED", lambda row: f"{row.violated:.0f} ({row.published_violated})", right=True),
    Column("REMOTE %", lambda row: f"{100 * row.remote:.0f}", right=True),
    Column("WAIT MEAN S", lambda row: f"{row.wait_mean_s:.0f}", right=True),
    Column("CPU MS P50", lambda row: f"{row.decision_cpu_p50_ms:.1f}", right=True),
)


@run_app.command(
    name="drmaestro",
    epilog=examples("farbus sim run drmaestro --scenarios 3", "farbus sim run drmaestro --seeds 10 -o json"),
)
def run_drmaestro(
    scenarios: Annotated[
        int,
        typer.Option("--scenarios", metavar="N", min=1, max=4, help="The first N of four; the last takes minutes."),
    ] = 3,
    seeds: SeedsOption = 1,
    seed: SeedOption = 0,
    output: OutputOption = Output.TABLE,
) -> int:
    """Lend GPUs over the network: tables 2 to 5 of DRMaestro, in shape; the paper's figures in parentheses."""
    report = drmaestro.run(scenarios=scenarios, seeds=seeds, seed=seed, tell=_progress if sys.stderr.isatty() else None)
    if output is Output.JSON:
        print_json(report)
        return 0
    print_listing(report.rows, DRMAESTRO_COLUMNS, output, nothing="no rows")
    return 0


KUBECOMP_COLUMNS: tuple[Column[kubecomp.Row], ...] = (
    Column("FIGURE", lambda row: row.figure),
    Column("SETTING", lambda row: row.setting),
    Column("POLICY", lambda row: row.policy),
    Column("WAIT MEAN S", lambda row: f"{row.wait_mean_s:.1f}", right=True),
    Column("MOVED GPUS", lambda row: f"{row.reallocated:.1f}", right=True),
    Column("NEVER RUN", lambda row: f"{row.never:g}", right=True),
)


@run_app.command(
    name="kubecomp",
    epilog=examples("farbus sim run kubecomp", "farbus sim run kubecomp --attach-s 0 --seeds 100 -o json"),
)
def run_kubecomp(
    attach_s: Annotated[
        float,
        typer.Option("--attach-s", metavar="SECONDS", min=0.0, max=3600.0, help="How long moving one GPU takes."),
    ] = kubecomp.ATTACH_S,
    seeds: SeedsOption = kubecomp.SEEDS,
    seed: SeedOption = 0,
    output: OutputOption = Output.TABLE,
) -> int:
    """Move GPUs between nodes: figures 11 to 13 of KubeComp, in shape."""
    report = kubecomp.run(attach_s=attach_s, seeds=seeds, seed=seed, tell=_progress if sys.stderr.isatty() else None)
    if output is Output.JSON:
        print_json(report)
        return 0
    print_listing(report.rows, KUBECOMP_COLUMNS, output, nothing="no rows")
    return 0


HIRE_COLUMNS: tuple[Column[hire.Row], ...] = (
    Column("SWITCHES RUN", lambda row: row.switches),
    Column("MU", lambda row: f"{row.mu:g}", right=True),
    Column("POLICY", lambda row: row.policy),
    Column("SATISFIED %", lambda row: f"{100 * row.satisfied:.1f}", right=True),
    Column("GROUPS %", lambda row: f"{100 * row.parts:.1f}", right=True),
    Column("DETOURS", lambda row: f"{row.detours:.2f}", right=True),
    Column("LEVELS", lambda row: f"{row.levels:.2f}", right=True),
    Column("SRAM %", lambda row: f"{100 * row.sram:.1f}", right=True),
    Column("STAGES %", lambda row: f"{100 * row.stages:.1f}", right=True),
    Column("WAIT P50 S", lambda row: f"{row.wait_p50_s:.1f}", right=True),
    Column("P99", lambda row: f"{row.wait_p99_s:.1f}", right=True),
    Column("NEVER RUN", lambda row: f"{row.never:g}", right=True, wide=True),
    Column("CPU MS P50", lambda row: f"{row.decision_cpu_p50_ms:.1f}", right=True),
)


@run_app.command(
    name="hire",
    epilog=examples("farbus sim run hire", "farbus sim run hire --ports 8 --jobs 1000 --mu 1 --seeds 3 -o json"),
)
def run_hire(
    ports: Annotated[
        int, typer.Option("--ports", metavar="K", min=4, max=26, help="Ports of each switch: K*K*K/4 servers.")
    ] = hire.PORTS,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="How many jobs come.")] = hire.JOBS,
    mu: Annotated[
        list[float],
        typer.Option("--mu", metavar="PART", min=0.0, max=1.0, help="Part of the jobs that ask for switches."),
    ] = list(hire.MUS),  # noqa: B006 - typer copies it
    seeds: SeedsOption = 1,
    seed: SeedOption = 0,
    output: OutputOption = Output.TABLE,
) -> int:
    """Serve jobs with switches: figure 8 of HIRE, in shape, on jobs that are drawn.  It takes some minutes."""
    tell = _progress if sys.stderr.isatty() else None
    report = hire.run(ports=ports, jobs=jobs, mus=tuple(mu), seeds=seeds, seed=seed, tell=tell)
    if output is Output.JSON:
        print_json(report)
        return 0
    print_listing(report.rows, HIRE_COLUMNS, output, nothing="no rows")
    sys.stdout.write(f"\n{report.jobs} jobs on {report.servers} servers with {report.switches} switches\n")
    return 0


def _replay(experiment: str, trace: traces.Trace, policy: str, options: Options, output: Output) -> int:
    chosen = replays.names(policy)
    tell = _replay_progress if sys.stderr.isatty() else None
    report = replays.replay(experiment, trace, chosen, options, tell=tell)
    if output is Output.JSON:
        print_json(report)
        return 0
    print_listing(report.rows, REPLAY_COLUMNS, output, nothing="no rows")
    sys.stdout.write(
        f"\n{report.jobs} jobs on {report.nodes} nodes with {report.gpus} GPUs; "
        f"they ask for {100 * report.offered_load:.1f} % of the GPUs while jobs come\n"
    )
    if report.sharing_jobs:
        sys.stdout.write(
            f"{report.sharing_jobs} jobs that shared a GPU in the trace have a whole one each: "
            f"{100 * report.gpu_seconds_added:.0f} % more GPU time than the trace used\n"
        )
    return 0


def _progress(done: int, total: int) -> None:
    end = "\r" if done < total - 1 else "\r\x1b[K"
    sys.stderr.write(f"row {done + 1} of {total}{end}")
    sys.stderr.flush()


PROGRESS_STEPS = 200
"""Times that a replay's progress is written anew."""


def _replay_progress(policy: str, done: int, total: int) -> None:
    if done % max(total // PROGRESS_STEPS, 1) and done < total:
        return
    end = "\r" if done < total else "\r\x1b[K"
    sys.stderr.write(f"{policy}: {done} of {total} jobs have ended\x1b[K{end}")
    sys.stderr.flush()
