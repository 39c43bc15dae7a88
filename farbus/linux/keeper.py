"""The keeper: the parent of every program that an agent starts, which outlives the agent.

Run with nothing but the standard library (:func:`command`), so that it starts
in some twenty milliseconds and imports none of Farbus.  Its working directory is its own, ``STATE/programs/NAME``:

================  ================================================================
``control``       the socket that it listens at; it gets it as its standard input
``program.json``  written by the agent: how to find what a killed keeper leaves
``keeper.json``   this process, the program, and their control group
``exit.json``     how the program ended, on the disk before anybody is told
``output/``       the program's output, unless it is to be kept elsewhere
================  ================================================================

It keeps what must not depend on an agent: the program's output
(:class:`OutputLog`), its time limit, its exit status.  It exists besides
because three things can't be had from a parent with threads:

* privileges, limits and the working directory are changed between fork and
  exec without running Python in a fork of a threaded process (no preexec_fn);
* when the keeper is killed the program dies with it (PR_SET_PDEATHSIG);
* it is a child subreaper (prctl(2)), so processes that daemonise stay its
  descendants, and none outlives the program.

Control: lines of JSON in both directions.  The keeper begins with ``{"version",
"state", "keeper", "pid", "code", "reason", "saved"}``.  An agent says
``{"version", "descriptors"}``, with those descriptors beside the line
(SCM_RIGHTS), then any of ``start`` (a specification), ``signal`` (number), ``end``
(grace_s, reason), ``kill`` (reason), ``watch`` (position), ``note`` (text) and
``forget``, each under ``"do"``.  Events: ``started``, ``failed`` (stage, errno),
``output`` (there is some beyond the position watched), ``exited`` (code, reason,
saved).  What is not understood ends its connection and nothing else.
"""

from __future__ import annotations

# Not socket, which doubles the time that a keeper takes to start.
import _socket
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import struct
import time

# For os.execvpe, which loads it when it is called: then as a user who may not be allowed to read it.
import warnings  # noqa: F401

TYPE_CHECKING = False
if TYPE_CHECKING:
    # Not loaded: what only a type checker reads would cost a tenth of the start.
    from collections.abc import Callable
    from typing import Any, NoReturn

VERSION = 1
"""Of the protocol: an agent must understand those of all keepers that may still run when it is installed."""

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

MARK = "FARBUS_KEPT"
"""In the environment of the program and so of what it starts: finds them when their keeper was killed."""

SPARED_INTERVAL_S = 0.1
"""Between two looks at what was told to end with its program and has time left; ends of children are told besides."""

SWEEP_INTERVAL_S = 0.01
"""Between the first two sweeps over what a program has left: a killed process needs a moment to die."""

LONGEST_SWEEP_INTERVAL_S = 1.0
"""Between two sweeps over what does not die: in uninterruptible sleep a process takes its signal when it wakes."""

UNKILLABLE_AFTER_S = 2.0
"""How long what a program has left may take to die before its log says what does not."""

NAMED_PROCESSES = 8
"""Processes that such a notice names."""

