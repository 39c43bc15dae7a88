"""The process door: the real one and the fake pass the same tests; then what only the real one can show."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
import pytest_asyncio

from farbus.errors import Conflict, ExitCode, FarbusError, InvalidInput, TimedOut
from farbus.linux import kept
from farbus.linux.clock import SystemClock
from farbus.linux.kept import KeptProcesses
from farbus.linux.output import START, read_pieces
from farbus.linux.processes import Child, Exit, FakeChild, FakeProcesses, Processes, Program
from farbus.linux.users import Account, SystemUsers

PATIENCE_S = 20.0
ENVIRONMENT = {"PATH": os.environ["PATH"]}

# What each program does, as a shell script and as a coroutine.
SHELL = {
    "greet": "echo hello; echo oops >&2; exit 3",
    "obey": "trap 'exit 7' TERM; echo ready; setsid sleep 1000 & wait",
    "sleep": "echo ready; exec sleep 1000",
    "ignore": "trap '' TERM; echo ready; sleep 1000 & wait",
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


async def ignore(child: FakeChild) -> int:
    child.write(b"ready\n")
    while True:
        await child.next_signal()


class Subject:
    """A process door, and how to name a program to it."""

    def __init__(self, directory: Path, argv: Mapping[str, tuple[str, ...]], fake: FakeProcesses | None = None) -> None:
        self._directory = directory
        self._fake = fake
        self.argv = argv
        self.door: Processes = fake or KeptProcesses(directory, owner="test")

    async def restart(self) -> None:
        """Let another agent have the door."""
        await self.door.close()
        self.door = self._fake or KeptProcesses(self._directory, owner="test")

    async def spawn(self, name: str, **more: Any) -> Child:
        argv = self.argv.get(name, (name,))
        settings = {"name": f"task.{name}", "what": name, "argv": argv, "environment": ENVIRONMENT, **more}
        return await self.door.spawn(Program(**settings))


@pytest_asyncio.fixture(params=["real", "fake"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    if request.param == "real":
        argv = {name: ("sh", "-c", script) for name, script in SHELL.items()}
        one = Subject(tmp_path / "programs", argv)
    else:
        scripts = {"greet": greet, "obey": obey, "sleep": sleep, "ignore": ignore}
        one = Subject(tmp_path, {name: (name,) for name in scripts}, FakeProcesses(scripts, clock=SystemClock()))
    yield one
    await end_all(one)


async def end_all(subject: Subject) -> None:
    """Leave nothing that runs."""
    await subject.restart()
    for child in await subject.door.survivors():
        child.kill()
        await child.wait()
        child.forget()
    await subject.door.close()


async def output_of(child: Child) -> tuple[bytes, bytes]:
    """Read a program's output to its end."""
    out = {1: b"", 2: b""}
    async with asyncio.timeout(PATIENCE_S):
        async for stream, data, _ in child.output():
            out[stream] += data
    return out[1], out[2]


async def first_output(child: Child) -> bytes:
    """Wait for a program to write something."""
    async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(child.output()) as pieces:
        return (await anext(pieces)).data


async def ready(child: Child) -> None:
    """Wait for a program to say so."""
    assert await first_output(child) == b"ready\n"


async def test_output_and_exit_code_come_back(subject: Subject) -> None:
    child = await subject.spawn("greet")
    assert await output_of(child) == (b"hello\n", b"oops\n")
    assert await child.wait() == Exit(3)


async def test_output_and_exit_code_can_be_had_again(subject: Subject) -> None:
    child = await subject.spawn("greet")
    assert await output_of(child) == await output_of(child)
    assert await child.wait() == await child.wait()


async def test_output_can_be_read_on_from_where_a_reader_was(subject: Subject) -> None:
    child = await subject.spawn("greet")
    await child.wait()
    pieces = [piece async for piece in child.output(follow=False)]
    for number, piece in enumerate(pieces, start=1):
        assert [later async for later in child.output(position=piece.position)] == pieces[number:]
    assert [later async for later in child.output(position=child.heard_until())] == []


async def test_how_far_output_is_heard_can_be_noted(subject: Subject) -> None:
    child = await subject.spawn("greet")
    await child.wait()
    first, *rest = [piece async for piece in child.output(follow=False)]
    child.note_heard(first.position)
    await subject.restart()
    (child,) = await subject.door.survivors()
    assert [later async for later in child.output(position=child.heard_until())] == rest


async def test_how_far_output_is_heard_is_its_beginning_on_a_disk_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Path) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    door = KeptProcesses(tmp_path / "programs", owner="test")
    child = await door.spawn(Program(name="task.greet", what="greet", argv=("true",), environment=ENVIRONMENT))
    await child.wait()
    monkeypatch.setattr(kept, "end_of", fails)
    assert child.heard_until() == START
    await door.close()


async def test_a_signal_reaches_the_program(subject: Subject) -> None:
    child = await subject.spawn("obey")
    await ready(child)
    child.signal(signal.SIGTERM)
    assert await child.wait() == Exit(7)


