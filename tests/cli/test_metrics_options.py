"""Where daemons serve Prometheus: what the options and files make of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from farbus.cli import daemons
from farbus.cli.commands import agent as agent_command
from farbus.cli.embedded import EmbeddedCluster, NodePlan, Plan
from tests.cli.conftest import Farbus


@pytest.mark.parametrize(
    ("arguments", "listen"),
    [((), "127.0.0.1:9465"), (("--metrics-listen", "[::]:9500"), "[::]:9500"), (("--metrics-listen", "off"), "")],
)
def test_an_agent_serves_on_loopback_unless_told_otherwise(
    here: Farbus, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], listen: str
) -> None:
    served: list[dict[str, object]] = []

    def serve(package: str, kind: str, settings: dict[str, object], *, source: str) -> int:
        served.append(settings)
        return 0

    monkeypatch.setattr(agent_command, "serve_daemon", serve)
    assert here("agent", *arguments).returncode == 0
    assert served[0]["metrics_listen"] == listen


def test_a_file_may_switch_it_off(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('metrics_listen = ""\n')
    settings = daemons.read_settings(str(tmp_path / "agent.toml"), {"metrics_listen": ""}, credentials="")
    assert settings == {"metrics_listen": ""}


@pytest.mark.parametrize(
    ("port", "addresses"),
    [(0, ["", "", ""]), (19464, ["127.0.0.1:19464", "127.0.0.1:19465", "127.0.0.1:19466"])],
)
def test_a_farbus_up_serves_only_where_it_is_asked(tmp_path: Path, port: int, addresses: list[str]) -> None:
    plan = Plan(
        nodes=(NodePlan(name="alpha", gpus=0), NodePlan(name="beta", gpus=0)), gpu_memory_bytes=2**30, metrics_port=port
    )
    EmbeddedCluster(plan, state=tmp_path / "state", sockets=tmp_path / "sockets", tell=print)._prepare()

    def read(name: str) -> dict[str, str]:
        return msgspec.json.decode((tmp_path / "state" / name / "config.json").read_bytes())

    found = [read("scheduler")["metrics"], *(read(f"nodes/{name}")["metrics_listen"] for name in ("alpha", "beta"))]
    assert found == addresses


def test_a_port_that_needs_root_is_refused(here: Farbus) -> None:
    ended = here("up", "--metrics", "80")
    assert ended.returncode == 2
    assert "--metrics" in ended.stderr