TIME_LIMIT_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL for a program that has used up its time, that no agent has come back for, or whose unit
is stopped."""

STOPPED = "its unit was stopped, or its machine shut down"
"""Why a program ended whose keeper was told to."""

BACKLOG = 16
"""Agents that may wait to be heard: there is one."""

FIRST_AGENT_S = 60.0
"""How long a keeper waits to be told what to start: its agent died in between."""

OUTPUT_DRAIN_S = 2.0
"""How long output is still read after everything that could write it has been killed."""

SAVE_AGAIN_S = 5.0
"""Between two attempts to write the exit status to a disk that refused."""

DIRECTORY_LOOK_S = 30.0
"""How often a keeper without an agent looks whether its directory is still there: no agent finds it without."""

PIECE_BYTES = 64 * 1024
"""Most output that is read at once: what a pipe holds."""

LINE_BYTES = 16 * 2**20
"""Longest control line: arguments and environment have at most 6 MiB (execve(2)), in JSON twice as much."""

MAX_CONNECTIONS = 8
"""Agents at a time: one, and those that end while the next has come.  The oldest goes."""

MAX_DESCRIPTORS = 16
"""Descriptors that a program inherits."""

SEGMENTS = 8
"""Segments per log: its limit is kept to within one of them."""

NOTICE_STREAM = 2
"""What Farbus itself has to say goes between the lines of standard error."""

RECORD = struct.Struct(">BI")
"""Before each piece of output: its stream (1 output, 2 error) and length."""

PEER = struct.Struct("iII")
"""struct ucred of SO_PEERCRED (unix(7)): process, user, group."""

INTEGER = struct.Struct("i")
"""A descriptor in an SCM_RIGHTS message."""

LONGEST_WAIT_MS = 3_600_000
"""poll(2) takes no more than 24 days at a time, and a time limit may be years."""

LONGEST_S = 1e9
"""More than any limit."""


class OutputLog:
    """A program's output in a directory, its oldest part dropped when there is too much.

    Segments ``00000001.log`` and so on, each a sequence of records
    (:data:`RECORD`), so that the streams stay in the order in which they were
    written.  A full disk loses output, never the program.
    """

    def __init__(self, directory: str, *, limit_bytes: int) -> None:
        self._directory = directory
        self._segment_bytes = max(1, limit_bytes // SEGMENTS)
        self._file = -1
        self._lost_bytes = 0
        # What is there already stays.
        self.number = max((int(name[:8]) for name in os.listdir(directory) if name.endswith(".log")), default=0)
        self.size = 0

    def append(self, stream: int, data: bytes) -> None:
        """Add output; what the disk refuses is counted, and told in the log when it takes some again."""
        try:
            if self._lost_bytes:
                self._write(NOTICE_STREAM, b"[farbus: %d bytes of output lost: disk]\n" % self._lost_bytes)
                self._lost_bytes = 0
            self._write(stream, data)
        except OSError:
            self._lost_bytes += len(data)

    def close(self) -> None:
        """End the log."""
        if self._lost_bytes:
            self.append(NOTICE_STREAM, b"")
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, stream: int, data: bytes) -> None:
        if not data:
            return
        if self._file < 0 or self.size >= self._segment_bytes:
            self._next_segment()
        record = RECORD.pack(stream, len(data)) + data
        written = 0
        try:
            while written < len(record):
                written += os.write(self._file, record[written:])
        except OSError:
            # The disk has just become full: half a record would hide all that follow.
            os.ftruncate(self._file, self.size)
            raise
        self.size += len(record)

    def _next_segment(self) -> None:
        descriptor = os.open(
            os.path.join(self._directory, f"{self.number + 1:08d}.log"),
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC,
            0o600,
        )
        if self._file >= 0:
            os.close(self._file)
        self.number, self._file, self.size = self.number + 1, descriptor, 0
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._directory, f"{self.number - SEGMENTS:08d}.log"))


def prctl(option: int, value: int) -> None:
    """Call prctl(2); raise OSError when it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def write_file(path: str, text: str) -> None:
    """Write to a file of the kernel's."""
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def save(name: str, content: dict[str, Any], *, durable: bool = True) -> None:
    """Write a file whole or not at all; a durable one is on the disk when this returns."""
    temporary = f".{name}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.dumps({"version": VERSION, **content}).encode())
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync(".")


def sync(path: str) -> None:
    """Return once a file's content, or a directory's names, are on the disk (fsync(2))."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def started_at(pid: int) -> int:
    """Return when a process was started, in ticks since boot (proc(5)): with its id it names it for ever."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        # The second field, the command in parentheses, may hold spaces and parentheses.
        return int(stat.read().rpartition(b")")[2].split()[19])


def close_others() -> None:
    """Close every descriptor from 3 on.

    uvloop leaves a child second, inheritable copies of its own streams and of
    the agent's log, and passes on what the agent was started with.
    """
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def leave_parent() -> None:
    """Go on in a child whose parent has ended: who waits for a keeper's start then waits for nothing else of it."""
    if os.fork():
        os._exit(0)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


def listen_here() -> None:
    """Make the socket at which agents find a keeper that the service manager has started, as descriptor 0."""
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    # Relative to the keeper's own directory: a whole path may be too long for an address (unix(7)).
    listener.bind("control")
    listener.listen(BACKLOG)
    os.dup2(listener.detach(), 0)


def notify(address: str, state: bytes) -> None:
    """Tell the service manager a state (sd_notify(3))."""
    sender = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    sender.connect("\0" + address[1:] if address.startswith("@") else address)
    sender.send(state)
    sender.close()


