"""The process door: the real one and the fake pass the same tests; then what only the real one can show."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from farbus.errors import ExitCode, FarbusError, InvalidInput
from farbus.linux.processes import (
    GUARD,
    Child,
    FakeChild,
    FakeProcesses,
    GuardedProcesses,
    Processes,
    Program,
)
from farbus.linux.users import Account, SystemUsers

PATIENCE_S = 20.0
ENVIRONMENT = {"PATH": os.environ["PATH"]}

# What each program does, as a shell script and as a coroutine.
SHELL = {
    "greet": "echo hello; echo oops >&2; exit 3",
    "obey": "trap 'exit 7' TERM; echo ready; sleep 1000 & wait",
    "sleep": "echo ready; exec sleep 1000",
}


async def greet(child: FakeChild) -> int:
    child.write(b"hello\n")
    child.write(b"oops\n", stream=2)
    return 3


async def obey(child: FakeChild) -> int:
    child.write(b"ready\n")
    assert await child.next_signal() == signal.SIGTERM
    return 7


async def sleep(child: FakeChild) -> int:
    child.write(b"ready\n")
    await asyncio.Event().wait()
    return 0


class Subject:
    """A process door, and how to name a program to it."""

    def __init__(self, door: Processes, argv: Mapping[str, tuple[str, ...]]) -> None:
        self.door = door
        self.argv = argv

    async def spawn(self, name: str, *, cwd: str = "/") -> Child:
        argv = self.argv.get(name, (name,))
        return await self.door.spawn(Program(what=name, argv=argv, environment=ENVIRONMENT, cwd=cwd))


@pytest.fixture(params=["real", "fake"])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "real":
        argv = {name: ("sh", "-c", script) for name, script in SHELL.items()}
        return Subject(GuardedProcesses(owner="test"), argv)
    scripts = {"greet": greet, "obey": obey, "sleep": sleep}
    return Subject(FakeProcesses(scripts), {name: (name,) for name in scripts})


async def output_of(child: Child) -> tuple[bytes, bytes]:
    """Read a program's output to its end."""
    out = {1: b"", 2: b""}
    async with asyncio.timeout(PATIENCE_S):
        while (piece := await child.read_output()) is not None:
            out[piece[0]] += piece[1]
    return out[1], out[2]


async def ready(child: Child) -> None:
    """Wait for a program to say so."""
    async with asyncio.timeout(PATIENCE_S):
        assert await child.read_output() == (1, b"ready\n")


async def test_output_and_exit_code_come_back(subject: Subject) -> None:
    child = await subject.spawn("greet")
    assert await output_of(child) == (b"hello\n", b"oops\n")
    assert await child.wait() == 3


async def test_the_end_of_output_and_the_exit_code_can_be_had_again(subject: Subject) -> None:
    child = await subject.spawn("greet")
    await output_of(child)
    assert await child.read_output() is None
    assert await child.wait() == await child.wait()


async def test_a_signal_reaches_the_program(subject: Subject) -> None:
    child = await subject.spawn("obey")
    await ready(child)
    child.signal(signal.SIGTERM)
    assert await child.wait() == 7


async def test_a_killed_program_ends_by_signal_nine(subject: Subject) -> None:
    child = await subject.spawn("sleep")
    await ready(child)
    child.kill()
    assert await child.wait() == -9


async def test_signals_after_the_end_do_nothing(subject: Subject) -> None:
    child = await subject.spawn("greet")
    await child.wait()
    child.signal(signal.SIGTERM)
    child.kill()
    assert await child.wait() == 3


async def test_a_program_that_is_not_there_is_named(subject: Subject) -> None:
    with pytest.raises(InvalidInput, match="no-such-program: no such program") as caught:
        await subject.spawn("no-such-program")
    assert caught.value.exit_code == ExitCode.COMMAND_NOT_FOUND


