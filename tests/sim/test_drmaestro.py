"""DRMaestro's experiments: the shapes of tables 2 and 3 on a small cluster."""

from __future__ import annotations

import pytest

from farbus.errors import InvalidInput
from farbus.sim import drmaestro
from farbus.sim.drmaestro import APPLICATIONS, POLICIES, make_trace, simulate

JOBS, MACHINES, WARM_UP_S = 64, 2, 2000.0


def test_sensitivity_follows_from_the_shares_of_figure_3() -> None:
    by_name = {one.name: one for one in APPLICATIONS}
    # 17 % of the time in the network, 49 % under load: T' = T 0.83 / 0.51.
    assert by_name["nw"].sensitivity == pytest.approx(0.627, abs=0.001)
    assert by_name["hotspot"].sensitivity == pytest.approx(0.008, abs=0.001)
    assert sum(one.time_s for one in APPLICATIONS) / len(APPLICATIONS) == 72


def test_the_same_seed_draws_the_same_jobs() -> None:
    assert make_trace(20, 2, seed=3) == make_trace(20, 2, seed=3)
    assert make_trace(20, 2, seed=3) != make_trace(20, 2, seed=4)


@pytest.mark.parametrize("seed", [0, 1])
def test_lending_shortens_the_makespan_and_network_awareness_the_violations(seed: int) -> None:
    makespan, violated, remote = {}, {}, {}
    for name, make in POLICIES.items():
        world, violated[name] = simulate(JOBS, MACHINES, make(), warm_up_s=WARM_UP_S, seed=seed)
        outcome = world.measures.outcome(world.ended, never=0)
        assert outcome.placed == JOBS
        makespan[name], remote[name] = outcome.makespan_s, outcome.remote
    # Half of the GPUs stand beside processors that are taken: a flow over whole servers can't use them.
    assert remote["firmament"] == 0 < remote["drmaestro"]
    assert 1.1 < makespan["firmament"] / makespan["drmaestro"] < 2.1
    assert makespan["drmaestro + NA"] < makespan["firmament"]
    assert violated["drmaestro + NA"] < violated["drmaestro"]


def test_a_scenario_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--scenarios: 5 is not from 1 to 4"):
        drmaestro.run(scenarios=5)
