"""KubeComp's simulations: the shapes of figures 11 to 13."""

from __future__ import annotations

import pytest

from farbus.sim.kubecomp import LAYOUTS_11, MIXES_11, RULES_13, Arrival, Report, Row, Rules, draw, run, simulate


@pytest.fixture(scope="module")
def report() -> Report:
    return run(seeds=3, attach_s=0.0)


def rows(report: Report, figure: str, setting: str) -> dict[str, Row]:
    return {row.policy: row for row in report.rows if (row.figure, row.setting) == (figure, setting)}


def test_jobs_of_table_i_come_in_equal_parts() -> None:
    arrivals = draw("ABCDE", 50, 60.0, seed=1)
    assert sorted(each.gpus for each in arrivals) == [1] * 20 + [2] * 10 + [4] * 10 + [8] * 10
    assert arrivals == draw("ABCDE", 50, 60.0, seed=1)
    assert [each.at_s for each in arrivals] == sorted(each.at_s for each in arrivals)


def test_moving_takes_its_time_and_is_counted() -> None:
    result = simulate((2, 6), [Arrival(0.0, 40, 8)], Rules(), attach_s=5.0)
    assert (result.reallocated, result.wait_mean_s) == (2, 10.0)


def test_a_fixed_cluster_moves_nothing() -> None:
    result = simulate((4, 4), [Arrival(0.0, 40, 8), Arrival(1.0, 40, 4)], Rules(pooled=False))
    assert (result.reallocated, result.never, result.wait_mean_s) == (0, 1, 0.0)


def test_first_come_is_first_served() -> None:
    # The second waits for all eight; the third could run, and waits behind it.
    jobs = [Arrival(0.0, 40, 4), Arrival(1.0, 40, 8), Arrival(2.0, 40, 1)]
    assert simulate((8,), jobs, Rules()).wait_mean_s == pytest.approx((0 + 299 + 598) / 3)


def test_another_pool_lends_nothing() -> None:
    result = simulate((4, 4), [Arrival(0.0, 40, 8)], Rules(), pools=(0, 1))
    assert result.never == 1


@pytest.mark.parametrize("interval", [30, 60, 120])
def test_figure_13_both_move_fewer_gpus_than_one_and_one_fewer_than_none(interval: int) -> None:
    # Each alone does most of it: it takes some dozen seeds to tell both from the better one.
    draws = [draw("ABCDE", 50, interval, seed=seed) for seed in range(60)]
    moved = {
        name: sum(simulate((6,) * 5, jobs, rules, seed=seed).reallocated for seed, jobs in enumerate(draws))
        for name, rules in RULES_13.items()
    }
    assert moved["both"] < min(moved["best-fit"], moved["least-demand"])
    assert max(moved["best-fit"], moved["least-demand"]) < moved["none"] / 2


@pytest.mark.parametrize("mix", MIXES_11)
def test_figure_11_no_fixed_layout_that_runs_all_jobs_waits_less(report: Report, mix: str) -> None:
    there = rows(report, "11", f"jobs {mix}")
    whole = [there[name].wait_mean_s for name in LAYOUTS_11 if name != "pooled" and not there[name].never]
    assert there["pooled"].never == 0
    assert there["pooled"].wait_mean_s <= min(whole) + 1e-9


def test_figure_11_fixed_fours_tie_where_all_want_one_gpu_and_can_not_run_eights(report: Report) -> None:
    ones = rows(report, "11", "jobs A")
    assert ones["4 each"].wait_mean_s == ones["pooled"].wait_mean_s
    assert rows(report, "11", "jobs E")["4 each"].never == 100


@pytest.mark.parametrize("pools", [1, 2, 4])
def test_figure_12_a_configurable_cluster_waits_less_with_any_number_of_pools(report: Report, pools: int) -> None:
    there = rows(report, "12", f"{pools} pools of 24 GPUs")
    assert there["pooled"].wait_mean_s < 0.9 * there["fixed 4+4+8+8"].wait_mean_s
