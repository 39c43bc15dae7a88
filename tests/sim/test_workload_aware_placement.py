"""The paper's tables III to V, cell by cell, and what the simulation must hold to."""

from __future__ import annotations

import math

import pytest

from farbus.errors import InvalidInput
from farbus.scheduler.composition.conventions import CORRECTED, PAPER_EXACT, Conventions
from farbus.scheduler.composition.policies import AwarePolicy
from farbus.scheduler.composition.pool import Cluster, Workload
from farbus.sim import published
from farbus.sim.experiments import Mode, printed_cells, run
from farbus.sim.workload_aware_placement import SCENARIOS, Load, Simulation, make_workloads, simulate

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
QUICK_LOADS = (0.5, 0.6, 0.7)
"""The other loads take ten times as long: `farbus sim run` has them all."""


def test_there_are_540_cells() -> None:
    assert sum(len(row.cells) for row in published.rows()) == 540


@pytest.mark.parametrize("scenario", BY_NAME)
def test_published_rows(scenario: str) -> None:
    for row in published.rows():
        if row.scenario == scenario and row.target_load in QUICK_LOADS:
            outcome = simulate(
                BY_NAME[scenario], row.target_load, aware=row.aware, attached=row.attached, conventions=PAPER_EXACT
            )
            assert printed_cells(outcome, row.cells) == row.cells, row


def test_equation_5_the_deadline_is_the_arrival_and_so_many_base_times() -> None:
    workloads = make_workloads(SCENARIOS[0], 1.0, conventions=CORRECTED)
    assert {each.urgent for each in workloads} == {False, True}
    for each in workloads:
        factor = 1.2 if each.urgent else 4
        assert each.deadline == math.floor(each.arrival + factor * each.demand.execution_s)


def test_equation_6_the_load_is_what_is_asked_for_of_what_there_is() -> None:
    # Printed the other way round, by which a full cluster would have the least load.
    workloads = make_workloads(SCENARIOS[0], 1.0, conventions=CORRECTED)[:3]
    load = Load()
    for each in workloads:
        load = load.plus(each.demand)
    assert load.shares() == (
        sum(each.demand.cores for each in workloads) / (5 * 25),
        sum(each.demand.bandwidth for each in workloads) / (10 * 2000),
        sum(each.demand.capacity for each in workloads) / (10 * 600),
    )


@pytest.mark.parametrize("conventions", [PAPER_EXACT, CORRECTED], ids=["paper-exact", "corrected"])
@pytest.mark.parametrize("attached", [False, True], ids=["pool", "attached"])
def test_time_that_is_skipped_would_have_changed_nothing(
    conventions: Conventions, attached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    workloads = make_workloads(SCENARIOS[0], 0.9, conventions=conventions)[:90]
    skipping = Simulation(workloads, aware=True, attached=attached, conventions=conventions)
    skipping.run()

    def every_second(_: AwarePolicy, cluster: Cluster, pending: list[Workload], *, now: int, until: int) -> int:
        return min(until, now + 1)

    monkeypatch.setattr(AwarePolicy, "next_chance", every_second)
    patient = Simulation(workloads, aware=True, attached=attached, conventions=conventions)
    patient.run()
    assert _course(patient) == _course(skipping)


def _course(simulation: Simulation) -> list[tuple[int, int, int]]:
    return [(run.workload.number, run.started, end) for run, end in simulation.ended]


@pytest.mark.parametrize("aware", [False, True])
def test_all_is_free_again_in_the_end(aware: bool) -> None:
    workloads = make_workloads(SCENARIOS[0], 0.8, conventions=CORRECTED)[:200]
    simulation = Simulation(workloads, aware=aware, attached=False, conventions=CORRECTED)
    simulation.run()
    assert sorted(run.workload.number for run, _ in simulation.ended) == list(range(200))
    for node in simulation.cluster.nodes:
        assert node.free_cores == node.cores
        assert all(node.free_drives)
        assert not list(node.compositions)


def test_the_same_seed_draws_the_same() -> None:
    first = make_workloads(SCENARIOS[1], 1.0, conventions=CORRECTED, seed=9)
    assert first == make_workloads(SCENARIOS[1], 1.0, conventions=CORRECTED, seed=9)
    assert first != make_workloads(SCENARIOS[1], 1.0, conventions=CORRECTED, seed=10)


def test_a_load_that_never_gets_high_is_not_measured() -> None:
    workloads = make_workloads(SCENARIOS[0], 30.0, conventions=PAPER_EXACT)[:50]
    with pytest.raises(InvalidInput, match=r"no load reached 0\.7"):
        Simulation(workloads, aware=False, attached=False, conventions=PAPER_EXACT).run()


def test_a_seed_is_refused_where_the_published_numbers_have_their_own() -> None:
    with pytest.raises(InvalidInput, match="use --mode corrected"):
        run(mode=Mode.PAPER_EXACT, seed=1)
