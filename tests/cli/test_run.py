"""``farbus run``: exit codes, signals, environment, and that devices are given back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from farbus.cli.commands.run import Holds, _tell_exit_code, _tell_of_loss
from farbus.cli.connection import Target
from farbus.cli.program import find_program, merge_environment
from farbus.errors import Conflict, ExitCode, InvalidInput, Unavailable
from farbus.linux.foreground import ForegroundProgram
from farbus.model.cluster import HoldLost
from tests.cli.conftest import Cluster, Farbus, clean_environment


@pytest.fixture
def run(farbus: Farbus, shared_cluster: Cluster):
    """``farbus run`` against the shared cluster."""

    def command(*arguments: str, **options):
        return farbus("run", "--socket", shared_cluster.socket, *arguments, **options)

    return command


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_it_ends_with_the_programs_code(run, script: str, code: int) -> None:
    assert run("-q", "--", "sh", "-c", script).returncode == code


def test_it_says_in_one_line_where_the_devices_are(run) -> None:
    done = run("--gpus", "1", "--", "true")
    assert done.stderr.splitlines()[-1] == "farbus: GPU-0001 of alpha, remote"


def test_only_a_program_is_what_may_have_been_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-directory").mkdir()
    (tmp_path / "a-file").touch()
    for name, told in (("a-directory", "give its"), ("", "give its"), ("a-file", "did you mean ./a-file?")):
        with pytest.raises(InvalidInput, match=r"^.+: no such program in PATH; ") as caught:
            find_program(name)
        assert caught.value.hint.startswith(told)


def test_quiet_says_nothing(run) -> None:
    assert run("-q", "--", "true").stderr == ""


def test_the_program_gets_streams_arguments_and_environment(run) -> None:
    done = run(
        "-q", "--", "sh", "-c", 'cat; echo "$1 $FARBUS_SESSION $LD_LIBRARY_PATH $MINE"', "sh", "--gpus",
        stdin="input\n", environment={"MINE": "yes", "LD_LIBRARY_PATH": "/my/libraries"},
    )  # fmt: skip
    assert done.stdout == "input\n--gpus /run/session /shim:/my/libraries yes\n"


@pytest.mark.parametrize(
    ("options", "told"), [((), "unset"), (("--transport", "auto"), "unset"), (("--transport", "tcp"), "tcp")]
)
def test_the_program_is_told_which_transport_to_use(run, options: tuple[str, ...], told: str) -> None:
    done = run("-q", "--gpus", "1", *options, "--", "sh", "-c", 'echo "${FARBUS_TRANSPORT-unset}"')
    assert done.stdout == f"{told}\n"


@pytest.mark.parametrize(
    ("options", "variables", "told"),
    [
        (("--transport", "tcp"), {"FARBUS_TRACE": "calls"}, "FARBUS_TRACE and --transport do nothing: "),
        ((), {"FARBUS_TRANSPORT": "shm"}, "FARBUS_TRANSPORT does nothing: "),
        (("--trace", "calls"), {}, " is empty: sh made no call to a GPU by remoting; "),
        ((), {"FARBUS_TRANSPORT": "auto"}, ""),
    ],
)
def test_what_only_the_shim_would_heed_is_said_where_the_gpu_is_of_this_node(
    cluster: Cluster, farbus: Farbus, options: tuple[str, ...], variables: dict[str, str], told: str
) -> None:
    ask = ("run", "--socket", cluster.socket, "--route", "local", *options)
    done = farbus(*ask, "--", "sh", "-c", "true", environment=variables)
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if "remoting" in line]
    assert [told in line for line in lines] == ([True] if told else [])


def test_a_transport_that_there_is_not_is_refused_with_those_that_there_are(run) -> None:
    done = run("--transport", "pigeon", "--", "true")
    assert done.returncode == ExitCode.RUN_FAILED
    assert all(name in done.stderr for name in ("auto", "shm", "unix", "tcp"))


def test_the_help_names_variables_and_what_auto_takes(farbus: Farbus) -> None:
    told = " ".join(farbus("run", "--help").stdout.split())
    for name in ("TRANSPORT", "CONNECTIONS", "TRACE", "GRACE_S", "MANAGED_MEMORY"):
        assert f"FARBUS_{name}" in told
    assert "--transport auto takes shared memory (shm) where the GPU is in this machine, else TCP" in told
    assert "begin FILE anew" in told


def test_lists_of_directories_are_joined_and_other_variables_replaced() -> None:
    merged = merge_environment({"LD_LIBRARY_PATH": "/a", "X": "1"}, {"LD_LIBRARY_PATH": "/shim", "X": "2", "Y": "3"})
    assert merged == {"LD_LIBRARY_PATH": "/shim:/a", "X": "2", "Y": "3"}


def test_what_can_never_be_had_ends_with_125(run) -> None:
    done = run("--gpu-model", "nonsense", "--", "true")
    assert (done.returncode, done.stderr) == (
        125, "farbus: no GPU of this cluster is a nonsense; farbus devices lists the models\n"
    )  # fmt: skip


HELP = "; farbus run --help shows how it is used"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), f"missing argument '-- PROGRAM'{HELP}"),
        (("--gpus", "many", "true"), f"invalid value for '--gpus': it must be a whole number{HELP}"),
        (("--pigeons", "3", "true"), f"no such option: --pigeons{HELP}"),
        (("--memory", "much", "--", "true"), None),
        (("--wait-limit", "long", "--", "true"), None),
        (("--node", "nope", "--", "true"), None),
        (
            ("--trace", "no/calls", "true"),
            "--trace no/calls: No such file or directory; name a file that you may write",
        ),
    ],
)
def test_what_farbus_itself_refuses_ends_with_125(farbus: Farbus, arguments: tuple[str, ...], line: str | None) -> None:
    done = farbus("run", *arguments)
    assert done.returncode == 125
    assert done.stderr.count("\n") == 1
    assert line is None or done.stderr == f"farbus: {line}\n"


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("FARBUS_TRANSPORT", "nonsense", "auto, shm, unix, tcp or rdma"),
        ("FARBUS_CONNECTIONS", "9", "a number from 1 to 8"),
        ("FARBUS_TRACE", "missing/calls", "a file that you may write, new or with a trace in it"),
        ("FARBUS_TRACE", __file__, "a file that you may write, new or with a trace in it"),
        ("FARBUS_GRACE_S", "abc", "seconds, at most 86400"),
        ("FARBUS_GRACE_S", "86401", "seconds, at most 86400"),
        ("FARBUS_MANAGED_MEMORY", "foo", "paging or copies"),
        ("FARBUS_MAPPED_MEMORY", "1", "managed"),
    ],
)
def test_what_the_shim_would_refuse_is_refused_before_devices_are_held(
    cluster: Cluster, farbus: Farbus, name: str, value: str, choices: str
) -> None:
    socket = ("--socket", cluster.socket)
    done = farbus("run", *socket, "--gpus", "1", "--", "true", environment={name: value})
    assert (done.returncode, done.stderr) == (125, f'farbus: {name} is "{value}"; set it to {choices}\n')
    # Without a GPU there is no shim that would mind; this is also what the cluster hears of first.
    assert farbus("run", *socket, "--gpus", "0", "--", "true", environment={name: value}).returncode == 0
    assert cluster.line() == "hold true 0"


@pytest.mark.parametrize("given", ["option", "variable"])
def test_a_pipe_is_no_place_for_a_trace(run, tmp_path: Path, given: str) -> None:
    """It is refused at once, and not when somebody reads."""
    os.mkfifo(tmp_path / "pipe")
    if given == "option":
        done = run("--gpus", "1", "--trace", str(tmp_path / "pipe"), "--", "true")
    else:
        done = run("--gpus", "1", "--", "true", environment={"FARBUS_TRACE": str(tmp_path / "pipe")})
    assert done.returncode == 125
    assert str(tmp_path / "pipe") in done.stderr
    assert "a file that you may write" in done.stderr


def test_a_trace_to_a_terminal_or_nowhere_is_not_called_empty(run) -> None:
    assert run("-q", "--gpus", "1", "--trace", "/dev/null", "--", "true").stderr == ""


def test_an_option_goes_before_the_variable_that_it_stands_for(run) -> None:
    done = run("-q", "--transport", "tcp", "--", "true", environment={"FARBUS_TRANSPORT": "nonsense"})
    assert (done.returncode, done.stderr) == (0, "")


TRACED = "1764273395.123456 812 815 cuMemAlloc_v2 called 6.214 CUDA_SUCCESS\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes", "of something else\n"),
        ("tool", "#!/bin/sh\n"),
        ("-", TRACED),
        ("--", TRACED),
        ("-q", TRACED),
        ("", ""),
    ],
)
def test_what_would_be_lost_is_refused_as_a_trace(
    cluster: Cluster, farbus: Farbus, tmp_path: Path, name: str, content: str
) -> None:
    """It is as it was, and nothing was held; the cluster hears of the second run first."""
    file = tmp_path / (name or "unnamed")
    file.write_text(content)
    file.chmod(0o755)
    command = ("run", "--socket", cluster.socket, "-q")
    done = farbus(*command, "--trace", name, "./tool" if name == "tool" else "true", cwd=tmp_path)
    assert done.returncode == ExitCode.RUN_FAILED
    assert done.stderr.startswith("farbus: --trace ")
    assert done.stderr.count("\n") == 1
    assert file.read_text() == content
    farbus(*command, "--gpus", "0", "true")
    assert cluster.line() == "hold true 0"


def test_a_trace_stays_where_no_devices_come(run, tmp_path: Path) -> None:
    (tmp_path / "calls").write_text(TRACED)
    assert run("--gpu-model", "nonsense", "--trace", "calls", "--", "true", cwd=tmp_path).returncode == 125
    assert (tmp_path / "calls").read_text() == TRACED


def test_the_program_is_told_where_its_calls_are_written_down(run, tmp_path: Path) -> None:
    trace = tmp_path / "calls"
    trace.write_text(TRACED)
    done = run("-q", "--gpus", "1", "--trace", "calls", "--", "sh", "-c", 'echo "$FARBUS_TRACE"', cwd=tmp_path)
    assert done.stdout == f"{trace}\n"
    # Its GPU came by remoting: the advice to ask for such a one would lead nowhere.
    assert done.stderr.startswith(f"farbus: {trace} is empty: sh made no call of CUDA, or ")
    assert done.stderr.count("\n") == 1
    assert "--route" not in done.stderr
    assert trace.read_text() == ""


def start(cluster: Cluster, directory: Path, *arguments: str, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "farbus.cli", "run", "--socket", cluster.socket, *arguments],
        env=clean_environment(directory), cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        **options,
    )  # fmt: skip


def test_devices_are_given_back_when_the_program_ends(cluster: Cluster, farbus: Farbus) -> None:
    farbus("run", "--socket", cluster.socket, "--", "true")
    assert [cluster.line(), cluster.line()] == ["hold true 1", "released"]


def test_ctrl_c_while_waiting_gives_back_what_was_asked_for(cluster: Cluster, tmp_path: Path) -> None:
    with start(cluster, tmp_path, "--gpus", "8", "--", "true") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "farbus: waiting: needs 8 GPUs, 3 are free\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    assert [cluster.line(), cluster.line()] == ["hold true 8", "released"]


def test_a_signal_to_farbus_reaches_the_program(cluster: Cluster, tmp_path: Path) -> None:
    script = "trap 'echo caught; exit 7' USR1; echo ready; while :; do read line || :; done"
    with start(cluster, tmp_path, "-q", "--", "sh", "-c", script, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        output, _ = process.communicate("\n", timeout=30)
    assert (output, process.returncode) == ("caught\n", 7)


def test_a_program_whose_farbus_is_killed_is_ended(cluster: Cluster, tmp_path: Path) -> None:
    with start(cluster, tmp_path, "-q", "--", "sh", "-c", "echo ready; exec sleep 1000") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        # The pipe ends when its last writer, the program, has ended.
        assert process.stdout.read() == ""
    assert [cluster.line(), cluster.line()] == ["hold sh 1", "released"]


def test_ctrl_c_at_the_terminal_reaches_the_program_once(cluster: Cluster, tmp_path: Path) -> None:
    script = 'n=0; trap "n=\\$((n+1))" INT; echo ready; read a; read a; echo "interrupts $n"'
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        arguments = [sys.executable, "-P", "-m", "farbus.cli", "run", "-q", "--socket", cluster.socket, "--"]
        os.execve(sys.executable, [*arguments, "bash", "-c", script], clean_environment(tmp_path))
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    while b"^C" not in said:
        said += os.read(terminal, 4096)
    os.write(terminal, b"\n\n")
    while b"interrupts" not in said:
        said += os.read(terminal, 4096)
    assert b"interrupts 1" in said
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


def test_a_fault_that_ends_the_program_is_told_and_a_wished_end_is_not(cluster: Cluster, farbus: Farbus) -> None:
    told = [
        farbus("run", "-q", "--socket", cluster.socket, "--", "sh", "-c", f"kill -{name} $$").stderr
        for name in ("SEGV", "TERM")
    ]
    assert told == ["farbus: sh was ended by signal 11 (Segmentation fault)\n", ""]


def test_lost_devices_are_told(cluster: Cluster, tmp_path: Path) -> None:
    with start(cluster, tmp_path, "--gpu-model", "lost", "--", "cat", stdin=subprocess.PIPE) as process:
        assert process.stderr is not None
        while "lost" not in (line := process.stderr.readline()):
            assert line
        assert line == ("farbus: the devices were lost: node alpha went away; the program's next use of them fails\n")
        process.communicate(timeout=30)
        assert process.returncode == 0


def test_devices_are_held_again_after_a_restart_and_the_program_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    with start(cluster, tmp_path, "--gpu-model", "restart", "--", "sh", "-c", "read line; exit 3", stdin=-1) as process:
        assert [cluster.line() for _ in range(3)] == ["hold sh 1", "released", "hold j-5 again"]
        _, said = process.communicate("\n", timeout=30)
    assert process.returncode == 3
    assert said == "farbus: waiting: needs 8 GPUs, 3 are free\nfarbus: GPU-0001 of alpha, remote\n"
    assert [cluster.line(), cluster.line()] == ["j-5 ended with 3", "released"]


def test_an_exit_code_waits_for_an_agent_that_is_restarted(cluster: Cluster, tmp_path: Path) -> None:
    with start(cluster, tmp_path, "-q", "--gpu-model", "away", "--", "sh", "-c", "exit 3") as process:
        lines = [cluster.line() for _ in range(3)]
        while lines[-1] != "j-5 ended with 3":
            lines.append(cluster.line())
        process.communicate(timeout=30)
    assert process.returncode == 3
    assert "exit code refused" in lines


async def test_an_exit_code_is_told_again_though_the_devices_are_held_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent that heard it first has ended; the next one, which holds them already, has heard nothing."""
    held, told = Holds(), []

    class Client:
        async def cancel_job(self, job_id: str, *, released: bool, exit_code: int) -> None:
            told.append(exit_code)
            if len(told) == 1:
                held.end()
                held.begin()
                raise Unavailable("the agent is restarted")

    @contextlib.asynccontextmanager
    async def connect(target: object) -> AsyncIterator[Client]:
        yield Client()

    monkeypatch.setattr("farbus.cli.commands.run.connect", connect)
    monkeypatch.setattr("farbus.cli.commands.run.AGAIN_S", 0.0)
    held.begin()
    await _tell_exit_code(Target(), "j-5", 3, held)
    assert told == [3, 3]


