"""The guard: the parent of every program that an agent starts.

Run by path with nothing but the standard library (``python -I -S guard.py
OWNER WHAT``), so that it starts in some twenty milliseconds and imports none
of Farbus.  It exists because three things can't be had from the parent alone:

* privileges, limits and the working directory are changed between fork and
  exec without running Python in a fork of a threaded process (no preexec_fn);
* when the agent dies, however it dies, its end of the control pipe closes,
  and the guard kills what it guards.  PR_SET_PDEATHSIG alone would reach only
  the program itself, and not the processes that it started;
* it is a child subreaper (prctl(2)), so processes that daemonise stay its
  descendants, and none outlives the program.

Control (standard input, lines): one JSON specification, then ``signal N`` or
``kill``; end of file means kill.  Status (standard output, JSON lines):
``{"event": "started", "pid"}`` or ``{"event": "failed", "stage", "errno"}``,
then ``{"event": "exited", "code"}``, the code negative for a signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
from typing import Any, NoReturn

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

# Sweeps over the descendants before the guard gives up on what will not die:
# a process in uninterruptible sleep takes its signal when it wakes.
KILL_SWEEPS = 200
SWEEP_INTERVAL_MS = 10


def prctl(option: int, value: int) -> None:
    """Call prctl(2); raise OSError when it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def close_others(kept: set[int]) -> None:
    """Close every descriptor from 3 on that is not in ``kept``.

    uvloop leaves the guard second, inheritable copies of its own control and
    status streams and of the agent's log, and passes on what the agent was
    started with: a program could take its own ``kill`` away, or say that it
    has ended.
    """
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor not in kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def tell(**message: Any) -> None:
    """Write one status line; an agent that is gone does not hear it, and need not."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def become(specification: dict[str, Any], guard_pid: int, report: int) -> NoReturn:
    """In the forked child: turn into the program, or report the stage that failed."""
    stage = "session"
    try:
        os.setsid()
        stage = "cgroup"
        if specification["cgroup"]:
            with open(os.path.join(specification["cgroup"], "cgroup.procs"), "w", encoding="ascii") as procs:
                procs.write("0")
        stage = "limits"
        for name, value in specification["limits"].items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (wanted, wanted))
        stage = "identity"
        if specification["uid"] is not None:
            os.setgroups(specification["groups"])
            os.setresgid(*[specification["gid"]] * 3)
            os.setresuid(*[specification["uid"]] * 3)
        # After setresuid, which clears it (prctl(2)).
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard_pid:
            os._exit(127)
        os.umask(specification["umask"])
        # After the identity changed: the user must be allowed to be there.
        stage = "directory"
        os.chdir(specification["cwd"])
        stage = "streams"
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(specification["stdout"], 1)
        os.dup2(specification["stderr"], 2)
        # They came with pass_fds, which made them inheritable.
        for descriptor in (specification["stdout"], specification["stderr"]):
            os.set_inheritable(descriptor, False)
        for descriptor in specification["keep"]:
            os.set_inheritable(descriptor, True)
        # A program expects the defaults, whatever Python ignores for itself, and whatever the agent was started
        # with, as nohup starts programs.
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        stage = "program"
        os.execvpe(specification["argv"][0], specification["argv"], specification["environment"])  # noqa: S606
    except OSError as error:
        os.write(report, json.dumps({"stage": stage, "errno": error.errno or 0}).encode())
    except (ValueError, KeyError, AttributeError) as error:
        os.write(report, json.dumps({"stage": stage, "errno": 0, "text": str(error)}).encode())
    finally:
        os._exit(127)


def start(specification: dict[str, Any]) -> int:
    """Fork and exec the program; return its process id, or exit after telling what failed."""
    heard, report = os.pipe()
    guard_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(heard)
        become(specification, guard_pid, report)
    os.close(report)
    with os.fdopen(heard, "rb") as pipe:
        # The write end is close-on-exec: end of file without a word means that exec worked.
        failure = pipe.read()
    for descriptor in {specification["stdout"], specification["stderr"], *specification["keep"]}:
        os.close(descriptor)
    if failure:
        os.waitpid(pid, 0)
        tell(event="failed", **json.loads(failure))
        sys.exit(0)
    tell(event="started", pid=pid)
    return pid


def descendants() -> list[int]:
    """Return the process ids of all descendants, by the parents named in /proc/PID/stat (proc(5))."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as stat:
            # The second field, the command in parentheses, may hold spaces and parentheses.
            parent = int(stat.read().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    frontier = [os.getpid()]
    while frontier:
        mine = children.get(frontier.pop(), [])
        found += mine
        frontier += mine
    return found


def kill_all(cgroup: str) -> None:
    """Kill every descendant and reap it.  Repeats, since they may fork meanwhile."""
    if cgroup:
        with contextlib.suppress(OSError), open(os.path.join(cgroup, "cgroup.kill"), "w", encoding="ascii") as file:
            file.write("1")
    nothing = select.poll()
    for _ in range(KILL_SWEEPS):
        for pid in descendants():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            return
        nothing.poll(SWEEP_INTERVAL_MS)


def reap_orphans(program: int) -> int | None:
    """Reap descendants that were left to this guard; return the program's status once it has ended."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if ended is None:
            return None
        status = os.waitpid(ended.si_pid, 0)[1]
        if ended.si_pid == program:
            return status


def guard(pid: int, control: bytes, cgroup: str) -> int:
    """Serve the control pipe until the program has ended; return its exit code."""
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(0, select.POLLIN)
    # Once before the first wait: the program may have ended before SIGCHLD was handled.
    while (status := reap_orphans(pid)) is None:
        *lines, control = control.split(b"\n")
        for line in lines:
            obey(line, pid)
        ready = [descriptor for descriptor, _ in poll.poll()]
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
        if 0 in ready:
            piece = os.read(0, 4096)
            control += piece
            if not piece:
                poll.unregister(0)
                obey(b"kill", pid)
    signal.set_wakeup_fd(-1)
    kill_all(cgroup)
    return os.waitstatus_to_exitcode(status)


def obey(line: bytes, pid: int) -> None:
    """Do what one control line says."""
    if line == b"kill":
        kill_before_reaping(pid)
    elif line.startswith(b"signal "):
        with contextlib.suppress(OSError):
            os.killpg(pid, int(line.removeprefix(b"signal ")))


def kill_before_reaping(pid: int) -> None:
    """Kill the program's group and descendants; its own status stays for the caller to collect."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    for descendant in descendants():
        with contextlib.suppress(OSError):
            os.kill(descendant, signal.SIGKILL)


def main() -> None:
    """Read the specification, start the program, guard it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A guard ends with its program or its agent, never before.
        signal.signal(number, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    control = b""
    while b"\n" not in control:
        piece = os.read(0, 65536)
        if not piece:
            return
        control += piece
    line, _, control = control.partition(b"\n")
    specification = json.loads(line)
    close_others({specification["stdout"], specification["stderr"], *specification["keep"]})
    pid = start(specification)
    tell(event="exited", code=guard(pid, control, specification["cgroup"]))


if __name__ == "__main__":
    main()
