"""The experiments that ``farbus sim run`` knows, and what each reports."""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from farbus.errors import InvalidInput
from farbus.scheduler.composition.conventions import CORRECTED, PAPER_EXACT
from farbus.sim import published, workload_aware_placement
from farbus.sim.workload_aware_placement import Outcome


class Mode(enum.StrEnum):
    """How to read a paper whose text and numbers part."""

    PAPER_EXACT = "paper-exact"
    CORRECTED = "corrected"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a table, with what was printed beside it; shares in percent, times in seconds."""

    scenario: str
    target_load: float
    policy: str
    drives: str
    outcome: Outcome
    cells: dict[str, str]
    published: dict[str, str]
    cells_matching: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What an experiment found."""

    experiment: str
    mode: str
    seed: int
    cells_matching: int
    cells_total: int
    rows: list[Row]


EXPERIMENTS = {
    "workload-aware-placement": "tables III to V: 3 mixes, 5 loads, drives in a pool or attached, 2 policies",
    "openb": "Alibaba's GPU trace of 2023 under each policy: waits, use, fragmentation, cost of decisions",
    "philly": "Microsoft's Philly trace with goals under each policy",
    "drmaestro": "tables 2 to 5 in shape: GPUs lent over the network, beside a flow over whole servers",
    "hire": "figure 8 in shape: jobs served by switches as more ask for them, beside schedulers without flavours",
    "kubecomp": "figures 11 to 13 in shape: GPUs moved between nodes, beside fixed ones",
}
"""Names, and what each does."""

Tell = Callable[[int, int], None]


def check_name(name: str) -> None:
    """Raise :class:`InvalidInput` for a name that there is not."""
    if name not in EXPERIMENTS:
        raise InvalidInput(f"there is no experiment {name!r}", hint=f"there is {', '.join(EXPERIMENTS)}")


def run(*, mode: Mode, seed: int | None = None, tell: Tell | None = None) -> Report:
    """Run the workload-aware placement; ``tell`` is told how many of how many rows are done.

    Raises :class:`InvalidInput` for a seed where the mode is that of the published numbers.
    """
    exact = mode is Mode.PAPER_EXACT
    if exact and seed is not None:
        raise InvalidInput("--seed: the published numbers have a seed of their own", hint="use --mode corrected")
    seed = workload_aware_placement.SEED if seed is None else seed
    conventions = PAPER_EXACT if exact else CORRECTED
    scenarios = {scenario.name: scenario for scenario in workload_aware_placement.SCENARIOS}
    printed = list(published.rows())
    rows = []
    for number, row in enumerate(printed):
        if tell is not None:
            tell(number, len(printed))
        outcome = workload_aware_placement.simulate(
            scenarios[row.scenario],
            row.target_load,
            aware=row.aware,
            attached=row.attached,
            conventions=conventions,
            seed=seed,
        )
        cells = printed_cells(outcome, row.cells)
        rows.append(
            Row(
                scenario=row.scenario,
                target_load=row.target_load,
                policy="disaggregation-aware" if row.aware else "first fit",
                drives="attached" if row.attached else "pool",
                outcome=outcome,
                cells=dict(zip(published.COLUMNS, cells, strict=True)),
                published=dict(zip(published.COLUMNS, row.cells, strict=True)),
                cells_matching=sum(ours == theirs for ours, theirs in zip(cells, row.cells, strict=True)),
            )
        )
    return Report(
        experiment="workload-aware-placement",
        mode=mode.value,
        seed=seed,
        cells_matching=sum(row.cells_matching for row in rows),
        cells_total=len(rows) * len(published.COLUMNS),
        rows=rows,
    )


def printed_cells(outcome: Outcome, like: tuple[str, ...]) -> tuple[str, ...]:
    """Return the nine cells of a row, with as many decimals as those of ``like``.

    The authors' simulator prints four significant digits, and the tables round those.
    """
    values = (
        _four_digits(outcome.processor_load),
        _four_digits(outcome.bandwidth_load),
        _four_digits(outcome.capacity_load),
        100 * _four_digits(outcome.missed),
        100 * _four_digits(outcome.missed_urgent),
        100 * _four_digits(outcome.drives_used),
        float(outcome.waiting_s),
        _four_digits(outcome.composition_size),
        _four_digits(outcome.sharing),
    )
    return tuple(f"{value:.{len(text.partition('.')[2])}f}" for value, text in zip(values, like, strict=True))


def _four_digits(value: float) -> float:
    return float(f"{value:.4g}")
