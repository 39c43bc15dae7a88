"""What goes wrong on a real cluster: one line that says what to do, the documented exit code, nothing left behind."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farbus.errors import ExitCode
from tests.end_to_end.conftest import Cluster

Compiled = Callable[..., Path]


@pytest.fixture(autouse=True)
def _nothing_is_left(cluster: Cluster) -> Iterator[None]:
    yield
    assert cluster.ask("leases") == []
    assert cluster.ask("jobs") == []


def refused(cluster: Cluster, *arguments: str | Path) -> tuple[int, str]:
    """Run a command that must fail with one line; return its exit code and the line."""
    done = cluster.run(*arguments)
    told = done.stderr.strip().splitlines()
    assert len(told) == 1, done.stderr
    assert told[0].startswith("farbus: ")
    return done.returncode, told[0]


def job_file(cluster: Cluster, text: str) -> Path:
    path = cluster.runtime / "bad.toml"
    path.write_text(text)
    return path


def test_unknown_resource(cluster: Cluster) -> None:
    path = job_file(cluster, 'command = ["true"]\n[resources]\ngpuz = 1\n')
    code, line = refused(cluster, "submit", path)
    assert code == ExitCode.USAGE
    assert "gpuz" in line
    assert "gpus" in line


def test_job_that_can_never_fit(cluster: Cluster) -> None:
    code, line = refused(cluster, "submit", "--gpus", "3", "--", "true")
    assert code == ExitCode.UNSATISFIABLE
    assert "3 GPUs on one node wanted; alpha comes closest with 2" in line


def test_unknown_node(cluster: Cluster) -> None:
    code, line = refused(cluster, "submit", "--node", "gama", "--", "true")
    assert code == ExitCode.UNSATISFIABLE
    assert "no node called gama (is it gamma?)" in line


def test_unknown_model(cluster: Cluster) -> None:
    code, line = refused(cluster, "submit", "--gpus", "1", "--gpu-model", "H900", "--", "true")
    assert code == ExitCode.UNSATISFIABLE
    assert "h900" in line.lower()


def test_unknown_job(cluster: Cluster) -> None:
    assert refused(cluster, "explain", "j9999")[0] == ExitCode.NOT_FOUND


def test_malformed_job_file(cluster: Cluster) -> None:
    assert refused(cluster, "submit", job_file(cluster, "command = [\n"))[0] == ExitCode.USAGE


def test_second_cluster_of_the_same_user(cluster: Cluster) -> None:
    code, line = refused(cluster, "up", "--detach")
    assert code == ExitCode.CONFLICT
    assert "runs already" in line


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """An executable of another architecture: the header of a 64-bit ELF file for IA-64 (e_machine 50).

    The kernel may start programs of the others that there are in an emulator (binfmt_misc).
    """
    path = tmp_path / "foreign"
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    path.write_bytes(identity + struct.pack("<HHIQQQIHHHHHH", 2, 50, 1, 0, 64, 0, 0, 64, 56, 0, 64, 0, 0))
    path.chmod(0o755)
    return path


def test_program_of_another_architecture_in_a_terminal(cluster: Cluster, foreign: Path) -> None:
    code, line = refused(cluster, "run", "--gpus", "1", "--", foreign)
    assert code == ExitCode.NOT_EXECUTABLE
    assert "architecture" in line


@pytest.mark.parametrize(
    ("program", "code"),
    [("./not-there", ExitCode.COMMAND_NOT_FOUND), ("/etc/passwd", ExitCode.NOT_EXECUTABLE)],
    ids=["missing", "not executable"],
)
def test_program_of_a_job(cluster: Cluster, program: str, code: int) -> None:
    done = cluster.run("submit", "--wait", "--gpus", "1", "--", program)
    assert done.returncode == code, done.stderr
    assert program in done.stderr
    assert "Traceback" not in done.stderr


def test_program_of_another_architecture_as_a_job(cluster: Cluster, foreign: Path) -> None:
    done = cluster.run("submit", "--wait", "--gpus", "1", "--", foreign)
    assert done.returncode == ExitCode.NOT_EXECUTABLE, done.stderr
    assert "architecture" in done.stderr


def test_directory_that_is_not_there(cluster: Cluster) -> None:
    path = job_file(cluster, 'command = ["true"]\ncwd = "/not/there"\n')
    done = cluster.run("submit", path, "--wait")
    assert done.returncode not in (0, 1), done.stderr
    assert "/not/there" in done.stderr


def test_wrong_secret(cluster: Cluster, compiled: Compiled, tmp_path: Path) -> None:
    """A session file whose secret is another one: the program gets a CUDA error and a line, not a hang."""
    end = tmp_path / "end"
    holder = cluster.start("run", "--gpus", "1", "--quiet", "--", compiled("cluster/stay.cu"), end)
    assert holder.stdout.readline() == "using 1 device(s)\n"
    (session,) = (cluster.runtime / "farbus").rglob("*.session")
    wrong = tmp_path / "wrong.session"
    lines = [f"secret {'0' * 64}" if line.startswith("secret ") else line for line in session.read_text().splitlines()]
    wrong.write_text("\n".join(lines) + "\n")
    wrong.chmod(0o600)
    done = cluster.run(
        "run",
        "--gpus",
        "1",
        "--quiet",
        "--",
        "env",
        f"FARBUS_SESSION={wrong}",
        compiled("cluster/stay.cu"),
        "/dev/null",
    )
    assert done.returncode == 1
    assert "secret" in done.stderr
    end.touch()
    assert holder.wait(60) == 0
    holder.stdout.close()
