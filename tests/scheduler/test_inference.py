"""What is learned of applications from the runs that ended."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farbus.errors import InvalidInput
from farbus.model.device import Route
from farbus.model.profile import ObservedRun
from farbus.scheduler.costs import inference
from farbus.scheduler.costs.inference import WINDOW, InferenceEngine


def run(seconds: float, *, load: float = 0.0, flavour: Route | None = Route.LOCAL, **more: Any) -> ObservedRun:
    return ObservedRun(
        application=more.pop("application", "nw"), flavour=flavour, network_load=load, seconds=seconds, **more
    )


def learned(*runs: ObservedRun) -> InferenceEngine:
    engine = InferenceEngine()
    for each in runs:
        engine.observe(each)
    return engine


def test_nothing_is_known_of_an_application_that_never_ran() -> None:
    assert InferenceEngine().profile("nw") is None


def test_a_flavour_is_told_by_median_spread_and_count() -> None:
    profile = learned(run(10), run(12), run(11), run(90)).profile("nw")
    assert profile is not None
    local = profile.time(Route.LOCAL)
    assert local is not None
    # One run of 90 s moves neither far.
    assert (local.count, local.median_s, local.spread_s) == (4, 11.5, 1.0)


def test_flavours_and_sharings_are_told_apart() -> None:
    profile = learned(run(10), run(20, flavour=Route.REMOTE), run(30, sharing=2), run(5, flavour=None)).profile("nw")
    assert profile is not None
    assert [(each.flavour, each.sharing, each.median_s) for each in profile.times] == [
        (None, 1, 5),
        (Route.LOCAL, 1, 10),
        (Route.LOCAL, 2, 30),
        (Route.REMOTE, 1, 20),
    ]
    assert profile.time(Route.RECOMPOSED) is None


def test_old_runs_are_forgotten() -> None:
    profile = learned(*(run(100) for _ in range(WINDOW)), *(run(10) for _ in range(WINDOW))).profile("nw")
    assert profile is not None
    assert profile.times[0].median_s == 10


def test_sensitivity_is_what_the_load_adds() -> None:
    # Twice as long with a full link: sf = 1.
    far = [run(10 * (1 + load), load=load, flavour=Route.REMOTE) for load in (0.0, 0.5, 1.0)]
    profile = learned(*far).profile("nw")
    assert profile is not None
    assert (profile.sensitivity, profile.sensitivity_count) == (pytest.approx(1.0), 2)
    assert profile.times[0].median_s == 10


@given(sensitivity=st.floats(0, 5), base=st.floats(1, 1e4))
def test_sensitivity_is_found_without_a_calm_run(sensitivity: float, base: float) -> None:
    far = [run(base * (1 + sensitivity * load), load=load, flavour=Route.REMOTE) for load in (0.3, 0.6, 0.9)]
    profile = learned(*far).profile("nw")
    assert profile is not None
    assert profile.sensitivity == pytest.approx(sensitivity, abs=1e-6, rel=1e-6)


def test_local_runs_say_nothing_of_the_network() -> None:
    profile = learned(run(10), run(30, load=0.9)).profile("nw")
    assert profile is not None
    assert (profile.sensitivity, profile.sensitivity_count) == (0, 0)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "MAX_APPLICATIONS", 2)
    engine = learned(run(1, application="a"), run(1, application="b"), run(1, application="a"), run(1, application="c"))
    assert [profile.application for profile in engine.profiles()] == ["a", "c"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("seconds", 0.0), ("seconds", float("nan")), ("network_load", 1.5), ("sharing", 0), ("application", "")],
)
def test_a_run_that_can_not_be_is_refused(field: str, value: object) -> None:
    good: dict[str, Any] = {"application": "nw", "seconds": 1.0}
    with pytest.raises(InvalidInput, match=f"observed run: {field}"):
        InferenceEngine().observe(ObservedRun(**{**good, field: value}))