async def test_a_directory_that_is_not_there_is_named(subject: Subject) -> None:
    with pytest.raises(InvalidInput, match="working directory /no/where: No such file"):
        await subject.spawn("greet", cwd="/no/where")


async def test_an_empty_command_is_refused(subject: Subject) -> None:
    with pytest.raises(InvalidInput, match="there is no command"):
        await subject.door.spawn(Program(what="nothing", argv=(), environment={}))


# What only real processes show.


@pytest.fixture
def real() -> GuardedProcesses:
    return GuardedProcesses(owner="test")


def shell(script: str, **more: object) -> Program:
    arguments: dict[str, object] = {"what": "test", "argv": ("sh", "-c", script), "environment": ENVIRONMENT, **more}
    return Program(**arguments)  # type: ignore[arg-type]


async def test_nothing_outlives_the_program(real: GuardedProcesses) -> None:
    # Its output is closed by the program's end alone: the one that is left has none.
    child = await real.spawn(shell("setsid sleep 1000 >/dev/null 2>&1 & echo $!"))
    out, _ = await output_of(child)
    await child.wait()
    assert not psutil.pid_exists(int(out))


async def test_a_kill_reaches_processes_that_left_the_group(real: GuardedProcesses) -> None:
    child = await real.spawn(shell("setsid sleep 1000 & echo $!; wait"))
    async with asyncio.timeout(PATIENCE_S):
        piece = await child.read_output()
    assert piece is not None
    child.kill()
    assert await child.wait() == -9
    assert not psutil.pid_exists(int(piece[1]))


async def test_the_program_sees_no_descriptors_and_no_environment_of_the_agent(real: GuardedProcesses) -> None:
    os.environ["FARBUS_TEST_SECRET"] = "1"
    try:
        child = await real.spawn(shell("ls /proc/self/fd; env"))
    finally:
        del os.environ["FARBUS_TEST_SECRET"]
    out, _ = await output_of(child)
    words = out.decode().split()
    # 3 is ls's own, of the directory.
    assert [word for word in words if word.isdigit()] == ["0", "1", "2", "3"]
    assert "FARBUS_TEST_SECRET" not in out.decode()


async def test_signals_have_their_defaults(real: GuardedProcesses) -> None:
    child = await real.spawn(shell("grep -E 'Sig(Blk|Ign)' /proc/self/status"))
    out, _ = await output_of(child)
    # glibc keeps signals 32 and 33 for its threads and lets nobody change them (nptl(7)).
    of_glibc = 0b11 << 31
    assert {int(line.split()[1], 16) & ~of_glibc for line in out.decode().splitlines()} == {0}


async def test_a_file_for_another_machine_is_told_apart(real: GuardedProcesses, tmp_path: Path) -> None:
    foreign = 183 if platform.machine() == "x86_64" else 62  # EM_AARCH64, EM_X86_64 of elf.h
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHI", 2, foreign, 1) + bytes(40)
    program = tmp_path / "foreign"
    program.write_bytes(header)
    program.chmod(0o755)
    with pytest.raises(InvalidInput, match="built for another architecture than") as caught:
        await real.spawn(Program(what="test", argv=(str(program),), environment={}))
    assert caught.value.exit_code == ExitCode.NOT_EXECUTABLE


async def test_a_kept_descriptor_is_inherited(real: GuardedProcesses) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"a secret\n")
    os.close(writer)
    try:
        child = await real.spawn(shell(f"cat /dev/fd/{reader}", keep=(reader,)))
    finally:
        os.close(reader)
    assert await output_of(child) == (b"a secret\n", b"")


async def test_limits_are_set(real: GuardedProcesses) -> None:
    child = await real.spawn(shell("ulimit -Sn; ulimit -Hn; ulimit -c", limits={"RLIMIT_NOFILE": 64, "RLIMIT_CORE": 0}))
    assert await output_of(child) == (b"64\n64\n0\n", b"")


