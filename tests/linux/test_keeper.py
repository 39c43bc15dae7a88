"""Keepers: what they keep while no agent is there, and what becomes of a program whose keeper dies."""

from __future__ import annotations

import array
import asyncio
import gc
import json
import os
import platform
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from farbus.errors import Unavailable
from farbus.linux import keeper, kept, sweeper
from farbus.linux.children import process_exists, processes_naming
from farbus.linux.keeper import MARK
from farbus.linux.kept import KeptChild, KeptProcesses, service_command, unit_name
from farbus.linux.output import START, read_pieces
from farbus.linux.processes import Exit, Program
from farbus.linux.remnants import ask_to_end, boot_id, end_programs, kill_once

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 30.0
ENVIRONMENT = {"PATH": os.environ["PATH"]}
TEST_MARK = "0123456789abcdef-of-a-test"

Door = Callable[[], KeptProcesses]


@pytest_asyncio.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    """Doors to one directory, one after the other, as agents come and go; at the end nothing runs."""
    doors: list[KeptProcesses] = []

    def another() -> KeptProcesses:
        doors.append(KeptProcesses(tmp_path / "programs", owner="test"))
        return doors[-1]

    yield another
    for one in doors:
        await one.close()
    last = another()
    for child in await last.survivors():
        child.kill()
        await child.wait()
        child.forget()
    await last.close()


def shell(script: str, *, name: str = "t", **more: Any) -> Program:
    settings = {"name": name, "what": name, "argv": ("sh", "-c", script), "environment": ENVIRONMENT, **more}
    return Program(**settings)


async def spawn(door: KeptProcesses, program: Program) -> KeptChild:
    child = await door.spawn(program)
    assert isinstance(child, KeptChild)
    return child


async def survivor(door: KeptProcesses) -> KeptChild:
    (child,) = await door.survivors()
    assert isinstance(child, KeptChild)
    return child


async def output_of(child: KeptChild) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return b"".join([piece.data async for piece in child.output()])


async def line_of(child: KeptChild) -> str:
    """Wait for a program's first line."""
    said = b""
    async with asyncio.timeout(PATIENCE_S):
        async for piece in child.output():
            said += piece.data
            if b"\n" in said:
                break
    return said.decode().splitlines()[0]


async def gone(pid: int) -> None:
    """Wait for the end of a process that is no child."""
    await asyncio.to_thread(wait_for, pid)


def wait_for(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], PATIENCE_S)[0]
    finally:
        os.close(descriptor)


def fifo(directory: Path, name: str = "fifo") -> Path:
    path = directory / name
    os.mkfifo(path)
    return path


def change_keepers(monkeypatch: pytest.MonkeyPatch, statements: str) -> None:
    """Have every keeper run statements before it becomes one."""
    made = keeper.command

    def changed(*arguments: str) -> list[str]:
        *rest, directory, owner, name = made(*arguments)
        program = rest.pop().replace("keeper.main()", f"exec({statements!r}); keeper.main()")
        return [*rest, program, directory, owner, name]

    monkeypatch.setattr(keeper, "command", changed)


EAGER = """
class Eager:
    def __init__(self):
        self.real, self.all = poll(), set()
    def register(self, descriptor, events):
        self.all.add(descriptor)
        self.real.register(descriptor, events)
    def unregister(self, descriptor):
        self.all.discard(descriptor)
        self.real.unregister(descriptor)
    def poll(self, left=None):
        ready = self.real.poll(left)
        return ready and [(descriptor, 1) for descriptor in self.all]
poll = keeper.select.poll
keeper.select.poll = Eager
"""


