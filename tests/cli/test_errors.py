"""Whatever goes wrong: one line, what to do, the documented exit code, no traceback."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from farbus.cli.application import COMMANDS, _usage_line
from farbus.cli.faults import as_farbus_error
from farbus.cli.options import examples
from farbus.errors import ExitCode
from tests.cli.conftest import ROOT, Farbus

CASES = {
    "unknown command": (("nods",), 2, "there is no command 'nods'; did you mean farbus nodes?"),
    "unknown option": (("nodes", "--colour"), 2, "no such option: --colour; farbus nodes --help shows how it is used"),
    "no cluster": (
        ("nodes",),
        6,
        "no cluster found: no agent on this machine (/run/farbus/agent.sock) and no farbus up of yours; "
        "start one with farbus up, or name one with --socket or --server",
    ),
    "no agent at the socket": (
        ("nodes", "--socket", "/nowhere.sock"),
        6,
        "/nowhere.sock: no agent listens there; start farbus agent or farbus up, or correct --socket",
    ),
    "server without certificate": (
        ("nodes", "--server", "a:1"),
        2,
        "--server needs --credentials DIR; make a user certificate with farbus ca issue",
    ),
    "server without port": (
        ("nodes", "--server", "a", "--credentials", "/x"),
        2,
        "--server a: not HOST:PORT; for example --server scheduler:7411",
    ),
    "no certificate": (
        ("nodes", "--server", "a:1", "--credentials", "/nowhere"),
        3,
        "/nowhere: no certificate with its key; make one with farbus ca issue",
    ),
    "two ways to the cluster": (
        ("nodes", "--server", "a:1", "--socket", "/s"),
        2,
        "--socket and --server exclude each other; give one of them",
    ),
    "no job file": (
        ("submit", "none.toml"),
        3,
        "none.toml: no such job file; give the path of a TOML or JSON file; a command goes after --",
    ),
    "command without dashes": (
        ("submit", "./a", "b"),
        2,
        "2 job files given, or a command without --; write farbus submit [options] -- ./a b",
    ),
    "option of a command with a file": (
        ("submit", "--gpus", "1", "job.toml"),
        2,
        "--gpus is for a command after --; write it into job.toml",
    ),
    "GPU memory without a GPU": (
        ("submit", "--gpu-memory", "1GiB", "--", "a"),
        2,
        "--gpu-memory: set, but gpus is 0; ask for gpus too, or leave it out",
    ),
    "variable without a value": (
        ("submit", "--env", "NOT_SET", "--", "a"),
        2,
        "--env NOT_SET: you have no such variable; write --env NOT_SET=VALUE",
    ),
    "GPUs out of range": (("submit", "--gpus", "65", "--", "true"), 2, None),
    "a number that is none": (("submit", "--count", "x", "--", "true"), 2, None),
    "program that is not there": (
        ("run", "--", "no-such-program"),
        127,
        "no-such-program: no such program in PATH; give its path, or add its directory to PATH",
    ),
    "run without a cluster": (
        ("run", "--", "true"),
        125,
        "no cluster found: no agent on this machine (/run/farbus/agent.sock) and no farbus up of yours; "
        "start one with farbus up, make this machine a node (docs/install.md), or name its agent with --socket",
    ),
    "node without a name": (
        ("up", "--nodes", "alpha:2,:1"),
        2,
        "--nodes: ':1' names no node; write for example --nodes alpha:2,beta:1,gamma:0",
    ),
    "node named twice": (
        ("up", "--nodes", "a:1,a:2"),
        2,
        "--nodes: a:1,a:2: a name stands twice; give each node a name of its own",
    ),
    # Not as a mistake of the file's.
    "option that says a time as nobody does": (
        ("submit", "job.toml", "--time-limit", "3y"),
        2,
        "--time-limit: unknown unit 'y'; use ms, s, m, h or d",
    ),
    "option that names a variable as nobody does": (
        ("submit", "job.toml", "--env", "1A=b"),
        2,
        "--env 1A=b: '1A' can't name a variable; use letters, digits and '_', not first a digit",
    ),
    "option that names a job as nobody does": (
        ("submit", "--name", "a/b", "--", "true"),
        2,
        "--name: 'a/b' is not a name; "
        "use 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends",
    ),
    "container engines' directory that is a device": (
        ("up", "--cdi", "/dev/null"),
        2,
        "--cdi /dev/null: not a directory; name one that container engines look in",
    ),
    "too many GPUs on a node": (
        ("up", "--nodes", "a:17"),
        2,
        "--nodes: a:17: '17' is not a number of GPUs; use 0 to 16",
    ),
    "agent without a scheduler": (
        ("agent",),
        2,
        "not set: scheduler, credentials; give --scheduler, --credentials, or a configuration file with --config",
    ),
    "configuration file that is not there": (
        ("agent", "--config", "none.toml"),
        3,
        "none.toml: no such configuration file; give the path of a TOML or JSON file",
    ),
    "label without a value": (
        ("agent", "--label", "rack"),
        2,
        "--label rack: not KEY=VALUE; for example --label rack=r12",
    ),
    "role that is not one": (
        ("ca", "issue", "ada", "--role", "king", "--out", "d"),
        2,
        "invalid value for '--role': 'king' is not one of 'scheduler', 'node', 'user', 'operator'; "
        "farbus ca issue --help shows how it is used",
    ),
    "further name with a port": (
        ("ca", "issue", "n1", "--role", "node", "--out", "d", "--address", "n1.example.org:7412"),
        2,
        "--address: 'n1.example.org:7412' is neither an IP address nor a DNS name; "
        "write for example 10.0.0.7 or node7.example.org, without a port",
    ),
    "further name of other letters": (
        ("ca", "issue", "n1", "--role", "node", "--out", "d", "--address", "käse.example.org"),
        2,
        "--address: 'käse.example.org' is neither an IP address nor a DNS name; "
        "write for example 10.0.0.7 or node7.example.org, without a port",
    ),
    "cluster whose name has no room": (
        ("ca", "init", "--authority", "d", "--cluster", "c" * 55),
        2,
        f"--cluster: '{'c' * 55}' can't name a cluster; use 1 to 54 printable characters",
    ),
    "log of an authority that is not there": (
        ("audit", "--authority", "none"),
        3,
        "none: no authority here; give the directory that farbus ca init made",
    ),
    "files that are named by a variable that is not set": (
        ("submit", "--stage-in", "", "--", "true"),
        2,
        "--stage-in '': names no file; give its path; . is this directory",
    ),
    "files that are only named for their place": (
        ("submit", "--stage-in", ":there", "--", "true"),
        2,
        "--stage-in ':there': names no file; give its path; . is this directory",
    ),
    "scheduler by a URL": (
        ("nodes", "--server", "https://control:7411", "--credentials", "/x"),
        2,
        "--server https://control:7411: not HOST:PORT; for example --server scheduler:7411",
    ),
    "scheduler without a port for a new node": (
        ("install", "agent", "--root", "/", "--dry-run", "--scheduler", "control"),
        2,
        "--scheduler control: not HOST:PORT; for example --scheduler control:7411",
    ),
    "address with a port for a new node": (
        ("join", "control:7413", "--token", "-", "--address", "10.0.0.7:7412"),
        2,
        "--address: '10.0.0.7:7412' is neither an IP address nor a DNS name; "
        "write for example 10.0.0.7 or node7.example.org, without a port",
    ),
    "port that is no number": (
        ("nodes", "--server", "a:²", "--credentials", "/x"),
        2,
        "--server a:²: not HOST:PORT; for example --server scheduler:7411",
    ),
    "authority that is not there": (
        ("ca", "issue", "ada", "--role", "user", "--out", "d", "--authority", "none"),
        3,
        "none: no authority here; make one with farbus ca init",
    ),
    "measurement that is not there": (("bench", "nothing"), 2, None),
    "option of a measurement": (
        ("bench", "remoting", "--transport", "tcp", "--rtt", "5"),
        2,
        "bench remoting: argument --rtt: '5' is not a time such as 100us or 2ms, at most 1000ms; "
        "farbus bench remoting --help explains them",
    ),
    "driver of a measurement that is not there": (
        ("bench", "remoting", "--libcuda", "/nope/libcuda.so.1"),
        2,
        "bench remoting: --libcuda /nope/libcuda.so.1: cannot open shared object file: No such file or directory; "
        "give the path of a driver's libcuda.so.1, or leave it out; farbus bench remoting --help explains them",
    ),
    "all sizes of a measurement of one size": (
        ("bench", "remoting", "--full"),
        2,
        "bench remoting: it has no --full; farbus bench remoting --help lists its options",
    ),
    "option that a measurement has not": (
        ("bench", "softgpu", "--quicker"),
        2,
        "bench softgpu: unrecognized arguments: --quicker; farbus bench softgpu --help explains them",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_is_one_line_with_its_exit_code(here: Farbus, case: str) -> None:
    arguments, code, message = CASES[case]
    done = here(*arguments)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("farbus: ")
    if message is not None:
        assert done.stderr == f"farbus: {message}\n"
    assert done.returncode == code


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Input should be less than or equal to 64", "it must be less than or equal to 64"),
        ("Input should be a valid integer, unable to parse string as an integer", "it must be a whole number"),
        ("Input should be a valid number, unable to parse string as a number.", "it must be a number"),
    ],
)
def test_a_number_that_can_not_be_is_told_in_the_words_of_the_other_errors(said: str, told: str) -> None:
    line = _usage_line(ValueError(), f"Invalid value for '--gpus': {said}")
    assert line == f"invalid value for '--gpus': {told}; farbus --help shows how it is used"


def test_a_setting_behind_a_table_is_told_from_one_that_is_missing(here: Farbus, tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('[gpu_shares]\n"*" = 2\nscheduler = "control:7411"\n')
    done = here("agent", "--config", "agent.toml")
    assert (done.returncode, done.stderr) == (
        2, "farbus: agent.toml: scheduler stands in the table [gpu_shares]; put it above the first [table]\n"
    )  # fmt: skip


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_a_measurement_with_options_of_its_own_explains_them(here: Farbus, word: str) -> None:
    done = here("bench", "remoting", word)
    assert done.returncode == 0
    assert "--gbps-per-connection" in done.stdout


def test_one_without_has_the_help_of_all(here: Farbus) -> None:
    assert "--full" in here("bench", "scheduler", "--help").stdout


def test_a_program_given_for_a_job_file_is_told(here: Farbus) -> None:
    done = here("submit", "/bin/sh")
    assert done.returncode == 2
    assert done.stderr == "farbus: /bin/sh: a program, not a job file; to run it write -- before it: -- /bin/sh\n"


def test_a_traceback_is_shown_on_request_only(here: Farbus) -> None:
    assert "Traceback" in here("nodes", environment={"FARBUS_DEBUG": "1"}).stderr


def test_a_certificate_of_another_authority_is_refused(here: Farbus, tmp_path: Path) -> None:
    for name in ("one", "other"):
        assert here("ca", "init", "--authority", name).returncode == 0
    assert here("ca", "issue", "ada", "--role", "user", "--out", "ada", "--authority", "one").returncode == 0
    (tmp_path / "ada" / "ca.crt").write_bytes((tmp_path / "other" / "ca.crt").read_bytes())
    done = here("nodes", "--server", "127.0.0.1:1", "--credentials", "ada")
    assert done.returncode == 2
    assert done.stderr.startswith("farbus: ada/ada.crt: not signed by ada/ca.crt; ")


def test_credentials_of_another_user_are_not_taken_for_missing(
    here: Farbus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may read all: so the refusal is made."""
    directory = tmp_path / "operator"
    directory.mkdir()
    listed = os.listdir

    def refuse(path: str | os.PathLike[str] = ".") -> list[str]:
        if Path(path) == directory:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "listdir", refuse)
    done = here("nodes", "--server", "a:1", "--credentials", str(directory))
    told = f"farbus: {directory}: permission denied; name credentials of your own, or unset FARBUS_CREDENTIALS\n"
    assert (done.returncode, done.stderr) == (5, told)