def divide_unit() -> str:
    """Make control groups for this keeper and for its program below those of its unit; return the program's.

    The service manager has delegated the unit's (Delegate=yes).  A group with
    controllers for its children holds no processes itself
    (Documentation/admin-guide/cgroup-v2.rst), so the keeper moves into a leaf.
    """
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        root = next(words[1] for words in map(str.split, mounts) if words[2] == "cgroup2")
    with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as groups:
        own = root + next(line.rstrip("\n").removeprefix("0::") for line in groups if line.startswith("0::"))
    for leaf in ("keeper", "program"):
        os.makedirs(os.path.join(own, leaf), exist_ok=True)
    write_file(os.path.join(own, "keeper", "cgroup.procs"), "0")
    for controller in ("memory", "cpu"):
        with contextlib.suppress(OSError):
            write_file(os.path.join(own, "cgroup.subtree_control"), f"+{controller}")
    with contextlib.suppress(OSError):
        # Killing one process of many would leave a program that half works.
        write_file(os.path.join(own, "program", "memory.oom.group"), "1")
    return os.path.join(own, "program")


def place_descriptors(wanted: dict[int, int]) -> None:
    """Put descriptors under the numbers that a program expects (number -> descriptor), to be inherited."""
    above = max([2, *wanted]) + 1
    moved = {}
    for number, descriptor in wanted.items():
        moved[number] = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above)
    for number, descriptor in moved.items():
        os.dup2(descriptor, number, inheritable=True)
        os.close(descriptor)


def become(specification: dict[str, Any], keeper_pid: int, report: int, streams: tuple[int, int]) -> NoReturn:
    """In the forked child: turn into the program, or report the stage that failed."""
    stage = "session"
    try:
        os.setsid()
        stage = "cgroup"
        if specification["cgroup"]:
            write_file(os.path.join(specification["cgroup"], "cgroup.procs"), "0")
        stage = "limits"
        # The keeper has made itself the last to be killed for memory.
        with contextlib.suppress(OSError):
            write_file("/proc/self/oom_score_adj", specification["oom_score_adj"])
        # The agent has raised its own.  An agent that does not say so has not.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(specification.get("descriptors", soft), soft), hard))
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
        if os.getppid() != keeper_pid:
            os._exit(127)
        os.umask(specification["umask"])
        # After the identity changed: the user must be allowed to be there.
        stage = "directory"
        os.chdir(specification["cwd"])
        stage = "streams"
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(streams[0], 1)
        os.dup2(streams[1], 2)
        place_descriptors(specification["keep"])
        # A program expects the defaults, whatever Python ignores for itself, and whatever the agent was started
        # with, as nohup starts programs.
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        stage = "program"
        os.execvpe(specification["argv"][0], specification["argv"], specification["environment"])  # noqa: S606
    except OSError as error:
        number = error.errno or 0
        if stage == "program" and "/" in specification["argv"][0] and os.path.isdir(specification["argv"][0]):
            # The kernel's word is EACCES, as for a file without the right to execute it.
            number = errno.EISDIR
        os.write(report, json.dumps({"stage": stage, "errno": number}).encode())
    except Exception as error:
        os.write(report, json.dumps({"stage": stage, "errno": 0, "text": str(error)}).encode())
    finally:
        os._exit(127)


def descendants() -> list[int]:
    """Return the process ids of all descendants, by the parents named in /proc/PID/stat (proc(5))."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as stat:
            parent = int(stat.read().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    frontier = [os.getpid()]
    while frontier:
        mine = children.get(frontier.pop(), [])
        found += mine
        frontier += mine
    return found


def kill_descendants(cgroup: str) -> bool:
    """Kill every descendant and reap those that have died; say whether none is left.

    To be repeated until then, since they may fork meanwhile.
    """
    if cgroup:
        with contextlib.suppress(OSError):
            write_file(os.path.join(cgroup, "cgroup.kill"), "1")
    for pid in descendants():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return True
    return False


def group_is_left(program: int) -> bool:
    """Say whether a program that has ended has descendants in its process group; reap those that have died."""
    reap_orphans(program)
    for pid in descendants():
        # One that has been reaped since, by its own parent.
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == program:
                return True
    return False


def describe_processes(pids: list[int]) -> str:
    """Name processes to people: ``process 812 (python3)``."""
    named = []
    for pid in pids[:NAMED_PROCESSES]:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
            named.append(f"process {pid} ({comm.read().strip()})")
    return ", ".join(named)


def reap_orphans(program: int) -> int | None:
    """Reap descendants that were left to this keeper; return the program's status once it has ended."""
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