async def test_memory_counts_all_descendants(real: GuardedProcesses) -> None:
    script = f"{sys.executable} -c \"b = bytearray(2**26); print('ready', flush=True); input()\" < /dev/zero & wait"
    child = await real.spawn(shell(script))
    await ready(child)
    assert child.memory_bytes() > 2**26
    child.kill()
    await child.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_a_program_becomes_its_user_wholly(real: GuardedProcesses) -> None:
    nobody = SystemUsers().by_name("nobody")
    child = await real.spawn(shell("id -u; id -g; id -G; grep -E '^(Uid|Gid)' /proc/self/status", account=nobody))
    out, _ = await output_of(child)
    uid, gid, groups, *rest = out.decode().splitlines()
    assert (int(uid), int(gid)) == (nobody.uid, nobody.gid)
    assert {int(group) for group in groups.split()} == set(nobody.groups)
    assert set(rest[0].split()[1:]) == {str(nobody.uid)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_a_directory_closed_to_the_user_is_refused(real: GuardedProcesses, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)
    nobody = SystemUsers().by_name("nobody")
    with pytest.raises(InvalidInput, match="as nobody: Permission denied"):
        await real.spawn(shell("true", account=nobody, cwd=str(tmp_path)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root can become anybody")
async def test_becoming_another_user_without_privilege_is_refused(real: GuardedProcesses) -> None:
    with pytest.raises(FarbusError, match="become somebody"):
        await real.spawn(shell("true", account=Account(name="somebody", uid=os.geteuid() + 1, gid=os.getegid())))


async def test_what_a_dead_agent_left_is_found_by_its_owner_and_ended() -> None:
    program = """
import asyncio, sys
from farbus.linux.processes import GuardedProcesses, Program
async def main():
    door = GuardedProcesses(owner="test-remains")
    sleep = Program(what="task j1/main.0", argv=("sleep", "1000"), environment={"PATH": "/bin:/usr/bin"})
    child = await door.spawn(sleep)
    print(child._guard.pid, child.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, cwd=GUARD.parents[2],
        env={**os.environ, "PYTHONPATH": str(GUARD.parents[2])},
    )  # fmt: skip
    assert agent.stdout is not None
    guard, sleeper = (psutil.Process(int(word)) for word in (await agent.stdout.readline()).split())
    # A guard that can't run can't see the agent go.
    guard.suspend()
    agent.kill()
    await agent.wait()
    door = GuardedProcesses(owner="test-remains")
    (remains,) = door.remains()
    assert (remains.pid, remains.what) == (guard.pid, "task j1/main.0")
    door.end(remains)
    _, alive = await asyncio.to_thread(psutil.wait_procs, [guard, sleeper], PATIENCE_S)
    assert not alive
    assert not door.remains()


def test_a_program_inherits_its_streams_and_nothing_else_that_its_guard_was_given(tmp_path: Path) -> None:
    specification = {
        "argv": ["ls", "/proc/self/fd"], "environment": ENVIRONMENT, "cwd": "/", "uid": None, "gid": None,
        "groups": [], "umask": 0o022, "limits": {}, "cgroup": "", "keep": [],
    }  # fmt: skip
    with (tmp_path / "agents.log").open("wb") as log, (tmp_path / "output").open("w+b") as output:
        # As uvloop starts a guard: with inheritable copies of the guard's own control pipe and of the agent's log.
        control, commands = os.pipe()
        streams = {"stdout": output.fileno(), "stderr": log.fileno()}
        copies = [os.dup(control), os.dup(log.fileno())]
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), "test", "ls"],
            stdin=control, stdout=subprocess.PIPE, pass_fds=(*streams.values(), *copies),
        )  # fmt: skip
        for descriptor in (control, *copies):
            os.close(descriptor)
        os.write(commands, json.dumps({**specification, **streams}).encode() + b"\n")
        guard.communicate(timeout=PATIENCE_S)
        os.close(commands)
        output.seek(0)
        listed = output.read()
    # The fourth is the directory that ls reads.
    assert listed.split() == [b"0", b"1", b"2", b"3"]
