"""Emulated latencies have the moments and quantiles of the measured table."""

from __future__ import annotations

import random
import statistics

import pytest

from farbus.hotplug.fabric.emulator.faults import Rates
from farbus.hotplug.fabric.emulator.latency import KUBECOMP, fit
from farbus.hotplug.fabric.emulator.replay import RECONFIGURATIONS, replay
from farbus.hotplug.fabric.emulator.virtual import run_virtually
from farbus.model.fabric import FabricStep, StepTime, quantile
from tests.hotplug.fabric.testbed import emulated, gpu

DRAWS = 20_000


@pytest.mark.parametrize("step", FabricStep)
def test_the_distribution_has_the_moments_of_the_table(step: FabricStep) -> None:
    row, latency = KUBECOMP[step], fit(KUBECOMP[step])
    assert latency.mean_s == pytest.approx(row.mean_s, rel=1e-6)
    assert latency.sd_s == pytest.approx(row.sd_s, rel=0.02)
    assert [latency.at(part) for part in (0.0, 0.5, 0.9, 1.0)] == pytest.approx(
        [row.min_s, row.p50_s, row.p90_s, row.max_s]
    )


@pytest.mark.parametrize("step", FabricStep)
def test_seeded_draws_agree_with_the_table(step: FabricStep) -> None:
    row, latency, drawn = KUBECOMP[step], fit(KUBECOMP[step]), random.Random(1)
    times = [latency.at(drawn.random()) for _ in range(DRAWS)]
    # Four standard errors of a mean of so many, and as much for quantiles where the density is not small.
    close = 4 * row.sd_s / DRAWS**0.5
    assert statistics.fmean(times) == pytest.approx(row.mean_s, abs=close)
    assert statistics.stdev(times) == pytest.approx(row.sd_s, rel=0.03)
    assert quantile(times, 0.5) == pytest.approx(row.p50_s, abs=3 * close)
    assert quantile(times, 0.9) == pytest.approx(row.p90_s, abs=3 * close)
    assert row.min_s <= min(times) <= max(times) <= row.max_s


def test_what_a_client_measures_is_what_was_drawn() -> None:
    async def measure() -> list[StepTime]:
        times: list[StepTime] = []
        async with emulated(speed=1.0, seed=3) as bed:
            service = bed.service("h3")
            service._on_time = times.append
            async with service.running():
                for turn in range(60):
                    await service.move(gpu(turn % 8), "beta" if turn // 8 % 2 == 0 else "alpha")
        return times

    times = run_virtually(measure())
    for step in (FabricStep.ASSIGN, FabricStep.UNASSIGN):
        row, seen = KUBECOMP[step], [time.seconds for time in times if time.step is step]
        assert len(seen) > 30
        assert statistics.fmean(seen) == pytest.approx(row.mean_s, abs=4 * row.sd_s / len(seen) ** 0.5)


@pytest.mark.parametrize(("speed", "expected"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_speed_scales_latencies(speed: float, expected: float) -> None:
    async def measure(speed: float) -> float:
        times: list[StepTime] = []
        async with emulated(speed=speed, seed=3) as bed:
            service = bed.service("h3")
            service._on_time = times.append
            async with service.running():
                await service.list()
        return times[0].seconds

    assert run_virtually(measure(speed)) == pytest.approx(expected * run_virtually(measure(1.0)))


def test_kubecomps_reconfigurations_end_under_learned_deadlines() -> None:
    for seed in range(5):
        result = replay(seed=seed)
        assert len(result.reconfigurations) == RECONFIGURATIONS
        # The log has 46 of 53 beyond the published deadline.
        assert 44 <= result.late_by_published_bare <= RECONFIGURATIONS
        assert (result.late_by_learned, result.failed, result.given_up, result.assigned) == (0, 0, 0, 8)
        # Learned, not just generous: a step that hangs is ended within twice the slowest that was measured.
        for step, deadline_s in result.final_deadlines_s.items():
            assert deadline_s <= 2 * KUBECOMP[step].max_s
        assert result == replay(seed=seed)


def test_requests_that_a_chassis_leaves_unanswered_do_not_lengthen_what_it_learns() -> None:
    for seed in range(5):
        calm, result = replay(seed=seed), replay(seed=seed, rates=Rates(hang=0.02))
        assert result.given_up >= 3
        assert (result.failed, result.assigned) == (0, 8)
        for step, deadline_s in result.final_deadlines_s.items():
            assert deadline_s <= 2 * KUBECOMP[step].max_s
        # One that hangs costs its deadline: no other takes longer for it.
        waited_s = max(each.took_s for each in result.reconfigurations)
        assert waited_s <= max(each.took_s for each in calm.reconfigurations) + 2 * KUBECOMP[FabricStep.ASSIGN].max_s