class Connection:
    """One agent's connection."""

    def __init__(self, connected: _socket.socket) -> None:
        self.socket = connected
        self.buffer = bytearray()
        self.greeted = False
        self.descriptors: list[int] = []
        self.watching: tuple[int, int] | None = None

    def close(self) -> None:
        """End it."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []
        self.socket.close()


class Keeper:
    """One program's life."""

    def __init__(self) -> None:
        self.listener = _socket.socket(fileno=os.dup(0))
        self.listener.setblocking(False)
        self.poll = select.poll()
        self.ready: dict[int, Callable[[], None]] = {}
        self.connections: dict[int, Connection] = {}
        self.specification: dict[str, Any] = {}
        self.told_to_stop = False
        self.stop_counts_until = 0.0
        self.log: OutputLog | None = None
        self.outputs: set[int] = set()
        self.state = "new"
        self.pid = 0
        self.cgroup = ""
        self.code = 0
        self.reason = ""
        self.saved = False
        self.gone = False
        now = time.monotonic()
        self.alone_since: float | None = now
        self.time_limit_at: float | None = None
        self.kill_at: float | None = None
        self.ended_at = 0.0
        self.spared_until = 0.0
        self.sweep_at: float | None = None
        self.told_unkillable = False
        self.drained_at: float | None = None
        self.save_at: float | None = None
        self.look_at: float | None = now + DIRECTORY_LOOK_S

    # The loop.

    def run(self) -> None:
        """Serve until the program has ended and its status is safe, or nobody wants it."""
        self.wait_for(self.listener.fileno(), self.accept)
        while not self.gone:
            times = (
                self.alone_until(), self.time_limit_at, self.kill_at, self.sweep_at, self.drained_at, self.save_at,
                self.look_at,
            )  # fmt: skip
            soonest = min((at for at in times if at is not None), default=None)
            left = None if soonest is None else min(max(0.0, soonest - time.monotonic()) * 1000 + 1, LONGEST_WAIT_MS)
            for descriptor, _ in self.poll.poll(left):
                if (handler := self.ready.get(descriptor)) is not None:
                    handler()
            self.look_at_time(time.monotonic())
        if self.log is not None:
            # A disk that refused output to the end may have room again for how much that was.
            self.log.close()
        for connection in list(self.connections.values()):
            self.drop(connection)

    def wait_for(self, descriptor: int, handler: Callable[[], None]) -> None:
        """Call ``handler`` whenever there is something to read."""
        self.poll.register(descriptor, select.POLLIN)
        self.ready[descriptor] = handler

    def stop_waiting(self, descriptor: int) -> None:
        """Call it no more."""
        self.poll.unregister(descriptor)
        del self.ready[descriptor]

    def alone_until(self) -> float | None:
        """Return when a keeper without an agent gives up; None for never."""
        if self.state == "ending":
            return None
        limit = FIRST_AGENT_S if self.state == "new" else self.specification["orphan_limit_s"]
        return self.alone_since + limit if self.alone_since is not None and limit else None

    def look_at_time(self, now: float) -> None:
        """Do what is due."""
        alone_until = self.alone_until()
        if alone_until is not None and alone_until <= now:
            self.alone_since = None
            if self.state == "new":
                self.remove_all()
            elif self.state == "running":
                limit = self.specification["orphan_limit_s"]
                self.end(TIME_LIMIT_GRACE_S, f"no agent has come back for it within {limit:g} s")
            else:
                self.gone = True
        if self.time_limit_at is not None and self.time_limit_at <= now:
            self.time_limit_at = None
            limit = self.specification["time_limit_s"]
            self.end(TIME_LIMIT_GRACE_S, f"it has run for its time limit of {limit:g} s")
        if self.kill_at is not None and self.kill_at <= now:
            self.kill_at = None
            self.kill_program()
        if self.sweep_at is not None and self.sweep_at <= now:
            self.sweep()
        if self.drained_at is not None and self.drained_at <= now:
            self.finish()
        if self.save_at is not None and self.save_at <= now:
            self.save_exit()
        if self.look_at is not None and self.look_at <= now:
            self.look_at = now + DIRECTORY_LOOK_S
            self.look_for_directory()

    def look_for_directory(self) -> None:
        """End where the directory is gone: with the state of its agent, which nobody can ask for any more."""
        if os.path.lexists("control"):
            return
        self.look_at = None
        if self.state == "running":
            self.end(TIME_LIMIT_GRACE_S, "its directory is gone")
        elif self.state != "ending":
            self.gone = True

    # Agents.

    def accept(self) -> None:
        """Let an agent in."""
        try:
            connected = _socket.socket(fileno=self.listener._accept()[0])  # type: ignore[attr-defined]
        except OSError:
            return
        _, user, _ = PEER.unpack(connected.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, PEER.size))
        if user not in (0, os.geteuid()):
            connected.close()
            return
        if len(self.connections) >= MAX_CONNECTIONS:
            self.drop(next(iter(self.connections.values())))
        connected.setblocking(False)
        # What an agent has said before it was killed comes first: the next one is told what has become of it.
        for earlier in list(self.connections.values()):
            self.hear_out(earlier)
        connection = Connection(connected)
        self.connections[connected.fileno()] = connection
        self.wait_for(connected.fileno(), lambda: self.hear(connection))
        self.alone_since = self.look_at = None
        self.tell(
            connection, version=VERSION, state=self.state, keeper=os.getpid(), pid=self.pid,
            code=self.code, reason=self.reason, saved=self.saved,
        )  # fmt: skip

    def drop(self, connection: Connection) -> None:
        """Part with an agent."""
        descriptor = connection.socket.fileno()
        if self.connections.pop(descriptor, None) is None:
            return
        self.stop_waiting(descriptor)
        connection.close()
        if not self.connections:
            self.alone_since = time.monotonic()
            self.look_at = self.alone_since + DIRECTORY_LOOK_S
            if self.state == "new":
                self.remove_all()

    def tell(self, connection: Connection, **message: Any) -> None:
        """Send a line; an agent that reads so little that there is no room for it is parted with."""
        line = json.dumps(message).encode() + b"\n"
        try:
            complete = connection.socket.send(line) == len(line)
        except OSError:
            complete = False
        if not complete:
            self.drop(connection)

    def tell_all(self, **message: Any) -> None:
        """Send a line to every agent."""
        for connection in list(self.connections.values()):
            self.tell(connection, **message)

    def hear(self, connection: Connection) -> None:
        """Read what an agent says and do it; nothing that it says may end this keeper."""
        try:
            room = _socket.CMSG_SPACE(MAX_DESCRIPTORS * INTEGER.size)
            data, extras, _, _ = connection.socket.recvmsg(PIECE_BYTES, room, _socket.MSG_CMSG_CLOEXEC)
            for level, kind, content in extras:
                if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
                    whole = len(content) - len(content) % INTEGER.size
                    connection.descriptors += [number for (number,) in INTEGER.iter_unpack(content[:whole])]
            if not data:
                raise ConnectionResetError
            connection.buffer += data
            if len(connection.buffer) > LINE_BYTES or len(connection.descriptors) > MAX_DESCRIPTORS:
                raise ValueError("too much")
            if b"\n" not in data:
                return
            *lines, connection.buffer = connection.buffer.split(b"\n")
            for line in lines:
                if connection.socket.fileno() < 0:
                    return
                self.obey(connection, json.loads(line))
        except BlockingIOError:
            pass
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            self.drop(connection)

    def hear_out(self, connection: Connection) -> None:
        """Do all that an agent has said so far."""
        said = select.poll()
        said.register(connection.socket.fileno(), select.POLLIN)
        for _ in range(LINE_BYTES // PIECE_BYTES):
            if connection.socket.fileno() < 0 or not said.poll(0):
                return
            self.hear(connection)

    def obey(self, connection: Connection, message: dict[str, Any]) -> None:
        """Do what one line says."""
        if not connection.greeted:
            if not isinstance(message["version"], int):
                raise TypeError("version")
            connection.greeted = True
            return
        match message["do"]:
            case "start" if self.state == "new" and not self.gone:
                self.start(connection, message)
            case "signal":
                number = signal.Signals(message["number"])
                if self.state == "running":
                    with contextlib.suppress(OSError):
                        os.killpg(self.pid, number)
            case "end":
                self.end(float(message["grace_s"]), str(message["reason"]))
            case "kill":
                self.end(0.0, str(message["reason"]))
            case "watch":
                number, size = message["position"]
                connection.watching = (int(number), int(size))
                self.tell_watchers()
            case "note":
                if self.log is not None:
                    self.log.append(NOTICE_STREAM, str(message["text"]).encode())
                    self.tell_watchers()
            case "forget":
                # Before its end it is not to be forgotten.
                self.gone = self.state == "ended"
            case word:
                raise ValueError(word)

    # The program.

    def start(self, connection: Connection, message: dict[str, Any]) -> None:
        """Start the program."""
        if len(message["keep"]) != len(connection.descriptors):
            raise ValueError("descriptors")
        specification = {**message, "keep": dict(zip(message["keep"], connection.descriptors, strict=True))}
        for name in ("time_limit_s", "orphan_limit_s"):
            specification[name] = min(max(0.0, float(message[name])), LONGEST_S)
        try:
            if message["unit"]:
                specification["cgroup"] = divide_unit()
            own = os.path.dirname(specification["cgroup"]) if message["unit"] else specification["cgroup"]
            with open("/proc/self/oom_score_adj", encoding="ascii") as file:
                specification["oom_score_adj"] = file.read()
            with contextlib.suppress(OSError):
                write_file("/proc/self/oom_score_adj", "-1000")
            os.makedirs(message["output"], mode=0o700, exist_ok=True)
            identity = {
                "keeper": os.getpid(), "started_at": started_at(os.getpid()), "cgroup": own,
                "mark": specification["environment"].get(MARK, ""),
            }  # fmt: skip
            pid, outputs = self.fork(specification, identity)
        except (OSError, StopIteration) as error:
            number = error.errno or 0 if isinstance(error, OSError) else 0
            self.tell(connection, event="failed", stage="keeper", errno=number, text=str(error))
            self.remove_all()
            return
        if not pid:
            self.tell(connection, event="failed", **json.loads(outputs))
            self.remove_all()
            return
        self.state, self.pid = "running", pid
        # Not the environment, which may hold what the user wants to be forgotten.
        kept = ("time_limit_s", "orphan_limit_s", "memory_reason", "unit")
        self.specification = {name: specification[name] for name in kept}
        self.cgroup = specification["cgroup"]
        for descriptor in connection.descriptors:
            os.close(descriptor)
        connection.descriptors = []
        self.log = OutputLog(message["output"], limit_bytes=int(message["output_bytes"]))
        for stream, descriptor in enumerate(outputs, start=1):
            self.outputs.add(descriptor)
            self.wait_for(descriptor, self.copier(stream, descriptor))
        if specification["time_limit_s"]:
            self.time_limit_at = time.monotonic() + specification["time_limit_s"]
        self.tell(connection, event="started", pid=pid)
        self.watch_children()

    def fork(self, specification: dict[str, Any], identity: dict[str, Any]) -> tuple[int, Any]:
        """Fork and exec; return the process id and the read ends of its streams, or 0 and what failed, as JSON.

        Exec may hang, on a dead network file system: an agent that gets no answer finds keeper and program by
        their ``identity``, which is written down before there is a program.
        """
        save("keeper.json", identity, durable=False)
        pipes = [os.pipe(), os.pipe()]
        for read_end, _ in pipes:
            # A program of this user's can open its pipe and take what was seen to be there: nobody waits for that here.
            os.set_blocking(read_end, False)
        heard, report = os.pipe()
        keeper_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            # Out of the way of the numbers that the program's own descriptors shall have.
            above = max([2, *specification["keep"]]) + 1
            report = fcntl.fcntl(report, fcntl.F_DUPFD_CLOEXEC, above)
            become(specification, keeper_pid, report, (pipes[0][1], pipes[1][1]))
        with contextlib.suppress(OSError):
            # Without it: a program whose keeper is killed before exec ends by itself; later it is found by its mark.
            save("keeper.json", {**identity, "pid": pid, "pid_started_at": started_at(pid)}, durable=False)
        for descriptor in (report, pipes[0][1], pipes[1][1]):
            os.close(descriptor)
        with os.fdopen(heard, "rb") as pipe:
            # The write end is close-on-exec: end of file without a word means that exec worked.
            failure = pipe.read()
        if not failure:
            return pid, (pipes[0][0], pipes[1][0])
        os.waitpid(pid, 0)
        os.close(pipes[0][0])
        os.close(pipes[1][0])
        return 0, failure

    def watch_children(self) -> None:
        """Notice ends of children in the loop."""
        wake, woken = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self.note_stop)
        self.wait_for(wake, lambda: self.reap(wake))
        # Once before the first wait: the program may have ended before SIGCHLD was handled.
        self.reap(wake)

    def note_stop(self, *_: Any) -> None:
        """Take note of SIGTERM; the loop does the rest."""
        self.told_to_stop = True

    def stop(self) -> None:
        """End the program, whose unit is stopped; elsewhere only take note that all processes are being ended."""
        if self.specification["unit"]:
            # The service manager has told nobody else (KillMode=mixed).
            self.end(TIME_LIMIT_GRACE_S, STOPPED)
        else:
            # A second SIGTERM might keep the program from ending well.
            self.stop_counts_until = time.monotonic() + TIME_LIMIT_GRACE_S

    def reap(self, wake: int) -> None:
        """Take the ends of children; after the program's own kill what it left."""
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)
        if self.told_to_stop:
            self.told_to_stop = False
            self.stop()
        if self.sweep_at is not None:
            self.sweep()
        if self.state != "running" or (status := reap_orphans(self.pid)) is None:
            return
        self.code = os.waitstatus_to_exitcode(status)
        self.state = "ending"
        # Its group was told to end as well, and has the same time for it: a shell ends at once, and what it has
        # started may have work to save.
        self.spared_until = self.kill_at or 0.0
        self.time_limit_at = self.kill_at = None
        self.ended_at = time.monotonic()
        if not self.reason and self.ended_at < self.stop_counts_until:
            self.reason = STOPPED
        self.sweep()

    def sweep(self) -> None:
        """Kill what the program has left; go on, for as long as it takes, until nothing is there.

        Nobody is told of the end before: what is left may use the program's devices.
        """
        now = time.monotonic()
        if now < self.spared_until and group_is_left(self.pid):
            self.sweep_at = min(self.spared_until, now + SPARED_INTERVAL_S)
            self.ended_at = now
            return
        self.spared_until = 0.0
        if kill_descendants(self.cgroup):
            self.sweep_at = None
            if self.outputs:
                # All writers are dead, unless one has got its stream from another process: then the rest is given up.
                self.drained_at = now + OUTPUT_DRAIN_S
            else:
                self.finish()
            return
        elapsed_s = now - self.ended_at
        self.sweep_at = now + min(max(SWEEP_INTERVAL_S, elapsed_s / 4), LONGEST_SWEEP_INTERVAL_S)
        if elapsed_s >= UNKILLABLE_AFTER_S and not self.told_unkillable and (left := describe_processes(descendants())):
            self.told_unkillable = True
            assert self.log is not None
            notice = f"farbus: it has ended, but {left} can't be killed: waiting for the end of that, see dmesg\n"
            self.log.append(NOTICE_STREAM, notice.encode())
            self.tell_watchers()

    def copier(self, stream: int, descriptor: int) -> Callable[[], None]:
        """Return what copies a stream's next piece to the log."""

        def copy() -> None:
            try:
                data = os.read(descriptor, PIECE_BYTES)
            except BlockingIOError:
                return
            assert self.log is not None
            if data:
                self.log.append(stream, data)
                self.tell_watchers()
                return
            self.stop_waiting(descriptor)
            os.close(descriptor)
            self.outputs.discard(descriptor)
            if not self.outputs and self.drained_at is not None:
                self.finish()

        return copy

    def tell_watchers(self) -> None:
        """Tell those who wait for more output, once each."""
        if self.log is None:
            return
        for connection in list(self.connections.values()):
            if connection.watching is not None and connection.watching < (self.log.number, self.log.size):
                connection.watching = None
                self.tell(connection, event="output")

    def end(self, grace_s: float, reason: str) -> None:
        """End the program: SIGTERM to its group, after ``grace_s`` SIGKILL to all of it; or never start it."""
        if self.state == "new":
            self.remove_all()
        at = time.monotonic() + min(max(0.0, grace_s), LONGEST_S)
        if self.state == "ending" and at < self.spared_until:
            self.spared_until = at
            self.sweep()
        if self.state != "running":
            return
        self.reason = self.reason or reason
        self.kill_at = at if self.kill_at is None else min(self.kill_at, at)
        if grace_s > 0:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGTERM)

    def kill_program(self) -> None:
        """Kill the program's group and descendants; its status is still to be reaped."""
        if self.cgroup:
            with contextlib.suppress(OSError):
                write_file(os.path.join(self.cgroup, "cgroup.kill"), "1")
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        for descendant in descendants():
            with contextlib.suppress(OSError):
                os.kill(descendant, signal.SIGKILL)

    def finish(self) -> None:
        """Complete the log, save the status, tell it."""
        self.drained_at = None
        self.take_rest()
        for descriptor in list(self.outputs):
            self.stop_waiting(descriptor)
            os.close(descriptor)
        self.outputs.clear()
        if not self.reason and self.code and self.out_of_memory():
            self.reason = self.specification["memory_reason"]
        assert self.log is not None
        if self.reason:
            self.log.append(NOTICE_STREAM, f"farbus: stopped: {self.reason}\n".encode())
        self.log.close()
        self.tell_watchers()
        self.state = "ended"
        self.save_exit()
        self.tell_all(event="exited", code=self.code, reason=self.reason, saved=self.saved)

    def take_rest(self) -> None:
        """Read what the pipes hold: a disk may have kept this process for longer than the time to do so.

        No more than a pipe can hold, for somebody may be writing still.
        """
        for descriptor in list(self.outputs):
            waiting = select.poll()
            waiting.register(descriptor, select.POLLIN)
            for _ in range(0, fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ), PIECE_BYTES):
                if descriptor in self.outputs and waiting.poll(0):
                    self.ready[descriptor]()

    def out_of_memory(self) -> bool:
        """Say whether the kernel has killed for the limit of the program's control group."""
        if not self.cgroup:
            return False
        for group in (self.cgroup, os.path.dirname(self.cgroup)) if self.specification["unit"] else (self.cgroup,):
            with contextlib.suppress(OSError), open(os.path.join(group, "memory.events"), encoding="ascii") as events:
                if any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in events):
                    return True
        return False

    def save_exit(self) -> None:
        """Write the status to the disk, and be done; where the disk refuses, stay until an agent has taken it."""
        try:
            with contextlib.suppress(FileNotFoundError):
                # Without it nobody knows after a power cut whose status this is; before there is one it may be lost.
                sync("program.json")
            save("exit.json", {"code": self.code, "reason": self.reason})
            sync("..")
        except FileNotFoundError:
            # The whole directory is gone: nobody will ask.
            pass
        except OSError:
            self.save_at = time.monotonic() + SAVE_AGAIN_S
            return
        self.saved = self.gone = True

    def remove_all(self) -> None:
        """Leave nothing: the program was never started."""
        self.gone = True
        for name in ("control", "program.json", "keeper.json"):
            with contextlib.suppress(OSError):
                os.unlink(name)
        with contextlib.suppress(OSError):
            os.rmdir("output")
        with contextlib.suppress(OSError):
            os.rmdir(os.getcwd())


def main() -> None:
    """Become a keeper."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A keeper ends after its program, never before: also when the service manager ends everything (note_stop).
        signal.signal(number, signal.SIG_IGN)
    if os.environ.get("NOTIFY_SOCKET"):
        listen_here()
        notify(os.environ.pop("NOTIFY_SOCKET"), b"READY=1")
    else:
        leave_parent()
    close_others()
    with contextlib.suppress(OSError):
        # What process listings call it; the program gets its own name by exec.
        write_file("/proc/self/comm", "farbus-keeper")
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    keeper = Keeper()
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    keeper.run()


def command(python: str, owner: str, name: str) -> list[str]:
    """Return the command that starts a keeper: as a module, since a script is compiled anew each time."""
    program = "import sys; sys.path.append(sys.argv[1]); import keeper; keeper.main()"
    return [python, "-I", "-S", "-c", program, os.path.dirname(os.path.abspath(__file__)), owner, name]