class Events:
    """What a hold says: that the devices are gone."""

    def __init__(self, *lost: HoldLost) -> None:
        self._lost = lost

    async def all(self) -> AsyncIterator[HoldLost]:
        for one in self._lost:
            yield one
        if not self._lost:
            raise Conflict("job j-5 is over")


@pytest.mark.parametrize("events", [Events(), Events(HoldLost(reason="job j-5 is finishing"))])
def test_devices_that_are_given_back_with_the_programs_end_are_not_lost(
    events: Events, capfd: pytest.CaptureFixture[str]
) -> None:
    child = ForegroundProgram.fork("/bin/true", ["true"])
    child.start({})
    # It has ended, and its farbus run has not heard of it yet.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    asyncio.run(_tell_of_loss(events.all(), child))
    assert capfd.readouterr().err == ""
    os.waitpid(child.pid, 0)
    asyncio.run(_tell_of_loss(events.all(), child))
    assert capfd.readouterr().err == ""


def elf(machine: int, *, bits: int = 64) -> bytes:
    return b"\x7fELF" + bytes([2 if bits == 64 else 1, 1, 1]) + bytes(9) + struct.pack("<HH", 2, machine) + bytes(100)


def program(directory: Path, content: bytes, mode: int = 0o755) -> str:
    path = directory / "program"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (elf(183), "built for aarch64, this node is x86_64; build it for this architecture"),
        (elf(3, bits=32), "built for 32-bit x86, this node is x86_64; build it for this architecture"),
        (elf(4711), "built for machine 4711 of elf.h, this node is x86_64; build it for this architecture"),
        (b"#!/nowhere/python\n", "its interpreter /nowhere/python is not there; correct the first line of the script"),
        (b"hello\n", "neither a program for this machine nor a script with #!; try sh {path}"),
        (b"", "neither a program for this machine nor a script with #!; try sh {path}"),
    ],
)
def test_a_program_that_can_not_run_here_is_refused_before_devices_are_asked_for(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = program(tmp_path, content)
    with pytest.raises(InvalidInput) as caught:
        find_program(path, machine="x86_64")
    assert str(caught.value) == f"{path}: {reason.format(path=path)}"
    assert caught.value.exit_code == ExitCode.NOT_EXECUTABLE


def test_a_program_that_may_not_be_executed(tmp_path: Path) -> None:
    path = program(tmp_path, elf(62), 0o644)
    with pytest.raises(InvalidInput, match="not executable; chmod"):
        find_program(path)


def test_a_directory_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="a directory, not a program; name a program in it") as caught:
        find_program(str(tmp_path))
    assert caught.value.exit_code == ExitCode.NOT_EXECUTABLE


def test_a_program_of_this_architecture_is_found() -> None:
    assert find_program("sh", path="/nowhere:/bin:/usr/bin").endswith("/sh")