async def test_a_killed_program_ends_by_signal_nine(subject: Subject) -> None:
    child = await subject.spawn("sleep")
    await ready(child)
    child.kill()
    assert await child.wait() == Exit(-9)


async def test_a_program_that_is_ended_gets_its_grace_and_the_reason_stays(subject: Subject) -> None:
    child = await subject.spawn("obey")
    await ready(child)
    child.end(grace_s=PATIENCE_S, reason="enough")
    assert await child.wait() == Exit(7, "enough")
    assert (await output_of(child))[1] == b"farbus: stopped: enough\n"


async def test_a_program_that_does_not_heed_its_end_is_killed(subject: Subject) -> None:
    child = await subject.spawn("ignore")
    await ready(child)
    child.end(grace_s=0.05, reason="enough")
    assert await child.wait() == Exit(-9, "enough")


async def test_the_first_reason_is_the_one(subject: Subject) -> None:
    child = await subject.spawn("ignore")
    await ready(child)
    child.end(grace_s=PATIENCE_S, reason="enough")
    child.kill("now")
    assert await child.wait() == Exit(-9, "enough")


async def test_a_program_has_its_time_limit(subject: Subject) -> None:
    child = await subject.spawn("obey", time_limit_s=0.3)
    assert (await child.wait()).reason == "it has run for its time limit of 0.3 s"


async def test_a_note_stands_between_the_lines_of_standard_error(subject: Subject) -> None:
    child = await subject.spawn("sleep")
    await ready(child)
    child.note("a note\n")
    child.kill()
    assert (await output_of(child))[1] == b"a note\n"


async def test_two_programs_never_have_one_name(subject: Subject) -> None:
    await subject.spawn("sleep")
    with pytest.raises(Conflict, match="sleep: it is there already"):
        await subject.spawn("sleep")


async def test_a_running_program_is_found_by_the_next_agent(subject: Subject) -> None:
    pid = (await subject.spawn("obey")).pid
    await subject.restart()
    (child,) = await subject.door.survivors("task.")
    assert (child.name, child.pid, child.running) == ("task.obey", pid, True)
    await ready(child)
    child.signal(signal.SIGTERM)
    assert await child.wait() == Exit(7)


async def test_survivors_are_found_once_and_by_their_names(subject: Subject) -> None:
    await subject.spawn("sleep")
    assert await subject.door.survivors() == []
    await subject.restart()
    assert await subject.door.survivors("lease.") == []
    assert [child.name for child in await subject.door.survivors("task.")] == ["task.sleep"]
    assert await subject.door.survivors() == []


async def test_a_program_that_has_ended_stays_until_it_is_forgotten(subject: Subject) -> None:
    child = await subject.spawn("greet")
    await child.wait()
    await subject.restart()
    (child,) = await subject.door.survivors()
    assert await child.wait() == Exit(3)
    assert await output_of(child) == (b"hello\n", b"oops\n")
    child.forget()
    await subject.restart()
    assert await subject.door.survivors() == []


async def test_a_name_can_be_had_again_once_it_is_forgotten(subject: Subject) -> None:
    child = await subject.spawn("greet")
    await child.wait()
    child.forget()
    assert await (await subject.spawn("greet")).wait() == Exit(3)