async def test_output_that_is_gone_when_it_is_read_stops_no_keeper(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of its keeper's user can open its own pipe and be quicker: its time would not be limited any more."""
    change_keepers(monkeypatch, EAGER)
    child = await spawn(door(), shell(f"echo here; read line < {fifo(tmp_path)}"))
    assert await line_of(child) == "here"
    child.kill()
    async with asyncio.timeout(PATIENCE_S):
        assert (await child.wait()).code == -signal.SIGKILL
    child.forget()


# Agents come and go.

AGENT = """
import asyncio, os, sys
from pathlib import Path
from farbus.linux.kept import KeptProcesses
from farbus.linux.processes import Program
async def main():
    door = KeptProcesses(Path(sys.argv[1]), owner="test")
    for number in range(3):
        child = await door.spawn(Program(
            name=f"t{number}", what="t", argv=("seq", sys.argv[2]), environment=dict(os.environ), output_bytes=2**27,
        ))
    async for piece in child.output():
        print("written", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_no_line_is_lost_or_doubled_when_the_agent_is_killed(door: Door, tmp_path: Path) -> None:
    lines = 300_000
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT, str(tmp_path / "programs"), str(lines), stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert agent.stdout is not None
    assert await agent.stdout.readline() == b"written\n"
    agent.kill()
    await agent.wait()
    for child in await door().survivors():
        assert isinstance(child, KeptChild)
        assert await output_of(child) == b"".join(b"%d\n" % number for number in range(1, lines + 1))
        assert await child.wait() == Exit(0)


async def test_an_exit_without_an_agent_is_kept(door: Door, tmp_path: Path) -> None:
    wait = fifo(tmp_path)
    first = door()
    child = await spawn(first, shell(f"read line < {wait}; echo last words; exit 5"))
    await first.close()
    await asyncio.to_thread(wait.write_text, "\n")
    await gone(child.keeper)
    child = await survivor(door())
    assert await child.wait() == Exit(5)
    assert await output_of(child) == b"last words\n"


async def test_a_follower_goes_on_where_it_was_with_the_next_agent(door: Door, tmp_path: Path) -> None:
    wait = fifo(tmp_path)
    first = door()
    child = await spawn(first, shell(f"echo one; read line < {wait}; echo two"))
    pieces = child.output()
    piece = await anext(pieces)
    assert piece.data == b"one\n"
    await pieces.aclose()
    await first.close()
    child = await survivor(door())
    following = asyncio.create_task(anext(child.output(position=piece.position)))
    await asyncio.to_thread(wait.write_text, "\n")
    assert (await following).data == b"two\n"


async def test_a_time_limit_holds_without_an_agent(door: Door) -> None:
    first = door()
    child = await spawn(first, shell("exec sleep 1000", time_limit_s=0.2))
    await first.close()
    await gone(child.keeper)
    assert await (await survivor(door())).wait() == Exit(-15, "it has run for its time limit of 0.2 s")


async def test_a_program_that_no_agent_comes_back_for_is_ended(door: Door) -> None:
    first = door()
    child = await spawn(first, shell("exec sleep 1000", orphan_limit_s=0.2))
    await first.close()
    await gone(child.keeper)
    assert await (await survivor(door())).wait() == Exit(-15, "no agent has come back for it within 0.2 s")


async def test_a_keeper_whose_directory_is_gone_ends(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_keepers(monkeypatch, "keeper.DIRECTORY_LOOK_S = 0.05")
    first = door()
    child = await spawn(first, shell("echo ready; exec sleep 1000"))
    assert await line_of(child) == "ready"
    await first.close()
    shutil.rmtree(tmp_path / "programs")
    await gone(child.keeper)
    assert not process_exists(child.pid)


async def test_nothing_is_kept_of_a_program_that_is_forgotten(door: Door) -> None:
    one = door()
    child = await spawn(one, shell("true"))
    await child.wait()
    child.forget()
    known = weakref.ref(child)
    del child
    async with asyncio.timeout(PATIENCE_S):
        while known() is not None:
            # Who heard its keeper ends first.
            await asyncio.sleep(0)
            gc.collect()


async def test_a_hundred_programs_at_once(door: Door) -> None:
    first = door()
    programs = [shell(f"echo {number}; exit {number}", name=f"t{number:03}") for number in range(100)]
    await asyncio.gather(*[first.spawn(program) for program in programs])
    await first.close()
    children = await door().survivors()
    assert [await child.wait() for child in children] == [Exit(number) for number in range(100)]


async def test_the_length_of_the_state_directorys_path_does_not_matter(tmp_path: Path) -> None:
    directory = tmp_path.joinpath(*["long" * 50] * 3)
    first = KeptProcesses(directory, owner="test")
    await spawn(first, shell("echo here; exec sleep 1000"))
    await first.close()
    second = KeptProcesses(directory, owner="test")
    child = await survivor(second)
    assert await line_of(child) == "here"
    child.kill()
    assert await child.wait() == Exit(-9)
    await second.close()


async def test_output_that_never_ends_a_line_is_kept(door: Door) -> None:
    child = await spawn(door(), shell("head -c 1000000 /dev/zero"))
    assert await output_of(child) == bytes(1_000_000)


async def test_what_the_pipe_holds_is_kept_when_there_is_no_time_left(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is heard of after the first pieces, and with no time to drain at once acted on."""
    change_keepers(monkeypatch, "keeper.OUTPUT_DRAIN_S = 0; keeper.PIECE_BYTES = 1000")
    child = await spawn(door(), shell("head -c 60000 /dev/zero"))
    assert len(await output_of(child)) == 60_000


# Keepers die.

# One process that has left its session and its parent, one that has closed all it had besides.
DAEMONS = "setsid sh -c 'sleep 1000 >/dev/null 2>&1 & echo $!'; sleep 1000 & echo $!; wait"


async def pids_of(child: KeptChild, count: int) -> list[int]:
    said = b""
    async with asyncio.timeout(PATIENCE_S):
        async for piece in child.output():
            said += piece.data
            if said.count(b"\n") == count:
                break
    return [child.pid, *map(int, said.split())]


async def test_a_killed_keeper_takes_its_program_and_what_it_started_with_it(door: Door) -> None:
    child = await spawn(door(), shell(DAEMONS))
    pids = await pids_of(child, 2)
    os.kill(child.keeper, signal.SIGKILL)
    assert await child.wait() == Exit(-9, "its keeper was killed")
    assert not [pid for pid in pids if process_exists(pid)]


async def test_what_a_keeper_left_that_was_killed_without_an_agent_is_ended_by_the_next(door: Door) -> None:
    first = door()
    child = await spawn(first, shell(DAEMONS))
    pids = await pids_of(child, 2)
    await first.close()
    os.kill(child.keeper, signal.SIGKILL)
    await gone(child.keeper)
    found = await survivor(door())
    assert await found.wait() == Exit(-9, "its keeper was killed")
    assert not [pid for pid in pids if process_exists(pid)]


async def test_a_keeper_that_does_not_answer_is_taken_for_dead(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farbus.linux.kept.ANSWER_TIMEOUT_S", 0.2)
    first = door()
    child = await spawn(first, shell("exec sleep 1000"))
    await first.close()
    os.kill(child.keeper, signal.SIGSTOP)
    assert await (await survivor(door())).wait() == Exit(-9, "its keeper was killed")
    assert not process_exists(child.keeper)
    assert not process_exists(child.pid)


async def test_what_can_not_be_killed_is_not_said_to_be_gone(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    first = door()
    child = await spawn(first, shell("exec sleep 1000"))
    await first.close()
    os.kill(child.keeper, signal.SIGKILL)
    # As a process in uninterruptible sleep: it is there, whatever is sent to it.
    left = [child.pid]

    async def can_not(_: object, programs: list[object]) -> list[list[int]]:
        return [list(left) for _ in programs]

    monkeypatch.setattr("farbus.linux.sweeper.run_disposable", can_not)
    monkeypatch.setattr("farbus.linux.kept.KILL_WITHIN_S", 0.1)
    found = await survivor(door())
    assert found.running
    left.clear()
    assert await found.wait() == Exit(-9, "its keeper was killed")


async def test_where_nobody_can_look_nothing_is_said_to_be_gone(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    first = door()
    child = await spawn(first, shell("exec sleep 1000"))
    await first.close()
    os.kill(child.keeper, signal.SIGKILL)
    hangs, hang = asyncio.Event(), asyncio.Event()
    look = sweeper.run_disposable

    async def hang_once(*arguments: Any) -> Any:
        # As reading the memory of a process that waits in the kernel.
        if not hangs.is_set():
            hangs.set()
            await hang.wait()
        return await look(*arguments)

    monkeypatch.setattr(sweeper, "run_disposable", hang_once)
    monkeypatch.setattr(sweeper, "ANSWER_TIMEOUT_S", 0.1)
    monkeypatch.setattr("farbus.linux.kept.KILL_WITHIN_S", 0.05)
    found = await survivor(door())
    assert found.running
    monkeypatch.setattr(sweeper, "ANSWER_TIMEOUT_S", PATIENCE_S)
    assert await found.wait() == Exit(-9, "its keeper was killed")


# As in uninterruptible sleep: signals wait for as long as a file is there.
HOLD = """
import os
def held(send):
    return lambda pid, number: None if os.path.exists({hold!r}) else send(pid, number)
os.kill, os.killpg = held(os.kill), held(os.killpg)
keeper.UNKILLABLE_AFTER_S = 0.05
"""


async def test_a_program_has_not_ended_before_all_that_it_left_has(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    change_keepers(monkeypatch, HOLD.format(hold=str(hold)))
    first = door()
    # Until it executes that it is called as the shell.
    waits = "while read name </proc/$!/comm && [ $name != sleep ]; do :; done"
    child = await spawn(first, shell(f"setsid sleep 1000 >/dev/null 2>&1 & {waits}; echo $!; exit 3"))
    (_, left) = await pids_of(child, 1)
    said = b""
    async with asyncio.timeout(PATIENCE_S):
        async for piece in child.output():
            said += piece.data
            if said.endswith(b"see dmesg\n"):
                break
    assert f"it has ended, but process {left} (sleep) can't be killed".encode() in said
    assert child.running
    await first.close()
    found = await survivor(door())
    assert found.running
    hold.unlink()
    assert await found.wait() == Exit(3)
    assert not process_exists(left)


# The shell ends when it is told to; what it has started ends later, or not at all.
SAVES = """
(trap 'while kill -0 $$ 2>/dev/null; do sleep 0.01; done; sleep 0.05; echo saved; exit' TERM
echo ready; while :; do sleep 0.01; done) &
wait
"""
IGNORES = "trap '' TERM; sleep 1000 & trap - TERM; echo $!; wait"
HAS_LEFT = "setsid sh -c 'trap \"\" TERM; echo $$; exec sleep 1000' & wait"


async def test_what_a_program_has_started_has_the_same_time_to_end(door: Door) -> None:
    child = await spawn(door(), shell(SAVES))
    assert await line_of(child) == "ready"
    child.end(grace_s=1000.0, reason="cancelled")
    assert b"saved\n" in await output_of(child)
    assert await child.wait() == Exit(-15, "cancelled")


async def test_what_a_program_has_started_is_killed_when_that_time_is_over(door: Door) -> None:
    child = await spawn(door(), shell(IGNORES))
    (_, started) = await pids_of(child, 1)
    child.end(grace_s=0.05, reason="cancelled")
    assert await child.wait() == Exit(-15, "cancelled")
    assert not process_exists(started)
    assert b"can't be killed" not in await output_of(child)


async def test_what_a_program_has_started_is_killed_when_nobody_waits_any_more(door: Door) -> None:
    child = await spawn(door(), shell(IGNORES))
    (_, started) = await pids_of(child, 1)
    child.end(grace_s=1000.0, reason="cancelled")
    await gone(child.pid)
    child.kill("now")
    async with asyncio.timeout(PATIENCE_S):
        assert await child.wait() == Exit(-15, "cancelled")
    assert not process_exists(started)


async def test_what_has_left_a_programs_group_was_not_told_and_has_no_time(door: Door) -> None:
    child = await spawn(door(), shell(HAS_LEFT))
    (_, left) = await pids_of(child, 1)
    async with asyncio.timeout(PATIENCE_S):
        child.end(grace_s=1000.0, reason="cancelled")
        assert await child.wait() == Exit(-15, "cancelled")
    assert not process_exists(left)


# The first thread ends, another lives on, as one that hangs in a driver.
THREADS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall(60, 0)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="knows the number of exit(2) there")
def test_a_process_whose_first_thread_has_ended_is_there(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", THREADS], env={MARK: TEST_MARK}, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        # After that it is a matter of its scheduling.
        while Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z":
            os.sched_yield()
        assert kill_once(str(tmp_path), TEST_MARK) == [process.pid]
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    finally:
        process.kill()
        process.communicate()


# As with a file system that is not there: exec waits until somebody writes.
SLOW_EXEC = """
import os
execute = os.execvpe
def wait_and_execute(*arguments):
    open({gate!r}).close()
    execute(*arguments)
os.execvpe = wait_and_execute
"""


async def test_a_keeper_that_waits_for_exec_is_found_and_its_program_never_runs(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, ran, directory = fifo(tmp_path), tmp_path / "ran", tmp_path / "programs" / "t"
    change_keepers(monkeypatch, SLOW_EXEC.format(gate=str(gate)))
    monkeypatch.setattr("farbus.linux.kept.ANSWER_TIMEOUT_S", 0.2)
    process, connection = start_keeper(directory)
    plan = {"version": 1, "what": "t", "mark": TEST_MARK, "boot_id": boot_id(), "output": "output"}
    (directory / "program.json").write_text(json.dumps(plan))
    process.wait(PATIENCE_S)
    with connection:
        keeping = psutil.Process(read_line(connection)["keeper"])
        program = {**SPECIFICATION, "argv": ["touch", str(ran)]}
        connection.sendall(HELLO + json.dumps(program).encode() + b"\n")
        while not keeping.children():
            os.sched_yield()
        (child,) = keeping.children()
    found = await survivor(door())
    assert await found.wait() == Exit(-9, "its keeper was killed")
    assert not process_exists(keeping.pid)
    await gone(child.pid)
    assert not ran.exists()


async def test_a_start_that_takes_too_long_leaves_nothing_that_runs(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, ran = fifo(tmp_path), tmp_path / "ran"
    change_keepers(monkeypatch, SLOW_EXEC.format(gate=str(gate)))
    monkeypatch.setattr("farbus.linux.kept.START_TIMEOUT_S", 1.0)
    monkeypatch.setattr("farbus.linux.remnants.KILL_WITHIN_S", 0.1)
    with pytest.raises(Unavailable, match="start touch: not started after 1 s"):
        await door().spawn(Program(name="t", what="t", argv=("touch", str(ran)), environment=ENVIRONMENT))
    assert processes_naming(str(gate)) == []
    assert not ran.exists()
    assert list((tmp_path / "programs").iterdir()) == []


def test_a_process_that_is_not_seen_from_here_is_there_and_nobody_else_is_killed_for_it(tmp_path: Path) -> None:
    # As cgroup.procs has a process of another pid namespace (cgroups(7)); to kill(2) it means one's own group.
    (tmp_path / "cgroup.procs").write_text("0\n")
    known = {"keeper": 0, "started_at": 0, "cgroup": str(tmp_path)}
    (tmp_path / "keeper.json").write_text(json.dumps(known))
    assert kill_once(str(tmp_path), "") == [0]


async def test_a_start_that_is_cut_off_is_gone_on_with_by_the_next_agent(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = asyncio.Event()

    async def cut_off(_: object) -> None:
        started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("farbus.linux.kept._reap", cut_off)
    spawning = asyncio.create_task(door().spawn(shell("trap 'exit 5' TERM; echo ready; sleep 1000 & wait")))
    await started.wait()
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning
    found = await survivor(door())
    assert await line_of(found) == "ready"
    found.signal(signal.SIGTERM)
    assert await found.wait() == Exit(5)


def test_what_an_agent_has_said_before_it_was_killed_is_done_before_the_next_one_is_told(tmp_path: Path) -> None:
    directory = tmp_path / "programs" / "t"
    process, first = start_keeper(directory)
    process.wait(PATIENCE_S)
    pid = read_line(first)["keeper"]
    program = {**SPECIFICATION, "argv": ["sleep", "1000"]}
    os.kill(pid, signal.SIGSTOP)
    with first:
        first.sendall(HELLO + json.dumps(program).encode() + b"\n")
    with connect(directory) as second:
        os.kill(pid, signal.SIGCONT)
        told = read_line(second)["state"]
    ask_to_end(directory)
    wait_for(pid)
    assert told == "running"


async def test_where_no_keeper_was_told_what_to_start_there_was_no_program(door: Door, tmp_path: Path) -> None:
    directory = tmp_path / "programs" / "t"
    directory.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "control"))
    plan = {"version": 1, "what": "t", "mark": TEST_MARK, "boot_id": boot_id(), "output": "output"}
    (directory / "program.json").write_text(json.dumps(plan))
    assert await door().survivors() == []
    assert not directory.exists()


@pytest.mark.parametrize("damage", ["", "{"])
async def test_a_program_whose_plan_can_not_be_read_is_ended(door: Door, tmp_path: Path, damage: str) -> None:
    first = door()
    child = await spawn(first, shell(DAEMONS))
    pids = await pids_of(child, 2)
    await first.close()
    (tmp_path / "programs" / "t" / "program.json").write_text(damage)
    assert await (await survivor(door())).wait() == Exit(-9, "its agent is gone")
    assert not [pid for pid in pids if process_exists(pid)]


async def test_what_a_killed_keeper_left_is_found_without_its_plan(door: Door, tmp_path: Path) -> None:
    first = door()
    child = await spawn(first, shell(DAEMONS))
    pids = await pids_of(child, 2)
    await first.close()
    os.kill(child.keeper, signal.SIGKILL)
    (tmp_path / "programs" / "t" / "program.json").unlink()
    assert await (await survivor(door())).wait() == Exit(-9, "its keeper was killed")
    assert not [pid for pid in pids if process_exists(pid)]


async def test_a_program_of_before_a_reboot_is_said_to_have_gone_with_it(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = door()
    child = await spawn(first, shell("exec sleep 1000"))
    await first.close()
    os.kill(child.keeper, signal.SIGKILL)
    monkeypatch.setattr("farbus.linux.remnants.boot_id", lambda: "another boot")
    assert await (await survivor(door())).wait() == Exit(-9, "the node was rebooted while it ran")


async def test_a_keeper_without_an_agent_before_it_was_told_what_to_start_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "programs" / "t"
    process, connection = start_keeper(directory)
    process.wait(PATIENCE_S)
    with connection:
        pid = read_line(connection)["keeper"]
    await gone(pid)
    assert not directory.exists()


def test_a_keeper_that_is_told_to_end_first_starts_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "programs" / "t"
    process, connection = start_keeper(directory)
    process.wait(PATIENCE_S)
    with connection:
        pid = read_line(connection)["keeper"]
        ask_to_end(directory)
        wait_for(pid)
    assert not directory.exists()


async def test_a_directory_in_which_nothing_was_started_is_removed_unless_it_holds_something_else(
    door: Door, tmp_path: Path
) -> None:
    for name in ("t", "torn", "other"):
        (tmp_path / "programs" / name).mkdir(parents=True)
    (tmp_path / "programs" / "torn" / "program.json").write_text('{"version": 1, "wh')
    (tmp_path / "programs" / "other" / "report.txt").write_text("somebody's")
    assert await door().survivors() == []
    assert [path.name for path in (tmp_path / "programs").iterdir()] == ["other"]


# All processes are ended: the machine is shut down without a service manager.


async def test_a_program_that_ends_with_all_processes_has_that_as_its_reason(door: Door) -> None:
    child = await spawn(door(), shell("trap 'exit 0' TERM; echo ready; sleep 1000 & wait"))
    assert await line_of(child) == "ready"
    os.kill(child.keeper, signal.SIGTERM)
    child.signal(signal.SIGTERM)
    assert await child.wait() == Exit(0, "its unit was stopped, or its machine shut down")


async def test_a_keeper_alone_that_is_told_to_end_goes_on(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    change_keepers(monkeypatch, "keeper.TIME_LIMIT_GRACE_S = 0")
    child = await spawn(door(), shell("trap 'exit 0' TERM; echo ready; sleep 1000 & wait"))
    assert await line_of(child) == "ready"
    os.kill(child.keeper, signal.SIGTERM)
    child.signal(signal.SIGTERM)
    assert await child.wait() == Exit(0)


# The power is cut.


async def test_a_status_is_on_the_disk_with_all_that_says_whose_it_is(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = tmp_path / "synced"
    note = f"note = os.readlink('/proc/self/fd/%d' % number); open({str(synced)!r}, 'a').write(note + '\\n')"
    change_keepers(monkeypatch, f"import os\ndef fsync(number):\n    {note}\nos.fsync = fsync")
    child = await spawn(door(), shell("true"))
    assert await child.wait() == Exit(0)
    directory = tmp_path / "programs" / "t"
    assert synced.read_text().splitlines() == [
        str(directory / "program.json"), str(directory / ".exit.json.new"), str(directory), str(directory.parent)
    ]  # fmt: skip


# The disk is full: a limit on the size of the keeper's files stands in for it.


def refuse_writes(child: KeptChild, refuse: bool) -> None:
    limit = 0 if refuse else resource.RLIM_INFINITY
    resource.prlimit(child.keeper, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


async def test_a_full_disk_loses_output_and_says_how_much(door: Door, tmp_path: Path) -> None:
    first, second = fifo(tmp_path, "first"), fifo(tmp_path, "second")
    much = 300_000
    script = f"echo ready; read line < {first}; head -c {much} /dev/zero; read line < {second}; echo kept"
    child = await spawn(door(), shell(script))
    assert await line_of(child) == "ready"
    refuse_writes(child, True)
    await asyncio.to_thread(first.write_text, "\n")
    release = await asyncio.to_thread(second.open, "w")
    # It waits for its second line: all that it has written but what a pipe holds was read.
    refuse_writes(child, False)
    with release:
        release.write("\n")
    said = await output_of(child)
    found = re.fullmatch(rb"ready\n\[farbus: (\d+) bytes of output lost: disk\]\n(\0*)kept\n", said)
    assert found
    assert int(found[1]) + len(found[2]) == much
    # What a pipe holds, and what was read and not yet written.
    assert len(found[2]) <= 2 * 2**16
    assert await child.wait() == Exit(0)


async def test_an_exit_status_that_the_disk_refuses_is_kept_by_its_keeper(door: Door, tmp_path: Path) -> None:
    wait = fifo(tmp_path)
    first = door()
    child = await spawn(first, shell(f"read line < {wait}; exit 5"))
    refuse_writes(child, True)
    await asyncio.to_thread(wait.write_text, "\n")
    assert await child.wait() == Exit(5)
    await first.close()
    found = await survivor(door())
    assert found.keeper == child.keeper
    assert await found.wait() == Exit(5)
    found.forget()
    await gone(child.keeper)


async def test_output_that_the_disk_refused_to_the_end_is_told_when_there_is_room(door: Door, tmp_path: Path) -> None:
    wait, log = fifo(tmp_path), tmp_path / "log"
    child = await spawn(door(), shell(f"read line < {wait}; echo lost", output=str(log)))
    refuse_writes(child, True)
    await asyncio.to_thread(wait.write_text, "\n")
    assert await child.wait() == Exit(0)
    refuse_writes(child, False)
    child.forget()
    await gone(child.keeper)
    assert b"".join(piece.data for piece in read_pieces(log, START)) == b"[farbus: 5 bytes of output lost: disk]\n"


# Hostile lines.


def start_keeper(directory: Path, **more: Any) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a keeper as the door does; return the process that becomes its parent, and a connection."""
    directory.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "control"))
        listener.listen()
        process = subprocess.Popen(keeper.command(sys.executable, "test", "t"), stdin=listener, cwd=directory, **more)
    return process, connect(directory)


def connect(directory: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE_S)
    connection.connect(str(directory / "control"))
    return connection


def read_line(connection: socket.socket) -> dict[str, Any]:
    line = b""
    while not line.endswith(b"\n"):
        piece = connection.recv(1)
        assert piece, line
        line += piece
    decoded: dict[str, Any] = json.loads(line)
    return decoded


HELLO = b'{"version": 1, "descriptors": 0}\n'
SPECIFICATION = {
    "do": "start", "argv": ["true"], "environment": ENVIRONMENT, "cwd": "/", "uid": None, "gid": None, "groups": [],
    "umask": 0o022, "limits": {}, "cgroup": "", "unit": False, "keep": [], "output": "output", "output_bytes": 1000,
    "time_limit_s": 0, "orphan_limit_s": 0, "memory_reason": "",
}  # fmt: skip
HOSTILE = {
    "not JSON": b"kill\n",
    "not text": b"\xff\xfe\n",
    "no version": b'{"do": "kill", "reason": ""}\n',
    "another kind of version": b'{"version": "1"}\n',
    "a list": b"[1]\n",
    "a number": HELLO + b"7\n",
    "deep": HELLO + b"[" * 100_000 + b"\n",
    "unknown": HELLO + b'{"do": "dance"}\n',
    "no word": HELLO + b"{}\n",
    "a list for a word": HELLO + b'{"do": [1]}\n',
    "no such signal": HELLO + b'{"do": "signal", "number": 4711}\n',
    "a signal in words": HELLO + b'{"do": "signal", "number": "KILL"}\n',
    "a huge signal": HELLO + b'{"do": "signal", "number": 1e400}\n',
    "no reason": HELLO + b'{"do": "end", "grace_s": 1}\n',
    "grace in words": HELLO + b'{"do": "end", "grace_s": "soon", "reason": ""}\n',
    "a position of one": HELLO + b'{"do": "watch", "position": [1]}\n',
    "a position in words": HELLO + b'{"do": "watch", "position": "start"}\n',
    "a second start": HELLO + b'{"do": "start"}\n',
}


@pytest.mark.parametrize("lines", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_lines_end_their_connection_and_nothing_else(door: Door, tmp_path: Path, lines: bytes) -> None:
    child = await spawn(door(), shell("trap 'exit 7' TERM; echo ready; setsid sleep 1000 & wait"))
    with connect(tmp_path / "programs" / "t") as connection:
        read_line(connection)
        connection.sendall(lines)
        # Closed with some of it unread, a connection is reset.
        try:
            assert connection.recv(1) == b""
        except ConnectionResetError:
            pass
    assert await line_of(child) == "ready"
    child.signal(signal.SIGTERM)
    assert await child.wait() == Exit(7)


async def test_a_line_without_an_end_and_more_descriptors_than_there_may_be_end_their_connection(
    door: Door, tmp_path: Path
) -> None:
    child = await spawn(door(), shell("echo ready; exec sleep 1000"))
    assert await line_of(child) == "ready"
    with connect(tmp_path / "programs" / "t") as connection:
        read_line(connection)
        before = psutil.Process(child.keeper).num_fds()
    flood(tmp_path / "programs" / "t", b"x" * 2**16, [])
    flood(tmp_path / "programs" / "t", b"x", [0] * 10)
    with connect(tmp_path / "programs" / "t") as connection:
        # It has dealt with what came before.
        read_line(connection)
        assert psutil.Process(child.keeper).num_fds() == before
    assert child.running


def flood(directory: Path, data: bytes, descriptors: list[int]) -> None:
    """Send the same again and again until the keeper ends the connection."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    with connect(directory) as connection:
        try:
            while True:
                connection.sendmsg([data], rights)
        except (BrokenPipeError, ConnectionResetError):
            pass


async def test_a_program_whose_agent_was_parted_with_goes_on(door: Door, tmp_path: Path) -> None:
    child = await spawn(door(), shell("trap 'exit 7' TERM; echo ready; setsid sleep 1000 & wait"))
    assert await line_of(child) == "ready"
    # More than a keeper lets in: the oldest, which is the agent's, goes.
    others = [connect(tmp_path / "programs" / "t") for _ in range(keeper.MAX_CONNECTIONS)]
    for other in others:
        read_line(other)
    for other in others:
        other.close()
    child.note("heard again\n")
    child.signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE_S):
        while child.running:
            child.signal(signal.SIGTERM)
            await asyncio.sleep(0)
    assert await child.wait() == Exit(7)


async def part(door: Door, tmp_path: Path, program: Program) -> KeptChild:
    """Return a program whose keeper has just parted with its agent, which has not noticed yet."""
    child = await spawn(door(), program)
    assert await line_of(child) == "ready"
    others = [connect(tmp_path / "programs" / "t") for _ in range(keeper.MAX_CONNECTIONS)]
    for other in others:
        # Nothing here gives way to the agent.
        read_line(other)
    for other in others:
        other.close()
    return child


async def test_a_kill_goes_to_a_keeper_that_has_just_parted_with_its_agent(door: Door, tmp_path: Path) -> None:
    child = await part(door, tmp_path, shell("trap '' TERM; echo ready; exec sleep 1000"))
    child.kill("it used too much memory")
    async with asyncio.timeout(PATIENCE_S):
        assert await child.wait() == Exit(-signal.SIGKILL, "it used too much memory")


async def test_an_end_goes_to_a_keeper_that_has_just_parted_with_its_agent(door: Door, tmp_path: Path) -> None:
    child = await part(door, tmp_path, shell("trap 'exit 7' TERM; echo ready; setsid sleep 1000 & wait"))
    child.end(grace_s=1000.0, reason="cancelled")
    async with asyncio.timeout(PATIENCE_S):
        assert await child.wait() == Exit(7, "cancelled")


async def test_what_is_told_while_there_is_no_connection_is_told_when_there_is_one(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting, goes_on = asyncio.Event(), asyncio.Event()
    real = kept._connect

    async def connect_later(directory: Path) -> Any:
        connecting.set()
        await goes_on.wait()
        return await real(directory)

    monkeypatch.setattr(kept, "_connect", connect_later)
    child = await part(door, tmp_path, shell("trap 'exit 7' TERM; echo ready; setsid sleep 1000 & wait"))
    await connecting.wait()
    child.note("heard\n")
    child.signal(signal.SIGTERM)
    goes_on.set()
    async with asyncio.timeout(PATIENCE_S):
        assert await child.wait() == Exit(7)
    assert b"heard\n" in b"".join([piece.data async for piece in child.output(follow=False)])


def test_a_program_inherits_its_streams_and_nothing_else_that_its_keeper_was_given(tmp_path: Path) -> None:
    with (tmp_path / "agents.log").open("wb") as log:
        # As uvloop starts a child: with inheritable copies of what the agent has open.
        process, connection = start_keeper(tmp_path / "t", pass_fds=(log.fileno(),))
    process.wait(PATIENCE_S)
    with connection:
        assert read_line(connection)["state"] == "new"
        program = {**SPECIFICATION, "argv": ["ls", "/proc/self/fd"]}
        connection.sendall(HELLO + json.dumps(program).encode() + b"\n")
        assert read_line(connection)["event"] == "started"
        assert read_line(connection)["code"] == 0
    (file,) = (tmp_path / "t" / "output").iterdir()
    # Behind the head of its record; the fourth is the directory that ls reads.
    assert file.read_bytes()[keeper.RECORD.size :].split() == [b"0", b"1", b"2", b"3"]


# Units of their own.


def test_limits_become_properties_of_the_unit(tmp_path: Path) -> None:
    program = shell("true", name="task.j1.main.0", memory_bytes=2**20, cpu_milli=1500)
    command = service_command(program, unit="u.service", directory=tmp_path, environment={"A": "b c"})
    assert {"--collect", "--slice=farbus-programs.slice", "--unit=u.service", "--setenv=A=b c"} <= set(command)
    assert {"--property=MemoryMax=1048576", "--property=CPUQuota=150%", "--property=Delegate=yes"} <= set(command)
    assert "--property=KillMode=mixed" in command
    assert command[-1] == "--"


def test_units_of_one_kind_share_the_beginning_of_their_names() -> None:
    assert unit_name("lease.l1.2", "0123456789") == "farbus-lease-l1.2-01234567.service"


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control group that a stand-in for systemd-run puts what it starts into; it returns when that is ready."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    root = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    if root is None:
        pytest.skip("needs cgroup version 2")
    directory = root / f"farbus-test-{os.getpid()}"
    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"needs the right to make control groups: {error}")
    stand_in = tmp_path / "bin" / "systemd-run"
    stand_in.parent.mkdir()
    stand_in.write_text(
        f"#!{sys.executable}\n"
        "import os, socket, subprocess, sys\n"
        f"open('{directory}/cgroup.procs', 'w').write('0')\n"
        f"ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); ready.bind('{tmp_path}/notify')\n"
        f"environment = dict(os.environ, NOTIFY_SOCKET='{tmp_path}/notify')\n"
        "subprocess.Popen(sys.argv[sys.argv.index('--') + 1:], env=environment, start_new_session=True,\n"
        "                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "assert ready.recv(99) == b'READY=1'\n"
        f"os.unlink('{tmp_path}/notify')\n"
        "root = open('/proc/self/mounts').read().split(' cgroup2 ')[0].split()[-1]\n"
        "open(root + '/cgroup.procs', 'w').write('0')\n"
    )
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}:{os.environ['PATH']}")
    return directory


def remove_group(group: Path) -> None:
    for leaf in ("keeper", "program", ""):
        # A killed process leaves its group a moment after it has ended.
        while (group / leaf).exists():
            try:
                (group / leaf).rmdir()
            except OSError:
                select.select([], [], [], 0.01)


async def test_a_program_in_a_unit_of_its_own_has_a_group_apart_from_its_keeper(tmp_path: Path, group: Path) -> None:
    door = KeptProcesses(tmp_path / "programs", owner="test", units=True)
    child = await spawn(door, shell("cat /proc/self/cgroup; trap 'exit 7' TERM; sleep 1000 & wait"))
    assert await line_of(child)
    assert (group / "keeper" / "cgroup.procs").read_text().split() == [str(child.keeper)]
    assert str(child.pid) in (group / "program" / "cgroup.procs").read_text().split()
    child.kill()
    assert await child.wait() == Exit(-9)
    await gone(child.keeper)
    await door.close()
    remove_group(group)


async def test_a_program_whose_unit_is_stopped_ends_with_that_as_its_reason(tmp_path: Path, group: Path) -> None:
    door = KeptProcesses(tmp_path / "programs", owner="test", units=True)
    child = await spawn(door, shell("trap 'exit 0' TERM; echo ready; sleep 1000 & wait"))
    assert await line_of(child) == "ready"
    # As systemd does with KillMode=mixed: the main process alone is told.
    os.kill(child.keeper, signal.SIGTERM)
    assert await child.wait() == Exit(0, "its unit was stopped, or its machine shut down")
    await gone(child.keeper)
    await door.close()
    remove_group(group)


async def test_a_killed_keepers_unit_is_emptied_of_what_has_no_mark(tmp_path: Path, group: Path) -> None:
    door = KeptProcesses(tmp_path / "programs", owner="test", units=True)
    child = await spawn(door, shell("env -i setsid sleep 1000 & echo $!; wait"))
    pids = await pids_of(child, 1)
    os.kill(child.keeper, signal.SIGKILL)
    assert await child.wait() == Exit(-9, "its keeper was killed")
    assert not [pid for pid in pids if process_exists(pid)]
    await door.close()
    remove_group(group)


# What an agent left that never comes back.


async def test_all_programs_of_an_agent_that_is_gone_are_ended(door: Door, tmp_path: Path) -> None:
    first = door()
    strays = [
        await pids_of(await spawn(first, shell("env -i setsid sleep 1000 & echo $!; wait", name=name)), 1)
        for name in ("t1", "t2")
    ]
    killed = await spawn(first, shell(DAEMONS, name="t3"))
    strays.append(await pids_of(killed, 2))
    (tmp_path / "programs" / "t4").mkdir()
    await first.close()
    os.kill(killed.keeper, signal.SIGKILL)
    assert await asyncio.to_thread(end_programs, tmp_path / "programs") == ["t1", "t2", "t3", "t4"]
    assert not [pid for pids in strays for pid in pids if process_exists(pid)]
    assert list((tmp_path / "programs").iterdir()) == []


def test_where_no_agent_was_there_is_nothing_to_end(tmp_path: Path) -> None:
    assert end_programs(tmp_path / "programs") == []
