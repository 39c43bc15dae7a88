"""What each command prints and ends with, against a cluster whose answers are known."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from farbus.cli import completion
from farbus.cli.commands.bench import BENCHES
from farbus.model.device import DeviceStatus
from farbus.model.job import JobStatus
from farbus.model.lease import LeaseStatus
from farbus.model.node import NodeStatus
from tests.cli.conftest import ROOT, Cluster, Farbus, clean_environment


@pytest.fixture
def ask(here: Farbus, shared_cluster: Cluster):
    """Run a command that speaks to the shared cluster."""

    def run(*arguments: str):
        return here(*arguments, environment={"FARBUS_SOCKET": shared_cluster.socket})

    return run


def test_tables_are_plain_text_into_a_pipe(ask) -> None:
    done = ask("nodes")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.splitlines()[0].split()[:3] == ["NAME", "STATE", "GPUS"]
    assert done.stdout.splitlines()[1].startswith("alpha  ready     1  3.5 of 4   7 of 8 GiB")
    assert "\x1b" not in done.stdout


def test_wide_has_more_columns(ask) -> None:
    assert "rack=r1" in ask("nodes", "-o", "wide").stdout
    assert "rack=r1" not in ask("nodes").stdout


@pytest.mark.parametrize(
    ("command", "kind"),
    [("nodes", NodeStatus), ("devices", DeviceStatus), ("leases", LeaseStatus), ("jobs", JobStatus)],
)
def test_json_is_the_models_json(ask, command: str, kind: type) -> None:
    done = ask(command, "-o", "json")
    assert msgspec.json.decode(done.stdout, type=list[kind])


def test_json_has_what_attaching_storage_took_a_node(ask) -> None:
    found = msgspec.json.decode(ask("nodes", "-o", "json").stdout)
    assert {each["node"]["name"]: each["node"]["storage_attach_s"] for each in found} == {"alpha": 0.0, "gamma": 0.25}


def test_a_name_that_is_not_there_gets_the_nearest(ask) -> None:
    done = ask("nodes", "gama")
    assert (done.returncode, done.stderr) == (3, "farbus: there is no node gama; did you mean gamma?\n")


def test_devices_can_be_chosen_by_node(ask) -> None:
    assert "GPU-0001" in ask("devices", "--node", "alpha").stdout
    assert ask("devices", "--node", "gamma").stdout == ""


def test_a_control_character_in_somebodys_name_reaches_no_terminal(ask) -> None:
    assert "\x1b" not in ask("jobs").stdout


def test_jobs_that_have_ended_are_listed_on_request(ask) -> None:
    assert "j-3" not in ask("jobs").stdout
    assert "signal 9" in ask("jobs", "--all").stdout


def test_one_job_is_shown_with_its_placement_and_reason(ask) -> None:
    text = ask("jobs", "j-1").stdout
    assert "task main.0: running on gamma (GPU-0001 of alpha, remote): alpha has the fewest" in text


def test_an_unknown_job_is_one_line_and_its_code(ask) -> None:
    done = ask("logs", "j-77")
    assert (done.returncode, done.stderr) == (3, "farbus: job j-77: no such job; farbus jobs --all lists them\n")


def test_explain_prints_the_reasons(ask) -> None:
    assert ask("explain", "j-2").stdout == "it waits because\nneeds 8 GPUs, 3 are free\n"
    assert json.loads(ask("explain", "j-2", "-o", "json").stdout)["lines"][1] == "needs 8 GPUs, 3 are free"


def test_logs_keep_the_two_streams_apart(ask) -> None:
    done = ask("logs", "j-1")
    assert (done.stdout, done.stderr) == ("to standard output\n", "to standard error\n")


def test_logs_of_a_task_that_is_not_there(ask) -> None:
    done = ask("logs", "j-1", "--task", "main.7")
    assert (done.returncode, done.stderr) == (3, "farbus: job j-1 has no task main.7; it has main.0\n")


def test_a_cancel_that_is_refused_keeps_no_other_from_it(ask) -> None:
    done = ask("cancel", "j-3", "j-1", "j-0", "j-2")
    assert (done.returncode, done.stdout) == (7, "j-1 cancelled\nj-2 cancelled\n")
    assert [line.split(";")[0] for line in done.stderr.splitlines()] == [
        "farbus: job j-0: no such job",
        "farbus: job j-3 has ended already",
    ]
    told = json.loads(ask("cancel", "j-1", "j-1", "-o", "json").stdout)
    assert [(status["job"]["id"], status["state"]) for status in told] == [("j-1", "cancelled")]


def test_cancel_says_what_became_of_the_job(ask) -> None:
    assert ask("cancel", "j-1").stdout == "j-1 cancelled\n"
    done = ask("cancel", "j-3")
    assert (done.returncode, done.stderr) == (7, "farbus: job j-3 has ended already\n")


def test_submit_prints_the_id_alone(ask) -> None:
    done = ask("submit", "--gpus", "1", "--", "./train", "--epochs", "3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "j-9\n", "")


def test_submit_sends_directory_environment_and_node(farbus: Farbus, cluster: Cluster, tmp_path: Path) -> None:
    farbus(
        "submit", "--socket", cluster.socket, "--node", "gamma", "-e", "A=1", "-e", "B", "--", "./train",
        environment={"B": "2"},
    )  # fmt: skip
    assert cluster.line() == f"submitted train cwd={tmp_path} env={{'A': '1', 'B': '2'}} node=gamma"


def test_check_says_where_a_job_would_go(ask, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('command = ["./train"]\nresources.gpus = 1')
    done = ask("submit", "job.toml", "--check")
    assert done.stdout.startswith("main.0 would go to gamma (GPU-0001 of alpha, remote): alpha has")


def test_check_says_why_a_job_would_wait(ask) -> None:
    done = ask("submit", "--check", "--gpus", "8", "--", "./train")
    assert (done.returncode, done.stdout) == (0, "train would wait: needs 8 GPUs, 3 are free\n")


def test_check_of_a_job_that_can_never_fit_ends_with_4(ask) -> None:
    done = ask("submit", "--check", "--gpus", "17", "--", "./train")
    assert done.returncode == 4
    assert done.stderr.startswith("farbus: train can never run here: the whole cluster has 3 GPUs;")


def test_a_job_that_can_never_fit_ends_with_4(ask) -> None:
    done = ask("submit", "--gpus", "33", "--", "./train")
    assert (done.returncode, done.stderr) == (
        4, "farbus: needs 33 GPUs, the whole cluster has 3; ask for fewer\n"
    )  # fmt: skip


@pytest.mark.parametrize(("command", "code"), [(("exits", "0"), 0), (("exits", "3"), 3), (("killed",), 137)], ids=str)
def test_wait_ends_with_the_programs_code(ask, command: tuple[str, ...], code: int) -> None:
    assert ask("submit", "--wait", "-q", "--", *command).returncode == code


def test_follow_shows_output_and_tells_of_waiting_and_placement(ask) -> None:
    done = ask("submit", "--follow", "--", "exits", "3")
    assert (done.returncode, done.stdout) == (3, "to standard output\n")
    assert done.stderr.splitlines() == [
        "farbus: j-9 queued",
        "farbus: j-9 waits: needs 8 GPUs, 3 are free",
        "farbus: j-9 goes to gamma (GPU-0001 of alpha, remote)",
        "to standard error",
        "farbus: j-9 failed: task main.0 ended with exit code 3",
    ]


def test_what_programs_read_of_a_job_that_is_followed_is_its_json_alone(ask) -> None:
    done = ask("submit", "--follow", "-o", "json", "--", "exits", "3")
    assert done.returncode == 3
    assert [task.exit_code for task in msgspec.json.decode(done.stdout, type=JobStatus).tasks] == [3]
    assert {"to standard output", "to standard error"} <= set(done.stderr.splitlines())


def test_ctrl_c_ends_the_watching_not_the_job(cluster: Cluster, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "farbus.cli", "submit", "--socket", cluster.socket, "--wait", "--", "hangs"],
        env=clean_environment(tmp_path), cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert cluster.line().startswith("submitted")
        assert cluster.line() == "watched"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "farbus: j-9 goes on; farbus logs -f j-9 follows it, farbus cancel j-9 ends it"


@pytest.mark.parametrize("command", ["nodes", "logs --follow j-1"])
def test_a_reader_that_goes_away_is_no_error(shared_cluster: Cluster, tmp_path: Path, command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "farbus.cli", *command.split(), "--socket", shared_cluster.socket],
        env=clean_environment(tmp_path), cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("redirection", "code", "told"),
    [
        (">/dev/full", 1, "farbus: can't write: No space left on device; make room where the output goes\n"),
        ("2>/dev/full", 0, ""),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
    ],
)
@pytest.mark.parametrize("output", ["table", "json"])
def test_output_without_a_place_to_go_to_is_one_line_at_most(
    shared_cluster: Cluster, tmp_path: Path, redirection: str, code: int, told: str, output: str
) -> None:
    words = [sys.executable, "-m", "farbus.cli", "nodes", "--socket", shared_cluster.socket, "-o", output]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *words],
        env=clean_environment(tmp_path), cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, told)


def test_a_job_is_followed_no_further_where_its_output_has_no_place(shared_cluster: Cluster, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "farbus.cli", "logs", "--follow", "j-1", "--socket", shared_cluster.socket]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            words,
            env=clean_environment(tmp_path),
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    told = "farbus: can't write: No space left on device; make room where the output goes\n"
    assert (done.returncode, done.stderr) == (1, told)


def test_an_error_that_nobody_can_be_told_keeps_its_code(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>/dev/full', "sh", sys.executable, "-m", "farbus.cli", "nodes"],
        env=clean_environment(tmp_path), cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (6, b"", b"")


def test_a_program_is_started_with_the_streams_that_its_command_was_started_with(
    shared_cluster: Cluster, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "farbus.cli", "run", "--gpus", "0", "--socket", shared_cluster.socket]
    program = [
        "--",
        sys.executable,
        "-c",
        "import os, sys; sys.exit(f'{sys.stdin and 0},{sys.stdout and 1},{sys.stderr and 2}')",
    ]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *words, *program],
        env=clean_environment(tmp_path), cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr.splitlines()[-1:] == ["0,None,2"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("jobs", "a\udcff"), 2),
        (("submit", "--", "a\udcff"), 2),
        (("run", "--application", "a\udcff", "--", "true"), 125),
    ],
)
def test_words_that_are_no_text_are_named(ask, words: tuple[str, ...], code: int) -> None:
    done = ask(*words)
    told = "farbus: a?: not UTF-8 text; clusters know no other: write or rename it so\n"
    assert (done.returncode, done.stderr) == (code, told)


@pytest.mark.parametrize(
    ("words", "code"),
    [(("fetch", "j-1"), 3), (("ca", "list", "--authority", "x"), 3), (("run", "--trace", "x", "--", "true"), 125)],
)
def test_a_working_directory_that_was_removed_is_named(
    ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    done = ask(*words)
    told = "farbus: the working directory: No such file or directory; cd to one that exists\n"
    assert (done.returncode, done.stderr) == (code, told)


def test_devices_of_a_node_that_is_not_there_are_an_error(ask) -> None:
    done = ask("devices", "--node", "alpa")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "farbus: there is no node alpa; did you mean alpha?\n"
    assert ask("devices", "--node", "gamma").stderr == "the cluster has no such device\n"


def test_job_ids_are_completed_from_the_cluster(
    here: Farbus,
    shared_cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A machine that is busy may take longer to answer than somebody who presses TAB waits.
    monkeypatch.setattr(completion, "ANSWER_WITHIN_S", 30.0)
    environment = {
        "FARBUS_SOCKET": shared_cluster.socket,
        "_FARBUS_COMPLETE": "complete_bash",
        "COMP_WORDS": "farbus logs j-",
        "COMP_CWORD": "2",
    }
    with pytest.raises(SystemExit):
        here(environment=environment)
    assert capsys.readouterr().out.split() == ["j-1", "j-2", "j-3"]


def test_completion_without_a_cluster_is_silent(farbus: Farbus) -> None:
    environment = {"_FARBUS_COMPLETE": "complete_bash", "COMP_WORDS": "farbus logs j-", "COMP_CWORD": "2"}
    done = farbus(environment=environment)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_doctor_tells_of_the_cluster(ask) -> None:
    findings = {finding["check"]: finding for finding in json.loads(ask("doctor", "-o", "json").stdout)}
    assert findings["agent"]["verdict"] == "ok"
    assert findings["scheduler"]["found"].startswith("version 0.1.0, 2 nodes")


def test_measurements_are_listed_and_know_their_options(here: Farbus) -> None:
    listed = [line.split(maxsplit=1) for line in here("bench").stdout.splitlines()]
    assert [name for name, _ in listed] == sorted(BENCHES)
    assert dict(listed)["scheduler"] == "how long a decision takes, beside simpler ways"
    done = here("bench", "scheduler", "--fast")
    assert (done.returncode, done.stderr) == (
        2, "farbus: bench scheduler: unknown option --fast; it knows --json and --full\n"
    )  # fmt: skip


def test_quota_lists_what_users_have_and_may_have(ask) -> None:
    lines = ask("quota").stdout.splitlines()
    assert lines[0].split() == ["USER", "DEVICES", "OF", "JOBS", "OF", "VOLUMES", "OF", "WAITING"]
    assert lines[1].split() == ["ada", "3", "4", "2", "no", "limit", "5", "GiB", "8", "GiB", "1"]
    (ada,) = json.loads(ask("quota", "ada", "-o", "json").stdout)
    assert (ada["devices_limit"], ada["jobs_limit"]) == (4, None)
    assert ask("quota", "zoe").stderr == "farbus: there is no user zoe; farbus quota lists them\n"
    assert ask("quota", "bo").stderr.startswith("farbus: there is no user bo; did you mean bob?")


def test_defragment_says_who_moves_where(ask) -> None:
    told = "job j-7 of bob would move from alpha to beta\ntask main.0 of job j-2 would go to alpha\n"
    assert ask("defragment", "j-2", "--dry-run").stdout == told
    assert ask("defragment", "j-2").stdout.startswith("job j-7 of bob moves from alpha to beta\n")
    assert json.loads(ask("defragment", "j-2", "-o", "json").stdout)["begun"] is True
