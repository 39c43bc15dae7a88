"""``farbus profiles``, and what options and files wish for a job, against a cluster whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farbus.cli.commands.profiles import read_profiles
from farbus.errors import InvalidInput
from farbus.model.device import Route
from farbus.model.job import Job
from farbus.model.profile import ApplicationProfile, FlavourTime
from tests.cli.conftest import Cluster, Farbus

FILE = """
[[profile]]
application = "nw"
sensitivity = 0.63
times = [{ flavour = "local", median_s = 72 }, { flavour = "remote", median_s = 90.5, count = 4 }]
"""


@pytest.fixture
def ask(here: Farbus, shared_cluster: Cluster):
    """Run a command that speaks to the shared cluster."""

    def run(*arguments: str):
        return here(*arguments, environment={"FARBUS_SOCKET": shared_cluster.socket})

    return run


def test_the_list_tells_times_by_flavour_and_who_set_what(ask) -> None:
    title, first, second = ask("profiles", "list").stdout.splitlines()
    assert title.split() == ["APPLICATION", "USER", "NO", "DEVICE", "LOCAL", "REMOTE", "RECOMPOSED", "SENSITIVITY",
                             "RUNS", "SET", "BY"]  # fmt: skip
    assert first.split() == ["nw", "ada", "-", "1m12s", "1m30s", "-", "0.63", "5", "-"]
    assert second.split() == ["srad", "(everybody)", "0.25s", "-", "-", "-", "0", "1", "ann"]


def test_one_application_is_shown_with_its_runs_where_they_are_wanted(ask) -> None:
    done = ask("profiles", "show", "nw")
    assert done.stdout.splitlines()[:2] == ["nw of ada, learned", "sensitivity 0.63, from 2 runs under load"]
    assert "0123456789abcdef" not in done.stdout
    assert "0123456789abcdef" in ask("profiles", "show", "nw", "-o", "wide").stdout
    (profile,) = msgspec.json.decode(ask("profiles", "show", "nw", "-o", "json").stdout, type=list[ApplicationProfile])
    assert [run.seconds for run in profile.runs] == [91.0]


def test_an_application_that_nobody_knows_is_one_line(ask) -> None:
    done = ask("profiles", "show", "other")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        3,
        "farbus: nothing is known of application other; farbus profiles list lists what is",
    )
    done = ask("profiles", "forget", "other")
    assert (done.returncode, done.stderr.splitlines()[0]) == (3, "farbus: nothing is known of application other")


def test_what_is_forgotten_is_told(ask) -> None:
    assert ask("profiles", "forget", "nw").stdout == "nw of ada forgotten: it was learned\n"
    assert ask("profiles", "forget", "srad", "--user", "").stdout == "srad of (everybody) forgotten: it was set\n"
    assert ask("profiles", "forget", "srad", "--user", "ada").returncode == 3


def test_a_file_is_set_profile_by_profile(cluster: Cluster, farbus: Farbus, tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(FILE)
    done = farbus("profiles", "set", "known.toml", environment={"FARBUS_SOCKET": cluster.socket})
    assert (done.returncode, done.stdout) == (0, "nw of (everybody) set\n")
    told = json.loads(cluster.line().removeprefix("set "))
    assert told["sensitivity"] == 0.63


def test_what_was_listed_can_be_given_back(ask) -> None:
    printed = ask("profiles", "list", "-o", "json").stdout
    listed = msgspec.json.decode(printed, type=list[ApplicationProfile])
    again = read_profiles(printed.encode(), name="standard input")
    assert again == tuple(msgspec.structs.replace(each, set_by="", set_at=0.0) for each in listed)


def test_toml_says_the_same() -> None:
    (profile,) = read_profiles(FILE.encode(), name="known.toml")
    assert profile == ApplicationProfile(
        application="nw",
        sensitivity=0.63,
        times=(
            FlavourTime(flavour=Route.LOCAL, count=1, median_s=72.0, spread_s=0.0),
            FlavourTime(flavour=Route.REMOTE, count=4, median_s=90.5, spread_s=0.0),
        ),
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "profile"),
        ("profile = []", "profile: expected a list of length >= 1"),
        ('[[profile]]\napplication = "nw"', "times"),
        ('[[profile]]\napplication = ""\ntimes = [{ median_s = 1 }]', r"profile\[0\].application"),
        ('[[profile]]\napplication = "nw"\ntimes = [{ median_s = 0 }]', r"times\[0\].median_s"),
        ('[[profile]]\napplication = "nw"\ntimes = [{ median_s = nan }]', r"times\[0\].median_s"),
        ('[[profile]]\napplication = "nw"\ntimes = [{ median_s = 1e300 }]', r"times\[0\].median_s"),
        ('[[profile]]\napplication = "nw"\ntimes = [{ median_s = 1, sharing = 0 }]', r"times\[0\].sharing"),
        ('[[profile]]\napplication = "nw"\ntimes = [{ median_s = 1, count = 99999999999 }]', r"times\[0\].count"),
        ('[[profile]]\napplication = "nw"\ntimes = [{ median_s = 1, flavour = "warp" }]', "flavour"),
        ('[[profile]]\napplication = "nw"\ntimes = [{ median_s = 1 }, { median_s = 2 }]', "twice"),
        ('[[profile]]\napplication = "nw"\nsensitivity = 1e9\ntimes = [{ median_s = 1 }]', "sensitivity"),
        ('[[profile]]\napplication = "nw"\nsensitivty = 1\ntimes = [{ median_s = 1 }]', "sensitivty: unknown field"),
        ('[[profile]]\napplication = "a\\nb"\ntimes = [{ median_s = 1 }]', "application"),
    ],
)
def test_a_mistake_in_a_file_names_the_field(text: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told) as refused:
        read_profiles(text.encode(), name="known.toml")
    assert str(refused.value).startswith("known.toml: ")


# What is wished for a job.


def submitted(ask: Any, *arguments: str) -> Job:
    done = ask("submit", "-o", "json", *arguments)
    assert done.returncode == 0, done.stderr
    return msgspec.convert(json.loads(done.stdout)["job"], Job)


def test_options_wish_for_a_command(ask) -> None:
    job = submitted(
        ask, "--slo", "30m", "--importance", "2", "--deadline", "2h", "--application", "solver", "--", "true"
    )
    assert (job.goal.slo_s, job.goal.importance, job.goal.deadline_s, job.goal.deadline_at) == (1800, 2, 7200, 0)
    assert job.application == "solver"


def test_options_go_before_what_a_file_wishes(ask, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(
        'command = ["true"]\nslo = "10m"\nimportance = 3\ndeadline = 2100-01-31T18:00:00Z\napplication = "a"\n'
    )
    job = submitted(ask, "job.toml")
    assert (job.goal.slo_s, job.goal.importance, job.goal.deadline_s) == (600, 3, 0)
    assert job.goal.deadline_at == 4_105_101_600.0
    assert job.application == "a"
    job = submitted(ask, "--slo", "5m", "--deadline", "1h", "--application", "b", "job.toml")
    assert (job.goal.slo_s, job.goal.importance, job.application) == (300, 3, "b")
    assert (job.goal.deadline_s, job.goal.deadline_at) == (3600, 0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--slo", "soon"), "--slo: 'soon' is not a number with a unit; write for example 90s, 30m or 2h"),
        (
            ("--deadline", "soon"),
            "--deadline: 'soon' is not a number with a unit; write 2h, or a moment: 2027-01-31T18",
        ),
        (("--importance", "10"), "--importance: 10 is not from 1 to below 10"),
        (("--importance", "nan"), "--importance: nan is not from 1"),
        (("--deadline", "2027-02-31"), "--deadline: '2027-02-31' is no moment"),
        (("--deadline", "2020-01-31T18:00:00Z"), "--deadline: 2020-01-31T18:00:00Z is over; give a later moment"),
        (("--deadline", "99999d"), "--deadline: 99999d is more than ten years"),
    ],
)
@pytest.mark.parametrize("command", ["submit", "run"])
def test_wishes_that_can_not_be_name_the_option(ask, command: str, arguments: tuple[str, str], told: str) -> None:
    assert told in ask(command, *arguments, "--", "true").stderr


def test_a_program_in_a_terminal_has_wishes_too(cluster: Cluster, farbus: Farbus) -> None:
    done = farbus(
        "run", "--slo", "1h", "--deadline", "2h", "--application", "solver", "--", "true",
        environment={"FARBUS_SOCKET": cluster.socket},
    )  # fmt: skip
    assert done.returncode == 0
    assert cluster.line() == "hold true 1"
    words = cluster.line().split()
    assert (words[0], words[2]) == ("wishes", "solver")
    assert json.loads(words[1]) == {"slo_s": 3600.0, "importance": 0.0, "deadline_s": 7200.0, "deadline_at": 0.0}