def test_a_scheduler_that_is_away_is_named(here: Farbus) -> None:
    here("ca", "init", "--authority", "ca")
    here("ca", "issue", "ada", "--role", "user", "--out", "ada", "--authority", "ca")
    done = here("nodes", "--server", "127.0.0.1:1", "--credentials", "ada")
    assert done.returncode == 6
    assert done.stderr.startswith("farbus: scheduler at 127.0.0.1:1 can't be reached")
    assert done.stderr.count("\n") == 1


def test_a_certificate_is_issued_once_and_readable_by_its_owner_alone(here: Farbus, tmp_path: Path) -> None:
    here("ca", "init", "--authority", "ca")
    issue = ("ca", "issue", "ada", "--role", "user", "--out", "ada", "--authority", "ca")
    assert re.fullmatch(r"ada/ada\.crt: user ada, valid until \d{4}-\d\d-\d\d\n", here(*issue).stdout)
    assert (tmp_path / "ada" / "ada.key").stat().st_mode & 0o777 == 0o600
    done = here(*issue)
    assert (done.returncode, done.stderr) == (
        7, "farbus: ada: there is a certificate of ada already; --force replaces it\n"
    )  # fmt: skip
    assert here(*issue, "--force").returncode == 0


def test_a_directory_that_others_may_enter_is_no_runtime_directory(here: Farbus, tmp_path: Path) -> None:
    (tmp_path / "farbus").mkdir()
    (tmp_path / "farbus").chmod(0o777)
    done = here("up")
    assert done.returncode == 5
    assert "not a private directory" in done.stderr