async def test_output_goes_where_it_is_wanted(subject: Subject, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    child = await subject.spawn("greet", output=str(kept))
    await child.wait()
    child.forget()
    assert {piece.data for piece in read_pieces(kept)} == {b"hello\n", b"oops\n"}


async def test_signals_after_the_end_do_nothing(subject: Subject) -> None:
    child = await subject.spawn("greet")
    await child.wait()
    child.signal(signal.SIGTERM)
    child.kill()
    assert await child.wait() == Exit(3)


async def test_a_program_that_is_not_there_is_named(subject: Subject) -> None:
    with pytest.raises(InvalidInput, match="no-such-program: no such program") as caught:
        await subject.spawn("no-such-program")
    assert caught.value.exit_code == ExitCode.COMMAND_NOT_FOUND


async def test_a_directory_that_is_not_there_is_named(subject: Subject) -> None:
    with pytest.raises(InvalidInput, match="working directory /no/where: No such file"):
        await subject.spawn("greet", cwd="/no/where")


async def test_an_empty_command_is_refused(subject: Subject) -> None:
    with pytest.raises(InvalidInput, match="there is no command"):
        await subject.door.spawn(Program(name="nothing", what="nothing", argv=(), environment={}))


# What only real processes show.


@pytest_asyncio.fixture
async def real(tmp_path: Path) -> AsyncIterator[KeptProcesses]:
    one = Subject(tmp_path / "programs", {})
    assert isinstance(one.door, KeptProcesses)
    yield one.door
    await end_all(one)


def shell(script: str, **more: Any) -> Program:
    settings = {"name": "test", "what": "test", "argv": ("sh", "-c", script), "environment": ENVIRONMENT, **more}
    return Program(**settings)


async def test_nothing_outlives_the_program(real: KeptProcesses) -> None:
    # Its output is closed by the program's end alone: the one that is left has none.
    child = await real.spawn(shell("setsid sleep 1000 >/dev/null 2>&1 & echo $!"))
    out, _ = await output_of(child)
    await child.wait()
    assert not psutil.pid_exists(int(out))


async def test_a_kill_reaches_processes_that_left_the_group(real: KeptProcesses) -> None:
    child = await real.spawn(shell("setsid sleep 1000 & echo $!; wait"))
    left = int(await first_output(child))
    child.kill()
    assert await child.wait() == Exit(-9)
    assert not psutil.pid_exists(left)


async def test_the_program_sees_no_descriptors_and_no_environment_of_the_agent(real: KeptProcesses) -> None:
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


async def test_signals_have_their_defaults(real: KeptProcesses) -> None:
    child = await real.spawn(shell("grep -E 'Sig(Blk|Ign)' /proc/self/status"))
    out, _ = await output_of(child)
    # glibc keeps signals 32 and 33 for its threads and lets nobody change them (nptl(7)).
    of_glibc = 0b11 << 31
    assert {int(line.split()[1], 16) & ~of_glibc for line in out.decode().splitlines()} == {0}


async def test_a_file_for_another_machine_is_told_apart(real: KeptProcesses, tmp_path: Path) -> None:
    foreign = 183 if platform.machine() == "x86_64" else 62  # EM_AARCH64, EM_X86_64 of elf.h
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHI", 2, foreign, 1) + bytes(40)
    program = tmp_path / "foreign"
    program.write_bytes(header)
    program.chmod(0o755)
    with pytest.raises(InvalidInput, match="built for another architecture than") as caught:
        await real.spawn(Program(name="test", what="test", argv=(str(program),), environment={}))
    assert caught.value.exit_code == ExitCode.NOT_EXECUTABLE


async def test_a_kept_descriptor_is_inherited(real: KeptProcesses) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"a secret\n")
    os.close(writer)
    try:
        child = await real.spawn(shell(f"cat /dev/fd/{reader}", keep=(reader,)))
    finally:
        os.close(reader)
    assert await output_of(child) == (b"a secret\n", b"")


async def test_limits_are_set(real: KeptProcesses) -> None:
    child = await real.spawn(shell("ulimit -Sn; ulimit -Hn; ulimit -c", limits={"RLIMIT_NOFILE": 64, "RLIMIT_CORE": 0}))
    assert await output_of(child) == (b"64\n64\n0\n", b"")


async def test_a_program_gets_the_descriptor_limit_that_its_agent_was_started_with(
    real: KeptProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "inherited_descriptor_limit", lambda: 256)
    child = await real.spawn(shell("ulimit -Sn; ulimit -Hn"))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert await output_of(child) == (f"256\n{hard}\n".encode(), b"")


async def test_memory_counts_all_descendants(real: KeptProcesses) -> None:
    program = "import time; b = bytearray(2**26); print('ready', flush=True); time.sleep(1000)"
    script = f'{sys.executable} -c "{program}" & wait'
    child = await real.spawn(shell(script))
    await ready(child)
    assert child.resident_bytes() >= await child.memory_bytes() > 2**26
    child.kill()
    await child.wait()


async def test_a_count_of_memory_that_hangs_is_given_up(real: KeptProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(kept, "run_disposable", hang)
    monkeypatch.setattr(kept, "MEMORY_TIMEOUT_S", 0.1)
    child = await real.spawn(shell("exec sleep 1000"))
    with pytest.raises(TimedOut, match=r"test: its memory is not counted after 0.1 s; a process of it hangs"):
        await child.memory_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_a_program_becomes_its_user_wholly(real: KeptProcesses) -> None:
    nobody = SystemUsers().by_name("nobody")
    child = await real.spawn(shell("id -u; id -g; id -G; grep -E '^(Uid|Gid)' /proc/self/status", account=nobody))
    out, _ = await output_of(child)
    uid, gid, groups, *rest = out.decode().splitlines()
    assert (int(uid), int(gid)) == (nobody.uid, nobody.gid)
    assert {int(group) for group in groups.split()} == set(nobody.groups)
    assert set(rest[0].split()[1:]) == {str(nobody.uid)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_a_directory_closed_to_the_user_is_refused(real: KeptProcesses, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)
    nobody = SystemUsers().by_name("nobody")
    with pytest.raises(InvalidInput, match="as nobody: Permission denied"):
        await real.spawn(shell("true", account=nobody, cwd=str(tmp_path)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root can become anybody")
async def test_becoming_another_user_without_privilege_is_refused(real: KeptProcesses) -> None:
    with pytest.raises(FarbusError, match="become somebody"):
        await real.spawn(shell("true", account=Account(name="somebody", uid=os.geteuid() + 1, gid=os.getegid())))
