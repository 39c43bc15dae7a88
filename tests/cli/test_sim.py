"""``farbus sim``."""

from __future__ import annotations

import json

import pytest

from farbus.cli.application import run


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "list", "-o", "json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["workload-aware-placement"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "there is no experiment 'nothing'; there is workload-aware-placement"),
        (
            ["workload-aware-placement", "--seed", "7"],
            "--seed: the published numbers have a seed of their own; use --mode corrected",
        ),
    ],
)
def test_what_can_not_be_run(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "run", *arguments]) == 2
    assert capsys.readouterr().err == f"farbus: {message}\n"