@pytest.mark.parametrize("words", [("nodes",), ("down",), ("up", "--detach")])
def test_a_runtime_directory_of_somebody_else_is_named(here: Farbus, tmp_path: Path, words: tuple[str, ...]) -> None:
    """As after su, which leaves XDG_RUNTIME_DIR as it was."""
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0)
    # Root may enter it.
    user = os.geteuid()
    os.seteuid(user or 65534)
    try:
        done = here(*words, environment={"XDG_RUNTIME_DIR": str(theirs)})
    finally:
        os.seteuid(user)
    told = f"farbus: {theirs}/farbus: Permission denied; set XDG_RUNTIME_DIR to a directory of your own\n"
    assert (done.returncode, done.stderr) == (5, told)


def test_a_user_without_a_name_is_told_so(here: Farbus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    done = here("up")
    assert (done.returncode, done.stderr) == (
        2, "farbus: user id 4000000000 has no name on this machine; add a line for it to /etc/passwd\n"
    )  # fmt: skip


def test_a_paragraph_below_examples_leaves_them_as_they_are() -> None:
    prose = "It is as long as a paragraph is.  " * 4
    assert examples("farbus run ./program   a program", "", prose) == (
        f"\b\nExamples:\n  farbus run ./program   a program\n\n{prose}"
    )


def test_lines_below_examples_that_begin_with_a_blank_stay_lines() -> None:
    assert examples("farbus run ./program   a program", "", "A file:", "  a = 1", "  b = 2", "And so on.") == (
        "\b\nExamples:\n  farbus run ./program   a program\n\nA file:\n\n\b\n  a = 1\n  b = 2\n\nAnd so on."
    )


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_every_help_text_has_examples_and_says_what_the_overview_says(here: Farbus, command: str | None) -> None:
    done = here(*([command] if command else []), "--help")
    assert done.returncode == 0
    assert done.stderr == ""
    if command is None:
        assert all(name in done.stdout for name in COMMANDS)
    else:
        assert "Examples:" in done.stdout
        assert f"farbus {command}" in done.stdout.partition("Examples:")[2]


@pytest.mark.parametrize(
    "command",
    [
        "",
        *COMMANDS,
        *(f"ca {step}" for step in ("init", "issue", "renew", "revoke", "token", "rotate")),
        *(f"volume {step}" for step in ("create", "list", "attach", "detach", "resize", "delete")),
    ],
)
def test_every_help_text_fits_a_terminal_of_80_columns(here: Farbus, command: str) -> None:
    done = here(*command.split(), "--help", environment={"COLUMNS": "80"})
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("command", ["", "ca", "volume"])
def test_no_command_s_line_is_cut(here: Farbus, command: str) -> None:
    done = here(*command.split(), "--help", environment={"COLUMNS": "80"})
    commands = done.stdout.partition("Options:")[2].partition("Examples:")[0].splitlines()
    assert [line for line in commands if line.endswith("...")] == []


def test_the_documented_exit_codes_are_those_of_the_program() -> None:
    table = (ROOT / "docs" / "cli.md").read_text()
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert {int(code) for code in ExitCode} <= documented


def test_the_version_loads_neither_grpc_nor_the_solver(farbus: Farbus) -> None:
    done = farbus("version", environment={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.stdout.startswith("farbus ")
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in loaded
    assert not loaded & {"grpc", "ortools", "numpy", "rich", "cryptography", "asyncio"}


@pytest.mark.parametrize("arguments", [("submit", "loop"), ("up", "--cdi", "loop"), ("up", "--state", "loop")])
def test_links_that_lead_in_a_circle_are_told(here: Farbus, arguments: tuple[str, ...]) -> None:
    os.symlink("loop", "loop")
    done = here(*arguments)
    told = f"farbus: {Path.cwd() / 'loop'}: its symbolic links lead in a circle; name another path\n"
    assert (done.returncode, done.stderr) == (ExitCode.USAGE, told)


@pytest.mark.parametrize("command", ["nodes", "down", "up"])
def test_what_is_in_the_way_is_named(here: Farbus, tmp_path: Path, command: str) -> None:
    (tmp_path / "farbus" / "up.json").mkdir(parents=True)
    (tmp_path / "farbus").chmod(0o700)
    done = here(command)
    assert done.returncode == 1
    assert done.stderr.startswith(f"farbus: {tmp_path}/farbus/up.json: Is a directory; look at what is there; ")


def test_a_file_that_the_system_refuses_is_named_however_it_was_asked_for() -> None:
    for name in ("/nowhere/file", b"/nowhere/file"):
        told = as_farbus_error(OSError(errno.EIO, os.strerror(errno.EIO), name))
        assert told.message == "/nowhere/file: Input/output error"
